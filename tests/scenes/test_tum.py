"""TUM RGB-D: times bring photos, depth maps and poses together; evo reads the trajectory that we write."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evo.tools.file_interface import read_tum_trajectory_file
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import FRAMES, HEIGHT, WIDTH, write_photo

from relograph.errors import RelographError
from relograph.geometry import Camera, Pose
from relograph.scenes import tum
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.scene import Scene

NAMES = [frame.name for frame in FRAMES]


def write_depth(path: Path, units: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(units.astype(np.uint16)).save(path)


def made_scene(folder: Path, times_s: list[float | None], cameras: list[Camera | None] | None = None) -> Scene:
    """Frames a/0.png, a/1.png, ... at those times."""
    rng = np.random.default_rng(0)
    frames = []
    for index, (time_s, camera) in enumerate(zip(times_s, cameras or [None] * len(times_s), strict=True)):
        path = folder / f"a/{index}.png"
        write_photo(path, index)
        T_world_cam = Pose.from_axis_angle(rng.normal(size=3), rng.normal(size=3))
        frames.append(Frame(f"a/{index}.png", T_world_cam, FileSource(path), camera, sequence="a", timestamp_s=time_s))
    return Scene("hall", folder, "made", tuple(frames))


# Reading


def test_cameras_stand_and_look_where_scipy_put_them(tiny_scene):
    scene = tum.read(tiny_scene("tum"))
    assert [frame.name for frame in scene] == NAMES
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)


def test_the_trajectory_is_read_as_evo_reads_it(tiny_scene):
    root = tiny_scene("tum")
    scene = tum.read(root)
    trajectory = read_tum_trajectory_file(root / "groundtruth.txt")
    assert_allclose(scene.T_world_cam.matrix(), trajectory.poses_se3, atol=1e-12)
    assert [frame.timestamp_s for frame in scene] == trajectory.timestamps.tolist()


def test_a_trajectory_line_by_hand_puts_the_camera_two_metres_up_looking_along_world_x(tiny_scene):
    """xyzw = (-1/2, 1/2, -1/2, 1/2) takes camera x (right) to world -y, y (down) to -z and z (forward) to x."""
    root = tiny_scene("tum")
    (root / "groundtruth.txt").write_text("100.0 0.5 0 2 -0.5 0.5 -0.5 0.5\n")
    for split in ("train", "test"):
        (root / f"{split}.txt").unlink()
    frame = tum.read(root)[0]
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 0.0]), [0.5, 0.0, 2.0], atol=1e-12)
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 1.0]), [1.5, 0.0, 2.0], atol=1e-12)
    assert_allclose(frame.T_world_cam.apply([1.0, 0.0, 0.0]), [0.5, -1.0, 2.0], atol=1e-12)


def test_sequences_splits_and_photos_are_read(tiny_scene):
    scene = tum.read(tiny_scene("tum"))
    assert [frame.sequence for frame in scene] == [frame.sequence for frame in FRAMES]
    assert [frame.split for frame in scene] == [frame.split for frame in FRAMES]
    pixels = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    assert_array_equal(scene[3].read_image(), pixels)


def test_intrinsics_are_not_guessed(tiny_scene):
    assert {frame.camera for frame in tum.read(tiny_scene("tum"))} == {None}


def test_the_closest_camera_file_holds(tiny_scene):
    root = tiny_scene("tum")
    for place, focal in (
        ("camera.txt", 30),
        ("rgb/seq-02/camera.txt", 40),
        ("rgb/seq-02/frame-000001.color.png.camera.txt", 50),
    ):
        (root / place).write_text(f"SIMPLE_PINHOLE {WIDTH} {HEIGHT} {focal} 16 12\n")
    assert [frame.camera.fx for frame in tum.read(root)] == [30, 30, 40, 50]


def test_photos_without_a_pose_in_time_are_left_out_and_counted(tiny_scene):
    root = tiny_scene("tum")
    lines = (root / "groundtruth.txt").read_text().splitlines()
    lines[2] = lines[2].replace("100.033333", "100.053334")  # more than 0.02 s late
    (root / "groundtruth.txt").write_text("\n".join(lines) + "\n")
    (root / "train.txt").write_text(f"{NAMES[0]}\n")
    scene = tum.read(root)
    assert [frame.name for frame in scene] == [NAMES[0], NAMES[2], NAMES[3]]
    assert "1 of 4 photos were left out, as no pose" in scene.warnings[0]
    assert NAMES[1] in scene.warnings[0]


def test_depth_maps_are_found_by_time_and_hold_5000_units_a_metre(tiny_scene):
    root = tiny_scene("tum")
    units = np.full((HEIGHT, WIDTH), 7500)
    units[0, 0] = 0
    write_depth(root / "depth/a.png", units)
    (root / "depth.txt").write_text("100.012 depth/a.png\n")  # 12 ms after the first photo, 21 ms before the second
    scene = tum.read(root)
    depth_m = scene[0].read_depth_m()
    assert np.isnan(depth_m[0, 0])
    assert_allclose(depth_m[1:], 1.5, rtol=1e-6)
    assert scene[1].depth is None
    assert "3 of 4 photos have none, as no depth map" in scene.warnings[0]


def test_photos_come_in_the_order_of_time_and_keep_names_outside_rgb(tiny_scene):
    root = tiny_scene("tum")
    for split in ("train", "test"):
        (root / f"{split}.txt").unlink()
    write_photo(root / "other/late.png")
    lines = (root / "rgb.txt").read_text().splitlines()
    (root / "rgb.txt").write_text("\n".join(["100.1 other/late.png", *lines[1:4]]) + "\n")
    assert [frame.name for frame in tum.read(root)] == [f"rgb/{name}" for name in NAMES[:3]] + ["other/late.png"]


def test_association_takes_the_closest_pair_first_and_nobody_twice():
    # 0.010 is closest to 0.012; 0.000 is left with 0.015 being 15 ms away; 0.030 finds nobody within 20 ms.
    assert tum.associate([0.0, 0.010, 0.040], [0.012, 0.015]) == {0: 1, 1: 0}


def test_a_difference_of_exactly_the_limit_is_no_match():
    assert tum.associate([0.0], [tum.MAX_TIME_DIFFERENCE_S]) == {}


TIMES_S = st.lists(st.integers(0, 60).map(lambda tick: tick / 256), max_size=8, unique=True)


@given(times_s=TIMES_S.map(sorted), other_times_s=TIMES_S)
def test_association_agrees_with_trying_all_pairs_in_order(times_s, other_times_s):
    """The data set's own rule: all pairs by difference, then by times; a pair is taken if both are still free."""
    pairs = sorted((abs(a - b), a, b) for a in times_s for b in other_times_s if abs(a - b) < 0.02)
    expected: dict[float, float] = {}
    for _, a, b in pairs:
        if a not in expected and b not in expected.values():
            expected[a] = b
    found = tum.associate(times_s, other_times_s)
    by_time = {times_s[index]: other_times_s[partner] for index, partner in found.items()}
    assert by_time == expected


