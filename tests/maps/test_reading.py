"""Processes read photos as threads do, and whatever becomes of them, the map is whole and none of them stays."""

import errno
import io
import os
import pickle
import select
import signal
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_maps import made_map, no_network, photos
from numpy.testing import assert_array_equal
from PIL import Image

from relograph.errors import DatasetError, MissingExtraError, RelographError
from relograph.geometry import Camera, Pose
from relograph.localization.photos import PhotoFile, PhotoInMemory, PosedPhoto, WorkingSize
from relograph.maps import Map, durable_files, reading
from relograph.maps.building import MAX_JPEG_BYTES
from relograph.maps.reading import (
    MAX_PIXEL_BYTES,
    PHOTOS_PER_TASK,
    SLOT_BYTES,
    Outcome,
    ReadPhoto,
    ReadTask,
    chunks_read,
    small_jpeg,
)
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes import open_scene
from relograph.scenes.images import MIN_SIDE_PX
from relograph.training.presets import MATCHGNN_TINY

SIZES_WH = ((64, 48), (48, 64), (320, 320), (400, 100), (90, 400), (60, 40), (8, 300))
"""Landscape, upright, square, and so long that they are seen larger."""
EYE = Pose.from_axis_angle([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])


def noise(number: int) -> np.ndarray:
    """Of the hardest kind to compress, in one of the sizes."""
    width, height = SIZES_WH[number % len(SIZES_WH)]
    grey = 255 * np.random.default_rng(number).integers(0, 2, (height, width, 1), dtype=np.uint8)
    return np.repeat(grey, 3, axis=-1)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def of_all_kinds(count: int) -> list[PosedPhoto]:
    """Files and photos in memory."""
    return [
        PhotoInMemory(f"{number:03d}", noise(number), EYE)
        if number % 3 == 0
        else PhotoFile(f"{number:03d}", png(noise(number)), EYE)
        for number in range(count)
    ]


def read(some: list[PosedPhoto], num_processes: int, *, only_hash: bool = False) -> list[tuple[str, Outcome]]:
    tasks = ((photo.name, ReadTask.of(photo, None if only_hash else MAX_JPEG_BYTES)) for photo in some)
    return [read for chunk in chunks_read(tasks, num_processes, 10) for read in chunk]


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    torch.manual_seed(0)
    return LoadedMatchGNN(MatchGNN(MATCHGNN_TINY.model).eval().requires_grad_(False), "b" * 64, {})


# What processes read


def test_processes_read_what_threads_read_in_the_order_of_the_photos():
    some = of_all_kinds(70)  # more than the memory that two processes share has room for
    by_threads, by_processes = read(some, 0), read(some, 2)
    assert [name for name, _ in by_processes] == [photo.name for photo in some]
    assert [name for name, _ in by_threads] == [photo.name for photo in some]
    for (_, expected), (_, found) in zip(by_threads, by_processes, strict=True):
        assert isinstance(expected, ReadPhoto)
        assert isinstance(found, ReadPhoto)
        assert (found.sha256, found.size, found.jpeg) == (expected.sha256, expected.size, expected.jpeg)
        assert_array_equal(found.pixels, expected.pixels)


def test_processes_tell_the_hash_where_that_is_all_that_is_asked_for():
    some = of_all_kinds(20)
    hashes = read(some, 2, only_hash=True)
    assert hashes == read(some, 0, only_hash=True)
    assert len({sha256 for _, sha256 in hashes}) == 20


def test_processes_make_the_very_map_that_threads_make(tmp_path: Path, network: LoadedMatchGNN):
    some = of_all_kinds(21)
    by_threads = Map.create(tmp_path / "threads", some, network=network)
    by_processes = Map.create(tmp_path / "processes", some, network=network, num_processes=2)
    assert by_processes.frames == by_threads.frames  # which name their shards by SHA-256
    assert len({frame.shard for frame in by_processes}) > 1
    assert by_processes.verify().is_whole


def test_the_poses_of_photos_in_memory_stay_where_they_are(tmp_path: Path):
    (photo, *_) = some = photos(20)
    read(some, 2)
    assert not photo.T_world_cam.R.is_shared()  # or each would keep a file open, of which there are not so many


@given(width=st.integers(MIN_SIDE_PX, 30_000), height=st.integers(MIN_SIDE_PX, 30_000))
def test_what_is_seen_of_a_photo_of_any_shape_has_room(width: int, height: int):
    rows, columns = WorkingSize.of(width, height).size_hw
    assert rows * columns * 3 <= MAX_PIXEL_BYTES


