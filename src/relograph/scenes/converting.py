"""`convert`: a scene in another format."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera
from relograph.progress import SILENT, Progress
from relograph.scenes import colmap, seven_scenes, transforms_json, tum
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

    `format`, `focal_px` and `skip_bad_frames` are those of `open_scene`. Poses keep every digit. What only one of the
    two formats knows (depth maps, timestamps) is not carried over; photos that EXIF turns are written upright.
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
    return scene


def _with_focal(scene: Scene, focal_px: float) -> Scene:
    """The scene with a camera of that focal length for each frame that had none."""
    frames = [
        frame
        if frame.camera is not None
        else replace(frame, camera=Camera.from_focal(*frame.image.read_image_header().upright_size_wh, focal_px))
        for frame in scene
    ]
    return replace(scene, frames=tuple(frames))
