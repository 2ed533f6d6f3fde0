"""Rotations in all their descriptions, against scipy and against their own definitions."""

import math

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.spatial.transform import Rotation
from strategies import ANGLES, DTYPES, TOLERANCE, axis_angles, random_axis_angles
from torch import Tensor

from relograph.geometry import (
    axis_angle_to_matrix,
    exp_quat,
    log_quat,
    matrix_to_axis_angle,
    matrix_to_quat_wxyz,
    matrix_to_rotation_6d,
    nearest_rotation,
    quat_conjugate,
    quat_in_upper_hemisphere,
    quat_multiply,
    quat_wxyz_to_matrix,
    quat_wxyz_to_xyzw,
    quat_xyzw_to_wxyz,
    rotation_6d_to_matrix,
)


@pytest.fixture(params=sorted(ANGLES))
def rotvecs(request: pytest.FixtureRequest) -> Tensor:
    return random_axis_angles(64, request.param, np.random.default_rng(0))


def canonical_wxyz(rotation: Rotation) -> Tensor:
    return torch.tensor(rotation.as_quat(canonical=True, scalar_first=True))


# Golden values from scipy


def test_matrices_agree_with_scipy(rotvecs: Tensor) -> None:
    expected = torch.tensor(Rotation.from_rotvec(rotvecs.numpy()).as_matrix())
    torch.testing.assert_close(axis_angle_to_matrix(rotvecs), expected, atol=1e-15, rtol=0)


def test_quaternions_agree_with_scipy(rotvecs: Tensor) -> None:
    rotation = Rotation.from_rotvec(rotvecs.numpy())
    ours = matrix_to_quat_wxyz(torch.tensor(rotation.as_matrix()))
    theirs = canonical_wxyz(rotation)
    # At 180 degrees rounding decides the sign, in scipy and here.
    same_sign = torch.where((ours * theirs).sum(-1, keepdim=True) < 0, -ours, ours)
    torch.testing.assert_close(same_sign, theirs, atol=1e-15, rtol=0)


def test_axis_angles_agree_with_scipy_below_180_degrees() -> None:
    rng = np.random.default_rng(0)
    for angle in [0.0, 1e-12, 1e-8, 1e-4, 9.9e-3, 1.01e-2, 1.0, 3.0, 3.1415, math.pi - 1e-6]:
        axis = rng.normal(size=3)
        rotvec = angle * axis / np.linalg.norm(axis)
        R = Rotation.from_rotvec(rotvec).as_matrix()
        ours = matrix_to_axis_angle(torch.tensor(R))
        np.testing.assert_allclose(ours, Rotation.from_matrix(R).as_rotvec(), rtol=0, atol=1e-15)


def test_quaternion_products_agree_with_scipy() -> None:
    rng = np.random.default_rng(1)
    a, b = Rotation.random(20, rng=rng), Rotation.random(20, rng=rng)
    ours = quat_in_upper_hemisphere(quat_multiply(canonical_wxyz(a), canonical_wxyz(b)))
    torch.testing.assert_close(ours, canonical_wxyz(a * b), atol=1e-15, rtol=0)


def test_a_unit_quaternion_times_its_conjugate_is_one() -> None:
    q = canonical_wxyz(Rotation.random(20, rng=np.random.default_rng(2)))
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).expand(20, 4)
    torch.testing.assert_close(quat_multiply(q, quat_conjugate(q)), one, atol=1e-15, rtol=0)


def test_nearest_rotation_agrees_with_scipy_for_a_rounded_matrix() -> None:
    rounded = Rotation.random(20, rng=np.random.default_rng(3)).as_matrix().round(3)
    ours = nearest_rotation(torch.tensor(rounded))
    # scipy orthogonalises by the same least-squares projection.
    np.testing.assert_allclose(ours, Rotation.from_matrix(rounded).as_matrix(), atol=1e-12)


