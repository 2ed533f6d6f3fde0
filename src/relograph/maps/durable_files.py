"""Files that appear under their name once all of them is on the disk, or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def write_durably(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a whole file, piece after piece; its name is on the disk after `flush_folder`."""
    partial = write_partial(path, pieces)
    try:
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_partial(path: Path, pieces: Iterable[bytes | memoryview]) -> Path:
    """The whole file, on the disk beside `path` under another name, which `replace` turns into its own."""
    partial = path.with_name(f"{path.name}.partial-{token_hex(4)}")
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
    return partial


def flush_folder(folder: Path) -> None:
    """Returns when the list of names in `folder` is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
