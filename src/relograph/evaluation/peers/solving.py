"""From a peer's matches to the query's pose: PoseLib as its authors give it, or our own solver around it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from relograph.errors import ConfigError
from relograph.evaluation.peers.protocol import PeerPoints
from relograph.geometry import Camera, Pose
from relograph.localization import MatchedPoints, UnknownFocal, solve_query_pose
from relograph.localization.consensus import SAMPLE, import_poselib

PeerSolver = Literal["poselib", "relograph"]
PEER_SOLVERS: dict[PeerSolver, str] = {"poselib": "PoseLib", "relograph": "our solver"}
"""What tables call them."""

MAX_ERROR_PX = 2.0
"""As in our own solver."""
MAX_TRIALS = 10_000
"""Of RANSAC. PoseLib's own 100,000 answer no better on rendered rooms, and take XFeat's matches more than twice as
long."""

_POSELIB_MODELS = {"pinhole": "PINHOLE", "opencv": "OPENCV", "fisheye": "OPENCV_FISHEYE"}


@dataclass(frozen=True)
class SolvedPose:
    """A pose, or why there is none."""

    T_world_cam: Pose | None
    num_inliers: int
    reason: str


def solve_peer(
    solver: PeerSolver,
    points: PeerPoints,
    T_world_ref: Pose,
    query_camera: Camera | UnknownFocal,
    ref_cameras: Sequence[Camera | UnknownFocal],
) -> SolvedPose:
    """The query's pose by one of the two solvers; PoseLib alone needs known focal lengths."""
    if solver == "relograph":
        matches = MatchedPoints(points.query_xy, points.ref_xy, points.ref_idx)
        answer = solve_query_pose(matches, T_world_ref, query_camera, ref_cameras, max_error_px=MAX_ERROR_PX)
        reason = answer.reason if answer.T_world_cam is None else ""
        return SolvedPose(answer.T_world_cam, answer.num_inliers, reason)
    known = [camera for camera in ref_cameras if isinstance(camera, Camera)]
    if len(known) < len(ref_cameras) or not isinstance(query_camera, Camera):
        raise ConfigError(
            "PoseLib's generalized relative pose needs the focal length of every camera, found unknown ones. "
            "Give --focal, or take our solver."
        )
    return poselib_pose(points, T_world_ref, query_camera, known)


def poselib_pose(
    points: PeerPoints, T_world_ref: Pose, query_camera: Camera, ref_cameras: Sequence[Camera]
) -> SolvedPose:
    """PoseLib's `estimate_generalized_relative_pose` over all references at once, else with its own settings.

    It answers whenever some reference has enough matches to draw a sample from; whether the answer is any good it does
    not say.
    """
    poselib = import_poselib()
    ref_idx = points.ref_idx
    if not len(ref_idx) or np.bincount(ref_idx).max() < SAMPLE or len(ref_idx) < SAMPLE + 1:
        return SolvedPose(None, 0, f"No reference has {SAMPLE} matches, or there are fewer than {SAMPLE + 1} in all.")
    pairs = []
    for ref in np.unique(ref_idx):
        pair, of_ref = poselib.PairwiseMatches(), ref_idx == ref
        pair.cam_id1, pair.cam_id2 = int(ref), 0
        pair.x1 = points.ref_xy[of_ref]
        pair.x2 = points.query_xy[of_ref]
        pairs.append(pair)
    T_ref_world = []
    for pose in T_world_ref.to("cpu").to(torch.float64).inverse():
        T_cam_world = poselib.CameraPose()
        T_cam_world.R, T_cam_world.t = pose.R.numpy(), pose.t.numpy()
        T_ref_world.append(T_cam_world)
    T_query_world, info = poselib.estimate_generalized_relative_pose(
        pairs,
        T_ref_world,
        [_poselib_camera(camera) for camera in ref_cameras],
        [poselib.CameraPose()],
        [_poselib_camera(query_camera)],
        {"max_epipolar_error": MAX_ERROR_PX, "max_iterations": MAX_TRIALS},
        {},
    )
    R, t = torch.tensor(np.asarray(T_query_world.R)), torch.tensor(np.asarray(T_query_world.t))
    if not (bool(R.isfinite().all()) and bool(t.isfinite().all())) or math.isclose(float(R.abs().sum()), 0.0):
        return SolvedPose(None, 0, "PoseLib gave no pose.")
    return SolvedPose(Pose(R, t).inverse(), int(info["num_inliers"]), "")


def _poselib_camera(camera: Camera) -> dict[str, object]:
    distortion = list(camera.distortion)
    model = _POSELIB_MODELS[camera.model]
    if camera.model == "opencv" and len(distortion) == 5:  # PoseLib's name for the model with k3 has three more
        model, distortion = "FULL_OPENCV", [*distortion, 0.0, 0.0, 0.0]
    return {
        "model": model,
        "width": camera.width,
        "height": camera.height,
        "params": [camera.fx, camera.fy, camera.cx, camera.cy, *distortion],
    }
