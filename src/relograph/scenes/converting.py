"""`convert`: a scene in another format."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera
from relograph.progress import SILENT, Progress
from relograph.scenes import colmap, seven_scenes, transforms_json, tum
from relograph.scenes.frame import Frame
from relograph.scenes.opening import open_scene
from relograph.scenes.scene import Scene
from relograph.scenes.writing import ImageMode


class Writer(Protocol):
    """Writes a scene into a new folder, as a whole or not at all."""

    def __call__(self, scene: Scene, destination: Path, *, images: ImageMode, progress: Progress) -> None: ...


WRITERS: dict[str, Writer] = {
    "7scenes": seven_scenes.write,
    "colmap": colmap.write,
    "tum": tum.write,
    "transforms.json": transforms_json.write,
}
"""The formats that scenes can be written in, by the names under which they are opened again."""

WITHOUT_DEPTH = frozenset({"colmap"})
WITHOUT_TIME = frozenset({"colmap", "7scenes"})
WITH_SCALE = frozenset({"colmap"})
"""Formats in which it is said that the scale is not known."""


def convert(
    source: Scene | Path | str,
    destination: Path | str,
    to: str,
    *,
    images: ImageMode = "copy",
    format: str | None = None,
    focal_px: float | None = None,
    skip_bad_frames: bool = False,
    progress: Progress = SILENT,
) -> Scene:
    """The scene that was read, once it stands at `destination` in the format `to`.

    `format`, `focal_px` and `skip_bad_frames` are those of `open_scene`. Poses are kept to rounding, about 1e-15.
    What the new format has no place for (depth maps, timestamps) is left out, and the scene's warnings say so; photos
    that EXIF turns are written upright.
    """
    if to not in WRITERS:
        raise ConfigError(f"to must be one of {', '.join(WRITERS)}, got {to!r}. Other formats can only be read.")
    if isinstance(source, Scene):
        scene = source if focal_px is None else _with_focal(source, focal_px)
    else:
        scene = open_scene(source, format=format, focal_px=focal_px, skip_bad_frames=skip_bad_frames)
    if len(scene) == 0:
        raise DatasetError(f"{scene.root}: expected frames to write, found none. Check its splits and sequences.")
    WRITERS[to](scene, Path(destination), images=images, progress=progress)
    return replace(scene, warnings=(*scene.warnings, *_left_out(scene, to)))


def _left_out(scene: Scene, to: str) -> list[str]:
    """What the scene has and the format has no place for, in words."""
    num_depths = sum(frame.depth is not None for frame in scene)
    num_times = sum(frame.timestamp_s is not None for frame in scene)
    lost = []
    if to in WITHOUT_DEPTH and num_depths:
        lost.append(f"{to} has no place for depth: the depth maps of {num_depths} frames were left out.")
    if to in WITHOUT_TIME and num_times:
        lost.append(f"{to} has no place for time: the timestamps of {num_times} frames were left out.")
    if to not in WITH_SCALE and not scene.scale_is_known:
        lost.append(f"{to} cannot say that the scale is not known: its readers will take the unit of poses for metres.")
    return lost


def _with_focal(scene: Scene, focal_px: float) -> Scene:
    """The scene with a camera of that focal length for each frame whose data give none, whatever EXIF says."""

    def with_focal(frame: Frame) -> Frame:
        if frame.camera is not None and not frame.camera_by_exif:
            return frame
        size_wh = frame.image.read_image_header().upright_size_wh
        return replace(frame, camera=Camera.from_focal(*size_wh, focal_px), camera_by_exif=False)

    return replace(scene, frames=tuple(map(with_focal, scene)))
