"""COLMAP models, binary and text: what pycolmap says about them is what we say, in our conventions."""

import re
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import CX, CY, FRAMES, FX, FY, HEIGHT, WIDTH, write_photo

from relograph.errors import ConfigError, DatasetError, MissingExtraError, RelographError
from relograph.geometry import Camera, Pose
from relograph.scenes import colmap
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.scene import Scene

BOTH_KINDS = pytest.mark.parametrize("kind", ["colmap text", "colmap binary"])
NAMES = [frame.name for frame in FRAMES]


def model_folder(root: Path) -> Path:
    return root / "sparse" / "0"


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def write_by_pycolmap(reconstruction: pycolmap.Reconstruction, root: Path, kind: str) -> Path:
    """Photos and the model, as COLMAP itself writes it, with rigs and frames."""
    model_folder(root).mkdir(parents=True)
    write = reconstruction.write_binary if kind == "colmap binary" else reconstruction.write_text
    write(str(model_folder(root)))
    for image in reconstruction.images.values():
        write_photo(root / "images" / image.name, size_wh=(image.camera.width, image.camera.height))
    return root


def reconstruction_of_rigs() -> pycolmap.Reconstruction:
    """Two cameras on one rig, the second turned and off the first, at three places; with points."""
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig, options.num_points3D = 1, 2, 3, 20
    options.camera_width, options.camera_height = WIDTH, HEIGHT
    return pycolmap.synthesize_dataset(options)


# Reading


@BOTH_KINDS
def test_cameras_stand_and_look_where_scipy_put_them(tiny_scene, kind):
    scene = colmap.read(tiny_scene(kind))
    assert [frame.name for frame in scene] == NAMES
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)


@BOTH_KINDS
def test_cameras_on_a_rig_stand_and_look_where_pycolmap_says(tmp_path, kind):
    reconstruction = reconstruction_of_rigs()
    scene = colmap.read(write_by_pycolmap(reconstruction, tmp_path / "rigs", kind))
    assert len(scene) == 6
    for frame in scene:
        image = reconstruction.find_image_with_name(frame.name)
        assert_allclose(frame.T_world_cam.t, image.projection_center(), atol=1e-12)
        assert_allclose(frame.T_world_cam.R[:, 2], image.viewing_direction(), atol=1e-12)


def test_an_images_line_by_hand_puts_the_camera_where_minus_R_transposed_t_is(tiny_scene):
    """w = x = sqrt(1/2) is a quarter turn about x, R = [[1, 0, 0], [0, 0, -1], [0, 1, 0]] from world to camera. Its
    third row, (0, 1, 0), is where the camera looks; with t = (1, 2, 3) the centre -R^T t is (-1, -3, 2).
    """
    root = tiny_scene("colmap text")
    half = repr(0.5**0.5)
    (model_folder(root) / "images.txt").write_text(f"7 {half} {half} 0 0 1 2 3 1 {NAMES[0]}\n\n")
    for split in ("train", "test"):
        (root / f"{split}.txt").unlink()
    frame = colmap.read(root)[0]
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 0.0]), [-1.0, -3.0, 2.0], atol=1e-12)
    assert_allclose(frame.T_world_cam.R @ torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), [0, 1, 0], atol=1e-12)