def test_nearest_rotation_of_a_mirrored_matrix_is_the_best_of_many_rotations() -> None:
    mirrored = torch.tensor(np.diag([1.0, 0.9, -0.5]))
    nearest = nearest_rotation(mirrored)
    others = torch.tensor(Rotation.random(20_000, rng=np.random.default_rng(4)).as_matrix())
    assert torch.linalg.det(nearest).item() == pytest.approx(1.0)
    assert (nearest - mirrored).norm() <= (others - mirrored).flatten(1).norm(dim=1).min()


# The log quaternion of the paper


def test_log_quat_is_the_formula_of_the_paper() -> None:
    rng = np.random.default_rng(5)
    q = rng.normal(size=(50, 4))
    q *= np.where(q[:, :1] < 0, -1, 1) / np.linalg.norm(q, axis=1, keepdims=True)
    u, v = q[:, :1], q[:, 1:]
    formula = v / np.linalg.norm(v, axis=1, keepdims=True) * np.arccos(u)
    np.testing.assert_allclose(log_quat(torch.tensor(q)), formula, atol=1e-14)


def test_exp_quat_is_the_formula_of_the_paper() -> None:
    w = np.random.default_rng(6).uniform(-0.9, 0.9, size=(50, 3))  # shorter than pi / 2
    norm = np.linalg.norm(w, axis=1, keepdims=True)
    formula = np.concatenate([np.cos(norm), w / norm * np.sin(norm)], axis=1)
    np.testing.assert_allclose(exp_quat(torch.tensor(w)), formula, atol=1e-15)


def test_log_quat_is_half_the_axis_angle(rotvecs: Tensor) -> None:
    R = axis_angle_to_matrix(rotvecs)
    torch.testing.assert_close(2 * log_quat(matrix_to_quat_wxyz(R)), matrix_to_axis_angle(R), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_undoes_log_for_every_kind_of_rotation(rotvecs: Tensor, dtype: torch.dtype) -> None:
    q = quat_in_upper_hemisphere(exp_quat(rotvecs / 2).to(dtype))
    torch.testing.assert_close(exp_quat(log_quat(q)), q, atol=TOLERANCE[dtype], rtol=0)


def test_log_undoes_exp_up_to_180_degrees_to_the_last_digits_of_the_smallest_angle() -> None:
    angles = torch.tensor([1e-300, 1e-30, 1e-12, 1e-5, 9.99e-3, 1.001e-2, 0.5, 1.5, math.pi / 2], dtype=torch.float64)
    axis = torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)
    torch.testing.assert_close(log_quat(exp_quat(angles[:, None] * axis)), angles[:, None] * axis, rtol=1e-14, atol=0)


def test_log_of_the_identity_is_zero_and_back() -> None:
    one = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert log_quat(one).tolist() == [0.0, 0.0, 0.0]
    assert exp_quat(torch.zeros(3)).tolist() == one.tolist()


@given(axis_angles())
def test_q_and_minus_q_are_the_same_rotation_in_every_description(rotvecs: Tensor) -> None:
    q = exp_quat(rotvecs / 2)
    torch.testing.assert_close(quat_wxyz_to_matrix(-q), quat_wxyz_to_matrix(q), atol=0, rtol=0)
    torch.testing.assert_close(log_quat(-q), log_quat(q), atol=0, rtol=0)
    torch.testing.assert_close(quat_in_upper_hemisphere(-q), quat_in_upper_hemisphere(q), atol=0, rtol=0)


@given(axis_angles())
def test_quaternions_that_come_back_have_length_one_and_w_not_negative(rotvecs: Tensor) -> None:
    for q in (exp_quat(3 * rotvecs), matrix_to_quat_wxyz(axis_angle_to_matrix(rotvecs))):
        torch.testing.assert_close(q.norm(dim=-1), torch.ones(len(q), dtype=q.dtype), atol=1e-14, rtol=0)
        assert (q[:, 0] >= 0).all()


