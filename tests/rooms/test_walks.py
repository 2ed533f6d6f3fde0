"""Walks: a person strolls through a home with a phone, and never through furniture."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from tiny_rooms import GRAY, home_of

from relograph.rooms.furniture import Solid, box, cylinder, turn_z
from relograph.rooms.layout import CELL_M
from relograph.rooms.walks import (
    MIN_DISTANCE_M,
    STEP_S,
    Walk,
    distance_to_solids,
    floor_path,
    gaze_direction,
    look_rotation,
    scattered_views,
    smooth,
    steps_from,
    views_of,
    walk,
    wander,
)

NUM_STEPS = 1000


@pytest.fixture(scope="module")
def walks(homes) -> list[tuple[int, Walk]]:
    """Walks of half a minute in several homes, two of each, with the home's number."""
    return [(idx, walk(homes[idx], np.random.default_rng([idx, k]), NUM_STEPS)) for idx in range(6) for k in range(2)]


def surface_points(solid: Solid, spacing_m: float) -> np.ndarray:
    """Points all over the surface of a solid, no farther apart than the spacing."""
    half = solid.half_size
    if solid.is_cylinder:
        around = np.arange(0, 2 * np.pi, spacing_m / half[0])
        rim = np.stack([np.cos(around), np.sin(around)], axis=1)
        heights = np.linspace(-half[2], half[2], int(2 * half[2] / spacing_m) + 2)
        parts = [np.column_stack([half[0] * rim, np.full(len(rim), z)]) for z in heights]
        for radius in np.linspace(0, half[0], int(half[0] / spacing_m) + 2):
            parts += [np.column_stack([radius * rim, np.full(len(rim), z)]) for z in (-half[2], half[2])]
        local = np.concatenate(parts)
    else:
        axes = [np.linspace(-h, h, int(2 * h / spacing_m) + 2) for h in half]
        faces = [[*axes[:axis], half[axis] * np.array([-1, 1]), *axes[axis + 1 :]] for axis in range(3)]
        local = np.concatenate([np.stack(np.meshgrid(*face), axis=-1).reshape(-1, 3) for face in faces])
    return local @ solid.R.T + solid.center


# Distance


def test_distance_to_surfaces_agrees_with_points_scattered_over_them():
    tilt = Rotation.from_euler("xyz", [0.3, 0.5, 0.2]).as_matrix()
    solids = [
        box(0.0, 0.0, 0.0, 0.4, 0.2, 0.6, GRAY).moved(turn_z(0.5), np.array([1.0, 1.0, 0.0])),
        box(0.0, 0.0, -0.05, 0.5, 0.4, 0.1, GRAY).moved(tilt, np.array([2.8, 2.0, 1.2])),
        cylinder(2.0, 0.8, 0.3, 0.25, 0.5, GRAY),
    ]
    home = home_of(*solids)
    scattered = np.concatenate([surface_points(solid, 0.02) for solid in home.solids])
    points = np.random.default_rng(0).uniform([0.05, 0.05, 0.05], home.size_m - 0.05, (300, 3))
    expected_m = cKDTree(scattered).query(points)[0]
    distance_m = distance_to_solids(home, points)
    assert_allclose(np.abs(distance_m), expected_m, atol=0.015)


def test_distance_is_negative_inside_furniture_and_outside_the_home():
    home = home_of(box(1.0, 1.0, 0.0, 0.4, 0.4, 1.0, GRAY), cylinder(3.0, 2.0, 0.0, 0.3, 1.0, GRAY))
    points = np.array([[1.0, 1.0, 0.5], [3.0, 2.0, 0.5], [-0.2, 1.0, 1.0], [2.0, 1.0, 1.25]])
    # The middle of a 0.4 m box and of a cylinder of radius 0.3 m, 0.2 m outside a wall, and in the air.
    over_rim = np.hypot(np.hypot(1.0, 1.0) - 0.3, 0.25)
    over_edge = np.hypot(0.8, 0.25)
    assert_allclose(distance_to_solids(home, points), [-0.2, -0.3, -0.2, min(over_rim, over_edge, 1.0)])


# Where the camera is


def test_a_walk_never_comes_near_furniture_or_walls(homes, walks):
    for idx, path in walks:
        assert distance_to_solids(homes[idx], path.center).min() > MIN_DISTANCE_M


def test_scattered_cameras_never_come_near_furniture_or_walls(homes):
    for seed, home in enumerate(homes):
        center, _ = scattered_views(home, np.random.default_rng(seed), 500)
        assert distance_to_solids(home, center).min() > MIN_DISTANCE_M


