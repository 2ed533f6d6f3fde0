"""Cambridge Landmarks: the camera's centre, beside the rotation of the inverse transform."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation
from tiny_scenes import FRAMES, write_photo

from relograph.errors import DatasetError
from relograph.scenes import cambridge

HEADER = "Visual Landmark Dataset V1\nImageFile, Camera Position [X Y Z W P Q R]\n\n"


def test_cameras_stand_and_look_where_scipy_says(tiny_scene):
    """The quaternions in the file are scipy's, of the transposed rotation; see tiny_scenes.write_cambridge."""
    scene = cambridge.read(tiny_scene("cambridge"))
    assert [frame.name for frame in scene] == [frame.name for frame in FRAMES]
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)


def test_a_line_by_hand(tmp_path):
    """W P Q R = (cos 45, 0, sin 45, 0) turns world to camera by 90 degrees about y: world z becomes camera x.

    So the camera's forward axis is the world direction that becomes camera z: world -x. The centre is X Y Z as it is.
    """
    write_photo(tmp_path / "seq1" / "frame00001.png")
    line = f"seq1/frame00001.png 10.5 -2.25 3.0 {np.sqrt(0.5)} 0 {np.sqrt(0.5)} 0\n"
    (tmp_path / "dataset_train.txt").write_text(HEADER + line)
    frame = cambridge.read(tmp_path)["seq1/frame00001.png"]
    assert_allclose(frame.T_world_cam.t, [10.5, -2.25, 3.0])
    assert_allclose(frame.T_world_cam.R[:, 2], [-1.0, 0.0, 0.0], atol=1e-15)
    assert (frame.sequence, frame.split, frame.camera) == ("seq1", "train", None)


def test_a_line_as_distributed_has_six_decimals(tmp_path):
    write_photo(tmp_path / "seq1" / "frame00001.png")
    numbers = "24.345730 -18.124573 1.634238 0.600171 0.409137 -0.434021 -0.532741"
    (tmp_path / "dataset_test.txt").write_text(HEADER + f"seq1/frame00001.png {numbers}\n")
    w, p, q, r = map(float, numbers.split()[3:])
    R_world_cam = Rotation.from_quat([p, q, r, w]).as_matrix().T
    scene = cambridge.read(tmp_path)
    assert_allclose(scene[0].T_world_cam.R, R_world_cam, atol=1e-12)
    assert scene.warnings == ("dataset_train.txt is not there, so the train split is empty.",)


def test_splits_are_the_two_files(tiny_scene):
    scene = cambridge.read(tiny_scene("cambridge"))
    assert [frame.split for frame in scene] == ["train", "train", "test", "test"]
    assert list(scene.sequences) == ["seq-01", "seq-02"]


def test_a_name_may_contain_spaces(tmp_path):
    write_photo(tmp_path / "seq 1" / "my photo.png")
    (tmp_path / "dataset_train.txt").write_text(HEADER + "seq 1/my photo.png 0 0 0 1 0 0 0\n")
    assert cambridge.read(tmp_path)[0].name == "seq 1/my photo.png"


def test_a_file_without_its_header_is_refused(tiny_scene):
    root = tiny_scene("cambridge")
    (root / "dataset_train.txt").write_text(f"{FRAMES[0].name} 0 0 0 1 0 0 0\n")
    with pytest.raises(DatasetError, match=r"dataset_train\.txt: expected 'Visual Landmark Dataset V1' as the first"):
        cambridge.read(root)


def test_a_bad_line_is_named_by_its_number_and_left_out_on_request(tiny_scene):
    root = tiny_scene("cambridge")
    (root / "dataset_train.txt").write_text(HEADER + f"{FRAMES[0].name} 0 0 0 1 0 0 0\n{FRAMES[1].name} 0 0 0 1 0 0\n")
    with pytest.raises(DatasetError, match=r"dataset_train\.txt:5: expected a photo and 7 numbers, found 7 columns"):
        cambridge.read(root)
    scene = cambridge.read(root, skip_bad_frames=True)
    assert len(scene.train) == 1
    assert "dataset_train.txt:5" in scene.warnings[0]
