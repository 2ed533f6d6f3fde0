"""The 7-Scenes layout, extracted and zipped, read and written."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import CX, CY, FRAMES, FX, FY, HEIGHT, WIDTH, write_photo

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes import seven_scenes
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.scene import Scene


@pytest.mark.parametrize("format", ["7scenes", "7scenes zipped"])
def test_cameras_stand_and_look_where_the_pose_files_say(tiny_scene, format):
    """The matrix is camera-to-world: its last column is the centre, its third one the viewing direction."""
    scene = seven_scenes.read(tiny_scene(format))
    assert [frame.name for frame in scene] == [frame.name for frame in FRAMES]
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)


def test_a_pose_file_by_hand_puts_the_camera_two_metres_up_looking_along_world_x(tiny_scene):
    """The camera's right is world -y, its down is world -z, its forward world x: a level camera in a z-up world."""
    root = tiny_scene("7scenes")
    pose = "0 0 1 0.5\n-1 0 0 0\n0 -1 0 2\n0 0 0 1\n"
    (root / "seq-01" / "frame-000000.pose.txt").write_text(pose)
    frame = seven_scenes.read(root)[0]
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 0.0]), [0.5, 0.0, 2.0])
    assert_allclose(frame.T_world_cam.apply([0.0, 0.0, 1.0]), [1.5, 0.0, 2.0])


@pytest.mark.parametrize("format", ["7scenes", "7scenes zipped"])
def test_photos_depth_and_camera_come_from_their_files(tiny_scene, format):
    scene = seven_scenes.read(tiny_scene(format))
    pixels = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    assert_array_equal(scene[1].read_image(), pixels)
    depth_m = scene[1].read_depth_m()
    assert np.isnan(depth_m[0, :2]).all()
    stored = np.random.default_rng(1).integers(1, 5000, (HEIGHT, WIDTH), dtype=np.uint16)
    assert_allclose(depth_m[1:], stored[1:] / 1000, rtol=1e-6)
    assert all(frame.camera == Camera(WIDTH, HEIGHT, FX, FY, CX, CY) for frame in scene)


def test_splits_follow_the_split_files(tiny_scene):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    assert list(scene.train.sequences) == ["seq-01"]
    assert [frame.name for frame in scene.test] == [frame.name for frame in FRAMES if frame.split == "test"]


def test_without_split_files_no_frame_has_a_split(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "TrainSplit.txt").unlink()
    (root / "TestSplit.txt").unlink()
    assert {frame.split for frame in seven_scenes.read(root)} == {None}


def test_a_sequence_in_no_split_is_named_in_the_warnings(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "TestSplit.txt").unlink()
    scene = seven_scenes.read(root)
    assert [frame.split for frame in scene] == ["train", "train", None, None]
    assert scene.warnings == ("seq-02 is named by neither TrainSplit.txt nor TestSplit.txt.",)


def test_the_closest_camera_file_holds(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "seq-02" / "camera.txt").write_text("# ours\nSIMPLE_PINHOLE 32 24 40 16 12\n")
    (root / "seq-02" / "frame-000001.camera.txt").write_text("SIMPLE_PINHOLE 32 24 50 16 12\n")
    assert [frame.camera.fx for frame in seven_scenes.read(root)] == [FX, FX, 40.0, 50.0]


def test_one_sequence_can_be_opened_alone(tiny_scene):
    scene = seven_scenes.read(tiny_scene("7scenes") / "seq-02")
    assert [frame.name for frame in scene] == ["seq-02/frame-000000.color.png", "seq-02/frame-000001.color.png"]
    assert scene.warnings == ()


def test_sequences_and_frames_come_in_the_order_of_their_numbers(tmp_path):
    for sequence, stem in (("seq-10", "frame-000002"), ("seq-2", "frame-000010"), ("seq-2", "frame-000009")):
        write_photo(tmp_path / sequence / f"{stem}.color.png")
        np.savetxt(tmp_path / sequence / f"{stem}.pose.txt", np.eye(4))
    assert [frame.name.removesuffix(".color.png") for frame in seven_scenes.read(tmp_path)] == [
        "seq-2/frame-000009",
        "seq-2/frame-000010",
        "seq-10/frame-000002",
    ]


