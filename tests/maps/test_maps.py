"""What goes into a map comes out of it, also after others have changed it."""

import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_maps import contents, made_map, no_network, photos
from numpy.testing import assert_allclose, assert_array_equal
from typer.main import get_command

from painted_box import write_scene
from relograph.cli import map as cli_map
from relograph.errors import CheckpointError, ConfigError, DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.localization import Localizer, MapFeatures
from relograph.localization.focal import UnknownFocal
from relograph.localization.photos import PhotoInMemory
from relograph.maps import Map
from relograph.maps import map as map_module
from relograph.maps.exporting import export_map
from relograph.maps.records import LEVELS
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes import open_scene
from relograph.training.presets import MATCHGNN_TINY

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    torch.manual_seed(0)
    return LoadedMatchGNN(MatchGNN(MATCHGNN_TINY.model).eval().requires_grad_(False), "b" * 64, {})


def test_a_scene_becomes_a_map_in_which_its_own_photo_is_found(tmp_path: Path, network: LoadedMatchGNN):
    scene = open_scene(write_scene(tmp_path / "box", num_map=5, num_queries=1))
    made = Map.create(tmp_path / "box.map", scene, network=network, levels=LEVELS)
    reopened = Map.open(tmp_path / "box.map")
    assert [frame.name for frame in reopened] == [frame.name for frame in made] == [frame.name for frame in scene]
    assert_allclose(reopened.features.T_world_cam.matrix(), scene.T_world_cam.matrix(), atol=1e-14)
    expected = MapFeatures.of(scene.frames, network)
    assert_allclose(reopened.features.descriptors, expected.descriptors, atol=1e-3)
    for (_, which, found), (_, _, one) in zip(
        reopened.features.take([3, 1], CPU), expected.take([3, 1], CPU), strict=True
    ):
        assert which == [0, 1]
        for name in ("context", "coarse", "fine"):
            assert_allclose(getattr(found, name), getattr(one, name), atol=2e-3 * float(one.context.abs().max()))
    answer = Localizer(reopened.features, network, solver="regress").localize(scene[2].image.path)
    assert scene[2].name in {reference.name for reference in answer.references}
    assert_allclose(answer.references[0].similarity, 1.0, atol=1e-3)


def test_features_that_are_not_kept_are_computed_again_from_the_small_photos(tmp_path: Path, network: LoadedMatchGNN):
    scene = open_scene(write_scene(tmp_path / "box", num_map=2, num_queries=1))
    whole = Map.create(tmp_path / "whole", scene, network=network, levels=LEVELS)
    small = Map.create(tmp_path / "small", scene, network=network, levels=())
    assert small.features.bytes_per_photo < 0.1 * whole.features.bytes_per_photo
    ((_, _, expected),) = whole.features.take([1], CPU)
    ((_, _, found),) = Map.open(tmp_path / "small", network=network).features.take([1], CPU)
    for name in ("context", "coarse", "fine"):
        one = getattr(expected, name).float()
        assert torch.corrcoef(torch.stack([one.flatten(), getattr(found, name).float().flatten()]))[0, 1] > 0.95, name
    with pytest.raises(DatasetError, match="Open it with the network that made it"):
        next(iter(Map.open(tmp_path / "small").features.take([1], CPU)))


@pytest.mark.usefixtures("generated")
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_added_photos_come_after_the_others_which_stay_as_they_were(tmp_path: Path, precision: str):
    made = made_map(tmp_path / "m", 10, precision=precision)
    before = contents(made)
    added = made.add(photos(5, first=10))
    assert (added.num_added, added.num_there) == (5, 0)
    after = contents(Map.open(tmp_path / "m"))
    assert list(after) == [f"walk/{i:04d}.png" for i in range(15)]
    assert {name: after[name] for name in before} == before
    assert len(made) == 15


