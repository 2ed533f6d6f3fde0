"""What every writer of scenes shares: a folder that appears whole or not at all, its photos, exact numbers."""

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Literal

import numpy as np
from PIL import Image

from relograph.errors import DatasetError
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.images import decode_depth

ImageMode = Literal["copy", "link", "none"]
"""What becomes of the photos: copied, linked to where they are now, or left out."""


@contextmanager
def writing_folder(destination: Path) -> Iterator[Path]:
    """A new folder beside `destination` to write into; it becomes `destination` when the block ends.

    The folder is flushed to the disk and renamed in one step, so whoever looks at `destination` finds nothing or the
    whole. An error inside the block removes what was written; a kill leaves it under a name ending in `.partial-*`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as parent:
        ...     with writing_folder(Path(parent) / "scene") as folder:
        ...         _ = (folder / "poses.txt").write_text("1 0 0 0")
        ...         before = (Path(parent) / "scene").exists()
        ...     before, (Path(parent) / "scene" / "poses.txt").read_text()
        (False, '1 0 0 0')
    """
    try:
        final = destination.resolve()  # a link to an empty folder stays a link; the folder behind it is replaced
        _refuse_occupied(final)
        created_parents = _make_parents(final)
        # Not tempfile.mkdtemp: its folders are closed to everybody but their owner, and so would be the result.
        partial = final.with_name(f"{final.name}.partial-{token_hex(4)}")
        partial.mkdir()
    except OSError as error:
        raise _cannot_write(destination, error) from error

    try:
        yield partial
        _flush_to_disk(partial)
        partial.replace(final)  # over an empty folder this is one step too; over one filled meanwhile it fails
        _flush(final.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_empty(created_parents)
        if isinstance(error, OSError):
            raise _cannot_write(destination, error) from error
        raise


def place_image(frame: Frame, path: Path, images: ImageMode) -> None:
    """Puts the photo of `frame` at `path`, with its folders.

    A photo that is stored turned (EXIF orientation) is written upright instead, even where links are asked for:
    other tools disagree on whether they honour the tag, and the camera and the pose are those of the upright photo.
    A photo inside a zip cannot be linked and is copied.
    """
    if images == "none":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = frame.read_image()  # decoded in any case: a damaged photo is refused here, not passed on
    if frame.image.read_image_header().orientation == 1:
        _place_file(frame.image, path, images)
        return
    image_format = Image.registered_extensions().get(path.suffix.lower(), "PNG")
    Image.fromarray(pixels).save(path, format=image_format, quality=95)


def depth_name(frame: Frame) -> str:
    """The path that the frame's depth map gets in the folder of depth maps."""
    return frame.name if frame.name.endswith(".png") else f"{frame.name}.png"


def place_depth(frame: Frame, path: Path, images: ImageMode, metres_per_unit: float) -> None:
    """Puts the depth map of `frame`, if it has one, at `path` as 16-bit PNG with 0 where the depth is unknown.

    Depths that 16 bits do not hold (from 65535 units on) become unknown. A map that is stored like this already is
    copied or linked as it is.
    """
    if images == "none" or frame.depth is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = frame.depth
    depth_m = frame.read_depth_m()
    in_units = np.round(depth_m / np.float32(metres_per_unit))
    units = np.where(in_units < 65535, in_units, 0).astype(np.uint16)  # NaN compares false and becomes 0
    if source.file.suffix == ".png" and np.array_equal(
        units, decode_depth(source.file.read_bytes(), source.file.label)
    ):
        _place_file(source.file, path, images)
    else:
        # Five times faster than Pillow's usual level 6, for 2 percent more bytes.
        Image.fromarray(units).save(path, compress_level=3)


def exact(values: Iterable[float]) -> str:
    """The numbers with one space between, each with as many digits as it takes to read the same float64 again.

    Example:
        >>> exact([0.1, 1.0, 1 / 3])
        '0.1 1.0 0.3333333333333333'
    """
    return " ".join(repr(float(value)) for value in values)


def _place_file(source: FileSource, path: Path, images: ImageMode) -> None:
    if images == "link" and source.member is None:
        path.symlink_to(source.path.resolve())
    else:
        path.write_bytes(source.read_bytes())


def _refuse_occupied(final: Path) -> None:
    if final.exists() and not final.is_dir():
        raise DatasetError(
            f"{final}: expected a new or empty folder to write to, found a file. Choose another name, or remove it."
        )
    if final.is_dir() and any(final.iterdir()):
        raise DatasetError(
            f"{final}: expected a new or empty folder to write to, found one that holds files. "
            f"Choose another name, or empty the folder."
        )


def _make_parents(final: Path) -> list[Path]:
    """The folders above `final` that did not exist and were created, innermost first."""
    in_the_way = next((parent for parent in final.parents if parent.is_file()), None)
    if in_the_way is not None:
        raise DatasetError(f"{in_the_way}: expected a folder to write into, found a file. Choose another place.")
    missing = [parent for parent in final.parents if not parent.exists()]
    final.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # somebody else has put something there meanwhile


def _cannot_write(destination: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"{destination}: expected to write a folder here, found: {error.strerror or error}. "
        f"Check the rights and the free space, or choose another place."
    )


def _flush_to_disk(folder: Path) -> None:
    """Returns when everything under `folder` is on the disk: else a power cut after the rename shows empty files."""
    paths = [folder]
    for parent, folder_names, file_names in os.walk(folder):
        paths += [Path(parent, name) for name in (*folder_names, *file_names)]
    # Side by side the file system writes many at once: ten times faster than one after the other.
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(_flush, (path for path in paths if not path.is_symlink())))


def _flush(path: Path) -> None:
    """Returns when a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
