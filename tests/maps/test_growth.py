"""Maps of generated photos: as large as wished, built in little memory, and measured."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from made_maps import use_small_indices
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.localization.map_features import StoredFeatures
from relograph.maps import Map, growth
from relograph.maps.growth import PhotoKind, build_generated, generated_photos, growth_table, map_growth
from relograph.maps.records import LEVELS, MapSettings
from relograph.processes import in_a_process


def small_photos(num_channels: int = 4, jpeg_bytes: int = 100) -> PhotoKind:
    parts = tuple(torch.randn(1, 8, 8, num_channels).half() for _ in range(2))
    settings = MapSettings(network_sha256="0" * 64, levels=LEVELS[:2])
    return PhotoKind(settings, StoredFeatures(parts, None), 16, jpeg_bytes)


def test_generated_photos_make_a_whole_map_in_which_each_is_found(tmp_path: Path):
    build_generated(tmp_path / "m", 150, small_photos())
    made = Map.open(tmp_path / "m")
    assert len(made) == len({frame.name for frame in made}) == 150
    assert made.verify().is_whole
    for row in (0, 64, 149):
        assert made.features.nearest(made.features.descriptors[row], 1)[0] == [row]
    first, other = (next(generated_photos(5, small_photos(), seed=seed)).shards[0] for seed in (0, 1))
    assert not torch.equal(first.descriptors, other.descriptors)


def test_photos_of_the_network_are_as_large_as_a_map_may_be():
    kind = PhotoKind.of_network(LEVELS[:2])
    assert kind.stored.num_bytes() + kind.jpeg_bytes + 2 * kind.descriptor_dim <= 350_000
    assert kind.stored.num_bytes() > 200_000
    lone = PhotoKind.of_network(())
    assert lone.stored.num_bytes() + lone.jpeg_bytes + 2 * lone.descriptor_dim <= 10_000


def peaks_mb(folder: Path, counts: tuple[int, ...], kind: PhotoKind) -> list[float]:
    """Peak memory after one map and after a second, in one process: a process takes seconds to start."""
    return [build_generated(folder / str(count), count, kind)[2] for count in counts]


def test_memory_does_not_grow_with_the_map(tmp_path: Path):
    counts = (2 * growth.PHOTOS_PER_SHARD, 8 * growth.PHOTOS_PER_SHARD)
    small, large = in_a_process(peaks_mb, tmp_path, counts, small_photos(jpeg_bytes=200_000))
    # 26 MB and 102 MB of photos. What grows with a map are names and poses, a kilobyte of each photo.
    assert large - small < 60


def test_a_row_tells_of_the_map_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("faiss")
    use_small_indices(monkeypatch)
    monkeypatch.setattr(growth, "in_a_process", lambda work, *arguments: work(*arguments))
    row = map_growth(130, small_photos(), folder=tmp_path)
    assert row.images == 130
    assert row.levels == "context, coarse"
    assert row.photo_kb == pytest.approx(row.disk_mb / 130 * 1e3)
    assert row.index_mb > 130 * 16 * 2 / 1e6
    assert row.query_ms > 0
    assert list(tmp_path.iterdir()) == []
    assert "| 130 |" in growth_table([asdict(row)])


def test_the_command_writes_figures_and_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growth, "in_a_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(PhotoKind, "of_network", lambda levels: small_photos())
    output, plot = tmp_path / "growth.json", tmp_path / "growth.png"
    arguments = ["bench", "growth", "--images", "20", "--images", "90", "--output", str(output), "--plot", str(plot)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(output.read_text())
    assert [row["images"] for row in document["results"]] == [20, 90]
    assert document["metadata"]["seed"] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
