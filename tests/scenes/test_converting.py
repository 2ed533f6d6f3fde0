"""From 7-Scenes through every other format and back, nothing that both know is lost."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import FRAMES, HEIGHT, WIDTH, write_photo

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes.converting import WRITERS, convert
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.opening import open_scene
from relograph.scenes.scene import Scene

ALL_FORMATS = pytest.mark.parametrize("format", WRITERS)


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_scene(scene: Scene, expected: Scene) -> None:
    for attribute in ("name", "sequence", "split", "camera"):
        values = [getattr(frame, attribute) for frame in scene]
        assert values == [getattr(frame, attribute) for frame in expected], attribute
    assert_allclose(scene.T_world_cam.t, expected.T_world_cam.t, rtol=0, atol=1e-13)
    assert_allclose(scene.T_world_cam.R, expected.T_world_cam.R, rtol=0, atol=1e-14)
    for frame, expected_frame in zip(scene, expected, strict=True):
        assert_array_equal(frame.read_image(), expected_frame.read_image())


# Round trips


@ALL_FORMATS
@pytest.mark.parametrize("source", ["7scenes", "7scenes zipped"])
def test_a_scene_comes_back_from_every_format_as_it_was(tiny_scene, tmp_path, source, format):
    root = tiny_scene(source)
    original = open_scene(root)
    convert(root, tmp_path / "there", format)
    there = open_scene(tmp_path / "there")
    assert there.format == format
    assert there.warnings == ()
    assert_same_scene(there, original)
    convert(tmp_path / "there", tmp_path / "back", "7scenes")
    assert_same_scene(open_scene(tmp_path / "back"), original)


@pytest.mark.parametrize("format", ["7scenes", "tum", "transforms.json"])
def test_depth_maps_travel_with_the_scene(tiny_scene, tmp_path, format):
    root = tiny_scene("7scenes")
    convert(root, tmp_path / "there", format)
    convert(tmp_path / "there", tmp_path / "back", "7scenes")
    for before, after in zip(open_scene(root), open_scene(tmp_path / "back"), strict=True):
        assert np.isnan(after.read_depth_m()[0, :2]).all()
        assert_array_equal(after.read_depth_m(), before.read_depth_m())


@ALL_FORMATS
def test_poses_at_every_angle_and_size_survive_to_the_last_digits(tmp_path, format):
    """Half turns, tiny turns and positions from a micrometre to the size of a country, compared as numbers."""
    rng = np.random.default_rng(0)
    axes = rng.normal(size=(8, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    angles = np.array([0.0, 1e-9, 1e-4, 1.0, 3.0, np.pi - 1e-9, np.pi, np.pi])
    centres = rng.normal(size=(8, 3)) * 10.0 ** np.arange(-6, 2)[:, None]
    write_photo(tmp_path / "a.png")
    poses = Pose.from_axis_angle(axes * angles[:, None], centres)
    camera = Camera.from_focal(WIDTH, HEIGHT, 30.0)
    frames = [
        Frame(f"seq-01/frame-{index:06d}.color.png", pose, FileSource(tmp_path / "a.png"), camera, sequence="seq-01")
        for index, pose in enumerate(poses)
    ]
    scene = Scene("angles", tmp_path, "made", tuple(frames))
    convert(scene, tmp_path / "there", format)
    there = open_scene(tmp_path / "there").T_world_cam
    assert_allclose(there.R, poses.R, rtol=0, atol=1e-14)
    assert_allclose(there.t, poses.t, rtol=1e-13, atol=1e-15)


@ALL_FORMATS
def test_cameras_of_every_model_survive(tmp_path, format):
    write_photo(tmp_path / "a.png")
    pinhole = Camera(WIDTH, HEIGHT, 30.1, 31.3, 15.7, 12.9)
    cameras = [
        pinhole,
        replace(pinhole, distortion=(0.1, -0.02, 1e-3, 1 / 3), model="opencv"),
        replace(pinhole, distortion=(0.1, -0.02, 1e-3, 2e-3, 0.01), model="opencv"),
        replace(pinhole, distortion=(0.1, -0.02, 1e-3, 2e-3), model="fisheye"),
        replace(pinhole, distortion=(0.0, 0.0, 0.0, 0.0), model="opencv"),
    ]
    frames = [
        Frame(f"seq-01/frame-{index:06d}.color.png", Pose.identity(), FileSource(tmp_path / "a.png"), camera)
        for index, camera in enumerate(cameras)
    ]
    convert(Scene("lenses", tmp_path, "made", tuple(frames)), tmp_path / "there", format)
    assert [frame.camera for frame in open_scene(tmp_path / "there")] == cameras


@ALL_FORMATS
def test_a_photo_that_exif_turns_is_upright_everywhere(tmp_path, format):
    """What the frame shows, and where its camera stands, is the same before and after."""
    exif = Image.Exif()
    exif[0x0112] = 8
    write_photo(tmp_path / "a.png", exif=exif)
    camera = Camera(HEIGHT, WIDTH, 30.0, 31.0, 11.0, 17.0)  # of the upright photo: the sides have changed places
    name = "seq-01/frame-000000.color.png"
    frame = Frame(name, Pose.identity(), FileSource(tmp_path / "a.png"), camera, sequence="seq-01", split="train")
    scene = Scene("turned", tmp_path, "made", (frame,))
    convert(scene, tmp_path / "there", format)
    assert_same_scene(open_scene(tmp_path / "there"), scene)


# What convert is told


def test_photos_can_be_linked_and_read_through_the_links(tiny_scene, tmp_path):
    root = tiny_scene("7scenes")
    convert(root, tmp_path / "there", "colmap", images="link")
    assert (tmp_path / "there/images" / FRAMES[0].name).resolve() == root / FRAMES[0].name
    assert_same_scene(open_scene(tmp_path / "there"), open_scene(root))


@ALL_FORMATS
def test_photos_can_be_left_out(tiny_scene, tmp_path, format):
    convert(tiny_scene("7scenes"), tmp_path / "there", format, images="none")
    assert [path for path in files_under(tmp_path / "there") if path.endswith(".png")] == []


def test_a_focal_length_makes_up_for_missing_intrinsics(tiny_scene, tmp_path):
    root = tiny_scene("7scenes")
    (root / "camera.txt").unlink()
    with pytest.raises(ConfigError, match="--focal"):
        convert(root, tmp_path / "there", "colmap")
    assert not (tmp_path / "there").exists()
    for index, source in enumerate((root, open_scene(root))):
        convert(source, tmp_path / f"there-{index}", "colmap", focal_px=29.5)
        cameras = {frame.camera for frame in open_scene(tmp_path / f"there-{index}")}
        assert cameras == {Camera.from_focal(WIDTH, HEIGHT, 29.5)}


def test_a_focal_length_wins_over_that_in_exif_in_a_scene_that_is_open_already(tiny_scene, tmp_path):
    scene = open_scene(tiny_scene("7scenes"))
    by_exif = replace(scene, frames=tuple(replace(frame, camera_by_exif=True) for frame in scene))
    convert(by_exif, tmp_path / "there", "colmap", focal_px=29.5)
    assert {frame.camera for frame in open_scene(tmp_path / "there")} == {Camera.from_focal(WIDTH, HEIGHT, 29.5)}


def test_a_focal_length_leaves_known_intrinsics_alone(tiny_scene, tmp_path):
    scene = open_scene(tiny_scene("7scenes"))
    convert(scene, tmp_path / "there", "colmap", focal_px=1000.0)
    assert [frame.camera for frame in open_scene(tmp_path / "there")] == [frame.camera for frame in scene]


def test_bad_frames_are_left_out_on_request_and_named(tiny_scene, tmp_path):
    root = tiny_scene("7scenes")
    (root / "seq-01/frame-000001.pose.txt").write_text("nan " * 16)
    with pytest.raises(DatasetError):
        convert(root, tmp_path / "there", "tum")
    assert not (tmp_path / "there").exists()
    scene = convert(root, tmp_path / "there", "tum", skip_bad_frames=True)
    assert len(open_scene(tmp_path / "there")) == len(FRAMES) - 1
    assert "frame-000001.pose.txt" in scene.warnings[0]


def test_an_unknown_format_is_refused_with_the_known_ones(tiny_scene, tmp_path):
    with pytest.raises(ConfigError, match=r"7scenes, colmap, tum, transforms\.json.*'cambridge'"):
        convert(tiny_scene("7scenes"), tmp_path / "there", "cambridge")


@ALL_FORMATS
def test_a_scene_without_frames_is_refused(tiny_scene, tmp_path, format):
    scene = replace(open_scene(tiny_scene("7scenes")), frames=())
    with pytest.raises(DatasetError, match="expected frames to write"):
        convert(scene, tmp_path / "there", format)
    assert not (tmp_path / "there").exists()


# What goes wrong half-way


@ALL_FORMATS
def test_a_photo_that_vanishes_half_way_leaves_nothing_behind(tiny_scene, tmp_path, format):
    root = tiny_scene("7scenes")
    scene = open_scene(root)
    (root / FRAMES[2].name).unlink()
    with pytest.raises(DatasetError, match=FRAMES[2].name):
        convert(scene, tmp_path / "there", format)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


KILLED_SCRIPT = """
import sys, threading, time
from contextlib import contextmanager
from relograph.scenes.converting import WRITERS, convert

