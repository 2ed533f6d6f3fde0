"""COLMAP models, binary and text, read through pycolmap and written as text.

    kitchen/images/seq-01/0001.jpg           the photos; an image's name is its path in here
    kitchen/sparse/0/cameras.bin             intrinsics       (or .txt)
    kitchen/sparse/0/images.bin              poses            (or .txt)
    kitchen/sparse/0/rigs.bin, frames.bin    cameras that move together, since COLMAP 3.12
    kitchen/train.txt, test.txt              ours, optional: a frame's name a line

The model is looked for in sparse/0, sparse, model and the folder itself. COLMAP stores `cam_from_world` and looks at
no EXIF orientation: poses and intrinsics are those of the photo as it is stored, and are turned upright here.
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.geometry import Camera
from relograph.progress import SILENT, Progress
from relograph.scenes.camera_models import camera_from_colmap, camera_line
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.names import (
    is_file,
    parse_float,
    parse_int,
    pose_from_quat_wxyz,
    read_text,
    reading,
    safe_name,
    sequence_of,
)
from relograph.scenes.scene import Scene, SceneBuilder
from relograph.scenes.split_files import read_split_files, write_split_files
from relograph.scenes.upright import describe_upright
from relograph.scenes.writing import ImageMode, exact, place_image, writing_folder

FORMAT = "colmap"

MODEL_FOLDERS = ("sparse/0", "sparse", "model", ".")
"""Where a model may lie in a scene's folder; the first that has one is read."""


def recognise(root: Path) -> bool:
    """Whether the folder has a COLMAP model, or is one."""
    return _find_model(root) is not None


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene with all images of the model that have a pose, in the order of their ids."""
    model = _find_model(root)
    if model is None:
        raise DatasetError(
            f"{root}: expected a COLMAP model (cameras and images, both .bin or both .txt) in "
            f"{', '.join(MODEL_FOLDERS[:-1])} or the folder itself, found none. Check the path."
        )
    pycolmap = _import_pycolmap()
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    if (model.folder.parent / "1").is_dir() and model.folder.name == "0":
        builder.warnings.append(f"{model.folder.parent} holds several models; only {model.folder.name} was read.")
    entries = _read_entries(model, builder)
    if not entries:
        return builder.build()
    photos = _find_photos(root, model.folder, [entry.name for entry in entries])
    reconstruction = _load(pycolmap, model, entries)
    for entry in sorted(entries, key=lambda entry: entry.image_id):
        with builder.frame():
            image = reconstruction.image(entry.image_id)
            if image.has_pose:
                builder.add(_frame(entry, image, reconstruction.camera(image.camera_id), photos))
            else:
                builder.warnings.append(f"{entry.where}: {entry.name!r} has no pose and was left out.")
    read_split_files(photos.parent if photos.name == "images" else photos, builder)
    return builder.build()


def write(scene: Scene, destination: Path, *, images: ImageMode = "copy", progress: Progress = SILENT) -> None:
    """Writes the scene as a COLMAP text model without points, as a whole or not at all.

    A camera that several frames share is written once. The format has no place for depth and timestamps.
    """
    camera_ids = _camera_ids(scene)
    for frame in scene:
        if any(character.isspace() for character in frame.name):
            raise DatasetError(
                f"{frame.name!r}: expected a name without spaces, which separate the values in COLMAP's text files. "
                "Rename the photo."
            )
    cameras = ["# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]"]
    cameras += [f"{camera_id} {camera_line(camera)}" for camera, camera_id in camera_ids.items()]
    poses = ["# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME", "# POINTS2D[] as (X, Y, POINT3D_ID)"]
    for image_id, frame in enumerate(scene, start=1):
        T_cam_world = frame.T_world_cam.inverse()
        pose = exact([*T_cam_world.quat_wxyz().tolist(), *T_cam_world.t.tolist()])
        assert frame.camera is not None  # _camera_ids has refused a scene with such a frame
        poses += [f"{image_id} {pose} {camera_ids[frame.camera]} {frame.name}", ""]
    points = ["# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)"]

    with writing_folder(destination) as folder, progress.task("writing COLMAP", total=len(scene)) as advance:
        model = folder / "sparse" / "0"
        model.mkdir(parents=True)
        for file_name, lines in (("cameras.txt", cameras), ("images.txt", poses), ("points3D.txt", points)):
            (model / file_name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_split_files(folder, scene)
        for frame in scene:
            place_image(frame, folder / "images" / frame.name, images)
            advance(1)


def _camera_ids(scene: Scene) -> dict[Camera, int]:
    """The scene's cameras, each once, with their ids from 1 on."""
    ids: dict[Camera, int] = {}
    for frame in scene:
        if frame.camera is None:
            raise ConfigError(
                f"COLMAP needs intrinsics for every frame, found none for {frame.name!r}. "
                "Pass the focal length in pixels with --focal (focal_px)."
            )
        ids.setdefault(frame.camera, len(ids) + 1)
    return ids


