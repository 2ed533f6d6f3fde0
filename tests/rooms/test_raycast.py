"""The ray caster against room corners reckoned by hand and against a slow caster written in another way."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from slow_caster import slow_cast
from tiny_rooms import (
    GRAY,
    HEIGHT,
    LAYOUT,
    SIZE_M,
    WIDTH,
    camera_of,
    cast,
    handheld_views,
    home_of,
    looking,
    rooms_of,
    shoot,
    unprojected,
)

from relograph.rooms import raycast
from relograph.rooms.covisibility import project
from relograph.rooms.furniture import box, cylinder, turn_z
from relograph.rooms.layout import Home, to_tensors
from relograph.rooms.photograph import Effects
from relograph.rooms.raycast import Kernels, first_hits, ray_directions
from relograph.rooms.walks import distance_to_solids
from relograph.rooms.world import Rooms, Views


def slots(home: Home) -> list[int | None]:
    """Which of the home's solids stands in each place of the ray caster: boxes, nothing, cylinders, nothing."""
    boxes = [idx for idx, solid in enumerate(home.solids) if not solid.is_cylinder]
    cylinders = [idx for idx, solid in enumerate(home.solids) if solid.is_cylinder]
    return [*boxes, *[None] * (LAYOUT.num_boxes - len(boxes)), *cylinders]


def axis_aligned(center: tuple[float, float, float]) -> list[Views]:
    """Cameras along all six directions, their middle pixel's ray exactly parallel to the walls."""
    principal_px = (WIDTH / 2 + 0.5, HEIGHT / 2 + 0.5)
    level = [looking(center, forward, principal_px=principal_px) for forward in np.eye(3)[:2].tolist()]
    level += [looking(center, forward, principal_px=principal_px) for forward in (-np.eye(3)[:2]).tolist()]
    return level + [looking(center, (0, 0, z), up=(1, 0, 0), principal_px=principal_px) for z in (-1, 1)]


def depth_at(rooms: Rooms, views: Views, *pixels_xy: tuple[float, float]) -> list[float]:
    directions = ray_directions(views, torch.tensor(pixels_xy, dtype=torch.float32))
    return first_hits(rooms, LAYOUT.num_boxes, views.center, directions, Kernels()).depth_m[0].tolist()


# By hand


def test_an_empty_room_has_its_walls_floor_and_ceiling_where_they_are():
    # From 1 m in, 1 m from the right wall, at 1.2 m, along x: the far wall is 3 m off. The focal length is half the
    # width, so the image's left and right edges look 45 degrees aside: at the walls y = 3 (2 m) and y = 0 (1 m).
    # Top and bottom rise and fall 12/16 of the depth: 1.3 m to the ceiling, 1.2 m to the floor.
    views = looking((1.0, 1.0, 1.2), (1, 0, 0))
    depth_m = depth_at(rooms_of(), views, (16, 12), (0, 12), (32, 12), (16, 0), (16, 24))
    assert_allclose(depth_m, [3.0, 2.0, 1.0, 1.3 / 0.75, 1.2 / 0.75], rtol=1e-5)


def test_depth_is_along_the_optical_axis_and_not_along_the_ray():
    # All rays that end on the wall straight ahead have the same depth, however slanted they are.
    views = looking((1.0, 1.5, 1.25), (1, 0, 0), focal_px=40)
    assert_allclose(cast(rooms_of(), views).depth_m, 3.0, rtol=1e-5)


def test_a_box_hides_the_wall_behind_it():
    cupboard = box(3.0, 1.0, 0.0, 0.6, 0.8, 2.0, GRAY)
    views = looking((1.0, 1.0, 1.2), (1, 0, 0))
    # Its front stands at x = 2.7, 0.4 m to both sides: 0.4 / 1.7 of the focal length is 3.76 pixels.
    inside, beside = (16 + 3.7, 12.0), (16 + 3.8, 12.0)
    assert_allclose(depth_at(rooms_of(cupboard), views, (16, 12), inside, beside), [1.7, 1.7, 3.0], rtol=1e-5)


def test_a_turned_box_shows_its_corner():
    pillar = box(0.0, 0.0, 0.0, 0.5, 0.5, 2.0, GRAY).moved(turn_z(np.pi / 4), np.array([3.0, 1.0, 0.0]))
    views = looking((1.0, 1.0, 1.2), (1, 0, 0))
    assert_allclose(depth_at(rooms_of(pillar), views, (16, 12)), [2 - 0.25 * np.sqrt(2)], rtol=1e-5)


