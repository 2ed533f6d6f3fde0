"""Overlap of frusta where geometry tells the answer, and beside the overlap that depth decides."""

import math

import pytest
import torch
from scipy.stats import spearmanr

from relograph.geometry import Pose
from relograph.retrieval import frustum_overlap
from relograph.rooms import RoomStream, StreamConfig
from relograph.rooms.photograph import Effects
from rooms.tiny_rooms import tiny_atlas

HERE = Pose.identity()


def turned(angle_deg: float, axis: tuple[float, float, float] = (0.0, 1.0, 0.0)) -> Pose:
    return Pose.from_axis_angle([math.radians(angle_deg) * a for a in axis], [0.0, 0.0, 0.0])


def moved(x: float, y: float, z: float) -> Pose:
    return Pose.from_axis_angle([0.0, 0.0, 0.0], [x, y, z])


def test_a_camera_sees_all_that_it_sees():
    assert float(frustum_overlap(HERE, HERE)) == pytest.approx(1.0)


def test_cameras_back_to_back_see_nothing_in_common_and_face_to_face_little():
    assert float(frustum_overlap(HERE, turned(180.0))) == 0.0
    facing = Pose.from_axis_angle([0.0, math.pi, 0.0], [0.0, 0.0, 4.5])  # the same space, from behind
    assert float(frustum_overlap(HERE, facing)) < 0.15


def test_the_overlap_falls_with_the_angle_and_ends_with_the_field_of_view():
    overlap = [float(frustum_overlap(HERE, turned(angle))) for angle in range(0, 70, 10)]
    assert overlap == sorted(overlap, reverse=True)
    assert len(set(overlap)) == len(overlap)
    assert overlap[-1] == 0.0
    assert overlap[3] == pytest.approx(0.5, abs=0.05)  # turned by half the field of view: half of the columns


def test_the_overlap_falls_with_steps_aside_or_ahead_and_hardly_with_steps_back():
    for direction in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        overlap = [float(frustum_overlap(HERE, moved(*(step * d for d in direction)))) for step in (0.0, 0.5, 1.0, 2.0)]
        assert overlap == sorted(overlap, reverse=True)
        assert overlap[-1] < 0.6
    one_step_back = moved(0.0, 0.0, -1.0)
    assert float(frustum_overlap(HERE, one_step_back)) > 0.9
    assert float(frustum_overlap(one_step_back, HERE)) < 0.6


def test_the_world_frame_and_the_scale_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    axis_angle, t = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    T_world_b = Pose.from_axis_angle(0.3 * axis_angle, t)
    T_new_world = Pose.from_axis_angle([0.5, -1.0, 2.0], [3.0, -7.0, 1.0])
    overlap = frustum_overlap(HERE, T_world_b)
    assert overlap.max() > 0.3
    torch.testing.assert_close(frustum_overlap(T_new_world, T_new_world @ T_world_b), overlap)
    larger = Pose(T_world_b.R, 10 * T_world_b.t)
    torch.testing.assert_close(frustum_overlap(HERE, larger, near_m=5.0, far_m=40.0), overlap)


def test_batches_broadcast():
    poses = Pose.stack([HERE, moved(0.5, 0.0, 0.0), turned(20.0)]).to(torch.float32)
    table = frustum_overlap(poses[:, None], poses[None, :])
    assert table.shape == (3, 3)
    assert table.dtype == torch.float32
    assert float(table[1, 2]) == pytest.approx(float(frustum_overlap(poses[1], poses[2])), abs=1e-6)


def test_the_overlap_ranks_views_of_furnished_rooms_as_their_depth_does():
    """The share of pixels seen in both views, by ray casting, knows what stands where; poses alone come close."""
    config = StreamConfig(
        image_height=24,
        image_width=32,
        graphs_per_batch=16,
        num_homes=4,
        views_per_home=48,
        overlap=(0.0, 1.0),
        effects=Effects.none(),
    )
    batch = next(iter(RoomStream(config, atlas=tiny_atlas())))
    from_poses = frustum_overlap(batch.T_world_cam[:, :1], batch.T_world_cam)
    torch.testing.assert_close(from_poses[:, 0], torch.ones(16))
    assert spearmanr(from_poses[:, 1:].flatten(), batch.overlap[:, 1:].flatten()).statistic > 0.8
