"""`open_scene`: one door for every format."""

import difflib
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from relograph.errors import ConfigError, DatasetError, RelographError
from relograph.geometry import Camera
from relograph.scenes import cambridge, colmap, poses_csv, seven_scenes, transforms_json, tum
from relograph.scenes.frame import Frame, list_zip
from relograph.scenes.names import is_folder, list_folder, reading
from relograph.scenes.photo_folder import ENDINGS
from relograph.scenes.scene import Scene, SceneBuilder


@dataclass(frozen=True)
class _Format:
    reader: ModuleType
    looks_for: str
    """What tells it from the others, for the message when nothing fits."""
    files: tuple[str, ...]
    """Files that stand for the folder they are in, when one is given as path."""


FORMATS = {
    "poses.csv": _Format(poses_csv, "poses.csv", ("poses.csv",)),
    "7scenes": _Format(seven_scenes, "seq-01/ or seq-01.zip", ("TrainSplit.txt", "TestSplit.txt")),
    "cambridge": _Format(cambridge, "dataset_train.txt or dataset_test.txt", ("dataset_train.txt", "dataset_test.txt")),
    "transforms.json": _Format(
        transforms_json,
        "transforms.json",
        ("transforms.json", "transforms_train.json", "transforms_val.json", "transforms_test.json"),
    ),
    "colmap": _Format(
        colmap,
        "cameras.bin or cameras.txt with images beside it, also under sparse/ or sparse/0/",
        ("cameras.bin", "cameras.txt", "images.bin", "images.txt", "points3D.bin", "points3D.txt"),
    ),
    "tum": _Format(tum, "groundtruth.txt with rgb.txt", ("groundtruth.txt", "rgb.txt")),
}
"""The formats by name, in the order in which they are tried: where several fit, the first is taken.

What somebody wrote by hand for this purpose comes first, what a tool leaves beside other things comes last.
"""

_ENDINGS_WITH_EXIF = (".jpg", ".jpeg", ".tif", ".tiff", ".webp")


def open_scene(
    path: Path | str, *, format: str | None = None, focal_px: float | None = None, skip_bad_frames: bool = False
) -> Scene:
    """The scene in a folder, in whatever format it is; photos are read later, when their pixels are asked for.

    A file that is typical of a format (transforms.json, poses.csv, ...) stands for the folder it is in. Frames whose
    data give no intrinsics take `focal_px`, in pixels of their photos, or else the focal length in the photo's EXIF,
    or stay without. `skip_bad_frames` leaves frames out whose files are bad and names them in `Scene.warnings`.
    """
    if format is not None and format not in FORMATS:
        nearest = difflib.get_close_matches(format, FORMATS, n=1, cutoff=0.4)
        hint = f"Did you mean {nearest[0]!r}?" if nearest else "Leave it out to have it recognised."
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}. {hint}")
    if focal_px is not None and not (math.isfinite(focal_px) and focal_px > 0):
        raise ConfigError(f"focal_px must be a positive number of pixels, got {focal_px}. Leave it out if unknown.")
    root = Path(path)
    with reading(root):
        is_file, exists = root.is_file(), root.exists()
    if not exists:
        raise DatasetError(f"{root}: expected a scene, found nothing there. Check the path.")
    if is_file:
        root, format = _folder_of_file(root, format)
    names = [format] if format is not None else _recognise(root)
    scene: Scene = FORMATS[names[0]].reader.read(root, skip_bad_frames=skip_bad_frames)
    if len(names) > 1:
        also = (
            f"It was read as {names[0]}, and looks like {' and '.join(names[1:])} too; choose with format= (--format)."
        )
        scene = replace(scene, warnings=(*scene.warnings, also))
    return _with_cameras(scene, focal_px, skip_bad_frames)