def test_photos_of_several_sizes_keep_their_features_and_their_order(tmp_path: Path, network: LoadedMatchGNN):
    given = [
        PhotoInMemory(photo.name, photo.pixels if i % 3 else photo.pixels.transpose(1, 0, 2), photo.T_world_cam)
        for i, photo in enumerate(photos(11))
    ]
    num_threads = torch.get_num_threads()
    made = Map.create(tmp_path / "m", given, network=network)
    assert torch.get_num_threads() == num_threads
    assert [frame.name for frame in made] == [photo.name for photo in given]
    expected = MapFeatures.of(given, network)
    assert_allclose(made.features.descriptors, expected.descriptors, atol=1e-3)
    for (size_hw, which, found), (expected_size_hw, expected_which, one) in zip(
        made.features.take([0, 4, 3, 10], CPU), expected.take([0, 4, 3, 10], CPU), strict=True
    ):
        assert (size_hw, which) == (expected_size_hw, expected_which)
        assert_allclose(found.coarse, one.coarse, atol=2e-3 * float(one.coarse.abs().max()))


@pytest.mark.usefixtures("generated")
def test_poses_and_cameras_come_back_as_they_were(tmp_path: Path):
    given = photos(5)
    fisheye = Camera(32, 24, 20.1, 20.2, 16.3, 12.4, (0.1, 0.01, 1e-3, 1 / 3), "fisheye")
    cameras = [
        fisheye,
        UnknownFocal(32, 24, 7),
        UnknownFocal(32, 24, 7, likely=0.7, log_sigma=0.05),
        None,
        Camera(32, 24, 1 / 3, 0.1, 1.5, 2.5, (0.1, 0.2, 0.3, 0.4, 0.5), "opencv"),
    ]
    given = [
        PhotoInMemory(photo.name, photo.pixels, photo.T_world_cam, camera)
        for photo, camera in zip(given, cameras, strict=True)
    ]
    Map.create(tmp_path / "m", given, network=no_network())
    found = Map.open(tmp_path / "m")
    assert [frame.camera for frame in found] == cameras
    assert found.features.cameras == tuple(cameras)
    for frame, photo in zip(found, given, strict=True):
        assert_array_equal(frame.T_world_cam.t, photo.T_world_cam.t)
        assert_allclose(frame.T_world_cam.R, photo.T_world_cam.R, atol=1e-15)
        assert (frame.photo_width, frame.photo_height) == (32, 24)


@pytest.mark.usefixtures("generated")
def test_what_exif_tells_of_a_camera_stays_that_in_a_map_and_in_what_is_exported_of_it(
    tmp_path: Path, seven_scenes_folder: Path
):
    scene = open_scene(seven_scenes_folder, focal_px=30.0)
    by_exif = replace(scene, frames=tuple(replace(frame, camera_by_exif=True) for frame in scene))
    some = Map.create(tmp_path / "m", by_exif, network=no_network())
    (camera,) = {frame.camera for frame in some.frames}
    assert isinstance(camera, UnknownFocal)
    assert camera.is_expected
    some.add(by_exif)  # the same photos with the same cameras, which it has already
    exported = export_map(some, tmp_path / "tum", "tum")
    (exported_camera,) = {frame.camera for frame in exported}
    assert exported_camera is not None
    longer_side = max(exported_camera.width, exported_camera.height)
    assert exported_camera.fx / longer_side == pytest.approx(camera.likely)


@pytest.mark.usefixtures("generated")
def test_a_negative_zero_is_no_damage_and_nan_is_no_pose(tmp_path: Path):
    pixels = photos(1)[0].pixels
    at_zero = Pose(torch.eye(3, dtype=torch.float64), torch.tensor([-0.0, 0.0, -0.0], dtype=torch.float64))
    made = Map.create(tmp_path / "m", [PhotoInMemory("zero.png", pixels, at_zero)], network=no_network())
    assert made.verify().is_whole
    nowhere = Pose(torch.eye(3, dtype=torch.float64), torch.full((3,), torch.nan, dtype=torch.float64))
    with pytest.raises(GeometryError, match=r"nan\.png: expected a pose of finite numbers"):
        made.add([PhotoInMemory("nan.png", pixels, nowhere)])


