"""transforms.json as nerfstudio and instant-ngp write it, and whatever else JSON can hold."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import CX, CY, FRAMES, FX, FY, HEIGHT, WIDTH, write_photo

from relograph.errors import RelographError
from relograph.geometry import Camera
from relograph.scenes import transforms_json
from relograph.scenes.frame import DepthSource, FileSource

NAMES = [frame.name for frame in FRAMES]
IDENTITY = np.eye(4).tolist()


def write_json(root: Path, content: Any, name: str = "transforms.json") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(content))
    return root


def scene_of_one(tmp_path: Path, **settings: Any) -> Path:
    """A photo images/a.png of 32 x 24 pixels with the identity as its matrix, and the settings beside it."""
    write_photo(tmp_path / "one/images/a.png")
    frame = {"file_path": "images/a.png", "transform_matrix": IDENTITY}
    return write_json(tmp_path / "one", {**settings, "frames": [frame]})


# Reading


def test_cameras_stand_and_look_where_scipy_put_them(tiny_scene):
    scene = transforms_json.read(tiny_scene("transforms.json"))
    assert [frame.name for frame in scene] == NAMES
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)


def test_the_identity_matrix_is_a_camera_that_looks_along_minus_z_with_y_up(tmp_path):
    """OpenGL's axes, by hand: right is +x, down is -y, forward is -z."""
    T_world_cam = transforms_json.read(scene_of_one(tmp_path))[0].T_world_cam
    assert_array_equal(T_world_cam.apply([0.0, 0.0, 1.0]), [0, 0, -1])
    assert_array_equal(T_world_cam.apply([0.0, 1.0, 0.0]), [0, -1, 0])
    assert_array_equal(T_world_cam.apply([1.0, 0.0, 0.0]), [1, 0, 0])


def test_sequences_splits_photos_and_intrinsics_are_read(tiny_scene):
    scene = transforms_json.read(tiny_scene("transforms.json"))
    assert [frame.sequence for frame in scene] == [frame.sequence for frame in FRAMES]
    assert [frame.split for frame in scene] == [frame.split for frame in FRAMES]
    assert {frame.camera for frame in scene} == {Camera(WIDTH, HEIGHT, FX, FY, CX, CY)}
    pixels = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    assert_array_equal(scene[1].read_image(), pixels)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"w": 32, "h": 24}, None),
        # A quarter turn of view over 32 pixels: the focal length is half the width.
        ({"camera_angle_x": math.pi / 2}, Camera(32, 24, 16.0, 16.0, 16.0, 12.0)),
        ({"camera_angle_x": math.pi / 2, "camera_angle_y": math.pi / 2}, Camera(32, 24, 16.0, 12.0, 16.0, 12.0)),
        ({"fl_x": 30, "camera_angle_x": 1.0}, Camera(32, 24, 30.0, 30.0, 16.0, 12.0)),
        ({"fl_y": 30, "w": 32.0, "h": 24.0, "cx": 15.5}, Camera(32, 24, 30.0, 30.0, 15.5, 12.0)),
        (
            {"fl_x": 30, "camera_model": "SIMPLE_PINHOLE", "k1": 0.0, "k2": 0},
            Camera(32, 24, 30.0, 30.0, 16.0, 12.0),
        ),
        (
            {"fl_x": 30, "fl_y": 31, "k1": 0.1, "k2": -0.2, "p1": 0.01, "p2": 0.02},
            Camera(32, 24, 30.0, 31.0, 16.0, 12.0, (0.1, -0.2, 0.01, 0.02), "opencv"),
        ),
        (
            {"fl_x": 30, "camera_model": "OPENCV", "k1": 0.1, "k3": 0.3},
            Camera(32, 24, 30.0, 30.0, 16.0, 12.0, (0.1, 0.0, 0.0, 0.0, 0.3), "opencv"),
        ),
        (
            {"fl_x": 30, "camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k2": 0.2, "k3": 0.3, "k4": 0.4},
            Camera(32, 24, 30.0, 30.0, 16.0, 12.0, (0.1, 0.2, 0.3, 0.4), "fisheye"),
        ),
        (
            {"fl_x": 30, "is_fisheye": True, "k1": 0.1},
            Camera(32, 24, 30.0, 30.0, 16.0, 12.0, (0.1, 0.0, 0.0, 0.0), "fisheye"),
        ),
    ],
)
def test_intrinsics_are_read_in_all_their_spellings(tmp_path, settings, expected):
    camera = transforms_json.read(scene_of_one(tmp_path, **settings))[0].camera
    if expected is None:
        assert camera is None
    else:
        assert_allclose((camera.fx, camera.fy), (expected.fx, expected.fy), rtol=1e-14)
        assert replace(camera, fx=expected.fx, fy=expected.fy) == expected


