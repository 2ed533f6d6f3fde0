"""Which photos of a map can go: those that others stand next to, looking the same way."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

import numpy as np
from jaxtyping import Float, Float64, Int

from relograph.errors import ConfigError
from relograph.geometry import Pose

DEGREES_PER_METRE = 40.0
"""A turn by this much is as far as a metre: answers count as right within 25 cm and 10 degrees."""


@dataclass(frozen=True)
class Nearest:
    """How far each photo is from the nearest of others."""

    distance_m: Float64[np.ndarray, "N"]
    angle_deg: Float64[np.ndarray, "N"]


def farthest_first(T_world_cam: Pose) -> Iterator[int]:
    """Rows of all photos: the first, then always the one that is farthest from those before it.

    Whoever takes some of them has none of the others more than twice as far from one of these as it could be
    (Gonzalez 1985).
    """
    nearest = np.full(len(T_world_cam), np.inf)
    for _ in range(len(T_world_cam)):
        row = int(nearest.argmax())
        yield row
        nearest = np.minimum(nearest, _distance(T_world_cam, row))
        nearest[row] = -np.inf  # two photos at one place are two photos


def choose_spread_out(T_world_cam: Pose, count: int) -> Int[np.ndarray, "count"]:
    """Rows of `count` photos that leave none of the others far from one of them, in rising order."""
    if not 1 <= count <= len(T_world_cam):
        raise ConfigError(f"A map of {len(T_world_cam):,} photos can be thinned to 1 to as many, got {count}.")
    return np.sort(np.fromiter(islice(farthest_first(T_world_cam), count), np.int64, count))


def count_within(T_world_cam: Pose, num_bytes_each: Float[np.ndarray, "N"], num_bytes: float) -> int:
    """How many photos `choose_spread_out` can be asked for if all of them may take so much."""
    if num_bytes_each.sum() <= num_bytes:
        return len(T_world_cam)
    total = accumulate(num_bytes_each[row] for row in farthest_first(T_world_cam))
    return sum(1 for _ in takewhile(lambda so_far: so_far <= num_bytes, total))


def nearest_of(T_world_cam: Pose, rows: Int[np.ndarray, "N"], others: Int[np.ndarray, "M"]) -> Nearest:
    """How far photos `rows` are from the nearest of the photos `others`, themselves excepted."""
    distance_m, angle_deg = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    for i, row in enumerate(rows):
        kept = others[others != row]
        if len(kept):
            apart_m, apart_deg = _apart(T_world_cam[kept], T_world_cam[int(row)])
            best = (apart_m + apart_deg / DEGREES_PER_METRE).argmin()
            distance_m[i], angle_deg[i] = apart_m[best], apart_deg[best]
    return Nearest(distance_m, angle_deg)


def _distance(T_world_cam: Pose, row: int) -> Float64[np.ndarray, "N"]:
    apart_m, apart_deg = _apart(T_world_cam, T_world_cam[row])
    distance: Float64[np.ndarray, "N"] = apart_m + apart_deg / DEGREES_PER_METRE
    return distance


def _apart(T_many: Pose, T_one: Pose) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"]]:
    """Metres between the centres, and degrees between the rotations by the trace: a thousandth is no matter here."""
    apart_m = np.linalg.norm(T_many.t.numpy() - T_one.t.numpy(), axis=1)
    cosine = (np.einsum("nij,ij->n", T_many.R.numpy(), T_one.R.numpy()) - 1) / 2
    return apart_m, np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
