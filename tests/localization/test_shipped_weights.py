"""What the weights in the package say in a place that they never saw: a painted cube with exact poses."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

import painted_box
from relograph.geometry import Pose, pose_error
from relograph.localization.localizer import Answer, Compared, Localizer
from relograph.localization.map_features import MapFeatures
from relograph.localization.photos import PhotoInMemory
from relograph.models.shipped import load_match_gnn, weights_are_shipped

pytestmark = [
    pytest.mark.skipif(not weights_are_shipped(), reason="this build ships no weights"),
    pytest.mark.usefixtures("shapes_unchecked"),
]

CAMERA = painted_box.CAMERA
T_WORLD_QUERY = painted_box.poses(2, 3, 0.1, 0.08)
WALLS = painted_box.painting(0)


def map_of(T_world_cam: Pose) -> MapFeatures:
    photos = [
        PhotoInMemory(f"{row}.png", painted_box.photo(WALLS, pose), pose, CAMERA)
        for row, pose in enumerate(T_world_cam)
    ]
    return MapFeatures.of(photos, load_match_gnn())


@pytest.fixture(scope="module")
def cube() -> MapFeatures:
    return map_of(painted_box.poses(1, 6))


@pytest.fixture(scope="module")
def localizer(cube: MapFeatures) -> Localizer:
    return Localizer(cube)


def photo(query: int = 0) -> np.ndarray:
    return painted_box.photo(WALLS, T_WORLD_QUERY[query])


@pytest.mark.parametrize("query", [0, 2])
def test_photos_of_the_place_are_localized(localizer: Localizer, query: int):
    answer = localizer.localize(photo(query), camera=CAMERA)
    assert answer.localized
    assert answer.confidence > 0.9
    assert answer.scale_observable
    error = pose_error(answer.T_world_cam, T_WORLD_QUERY[query])
    assert float(error.translation_error_m) < 0.01
    assert float(error.rotation_error_deg) < 0.2


def test_wrong_poses_of_the_references_make_every_edge_say_something_worse(localizer: Localizer, cube: MapFeatures):
    """Not only by where a reference stands: an edge is asked for the way from its reference to the query."""

    def mean_error_of_edges_m(T_world_map: Pose) -> float:
        shuffled = Localizer(replace(cube, T_world_cam=T_world_map), localizer.network)
        compared = shuffled.compare(photo(), references=range(6))
        assert isinstance(compared, Compared)
        T_ref_query = compared.T_world_ref.inverse() @ compared.T_world_edges
        T_true = cube.T_world_cam.inverse() @ T_WORLD_QUERY[0]
        return float(pose_error(T_ref_query, T_true).translation_error_m.mean())

    right = mean_error_of_edges_m(cube.T_world_cam)
    assert right < 0.1
    for order in ([1, 2, 3, 4, 5, 0], [3, 0, 5, 1, 2, 4]):
        assert mean_error_of_edges_m(cube.T_world_cam[order]) > 4 * right


def what_shows_nothing_of_the_place() -> dict[str, np.ndarray]:
    seen = photo()
    blurred = Image.fromarray(seen).filter(ImageFilter.GaussianBlur(12))
    T_turned_round = T_WORLD_QUERY[0] @ Pose.from_axis_angle([0.0, np.pi, 0.0], [0.0, 0.0, 0.0])
    return {
        "black": np.zeros_like(seen),
        "white": np.full_like(seen, 255),
        "noise": np.random.default_rng(0).integers(0, 256, seen.shape, dtype=np.uint8),
        "blurred": np.asarray(blurred),
        "mirrored": np.ascontiguousarray(seen[:, ::-1]),
        "another place": painted_box.photo(painted_box.painting(7), T_WORLD_QUERY[0]),
        "what no reference sees": painted_box.photo(WALLS, T_turned_round),
    }


@pytest.mark.parametrize("kind", what_shows_nothing_of_the_place())
def test_what_shows_nothing_of_the_place_is_refused(localizer: Localizer, kind: str):
    answer = localizer.localize(what_shows_nothing_of_the_place()[kind], camera=CAMERA)
    assert not answer.localized
    assert answer.T_world_cam is None
    assert answer.reason.startswith("Not sure enough")


def assert_only_the_distance_is_open(answer: Answer) -> None:
    assert answer.T_best is not None
    assert float(pose_error(answer.T_best, T_WORLD_QUERY[0]).rotation_error_deg) < 0.5
    assert not answer.scale_observable
    assert "too close together" in answer.reason


def test_references_at_one_point_tell_where_the_camera_looks_and_say_that_the_distance_is_open():
    at_one_point = map_of(painted_box.poses(1, 6, spread_m=0.0))
    assert_only_the_distance_is_open(Localizer(at_one_point).localize(photo(), camera=CAMERA))


def test_one_reference_tells_where_the_camera_looks_and_says_that_the_distance_is_open(cube: MapFeatures):
    answer = Localizer(cube, num_references=1).localize(photo(), camera=CAMERA)
    assert len(answer.references) == 1
    assert_only_the_distance_is_open(answer)
