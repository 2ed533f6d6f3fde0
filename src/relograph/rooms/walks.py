"""How a person walks through a home with a phone: where the camera is, and where it looks."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from relograph.rooms.layout import CELL_M, Home
from relograph.rooms.world import Views

STEP_S = 1 / 30
"""A walk is made at the frame rate of a phone's video."""
MIN_DISTANCE_M = 0.12
"""No camera centre is ever nearer to a surface."""
MOVE_TRIES, MOVE_CLEARANCE_M = 20, 0.15
"""How often a place beside another is drawn, and how far it keeps from things."""


@dataclass(frozen=True)
class Walk:
    """A camera's path, at `STEP_S`."""

    center: Float[np.ndarray, "n 3"]
    R_room_cam: Float[np.ndarray, "n 3 3"]

    def angular_velocity(self) -> Float[np.ndarray, "n 3"]:
        """Radians a second about the camera's own axes."""
        R_next = np.concatenate([self.R_room_cam[1:], self.R_room_cam[-1:]])
        turn = np.swapaxes(self.R_room_cam, 1, 2) @ R_next
        twist = (turn - np.swapaxes(turn, 1, 2)) / 2  # for small turns this is the rotation vector's cross product
        return np.stack([twist[:, 2, 1], twist[:, 0, 2], twist[:, 1, 0]], axis=1) / STEP_S


def smooth(values: Float[np.ndarray, "n d"], sigma: float) -> Float[np.ndarray, "n d"]:
    """A Gaussian mean over neighbours, the ends held."""
    if sigma <= 0:
        return values
    reach = int(np.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    return np.stack([np.convolve(column, kernel / kernel.sum(), mode="valid") for column in padded.T], axis=1)


def wander(rng: Generator, count: int, sigma: float, scale: float, dims: int = 1) -> Float[np.ndarray, "n d"]:
    """Smooth random motion about zero with standard deviation `scale`; `sigma` steps long."""
    raw = smooth(rng.normal(size=(count + int(6 * sigma), dims)), sigma)[:count]
    raw = raw - raw.mean(axis=0)
    return np.asarray(scale * raw / (raw.std() + 1e-9))


def steps_from(walkable: Bool[np.ndarray, "X Y"], start: tuple[int, int]) -> Int[np.ndarray, "X Y"]:
    """Number of steps from `start` to every walkable cell; -1 where there is no way."""
    distance = np.full(walkable.shape, -1)
    distance[start] = 0
    queue = deque([start])
    while queue:
        x, y = queue.popleft()
        for nx, ny in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            # The outermost cells are never walkable, so neighbours are always on the grid.
            if walkable[nx, ny] and distance[nx, ny] < 0:
                distance[nx, ny] = distance[x, y] + 1
                queue.append((nx, ny))
    return distance


def floor_path(home: Home, rng: Generator, length_m: float) -> Float[np.ndarray, "n 2"]:
    """A way over the walkable floor from one place to the next, at least `length_m` long, a point for each cell."""
    cells = np.argwhere(home.walkable)
    here = tuple(int(i) for i in cells[rng.integers(len(cells))])
    path = [here]
    while len(path) * CELL_M < length_m + 2.0:
        candidates = cells[rng.integers(len(cells), size=6)]
        goal = candidates[np.hypot(*(candidates - here).T).argmax()]
        distance = steps_from(home.walkable, (int(goal[0]), int(goal[1])))
        while distance[here] > 0:
            x, y = here
            around = [(nx, ny) for nx in (x - 1, x, x + 1) for ny in (y - 1, y, y + 1) if distance[nx, ny] >= 0]
            here = min(around, key=lambda cell: (distance[cell], abs(cell[0] - x) + abs(cell[1] - y)))
            path.append(here)
        path.append(here)  # so that a home with a single walkable cell comes to an end too
    return (np.array(path) + 0.5) * CELL_M


def distance_to_solids(home: Home, points: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n"]:
    """Metres from each point to the nearest surface; negative inside a solid or outside the home."""
    nearest: np.ndarray = np.minimum(points, home.size_m - points).min(axis=1)
    for solid in home.solids[1:]:
        local = (points - solid.center) @ solid.R
        if solid.is_cylinder:
            radial = np.hypot(local[:, 0], local[:, 1]) - solid.half_size[0]
            outside = np.stack([radial, np.abs(local[:, 2]) - solid.half_size[2]], axis=1)
        else:
            outside = np.abs(local) - solid.half_size
        distance = np.linalg.norm(np.maximum(outside, 0), axis=1) + np.minimum(outside.max(axis=1), 0)
        nearest = np.minimum(nearest, distance)
    return nearest


def look_rotation(forward: Float[np.ndarray, "n 3"], roll_rad: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n 3 3"]:
    """R_room_cam of cameras that look along `forward`, upright but for a turn about the view by `roll_rad`."""
    forward = forward / np.linalg.norm(forward, axis=1, keepdims=True)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    down = np.cross(forward, right)
    cos, sin = np.cos(roll_rad)[:, None], np.sin(roll_rad)[:, None]
    return np.stack([cos * right + sin * down, cos * down - sin * right, forward], axis=2)


def gaze_targets(home: Home, rng: Generator, count: int) -> Float[np.ndarray, "n 3"]:
    """Things worth looking at: mostly furniture and pictures, sometimes a place on a wall."""
    solids = [solid.center for solid in home.solids[1:]]
    targets = np.array([solids[i] for i in rng.integers(len(solids), size=count)])
    anywhere = rng.uniform([0, 0, 0.3], [home.size_m[0], home.size_m[1], 2.0], (count, 3))
    targets = np.where(rng.random((count, 1)) < 0.25, anywhere, targets)
    targets[:, 2] = np.clip(targets[:, 2], 0.3, 1.9)
    return np.asarray(targets + rng.normal(0, 0.15, (count, 3)))


def gaze_direction(center: Float[np.ndarray, "n 3"], target: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """Unit vectors from the camera to its target, never steeper than a person holds a phone."""
    offset = target - center
    level = np.maximum(np.linalg.norm(offset[:, :2], axis=1), 0.3)
    offset[:, 2] = np.clip(offset[:, 2], -0.8 * level, 0.35 * level)
    return np.asarray(offset / np.linalg.norm(offset, axis=1, keepdims=True))


def walk(home: Home, rng: Generator, num_steps: int) -> Walk:
    """A walk of `num_steps` at 30 Hz: strolling, standing still, looking around, with a hand that shakes."""
    speed = np.clip(0.45 + wander(rng, num_steps, 20, 0.2)[:, 0], 0.1, 0.9)
    for _ in range(num_steps // 250):  # stand still for one to two and a half seconds
        start = rng.integers(num_steps)
        speed[start : start + int(rng.integers(30, 75))] = 0
    speed = smooth(speed[:, None], 6)[:, 0]
    travelled = np.cumsum(speed) * STEP_S
    path = floor_path(home, rng, float(travelled[-1]))

    height = 1.45 + rng.normal(0, 0.08) + wander(rng, num_steps, 60, 0.08)[:, 0]
    height = np.clip(height, 1.1, 1.8)
    height += 0.012 * np.sin(2 * np.pi * 1.8 * np.arange(num_steps) * STEP_S) * speed / 0.5
    shake = wander(rng, num_steps, 2, 0.002, dims=3)
    for sigma in (3.0, 1.5, 0.7, 0.0):  # in cells; a rounder path where the furniture leaves room for it
        rounded = smooth(path, sigma)
        along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(rounded, axis=0).T))])
        xy = np.stack([np.interp(travelled, along, rounded[:, axis]) for axis in range(2)], axis=1)
        center = np.concatenate([xy, height[:, None]], axis=1) + shake
        if distance_to_solids(home, center).min() > MIN_DISTANCE_M:
            break
    else:
        raise AssertionError(f"a walk in home {home.seed} comes too near to a solid: its walkable floor is wrong")

    yaw_pitch = np.zeros((num_steps, 2))
    step = 0
    while step < num_steps:
        until = step + int(rng.integers(40, 110))
        target = gaze_targets(home, rng, 10)
        offset = np.linalg.norm(target - center[step], axis=1)
        target = target[np.abs(offset - 2.8).argmin()]  # neither at one's feet nor at the far end of the home
        gaze = gaze_direction(center[step:until], np.broadcast_to(target, center[step:until].shape))
        yaw_pitch[step:until] = np.stack([np.arctan2(gaze[:, 1], gaze[:, 0]), np.arcsin(gaze[:, 2])], axis=1)
        step = until
    # Angles are smoothed, not vectors, so that turning right round takes its time and stays level.
    yaw_pitch[:, 0] = np.unwrap(yaw_pitch[:, 0])
    yaw, pitch = (smooth(yaw_pitch, 24) + wander(rng, num_steps, 2, 0.004, dims=2)).T
    gaze = np.stack([np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)], axis=1)
    roll = wander(rng, num_steps, 25, np.radians(2.5))[:, 0] + wander(rng, num_steps, 2, np.radians(0.2))[:, 0]
    return Walk(center, look_rotation(gaze, roll))


