"""Poses on Earth, against places and turns that are known without our code."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from relograph.geometry import Pose
from relograph.maps import Map, Similarity
from relograph.maps.georeferencing import enu_of, place_of_enu, pose_on_earth
from relograph.maps.records import Georeference
from relograph.serving.wording import geopose
from serving.running_services import NETWORK, running


def georeferenced(latitude_deg: float, longitude_deg: float, T_enu_world: Similarity | None = None) -> Georeference:
    return Georeference(
        latitude_deg=latitude_deg,
        longitude_deg=longitude_deg,
        altitude_m=100.0,
        T_enu_world=T_enu_world or Similarity.identity(),
        residual_m=(),
    )


@pytest.mark.parametrize(
    "place", [(47.3769, 8.5417, 408.0), (-33.9, 151.2, -12.0), (0.0, 180.0, 0.0), (89.9, 10.0, 5.0)]
)
@pytest.mark.parametrize("away", [(0.0, 0.0, 0.0), (300.0, -200.0, 50.0), (-20_000.0, 9_000.0, 700.0)])
def test_a_place_comes_back_from_metres_east_north_and_up(place: tuple[float, ...], away: tuple[float, ...]):
    origin = np.array(place)
    found = place_of_enu(np.array(away), origin)
    assert_allclose(enu_of(found[None], origin)[0], away, atol=1e-6)


def test_a_level_camera_that_looks_north_is_turned_by_a_quarter_about_east():
    # Camera axes right, down, forward are east, down, north: x stays, y goes to -z and z to y. That is a turn by
    # -90 degrees about x: (sin(-45), 0, 0, cos(-45)).
    R_enu_cam = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
    pose = Pose.from_rotation_and_translation(R_enu_cam, [0.0, 0.0, 2.0])
    said = geopose(georeferenced(47.0, 8.0), pose, "opencv")
    assert (said.position.lat, said.position.lon) == (pytest.approx(47.0, abs=1e-12), pytest.approx(8.0, abs=1e-12))
    assert said.position.h == pytest.approx(102.0, abs=1e-6)
    quaternion = said.quaternion
    half = math.sqrt(0.5)
    assert_allclose([quaternion.x, quaternion.y, quaternion.z, quaternion.w], [-half, 0.0, 0.0, half], atol=1e-12)


def test_a_camera_along_ros_axes_that_looks_east_is_not_turned_at_all():
    said = geopose(georeferenced(10.0, 20.0), Pose.identity(), "ros")  # forward, left, up: east, north, up
    assert said.quaternion.model_dump() == {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}
    assert geopose(georeferenced(10.0, 20.0), Pose.identity(), "unity") is None
    assert geopose(None, Pose.identity(), "opencv") is None


def test_up_is_up_at_the_camera_and_not_at_the_map_s_origin():
    # A quarter of the Earth east along the equator up has turned by 90 degrees about north: what points up at the
    # origin points west there.
    radius_m = 6378137.0
    far = Pose.from_rotation_and_translation(np.eye(3), [radius_m, 0.0, -radius_m])
    origin = Georeference(
        latitude_deg=0.0, longitude_deg=0.0, altitude_m=0.0, T_enu_world=Similarity.identity(), residual_m=()
    )
    place, T_enu_cam = pose_on_earth(origin, far)
    assert_allclose(place, [0.0, 90.0, 0.0], atol=1e-6)
    assert_allclose(T_enu_cam.apply([0.0, 0.0, 1.0]), [-1.0, 0.0, 0.0], atol=1e-9)  # west
    assert_allclose(T_enu_cam.apply([0.0, 1.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-9)


def test_a_world_that_lies_turned_and_scaled_on_earth_is_taken_into_account():
    # The map's x axis points north, its unit is half a metre: ten units ahead are five metres north.
    T_enu_world = Similarity(Pose.from_axis_angle([0.0, 0.0, math.pi / 2], [0.0, 0.0, 0.0]), scale=0.5)
    said = geopose(georeferenced(0.0, 0.0, T_enu_world), Pose.from_axis_angle([0.0, 0.0, 0.0], [10.0, 0.0, 0.0]), "ros")
    metres_a_degree = math.pi / 180 * 6335439.327  # the meridian's radius of curvature at the equator
    assert said.position.lat * metres_a_degree == pytest.approx(5.0, abs=1e-3)
    assert said.position.lon == pytest.approx(0.0, abs=1e-12)
    assert said.quaternion.z == pytest.approx(math.sqrt(0.5))


def test_answers_in_a_georeferenced_map_have_a_geopose(kitchen: str):
    Map.open(kitchen, network=NETWORK).set_georeference(georeferenced(47.0, 8.0))
    with running(kitchen) as service:
        assert service.client.get("/v1/maps/kitchen").json()["georeferenced"]
        said = service.localize().json()
        assert said["localized"]
        assert said["geopose"]["position"]["lat"] == pytest.approx(47.0, abs=1e-3)
        assert set(said["geopose"]["quaternion"]) == {"x", "y", "z", "w"}
