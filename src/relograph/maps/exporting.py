"""A map as a scene that other programs read: the small photos that it keeps, with their cameras and poses."""

import tempfile
from pathlib import Path

from relograph.errors import DatasetError
from relograph.geometry import Camera
from relograph.localization.focal import UnknownFocal
from relograph.maps.map import Map
from relograph.maps.records import MapFrame
from relograph.progress import SILENT, Progress
from relograph.scenes.converting import convert
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.scene import Scene


def export_map(some: Map, destination: Path, to: str, *, progress: Progress = SILENT) -> Scene:
    """Writes the map's photos at `destination` in the format `to`, as a whole or not at all."""
    frames = some.frames
    if not frames:
        raise DatasetError(f"{some.store.where}: expected a map with photos, found an empty one. Add some.")
    shards = some.shards(frames)
    with tempfile.TemporaryDirectory() as folder:
        written = []
        with progress.task("reading photos of the map", total=len(frames)) as advance:
            for number, frame in enumerate(frames):
                path = Path(folder) / f"{number}.jpg"  # by number: names of photos are not ours
                path.write_bytes(shards[frame.shard].jpeg(frame.shard_row))
                camera, by_exif = _camera(frame)
                name = frame.name if frame.name.lower().endswith((".jpg", ".jpeg")) else f"{frame.name}.jpg"
                written.append(
                    Frame(
                        name,
                        frame.T_world_cam,
                        FileSource(path),
                        camera,
                        by_exif,
                        sequence=frame.sequence,
                        timestamp_s=frame.timestamp_s,
                    )
                )
                advance(1)
        scale_is_known = some.settings.scale_is_known
        name = Path(some.store.where).name
        scene = Scene(name, Path(folder), "map", tuple(written), scale_is_known=scale_is_known)
        return convert(scene, destination, to, progress=progress)


def _camera(frame: MapFrame) -> tuple[Camera | None, bool]:
    """That of the small photo, and whether it is no more than what EXIF told."""
    camera = None if frame.camera is None else frame.working_size.camera(frame.camera)
    if isinstance(camera, UnknownFocal):
        return (camera.at(camera.likely), True) if camera.is_expected else (None, False)
    return camera, False