def test_scattered_cameras_reach_every_corner_of_the_walkable_floor(homes):
    center, R_room_cam = scattered_views(homes[0], np.random.default_rng(0), 2000)
    nearest_m = cKDTree(center[:, :2]).query(homes[0].cell_centers())[0]
    assert nearest_m.max() < 0.5
    yaw = np.arctan2(R_room_cam[:, 1, 2], R_room_cam[:, 0, 2])
    assert (np.histogram(yaw, bins=8, range=(-np.pi, np.pi))[0] > 40).all()


def test_a_walk_has_the_speed_of_a_person(walks):
    for _, path in walks:
        speed = np.linalg.norm(np.diff(path.center, axis=0), axis=1) / STEP_S
        assert speed.max() < 1.5
        assert 0.15 < np.median(speed) < 1.0


def test_a_walk_stands_still_now_and_then(walks):
    for _, path in walks:
        # Over a third of a second, so that the shaking hand does not count.
        moved = np.linalg.norm(path.center[10:, :2] - path.center[:-10, :2], axis=1) / (10 * STEP_S)
        assert 0.02 < (moved < 0.05).mean() < 0.5


def test_a_walk_goes_somewhere(walks):
    for _, path in walks:
        assert np.ptp(path.center[:, :2], axis=0).max() > 1
        assert 5 < np.linalg.norm(np.diff(path.center[:, :2], axis=0), axis=1).sum() < 35


def test_a_phone_is_held_at_the_height_of_a_person(walks):
    heights = np.concatenate([path.center[:, 2] for _, path in walks])
    assert heights.min() > 1.0
    assert heights.max() < 1.9  # doorways are 2.05 m high


def test_the_hand_shakes_but_a_little(walks):
    for _, path in walks:
        # What is left after a tenth of a second's mean: millimetres.
        rest = path.center - smooth(path.center, 3)
        assert 2e-4 < np.linalg.norm(rest[30:-30], axis=1).mean() < 1e-2


# Where it looks


def test_rotations_are_proper(walks):
    for _, path in walks:
        R = path.R_room_cam
        assert_allclose(np.swapaxes(R, 1, 2) @ R, np.broadcast_to(np.eye(3), R.shape), atol=1e-9)
        assert_allclose(np.linalg.det(R), 1)


def test_a_phone_is_held_upright(homes, walks):
    for _, path in walks:
        assert path.R_room_cam[:, 2, 1].max() < -0.6  # the camera's y axis points down
        roll = np.arcsin(path.R_room_cam[:, 2, 0])  # of the camera's x axis against the floor
        assert np.degrees(np.abs(roll)).max() < 20
    _, R_room_cam = scattered_views(homes[0], np.random.default_rng(0), 500)
    assert R_room_cam[:, 2, 1].max() < -0.5


def test_the_camera_turns_no_faster_than_a_person(walks):
    for _, path in walks:
        turn = Rotation.from_matrix(path.R_room_cam[:-1]).inv() * Rotation.from_matrix(path.R_room_cam[1:])
        assert np.degrees(turn.magnitude()).max() / STEP_S < 200


def test_the_camera_looks_around(walks):
    for _, path in walks:
        forward = path.R_room_cam[:, :2, 2]
        yaw = np.degrees(np.unwrap(np.arctan2(forward[:, 1], forward[:, 0])))
        assert np.ptp(yaw) > 60
        # The eyes are not fixed to the feet: often the view is far from the way.
        way = np.diff(smooth(path.center[:, :2], 10), axis=0)
        along = (way * forward[1:]).sum(axis=1) / np.linalg.norm(way, axis=1)
        assert (along < 0.5).mean() > 0.1


def test_walks_of_other_seeds_are_other_walks(homes):
    first, again, other = (walk(homes[0], np.random.default_rng(seed), 60) for seed in (0, 0, 1))
    assert_array_equal(first.center, again.center)
    assert_array_equal(first.R_room_cam, again.R_room_cam)
    assert np.abs(first.center - other.center).max() > 0.1


def test_angular_velocity_agrees_with_scipy(walks):
    _, path = walks[0]
    turn = Rotation.from_matrix(path.R_room_cam[:-1]).inv() * Rotation.from_matrix(path.R_room_cam[1:])
    # The sine of small angles: at 100 degrees a second a step turns by 3 degrees, whose sine is 0.05 % less.
    assert_allclose(path.angular_velocity()[:-1], turn.as_rotvec() / STEP_S, rtol=2e-3, atol=2e-3)
    assert_array_equal(path.angular_velocity()[-1], 0)