def test_intrinsics_of_a_frame_win_over_those_of_the_file(tiny_scene):
    root = tiny_scene("transforms.json")
    content = json.loads((root / "transforms.json").read_text())
    content["frames"][2] |= {"fl_x": 50.0, "fl_y": 51.0}
    write_json(root, content)
    assert [frame.camera.fx for frame in transforms_json.read(root)] == [FX, FX, 50.0, FX]


def test_the_ending_of_a_file_may_be_missing_and_a_dot_slash_before_it(tmp_path):
    root = tmp_path / "ngp"
    write_photo(root / "images/0001.jpg")
    write_photo(root / "images/0002.color.png")
    frames = [{"file_path": path, "transform_matrix": IDENTITY} for path in ("./images/0001", "./images/0002.color")]
    write_json(root, {"camera_angle_x": 0.8, "frames": frames, "test_filenames": ["./images/0002.color"]})
    scene = transforms_json.read(root)
    assert [frame.name for frame in scene] == ["0001.jpg", "0002.color.png"]
    assert [frame.split for frame in scene] == [None, "test"]


def test_photos_outside_images_keep_their_folder_in_the_name(tmp_path):
    write_photo(tmp_path / "images/a.png")
    write_photo(tmp_path / "left/a.png")
    frames = [{"file_path": path, "transform_matrix": IDENTITY} for path in ("images/a.png", "left/a.png")]
    scene = transforms_json.read(write_json(tmp_path, {"frames": frames}))
    assert [frame.name for frame in scene] == ["images/a.png", "left/a.png"]


def test_one_file_for_each_split_is_read_as_its_split(tmp_path):
    for split in ("train", "val", "test"):
        write_photo(tmp_path / f"{split}/r_0.png")
        frame = {"file_path": f"./{split}/r_0", "transform_matrix": IDENTITY}
        write_json(tmp_path, {"camera_angle_x": 0.7, "frames": [frame]}, f"transforms_{split}.json")
    assert transforms_json.recognise(tmp_path)
    scene = transforms_json.read(tmp_path)
    assert [(frame.name, frame.split) for frame in scene] == [
        ("train/r_0.png", "train"),
        ("val/r_0.png", "test"),
        ("test/r_0.png", "test"),
    ]


def test_frames_held_out_for_validation_count_as_test_frames(tiny_scene):
    root = tiny_scene("transforms.json")
    content = json.loads((root / "transforms.json").read_text())
    # Named for validation only, for validation and test, and for validation and training.
    content["val_filenames"] = [f"images/{NAMES[index]}" for index in (2, 3, 0)]
    content["test_filenames"] = [f"images/{NAMES[3]}"]
    write_json(root, content)
    assert [frame.split for frame in transforms_json.read(root)] == ["train", "train", "test", "test"]


def test_depth_in_millimetres_and_times_in_seconds_are_read(tiny_scene):
    root = tiny_scene("transforms.json")
    content = json.loads((root / "transforms.json").read_text())
    content["frames"][1] |= {"depth_file_path": "depth/one.png", "timestamp_s": 12.5}
    write_json(root, content)
    (root / "depth").mkdir()
    Image.fromarray(np.full((HEIGHT, WIDTH), 2500, dtype=np.uint16)).save(root / "depth/one.png")
    scene = transforms_json.read(root)
    assert_allclose(scene[1].read_depth_m(), 2.5)
    assert scene[1].timestamp_s == 12.5
    assert scene[0].depth is None
    assert scene[0].timestamp_s is None


