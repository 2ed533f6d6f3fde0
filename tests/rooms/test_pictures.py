"""Pictures of rooms and scenes: readable files that are not blank."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from tiny_rooms import HEIGHT, RANGE_BY_FAMILY, WIDTH

from relograph import open_scene
from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Pose
from relograph.rooms import draw_scene_from_above, textures, write_preview
from relograph.rooms.pictures import VIEWS_PER_ROOM, ground_axes, save_picture, widest_views
from relograph.rooms.seven_rooms import SIZES, RecordingSize, make_recording, make_room_home
from relograph.rooms.textures import FAMILY_SIZES
from relograph.scenes.scene import Scene


@pytest.fixture
def tiny_pictures(monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "small", RecordingSize(HEIGHT, WIDTH, every=100))
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))


def pixels_of(path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB"))


def with_poses(scene: Scene, poses: list[Pose]) -> Scene:
    frames = tuple(replace(frame, T_world_cam=pose) for frame, pose in zip(scene, poses, strict=True))
    return replace(scene, frames=frames)


def test_a_preview_is_a_sheet_of_photographs_a_row_for_each_room(tmp_path, tiny_pictures):
    write_preview(tmp_path / "deep/preview.png", rooms=2)
    pixels = pixels_of(tmp_path / "deep/preview.png")
    rows, columns = pixels.shape[0] // 2, pixels.shape[1] // VIEWS_PER_ROOM
    assert (rows, columns) >= (HEIGHT, WIDTH)
    photos = [
        pixels[rows * i : rows * (i + 1), columns * j : columns * (j + 1)]
        for i in range(2)
        for j in range(VIEWS_PER_ROOM)
    ]
    for i, photo in enumerate(photos):
        assert photo[5:-5, 5:-5].std() > 8
        assert all((photo != other).mean() > 0.3 for other in photos[:i])


def test_a_preview_is_the_same_for_the_same_seed_only(tmp_path, tiny_pictures):
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        write_preview(tmp_path / f"{name}.png", rooms=1, seed=seed)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    assert (tmp_path / "first.png").read_bytes() != (tmp_path / "other.png").read_bytes()


def test_a_preview_replaces_the_one_before(tmp_path, tiny_pictures):
    (tmp_path / "preview.png").write_text("old")
    write_preview(tmp_path / "preview.png", rooms=1)
    assert pixels_of(tmp_path / "preview.png").std() > 8
    assert [path.name for path in tmp_path.iterdir()] == ["preview.png"]


def test_the_views_of_a_preview_come_from_all_parts_of_the_walk(tiny_pictures):
    recording = make_recording(make_room_home(0, 0, RANGE_BY_FAMILY), 0, 0, "seq-01", RecordingSize(24, 32, every=10))
    frames = widest_views(recording)
    assert [frame // 25 for frame in frames] == [0, 1, 2, 3]


@pytest.mark.parametrize("place", ["file.txt/preview.png", "folder"])
def test_a_place_that_cannot_be_written_to_is_one_clear_line(tmp_path, place):
    (tmp_path / "file.txt").write_text("a file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatasetError, match=place.split("/")[0]) as caught:
        save_picture(np.zeros((8, 8, 3), dtype=np.uint8), tmp_path / place)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "folder"]


def test_a_preview_of_no_rooms_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        write_preview(tmp_path / "preview.png", rooms=0)


def test_a_scene_from_above_is_drawn(tmp_path, seven_scenes_folder):
    draw_scene_from_above(open_scene(seven_scenes_folder), tmp_path / "above.png")
    pixels = pixels_of(tmp_path / "above.png")
    assert pixels.shape[0] > 500
    assert pixels.shape[1] > 800
    assert pixels.std() > 20
    # Training and test cameras have their own colours.
    for color in ([0x1F, 0x6F, 0xB2], [0xD9, 0x76, 0x1A]):
        assert (np.abs(pixels.astype(int) - color).max(axis=-1) < 8).sum() > 100


def test_a_scene_without_splits_and_a_scene_of_one_frame_are_drawn(tmp_path, seven_scenes_folder):
    scene = open_scene(seven_scenes_folder)
    unsplit = replace(scene, frames=tuple(replace(frame, split=None) for frame in scene))
    draw_scene_from_above(unsplit, tmp_path / "unsplit.png")
    draw_scene_from_above(replace(scene, frames=scene.frames[:1]), tmp_path / "one.png")
    assert pixels_of(tmp_path / "unsplit.png").std() > 20
    assert pixels_of(tmp_path / "one.png").std() > 10


def test_the_page_has_the_first_view_ahead_and_its_right_to_the_right(seven_scenes_folder):
    # The cameras look along z with y down: seen from above, x is right and z is ahead.
    right, ahead = ground_axes(open_scene(seven_scenes_folder).T_world_cam)
    assert_allclose(right, [1, 0, 0], atol=1e-9)
    assert_allclose(ahead, [0, 0, 1], atol=1e-9)


def test_cameras_that_look_straight_down_still_give_a_page(seven_scenes_folder):
    down = Pose.from_rotation_and_translation(
        [[1, 0, 0], [0, 0, 1], [0, -1, 0]], [0, 0, 0]
    )  # forward is the world's +y
    level = Pose.identity()  # whose y axis, down, is the world's +y
    scene = open_scene(seven_scenes_folder)
    right, ahead = ground_axes(with_poses(scene, [down, level, level]).T_world_cam)
    assert np.isfinite([right, ahead]).all()
    assert_allclose([np.linalg.norm(right), np.linalg.norm(ahead), right @ ahead], [1, 1, 0], atol=1e-6)