@pytest.mark.parametrize(
    "axis", [[1, 0, 0], [0, -1, 0], [0, 0, -1], [0.6, -0.8, 0], [0, -0.6, 0.8], [-0.48, 0.6, 0.64], [1e-17, -0.6, 0.8]]
)
def test_half_a_turn_about_an_axis_and_its_opposite_have_one_quaternion(axis: list[float]) -> None:
    axis_tensor = torch.tensor(axis, dtype=torch.float64)
    q = torch.cat([torch.zeros(1, dtype=torch.float64), axis_tensor])
    first_part = next(part for part in axis if abs(part) > 1e-15)
    expected = q * math.copysign(1, first_part)
    torch.testing.assert_close(quat_in_upper_hemisphere(q), expected, atol=0, rtol=0)
    torch.testing.assert_close(quat_in_upper_hemisphere(-q), expected, atol=0, rtol=0)
    half_turn = 2 * torch.outer(axis_tensor, axis_tensor) - torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(matrix_to_quat_wxyz(half_turn), expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_does_not_decide_the_logarithm_of_half_a_turn(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    q = torch.tensor([[w, 0.6, -0.8, 0.0] for w in (-eps, -0.0, 0.0, eps)], dtype=dtype)
    expected = math.pi / 2 * torch.tensor([0.6, -0.8, 0.0], dtype=dtype).expand(4, 3)
    torch.testing.assert_close(log_quat(q), expected, atol=4 * eps, rtol=0)
    torch.testing.assert_close(log_quat(exp_quat(log_quat(q))), expected, atol=4 * eps, rtol=0)


# Round trips


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_description_leads_back_to_the_same_matrix(rotvecs: Tensor, dtype: torch.dtype) -> None:
    R = axis_angle_to_matrix(rotvecs).to(dtype).reshape(4, 16, 3, 3)
    tolerance = {torch.float32: 2e-6, torch.float64: 4e-15}[dtype]
    for there_and_back in (
        quat_wxyz_to_matrix(matrix_to_quat_wxyz(R)),
        quat_wxyz_to_matrix(exp_quat(log_quat(matrix_to_quat_wxyz(R)))),
        quat_wxyz_to_matrix(quat_xyzw_to_wxyz(quat_wxyz_to_xyzw(matrix_to_quat_wxyz(R)))),
        axis_angle_to_matrix(matrix_to_axis_angle(R)),
        rotation_6d_to_matrix(matrix_to_rotation_6d(R)),
        nearest_rotation(R),
    ):
        torch.testing.assert_close(there_and_back, R, atol=tolerance, rtol=0)


def test_the_length_of_a_quaternion_does_not_matter() -> None:
    q = torch.tensor([0.3, -0.5, 0.1, 0.8], dtype=torch.float64)
    torch.testing.assert_close(quat_wxyz_to_matrix(10 * q), quat_wxyz_to_matrix(q), atol=1e-15, rtol=0)
    torch.testing.assert_close(log_quat(10 * q), log_quat(q), atol=1e-15, rtol=0)


def test_six_free_numbers_always_make_a_rotation() -> None:
    R = rotation_6d_to_matrix(torch.tensor(np.random.default_rng(7).normal(size=(100, 6))))
    torch.testing.assert_close(R.mT @ R, torch.eye(3).double().expand(100, 3, 3), atol=1e-13, rtol=0)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(100).double(), atol=1e-13, rtol=0)


# Shapes are checked


def test_a_wrong_shape_is_refused_by_the_shape_checker() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        quat_wxyz_to_matrix(torch.zeros(3))
    with pytest.raises(jaxtyping.TypeCheckError):
        quat_multiply(torch.zeros(2, 4), torch.zeros(3, 4))


def test_integers_are_refused_by_the_shape_checker() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        log_quat(torch.tensor([1, 0, 0, 0]))
