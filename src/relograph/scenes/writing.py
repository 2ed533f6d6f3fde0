"""What every writer of scenes shares: a folder that appears whole or not at all, photos, exact numbers."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import Literal

from PIL import Image

from relograph.errors import DatasetError
from relograph.scenes.frame import Frame

ImageMode = Literal["copy", "link", "none"]
"""What becomes of the photos: copied, linked to where they are now, or left out."""

_EXIF_ORIENTATION = 0x0112


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
        _flush_folder(final.parent)
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
    data = frame.image.read_bytes()
    if _is_stored_turned(data):
        _write_upright(frame, data, path)
    elif images == "link" and frame.image.member is None:
        path.symlink_to(frame.image.path.resolve())
    else:
        path.write_bytes(data)


def exact(values: Iterable[float]) -> str:
    """The numbers with one space between, each with as many digits as it takes to read the same float64 again.

    Example:
        >>> exact([0.1, 1.0, 1 / 3])
        '0.1 1.0 0.3333333333333333'
    """
    return " ".join(repr(float(value)) for value in values)


def _refuse_occupied(final: Path) -> None:
    if final.exists() and not final.is_dir():
        raise DatasetError(
            f"{final}: expected a new or empty folder to write to, found a file. Choose another name, or remove the file."
        )
    if final.is_dir() and any(final.iterdir()):
        raise DatasetError(
            f"{final}: expected a new or empty folder to write to, found one that holds files. "
            f"Choose another name, or empty the folder."
        )


def _make_parents(final: Path) -> list[Path]:
    """The folders above `final` that did not exist and were created, innermost first."""
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
    """Returns when every file under `folder` is on the disk: else a power cut after the rename shows empty files."""
    for parent, _, file_names in os.walk(folder):
        for file_name in file_names:
            path = Path(parent) / file_name
            if not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        _flush_folder(Path(parent))


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_stored_turned(data: bytes) -> bool:
    try:
        with Image.open(BytesIO(data)) as photo:
            return photo.getexif().get(_EXIF_ORIENTATION, 1) not in (0, 1)
    except Exception:
        # Pillow raises nearly anything on a damaged file. Copying is no place to judge photos: the copy is as damaged.
        return False


def _write_upright(frame: Frame, data: bytes, path: Path) -> None:
    with Image.open(BytesIO(data)) as photo:
        exif = photo.getexif()
        image_format = photo.format
    exif[_EXIF_ORIENTATION] = 1  # the rest of the tags stays: the focal length is among them
    Image.fromarray(frame.read_image()).save(path, format=image_format, exif=exif, quality=95)