@pytest.mark.usefixtures("generated")
def test_removed_photos_are_gone_and_the_space_of_a_shard_without_photos_is_given_back(tmp_path: Path):
    made = made_map(tmp_path / "m", 10)  # in shards of 4, 4 and 2
    kept = {
        name: value for name, value in contents(made).items() if name not in {f"walk/{i:04d}.png" for i in range(5)}
    }
    made.remove([f"walk/{i:04d}.png" for i in range(5)])
    assert contents(made) == kept
    assert "walk/0000.png" not in made
    assert "walk/0005.png" in made
    assert len(list((tmp_path / "m" / "shards").iterdir())) == 2
    assert made.verify().is_whole


@pytest.mark.usefixtures("generated")
def test_a_photo_that_is_there_is_passed_over_and_another_of_its_name_refused(tmp_path: Path):
    made = made_map(tmp_path / "m", 6)
    assert made.add(photos(8)).num_there == 6
    impostor = PhotoInMemory("walk/0001.png", photos(1, first=99)[0].pixels, photos(2)[1].T_world_cam)
    with pytest.raises(DatasetError, match=r"walk/0001\.png: .* found another photo in the map"):
        made.add([impostor])
    moved = PhotoInMemory("walk/0001.png", photos(2)[1].pixels, photos(3)[2].T_world_cam)
    with pytest.raises(DatasetError, match="found another pose"):
        made.add([moved])
    assert len(made) == 8


