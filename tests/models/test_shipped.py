"""Weights of MatchGNN come back as they were saved, to half precision, or not at all and with one clear line."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from numpy.testing import assert_allclose

from relograph.errors import CheckpointError
from relograph.evaluation.weights_publishing import read_published
from relograph.models import shipped
from relograph.models.checkpoint import load_checkpoint, save_checkpoint
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import (
    SHIPPED_WEIGHTS,
    Calibration,
    Odds,
    load_match_gnn,
    save_calibration,
    save_match_gnn,
    weights_are_shipped,
)
from relograph.training.presets import MATCHGNN_TINY

SMALL = MATCHGNN_TINY.model


@pytest.fixture
def network() -> MatchGNN:
    torch.manual_seed(0)
    return MatchGNN(SMALL).eval()


@pytest.fixture
def folder(tmp_path: Path, network: MatchGNN) -> Path:
    save_match_gnn(tmp_path / "weights", network, {"config": {"seed": 3}, "seconds": 1200})
    return tmp_path / "weights"


def calibration_of(folder: Path) -> Calibration:
    solved, regressed = Odds({"inliers": 0.5, "precision": 1.0}, 0.25, 0.6), Odds({"overlap": 1.0}, -3.0, 0.7)
    return Calibration(solved, regressed, regressed, load_match_gnn(folder).sha256, 1000)


@torch.no_grad()
def test_a_saved_network_answers_as_before_to_half_precision(network: MatchGNN, folder: Path):
    image = torch.randint(0, 256, (1, 32, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loaded = load_match_gnn(folder)
    assert loaded.model.config == SMALL
    assert not loaded.model.training
    assert all(parameter.dtype == torch.float32 for parameter in loaded.model.parameters())
    expected, found = network.encode(image).coarse, loaded.model.encode(image).coarse
    assert_allclose(found, expected, atol=0.01 * float(expected.abs().max()))
    assert not torch.equal(found, expected)  # half precision is not nothing


def test_the_metadata_keep_what_was_given_beside_the_networks_size(folder: Path):
    metadata = load_match_gnn(folder).metadata
    assert metadata["seconds"] == 1200
    assert metadata["config"]["seed"] == 3
    assert metadata["config"]["model"]["context_channels"] == 16


def test_weights_on_disk_take_two_bytes_each(folder: Path, network: MatchGNN):
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    num_weights = sum(parameter.numel() for parameter in network.parameters())
    assert 2 * num_weights < num_bytes < 2.5 * num_weights + 20_000  # names and shapes come with them


def test_a_flipped_bit_is_noticed(folder: Path):
    shard = next(folder.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="expected the bytes that were saved"):
        load_match_gnn(folder)


def test_without_shipped_weights_the_message_says_what_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "none")
    with pytest.raises(CheckpointError, match="Give --weights DIR"):
        load_match_gnn()


@pytest.mark.parametrize("metadata", [{}, {"config": {"model": {"kind": "relpose_gnn"}}}, {"config": None}])
def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path, metadata: dict[str, object]):
    save_checkpoint(tmp_path, {"weight": torch.zeros(3)}, metadata)
    with pytest.raises(CheckpointError, match="--preset matchgnn"):
        load_match_gnn(tmp_path)


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path: Path, network: MatchGNN):
    with torch.no_grad():
        network.encoder.context_to_coarse.bias[0] = 1e5
    with pytest.raises(CheckpointError, match=r"context_to_coarse\.bias values up to 1e\+05"):
        save_match_gnn(tmp_path, network, {})
    save_match_gnn(tmp_path, network, {}, dtype=torch.float32)
    assert load_match_gnn(tmp_path).model.encoder.context_to_coarse.bias[0] == 1e5


def test_a_calibration_comes_with_the_weights_that_it_belongs_to(folder: Path):
    assert load_match_gnn(folder).calibration is None
    calibration = calibration_of(folder)
    save_calibration(folder, calibration)
    assert load_match_gnn(folder).calibration == calibration


def with_metadata(folder: Path, **values: object) -> None:
    """The same weights with other metadata."""
    checkpoint = load_checkpoint(folder)
    save_checkpoint(folder, checkpoint.tensors, {**checkpoint.metadata, **values})


def test_a_calibration_of_other_weights_is_refused(folder: Path):
    calibration = replace(calibration_of(folder), network_sha256="0" * 64)
    with pytest.raises(CheckpointError, match="found one of others"):
        save_calibration(folder, calibration)
    with_metadata(folder, calibration=asdict(calibration))
    with pytest.raises(CheckpointError, match="found one of others"):
        load_match_gnn(folder)


@pytest.mark.parametrize("values", [3, [], {}, {"solved": 3}, {"solved": {"weight_by_sign": 3}}, "text"])
def test_what_is_no_calibration_is_one_clear_line(folder: Path, values: object):
    with_metadata(folder, calibration=values)
    with pytest.raises(CheckpointError, match="expected a calibration of these weights, found something else"):
        load_match_gnn(folder)


def test_a_calibration_changes_neither_the_weights_nor_what_was_saved_with_them(folder: Path):
    before = load_match_gnn(folder)
    shards = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    save_calibration(folder, calibration_of(folder))
    after = load_match_gnn(folder)
    assert after.sha256 == before.sha256
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == shards
    assert {name: value for name, value in after.metadata.items() if name != "calibration"} == before.metadata


def test_saving_other_weights_removes_the_calibration_of_the_old_ones(folder: Path, network: MatchGNN):
    save_calibration(folder, calibration_of(folder))
    with torch.no_grad():
        network.encoder.context_to_coarse.bias += 1
    save_match_gnn(folder, network, {})
    assert load_match_gnn(folder).calibration is None


@pytest.mark.skipif(not weights_are_shipped(), reason="this build ships no weights")
def test_the_shipped_weights_are_whole_small_calibrated_and_explained():
    published = read_published()
    assert published.network.calibration is not None
    assert published.card is not None
    sizes = [path.stat().st_size for path in SHIPPED_WEIGHTS.iterdir()]
    assert sum(sizes) <= 36.1e6
    assert max(sizes) <= 16.1e6
    assert {path.suffix for path in SHIPPED_WEIGHTS.iterdir()} == {".json", ".md", ".safetensors"}
