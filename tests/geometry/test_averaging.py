"""Averages of positions and rotations, against brute force, scipy and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relograph.errors import GeometryError
from relograph.geometry import (
    axis_angle_to_matrix,
    geometric_median,
    gramkow_mean,
    l1_rotation_median,
    markley_mean,
    matrix_to_quat_wxyz,
    rotation_error_deg,
)


def sum_of_distances(place: np.ndarray, points: np.ndarray, weights: np.ndarray) -> float:
    return float((weights * np.linalg.norm(points - place, axis=-1)).sum())


def sum_of_angles(rotvec: np.ndarray, rotations: Rotation, weights: np.ndarray) -> float:
    return float((weights * (Rotation.from_rotvec(rotvec).inv() * rotations).magnitude()).sum())


def rotations_around(center: Rotation, spread_rad: float, num: int, rng: np.random.Generator) -> Rotation:
    return center * Rotation.from_rotvec(rng.normal(size=(num, 3)) * spread_rad)


def quats(rotations: Rotation) -> Tensor:
    return torch.tensor(rotations.as_quat(canonical=True, scalar_first=True))


# The geometric median


@pytest.mark.parametrize("num", [3, 4, 5, 7, 15, 100])
def test_no_other_place_has_a_smaller_sum_of_distances(num: int) -> None:
    rng = np.random.default_rng(num)
    for _ in range(10):
        points, weights = rng.normal(size=(num, 3)), rng.uniform(0.1, 2.0, size=num)
        median = geometric_median(torch.tensor(points), torch.tensor(weights)).numpy()
        ours = sum_of_distances(median, points, weights)
        starts = [points.mean(0), *points[:3]]
        tight = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5000}
        found = [
            minimize(sum_of_distances, start, (points, weights), method="Nelder-Mead", options=tight)
            for start in starts
        ]
        best = min(found, key=lambda result: result.fun)
        assert ours <= best.fun + 1e-12
        np.testing.assert_allclose(median, best.x, atol=1e-5)
        assert ours <= min(sum_of_distances(point, points, weights) for point in points)


def test_in_a_triangle_all_sides_are_seen_under_120_degrees() -> None:
    triangle = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    directions = triangle - geometric_median(triangle)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    cosines = directions @ directions.mT
    expected = torch.full((3, 3), -0.5, dtype=torch.float64).fill_diagonal_(1.0)  # cos 120 degrees: Fermat's point
    torch.testing.assert_close(cosines, expected, atol=1e-9, rtol=0)


def test_a_corner_of_more_than_120_degrees_is_itself_the_median() -> None:
    triangle = torch.tensor([[0.0, 0.0], [5.0, 1.0], [-5.0, 1.0]], dtype=torch.float64)
    assert geometric_median(triangle).tolist() == [0.0, 0.0]


def test_an_iterate_on_a_point_that_is_not_the_median_moves_on() -> None:
    # The iteration starts at the coordinate-wise median, which here is the first point.
    points = torch.tensor([[0.0, 0.0], [0.0, 4.0], [0.0, 5.0], [3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    assert points.median(dim=0).values.tolist() == points[0].tolist()
    weights = torch.tensor([0.1, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    median = geometric_median(points, weights).numpy()
    best = minimize(sum_of_distances, [1.0, 1.0], (points.numpy(), weights.numpy()), method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(median, best.x, atol=1e-6)
    assert np.linalg.norm(median) > 0.5


@pytest.mark.parametrize("heavy", [0, 2, 4])
def test_a_point_with_half_of_the_weight_is_the_median(heavy: int) -> None:
    points = torch.tensor(np.random.default_rng(0).normal(size=(5, 3)))
    weights = torch.ones(5, dtype=torch.float64)
    weights[heavy] = 4.0
    torch.testing.assert_close(geometric_median(points, weights), points[heavy], atol=0, rtol=0)


def test_a_weight_of_two_is_the_point_twice() -> None:
    points = torch.tensor(np.random.default_rng(1).normal(size=(5, 3)))
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    repeated = points[torch.tensor([0, 1, 1, 2, 3])]
    torch.testing.assert_close(geometric_median(points, weights), geometric_median(repeated), atol=1e-9, rtol=0)


def test_the_median_of_two_points_lies_between_them() -> None:
    pairs = torch.tensor(np.random.default_rng(13).normal(size=(500, 2, 3)))
    median = geometric_median(pairs)
    way_round = (pairs - median[:, None, :]).norm(dim=-1).sum(-1)
    torch.testing.assert_close(way_round, (pairs[:, 0] - pairs[:, 1]).norm(dim=-1), atol=1e-14, rtol=0)


def test_the_point_of_most_points_is_not_the_median_when_they_weigh_nothing() -> None:
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [4.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    weights = torch.tensor([0.1, 0.1, 0.1, 1.0, 1.0], dtype=torch.float64)
    best = minimize(sum_of_distances, [2.0, 1.0], (points.numpy(), weights.numpy()), method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(geometric_median(points, weights), best.x, atol=1e-6)


def test_points_on_a_line_have_the_usual_median() -> None:
    direction = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    along = torch.tensor([-7.0, 0.5, 1.0, 1.5, 40.0], dtype=torch.float64)
    torch.testing.assert_close(geometric_median(along[:, None] * direction), direction, atol=1e-12, rtol=0)


def test_points_that_coincide_are_their_own_median() -> None:
    points = torch.tensor([[1.0, 2.0, 3.0]] * 4)
    assert geometric_median(points).tolist() == [1.0, 2.0, 3.0]
    assert geometric_median(points[:1]).tolist() == [1.0, 2.0, 3.0]


class CountingOperations(TorchDispatchMode):
    """How often torch computes something."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rounding", [1e-16, 1e-7])
