"""Photos in other forms, sparser maps: what they show stays where pose and camera say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from evaluation.made_places import painted_place
from localization.small_networks import small_network
from relograph.evaluation.conditions import OTHER_PHOTOS, SPARSE_MAPS, WRONG_FOCALS, Condition, condition_groups
from relograph.evaluation.place import PosedPhotos
from relograph.evaluation.place_localizer import OurMap
from relograph.geometry import Camera, Pose

WIDTH, HEIGHT = 160, 120
CAMERA = Camera(WIDTH, HEIGHT, 150.0, 140.0, 77.0, 63.0, (0.04, -0.01, 0.0, 0.0), "opencv")
T_WORLD_CAM = Pose.from_axis_angle([[0.3, -0.2, 1.1]], [[1.0, 2.0, 3.0]])


def photo_of_its_own_places(row: int) -> np.ndarray:
    """Every pixel tells where it is: its column in red, its row in green."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    return np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)


PHOTOS = PosedPhotos(("a",), T_WORLD_CAM, (CAMERA,), photo_of_its_own_places)


IN_COLOUR = [condition for condition in OTHER_PHOTOS if condition.form.has_colour]


@pytest.mark.parametrize("condition", IN_COLOUR, ids=lambda condition: condition.name)
def test_a_point_of_the_world_shows_the_same_in_another_form(condition: Condition):
    points_cam = torch.tensor([[0.1, 0.05, 1.0], [-0.1, 0.12, 1.0], [0.2, -0.3, 2.0]], dtype=torch.float64)
    points_world = T_WORLD_CAM[0].apply(points_cam)
    photos = condition.form.of(PHOTOS)
    (camera,), pixels = photos.cameras, photos.read(0)
    assert pixels.shape == (camera.height, camera.width, 3)
    xy_before = CAMERA.project(points_cam).numpy()
    xy_now = camera.project(photos.T_world_cam[0].inverse().apply(points_world)).numpy()
    # A pixel is half a pixel around its middle; the mean of two columns is rounded to one of them as well.
    atol = 0.51 if condition.form.scale == 1.0 else 1.51
    for before, (x, y) in zip(xy_before, xy_now, strict=True):
        assert_allclose(pixels[int(y), int(x), :2] + 0.5, before, atol=atol)


def test_forms_are_wide_upright_and_small():
    sizes = {condition.name: condition.form.of(PHOTOS).read(0).shape[:2] for condition in OTHER_PHOTOS}
    assert sizes == {
        "turned left": (160, 120),
        "turned right": (160, 120),
        "upside down": (120, 160),
        "cut upright": (120, 90),
        "cut to the middle": (84, 112),
        "half as large": (60, 80),
        "without colour": (120, 160),
    }


def test_a_focal_length_that_is_told_wrong_changes_nothing_else():
    wrong = {condition.name: condition.form.of(PHOTOS) for condition in WRONG_FOCALS}
    told = {name: photos.cameras[0] for name, photos in wrong.items()}
    assert told["f 20% too short"] == replace(CAMERA, fx=120.0, fy=112.0)
    assert told["f 25% too long"] == replace(CAMERA, fx=187.5, fy=175.0)
    for photos in wrong.values():
        assert_close(photos.T_world_cam.R, T_WORLD_CAM.R)
        assert np.array_equal(photos.read(0), PHOTOS.read(0))


def test_wrong_focal_lengths_change_nothing_where_none_is_told():
    assert {focal for focal in ("given", "searched", "none") if WRONG_FOCALS[0].changes(focal)} == {"given"}
    assert all(OTHER_PHOTOS[0].changes(focal) for focal in ("given", "searched", "none"))


def test_a_photo_without_colour_has_its_luminance_in_all_channels():
    (form,) = (condition.form for condition in OTHER_PHOTOS if not condition.form.has_colour)
    photos = form.of(PHOTOS)
    red, green, _ = photo_of_its_own_places(0).astype(float).transpose(2, 0, 1)  # blue is 0
    assert_allclose(photos.read(0), (0.299 * red + 0.587 * green)[..., None].repeat(3, axis=2), atol=0.51)
    assert photos.cameras == PHOTOS.cameras
    assert_close(photos.T_world_cam.matrix(), PHOTOS.T_world_cam.matrix())


@pytest.mark.parametrize("num_queries", [1, 5, 12])
def test_every_group_of_conditions_asks_for_every_query_once(num_queries: int):
    for group in condition_groups(7, (1, 2, 7, 16)):
        asked = [row for condition in group for row in condition.rows(num_queries)]
        assert sorted(asked) == list(range(num_queries))


@pytest.mark.parametrize("condition", SPARSE_MAPS, ids=lambda condition: condition.name)
def test_features_of_a_sparser_map_are_those_of_its_photos(condition: Condition):
    place = painted_place(num_map=5)
    whole = OurMap.of(place.map, small_network()).features
    sparse, photos = condition.map_features(whole), condition.map_photos(place.map)
    assert sparse.names == photos.names == place.map.names[:: condition.every_of_map]
    last = len(sparse) - 1
    (_, _, found), (_, _, expected) = (
        next(iter(features.take([row], torch.device("cpu"))))
        for features, row in ((sparse, last), (whole, last * condition.every_of_map))
    )
    assert torch.equal(found.fine, expected.fine)
    assert_close(sparse.T_world_cam.t, photos.T_world_cam.t)
    descriptor = whole.descriptors[last * condition.every_of_map]
    assert sparse.nearest(descriptor, 1)[0] == [last]


def test_a_number_of_references_that_is_usual_is_no_other_condition():
    (*_, counts) = condition_groups(4, (1, 4, 32))
    assert [condition.num_references for condition in counts] == [1, 32]
    assert replace(counts[0], first=0, every=1).rows(2) == range(2)
