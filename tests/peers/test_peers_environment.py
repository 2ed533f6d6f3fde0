"""The peers themselves, where `make peers` was run."""

import numpy as np
import pytest
import torch

import painted_box
from relograph.errors import RelographError
from relograph.evaluation.peers.matching import match_by_peer
from relograph.evaluation.peers.protocol import MatchJob
from relograph.evaluation.peers.separate import CHECKOUT, match_separately
from relograph.geometry import Pose

pytestmark = pytest.mark.skipif(
    not (CHECKOUT / ".venv-peers" / "bin" / "python").exists(), reason="the peers are not installed: make peers"
)


def epipolar_errors_px(query_xy: np.ndarray, ref_xy: np.ndarray, T_ref_query: Pose) -> np.ndarray:
    """How far the reference's points are from the lines on which the query's points must lie."""
    x, y, z = T_ref_query.t.tolist()
    E = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ T_ref_query.R.numpy()
    rays = painted_box.CAMERA.unproject(torch.from_numpy(query_xy)).numpy()
    K_inverse = np.linalg.inv(painted_box.CAMERA.K.numpy())
    lines = (K_inverse.T @ E @ rays.T).T
    points = np.concatenate([ref_xy, np.ones((len(ref_xy), 1))], axis=1)
    return np.abs((points * lines).sum(axis=1)) / np.linalg.norm(lines[:, :2], axis=1)


@pytest.mark.parametrize("peer", ["xfeat", "aliked+lightglue"])
def test_a_peer_matches_points_that_lie_on_each_others_epipolar_lines(peer):
    walls, T_world_cam = painted_box.painting(0), painted_box.poses(3, 3, 0.15, 0.05)
    photos = [painted_box.photo(walls, pose) for pose in T_world_cam]
    answer = match_by_peer(peer, MatchJob(photos.__getitem__, ((2, (0, 1)),)))
    (points,) = answer.points
    assert np.bincount(points.ref_idx).min() > 30
    for ref in (0, 1):
        of_ref = points.ref_idx == ref
        errors = epipolar_errors_px(
            points.query_xy[of_ref], points.ref_xy[of_ref], T_world_cam[ref].inverse() @ T_world_cam[2]
        )
        assert np.median(errors) < 1.0
    assert len(answer.map_seconds) == 2
    assert answer.match_seconds[0] > 0


def test_a_peer_that_fails_says_so_in_one_line():
    photos = [np.zeros((64, 64, 3), dtype=np.uint8)] * 2
    with pytest.raises(RelographError, match="no-such-method: expected matches from its process, found that it ended"):
        match_separately("no-such-method", MatchJob(photos.__getitem__, ((0, (1,)),)))
