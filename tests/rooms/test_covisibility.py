"""Covisibility against hand-made rooms and against rays cast from the other camera to each point."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from slow_caster import meets_box, meets_cylinder
from tiny_rooms import GRAY, HEIGHT, LAYOUT, WIDTH, camera_of, cast, handheld_views, looking, rooms_of, unprojected

from relograph.rooms import covisibility
from relograph.rooms.furniture import box
from relograph.rooms.layout import Home, to_tensors
from relograph.rooms.world import Rooms, Views


def share(rooms: Rooms, views_a: Views, views_b: Views, height: int = HEIGHT, width: int = WIDTH) -> float:
    """The share of view A that view B sees."""
    depth_a_m, depth_b_m = (
        cast(rooms, views, height, width).depth_m.reshape(1, height, width) for views in (views_a, views_b)
    )
    return float(covisibility(views_a, depth_a_m, views_b, depth_b_m)[0])


def exact_share(home: Home, views_a: Views, depth_a_m: torch.Tensor, views_b: Views) -> float:
    """The share of the points of A that fall into image B and have nothing between them and B, in float64."""
    points = unprojected(views_a, depth_a_m)
    center_b = views_b.center[0].double().numpy()
    in_b = torch.from_numpy((points - center_b) @ views_b.R_room_cam[0].double().numpy())
    xy = camera_of(views_b).project(in_b).numpy()
    inside = (xy >= 0).all(axis=1) & (xy[:, 0] < WIDTH) & (xy[:, 1] < HEIGHT)  # NaN, behind the camera, is not inside
    hidden = np.zeros(len(points), dtype=bool)
    for solid in home.solids[1:]:
        meets = (meets_cylinder if solid.is_cylinder else meets_box)(center_b, points - center_b, solid)
        hidden |= meets.min(axis=0) < 1 - 1e-4
    return float((inside & ~hidden).mean())


def test_a_view_sees_all_of_itself(homes):
    for seed, home in enumerate(homes[:4]):
        views = handheld_views(home, 1, seed=seed)
        assert share(to_tensors(home, LAYOUT), views, views) > 0.99


def test_views_in_opposite_directions_share_nothing():
    ahead, back = looking((2.0, 1.5, 1.2), (1, 0, 0), focal_px=30), looking((2.0, 1.5, 1.2), (-1, 0, 0), focal_px=30)
    assert share(rooms_of(), ahead, back) == 0
    assert share(rooms_of(), back, ahead) == 0


def test_a_close_view_is_seen_by_a_wide_one_and_not_the_other_way_round():
    # From the same place, with twice the focal length: a quarter of the wide view.
    wide, close = (looking((1.0, 1.5, 1.25), (1, 0, 0), focal_px=focal_px) for focal_px in (30, 60))
    assert share(rooms_of(), close, wide) == 1
    assert_allclose(share(rooms_of(), wide, close), 0.25, atol=0.02)


def test_sideways_views_share_what_lies_between():
    # Both square to the wall x = 4 at 3 m, 0.8 m apart; 3 m x 32 / 60 are 1.6 m of wall: half of it is shared.
    left, right = (looking((1.0, y, 1.25), (1, 0, 0), focal_px=60) for y in (1.9, 1.1))
    assert_allclose(share(rooms_of(), left, right), 0.5, atol=0.02)
    assert_allclose(share(rooms_of(), right, left), 0.5, atol=0.02)


def test_what_stands_between_hides_the_wall():
    # A board close before camera B fills its image; the wall that A sees is behind it.
    board = box(2.0, 1.1, 0.0, 0.05, 1.2, 2.5, GRAY)
    camera_a, camera_b = (
        looking((2.6, 1.1, 1.25), (1, 0, 0), focal_px=30),
        looking((1.2, 1.1, 1.25), (1, 0, 0), focal_px=30),
    )
    assert share(rooms_of(), camera_a, camera_b) > 0.9
    assert share(rooms_of(board), camera_a, camera_b) == 0


@pytest.mark.parametrize("home_idx", range(4))
def test_it_agrees_with_rays_cast_from_the_other_camera(homes, home_idx):
    home = homes[home_idx]
    rooms, views = to_tensors(home, LAYOUT), handheld_views(home, 8, seed=home_idx)
    depth_m = cast(rooms[torch.zeros(8, dtype=torch.long)], views).depth_m.reshape(8, HEIGHT, WIDTH)
    difference, seen = [], []
    for a in range(8):
        others = torch.tensor([b for b in range(8) if b != a])
        again = torch.full((7,), a)
        shares = covisibility(views[again], depth_m[again], views[others], depth_m[others])
        assert shares.min() >= 0
        assert shares.max() <= 1
        for b, found in zip(others.tolist(), shares.tolist(), strict=True):
            exact = exact_share(home, views[a : a + 1], depth_m[a], views[b : b + 1])
            difference.append(found - exact)
            seen.append(exact)
    assert max(seen) > 0.3  # or there would be nothing to compare
    # At 24 x 32 a surface seen at a slant differs from pixel to pixel by more than the tolerance: some of it is missed.
    assert np.abs(difference).mean() < 0.02
    assert max(difference) < 0.1
    assert min(difference) > -0.25


def test_images_may_have_different_sizes(homes):
    rooms = to_tensors(homes[0], LAYOUT)
    fine = handheld_views(homes[0], 1, height=48, width=64)
    coarse = Views(fine.R_room_cam, fine.center, fine.focal_px / 2, fine.principal_px / 2, fine.distortion)
    depth_fine_m = cast(rooms, fine, 48, 64).depth_m.reshape(1, 48, 64)
    depth_coarse_m = cast(rooms, coarse).depth_m.reshape(1, HEIGHT, WIDTH)
    assert covisibility(fine, depth_fine_m, coarse, depth_coarse_m)[0] > 0.9


def test_a_wider_tolerance_never_sees_less(homes):
    rooms, views = to_tensors(homes[1], LAYOUT), handheld_views(homes[1], 2, seed=3)
    depth_m = cast(rooms[torch.zeros(2, dtype=torch.long)], views).depth_m.reshape(2, HEIGHT, WIDTH)
    shares = [
        float(covisibility(views[:1], depth_m[:1], views[1:], depth_m[1:], tolerance=tolerance)[0])
        for tolerance in (0.01, 0.05, 0.5)
    ]
    assert shares == sorted(shares)
