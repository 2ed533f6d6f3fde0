"""More walks through rooms on disk: the same world and the same things in it, but none of the walks on disk."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tiny_rooms import HEIGHT, WIDTH

from relograph import open_scene
from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.rooms import create_seven_rooms, render_more_walks, textures
from relograph.rooms.more_walks import MoreViews, read_recipe
from relograph.rooms.photograph import Darkroom
from relograph.rooms.seven_rooms import (
    SIZES,
    RecordingSize,
    make_recording,
    make_room_home,
    take_photos,
)
from relograph.rooms.textures import FAMILY_SIZES, TextureAtlas, make_atlas
from relograph.rooms.walks import views_of

TINY = RecordingSize(HEIGHT, WIDTH, every=500)
SEED = 11
NUM_WALKS, EVERY, PER_WALK = 2, 256, 4


@pytest.fixture(scope="module", autouse=True)
def tiny_recordings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "small", TINY)
        patch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))
        yield


@pytest.fixture(scope="module")
def rooms_folder(tmp_path_factory: pytest.TempPathFactory, tiny_recordings: None) -> Path:
    """Two rooms on disk, two frames a sequence."""
    folder = tmp_path_factory.mktemp("rooms") / "seven"
    create_seven_rooms(folder, num_rooms=2, seed=SEED, workers=1)
    return folder


@pytest.fixture(scope="module")
def atlas(tiny_recordings: None) -> TextureAtlas:
    return make_atlas(SEED)


@pytest.fixture(scope="module")
def views(rooms_folder: Path) -> list[MoreViews]:
    folders = [rooms_folder / "room-1", rooms_folder / "room-2"]
    return render_more_walks(folders, num_walks=NUM_WALKS, every=EVERY, image_size_hw=(HEIGHT, WIDTH))


def test_every_walk_has_as_many_views_as_were_asked_for(views: list[MoreViews]) -> None:
    assert len(views) == 2
    for of_room in views:
        assert of_room.images.shape == (NUM_WALKS * PER_WALK, HEIGHT, WIDTH, 3)
        assert of_room.images.dtype == torch.uint8
        assert of_room.T_world_cam.batch_shape == (NUM_WALKS * PER_WALK,)
        assert_array_equal(of_room.walk_idx, np.repeat(np.arange(NUM_WALKS), PER_WALK))
        assert of_room.images.float().std(dim=(1, 2, 3)).min() > 4  # no view is blank


def test_the_same_rooms_and_numbers_give_the_same_views(rooms_folder: Path, views: list[MoreViews]) -> None:
    (again,) = render_more_walks([rooms_folder / "room-2"], num_walks=1, every=EVERY, image_size_hw=(HEIGHT, WIDTH))
    assert again.images.equal(views[1].images[:PER_WALK])
    assert again.T_world_cam.matrix().equal(views[1].T_world_cam.matrix()[:PER_WALK])


def test_a_room_elsewhere_on_disk_is_the_same_room(rooms_folder: Path, views: list[MoreViews], tmp_path: Path) -> None:
    shutil.copytree(rooms_folder / "room-1", tmp_path / "kitchen")
    (moved,) = render_more_walks([tmp_path / "kitchen"], num_walks=1, every=EVERY, image_size_hw=(HEIGHT, WIDTH))
    assert moved.images.equal(views[0].images[:PER_WALK])


def test_no_walk_is_one_that_is_on_disk(rooms_folder: Path, views: list[MoreViews], atlas: TextureAtlas) -> None:
    for room, of_room in enumerate(views):
        home = make_room_home(SEED, room, atlas.range_by_family)
        extra_m = of_room.T_world_cam.t.reshape(NUM_WALKS, PER_WALK, 3)
        walks_m = [extra_m[number] for number in range(NUM_WALKS)]
        for sequence in ("seq-01", "seq-02", "seq-03"):
            every_step = make_recording(home, SEED, room, sequence, RecordingSize(HEIGHT, WIDTH, every=1))
            walks_m.append(every_step.T_world_cam.t[: EVERY * PER_WALK : EVERY])
        # Two walks pass through the same room, but are not at the same places at the same steps.
        for i, one in enumerate(walks_m):
            for other in walks_m[:i]:
                assert torch.linalg.vector_norm(one - other, dim=1).median() > 0.1


def test_views_show_the_room_on_disk_from_where_their_poses_say(
    rooms_folder: Path, views: list[MoreViews], atlas: TextureAtlas
) -> None:
    for room, of_room in enumerate(views):
        # The world is the first camera on disk: its place in the room takes every pose into the room.
        home = make_room_home(SEED, room, atlas.range_by_family)
        first = make_recording(home, SEED, room, "seq-01", TINY)
        on_disk = open_scene(rooms_folder / f"room-{room + 1}")["seq-01/frame-000000.color.png"]
        T_room_first = Pose(first.views.R_room_cam[0].double(), first.views.center[0].double())
        T_room_cam = T_room_first @ on_disk.T_world_cam.inverse() @ of_room.T_world_cam
        count, camera = len(of_room.images), on_disk.camera
        assert camera is not None
        seen_from_there = replace(
            first,
            views=views_of(
                T_room_cam.t.numpy(),
                T_room_cam.R.numpy(),
                np.full(count, camera.fx),
                np.tile(camera.distortion[:2], (count, 1)),
                HEIGHT,
                WIDTH,
            ),
            optics=first.optics[torch.zeros(count, dtype=torch.long)],
        )
        photos, _ = take_photos(seen_from_there, range(count), atlas, Darkroom.on("cpu"))
        likeness = np.corrcoef(of_room.images.flatten(1).float(), photos.flatten(1).float())[:count, count:]
        # In another light and with other noise, but the same picture; other views of the room are others.
        assert likeness.diagonal().min() > 0.8
        assert (likeness.diagonal() > likeness.max(axis=1, where=~np.eye(count, dtype=bool), initial=-1)).all()


def test_images_may_have_any_size(rooms_folder: Path, views: list[MoreViews]) -> None:
    (larger,) = render_more_walks(
        [rooms_folder / "room-1"], num_walks=1, every=512, image_size_hw=(2 * HEIGHT, 2 * WIDTH)
    )
    assert larger.images.shape == (2, 2 * HEIGHT, 2 * WIDTH, 3)
    assert_allclose(larger.T_world_cam.t, views[0].T_world_cam.t[:PER_WALK:2], atol=1e-9)
    # The same views: made smaller they differ by noise, texture and blur only.
    smaller = torch.nn.functional.avg_pool2d(larger.images.permute(0, 3, 1, 2).float(), 2).permute(0, 2, 3, 1)
    difference = (smaller - views[0].images[:PER_WALK:2].float()).abs().mean()
    other = (smaller - views[0].images[1:PER_WALK:2].float()).abs().mean()
    assert difference < 0.5 * other


# What is no room of ours


def test_the_recipe_says_which_room_it_is(rooms_folder: Path) -> None:
    assert read_recipe(rooms_folder / "room-2") == (SEED, 1)


@pytest.mark.parametrize("content", [None, "", "[]", '{"version": 1}', "not json"])
def test_a_scene_that_is_no_room_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "room.json").write_text(content)
    with pytest.raises(DatasetError, match=r"expected a room made by `relograph rooms create`.*data.extra_walks=0"):
        render_more_walks([tmp_path], num_walks=1, every=4, image_size_hw=(HEIGHT, WIDTH))


@pytest.mark.parametrize(("key", "value"), [("version", 0), ("textures_sha256", "ab" * 32)])
def test_a_room_that_cannot_be_made_again_is_refused(
    rooms_folder: Path, tmp_path: Path, key: str, value: object
) -> None:
    recipe = json.loads((rooms_folder / "room-1" / "room.json").read_text())
    (tmp_path / "room.json").write_text(json.dumps({**recipe, key: value}))
    with pytest.raises(DatasetError, match="expected a room of recipe version 2 with procedural textures"):
        read_recipe(tmp_path)
