"""Every conversion has the right gradient: at random rotations, at exactly 0, and near 180 degrees."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from relograph.geometry import (
    Camera,
    Pose,
    axis_angle_to_matrix,
    exp_quat,
    log_quat,
    matrix_to_axis_angle,
    matrix_to_quat_wxyz,
    matrix_to_rotation_6d,
    nearest_rotation,
    pose_error,
    quat_conjugate,
    quat_in_upper_hemisphere,
    quat_multiply,
    quat_wxyz_to_matrix,
    rotation_6d_to_matrix,
    rotation_error_deg,
)

AXIS = torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)
# Zero; inside, just below and just above the series; anywhere; near half a turn.
ANGLES = [0.0, 1e-9, 1e-5, 9.99e-3, 1.01e-2, 1.0, 2.5, math.pi - 1e-2, math.pi - 1e-4]


def rotvec(angle: float) -> Tensor:
    return angle * AXIS


def quat(angle: float) -> Tensor:
    return torch.cat([torch.tensor([math.cos(angle / 2)]).double(), math.sin(angle / 2) * AXIS])


def matrix(angle: float) -> Tensor:
    return quat_wxyz_to_matrix(quat(angle))


def d6(angle: float) -> Tensor:
    return matrix_to_rotation_6d(matrix(angle)) * torch.tensor([2.0, 2.0, 2.0, 0.7, 0.7, 0.7])


def assert_gradients_are_right(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    leaves = tuple(values.detach().clone().requires_grad_() for values in inputs)
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6, rtol=1e-6)


CONVERSIONS: list[tuple[Callable[[Tensor], Tensor], Callable[[float], Tensor]]] = [
    (log_quat, quat),
    (quat_wxyz_to_matrix, quat),
    (quat_in_upper_hemisphere, quat),
    (quat_conjugate, quat),
    (exp_quat, lambda angle: rotvec(angle / 2)),
    (axis_angle_to_matrix, rotvec),
    (matrix_to_quat_wxyz, matrix),
    (matrix_to_axis_angle, matrix),
    (matrix_to_rotation_6d, matrix),
    (rotation_6d_to_matrix, d6),
]


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize(("conversion", "description"), CONVERSIONS, ids=[c.__name__ for c, _ in CONVERSIONS])
def test_conversion_has_the_right_gradient(
    conversion: Callable[[Tensor], Tensor], description: Callable[[float], Tensor], angle: float
) -> None:
    assert_gradients_are_right(conversion, description(angle))


@pytest.mark.parametrize("angle", ANGLES)
def test_the_other_sign_of_a_quaternion_has_the_right_gradient_too(angle: float) -> None:
    assert_gradients_are_right(log_quat, -quat(angle))


@pytest.mark.parametrize("angle", ANGLES)
def test_going_round_by_the_log_quaternion_has_the_gradient_of_standing_still(angle: float) -> None:
    def there_and_back(w: Tensor) -> Tensor:
        return log_quat(matrix_to_quat_wxyz(quat_wxyz_to_matrix(exp_quat(w))))

    w = rotvec(angle / 2)
    jacobian = torch.autograd.functional.jacobian(there_and_back, w)
    torch.testing.assert_close(jacobian, torch.eye(3).double(), atol=1e-9, rtol=0)


def test_where_two_parts_of_the_quaternion_are_largest_the_gradient_is_right() -> None:
    # A third of a turn about (1, 1, 1): all four parts are 1/2.
    third_of_a_turn = torch.full((3,), 2 * math.pi / 3 / math.sqrt(3), dtype=torch.float64)
    assert_gradients_are_right(lambda v: matrix_to_quat_wxyz(axis_angle_to_matrix(v)), third_of_a_turn)


@pytest.mark.parametrize("axis", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.6, 0.0, -0.8]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_exactly_half_a_turn_are_finite(axis: list[float], dtype: torch.dtype) -> None:
    direction = torch.tensor(axis, dtype=dtype)
    half_turn = (2 * torch.outer(direction, direction) - torch.eye(3, dtype=dtype)).requires_grad_()
    matrix_to_axis_angle(half_turn).sum().backward()
    assert half_turn.grad is not None
    assert half_turn.grad.isfinite().all()


def test_gradients_at_the_identity_are_finite_in_float32() -> None:
    R = torch.eye(3).requires_grad_()
    matrix_to_axis_angle(R).sum().backward()
    v = torch.zeros(3, requires_grad=True)
    axis_angle_to_matrix(v).sum().backward()
    assert R.grad is not None
    assert v.grad is not None
    assert R.grad.isfinite().all()
    assert v.grad.isfinite().all()


def test_nearest_rotation_has_the_right_gradient_away_from_equal_singular_values() -> None:
    assert_gradients_are_right(nearest_rotation, matrix(1.0) * torch.tensor([1.1, 0.9, 0.8]))


@pytest.mark.parametrize("angle", [0.0, 1.0, math.pi - 1e-3])
def test_quaternion_product_has_the_right_gradient(angle: float) -> None:
    assert_gradients_are_right(quat_multiply, quat(angle), quat(0.4))


# Poses


@pytest.mark.parametrize("angle", [0.0, 1.0, math.pi - 1e-3, math.pi])
def test_product_inverse_and_apply_have_the_right_gradient(angle: float) -> None:
    R, t = matrix(angle), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    R_other, t_other = matrix(0.7), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    points = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 2.0]], dtype=torch.float64)
    assert_gradients_are_right(lambda R, t: Pose(R, t).inverse().matrix(), R, t)
    assert_gradients_are_right(lambda R, t, S, s: (Pose(R, t) @ Pose(S, s)).matrix(), R, t, R_other, t_other)
    assert_gradients_are_right(lambda R, t, p: Pose(R, t).apply(p), R, t, points)
    assert_gradients_are_right(lambda R, t, p: Pose(R, t).apply(p), R, t, points[0])


@pytest.mark.parametrize("angle", [1e-2, 1.0, math.pi - 1e-2])
def test_rotation_error_has_the_right_gradient(angle: float) -> None:
    assert_gradients_are_right(lambda v: rotation_error_deg(axis_angle_to_matrix(v), matrix(0.0)), rotvec(angle))


def test_the_error_of_a_perfect_pose_has_a_finite_gradient() -> None:
    v, t = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    T = Pose.from_axis_angle(v, t)
    sum(pose_error(T, T.detach())).backward()  # type: ignore[union-attr]
    assert v.grad is not None
    assert t.grad is not None
    assert v.grad.isfinite().all()
    assert t.grad.isfinite().all()


# Cameras

CAMERAS = {
    "pinhole": Camera(640, 480, 500.0, 510.0, 322.0, 241.0),
    "opencv": Camera(640, 480, 500.0, 510.0, 322.0, 241.0, (-0.28, 0.09, 1e-3, -2e-3), "opencv"),
    "opencv with k3": Camera(640, 480, 500.0, 510.0, 322.0, 241.0, (-0.28, 0.09, 1e-3, -2e-3, 0.01), "opencv"),
    "fisheye": Camera(640, 480, 300.0, 310.0, 322.0, 241.0, (-0.03, 0.01, 1e-3, -2e-3), "fisheye"),
}
POINTS = torch.tensor(
    [[0.0, 0.0, 2.0], [1e-9, 0.0, 1.0], [1e-3, 2e-3, 1.0], [0.5, -0.4, 1.5], [-0.9, 0.7, 1.2]]
).double()


@pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())
def test_project_has_the_right_gradient(camera: Camera) -> None:
    leaf = POINTS.clone().requires_grad_()
    assert torch.autograd.gradcheck(camera.project, leaf, eps=1e-6, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())
def test_unproject_has_the_right_gradient(camera: Camera) -> None:
    leaf = camera.project(POINTS).requires_grad_()
    assert torch.autograd.gradcheck(camera.unproject, leaf, eps=1e-4, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())
def test_points_behind_the_camera_send_no_gradient_and_no_nan(camera: Camera) -> None:
    points = torch.tensor([[0.3, 0.1, -1.0], [0.0, 0.0, 0.0], [0.2, 0.1, 1.0]], requires_grad=True)
    camera.project(points).nan_to_num().sum().backward()
    assert points.grad is not None
    assert points.grad[:2].tolist() == [[0.0] * 3] * 2
    assert points.grad[2].isfinite().all()
    assert points.grad[2].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["opencv", "fisheye"])
def test_pixels_without_a_ray_send_no_gradient_and_no_nan(name: str, dtype: torch.dtype) -> None:
    camera = Camera(640, 480, 300.0, 300.0, 320.0, 240.0, (-0.3, 0.0, 0.0, 0.0), name)  # type: ignore[arg-type]
    pixels = [[5000.0, 240.0], [650.0, 241.0], [math.nan, math.nan], [330.0, 250.0]]
    xy = torch.tensor(pixels, dtype=dtype, requires_grad=True)
    rays = camera.unproject(xy)
    assert rays[:3, :2].isnan().all()
    rays.nan_to_num().sum().backward()
    assert xy.grad is not None
    assert xy.grad[:3].tolist() == [[0.0, 0.0]] * 3
    assert xy.grad[3].isfinite().all()
    assert (xy.grad[3] > 0).all()


@pytest.mark.parametrize("w", [1e-17, 0.0, -1e-17])
def test_at_a_half_turn_the_gradient_does_not_ask_on_which_side_rounding_put_w(w: float):
    quat = torch.tensor([w, 1.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    log_quat(quat).sum().backward()
    assert quat.grad is not None
    assert quat.grad[0].item() == pytest.approx(-1.0)
