"""Cameras: pixels and rays, against OpenCV's formulas by hand and against pycolmap."""

import math

import numpy as np
import pycolmap
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry import Camera, Pose
from relograph.geometry.distortion import rim

PINHOLE = Camera(640, 480, 500.0, 510.0, 322.0, 241.0)
OPENCV = Camera(640, 480, 500.0, 510.0, 322.0, 241.0, (-0.28, 0.09, 1e-3, -2e-3), "opencv")
OPENCV_K3 = Camera(640, 480, 500.0, 510.0, 322.0, 241.0, (-0.28, 0.09, 1e-3, -2e-3, 0.01), "opencv")
FISHEYE = Camera(640, 480, 300.0, 310.0, 322.0, 241.0, (-0.03, 0.01, 1e-3, -2e-3), "fisheye")
CAMERAS = {"pinhole": PINHOLE, "opencv": OPENCV, "opencv with k3": OPENCV_K3, "fisheye": FISHEYE}
COLMAP_MODELS = {"pinhole": "PINHOLE", "opencv": "OPENCV", "fisheye": "OPENCV_FISHEYE"}

every_camera = pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS.keys())


def points_in_front(num: int = 300) -> Tensor:
    rng = np.random.default_rng(0)
    depth = rng.uniform(0.3, 8.0, size=(num, 1))
    return torch.tensor(np.concatenate([rng.uniform(-0.7, 0.7, size=(num, 2)) * depth, depth], axis=1))


def in_colmap(camera: Camera) -> pycolmap.Camera:
    return pycolmap.Camera(
        model=COLMAP_MODELS[camera.model],
        width=camera.width,
        height=camera.height,
        params=[camera.fx, camera.fy, camera.cx, camera.cy, *camera.distortion],
    )


# Golden values


@pytest.mark.parametrize("name", ["pinhole", "opencv", "fisheye"])
def test_projection_agrees_with_pycolmap(name: str) -> None:
    camera, points = CAMERAS[name], points_in_front()
    np.testing.assert_allclose(camera.project(points), in_colmap(camera).img_from_cam(points.numpy()), atol=1e-10)


@pytest.mark.parametrize("name", ["pinhole", "opencv", "fisheye"])
def test_rays_of_all_pixels_agree_with_pycolmap(name: str) -> None:
    camera = CAMERAS[name].scaled_to(64, 48)
    pixels = camera.pixel_grid().reshape(-1, 2)
    np.testing.assert_allclose(
        camera.unproject(pixels)[:, :2], in_colmap(camera).cam_from_img(pixels.numpy()), atol=1e-8
    )


def test_opencv_distortion_with_k3_is_the_formula_worked_by_hand() -> None:
    # x = 0.5, y = -0.25: r2 = 0.3125, radial = 1 + k1 r2 + k2 r2^2 + k3 r2^3 with k = (0.1, -0.2, 0.4)
    #   = 1 + 0.03125 - 0.01953125 + 0.01220703125 = 1.02392578125
    # x' = 0.5 * 1.02392578125 + 2 * 0.01 * (-0.125) + 0.02 * (0.3125 + 0.5)    = 0.511962890625 - 0.0025 + 0.01625
    # y' = -0.25 * 1.02392578125 + 0.01 * (0.3125 + 0.125) + 2 * 0.02 * (-0.125) = -0.2559814453125 + 0.004375 - 0.005
    # u = 100 * 0.525712890625 + 50, v = 200 * (-0.2566064453125) + 60
    camera = Camera(100, 120, 100.0, 200.0, 50.0, 60.0, (0.1, -0.2, 0.01, 0.02, 0.4), "opencv")
    xy = camera.project(torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64))
    np.testing.assert_allclose(xy, [102.5712890625, 8.6787109375], atol=1e-12)


def test_fisheye_distortion_is_the_formula_worked_by_hand() -> None:
    # A ray at 45 degrees: r = 1, theta = pi / 4, theta_d = theta (1 + k1 theta^2 + ... + k4 theta^8)
    theta = math.pi / 4
    theta_d = theta * (1 + 0.1 * theta**2 - 0.05 * theta**4 + 0.02 * theta**6 - 0.01 * theta**8)
    camera = Camera(100, 100, 30.0, 30.0, 50.0, 50.0, (0.1, -0.05, 0.02, -0.01), "fisheye")
    xy = camera.project(torch.tensor([0.6, 0.8, 1.0], dtype=torch.float64))
    np.testing.assert_allclose(xy, [50 + 30 * 0.6 * theta_d, 50 + 30 * 0.8 * theta_d], atol=1e-12)


