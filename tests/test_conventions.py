"""docs/conventions.md, sentence by sentence.

Each test quotes what it pins. The test at the end fails when the page says something that no test quotes, or no longer
says what one does.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from relograph.geometry import (
    Camera,
    Pose,
    axis_angle_to_matrix,
    log_quat,
    matrix_to_axis_angle,
    matrix_to_quat_wxyz,
    matrix_to_rotation_6d,
    quat_in_upper_hemisphere,
    quat_wxyz_to_matrix,
    rotation_error_deg,
    translation_error_m,
)
from relograph.scenes import Frame, open_scene

PAGE = Path(__file__).parents[1] / "docs" / "conventions.md"
QUOTED: list[str] = []


def says(*sentences: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test as the one that pins these sentences of the page."""
    QUOTED.extend(sentences)
    return lambda test: test


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# One camera, by hand: it stands at (1, 2, 3) in a world whose z axis is up and looks along the world's x axis. So the
# camera's right is -y of the world, its down is -z, its forward is +x.
CENTRE = [1.0, 2.0, 3.0]
RIGHT, DOWN, FORWARD = [0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]
R_WORLD_CAM = np.stack([RIGHT, DOWN, FORWARD], axis=1)  # columns: the images of the camera's axes
# It turns x into -y, y into -z and z into x: a third of a turn about (-1, 1, -1), so w = cos 60 degrees, and each other
# part is sin 60 degrees / sqrt 3.
QUAT_WORLD_CAM_WXYZ = [0.5, -0.5, 0.5, -0.5]
T_WORLD_CAM = Pose.from_rotation_and_translation(R_WORLD_CAM, CENTRE)


# Poses


@says(
    "`T_world_cam` takes camera coordinates to world coordinates: `p_world = T_world_cam.apply(p_cam)`.",
    "The translation of `T_world_cam` is the camera centre in the world.",
)
def test_T_world_cam_places_the_camera() -> None:
    assert_array_equal(T_WORLD_CAM.apply([0.0, 0.0, 0.0]), CENTRE)
    assert_array_equal(T_WORLD_CAM.t, CENTRE)
    five_metres_ahead = T_WORLD_CAM.apply([0.0, 0.0, 5.0])
    assert_array_equal(five_metres_ahead, [6.0, 2.0, 3.0])


@says('Names read "to from", so in a product the inner names touch: `T_world_query = T_world_ref @ T_ref_query`.')
def test_products_read_from_right_to_left() -> None:
    T_world_ref = T_WORLD_CAM
    T_ref_query = Pose.from_axis_angle([0.0, 0.0, 0.0], [0.0, 0.0, 2.0])  # two metres ahead of the reference
    T_world_query = T_world_ref @ T_ref_query
    assert_array_equal(T_world_query.t, [3.0, 2.0, 3.0])


@says("The inverse of `T_a_b` is `T_b_a`.")
def test_the_inverse_takes_the_camera_centre_to_the_origin_of_the_camera() -> None:
    T_cam_world = T_WORLD_CAM.inverse()
    assert_array_equal(T_cam_world.apply(CENTRE), [0.0, 0.0, 0.0])
    assert_array_equal(T_cam_world.apply([6.0, 2.0, 3.0]), [0.0, 0.0, 5.0])


@says("Vectors are columns: a pose moves a point to `R @ p + t`.")
def test_the_matrix_stands_left_of_the_point() -> None:
    p = np.array([0.3, -0.7, 2.0])
    assert_array_equal(T_WORLD_CAM.apply(p), R_WORLD_CAM @ p + CENTRE)
    assert_array_equal(T_WORLD_CAM.matrix() @ tensor(*p, 1.0), [*(R_WORLD_CAM @ p + CENTRE), 1.0])


@says("Camera axes are OpenCV's: +X points right in the image, +Y down, +Z forward into the scene.")
def test_a_point_to_the_right_is_right_in_the_image_and_one_below_is_below() -> None:
    camera = Camera.from_focal(640, 480, 500.0)
    ahead, right, below = camera.project(torch.tensor([[0.0, 0.0, 2.0], [0.1, 0.0, 2.0], [0.0, 0.1, 2.0]]))
    assert ahead.tolist() == [320.0, 240.0]
    assert right[0] > ahead[0]
    assert right[1] == ahead[1]
    assert below[1] > ahead[1]
    assert below[0] == ahead[0]
    assert camera.project(torch.tensor([0.0, 0.0, -2.0])).isnan().all()


