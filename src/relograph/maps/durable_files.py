"""Files that appear under their name once all of them is on the disk, or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def write_durably(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a whole file, piece after piece; its name is on the disk after `flush_folder`."""
    partial = partial_beside(path)
    write_partial(partial, pieces)
    try:
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def partial_beside(path: Path) -> Path:
    """A name of its own for what `replace` turns into `path` once it is written."""
    return path.with_name(f"{path.name}.partial-{token_hex(4)}")


def write_partial(partial: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Returns when the whole file is on the disk under such a name; one that fails is gone."""
    try:
        with partial.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def flush_folder(folder: Path) -> None:
    """Returns when the list of names in `folder` is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
