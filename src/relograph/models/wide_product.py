"""Products of bfloat16 matrices with all the digits that they have."""

import torch
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
