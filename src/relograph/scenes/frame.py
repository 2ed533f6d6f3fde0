"""One posed photo, and the files it is read from when somebody asks for its pixels."""

import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

import numpy as np
from jaxtyping import Float32, UInt8

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes.images import ImageHeader, decode_depth, decode_image, read_header
from relograph.scenes.names import reading, safe_name

MAX_FILE_BYTES = 2**30
"""No photo or depth map is larger; a zip that claims to hold one is a bomb."""


# RuntimeError: a member is encrypted, or packed in a way that Python does not know.
_UNPACKING_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError)


@dataclass(frozen=True)
class FileSource:
    """A file on disk, or a member of a zip file on disk, that is opened only when it is read."""

    path: Path
    member: str | None = None
    """Name inside the zip file `path`; None when `path` is the file itself."""

    @property
    def label(self) -> str:
        """What messages call this file.

        Example:
            >>> FileSource(Path("chess/seq-01.zip"), "frame-000000.pose.txt").label
            'chess/seq-01.zip:frame-000000.pose.txt'
        """
        return str(self.path) if self.member is None else f"{self.path}:{self.member}"

    @property
    def suffix(self) -> str:
        """The file's ending in lower case with its dot, for example ".png"."""
        return PurePosixPath(self.member or self.path.name).suffix.lower()

    def exists(self) -> bool:
        """Whether the file is there; says nothing about what is in it."""
        if self.member is None:
            with reading(self.path):
                return self.path.is_file()
        return self.member in _open_zip(self.path).NameToInfo

    def size_bytes(self) -> int:
        """The file's size once unpacked; a missing file, or a folder in its place, is an error."""
        if self.member is not None:
            return self._zip_info().file_size
        with reading(self.path):
            status = os.stat(self.path)  # noqa: PTH116 - twice as fast, and asked of every photo of a scene
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            return status.st_size

    def require(self) -> "FileSource":
        """The source itself once it is known to be a file with something in it: neither missing nor of zero bytes."""
        if self.size_bytes() == 0:
            raise DatasetError(
                f"{self.label}: expected data, found a file of 0 bytes. Restore it from the original data."
            )
        return self

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file, opened for reading; seeking back in a member of a zip unpacks it again."""
        if self.member is None:
            with reading(self.path), self.path.open("rb") as file:
                yield file
            return
        archive, info = _open_zip(self.path), self._zip_info()
        try:
            with archive.open(info) as member:
                yield member
        except _UNPACKING_ERRORS as error:
            raise DatasetError(
                f"{self.label}: expected to unpack it, found: {error}. Download the zip again."
            ) from error

    def read_bytes(self) -> bytes:
        """All the file's bytes."""
        size = self.size_bytes()
        if size > MAX_FILE_BYTES:
            raise DatasetError(f"{self.label}: expected at most {MAX_FILE_BYTES} bytes, found {size}. Leave it out.")
        with self.open() as file:
            return file.read()

    def read_image_header(self) -> ImageHeader:
        """Size, orientation and focal length of the photo in this file, without decoding its pixels."""
        with self.open() as file:
            return read_header(cast(io.BufferedIOBase, file), self.label)

    def _zip_info(self) -> zipfile.ZipInfo:
        info = _open_zip(self.path).NameToInfo.get(self.member or "")
        if info is None:
            raise DatasetError(f"{self.label}: expected a file in the zip, found none of that name. Download it again.")
        return info


@dataclass(frozen=True)
class DepthSource:
    """A depth map on disk: whole numbers per pixel, along the optical axis."""

    file: FileSource
    metres_per_unit: float = 0.001
    """Metres for a stored 1: 0.001 where the file holds millimetres."""
    unknown_values: tuple[int, ...] = (0, 65535)
    """Stored values that mean that the depth was not measured."""
    quarter_turns: int = 0
    """Counter-clockwise quarter turns that bring the stored map into the photo's upright orientation."""


@dataclass(frozen=True)
class Frame:
    """A photo and where it was taken."""

    name: str
    """Unique in the scene: the photo's path in it, for example "seq-01/frame-000000.color.png"."""
    T_world_cam: Pose
    """Camera to world in metres, unbatched, float64."""
    image: FileSource
    camera: Camera | None = None
    """Intrinsics of the upright photo, in its pixels; None where nothing is known."""
    camera_by_exif: bool = False
    """Whether the camera is no more than the focal length in the photo's EXIF: a few percent off, and of a lens that is
    taken for straight."""
    depth: DepthSource | None = None
    sequence: str | None = None
    timestamp_s: float | None = None
    split: Literal["train", "test"] | None = None

    def __post_init__(self) -> None:
        # Writers put photos where their names say, so no name may lead out of a folder, whoever made the frame.
        if safe_name(self.name, where="Frame") != self.name:
            raise DatasetError(
                f"Frame: expected the shortest form of a name, found {self.name!r}. Use safe_name of it."
            )

    def read_image(self) -> UInt8[np.ndarray, "H W 3"]:
        """The photo in RGB, upright: the EXIF orientation is applied."""
        return decode_image(self.image.read_bytes(), self.image.label)

    def read_depth_m(self) -> Float32[np.ndarray, "H W"]:
        """Depth along the optical axis in metres, NaN where unknown."""
        if self.depth is None:
            raise DatasetError(f"Frame {self.name}: expected a depth map, found none in the scene. Use its photo only.")
        source = self.depth
        stored = decode_depth(source.file.read_bytes(), source.file.label)
        depth_m = stored.astype(np.float32) * np.float32(source.metres_per_unit)
        depth_m[np.isin(stored, source.unknown_values)] = np.nan
        return np.ascontiguousarray(np.rot90(depth_m, source.quarter_turns))


def list_zip(path: Path) -> list[str]:
    """Sorted names of the files in a zip."""
    return sorted(name for name in _open_zip(path).NameToInfo if not name.endswith("/"))


def _open_zip(path: Path) -> zipfile.ZipFile:
    """The opened zip file, kept open: reading its directory anew for every photo would take longer than the photo."""
    with reading(path):
        status = path.stat()
        try:
            # A forked worker shares the file position of what its parent had opened, so it opens the zip again.
            return _cached_zip(path, status.st_mtime_ns, status.st_size, os.getpid())
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path}: expected a zip file, found: {error}. Download it again.") from None


@lru_cache(maxsize=64)
def _cached_zip(path: Path, mtime_ns: int, size: int, pid: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
