"""The 7-Scenes layout: a folder a sequence, three files a frame.

    chess/TrainSplit.txt                          one line "sequence1" for each training sequence
    chess/TestSplit.txt
    chess/seq-01/frame-000000.color.png           the photo (.color.jpg is read too)
    chess/seq-01/frame-000000.depth.png           16 bits, millimetres; 0 and 65535 are unknown
    chess/seq-01/frame-000000.pose.txt            4x4 camera-to-world matrix, metres, OpenCV axes

Sequences are read extracted or as the `seq-01.zip` that they are distributed in. The layout has no intrinsics; ours
adds the optional file `camera.txt`, one line in COLMAP's notation, for the whole scene or in a sequence, and
`frame-000000.camera.txt` for one frame; the closest one holds. It has no timestamps either.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image

from relograph.errors import DatasetError
from relograph.geometry import Camera
from relograph.progress import SILENT, Progress
from relograph.scenes.camera_models import camera_line, parse_camera_file
from relograph.scenes.frame import DepthSource, FileSource, Frame, list_zip
from relograph.scenes.names import (
    decode_text,
    is_file,
    is_folder,
    list_folder,
    parse_floats,
    pose_from_matrix,
    read_text,
    safe_name,
)
from relograph.scenes.scene import Scene, SceneBuilder
from relograph.scenes.writing import ImageMode, exact, place_depth, place_image, writing_folder

FORMAT = "7scenes"

SPLIT_FILES: dict[Literal["train", "test"], str] = {"train": "TrainSplit.txt", "test": "TestSplit.txt"}

_SEQUENCE = re.compile(r"seq-(\d+)(\.zip)?")
_FRAME_FILE = re.compile(r"(frame-\d+)\.(color\.png|color\.jpg|depth\.png|pose\.txt|camera\.txt)")
_FRAME_NAME = re.compile(r"seq-\d+/frame-\d+\.color\.(png|jpg)")
_SPLIT_LINE = re.compile(r"(?:sequence|seq)[ _-]*(\d+)", re.IGNORECASE)


def recognise(root: Path) -> bool:
    """Whether the folder has split files, sequences seq-01, ... with poses in them, or is one such sequence."""
    names = list_folder(root)
    if any(_FRAME_FILE.fullmatch(name) or name in SPLIT_FILES.values() for name in names):
        return True
    sequences = [name for name in names if _SEQUENCE.fullmatch(name)]
    # Photos alone in folders of these names may belong to any format.
    return any(name.endswith(".zip") or _has_poses(root / name) for name in sequences)


def _has_poses(folder: Path) -> bool:
    return is_folder(folder) and any(name.endswith(".pose.txt") for name in list_folder(folder))


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene in that folder, its sequences and frames in the order of their numbers."""
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    sequences = _find_sequences(root)
    splits = _read_splits(root, sequences)
    scene_camera = _camera_in(FileSource(root / "camera.txt")) if is_file(root / "camera.txt") else None
    for sequence in sequences:
        split = splits.get(sequence.number)
        if splits and split is None:
            builder.warnings.append(f"{sequence.name} is named by neither {' nor '.join(SPLIT_FILES.values())}.")
        camera = _camera_in(sequence.files["camera.txt"]) if "camera.txt" in sequence.files else scene_camera
        for stem in sorted({match[1] for match in map(_FRAME_FILE.fullmatch, sequence.files) if match}, key=_number):
            with builder.frame():
                builder.add(_read_frame(sequence, stem, camera, split))
    return builder.build()


