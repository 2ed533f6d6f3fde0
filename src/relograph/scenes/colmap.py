"""COLMAP models, binary and text, read through pycolmap and written as text.

    kitchen/images/seq-01/0001.jpg           the photos; an image's name is its path in here
    kitchen/sparse/0/cameras.bin             intrinsics       (or .txt)
    kitchen/sparse/0/images.bin              poses            (or .txt)
    kitchen/sparse/0/rigs.bin, frames.bin    cameras that move together, since COLMAP 3.12
    kitchen/train.txt, test.txt              ours, optional: a frame's name a line
    kitchen/reconstruction.json              ours, optional: whether lengths are metres

The model is looked for in sparse/0, sparse, model and the folder itself. COLMAP stores `cam_from_world` and looks at
no EXIF orientation: poses and intrinsics are those of the photo as it is stored, and are turned upright here.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from relograph.scenes.reconstruction_file import UNKNOWN_SCALE, scale_is_known, write_reconstruction_file
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
    entries = _read_entries(model, _read_camera_ids(pycolmap, model), builder)
    if not entries:
        return builder.build()
    photos = _find_photos(root, model.folder, [entry.name for entry in entries])
    placed_by_id = _interpret(pycolmap, model, entries)
    for entry in sorted(entries, key=lambda entry: entry.image_id):
        placed = placed_by_id.get(entry.image_id)
        if placed is None:
            builder.warnings.append(f"{entry.where}: {entry.name!r} has no pose and was left out.")
            continue
        with builder.frame():
            builder.add(_frame(entry, placed, photos))
    home = photos.parent if photos.name == "images" else photos
    read_split_files(home, builder)
    if not scale_is_known(home):
        builder.warnings.append(UNKNOWN_SCALE)
    return replace(builder.build(), scale_is_known=scale_is_known(home))


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
        if not scene.scale_is_known:
            write_reconstruction_file(folder, "unknown", {})
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


@dataclass(frozen=True)
class _Placed:
    """What pycolmap makes of an image: its pose in the world, through its rig if it has one, and its camera."""

    quat_wxyz: tuple[float, ...]
    translation: tuple[float, ...]
    camera_model: str
    width: int
    height: int
    camera_params: list[float]


def _frame(entry: _ImageEntry, placed: _Placed, photos: Path) -> Frame:
    where = f"{entry.where} ({entry.name})"
    T_cam_world = pose_from_quat_wxyz(placed.quat_wxyz, placed.translation, where)
    stored_camera = camera_from_colmap(placed.camera_model, placed.width, placed.height, placed.camera_params, where)
    image = FileSource(photos / entry.name).require()
    header = image.read_image_header()
    T_world_cam, camera, _ = describe_upright(T_cam_world.inverse(), stored_camera, header, where)
    return Frame(entry.name, T_world_cam, image, camera=camera, sequence=sequence_of(entry.name))


def _interpret(pycolmap: Any, model: _Model, entries: Sequence[_ImageEntry]) -> dict[int, _Placed]:
    """What pycolmap makes of the images that have a pose, by their ids.

    pycolmap believes what a file says about itself: it reads on past the end of a cut binary file, and asks for as
    much memory as a damaged count tells it to. So it gets a copy whose lengths are checked. Points are not in it: we
    have no use for them, and in a large model they are gigabytes.
    """
    with TemporaryDirectory(prefix="relograph-colmap-") as scratch:
        _write_checked_copy(model, entries, _Model(Path(scratch), model.ending))
        log_level = pycolmap.logging.minloglevel
        try:
            pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL  # what goes wrong is in the exception, too
            reconstruction = pycolmap.Reconstruction(scratch)
            placed = ((image_id, _place(image)) for image_id, image in reconstruction.images.items())
            return {image_id: place for image_id, place in placed if place is not None}
        except Exception as error:  # whatever its C++ threw
            reason = re.sub(r"^\[.*?\] ", "", " ".join(str(error).split())).rstrip(".")[:200]
            raise DatasetError(
                f"{model.folder}: expected a whole COLMAP model, pycolmap refused it: {reason}. Export the model again."
            ) from error
        finally:
            pycolmap.logging.minloglevel = log_level


def _place(image: Any) -> _Placed | None:
    """The image's pose and camera; None where it was never registered, or where its place in its rig is unknown."""
    try:
        cam_from_world = image.cam_from_world() if image.has_pose else None
    except RuntimeError:
        cam_from_world = None
    if cam_from_world is None:
        return None
    x, y, z, w = cam_from_world.rotation.quat.tolist()
    camera = image.camera
    return _Placed(
        quat_wxyz=(w, x, y, z),
        translation=tuple(cam_from_world.translation.tolist()),
        camera_model=camera.model_name,
        width=camera.width,
        height=camera.height,
        camera_params=camera.params.tolist(),
    )


def _write_checked_copy(model: _Model, entries: Sequence[_ImageEntry], copy: _Model) -> None:
    has_rigs = is_file(model.file("rigs")) and is_file(model.file("frames"))
    for stem in ("cameras", "rigs", "frames") if has_rigs else ("cameras",):
        if model.ending == ".txt":
            copy.file(stem).write_text(read_text(model.file(stem)), encoding="utf-8")
            continue
        with _opened(model.file(stem)) as file:
            if stem != "cameras":  # which were checked when their ids were read
                (_check_rigs if stem == "rigs" else _check_frames)(file)
            copy.file(stem).write_bytes(file.data[:])
    _write_entries(copy, entries)


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


