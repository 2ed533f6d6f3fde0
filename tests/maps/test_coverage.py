"""What photos of a map see from above."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from maps.made_maps import CAMERA, made_map, use_generated_features
from relograph.geometry import Pose
from relograph.maps import Map
from relograph.maps.coverage import SHADES, draw_coverage, reach_of, seen_from_above
from relograph.maps.records import MapFrame, with_poses

TO_GROUND = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # right is the world's x, ahead its z; y is down
HALF_ANGLE = math.atan(CAMERA.width / 2 / CAMERA.fx)  # 28 degrees


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Map:
    with pytest.MonkeyPatch.context() as patch:
        use_generated_features(patch)
        return made_map(tmp_path_factory.mktemp("maps") / "m", 2)


def cameras(some: Map, *poses: tuple[list[float], list[float]]) -> list[MapFrame]:
    rotations, centers = zip(*poses, strict=True)
    return with_poses([some.frames[0]] * len(poses), Pose.from_axis_angle(list(rotations), list(centers)))


def place(angle: float, distance: float) -> tuple[float, float]:
    """Seen from the origin, to the right of straight ahead."""
    return distance * math.sin(angle), distance * math.cos(angle)


def test_a_photo_sees_its_angle_of_view_up_to_the_reach(some: Map):
    seen = seen_from_above(cameras(some, ([0.0, 0.0, 0.0], [0.0, 1.4, 0.0])), TO_GROUND, 3.0)
    for sign in (-1, 1):
        assert seen.at(*place(sign * 0.9 * HALF_ANGLE, 2.0)) == 1
        assert seen.at(*place(sign * 1.1 * HALF_ANGLE, 2.0)) == 0
    assert seen.at(0.0, 2.9) == 1
    assert seen.at(0.0, 3.05) == 0
    assert seen.at(0.0, -0.05) == 0


def test_photos_that_look_at_one_place_add_up(some: Map):
    across = ([0.0, math.pi, 0.0], [0.0, 0.0, 4.0])
    seen = seen_from_above(cameras(some, ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), across), TO_GROUND, 3.0)
    assert [seen.at(0.0, z) for z in (0.5, 2.0, 3.5)] == [1, 2, 1]


def test_a_photo_of_the_floor_sees_what_is_below_it(some: Map):
    down = ([-math.pi / 2, 0.0, 0.0], [0.0, 0.0, 0.0])
    seen = seen_from_above(cameras(some, down), TO_GROUND, 3.0)
    half_x, half_z = (3.0 * half / 36.0 for half in (16.0, 12.0))  # where rays to corners, 36 px long, end
    for x, z in ((0.9, 0.9), (-0.9, 0.9), (0.9, -0.9), (-0.9, -0.9), (0.9, 0.0), (0.0, -0.9), (0.0, 0.0)):
        assert seen.at(x * half_x, z * half_z) == 1
    assert seen.high[0] - seen.low[0] < 2 * 1.3 * half_x
    assert seen.high[1] - seen.low[1] < 2 * 1.3 * half_z


def test_a_camera_of_which_nothing_is_known_sees_what_most_do(some: Map):
    (frame,) = cameras(some, ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]))
    seen = seen_from_above([replace(frame, camera_line="")], TO_GROUND, 3.0)
    half = math.atan(0.5 / 0.85)
    assert seen.at(*place(0.95 * half, 2.0)) == 1
    assert seen.at(*place(1.05 * half, 2.0)) == 0


def test_of_a_large_map_some_photos_count_for_the_others(some: Map, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("relograph.maps.coverage.PHOTOS_SHADED", 4)
    seen = seen_from_above(cameras(some, *[([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])] * 20), TO_GROUND, 3.0)
    assert seen.at(0.0, 1.0) == 20


def test_how_far_photos_see_goes_with_the_size_of_the_map():
    one, room, city = (np.array([[0.0, 0.0], [0.0, extent]]) for extent in (0.0, 5.0, 1000.0))
    assert [reach_of(centers, scale_is_known=True) for centers in (one, room, city)] == [3.0, 3.0, 50.0]
    assert [reach_of(centers, scale_is_known=False) for centers in (one, room)] == [1.0, 2.5]


def test_the_picture_is_darker_where_more_photos_look(some: Map, tmp_path: Path):
    draw_coverage(some, tmp_path / "above.png")
    pixels = np.asarray(Image.open(tmp_path / "above.png").convert("RGB")).astype(int)
    few, many = (np.array(ImageColor.getrgb(shade)) for shade in SHADES)
    by_one, by_both = (
        int((np.abs(pixels - (few + share * (many - few))).max(axis=-1) <= 1).sum()) for share in (0.0, 1 / 4)
    )
    assert by_both > 4 * by_one > 1000  # 10 cm apart, they see almost the same
