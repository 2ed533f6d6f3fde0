"""How long the solver takes for a query: what a CPU does after a network that may be on a GPU."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from relograph.errors import MissingExtraError
from relograph.geometry import Camera, Pose
from relograph.localization.consensus import import_poselib
from relograph.localization.focal import FoundLens, UnknownFocal
from relograph.localization.solver import MatchedPoints, solve_query_pose
from relograph.percentiles import percentile

PART = "solve (CPU)"
NUM_REFERENCES, MATCHES_PER_REFERENCE = 7, 500
WRONG_SHARE, NOISE_PX = 0.4, 0.7
DEPTH_M = (1.5, 4.5)
APART_M, TURNED_RAD = 0.3, 0.15
"""Spread of references along and about each axis; the pose to begin with is off by a fifth of it."""
FOCAL, GUESSED_FOCAL = 0.9, 0.87
"""In units of the longer side: of all cameras, and what the network's last layer says of those that nobody told."""
WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class SolverSpeed:
    """CPU time, of which others on the machine take none away, from matches to a pose with its covariance."""

    part: str = PART
    image_height: int
    image_width: int
    runtime: str
    """What is known of lenses."""
    num_references: int = NUM_REFERENCES
    matches_per_reference: int = MATCHES_PER_REFERENCE
    wrong_share: float = WRONG_SHARE
    milliseconds_median: float
    milliseconds_p95: float


def solver_speeds(image_hw: tuple[int, int], *, repeats: int = 20) -> Iterator[SolverSpeed]:
    """With all lenses told, and with the query's focal length unknown; none where PoseLib is not installed.

    Each time another query is solved. Its matches are made here, as many as MatchGNN gives and as wrong.
    """
    try:
        import_poselib()
    except MissingExtraError:
        return
    for runtime, knows_query in (("lenses known", True), ("query's focal length unknown", False)):
        times = [_solving_s(image_hw, knows_query=knows_query, seed=seed) for seed in range(WARM_UP + repeats)]
        times = times[WARM_UP:]
        yield SolverSpeed(
            image_height=image_hw[0],
            image_width=image_hw[1],
            runtime=runtime,
            milliseconds_median=1e3 * statistics.median(times),
            milliseconds_p95=1e3 * percentile(times, 95),
        )


def made_query(image_hw: tuple[int, int], rng: np.random.Generator) -> tuple[MatchedPoints, Pose, Camera]:
    """Matches of a query at the origin, the poses of its references, and the one camera of all."""
    height, width = image_hw
    camera = Camera.from_focal(width, height, FOCAL * max(image_hw))
    T_world_ref = Pose.from_axis_angle(
        torch.from_numpy(rng.normal(0, TURNED_RAD, (NUM_REFERENCES, 3))),
        torch.from_numpy(rng.normal(0, APART_M, (NUM_REFERENCES, 3))),
    )
    shape = (NUM_REFERENCES, MATCHES_PER_REFERENCE)
    query_xy = ref_xy = np.full((*shape, 2), -1.0)
    while (is_outside := ((ref_xy <= 0) | (ref_xy >= [width, height])).any(axis=-1, keepdims=True)).any():
        # A point that its reference does not see is drawn anew: it would be one more wrong match than the row says.
        here_xy = rng.random((*shape, 2)) * [width, height]
        points = camera.unproject(torch.from_numpy(here_xy)) * torch.from_numpy(rng.uniform(*DEPTH_M, (*shape, 1)))
        there_xy = camera.project(T_world_ref[:, None].inverse().apply(points)).numpy()
        there_xy = there_xy + rng.normal(0, NOISE_PX, there_xy.shape)
        query_xy = np.where(is_outside, here_xy, query_xy)
        ref_xy = np.where(is_outside, there_xy, ref_xy)
    is_wrong = rng.random(shape) < WRONG_SHARE
    ref_xy = np.where(is_wrong[..., None], rng.random(ref_xy.shape) * [width, height], ref_xy)
    ref_idx = np.repeat(np.arange(NUM_REFERENCES), MATCHES_PER_REFERENCE)
    return MatchedPoints(query_xy.reshape(-1, 2), ref_xy.reshape(-1, 2), ref_idx), T_world_ref, camera


def _solving_s(image_hw: tuple[int, int], *, knows_query: bool, seed: int) -> float:
    rng = np.random.default_rng(seed)
    matches, T_world_ref, camera = made_query(image_hw, rng)
    off = rng.normal(0, 0.2, 6) * [*(3 * [TURNED_RAD]), *(3 * [APART_M])]
    regressed = Pose.from_axis_angle(torch.from_numpy(off[:3]), torch.from_numpy(off[3:]))
    query_camera = camera if knows_query else UnknownFocal(camera.width, camera.height)
    start = time.process_time()
    solve_query_pose(
        matches,
        T_world_ref,
        query_camera,
        [camera] * NUM_REFERENCES,
        start=regressed,
        start_lenses=(FoundLens(GUESSED_FOCAL), FoundLens(GUESSED_FOCAL)),
    )
    return time.process_time() - start
