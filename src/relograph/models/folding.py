"""An encoder for answering: batch norm is part of the convolutions, and nothing is learned any more.

In evaluation batch norm is a fixed scale and shift of every channel, so the convolution before it can do both:

    gamma (conv(x) - mean) / sqrt(var + eps) + beta = conv'(x) + b

A query is one image, and on a GPU its encoder is a hundred small kernels; this leaves out a third of them or more.
"""

import copy
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from relograph.models.encoder import ResidualBlock, ResNet
from relograph.models.match_gnn import Attention, ConvBlock, Matcher, MatchGNN
from relograph.models.wide_product import convolved_product


def fold_batch_norm(encoder: ResNet, *, fused: bool = False) -> ResNet:
    """A copy of an encoder that says in training and in evaluation what `encoder` says in evaluation.

    With `fused` each convolution of a block is one kernel of cuDNN's on a GPU, with the addition and the ReLU after
    it; its weights must have the type of its input there, as cuDNN's kernels know no autocast. Fold before weights are
    rounded to bfloat16: products of rounded numbers are rounded twice.
    """
    folded = copy.deepcopy(encoder)
    folded.conv1 = folded_convolution(encoder.conv1, encoder.bn1)
    folded.register_module("bn1", nn.Identity())
    for stage in range(1, 5):
        blocks = getattr(encoder, f"layer{stage}")
        setattr(folded, f"layer{stage}", nn.Sequential(*(FoldedBlock(block, fused=fused) for block in blocks)))
    return folded.requires_grad_(False)


def fold_match_gnn(model: MatchGNN, *, for_export: bool = False) -> MatchGNN:
    """A copy of a MatchGNN that says in training and in evaluation what `model` says in evaluation.

    Its channels come last: so do those of tokens, and nothing has to be turned over between the two. On a CPU linear
    layers of tokens are `convolved_product`s then, but not `for_export`: whoever runs that has kernels of its own.
    """
    folded = copy.deepcopy(model)
    for block in folded.modules():
        if isinstance(block, ConvBlock):
            for number in (1, 2):
                _fold_pair(block, f"conv{number}", f"bn{number}")
            if isinstance(block.shortcut, nn.Sequential):
                _fold_pair(block.shortcut, "0", "1")
    for convolution_first in (folded.encoder.stem, folded.encoder.to_half, folded.encoder.merge_fine):
        _fold_pair(convolution_first, "0", "1")
    if not for_export and next(model.parameters()).device.type == "cpu":
        for part in list(folded.modules()):
            if isinstance(part, Attention | Matcher):
                _convolve_linear(part)
    folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks the keyword
    return folded.requires_grad_(False)


def _convolve_linear(module: nn.Module) -> None:
    """Has convolutions do the work of linear layers that many tokens go through."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, ConvolvedLinear(child))
        elif isinstance(child, nn.Sequential):
            _convolve_linear(child)


class ConvolvedLinear(nn.Module):
    """x <- W x + b, as `convolved_product`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight[:, :, None, None])
        self.bias = linear.bias

    def forward(self, x: Float[Tensor, "M P C"]) -> Float[Tensor, "M P D"]:
        y: Tensor = convolved_product(x.flatten(0, 1), self.weight, self.bias).unflatten(0, x.shape[:2])
        return y


def _fold_pair(module: nn.Module, convolution: str, norm: str) -> None:
    """Makes a convolution of a module do the work of the batch norm after it."""
    parts = dict(module.named_children())
    pair = cast(tuple[nn.Conv2d, nn.BatchNorm2d], (parts[convolution], parts[norm]))
    setattr(module, convolution, folded_convolution(*pair))
    setattr(module, norm, nn.Identity())


def folded_convolution(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """The convolution and the batch norm after it as one convolution."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()  # [C]
    folded = copy.deepcopy(convolution)
    weight, bias = convolution.weight, norm.bias
    folded.weight = nn.Parameter((weight.double() * scale[:, None, None, None]).to(weight.dtype))
    folded.bias = nn.Parameter((bias.double() - norm.running_mean.double() * scale).to(weight.dtype))
    return folded


class FoldedBlock(nn.Module):
    """x <- ReLU(conv ReLU conv x + x): `ResidualBlock` in evaluation."""

    def __init__(self, block: ResidualBlock, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.conv1 = folded_convolution(block.conv1, block.bn1)
        self.conv2 = folded_convolution(block.conv2, block.bn2)
        self.downsample: nn.Conv2d | None = None
        if block.downsample is not None:
            parts = cast(tuple[nn.Conv2d, nn.BatchNorm2d], tuple(block.downsample.children()))
            self.downsample = folded_convolution(*parts)
            # Both biases end up in the same sum, so one of them is enough.
            assert self.conv2.bias is not None
            assert self.downsample.bias is not None
            self.conv2.bias.data += self.downsample.bias.data
            self.downsample.bias = None

    def forward(self, x: Float[Tensor, "M C H W"]) -> Float[Tensor, "M C2 H2 W2"]:
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.fused and x.is_cuda:
            one, two = self.conv1, self.conv2
            x = torch.cudnn_convolution_relu(x, one.weight, one.bias, *_geometry(one))
            return torch.cudnn_convolution_add_relu(x, two.weight, shortcut, 1.0, two.bias, *_geometry(two))
        return F.relu(self.conv2(F.relu(self.conv1(x))) + shortcut)


def _geometry(convolution: nn.Conv2d) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    padding = convolution.padding
    assert isinstance(padding, tuple)  # torch allows words, too
    return convolution.stride, padding, convolution.dilation, convolution.groups
