"""From SIFT's matches, or exact ones, to poses: both solvers."""

import dataclasses

import numpy as np
import pytest

import painted_box
from localization.matched_rooms import MatchedRoom, matched_room
from relograph.errors import ConfigError
from relograph.evaluation.peers.matching import match_by_peer
from relograph.evaluation.peers.protocol import MatchJob, PeerPoints
from relograph.evaluation.peers.solving import poselib_pose, solve_peer
from relograph.geometry import Camera, pose_error
from relograph.localization import UnknownFocal

OPENCV = Camera(640, 480, 520.0, 530.0, 322.0, 238.0, (0.03, -0.01, 0.001, -0.002), "opencv")
WITH_K3 = dataclasses.replace(OPENCV, distortion=(0.03, -0.01, 0.001, -0.002, 0.004))
FISHEYE = Camera(640, 480, 400.0, 400.0, 320.0, 240.0, (0.02, -0.01, 0.002, 0.0), "fisheye")


def points(room: MatchedRoom) -> PeerPoints:
    return PeerPoints(room.query_xy, room.ref_xy, room.ref_idx)


@pytest.mark.parametrize("camera", [Camera.from_focal(640, 480, 525.0), OPENCV, WITH_K3, FISHEYE])
def test_poselib_finds_the_pose_of_exact_matches_through_every_lens(camera):
    room = matched_room(np.random.default_rng(0), query_camera=camera, ref_cameras=[camera] * 5)
    solved = poselib_pose(points(room), room.T_world_ref, camera, room.ref_cameras)
    error = pose_error(solved.T_world_cam, room.T_world_query)
    assert error.translation_error_m < 1e-3
    assert error.rotation_error_deg < 0.02
    assert solved.num_inliers > 0.95 * len(room.ref_idx)


def test_too_few_matches_are_no_pose_and_no_endless_search():
    room = matched_room(np.random.default_rng(1)).take([0, 1, 2, 3])
    solved = poselib_pose(points(room), room.T_world_ref, room.query_camera, room.ref_cameras)
    assert solved.T_world_cam is None
    assert "No reference has 5 matches" in solved.reason
    none = PeerPoints(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    assert poselib_pose(none, room.T_world_ref, room.query_camera, room.ref_cameras).T_world_cam is None


def test_poselib_alone_does_not_search_focal_lengths_and_our_solver_does():
    room = matched_room(np.random.default_rng(2))
    unknown = UnknownFocal(640, 480)
    cameras = [unknown] * len(room.ref_cameras)
    with pytest.raises(ConfigError, match="needs the focal length of every camera"):
        solve_peer("poselib", points(room), room.T_world_ref, unknown, cameras)
    solved = solve_peer("relograph", points(room), room.T_world_ref, unknown, cameras)
    assert pose_error(solved.T_world_cam, room.T_world_query).translation_error_m < 0.01


@pytest.mark.parametrize("solver", ["poselib", "relograph"])
def test_sift_finds_where_a_photo_of_painted_walls_was_taken(solver):
    walls, T_world_cam = painted_box.painting(0), painted_box.poses(5, 6, 0.2, 0.08)
    photos = [painted_box.photo(walls, pose) for pose in T_world_cam]
    answer = match_by_peer("sift", MatchJob(photos.__getitem__, ((5, (0, 1, 2, 3, 4)),)))
    cameras = [painted_box.CAMERA] * 5
    solved = solve_peer(solver, answer.points[0], T_world_cam[:5], painted_box.CAMERA, cameras)
    error = pose_error(solved.T_world_cam, T_world_cam[5])
    assert error.translation_error_m < 0.01
    assert error.rotation_error_deg < 0.2


def test_sift_finds_nothing_in_black_photos_and_says_so_with_no_matches():
    photos = [np.zeros((48, 64, 3), dtype=np.uint8)] * 2
    answer = match_by_peer("sift", MatchJob(photos.__getitem__, ((0, (1,)),)))
    assert len(answer.points[0].query_xy) == 0
