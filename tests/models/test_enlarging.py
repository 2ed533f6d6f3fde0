"""Feature maps at twice their size: torch's values, and its gradients."""

import pytest
import torch
import torch.nn.functional as F

from relograph.models.enlarging import doubled


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 3), (8, 6)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_are_those_of_torch(size: tuple[int, int], memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64).to(memory_format=memory_format)
    x.requires_grad_()
    wanted = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    assert torch.equal(doubled(x), wanted)
    weight = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (doubled(x), wanted))
    torch.testing.assert_close(ours, theirs)
