"""Files that appear whole or not at all."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from relograph.errors import DatasetError


def write_whole(path: Path, content: bytes) -> None:
    """Puts `content` at `path` in one step, so a reader finds the old file or the new one and never a part of it."""
    partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):  # there may be nothing to remove
            partial.unlink()
        if isinstance(error, OSError):
            raise DatasetError(
                f"{path}: expected to write a file here, found: {error.strerror or error}. "
                f"Check the rights and the free space, or choose another place."
            ) from error
        raise


def write_documents(text_by_path: Mapping[Path, str], *, check: bool, source: str, command: str) -> list[Path]:
    """Write the documents that differ from what they should say; with `check`, raise where there are any."""
    changed = [
        path for path, text in text_by_path.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and changed:
        raise DatasetError(
            f"{', '.join(map(str, changed))}: expected what {source} say, found another text. Run: {command}"
        )
    for path in changed:
        write_whole(path, text_by_path[path].encode())
    return changed