def test_a_photo_that_exif_turns_takes_pose_camera_and_depth_with_it(tmp_path):
    """Orientation 6: the stored photo is turned clockwise to be upright, so what was its left is up."""
    exif = Image.Exif()
    exif[0x0112] = 6
    write_photo(tmp_path / "images/a.jpg", exif=exif)
    depth = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) + 1
    Image.fromarray(depth).save(tmp_path / "d.png")
    frame = {"file_path": "images/a.jpg", "transform_matrix": IDENTITY, "depth_file_path": "d.png"}
    write_json(tmp_path, {"fl_x": 30, "fl_y": 31, "cx": 10, "w": WIDTH, "h": HEIGHT, "frames": [frame]})
    frame = transforms_json.read(tmp_path)[0]
    assert (frame.camera.width, frame.camera.height) == (HEIGHT, WIDTH)
    assert (frame.camera.fx, frame.camera.cy) == (31.0, 10.0)
    assert_allclose(frame.T_world_cam.apply([0.0, -1.0, 0.0]), [-1, 0, 0], atol=1e-15)  # up is the stored left
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 1.0]), [0, 0, -1], atol=1e-15)
    assert_allclose(frame.read_depth_m(), np.rot90(depth, -1) / 1000, rtol=1e-6)


# Bad input

WRONG_FRAMES = {
    "a NaN in the pose": ({"transform_matrix": [[math.nan, 0, 0, 0], *IDENTITY[1:]]}, "NaN or infinity"),
    "an infinite pose": ({"transform_matrix": [[1, 0, 0, math.inf], *IDENTITY[1:]]}, "NaN or infinity"),
    "a whole number too large": ({"transform_matrix": [[10**400, 0, 0, 0], *IDENTITY[1:]]}, "NaN or infinity"),
    "no pose": ({"transform_matrix": None}, "found nothing"),
    "a pose in words": ({"transform_matrix": "identity"}, "found the text 'identity'"),
    "a row too few": ({"transform_matrix": IDENTITY[:2]}, "found a list of 2"),
    "a value too few": ({"transform_matrix": [[1, 0, 0], *IDENTITY[1:]]}, r"found \[3, 4, 4, 4\]"),
    "a value that is no number": ({"transform_matrix": [[True, 0, 0, 0], *IDENTITY[1:]]}, "expected a number"),
    "another last row": ({"transform_matrix": [*IDENTITY[:3], [1, 2, 3, 1]]}, "0 0 0 1 as the last row"),
    "a mirrored pose": ({"transform_matrix": np.diag([-1.0, 1, 1, 1]).tolist()}, "mirrored"),
    "a pose with a scale": ({"transform_matrix": np.diag([2.0, 2, 2, 1]).tolist()}, "orthonormal"),
    "no name": ({"file_path": None}, '"file_path", found none'),
    "a number as name": ({"file_path": 7}, "expected text as file_path, found 7"),
    "a name that climbs out": ({"file_path": "images/../../a.png"}, r"'\.\.'"),
    "a photo that is missing": ({"file_path": "images/seq-09/a.png"}, "found nothing there"),
    "a photo twice": ({"file_path": f"images/{NAMES[2]}"}, "twice"),
    "a negative focal length": ({"fl_x": -3.0}, "Focal lengths are positive"),
    "a focal length in words": ({"fl_x": "long"}, "expected a number in fl_x, found the text 'long'"),
    "an angle beyond pi": ({"fl_x": None, "camera_angle_x": 4.0}, "within 0 and pi"),
    "a size that is not the photo's": ({"w": 64, "h": 48}, "photo of 64 x 48 pixels"),
    "half a pixel": ({"w": 31.5}, "number of pixels as w, found 31.5"),
    "an unknown camera model": ({"camera_model": "EQUIRECTANGULAR"}, "expected one of the camera models"),
    "a rational distortion": ({"camera_model": "OPENCV", "k4": 0.1}, "found k4"),
    "a depth map that is missing": ({"depth_file_path": "depth/none.png"}, "found nothing there"),
    "a time in words": ({"timestamp_s": [1]}, "expected a number in timestamp_s, found a list of 1"),
}