def test_points_that_agree_but_for_rounding_take_no_longer_than_others(rounding: float) -> None:
    generator = torch.Generator().manual_seed(0)
    place, scatter = (torch.randn(20, num, 3, generator=generator).double() for num in (1, 7))
    counts = []
    for points in (place + scatter, place + rounding * scatter):
        with CountingOperations() as counting:
            geometric_median(points)
        counts.append(counting.count)
    assert counts[1] < 2 * counts[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_three_wild_estimates_of_seven_do_not_carry_the_position_away(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    good = torch.tensor(rng.normal(size=(4, 3)) * 0.02 + [1.0, 2.0, 3.0])
    wild = torch.tensor(rng.normal(size=(3, 3)) * 1e6)
    points = torch.cat([wild, good]).to(dtype)
    truth = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    assert (geometric_median(points) - truth).norm() < 0.1
    assert (points.mean(0) - truth).norm() > 1e4


# The L1 median of rotations


@pytest.mark.parametrize("num", [3, 5, 7, 20])
def test_no_other_rotation_has_a_smaller_sum_of_angles(num: int) -> None:
    rng = np.random.default_rng(num)
    for center in (Rotation.identity(), Rotation.from_rotvec([0.0, math.pi, 0.0]), Rotation.random(rng=rng)):
        rotations, weights = rotations_around(center, 0.3, num, rng), rng.uniform(0.1, 2.0, size=num)
        median = l1_rotation_median(torch.tensor(rotations.as_matrix()), torch.tensor(weights))
        rotvec = Rotation.from_matrix(median.numpy()).as_rotvec()
        ours = sum_of_angles(rotvec, rotations, weights)
        tight = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 5000}
        starts = [rotations.mean(weights).as_rotvec(), *rotations.as_rotvec()[:3]]
        found = [
            minimize(sum_of_angles, start, (rotations, weights), method="Nelder-Mead", options=tight)
            for start in starts
        ]
        best = min(found, key=lambda result: result.fun)
        assert ours <= best.fun + 1e-9
        assert (Rotation.from_rotvec(best.x).inv() * Rotation.from_rotvec(rotvec)).magnitude() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_three_wild_estimates_of_seven_do_not_carry_the_rotation_away(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        truth = Rotation.random(rng=rng)
        good = rotations_around(truth, 0.01, 4, rng)
        wild = rotations_around(truth * Rotation.from_rotvec([0.0, 2.5, 0.0]), 0.05, 3, rng)  # wrong, and of one mind
        all_of_them = Rotation.concatenate([wild, good])
        median = l1_rotation_median(torch.tensor(all_of_them.as_matrix()).to(dtype))
        assert rotation_error_deg(median.double(), truth.as_matrix()) < 3.0
        assert rotation_error_deg(all_of_them.mean().as_matrix(), truth.as_matrix()) > 20.0


def test_a_rotation_with_most_of_the_weight_is_the_median() -> None:
    R = torch.tensor(
        rotations_around(Rotation.random(rng=np.random.default_rng(4)), 0.3, 5, np.random.default_rng(5)).as_matrix()
    )
    weights = torch.tensor([1.0, 1.0, 5.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(l1_rotation_median(R, weights), R[2], atol=1e-15, rtol=0)


def test_rotations_about_one_axis_have_the_median_of_their_angles() -> None:
    angles = torch.tensor([-2.0, 0.4, 0.5, 0.55, 1.5], dtype=torch.float64)
    R = axis_angle_to_matrix(angles[:, None] * torch.tensor([0.0, 0.6, 0.8], dtype=torch.float64))
    torch.testing.assert_close(l1_rotation_median(R), R[2], atol=1e-12, rtol=0)


# The means of rotations


@pytest.mark.parametrize("spread_rad", [1e-6, 0.1, 1.0])
def test_markley_mean_agrees_with_scipy(spread_rad: float) -> None:
    rng = np.random.default_rng(6)
    for center in (Rotation.identity(), Rotation.from_rotvec([math.pi, 0.0, 0.0]), Rotation.random(rng=rng)):
        rotations, weights = rotations_around(center, spread_rad, 9, rng), rng.uniform(0.1, 2.0, size=9)
        ours = markley_mean(quats(rotations), torch.tensor(weights)).numpy()
        theirs = rotations.mean(weights)
        assert (theirs.inv() * Rotation.from_quat(ours, scalar_first=True)).magnitude() < 1e-12


def test_gramkow_mean_is_the_normalised_sum_where_all_quaternions_lie_together() -> None:
    q = np.array([[0.9, 0.1, 0.2, 0.3], [0.8, 0.3, -0.1, 0.2]])
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    total = 2 * q[0] + q[1]
    ours = gramkow_mean(torch.tensor(q), torch.tensor([2.0, 1.0], dtype=torch.float64))
    np.testing.assert_allclose(ours, total / np.linalg.norm(total), atol=1e-15)


def test_of_two_rotations_every_mean_is_half_way() -> None:
    a = Rotation.random(rng=np.random.default_rng(7))
    b = a * Rotation.from_rotvec([0.3, -0.4, 1.2])
    half_way = quats(a * Rotation.from_rotvec([0.15, -0.2, 0.6]))
    both = quats(Rotation.concatenate([a, b]))
    torch.testing.assert_close(markley_mean(both), half_way, atol=1e-14, rtol=0)
    torch.testing.assert_close(gramkow_mean(both), half_way, atol=1e-14, rtol=0)


@pytest.mark.parametrize("mean", [markley_mean, gramkow_mean])
@pytest.mark.parametrize("center_deg", [0.0, 90.0, 180.0])
def test_signs_and_order_of_quaternions_do_not_change_their_mean(mean, center_deg: float) -> None:
    rng = np.random.default_rng(8)
    q = quats(rotations_around(Rotation.from_rotvec([0.0, 0.0, math.radians(center_deg)]), 0.3, 8, rng))
    signs = torch.tensor(rng.choice([-1.0, 1.0], size=(8, 1)))
    shuffled = (signs * q)[torch.tensor(rng.permutation(8))]
    torch.testing.assert_close(mean(shuffled), mean(q), atol=1e-14, rtol=0)


def test_gramkow_mean_approaches_markley_mean_with_the_third_power_of_the_spread() -> None:
    offsets = np.random.default_rng(9).normal(size=(7, 3))
    gaps = []
    for spread_rad in (0.2, 0.1):
        q = quats(Rotation.from_rotvec([1.0, 0.5, -0.2]) * Rotation.from_rotvec(spread_rad * offsets))
        gaps.append(float((gramkow_mean(q) - markley_mean(q)).norm()))
    assert gaps[0] / gaps[1] == pytest.approx(2**3, rel=0.05)


# All of them


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_is_averaged_as_its_members_are(weighted: bool) -> None:
    rng = np.random.default_rng(12)
    points = torch.tensor(rng.normal(size=(2, 3, 7, 3)))
    weights = torch.tensor(rng.uniform(0.1, 1.0, size=(2, 3, 7))) if weighted else None
    R = axis_angle_to_matrix(0.4 * points)
    q = matrix_to_quat_wxyz(R)
    for average, values in ((geometric_median, points), (l1_rotation_median, R), (markley_mean, q), (gramkow_mean, q)):
        together = average(values, weights)
        for i, j in ((0, 0), (1, 2)):
            alone = average(values[i, j], None if weights is None else weights[i, j])
            torch.testing.assert_close(together[i, j], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("average", [geometric_median, markley_mean, gramkow_mean])
def test_what_cannot_be_averaged_is_refused(average) -> None:
    with pytest.raises(GeometryError, match="at least one estimate"):
        average(torch.zeros(0, 4))
    with pytest.raises(GeometryError, match="finite numbers"):
        average(torch.full((2, 4), math.nan))
    for bad in ([-1.0, 2.0], [0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(GeometryError, match="Weights"):
            average(torch.ones(2, 4), torch.tensor(bad))
