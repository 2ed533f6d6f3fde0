"""Names, text files and numbers as they arrive from a disk that nobody has checked.

Every reader goes through these few functions, so a name that climbs out of its folder, a file in another encoding or
a matrix that is no rotation is answered with the same sentence whatever the format.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float64

from relograph.errors import DatasetError
from relograph.geometry import Pose, check_rotation
from relograph.geometry.pose import ORTHONORMAL_TOLERANCE

QUATERNION_NORM_TOLERANCE = 1e-2
"""How far from 1 a quaternion's norm may be: text files with two decimals stay within it."""
MAX_COORDINATE_M = 1e9
"""No camera stands farther from its world's origin; products of larger numbers could overflow."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # what is left of a file name that is no UTF-8
_DRIVE = re.compile(r"[A-Za-z]:")


def safe_name(name: str, where: str) -> str:
    """The frame name as a normalised relative posix path that stays inside its folder.

    `where` says who gave the name, for the message: a file, or a file and a line.

    Example:
        >>> safe_name("./seq-01//frame-000000.color.png", where="poses.csv")
        'seq-01/frame-000000.color.png'
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    reason = None
    if _CONTROL_CHARACTER.search(name):
        reason = "has a control character in it"
    elif _SURROGATE.search(name):
        reason = "is not UTF-8"
    elif "\\" in name:
        reason = "has a backslash in it"
    elif name.startswith("/") or _DRIVE.match(name):
        reason = "is an absolute path"
    elif ".." in parts:
        reason = "climbs out of the folder with '..'"
    elif not parts:
        reason = "is empty"
    if reason is not None:
        raise DatasetError(
            f"{where}: expected a file name relative to the scene's folder, found {_shortened(name)}, which {reason}. "
            "Write it as folder/file with forward slashes."
        )
    return "/".join(parts)


def sequence_of(name: str) -> str | None:
    """The sequence that a frame's name puts it in: its folder, or None for a photo at the top.

    Example:
        >>> sequence_of("seq-01/frame-000000.color.png")
        'seq-01'
    """
    parent = str(PurePosixPath(name).parent)
    return None if parent == "." else parent


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turns what the operating system says about `path` into one clear line."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(
            f"{path}: expected a file, found nothing there. Check the path, or restore the file."
        ) from None
    except IsADirectoryError:
        raise DatasetError(f"{path}: expected a file, found a folder. Give the file inside it.") from None
    except NotADirectoryError:
        raise DatasetError(f"{path}: expected a folder, found a file on the way there. Check the path.") from None
    except PermissionError:
        raise DatasetError(f"{path}: expected to read it, found no rights to. Run: chmod -R u+rX on it.") from None
    except OSError as error:
        raise DatasetError(
            f"{path}: expected to read it, the system answered: {error.strerror or error}. Check the disk and the path."
        ) from error


def list_folder(folder: Path) -> list[str]:
    """Sorted names of what lies in `folder`."""
    with reading(folder):
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths


def is_file(path: Path) -> bool:
    """Whether `path` is a file; a folder on the way that may not be entered is an error, not a no."""
    with reading(path):
        return path.is_file()


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder, with the same answer to missing rights as `is_file`."""
    with reading(path):
        return path.is_dir()


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with line ends as \\n and without a byte order mark."""
    with reading(path):
        data = path.read_bytes()
    return decode_text(data, str(path))


