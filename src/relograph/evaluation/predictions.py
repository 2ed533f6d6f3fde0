"""What a method answered, query by query, in a file that is written first and scored second.

So a metric can be corrected, or another one added, without running a model again. The file is CSV, gzipped where its
name ends in `.gz`, with one line of JSON on top that says where it came from:

    # {"format": "relograph predictions", "version": 1, "num_queries": 2, "metadata": {"method": "copy top-1"}}
    scene,frame,localized,reason,qw,qx,qy,qz,tx,ty,tz,true_qw,...,true_tz,top1,nearest_reference_m,nearest_reference_deg
    kitchen,kitchen/seq-02/frame-000000.color.png,1,,0.998,0.01,0.05,0.02,1.31,-0.2,0.07,0.999,...,0.08,kitchen/...,0.11,4.2
    kitchen,kitchen/seq-02/frame-000001.color.png,0,no reference images,,,,,,,,0.999,...,0.09,,,

Poses are `T_world_cam`: the quaternion of the rotation and the camera's centre in metres, to nine significant digits.
A query that was not localized keeps its row, with a reason and without a pose. Columns are found by their names and
may come in any order; columns with other names are passed over.
"""

import csv
import difflib
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from relograph.errors import DatasetError
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose, rotation_error_deg

FORMAT = "relograph predictions"
VERSION = 1

