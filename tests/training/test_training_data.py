"""From scenes on disk to frames: splits, held-out sequences, decoded images, walks rendered beside them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from relograph import open_scene
from relograph.errors import DatasetError
from relograph.rooms import create_seven_rooms, textures
from relograph.rooms.seven_rooms import SIZES, RecordingSize
from relograph.scenes import Scene, open_scenes
from relograph.training.config import DataConfig
from relograph.training.data import RelocalizationData, has_room_for, load_data
from small_roots import write_cambridge_root, write_seven_scenes_root

SMALL = DataConfig(image_height=32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes of 7-Scenes: sequences 1 and 2 to train, 3 to test, of four photos of 64 x 48 each."""
    return write_seven_scenes_root(tmp_path_factory.mktemp("scenes"), ("chess", "fire"), num_frames=4)


@pytest.fixture
def own_root(root: Path, tmp_path: Path) -> Path:
    """The same scenes for one test to change."""
    return Path(shutil.copytree(root, tmp_path / "own"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data(root: Path, cache: Path) -> RelocalizationData:
    return load_data(open_scenes(root, None), SMALL, cache)


def names_at(data: RelocalizationData, rows: torch.Tensor) -> list[str]:
    return [data.frames.names[row] for row in rows.tolist()]


def names_of(scene: str, sequence: int, frames: range = range(4)) -> list[str]:
    return [f"{scene}/seq-{sequence:02d}/frame-{frame:06d}.color.png" for frame in frames]


# Splits


def test_every_frame_has_one_use(data: RelocalizationData) -> None:
    both = ["chess", "fire"]
    assert names_at(data, data.train_rows(both)) == names_of("chess", 1) + names_of("fire", 1)
    assert names_at(data, data.validation_rows(both)) == names_of("chess", 2) + names_of("fire", 2)
    assert names_at(data, data.test_rows(both)) == names_of("chess", 3) + names_of("fire", 3)
    assert data.notes == ()


def test_the_map_is_the_training_split_as_it_is_on_disk(data: RelocalizationData) -> None:
    in_map = names_at(data, data.frames.in_map.nonzero().squeeze(1))
    assert in_map == [name for scene in ("chess", "fire") for sequence in (1, 2) for name in names_of(scene, sequence)]


def test_rows_of_a_scene_are_its_own(data: RelocalizationData) -> None:
    assert names_at(data, data.test_rows(["fire"])) == names_of("fire", 3)
    with pytest.raises(DatasetError, match=r"expected scenes among chess, fire, got cheese\. Check --scenes"):
        data.test_rows(["cheese"])


def test_sequences_are_numbered_over_all_scenes_and_lie_together(data: RelocalizationData) -> None:
    assert_array_equal(data.frames.sequence_idx, np.repeat(np.arange(6), 4))
    assert_array_equal(data.frames.scene_idx, np.repeat([0, 1], 12))


def test_a_scene_with_one_training_sequence_holds_out_its_end(own_root: Path, tmp_path: Path) -> None:
    shutil.rmtree(own_root / "chess" / "seq-02")
    (own_root / "chess" / "TrainSplit.txt").write_text("sequence1\n")
    data = load_data(open_scenes(own_root, None), DataConfig(image_height=32, holdout_share=0.5), tmp_path)
    assert names_at(data, data.train_rows(["chess"])) == names_of("chess", 1, range(2))
    assert names_at(data, data.validation_rows(["chess"])) == names_of("chess", 1, range(2, 4))
    assert names_at(data, data.validation_rows(["fire"])) == names_of("fire", 2)
    assert data.notes == ("chess has one training sequence: its last frames are held out for validation",)


@pytest.mark.parametrize(("share", "num_held_out"), [(0.01, 1), (0.6, 2), (0.99, 3)])
def test_something_is_held_out_and_something_is_trained_on(
    own_root: Path, tmp_path: Path, share: float, num_held_out: int
) -> None:
    shutil.rmtree(own_root / "chess" / "seq-02")
    (own_root / "chess" / "TrainSplit.txt").write_text("sequence1\n")
    data = load_data([open_scene(own_root / "chess")], DataConfig(image_height=32, holdout_share=share), tmp_path)
    assert len(data.validation_rows(["chess"])) == num_held_out
    assert len(data.train_rows(["chess"])) == 4 - num_held_out


def test_of_one_training_frame_nothing_is_held_out(seven_scenes_folder: Path, tmp_path: Path) -> None:
    for file in (seven_scenes_folder / "seq-01").glob("frame-000001.*"):
        file.unlink()
    data = load_data([open_scene(seven_scenes_folder)], SMALL, tmp_path / "cache")
    assert len(data.train_rows(["kitchen"])) == 1
    assert not data.held_out.any()
    assert data.notes == ("kitchen has 1 training frame: nothing of it can be held out for validation",)


def test_frames_of_no_split_and_no_sequence_are_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["# camera axes: right down forward", "# direction: world_from_camera", "name,tx,ty,tz,qw,qx,qy,qz"]
    for frame in range(10):
        Image.fromarray(rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)).save(tmp_path / f"photo-{frame}.png")
        lines.append(f"photo-{frame}.png,{frame},0,0,1,0,0,0")
    (tmp_path / "poses.csv").write_text("\n".join(lines) + "\n")
    scene = open_scene(tmp_path)
    data = load_data([scene], SMALL, tmp_path / "cache")
    assert [name.rpartition("/")[2] for name in data.frames.names] == [f"photo-{frame}.png" for frame in range(10)]
    assert data.train_rows([scene.name]).tolist() == list(range(9))
    assert data.validation_rows([scene.name]).tolist() == [9]
    assert data.frames.in_map.all()


def test_cambridge_has_its_own_splits_and_metres(tmp_path: Path) -> None:
    write_cambridge_root(tmp_path / "root", ("ShopFacade",), num_frames=3)
    scene = open_scene(tmp_path / "root" / "ShopFacade")
    data = load_data([scene], SMALL, tmp_path / "cache")
    assert [len(rows(["ShopFacade"])) for rows in (data.train_rows, data.validation_rows, data.test_rows)] == [3, 3, 3]
    for row, name in enumerate(data.frames.names):
        frame = scene[name.removeprefix("ShopFacade/")]
        assert_allclose(data.frames.T_world_cam[row].matrix(), frame.T_world_cam.matrix(), atol=1e-5)
    assert data.frames.T_world_cam.t.abs().max() > 5  # tens of metres, as they are


def test_a_scene_without_frames_cannot_be_trained_on(root: Path, cache: Path) -> None:
    scene = open_scene(root / "chess")
    empty = Scene(scene.name, scene.root, scene.format, ())
    with pytest.raises(DatasetError, match="chess: expected frames to train on, found none"):
        load_data([scene, empty], SMALL, cache)


# Images and poses


def test_a_row_has_the_photo_and_the_pose_of_its_frame(root: Path, data: RelocalizationData) -> None:
    scenes = {scene.name: scene for scene in open_scenes(root, None)}
    for row, name in enumerate(data.frames.names):
        scene, _, frame_name = name.partition("/")
        frame = scenes[scene][frame_name]
        # 64 x 48 at a height of 32 is 42.67 pixels wide; Pillow scales, and cuts to the whole pixel.
        with Image.open(root / name) as photo:
            smaller = photo.resize((43, 32), Image.Resampling.BILINEAR, box=(0, 0.186, 64, 47.814))
        assert np.abs(data.frames.images[row].numpy().astype(int) - np.asarray(smaller).astype(int)).max() <= 1
        assert_allclose(data.frames.T_world_cam[row].matrix(), frame.T_world_cam.matrix(), atol=1e-6)
    assert data.frames.images.shape == (24, 32, 43, 3)
    assert data.frames.T_world_cam.dtype == torch.float32


def test_photos_are_decoded_once(own_root: Path, tmp_path: Path) -> None:
    first = load_data(open_scenes(own_root, None), SMALL, tmp_path / "cache")
    for photo in own_root.rglob("*.color.png"):
        stat, header = photo.stat(), photo.read_bytes()[:64]
        photo.write_bytes(header.ljust(stat.st_size, b"\0"))  # no pixels any more, but the same from outside
        os.utime(photo, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = load_data(open_scenes(own_root, None), SMALL, tmp_path / "cache")
    assert again.frames.images.equal(first.frames.images)
    with pytest.raises(DatasetError):
        load_data(open_scenes(own_root, None), SMALL, tmp_path / "another cache")


def test_the_fingerprint_changes_with_the_data(own_root: Path, cache: Path, data: RelocalizationData) -> None:
    assert load_data(open_scenes(own_root, None), SMALL, cache).fingerprint == data.fingerprint
    pose = own_root / "fire" / "seq-01" / "frame-000002.pose.txt"
    T_world_cam = np.loadtxt(pose)
    T_world_cam[0, 3] += 1e-3
    np.savetxt(pose, T_world_cam)
    moved = load_data(open_scenes(own_root, None), SMALL, cache).fingerprint
    assert moved != data.fingerprint
    assert moved.split("+")[0] == data.fingerprint.split("+")[0]  # chess is as it was


def test_a_room_that_is_made_again_has_the_same_fingerprint_whatever_its_photos_were_rounded_to(
    own_root: Path, cache: Path
) -> None:
    scene = own_root / "fire"

    def fingerprint() -> str:
        return load_data([open_scene(scene)], SMALL, cache).fingerprint

    (scene / "room.json").write_text('{"seed": 0}')
    made = fingerprint()
    photo, pose = scene / "seq-01" / "frame-000002.color.png", scene / "seq-01" / "frame-000002.pose.txt"
    Image.open(photo).save(photo, compress_level=0)  # of another size
    T_world_cam = np.loadtxt(pose)
    np.savetxt(pose, T_world_cam + np.eye(4)[:, [3, 0, 1, 2]] * 1e-12)
    assert fingerprint() == made
    T_world_cam[0, 3] += 1e-3
    np.savetxt(pose, T_world_cam)
    moved = fingerprint()
    assert moved != made
    (scene / "room.json").write_text('{"seed": 1}')
    assert fingerprint() not in (made, moved)


def test_data_move_to_a_device_with_or_without_their_images(data: RelocalizationData) -> None:
    moved = data.to("meta", images_too=False)
    assert moved.frames.images.device.type == "cpu"
    assert {tensor.device.type for tensor in (moved.is_test, moved.held_out, moved.frames.scene_idx)} == {"meta"}
    assert moved.frames.T_world_cam.device.type == "meta"
    assert data.to("meta", images_too=True).frames.images.device.type == "meta"
    assert (moved.fingerprint, moved.frames.names) == (data.fingerprint, data.frames.names)


@pytest.mark.parametrize(("free_bytes", "fits"), [(1000, True), (800, False)])
def test_images_lie_on_a_gpu_where_they_leave_room_for_the_training(
    free_bytes: int, fits: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_bytes, 10_000))
    assert has_room_for(500, torch.device("cuda")) is fits
    assert not has_room_for(1, torch.device("cpu"))


# More walks


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A room of two frames a sequence; few textures while it and more walks of it are rendered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "small", RecordingSize(32, 40, every=500))
        patch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(textures.FAMILY_SIZES, 1))
        folder = tmp_path_factory.mktemp("rooms")
        create_seven_rooms(folder, num_rooms=1, seed=3, workers=1)
        yield open_scene(folder / "room-1")


