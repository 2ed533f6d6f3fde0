"""What is not kept in a map is not computed for it, and comes back when it is asked for."""

import errno
import io
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from made_maps import photos
from numpy.testing import assert_array_equal
from PIL import Image

from painted_box import write_scene
from relograph.errors import DatasetError, RelographError
from relograph.localization.photos import WorkingSize
from relograph.maps import Map, MapSettings
from relograph.maps.building import (
    MANY_PHOTOS,
    MAX_JPEG_BYTES,
    MAX_LONE_JPEG_BYTES,
    max_jpeg_bytes,
    processes_worthwhile,
    shards_at_once,
)
from relograph.maps.reading import JPEG_QUALITIES, read_ahead, small_jpeg
from relograph.maps.records import LEVELS, Level
from relograph.models.match_gnn import COARSE_STRIDE, CONTEXT_STRIDE, DenseEncoder, MatchConfig, MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes import Scene, open_scene
from relograph.training.presets import MATCHGNN_TINY

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    torch.manual_seed(0)
    return LoadedMatchGNN(MatchGNN(MATCHGNN_TINY.model).eval().requires_grad_(False), "b" * 64, {})


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return open_scene(write_scene(tmp_path_factory.mktemp("box"), num_map=3, num_queries=1))


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of how features differ from place to place; what all places have in common is no sign of anything."""
    centred = [(x.float() - x.float().mean(dim=(-2, -1), keepdim=True)).flatten() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(centred))[0, 1])


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_fine_features_come_back_from_the_small_photo_and_the_coarse_ones(
    tmp_path: Path, network: LoadedMatchGNN, scene: Scene, precision: str
):
    whole = Map.create(tmp_path / "whole", scene, network=network, precision=precision, levels=LEVELS)
    coarse = Map.create(tmp_path / "coarse", scene, network=network, precision=precision)  # as usual
    ((_, _, expected),) = whole.features.take([2, 0], CPU)
    ((_, which, found),) = coarse.features.take([2, 0], CPU)
    assert which == [0, 1]
    assert_array_equal(found.context, expected.context)
    assert_array_equal(found.coarse, expected.coarse)
    assert found.fine.shape == expected.fine.shape
    assert correlation(found.fine, expected.fine) > 0.97
    assert correlation(found.fine[0], expected.fine[1]) < 0.5  # of another photo they are others


@pytest.mark.parametrize(
    ("levels", "not_called"), [(LEVELS[:2], ("fine",)), (LEVELS[:1], ("coarse", "fine")), ((), ("coarse", "fine"))]
)
def test_what_is_not_kept_is_not_computed(
    tmp_path: Path,
    network: LoadedMatchGNN,
    monkeypatch: pytest.MonkeyPatch,
    levels: tuple[Level, ...],
    not_called: tuple[str, ...],
):
    def fail(*_: object) -> None:
        raise AssertionError("this level is not kept")

    for name in not_called:
        monkeypatch.setattr(DenseEncoder, name, fail)
    made = Map.create(tmp_path / "m", photos(5), network=network, levels=levels)
    assert len(made) == 5
    with pytest.raises(AssertionError, match="not kept"):
        Map.create(tmp_path / "n", photos(5), network=network, levels=LEVELS)


def test_a_map_keeps_levels_from_the_coarsest_on():
    with pytest.raises(DatasetError, match="context, coarse, fine"):
        MapSettings(network_sha256="a" * 64, levels=("coarse",))


def test_the_small_photo_has_the_best_quality_that_fits():
    y, x = np.mgrid[:240, :320]
    rng = np.random.default_rng(0)
    smooth = np.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(np.uint8)
    noise = rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)
    between = (smooth * 0.8 + rng.integers(0, 24, (240, 320, 1))).astype(np.uint8)

    def size_by_quality(pixels: np.ndarray) -> dict[int, int]:
        sizes = {}
        for quality in JPEG_QUALITIES:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=quality, optimize=True)
            sizes[quality] = len(file.getvalue())
        return sizes

    assert len(small_jpeg(smooth, 10**6)) == size_by_quality(smooth)[JPEG_QUALITIES[0]]
    assert len(small_jpeg(noise, 1)) == size_by_quality(noise)[JPEG_QUALITIES[-1]]
    fitting = [size for size in size_by_quality(between).values() if size <= MAX_JPEG_BYTES]
    assert 0 < len(fitting) < len(JPEG_QUALITIES)
    assert len(small_jpeg(between, MAX_JPEG_BYTES)) == fitting[0]


def test_a_full_disk_is_one_clear_line_also_for_the_small_photo(monkeypatch: pytest.MonkeyPatch):
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("relograph.maps.reading._scratch_file", full)
    with pytest.raises(RelographError, match=r"No space left on device\. Free some space, or set TMPDIR"):
        small_jpeg(np.zeros((16, 16, 3), np.uint8), 1000)


def test_small_photos_are_written_where_no_file_in_memory_is_allowed(monkeypatch: pytest.MonkeyPatch):
    pixels = np.zeros((16, 16, 3), np.uint8)
    expected = small_jpeg(pixels, 1000)

    def refused(name: str) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.memfd_create", refused)
    assert small_jpeg(pixels, 1000) == expected


def test_a_map_without_features_has_smaller_photos():
    assert max_jpeg_bytes(()) == MAX_LONE_JPEG_BYTES < MAX_JPEG_BYTES == max_jpeg_bytes(LEVELS[:2])


@pytest.mark.parametrize(
    ("bytes_a_value", "levels", "most"), [(2, LEVELS[:2], 350_000), (1, LEVELS[:2], 180_000), (2, (), 10_000)]
)
def test_a_photo_of_640_x_480_takes_no_more_than_is_promised(bytes_a_value: int, levels: tuple[Level, ...], most: int):
    config, (height, width) = MatchConfig(), WorkingSize.of(640, 480).size_hw
    values_by_level = {
        "context": config.context_channels * (height // CONTEXT_STRIDE) * (width // CONTEXT_STRIDE),
        "coarse": config.matched_channels * (height // COARSE_STRIDE) * (width // COARSE_STRIDE),
    }
    steps = 4 * (config.context_channels + config.matched_channels) if bytes_a_value == 1 else 0
    features = sum(values_by_level[level] * bytes_a_value for level in levels) + steps
    row_of_database = 800  # 600 by trial
    assert features + 2 * config.descriptor_dim + max_jpeg_bytes(levels) + row_of_database <= most


def test_a_gpu_has_several_shards_under_way_and_a_cpu_one():
    model = MatchGNN(MATCHGNN_TINY.model)
    assert shards_at_once(model) == 1
    assert shards_at_once(model.to("meta")) > 1


def test_processes_read_for_a_gpu_alone_and_only_where_photos_are_many():
    model = MatchGNN(MATCHGNN_TINY.model)
    assert processes_worthwhile(model, 100 * MANY_PHOTOS) == 0
    assert processes_worthwhile(model.to("meta"), MANY_PHOTOS - 1) == 0
    assert processes_worthwhile(model.to("meta"), MANY_PHOTOS) > 0


def test_what_is_read_ahead_by_several_threads_comes_in_its_order():
    second_is_done = Event()

    def read(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(10)
        elif item == 1:
            second_is_done.set()
        return item

    assert list(read_ahead(range(6), read, 2, num_threads=2)) == list(range(6))


def test_no_more_is_read_ahead_than_is_asked_for():
    started: list[int] = []

    def read(item: int) -> int:
        started.append(item)
        return 10 * item

    items = read_ahead(range(100), read, 3, num_threads=1)
    assert [next(items) for _ in range(5)] == [0, 10, 20, 30, 40]
    items.close()
    assert max(started) <= 5 + 3