@says("World and camera are right-handed: X cross Y is Z.")
def test_poses_keep_the_right_hand() -> None:
    x, y, z = (T_WORLD_CAM.R @ axis for axis in torch.eye(3, dtype=torch.float64))
    assert_array_equal(torch.linalg.cross(x, y), z)


@says(
    "The world frame is that of the data: reading a scene neither moves, turns nor scales it, and mirrors it only "
    "where a `poses.csv` declares left-handed camera axes."
)
def test_poses_are_read_as_they_are_and_left_handed_ones_are_mirrored(tmp_path: Path) -> None:
    right_handed = read_poses_csv(tmp_path / "right", axes="right down forward", quat_wxyz=QUAT_WORLD_CAM_WXYZ)
    assert_poses_are_the_same(right_handed.T_world_cam, T_WORLD_CAM)
    # Unity: y up, left-handed. A camera that is not turned looks along z, and the mirrored world's z along -z.
    left_handed = read_poses_csv(tmp_path / "left", axes="right up forward", quat_wxyz=[1, 0, 0, 0])
    assert_allclose(left_handed.T_world_cam.t, [1.0, 2.0, -3.0])
    assert_allclose(left_handed.T_world_cam.R @ tensor(0, 0, 1), [0.0, 0.0, -1.0])


@says("Lengths are metres.")
def test_a_step_of_one_is_a_metre(tmp_path: Path) -> None:
    frame = read_seven_scenes(tmp_path)
    assert_allclose(frame.T_world_cam.t, CENTRE)  # the file's metres
    assert frame.read_depth_m()[5, 5] == pytest.approx(1.5)  # the file's 1500 mm


# Rotations


@says("Quaternions are (w, x, y, z) of length 1, with w at least 0.")
def test_a_quarter_turn_about_z_as_a_quaternion() -> None:
    T = Pose.from_axis_angle([0.0, 0.0, math.pi / 2], CENTRE)
    assert_allclose(T.quat_wxyz(), [math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)], atol=1e-15)
    three_quarters = Pose.from_axis_angle([0.0, 0.0, 3 * math.pi / 2], CENTRE)
    assert_allclose(three_quarters.quat_wxyz(), [math.sqrt(0.5), 0.0, 0.0, -math.sqrt(0.5)], atol=1e-15)


@says("`q` and `-q` are the same rotation and come back as the same quaternion.")
def test_the_sign_of_a_quaternion_means_nothing() -> None:
    q = tensor(*QUAT_WORLD_CAM_WXYZ)
    assert_array_equal(quat_wxyz_to_matrix(-q), quat_wxyz_to_matrix(q))
    assert_array_equal(matrix_to_quat_wxyz(quat_wxyz_to_matrix(-q)), q)


@says("At 180 degrees w is 0, and the first of x, y, z that is not 0 is positive.")
def test_half_turns_have_one_quaternion() -> None:
    assert_array_equal(quat_in_upper_hemisphere(tensor(0, 0, -0.6, 0.8)), [0.0, 0.0, 0.6, -0.8])
    assert_array_equal(matrix_to_quat_wxyz(torch.diag(tensor(-1, 1, -1))), [0.0, 0.0, 1.0, 0.0])


@says(
    "An axis-angle vector points along the axis, turns by the right-hand rule, and its length is the angle in radians, "
    "at most pi."
)
def test_a_quarter_turn_about_z_takes_x_to_y() -> None:
    quarter_turn_z = axis_angle_to_matrix(tensor(0, 0, math.pi / 2))
    assert_allclose(quarter_turn_z @ tensor(1, 0, 0), [0.0, 1.0, 0.0], atol=1e-15)
    assert_allclose(matrix_to_axis_angle(quarter_turn_z), [0.0, 0.0, math.pi / 2], atol=1e-15)
    three_quarters = axis_angle_to_matrix(tensor(0, 0, 3 * math.pi / 2))
    assert_allclose(matrix_to_axis_angle(three_quarters), [0.0, 0.0, -math.pi / 2], atol=1e-15)


