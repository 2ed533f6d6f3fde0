"""The photos in a folder that says nothing about them."""

import os
import re
from pathlib import Path

from relograph.environment import installed_version
from relograph.errors import DatasetError, MissingExtraError
from relograph.scenes.names import reading, safe_name

HEIC_ENDINGS = (".heic", ".heif")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm", *HEIC_ENDINGS)
"""Of files that may be photos."""
DEPTH_ENDING = ".depth.png"
"""Of depth maps that lie beside photos, as in 7-Scenes."""


def list_photos(folder: Path) -> list[str]:
    """Paths of the photos in a folder and in those below it, relative to it, with numbers in them in their order.

    What is hidden is left out, and so are depth maps.
    """
    names = []
    with reading(folder):
        if not folder.exists():
            raise DatasetError(f"{folder}: expected a folder of photos, found nothing there. Check the path.")
        if not folder.is_dir():
            raise DatasetError(f"{folder}: expected a folder of photos, found a file. Give the folder that it is in.")
        for parent, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            names += [
                (Path(parent) / name).relative_to(folder).as_posix()
                for name in files
                if name.lower().endswith(ENDINGS) and not name.lower().endswith(DEPTH_ENDING) and name[0] != "."
            ]
    if not names:
        raise DatasetError(f"{folder}: expected photos ({', '.join(ENDINGS)}), found none. Convert others to JPEG.")
    for name in names:
        if name.lower().endswith(HEIC_ENDINGS) and installed_version("pillow-heif") is None:
            raise MissingExtraError("pillow-heif", "heic", f"{folder / name}: a photo in HEIC")
    return sorted((safe_name(name, str(folder)) for name in names), key=in_order)


def in_order(name: str) -> tuple[tuple[str, int], ...]:
    """What to sort names by so that IMG_9 comes before IMG_10.

    Example:
        >>> sorted(["IMG_10.jpg", "IMG_9.jpg"], key=in_order)
        ['IMG_9.jpg', 'IMG_10.jpg']
    """
    return tuple((words, int(digits or 0)) for words, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name))
