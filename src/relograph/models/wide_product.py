"""Products of matrices: of bfloat16 with all the digits that they have, and of float32 as fast as a CPU can."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx


class WideProduct(torch.autograd.Function):
    """a b^T as float32 at least. The gradient is rounded to the factors' own type, as that of any layer is."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Float[Tensor, "M P C"], b: Float[Tensor, "M Q C"]) -> Float[Tensor, "M P Q"]:
        ctx.save_for_backward(a, b)
        if a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16):
            return torch.bmm(a, b.mT, out_dtype=torch.float32)  # eight times as fast as to widen the factors
        wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
        return a.to(wide) @ b.to(wide).mT

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors  # type: ignore[attr-defined]  # torch's stub has none
        (gradient,) = gradients
        return gradient.to(b.dtype) @ b, gradient.mT.to(a.dtype) @ a


def wide_product(a: Float[Tensor, "M P C"], b: Float[Tensor, "M Q C"]) -> Float[Tensor, "M P Q"]:
    """a b^T as float32 at least, whatever autocast says."""
    with torch.autocast(a.device.type, enabled=False):
        product: Tensor = WideProduct.apply(a, b)  # type: ignore[no-untyped-call]  # torch's stub has no types
        return product


def convolved_product(
    a: Float[Tensor, "P C"], b: Float[Tensor, "Q C 1 1"], bias: Float[Tensor, "Q"] | None = None
) -> Float[Tensor, "P Q"]:
    """a b^T + bias by a convolution, on some CPUs in half the time of a product.

    For products of float32 torch asks MKL, which gives AMD's processors no AVX-512; for convolutions it asks oneDNN,
    which does. On one thread a window of one place would be a product again, were its places not two apart.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return F.linear(a, b.flatten(1), bias)
    places = a[None, None].permute(0, 3, 1, 2)  # [1, C, 1, P], channels last
    return F.conv2d(places, b, bias, dilation=2).permute(0, 2, 3, 1)[0, 0]