def test_the_calibration_matrix_projects_as_the_camera_does() -> None:
    points = points_in_front()
    homogeneous = points @ PINHOLE.K.mT
    torch.testing.assert_close(PINHOLE.project(points), homogeneous[:, :2] / homogeneous[:, 2:], atol=1e-10, rtol=0)


def test_scaling_agrees_with_pycolmap() -> None:
    theirs = in_colmap(OPENCV)
    theirs.rescale(320, 360)
    ours = OPENCV.scaled_to(320, 360)
    np.testing.assert_allclose([ours.fx, ours.fy, ours.cx, ours.cy, *ours.distortion], theirs.params, atol=1e-12)
    assert (ours.width, ours.height) == (theirs.width, theirs.height)


# There and back


@every_camera
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_the_ray_of_a_projected_point_leads_back_to_it(camera: Camera, dtype: torch.dtype, tolerance: float) -> None:
    points = points_in_front().to(dtype)
    rays = camera.unproject(camera.project(points))
    torch.testing.assert_close(rays * points[:, 2:], points, atol=8 * tolerance, rtol=tolerance)


@every_camera
def test_every_pixel_has_a_ray_that_projects_to_it(camera: Camera) -> None:
    pixels = camera.pixel_grid()
    torch.testing.assert_close(camera.project(camera.unproject(pixels)), pixels, atol=1e-9, rtol=0)


@pytest.mark.parametrize("camera", [OPENCV, FISHEYE], ids=["opencv", "fisheye"])
def test_the_principal_point_looks_straight_ahead(camera: Camera) -> None:
    center = torch.tensor([322.0, 241.0])
    assert camera.unproject(center).tolist() == [0.0, 0.0, 1.0]
    assert camera.project(torch.tensor([0.0, 0.0, 3.0])).tolist() == center.tolist()


