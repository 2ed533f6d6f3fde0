"""Photos decoded and scaled once, then memory-mapped: training reads each of them many times."""

import hashlib
import json
import math
import multiprocessing
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import numpy as np
import torch
from jaxtyping import UInt8, UInt32
from PIL import Image
from torch import Tensor

from relograph.environment import num_cores
from relograph.errors import DatasetError, RelographError
from relograph.processes import start_worker
from relograph.progress import SILENT, Progress
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.images import decode_image
from relograph.scenes.names import reading

VERSION = 1
"""Part of every cache's name; raised whenever the same photos would give other pixels."""
PHOTOS_PER_JOB = 32
PHOTOS_WORTH_PROCESSES = 2000
"""From here on processes decode. They scale to more cores than threads do, but take seconds to start."""
CHECKSUM = np.dtype("<u4")


def cached_images(
    frames: Sequence[Frame], image_size_hw: tuple[int, int], folder: Path, *, progress: Progress = SILENT
) -> UInt8[Tensor, "F H W 3"]:
    """The photos of `frames`, each as `scaled_to_cover` makes it, memory-mapped from a file in `folder`.

    The first call decodes them all; later ones find the file by the photos' paths, sizes and times of change, so a
    photo that changes gets a new one. A file that was cut or damaged is noticed and made again. Writing to the tensor
    changes the tensor and not the file. The folder holds nothing else and may be removed at any time.

    Processes that ask for the same photos at the same time wait for the first to make them.
    """
    shape = (len(frames), *image_size_hw, 3)
    if not frames:
        return torch.empty(shape, dtype=torch.uint8)
    path = folder / f"{_key(frames, image_size_hw)}.images"
    try:
        images = _open_cache(path, shape)
        if images is None:
            images = _made_cache(path, shape, [frame.image for frame in frames], progress)
    except OSError as error:
        raise DatasetError(
            f"{folder}: expected to keep {math.prod(shape) / 2**20:.0f} MiB of decoded photos here, "
            f"found: {error.strerror or error}. Check the rights and the free space, or choose another place."
        ) from error
    return torch.from_numpy(images)


def size_of_height(frame: Frame, height: int) -> tuple[int, int]:
    """Height and width of the frame's photo once it is scaled to that height, in whole pixels.

    A photo of 640 x 480 gives (256, 341) for 256, one of 1920 x 1080 gives (256, 455).
    """
    photo_width, photo_height = frame.image.read_image_header().upright_size_wh
    return height, max(1, round(photo_width * height / photo_height))


def scaled_to_cover(pixels: UInt8[np.ndarray, "h w 3"], image_size_hw: tuple[int, int]) -> UInt8[np.ndarray, "H W 3"]:
    """The photo scaled evenly until it covers that size, with what overlaps on two sides cut off.

    Each pixel averages those that it covers (a triangle as wide as two new pixels), so fine patterns do not alias.

    Example:
        >>> wide = np.repeat(np.arange(4, dtype=np.uint8), 2)[None, :, None].repeat(2, axis=0).repeat(3, axis=2)
        >>> wide[0, :, 0].tolist(), scaled_to_cover(wide, (2, 4))[0, :, 0].tolist()
        ([0, 0, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2])
    """
    (height, width), (photo_height, photo_width) = image_size_hw, pixels.shape[:2]
    scale = max(height / photo_height, width / photo_width)
    # The larger ratio covers its side exactly; rounding must not ask for a pixel outside.
    kept_width, kept_height = min(width / scale, photo_width), min(height / scale, photo_height)
    left, top = (photo_width - kept_width) / 2, (photo_height - kept_height) / 2
    box = (left, top, left + kept_width, top + kept_height)
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR, box=box))


# The file: pixels of all photos one after the other, then a checksum of each.


def _key(frames: Sequence[Frame], image_size_hw: tuple[int, int]) -> str:
    """A name for these photos at that size: another one when any of them changes. Nothing is decoded."""
    digest = hashlib.sha256(json.dumps([VERSION, *image_size_hw]).encode())
    for frame in frames:
        source = frame.image
        with reading(source.path):
            changed_ns = source.path.stat().st_mtime_ns
        place = os.fsencode(source.path.absolute())
        digest.update(json.dumps([place.hex(), source.member, frame.name, source.size_bytes(), changed_ns]).encode())
    return digest.hexdigest()[:32]


