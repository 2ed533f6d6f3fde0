"""Photos are decoded once and come back from the cache as if they had been decoded again."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps
from tiny_scenes import write_photo

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.scenes import Frame, cached_images, size_of_height
from relograph.scenes.frame import FileSource
from relograph.scenes.image_cache import PHOTOS_PER_JOB, PHOTOS_WORTH_PROCESSES, scaled_to_cover

SIZE_HW = (24, 32)


def frame_of(path: Path, member: str | None = None) -> Frame:
    return Frame(member or path.name, Pose.identity(), FileSource(path, member))


@pytest.fixture
def frames(tmp_path: Path) -> list[Frame]:
    """Photos of several sizes, landscape and portrait, one of them stored on its side."""
    paths = []
    for seed, size_wh in enumerate([(64, 48), (48, 64), (64, 36), (40, 40), (33, 47)]):
        paths.append(tmp_path / "photos" / f"{seed}.png")
        write_photo(paths[-1], seed, size_wh)
    exif = Image.Exif()
    exif[0x0112] = 6
    paths.append(tmp_path / "photos" / "sideways.jpg")
    write_photo(paths[-1], 9, (64, 48), exif=exif)
    return [frame_of(path) for path in paths]


class Tasks:
    """Progress that remembers what was reported: a task is a description, its total and the steps done."""

    def __init__(self) -> None:
        self.tasks: list[list[object]] = []

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        task: list[object] = [description, total, 0]
        self.tasks.append(task)

        def advance(steps: int) -> None:
            task[2] += steps

        yield advance


def expected_images(frames: list[Frame], image_size_hw: tuple[int, int] = SIZE_HW) -> np.ndarray:
    return np.stack([scaled_to_cover(frame.read_image(), image_size_hw) for frame in frames])


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes other bytes into a file without a trace in its time of change."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


# Scaling


@pytest.mark.parametrize("size_wh", [(64, 48), (48, 64), (65, 37), (640, 480), (9, 300)])
@pytest.mark.parametrize("image_size_hw", [(24, 32), (32, 24), (21, 21), (100, 150), (1, 1)])
def test_scaling_agrees_with_pillow_s_own_fit(size_wh: tuple[int, int], image_size_hw: tuple[int, int]):
    width, height = size_wh
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    fitted = ImageOps.fit(Image.fromarray(pixels), image_size_hw[::-1], Image.Resampling.BILINEAR)
    difference = scaled_to_cover(pixels, image_size_hw).astype(int) - np.asarray(fitted)
    assert np.abs(difference).max() <= 1  # it computes the box in another order


def test_a_photo_of_the_right_size_stays_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    assert_array_equal(scaled_to_cover(pixels, (48, 64)), pixels)


def test_a_fine_pattern_turns_grey_instead_of_aliasing():
    checkers = np.indices((256, 256)).sum(axis=0) % 2 * 255
    pixels = np.repeat(checkers[..., None], 3, axis=-1).astype(np.uint8)
    assert np.abs(scaled_to_cover(pixels, (32, 32)) - 127.5).max() <= 0.5


@pytest.mark.parametrize(
    ("size_wh", "expected_hw"), [((640, 480), (256, 341)), ((1920, 1080), (256, 455)), ((480, 640), (256, 192))]
)
def test_the_size_of_a_height_keeps_the_aspect(tmp_path: Path, size_wh: tuple[int, int], expected_hw: tuple[int, int]):
    write_photo(tmp_path / "photo.png", size_wh=size_wh)
    assert size_of_height(frame_of(tmp_path / "photo.png"), 256) == expected_hw


def test_the_size_of_a_height_is_that_of_the_upright_photo(frames: list[Frame]):
    assert size_of_height(frames[-1], 64) == (64, 48)


# The cache


@pytest.mark.parametrize("image_size_hw", [(24, 32), (32, 24), (20, 20), (100, 150)])
def test_the_cache_holds_what_decoding_and_scaling_gives(
    frames: list[Frame], tmp_path: Path, image_size_hw: tuple[int, int]
):
    images = cached_images(frames, image_size_hw, tmp_path / "cache")
    assert images.dtype == torch.uint8
    assert_array_equal(images, expected_images(frames, image_size_hw))
    assert_array_equal(cached_images(frames, image_size_hw, tmp_path / "cache"), images)


def test_no_photo_is_decoded_a_second_time(frames: list[Frame], tmp_path: Path):
    images = cached_images(frames, SIZE_HW, tmp_path / "cache").clone()
    for frame in frames:
        replace_bytes(frame.image.path, bytes(frame.image.size_bytes()))  # nothing could be decoded from these
    tasks = Tasks()
    assert_array_equal(cached_images(frames, SIZE_HW, tmp_path / "cache", progress=tasks), images)
    assert tasks.tasks == []


def test_decoding_is_reported(frames: list[Frame], tmp_path: Path):
    frames = frames * PHOTOS_PER_JOB
    tasks = Tasks()
    cached_images(frames, SIZE_HW, tmp_path / "cache", progress=tasks)
    assert tasks.tasks == [["decoding photos", len(frames), len(frames)]]


def test_frames_come_in_their_order_and_as_often_as_asked(frames: list[Frame], tmp_path: Path):
    images = cached_images(frames, SIZE_HW, tmp_path / "cache")
    order = [3, 0, 3, 5, 1, 3]
    assert_array_equal(cached_images([frames[i] for i in order], SIZE_HW, tmp_path / "cache"), images[order])


def test_a_photo_that_changes_is_decoded_again(tmp_path: Path):
    path = tmp_path / "photo.ppm"  # not packed, so every photo has the same number of bytes
    write_photo(path, seed=0)
    before = cached_images([frame_of(path)], SIZE_HW, tmp_path / "cache")
    changed_ns = path.stat().st_mtime_ns
    write_photo(path, seed=1)
    os.utime(path, ns=(changed_ns, changed_ns + 1_000_000))
    after = cached_images([frame_of(path)], SIZE_HW, tmp_path / "cache")
    assert (after != before).any()
    assert_array_equal(after, expected_images([frame_of(path)]))


def test_photos_of_the_same_names_in_another_place_are_others(tmp_path: Path):
    here, there = tmp_path / "here" / "photo.ppm", tmp_path / "there" / "photo.ppm"  # unpacked: same size, same time
    for seed, path in enumerate([here, there]):
        write_photo(path, seed)
        os.utime(path, (1e9, 1e9))
    first = cached_images([frame_of(here)], SIZE_HW, tmp_path / "cache")
    assert (cached_images([frame_of(there)], SIZE_HW, tmp_path / "cache") != first).any()


def test_photos_in_a_zip_are_cached_like_others(frames: list[Frame], tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for frame in frames:
            archive.write(frame.image.path, frame.name)
    zipped = [frame_of(tmp_path / "photos.zip", frame.name) for frame in frames]
    assert_array_equal(cached_images(zipped, SIZE_HW, tmp_path / "cache"), expected_images(frames))


def test_many_photos_are_decoded_by_processes_to_the_same_pixels(frames: list[Frame], tmp_path: Path):
    many = [frames[i % len(frames)] for i in range(PHOTOS_WORTH_PROCESSES + 1)]
    tasks = Tasks()
    images = cached_images(many, SIZE_HW, tmp_path / "cache", progress=tasks)
    expected = torch.from_numpy(expected_images(frames))
    assert_array_equal(images, expected[torch.arange(len(many)) % len(frames)])
    assert tasks.tasks == [["decoding photos", len(many), len(many)]]


def test_no_frames_are_no_images_and_no_file(tmp_path: Path):
    assert cached_images([], SIZE_HW, tmp_path / "cache").shape == (0, *SIZE_HW, 3)
    assert not (tmp_path / "cache").exists()


def test_writing_to_the_images_leaves_the_file_alone(frames: list[Frame], tmp_path: Path):
    cached_images(frames, SIZE_HW, tmp_path / "cache").zero_()
    assert_array_equal(cached_images(frames, SIZE_HW, tmp_path / "cache"), expected_images(frames))


def test_two_at_a_time_decode_once(frames: list[Frame], tmp_path: Path):
    frames, tasks = frames * 50, Tasks()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(cached_images, frames, SIZE_HW, tmp_path / "cache", progress=tasks) for _ in range(4)]
        for images in asked:
            assert_array_equal(images.result(), expected_images(frames))
    assert len(tasks.tasks) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


# Damage


def test_a_cache_that_was_cut_or_lengthened_is_made_again(frames: list[Frame], tmp_path: Path):
    expected = expected_images(frames)
    cached_images(frames, SIZE_HW, tmp_path / "cache")
    path = only_file(tmp_path / "cache")
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 2, expected.size, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert_array_equal(cached_images(frames, SIZE_HW, tmp_path / "cache"), expected)
        assert only_file(tmp_path / "cache").read_bytes() == whole
    path.write_bytes(whole + b"\0")
    assert_array_equal(cached_images(frames, SIZE_HW, tmp_path / "cache"), expected)


def test_a_flipped_bit_in_the_cache_is_noticed(frames: list[Frame], tmp_path: Path):
    expected = expected_images(frames)
    cached_images(frames, SIZE_HW, tmp_path / "cache")
    path = only_file(tmp_path / "cache")
    whole = path.read_bytes()
    for position in range(0, len(whole), 997):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        assert_array_equal(cached_images(frames, SIZE_HW, tmp_path / "cache"), expected)


@pytest.mark.parametrize("num_frames", [6, PHOTOS_WORTH_PROCESSES], ids=["threads", "processes"])
def test_a_damaged_photo_is_named_and_leaves_nothing_behind(frames: list[Frame], tmp_path: Path, num_frames: int):
    bad = frames[4].image.path
    bad.write_bytes(bad.read_bytes()[:-200])
    with pytest.raises(DatasetError, match="expected a whole photo") as raised:
        cached_images([frames[i % len(frames)] for i in range(num_frames)], SIZE_HW, tmp_path / "cache")
    assert str(raised.value).startswith(f"{bad}: ")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_photo_is_named(frames: list[Frame], tmp_path: Path):
    frames[1].image.path.unlink()
    with pytest.raises(DatasetError, match=r"1\.png: expected a file, found nothing there"):
        cached_images(frames, SIZE_HW, tmp_path / "cache")


def test_a_place_that_cannot_be_written_to_is_named(frames: list[Frame], tmp_path: Path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DatasetError, match=r"cache: expected to keep 0 MiB of decoded photos here, found: \w+"):
        cached_images(frames, SIZE_HW, tmp_path / "cache")


PROGRAM = """
import resource, sys
from pathlib import Path
from relograph.errors import RelographError
from relograph.geometry import Pose
from relograph.scenes import Frame, cached_images
from relograph.scenes.frame import FileSource