@pytest.mark.usefixtures("generated")
def test_the_same_photo_under_two_names_is_kept_once_and_found_twice(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    made.add(photos(4, prefix="again/"))
    assert len({frame.shard for frame in made}) == 1
    made.remove([frame.name for frame in made if frame.name.startswith("walk/")])
    assert len(contents(made)) == 4
    assert made.verify().is_whole


@pytest.mark.usefixtures("generated")
def test_a_reader_keeps_what_it_has_read(tmp_path: Path):
    made = made_map(tmp_path / "m", 8, levels=LEVELS)
    reader = Map.open(tmp_path / "m")
    before = contents(reader)
    features = reader.features
    made.remove([frame.name for frame in made.frames[:4]])
    assert not (tmp_path / "m" / "shards" / f"{reader.frames[0].shard}.safetensors").exists()
    ((_, _, one),) = features.take([0], CPU)
    assert one.context.isfinite().all()
    assert len(features) == 8
    reader.refresh()
    assert contents(reader) == {name: value for name, value in before.items() if name >= "walk/0004.png"}


@pytest.mark.usefixtures("generated")
def test_a_reader_whose_shards_went_before_it_opened_them_reads_the_newer_map(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    reader = Map.open(tmp_path / "m")
    assert len(reader.frames) == 8
    made.remove([frame.name for frame in made.frames[:4]])
    assert len(reader.features) == len(reader.frames) == 4


@pytest.mark.usefixtures("generated")
def test_no_name_reaches_the_file_system(tmp_path: Path):
    made = made_map(tmp_path / "m", 1)
    for name in ("../../evil.png", "/etc/passwd", "a\\b.png", "a\x00b.png", "a//b.png"):
        with pytest.raises(DatasetError):
            made.add([PhotoInMemory(name, photos(1, first=7)[0].pixels, photos(1)[0].T_world_cam)])
    hostile = "'; DROP TABLE frames; --.png"
    made.add([PhotoInMemory(hostile, photos(1, first=8)[0].pixels, photos(1)[0].T_world_cam)])
    assert hostile in made
    assert len(made) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"m"}
    names = {path.name for path in (tmp_path / "m").rglob("*")}
    assert all(name in ("map.sqlite", "shards") or len(name) == 64 + len(".safetensors") for name in names)


@pytest.mark.usefixtures("generated")
def test_other_weights_and_missing_maps_are_refused_in_one_line(tmp_path: Path, network: LoadedMatchGNN):
    made = made_map(tmp_path / "m", 1)
    with pytest.raises(CheckpointError, match="expected the weights that the map was made with"):
        made.add(photos(1, first=1), network=network)
    with pytest.raises(CheckpointError, match="expected the weights"):
        Map.open(tmp_path / "m", network=network)
    with pytest.raises(DatasetError, match=r"expected a map, found no map\.sqlite"):
        Map.open(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="found an address of https://"):
        Map.open("https://host/map")
    with pytest.raises(DatasetError, match="expected no map, found one of 1 photos"):
        made_map(tmp_path / "m", 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(DatasetError, match=r"expected an empty folder for a map, found .thesis\.tex."):
        made_map(tmp_path / "mine", 1)
    with pytest.raises(DatasetError, match=r"found none named .walk/9999\.png."):
        made.remove(["walk/0000.png", "walk/9999.png"])
    assert len(made) == 1


@pytest.mark.usefixtures("generated")
def test_bad_photos_stop_the_work_or_are_left_out_by_name(tmp_path: Path, seven_scenes_folder: Path):
    scene = open_scene(seven_scenes_folder)
    scene[1].image.path.write_bytes(b"no photo")
    with pytest.raises(DatasetError, match=r"frame-000001\.color\.png"):
        Map.create(tmp_path / "m", scene, network=no_network())
    made = Map.open(tmp_path / "m", network=no_network())
    added = made.add(scene, skip_bad_frames=True)
    assert len(added.left_out) == 1
    assert len(made) == 2
    assert made[scene[0].name].sequence == "seq-01"


@pytest.mark.usefixtures("generated")
def test_changes_tell_what_was_done(tmp_path: Path, seven_scenes_folder: Path):
    made = Map.create(tmp_path / "m", open_scene(seven_scenes_folder), network=no_network())
    made.remove([made.frames[0].name])
    changes = made.changes()
    assert [(change.kind, change.num_frames) for change in changes] == [("create", 0), ("add", 3), ("remove", 2)]
    assert changes[1].about["scene"] == "kitchen"
    assert {frame.change for frame in made} == {2}


@pytest.mark.usefixtures("generated")
def test_the_kept_picture_is_what_the_network_saw(tmp_path: Path):
    from PIL import Image

    made = made_map(tmp_path / "m", 1)
    (tmp_path / "seen.jpg").write_bytes(made.jpeg(made.frames[0]))
    picture = np.asarray(Image.open(tmp_path / "seen.jpg"))
    assert picture.shape == (240, 320, 3)


@pytest.mark.usefixtures("generated")
def test_photos_are_streamed_and_few_are_in_memory_at_a_time(tmp_path: Path):
    alive = [0]
    most = 0

    def count_down() -> None:
        alive[0] -= 1

    def stream() -> Iterator[PhotoInMemory]:
        nonlocal most
        for number in range(100):
            (photo,) = photos(1, first=number)
            alive[0] += 1
            weakref.finalize(photo, count_down)
            most = max(most, alive[0])
            yield photo

    made = Map.create(tmp_path / "m", stream(), network=no_network())
    assert len(made) == 100
    assert most <= 5 * 4  # shards of four: asked about, decoded ahead, and being written


def test_the_page_on_maps_does_what_it_says(
    tmp_path: Path, seven_scenes_folder: Path, network: LoadedMatchGNN, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(map_module, "load_match_gnn", lambda: network)
    monkeypatch.chdir(seven_scenes_folder.parent)
    page = (Path(__file__).parents[2] / "docs" / "maps.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(names["m"]) == 2
    (shell,) = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    known = {f"relograph map {name}" for name in get_command(cli_map.app).commands}
    lines = [line.split("#")[0].split() for line in shell.splitlines()]
    assert {" ".join(line[:3]) for line in lines} == known
    for line in lines:
        get_command(cli_map.app).commands[line[2]].make_context(line[2], line[3:])  # raises where an option is unknown
