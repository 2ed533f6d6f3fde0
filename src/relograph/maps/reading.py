"""Photos from their files to what the network sees of them and a map keeps, some ahead of whoever asks.

Threads do it for whoever has no more to do meanwhile than a CPU can. A GPU encodes photos faster than the threads of
one process take turns in Python, so for many photos it is fed by processes.
"""

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from tempfile import TemporaryFile, gettempdir
from typing import IO, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from relograph.environment import num_cores
from relograph.errors import DatasetError, GeometryError, RelographError
from relograph.localization.photos import LONGER_SIDE, PhotoFile, PosedPhoto, WorkingSize, see_file, see_pixels
from relograph.processes import start_worker
from relograph.scenes.frame import FileSource, Frame

JPEG_QUALITIES = (85, 75, 65, 55, 45, 35, 25, 15)
"""Of the small photo that is kept; the first by which it is small enough is taken, or else the last."""
PHOTOS_PER_TASK = 8
"""That a process reads at once: handing over a task takes a tenth of the time of reading a photo."""
MAX_PIXEL_BYTES = 3 * LONGER_SIDE**2
"""Of what the network sees of a photo; of photos of all shapes it sees most of a square one."""
SLOT_BYTES = MAX_PIXEL_BYTES + LONGER_SIDE**2
"""Room for a photo's pixels and its small JPEG, which has a third of a byte a pixel where the photo is noise."""
BadPhoto = DatasetError | GeometryError
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class ReadPhoto:
    """What a photo is turned into, whatever its pose."""

    sha256: str
    """Of its file, or of its pixels where there is no file: what tells that two photos are the same."""
    size: WorkingSize
    pixels: UInt8[np.ndarray, "H W 3"]
    """What the network sees."""
    jpeg: bytes
    """The same, for people and for other networks."""


@dataclass(frozen=True)
class ReadTask:
    """A photo to read: of one that has a file no more than where that is, as it may go to another process."""

    source: FileSource | bytes | PosedPhoto
    """A photo's file, the bytes of one, or who knows its pixels."""
    where: str
    """What messages call it."""
    max_jpeg_bytes: int | None
    """Of the small photo; None where nothing but the hash is asked for."""

    @staticmethod
    def of(photo: PosedPhoto, max_jpeg_bytes: int | None) -> "ReadTask":
        if isinstance(photo, Frame):
            return ReadTask(photo.image, photo.image.label, max_jpeg_bytes)
        return ReadTask(photo.data if isinstance(photo, PhotoFile) else photo, photo.name, max_jpeg_bytes)

    def outcome(self) -> "Outcome":
        """What comes of it: what is wrong with a photo is no reason to leave others unread."""
        try:
            data = self._read()
            sha256 = hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).hexdigest()
            if self.max_jpeg_bytes is None:
                return sha256
            seen = see_file(data, self.where) if isinstance(data, bytes) else see_pixels(data)
            return ReadPhoto(sha256, seen.size, seen.pixels, small_jpeg(seen.pixels, self.max_jpeg_bytes))
        except (DatasetError, GeometryError) as error:
            return error

    def _read(self) -> bytes | UInt8[np.ndarray, "H W 3"]:
        if isinstance(self.source, bytes):
            return self.source
        return self.source.read_bytes() if isinstance(self.source, FileSource) else self.source.read_image()


Outcome = ReadPhoto | str | BadPhoto
"""The photo as it was read, or its SHA-256 where that is all that was asked for, or what is wrong with it."""


def small_jpeg(pixels: UInt8[np.ndarray, "H W 3"], max_bytes: int) -> bytes:
    """The photo in the best quality that fits, or the lowest."""
    try:
        # Into a file: while Pillow encodes into memory no other thread of Python's runs, and all would wait for one.
        with _scratch_file() as file:
            for quality in JPEG_QUALITIES:
                file.seek(0)
                Image.fromarray(pixels).save(file, "JPEG", quality=quality, optimize=True)
                file.truncate()
                if file.tell() <= max_bytes:
                    break
            file.seek(0)
            return file.read()
    except OSError as error:
        raise RelographError(
            f"{gettempdir()}: expected to write a small file here, found: {error}. Free some space, or set TMPDIR."
        ) from error


