"""One door for every format."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_scenes import FRAMES, HEIGHT, WIDTH, WRITERS, write_photo

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera
from relograph.scenes import open_scene, open_scenes
from relograph.scenes.opening import FORMATS

NAMED_FILES = {
    "7scenes": ["TrainSplit.txt"],
    "cambridge": ["dataset_train.txt", "dataset_test.txt"],
    "poses.csv": ["poses.csv"],
    "colmap text": ["sparse/0/cameras.txt", "sparse/0/images.txt"],
    "colmap binary": ["sparse/0/images.bin"],
    "tum": ["groundtruth.txt", "rgb.txt"],
    "transforms.json": ["transforms.json"],
}


def assert_is_the_tiny_scene(scene) -> None:
    centres = {frame.name: frame.centre for frame in FRAMES}
    directions = {frame.name: frame.view_direction for frame in FRAMES}
    assert sorted(frame.name for frame in scene) == sorted(centres)
    for frame in scene:
        assert_allclose(frame.T_world_cam.t, centres[frame.name], atol=1e-9)
        assert_allclose(frame.T_world_cam.R[:, 2], directions[frame.name], atol=1e-9)


@pytest.mark.parametrize("format", WRITERS)
def test_every_format_is_recognised_and_tells_the_same_scene(tiny_scene, format):
    scene = open_scene(tiny_scene(format))
    assert scene.format == format.split(" ")[0]
    assert_is_the_tiny_scene(scene)
    assert {frame.name: frame.split for frame in scene} == {frame.name: frame.split for frame in FRAMES}
    assert {frame.name: frame.sequence for frame in scene} == {frame.name: frame.sequence for frame in FRAMES}
    for seed, frame in enumerate(FRAMES):
        pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        assert_array_equal(scene[frame.name].read_image(), pixels)
    assert scene.name == "tiny"
    assert scene.warnings == ()


@pytest.mark.parametrize("format", WRITERS)
def test_a_path_may_be_text_and_relative(tiny_scene, format, monkeypatch):
    monkeypatch.chdir(tiny_scene(format))
    scene = open_scene(".")
    assert_is_the_tiny_scene(scene)
    assert scene.name == "tiny"


@pytest.mark.parametrize(
    ("format", "file"), [(format, file) for format, files in NAMED_FILES.items() for file in files]
)
def test_a_typical_file_stands_for_its_folder(tiny_scene, format, file):
    assert_is_the_tiny_scene(open_scene(tiny_scene(format) / file))


def test_where_several_formats_fit_the_first_of_the_documented_order_is_read_with_a_warning(tiny_scene, tmp_path):
    root = tiny_scene("poses.csv")
    WRITERS["cambridge"](root)
    scene = open_scene(root)
    assert scene.format == "poses.csv"
    assert scene.warnings == (
        "It was read as poses.csv, and looks like cambridge too; choose with format= (--format).",
    )
    assert open_scene(root, format="cambridge").format == "cambridge"


def test_the_order_of_the_formats_is_fixed():
    assert list(FORMATS) == ["poses.csv", "7scenes", "cambridge", "transforms.json", "colmap", "tum"]


def test_where_nothing_fits_the_answer_says_what_was_looked_for(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(DatasetError, match="expected a scene, found none of: ") as caught:
        open_scene(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(tmp_path))
    for name, format in FORMATS.items():
        assert f"{format.looks_for} ({name})" in message
    assert message.endswith("Photos without poses get them by `relograph scene reconstruct`.")
    (tmp_path / "holiday.jpg").unlink()
    with pytest.raises(DatasetError, match=r"Open the folder that has one of these\.$"):
        open_scene(tmp_path)


def test_a_format_spelled_wrong_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"got 'colmpa'\. Did you mean 'colmap'"):
        open_scene(tmp_path, format="colmpa")


def test_a_path_where_nothing_is_says_so(tmp_path):
    with pytest.raises(DatasetError, match="nowhere: expected a scene, found nothing there"):
        open_scene(tmp_path / "nowhere")


def test_a_file_of_no_format_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DatasetError, match=r"notes\.txt: expected a scene's folder or one of its files, found another"):
        open_scene(tmp_path / "notes.txt")


def test_a_file_of_another_format_than_the_one_asked_for_is_refused(tiny_scene):
    with pytest.raises(DatasetError, match="one of its files of the format colmap, found another file"):
        open_scene(tiny_scene("poses.csv") / "poses.csv", format="colmap")


def test_the_zip_of_a_whole_scene_asks_to_be_extracted(tiny_scene, tmp_path):
    root = tiny_scene("7scenes zipped")
    with zipfile.ZipFile(tmp_path / "chess.zip", "w") as archive:
        archive.write(root / "seq-01.zip", "chess/seq-01.zip")
    with pytest.raises(DatasetError, match=r"extract chess\.zip and open the folder; those inside may stay packed"):
        open_scene(tmp_path / "chess.zip")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "chess.zip").rename(tmp_path / "downloads" / "chess.zip")
    with pytest.raises(DatasetError, match=r"Extract chess\.zip first"):
        open_scene(tmp_path / "downloads")


def test_the_zip_of_one_sequence_points_to_its_folder(tiny_scene):
    with pytest.raises(
        DatasetError, match=r"seq-01\.zip: expected a scene's folder, found a zip file. Open the folder"
    ):
        open_scene(tiny_scene("7scenes zipped") / "seq-01.zip")


def write_one_photo_scene(root: Path, columns: str = "", values: str = "", exif_focal_35mm: int | None = None) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored landscape, shown portrait
    if exif_focal_35mm is not None:
        exif.get_ifd(0x8769)[0xA405] = exif_focal_35mm
    write_photo(root / "photo.jpg", size_wh=(40, 30), exif=exif)
    (root / "poses.csv").write_text(
        f"# camera axes: opencv\n# direction: world_from_camera\nname,tx,ty,tz,rx,ry,rz{columns}\n"
        f"photo.jpg,0,0,0,0,0,0{values}\n"
    )


def test_the_focal_length_in_exif_makes_a_camera_of_the_upright_photo(tmp_path):
    write_one_photo_scene(tmp_path, exif_focal_35mm=26)
    # 26 mm over the diagonal of film, 43.2666 mm, is 26 * 50 / 43.2666 = 30.0463 px over a diagonal of 50 px.
    frame = open_scene(tmp_path)[0]
    camera = frame.camera
    assert frame.camera_by_exif
    assert (camera.width, camera.height, camera.cx, camera.cy) == (30, 40, 15.0, 20.0)
    assert camera.fx == camera.fy == pytest.approx(30.0463, abs=1e-4)


def test_a_focal_length_given_by_the_caller_wins_over_exif(tmp_path):
    write_one_photo_scene(tmp_path, exif_focal_35mm=26)
    frame = open_scene(tmp_path, focal_px=33.0)[0]
    assert frame.camera == Camera.from_focal(30, 40, 33.0)
    assert not frame.camera_by_exif


def test_intrinsics_in_the_data_win_over_both(tmp_path):
    write_one_photo_scene(tmp_path, ",fx,fy,cx,cy", ",21,22,14,19", exif_focal_35mm=26)
    frame = open_scene(tmp_path, focal_px=33.0)[0]
    assert frame.camera == Camera(30, 40, 21.0, 22.0, 14.0, 19.0)
    assert not frame.camera_by_exif


def test_without_any_focal_length_there_is_no_camera(tmp_path):
    write_one_photo_scene(tmp_path)
    assert open_scene(tmp_path)[0].camera is None


def test_a_focal_length_serves_png_without_intrinsics_too(tiny_scene):
    scene = open_scene(tiny_scene("cambridge"), focal_px=33.0)
    assert {frame.camera for frame in scene} == {Camera.from_focal(WIDTH, HEIGHT, 33.0)}


@pytest.mark.parametrize("focal_px", [0.0, -1.0, float("nan"), float("inf")])
def test_a_focal_length_that_is_none_is_refused(tiny_scene, focal_px):
    with pytest.raises(ConfigError, match="focal_px must be a positive number of pixels"):
        open_scene(tiny_scene("cambridge"), focal_px=focal_px)


def test_a_photo_whose_header_is_damaged_is_left_out_on_request(tiny_scene):
    root = tiny_scene("cambridge")
    (root / FRAMES[1].name).write_bytes(b"no photo, but not empty either")
    with pytest.raises(DatasetError, match=r"frame-000001\.color\.png: expected a photo as JPEG, PNG"):
        open_scene(root, focal_px=33.0)
    scene = open_scene(root, focal_px=33.0, skip_bad_frames=True)
    assert len(scene) == 3
    assert "frame-000001.color.png" in scene.warnings[0]


def test_a_folder_of_scenes_is_told_from_a_scene(seven_scenes_folder: Path):
    with pytest.raises(DatasetError, match=r"a folder of scenes: kitchen\. Open one of them") as caught:
        open_scene(seven_scenes_folder.parent)
    assert "\n" not in str(caught.value)


def test_a_folder_of_scenes_is_opened_in_the_order_of_their_numbers(tmp_path):
    for name in ("room-10", "room-2", "room-1"):
        WRITERS["7scenes"](tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [scene.name for scene in open_scenes(tmp_path)] == ["room-1", "room-2", "room-10"]
    assert [scene.name for scene in open_scenes(tmp_path, ["room-10", "room-1"])] == ["room-10", "room-1"]


def test_a_scene_whose_sequences_could_be_scenes_is_one_scene(tmp_path):
    WRITERS["7scenes"](tmp_path / "tiny")
    (scene,) = open_scenes(tmp_path / "tiny")
    assert_is_the_tiny_scene(scene)
    with pytest.raises(DatasetError, match="found the single scene tiny"):
        open_scenes(tmp_path / "tiny", ["chess"])


def test_a_scene_that_is_not_in_the_folder_suggests_the_nearest(tmp_path):
    WRITERS["7scenes"](tmp_path / "redkitchen")
    with pytest.raises(DatasetError, match=r"'kitchen', found none\. Did you mean 'redkitchen'"):
        open_scenes(tmp_path, ["kitchen"])
