"""Every kind of photo that people have becomes 8-bit RGB, upright."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image, ImageOps
from scipy.spatial.transform import Rotation
from tiny_scenes import png_bomb

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.images import ImageHeader, decode_depth, decode_image, read_header, turn_upright

ORIENTATION, EXIF_IFD = 0x0112, 0x8769
FOCAL_LENGTH, FOCAL_35MM = 0x920A, 0xA405
PLANE_X_RESOLUTION, PLANE_RESOLUTION_UNIT, PIXEL_X, PIXEL_Y = 0xA20E, 0xA210, 0xA002, 0xA003


def encode(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.fixture
def rgb() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)


def with_exif(
    image: Image.Image, format: str, tags: dict[int, object], exif_ifd: dict[int, object] | None = None
) -> bytes:
    exif = Image.Exif()
    exif.update(tags)
    exif.get_ifd(EXIF_IFD).update(exif_ifd or {})
    return encode(image, format, exif=exif)


def test_rgb_comes_back_as_it_was_stored(rgb):
    assert_array_equal(decode_image(encode(Image.fromarray(rgb)), "photo"), rgb)


def test_pixels_may_be_written_to(rgb):
    """Tensors made from a read-only array would write to it all the same, or warn."""
    assert decode_image(encode(Image.fromarray(rgb)), "photo").flags.writeable


@pytest.mark.parametrize(
    ("format", "size_wh", "covering_hw", "decoded_hw"),
    [
        ("JPEG", (640, 480), (240, 320), (240, 320)),
        ("JPEG", (640, 480), (241, 320), (480, 640)),  # half of it would not cover this
        ("JPEG", (4032, 3024), (240, 320), (378, 504)),
        ("JPEG", (4028, 3020), (240, 320), (755, 1007)),  # an eighth would not be whole pixels
        ("JPEG", (641, 480), (100, 100), (480, 641)),
        ("JPEG", (200, 100), (240, 320), (100, 200)),
        ("PNG", (640, 480), (240, 320), (480, 640)),
    ],
)
def test_a_jpeg_is_decoded_at_the_smallest_size_that_covers_another(
    format: str, size_wh: tuple[int, int], covering_hw: tuple[int, int], decoded_hw: tuple[int, int]
):
    data = encode(Image.new("RGB", size_wh, (10, 120, 230)), format)
    decoded = decode_image(data, "photo", covering_hw=covering_hw)
    assert decoded.shape == (*decoded_hw, 3)
    assert np.abs(decoded.astype(int) - (10, 120, 230)).max() <= 3
    assert decode_image(data, "photo").shape == (size_wh[1], size_wh[0], 3)


def test_what_a_turned_jpeg_is_to_cover_is_upright():
    data = with_exif(Image.new("RGB", (640, 320)), "JPEG", {ORIENTATION: 6})
    assert decode_image(data, "photo", covering_hw=(320, 160)).shape == (320, 160, 3)
    assert decode_image(data, "photo", covering_hw=(160, 320)).shape == (640, 320, 3)


def test_grey_is_repeated_in_three_channels(rgb):
    decoded = decode_image(encode(Image.fromarray(rgb[..., 0])), "photo")
    assert_array_equal(decoded, np.repeat(rgb[..., :1], 3, axis=-1))


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_and_not_clipped(format):
    stored = np.linspace(0, 65535, 12 * 16).astype(np.uint16).reshape(12, 16)
    decoded = decode_image(encode(Image.fromarray(stored), format), "photo")
    assert_array_equal(decoded, np.repeat((stored // 256)[..., None], 3, axis=-1))


def test_16_bit_grey_in_a_portable_pixmap_is_scaled_too():
    stored = np.linspace(0, 65535, 12 * 16).astype(">u2").reshape(12, 16)
    decoded = decode_image(b"P5 16 12 65535\n" + stored.tobytes(), "photo")
    assert_array_equal(decoded[..., 0], stored // 256)


def test_alpha_is_dropped_and_the_colours_under_it_stay(rgb):
    alpha = np.zeros((12, 16, 1), dtype=np.uint8)
    decoded = decode_image(encode(Image.fromarray(np.concatenate([rgb, alpha], axis=-1))), "photo")
    assert_array_equal(decoded, rgb)


def test_a_palette_is_looked_up():
    palette = Image.new("P", (16, 12), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    assert_array_equal(decode_image(encode(palette), "photo")[0, 0], [200, 100, 50])


def test_black_and_white_becomes_0_and_255():
    decoded = decode_image(encode(Image.fromarray(np.eye(12, 16, dtype=bool))), "photo")
    assert_array_equal(decoded[..., 1], 255 * np.eye(12, 16))


@pytest.mark.parametrize(("cmyk", "expected"), [((0, 0, 0, 0), 255), ((0, 0, 0, 255), 0)])
def test_cmyk_without_ink_is_white_and_with_full_black_is_black(cmyk, expected):
    decoded = decode_image(encode(Image.new("CMYK", (16, 12), cmyk), "JPEG"), "photo")
    assert_allclose(decoded, expected, atol=2)


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_lossy_formats_are_read(rgb, format):
    flat = np.full_like(rgb, [200, 100, 50])
    assert_allclose(decode_image(encode(Image.fromarray(flat), format, quality=95), "photo"), flat, atol=6)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_as_pillow_does(format, orientation):
    """Four flat quarters survive lossy formats; ImageOps.exif_transpose is the reference."""
    quarters = np.array([[[250, 0, 0], [0, 250, 0]], [[0, 0, 250], [250, 250, 250]]], dtype=np.uint8)
    image = Image.fromarray(quarters.repeat(16, axis=0).repeat(32, axis=1))
    data = with_exif(image, format, {ORIENTATION: orientation})
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    decoded = decode_image(data, "photo")
    assert_allclose(decoded.astype(int), expected, atol=1)
    header = read_header(io.BytesIO(data), "photo")
    assert (header.stored_width, header.stored_height) == (64, 32)
    assert header.upright_size_wh == decoded.shape[1::-1]
    assert header.orientation == orientation


def test_orientation_6_puts_the_stored_left_edge_on_top():
    stored = np.zeros((32, 64, 3), dtype=np.uint8)
    stored[:, :32] = 250
    decoded = decode_image(with_exif(Image.fromarray(stored), "PNG", {ORIENTATION: 6}), "photo")
    assert decoded.shape == (64, 32, 3)
    assert decoded[:32].min() == 250
    assert decoded[32:].max() == 0


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_changes_nothing(rgb, orientation):
    assert_array_equal(decode_image(with_exif(Image.fromarray(rgb), "PNG", {ORIENTATION: orientation}), "photo"), rgb)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow says so on stderr, and we let it
def test_damaged_exif_does_not_lose_the_photo(rgb):
    data = encode(Image.fromarray(rgb), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert decode_image(data, "photo").shape == (12, 16, 3)


@pytest.mark.parametrize(("k", "orientation"), [(1, 8), (2, 3), (3, 6)])
def test_turning_a_photo_upright_keeps_every_pixel_on_its_ray(k, orientation):
    """A stored pixel shows the same world ray after the turn, by pose and camera of the upright photo."""
    width, height = 64, 32
    camera = Camera(width, height, 50.0, 55.0, 30.0, 17.0, (0.01, -0.02, 0.003, -0.004), "opencv")
    R = Rotation.from_rotvec([0.3, -0.5, 0.9]).as_matrix()
    T_world_stored = Pose.from_rotation_and_translation(R, [1.0, 2.0, 3.0])
    header = ImageHeader(width, height, orientation)
    T_world_cam, upright, turns = turn_upright(T_world_stored, camera, header, "photo")
    assert turns == k
    assert (upright.width, upright.height) == header.upright_size_wh
    ids = np.arange(width * height).reshape(height, width)
    row, column = np.argwhere(np.rot90(ids, k) == ids[5, 9])[0]
    rays = camera.pixel_grid()[5, 9], upright.pixel_grid()[row, column]
    ray_stored = T_world_stored.R @ camera.unproject(rays[0])
    ray_upright = T_world_cam.R @ upright.unproject(rays[1])
    assert_allclose(ray_upright, ray_stored, atol=1e-9)
    assert_array_equal(T_world_cam.t, T_world_stored.t)


def test_a_camera_of_the_upright_size_is_not_turned_again():
    camera = Camera.from_focal(32, 64, 50.0)
    T_world_cam = Pose.identity()
    assert turn_upright(T_world_cam, camera, ImageHeader(64, 32, 6), "photo") == (T_world_cam, camera, 0)


def test_poses_declared_upright_stay_unless_the_size_says_otherwise():
    header, T_world_cam = ImageHeader(64, 32, 6), Pose.identity()
    assert turn_upright(T_world_cam, None, header, "photo", assume_stored=False)[2] == 0
    assert turn_upright(T_world_cam, Camera.from_focal(64, 32, 50.0), header, "photo", assume_stored=False)[2] == 3


def test_a_pose_of_a_mirrored_photo_is_refused():
    with pytest.raises(DatasetError, match="mirroring EXIF orientation 2"):
        turn_upright(Pose.identity(), None, ImageHeader(64, 32, 2), "photo")


def focal_px(exif_ifd: dict[int, object], size_wh: tuple[int, int] = (400, 300)) -> float | None:
    data = with_exif(Image.new("RGB", size_wh), "JPEG", {}, exif_ifd)
    return read_header(io.BytesIO(data), "photo").focal_px


def test_focal_length_in_35mm_film_is_an_angle_over_the_diagonal():
    # 26 mm over 43.27 mm of film is, over a diagonal of 500 px: 26 * 500 / 43.2666 = 300.463
    assert focal_px({FOCAL_35MM: 26}) == pytest.approx(300.463, abs=1e-3)


def test_focal_length_and_sensor_resolution_give_pixels():
    # 50 mm at 200 px/cm = 20 px/mm is 1000 px
    sensor = {FOCAL_LENGTH: 50.0, PLANE_X_RESOLUTION: 200.0, PLANE_RESOLUTION_UNIT: 3}
    assert focal_px(sensor) == pytest.approx(1000.0)


def test_a_photo_scaled_down_since_has_a_shorter_focal_length_in_pixels():
    sensor = {FOCAL_LENGTH: 50.0, PLANE_X_RESOLUTION: 508.0, PLANE_RESOLUTION_UNIT: 2, PIXEL_X: 1600, PIXEL_Y: 1200}
    assert focal_px(sensor) == pytest.approx(1000.0 / 4)


@pytest.mark.parametrize(
    "exif_ifd",
    [{}, {FOCAL_35MM: 0}, {FOCAL_LENGTH: 50.0}, {FOCAL_35MM: 65535}, {FOCAL_LENGTH: 0.0, PLANE_X_RESOLUTION: 9.0}],
)
def test_without_a_plausible_focal_length_there_is_none(exif_ifd):
    assert focal_px(exif_ifd) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"not a photo at all, only text", "expected a photo as JPEG, PNG"),
        (b"GIF89a" + bytes(100), "expected a photo as JPEG, PNG"),
        (png_bomb(), "at most 200 megapixels, found 100000 x 100000"),
        (encode(Image.new("RGB", (1, 1))), "at least 8 pixels a side, found 1 x 1"),
        (encode(Image.new("RGB", (640, 7))), "at least 8 pixels a side, found 640 x 7"),
        (encode(Image.effect_noise((64, 64), 50))[:-400], "damaged"),
        (encode(Image.effect_noise((64, 64), 50), "JPEG")[:-400], "damaged"),
        (encode(Image.new("F", (16, 12)), "TIFF"), "found floats"),
        (encode(Image.fromarray(np.full((12, 16), 70000, dtype=np.int32)), "TIFF"), "found 70000 to 70000"),
    ],
)
def test_what_is_no_photo_is_answered_with_one_line(data, message):
    with pytest.raises(DatasetError, match=message) as caught:
        decode_image(data, "scene/photo.png")
    assert str(caught.value).startswith("scene/photo.png: expected")
    assert "\n" not in str(caught.value)


def test_a_photo_of_a_200_megapixel_phone_is_let_through():
    """Pillow by itself refuses above 179 megapixels; the header is enough to see that we do not."""
    header = read_header(io.BytesIO(png_bomb(16320, 12240)), "photo")
    assert header.upright_size_wh == (16320, 12240)


def frame_with_depth(tmp_path: Path, stored: np.ndarray, **options: object) -> Frame:
    path = tmp_path / "depth.png"
    Image.fromarray(stored).save(path)
    depth = DepthSource(FileSource(path), **options)
    return Frame("photo.png", Pose.identity(), FileSource(tmp_path / "photo.png"), depth=depth)


def test_depth_is_in_metres_and_nan_where_unknown(tmp_path):
    stored = np.full((12, 16), 1500, dtype=np.uint16)
    stored[0, :2] = [0, 65535]
    depth_m = frame_with_depth(tmp_path, stored).read_depth_m()
    assert np.isnan(depth_m[0, :2]).all()
    assert_allclose(depth_m[1:], 1.5)
    assert depth_m.dtype == np.float32


def test_a_scale_of_5000_to_the_metre_and_its_own_unknown_value_are_kept(tmp_path):
    stored = np.full((12, 16), 65535, dtype=np.uint16)
    stored[0, 0] = 0
    depth_m = frame_with_depth(tmp_path, stored, metres_per_unit=1 / 5000, unknown_values=(0,)).read_depth_m()
    assert math.isnan(depth_m[0, 0])
    assert_allclose(depth_m[1:], 13.107)


def test_depth_is_turned_with_its_photo(tmp_path):
    stored = np.arange(1, 12 * 16 + 1, dtype=np.uint16).reshape(12, 16)
    depth_m = frame_with_depth(tmp_path, stored, quarter_turns=1).read_depth_m()
    assert_allclose(depth_m, np.rot90(stored) / 1000, rtol=1e-6)


def test_an_8_bit_preview_is_no_depth_map(rgb):
    with pytest.raises(DatasetError, match="16-bit grey values, found an image of mode L"):
        decode_depth(encode(Image.fromarray(rgb[..., 0])), "depth.png")


def test_asking_for_depth_that_is_not_there_says_so(tmp_path):
    frame = Frame("photo.png", Pose.identity(), FileSource(tmp_path / "photo.png"))
    with pytest.raises(DatasetError, match=r"photo\.png: expected a depth map, found none"):
        frame.read_depth_m()