def _read_camera_ids(pycolmap: Any, model: _Model) -> set[int]:
    path = model.file("cameras")
    if model.ending == ".bin":
        with _opened(path) as file:
            return _check_cameras(file, pycolmap)
    num_params = _num_params_by_model(pycolmap)
    ids = set()
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        tokens = line.split()
        if not tokens or tokens[0].startswith("#"):
            continue
        where = f"{path} line {number}"
        if len(tokens) < 4 or len(tokens) - 4 != num_params.get(tokens[1]):
            raise DatasetError(
                f"{where}: expected CAMERA_ID MODEL WIDTH HEIGHT and the parameters of one of COLMAP's models, found "
                f"{line[:80]!r}. Correct the line, or export the model again."
            )
        camera_id, _, _ = (parse_int(token, where) for token in (tokens[0], *tokens[2:4]))
        for token in tokens[4:]:
            parse_float(token, where)
        ids.add(camera_id)
    return ids


def _num_params_by_model(pycolmap: Any) -> dict[int | str, int]:
    """How many parameters COLMAP's camera models have, by their numbers and by their names."""
    num_params: dict[int | str, int] = {}
    for name, model in pycolmap.CameraModelId.__members__.items():
        if name != "INVALID":
            listed = pycolmap.Camera(model=name, width=1, height=1).params_info  # "fx, fy, cx, cy"
            num_params[name] = num_params[int(model)] = len(listed.split(","))
    return num_params


def _read_entries(model: _Model, camera_ids: set[int], builder: SceneBuilder) -> list[_ImageEntry]:
    """The images that the model lists, their names and poses checked, their points passed over."""
    path = model.file("images")
    entries: list[_ImageEntry] = []
    if model.ending == ".bin":
        with _opened(path) as file:
            for _ in range(file.take_count(smallest_item=73)):
                image_id, *pose, camera_id = file.take("<I7dI")
                # What is not UTF-8 is carried on as surrogates, for safe_name to complain about.
                name = file.take_name().decode("utf-8", errors="surrogateescape")
                file.skip(24 * file.take_count(smallest_item=24))  # x, y and the point's id, 8 bytes each
                with builder.frame():
                    entry = _ImageEntry(f"{path} image {image_id}", image_id, *_halves(pose), camera_id, name)
                    entries.append(_checked(entry, camera_ids))
            file.expect_end()
        return entries
    text = read_text(path)
    lines = enumerate(text.split("\n"), start=1)
    num_listed = 0
    for number, line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            num_listed += 1
            next(lines, None)  # the image's points
            with builder.frame():
                entries.append(_checked(_entry_in_line(line, f"{path} line {number}"), camera_ids))
    announced = re.search(r"^# Number of images: ([0-9]{1,18})\b", text, re.MULTILINE)
    if announced is not None and int(announced[1]) != num_listed:
        builder.warnings.append(f"{path} announces {announced[1]} images and lists {num_listed}: it may have been cut.")
    return entries


def _entry_in_line(line: str, where: str) -> _ImageEntry:
    tokens = line.split()
    if len(tokens) != 10:
        raise DatasetError(
            f"{where}: expected 10 values (IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME), found {len(tokens)}. "
            "Correct the line; a name may have no spaces, and the line after it belongs to the image's points."
        )
    pose = [parse_float(token, where) for token in tokens[1:8]]
    return _ImageEntry(where, parse_int(tokens[0], where), *_halves(pose), parse_int(tokens[8], where), tokens[9])


def _halves(pose: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Quaternion and translation."""
    return tuple(pose[:4]), tuple(pose[4:])


def _checked(entry: _ImageEntry, camera_ids: set[int]) -> _ImageEntry:
    name = safe_name(entry.name, entry.where)
    pose_from_quat_wxyz(entry.quat_wxyz, entry.translation, f"{entry.where} ({name})")
    if entry.camera_id not in camera_ids:
        raise DatasetError(
            f"{entry.where} ({name}): expected the id of a camera in the cameras file, found {entry.camera_id}. "
            "Export the model again."
        )
    return replace(entry, name=name)


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


def _check_cameras(file: _BinaryFile, pycolmap: Any) -> set[int]:
    """The ids of the cameras in a whole cameras.bin."""
    num_params = _num_params_by_model(pycolmap)
    ids = set()
    for _ in range(file.take_count(smallest_item=24)):
        camera_id, model, _, _ = file.take("<IiQQ")
        if model not in num_params:
            raise DatasetError(
                f"{file.path} camera {camera_id}: expected the number of a COLMAP camera model, found {model}. "
                "Copy or export the model again, or install a newer pycolmap."
            )
        file.skip(8 * num_params[model])
        ids.add(camera_id)
    file.expect_end()
    return ids


def _check_rigs(file: _BinaryFile) -> None:
    for _ in range(file.take_count(smallest_item=8)):
        file.take("<I")  # the rig's id
        num_sensors = file.take_count(smallest_item=8, layout="<I")
        if num_sensors > 0:
            file.take("<iI")  # the sensor that the others are relative to: kind, id
        for _ in range(num_sensors - 1):
            _, _, has_pose = file.take("<iIB")
            file.skip(7 * 8 if has_pose else 0)
    file.expect_end()


def _check_frames(file: _BinaryFile) -> None:
    for _ in range(file.take_count(smallest_item=68)):
        file.take("<II7d")  # frame, rig, pose of the rig
        file.skip(16 * file.take_count(smallest_item=16, layout="<I"))  # kind of the sensor, its id, the image's id
    file.expect_end()
