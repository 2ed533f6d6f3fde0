"""What ONNX Runtime says of an exported network is what torch says of it, at every size and number of references."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from relograph.errors import CheckpointError, ConfigError, DatasetError
from relograph.export import Exported, export_match_gnn, exporting, with_onnx
from relograph.models.match_gnn import ImageFeatures, MatchGNN
from relograph.models.shipped import LoadedMatchGNN


def photos(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)


@pytest.fixture(scope="module")
def running(network: LoadedMatchGNN, exported: tuple[Path, Exported]) -> MatchGNN:
    return with_onnx(network.model, exported[0], weights_sha256=network.sha256)


@pytest.mark.parametrize(("count", "height", "width"), [(1, 48, 64), (3, 112, 64), (1, 240, 320)])
def test_images_of_any_size_are_encoded_as_by_torch(
    network: LoadedMatchGNN, running: MatchGNN, count: int, height: int, width: int
):
    images = photos(count, height, width)
    ours, theirs = network.model.encode(images), running.encode(images)
    for name in ("context", "coarse", "fine"):
        torch.testing.assert_close(getattr(theirs, name), getattr(ours, name), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        running.descriptor(theirs.context), network.model.descriptor(ours.context), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("num_references", [1, 2, 32])
def test_any_number_of_references_is_matched_as_by_torch(
    network: LoadedMatchGNN, running: MatchGNN, num_references: int
):
    query, references = network.model.encode(photos(1, 64, 80)), network.model.encode(photos(num_references, 80, 48, 1))
    assert_same_matches(network, running, query, references, num_references)


def test_several_queries_are_matched_each_with_its_own_references(network: LoadedMatchGNN, running: MatchGNN):
    queries, references = network.model.encode(photos(2, 64, 80)), network.model.encode(photos(6, 64, 80, 1))
    assert_same_matches(network, running, queries, references, 3)


def assert_same_matches(
    network: LoadedMatchGNN, running: MatchGNN, queries: ImageFeatures, references: ImageFeatures, num_references: int
) -> None:
    ours = network.model.matcher(queries, references, num_references)
    theirs = running.matcher(queries, references, num_references, keep_log_coarse=False)
    assert theirs.best.shape == ours.best.shape
    same = ours.best == theirs.best
    assert same.float().mean() > 0.99  # two cells may be equally likely
    torch.testing.assert_close(theirs.xy[same], ours.xy[same], rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(theirs.confidence[same], ours.confidence[same], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(theirs.sigma_px[same], ours.sigma_px[same], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(theirs.seen, ours.seen, rtol=1e-4, atol=1e-4)
    assert theirs.mutual.dtype == torch.bool
    assert (theirs.mutual == ours.mutual).float().mean() > 0.99


def test_the_model_that_was_given_stays_torchs_own(network: LoadedMatchGNN, running: MatchGNN):
    assert network.model.encoder is not running.encoder
    assert running.head is network.model.head


def test_the_report_names_files_sizes_and_differences(network: LoadedMatchGNN, exported: tuple[Path, Exported]):
    folder, report = exported
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "matcher.onnx", "export.json"}
    assert Exported.load(folder) == report
    assert report.encoder.num_bytes == (folder / "encoder.onnx").stat().st_size
    assert set(report.encoder.max_difference) == {"context", "coarse", "fine", "descriptor"}
    assert 0 < max(report.encoder.max_difference.values()) < 1e-4
    assert max(report.matcher.max_difference.values()) < 1e-3
    told = json.loads((folder / "export.json").read_text())
    assert told["weights_sha256"] == network.sha256
    assert [type(size) for size in told["matcher"]["inputs"]["ref_context"]] == [str, int, str, str]


def test_an_export_that_says_something_else_than_torch_is_refused_and_leaves_nothing(
    network: LoadedMatchGNN, exported: tuple[Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def write_other_weights(module: object, *arguments: object) -> None:
        shutil.copy(exported[0] / arguments[-1].name, arguments[-1])

    monkeypatch.setattr(exporting, "_write_encoder", write_other_weights)
    monkeypatch.setattr(exporting, "_write_matcher", write_other_weights)
    torch.manual_seed(1)
    other = LoadedMatchGNN(MatchGNN(network.model.config).eval(), "b" * 64, {})
    with pytest.raises(CheckpointError, match="expected ONNX Runtime to say what torch says"):
        export_match_gnn(other, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_export_does_not_overwrite_a_folder(network: LoadedMatchGNN, tmp_path: Path):
    with pytest.raises(DatasetError, match="expected a folder that is not there yet"):
        export_match_gnn(network, tmp_path)


def test_files_of_other_weights_or_other_bytes_are_refused(
    network: LoadedMatchGNN, exported: tuple[Path, Exported], tmp_path: Path
):
    with pytest.raises(CheckpointError, match="expected an export of these weights"):
        with_onnx(network.model, exported[0], weights_sha256="b" * 64)
    with pytest.raises(CheckpointError, match=r"found no export\.json"):
        with_onnx(network.model, tmp_path, weights_sha256=network.sha256)
    copy = tmp_path / "copy"
    shutil.copytree(exported[0], copy)
    content = bytearray((copy / "matcher.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "matcher.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"matcher\.onnx: expected the file of .* found other bytes"):
        with_onnx(network.model, copy, weights_sha256=network.sha256)


def test_what_an_exported_network_cannot_do_is_said_in_one_line(network: LoadedMatchGNN, running: MatchGNN):
    features = network.model.encode(photos(2, 48, 64))
    with pytest.raises(ConfigError, match="nothing can be learned"):
        running.matcher(features[:1], features, 2, keep_log_coarse=True)
    with pytest.raises(ConfigError, match="1 to 32 references, got 33"):
        running.matcher(features[:1], features[torch.zeros(33, dtype=torch.long)], 33)
    with pytest.raises(ConfigError, match="takes images of uint8"):
        running.encode(photos(1, 48, 64).float())


def test_int8_is_smaller_and_close_and_says_how_close(
    network: LoadedMatchGNN, exported: tuple[Path, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def copy_written(module: object, *arguments: object) -> None:
        shutil.copy(exported[0] / arguments[-1].name, arguments[-1])

    monkeypatch.setattr(exporting, "_write_encoder", copy_written)  # written once is enough
    monkeypatch.setattr(exporting, "_write_matcher", copy_written)
    with pytest.raises(ConfigError, match="learns its scales from photos"):
        export_match_gnn(network, tmp_path / "int8", precision="int8")
    seen = photos(4, 64, 80)
    report = export_match_gnn(network, tmp_path / "int8", precision="int8", photos=seen)
    assert report.precision == "int8"
    assert report.encoder.num_bytes < 0.6 * exported[1].encoder.num_bytes
    assert 1e-4 < report.encoder.max_difference["coarse"] < 0.5
    assert report.matcher.sha256 == exported[1].matcher.sha256  # it decides about matches, in float32
    running = with_onnx(network.model, tmp_path / "int8", weights_sha256=network.sha256)
    ours, theirs = (model.encode(photos(1, 80, 96, 7)).coarse.numpy().ravel() for model in (network.model, running))
    assert np.corrcoef(ours, theirs)[0, 1] > 0.98
