"""Logs of phones' AR sessions: where the camera was, in metres, by time or by photo.

TUM: lines of `timestamp tx ty tz qx qy qz qw`. JSON: a list, alone or as the value of "frames", of

    {"name": "IMG_0001.jpg", "position": [x, y, z]}
    {"timestamp": 12.5, "transform": [[...], [...], [...], [0, 0, 0, 1]]}

with a name or a time in seconds, and a position or a camera-to-world matrix in rows. Axes are whatever they are: only
positions are read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Bool, Float64

from relograph.errors import DatasetError
from relograph.scenes.names import parse_float, parse_floats, pose_from_matrix, read_text

LONGEST_GAP_S = 0.5
"""Between two entries of a log, between which the camera's path is taken for straight."""
MATRIX_KEYS = ("transform", "transform_matrix", "T_world_cam")


@dataclass(frozen=True)
class ArLog:
    """Positions of a camera in metres, each with the name of a photo or with a time."""

    path: Path
    names: tuple[str | None, ...]
    times_s: tuple[float | None, ...]
    positions: Float64[np.ndarray, "L 3"]

    def positions_of(
        self, names: Sequence[str], times_s: Sequence[float | None], offset_s: float = 0.0
    ) -> tuple[Float64[np.ndarray, "N 3"], Bool[np.ndarray, "N"]]:
        """Where photos were taken, and which of them the log tells of; by name, else by time plus `offset_s`."""
        found = np.full((len(names), 3), np.nan)
        row_by_name = {_stem(name): row for row, name in enumerate(self.names) if name is not None}
        timed = sorted((time_s, row) for row, time_s in enumerate(self.times_s) if time_s is not None)
        log_times_s = np.array([time_s for time_s, _ in timed])
        log_positions = self.positions[[row for _, row in timed]]
        for i, (name, time_s) in enumerate(zip(names, times_s, strict=True)):
            if (row := row_by_name.get(_stem(name))) is not None:
                found[i] = self.positions[row]
            elif time_s is not None and len(timed):
                found[i] = _between(log_times_s, log_positions, time_s + offset_s)
        return found, np.isfinite(found).all(axis=1)

    def span(self) -> str:
        """What the log tells of, in a few words."""
        times_s = [time_s for time_s in self.times_s if time_s is not None]
        names = [name for name in self.names if name is not None]
        by_name = [f"{len(names)} names such as {names[0]}"] if names else []
        by_time = [f"times from {min(times_s):.3f} to {max(times_s):.3f} s"] if times_s else []
        return " and ".join(by_name + by_time)


def read_ar_log(path: Path) -> ArLog:
    """The log in a file, as JSON where its first letter says so."""
    text = read_text(path)
    entries = _read_json(text, path) if text.lstrip()[:1] in ("[", "{") else _read_tum(text, path)
    if not entries:
        raise DatasetError(f"{path}: expected positions of a camera, found none. Check the file.")
    names, times_s, positions = zip(*entries, strict=True)
    return ArLog(path, names, times_s, np.array(positions, dtype=np.float64))


Entry = tuple[str | None, float | None, list[float]]


def _read_tum(text: str, path: Path) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            time_s, *values = parse_floats(line, 8, f"{path} line {number}")
            entries.append((None, time_s, values[:3]))
    return entries


def _read_json(text: str, path: Path) -> list[Entry]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"{path}: expected an AR log as JSON, found: {error}. Correct the file.") from None
    frames = document.get("frames") if isinstance(document, dict) else document
    if not isinstance(frames, list):
        raise DatasetError(f"{path}: expected a list of frames, found {type(frames).__name__}. See `relograph scene`.")
    return [_entry(frame, f"{path} frame {number}") for number, frame in enumerate(frames, start=1)]


def _entry(frame: object, where: str) -> Entry:
    if not isinstance(frame, dict):
        raise DatasetError(f"{where}: expected an object, found {type(frame).__name__}. Correct the file.")
    name, time = frame.get("name"), frame.get("timestamp")
    if not isinstance(name, str) and time is None:
        raise DatasetError(f'{where}: expected "name" or "timestamp", found neither. Add one of them.')
    matrix = next((frame[key] for key in MATRIX_KEYS if key in frame), None)
    position = frame.get("position")
    if matrix is not None:
        try:
            position = pose_from_matrix(matrix, where).t.tolist()
        except (ValueError, TypeError):
            raise DatasetError(f"{where}: expected a matrix of 4 rows of 4 numbers, found another.") from None
    if not isinstance(position, list) or len(position) != 3:
        raise DatasetError(
            f'{where}: expected "position" with 3 numbers, or "transform" with a 4x4 matrix, found neither. Add one.'
        )
    numbers = [parse_float(str(value), where) for value in position]
    return name if isinstance(name, str) else None, None if time is None else parse_float(str(time), where), numbers


def _between(
    times_s: Float64[np.ndarray, "L"], positions: Float64[np.ndarray, "L 3"], time_s: float
) -> Float64[np.ndarray, "3"]:
    """The position at a time, on the straight line between its neighbours in the log; NaN where they are far."""
    after = int(np.searchsorted(times_s, time_s))
    before = max(after - 1, 0)
    after = min(after, len(times_s) - 1)
    if times_s[before] == time_s or before == after:
        is_there = abs(times_s[before] - time_s) < LONGEST_GAP_S / 10
        return positions[before] if is_there else np.full(3, np.nan)
    gap_s = times_s[after] - times_s[before]
    if gap_s > LONGEST_GAP_S:
        return np.full(3, np.nan)
    share = (time_s - times_s[before]) / gap_s if gap_s > 0 else 0.0
    between: Float64[np.ndarray, "3"] = positions[before] + share * (positions[after] - positions[before])
    return between


def _stem(name: str) -> str:
    """What photos are told apart by: the name of the file without its ending, as tools change it on the way."""
    return PurePosixPath(name).stem