def test_an_extracted_folder_wins_over_its_zip(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "seq-01.zip").write_bytes(b"left over and damaged")
    assert seven_scenes.read(root)[0].image == FileSource(root / "seq-01" / "frame-000000.color.png")


def test_a_rotation_printed_with_few_digits_is_made_exact(tiny_scene):
    root = tiny_scene("7scenes")
    np.savetxt(root / "seq-01" / "frame-000000.pose.txt", FRAMES[0].matrix, fmt="%.4f")
    R = seven_scenes.read(root)[0].T_world_cam.R
    assert_allclose(R.mT @ R, np.eye(3), atol=1e-15)
    assert_allclose(R, FRAMES[0].R_world_cam, atol=1e-4)


def test_bad_frames_are_left_out_and_named_on_request(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "seq-01" / "frame-000001.pose.txt").write_text("nan " * 16)
    with pytest.raises(
        DatasetError, match=r"frame-000001\.pose\.txt: expected a finite number, found nan.*--skip-bad-frames"
    ):
        seven_scenes.read(root)
    scene = seven_scenes.read(root, skip_bad_frames=True)
    assert [frame.name for frame in scene] == [FRAMES[0].name, FRAMES[2].name, FRAMES[3].name]
    assert len(scene.warnings) == 1
    assert "frame-000001.pose.txt" in scene.warnings[0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [("color.png", r"expected one photo frame-000001\.color\.png or \.jpg"), ("pose.txt", r"expected a pose in")],
)
def test_a_frame_that_lacks_a_file_is_named(tiny_scene, kind, message):
    root = tiny_scene("7scenes")
    (root / "seq-02" / f"frame-000001.{kind}").unlink()
    with pytest.raises(DatasetError, match=f"seq-02/frame-000001: {message}"):
        seven_scenes.read(root)


def test_a_sequence_in_both_splits_is_refused(tiny_scene):
    root = tiny_scene("7scenes")
    (root / "TestSplit.txt").write_text("sequence1\nsequence2\n")
    with pytest.raises(DatasetError, match="expected seq-01 in one split, found it in both"):
        seven_scenes.read(root)


def test_one_name_in_two_folders_of_a_zip_is_refused(tiny_scene):
    root = tiny_scene("7scenes zipped")
    with zipfile.ZipFile(root / "seq-01.zip", "a") as archive:
        archive.writestr("copy/frame-000000.color.png", b"again")
    with pytest.raises(DatasetError, match=r"seq-01\.zip: expected every name once"):
        seven_scenes.read(root)


def test_a_damaged_member_of_a_zip_is_named_when_it_is_read(tiny_scene):
    root = tiny_scene("7scenes zipped")
    scene = seven_scenes.read(root)
    with zipfile.ZipFile(root / "seq-01.zip") as archive:
        offset = archive.getinfo("seq-01/frame-000000.color.png").header_offset
    data = bytearray((root / "seq-01.zip").read_bytes())
    data[offset + 100 : offset + 200] = bytes(100)
    (root / "seq-01.zip").write_bytes(data)
    with pytest.raises(DatasetError, match=r"seq-01\.zip:seq-01/frame-000000\.color\.png: expected to unpack it"):
        scene[0].read_image()


# Writing


def assert_same_scene(scene: Scene, expected: Scene) -> None:
    assert_array_equal(scene.T_world_cam.matrix(), expected.T_world_cam.matrix())
    for frame, other in zip(scene, expected, strict=True):
        assert (frame.name, frame.split, frame.sequence) == (other.name, other.split, other.sequence)
        assert frame.camera == other.camera
        assert_array_equal(frame.read_image(), other.read_image())


@pytest.mark.parametrize("format", ["7scenes", "7scenes zipped"])
@pytest.mark.parametrize("images", ["copy", "link"])
def test_what_is_written_is_read_back_to_the_last_bit(tiny_scene, tmp_path, format, images):
    scene = seven_scenes.read(tiny_scene(format))
    seven_scenes.write(scene, tmp_path / "written", images=images)
    again = seven_scenes.read(tmp_path / "written")
    assert_same_scene(again, scene)
    assert_array_equal(again[2].read_depth_m(), scene[2].read_depth_m())
    assert (tmp_path / "written" / "TestSplit.txt").read_text() == "sequence2\n"
    photo = tmp_path / "written" / scene[0].name
    assert photo.is_symlink() == (images == "link" and format == "7scenes")
    assert photo.read_bytes() == scene[0].image.read_bytes()