@BOTH_KINDS
def test_names_sequences_splits_photos_and_intrinsics_are_read(tiny_scene, kind):
    scene = colmap.read(tiny_scene(kind))
    assert [frame.sequence for frame in scene] == [frame.sequence for frame in FRAMES]
    assert [frame.split for frame in scene] == [frame.split for frame in FRAMES]
    assert {frame.camera for frame in scene} == {Camera(WIDTH, HEIGHT, FX, FY, CX, CY)}
    pixels = np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    assert_array_equal(scene[2].read_image(), pixels)


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("SIMPLE_PINHOLE", [30.0, 16.5, 11.5]),
        ("PINHOLE", [30.0, 31.0, 16.5, 11.5]),
        ("SIMPLE_RADIAL", [30.0, 16.5, 11.5, 0.05]),
        ("RADIAL", [30.0, 16.5, 11.5, 0.05, -0.02]),
        ("OPENCV", [30.0, 31.0, 16.5, 11.5, 0.05, -0.02, 0.003, -0.004]),
        ("FULL_OPENCV", [30.0, 31.0, 16.5, 11.5, 0.05, -0.02, 0.003, -0.004, 0.01, 0.0, 0.0, 0.0]),
        ("SIMPLE_RADIAL_FISHEYE", [30.0, 16.5, 11.5, 0.05]),
        ("RADIAL_FISHEYE", [30.0, 16.5, 11.5, 0.05, -0.02]),
        ("OPENCV_FISHEYE", [30.0, 31.0, 16.5, 11.5, 0.05, -0.02, 0.003, -0.004]),
    ],
)
def test_every_camera_model_projects_as_in_pycolmap(tiny_scene, model, params):
    root = tiny_scene("colmap text")
    line = f"1 {model} {WIDTH} {HEIGHT} {' '.join(map(str, params))}\n"
    (model_folder(root) / "cameras.txt").write_text(line)
    points = torch.tensor([[0.1, -0.2, 1.0], [0.5, 0.3, 2.0], [-0.3, 0.25, 0.9]], dtype=torch.float64)
    expected = pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=params).img_from_cam(points.numpy())
    camera = colmap.read(root)[0].camera
    assert_allclose(camera.project(points), expected, atol=1e-10)


@pytest.mark.parametrize("model", ["sparse/0", "sparse", "model", "."])
def test_the_model_is_found_in_its_usual_places(tiny_scene, model):
    root = tiny_scene("colmap text")
    files = {path.name: path.read_text() for path in model_folder(root).iterdir()}
    for path in model_folder(root).iterdir():
        path.unlink()
    model_folder(root).rmdir()
    (root / model).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / model / name).write_text(text)
    assert colmap.recognise(root)
    assert len(colmap.read(root)) == len(FRAMES)


def test_the_model_folder_alone_finds_its_photos_and_splits_above_it(tiny_scene):
    root = tiny_scene("colmap binary")
    scene = colmap.read(model_folder(root))
    assert [frame.name for frame in scene] == NAMES
    assert [frame.split for frame in scene] == [frame.split for frame in FRAMES]


def test_photos_beside_the_model_files_are_found(tiny_scene):
    root = tiny_scene("colmap text")
    for path in model_folder(root).iterdir():
        path.rename(root / "images" / path.name)
    assert len(colmap.read(root / "images")) == len(FRAMES)


def test_a_folder_without_a_model_is_not_recognised(tmp_path):
    (tmp_path / "cameras.txt").touch()
    assert not colmap.recognise(tmp_path)
    with pytest.raises(DatasetError, match="expected a COLMAP model"):
        colmap.read(tmp_path)


@pytest.mark.parametrize(("orientation", "quarter_turns"), [(3, 2), (6, 3), (8, 1)])
def test_a_photo_that_exif_turns_takes_pose_and_camera_with_it(tiny_scene, orientation, quarter_turns):
    """COLMAP describes the stored pixels. A point's pixel, found by pycolmap there, is found again in the upright
    photo at the place to which the turn moves it."""
    root = tiny_scene("colmap text")
    photo = root / "images" / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = orientation
    write_photo(photo, exif=exif)
    rewrite(model_folder(root) / "images.txt", NAMES[0], "turned.jpg")
    rewrite(root / "train.txt", NAMES[0], "turned.jpg")

    image = pycolmap.Reconstruction(str(model_folder(root))).image(1)
    point_world = image.cam_from_world().inverse() * np.array([0.1, 0.2, 1.5])
    x, y = image.project_point(point_world)
    width, height = WIDTH, HEIGHT
    for _ in range(quarter_turns):  # counter-clockwise: the right edge becomes the top
        x, y, width, height = y, width - x, height, width

    frame = colmap.read(root)["turned.jpg"]
    assert frame.read_image().shape[:2] == (frame.camera.height, frame.camera.width)
    point_cam = frame.T_world_cam.inverse().apply(point_world)
    assert_allclose(frame.camera.project(point_cam), [x, y], atol=1e-9)