# Finding


@dataclass(frozen=True)
class _Model:
    folder: Path
    ending: Literal[".bin", ".txt"]

    def file(self, stem: str) -> Path:
        return self.folder / (stem + self.ending)


def _find_model(root: Path) -> _Model | None:
    for name in MODEL_FOLDERS:
        for model in (_Model(root / name, ".bin"), _Model(root / name, ".txt")):  # COLMAP prefers the binary one too
            if is_file(model.file("cameras")) and is_file(model.file("images")):
                return model
    return None


def _find_photos(root: Path, model: Path, names: Sequence[str]) -> Path:
    """The folder that the images' names are relative to: the first place where one of the photos is."""
    above = [model, model.resolve().parent, model.resolve().parent.parent]
    places = dict.fromkeys([root / "images", *(folder / "images" for folder in above), root, *above])
    for place in places:
        if any(is_file(place / name) for name in names):
            return place
    raise DatasetError(
        f"{root}: expected the model's photos, such as {names[0]!r}, found none of them in "
        f"{', '.join(map(str, places))}. Put the photos into {root / 'images'}."
    )


# Reading


@dataclass(frozen=True)
class _ImageEntry:
    """One image as images.bin or images.txt lists it, without its points."""

    where: str
    image_id: int
    quat_wxyz: tuple[float, ...]
    translation: tuple[float, ...]
    camera_id: int
    name: str


def _frame(entry: _ImageEntry, image: Any, camera: Any, photos: Path) -> Frame:
    rigid = image.cam_from_world()
    x, y, z, w = rigid.rotation.quat.tolist()
    T_cam_world = pose_from_quat_wxyz((w, x, y, z), rigid.translation.tolist(), entry.where)
    source = FileSource(photos / entry.name).require()
    stored_camera = camera_from_colmap(
        camera.model_name, camera.width, camera.height, camera.params.tolist(), entry.where
    )
    T_world_cam, upright_camera, _ = describe_upright(
        T_cam_world.inverse(), stored_camera, source.read_image_header(), f"{entry.where} ({entry.name})"
    )
    return Frame(entry.name, T_world_cam, source, camera=upright_camera, sequence=sequence_of(entry.name))


