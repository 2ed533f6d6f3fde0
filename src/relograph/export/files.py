"""The folder of an exported network: two ONNX files, and one that says what they are."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from relograph.errors import CheckpointError

CONTENTS_FILE = "export.json"
ENCODER, MATCHER = "encoder", "matcher"
FORMAT = "relograph export 1"
MAX_REFERENCES = 32
SIZE_STEP = 16
"""Heights and widths of images are multiples of it."""

ExportPrecision = Literal["float32", "int8"]


@dataclass(frozen=True)
class ExportedFile:
    """One ONNX file."""

    file: str
    num_bytes: int
    sha256: str
    inputs: Mapping[str, Sequence[str | int]]
    """Sizes of each input; a name stands for any number."""
    outputs: Mapping[str, Sequence[str | int]]
    max_difference: Mapping[str, float]
    """Of each output to torch's, as a share of the largest number that torch gave there."""


@dataclass(frozen=True)
class Exported:
    """What the folder holds."""

    weights_sha256: str
    """Of the weights that were exported."""
    precision: ExportPrecision
    opset: int
    encoder: ExportedFile
    matcher: ExportedFile
    made_by: Mapping[str, object] = field(default_factory=dict)
    """Command, versions and time."""

    def save(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2, allow_nan=False) + "\n"
        (folder / CONTENTS_FILE).write_text(text, encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> "Exported":
        """What is in `folder`, after a look at every byte of its files."""
        path = folder / CONTENTS_FILE
        if not path.is_file():
            raise CheckpointError(
                f"{folder}: expected an exported network, found no {CONTENTS_FILE}. Run: relograph export {folder}"
            )
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told.pop("format") != FORMAT:
                raise ValueError(f"it does not say {FORMAT!r}")
            exported = Exported(**{**told, **{name: ExportedFile(**told[name]) for name in (ENCODER, MATCHER)}})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: expected to read about an exported network, found: {error}. Export it again."
            ) from error
        for about in (exported.encoder, exported.matcher):
            file = folder / about.file
            if not file.is_file() or sha256_of(file) != about.sha256:
                found = "other bytes" if file.is_file() else "no such file"
                raise CheckpointError(
                    f"{file}: expected the file of {about.num_bytes:,} bytes that was exported, found {found}. "
                    "Export it again."
                )
        return exported


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