def open_scenes(root: Path | str, names: Sequence[str] | None = None) -> list[Scene]:
    """The scenes in a folder, in the order of their names; a folder that is a scene itself is a list of one.

    With `names` only those, in that order.
    """
    root = Path(root)
    # The sequences of a 7-Scenes scene are scenes themselves, so a scene comes before a folder of them.
    is_one_scene = not is_folder(root) or any(known.reader.recognise(root) for known in FORMATS.values())
    found = [] if is_one_scene else _scenes_within(root)
    if not found:
        scene = open_scene(root)
        if names is None or list(names) == [scene.name]:
            return [scene]
        raise DatasetError(
            f"{root}: expected the scenes {', '.join(names)}, found the single scene {scene.name}. Leave the names "
            "out, or give the folder that all of them are in."
        )
    found.sort(key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    for name in names or ():
        if name not in found:
            nearest = difflib.get_close_matches(name, found, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"There are: {', '.join(found)}."
            raise DatasetError(f"{root}: expected a scene called {name!r}, found none. {hint}")
    return [open_scene(root / name) for name in (found if names is None else names)]


def _folder_of_file(path: Path, format: str | None) -> tuple[Path, str]:
    """The folder that a file stands for, and its format."""
    for name, known in FORMATS.items():
        if path.name in known.files and format in (None, name):
            return path.parent, name
    if path.suffix.lower() == ".zip":
        outer = any(member.lower().endswith(".zip") for member in list_zip(path))
        advice = (
            f"It holds the sequences' zip files: extract {path.name} and open the folder; those inside may stay packed."
            if outer
            else "Open the folder that it is in."
        )
        raise DatasetError(f"{path}: expected a scene's folder, found a zip file. {advice}")
    known_files = ", ".join(name for known in FORMATS.values() for name in known.files)
    as_format = f" of the format {format}" if format else ""
    raise DatasetError(
        f"{path}: expected a scene's folder or one of its files{as_format}, found another file. "
        f"Open its folder; files that are known: {known_files}."
    )


def _recognise(root: Path) -> list[str]:
    """The formats that fit, one at least."""
    names = [name for name, known in FORMATS.items() if known.reader.recognise(root)]
    if not names:
        if scenes := _scenes_within(root):
            raise DatasetError(
                f"{root}: expected a scene, found a folder of scenes: {', '.join(scenes[:5])}"
                f"{', ...' if len(scenes) > 5 else ''}. Open one of them, for example {root / scenes[0]}."
            )
        looked_for = "; ".join(f"{known.looks_for} ({name})" for name, known in FORMATS.items())
        files = list_folder(root)
        zips = [name for name in files if name.lower().endswith(".zip")]
        advice = f"Extract {zips[0]} first." if zips else "Open the folder that has one of these."
        if any(name.lower().endswith(ENDINGS) for name in files):
            advice += " Photos without poses get them by `relograph scene reconstruct`."
        raise DatasetError(f"{root}: expected a scene, found none of: {looked_for}. {advice}")
    return names


def _scenes_within(root: Path) -> list[str]:
    """The names of the folders in a folder that are scenes, as those of a whole data set are."""
    scenes = []
    for name in list_folder(root):
        with suppress(RelographError):  # what cannot be looked into is no scene to suggest
            if is_folder(root / name) and any(known.reader.recognise(root / name) for known in FORMATS.values()):
                scenes.append(name)
    return scenes


def _with_cameras(scene: Scene, focal_px: float | None, skip_bad_frames: bool) -> Scene:
    """The scene with a camera for each frame that had none, as far as `focal_px` or EXIF gives one."""
    # A PNG as good as never tells a focal length, and a scene may have tens of thousands of them.
    may_get_one = {
        frame.name
        for frame in scene
        if frame.camera is None and (focal_px is not None or frame.image.suffix in _ENDINGS_WITH_EXIF)
    }
    if not may_get_one:
        return scene
    builder = SceneBuilder(scene.format, scene.root, skip_bad_frames, warnings=list(scene.warnings))
    for frame in scene:
        with builder.frame():
            builder.add(_with_camera(frame, focal_px) if frame.name in may_get_one else frame)
    completed = builder.build()
    return replace(scene, frames=completed.frames, warnings=completed.warnings)


def _with_camera(frame: Frame, focal_px: float | None) -> Frame:
    header = frame.image.read_image_header()
    by_exif, focal_px = focal_px is None, focal_px or header.focal_px
    if focal_px is None:
        return frame
    return replace(frame, camera=Camera.from_focal(*header.upright_size_wh, focal_px), camera_by_exif=by_exif)
