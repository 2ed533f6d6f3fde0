"""The Cambridge Landmarks layout: two text files that name the photos of the training and the test split.

    KingsCollege/dataset_train.txt
    KingsCollege/dataset_test.txt
    KingsCollege/seq1/frame00001.png

After three header lines, each line is a photo, X Y Z and W P Q R. X Y Z is the camera CENTRE in the world, in metres,
while W P Q R is the quaternion (wxyz) of the rotation from world to camera: the two do not belong to one transform.
Camera axes are OpenCV's. There are no intrinsics.
"""

from pathlib import Path
from typing import Literal

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.names import is_file, parse_float, pose_from_quat_wxyz, read_text, safe_name, sequence_of
from relograph.scenes.scene import Scene, SceneBuilder

FORMAT = "cambridge"

SPLIT_FILES: dict[Literal["train", "test"], str] = {"train": "dataset_train.txt", "test": "dataset_test.txt"}
TITLE = "Visual Landmark Dataset"
NUM_HEADER_LINES = 3


def recognise(root: Path) -> bool:
    """Whether the folder holds a list of training or test photos by the data set's names."""
    return any(is_file(root / file_name) for file_name in SPLIT_FILES.values())


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene in that folder: the training frames, then the test frames, in the order of the files."""
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    for split, file_name in SPLIT_FILES.items():
        path = root / file_name
        if not is_file(path):
            builder.warnings.append(f"{file_name} is not there, so the {split} split is empty.")
            continue
        lines = read_text(path).splitlines()
        if not lines or not lines[0].startswith(TITLE):
            found = lines[0][:40] if lines else ""
            raise DatasetError(
                f"{path}: expected '{TITLE} V1' as the first of three header lines, found {found!r}. "
                "Restore the header, or the file from the original data."
            )
        for line_number, line in enumerate(lines[NUM_HEADER_LINES:], start=NUM_HEADER_LINES + 1):
            if line.strip():
                with builder.frame():
                    builder.add(_read_frame(line, root, split, where=f"{path}:{line_number}"))
    return builder.build()


def _read_frame(line: str, root: Path, split: Literal["train", "test"], where: str) -> Frame:
    # From the right: a name may contain spaces.
    tokens = line.strip().rsplit(maxsplit=7)
    if len(tokens) != 8:
        raise DatasetError(f"{where}: expected a photo and 7 numbers, found {len(tokens)} columns. Correct the line.")
    name = safe_name(tokens[0], where)
    numbers = [parse_float(token, where) for token in tokens[1:]]
    mixed = pose_from_quat_wxyz(numbers[3:], numbers[:3], where)  # R of cam_world, t of world_cam
    return Frame(
        name=name,
        T_world_cam=Pose(mixed.R.mT, mixed.t),
        image=FileSource(root / name),
        sequence=sequence_of(name),
        split=split,
    )
