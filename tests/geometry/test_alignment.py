import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.errors import GeometryError
from relograph.geometry.alignment import align_points, align_points_robustly

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
