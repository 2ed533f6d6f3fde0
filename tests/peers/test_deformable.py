"""Deformable convolution in plain torch, against its definition written as loops."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close


@pytest.fixture(scope="module")
def deformable() -> ModuleType:
    script = Path(__file__).parents[2] / "peers" / "deformable.py"
    spec = importlib.util.spec_from_file_location("deformable", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bilinear(image: Tensor, y: float, x: float) -> float:
    """A pixel between pixels; what is outside counts as zero."""
    value, top, left = 0.0, math.floor(y), math.floor(x)
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                value += float(image[row, column]) * (1 - abs(y - row)) * (1 - abs(x - column))
    return value


def by_loops(input: Tensor, offset: Tensor, weight: Tensor, padding: tuple[int, int], mask: Tensor | None) -> Tensor:
    (batch, channels), (out_height, out_width) = input.shape[:2], offset.shape[2:]
    out = torch.zeros(batch, len(weight), out_height, out_width, dtype=input.dtype)
    rows, columns = weight.shape[2:]
    for b in range(batch):
        for y in range(out_height):
            for x in range(out_width):
                for k in range(rows * columns):
                    at_y = y - padding[0] + k // columns + float(offset[b, 2 * k, y, x])
                    at_x = x - padding[1] + k % columns + float(offset[b, 2 * k + 1, y, x])
                    passes = 1.0 if mask is None else float(mask[b, k, y, x])
                    for c in range(channels):
                        value = passes * bilinear(input[b, c], at_y, at_x)
                        out[b, :, y, x] += weight[:, c, k // columns, k % columns] * value
    return out


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 3), (1, 1)), ((1, 1), (0, 0)), ((3, 1), (1, 0))])
def test_a_deformable_convolution_is_the_sum_over_its_moved_taps(deformable, kernel, padding, with_mask):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    taps = kernel[0] * kernel[1]
    input, weight = normal(2, 3, 5, 6), normal(4, 3, *kernel)
    offset = 2 * normal(2, 2 * taps, 5, 6)  # some lead out of the image
    mask = normal(2, taps, 5, 6).sigmoid() if with_mask else None
    assert_close(
        deformable.deform_conv2d(input, offset, weight, padding=padding, mask=mask),
        by_loops(input, offset, weight, padding, mask),
    )


def test_taps_that_stay_in_place_make_an_ordinary_convolution(deformable):
    generator = torch.Generator().manual_seed(1)
    input, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((1, 4, 9, 7), (5, 4, 3, 3), (5,)))
    moved = deformable.deform_conv2d(input, torch.zeros(1, 18, 9, 7), weight, bias, padding=(1, 1))
    assert_close(moved, torch.nn.functional.conv2d(input, weight, bias, padding=1), atol=1e-5, rtol=1e-5)


def test_the_stand_in_is_found_as_torchvision_and_holds_nothing_else(deformable, monkeypatch):
    for name in ("torchvision", "torchvision.ops", "torchvision.models", "torchvision.models.resnet"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is undone afterwards
    deformable.stand_in_for_torchvision()
    import torchvision
    from torchvision.models import resnet

    assert torchvision.ops.deform_conv2d is deformable.deform_conv2d
    assert resnet.conv3x3(8, 16).weight.shape == (16, 8, 3, 3)
    with pytest.raises(ImportError):
        importlib.import_module("torchvision.transforms")