@given(st.integers(0, 2**32 - 1))
def test_every_ray_inside_the_rim_of_any_lens_comes_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k1, k2, k3 = rng.normal(size=3) * [0.4, 0.4, 0.1]
    p1, p2 = rng.normal(size=2) * 1e-3
    opencv = Camera(640, 480, 500.0, 500.0, 320.0, 240.0, (k1, k2, p1, p2, k3), "opencv")
    fisheye_coefficients = tuple((rng.normal(size=4) * [0.2, 0.1, 0.05, 0.02]).tolist())
    fisheye = Camera(640, 480, 500.0, 500.0, 320.0, 240.0, fisheye_coefficients, "fisheye")
    reach_opencv = 0.97 * min(rim((k1, k2, k3)), 2.0)
    reach_fisheye = math.tan(0.97 * min(rim(fisheye_coefficients), 1.5))
    for camera, reach in ((opencv, reach_opencv), (fisheye, reach_fisheye)):
        angle, radius = rng.uniform(0, 2 * math.pi, size=50), rng.uniform(0, reach, size=50)
        rays = torch.tensor(np.stack([radius * np.cos(angle), radius * np.sin(angle), np.ones(50)], axis=1))
        torch.testing.assert_close(camera.unproject(camera.project(rays)), rays, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("offset", [0.9e-4, 1.1e-4])
def test_rays_next_to_the_axis_of_a_fisheye_are_exact(offset: float) -> None:
    # Without coefficients the place on the image is the angle itself.
    angle_camera = Camera(2, 2, 1.0, 1.0, 0.0, 0.0, (0.0, 0.0, 0.0, 0.0), "fisheye")
    ray = angle_camera.unproject(torch.tensor([offset, 0.0], dtype=torch.float64))
    assert float(ray[0]) == pytest.approx(math.tan(offset), rel=1e-14, abs=0)


def test_the_rim_is_where_the_distorted_radius_first_stops_growing() -> None:
    # The slope 1 - 5 s + 4 s^2 is zero at s = 1/4 and s = 1: the radius 1/2 comes first.
    assert rim((-5 / 3, 4 / 5)) == pytest.approx(0.5)
    assert rim((0.1, 0.02)) == math.inf
    assert rim((0.0, 0.0, 0.0, 0.0)) == math.inf


# What has no image


@every_camera
def test_points_behind_the_camera_have_no_image(camera: Camera) -> None:
    xy = camera.project(torch.tensor([[0.1, 0.1, -1.0], [0.1, 0.1, 0.0], [0.1, 0.1, 1.0]]))
    assert xy.isnan().tolist() == [[True, True], [True, True], [False, False]]


def test_points_that_barrel_distortion_would_fold_back_have_no_image() -> None:
    # r (1 - 0.1 r^2) grows up to r = sqrt(1 / 0.3) = 1.826 and is back at 0 for r = sqrt(10) = 3.162.
    camera = Camera(640, 480, 300.0, 300.0, 320.0, 240.0, (-0.1, 0.0, 0.0, 0.0), "opencv")
    xy = camera.project(torch.tensor([[1.82, 0.0, 1.0], [1.83, 0.0, 1.0], [3.1, 0.0, 1.0]]))
    assert xy.isnan().any(-1).tolist() == [False, True, True]
    folded = in_colmap(camera).img_from_cam(np.array([[3.1, 0.0, 1.0]]))
    assert 0 < folded[0, 0] < 640  # the bare formula puts the last point in the middle of the image


def test_pixels_that_no_ray_reaches_have_no_ray() -> None:
    camera = Camera(640, 480, 300.0, 300.0, 320.0, 240.0, (-0.1, 0.0, 0.0, 0.0), "opencv")
    farthest = 300 * math.sqrt(1 / 0.3) * (1 - 0.1 / 0.3)
    pixels = torch.tensor([[320 + farthest - 0.1, 240.0], [320 + farthest + 0.1, 240.0]], dtype=torch.float64)
    assert camera.unproject(pixels).isnan().any(-1).tolist() == [False, True]


def test_a_fisheye_has_no_unit_depth_ray_at_90_degrees_and_beyond() -> None:
    camera = Camera(1000, 1000, 300.0, 300.0, 500.0, 500.0, (0.0, 0.0, 0.0, 0.0), "fisheye")
    radius = 300 * math.pi / 2
    pixels = torch.tensor([[500 + 0.99 * radius, 500.0], [500 + 1.01 * radius, 500.0]], dtype=torch.float64)
    rays = camera.unproject(pixels)
    assert float(rays[0, 0]) == pytest.approx(math.tan(0.99 * math.pi / 2), rel=1e-9)
    assert rays[1, :2].isnan().all()


# Pixels


def test_the_centre_of_the_first_pixel_is_at_one_half() -> None:
    grid = Camera.from_focal(4, 3, 10.0).pixel_grid()
    assert grid.shape == (3, 4, 2)
    assert grid[0, 0].tolist() == [0.5, 0.5]
    assert grid[2, 1].tolist() == [1.5, 2.5]


@every_camera
def test_the_same_ray_hits_the_same_place_of_a_resized_image(camera: Camera) -> None:
    smaller = camera.scaled_to(160, 240)
    points = points_in_front()
    torch.testing.assert_close(
        smaller.project(points), camera.project(points) * torch.tensor([0.25, 0.5]), atol=1e-10, rtol=0
    )


@every_camera
@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 4])
def test_a_turned_image_shows_each_point_where_np_rot90_puts_its_pixel(camera: Camera, k: int) -> None:
    turned = camera.rotated_90(k)
    assert (turned.width, turned.height) == ((640, 480) if k % 2 == 0 else (480, 640))
    T_turned_cam = Pose.from_axis_angle([0.0, 0.0, k * math.pi / 2], [0.0, 0.0, 0.0]).inverse()
    for point in points_in_front(20):
        u, v = camera.project(point).floor().int().tolist()
        if not (0 <= u < 640 and 0 <= v < 480):
            continue
        image = np.zeros((480, 640), dtype=bool)
        image[v, u] = True
        ((v_turned, u_turned),) = np.argwhere(np.rot90(image, k))
        seen = turned.project(T_turned_cam.apply(point)).floor().int().tolist()
        assert seen == [u_turned, v_turned]


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 0}, "at least one pixel"),
        ({"height": -3}, "at least one pixel"),
        ({"fx": 0.0}, "positive"),
        ({"fy": -500.0}, "positive"),
        ({"fx": math.nan}, "positive"),
        ({"fy": math.inf}, "positive"),
        ({"cx": math.nan}, "principal point"),
        ({"cy": math.inf}, "principal point"),
        ({"distortion": (0.1,)}, "'pinhole' has 0 finite"),
        ({"distortion": (0.1, 0.1, 0.1), "model": "opencv"}, "'opencv' has 4 or 5 finite"),
        ({"distortion": (0.1, 0.1, 0.1, 0.1, 0.1), "model": "fisheye"}, "'fisheye' has 4 finite"),
        ({"distortion": (0.1, math.nan, 0.1, 0.1), "model": "opencv"}, "'opencv' has 4 or 5 finite"),
    ],
)
def test_numbers_that_are_no_camera_are_refused(changes: dict[str, object], words: str) -> None:
    numbers = {"width": 640, "height": 480, "fx": 500.0, "fy": 500.0, "cx": 320.0, "cy": 240.0}
    with pytest.raises(GeometryError, match=words) as raised:
        Camera(**(numbers | changes))  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


# Devices


@every_camera
def test_projection_stays_on_the_device_of_the_points(camera: Camera) -> None:
    points = torch.zeros(5, 3, device="meta")
    assert camera.project(points).device.type == "meta"
    assert camera.pixel_grid(device="meta").device.type == "meta"