def test_a_cylinder_is_round_and_has_flat_ends():
    bin_ = cylinder(3.0, 1.0, 0.0, 0.4, 0.8, GRAY)
    ahead = looking((1.0, 1.0, 0.5), (1, 0, 0))
    # A ray at slope s meets the circle where (d - 2)^2 + (s d)^2 = 0.4^2.
    slope = 2.4 / 16
    a, b, c = 1 + slope**2, -4, 4 - 0.16
    on_side = (-b - np.sqrt(b * b - 4 * a * c)) / (2 * a)
    assert_allclose(depth_at(rooms_of(bin_), ahead, (16, 12), (16 + 2.4, 12)), [1.6, on_side], rtol=1e-5)
    above = looking((3.0, 1.0, 2.0), (0, 0, -1), up=(1, 0, 0))
    # 0.3 m off the middle is still its lid at 0.8 m; 0.7 m off it is the floor.
    assert_allclose(depth_at(rooms_of(bin_), above, (16 + 16 * 0.25, 12), (16 + 16 * 0.35, 12)), [1.2, 2.0], rtol=1e-5)


def test_a_tilted_slab_is_met_at_its_slope():
    tilt = np.arctan(0.5)
    lean = np.array([[np.cos(tilt), 0, np.sin(tilt)], [0, 1, 0], [-np.sin(tilt), 0, np.cos(tilt)]])
    board = box(0, 0, -0.01, 2.0, 1.0, 0.02, GRAY).moved(lean, np.array([2.0, 1.5, 1.0]))
    above = looking((2.0, 1.5, 2.0), (0, 0, -1), up=(0, 1, 0))
    # Its upper face falls 0.5 m a metre towards +x and passes 1 cm / cos(tilt) above its middle.
    middle = 1 - 0.01 / np.cos(tilt)
    slope = 4 / 16  # of the ray, towards +x: the board is met where middle + 0.5 x = depth and x = slope * depth
    assert_allclose(
        depth_at(rooms_of(board), above, (16, 12), (20, 12)), [middle, middle / (1 - 0.5 * slope)], rtol=1e-4
    )


# By another caster


@pytest.mark.parametrize("home_idx", range(0, 12, 2))
def test_depths_and_solids_agree_with_a_slow_caster_that_asks_every_face(homes, home_idx):
    home = homes[home_idx]
    rooms, views = to_tensors(home, LAYOUT), handheld_views(home, 2, seed=home_idx)
    for view in (views[:1], views[1:]):
        hits = cast(rooms, view)
        expected_m, solid_idx = slow_cast(home, view)
        assert np.isfinite(expected_m).all()
        # A ray that grazes an edge may be a hit in float64 and a miss in float32: one in five hundred at the most.
        differs = np.abs(hits.depth_m[0].numpy() - expected_m) > 1e-3 * expected_m
        assert differs.mean() < 0.002, f"{differs.sum()} of {differs.size} pixels differ"
        named = [slots(home).index(idx) for idx in solid_idx]
        assert (hits.solid_idx[0].numpy() != named).mean() < 0.01  # where two surfaces touch, either may be named


def test_points_at_their_depth_lie_on_surfaces(homes):
    for seed, home in enumerate(homes[:4]):
        views = handheld_views(home, 1, seed=seed)
        points = unprojected(views, cast(to_tensors(home, LAYOUT), views).depth_m.reshape(HEIGHT, WIDTH))
        assert np.abs(distance_to_solids(home, points)).max() < 1e-4


def test_the_solids_that_fill_a_home_up_are_never_hit(homes):
    for seed, home in enumerate(homes):
        real = {slot for slot, idx in enumerate(slots(home)) if idx is not None}
        steep_down = looking(handheld_views(home, 1, seed=seed).center[0].tolist(), (0, 0, -1), up=(1, 0, 0))
        for views in (handheld_views(home, 1, seed=seed), steep_down):
            assert set(cast(to_tensors(home, LAYOUT), views).solid_idx.unique().tolist()) <= real


# Rays along the walls