def _open_cache(path: Path, shape: tuple[int, int, int, int]) -> UInt8[np.ndarray, "F H W 3"] | None:
    """The photos in the file, mapped so that writing to them leaves the file alone; None where it is not whole."""
    num_bytes = math.prod(shape)
    with suppress(FileNotFoundError):
        if path.stat().st_size == num_bytes + shape[0] * CHECKSUM.itemsize:
            images = np.memmap(path, dtype=np.uint8, mode="c", shape=shape)
            if np.array_equal(_checksums(images), np.fromfile(path, CHECKSUM, offset=num_bytes)):
                return images
    return None


def _checksums(images: UInt8[np.ndarray, "F H W 3"]) -> UInt32[np.ndarray, "F"]:
    def of_some(first: int) -> list[int]:
        return [zlib.crc32(image) for image in images[first : first + PHOTOS_PER_JOB]]

    with ThreadPoolExecutor(num_cores()) as pool:  # zlib leaves Python's lock
        parts = pool.map(of_some, range(0, len(images), PHOTOS_PER_JOB))
        return np.array([checksum for part in parts for checksum in part], CHECKSUM)


def _made_cache(
    path: Path, shape: tuple[int, int, int, int], sources: Sequence[FileSource], progress: Progress
) -> UInt8[np.ndarray, "F H W 3"]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(path.parent):
        images = _open_cache(path, shape)  # another process may have made it meanwhile
        if images is None:
            _write_cache(path, sources, shape[1:3], progress)
            images = _open_cache(path, shape)
    if images is None:
        raise DatasetError(f"{path}: expected the photos just written, found other bytes. Check the disk.")
    return images


def _write_cache(path: Path, sources: Sequence[FileSource], image_size_hw: tuple[int, int], progress: Progress) -> None:
    """Decodes the photos into a file beside `path`, which becomes `path` once it is whole and on the disk."""
    partial = path.with_name(f"{path.name}.partial-{token_hex(4)}")
    jobs = [
        _Job(partial, first, tuple(sources[first : first + PHOTOS_PER_JOB]), image_size_hw)
        for first in range(0, len(sources), PHOTOS_PER_JOB)
    ]
    try:
        with partial.open("xb") as file:
            num_bytes = math.prod((len(sources), *image_size_hw, 3))
            if hasattr(os, "posix_fallocate"):  # a disk that is too full says so before anything is decoded
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            checksums: list[int] = []
            with _workers(len(sources)) as pool, progress.task("decoding photos", total=len(sources)) as advance:
                for of_job in pool.map(_decode_into_file, jobs):
                    checksums += of_job
                    advance(len(of_job))
            file.seek(num_bytes)
            file.write(np.array(checksums, CHECKSUM).tobytes())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class _Job:
    """A few photos for one worker to decode into the file."""

    path: Path
    first: int
    sources: tuple[FileSource, ...]
    image_size_hw: tuple[int, int]


def _decode_into_file(job: _Job) -> list[int]:
    """The checksums of the job's photos, once they are in the file."""
    checksums = []
    with job.path.open("r+b") as file:
        file.seek(job.first * math.prod((*job.image_size_hw, 3)))
        for source in job.sources:
            photo = decode_image(source.read_bytes(), source.label)
            pixels = scaled_to_cover(photo, job.image_size_hw).tobytes()
            file.write(pixels)
            checksums.append(zlib.crc32(pixels))
    return checksums


# Who works


@contextmanager
def _workers(num_photos: int) -> Iterator[Executor]:
    pool: Executor
    if num_photos < PHOTOS_WORTH_PROCESSES:
        pool = ThreadPoolExecutor(num_cores())
    else:
        # Fresh processes, not forks: a fork of a process whose torch has threads can hang.
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(num_cores(), mp_context=spawn, initializer=start_worker)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise RelographError(
            "expected every process that decodes photos to finish, found one ended from outside, as a machine short "
            "of memory does. Close other programs and run the command again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)  # an error or an interrupt does not wait for thousands of photos


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other process works in the folder, and removes what killed ones left half written.

    Some network file systems have no locks; there two processes do the same work, and the last one's file stays.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):
            import fcntl  # not on Windows

            fcntl.flock(descriptor, fcntl.LOCK_EX)
            for abandoned in folder.glob("*.partial-*"):
                abandoned.unlink()
        yield
    finally:
        os.close(descriptor)
