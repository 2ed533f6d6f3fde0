"""The little that ALIKED needs of torchvision, in plain torch: torchvision's wheels do not go with a CPU torch."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: tuple[int, int] = (0, 0),
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution whose taps are moved, each at each place by its own offset (Dai et al. 2017, Zhu et al. 2019).

        out[o, y, x] = bias[o] + sum over c, k of weight[o, c, k] * mask[k, y, x] * input[c](p_k + offset[k, y, x])

    with p_k = (y, x) - padding + (row, column) of tap k, bilinear between pixels, and zero outside of the image. It is
    torchvision's function of that name for stride 1, dilation 1 and one group of offsets.

    Shapes: input [B, C, H, W]; offset [B, 2 K, H', W'], (y, x) of one tap after the other; weight [O, C, rows, columns]
    with K = rows * columns; mask [B, K, H', W']; out [B, O, H', W'].
    """
    rows, columns = weight.shape[2:]
    height, width = input.shape[2:]
    out_height, out_width = offset.shape[2:]
    like = {"dtype": input.dtype, "device": input.device}
    tap = torch.stack(
        torch.meshgrid(torch.arange(rows, **like), torch.arange(columns, **like), indexing="ij"), dim=-1
    ).reshape(-1, 1, 1, 2)  # [K, 1, 1, 2] of (y, x)
    place = torch.stack(
        torch.meshgrid(torch.arange(out_height, **like), torch.arange(out_width, **like), indexing="ij"), dim=-1
    )  # [H', W', 2]
    moved = offset.unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2)  # [B, K, H', W', 2]
    at = moved + tap + place - torch.tensor(padding, **like)
    # grid_sample wants (x, y) with -1 and 1 in the middle of the first and of the last pixel.
    half = torch.tensor([max(width - 1, 1), max(height - 1, 1)], **like) / 2
    grid = at.flip(-1) / half - 1
    sampled = F.grid_sample(input, grid.flatten(1, 2), mode="bilinear", padding_mode="zeros", align_corners=True)
    sampled = sampled.unflatten(2, (rows * columns, out_height))  # [B, C, K, H', W']
    if mask is not None:
        sampled = sampled * mask[:, None]
    out = torch.einsum("bckyx,ock->boyx", sampled, weight.flatten(2))
    return out if bias is None else out + bias[:, None, None]


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


def stand_in_for_torchvision() -> None:
    """From here on `import torchvision` finds what is above, and nothing else, in this process."""

    def module(name: str, **contents: object) -> ModuleType:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, loader=None)
        vars(made).update(contents)
        sys.modules[name] = made
        return made

    ops = module("torchvision.ops", deform_conv2d=deform_conv2d)
    resnet = module("torchvision.models.resnet", conv1x1=conv1x1, conv3x3=conv3x3)
    models = module("torchvision.models", resnet=resnet)
    module("torchvision", ops=ops, models=models)