def test_a_camera_looks_where_it_is_told():
    forward = np.array([[1.0, 0.0, 0.0], [0.0, -2.0, 0.0], [1.0, 1.0, -1.0]])
    R_room_cam = look_rotation(forward, np.zeros(3))
    assert_allclose(R_room_cam[:, :, 2], forward / np.linalg.norm(forward, axis=1, keepdims=True))
    # Along +x, with z up: right is -y, down is -z.
    assert_allclose(R_room_cam[0], [[0, 0, 1], [-1, 0, 0], [0, -1, 0]], atol=1e-12)


def test_a_roll_turns_the_camera_about_its_view():
    R_level, R_rolled = (look_rotation(np.array([[1.0, 2.0, -0.5]]), np.array([roll]))[0] for roll in (0.0, 0.3))
    assert_allclose(Rotation.from_matrix(R_level.T @ R_rolled).as_rotvec(), [0, 0, 0.3], atol=1e-9)


def test_a_gaze_is_never_steeper_than_a_phone_is_held():
    rng = np.random.default_rng(0)
    center, target = rng.uniform(0, 4, (500, 3)), rng.uniform(0, 4, (500, 3))
    gaze = gaze_direction(center, target)
    assert_allclose(np.linalg.norm(gaze, axis=1), 1)
    slope = gaze[:, 2] / np.linalg.norm(gaze[:, :2], axis=1)
    far = np.linalg.norm((target - center)[:, :2], axis=1) > 0.3
    assert slope[far].min() >= -0.8 - 1e-9
    assert slope[far].max() <= 0.35 + 1e-9
    level = np.abs((target - center)[:, 2]) < 0.3 * np.linalg.norm((target - center)[:, :2], axis=1)
    exact = (target - center)[far & level]
    assert_allclose(gaze[far & level], exact / np.linalg.norm(exact, axis=1, keepdims=True))


# The way over the floor


def test_steps_count_the_shortest_way_around_a_wall():
    walkable = np.zeros((7, 7), dtype=bool)
    walkable[1:6, 1:6] = True
    walkable[3, 1:5] = False  # a wall with a gap at the far end
    distance = steps_from(walkable, (1, 1))
    assert distance[5, 1] == 4 + 4 + 4  # along to the gap, through, and back
    assert distance[1, 1] == 0
    assert distance[3, 1] == -1
    assert distance[0, 0] == -1


def test_a_way_stays_on_walkable_cells_and_is_long_enough(homes):
    for home in homes[:4]:
        path = floor_path(home, np.random.default_rng(0), 12.0)
        cells = np.floor(path / CELL_M).astype(int)
        assert home.walkable[cells[:, 0], cells[:, 1]].all()
        assert np.abs(np.diff(cells, axis=0)).max() <= 1
        assert np.linalg.norm(np.diff(path, axis=0), axis=1).sum() >= 12.0


def test_smoothing_keeps_straight_lines_and_means():
    line = np.linspace([0.0, 5.0], [10.0, -5.0], 101)
    assert_allclose(smooth(line, 4)[15:-15], line[15:-15], atol=1e-9)
    assert_array_equal(smooth(line, 0.0), line)
    spikes = np.zeros((101, 1))
    spikes[50] = 1
    assert_allclose(smooth(spikes, 4).sum(), 1)
    assert_allclose(smooth(spikes, 4)[50, 0], 1 / (4 * np.sqrt(2 * np.pi)), rtol=0.02)


def test_wandering_is_smooth_motion_about_zero():
    motion = wander(np.random.default_rng(0), 400, 60, 0.08, dims=3)
    assert motion.shape == (400, 3)
    assert_allclose(motion.mean(), 0, atol=0.02)
    assert 0.03 < motion.std() < 0.13
    assert np.abs(np.diff(motion, axis=0)).max() < 0.01


def test_cameras_for_the_ray_caster_are_those_of_the_walk(walks):
    _, path = walks[0]
    views = views_of(path.center, path.R_room_cam, np.full(NUM_STEPS, 20.0), np.zeros((NUM_STEPS, 2)), 24, 32)
    assert_allclose(views.center, path.center, rtol=1e-6)
    assert_allclose(views.R_room_cam, path.R_room_cam, atol=1e-6)
    assert_array_equal(views.principal_px[0], [16, 12])
