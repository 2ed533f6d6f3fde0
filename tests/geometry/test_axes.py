"""The axes of other software, each pinned by matrices that were reckoned by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import poses

from relograph.geometry import Pose
from relograph.geometry.axes import (
    axes_from_words,
    axes_of,
    covariance_of_body,
    covariance_to_axes,
    from_axes,
    to_axes,
)

# The camera of docs/conventions.md: at (1, 2, 3) in a world whose z axis is up, looking along the world's x axis. Its
# right is -y of the world, its down is -z, its forward is +x.
T_WORLD_CAM = Pose.from_matrix([[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, 3], [0, 0, 0, 1]])

# Columns: where the camera's x, y and z axes point in the world, and its centre.
BY_HAND = {
    # right, down, forward
    ("opencv", False): [[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, 3], [0, 0, 0, 1]],
    ("opencv", True): [[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, 3], [0, 0, 0, 1]],
    # right, up, back
    ("opengl", False): [[0, 0, -1, 1], [-1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]],
    ("opengl", True): [[0, 0, -1, 1], [-1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]],
    # right, up, back in a wide photo; in a tall one the sensor is turned: down, right, back
    ("arkit", False): [[0, 0, -1, 1], [-1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]],
    ("arkit", True): [[0, 0, -1, 1], [0, -1, 0, 2], [-1, 0, 0, 3], [0, 0, 0, 1]],
    # right, up, forward, and the third row with another sign
    ("unity", False): [[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, -3], [0, 0, 0, 1]],
    ("unity", True): [[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, -3], [0, 0, 0, 1]],
    # forward, left, up
    ("ros", False): [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]],
    ("ros", True): [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]],
}


@pytest.mark.parametrize(("name", "is_tall"), BY_HAND)
def test_a_camera_along_other_axes_as_reckoned_by_hand(name, is_tall):
    axes = axes_of(name, is_tall=is_tall)
    assert_array_equal(to_axes(T_WORLD_CAM, axes).matrix(), BY_HAND[name, is_tall])
    assert_array_equal(from_axes(Pose.from_matrix(BY_HAND[name, is_tall]), axes).matrix(), T_WORLD_CAM.matrix())


@pytest.mark.parametrize("name", ["opencv", "opengl", "arkit", "ros"])
def test_only_unity_moves_the_centre_and_its_rotations_stay_proper(name):
    assert_array_equal(to_axes(T_WORLD_CAM, axes_of(name)).t, T_WORLD_CAM.t)
    assert np.linalg.det(axes_of(name)) == pytest.approx(1.0)
    assert np.linalg.det(axes_of("unity")) == pytest.approx(-1.0)
    assert float(torch.linalg.det(to_axes(T_WORLD_CAM, axes_of("unity")).R)) == pytest.approx(1.0)


def test_what_a_unity_camera_sees_to_the_right_is_to_its_right_in_the_mirrored_world():
    """Two metres ahead, one to the right and half a metre up, by both ways."""
    p_world = T_WORLD_CAM.apply([1.0, -0.5, 2.0])
    p_unity = to_axes(T_WORLD_CAM, axes_of("unity")).apply([1.0, 0.5, 2.0])
    assert_allclose(p_unity, p_world * torch.tensor([1.0, 1.0, -1.0]))


@given(drawn=poses(num=1), name=st.sampled_from(["opencv", "opengl", "arkit", "unity", "ros"]), is_tall=st.booleans())
def test_there_and_back_is_where_it_began(drawn, name, is_tall):
    (T_world_cam,) = drawn
    axes = axes_of(name, is_tall=is_tall)
    assert_array_equal(from_axes(to_axes(T_world_cam, axes), axes).matrix(), T_world_cam.matrix())


@pytest.mark.parametrize("words", ["", "right down", "right left up", "right down sideways", "right right up"])
def test_words_that_are_no_axes(words):
    assert axes_from_words(words) is None


def disturbed(T_world_cam: Pose, error: torch.Tensor) -> Pose:
    turned = T_world_cam @ Pose.from_axis_angle(error[:3], [0.0, 0.0, 0.0])
    return Pose(turned.R, T_world_cam.t + error[3:])


def seen_error(T: Pose, T_disturbed: Pose) -> torch.Tensor:
    turn = Pose(T.R.mT @ T_disturbed.R, torch.zeros(3, dtype=torch.float64)).axis_angle()
    return torch.cat([turn, T_disturbed.t - T.t])


SMALL_ERRORS = 1e-6 * torch.eye(6, dtype=torch.float64)


def covariance_by_differences(T_world_cam: Pose, changed) -> torch.Tensor:
    """What becomes of an error in each of the six ways, one after the other."""
    J = torch.stack(
        [seen_error(changed(T_world_cam), changed(disturbed(T_world_cam, error))) / 1e-6 for error in SMALL_ERRORS],
        dim=1,
    )
    return J @ COVARIANCE @ J.mT


FACTOR = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 6)))
COVARIANCE = FACTOR @ FACTOR.mT
T_SOMEWHERE = Pose.from_axis_angle([0.3, -1.1, 0.6], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", ["opencv", "opengl", "arkit", "unity", "ros"])
def test_the_covariance_goes_the_way_of_the_pose(name):
    axes = axes_of(name, is_tall=True)
    expected = covariance_by_differences(T_SOMEWHERE, lambda T: to_axes(T, axes))
    assert_allclose(covariance_to_axes(COVARIANCE, axes), expected, atol=1e-4)


def test_the_covariance_of_a_body_holds_the_arm_to_it():
    T_cam_body = Pose.from_axis_angle([0.2, 0.4, -0.5], [0.5, -0.2, 0.1])
    expected = covariance_by_differences(T_SOMEWHERE, lambda T: T @ T_cam_body)
    assert_allclose(covariance_of_body(COVARIANCE, T_SOMEWHERE, T_cam_body), expected, atol=1e-4)


def test_what_is_not_known_stays_unknown():
    unknown = torch.diag(torch.full((6,), torch.inf, dtype=torch.float64))
    assert_array_equal(covariance_to_axes(unknown, axes_of("ros")), unknown)
