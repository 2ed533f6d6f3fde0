"""Rooms of points that are seen by a query and references: matches whose truth is exact."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from relograph.geometry import Camera, Pose
from relograph.localization.solver import MatchedPoints, SolverAnswer, solve_query_pose

CAMERA = Camera.from_focal(640, 480, 525.0)


@dataclass(frozen=True)
class MatchedRoom:
    """A query among references, and what is matched between them."""

    T_world_query: Pose
    T_world_ref: Pose
    query_camera: Camera
    ref_cameras: tuple[Camera, ...]
    query_xy: np.ndarray
    ref_xy: np.ndarray
    ref_idx: np.ndarray
    is_right: np.ndarray

    @property
    def matches(self) -> MatchedPoints:
        return MatchedPoints(self.query_xy, self.ref_xy, self.ref_idx)

    def solve(self, **options) -> SolverAnswer:
        """Solved with references that are exact, as these are, unless said otherwise."""
        query_camera = options.pop("query_camera", self.query_camera)
        ref_cameras = options.pop("ref_cameras", self.ref_cameras)
        options = {"ref_sigma_m": 0.0, "ref_sigma_deg": 0.0, **options}
        return solve_query_pose(self.matches, self.T_world_ref, query_camera, ref_cameras, **options)

    def with_noise(self, rng: np.random.Generator, sigma_px: float) -> "MatchedRoom":
        """Every point found with an error: a point of the query with the same one in all its matches."""
        _, point = np.unique(self.query_xy, axis=0, return_inverse=True)
        query_noise = rng.normal(0, sigma_px, (point.max() + 1, 2))[point.ravel()]
        return replace(
            self,
            query_xy=self.query_xy + query_noise,
            ref_xy=self.ref_xy + rng.normal(0, sigma_px, self.ref_xy.shape),
        )

    def with_wrong_matches(self, rng: np.random.Generator, share: float) -> "MatchedRoom":
        """That share of matches leads anywhere in the reference."""
        wrong = rng.random(len(self.ref_idx)) < share
        sizes = np.array([[camera.width, camera.height] for camera in self.ref_cameras])[self.ref_idx]
        anywhere = rng.random(self.ref_xy.shape) * sizes
        return replace(self, ref_xy=np.where(wrong[:, None], anywhere, self.ref_xy), is_right=self.is_right & ~wrong)

    def take(self, rows) -> "MatchedRoom":
        return replace(
            self,
            query_xy=self.query_xy[rows],
            ref_xy=self.ref_xy[rows],
            ref_idx=self.ref_idx[rows],
            is_right=self.is_right[rows],
        )


def matched_room(
    rng: np.random.Generator,
    *,
    num_refs: int = 7,
    per_ref: int = 100,
    query_camera: Camera = CAMERA,
    ref_cameras: Sequence[Camera] | None = None,
    centers: np.ndarray | None = None,
    planar: bool = False,
    turns: np.ndarray | None = None,
) -> MatchedRoom:
    """A query at the origin, references around it (or at `centers`), and points 1.5 to 4.5 m before them.

    All look ahead, more or less; `turns` are rotation vectors of the query and of the references to look elsewhere.

    The references see the same points as far as they can, so that a point of the query has several matches.
    """
    ref_cameras = tuple(ref_cameras or [CAMERA] * num_refs)
    centers = rng.normal(0, [0.4, 0.16, 0.24], (len(ref_cameras), 3)) if centers is None else np.asarray(centers)
    turns = rng.normal(0, 0.12, (len(centers) + 1, 3)) if turns is None else np.asarray(turns)
    R = Rotation.from_rotvec(turns).as_matrix()
    points = rng.uniform([-2.5, -1.5, 1.5], [2.5, 1.5, 4.5], (6000, 3))
    if planar:
        points[:, 2] = 3.0 + 0.4 * points[:, 0]
    T_world_cam = Pose.from_rotation_and_translation(R, np.concatenate([np.zeros((1, 3)), centers]))

    def seen(camera: Camera, T: Pose) -> tuple[np.ndarray, np.ndarray]:
        xy = camera.project(T.inverse().apply(torch.from_numpy(points))).numpy()
        return xy, (xy > 0).all(axis=1) & (xy < [camera.width, camera.height]).all(axis=1)  # NaN is not seen

    query_xy, in_query = seen(query_camera, T_world_cam[0])
    rows, ref_xy, ref_idx = [], [], []
    for i, (camera, T_world_ref) in enumerate(zip(ref_cameras, T_world_cam[1:], strict=True)):
        xy, in_ref = seen(camera, T_world_ref)
        both = np.flatnonzero(in_query & in_ref)[:per_ref]
        rows.append(both)
        ref_xy.append(xy[both])
        ref_idx.append(np.full(len(both), i))
    rows = np.concatenate(rows)
    return MatchedRoom(
        T_world_query=T_world_cam[0],
        T_world_ref=T_world_cam[1:],
        query_camera=query_camera,
        ref_cameras=ref_cameras,
        query_xy=query_xy[rows],
        ref_xy=np.concatenate(ref_xy),
        ref_idx=np.concatenate(ref_idx),
        is_right=np.ones(len(rows), dtype=bool),
    )
