"""Poses for property tests: where rotations are easy, and where they are hard."""

import math
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from relograph.geometry import Pose

DTYPES = [torch.float32, torch.float64]
BATCH_SHAPES: list[tuple[int, ...]] = [(), (1,), (4,), (2, 3), (0,)]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def _uniform(rng: np.random.Generator) -> float:
    # The angle of a uniformly random rotation is that of a uniformly random unit quaternion.
    w, *xyz = rng.normal(size=4)
    return 2 * math.atan2(float(np.linalg.norm(xyz)), abs(w))


def _near_identity(rng: np.random.Generator) -> float:
    return float(rng.choice([0.0, 10 ** rng.uniform(-12, -1)]))


def _near_half_turn(rng: np.random.Generator) -> float:
    return math.pi - _near_identity(rng)


ANGLES: dict[str, Callable[[np.random.Generator], float]] = {
    "uniform": _uniform,
    "near the identity": _near_identity,
    "near 180 degrees": _near_half_turn,
}


def random_axis_angles(num: int, kind: str, rng: np.random.Generator) -> Tensor:
    """Rotation vectors [num, 3], float64: any axis, angles of one kind."""
    axes = rng.normal(size=(num, 3))
    axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
    angles = np.array([ANGLES[kind](rng) for _ in range(num)]).reshape(num, 1)
    return torch.tensor(axes * angles)


@st.composite
def axis_angles(draw: st.DrawFn, num: int = 4) -> Tensor:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_axis_angles(num, draw(st.sampled_from(sorted(ANGLES))), rng)


@st.composite
def poses(draw: st.DrawFn, num: int) -> tuple[Pose, ...]:
    """Several poses of one dtype and one batch shape, within 10 m of the origin, each with angles of its own kind."""
    dtype, batch_shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(BATCH_SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    drawn = []
    for _ in range(num):
        rotation = random_axis_angles(math.prod(batch_shape), draw(st.sampled_from(sorted(ANGLES))), rng)
        translation = rng.uniform(-10, 10, size=(*batch_shape, 3))
        drawn.append(Pose.from_axis_angle(rotation.reshape(*batch_shape, 3), translation).to(dtype))
    return tuple(drawn)


def assert_poses_close(T_a: Pose, T_b: Pose) -> None:
    assert T_a.dtype == T_b.dtype
    assert T_a.batch_shape == T_b.batch_shape
    tolerance = TOLERANCE[T_a.dtype]
    torch.testing.assert_close(T_a.R, T_b.R, atol=tolerance, rtol=0)
    torch.testing.assert_close(T_a.t, T_b.t, atol=tolerance, rtol=tolerance)
