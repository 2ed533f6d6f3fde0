"""`relograph bench map`: what it says of a map is what is on the disk, and every stage of a query has its time."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.maps import Map, adding
from relograph.maps.benchmark import (
    STAGES,
    benchmark_map,
    bytes_by_part,
    is_random,
    map_table,
    network_to_measure,
    render_photos,
    repeated,
)
from relograph.maps.records import LEVELS
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes.frame import Frame
from relograph.training.presets import MATCHGNN_TINY
from rooms.tiny_rooms import tiny_atlas

SMALL_HW = (96, 128)


def tiny_network(sha256: str = "b" * 64) -> LoadedMatchGNN:
    torch.manual_seed(0)
    return LoadedMatchGNN(MatchGNN(MATCHGNN_TINY.model).eval().requires_grad_(False), sha256, {})


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> list[Frame]:
    folder = tmp_path_factory.mktemp("rendered") / "photos"
    views, queries = render_photos(folder, num_views=3, num_queries=1, photo_hw=SMALL_HW, atlas=tiny_atlas())
    assert (len(views), len(queries)) == (3, 1)
    return views


def test_photos_are_jpeg_files_of_the_size_that_is_asked_for(frames: list[Frame]):
    for frame in frames:
        assert frame.image.suffix == ".jpg"
        assert frame.read_image().shape == (*SMALL_HW, 3)
        assert frame.camera is not None
        assert (frame.camera.height, frame.camera.width) == SMALL_HW


def test_photos_are_repeated_under_other_names_and_in_other_orders(frames: list[Frame]):
    many = repeated(frames, 20)
    assert len({frame.name for frame in many}) == 20
    rounds = [[frame.image for frame in many[first : first + 3]] for first in range(0, 18, 3)]
    assert all(set(images) == {frame.image for frame in frames} for images in rounds)
    assert len({tuple(images) for images in rounds}) > 1


def test_repeated_photos_are_kept_as_often_as_they_come(
    tmp_path: Path, frames: list[Frame], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(adding, "PHOTOS_PER_SHARD", 3)
    made = Map.create(tmp_path / "m", repeated(frames, 6), network=tiny_network())
    assert len({frame.shard for frame in made.frames}) == 2


@pytest.mark.parametrize(("precision", "num_levels"), [("float16", 2), ("int8", 3), ("float16", 0)])
def test_parts_of_a_map_add_up_to_what_is_on_the_disk(
    tmp_path: Path, frames: list[Frame], precision: str, num_levels: int
):
    made = Map.create(tmp_path / "m", frames, network=tiny_network(), precision=precision, levels=LEVELS[:num_levels])
    parts = bytes_by_part(made)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert parts.pop("photo") == sum(parts.values()) == on_disk
    assert [level for level in LEVELS if parts[level]] == list(LEVELS[:num_levels])
    assert (parts["steps"] > 0) == (precision == "int8")
    config, (height, width) = MATCHGNN_TINY.model, made.frames[0].size_hw
    if num_levels:
        num_values = len(frames) * (height // 16) * (width // 16) * config.context_channels
        assert parts["context"] == num_values * (1 if precision == "int8" else 2)


def test_figures_come_row_by_row_and_solving_is_not_measured_of_random_weights():
    told: list[int] = []
    rows = benchmark_map(
        tiny_network("0" * 64),
        num_photos=5,
        num_views=2,
        num_queries=1,
        photo_hw=SMALL_HW,
        variants=[("float16", LEVELS[:2]), ("int8", ())],
        atlas=tiny_atlas(),
        keep=lambda rows: told.append(len(rows)),
    )
    assert told == [1, 2]
    assert [row["levels"] for row in rows] == ["context, coarse", "none"]
    for row in rows:
        assert row["photos"] == 5
        assert row["photos_per_second"] == pytest.approx(5 / row["build_s"])
        assert row["solve_ms"] is None
        assert row["query_ms"] == pytest.approx(sum(row[f"{stage}_ms"] for stage in STAGES[:-1]))
    assert "| none in int8 |" in map_table(rows)
    assert map_table(rows).splitlines()[-1].endswith("| – |")


def test_without_weights_the_network_is_a_random_one_of_full_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("relograph.maps.benchmark.weights_are_shipped", lambda: False)
    network = network_to_measure(None, "cpu")
    assert is_random(network)
    assert network.model.config == MatchGNN().config


def test_the_command_writes_what_was_measured_and_with_which_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = benchmark_map(
        tiny_network(),
        num_photos=2,
        num_views=1,
        num_queries=1,
        photo_hw=SMALL_HW,
        variants=[("float16", ())],
        atlas=tiny_atlas(),
    )

    def measured(
        network: LoadedMatchGNN, *, keep: Callable[[list[dict[str, object]]], None], **options: object
    ) -> list[dict[str, object]]:
        assert (options["num_photos"], options["num_views"], options["num_queries"]) == (2, 1, 3)
        keep(rows)
        return rows

    monkeypatch.setattr("relograph.maps.benchmark.benchmark_map", measured)
    monkeypatch.setattr("relograph.maps.benchmark.network_to_measure", lambda *_: tiny_network("0" * 64))
    file = tmp_path / "map_cpu.json"
    arguments = ["bench", "map", "--photos", "2", "--views", "1", "--queries", "3", "--output", str(file)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    written = json.loads(file.read_text())
    assert written["results"] == rows
    assert written["metadata"]["weights"] == "random"
    assert "The weights are random" in done.stdout