@says("A log quaternion is half the axis-angle vector, so its length is at most pi/2.")
def test_the_log_of_a_quarter_turn_is_an_eighth() -> None:
    assert_allclose(log_quat(tensor(math.sqrt(0.5), 0, 0, math.sqrt(0.5))), [0.0, 0.0, math.pi / 4], atol=1e-15)
    assert_allclose(log_quat(tensor(0, 1, 0, 0)), [math.pi / 2, 0.0, 0.0], atol=1e-15)


@says("A 6D rotation is the first column of the matrix followed by the second.")
def test_6d_is_two_columns() -> None:
    assert_array_equal(matrix_to_rotation_6d(T_WORLD_CAM.R), [*RIGHT, *DOWN])


# Pixels


@says(
    "Image coordinates (x, y) are continuous, in pixels: x grows to the right, y grows down.",
    "The top-left corner of the image is (0, 0), and its bottom-right corner is (width, height).",
)
def test_a_camera_with_a_view_of_90_degrees_sees_from_corner_to_corner() -> None:
    camera = Camera.from_focal(640, 640, 320.0)
    corners = camera.project(torch.tensor([[-1.0, -1.0, 1.0], [1.0, 1.0, 1.0], [1.0, -1.0, 1.0]]))
    assert corners.tolist() == [[0.0, 0.0], [640.0, 640.0], [640.0, 0.0]]


@says(
    "The centre of the first pixel is (0.5, 0.5).",
    "The pixel in row v and column u holds what is seen at (u + 0.5, v + 0.5).",
)
def test_the_grid_of_pixels_holds_their_centres() -> None:
    grid = Camera.from_focal(6, 4, 5.0).pixel_grid()
    assert grid[0, 0].tolist() == [0.5, 0.5]
    assert grid[3, 1].tolist() == [1.5, 3.5]


@says("Resizing an image scales fx and cx by the same factor, and fy and cy by the same factor.")
def test_resizing_scales_the_principal_point_with_the_focal_length() -> None:
    camera = Camera(640, 480, 500.0, 510.0, 322.0, 241.0).scaled_to(320, 120)
    assert (camera.fx, camera.cx, camera.fy, camera.cy) == (250.0, 161.0, 127.5, 60.25)


@says(
    "A photo is read upright, as its EXIF orientation says, in 8-bit RGB with shape [height, width, 3]; its pose and "
    "intrinsics are those of the upright photo."
)
def test_a_sideways_photo_is_turned_with_its_camera(tmp_path: Path) -> None:
    # The phone was held upright, but its sensor lies on its side: stored 32x24, EXIF says to turn it clockwise.
    turn_clockwise = 6
    stored = np.zeros((24, 32, 3), dtype=np.uint8)
    stored[:8, :8] = [255, 0, 0]
    exif = Image.Exif()
    exif[0x0112] = turn_clockwise
    write_colmap(tmp_path, Image.fromarray(stored), exif=exif)
    frame = open_scene(tmp_path)[0]
    photo = frame.read_image()
    assert photo.shape == (32, 24, 3)
    assert photo.dtype == np.uint8
    red = photo[:, :, 0] > 200
    assert red[2, -3]  # top left became top right
    assert not red[2, 2]
    assert frame.camera is not None
    assert (frame.camera.width, frame.camera.height) == (24, 32)
    # The stored photo's down (-z of the world) is the upright photo's left, and its right (-y) is down.
    assert_allclose(frame.T_world_cam.R @ tensor(1, 0, 0), [0.0, 0.0, 1.0], atol=1e-12)
    assert_allclose(frame.T_world_cam.R @ tensor(0, 1, 0), RIGHT, atol=1e-12)
    assert_allclose(frame.T_world_cam.R @ tensor(0, 0, 1), FORWARD, atol=1e-12)


# Depth


@says(
    "Depth is z in camera coordinates, along the optical axis, not the distance from the camera centre.",
    "A pixel and its depth are a point: `p_cam = depth_m * camera.unproject(xy)`.",
)
def test_a_wall_straight_ahead_has_one_depth() -> None:
    camera = Camera.from_focal(640, 640, 320.0)
    wall_m = 2.0
    middle, corner = wall_m * camera.unproject(torch.tensor([[320.0, 320.0], [640.0, 640.0]]))
    assert middle.tolist() == [0.0, 0.0, 2.0]
    assert corner.tolist() == [2.0, 2.0, 2.0]  # farther away, but no deeper


