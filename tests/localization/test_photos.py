"""Photos of any shape become what the network sees, and their cameras follow to the pixel."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.localization.focal import EXIF_LOG_SIGMA, UnknownFocal
from relograph.localization.localizer import SeenQuery, see_query
from relograph.localization.photos import WorkingSize, camera_of, read_query
from relograph.scenes.frame import FileSource, Frame

SHAPES = [(640, 480), (480, 640), (1920, 1080), (3000, 2000), (333, 222), (500, 500), (4000, 500), (160, 120), (8, 9)]


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_sides_are_multiples_of_16_and_the_aspect_is_kept(width: int, height: int):
    size = WorkingSize.of(width, height)
    working_height, working_width = size.size_hw
    assert working_height % 16 == working_width % 16 == 0
    cut_x, cut_y = 1 - working_width / size.scale / width, 1 - working_height / size.scale / height
    assert -1e-12 <= cut_x < 0.06
    assert -1e-12 <= cut_y < 0.06
    assert min(abs(cut_x), abs(cut_y)) < 1e-12  # one side is whole


def test_usual_photos_are_seen_whole_at_320_pixels():
    for width, height, expected in [(640, 480, (240, 320)), (3024, 4032, (320, 240)), (320, 240, (240, 320))]:
        size = WorkingSize.of(width, height)
        assert size.size_hw == expected
        assert_allclose(size.scale, 320 / max(width, height))


def test_a_panorama_keeps_more_than_a_strip():
    assert WorkingSize.of(4000, 1000).size_hw == (160, 640)
    assert WorkingSize.of(100_000, 100).size_hw == (32, 640)


def blurred_dot(width: int, height: int, x: float, y: float, sigma: float) -> np.ndarray:
    columns, rows = np.arange(width) + 0.5, np.arange(height) + 0.5
    brightness = np.exp(-((columns - x) ** 2 + (rows[:, None] - y) ** 2) / (2 * sigma**2))
    return np.repeat(np.round(250 * brightness)[..., None], 3, axis=-1).astype(np.uint8)


@pytest.mark.parametrize(("width", "height"), [(640, 480), (1000, 562), (450, 900), (801, 601), (200, 150)])
def test_the_camera_follows_what_was_scaled_and_cut(width: int, height: int):
    """A point is seen where the working camera projects it: found as the middle of a blurred dot."""
    camera = Camera(width, height, 0.9 * width, 0.93 * width, 0.52 * width, 0.47 * height)
    size = WorkingSize.of(width, height)
    point = torch.tensor([0.12, -0.1, 1.0], dtype=torch.float64)
    x, y = camera.project(point).tolist()
    seen = size.pixels(blurred_dot(width, height, x, y, sigma=0.02 * width))[..., 0].astype(float)
    columns, rows = np.arange(seen.shape[1]) + 0.5, np.arange(seen.shape[0]) + 0.5
    centroid = [(seen.sum(axis=0) * columns).sum() / seen.sum(), (seen.sum(axis=1) * rows).sum() / seen.sum()]
    assert_allclose(size.camera(camera).project(point), centroid, atol=0.05)


def test_a_lens_is_not_changed_by_scaling():
    camera = Camera(640, 480, 500, 510, 330, 235, (0.1, -0.02, 0.001, 0.002), "opencv")
    working = WorkingSize.of(640, 480).camera(camera)
    assert working == camera.scaled_to(320, 240)


def test_a_camera_of_a_smaller_copy_of_the_photo_is_scaled_to_it():
    size = WorkingSize.of(1280, 960)
    assert size.camera(Camera.from_focal(640, 480, 525.0)) == size.camera(Camera.from_focal(1280, 960, 1050.0))


def test_an_unknown_focal_length_stays_unknown_and_in_its_group():
    assert WorkingSize.of(640, 480).camera(UnknownFocal(640, 480, 3)) == UnknownFocal(320, 240, 3)


def test_what_is_expected_of_a_focal_length_is_that_of_the_same_lens_where_a_photo_is_cut():
    size = WorkingSize.of(640, 500)
    assert size.size_hw[1] < 640 * size.scale  # the longer side is cut, of which a focal length is a share
    expected = size.camera(UnknownFocal(640, 500, likely=0.8, log_sigma=0.05))
    same = size.camera(Camera.from_focal(640, 500, 0.8 * 640))
    assert expected.likely * expected.longer_side == pytest.approx(same.fx)
    assert expected.log_sigma == 0.05


@pytest.mark.parametrize(
    ("likely", "log_sigma"), [(0.0, 0.05), (np.nan, 0.05), (np.inf, 0.05), (0.8, 0.0), (0.8, np.nan)]
)
def test_what_no_focal_length_can_be_is_not_expected(likely: float, log_sigma: float):
    with pytest.raises(GeometryError, match="expected to be a positive number of longer sides"):
        UnknownFocal(640, 480, likely=likely, log_sigma=log_sigma)


def test_a_camera_of_another_shape_is_refused():
    with pytest.raises(GeometryError, match="found one for 480 x 640"):
        WorkingSize.of(640, 480).camera(Camera.from_focal(480, 640, 500))


def jpeg(pixels: np.ndarray, focal_35mm: int | None = None) -> bytes:
    exif = Image.Exif()
    if focal_35mm is not None:
        exif.get_ifd(0x8769)[0xA405] = focal_35mm
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", exif=exif)
    return data.getvalue()


def test_the_focal_length_in_a_file_is_told():
    photo = read_query(jpeg(np.zeros((240, 320, 3), np.uint8), focal_35mm=26))
    assert photo.exif_focal == pytest.approx(26 * 400 / np.hypot(36, 24) / 320)  # the diagonal has 400 pixels
    assert read_query(jpeg(np.zeros((240, 320, 3), np.uint8))).exif_focal is None


def test_the_focal_length_in_a_file_is_expected_and_not_believed():
    data = jpeg(np.zeros((480, 640, 3), np.uint8), focal_35mm=26)
    seen = see_query(data)
    assert isinstance(seen, SeenQuery)
    assert isinstance(seen.camera, UnknownFocal)
    assert seen.camera.likely == pytest.approx(26 * 800 / np.hypot(36, 24) / 640)
    assert seen.camera.log_sigma == EXIF_LOG_SIGMA
    told = see_query(data, Camera.from_focal(640, 480, 525.0))
    assert isinstance(told, SeenQuery)
    assert told.camera == Camera.from_focal(320, 240, 262.5)


def frame_of(camera: Camera | None, *, by_exif: bool) -> Frame:
    return Frame("a.jpg", Pose.identity(), FileSource(Path("a.jpg")), camera, camera_by_exif=by_exif)


def test_what_exif_tells_of_a_photo_of_the_map_is_expected_and_not_believed_either():
    camera = Camera.from_focal(640, 480, 525.0)
    assert camera_of(frame_of(camera, by_exif=False)) == camera
    assert camera_of(frame_of(None, by_exif=False)) is None
    expected = camera_of(frame_of(camera, by_exif=True))
    assert isinstance(expected, UnknownFocal)
    assert (expected.likely, expected.log_sigma) == (525.0 / 640, EXIF_LOG_SIGMA)


def test_photos_of_a_map_have_one_lens_where_exif_tells_the_same_of_them():
    focals = {"wide": (640, 480, 525.0), "the same, larger and upright": (960, 1280, 1050.0), "tele": (640, 480, 600.0)}
    group = {}
    for name, told in focals.items():
        camera = camera_of(frame_of(Camera.from_focal(*told), by_exif=True))
        assert isinstance(camera, UnknownFocal)
        group[name] = camera.group
    assert group["wide"] == group["the same, larger and upright"] != group["tele"]


def test_pixels_may_come_in_any_form():
    grey = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    rgb = np.repeat(grey[..., None], 3, axis=-1)
    sixteen_bits = Image.fromarray(256 * grey.astype(np.uint16) + 200)
    for form in (grey, rgb, np.dstack([rgb, grey]), Image.fromarray(grey), Image.fromarray(rgb), sixteen_bits):
        assert (read_query(form).pixels == WorkingSize.of(30, 20).pixels(rgb)).all()


@pytest.mark.parametrize("orientation", [1, 6])
def test_of_a_large_jpeg_less_is_decoded_and_the_same_is_seen(orientation: int):
    y, x = np.mgrid[:1200, :1600]
    pixels = np.stack([127 + 100 * np.sin(x / 40), 127 + 100 * np.sin(y / 30), (x + y) / 12], axis=-1).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", exif=exif, quality=95)
    upright = np.rot90(pixels, -1) if orientation == 6 else pixels
    seen, whole = read_query(data.getvalue()), read_query(np.ascontiguousarray(upright))
    assert seen.size == whole.size
    assert (seen.size.photo_width, seen.size.photo_height) == upright.shape[1::-1]
    assert np.abs(seen.pixels.astype(int) - whole.pixels).mean() < 1.5  # one pixel to the side would be 2.9


def damaged() -> Image.Image:
    """A photo of which Pillow has read no more than the header."""
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(data, "JPEG")
    return Image.open(io.BytesIO(data.getvalue()[:1500]))


@pytest.mark.parametrize(
    "form",
    [
        np.zeros((4, 300, 3), np.uint8),
        np.zeros((30, 30, 2), np.uint8),
        b"",
        b"GIF89a",
        damaged(),
        Image.new("F", (30, 30), 0.5),
    ],
)
def test_what_is_no_photo_is_one_clear_line(form: object):
    with pytest.raises(DatasetError, match="expected"):
        read_query(form)
