"""`transforms.json` of nerfstudio and instant-ngp: camera-to-world matrices with OpenGL axes.

    {"camera_model": "OPENCV", "fl_x": 525.0, "fl_y": 525.0, "cx": 320.0, "cy": 240.0, "w": 640, "h": 480,
     "k1": 0.01, "k2": 0.0, "p1": 0.0, "p2": 0.0,
     "frames": [{"file_path": "images/0001.jpg", "transform_matrix": [[...], [...], [...], [0, 0, 0, 1]],
                 "depth_file_path": "depth/0001.png", "timestamp_s": 0.0}],
     "train_filenames": ["images/0001.jpg"], "test_filenames": []}

Intrinsics are given once or by frame; `camera_angle_x` (radians) stands for a focal length, sizes left out are read
from the photo, and the ending of a file may be missing. Depth maps are 16-bit, in millimetres. Three files
transforms_train.json, transforms_val.json and transforms_test.json in place of one are read too, as their splits.
Frames that are held out for validation count as test frames. `timestamp_s` is ours.

An OpenGL camera looks along -Z with +Y up: its Y and Z axes are flipped to make it ours.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.geometry.camera import CameraModel
from relograph.progress import SILENT, Progress
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.images import ImageHeader
from relograph.scenes.names import is_file, pose_from_matrix, read_text, safe_name, sequence_of
from relograph.scenes.scene import Scene, SceneBuilder
from relograph.scenes.upright import describe_upright
from relograph.scenes.writing import ImageMode, depth_name, place_depth, place_image, writing_folder

FORMAT = "transforms.json"

METRES_PER_DEPTH_UNIT = 0.001
ENDINGS_TO_TRY = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")
"""What a photo's file may end in where `file_path` does not say."""

Split = Literal["train", "test"]

_FILES: dict[str, Split | None] = {
    "transforms.json": None,
    "transforms_train.json": "train",
    "transforms_val.json": "test",
    "transforms_test.json": "test",
}
_SPLIT_KEYS: dict[str, Split] = {"train_filenames": "train", "test_filenames": "test", "val_filenames": "test"}
_PERSPECTIVE_MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
_FISHEYE_MODEL = "OPENCV_FISHEYE"