@pytest.mark.parametrize("case", WRONG_FRAMES)
def test_a_bad_frame_is_an_error_unless_it_is_left_out(tiny_scene, case):
    changes, message = WRONG_FRAMES[case]
    root = tiny_scene("transforms.json")
    content = json.loads((root / "transforms.json").read_text())
    content["frames"][3] |= changes
    del content["test_filenames"]
    write_json(root, content)
    with pytest.raises(RelographError, match=message) as caught:
        transforms_json.read(root)
    assert "\n" not in str(caught.value)
    scene = transforms_json.read(root, skip_bad_frames=True)
    assert [frame.name for frame in scene] == NAMES[:3]
    assert re.search(message, scene.warnings[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON, found: Expecting value in line 1"),
        ('{"frames": [', "expected JSON"),
        ("[]", "expected a JSON object with frames, found a list of 0"),
        ("null", "expected a JSON object with frames, found nothing"),
        ("{}", 'list "frames", found nothing'),
        ('{"frames": {}}', 'list "frames", found an object'),
        ('{"frames": []}', "expected posed photos"),
        ('{"frames": [1]}', "frame 0: expected a JSON object, found 1"),
        ("[" * 100_000, "nested too deep"),
        ('{"frames": ' + "9" * 5000 + "}", "numbers too long"),
        ('{"frames": [], "train_filenames": "all"}', "list of file paths as train_filenames"),
        ('{"frames": [], "train_filenames": [1]}', "list of file paths as train_filenames"),
        ('{"frames": [], "train_filenames": ["a.png"]}', "'a.png', which none has"),
    ],
)
def test_json_of_another_shape_is_an_error(tmp_path, text, message):
    (tmp_path / "transforms.json").write_text(text)
    with pytest.raises(RelographError, match=message) as caught:
        transforms_json.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_in_another_encoding_is_an_error(tmp_path):
    (tmp_path / "transforms.json").write_bytes('{"frames": []}'.encode("utf-16"))
    with pytest.raises(RelographError, match="UTF-8"):
        transforms_json.read(tmp_path)


def test_a_frame_for_training_and_testing_is_an_error(tiny_scene):
    root = tiny_scene("transforms.json")
    content = json.loads((root / "transforms.json").read_text())
    content["test_filenames"] = content["train_filenames"]
    write_json(root, content)
    with pytest.raises(RelographError, match="one split only"):
        transforms_json.read(root)


# Writing


def test_the_written_matrices_are_opengl_ones(tiny_scene, tmp_path):
    scene = transforms_json.read(tiny_scene("transforms.json"))
    transforms_json.write(scene, tmp_path / "written")
    content = json.loads((tmp_path / "written/transforms.json").read_text())
    for entry, frame in zip(content["frames"], FRAMES, strict=True):
        assert entry["file_path"] == f"images/{frame.name}"
        matrix = np.array(entry["transform_matrix"])
        assert_allclose(matrix[:3, 3], frame.centre, atol=1e-12)
        assert_allclose(matrix[:3, 2], -frame.view_direction, atol=1e-12)
        assert_allclose(matrix[:3, 1], -frame.R_world_cam[:, 1], atol=1e-12)


def test_intrinsics_are_written_once_where_all_frames_share_them(tiny_scene, tmp_path):
    scene = transforms_json.read(tiny_scene("transforms.json"))
    transforms_json.write(scene, tmp_path / "once")
    shared = json.loads((tmp_path / "once/transforms.json").read_text())
    assert (shared["camera_model"], shared["fl_y"], shared["h"]) == ("PINHOLE", FY, HEIGHT)
    assert "fl_x" not in shared["frames"][0]

    cameras = (None, replace(scene[1].camera, fx=1 / 3), *(frame.camera for frame in scene.frames[2:]))
    frames = tuple(replace(frame, camera=camera) for frame, camera in zip(scene, cameras, strict=True))
    transforms_json.write(replace(scene, frames=frames), tmp_path / "own")
    own = json.loads((tmp_path / "own/transforms.json").read_text())
    assert "fl_x" not in own
    assert own["frames"][1]["fl_x"] == 1 / 3
    assert [frame.camera for frame in transforms_json.read(tmp_path / "own")] == list(cameras)


def test_times_and_depth_are_written_where_they_are_known(tiny_scene, tmp_path):
    scene = transforms_json.read(tiny_scene("transforms.json"))
    depth = np.full((HEIGHT, WIDTH), 3000, dtype=np.uint16)
    depth[0, :2] = [0, 65535]
    Image.fromarray(depth).save(tmp_path / "d.png")
    known = replace(scene[0], timestamp_s=0.1, depth=DepthSource(FileSource(tmp_path / "d.png")))
    transforms_json.write(replace(scene, frames=(known, scene[1])), tmp_path / "written")
    first, second = transforms_json.read(tmp_path / "written")
    assert (first.timestamp_s, second.timestamp_s) == (0.1, None)
    assert second.depth is None
    assert_array_equal(first.read_depth_m(), known.read_depth_m())
    with Image.open(tmp_path / "written/depth" / NAMES[0]) as stored:
        assert_array_equal(np.asarray(stored)[0, :3], [0, 0, 3000])  # elsewhere 65535 would be 65 metres