@pytest.fixture(scope="module")
def with_more_walks(room: Scene, cache: Path) -> RelocalizationData:
    return load_data([room], DataConfig(image_height=32, extra_walks=2, extra_every=300), cache)


def test_more_walks_are_trained_on_but_are_not_the_map(with_more_walks: RelocalizationData) -> None:
    data = with_more_walks
    on_disk = [f"room-1/seq-{sequence:02d}/frame-{frame:06d}.color.png" for sequence in (1, 2) for frame in (0, 1)]
    views = [f"room-1/extra-{walk:02d}/view-{view:04d}" for walk in (0, 1) for view in range(4)]
    assert names_at(data, data.frames.in_map.nonzero().squeeze(1)) == on_disk
    # All of the map is trained on: the last rendered walk is held out in its place.
    assert names_at(data, data.train_rows(["room-1"])) == on_disk + views[:4]
    assert names_at(data, data.validation_rows(["room-1"])) == views[4:]
    assert names_at(data, data.test_rows(["room-1"])) == [
        f"room-1/seq-03/frame-{frame:06d}.color.png" for frame in (0, 1)
    ]


def test_rendered_walks_are_further_sequences_of_the_same_scene(with_more_walks: RelocalizationData) -> None:
    frames = with_more_walks.frames
    assert frames.scene_names == ("room-1",)
    assert (frames.scene_idx == 0).all()
    assert_array_equal(frames.sequence_idx, np.repeat([0, 1, 2, 3, 4], [2, 2, 2, 4, 4]))
    assert frames.images.shape == (14, 32, 40, 3)
    assert frames.images[6:].float().std(dim=(1, 2, 3)).min() > 2  # no view is blank


def test_the_fingerprint_says_how_many_walks_were_rendered(
    room: Scene, with_more_walks: RelocalizationData, cache: Path
) -> None:
    plain = load_data([room], SMALL, cache).fingerprint
    assert with_more_walks.fingerprint == f"{plain}+2 walks/300"


def test_only_rooms_have_more_walks(root: Path, cache: Path) -> None:
    with pytest.raises(DatasetError, match=r"expected a room made by `relograph rooms create`.*data.extra_walks=0"):
        load_data(open_scenes(root, None), DataConfig(image_height=32, extra_walks=1), cache)
