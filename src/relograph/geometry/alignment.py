"""The motion, rigid or with a scale, that lays points on their partners, although some partners are wrong."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64

from relograph.errors import GeometryError
from relograph.geometry.pose import Pose

NUM_TRIALS = 500
MIN_POINTS = 3
IN_LINE = 1e-3
"""Points whose second extent is a smaller share of the first stand in a line: the turn about it is not known."""


@dataclass(frozen=True)
class Alignment:
    """The motion b = scale R a + t, and how well it fits."""

    T: Pose
    """Rotation and translation, float64."""
    scale: float
    residual: Float64[np.ndarray, "N"]
    """Distance of each point from its partner, in the units of b."""
    inlier: Bool[np.ndarray, "N"]
    """Pairs that the motion was fitted to."""

    def apply(self, points: Float[np.ndarray, "M 3"]) -> Float64[np.ndarray, "M 3"]:
        moved: Float64[np.ndarray, "M 3"] = self.scale * points @ self.T.R.numpy().T + self.T.t.numpy()
        return moved


def align_points(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "M 3"], *, with_scale: bool = True) -> Alignment:
    """The motion that lays points `a` on points `b` with the least squares.

    Example:
        >>> a = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
        >>> aligned = align_points(a, 2 * a + 1)
        >>> round(aligned.scale, 6), aligned.apply(np.array([[0.0, 0, 1]])).round(6).tolist()
        (2.0, [[1.0, 1.0, 3.0]])
    """
    _check(a, b)
    motion = _fit(a, b, with_scale)
    if motion is None:
        raise GeometryError(
            f"expected {MIN_POINTS} or more points that do not stand in one line, found {len(a)} that do. "
            "Give points that are farther apart."
        )
    return _alignment(a, b, *motion, np.ones(len(a), dtype=bool))


def align_points_robustly(
    a: Float[np.ndarray, "N 3"],
    b: Float[np.ndarray, "M 3"],
    max_residual: float,
    *,
    with_scale: bool = True,
    seed: int = 0,
) -> Alignment | None:
    """The motion that lays most points `a` within `max_residual` of their partners `b`; None where there is none.

    Three pairs at a time are tried; the best motion is fitted again to all that agree with it, until they stay the
    same. There is none where fewer than four pairs, or half of them, agree: three fit nearly anything.
    """
    _check(a, b)
    rng = np.random.default_rng(seed)
    best: tuple[float, Bool[np.ndarray, "N"]] | None = None
    for _ in range(NUM_TRIALS if len(a) >= MIN_POINTS else 0):
        some = rng.choice(len(a), MIN_POINTS, replace=False)
        motion = _fit(a[some], b[some], with_scale)
        if motion is None:
            continue
        residual = _residual(a, b, *motion)
        cost = float(np.minimum(residual / max_residual, 1.0).sum())
        if best is None or cost < best[0]:
            best = cost, residual <= max_residual
    if best is None:
        return None
    inlier = best[1]
    for _ in range(20):
        motion = _fit(a[inlier], b[inlier], with_scale) if inlier.sum() >= MIN_POINTS else None
        if motion is None:
            return None
        before, inlier = inlier, _residual(a, b, *motion) <= max_residual
        if np.array_equal(before, inlier):
            break
    if motion is None or inlier.sum() < max(MIN_POINTS + 1, len(a) / 2):
        return None
    return _alignment(a, b, *motion, inlier)


Motion = tuple[float, Float64[np.ndarray, "3 3"], Float64[np.ndarray, "3"]]


def _fit(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"], with_scale: bool) -> Motion | None:
    """Scale, rotation and translation in closed form (Umeyama 1991); None where the points do not tell the rotation."""
    center_a, center_b = a.mean(axis=0), b.mean(axis=0)
    from_a, from_b = a - center_a, b - center_b
    extent = np.linalg.svd(from_a, compute_uv=False)
    if len(a) < MIN_POINTS or not extent[1] > IN_LINE * extent[0]:
        return None
    U, spread, Vt = np.linalg.svd(from_b.T @ from_a)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(U @ Vt))])
    scale = float((spread * sign).sum() / (from_a**2).sum()) if with_scale else 1.0
    if not (np.isfinite(scale) and scale > 0):
        return None
    R = (U * sign) @ Vt
    return scale, R, center_b - scale * R @ center_a


def _residual(
    a: Float[np.ndarray, "N 3"],
    b: Float[np.ndarray, "N 3"],
    scale: float,
    R: Float64[np.ndarray, "3 3"],
    t: Float64[np.ndarray, "3"],
) -> Float64[np.ndarray, "N"]:
    residual: Float64[np.ndarray, "N"] = np.linalg.norm(scale * a @ R.T + t - b, axis=1)
    return residual


def _alignment(
    a: Float[np.ndarray, "N 3"],
    b: Float[np.ndarray, "N 3"],
    scale: float,
    R: Float64[np.ndarray, "3 3"],
    t: Float64[np.ndarray, "3"],
    inlier: Bool[np.ndarray, "N"],
) -> Alignment:
    return Alignment(Pose.from_rotation_and_translation(R, t), scale, _residual(a, b, scale, R, t), inlier)


def _check(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "M 3"]) -> None:
    if len(a) != len(b) or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise GeometryError(
            f"expected as many finite points on both sides, found {len(a)} and {len(b)}. Leave out the others."
        )
