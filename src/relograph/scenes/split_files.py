"""`train.txt` and `test.txt`, a frame's name a line: the split of a scene whose format has no place for it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from relograph.errors import DatasetError
from relograph.scenes.frame import Frame
from relograph.scenes.names import is_file, read_text, safe_name
from relograph.scenes.scene import SceneBuilder

SPLIT_FILES: dict[Literal["train", "test"], str] = {"train": "train.txt", "test": "test.txt"}


def read_split_files(folder: Path, builder: SceneBuilder) -> None:
    """Gives the frames in `builder` the split that the files in `folder` name them in; without files it stays."""
    split_by_name: dict[str, Literal["train", "test"]] = {}
    known = {frame.name for frame in builder.frames}
    for split, file_name in SPLIT_FILES.items():
        path = folder / file_name
        if not is_file(path):
            continue
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            name = safe_name(line.strip(), where=f"{path} line {number}")
            if name not in known:
                with builder.frame():
                    raise DatasetError(
                        f"{path} line {number}: expected the name of a frame, found {name!r}, which the scene does "
                        "not have. Restore the photo, or remove the line."
                    )
            elif split_by_name.setdefault(name, split) != split:
                raise DatasetError(
                    f"{path} line {number}: expected a frame in one split only, found {name!r} in "
                    f"{SPLIT_FILES['train']} too. Remove it from one of the two."
                )
    builder.frames = [replace(frame, split=split_by_name.get(frame.name, frame.split)) for frame in builder.frames]


def write_split_files(folder: Path, frames: Iterable[Frame]) -> None:
    """Writes the names of the training and of the test frames into `folder`; no file for a split without frames."""
    names: dict[str, list[str]] = {}
    for frame in frames:
        if frame.split is not None:
            names.setdefault(frame.split, []).append(frame.name)
    for split, file_name in SPLIT_FILES.items():
        if split in names:
            (folder / file_name).write_text("".join(f"{name}\n" for name in names[split]), encoding="utf-8")