@says("Depth maps are read as float32 metres, NaN where the depth is unknown.")
def test_depth_is_metres_or_nan(tmp_path: Path) -> None:
    depth_m = read_seven_scenes(tmp_path).read_depth_m()
    assert depth_m.dtype == np.float32
    assert depth_m[5, 5] == pytest.approx(1.5)
    assert np.isnan(depth_m[0, 0])


# Errors


@says("The rotation error is the angle between two rotations in degrees, from 0 to 180.")
def test_a_third_of_a_turn_is_120_degrees() -> None:
    assert float(rotation_error_deg(np.eye(3), R_WORLD_CAM)) == pytest.approx(120.0)
    assert float(rotation_error_deg(np.eye(3), np.diag([1.0, -1.0, -1.0]))) == 180.0


@says("The translation error is the distance between two camera centres in metres.")
def test_the_distance_of_two_cameras() -> None:
    assert float(translation_error_m(T_WORLD_CAM.t, [4.0, 6.0, 3.0])) == 5.0


# Files: the camera above, written by hand in each format


def assert_poses_are_the_same(T_a: Pose, T_b: Pose) -> None:
    assert_allclose(T_a.matrix(), T_b.matrix(), atol=1e-12)


def write_photo(path: Path, image: Image.Image | None = None, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (32, 24), "gray")).save(path, **options)


def write_depth(path: Path) -> None:
    """1500 everywhere, but 0 in the first pixel and 65535 in the second."""
    depth = np.full((24, 32), 1500, dtype=np.uint16)
    depth[0, :2] = [0, 65535]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(depth).save(path)


def read_seven_scenes(root: Path) -> Frame:
    sequence = root / "seq-01"
    write_photo(sequence / "frame-000000.color.png")
    write_depth(sequence / "frame-000000.depth.png")
    (sequence / "frame-000000.pose.txt").write_text("0 0 1 1\n-1 0 0 2\n0 -1 0 3\n0 0 0 1\n")
    return open_scene(root)[0]


def read_poses_csv(root: Path, axes: str, quat_wxyz: list[float], direction: str = "world_from_camera") -> Frame:
    write_photo(root / "photo.png")
    write_depth(root / "depth.png")
    t = CENTRE if direction == "world_from_camera" else [2.0, 3.0, -1.0]
    values = ",".join(map(str, [*t, *quat_wxyz]))
    (root / "poses.csv").write_text(
        f"# camera axes: {axes}\n# direction: {direction}\n"
        f"name,tx,ty,tz,qw,qx,qy,qz,depth\nphoto.png,{values},depth.png\n"
    )
    return open_scene(root)[0]


def write_colmap(root: Path, image: Image.Image | None = None, **options: object) -> None:
    write_photo(root / "images" / "photo.jpg", image, quality=95, **options)
    model = root / "sparse" / "0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text("1 PINHOLE 32 24 30 30 16 12\n")
    # cam_from_world: the conjugate quaternion, and minus the centre seen from the camera: right -2, down -3, forward 1.
    (model / "images.txt").write_text("1 0.5 0.5 -0.5 0.5 2 3 -1 1 photo.jpg\n\n")
    (model / "points3D.txt").write_text("")


@says("| 7-Scenes | camera-to-world 4x4 matrix | OpenCV | 16-bit, 1000 for a metre, 0 and 65535 unknown |")
def test_seven_scenes_is_camera_to_world(tmp_path: Path) -> None:
    frame = read_seven_scenes(tmp_path)
    assert_poses_are_the_same(frame.T_world_cam, T_WORLD_CAM)
    assert frame.read_depth_m()[5, 5] == pytest.approx(1.5)
    assert np.isnan(frame.read_depth_m()[0, :3]).tolist() == [True, True, False]


@says("| Cambridge Landmarks | camera centre, and the world-to-camera quaternion wxyz | OpenCV | none |")
def test_cambridge_mixes_the_camera_centre_with_the_rotation_to_the_camera(tmp_path: Path) -> None:
    write_photo(tmp_path / "seq1" / "frame00001.png")
    header = "Visual Landmark Dataset V1\nImageFile, Camera Position [X Y Z W P Q R]\n\n"
    (tmp_path / "dataset_train.txt").write_text(f"{header}seq1/frame00001.png 1 2 3 0.5 0.5 -0.5 0.5\n")
    frame = open_scene(tmp_path)[0]
    assert_poses_are_the_same(frame.T_world_cam, T_WORLD_CAM)
    assert frame.depth is None


