"""Feature maps at twice their size, with a gradient that is gathered."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx


class Doubled(torch.autograd.Function):
    """Bilinear interpolation to twice the size.

    torch's own gradient adds every pixel to four others, one after the other where they meet: on a GPU in bfloat16 that
    takes longer than a convolution. Here each pixel collects what its own gradient is made of.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Float[Tensor, "M C h w"]) -> Float[Tensor, "M C H W"]:
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Float[Tensor, "M C h w"]:
        (gradient,) = gradients
        return _halved(_halved(gradient, dim=2), dim=3)


def _halved(gradient: Tensor, dim: int) -> Tensor:
    """What two pixels of the large map and their neighbours give to one of the small: 1/4, 3/4, 3/4 and 1/4."""
    even, odd = gradient.unflatten(dim, (-1, 2)).unbind(dim + 1)
    count = even.shape[dim]
    # At the border a large pixel has but one small one to be made of, which gets what it has.
    before = torch.cat([even.narrow(dim, 0, 1), odd.narrow(dim, 0, count - 1)], dim)
    after = torch.cat([even.narrow(dim, 1, count - 1), odd.narrow(dim, count - 1, 1)], dim)
    return torch.lerp(even + odd, before + after, 0.25)


def doubled(x: Float[Tensor, "M C h w"]) -> Float[Tensor, "M C H W"]:
    """A feature map at twice its size."""
    larger: Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]  # torch's stub has no types
    return larger
