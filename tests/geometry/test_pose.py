"""Poses: the laws of a group, golden values, batches and what is refused."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.spatial.transform import RigidTransform, Rotation
from strategies import TOLERANCE, assert_poses_close, poses

from relograph.errors import GeometryError
from relograph.geometry import Pose, check_rotation

# The laws of a group


@given(poses(3))
def test_composition_is_associative(drawn: tuple[Pose, ...]) -> None:
    T_a_b, T_b_c, T_c_d = drawn
    assert_poses_close((T_a_b @ T_b_c) @ T_c_d, T_a_b @ (T_b_c @ T_c_d))


@given(poses(1))
def test_identity_changes_nothing_from_either_side(drawn: tuple[Pose, ...]) -> None:
    (T_a_b,) = drawn
    identity = Pose.identity(*T_a_b.batch_shape, dtype=T_a_b.dtype)
    assert_poses_close(T_a_b @ identity, T_a_b)
    assert_poses_close(identity @ T_a_b, T_a_b)


@given(poses(1))
def test_inverse_undoes_the_pose_from_either_side(drawn: tuple[Pose, ...]) -> None:
    (T_a_b,) = drawn
    identity = Pose.identity(*T_a_b.batch_shape, dtype=T_a_b.dtype)
    assert_poses_close(T_a_b @ T_a_b.inverse(), identity)
    assert_poses_close(T_a_b.inverse() @ T_a_b, identity)
    assert_poses_close(T_a_b.inverse().inverse(), T_a_b)


@given(poses(2))
def test_inverse_of_a_product_is_the_reversed_product_of_inverses(drawn: tuple[Pose, ...]) -> None:
    T_a_b, T_b_c = drawn
    assert_poses_close((T_a_b @ T_b_c).inverse(), T_b_c.inverse() @ T_a_b.inverse())


@given(poses(3))
def test_a_product_moves_points_as_its_factors_do_in_turn(drawn: tuple[Pose, ...]) -> None:
    T_a_b, T_b_c, other = drawn
    points_c = other.t
    in_turn = T_a_b.apply(T_b_c.apply(points_c))
    tolerance = TOLERANCE[T_a_b.dtype]
    torch.testing.assert_close((T_a_b @ T_b_c).apply(points_c), in_turn, atol=tolerance, rtol=tolerance)


@given(poses(3))
def test_poses_keep_distances(drawn: tuple[Pose, ...]) -> None:
    T_a_b, p, q = drawn
    tolerance = TOLERANCE[T_a_b.dtype]
    moved = (T_a_b.apply(p.t) - T_a_b.apply(q.t)).norm(dim=-1)
    torch.testing.assert_close(moved, (p.t - q.t).norm(dim=-1), atol=tolerance, rtol=tolerance)


@given(poses(1))
def test_every_description_leads_back_to_the_same_pose(drawn: tuple[Pose, ...]) -> None:
    (T,) = drawn
    assert_poses_close(Pose.from_matrix(T.matrix()), T)
    assert_poses_close(Pose.from_matrix(T.matrix()[..., :3, :]), T)
    assert_poses_close(Pose.from_quat_wxyz(T.quat_wxyz(), T.t), T)
    assert_poses_close(Pose.from_quat_xyzw(T.quat_xyzw(), T.t), T)
    assert_poses_close(Pose.from_axis_angle(T.axis_angle(), T.t), T)
    assert_poses_close(Pose.from_log_quat(T.log_quat(), T.t), T)
    assert_poses_close(Pose.from_6d(T.rotation_6d(), T.t), T)


# Golden values from scipy


def test_products_and_inverses_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    theirs = [
        RigidTransform.from_components(rng.uniform(-5, 5, size=(10, 3)), Rotation.random(10, rng=rng)) for _ in range(2)
    ]
    T_a_b, T_b_c = (Pose.from_matrix(transform.as_matrix()) for transform in theirs)
    np.testing.assert_allclose((T_a_b @ T_b_c).matrix(), (theirs[0] * theirs[1]).as_matrix(), atol=1e-14)
    np.testing.assert_allclose(T_a_b.inverse().matrix(), theirs[0].inv().as_matrix(), atol=1e-14)
    np.testing.assert_allclose(T_a_b.apply(np.ones(3)), theirs[0].apply(np.ones(3)), atol=1e-14)


def test_quaternion_orders_agree_with_scipy() -> None:
    rotation = Rotation.from_quat([0.1, -0.2, 0.3, 0.9])  # scipy: xyzw, normalised
    T = Pose.from_quat_xyzw([0.1, -0.2, 0.3, 0.9], [0, 0, 0])
    np.testing.assert_allclose(T.R, rotation.as_matrix(), atol=1e-15)
    np.testing.assert_allclose(T.quat_xyzw(), rotation.as_quat(), atol=1e-15)
    np.testing.assert_allclose(T.quat_wxyz(), rotation.as_quat(scalar_first=True), atol=1e-15)
    np.testing.assert_allclose(T.axis_angle(), rotation.as_rotvec(), atol=1e-15)
    np.testing.assert_allclose(T.log_quat(), rotation.as_rotvec() / 2, atol=1e-15)


# Points


def test_one_point_for_each_pose_and_many_points_for_each_pose() -> None:
    T = Pose.from_rotation_and_translation(np.eye(3), [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    assert T.apply([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]).tolist() == [[2.0, 1.0, 1.0], [5.0, 7.0, 5.0]]
    many = torch.arange(2 * 4 * 5 * 3, dtype=torch.float64).reshape(2, 4, 5, 3)
    moved = T.apply(many)
    torch.testing.assert_close(moved[0], many[0] + torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(moved[1], many[1] + torch.tensor([0.0, 2.0, 0.0]))


def test_one_pose_moves_an_image_of_points_as_it_moves_each() -> None:
    T = Pose.from_axis_angle([0.3, -0.2, 2.0], [1.0, 2.0, 3.0])
    image = torch.tensor(np.random.default_rng(1).normal(size=(3, 4, 3)))
    each = torch.stack([T.apply(point) for point in image.reshape(-1, 3)]).reshape(3, 4, 3)
    torch.testing.assert_close(T.apply(image), each, atol=1e-14, rtol=0)


def test_points_of_a_list_take_the_precision_of_the_pose() -> None:
    assert Pose.identity(dtype=torch.float32).apply([1, 2, 3]).dtype == torch.float32


def test_an_empty_set_of_points_stays_empty() -> None:
    assert Pose.identity().apply(torch.zeros(0, 3, dtype=torch.float64)).shape == (0, 3)


# Batches


def test_products_broadcast_over_batches() -> None:
    T_world_ref = Pose.from_axis_angle(torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(3))
    T_ref_query = Pose.from_axis_angle(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.ones(3))
    product = T_world_ref @ T_ref_query
    assert product.batch_shape == (5, 4)
    assert_poses_close(product[3, 2], T_world_ref[3, 0] @ T_ref_query[2])


def test_indexing_reaches_batch_dimensions_only() -> None:
    T = Pose.from_axis_angle(torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(2)), torch.zeros(3))
    assert_poses_close(T[1], Pose(T.R[1], T.t[1]))
    assert_poses_close(T[:, 2], Pose(T.R[:, 2], T.t[:, 2]))
    assert_poses_close(T[..., 0], Pose(T.R[:, 0], T.t[:, 0]))
    assert_poses_close(T[torch.tensor([True, False])], T[:1])
    assert_poses_close(T[None], T.reshape(1, 2, 3))
    with pytest.raises(IndexError):
        T[0, 0, 0]


def test_stack_and_cat_undo_iteration() -> None:
    T = Pose.from_axis_angle(torch.randn(4, 3, generator=torch.Generator().manual_seed(3)), torch.zeros(3))
    assert len(T) == 4
    assert_poses_close(Pose.stack(list(T)), T)
    assert_poses_close(Pose.cat([T[:1], T[1:]]), T)
    assert Pose.stack([T, T], dim=-1).batch_shape == (4, 2)
    assert_poses_close(Pose.stack([T, T], dim=-1)[:, 1], T)
    assert_poses_close(Pose.cat([T[:, None], T[:, None]], dim=-1), T[:, None].expand(4, 2))
    with pytest.raises(TypeError, match="single pose"):
        len(T[0])


def test_detached_poses_carry_no_gradient() -> None:
    T = Pose.from_axis_angle(torch.zeros(3, requires_grad=True), torch.zeros(3))
    assert T.R.requires_grad
    assert not T.detach().R.requires_grad


def test_a_pose_does_not_change() -> None:
    array = np.array([1.0, 2.0, 3.0])
    T = Pose.from_rotation_and_translation(np.eye(3), array)
    array[0] = 99.0
    assert T.t.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        T.t = torch.zeros(3)  # type: ignore[misc]


# Precision


@pytest.mark.parametrize(
    ("t", "dtype"),
    [
        ([1, 2, 3], torch.float64),
        (np.array([1, 2, 3]), torch.float64),
        (np.array([1.0, 2.0, 3.0]), torch.float64),
        (np.array([1.0, 2.0, 3.0], dtype=np.float32), torch.float32),
        (torch.tensor([1.0, 2.0, 3.0]), torch.float32),
        (torch.tensor([1, 2, 3]), torch.float64),
    ],
)
def test_floating_inputs_keep_their_precision_and_the_rest_is_float64(t: object, dtype: torch.dtype) -> None:
    T = Pose.from_rotation_and_translation(torch.eye(3), t)  # type: ignore[arg-type]
    assert T.dtype == dtype
    assert T.t.tolist() == [1.0, 2.0, 3.0]


def test_the_printed_pose_says_position_and_rotation() -> None:
    quarter_turn = Pose.from_axis_angle([0.0, 0.0, math.pi / 2], [1.0, 2.5, -3.0])
    assert repr(quarter_turn) == "Pose(t=(1, 2.5, -3) m, R=90 deg about (0, 0, 1), float64, cpu)"
    assert repr(Pose.identity(2, 3)) == "Pose(batch_shape=(2, 3), float64, cpu)"


# What is refused


@pytest.mark.parametrize(
    ("R_shape", "t_shape"), [((3, 4), (3,)), ((3, 3), (4,)), ((2, 3, 3), (5, 3)), ((3,), (3,)), ((9,), (3,))]
)
def test_shapes_that_are_no_pose_are_named(R_shape: tuple[int, ...], t_shape: tuple[int, ...]) -> None:
    with pytest.raises(GeometryError) as raised:
        Pose.from_rotation_and_translation(np.zeros(R_shape), np.zeros(t_shape))
    message = str(raised.value)
    assert message.startswith("A pose is a rotation [..., 3, 3] and a translation [..., 3]")
    assert f"{list(R_shape)} and {list(t_shape)}" in message


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (Pose.from_quat_wxyz, 4),
        (Pose.from_quat_xyzw, 4),
        (Pose.from_axis_angle, 3),
        (Pose.from_log_quat, 3),
        (Pose.from_6d, 6),
    ],
)
def test_descriptions_of_the_wrong_size_are_refused(make: Callable[..., Pose], size: int) -> None:
    with pytest.raises(GeometryError, match=rf"has {size} numbers, found an array of shape \[2, 5\]"):
        make(np.ones((2, 5)), np.zeros(3))


def test_a_matrix_that_is_neither_4x4_nor_3x4_is_refused() -> None:
    with pytest.raises(GeometryError, match=r"found shape \[3, 3\]"):
        Pose.from_matrix(np.eye(3))


def test_points_with_coordinates_not_last_are_refused() -> None:
    with pytest.raises(GeometryError, match=r"A point has 3 numbers, found an array of shape \[3, 7\]"):
        Pose.identity().apply(np.zeros((3, 7)))


def test_a_rotation_with_few_digits_passes_the_check_as_it_came() -> None:
    rounded = Rotation.random(10, rng=np.random.default_rng(5)).as_matrix().round(4)
    np.testing.assert_array_equal(check_rotation(rounded, "pose.txt"), rounded)


@pytest.mark.parametrize(
    ("R", "words"),
    [
        (np.eye(3) * [1.0, 1.0, -1.0], "mirrored"),
        (np.eye(3)[[1, 0, 2]], "mirrored"),
        (np.eye(3) * 1.001, "orthonormal"),
        (np.ones((3, 3)), "orthonormal"),
        (np.zeros((3, 3)), "orthonormal"),
        (np.full((3, 3), math.nan), "NaN"),
        (np.diag([1.0, 1.0, math.inf]), "infinity"),
        (np.eye(4), r"shape \[4, 4\]"),
        (np.stack([np.eye(3), -np.eye(3)]), "mirrored"),
    ],
)
def test_matrices_that_are_no_rotation_are_refused_with_their_place(R: np.ndarray, words: str) -> None:
    with pytest.raises(GeometryError, match=words) as raised:
        check_rotation(R, "seq-01/frame-000000.pose.txt")
    assert str(raised.value).startswith("seq-01/frame-000000.pose.txt: expected")
    assert "\n" not in str(raised.value)


# Devices


def test_nothing_falls_back_to_the_cpu() -> None:
    # The meta device has shapes and no numbers. A tensor that some function made on the CPU would not mix with its own.
    T = Pose.identity(4, dtype=torch.float32, device="meta")
    for description in (T.quat_wxyz(), T.quat_xyzw(), T.axis_angle(), T.log_quat(), T.rotation_6d(), T.matrix()):
        assert description.device.type == "meta"
    assert T.apply(np.zeros((4, 3))).device.type == "meta"
    assert (T @ T.inverse()).device.type == "meta"
    assert Pose.from_quat_wxyz(T.quat_wxyz(), [0, 0, 0]).device.type == "meta"
    assert Pose.from_log_quat([0, 0, 0], T.t).device.type == "meta"


def test_a_matrix_whose_squares_overflow_is_no_rotation():
    with pytest.raises(GeometryError, match="orthonormal"):
        check_rotation(torch.full((3, 3), 1e200, dtype=torch.float64), where="here")


def test_poses_are_not_rounded_within_autocast() -> None:
    """A training in bfloat16 must not learn from poses in bfloat16: they would be a centimetre off."""
    generator = torch.Generator().manual_seed(0)
    T_a_b, T_b_c = (
        Pose.from_axis_angle(*(torch.randn(20, 3, generator=generator) for _ in range(2))) for _ in range(2)
    )
    points = torch.randn(20, 5, 3, generator=generator)
    plain = (T_a_b @ T_b_c, T_a_b.inverse(), T_a_b.apply(points), T_a_b.apply(points[:, 0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = (T_a_b @ T_b_c, T_a_b.inverse(), T_a_b.apply(points), T_a_b.apply(points[:, 0]))
    for one, other in zip(plain, cast, strict=True):
        for a, b in ((one.R, other.R), (one.t, other.t)) if isinstance(one, Pose) else ((one, other),):
            assert torch.equal(a, b)