def test_other_names_are_numbered_by_sequence_and_split(tmp_path):
    """In one folder, a training photo among test photos: 7-Scenes has splits of whole sequences only."""
    frames = []
    for index, (name, split) in enumerate(
        [("a/x.jpg", "test"), ("a/y.png", "train"), ("b/z.JPEG", None), ("a/w.jpg", "test")]
    ):
        write_photo(tmp_path / "photos" / name, seed=index)
        pose = Pose.from_axis_angle([0.1 * index, 0.0, 0.0], [float(index), 0.0, 0.0])
        frames.append(Frame(name, pose, FileSource(tmp_path / "photos" / name), sequence=name[0], split=split))
    seven_scenes.write(Scene("photos", tmp_path, "test", tuple(frames)), tmp_path / "written")
    again = seven_scenes.read(tmp_path / "written")
    assert [(frame.name, frame.split) for frame in again] == [
        ("seq-01/frame-000000.color.jpg", "test"),
        ("seq-01/frame-000001.color.jpg", "test"),
        ("seq-02/frame-000000.color.png", "train"),
        ("seq-03/frame-000000.color.jpg", None),
    ]
    assert_array_equal(again.T_world_cam.t[:, 0], [0.0, 3.0, 1.0, 2.0])


def test_a_bitmap_becomes_a_png_of_the_same_pixels(tmp_path):
    write_photo(tmp_path / "photo.bmp", seed=3)
    frame = Frame("photo.bmp", Pose.identity(), FileSource(tmp_path / "photo.bmp"))
    seven_scenes.write(Scene("photos", tmp_path, "test", (frame,)), tmp_path / "written")
    assert_array_equal(seven_scenes.read(tmp_path / "written")[0].read_image(), frame.read_image())


def test_frames_with_cameras_of_their_own_keep_them(tiny_scene, tmp_path):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    distorted = Camera(WIDTH, HEIGHT, 1 / 3, FY, CX, CY, (0.1, 0.2, 0.3, 0.4, 0.5), "opencv")
    scene = replace(
        scene, frames=(scene[0], replace(scene[1], camera=distorted), replace(scene[2], camera=None), scene[3])
    )
    seven_scenes.write(scene, tmp_path / "written")
    assert [frame.camera for frame in seven_scenes.read(tmp_path / "written")] == [frame.camera for frame in scene]


def test_depth_in_other_units_is_rounded_to_millimetres(tiny_scene, tmp_path):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    stored = np.array([[0, 5000, 7503, 65535]] * 12, dtype=np.uint16).repeat(4, axis=1)
    Image.fromarray(stored).save(tmp_path / "depth.png")
    depth = DepthSource(FileSource(tmp_path / "depth.png"), metres_per_unit=1 / 5000, unknown_values=(0,))
    frame = replace(scene[0], depth=depth)
    seven_scenes.write(replace(scene, frames=(frame,)), tmp_path / "written")
    assert_allclose(
        seven_scenes.read(tmp_path / "written")[0].read_depth_m()[0, ::4], [np.nan, 1.0, 1.501, 13.107], atol=1e-6
    )


def test_depth_beyond_what_the_file_can_hold_is_unknown(tiny_scene, tmp_path):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    Image.fromarray(np.full((24, 32), 6554, dtype=np.uint16)).save(tmp_path / "depth.png")
    frame = replace(scene[0], depth=DepthSource(FileSource(tmp_path / "depth.png"), metres_per_unit=0.01))
    seven_scenes.write(replace(scene, frames=(frame,)), tmp_path / "written")
    assert np.isnan(seven_scenes.read(tmp_path / "written")[0].read_depth_m()).all()


def test_poses_alone_are_written_without_photos(tiny_scene, tmp_path):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    seven_scenes.write(scene, tmp_path / "written", images="none")
    endings = {path.name.split(".", 1)[1] for path in (tmp_path / "written" / "seq-01").glob("frame-*")}
    assert endings == {"pose.txt"}


def test_a_folder_with_something_in_it_is_left_alone(tiny_scene, tmp_path):
    scene = seven_scenes.read(tiny_scene("7scenes"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(DatasetError, match="expected a new or empty folder"):
        seven_scenes.write(scene, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