def test_the_small_photo_has_room_beside_the_pixels_also_where_it_is_noise():
    side = int((MAX_PIXEL_BYTES // 3) ** 0.5)
    grey = 255 * np.random.default_rng(0).integers(0, 2, (side, side, 1), dtype=np.uint8)
    assert len(small_jpeg(np.repeat(grey, 3, axis=-1), MAX_JPEG_BYTES)) < (SLOT_BYTES - MAX_PIXEL_BYTES) / 2


def test_what_a_process_says_of_photos_goes_through_a_pipe_at_once(monkeypatch: pytest.MonkeyPatch):
    """Whoever is killed halfway would leave the parent waiting for the other half for ever."""
    monkeypatch.setattr(reading, "_slots", np.zeros((1, PHOTOS_PER_TASK, SLOT_BYTES), np.uint8))
    tasks = [ReadTask.of(photo, MAX_JPEG_BYTES) for photo in of_all_kinds(PHOTOS_PER_TASK)]
    assert len(pickle.dumps(reading._read_some(pickle.dumps(tasks), 0))) < select.PIPE_BUF


# Bad photos


@pytest.mark.parametrize("num_processes", [0, 2])
@pytest.mark.usefixtures("generated")
def test_bad_photos_among_good_ones_keep_their_lines(tmp_path: Path, seven_scenes_folder: Path, num_processes: int):
    scene = open_scene(seven_scenes_folder)
    (seven_scenes_folder / "seq-01" / "frame-000001.color.png").write_bytes(b"no photo")
    not_a_number = Pose(EYE.R, EYE.t * float("nan"))
    good, whole = photos(12), png(noise(0))
    bad = [
        PhotoFile("cut.png", whole[: len(whole) // 2], EYE),
        PhotoFile("nowhere.png", whole, not_a_number),
        PhotoFile("turned.png", whole, EYE, Camera.from_focal(48, 64, 50.0)),
    ]
    mixed = [*good[:5], bad[0], *good[5:7], *scene, *bad[1:], *good[7:]]
    made = Map.create(tmp_path / "m", network=no_network())
    with pytest.raises(DatasetError, match=r"^cut\.png: expected") as caught:
        made.add(mixed, num_processes=num_processes)
    added = made.add(mixed, skip_bad_frames=True, num_processes=num_processes)
    first, in_scene, second, third = added.left_out
    assert first == str(caught.value)
    assert "frame-000001.color.png: expected" in in_scene
    assert second == "nowhere.png: expected a pose of finite numbers, found others. Leave the photo out."
    assert "expected a camera for a photo of 64 x 48 pixels, found one for 48 x 64" in third
    assert all("\n" not in line for line in added.left_out)
    names = [photo.name for photo in mixed if photo not in bad]
    assert [frame.name for frame in made] == [name for name in names if "frame-000001" not in name]
    assert made.verify().garbage == ()


def test_a_missing_package_is_told_by_a_process_as_by_a_thread():
    error = MissingExtraError("pillow-heif", "heic", "Reading HEIC")
    came = pickle.loads(pickle.dumps(error))
    assert (type(came), str(came)) == (MissingExtraError, str(error))


# Processes that end, and those that stay


@pytest.fixture
def children() -> set[int]:
    """Processes that are there already."""
    return {child.pid for child in active_children() if child.pid is not None}


def new_children(before: set[int]) -> set[int]:
    return {child.pid for child in active_children() if child.pid is not None} - before


@pytest.mark.usefixtures("generated")
def test_a_process_that_is_killed_is_one_clear_line_and_the_map_goes_on(tmp_path: Path, children: set[int]):
    everyone = photos(150)

    def with_a_kill() -> Iterator[PhotoInMemory]:
        yield from everyone[:100]
        os.kill(min(new_children(children)), signal.SIGKILL)
        yield from everyone[100:]

    made = Map.create(tmp_path / "m", network=no_network())
    with pytest.raises(RelographError, match="expected every process that reads photos to live") as caught:
        made.add(with_a_kill(), num_processes=2)
    assert "\n" not in str(caught.value)
    assert not new_children(children)
    assert 0 < len(made) < 150
    report = made.verify()
    assert report.is_whole
    assert not report.garbage
    made.add(everyone, num_processes=2)
    assert made.frames == made_map(tmp_path / "expected", 150).frames


def test_who_asks_for_no_more_leaves_no_process(children: set[int]):
    tasks = ((photo.name, ReadTask.of(photo, MAX_JPEG_BYTES)) for photo in photos(200))
    with closing(chunks_read(tasks, 2, 10)) as chunks:
        assert [name for name, _ in next(chunks)] == [photo.name for photo in photos(10)]
        assert len(new_children(children)) == 2
    assert not new_children(children)


@pytest.mark.usefixtures("generated")
def test_a_full_disk_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: set[int]):
    made = made_map(tmp_path / "m", 4)

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable_files.os, "fsync", no_space)
    with pytest.raises(DatasetError, match="No space left on device") as caught:
        made.add(photos(400, first=4), num_processes=2)
    assert "\n" not in str(caught.value)  # also while somebody still looks at the error, and all that it came through
    assert not new_children(children)


@pytest.mark.usefixtures("generated")
def test_nobody_gets_processes_who_did_not_ask_for_them(tmp_path: Path, children: set[int]):
    """A script without `if __name__ == "__main__":` would start itself again."""
    found: set[int] = set()

    def watched() -> Iterator[PhotoInMemory]:
        for photo in photos(60):
            found.update(new_children(children))
            yield photo

    assert len(Map.create(tmp_path / "m", watched(), network=no_network())) == 60
    assert not found
