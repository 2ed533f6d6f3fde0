"""Answers as files that other software reads: JSON lines, CSV, TUM trajectories, COLMAP models.

Each answer is written when it is there, so a process that is killed has lost nothing that was done. JSON lines and CSV
hold all answers; TUM and COLMAP have no place for one that was refused: it is a comment there, and the last line says
how many there were.
"""

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal, Protocol, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera, Pose
from relograph.geometry.axes import (
    AXES,
    AxesName,
    axes_of,
    covariance_of_body,
    covariance_to_axes,
    from_axes,
    to_axes,
)
from relograph.localization.localizer import Answer
from relograph.scenes.camera_models import camera_line
from relograph.scenes.names import parse_floats, pose_from_matrix, read_text
from relograph.scenes.writing import exact

AnswerFormat = Literal["jsonl", "csv", "tum", "colmap"]
FORMAT_BY_ENDING: dict[str, AnswerFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tum": "tum"}
COLMAP_IMAGES, COLMAP_CAMERAS, COLMAP_POINTS = "images.txt", "cameras.txt", "points3D.txt"

CSV_COLUMNS = (
    *("name", "timestamp", "localized", "confidence", "tx", "ty", "tz", "qw", "qx", "qy", "qz"),
    *("position_sigma_m", "rotation_sigma_deg", "num_inliers", "num_references", "focal_px", "reason"),
)


@dataclass(frozen=True)
class NamedAnswer:
    """The answer to one query."""

    name: str
    answer: Answer
    timestamp_s: float | None = None
    """Of a frame since its video began."""
    size_wh: tuple[int, int] | None = None
    """Of the upright photo in pixels; None where it could not be read."""
    camera: Camera | None = None
    """What was told of the photo's camera; None where its focal length was searched."""
    video: str | None = None
    """Name of the video that it is a frame of."""
    raw_weight: float | None = None
    """How far this answer's own measurement counted among its neighbours', where it was smoothed, within [0, 1]."""


@dataclass(frozen=True)
class PoseWording:
    """How poses are said: along whose camera axes, and of what."""

    axes: AxesName = "opencv"
    T_body_cam: Pose | None = None
    """Where the camera (OpenCV's axes) is on a body, whose pose is said instead; the body has axes of its own."""
    scale_is_known: bool = True
    """Whether lengths are metres."""

    def __post_init__(self) -> None:
        if self.T_body_cam is not None and self.axes != "opencv":
            raise ConfigError(
                f"expected camera axes or a body, got the axes {self.axes} and a body, which has axes of its own. "
                "Leave --axes out: the file of --body says which axes the body has."
            )

    def camera_pose(self, named: NamedAnswer) -> tuple[Pose, Float[Tensor, "6 6"]] | None:
        """The camera's pose along the chosen axes, and its covariance."""
        T_world_cam = named.answer.T_world_cam
        if T_world_cam is None:
            return None
        axes = axes_of(self.axes, is_tall=is_tall(named.size_wh))
        return to_axes(T_world_cam, axes), covariance_to_axes(named.answer.covariance, axes)

    def orientation_wxyz(self, named: NamedAnswer) -> list[float] | None:
        """Where the camera looks, along the chosen axes: also where only that is sure, and not where it is."""
        R_world_cam = named.answer.R_world_cam
        if R_world_cam is None:
            return None
        turned = Pose(R_world_cam, torch.zeros(3, dtype=R_world_cam.dtype))
        return [float(v) for v in to_axes(turned, axes_of(self.axes, is_tall=is_tall(named.size_wh))).quat_wxyz()]

    def pose(self, named: NamedAnswer) -> tuple[Pose, Float[Tensor, "6 6"]] | None:
        """The body's pose where there is one, else the camera's."""
        T_world_cam = named.answer.T_world_cam
        if T_world_cam is None or self.T_body_cam is None:
            return self.camera_pose(named)
        T_cam_body = self.T_body_cam.inverse()
        return T_world_cam @ T_cam_body, covariance_of_body(named.answer.covariance, T_world_cam, T_cam_body)

    @property
    def what(self) -> str:
        """What the poses are, in a few words."""
        unit = "metres" if self.scale_is_known else "a unit of the map's own, whose scale is not known"
        of = "body to world" if self.T_body_cam is not None else f"camera to world, camera axes {self.axes}"
        return f"{of}; lengths in {unit}"


def is_tall(size_wh: tuple[int, int] | None) -> bool:
    """Whether a photo is taller than wide."""
    return size_wh is not None and size_wh[1] > size_wh[0]


def read_body_file(path: Path) -> Pose:
    """`T_body_cam` in a text file of 16 numbers, a 4x4 matrix row by row: camera coordinates to the body's."""
    numbers = parse_floats(read_text(path), 16, str(path))
    return pose_from_matrix([numbers[row : row + 4] for row in range(0, 16, 4)], str(path))


def format_of(path: Path | None, format: str | None) -> AnswerFormat:
    """The format by its name, or by that of the file; JSON lines where there is neither."""
    for known in get_args(AnswerFormat):
        if format == known:
            return known  # type: ignore[no-any-return]  # what is in a Literal is of its type
    if format is not None:
        raise ConfigError(f"expected the format {', '.join(get_args(AnswerFormat))}, got {format!r}. Choose one.")
    if path is None:
        return "jsonl"
    if path.name == COLMAP_IMAGES:
        return "colmap"
    known_ending = FORMAT_BY_ENDING.get(path.suffix.lower())
    if known_ending is None:
        raise ConfigError(
            f"{path}: expected a name that ends in {', '.join(FORMAT_BY_ENDING)}, or {COLMAP_IMAGES}, found "
            f"{path.suffix or 'no ending'!r}. Name the file so, or choose with --format."
        )
    return known_ending


def smoothed_path(path: Path) -> Path:
    """Where smoothed answers lie beside the raw ones.

    Example:
        >>> smoothed_path(Path("out/walk.jsonl")).as_posix(), smoothed_path(Path("out/images.txt")).as_posix()
        ('out/walk.smoothed.jsonl', 'out/smoothed/images.txt')
    """
    if path.name == COLMAP_IMAGES:
        return path.parent / "smoothed" / path.name
    return path.with_name(f"{path.stem}.smoothed{path.suffix}")


# Writing


class AnswerWriter(Protocol):
    """Takes answers one by one."""

    def write(self, named: NamedAnswer) -> None: ...
    def end(self) -> None: ...


@contextmanager
def writing_answers(path: Path | None, format: AnswerFormat, wording: PoseWording) -> Iterator[AnswerWriter]:
    """What writes answers to a new file, or to the terminal; the file is flushed to the disk at the end.

    What was written before an error or a kill stays.
    """
    if format == "colmap":
        if path is None or path.name != COLMAP_IMAGES:
            raise ConfigError(f"expected a file called {COLMAP_IMAGES} for COLMAP, got {path}. Name it so.")
        if wording.axes != "opencv" or wording.T_body_cam is not None:
            raise ConfigError("expected OpenCV's camera axes and no body for COLMAP, which has these axes. Leave both.")
    with ExitStack() as opened:
        writer: AnswerWriter
        if format == "colmap":
            assert path is not None
            files = [opened.enter_context(_new_file(path.with_name(name))) for name in (COLMAP_CAMERAS, COLMAP_POINTS)]
            writer = _ColmapWriter(opened.enter_context(_new_file(path)), files[0], wording)
        else:
            file = _LinesOf(sys.stdout, "the terminal") if path is None else opened.enter_context(_new_file(path))
            if format == "jsonl":
                writer = _JsonWriter(file, wording)
            else:
                writer = _CsvWriter(file, wording) if format == "csv" else _TumWriter(file, wording)
        yield writer
        writer.end()


@dataclass
class _LinesOf:
    """A file that has every line as soon as it is written."""

    file: IO[str] | io.FileIO
    where: str

    def add(self, text: str) -> None:
        try:
            if isinstance(self.file, io.FileIO):
                left = text.encode()
                while left:  # nothing waits in a buffer, where a kill or a full disk would meet it
                    left = left[self.file.write(left) :]
            else:
                self.file.write(text)
                self.file.flush()
        except BrokenPipeError:
            raise  # who read our output has seen enough
        except OSError as error:
            raise DatasetError(
                f"{self.where}: expected to write answers here, found: {error.strerror or error}. What was written "
                "before is there; free some space, or choose another place."
            ) from error


@contextmanager
def _new_file(path: Path) -> Iterator[_LinesOf]:
    try:
        if path.exists() and (path.is_dir() or path.stat().st_size):
            raise DatasetError(
                f"{path}: expected a new file to write answers to, found one that is there already. Choose another "
                "name, or remove it."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.FileIO(path, "w")
    except OSError as error:
        raise DatasetError(
            f"{path}: expected to write answers here, found: {error.strerror or error}. Choose another place."
        ) from error
    with file:
        yield _LinesOf(file, str(path))
        os.fsync(file.fileno())


@dataclass
class _JsonWriter:
    file: _LinesOf
    wording: PoseWording

    def write(self, named: NamedAnswer) -> None:
        self.file.add(json.dumps(answer_as_json(named, self.wording), allow_nan=False) + "\n")

    def end(self) -> None:
        pass


class _CsvWriter:
    def __init__(self, file: _LinesOf, wording: PoseWording) -> None:
        self.file, self.wording = file, wording
        axes = wording.axes if wording.T_body_cam is None else "those of the body"
        file.add(f"# camera axes: {AXES.get(axes, axes)}\n# direction: world_from_camera\n# {wording.what}\n")
        file.add(_csv_line(CSV_COLUMNS))

    def write(self, named: NamedAnswer) -> None:
        answer, said = named.answer, self.wording.pose(named)
        position_sigma_m, rotation_sigma_deg = sigmas(answer.covariance)
        pose = [None] * 7 if said is None else [*said[0].t.tolist(), *said[0].quat_wxyz().tolist()]
        numbers: dict[str, float | None] = {
            "timestamp": named.timestamp_s,
            "confidence": answer.confidence,
            **dict(zip(("tx", "ty", "tz", "qw", "qx", "qy", "qz"), pose, strict=True)),
            "position_sigma_m": position_sigma_m if answer.localized else None,
            "rotation_sigma_deg": rotation_sigma_deg if answer.localized else None,
            "focal_px": answer.focal_px,
        }
        cells = {column: "" if value is None else repr(float(value)) for column, value in numbers.items()}
        cells |= {"name": named.name, "localized": str(answer.localized).lower(), "reason": answer.reason}
        cells |= {"num_inliers": str(answer.num_inliers), "num_references": str(len(answer.references))}
        self.file.add(_csv_line([cells[column] for column in CSV_COLUMNS]))

    def end(self) -> None:
        pass


@dataclass
class _Counting:
    """What formats without a place for refused answers say of them."""

    file: _LinesOf
    num_written: int = 0
    num_refused: int = 0

    def refuse(self, name: str, reason: str) -> None:
        self.num_refused += 1
        self.file.add(f"# not localized: {_one_line(name)}: {_one_line(reason)}\n")

    def end(self) -> None:
        total = self.num_written + self.num_refused
        self.file.add(f"# {self.num_refused} of {total} queries were refused and have no pose here\n")


class _TumWriter:
    def __init__(self, file: _LinesOf, wording: PoseWording) -> None:
        self.file, self.wording, self.counting, self.num_seen = file, wording, _Counting(file), 0
        file.add(f"# timestamp tx ty tz qx qy qz qw ({wording.what}; photos without a time are numbered)\n")

    def write(self, named: NamedAnswer) -> None:
        said = self.wording.pose(named)
        time_s = float(self.num_seen) if named.timestamp_s is None else named.timestamp_s
        self.num_seen += 1
        if said is None:
            self.counting.refuse(named.name, named.answer.reason)
            return
        self.counting.num_written += 1
        self.file.add(exact([time_s, *said[0].t.tolist(), *said[0].quat_xyzw().tolist()]) + "\n")

    def end(self) -> None:
        self.counting.end()


class _ColmapWriter:
    def __init__(self, images: _LinesOf, cameras: _LinesOf, wording: PoseWording) -> None:
        self.images, self.cameras, self.counting = images, cameras, _Counting(images)
        self.id_by_camera: dict[str, int] = {}
        images.add(f"# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME ({wording.what.split('; ')[1]})\n")
        cameras.add("# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n")

    def write(self, named: NamedAnswer) -> None:
        T_world_cam, camera = named.answer.T_world_cam, _camera_of(named)
        if T_world_cam is None:
            self.counting.refuse(named.name, named.answer.reason)
        elif camera is None:
            self.counting.refuse(named.name, "COLMAP needs a focal length, and none is known. Give --focal.")
        elif len(named.name.split()) != 1 or named.name.startswith("#"):
            self.counting.refuse(named.name, "COLMAP's text files have no place for a name with spaces.")
        else:
            line = camera_line(camera)
            if line not in self.id_by_camera:
                self.id_by_camera[line] = len(self.id_by_camera) + 1
                self.cameras.add(f"{self.id_by_camera[line]} {line}\n")  # before the image that leads to it
            self.counting.num_written += 1
            T_cam_world = T_world_cam.inverse()
            numbers = exact([*T_cam_world.quat_wxyz().tolist(), *T_cam_world.t.tolist()])
            # Below it stand the image's points, of which there are none.
            self.images.add(f"{self.counting.num_written} {numbers} {self.id_by_camera[line]} {named.name}\n\n")

    def end(self) -> None:
        self.counting.end()


def answer_as_json(named: NamedAnswer, wording: PoseWording) -> dict[str, object]:
    """An answer in plain values; None where a number is not known."""
    answer, said = named.answer, wording.camera_pose(named)
    position_sigma_m, rotation_sigma_deg = sigmas(answer.covariance)
    document: dict[str, object] = {
        "name": named.name,
        "timestamp_s": named.timestamp_s,
        "localized": answer.localized,
        "reason": answer.reason,
        "confidence": answer.confidence,
        "axes": wording.axes,
        **_pose_as_json("cam", said),
        "orientation_wxyz": wording.orientation_wxyz(named),
        "position_sigma_m": position_sigma_m if answer.localized else None,
        "rotation_sigma_deg": rotation_sigma_deg if answer.localized else None,
        "scale_is_known": wording.scale_is_known,
        "scale_observable": answer.scale_observable,
        "focal_px": answer.focal_px,
        "num_inliers": answer.num_inliers,
        "references": [
            {
                "name": used.name,
                "similarity": used.similarity,
                "overlap": used.overlap,
                "num_matches": used.num_matches,
                "num_inliers": used.num_inliers,
            }
            for used in answer.references
        ],
        "seconds": dict(answer.seconds),
    }
    if wording.T_body_cam is not None:
        document["body"] = _pose_as_json("body", wording.pose(named))
    if named.raw_weight is not None:
        document["raw_weight"] = named.raw_weight
    return document


@dataclass(frozen=True)
class SavedAnswer:
    """As much of an answer as is needed to show it."""

    name: str
    T_world_cam: Pose | None
    """Along OpenCV's axes; None where the query was not localized."""
    reason: str = ""
    """Why it was not."""
    confidence: float | None = None
    references: tuple[str, ...] = ()
    """Names of photos of the map."""
    T_world_true: Pose | None = None
    """Where it is known."""


def read_answers(path: Path) -> list[SavedAnswer]:
    """The answers in a file of JSON lines that `relograph localize` wrote."""
    answers = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            answers.append(_answer_from_json(line, f"{path}:{number}"))
    return answers


def _answer_from_json(line: str, where: str) -> SavedAnswer:
    try:
        document = json.loads(line)
        axes, matrix = str(document["axes"]), document["T_world_cam"]
        pose = None if matrix is None else pose_from_matrix(matrix, where)
        answer = SavedAnswer(
            str(document["name"]),
            pose,
            str(document["reason"]),
            float(document["confidence"]),
            tuple(str(used["name"]) for used in document["references"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"{where}: expected an answer of `relograph localize` in JSON, found a line that is none "
            f"({type(error).__name__}: {error}). Localize again with --output answers.jsonl."
        ) from None
    for known in get_args(AxesName):
        # ARKit's axes depend on whether the photo is tall, which the file does not say.
        if axes == known and known != "arkit":
            return answer if pose is None else replace(answer, T_world_cam=from_axes(pose, axes_of(known)))
    raise DatasetError(
        f"{where}: expected poses along the axes {', '.join(AXES)}, found {axes!r}. Localize again without --axes."
    )


def sigmas(covariance: Float[Tensor, "6 6"]) -> tuple[float | None, float | None]:
    """Standard deviations of the centre in metres and of the rotation in degrees, in their least certain directions."""
    if not covariance.isfinite().all():
        return None, None
    largest = [float(torch.linalg.eigvalsh(covariance[some, some])[-1]) for some in (slice(3, 6), slice(0, 3))]
    position_m, rotation_rad = (math.sqrt(max(value, 0.0)) for value in largest)
    return position_m, math.degrees(rotation_rad)


def _pose_as_json(frame: str, said: tuple[Pose, Float[Tensor, "6 6"]] | None) -> dict[str, object]:
    """The pose of a camera or a body, whose names say which: `T_world_cam` and `cam_center_world`."""
    matrix_name, center_name = f"T_world_{frame}", f"{frame}_center_world"
    if said is None:
        return {matrix_name: None, "quat_wxyz": None, center_name: None, "covariance": None}
    pose, covariance = said
    return {
        matrix_name: pose.matrix().tolist(),
        "quat_wxyz": pose.quat_wxyz().tolist(),
        center_name: pose.t.tolist(),
        "covariance": covariance.tolist() if covariance.isfinite().all() else None,
    }


def _camera_of(named: NamedAnswer) -> Camera | None:
    """The camera that was told, or one of the focal length that was found."""
    if named.size_wh is None:
        return None
    if named.camera is not None:
        return named.camera.scaled_to(*named.size_wh)
    focal_px = named.answer.focal_px
    return None if focal_px is None else Camera.from_focal(*named.size_wh, focal_px)


def _csv_line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _one_line(text: str) -> str:
    return " ".join(text.split())