def _load(pycolmap: Any, model: _Model, entries: Sequence[_ImageEntry]) -> Any:
    """The model as pycolmap understands it, without points; the names of its images are their ids.

    pycolmap believes what a file says about itself: it reads on past the end of a cut binary file, and asks for as
    much memory as a damaged count tells it to. So it gets a copy whose lengths are checked. Points are not in it: we
    have no use for them, and in a large model they are gigabytes.
    """
    with TemporaryDirectory(prefix="relograph-colmap-") as scratch:
        copy = _Model(Path(scratch), model.ending)
        has_rigs = is_file(model.file("rigs")) and is_file(model.file("frames"))
        for stem in ("cameras", "rigs", "frames") if has_rigs else ("cameras",):
            if model.ending == ".bin":
                with _opened(model.file(stem)) as file:
                    _BINARY_CHECKS[stem](file, pycolmap)
                    copy.file(stem).write_bytes(file.data[:])
            else:
                text = read_text(model.file(stem))
                if stem == "cameras":
                    _check_cameras_text(text, str(model.file(stem)))
                copy.file(stem).write_text(text, encoding="utf-8")
        _write_entries(copy, entries)
        level = pycolmap.logging.minloglevel
        try:
            pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL  # what goes wrong is in the exception, too
            return pycolmap.Reconstruction(scratch)
        except Exception as error:  # whatever its C++ threw
            reason = " ".join(str(error).split())[:200]
            raise DatasetError(
                f"{model.folder}: expected a whole COLMAP model, pycolmap refused it: {reason}. Export the model again."
            ) from error
        finally:
            pycolmap.logging.minloglevel = level


def _import_pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "geometry", "Reading a COLMAP model") from None
    return pycolmap


def _write_entries(copy: _Model, entries: Sequence[_ImageEntry]) -> None:
    """Writes the images file, and the points3D file that pycolmap insists on, with nothing in it."""
    if copy.ending == ".bin":
        images = [struct.pack("<Q", len(entries))]
        for entry in entries:
            pose = (*entry.quat_wxyz, *entry.translation)
            images.append(struct.pack("<I7dI", entry.image_id, *pose, entry.camera_id))
            images.append(f"{entry.image_id}\0".encode() + struct.pack("<Q", 0))
        copy.file("images").write_bytes(b"".join(images))
        copy.file("points3D").write_bytes(struct.pack("<Q", 0))
    else:
        lines = []
        for entry in entries:
            pose_text = exact((*entry.quat_wxyz, *entry.translation))
            lines.append(f"{entry.image_id} {pose_text} {entry.camera_id} {entry.image_id}\n\n")
        copy.file("images").write_text("".join(lines))
        copy.file("points3D").touch()


def _read_entries(model: _Model, builder: SceneBuilder) -> list[_ImageEntry]:
    """The images that the model lists, their names and poses checked, their points passed over."""
    path = model.file("images")
    entries: list[_ImageEntry] = []
    if model.ending == ".txt":
        lines = enumerate(read_text(path).split("\n"), start=1)
        for number, line in lines:
            if line.strip() and not line.lstrip().startswith("#"):
                next(lines, None)  # the image's points
                with builder.frame():
                    entries.append(_entry_in_line(line, f"{path} line {number}"))
        return entries
    with _opened(path) as file:
        for _ in range(file.take_count(smallest_item=73)):
            image_id, *pose, camera_id = file.take("<I7dI")
            # What is not UTF-8 is carried on as surrogates, for safe_name to complain about.
            name = file.take_name().decode("utf-8", errors="surrogateescape")
            file.skip(24 * file.take_count(smallest_item=24))  # x, y and the point's id, 8 bytes each
            with builder.frame():
                entries.append(_checked_entry(f"{path} image {image_id}", image_id, pose, camera_id, name))
        file.expect_end()
    return entries


def _entry_in_line(line: str, where: str) -> _ImageEntry:
    tokens = line.split()
    if len(tokens) != 10:
        raise DatasetError(
            f"{where}: expected 10 values (IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME), found {len(tokens)}. "
            "Correct the line; a name may have no spaces, and the line after it belongs to the image's points."
        )
    pose = [parse_float(token, where) for token in tokens[1:8]]
    return _checked_entry(where, parse_int(tokens[0], where), pose, parse_int(tokens[8], where), tokens[9])


def _checked_entry(where: str, image_id: int, pose: Sequence[float], camera_id: int, name: str) -> _ImageEntry:
    name = safe_name(name, where)
    pose_from_quat_wxyz(pose[:4], pose[4:], f"{where} ({name})")
    return _ImageEntry(where, image_id, tuple(pose[:4]), tuple(pose[4:]), camera_id, name)


