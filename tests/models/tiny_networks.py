"""Networks small enough for tests, in float64, so that what should be equal is equal to the last digits."""

from dataclasses import replace

import torch
from torch import Tensor

from relograph.models import ModelConfig, PoseModel, build_model

TINY = ModelConfig(channels=16, encoder_blocks=(1, 1, 1, 1), encoder_width=4)


def tiny_network(*, seed: int = 0, **options: object) -> PoseModel:
    """A network with random weights, in evaluation mode; the options are those of `ModelConfig`."""
    torch.manual_seed(seed)
    return build_model(replace(TINY, **options)).double().eval()


def random_features(num_graphs: int = 2, num_nodes: int = 5, seed: int = 1) -> Tensor:
    """Node features [B, N, C] that a tiny network could have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_graphs, num_nodes, TINY.channels, generator=generator, dtype=torch.float64)


def random_images(num_graphs: int = 2, num_nodes: int = 4, seed: int = 2) -> Tensor:
    """Graphs of images [B, N, 32, 40, 3], uint8."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_graphs, num_nodes, 32, 40, 3), generator=generator, dtype=torch.uint8)


def everybody(x: Tensor) -> Tensor:
    """The mask [B, N] of nodes that are all there."""
    return torch.ones(x.shape[:2], dtype=torch.bool)