half_way = threading.Barrier(len(WRITERS) + 1)

class StopHalfWay:
    @contextmanager
    def task(self, description, total):
        done = 0
        def advance(steps):
            nonlocal done
            done += steps
            if done == total // 2:
                half_way.wait()
                time.sleep(600)
        yield advance

source, destination = sys.argv[1:]
for format in WRITERS:
    threading.Thread(
        target=convert, args=(source, f"{destination}/{format}", format), kwargs={"progress": StopHalfWay()}
    ).start()
half_way.wait()
print("half-way", flush=True)
"""


def test_a_kill_half_way_leaves_nothing_under_the_final_name(tiny_scene, tmp_path):
    root = tiny_scene("7scenes")
    before = files_under(root)
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", KILLED_SCRIPT, str(root), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "half-way\n"
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(left) == len(WRITERS)  # the writers had begun, each in a folder of its own
    assert all(".partial-" in name for name in left)
    assert files_under(root) == before
    for format in WRITERS:  # and what is left does not stand in the way
        convert(root, tmp_path / "out" / format, format)
        assert len(open_scene(tmp_path / "out" / format)) == len(FRAMES)


@pytest.mark.parametrize("to", sorted(WRITERS))
def test_a_truncated_photo_is_not_passed_on(seven_scenes_folder: Path, tmp_path: Path, to: str):
    photo = seven_scenes_folder / "seq-01" / "frame-000001.color.png"
    photo.write_bytes(photo.read_bytes()[:-200])
    with pytest.raises(DatasetError, match="frame-000001"):
        convert(seven_scenes_folder, tmp_path / "converted", to, focal_px=30.0)
    assert not (tmp_path / "converted").exists()


def test_what_a_format_has_no_place_for_is_named(seven_scenes_folder: Path, tmp_path: Path):
    to_colmap = convert(seven_scenes_folder, tmp_path / "colmap", "colmap", focal_px=30.0)
    assert to_colmap.warnings[-1] == "colmap has no place for depth: the depth maps of 3 frames were left out."
    assert convert(seven_scenes_folder, tmp_path / "tum", "tum").warnings == ()
    back = convert(tmp_path / "tum", tmp_path / "back", "7scenes")
    assert back.warnings[-1] == "7scenes has no place for time: the timestamps of 3 frames were left out."
