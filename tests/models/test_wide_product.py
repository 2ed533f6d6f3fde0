"""Products of bfloat16 matrices in float32, with their gradients; and those of float32 by a convolution."""

import pytest
import torch

from relograph.models.wide_product import convolved_product, wide_product


def test_the_product_of_rounded_factors_is_not_rounded() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, size, 16, generator=generator).bfloat16() for size in (3, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = wide_product(a, b)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product, (a.double() @ b.double().mT).float(), rtol=1e-6, atol=1e-6)


def test_its_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, size, 4, generator=generator, dtype=torch.float64, requires_grad=True) for size in (3, 5))
    assert torch.autograd.gradcheck(wide_product, (a, b))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, size, 64, generator=generator).bfloat16() for size in (24, 40))
    on_gpu = [factor.cuda().requires_grad_() for factor in (a, b)]
    product = wide_product(*on_gpu)
    torch.testing.assert_close(product.cpu(), wide_product(a, b), rtol=1e-5, atol=1e-5)
    product.square().sum().backward()
    assert all(factor.grad is not None and factor.grad.dtype == torch.bfloat16 for factor in on_gpu)


@pytest.mark.parametrize("num_rows", [3, 700])  # which torch leaves to two kernels
@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
def test_a_product_by_a_convolution_is_the_product(
    num_rows: int, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, bias = (torch.randn(*shape, generator=generator) for shape in ((num_rows, 48), (20, 48), (20,)))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    wanted = a.double() @ b.double().T
    for given in (a, a.T.contiguous().T):  # rows of whatever order in memory
        torch.testing.assert_close(convolved_product(given, b[..., None, None]).double(), wanted, rtol=0, atol=2e-5)
    found = convolved_product(a, b[..., None, None], bias).double()
    torch.testing.assert_close(found, wanted + bias, rtol=0, atol=2e-5)
