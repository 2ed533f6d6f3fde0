"""`poses.csv` beside photos: the format for poses that come from anywhere.

    # camera axes: right down forward
    # direction: world_from_camera
    name,tx,ty,tz,qw,qx,qy,qz
    photos/IMG_0001.jpg,0.0,0.0,1.5,1,0,0,0

Two header lines are required, because a wrong guess would turn every pose:

- `# camera axes:` where the camera's x, y and z axes point, seen from behind it: a permutation of right or left, up or
  down, forward or back; or a preset: `opencv` (right down forward), `opengl` (right up back), `ros` (forward left up),
  `unity` (right up forward). Axes that are left-handed mean a left-handed world too. Both are mirrored: the third
  world coordinate changes its sign.
- `# direction:` `world_from_camera` (t is the camera's centre) or `camera_from_world` (t is what COLMAP calls
  translation: the world's origin seen from the camera).

Two more are optional:

- `# photos: FOLDER` when names and depths are relative to that folder and not to the one that holds poses.csv.
- `# exif orientation: ignored` when poses describe photos as stored, `applied` (the default) when they describe them
  upright. Where `width` and `height` fit only one of the two, they decide.

Columns come in any order, by name. A photo is `name`. A pose is `tx ty tz` with `qw qx qy qz` or with `rx ry rz` (axis
times angle, radians), or it is the matrix `m00 m01 ... m23` (row, column; `m30 ... m33` may follow). Optional are
`fx fy cx cy` in pixels, the top-left corner of the photo being (0, 0), `k1 k2 p1 p2` and `k3` of OpenCV's distortion,
`width height` (else those of the photo), `sequence` (else the name's folder), `timestamp` in seconds, `split` (train
or test) and `depth` (a 16-bit PNG in millimetres). Lengths are metres. An empty cell is an absent value.
"""

import csv
import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float64

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.geometry.axes import AXES, axes_from_words, from_axes
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.images import turn_upright
from relograph.scenes.names import (
    is_file,
    parse_float,
    parse_int,
    pose_from_matrix,
    pose_from_quat_wxyz,
    pose_from_rotation_vector,
    read_text,
    safe_name,
    sequence_of,
)
from relograph.scenes.scene import Scene, SceneBuilder

FORMAT = "poses.csv"
FILE_NAME = "poses.csv"

DIRECTIONS = ("world_from_camera", "camera_from_world")
ORIENTATIONS = ("applied", "ignored")

_DECLARATIONS = ("camera axes", "direction", "photos", "exif orientation")
_TRANSLATION = ("tx", "ty", "tz")
_QUATERNION = ("qw", "qx", "qy", "qz")
_ROTATION_VECTOR = ("rx", "ry", "rz")
_MATRIX_ROWS = tuple(tuple(f"m{row}{column}" for column in range(4)) for row in range(4))
_MATRIX = tuple(itertools.chain(*_MATRIX_ROWS[:3]))
_INTRINSICS = ("fx", "fy", "cx", "cy")
_DISTORTION = ("k1", "k2", "p1", "p2")
_COLUMNS = (
    *("name", *_TRANSLATION, *_QUATERNION, *_ROTATION_VECTOR, *_MATRIX, *_MATRIX_ROWS[3]),
    *(*_INTRINSICS, *_DISTORTION, "k3", "width", "height", "sequence", "timestamp", "split", "depth"),
)


