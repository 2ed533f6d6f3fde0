"""`reconstruction.json` beside a COLMAP model: how it was made, and whether its lengths are metres."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from relograph.errors import DatasetError
from relograph.scenes.names import is_file, read_text

FILE = "reconstruction.json"
FORMAT = "relograph reconstruction 1"

ScaleSource = Literal["unknown", "distance", "ar_log"]
UNKNOWN_SCALE = (
    "The scale of this scene is not known: its lengths, and all distances in answers, are in a unit of their own, not "
    "in metres. `relograph scene scale` makes metres of a scene's; a map of it has to be made again then."
)


def write_reconstruction_file(root: Path, scale: ScaleSource, told: Mapping[str, object]) -> None:
    """Writes where the scale comes from, and what else is told."""
    document = {"format": FORMAT, **told, "scale": scale}
    partial = root / f"{FILE}.partial"
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(root / FILE)


def scale_is_known(root: Path) -> bool:
    """Whether lengths in the scene are metres; a scene that does not say is believed."""
    return not is_file(root / FILE) or read_reconstruction_file(root)["scale"] != "unknown"


def read_reconstruction_file(root: Path) -> dict[str, Any]:
    """What was written: `scale`, and what else was told."""
    path = root / FILE
    try:
        document = json.loads(read_text(path))
        scale, is_ours = document["scale"], document["format"] == FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path}: expected what a reconstruction wrote, found: {error}. Restore or remove it."
        ) from None
    if not is_ours or scale not in ("unknown", "distance", "ar_log"):
        raise DatasetError(f"{path}: expected the format {FORMAT!r}, found another. Restore or remove it.")
    return dict(document)