@says("| COLMAP | `cam_from_world`: world-to-camera quaternion wxyz and translation | OpenCV | none |")
def test_colmap_is_world_to_camera(tmp_path: Path) -> None:
    write_colmap(tmp_path)
    frame = open_scene(tmp_path)[0]
    assert_poses_are_the_same(frame.T_world_cam, T_WORLD_CAM)
    assert frame.depth is None


@says("| TUM RGB-D | camera-to-world translation and quaternion xyzw | OpenCV | 16-bit, 5000 for a metre, 0 unknown |")
def test_tum_is_camera_to_world_with_w_last(tmp_path: Path) -> None:
    write_photo(tmp_path / "rgb" / "1.0.png")
    write_depth(tmp_path / "depth" / "1.0.png")
    (tmp_path / "rgb.txt").write_text("1.0 rgb/1.0.png\n")
    (tmp_path / "depth.txt").write_text("1.0 depth/1.0.png\n")
    (tmp_path / "groundtruth.txt").write_text("1.0 1 2 3 -0.5 0.5 -0.5 0.5\n")
    frame = open_scene(tmp_path)[0]
    assert_poses_are_the_same(frame.T_world_cam, T_WORLD_CAM)
    assert frame.read_depth_m()[5, 5] == pytest.approx(0.3)
    assert np.isnan(frame.read_depth_m()[0, :3]).tolist() == [True, False, False]


@says(
    "| transforms.json | camera-to-world 4x4 matrix | OpenGL: +X right, +Y up, +Z back | "
    "16-bit, 1000 for a metre, 0 and 65535 unknown |"
)
def test_transforms_json_has_opengl_axes(tmp_path: Path) -> None:
    write_photo(tmp_path / "images" / "photo.png")
    write_depth(tmp_path / "depth" / "photo.png")
    # Columns: right, up (not down), back (not forward), centre.
    matrix = [[0, 0, -1, 1], [-1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]]
    frame = {"file_path": "images/photo.png", "depth_file_path": "depth/photo.png", "transform_matrix": matrix}
    intrinsics = {"fl_x": 30, "fl_y": 30, "cx": 16, "cy": 12, "w": 32, "h": 24}
    (tmp_path / "transforms.json").write_text(json.dumps({**intrinsics, "frames": [frame]}))
    read = open_scene(tmp_path)[0]
    assert_poses_are_the_same(read.T_world_cam, T_WORLD_CAM)
    assert read.read_depth_m()[5, 5] == pytest.approx(1.5)
    assert np.isnan(read.read_depth_m()[0, :3]).tolist() == [True, True, False]


@says(
    "| poses.csv | direction declared in its header, quaternion columns named `qw,qx,qy,qz` | declared in its header | "
    "16-bit, 1000 for a metre, 0 and 65535 unknown |"
)
@pytest.mark.parametrize(
    ("axes", "direction", "quat_wxyz"),
    [
        ("right down forward", "world_from_camera", [0.5, -0.5, 0.5, -0.5]),
        ("right down forward", "camera_from_world", [0.5, 0.5, -0.5, 0.5]),
        # OpenGL's axes are ours after half a turn about x, (0, 1, 0, 0): the product of the two quaternions by hand.
        ("right up back", "world_from_camera", [0.5, 0.5, -0.5, -0.5]),
    ],
)
def test_poses_csv_is_what_it_declares(tmp_path: Path, axes: str, direction: str, quat_wxyz: list[float]) -> None:
    frame = read_poses_csv(tmp_path, axes, quat_wxyz, direction)
    assert_poses_are_the_same(frame.T_world_cam, T_WORLD_CAM)
    assert frame.read_depth_m()[5, 5] == pytest.approx(1.5)


# The page


def test_tests_quote_every_sentence_of_the_page_and_no_other() -> None:
    page = PAGE.read_text(encoding="utf-8")
    items = re.findall(r"^- (.*)$", page, flags=re.MULTILINE)
    rows = re.findall(r"^\| .* \|$", page, flags=re.MULTILINE)[2:]  # below the header and its rule
    assert sorted(QUOTED) == sorted(items + rows)
