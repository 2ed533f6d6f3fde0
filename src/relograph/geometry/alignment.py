"""The motion, rigid or with a scale, that lays points or cameras on their partners, although some are wrong."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from relograph.errors import GeometryError
from relograph.geometry.pose import Pose

NUM_TRIALS = 500
NUM_FITS = 20
MIN_POINTS = MIN_CAMERAS = 3
MAX_SCALE = 1e6
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
    return _alignment(a, b, motion, np.ones(len(a), dtype=bool))


def align_points_robustly(
    a: Float[np.ndarray, "N 3"],
    b: Float[np.ndarray, "M 3"],
    max_residual: float,
    *,
    with_scale: bool = True,
    seed: int = 0,
) -> Alignment | None:
    """The motion that lays most points `a` within `max_residual` of their partners `b`; None where there is none.

    There is none where fewer than four pairs, or half of them, agree: three fit nearly anything.
    """
    _check(a, b)
    found = _most_agreed(
        len(a),
        MIN_POINTS,
        fit=lambda rows: _fit(a[rows], b[rows], with_scale),
        disagreement=lambda motion: _residual(a, b, *motion) / max_residual,
        seed=seed,
    )
    if found is None or found[1].sum() < max(MIN_POINTS + 1, len(a) / 2):
        return None
    return _alignment(a, b, *found)


def align_cameras_robustly(
    T_a_cam: Pose,
    T_b_cam: Pose,
    max_residual: float,
    max_angle_deg: float,
    *,
    with_scale: bool = True,
    min_share: float = 0.5,
    seed: int = 0,
) -> Alignment | None:
    """The motion from world a to world b that most cameras agree on, each with a pose in both; None without any.

    A camera knows its rotation, so one tells the whole rigid motion, and two the scale as well. Cameras in one line,
    as on a walk through a corridor, are enough. Fewer than three that agree, or than `min_share` of all, are none.
    """
    a, b = T_a_cam.t.numpy(), T_b_cam.t.numpy()
    _check(a, b)
    R_a, R_b = T_a_cam.R.numpy(), T_b_cam.R.numpy()
    R_b_a = R_b @ R_a.transpose(0, 2, 1)  # what each camera says

    def disagreement(motion: Motion) -> Float64[np.ndarray, "N"]:
        cosine = (np.einsum("nij,nij->n", motion[1] @ R_a, R_b) - 1) / 2
        angle_deg = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
        worst: Float64[np.ndarray, "N"] = np.maximum(_residual(a, b, *motion) / max_residual, angle_deg / max_angle_deg)
        return worst

    found = _most_agreed(
        len(a),
        2 if with_scale else 1,
        fit=lambda rows: _fit_turned(a[rows], b[rows], _nearest_rotation(R_b_a[rows].sum(axis=0)), with_scale),
        disagreement=disagreement,
        seed=seed,
    )
    if found is None or found[1].sum() < max(MIN_CAMERAS, min_share * len(a)):
        return None
    return _alignment(a, b, *found)


Motion = tuple[float, Float64[np.ndarray, "3 3"], Float64[np.ndarray, "3"]]


Rows = Int64[np.ndarray, "n"] | Bool[np.ndarray, "n"]


def _most_agreed(
    num: int,
    num_at_once: int,
    *,
    fit: Callable[[Rows], Motion | None],
    disagreement: Callable[[Motion], Float64[np.ndarray, "N"]],
    seed: int,
) -> tuple[Motion, Bool[np.ndarray, "N"]] | None:
    """The motion that most pairs agree on, and which; a pair agrees where its disagreement is 1 at most.

    A few at a time are tried; the best motion is fitted again to all that agree with it, until they stay the same.
    """
    rng = np.random.default_rng(seed)
    best: tuple[float, Bool[np.ndarray, "N"]] | None = None
    for _ in range(NUM_TRIALS if num >= num_at_once else 0):
        motion = fit(rng.choice(num, num_at_once, replace=False))
        if motion is None:
            continue
        apart = disagreement(motion)
        cost = float(np.minimum(apart, 1.0).sum())
        if best is None or cost < best[0]:
            best = cost, apart <= 1.0
    if best is None:
        return None
    agreed = best[1]
    for _ in range(NUM_FITS):
        motion = fit(agreed) if agreed.sum() >= num_at_once else None
        if motion is None:
            return None
        before, agreed = agreed, disagreement(motion) <= 1.0
        if np.array_equal(before, agreed):
            break
    assert motion is not None
    return motion, agreed


def _fit(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"], with_scale: bool) -> Motion | None:
    """Scale, rotation and translation in closed form (Umeyama 1991); None where the points do not tell the rotation."""
    from_a, from_b = a - a.mean(axis=0), b - b.mean(axis=0)
    extent = np.linalg.svd(from_a, compute_uv=False)
    if len(a) < MIN_POINTS or not extent[1] > IN_LINE * extent[0]:
        return None
    return _fit_turned(a, b, _nearest_rotation(from_b.T @ from_a), with_scale)


def _fit_turned(
    a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"], R: Float64[np.ndarray, "3 3"], with_scale: bool
) -> Motion | None:
    """Scale and translation where the rotation is known; None where the points do not tell the scale."""
    center_a, center_b = a.mean(axis=0), b.mean(axis=0)
    from_a, from_b = a - center_a, b - center_b
    scale = 1.0
    if with_scale:
        with np.errstate(divide="ignore", invalid="ignore"):  # points that are all in one place
            scale = float(((from_a @ R.T) * from_b).sum() / (from_a**2).sum())
        if not (np.isfinite(scale) and 1 / MAX_SCALE < scale < MAX_SCALE):
            return None
    return scale, R, center_b - scale * R @ center_a


def _nearest_rotation(M: Float[np.ndarray, "3 3"]) -> Float64[np.ndarray, "3 3"]:
    """Never a reflection, also where M is one, or flat."""
    U, _, Vt = np.linalg.svd(M)
    R: Float64[np.ndarray, "3 3"] = (U * [1.0, 1.0, np.sign(np.linalg.det(U @ Vt))]) @ Vt
    return R


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
    a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "N 3"], motion: Motion, inlier: Bool[np.ndarray, "N"]
) -> Alignment:
    scale, R, t = motion
    return Alignment(Pose.from_rotation_and_translation(R, t), scale, _residual(a, b, scale, R, t), inlier)


def _check(a: Float[np.ndarray, "N 3"], b: Float[np.ndarray, "M 3"]) -> None:
    if len(a) != len(b) or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise GeometryError(
            f"expected as many finite points on both sides, found {len(a)} and {len(b)}. Leave out the others."
        )
