"""A localizer answers the same by an exported network as by torch."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.evaluation.export_accuracy import compare_runtimes, runtimes_table
from relograph.evaluation.place import Place, PosedPhotos
from relograph.export import Exported, exporting
from relograph.geometry import Camera, Pose
from relograph.localization.localizer import Localizer
from relograph.localization.map_features import MapFeatures
from relograph.localization.photos import PhotoInMemory
from relograph.maps import Map
from relograph.models.shipped import LoadedMatchGNN

CAMERA = Camera.from_focal(160, 120, 130.0)


def noise_photo(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8)


def pose(seed: int) -> Pose:
    rng = np.random.default_rng(seed)
    return Pose.from_axis_angle(0.1 * rng.normal(size=3), 0.5 * rng.normal(size=3))


@pytest.fixture(scope="module")
def map_features(network: LoadedMatchGNN) -> MapFeatures:
    photos = [PhotoInMemory(f"{i}.png", noise_photo(i), pose(i), CAMERA) for i in range(5)]
    return MapFeatures.of(photos, network)


def test_the_same_pose_comes_from_both(
    network: LoadedMatchGNN, exported: tuple[Path, Exported], map_features: MapFeatures
):
    by_torch = Localizer(map_features, network, num_references=3, solver="regress")
    by_onnx = Localizer(map_features, network, num_references=3, solver="regress", runtime="onnx", exported=exported[0])
    for seed in (2, 77):
        ours, theirs = (each.localize(noise_photo(seed), camera=CAMERA) for each in (by_torch, by_onnx))
        assert [r.row for r in ours.references] == [r.row for r in theirs.references]
        assert ours.T_regressed is not None
        assert theirs.T_regressed is not None
        torch.testing.assert_close(theirs.T_regressed.t, ours.T_regressed.t, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(theirs.T_regressed.R, ours.T_regressed.R, rtol=1e-3, atol=1e-3)


def test_onnx_without_an_export_makes_one_and_keeps_it(
    network: LoadedMatchGNN,
    exported: tuple[Path, Exported],
    map_features: MapFeatures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    made = []

    def export(network: LoadedMatchGNN, folder: Path, **options: object) -> None:
        made.append(folder)
        shutil.copytree(exported[0], folder)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(exporting, "export_match_gnn", export)  # which takes its time, and has tests of its own
    for _ in range(2):
        answer = Localizer(map_features, network, solver="regress", runtime="onnx").localize(noise_photo(2))
        assert answer.T_regressed is not None
    assert made == [tmp_path / "relograph" / f"onnx-{network.sha256[:12]}"]


def test_the_command_answers_by_exported_files(
    weights: Path, network: LoadedMatchGNN, exported: tuple[Path, Exported], tmp_path: Path
):
    photos = [PhotoInMemory(f"{i}.png", noise_photo(i), pose(i), CAMERA) for i in range(5)]
    Map.create(tmp_path / "a.map", photos, network=network)
    Image.fromarray(noise_photo(2)).save(tmp_path / "query.png")
    arguments = ["localize", str(tmp_path / "query.png"), "--map", str(tmp_path / "a.map"), "--weights", str(weights)]
    done = CliRunner().invoke(app, [*arguments, "--exported", str(exported[0])])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["references"][0]["name"] == "2.png"
    done = CliRunner().invoke(app, [*arguments, "--exported", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert f"error: {tmp_path / 'nowhere'}" in done.stderr


def test_accuracy_is_told_for_both_runtimes(network: LoadedMatchGNN, exported: tuple[Path, Exported]):
    def photos(seeds: range) -> PosedPhotos:
        return PosedPhotos(
            tuple(str(seed) for seed in seeds),
            Pose.stack([pose(seed) for seed in seeds]),
            (CAMERA,) * len(seeds),
            lambda row: noise_photo(seeds[row]),
        )

    place = Place("box", photos(range(4)), photos(range(3)), "f" * 64)
    rows = compare_runtimes([place], network, exported[0], num_references=2, solver="regress")
    assert [(row["runtime"], row["num_queries"]) for row in rows] == [("torch", 3), ("onnx", 3)]
    assert rows[0]["median_translation_error_m"] == pytest.approx(rows[1]["median_translation_error_m"], rel=0.01)
    assert rows[0]["encode_ms"] > 0
    assert runtimes_table(rows).count("\n") == 3