# Bad input

BAD_LINES = {
    "a NaN in the pose": ("groundtruth.txt", r"100\.100000 \S+", "100.100000 nan", "finite number"),
    "a quaternion of norm 2": ("groundtruth.txt", r"0\.0 0\.0 0\.0 1\.0$", "0.0 0.0 0.0 2.0", "quaternion of norm 1"),
    "a value too few": ("groundtruth.txt", r" 1\.0$", "", "expected 8 numbers, found 7"),
    "a word for a time": ("rgb.txt", r"100\.100000", "noon", "expected a number"),
    "a time without a file": ("rgb.txt", r"100\.100000 .*", "100.1", "a time and a file name"),
    "a name that climbs out": ("rgb.txt", r"rgb/seq-02/frame-000001", "rgb/../../frame", r"'\.\.'"),
    "a photo that is missing": ("rgb.txt", r"frame-000001.color.png$", "frame-000009.color.png", "found nothing there"),
    "a photo twice": ("rgb.txt", r"seq-02/frame-000001", "seq-02/frame-000000", "twice"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_an_error_unless_bad_frames_are_left_out(tiny_scene, case):
    file, pattern, new, message = BAD_LINES[case]
    root = tiny_scene("tum")
    (root / "test.txt").write_text(f"{NAMES[2]}\n")
    lines = (root / file).read_text().splitlines()
    lines[-1], count = re.subn(pattern, new, lines[-1])
    assert count == 1
    (root / file).write_text("\n".join(lines) + "\n")
    with pytest.raises(RelographError, match=message) as caught:
        tum.read(root)
    assert "\n" not in str(caught.value)
    scene = tum.read(root, skip_bad_frames=True)
    assert [frame.name for frame in scene] == NAMES[:3]
    assert re.search(message, scene.warnings[0])


def test_no_pose_near_any_photo_is_an_empty_scene(tiny_scene):
    root = tiny_scene("tum")
    (root / "groundtruth.txt").write_text("5.0 0 0 0 0 0 0 1\n")
    with pytest.raises(RelographError, match="expected posed photos"):
        tum.read(root, skip_bad_frames=True)


# Writing


def test_evo_reads_what_is_written_and_finds_the_cameras_in_place(tmp_path):
    scene = made_scene(tmp_path / "photos", [10.0, 10.1, 1305031102.175304])
    tum.write(scene, tmp_path / "written")
    trajectory = read_tum_trajectory_file(tmp_path / "written" / "groundtruth.txt")
    valid, problems = trajectory.check()
    assert valid, problems
    assert_array_equal(trajectory.timestamps, [10.0, 10.1, 1305031102.175304])
    assert_allclose(trajectory.poses_se3, scene.T_world_cam.matrix(), atol=1e-14)


def test_times_that_are_unknown_become_a_thirtieth_of_a_second_each(tmp_path):
    tum.write(made_scene(tmp_path / "photos", [None, 5.0, None]), tmp_path / "written")
    assert [frame.timestamp_s for frame in tum.read(tmp_path / "written")] == [0.0, 1 / 30, 2 / 30]


def test_sequences_that_overlap_in_time_are_moved_one_after_the_other(tmp_path):
    scene = made_scene(tmp_path / "photos", [3.0, 3.5, 3.0, 3.25])
    tum.write(scene, tmp_path / "written")
    written = tum.read(tmp_path / "written")
    assert [frame.name for frame in written] == [frame.name for frame in scene]
    assert_allclose([frame.timestamp_s for frame in written], [3.0, 3.5, 3.5 + 1 / 30, 3.75 + 1 / 30])


def test_frames_closer_than_the_association_limit_keep_their_own_poses(tmp_path):
    scene = made_scene(tmp_path / "photos", [0.0, 0.001, 0.002, 0.003])
    tum.write(scene, tmp_path / "written")
    assert_allclose(tum.read(tmp_path / "written").T_world_cam.t, scene.T_world_cam.t, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("focals", "files"),
    [
        ([30.0, 30.0, 30.0], ["camera.txt"]),
        ([30.0, 31.0, None], ["rgb/a/0.png.camera.txt", "rgb/a/1.png.camera.txt"]),
        ([None, None, None], []),
    ],
)
def test_cameras_are_written_once_or_beside_their_photos(tmp_path, focals, files):
    cameras = [None if focal is None else Camera.from_focal(WIDTH, HEIGHT, focal) for focal in focals]
    tum.write(made_scene(tmp_path / "photos", [None] * 3, cameras), tmp_path / "written")
    written = tmp_path / "written"
    assert sorted(path.relative_to(written).as_posix() for path in written.rglob("*camera.txt")) == files
    assert [frame.camera for frame in tum.read(written)] == cameras


def test_depth_is_rescaled_and_unknown_where_16_bits_do_not_reach(tmp_path):
    scene = made_scene(tmp_path / "photos", [None, None])
    millimetres = np.full((HEIGHT, WIDTH), 1234)
    millimetres[0, :4] = [0, 65535, 13107, 13106]
    write_depth(tmp_path / "mm.png", millimetres)
    with_depth = replace(scene[1], depth=DepthSource(FileSource(tmp_path / "mm.png")))
    tum.write(replace(scene, frames=(scene[0], with_depth)), tmp_path / "written")
    without, frame = tum.read(tmp_path / "written")
    assert without.depth is None
    depth_m = frame.read_depth_m()
    assert np.isnan(depth_m[0, :3]).all()  # 13.107 m are 65535 units
    assert_allclose(depth_m[0, 3], 13.106, rtol=1e-6)
    assert_allclose(depth_m[1:], 1.234, rtol=1e-6)