def test_an_image_whose_place_on_its_rig_is_unknown_is_left_out_and_named(tmp_path):
    root = write_by_pycolmap(reconstruction_of_rigs(), tmp_path / "rigs", "colmap text")
    rigs = model_folder(root) / "rigs.txt"
    lines = rigs.read_text().splitlines()
    lines[-1] = re.sub(r"CAMERA 2 1 .*", "CAMERA 2 0", lines[-1])
    rigs.write_text("\n".join(lines) + "\n")
    scene = colmap.read(root)
    assert len(scene) == 3
    assert len(scene.warnings) == 3
    assert "has no pose and was left out" in scene.warnings[0]


def test_a_second_model_beside_the_first_is_mentioned(tiny_scene):
    root = tiny_scene("colmap text")
    (root / "sparse" / "1").mkdir()
    assert "several models" in colmap.read(root).warnings[0]


def test_a_text_file_that_lists_fewer_images_than_it_announces_is_mentioned(tiny_scene):
    root = tiny_scene("colmap text")
    rewrite(
        model_folder(root) / "images.txt", "# images, two lines each", "# Number of images: 5, mean observations: 0"
    )
    assert "announces 5 images and lists 4" in colmap.read(root).warnings[0]


def test_points_are_passed_over_even_when_they_are_damaged(tmp_path):
    root = write_by_pycolmap(reconstruction_of_rigs(), tmp_path / "rigs", "colmap binary")
    (model_folder(root) / "points3D.bin").write_bytes(struct.pack("<Q", 2**60))
    assert len(colmap.read(root)) == 6


def test_pycolmap_missing_is_answered_with_the_extra_that_brings_it(tiny_scene, monkeypatch):
    root = tiny_scene("colmap text")
    monkeypatch.setitem(sys.modules, "pycolmap", None)  # what Python does when a module cannot be imported
    with pytest.raises(MissingExtraError, match=r"relograph\[geometry\]"):
        colmap.read(root)


def test_pycolmap_keeps_its_log_level(tiny_scene):
    before = pycolmap.logging.minloglevel
    colmap.read(tiny_scene("colmap text"))
    assert pycolmap.logging.minloglevel == before


# Bad input


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "rigs.bin", "frames.bin"])
def test_a_binary_file_cut_anywhere_is_an_error(tmp_path, file):
    """pycolmap itself reads on past the end of most of these and invents what it does not find."""
    root = write_by_pycolmap(reconstruction_of_rigs(), tmp_path / "rigs", "colmap binary")
    path = model_folder(root) / file
    data = path.read_bytes()
    step = 1 + len(data) // 200  # every byte of a short file, and places of every kind in a long one
    for length in range(0, len(data), step):
        path.write_bytes(data[:length])
        with pytest.raises(DatasetError, match="whole COLMAP binary file"):
            colmap.read(root)


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "rigs.bin", "frames.bin"])
def test_a_count_that_the_file_cannot_hold_is_an_error_and_asks_for_no_memory(tmp_path, file):
    root = write_by_pycolmap(reconstruction_of_rigs(), tmp_path / "rigs", "colmap binary")
    path = model_folder(root) / file
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])
    with pytest.raises(DatasetError, match=f"count of {2**60} items"):
        colmap.read(root)


