"""Checkpoints come back bit for bit, or not at all and with one clear line."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from relograph.models.checkpoint import (
    load_checkpoint,
    save_checkpoint,
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name


def test_tensors_and_metadata_come_back_as_they_were(tmp_path: Path):
    tensors = {"b.weight": numbers(3, 4), "a.bias": numbers(7, seed=1)}
    metadata = {"config": {"channels": 64, "stride": [1, 2]}, "epoch": 3, "loss": 0.1, "best": None, "name": "Küche"}
    save_checkpoint(tmp_path / "best", tensors, metadata)
    checkpoint = load_checkpoint(tmp_path / "best")
    assert_same_tensors(checkpoint.tensors, tensors)
    assert checkpoint.metadata == metadata