def decode_text(data: bytes, where: str) -> str:
    """The text in UTF-8 `data`, with line ends as \\n and without a byte order mark."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where}: expected text in UTF-8, found the byte 0x{data[error.start]:02x} at position {error.start}. "
            "Save the file as UTF-8."
        ) from None
    if "\0" in text:
        raise DatasetError(f"{where}: expected text in UTF-8, found a NUL byte. Save the file as UTF-8, not UTF-16.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_float(token: str, where: str) -> float:
    """The finite number written in `token`."""
    try:
        # float() also takes "1_000" and the digits of every script, which no tool writes on purpose.
        value = float(token) if token.isascii() and "_" not in token else None
    except ValueError:
        value = None
    if value is None:
        raise DatasetError(f"{where}: expected a number, found {_shortened(token)}. Correct it.")
    if not math.isfinite(value):
        raise DatasetError(f"{where}: expected a finite number, found {token.strip()}. Correct it.")
    return value


def parse_int(token: str, where: str) -> int:
    """The non-negative whole number written in `token`."""
    if not re.fullmatch(r"[0-9]{1,18}", token.strip()):
        raise DatasetError(f"{where}: expected a whole number, found {_shortened(token)}. Correct it.")
    return int(token)


def parse_floats(text: str, count: int, where: str) -> list[float]:
    """The `count` finite numbers in `text`, which white space separates.

    Example:
        >>> parse_floats("1 2.5 -3e2", count=3, where="a line")
        [1.0, 2.5, -300.0]
    """
    tokens = text.split()
    if len(tokens) != count:
        raise DatasetError(f"{where}: expected {count} numbers, found {len(tokens)}. Correct it.")
    return [parse_float(token, where) for token in tokens]


def pose_from_matrix(rows: Sequence[Sequence[float]], where: str) -> Pose:
    """The pose in a 4x4 or 3x4 matrix, its rotation moved to the nearest exact one.

    A matrix printed with few digits is off by 1e-3 at most; what is further off, mirrored, not finite or has another
    last row than 0 0 0 1 is an error. One that is exact already stays as it is, bit for bit.
    """
    matrix = np.asarray(rows, dtype=np.float64)
    if matrix.shape not in ((3, 4), (4, 4)):
        raise DatasetError(f"{where}: expected a 4x4 or 3x4 matrix, found the shape {matrix.shape}. Correct it.")
    _check_numbers(matrix, matrix[:3, 3], where)
    if matrix.shape == (4, 4) and np.abs(matrix[3] - [0.0, 0.0, 0.0, 1.0]).max() > 1e-6:
        found = " ".join(f"{value:g}" for value in matrix[3])
        raise DatasetError(
            f"{where}: expected 0 0 0 1 as the last row of the pose, found {found}. "
            "Correct it; a transposed matrix has its translation there."
        )
    # In numpy, which takes a fifth of the time of torch for one small matrix: large scenes have ten thousands of them.
    # Clipping keeps the product from overflowing, and leaves what is no rotation none.
    R = np.clip(matrix[:3, :3], -10.0, 10.0)
    deviation = np.abs(R.T @ R - np.eye(3)).max()
    if deviation > ORTHONORMAL_TOLERANCE or np.linalg.det(R) < 0:
        check_rotation(R, where)  # says which of the two it is
    if deviation > 1e-13:
        U, _, Vt = np.linalg.svd(R)
        R = U @ Vt
    return Pose.from_rotation_and_translation(R, matrix[:3, 3])


def pose_from_quat_wxyz(quat_wxyz: Sequence[float], translation: Sequence[float], where: str) -> Pose:
    """The pose with that quaternion, scaled to norm 1, and translation."""
    values = np.asarray([*quat_wxyz, *translation], dtype=np.float64)
    _check_numbers(values, values[4:], where)
    norm = math.hypot(*values[:4])  # does not overflow, whatever the file says
    if abs(norm - 1.0) > QUATERNION_NORM_TOLERANCE:
        raise DatasetError(
            f"{where}: expected a quaternion of norm 1 as rotation, found the norm {norm:g}. "
            "Correct it, or check the order of its numbers."
        )
    return Pose.from_quat_wxyz(values[:4] / norm, values[4:])


def pose_from_rotation_vector(rotation_vector: Sequence[float], translation: Sequence[float], where: str) -> Pose:
    """The pose with that rotation, given as axis times angle in radians, and translation."""
    values = np.asarray([*rotation_vector, *translation], dtype=np.float64)
    _check_numbers(values, values[3:], where)
    pose = Pose.from_axis_angle(values[:3], values[3:])
    check_rotation(pose.R, where)  # an angle of 1e200 has none
    return pose


def _check_numbers(values: Float64[np.ndarray, "..."], translation: Float64[np.ndarray, "3"], where: str) -> None:
    if not np.isfinite(values).all():
        raise DatasetError(f"{where}: expected finite numbers in the pose, found NaN or infinity. Correct it.")
    if np.abs(translation).max() > MAX_COORDINATE_M:
        raise DatasetError(
            f"{where}: expected a translation in metres, found {np.abs(translation).max():g}, farther than any place. "
            "Correct it."
        )


def _shortened(token: str) -> str:
    """`token` in quotes, cut where a damaged file gave an endless one."""
    return repr(token if len(token) <= 40 else token[:37] + "...")