def test_cameras_square_to_the_walls_measure_them_exactly():
    center = (1.5, 1.0, 1.1)
    middle = HEIGHT // 2 * WIDTH + WIDTH // 2
    walls = [SIZE_M[0] - 1.5, SIZE_M[1] - 1.0, 1.5, 1.0, 1.1, SIZE_M[2] - 1.1]
    for views, distance_m in zip(axis_aligned(center), walls, strict=True):
        depth_m = cast(rooms_of(), views).depth_m[0]
        assert_allclose(depth_m[middle], distance_m, rtol=1e-6)


@pytest.mark.parametrize("level_with", ["nothing", "a face", "a middle"])
def test_rays_parallel_to_faces_give_finite_depths_and_no_black_photograph(atlas, level_with):
    # A division by zero would give NaN, which spreads over the whole photograph with the exposure.
    center = (1.5, 1.0, 1.1)
    height = {"nothing": 0.8, "a face": 1.1, "a middle": 2.2}[level_with]
    solids = [box(3.0, 1.0, 0.0, 0.5, 0.5, height, GRAY), cylinder(1.5, 2.5, 0.0, 0.2, height, GRAY)]
    for views in axis_aligned(center):
        images, depth_m = shoot(rooms_of(*solids), views, atlas)
        assert torch.isfinite(depth_m).all()
        assert depth_m.min() > 0
        assert depth_m.max() < np.linalg.norm(SIZE_M)
        assert images.amax(dim=1).min() > 10
        assert_allclose(depth_m[0].flatten(), slow_cast(home_of(*solids), views)[0], rtol=1e-3)


# The lens


def test_rays_agree_with_the_camera_model_of_the_package(homes):
    views = handheld_views(homes[0], 8)
    for one in (views[i : i + 1] for i in range(8)):
        camera = camera_of(one)
        rays = torch.stack(ray_directions(one, raycast.pixel_centers(HEIGHT, WIDTH)), dim=-1)[0].double()
        in_camera = rays @ one.R_room_cam[0].double()
        assert_allclose(in_camera, camera.unproject(camera.pixel_grid()).reshape(-1, 3), atol=3e-5)


def test_projection_agrees_with_the_camera_model_of_the_package(homes):
    rng = np.random.default_rng(0)
    views = handheld_views(homes[0], 8)
    in_camera = torch.from_numpy(rng.uniform([-0.7, -0.7, 0.5], [0.7, 0.7, 4.0], (8, 50, 3)))
    in_camera[..., :2] *= in_camera[..., 2:]
    points = (in_camera @ views.R_room_cam.double().mT + views.center[:, None].double()).float()
    xy, z = project(views, points.unbind(dim=-1))
    for i in range(8):
        assert_allclose(xy[i], camera_of(views[i : i + 1]).project(in_camera[i]), atol=2e-3)
    assert_allclose(z, in_camera[..., 2], rtol=1e-5)


def test_points_behind_the_camera_have_negative_depth_and_finite_coordinates():
    views = looking((1.0, 1.0, 1.0), (1, 0, 0))
    points = torch.tensor([[[0.5, 1.0, 1.0], [1.0, 1.2, 1.0]]])
    xy, z = project(views, points.unbind(dim=-1))
    assert_allclose(z, [[-0.5, 0.0]], atol=1e-6)
    assert torch.isfinite(xy).all()


# Batches and pieces


def test_a_view_is_cast_alike_alone_and_in_company(homes):
    rooms = Rooms.cat([to_tensors(home, LAYOUT) for home in homes[:3]])
    views = Views.cat([handheld_views(home, 1, seed=seed) for seed, home in enumerate(homes[:3])])
    together = cast(rooms, views)
    for i in range(3):
        alone = cast(rooms[i : i + 1], views[i : i + 1])
        assert torch.equal(together.depth_m[i], alone.depth_m[0])
        assert torch.equal(together.solid_idx[i], alone.solid_idx[0])


@pytest.mark.parametrize("tile", [5, 13])
def test_the_size_of_the_pieces_that_a_cpu_works_on_changes_nothing(homes, atlas, monkeypatch, tile):
    views, rooms = handheld_views(homes[1], 1), to_tensors(homes[1], LAYOUT)
    whole = shoot(rooms, views, atlas, effects=Effects())
    monkeypatch.setattr(raycast, "CPU_TILE", tile)
    in_pieces = shoot(rooms, views, atlas, effects=Effects())
    assert torch.equal(whole[0], in_pieces[0])
    assert torch.equal(whole[1], in_pieces[1])
