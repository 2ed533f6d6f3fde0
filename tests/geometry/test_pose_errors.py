"""Pose errors, where they hurt: tiny angles, half turns, and against scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.spatial.transform import Rotation
from strategies import TOLERANCE, poses

from relograph.geometry import Pose, axis_angle_to_matrix, pose_error, rotation_error_deg, translation_error_m


@pytest.mark.parametrize("angle_rad", [0.0, 1e-12, 1e-8, 1e-4, 1e-1, 1.0, 3.0, 3.14159, math.pi])
def test_rotation_error_agrees_with_scipy(angle_rad: float) -> None:
    R = Rotation.from_rotvec([0.0, 0.6 * angle_rad, 0.8 * angle_rad]).as_matrix()
    expected = np.degrees(Rotation.from_matrix(R).magnitude())
    assert float(rotation_error_deg(np.eye(3), R)) == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("angle_rad", [1e-12, 1e-10, 1e-8])
def test_tiny_angles_between_turned_cameras_are_not_lost(angle_rad: float) -> None:
    R_a = Rotation.random(rng=np.random.default_rng(0)).as_matrix()
    R_b = R_a @ Rotation.from_rotvec([angle_rad, 0.0, 0.0]).as_matrix()
    # The matrices themselves are rounded at 1e-16, so that is what is left of the angle.
    assert float(rotation_error_deg(R_a, R_b)) == pytest.approx(math.degrees(angle_rad), abs=math.degrees(5e-16))


def test_rotation_error_of_q_and_minus_q_is_zero() -> None:
    q = [0.5, -0.1, 0.7, 0.2]
    T_a, T_b = Pose.from_quat_wxyz(q, [0, 0, 0]), Pose.from_quat_wxyz([-part for part in q], [0, 0, 0])
    assert float(rotation_error_deg(T_a.R, T_b.R)) < 1e-14


def test_translation_error_is_the_distance_in_metres() -> None:
    assert translation_error_m([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], [4.0, 6.0, 3.0]]).tolist() == [0.0, 5.0]


def test_pose_error_names_both_numbers() -> None:
    T_world_truth = Pose.from_axis_angle([0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    T_world_estimate = Pose.from_axis_angle([0.0, math.radians(30.0), 0.0], [1.0, 0.0, 0.25])
    error = pose_error(T_world_estimate, T_world_truth)
    assert float(error.rotation_error_deg) == pytest.approx(30.0)
    assert float(error.translation_error_m) == pytest.approx(0.25)


@given(poses(3))
def test_moving_the_world_does_not_change_the_error(drawn: tuple[Pose, ...]) -> None:
    T_world_a, T_world_b, T_new_world = drawn
    before, after = pose_error(T_world_a, T_world_b), pose_error(T_new_world @ T_world_a, T_new_world @ T_world_b)
    tolerance = TOLERANCE[T_world_a.dtype]
    torch.testing.assert_close(after.translation_error_m, before.translation_error_m, atol=tolerance, rtol=tolerance)
    in_radians = torch.deg2rad(after.rotation_error_deg) - torch.deg2rad(before.rotation_error_deg)
    assert (in_radians.abs() < tolerance).all()


@given(poses(3))
def test_rotation_error_is_a_distance(drawn: tuple[Pose, ...]) -> None:
    R_a, R_b, R_c = (pose.R for pose in drawn)
    slack = math.degrees(TOLERANCE[R_a.dtype])
    a_b, b_c, a_c = rotation_error_deg(R_a, R_b), rotation_error_deg(R_b, R_c), rotation_error_deg(R_a, R_c)
    torch.testing.assert_close(rotation_error_deg(R_b, R_a), a_b, atol=slack, rtol=0)
    assert (a_c <= a_b + b_c + slack).all()
    assert (a_b <= 180).all()
    assert (a_b >= 0).all()


def test_errors_of_many_estimates_against_one_truth_broadcast() -> None:
    R = axis_angle_to_matrix(torch.tensor([[[0.1, 0.0, 0.0]], [[0.0, 0.2, 0.0]]]))
    torch.testing.assert_close(
        rotation_error_deg(R, torch.eye(3)), torch.rad2deg(torch.tensor([[0.1], [0.2]])), atol=1e-4, rtol=0
    )


def test_no_estimates_have_no_errors() -> None:
    error = pose_error(Pose.identity(0), Pose.identity(0))
    assert error.rotation_error_deg.shape == (0,)
    assert error.translation_error_m.shape == (0,)
