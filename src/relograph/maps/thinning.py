"""Which photos of a map can go: those that others stand next to, looking the same way."""

from dataclasses import dataclass

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


def choose_spread_out(T_world_cam: Pose, count: int) -> Int[np.ndarray, "count"]:
    """Rows of `count` photos that leave none of the others far from one of them, in rising order.

    One after the other the photo that is farthest from those chosen is chosen, which at most doubles the smallest
    possible distance (Gonzalez 1985).
    """
    if not 1 <= count <= len(T_world_cam):
        raise ConfigError(f"A map of {len(T_world_cam):,} photos can be thinned to 1 to as many, got {count}.")
    chosen = np.zeros(count, dtype=np.int64)
    nearest = _distance(T_world_cam, 0)
    for number in range(1, count):
        chosen[number] = nearest.argmax()
        nearest = np.minimum(nearest, _distance(T_world_cam, int(chosen[number])))
        nearest[chosen[: number + 1]] = -1.0  # two photos at one place are two photos
    return np.sort(chosen)


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