def write(scene: Scene, destination: Path, *, images: ImageMode = "copy", progress: Progress = SILENT) -> None:
    """Writes the scene in the 7-Scenes layout, as a whole or not at all.

    Names of the form seq-01/frame-000000.color.png stay; if one is different, or a sequence belongs to two splits,
    all frames are numbered anew, a sequence for each sequence and split. Photos that are neither PNG nor JPEG become
    PNG. Depth is rounded to millimetres, and unknown from 65.535 m on. Timestamps have no place in the layout.
    """
    names = _names_to_write(scene)
    with writing_folder(destination) as folder, progress.task("writing 7-Scenes", total=len(scene)) as advance:
        frames_by_sequence: dict[str, list[tuple[str, Frame]]] = {}
        for name, frame in zip(names, scene, strict=True):
            frames_by_sequence.setdefault(name.split("/")[0], []).append((name, frame))
        for sequence, members in frames_by_sequence.items():
            (folder / sequence).mkdir()
            cameras = {frame.camera for _, frame in members}
            shared = cameras.pop() if len(cameras) == 1 else None
            if shared is not None:
                (folder / sequence / "camera.txt").write_text(camera_line(shared) + "\n")
            for name, frame in members:
                _write_frame(frame, folder / name, images, own_camera=frame.camera if shared is None else None)
                advance(1)
        _write_splits(folder, {name: members[0][1].split for name, members in frames_by_sequence.items()})


# Reading


@dataclass(frozen=True)
class _SequenceFiles:
    name: str
    files: dict[str, FileSource]
    """By file name, without folders."""

    @property
    def number(self) -> int:
        return _number(self.name)


def _number(name: str) -> int:
    """The first whole number in a name."""
    match = re.search(r"\d+", name)
    return int(match[0]) if match else 0


def _find_sequences(root: Path) -> list[_SequenceFiles]:
    names = list_folder(root)
    if any(map(_FRAME_FILE.fullmatch, names)):  # one sequence was given, not the scene
        return [_SequenceFiles(root.resolve().name, {name: FileSource(root / name) for name in names})]
    files_by_sequence: dict[str, dict[str, FileSource]] = {}
    for name in names:
        match = _SEQUENCE.fullmatch(name)
        # An extracted folder sorts before the zip it came from, and wins.
        if match is None or name.removesuffix(".zip") in files_by_sequence:
            continue
        if match[2]:
            files_by_sequence[name.removesuffix(".zip")] = _files_in_zip(root / name)
        elif is_folder(root / name):
            files_by_sequence[name] = {file: FileSource(root / name / file) for file in list_folder(root / name)}
    sequences = [_SequenceFiles(name, files) for name, files in files_by_sequence.items()]
    return sorted(sequences, key=lambda sequence: sequence.number)


def _files_in_zip(path: Path) -> dict[str, FileSource]:
    files: dict[str, FileSource] = {}
    for member in list_zip(path):
        name = PurePosixPath(safe_name(member, where=str(path))).name
        if _FRAME_FILE.fullmatch(name) or name == "camera.txt":
            if name in files:
                raise DatasetError(
                    f"{path}: expected every name once, found {name!r} in two folders. Extract it and remove one."
                )
            files[name] = FileSource(path, member)
    return files


def _read_splits(root: Path, sequences: Sequence[_SequenceFiles]) -> dict[int, Literal["train", "test"]]:
    """The split by the number of the sequence."""
    numbers = {sequence.number for sequence in sequences}
    splits: dict[int, Literal["train", "test"]] = {}
    for split, file_name in SPLIT_FILES.items():
        path = root / file_name
        if not is_file(path):
            continue
        for line in filter(str.strip, read_text(path).splitlines()):
            match = _SPLIT_LINE.fullmatch(line.strip())
            if match is None:
                raise DatasetError(f"{path}: expected lines like sequence1, found {line[:40]!r}. Correct the file.")
            number = int(match[1])
            if number not in numbers:
                raise DatasetError(
                    f"{path}: expected a folder or zip seq-{number:02d} for its line {line.strip()!r}, found none in "
                    f"{root}. Download the sequence, or remove the line."
                )
            if splits.setdefault(number, split) != split:
                raise DatasetError(
                    f"{root}: expected seq-{number:02d} in one split, found it in both. Correct the files."
                )
    return splits