def views_of(
    center: Float[np.ndarray, "n 3"],
    R_room_cam: Float[np.ndarray, "n 3 3"],
    focal_px: Float[np.ndarray, "n"],
    distortion: Float[np.ndarray, "n 2"],
    height: int,
    width: int,
) -> Views:
    """Cameras for the ray caster, their principal point in the middle."""

    def single(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

    principal = np.tile([width / 2, height / 2], (len(center), 1))
    return Views(
        single(R_room_cam), single(center), single(np.stack([focal_px] * 2, 1)), single(principal), single(distortion)
    )


def scattered_views(
    home: Home, rng: Generator, count: int, any_roll_share: float = 0.0
) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 3 3"]]:
    """Centres and rotations of cameras held anywhere a person can stand, at any height.

    Most are held nearly upright; a share of `any_roll_share` is turned about its view by any angle.
    """
    cells = home.cell_centers()
    xy = cells[rng.integers(len(cells), size=count)] + rng.uniform(-0.5, 0.5, (count, 2)) * CELL_M
    center = np.concatenate([xy, rng.uniform(0.8, 1.85, (count, 1))], axis=1)
    gaze = gaze_direction(center, gaze_targets(home, rng, count))
    any_roll = rng.random(count) < any_roll_share
    roll = np.where(any_roll, rng.uniform(-np.pi, np.pi, count), rng.normal(0, np.radians(6), count))
    return center, look_rotation(gaze, roll)


def moved(
    home: Home, rng: Generator, center: Float[np.ndarray, "n 3"], move_m: float | Float[np.ndarray, "n 1"]
) -> Float[np.ndarray, "n 3"]:
    """Places around others, none of them in or at a piece of furniture; where luck finds none, the place itself."""
    beside, is_free = center.copy(), np.zeros(len(center), dtype=bool)
    for _ in range(MOVE_TRIES):
        tried = center + rng.normal(0, move_m, center.shape)
        accepted = ~is_free & (distance_to_solids(home, tried) > MOVE_CLEARANCE_M)
        beside[accepted] = tried[accepted]
        is_free |= accepted
    return beside