def _scratch_file() -> IO[bytes]:
    """A file without a name; in memory on systems that know such files, as disks take a millisecond to make one."""
    try:
        return os.fdopen(os.memfd_create("relograph"), "w+b")
    except (AttributeError, OSError):  # where there is none, or a sandbox allows none
        return TemporaryFile()


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_ahead(
    items: Iterable[T], read: Callable[[T], U], num_ahead: int, num_threads: int | None = None
) -> Generator[U, None, None]:
    """`read` of each item in their order, by threads that are at most `num_ahead` items ahead of whoever asks."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(num_threads or max(2, num_cores())) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(read, item))
                if len(waiting) > num_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def chunks_read(
    tasks: Iterable[tuple[T, ReadTask]], num_processes: int, chunk_size: int
) -> Generator[list[tuple[T, Outcome]], None, None]:
    """What comes of the tasks, and what each belongs to, in their order; threads read where processes are none."""
    if num_processes == 0:
        with closing(read_ahead(tasks, lambda task: (task[0], task[1].outcome()), chunk_size)) as outcomes:
            yield from in_chunks(outcomes, chunk_size)
        return
    with closing(_read_by_processes(tasks, num_processes)) as outcomes:
        chunks = in_chunks(outcomes, chunk_size)
        # By a thread of its own, which takes from the processes what they have while the last chunk goes to the disk.
        with closing(read_ahead(repeat(chunks), lambda chunks: next(chunks, []), 1, num_threads=1)) as ahead:
            yield from takewhile(bool, ahead)


def _read_by_processes(
    tasks: Iterable[tuple[T, ReadTask]], num_processes: int
) -> Generator[tuple[T, Outcome], None, None]:
    # Photos come through memory that all share. Through pipes pixels would take the parent as long as all the rest, and
    # whoever is killed in the midst of more than a pipe holds leaves the parent waiting for what is missing for ever.
    num_blocks = 2 * num_processes + 1
    shared = RawArray("B", num_blocks * PHOTOS_PER_TASK * SLOT_BYTES)
    slots = np.frombuffer(shared, np.uint8).reshape(num_blocks, PHOTOS_PER_TASK, SLOT_BYTES)
    # Forks of a fresh process that has imported what they need: forks of this one, which has threads, could hang.
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_start_reader, initargs=(shared,))
    waiting: deque[tuple[list[T], int, Future[list[_SharedOutcome]]]] = deque()

    def first() -> Iterator[tuple[T, Outcome]]:
        owners, block, future = waiting.popleft()
        for slot, (owner, outcome) in enumerate(zip(owners, future.result(), strict=True)):
            yield owner, outcome.taken_out(slots[block, slot]) if isinstance(outcome, _SharedPhoto) else outcome

    try:
        for number, some in enumerate(in_chunks(tasks, PHOTOS_PER_TASK)):
            if len(waiting) == num_blocks:  # the block of the first is that of the next
                yield from first()
            block = number % num_blocks
            # As bytes: the poses of photos in memory, which are tensors, would take an open file each if they went by
            # themselves. They go through this pool's own pipe and never come from a file or a user.
            future = pool.submit(_read_some, pickle.dumps([task for _, task in some]), block)
            waiting.append(([owner for owner, _ in some], block, future))
        while waiting:
            yield from first()
    except BrokenProcessPool as error:
        raise RelographError(
            "expected every process that reads photos to live, found one ended: by a machine short of memory, or in a "
            'script that starts them before it says `if __name__ == "__main__":`. What the map has stays; close other '
            "programs, or mend the script, and add the photos again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


# In the processes


@dataclass(frozen=True)
class _SharedPhoto:
    """A photo that was read, its pixels and then its JPEG in a slot of shared memory."""

    sha256: str
    size: WorkingSize
    num_jpeg_bytes: int

    @staticmethod
    def put_into(slot: UInt8[np.ndarray, "B"], read: ReadPhoto) -> "_SharedPhoto":
        num_bytes = read.pixels.size
        slot[:num_bytes] = read.pixels.reshape(-1)
        slot[num_bytes : num_bytes + len(read.jpeg)] = np.frombuffer(read.jpeg, np.uint8)
        return _SharedPhoto(read.sha256, read.size, len(read.jpeg))

    def taken_out(self, slot: UInt8[np.ndarray, "B"]) -> ReadPhoto:
        height, width = self.size.size_hw
        num_bytes = height * width * 3
        pixels = slot[:num_bytes].reshape(height, width, 3).copy()
        return ReadPhoto(self.sha256, self.size, pixels, slot[num_bytes : num_bytes + self.num_jpeg_bytes].tobytes())


_SharedOutcome = _SharedPhoto | str | BadPhoto
_slots = np.zeros((0, PHOTOS_PER_TASK, SLOT_BYTES), np.uint8)
"""The memory that a process shares with its parent."""


def _start_reader(shared: object) -> None:
    global _slots
    start_worker()
    _slots = np.frombuffer(shared, np.uint8).reshape(-1, PHOTOS_PER_TASK, SLOT_BYTES)  # type: ignore[call-overload]  # ctypes' arrays are buffers


def _read_some(pickled: bytes, block: int) -> list[_SharedOutcome]:
    return [_shared(task.outcome(), _slots[block, slot]) for slot, task in enumerate(pickle.loads(pickled))]


def _shared(outcome: Outcome, slot: UInt8[np.ndarray, "B"]) -> _SharedOutcome:
    return _SharedPhoto.put_into(slot, outcome) if isinstance(outcome, ReadPhoto) else outcome
