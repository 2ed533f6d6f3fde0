"""PoseLib's RANSAC: the pose on which most matches agree, among many that are wrong."""

from typing import Any

import numpy as np
from jaxtyping import Float64

from relograph.errors import MissingExtraError
from relograph.localization.epipolar import EpipolarMatches, Guess, LensGuess

SAMPLE = 5
"""Matches of one reference from which a relative pose is made; one more, of another reference, gives the scale."""
CONFIDENCE = 0.99
MIN_TRIALS = 30
APART_M = 1e-3
"""References nearer to each other than this give no scale."""
RAYS = {"model": "SIMPLE_PINHOLE", "width": 1, "height": 1, "params": [1.0, 0.0, 0.0]}
"""PoseLib's name for points that went through their lens already."""


def import_poselib() -> Any:
    try:
        import poselib
    except ImportError:
        raise MissingExtraError("poselib", "geometry", "Solving for a pose") from None
    return poselib


def consensus_pose(
    matches: EpipolarMatches,
    lens: LensGuess,
    max_error_px: float,
    max_trials: int,
    seed: int,
    first: Guess | None = None,
) -> Guess | None:
    """The pose on which most matches agree, with given lenses; None where no sample gives a pose.

    All references at once where some that stand apart have matches; else the one that has most, and then the query
    stands one metre from it, as nothing says how far. `first` is tried before any sample.
    """
    poselib = import_poselib()
    matches = matches[np.argsort(matches.ref_idx, kind="stable")]
    refs, begins, counts = np.unique(matches.ref_idx, return_index=True, return_counts=True)
    if not len(refs) or counts.max() < SAMPLE:
        return None  # PoseLib would draw forever
    R_world_ref, centers = matches.R_world_ref[refs], matches.ref_center[:, begins].T
    x_query = matches.query_rays(lens)[:2].T  # [M, 2]
    y_ref_by_ref = np.split(matches.ref_rays(lens), begins[1:], axis=1)
    x_ref = np.concatenate([(y.T @ R)[:, :2] for y, R in zip(y_ref_by_ref, R_world_ref, strict=True)])
    parts = [slice(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
    ransac = {
        "max_epipolar_error": max_error_px * matches.pixel_rad(lens),
        "seed": seed,
        "success_prob": CONFIDENCE,
        "dyn_num_trials_mult": 1.0,
        "min_iterations": MIN_TRIALS,
        "max_iterations": max_trials,
    }
    bundle = {"max_iterations": 5}  # a finer refinement follows

    def camera_pose(R_world_cam: Float64[np.ndarray, "3 3"], center: Float64[np.ndarray, "3"]) -> Any:
        T_cam_world = poselib.CameraPose()
        T_cam_world.R, T_cam_world.t = R_world_cam.T, -R_world_cam.T @ center
        return T_cam_world

    if np.ptp(centers, axis=0).max() < APART_M:
        best = int(counts.argmax())
        x1, x2 = x_ref[parts[best]], x_query[parts[best]]
        T_query_ref, _ = poselib.estimate_relative_pose(x1, x2, RAYS, RAYS, ransac, bundle)
        R_query_ref, t = np.asarray(T_query_ref.R), np.asarray(T_query_ref.t)
        R_world_query = R_world_ref[best] @ R_query_ref.T
        length = max(float(np.linalg.norm(t)), np.finfo(float).tiny)
        guess = Guess(R_world_query, centers[best] - R_world_query @ t / length, lens)
    else:
        pairs = []
        for i, part in enumerate(parts):
            pair = poselib.PairwiseMatches()
            pair.cam_id1, pair.cam_id2, pair.x1, pair.x2 = i, 0, x_ref[part], x_query[part]
            pairs.append(pair)
        T_ref_world = [camera_pose(R, center) for R, center in zip(R_world_ref, centers, strict=True)]
        T_first = None if first is None else camera_pose(first.R_world_cam, first.center)
        T_query_world, _ = poselib.estimate_generalized_relative_pose(
            pairs, T_ref_world, [RAYS] * len(refs), [poselib.CameraPose()], [RAYS], ransac, bundle, T_first
        )
        R_world_query = np.asarray(T_query_world.R).T
        guess = Guess(R_world_query, -R_world_query @ np.asarray(T_query_world.t), lens)
    return guess if guess.is_finite() else None
