"""The motion between two maps is found from poses, some of which are wrong."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.geometry import Pose
from relograph.maps import Similarity
from relograph.maps.joining import join_poses


def cameras(count: int, seed: int = 0, *, in_line: bool = False) -> Pose:
    rng = np.random.default_rng(seed)
    centers = rng.normal(0, 2, (count, 3)) * ([1.0, 0.0, 0.0] if in_line else 1.0)
    return Pose.from_rotation_and_translation(Rotation.random(count, random_state=seed).as_matrix(), centers)


def with_wrong_answers(T_here_cam: Pose, share: float) -> tuple[Pose, np.ndarray]:
    """Poses with 2 cm and half a degree of noise, and some that are just wrong."""
    rng = np.random.default_rng(1)
    count = len(T_here_cam)
    noise = Pose.from_axis_angle(np.radians(0.3) * rng.normal(size=(count, 3)), 0.01 * rng.normal(size=(count, 3)))
    noisy = T_here_cam @ noise
    is_wrong = rng.permutation(count) < share * count
    wrong = cameras(count, seed=9)
    R = torch.where(torch.tensor(is_wrong)[:, None, None], wrong.R, noisy.R)
    return Pose(R, torch.where(torch.tensor(is_wrong)[:, None], wrong.t, noisy.t)), is_wrong


@pytest.mark.parametrize("in_line", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_motion_is_found_although_four_in_ten_are_wrong(scale: float, in_line: bool):
    T_there_cam = cameras(40, in_line=in_line)
    truth = Similarity(Pose.from_axis_angle([0.3, -0.2, 1.0], [10.0, -3.0, 1.0]), scale)
    T_here_cam, is_wrong = with_wrong_answers(truth.move(T_there_cam), 0.4)
    joint = join_poses(T_here_cam, T_there_cam, with_scale=scale != 1.0)
    assert joint is not None
    assert (joint.agreed == ~is_wrong).all()
    assert_allclose(joint.T_here_there.T.R, truth.T.R, atol=0.01)
    assert joint.T_here_there.scale == pytest.approx(scale, rel=0.01)
    assert_allclose(joint.T_here_there.apply(T_there_cam.t), truth.apply(T_there_cam.t), atol=0.05)


def test_answers_that_agree_on_nothing_give_no_motion():
    assert join_poses(cameras(30, seed=1), cameras(30, seed=2)) is None
    assert join_poses(cameras(2), cameras(2)) is None
