import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.errors import GeometryError
from relograph.geometry import Pose
from relograph.geometry.alignment import align_cameras_robustly, align_points, align_points_robustly

SCALE, R, T = 0.37, Rotation.from_rotvec([0.4, -2.0, 0.9]).as_matrix(), np.array([3.0, -1.0, 2.0])


def points(seed: int = 0, num: int = 30) -> tuple[np.ndarray, np.ndarray]:
    a = np.random.default_rng(seed).normal(size=(num, 3))
    return a, SCALE * a @ R.T + T


def test_an_exact_motion_is_found_with_its_scale():
    a, b = points()
    aligned = align_points(a, b)
    assert aligned.scale == pytest.approx(SCALE)
    assert_allclose(aligned.T.R, R, atol=1e-12)
    assert_allclose(aligned.apply(a), b, atol=1e-12)
    assert aligned.inlier.all()


def test_without_a_scale_the_motion_is_rigid():
    a, b = points()
    aligned = align_points(a, b / SCALE, with_scale=False)
    assert aligned.scale == 1.0
    assert_allclose(aligned.T.t, T / SCALE, atol=1e-12)


def test_points_in_a_plane_are_never_mirrored():
    a, _ = points()
    a[:, 2] = 0.0
    aligned = align_points(a, SCALE * a @ R.T + T)
    assert np.linalg.det(aligned.T.R.numpy()) == pytest.approx(1.0)
    assert_allclose(aligned.T.R, R, atol=1e-9)


def test_points_in_a_line_do_not_tell_the_rotation():
    line = np.arange(5.0)[:, None] * [[1.0, 2.0, 3.0]]
    with pytest.raises(GeometryError, match="in one line"):
        align_points(line, line)
    assert align_points_robustly(line, line, 0.1) is None


def test_a_third_of_wrong_partners_changes_nothing():
    a, b = points()
    rng = np.random.default_rng(1)
    noisy = b + rng.normal(0, 0.002, b.shape)
    noisy[::3] += rng.normal(0, 2.0, noisy[::3].shape)
    aligned = align_points_robustly(a, noisy, 0.01)
    assert aligned is not None
    assert aligned.scale == pytest.approx(SCALE, rel=0.01)
    assert_allclose(aligned.apply(a), b, atol=0.01)
    assert not aligned.inlier[::3].any()
    assert np.delete(aligned.inlier, np.s_[::3]).mean() > 0.9
    # Least squares alone would have been led astray.
    assert align_points(a, noisy).residual[1::3].mean() > 0.05


def test_nothing_is_said_where_most_partners_are_wrong():
    a, _ = points()
    assert align_points_robustly(a, np.random.default_rng(2).normal(size=a.shape), 0.01) is None


def test_what_is_no_pair_of_points_is_said():
    a, b = points()
    with pytest.raises(GeometryError, match="as many finite points"):
        align_points(a, b[:-1])


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
def test_the_motion_of_cameras_is_found_although_four_in_ten_are_wrong(scale: float, in_line: bool):
    T_there_cam = cameras(40, in_line=in_line)
    true_centers = scale * T_there_cam.t.numpy() @ R.T + T
    T_true = Pose.from_rotation_and_translation(R @ T_there_cam.R.numpy(), true_centers)
    T_here_cam, is_wrong = with_wrong_answers(T_true, 0.4)
    aligned = align_cameras_robustly(T_there_cam, T_here_cam, 0.25, 10.0, with_scale=scale != 1.0)
    assert aligned is not None
    assert (aligned.inlier == ~is_wrong).all()
    assert_allclose(aligned.T.R, R, atol=0.01)
    assert aligned.scale == pytest.approx(scale, rel=0.01)
    assert_allclose(aligned.apply(T_there_cam.t.numpy()), true_centers, atol=0.05)
    assert aligned.residual[aligned.inlier].max() < 0.25


def test_cameras_that_agree_on_nothing_or_are_too_few_give_no_motion():
    assert align_cameras_robustly(cameras(30, seed=1), cameras(30, seed=2), 0.25, 10.0) is None
    assert align_cameras_robustly(cameras(2), cameras(2), 0.25, 10.0) is None
    one_place = Pose(cameras(5).R, torch.zeros(5, 3, dtype=torch.float64))
    assert align_cameras_robustly(one_place, one_place, 0.25, 10.0) is None  # the scale is not known
    assert align_cameras_robustly(one_place, one_place, 0.25, 10.0, with_scale=False) is not None
