"""Light: how much of a lamp reaches a point, and how bright surfaces are for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from slow_caster import is_blocked
from tiny_rooms import (
    GRAY,
    HEIGHT,
    LAYOUT,
    SIZE_M,
    WIDTH,
    cast,
    handheld_views,
    light_of,
    looking,
    perfect_optics,
    rooms_of,
    shoot,
    unprojected,
)

from relograph.rooms.furniture import Solid, box, cylinder, turn_z
from relograph.rooms.layout import to_tensors
from relograph.rooms.photograph import Effects
from relograph.rooms.raycast import Kernels, light_visibility
from relograph.rooms.world import Rooms

TABLE_TOP = box(2.0, 1.5, 0.70, 1.0, 1.0, 0.04, GRAY)
TILT = np.array([[1, 0, 0], [0, np.cos(0.5), np.sin(0.5)], [0, -np.sin(0.5), np.cos(0.5)]])
SOLIDS = {
    "box": box(2.0, 1.5, 0.0, 0.8, 0.6, 0.9, GRAY),
    "turned box": box(0.0, 0.0, 0.0, 0.8, 0.6, 0.9, GRAY).moved(turn_z(0.6), np.array([2.0, 1.5, 0.0])),
    "tilted slab": box(0.0, 0.0, -0.01, 0.8, 0.8, 0.02, GRAY).moved(TILT, np.array([2.0, 1.5, 1.0])),
    "cylinder": cylinder(2.0, 1.5, 0.0, 0.4, 0.9, GRAY),
}


def visibility(rooms: Rooms, points: np.ndarray, light: int = 0) -> np.ndarray:
    """Share of a light that reaches each of n points."""
    at = torch.from_numpy(points).float()[None].unbind(dim=-1)
    return light_visibility(rooms, LAYOUT.num_boxes, light, at, Kernels())[0].numpy()


def surface_points(solid: Solid) -> tuple[np.ndarray, np.ndarray]:
    """Points all over a solid, and the outward normals there."""
    rng = np.random.default_rng(0)
    points, normals = [], []
    for axis in range(3):
        for side in (-1.0, 1.0):
            at = rng.uniform(-1, 1, (200, 3))
            normal = np.zeros((200, 3))
            if solid.is_cylinder and axis < 2:  # the side, twice
                angle = rng.uniform(0, 2 * np.pi, 200)
                at[:, :2] = normal[:, :2] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            else:
                if solid.is_cylinder:
                    at[:, :2] /= np.sqrt(2)
                at[:, axis] = normal[:, axis] = side
            points.append((at * solid.half_size) @ solid.R.T + solid.center)
            normals.append(normal @ solid.R.T)
    return np.concatenate(points), np.concatenate(normals)


def test_the_floor_under_a_table_gets_less_light_than_the_floor_beside_it():
    under, beside = visibility(rooms_of(TABLE_TOP), np.array([[2.0, 1.5, 0.0], [3.6, 1.5, 0.0]]))
    assert under < 0.01
    assert beside == 1


def test_the_table_itself_and_what_hangs_above_it_are_lit():
    points = np.array([[2.0, 1.5, 0.74], [1.7, 1.2, 0.74], [2.3, 1.5, 1.5]])
    assert_array_equal(visibility(rooms_of(TABLE_TOP), points), 1)


def test_an_empty_room_has_no_shadows():
    points = np.random.default_rng(0).uniform([0, 0, 0], SIZE_M, (500, 3))
    assert_array_equal(visibility(rooms_of(), points), 1)


def test_a_light_is_whole_wherever_nothing_stands_between():
    # A pillar throws its shadow away from the lamp: towards it and to its sides all is light.
    rooms = rooms_of(box(1.0, 1.5, 0.0, 0.2, 0.2, 2.0, GRAY), light_position=(3.0, 1.5, 1.0))
    rng = np.random.default_rng(0)
    before = rng.uniform([1.3, 0.0, 0.0], [4.0, 3.0, 2.5], (200, 3))
    assert_array_equal(visibility(rooms, before), 1)
    behind = rng.uniform([0.0, 1.45, 0.5], [0.8, 1.55, 1.5], (200, 3))
    assert visibility(rooms, behind).max() < 0.05


@pytest.mark.parametrize("light_radius_m", [0.05, 0.2, 0.4])
def test_a_shadow_has_a_soft_edge_that_only_brightens_outwards(light_radius_m):
    x = np.linspace(2.0, 3.6, 321)
    floor = np.stack([x, np.full(321, 1.5), np.zeros(321)], axis=1)
    reaching = visibility(rooms_of(TABLE_TOP, light_radius_m=light_radius_m), floor)
    assert reaching.min() >= 0
    assert reaching.max() <= 1
    assert reaching[0] < 0.05
    assert reaching[-1] == 1
    assert (np.diff(reaching) >= -1e-5).all()
    assert ((reaching > 0.05) & (reaching < 0.95)).sum() >= 2  # an edge, not a step
    # The table's edge at x = 2.5, z = 0.72, seen from the lamp at 2.3 m, falls on x = 2.5 + 0.5 * 0.72 / 1.58.
    assert_allclose(x[np.argmin(np.abs(reaching - 0.5))], 2.5 + 0.5 * 0.72 / 1.58, atol=0.05)


def test_a_large_light_has_softer_shadows_than_a_small_one():
    # A thick table, so that its thickness does not limit the half shadow.
    block = box(2.0, 1.5, 0.4, 1.0, 1.0, 0.5, GRAY)
    x = np.linspace(2.0, 3.9, 381)
    floor = np.stack([x, np.full(381, 1.5), np.zeros(381)], axis=1)

    def width_of_edge(light_radius_m: float) -> int:
        reaching = visibility(rooms_of(block, light_radius_m=light_radius_m), floor)
        return int(((reaching > 0.05) & (reaching < 0.95)).sum())

    assert width_of_edge(0.3) > 2 * width_of_edge(0.03)


@pytest.mark.parametrize("name", SOLIDS)
@pytest.mark.parametrize("light_radius_m", [0.05, 0.4])
def test_a_solid_never_darkens_its_own_lit_faces(name, light_radius_m):
    lamp = np.array([3.4, 2.6, 2.2])
    points, normals = surface_points(SOLIDS[name])
    to_lamp = lamp - points
    facing = (normals * to_lamp).sum(axis=1) / np.linalg.norm(to_lamp, axis=1) > 0.1
    assert facing.sum() > 100
    rooms = rooms_of(SOLIDS[name], light_position=lamp, light_radius_m=light_radius_m)
    assert visibility(rooms, points[facing]).min() > 0.99


@pytest.mark.parametrize("name", SOLIDS)
def test_the_floor_behind_a_solid_is_dark(name):
    # From the lamp through the solid's middle and on to what lies behind.
    lamp = np.array([3.4, 2.6, 2.2])
    middle = SOLIDS[name].center
    behind = lamp + 1.6 * (middle - lamp)
    assert visibility(rooms_of(SOLIDS[name], light_position=lamp), behind[None])[0] < 0.05


def test_hard_shadows_agree_with_a_slow_caster(homes):
    for home in homes[:4]:
        rooms = to_tensors(home, LAYOUT)
        tiny_lamps = replace(rooms, light_radius_m=torch.full_like(rooms.light_radius_m, 1e-4))
        views = handheld_views(home, 1)
        points = unprojected(views, cast(rooms, views).depth_m.reshape(HEIGHT, WIDTH))
        for light in range(2):
            blocked = is_blocked(home, home.light_position[light], points)
            wrong = (visibility(tiny_lamps, points, light) < 0.5) != blocked
            assert wrong.mean() < 0.01, f"{wrong.sum()} of {wrong.size} points differ"


def test_shadows_darken_a_photograph_only_where_something_stands_between(atlas):
    rooms = rooms_of(TABLE_TOP)
    views = looking((0.3, 1.5, 1.2), (1, 0, -0.5))
    optics = perfect_optics()
    bright, depth_m = shoot(rooms, views, atlas, optics, Effects.none())
    shaded, _ = shoot(rooms, views, atlas, optics, replace(Effects.none(), shadows=True))
    assert (shaded <= bright).all()
    points = unprojected(views, depth_m[0])
    below = (np.abs(points[:, :2] - [2.0, 1.5]) < 0.45).all(axis=1) & (points[:, 2] < 0.01)
    lit = visibility(rooms, points) == 1
    difference = (bright.int() - shaded.int()).amax(dim=1).flatten().numpy()
    assert below.sum() > 5
    assert difference[below].min() > 10
    assert difference[lit].max() == 0
    assert lit.mean() > 0.5


def test_light_falls_off_with_distance_and_slant(atlas):
    # The floor straight below the lamp is the brightest place on it, and it gets darker in every direction.
    views = looking((2.0, 1.5, 2.2), (0, 0, -1), up=(0, 1, 0), focal_px=16)
    color = light_of(rooms_of(), views, atlas, shadows=True)
    # Along the middle row, 0.5 m and more from the walls, where corners take nothing away yet.
    row = color[HEIGHT // 2, WIDTH // 2 :, 0]
    assert (row.diff() < 0).all()


def test_twice_the_lamp_is_twice_its_light(atlas):
    def light(gain: float) -> torch.Tensor:
        views = looking((2.0, 1.5, 1.2), (1, 0, 0))
        return light_of(rooms_of(), views, atlas, shadows=True, light_gain=(gain, 1.0, 1.0))

    dark, once, twice = light(0.0), light(1.0), light(2.0)
    assert (once > dark).all()
    assert_allclose(twice - dark, 2 * (once - dark), rtol=1e-3, atol=1e-6)
