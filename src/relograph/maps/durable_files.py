"""Files that appear under their name once all of them is on the disk, or not at all."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def write_durably(path: Path, data: bytes) -> None:
    """Writes a whole file; its name is on the disk after `flush_folder`."""
    partial = path.with_name(f"{path.name}.partial-{token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
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