if __name__ == "__main__":
    photo, cache, num_frames, max_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    frames = [Frame(f"{i}.png", Pose.identity(), FileSource(photo)) for i in range(num_frames)]
    try:
        cached_images(frames, (48, 64), cache)
    except RelographError as error:
        print(error)
"""


def start(tmp_path: Path, photo: Path, num_frames: int, max_bytes: int) -> subprocess.Popen[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [tmp_path / "program.py", photo, tmp_path / "cache", num_frames, max_bytes]
    return subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_a_disk_without_room_is_one_line_and_leaves_nothing_behind(frames: list[Frame], tmp_path: Path):
    output, _ = start(tmp_path, frames[0].image.path, num_frames=300, max_bytes=2_000_000).communicate()
    assert output == (
        f"{tmp_path / 'cache'}: expected to keep 3 MiB of decoded photos here, found: File too large. "
        "Check the rights and the free space, or choose another place.\n"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def workers_of(process: subprocess.Popen[str], cache: Path) -> list[int]:
    """The processes that decode for another one, once they are at work."""
    until = time.monotonic() + 60
    # Bytes other than zero in the file show it.
    while not any(np.fromfile(path, np.uint8, count=2**20).any() for path in cache.glob("*")):
        assert time.monotonic() < until
        time.sleep(0.05)
    return children_of(process.pid)


def test_a_kill_takes_the_workers_along_and_the_next_run_clears_up(frames: list[Frame], tmp_path: Path):
    process = start(tmp_path, frames[0].image.path, num_frames=10 * PHOTOS_WORTH_PROCESSES, max_bytes=-1)
    workers = workers_of(process, tmp_path / "cache")
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    until = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "partial" in only_file(tmp_path / "cache").name
    cached_images(frames, SIZE_HW, tmp_path / "cache")
    assert "partial" not in only_file(tmp_path / "cache").name


def test_a_killed_worker_is_told_and_leaves_nothing_behind(frames: list[Frame], tmp_path: Path):
    process = start(tmp_path, frames[0].image.path, num_frames=10 * PHOTOS_WORTH_PROCESSES, max_bytes=-1)
    for worker in workers_of(process, tmp_path / "cache"):
        os.kill(worker, signal.SIGKILL)
    output, _ = process.communicate()
    assert output.startswith("expected every process that decodes photos to finish, found one ended from outside")
    assert output.count("\n") == 1
    assert list((tmp_path / "cache").iterdir()) == []


def children_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"PPid:\t{pid}\n" in status.read_text():
                found.append(int(status.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found
