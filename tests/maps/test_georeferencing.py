"""A map's place on Earth comes from known points or from photos' GPS."""

import io

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Pose
from relograph.maps import MapSettings, Similarity
from relograph.maps.georeferencing import GeoPoints, enu_of, exif_place, georeference

ZURICH = np.array([47.3769, 8.5417, 408.0])


def test_a_minute_of_latitude_is_a_nautical_mile():
    (place,) = enu_of(ZURICH + np.array([[1 / 60, 0.0, 0.0]]), ZURICH)
    assert place[1] == pytest.approx(1852, rel=2e-3)
    assert abs(place[0]) < 1e-6
    assert -0.5 < place[2] < 0.0  # the ground bends away


def places_of(world: np.ndarray, truth: Similarity) -> np.ndarray:
    """Latitude, longitude and altitude of points, by steps of Newton's method with differences."""
    wanted = truth.apply(world).numpy()
    places = np.repeat(ZURICH[None], len(world), axis=0)
    metres = np.array([111_200.0, 111_320.0 * np.cos(np.radians(ZURICH[0])), 1.0])
    for _ in range(20):
        off = wanted - enu_of(places, ZURICH)
        places = places + off[:, [1, 0, 2]] / metres
    return places


def test_the_similarity_is_found_and_its_residuals_are_small():
    world = np.random.default_rng(0).normal(0, 20, (8, 3))
    truth = Similarity(Pose.from_axis_angle([0.0, 0.0, 0.7], [3.0, 4.0, 5.0]), 1.7)
    points = GeoPoints(world, places_of(world, truth))
    found = georeference(points)
    assert found.T_enu_world.scale == pytest.approx(1.7, rel=1e-5)
    assert max(found.residual_m) < 1e-3
    points.latitude_longitude_altitude[3, 0] += 0.01  # a kilometre off
    robust = georeference(points, max_residual_m=10.0)
    assert robust.T_enu_world.scale == pytest.approx(1.7, rel=1e-3)
    assert robust.residual_m[3] > 500
    again = MapSettings.from_json(MapSettings(network_sha256="a", georeference=found).to_json())
    assert again.georeference is not None
    assert_allclose(again.georeference.T_enu_world.matrix(), found.T_enu_world.matrix(), rtol=1e-9)


def test_points_in_a_line_and_gps_that_agrees_with_nothing_are_refused():
    line = np.arange(4.0)[:, None] * [1.0, 0.0, 0.0]
    with pytest.raises(GeometryError, match="do not stand in one line"):
        georeference(GeoPoints(line, places_of(line, Similarity.identity())))
    world = np.random.default_rng(0).normal(0, 20, (8, 3))
    elsewhere = places_of(np.random.default_rng(1).normal(0, 200, (8, 3)), Similarity.identity())
    with pytest.raises(DatasetError, match="whose GPS agrees"):
        georeference(GeoPoints(world, elsewhere), max_residual_m=1.0)


def test_gps_is_read_from_exif():
    exif = Image.Exif()
    exif[0x8825] = {1: "S", 2: (33.0, 51.0, 36.0), 3: "E", 4: (151.0, 12.0, 0.0), 5: b"\x00", 6: 58.5}
    photo = io.BytesIO()
    Image.new("RGB", (16, 16)).save(photo, "JPEG", exif=exif)
    assert exif_place(photo.getvalue()) == pytest.approx((-33.86, 151.2, 58.5))
    plain = io.BytesIO()
    Image.new("RGB", (16, 16)).save(plain, "JPEG")
    assert exif_place(plain.getvalue()) is None
    assert exif_place(b"no photo") is None