def _check_cameras_text(text: str, where: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        tokens = line.split()
        if tokens and not tokens[0].startswith("#"):
            here = f"{where} line {number}"
            if len(tokens) < 4:
                raise DatasetError(
                    f"{here}: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS, found {len(tokens)} values. Correct it."
                )
            for token in (tokens[0], *tokens[2:4]):
                parse_int(token, here)
            for token in tokens[4:]:
                parse_float(token, here)


# Binary files: what pycolmap does not check


@dataclass
class _BinaryFile:
    """A file of little-endian numbers that is stepped through without believing its counts."""

    path: Path
    data: mmap.mmap | bytes
    position: int = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """The next numbers, in the notation of `struct`."""
        start = self.position
        self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, start)

    def take_name(self) -> bytes:
        """The bytes up to the next NUL."""
        start, end = self.position, self.data.find(b"\0", self.position)
        self.skip(len(self.data) if end < 0 else end + 1 - start)
        return self.data[start:end]

    def take_count(self, smallest_item: int, layout: str = "<Q") -> int:
        """How many items follow, which need `smallest_item` bytes each at least."""
        count = int(self.take(layout)[0])
        if count * smallest_item > len(self.data) - self.position:
            raise self._damaged(f"found a count of {count} items in {len(self.data) - self.position} bytes")
        return count

    def skip(self, num_bytes: int) -> None:
        self.position += num_bytes
        if self.position > len(self.data):
            raise self._damaged(f"found its end in the middle of an item, after {len(self.data)} bytes")

    def expect_end(self) -> None:
        if self.position != len(self.data):
            raise self._damaged(f"found {len(self.data) - self.position} bytes after its last item")

    def _damaged(self, found: str) -> DatasetError:
        return DatasetError(
            f"{self.path}: expected a whole COLMAP binary file, {found}. Copy or export the model again."
        )


@contextmanager
def _opened(path: Path) -> Iterator[_BinaryFile]:
    with reading(path), path.open("rb") as file:
        if path.stat().st_size == 0:  # which cannot be mapped into memory
            yield _BinaryFile(path, b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _BinaryFile(path, data)


def _check_cameras(file: _BinaryFile, pycolmap: Any) -> None:
    num_params = {
        int(model): len(pycolmap.Camera.create(1, model, 1.0, 1, 1).params)
        for model in pycolmap.CameraModelId.__members__.values()
        if model != pycolmap.CameraModelId.INVALID
    }
    for _ in range(file.take_count(smallest_item=24)):
        camera_id, model, _, _ = file.take("<IiQQ")
        if model not in num_params:
            raise DatasetError(
                f"{file.path} camera {camera_id}: expected the number of a COLMAP camera model, found {model}. "
                "Copy or export the model again, or install a newer pycolmap."
            )
        file.skip(8 * num_params[model])
    file.expect_end()


def _check_rigs(file: _BinaryFile, pycolmap: Any) -> None:
    for _ in range(file.take_count(smallest_item=8)):
        file.take("<I")  # the rig's id
        num_sensors = file.take_count(smallest_item=8, layout="<I")
        if num_sensors > 0:
            file.take("<iI")  # the sensor that the others are relative to: kind, id
        for _ in range(num_sensors - 1):
            _, _, has_pose = file.take("<iIB")
            file.skip(7 * 8 if has_pose else 0)
    file.expect_end()


def _check_frames(file: _BinaryFile, pycolmap: Any) -> None:
    for _ in range(file.take_count(smallest_item=68)):
        file.take("<II7d")  # frame, rig, pose of the rig
        file.skip(16 * file.take_count(smallest_item=16, layout="<I"))  # kind of the sensor, its id, the image's id
    file.expect_end()


_BINARY_CHECKS = {"cameras": _check_cameras, "rigs": _check_rigs, "frames": _check_frames}
