"""What `relograph scene info` and `relograph scene check` say about a scene."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from tiny_scenes import CX, CY, FRAMES, FX, FY, HEIGHT, WIDTH, WRITERS, write_photo

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes import SequenceInfo, check_scene, open_scene, scene_info


def test_info_counts_frames_sequences_cameras_and_depth(tiny_scene):
    info = scene_info(open_scene(tiny_scene("7scenes")))
    assert (info.name, info.format, info.num_frames, info.num_train, info.num_test) == ("tiny", "7scenes", 4, 2, 2)
    assert info.num_frames_by_camera == {Camera(WIDTH, HEIGHT, FX, FY, CX, CY): 4}
    assert (info.num_frames_without_camera, info.num_frames_with_depth) == (0, 4)
    assert info.image_sizes_wh == ((WIDTH, HEIGHT),)
    assert info.warnings == ()


def test_extent_and_path_are_those_of_the_camera_centres(tiny_scene):
    """By hand: the centres are (0.5,-1,2), (1.5,0.25,-3) in seq-01 and (-2,0,1), (0,4,0.125) in seq-02."""
    info = scene_info(open_scene(tiny_scene("7scenes")))
    assert info.extent_min_m == (-2.0, -1.0, -3.0)
    assert info.extent_max_m == (1.5, 4.0, 2.0)
    first, second = np.sqrt(1 + 1.25**2 + 25), np.sqrt(4 + 16 + 0.875**2)
    assert_allclose([sequence.path_length_m for sequence in info.sequences], [first, second])
    assert_allclose(info.path_length_m, first + second)  # from the end of seq-01 to the start of seq-02 nobody walked
    assert [(sequence.name, sequence.num_frames, sequence.split) for sequence in info.sequences] == [
        ("seq-01", 2, "train"),
        ("seq-02", 2, "test"),
    ]


def test_a_sequence_of_two_splits_is_called_mixed(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    scene = replace(scene, frames=(replace(scene[0], split="test"), *scene.frames[1:]))
    assert scene_info(scene).sequences[0].split == "mixed"


def test_frames_without_a_sequence_are_counted_too(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    scene = replace(scene, frames=(replace(scene[0], sequence=None),))
    assert scene_info(scene).sequences == (SequenceInfo(None, 1, "train", 0.0),)


def test_sizes_of_photos_without_intrinsics_come_from_the_photos(tiny_scene):
    info = scene_info(open_scene(tiny_scene("cambridge")))
    assert info.image_sizes_wh == ((WIDTH, HEIGHT),)
    assert info.num_frames_without_camera == 4
    assert info.warnings == ("No frame has intrinsics; give the focal length in pixels with focal_px= (--focal).",)


def test_some_frames_without_intrinsics_are_counted(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    scene = replace(scene, frames=(replace(scene[0], camera=None), *scene.frames[1:]))
    assert scene_info(scene).warnings[0].startswith("1 of 4 frames have no intrinsics")


def scene_with_centres(scene, centres):
    frames = [
        replace(frame, T_world_cam=Pose(frame.T_world_cam.R, Pose.from_axis_angle([0.0] * 3, centre).t))
        for frame, centre in zip(scene, centres, strict=True)
    ]
    return replace(scene, frames=tuple(frames))


def test_a_scene_larger_than_a_kilometre_is_suspected_of_other_units(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    in_millimetres = scene_with_centres(scene, [1000 * frame.centre for frame in FRAMES])
    (warning,) = scene_info(in_millimetres).warnings
    # Box of 3.5, 5 and 5 km: its diagonal is sqrt(12.25 + 25 + 25) = 7.890 km.
    assert warning == "The cameras are up to 7890 m apart: the units may not be metres."


def test_frames_that_share_one_position_are_pointed_out(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    (warning,) = scene_info(scene_with_centres(scene, [[1.0, 2.0, 3.0]] * 4)).warnings
    assert warning.startswith("All frames share one position")


def test_repeated_poses_are_counted(tiny_scene):
    scene = open_scene(tiny_scene("7scenes"))
    copied = replace(scene[1], T_world_cam=scene[0].T_world_cam)
    (warning,) = scene_info(replace(scene, frames=(scene[0], copied, *scene.frames[2:]))).warnings
    assert warning == "1 of 4 frames have the very pose of an earlier frame."


def test_a_scene_without_a_split_is_pointed_out(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "TrainSplit.txt").unlink()
    (root / "TestSplit.txt").unlink()
    assert scene_info(open_scene(root)).warnings == ("There is no train and test split.",)


def test_what_the_reader_warned_of_is_in_the_info(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "seq-01" / "frame-000000.pose.txt").unlink()
    scene = open_scene(root, skip_bad_frames=True)
    assert scene_info(scene).warnings == scene.warnings
    assert len(scene.warnings) == 1


def test_there_is_nothing_to_tell_about_no_frames(tiny_scene):
    with pytest.raises(DatasetError, match="Scene tiny: expected frames to tell about, found none"):
        scene_info(open_scene(tiny_scene("7scenes")).select([]))


@pytest.mark.parametrize("format", WRITERS)
def test_a_good_scene_has_no_problems(tiny_scene, format):
    assert check_scene(open_scene(tiny_scene(format))) == []


def test_check_finds_every_bad_photo_and_goes_on(tiny_scene):
    root = tiny_scene("7scenes")
    scene = open_scene(root)
    photo = root / FRAMES[0].name
    photo.write_bytes(photo.read_bytes()[:-300])
    (root / FRAMES[2].name).write_bytes(b"")
    (root / "seq-02" / "frame-000001.depth.png").unlink()
    problems = check_scene(scene)
    assert [problem.frame for problem in problems] == [FRAMES[0].name, FRAMES[2].name, FRAMES[3].name]
    assert "found a damaged one" in problems[0].message
    assert "found a file of 0 bytes" in problems[1].message
    assert "frame-000001.depth.png" in problems[2].message


def test_check_compares_sizes_of_photo_camera_and_depth(tiny_scene):
    root = tiny_scene("7scenes")
    write_photo(root / FRAMES[1].name, size_wh=(20, 10))
    Image.fromarray(np.ones((10, 10), dtype=np.uint16)).save(root / "seq-02" / "frame-000000.depth.png")
    problems = check_scene(open_scene(root))
    assert [problem.frame for problem in problems] == [FRAMES[1].name, FRAMES[1].name, FRAMES[2].name]
    assert "expected 32 x 24 pixels as the camera says, found 20 x 10" in problems[0].message
    assert "expected 20 x 10 pixels as the photo has, found 32 x 24" in problems[1].message
    assert "expected 32 x 24 pixels as the photo has, found 10 x 10" in problems[2].message


def test_check_names_photos_that_are_the_same_byte_for_byte(tiny_scene):
    root = tiny_scene("7scenes")
    (root / FRAMES[3].name).write_bytes((root / FRAMES[0].name).read_bytes())
    (problem,) = check_scene(open_scene(root))
    assert problem.frame == FRAMES[3].name
    assert f"found a copy of {FRAMES[0].name}" in problem.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pose: Pose(pose.R * 1.1, pose.t), "orthonormal"),
        (lambda pose: Pose(-pose.R, pose.t), "mirrored"),
        (lambda pose: Pose(pose.R, pose.t * float("nan")), "expected a finite camera centre"),
    ],
)
def test_check_looks_at_poses_made_in_memory(tiny_scene, change, message):
    scene = open_scene(tiny_scene("7scenes"))
    bad = replace(scene[1], T_world_cam=change(scene[1].T_world_cam))
    (problem,) = check_scene(replace(scene, frames=(scene[0], bad)))
    assert problem.frame == FRAMES[1].name
    assert message in problem.message