def recognise(root: Path) -> bool:
    """Whether the folder has a transforms.json, or one for each split."""
    return any(is_file(root / name) for name in _FILES)


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene with the frames in the order of the file."""
    names = [name for name in _FILES if is_file(root / name)]
    if not names:
        raise DatasetError(f"{root}: expected a file transforms.json, found none. Check the path.")
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    for name in names[:1] if names[0] == "transforms.json" else names:
        _read_file(root / name, _FILES[name], builder)
    return builder.build()


def write(scene: Scene, destination: Path, *, images: ImageMode = "copy", progress: Progress = SILENT) -> None:
    """Writes the scene as transforms.json with its photos, as a whole or not at all.

    Intrinsics that all frames share are written once. Depth is rounded to millimetres, and unknown from 65.535 m on.
    """
    cameras = {frame.camera for frame in scene}
    shared = cameras.pop() if len(cameras) == 1 else None
    frames = []
    for frame in scene:
        entry: dict[str, Any] = {"file_path": f"images/{frame.name}"}
        if frame.depth is not None and images != "none":
            entry["depth_file_path"] = f"depth/{depth_name(frame)}"
        if frame.timestamp_s is not None:
            entry["timestamp_s"] = frame.timestamp_s
        if frame.camera is not None and shared is None:
            entry |= _intrinsics(frame.camera)
        entry["transform_matrix"] = _flip_y_and_z_axes(frame.T_world_cam).matrix().tolist()
        frames.append(entry)
    # A line for each frame and each setting: indented JSON would give every number of a matrix its own.
    settings = dict(_intrinsics(shared)) if shared is not None else {}
    for key, split in (("train_filenames", "train"), ("test_filenames", "test")):
        if any(frame.split == split for frame in scene):
            settings[key] = [f"images/{frame.name}" for frame in scene if frame.split == split]
    lines = [f'  "{key}": {json.dumps(value)},\n' for key, value in settings.items()]
    listed = ",\n".join(f"    {json.dumps(entry)}" for entry in frames)

    with writing_folder(destination) as folder, progress.task("writing transforms.json", total=len(scene)) as advance:
        text = "{\n" + "".join(lines) + f'  "frames": [\n{listed}\n  ]\n' + "}\n"
        (folder / "transforms.json").write_text(text, encoding="utf-8")
        for frame in scene:
            place_image(frame, folder / "images" / frame.name, images)
            place_depth(frame, folder / "depth" / depth_name(frame), images, METRES_PER_DEPTH_UNIT)
            advance(1)


def _flip_y_and_z_axes(T_world_cam: Pose) -> Pose:
    """The same camera with its other axes: OpenCV's for OpenGL's, or OpenGL's for OpenCV's."""
    flip = Pose.from_rotation_and_translation([[1.0, 0, 0], [0, -1.0, 0], [0, 0, -1.0]], [0.0, 0, 0])
    return T_world_cam @ flip


def _intrinsics(camera: Camera) -> dict[str, Any]:
    model = {"pinhole": "PINHOLE", "opencv": "OPENCV", "fisheye": _FISHEYE_MODEL}[camera.model]
    keys = ("k1", "k2", "k3", "k4") if camera.model == "fisheye" else ("k1", "k2", "p1", "p2", "k3")
    size_and_focal = {"w": camera.width, "h": camera.height, "fl_x": camera.fx, "fl_y": camera.fy}
    coefficients = dict(zip(keys, camera.distortion, strict=False))  # opencv has k3 or not
    return {"camera_model": model, **size_and_focal, "cx": camera.cx, "cy": camera.cy, **coefficients}


# Reading


def _read_file(path: Path, split_of_file: Split | None, builder: SceneBuilder) -> None:
    settings = _read_json(path)
    entries = settings.get("frames")
    if not isinstance(entries, list):
        raise DatasetError(f'{path}: expected a list "frames", found {_kind(entries)}. Correct the file.')
    places: dict[int, str] = {}
    for index, entry in enumerate(entries):
        with builder.frame():
            places[index] = _file_path(entry, f"{path} frame {index}")
    # "images/" is where the photos are kept, no part of their names; unless some lie elsewhere.
    prefix = "images/" if all(place.startswith("images/") for place in places.values()) else ""
    splits = _read_splits(settings, path, set(places.values()), builder)
    for index, place in places.items():
        with builder.frame():
            where = f"{path} frame {index} ({place})"
            builder.add(
                _read_frame(
                    settings | entries[index], path.parent, place, prefix, splits.get(place, split_of_file), where
                )
            )


def _read_frame(
    values: Mapping[str, Any], folder: Path, place: str, prefix: str, split: Split | None, where: str
) -> Frame:
    image = _find_photo(folder, place).require()
    header = image.read_image_header()
    T_world_cam = _flip_y_and_z_axes(pose_from_matrix(_matrix(values, where), where))
    T_world_cam, camera, quarter_turns = describe_upright(T_world_cam, _camera(values, header, where), header, where)
    name = image.path.relative_to(folder).as_posix().removeprefix(prefix)
    depth = _text(values, "depth_file_path", where)
    if depth is not None:
        depth_file = FileSource(folder / safe_name(depth, where))
    return Frame(
        name,
        T_world_cam=T_world_cam,
        image=image,
        camera=camera,
        depth=None if depth is None else DepthSource(depth_file, METRES_PER_DEPTH_UNIT, quarter_turns=quarter_turns),
        sequence=sequence_of(name),
        timestamp_s=_number(values, "timestamp_s", where),
        split=split,
    )


def _find_photo(folder: Path, place: str) -> FileSource:
    if not is_file(folder / place):
        for ending in ENDINGS_TO_TRY:
            if is_file(folder / (place + ending)):
                return FileSource(folder / (place + ending))
    return FileSource(folder / place)


def _camera(values: Mapping[str, Any], header: ImageHeader, where: str) -> Camera | None:
    """The camera of the photo as it is stored, or None where nothing gives a focal length."""
    width = _whole_number(values, "w", where) or header.stored_width
    height = _whole_number(values, "h", where) or header.stored_height
    fx = _focal(values, "fl_x", "camera_angle_x", width, where)
    fy = _focal(values, "fl_y", "camera_angle_y", height, where)
    if fx is None and fy is None:
        return None
    cx, cy = _number(values, "cx", where), _number(values, "cy", where)
    model, distortion = _distortion(values, where)
    try:
        return Camera(
            width,
            height,
            fx=fx if fx is not None else fy or 0.0,
            fy=fy if fy is not None else fx or 0.0,
            cx=width / 2 if cx is None else cx,
            cy=height / 2 if cy is None else cy,
            distortion=distortion,
            model=model,
        )
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from error


def _focal(values: Mapping[str, Any], key: str, angle_key: str, side_px: int, where: str) -> float | None:
    focal_px, angle = _number(values, key, where), _number(values, angle_key, where)
    if focal_px is not None or angle is None:
        return focal_px
    if not 0 < angle < math.pi:
        raise DatasetError(f"{where}: expected {angle_key} within 0 and pi radians, found {angle:g}. Correct the file.")
    return side_px / (2 * math.tan(angle / 2))


def _distortion(values: Mapping[str, Any], where: str) -> tuple[CameraModel, tuple[float, ...]]:
    keys = ("k1", "k2", "p1", "p2", "k3", "k4")
    given = {key: value for key in keys if (value := _number(values, key, where)) is not None}
    k1, k2, p1, p2, k3, k4 = (given.get(key, 0.0) for key in keys)
    model = _text(values, "camera_model", where)
    if model == _FISHEYE_MODEL or (model is None and values.get("is_fisheye") is True):
        return "fisheye", (k1, k2, k3, k4)
    if model is not None and model not in _PERSPECTIVE_MODELS:
        raise DatasetError(
            f"{where}: expected one of the camera models {', '.join((*_PERSPECTIVE_MODELS, _FISHEYE_MODEL))}, found "
            f"{model[:40]!r}. Undistort the photos first."
        )
    if k4 != 0.0:
        raise DatasetError(f"{where}: expected k1, k2, k3, p1, p2 at most, found k4. Undistort the photos first.")
    if not any(given.values()) and not (model == "OPENCV" and given):
        return "pinhole", ()
    return "opencv", (k1, k2, p1, p2, k3) if "k3" in given else (k1, k2, p1, p2)


def _read_splits(settings: Mapping[str, Any], path: Path, known: set[str], builder: SceneBuilder) -> dict[str, Split]:
    splits: dict[str, Split] = {}
    for key, split in _SPLIT_KEYS.items():
        places = settings.get(key)
        if places is None:
            continue
        if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
            raise DatasetError(
                f"{path}: expected a list of file paths as {key}, found something else. Correct the file."
            )
        for place in (safe_name(place, f"{path} {key}") for place in places):
            if place not in known:
                with builder.frame():
                    raise DatasetError(
                        f"{path}: expected the file paths of frames in {key}, found {place!r}, which none has. "
                        "Restore the frame, or remove the entry."
                    )
            # A validation frame may be a training frame, too: looking at it while training leaves it one.
            elif splits.setdefault(place, split) != split and key != "val_filenames":
                raise DatasetError(
                    f"{path}: expected a frame in one split only, found {place!r} in train_filenames and {key}. "
                    "Remove it from one of the two."
                )
    return splits


# JSON is whatever its author made of it: every value is checked before it is used


def _read_json(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetError(
            f"{path}: expected JSON, found: {error.msg} in line {error.lineno}, column {error.colno}. Correct the file."
        ) from None
    except (RecursionError, ValueError):  # brackets within brackets; a whole number of more than 4300 digits
        raise DatasetError(
            f"{path}: expected JSON of frames, found JSON nested too deep or numbers too long to be one. "
            "Write the file again."
        ) from None
    if not isinstance(settings, dict):
        raise DatasetError(f"{path}: expected a JSON object with frames, found {_kind(settings)}. Correct the file.")
    return settings


def _file_path(entry: object, where: str) -> str:
    if not isinstance(entry, dict):
        raise DatasetError(f"{where}: expected a JSON object, found {_kind(entry)}. Correct the file.")
    place = _text(entry, "file_path", where)
    if place is None:
        raise DatasetError(f'{where}: expected a "file_path", found none. Correct the file.')
    return safe_name(place, where)


def _text(values: Mapping[str, Any], key: str, where: str) -> str | None:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise DatasetError(f"{where}: expected text as {key}, found {_kind(value)}. Correct the file.")
    return value


def _number(values: Mapping[str, Any], key: str, where: str) -> float | None:
    value = values.get(key)
    return None if value is None else _finite(value, key, where)


def _whole_number(values: Mapping[str, Any], key: str, where: str) -> int | None:
    value = _number(values, key, where)
    if value is not None and not (value.is_integer() and 0 < value < 2**31):
        raise DatasetError(f"{where}: expected a number of pixels as {key}, found {value:g}. Correct the file.")
    return None if value is None else int(value)


def _matrix(values: Mapping[str, Any], where: str) -> list[list[float]]:
    key = "transform_matrix"
    rows = values.get(key)
    if not isinstance(rows, list) or len(rows) not in (3, 4) or not all(isinstance(row, list) for row in rows):
        raise DatasetError(
            f"{where}: expected a 4x4 matrix as {key}, a list of rows, found {_kind(rows)}. Correct the file."
        )
    if any(len(row) != 4 for row in rows):
        raise DatasetError(
            f"{where}: expected 4 numbers in each row of {key}, found {[len(row) for row in rows]}. Correct the file."
        )
    return [[_finite(value, key, where) for value in row] for row in rows]


def _finite(value: object, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DatasetError(f"{where}: expected a number in {key}, found {_kind(value)}. Correct the file.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise DatasetError(f"{where}: expected finite numbers in {key}, found NaN or infinity. Correct the file.")
    return number


def _kind(value: object) -> str:
    """What messages call a JSON value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return f"{value!r}"[:40]
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return f"a list of {len(value)}" if isinstance(value, list) else "an object"
