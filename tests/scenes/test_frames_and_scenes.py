"""Frames and scenes in memory."""

import multiprocessing
import pickle
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.transform import Rotation
from tiny_scenes import FRAMES

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.scenes import FileSource, Frame, open_scene


@pytest.fixture
def scene(tiny_scene):
    return open_scene(tiny_scene("7scenes zipped"))


@pytest.mark.parametrize("name", ["../photo.png", "/photo.png", "", "a/./b.png", "a//b.png"])
def test_a_frame_made_in_memory_has_a_name_that_stays_in_its_folder_too(tmp_path, name):
    with pytest.raises(DatasetError, match="Frame: expected"):
        Frame(name, Pose.identity(), FileSource(tmp_path / "photo.png"))


def test_a_frame_is_found_by_index_and_by_name(scene):
    assert scene[1] is scene[FRAMES[1].name]
    assert scene[-1] is scene.frames[3]


def test_a_name_that_is_not_there_says_so(scene):
    with pytest.raises(DatasetError, match=r"Scene tiny: expected a frame named 'nowhere\.png', found none"):
        scene["nowhere.png"]


def test_selected_frames_come_in_the_order_asked_for(scene):
    names = [FRAMES[2].name, FRAMES[0].name]
    selected = scene.select(names)
    assert [frame.name for frame in selected] == names
    assert_array_equal(selected.T_world_cam.t, scene.T_world_cam.t[[2, 0]])


def test_sequences_divide_the_frames(scene):
    assert {name: len(part) for name, part in scene.sequences.items()} == {"seq-01": 2, "seq-02": 2}


def test_in_another_world_frame_cameras_keep_their_places_among_each_other(scene):
    R_new_world = Rotation.from_rotvec([0.2, 0.5, -1.0])
    moved = scene.in_frame(Pose.from_rotation_and_translation(R_new_world.as_matrix(), [5.0, 6.0, 7.0]))
    expected = R_new_world.apply([frame.centre for frame in FRAMES]) + np.array([5.0, 6.0, 7.0])
    assert_allclose(moved.T_world_cam.t, expected)
    before = scene[0].T_world_cam.inverse() @ scene[3].T_world_cam
    after = moved[0].T_world_cam.inverse() @ moved[3].T_world_cam
    assert_allclose(after.matrix(), before.matrix(), atol=1e-12)


def test_an_empty_selection_has_an_empty_batch_of_poses(scene):
    assert tuple(scene.select([]).T_world_cam.batch_shape) == (0,)


def _sum_of_pixels(pickled_frame: bytes) -> int:
    return int(pickle.loads(pickled_frame).read_image().sum())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # the hazard is what is tested here
def test_photos_in_a_zip_are_read_by_several_processes_at_once(scene, method):
    """Forked workers inherit an open zip whose file position they would share."""
    expected = [int(frame.read_image().sum()) for frame in scene] * 8
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_sum_of_pixels, [pickle.dumps(frame) for frame in scene] * 8) == expected


def test_a_zip_that_was_replaced_is_read_anew(tmp_path):
    for text in ("first", "second"):
        with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
            archive.writestr("note.txt", text)
        assert FileSource(tmp_path / "files.zip", "note.txt").read_bytes() == text.encode()


def test_a_member_that_claims_gigabytes_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("photo.png", b"small")
    data = bytearray((tmp_path / "bomb.zip").read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (2**32 - 2).to_bytes(4, "little")
    (tmp_path / "bomb.zip").write_bytes(data)
    with pytest.raises(
        DatasetError, match=r"bomb\.zip:photo\.png: expected at most 1073741824 bytes, found 4294967294"
    ):
        FileSource(tmp_path / "bomb.zip", "photo.png").read_bytes()