def recognise(root: Path) -> bool:
    """Whether the folder holds a poses.csv."""
    return is_file(root / FILE_NAME)


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene in that folder, its frames in the order of the rows."""
    path = root / FILE_NAME
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    lines = read_text(path).split("\n")
    num_comments = sum(1 for _ in itertools.takewhile(_is_comment_or_blank, lines))
    declared = _parse_declarations(lines[:num_comments], path)
    rows = _parse_rows(lines[num_comments:], num_comments, path)
    columns = _check_columns(rows[0].cells if rows else [], path)
    for unknown in (column for column in columns if column not in _COLUMNS):
        builder.warnings.append(f"{path}: the column {unknown!r} is not known and was not read.{_nearest(unknown)}")
    for row in rows[1:]:
        with builder.frame():
            if len(row.cells) != len(columns):
                raise DatasetError(
                    f"{row.where}: expected {len(columns)} cells as in the header, found {len(row.cells)}. "
                    "Correct the row."
                )
            values = {column: cell.strip() for column, cell in zip(columns, row.cells, strict=True) if cell.strip()}
            builder.add(_read_frame(values, declared, row.where))
    return builder.build()


@dataclass(frozen=True)
class _Declared:
    """What the header lines say."""

    R_opencv_file: Float64[np.ndarray, "3 3"]
    """Takes coordinates along the file's camera axes to OpenCV's; of determinant -1 where the file is left-handed."""
    world_from_camera: bool
    photos: Path
    poses_are_of_stored_photos: bool


@dataclass(frozen=True)
class _Row:
    cells: list[str]
    where: str


def _is_comment_or_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _parse_declarations(lines: Iterable[str], path: Path) -> _Declared:
    values: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.lstrip("# \t").partition(":")
        key = " ".join(key.lower().split())
        if not colon or key not in _DECLARATIONS:
            continue
        if key in values:
            raise DatasetError(f"{path}: expected '# {key}:' once, found it twice. Remove one of the lines.")
        values[key] = value.strip()
    for key, example in (("camera axes", "right down forward"), ("direction", "world_from_camera")):
        if key not in values:
            raise DatasetError(
                f"{path}: expected the lines '# camera axes: right down forward' and '# direction: world_from_camera' "
                f"(or camera_from_world) at the top, found none for '{key}'. Add '# {key}: {example}', if that is so."
            )
    folder = values.get("photos", "")
    direction = _choice(values["direction"], DIRECTIONS, "direction", path)
    orientation = _choice(values.get("exif orientation", "applied"), ORIENTATIONS, "exif orientation", path)
    return _Declared(
        R_opencv_file=_parse_axes(values["camera axes"], path),
        world_from_camera=direction == "world_from_camera",
        photos=path.parent / safe_name(folder, str(path)) if folder else path.parent,
        poses_are_of_stored_photos=orientation == "ignored",
    )


def _parse_axes(text: str, path: Path) -> Float64[np.ndarray, "3 3"]:
    matrix = axes_from_words(AXES.get(text.lower(), text.lower()).replace(",", " "))
    if matrix is None:
        raise DatasetError(
            f"{path}: expected '# camera axes:' with three of right|left, up|down, forward|back, one of each pair, or "
            f"one of {', '.join(AXES)}; found {text[:60]!r}. "
            "Write, for example: # camera axes: right down forward"
        )
    return matrix


def _choice(text: str, choices: Sequence[str], key: str, path: Path) -> str:
    if text.lower() not in choices:
        raise DatasetError(
            f"{path}: expected '# {key}: {' or '.join(choices)}', found {text[:60]!r}. Correct the line."
        )
    return text.lower()


def _parse_rows(lines: Sequence[str], num_lines_before: int, path: Path) -> list[_Row]:
    """The header and the rows below it, without blank ones."""
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append(_Row(cells, f"{path}:{num_lines_before + reader.line_num}"))
    except csv.Error as error:
        where = f"{path}:{num_lines_before + reader.line_num}"
        raise DatasetError(f"{where}: expected comma-separated values, found: {error}. Correct the line.") from None
    return rows


def _check_columns(header: Sequence[str], path: Path) -> list[str]:
    columns = [cell.strip().lower() for cell in header]
    repeated = next((column for column in columns if column and columns.count(column) > 1), None)
    if repeated is not None:
        raise DatasetError(f"{path}: expected every column once, found {repeated[:40]!r} twice. Remove one of them.")
    has = set(columns).issuperset
    if not has({"name"}) or not (has(_MATRIX) or (has(_TRANSLATION) and (has(_QUATERNION) or has(_ROTATION_VECTOR)))):
        found = ",".join(columns)[:80] or "nothing"
        raise DatasetError(
            f"{path}: expected a header with the columns name, tx,ty,tz and qw,qx,qy,qz (or rx,ry,rz, or m00..m23 "
            f"alone), found {found}. Name the columns in the first line after the comments."
        )
    if sum((has(_MATRIX), has(_QUATERNION), has(_ROTATION_VECTOR))) > 1:
        raise DatasetError(f"{path}: expected one kind of rotation, found several. Keep qw..qz, rx..rz or m00..m23.")
    return columns


def _nearest(unknown: str) -> str:
    matches = difflib.get_close_matches(unknown, _COLUMNS, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _read_frame(values: Mapping[str, str], declared: _Declared, where: str) -> Frame:
    name = safe_name(values.get("name", ""), where)
    # The photo is looked for first: where neither it nor its pose is right, its name helps more.
    image = FileSource(declared.photos / name).require()
    header = image.read_image_header()
    T_world_cam = _to_opencv(_pose(values, where), declared)
    camera = _camera(values, header.upright_size_wh, where)
    T_world_cam, camera, turns = turn_upright(
        T_world_cam, camera, header, where, assume_stored=declared.poses_are_of_stored_photos
    )
    depth_file = FileSource(declared.photos / safe_name(values["depth"], where)) if "depth" in values else None
    return Frame(
        name=name,
        T_world_cam=T_world_cam,
        image=image,
        camera=camera,
        depth=None if depth_file is None else DepthSource(depth_file, quarter_turns=turns),
        sequence=safe_name(values["sequence"], where) if "sequence" in values else sequence_of(name),
        timestamp_s=parse_float(values["timestamp"], where) if "timestamp" in values else None,
        split=_split(values.get("split"), where),
    )


def _pose(values: Mapping[str, str], where: str) -> Pose:
    """The transform as the file writes it: its own axes, its own direction."""

    def numbers(columns: Iterable[str]) -> list[float]:
        return [parse_float(values.get(column, ""), f"{where}, {column}") for column in columns]

    if "m00" in values:
        return pose_from_matrix([numbers(row) for row in _MATRIX_ROWS if row[0] in values], where)
    translation = numbers(_TRANSLATION)
    if "rx" in values:
        return pose_from_rotation_vector(numbers(_ROTATION_VECTOR), translation, where)
    return pose_from_quat_wxyz(numbers(_QUATERNION), translation, where)


def _to_opencv(T_file: Pose, declared: _Declared) -> Pose:
    T_world_file = T_file if declared.world_from_camera else T_file.inverse()
    return from_axes(T_world_file, declared.R_opencv_file)


def _camera(values: Mapping[str, str], upright_size_wh: tuple[int, int], where: str) -> Camera | None:
    given = [column for column in (*_INTRINSICS, *_DISTORTION, "k3") if column in values]
    if not given:
        return None
    columns = _INTRINSICS if len(given) <= 4 else (*_INTRINSICS, *_DISTORTION, *(["k3"] if "k3" in values else []))
    if tuple(given) != tuple(columns):
        raise DatasetError(
            f"{where}: expected fx,fy,cx,cy together, then k1,k2,p1,p2 together and k3 or not, found only "
            f"{','.join(given)}. Fill in the missing ones; 0 is no distortion."
        )
    fx, fy, cx, cy, *distortion = (parse_float(values[column], f"{where}, {column}") for column in columns)
    width, height = upright_size_wh
    if "width" in values or "height" in values:
        width, height = (parse_int(values.get(column, ""), f"{where}, {column}") for column in ("width", "height"))
    try:
        return Camera(width, height, fx, fy, cx, cy, tuple(distortion), "opencv" if distortion else "pinhole")
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from error


def _split(text: str | None, where: str) -> Literal["train", "test"] | None:
    if text is None:
        return None
    if text == "train":
        return "train"
    if text == "test":
        return "test"
    raise DatasetError(f"{where}: expected train, test or nothing as split, found {text[:40]!r}. Correct the cell.")
