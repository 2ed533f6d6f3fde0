"""Which rooms int8 learns from and which judge it; what the command refuses."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.evaluation import export_accuracy
from relograph.evaluation.export_accuracy import measure_export, runtimes_table, training_photos
from relograph.models.shipped import LoadedMatchGNN


def test_int8_learns_its_scales_from_training_rooms(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def rooms(part: str, config: object, **options: object) -> list[SimpleNamespace]:
        asked.append(part)
        return [SimpleNamespace(images=torch.full((8, 32, 32, 3), home, dtype=torch.uint8)) for home in range(4)]

    monkeypatch.setattr(export_accuracy, "room_maps", rooms)
    photos = training_photos()
    assert asked == ["training"]
    assert photos.shape == (32, 32, 32, 3)
    assert photos.unique().tolist() == [0, 1, 2, 3]


def test_an_export_is_judged_in_validation_rooms(monkeypatch: pytest.MonkeyPatch, network: LoadedMatchGNN):
    asked = []

    def rooms(part: str, config: object, **options: object) -> list[SimpleNamespace]:
        asked.append((part, config.num_homes))
        return [SimpleNamespace(place=f"home {number}") for number in range(config.num_homes)]

    monkeypatch.setattr(export_accuracy, "room_places", rooms)
    monkeypatch.setattr(
        export_accuracy, "compare_runtimes", lambda places, *arguments, **options: [{"places": list(places)}]
    )
    assert measure_export(network, Path("onnx"), 3) == [{"places": ["home 0", "home 1", "home 2"]}]
    assert asked == [("validation", 3)]


def test_a_number_that_is_not_there_is_told_as_such():
    row = {"runtime": "onnx", "num_queries": 2, "share_localized": 0.5, "encode_ms": 30.4, "match_ms": 200.0}
    row |= {"median_translation_error_m": None, "median_rotation_error_deg": None}
    row |= {"share_within_10_cm_5_deg": 0.0, "share_within_25_cm_10_deg": 0.5}
    assert runtimes_table([row]).endswith("| onnx | 2 | none | none | 0.0% | 50.0% | 50.0% | 30 | 200 |")


def test_an_output_without_rooms_to_measure_in_is_one_line(tmp_path: Path):
    done = CliRunner().invoke(app, ["export", str(tmp_path / "onnx"), "--output", str(tmp_path / "result.json")])
    assert done.exit_code == 1
    assert "say in how many with --homes" in done.stderr
    assert list(tmp_path.iterdir()) == []
