"""A ray caster that asks every face of every solid, in float64: slow, and written in another way than the fast one."""

import numpy as np
import torch
from tiny_rooms import HEIGHT, WIDTH, unprojected

from relograph.rooms.furniture import Solid
from relograph.rooms.layout import Home
from relograph.rooms.raycast import NEAR_M
from relograph.rooms.world import Views


def meets_box(origin: np.ndarray, directions: np.ndarray, solid: Solid) -> np.ndarray:
    """Where rays meet each of the six faces, by plane equations; infinite where they miss it. [6, n]"""
    start, along = (origin - solid.center) @ solid.R, directions @ solid.R
    meets = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for axis in range(3):
            others = [other for other in range(3) if other != axis]
            for side in (-1, 1):
                t = (side * solid.half_size[axis] - start[axis]) / along[:, axis]
                on_plane = start[others] + t[:, None] * along[:, others]
                within = (np.abs(on_plane) <= solid.half_size[others] + 1e-9).all(axis=1)
                meets.append(np.where(within & (t > NEAR_M), t, np.inf))
    return np.array(meets)


def meets_cylinder(origin: np.ndarray, directions: np.ndarray, solid: Solid) -> np.ndarray:
    """Where rays meet the side, by a quadratic equation, and the two ends; infinite where they miss it. [4, n]"""
    start, along = (origin - solid.center) @ solid.R, directions @ solid.R
    radius, half_height = solid.half_size[0], solid.half_size[2]
    a = (along[:, :2] ** 2).sum(axis=1)
    b = 2 * along[:, :2] @ start[:2]
    c = start[:2] @ start[:2] - radius**2
    meets = []
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(b * b - 4 * a * c)
        for sign in (-1, 1):
            t = (-b + sign * root) / (2 * a)
            on_side = np.abs(start[2] + t * along[:, 2]) <= half_height
            meets.append(np.where(on_side & (t > NEAR_M), t, np.inf))
            t = (sign * half_height - start[2]) / along[:, 2]
            on_end = np.linalg.norm(start[:2] + t[:, None] * along[:, :2], axis=1) <= radius
            meets.append(np.where(on_end & (t > NEAR_M), t, np.inf))
    return np.array(meets)


def is_blocked(home: Home, light: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Whether something that casts a shadow stands between a light and each point, the point's own surface aside."""
    blocked = np.zeros(len(points), dtype=bool)
    for solid in home.solids[1:]:
        if solid.material.emission < 0.5:  # a lamp does not shade itself
            meets = (meets_cylinder if solid.is_cylinder else meets_box)(light, points - light, solid)
            blocked |= meets.min(axis=0) < 0.998
    return blocked


def slow_cast(home: Home, views: Views) -> tuple[np.ndarray, np.ndarray]:
    """Depth of the first view in metres, in float64, and whose surface it is, by asking every face of every solid."""
    origin = views.center[0].double().numpy()
    directions = unprojected(views, torch.ones(HEIGHT, WIDTH)) - origin
    meets = [
        (meets_cylinder if solid.is_cylinder else meets_box)(origin, directions, solid).min(axis=0)
        for solid in home.solids
    ]
    return np.min(meets, axis=0), np.argmin(meets, axis=0)