def test_bytes_after_the_last_image_are_an_error(tiny_scene):
    root = tiny_scene("colmap binary")
    with (model_folder(root) / "images.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DatasetError, match="4 bytes after its last item"):
        colmap.read(root)


BAD_TEXT = {
    "the pose has a NaN": ("images.txt", "4.0 ", "nan ", "finite number"),
    "the quaternion has norm 2": ("images.txt", "4 1.0 0.0 0.0 0.0", "4 2.0 0.0 0.0 0.0", "quaternion of norm 1"),
    "a value is missing": ("images.txt", "4 1.0 0.0 0.0 0.0", "4 1.0 0.0 0.0", "found 9"),
    "the name climbs out": ("images.txt", NAMES[3], "../frame.png", r"'\.\.'"),
    "the name is there twice": ("images.txt", NAMES[3], NAMES[2], "twice"),
    "the photo is missing": ("images.txt", NAMES[3], "seq-02/frame-000009.color.png", "found nothing there"),
    "the camera is missing": ("images.txt", f"1 {NAMES[3]}", f"8 {NAMES[3]}", "id of a camera"),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_a_bad_image_is_an_error_unless_it_is_left_out(tiny_scene, case):
    file, old, new, message = BAD_TEXT[case]
    root = tiny_scene("colmap text")
    (root / "test.txt").write_text(f"{NAMES[2]}\n")
    lines = (model_folder(root) / file).read_text().splitlines()
    line = next(index for index, line in enumerate(lines) if NAMES[3] in line)
    if case == "the pose has a NaN":
        old = lines[line].split()[6]
        assert float(old) == -4.0
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    (model_folder(root) / file).write_text("\n".join(lines) + "\n")
    with pytest.raises(RelographError, match=message) as caught:
        colmap.read(root)
    assert "\n" not in str(caught.value)
    scene = colmap.read(root, skip_bad_frames=True)
    assert [frame.name for frame in scene] == NAMES[:3]
    assert re.search(message, scene.warnings[0])


def test_a_nan_in_a_binary_pose_is_an_error_unless_the_image_is_left_out(tiny_scene):
    root = tiny_scene("colmap binary")
    path = model_folder(root) / "images.bin"
    data = bytearray(path.read_bytes())
    struct.pack_into("<d", data, 8 + 4 + 32, np.nan)  # tx of the first image
    path.write_bytes(data)
    with pytest.raises(DatasetError, match="finite numbers in the pose"):
        colmap.read(root)
    assert [frame.name for frame in colmap.read(root, skip_bad_frames=True)] == NAMES[1:]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 PINHOLE 32 24 30 31 16", "parameters of one of COLMAP's models"),
        ("1 PINHOLE 32", "parameters of one of COLMAP's models"),
        ("1 GUESSED 32 24 30 31 16 12", "parameters of one of COLMAP's models"),
        ("1 PINHOLE 32 24 nan 31 16 12", "finite number"),
        ("1 PINHOLE 32 24 -30 31 16 12", "Focal lengths are positive"),
        ("1 PINHOLE 320 240 300 310 160 120", "photo of 320 x 240 pixels"),
        ("1 FOV 32 24 30 31 16 12 0.9", "expected one of the camera models"),
        ("", "id of a camera"),
    ],
)
def test_a_bad_camera_is_an_error(tiny_scene, line, message):
    root = tiny_scene("colmap text")
    (model_folder(root) / "cameras.txt").write_text(line + "\n")
    with pytest.raises(RelographError, match=message):
        colmap.read(root)


def test_what_only_pycolmap_finds_wrong_is_passed_on_in_one_line(tiny_scene):
    root = tiny_scene("colmap text")
    rewrite(model_folder(root) / "images.txt", "\n4 ", "\n1 ")  # two images with the id 1
    with pytest.raises(DatasetError, match="pycolmap refused it") as caught:
        colmap.read(root)
    assert "\n" not in str(caught.value)


def test_a_model_without_any_of_its_photos_says_where_it_looked(tiny_scene):
    root = tiny_scene("colmap text")
    (root / "images").rename(root / "pictures")
    with pytest.raises(DatasetError, match=r"found none of them in .*images"):
        colmap.read(root)


def test_a_model_without_images_is_an_empty_scene(tiny_scene):
    root = tiny_scene("colmap text")
    (model_folder(root) / "images.txt").write_text("# nothing\n")
    with pytest.raises(DatasetError, match="expected posed photos"):
        colmap.read(root)


