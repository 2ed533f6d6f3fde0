"""What an edge should say, and the way back from it to a pose: against scipy, and where rotations are hard."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.geometry import Pose, quat_wxyz_to_matrix
from relograph.graphs import Target, absolute_pose, absolute_targets, crosses_the_jump, relative_targets

TARGETS = get_args(Target)
ANGLES = ["anywhere", "close together", "no turn at all", "near half a turn", "half a turn"]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def cameras(angles: str = "anywhere", num_graphs: int = 20, num_nodes: int = 4, seed: int = 0) -> Pose:
    """Poses [B, N], float64, within metres of the origin; `angles` says how far they are turned from the world."""
    rng = np.random.default_rng(seed)
    num = num_graphs * num_nodes
    axes = Rotation.random(num, rng=rng).apply([0.0, 0.0, 1.0])
    size = {
        "anywhere": Rotation.random(num, rng=rng).magnitude(),
        "close together": rng.uniform(0.0, 1e-6, num),
        "no turn at all": np.zeros(num),
        "near half a turn": math.pi - rng.uniform(0.0, 1e-6, num),
        "half a turn": np.full(num, math.pi),
    }[angles]
    centres = rng.uniform(-5.0, 5.0, (num, 3))
    return Pose.from_axis_angle(torch.tensor(axes * size[:, None]), centres).reshape(num_graphs, num_nodes)


def one_camera(turn_deg: float, axis: tuple[float, float, float], centre: tuple[float, float, float]) -> Pose:
    return Pose.from_axis_angle(math.radians(turn_deg) * torch.tensor(axis, dtype=torch.float64), list(centre))


def graph_of(*T_world_cam: Pose) -> Pose:
    """One graph, [1, N]."""
    return Pose.stack(T_world_cam).reshape(1, -1)


# What an edge should say


def test_a_camera_half_a_metre_ahead_and_turned_right_as_seen_from_another() -> None:
    # Camera 0 stands at (1, 2, 3), turned by 90 degrees about z: its x axis is the world's y. Camera 1 stands half a
    # metre along that axis and is turned by 60 degrees about their common z axis once more.
    graph = graph_of(one_camera(90, (0, 0, 1), (1, 2, 3)), one_camera(150, (0, 0, 1), (1, 2.5, 3)))
    sixth = math.pi / 6  # half of 60 degrees, as a log quaternion has it
    camera, world = relative_targets(graph, "camera"), relative_targets(graph, "world")
    assert_allclose(camera[0, 0, 1], [0.5, 0, 0, 0, 0, sixth], atol=1e-12)
    # Back: camera 0 is behind, and camera 1's x axis is turned from the way there by 60 degrees.
    back = [-0.5 * math.cos(math.pi / 3), 0.5 * math.sin(math.pi / 3), 0, 0, 0, -sixth]
    assert_allclose(camera[0, 1, 0], back, atol=1e-12)
    assert_allclose(world[0, 0, 1], [0, 0.5, 0, 0, 0, sixth], atol=1e-12)
    assert_allclose(world[0, 1, 0], [0, -0.5, 0, 0, 0, -sixth], atol=1e-12)


def test_camera_targets_agree_with_scipy() -> None:
    T_world_cam = cameras(num_graphs=1, num_nodes=5)
    targets = relative_targets(T_world_cam, "camera")
    for i in range(5):
        R_i, c_i = Rotation.from_matrix(T_world_cam.R[0, i].numpy()), T_world_cam.t[0, i].numpy()
        for j in range(5):
            R_j, c_j = Rotation.from_matrix(T_world_cam.R[0, j].numpy()), T_world_cam.t[0, j].numpy()
            expected = [*R_i.inv().apply(c_j - c_i), *(R_i.inv() * R_j).as_rotvec() / 2]
            assert_allclose(targets[0, i, j], expected, atol=1e-12)


def test_world_targets_are_the_papers_differences_of_absolute_poses_by_scipy() -> None:
    T_world_cam = cameras(num_graphs=1, num_nodes=5)
    targets = relative_targets(T_world_cam, "world")
    absolute = [
        np.concatenate([t.numpy(), Rotation.from_matrix(R.numpy()).as_rotvec() / 2])
        for R, t in zip(T_world_cam.R[0], T_world_cam.t[0], strict=True)
    ]
    assert_allclose(absolute_targets(T_world_cam)[0], absolute, atol=1e-12)
    for i in range(5):
        for j in range(5):
            assert_allclose(targets[0, i, j], absolute[j] - absolute[i], atol=1e-12)


@pytest.mark.parametrize("target", TARGETS)
def test_a_camera_is_no_way_from_itself(target: Target) -> None:
    targets = relative_targets(cameras(), target)
    assert_allclose(targets.diagonal(dim1=1, dim2=2), 0, atol=1e-12)


# The world frame


@pytest.mark.parametrize("angles", ANGLES)
def test_camera_targets_do_not_know_where_the_world_frame_is(angles: str) -> None:
    T_world_cam = cameras("anywhere")
    T_moved_world = cameras(angles, num_graphs=1, num_nodes=1, seed=1)[0, 0]
    moved = T_moved_world @ T_world_cam
    assert_allclose(relative_targets(moved, "camera"), relative_targets(T_world_cam, "camera"), atol=1e-11)


def test_world_targets_change_with_the_world_frame() -> None:
    T_world_cam = cameras()
    turned = one_camera(90, (0, 0, 1), (0, 0, 0)) @ T_world_cam
    difference = (relative_targets(turned, "world") - relative_targets(T_world_cam, "world")).abs()
    off_diagonal = ~torch.eye(4, dtype=torch.bool)
    assert difference[:, off_diagonal][..., :3].amax(dim=-1).min() > 0.01
    assert difference[:, off_diagonal][..., 3:].amax(dim=-1).min() > 0.01


def test_world_targets_only_change_in_translation_by_the_turn_of_the_world_frame() -> None:
    T_world_cam, T_moved_world = cameras(), one_camera(90, (0, 0, 1), (7, 8, 9))
    before = relative_targets(T_world_cam, "world")[..., :3]
    after = relative_targets(T_moved_world @ T_world_cam, "world")[..., :3]
    assert_allclose(after, torch.stack([-before[..., 1], before[..., 0], before[..., 2]], dim=-1), atol=1e-12)


# The way back


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("angles", ANGLES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_perfect_prediction_is_the_exact_absolute_pose(target: Target, angles: str, dtype: torch.dtype) -> None:
    T_world_cam = cameras(angles).to(dtype)
    edges = relative_targets(T_world_cam, target)
    T_world_query = absolute_pose(edges[:, 1:, 0], T_world_cam[:, 1:], target)  # one from each reference
    expected = T_world_cam[:, :1].expand(-1, 3)
    torch.testing.assert_close(T_world_query.R, expected.R, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(T_world_query.t, expected.t, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("target", TARGETS)
def test_saying_nothing_is_copying_the_reference(target: Target) -> None:
    T_world_ref = cameras()
    copied = absolute_pose(torch.zeros(20, 4, 6, dtype=torch.float64), T_world_ref, target)
    torch.testing.assert_close(copied.matrix(), T_world_ref.matrix(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("target", TARGETS)
def test_a_rotation_said_the_long_way_round_is_the_same_rotation(target: Target) -> None:
    T_world_ref = one_camera(40, (0, 0, 1), (1, 2, 3))
    short = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.0, math.radians(30) / 2], dtype=torch.float64)
    long = short - torch.tensor([0, 0, 0, 0, 0, math.pi], dtype=torch.float64)  # by -q: a whole turn less
    poses = [absolute_pose(said, T_world_ref, target) for said in (short, long)]
    assert_allclose(poses[1].matrix(), poses[0].matrix(), atol=1e-12)
    assert_allclose(poses[0].R, Rotation.from_rotvec([0, 0, 70], degrees=True).as_matrix(), atol=1e-12)


# Signs and half turns


@pytest.mark.parametrize("target", TARGETS)
def test_a_quaternion_and_its_negative_have_the_same_targets(target: Target) -> None:
    quat_wxyz = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centres = cameras(num_graphs=3).t
    plus, minus = (Pose(quat_wxyz_to_matrix(sign * quat_wxyz), centres) for sign in (1, -1))
    assert torch.equal(relative_targets(plus, target), relative_targets(minus, target))


def test_cameras_back_to_back_have_one_logarithm_whatever_the_last_digit_says() -> None:
    for turn_deg in (180.0, math.nextafter(180.0, 0.0), math.nextafter(180.0, 360.0)):
        graph = graph_of(one_camera(0, (0, 1, 0), (0, 0, 0)), one_camera(turn_deg, (0, 1, 0), (0, 0, 0)))
        for target in TARGETS:
            there = relative_targets(graph, target)[0, 0, 1]
            assert_allclose(there, [0, 0, 0, 0, math.pi / 2, 0], atol=1e-12)


def test_an_edge_crosses_the_jump_where_absolute_logs_go_the_long_way_round() -> None:
    # Cameras turned by 10, 170 and 190 degrees about z: the last two are 20 degrees apart, but 190 reads as -170.
    graph = graph_of(*(one_camera(turn, (0, 0, 1), (0, 0, 0)) for turn in (10, 170, 190)))
    crossing = crosses_the_jump(graph)[0]
    assert crossing.int().tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    world, camera = relative_targets(graph, "world")[0, 1, 2], relative_targets(graph, "camera")[0, 1, 2]
    assert world[5].item() == pytest.approx(math.radians(-340) / 2)
    assert camera[5].item() == pytest.approx(math.radians(20) / 2)


def test_edges_that_do_not_cross_the_jump_say_the_rotation_between_cameras_that_share_an_axis() -> None:
    turns_deg = torch.arange(-175.0, 180.0, 25.0)
    graph = graph_of(*(one_camera(float(turn), (0, 0, 1), (0, 0, 0)) for turn in turns_deg))
    world, camera = (relative_targets(graph, target)[..., 5] for target in ("world", "camera"))
    agree = (world - camera).abs() < 1e-9
    assert torch.equal(agree, ~crosses_the_jump(graph))
    assert 0 < agree.sum() < agree.numel()