_POSE = ("qw", "qx", "qy", "qz", "tx", "ty", "tz")
_TRUE_POSE = tuple(f"true_{name}" for name in _POSE)
_NEAREST = ("nearest_reference_m", "nearest_reference_deg")
_COLUMNS = ("scene", "frame", "localized", "reason", *_POSE, *_TRUE_POSE, "top1", *_NEAREST)
_QUERIES_PER_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answers of one method to Q queries, column by column, on the CPU and in float64."""

    scene: tuple[str, ...]
    frame: tuple[str, ...]
    T_world_true: Pose
    T_world_cam: Pose
    """The answer; NaN where the query was not localized."""
    localized: Bool[Tensor, "Q"]
    reason: tuple[str, ...]
    """Why a query was not localized; empty where it was."""
    top1: tuple[str, ...]
    """The nearest retrieved reference; empty where there was none."""
    nearest_reference_m: Float64[Tensor, "Q"]
    """Distance to the reference that is nearest by true position; NaN where there is no reference."""
    nearest_reference_deg: Float64[Tensor, "Q"]
    """Angle to that same reference."""

    def __post_init__(self) -> None:
        for field in fields(self):
            length = len(getattr(self, field.name))
            if length != len(self.frame):
                raise DatasetError(
                    f"Predictions: expected {len(self.frame)} values of {field.name}, one for each frame, found "
                    f"{length}. Pass as many as there are frames."
                )
        if (unknown := ~_is_finite(self.T_world_true)).any():
            row = int(unknown.nonzero()[0])
            raise DatasetError(
                f"Predictions: expected a true pose for {self.frame[row]}, found NaN or infinity. "
                "Leave out frames whose pose is not known: they cannot be scored."
            )
        if (broken := self.localized & ~_is_finite(self.T_world_cam)).any():
            row = int(broken.nonzero()[0])
            raise DatasetError(
                f"Predictions: expected a pose for {self.frame[row]}, which is said to be localized, found NaN or "
                "infinity. Mark it as not localized, as Predictions.from_poses does."
            )
        seen: set[tuple[str, str]] = set()
        for key in zip(self.scene, self.frame, strict=True):
            if key in seen:
                raise DatasetError(
                    f"Predictions: expected every frame of a scene once, found {key[1]} of {key[0]} twice. "
                    "Give every run its own file."
                )
            seen.add(key)

    @staticmethod
    def from_poses(
        scene: Sequence[str],
        frame: Sequence[str],
        T_world_true: Pose,
        T_world_cam: Pose,
        *,
        top1: Sequence[str] | None = None,
        nearest: "NearestReference | None" = None,
        reason: Sequence[str] | None = None,
    ) -> "Predictions":
        """The answers of a method from wherever it computed them, in whatever precision.

        A query counts as localized where its pose is finite and no reason says otherwise. A pose with NaN or infinity,
        as a diverged network gives, becomes "not localized" with that as its reason.
        """
        unknown = torch.full((len(frame),), math.nan, dtype=torch.float64)
        reasons = list(reason) if reason is not None else [""] * len(frame)
        answers = _on_cpu(T_world_cam)
        finite = _is_finite(answers)
        for row in (~finite).nonzero().flatten().tolist():
            reasons[row] = reasons[row] or "the pose is not finite"
        localized = torch.tensor([not text for text in reasons], dtype=torch.bool)
        return Predictions(
            scene=tuple(scene),
            frame=tuple(frame),
            T_world_true=_on_cpu(T_world_true),
            T_world_cam=Pose(
                answers.R.where(localized[:, None, None], math.nan), answers.t.where(localized[:, None], math.nan)
            ),
            localized=localized,
            reason=tuple(reasons),
            top1=tuple(top1) if top1 is not None else ("",) * len(frame),
            nearest_reference_m=nearest.distance_m.detach().cpu().double() if nearest is not None else unknown,
            nearest_reference_deg=nearest.angle_deg.detach().cpu().double() if nearest is not None else unknown,
        )

    @staticmethod
    def cat(parts: "Sequence[Predictions]") -> "Predictions":
        """The rows of all parts, one part after the other; the parts may be none."""
        nothing = torch.zeros(0, dtype=torch.float64)
        return Predictions(
            scene=tuple(name for part in parts for name in part.scene),
            frame=tuple(name for part in parts for name in part.frame),
            T_world_true=Pose.cat([Pose.identity(0), *(part.T_world_true for part in parts)]),
            T_world_cam=Pose.cat([Pose.identity(0), *(part.T_world_cam for part in parts)]),
            localized=torch.cat([nothing.bool(), *(part.localized for part in parts)]),
            reason=tuple(text for part in parts for text in part.reason),
            top1=tuple(name for part in parts for name in part.top1),
            nearest_reference_m=torch.cat([nothing, *(part.nearest_reference_m for part in parts)]),
            nearest_reference_deg=torch.cat([nothing, *(part.nearest_reference_deg for part in parts)]),
        )

    def of_scene(self, scene: str) -> "Predictions":
        """The rows of one scene, in their order."""
        return self.rows([row for row, name in enumerate(self.scene) if name == scene])

    def rows(self, rows: Sequence[int]) -> "Predictions":
        """Some of the rows, in that order."""
        rows = list(rows)
        return Predictions(
            scene=tuple(self.scene[row] for row in rows),
            frame=tuple(self.frame[row] for row in rows),
            T_world_true=self.T_world_true[rows],
            T_world_cam=self.T_world_cam[rows],
            localized=self.localized[rows],
            reason=tuple(self.reason[row] for row in rows),
            top1=tuple(self.top1[row] for row in rows),
            nearest_reference_m=self.nearest_reference_m[rows],
            nearest_reference_deg=self.nearest_reference_deg[rows],
        )

    @property
    def scenes(self) -> tuple[str, ...]:
        """The names of the scenes, in the order in which they first appear."""
        return tuple(dict.fromkeys(self.scene))

    def __len__(self) -> int:
        return len(self.frame)


class NearestReference(NamedTuple):
    """How far the reference is that stands nearest to each query; NaN where there is none."""

    distance_m: Float[Tensor, "Q"]
    angle_deg: Float[Tensor, "Q"]


def nearest_reference(T_world_query: Pose, T_world_ref: Pose) -> NearestReference:
    """The distance and the angle from each query to the reference nearest to its position, the first of equals.

    Example:
        >>> references = Pose.from_axis_angle([[0.0, 0.0, 0.0], [0.0, 0.0, torch.pi / 2]], [[0.0, 0, 0], [3.0, 0, 0]])
        >>> nearest = nearest_reference(Pose.from_axis_angle([[0.0, 0.0, 0.0]], [[2.0, 0.0, 0.0]]), references)
        >>> nearest.distance_m.item(), round(nearest.angle_deg.item(), 6)
        (1.0, 90.0)
    """
    if not len(T_world_ref):
        nothing = torch.full_like(T_world_query.t[:, 0], math.nan)
        return NearestReference(nothing, nothing)
    distances, angles = [T_world_query.t[:0, 0]], [T_world_query.t[:0, 0]]
    for R, t in zip(T_world_query.R.split(_QUERIES_PER_BLOCK), T_world_query.t.split(_QUERIES_PER_BLOCK), strict=True):
        # The fast way, through a matrix product, loses millimetres where coordinates are hundreds of metres.
        distance = torch.cdist(t, T_world_ref.t, compute_mode="donot_use_mm_for_euclid_dist")  # [block, F]
        nearest = distance.argmin(dim=1)
        distances.append(distance.gather(1, nearest[:, None]).squeeze(1))
        angles.append(rotation_error_deg(R, T_world_ref.R[nearest]))
    return NearestReference(torch.cat(distances), torch.cat(angles))


def write_predictions(path: Path, predictions: Predictions, *, metadata: Mapping[str, object]) -> None:
    """Writes a `.csv` or `.csv.gz` file, whole or not at all; `metadata` is whatever JSON can say.

    The same predictions and metadata give the same bytes.
    """
    _check_suffix(path)
    header = {"format": FORMAT, "version": VERSION, "num_queries": len(predictions), "metadata": dict(metadata)}
    text = io.StringIO()
    text.write(f"# {json.dumps(header, allow_nan=False)}\n")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for query, (estimate, truth, *nearest) in enumerate(
        zip(
            _numbers(predictions.T_world_cam),
            _numbers(predictions.T_world_true),
            predictions.nearest_reference_m.tolist(),
            predictions.nearest_reference_deg.tolist(),
            strict=True,
        )
    ):
        localized = bool(predictions.localized[query])
        rows.writerow(
            [
                *(predictions.scene[query], predictions.frame[query], int(localized), predictions.reason[query]),
                *(_digits(number) if localized else "" for number in estimate),
                *(_digits(number) for number in truth),
                predictions.top1[query],
                *(_digits(number) if math.isfinite(number) else "" for number in nearest),
            ]
        )
    content = text.getvalue().encode("utf-8", errors="surrogateescape")  # names are as the file system gave them
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_predictions(path: Path) -> tuple[Predictions, dict[str, object]]:
    """The predictions in a file and the metadata that were written with them.

    A file that was cut short anywhere, between two rows too, is refused: fewer queries would score better or worse.
    """
    _check_suffix(path)
    metadata, rows = _read_rows(path)
    truth, estimate, nearest = np.empty((len(rows), 7)), np.empty((len(rows), 7)), np.empty((len(rows), 2))
    for row, (where, cells) in enumerate(rows):
        if cells["localized"] not in ("0", "1"):
            raise _damaged(where, "0 or 1 as localized", repr(cells["localized"][:40]))
        localized = cells["localized"] == "1"
        if localized == bool(cells["reason"]):
            raise _damaged(where, "a reason where, and only where, localized is 0", repr(cells["reason"][:40]))
        truth[row] = _parse_pose(cells, _TRUE_POSE, where)
        estimate[row] = _parse_pose(cells, _POSE, where) if localized else math.nan
        nearest[row] = [_parse(cells[name], name, where) if cells[name] else math.nan for name in _NEAREST]

    def column(name: str) -> tuple[str, ...]:
        return tuple(cells[name] for _, cells in rows)

    try:
        predictions = Predictions(
            scene=column("scene"),
            frame=column("frame"),
            T_world_true=Pose.from_quat_wxyz(truth[:, :4], truth[:, 4:]),
            T_world_cam=Pose.from_quat_wxyz(estimate[:, :4], estimate[:, 4:]),
            localized=torch.tensor([text == "1" for text in column("localized")], dtype=torch.bool),
            reason=column("reason"),
            top1=column("top1"),
            nearest_reference_m=torch.tensor(nearest[:, 0]),
            nearest_reference_deg=torch.tensor(nearest[:, 1]),
        )
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
    return predictions, metadata


def _read_rows(path: Path) -> tuple[dict[str, object], list[tuple[str, dict[str, str]]]]:
    """The metadata, and for each row its place in the file and its cells by column."""
    text = _read_text(path)
    first, _, body = text.partition("\n")
    num_queries, metadata = _parse_header(first, path)
    if not text.endswith("\n"):
        raise _damaged(str(path), "a whole last line", "one that was cut off")
    parsed = list(_parse_csv(body, path))
    if not parsed:
        raise _damaged(f"{path}:2", "the names of the columns", "nothing")
    columns = parsed[0][1]
    for missing in (name for name in _COLUMNS if name not in columns):
        near = difflib.get_close_matches(missing, set(columns).difference(_COLUMNS), n=1)
        found = f"none, though one is called {near[0]!r}" if near else "none"
        raise _damaged(f"{path}:2", f"a column called {missing!r}", found)
    if len(set(columns)) != len(columns):
        raise _damaged(f"{path}:2", "columns with different names", "the same name twice")
    rows = []
    for where, cells in parsed[1:]:
        if len(cells) != len(columns):
            raise _damaged(where, f"{len(columns)} cells as in the header", f"{len(cells)}")
        rows.append((where, dict(zip(columns, cells, strict=True))))
    if len(rows) != num_queries:
        raise _damaged(str(path), f"{num_queries} queries, as its first line says", f"{len(rows)}")
    return metadata, rows


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise DatasetError(
            f"{path}: expected a file of predictions, found nothing there. Check the path, or evaluate the method."
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(str(path), "a whole gzip file", f"a damaged one ({error})") from error
    except OSError as error:
        raise DatasetError(
            f"{path}: expected a readable file of predictions, found: {error.strerror or error}. Check its rights."
        ) from error
    return content.decode("utf-8", errors="surrogateescape")


def _parse_header(line: str, path: Path) -> tuple[int, dict[str, object]]:
    try:
        header = json.loads(line.removeprefix("#"))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _damaged(f"{path}:1", f'a line # {{"format": "{FORMAT}", ...}}', repr(line[:60]))
    if header.get("version") != VERSION:
        raise DatasetError(
            f"{path}: expected version {VERSION} of the format, found {header.get('version')!r}. "
            "Read it with the version of relograph that wrote it, or evaluate the method again."
        )
    num_queries, metadata = header.get("num_queries"), header.get("metadata")
    if not isinstance(num_queries, int) or not isinstance(metadata, dict):
        raise _damaged(f"{path}:1", "num_queries and metadata", repr(line[:60]))
    return num_queries, metadata


def _parse_csv(body: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(body, newline=""), strict=True)
    try:
        for cells in reader:
            yield f"{path}:{reader.line_num + 1}", cells
    except csv.Error as error:
        where = f"{path}:{reader.line_num + 1}"
        raise _damaged(where, "comma-separated values", str(error)) from None


def _parse_pose(cells: Mapping[str, str], names: Sequence[str], where: str) -> list[float]:
    numbers = [_parse(cells[name], name, where) for name in names]
    length = math.hypot(*numbers[:4])
    if not abs(length - 1) < 1e-3:
        raise _damaged(where, f"a quaternion {names[0]} to {names[3]} of length 1", f"one of length {length:.4g}")
    return numbers


def _parse(text: str, name: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _damaged(where, f"a finite number as {name}", repr(text[:40]))
    return number


def _damaged(where: str, expected: str, found: str) -> DatasetError:
    return DatasetError(f"{where}: expected {expected}, found {found}. Evaluate the method again to write it anew.")


def _check_suffix(path: Path) -> None:
    if not path.name.endswith((".csv", ".csv.gz")):
        raise DatasetError(
            f"{path}: expected a file of predictions to end in .csv or .csv.gz, found {path.name!r}. Rename it."
        )


def _numbers(poses: Pose) -> list[list[float]]:
    return torch.cat([poses.quat_wxyz(), poses.t], dim=-1).tolist()


def _digits(number: float) -> str:
    return f"{number:.9g}"


def _is_finite(poses: Pose) -> Bool[Tensor, "Q"]:
    return poses.R.isfinite().all(dim=-1).all(dim=-1) & poses.t.isfinite().all(dim=-1)


def _on_cpu(poses: Pose) -> Pose:
    return poses.detach().to("cpu").to(torch.float64)