def test_a_split_file_that_names_a_missing_frame_is_an_error_unless_bad_frames_are_left_out(tiny_scene):
    root = tiny_scene("colmap text")
    with (root / "train.txt").open("a") as file:
        file.write("seq-09/frame.png\n")
    with pytest.raises(DatasetError, match=r"train.txt line 3.*which the scene does not have"):
        colmap.read(root)
    scene = colmap.read(root, skip_bad_frames=True)
    assert len(scene.train) == 2
    assert "seq-09/frame.png" in scene.warnings[0]


def test_a_frame_in_both_splits_is_an_error(tiny_scene):
    root = tiny_scene("colmap text")
    (root / "test.txt").write_text(f"{NAMES[0]}\n")
    with pytest.raises(DatasetError, match="in one split only"):
        colmap.read(root)


# Writing


def three_frames(folder: Path) -> Scene:
    """Three frames with two cameras between them."""
    rng = np.random.default_rng(0)
    shared = Camera(WIDTH, HEIGHT, FX, FY, CX, CY, (0.1, -0.02, 0.003, 1 / 3), "opencv")
    frames = []
    for index, camera in enumerate((shared, replace(shared, fx=FX + 0.1), shared)):
        path = folder / f"walk/{index}.png"
        write_photo(path, index)
        T_world_cam = Pose.from_axis_angle(rng.normal(size=3), rng.normal(size=3))
        frames.append(Frame(f"walk/{index}.png", T_world_cam, FileSource(path), camera, sequence="walk"))
    return Scene("hall", folder, "made", tuple(frames))


def test_pycolmap_opens_what_is_written_and_finds_the_cameras_in_place(tmp_path):
    scene = three_frames(tmp_path / "photos")
    colmap.write(scene, tmp_path / "written")
    reconstruction = pycolmap.Reconstruction(str(model_folder(tmp_path / "written")))
    assert reconstruction.num_images() == 3
    assert reconstruction.num_points3D() == 0
    for frame in scene:
        image = reconstruction.find_image_with_name(frame.name)
        assert_allclose(image.projection_center(), frame.T_world_cam.t, atol=1e-14)
        assert_allclose(image.viewing_direction(), frame.T_world_cam.R[:, 2], atol=1e-14)
        assert (tmp_path / "written" / "images" / frame.name).read_bytes() == frame.image.read_bytes()


def test_cameras_that_frames_share_are_written_once_and_to_the_last_digit(tmp_path):
    scene = three_frames(tmp_path / "photos")
    colmap.write(scene, tmp_path / "written")
    cameras = pycolmap.Reconstruction(str(model_folder(tmp_path / "written"))).cameras
    assert len(cameras) == 2
    assert_array_equal(cameras[1].params, [FX, FY, CX, CY, 0.1, -0.02, 0.003, 1 / 3])
    assert [frame.camera for frame in colmap.read(tmp_path / "written")] == [frame.camera for frame in scene]


def test_every_image_has_an_empty_line_for_its_points(tmp_path):
    colmap.write(three_frames(tmp_path / "photos"), tmp_path / "written")
    lines = (model_folder(tmp_path / "written") / "images.txt").read_text().splitlines()
    data = [line for line in lines if not line.startswith("#")]
    assert [bool(line) for line in data] == [True, False] * 3


def test_a_scene_without_intrinsics_is_refused_and_the_way_out_is_named(tmp_path):
    scene = three_frames(tmp_path / "photos")
    frames = (scene[0], replace(scene[1], camera=None))
    with pytest.raises(ConfigError, match=r"walk/1\.png.*--focal"):
        colmap.write(replace(scene, frames=frames), tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_a_name_with_a_space_is_refused_because_colmap_would_cut_it(tmp_path):
    scene = three_frames(tmp_path / "photos")
    frames = (replace(scene[0], name="walk/first photo.png"),)
    with pytest.raises(DatasetError, match="without spaces"):
        colmap.write(replace(scene, frames=frames), tmp_path / "written")
    assert not (tmp_path / "written").exists()