def _read_frame(
    sequence: _SequenceFiles, stem: str, camera: Camera | None, split: Literal["train", "test"] | None
) -> Frame:
    where = f"{sequence.name}/{stem}"
    photos = [name for name in (f"{stem}.color.png", f"{stem}.color.jpg") if name in sequence.files]
    if len(photos) != 1:
        found = "none" if not photos else " and ".join(photos)
        raise DatasetError(f"{where}: expected one photo {stem}.color.png or .jpg, found {found}. Keep or restore one.")
    pose = sequence.files.get(f"{stem}.pose.txt")
    if pose is None:
        raise DatasetError(
            f"{where}: expected a pose in {stem}.pose.txt, found none. Restore it from the original data."
        )
    values = parse_floats(decode_text(pose.read_bytes(), pose.label), 16, pose.label)
    depth = sequence.files.get(f"{stem}.depth.png")
    own_camera = sequence.files.get(f"{stem}.camera.txt")
    return Frame(
        name=f"{sequence.name}/{photos[0]}",
        T_world_cam=pose_from_matrix(np.reshape(values, (4, 4)).tolist(), pose.label),
        image=sequence.files[photos[0]],
        camera=camera if own_camera is None else _camera_in(own_camera),
        depth=None if depth is None else DepthSource(depth),
        sequence=sequence.name,
        split=split,
    )


def _camera_in(file: FileSource) -> Camera:
    return parse_camera_file(decode_text(file.read_bytes(), file.label), file.label)


# Writing


def _names_to_write(scene: Scene) -> list[str]:
    """The names that the frames get, with the ending of what will be written."""
    splits_by_sequence: dict[str, set[str | None]] = {}
    for frame in scene:
        splits_by_sequence.setdefault(frame.name.split("/")[0], set()).add(frame.split)
    keep = all(_FRAME_NAME.fullmatch(frame.name) for frame in scene)
    if keep and all(len(splits) == 1 for splits in splits_by_sequence.values()):
        return [frame.name for frame in scene]
    # Sequences in the order in which they begin, frames in the order in which they come.
    numbers: dict[tuple[str | None, str | None], int] = {}
    count: Counter[int] = Counter()
    names = []
    for frame in scene:
        number = numbers.setdefault((frame.sequence, frame.split), len(numbers) + 1)
        ending = "jpg" if frame.image.suffix in (".jpg", ".jpeg") else "png"
        names.append(f"seq-{number:02d}/frame-{count[number]:06d}.color.{ending}")
        count[number] += 1
    return names


def _write_frame(frame: Frame, path: Path, images: ImageMode, own_camera: Camera | None) -> None:
    stem = path.name.split(".")[0]
    matrix = frame.T_world_cam.matrix().tolist()
    (path.parent / f"{stem}.pose.txt").write_text("".join(exact(row) + "\n" for row in matrix))
    if own_camera is not None:
        (path.parent / f"{stem}.camera.txt").write_text(camera_line(own_camera) + "\n")
    if images == "none":
        return
    if frame.image.suffix in (".png", ".jpg", ".jpeg"):
        place_image(frame, path, images)
    else:
        Image.fromarray(frame.read_image()).save(path)
    depth_path = path.parent / f"{stem}.depth.png"
    if frame.depth is not None and frame.depth == DepthSource(frame.depth.file) and frame.depth.file.suffix == ".png":
        _place_stored_depth(frame.depth.file, depth_path, images)
    else:
        place_depth(frame, depth_path, images, metres_per_unit=0.001)


def _place_stored_depth(file: FileSource, path: Path, images: ImageMode) -> None:
    """Millimetres already: there is nothing to decode and encode again."""
    if images == "link" and file.member is None:
        path.symlink_to(file.path.resolve())
    else:
        path.write_bytes(file.read_bytes())


def _write_splits(folder: Path, split_by_sequence: dict[str, Literal["train", "test"] | None]) -> None:
    for split, file_name in SPLIT_FILES.items():
        numbers = [_number(name) for name, its_split in split_by_sequence.items() if its_split == split]
        if numbers:
            (folder / file_name).write_text("".join(f"sequence{number}\n" for number in numbers))
