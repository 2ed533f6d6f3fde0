"""COLMAP's camera models, checked against pycolmap's own projection."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera
from relograph.scenes.camera_models import (
    camera_from_colmap,
    camera_line,
    camera_to_colmap,
    parse_camera_file,
    parse_camera_line,
)

MODELS = {
    "SIMPLE_PINHOLE": [500.0, 310.0, 250.0],
    "PINHOLE": [500.0, 510.0, 310.0, 250.0],
    "SIMPLE_RADIAL": [500.0, 310.0, 250.0, 0.05],
    "RADIAL": [500.0, 310.0, 250.0, 0.05, -0.02],
    "OPENCV": [500.0, 510.0, 310.0, 250.0, 0.05, -0.02, 0.003, -0.004],
    "FULL_OPENCV": [500.0, 510.0, 310.0, 250.0, 0.05, -0.02, 0.003, -0.004, 0.01, 0.0, 0.0, 0.0],
    "SIMPLE_RADIAL_FISHEYE": [500.0, 310.0, 250.0, 0.05],
    "RADIAL_FISHEYE": [500.0, 310.0, 250.0, 0.05, -0.02],
    "OPENCV_FISHEYE": [500.0, 510.0, 310.0, 250.0, 0.05, -0.02, 0.003, -0.004],
}


@pytest.mark.parametrize("model", MODELS)
def test_points_project_where_pycolmap_puts_them(model):
    pycolmap = pytest.importorskip("pycolmap")
    theirs = pycolmap.Camera(model=model, width=640, height=480, params=MODELS[model])
    points_cam = np.random.default_rng(0).uniform([-0.5, -0.4, 1.0], [0.5, 0.4, 2.0], (20, 3))
    ours = camera_from_colmap(model, 640, 480, MODELS[model], where="cameras.txt")
    assert_allclose(ours.project(torch.from_numpy(points_cam)), theirs.img_from_cam(points_cam), atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_camera_written_in_one_line_is_read_back_to_the_last_bit(model):
    camera = camera_from_colmap(model, 640, 480, [param / 3 for param in MODELS[model]], where="cameras.txt")
    assert parse_camera_line(camera_line(camera), where="camera.txt") == camera


def test_each_kind_of_camera_takes_the_model_that_says_the_same():
    written = [
        camera_to_colmap(Camera(640, 480, 1.0, 2.0, 3.0, 4.0, distortion, model))
        for distortion, model in [
            ((), "pinhole"),
            ((5.0, 6.0, 7.0, 8.0), "opencv"),
            ((5.0, 6.0, 7.0, 8.0, 9.0), "opencv"),
            ((5.0, 6.0, 7.0, 8.0), "fisheye"),
        ]
    ]
    assert written == [
        ("PINHOLE", [1.0, 2.0, 3.0, 4.0]),
        ("OPENCV", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ("FULL_OPENCV", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0, 0.0, 0.0]),
        ("OPENCV_FISHEYE", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one line with a camera, found 0"),
        ("PINHOLE 640 480 1 1 1 1\nPINHOLE 640 480 1 1 1 1", "expected one line with a camera, found 2"),
        ("PINHOLE 640", "expected a camera as MODEL WIDTH HEIGHT PARAMETERS, found 'PINHOLE 640'"),
        ("FOV 640 480 1 1 1 1 1", "expected one of the camera models SIMPLE_PINHOLE, .*, found 'FOV'"),
        ("PINHOLE 640 480 1 1 1", r"expected 4 parameters for the camera model PINHOLE \(fx fy cx cy\), found 3"),
        ("PINHOLE 640 -480 1 1 1 1", "expected a whole number, found '-480'"),
        ("PINHOLE 640 480 1 1 nan 1", "expected a finite number, found nan"),
        ("FULL_OPENCV 640 480 1 1 1 1 0 0 0 0 0 0 0 0.1", "expected a distortion without k4, k5 and k6"),
    ],
)
def test_a_camera_file_that_is_none_is_answered_with_one_line(text, message):
    with pytest.raises(DatasetError, match=f"camera.txt: {message}"):
        parse_camera_file(text, where="camera.txt")


@pytest.mark.parametrize("line", ["PINHOLE 640 480 0 1 1 1", "PINHOLE 0 480 1 1 1 1"])
def test_a_camera_that_cannot_be_says_in_which_file(line):
    with pytest.raises(GeometryError, match=r"camera\.txt: "):
        parse_camera_file(line, where="camera.txt")
