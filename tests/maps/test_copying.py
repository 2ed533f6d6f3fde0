"""Merging, splitting, moving and compacting copy features and leave every photo what it was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_maps import contents, made_map, no_network, photos
from numpy.testing import assert_allclose

from relograph.errors import CheckpointError, ConfigError, DatasetError, GeometryError
from relograph.geometry import Pose
from relograph.localization import Answer, MapFeatures
from relograph.maps import Map, Similarity, thinning_cost
from relograph.maps.records import Georeference, frame_poses

pytestmark = pytest.mark.usefixtures("generated")

T_HERE_THERE = Similarity(Pose.from_axis_angle([0.1, -0.2, 0.3], [5.0, 6.0, 7.0]), scale=2.0)


def test_merging_takes_all_photos_in_and_moves_them(tmp_path: Path):
    here, there = made_map(tmp_path / "here", 6), made_map(tmp_path / "there", 7)
    before, theirs = contents(here), contents(there)
    here.merge(there, T_HERE_THERE, prefix="evening/")
    after = contents(here)
    assert {name: after[name] for name in before} == before
    assert {name.removeprefix("evening/"): value[2:] for name, value in after.items() if name not in before} == {
        name: value[2:] for name, value in theirs.items()
    }
    T_then, T_now = frame_poses(there.frames), frame_poses(here.frames[6:])
    assert_allclose(T_now.t, T_HERE_THERE.apply(T_then.t), atol=1e-12)
    assert_allclose(T_now.R, T_HERE_THERE.T.R @ T_then.R, atol=1e-12)
    assert contents(there) == theirs
    assert here.verify().is_whole
    assert here.changes()[-1].kind == "merge"


def test_maps_of_other_features_or_with_the_same_names_are_not_merged(tmp_path: Path):
    here, there = made_map(tmp_path / "here", 2), made_map(tmp_path / "there", 2)
    with pytest.raises(DatasetError, match="found 2 of the same name in both"):
        here.merge(there)
    small = made_map(tmp_path / "small", 1, precision="int8")
    with pytest.raises(CheckpointError, match="same precision, found float16 and int8"):
        here.merge(small, prefix="small/")
    assert len(here) == 2
    assert here.changes()[-1].kind == "add"


def test_a_split_holds_the_wanted_photos_alone(tmp_path: Path):
    made = made_map(tmp_path / "m", 10)
    wanted = ["walk/0002.png", "walk/0003.png", "walk/0008.png"]
    part = made.split(tmp_path / "part", wanted)
    assert contents(part) == {name: value for name, value in contents(made).items() if name in wanted}
    assert part.verify().is_whole
    assert len({frame.shard for frame in part}) == 1
    with pytest.raises(DatasetError, match=r"found none named 'nowhere\.png'"):
        made.split(tmp_path / "other", ["nowhere.png"])
    assert not (tmp_path / "other").exists()


def test_compacting_gives_back_the_room_of_photos_that_are_gone(tmp_path: Path):
    made = made_map(tmp_path / "m", 20)  # five shards of four
    made.remove([f"walk/{i:04d}.png" for i in range(20) if i % 4 and i < 16])
    before = contents(made)
    size = made.store.num_bytes()["shards"]
    made.compact()
    assert contents(made) == before
    assert made.verify() == made.verify().__class__(8, (), ())
    assert len({frame.shard for frame in made}) == 2  # the whole one, and the rest
    assert made.store.num_bytes()["shards"] < size / 2


def test_compacting_to_a_number_keeps_photos_that_stand_apart(tmp_path: Path):
    made = made_map(tmp_path / "m", 12)
    crowd = [
        photo.__class__(f"crowd/{i}.png", photo.pixels, photos(1)[0].T_world_cam)
        for i, photo in enumerate(photos(6, first=50))
    ]
    made.add(crowd)
    gone = made.compact(6)
    assert len(made) == 6
    assert sum(frame.name.startswith("crowd/") for frame in made) <= 1
    assert len(gone.distance_m) == 12
    assert gone.distance_m.max() <= 0.1 * 3
    assert (gone.distance_m == 0).sum() >= 5  # those of the crowd
    with pytest.raises(ConfigError, match="can be thinned to 1"):
        made.compact(7)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_map_is_compacted_to_a_size_with_as_many_photos_as_it_holds(tmp_path: Path, share: float):
    made = made_map(tmp_path / "m", 200)
    made.remove([f"walk/{i:04d}.png" for i in range(0, 80, 3)])  # whose room is not given back yet
    made.compact()
    size = sum(made.store.num_bytes().values())
    wanted = int(share * size)
    count = made.num_frames_within(wanted)
    assert count == pytest.approx(share * len(made), abs=8)
    made.compact(count)
    assert 0.9 * wanted < sum(made.store.num_bytes().values()) <= wanted
    assert made.num_frames_within(size) == count  # all of them
    with pytest.raises(ConfigError, match="expected room for one photo at least, found 1,000 bytes"):
        made.num_frames_within(1000)


def test_a_compact_that_was_thought_out_for_an_older_map_is_not_done(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    slow = Map.open(tmp_path / "m")
    assert len(slow.frames) == 8
    made.remove(["walk/0001.png"])
    with pytest.raises(DatasetError, match="another process has changed it"):
        slow.compact(4)
    slow.compact(4)
    assert len(made) == 4


def test_moving_there_and_back_is_no_move(tmp_path: Path):
    made = made_map(tmp_path / "m", 5)
    before = frame_poses(made.frames)
    made.move(T_HERE_THERE)
    assert float((frame_poses(made.frames).t - before.t).abs().min()) > 1.0
    assert made.verify().is_whole
    made.move(T_HERE_THERE.inverse())
    assert_allclose(frame_poses(made.frames).matrix(), before.matrix(), atol=1e-12)


def test_a_map_that_is_moved_stays_where_it_is_on_earth(tmp_path: Path):
    made = made_map(tmp_path / "m", 5)
    T_enu_world = Similarity(Pose.from_axis_angle([0.0, 0.0, 0.7], [3.0, 4.0, 5.0]), 1.7)
    made.set_georeference(
        Georeference(latitude_deg=47.4, longitude_deg=8.5, altitude_m=400.0, T_enu_world=T_enu_world, residual_m=())
    )
    before = T_enu_world.apply(frame_poses(made.frames).t)
    made.move(T_HERE_THERE)
    after = made.settings.georeference
    assert after is not None
    assert_allclose(after.T_enu_world.apply(frame_poses(made.frames).t), before, atol=1e-9)


def test_a_similarity_is_its_matrix():
    points = torch.tensor(np.random.default_rng(0).normal(size=(4, 3)))
    M = T_HERE_THERE.matrix()
    assert_allclose(T_HERE_THERE.apply(points), (M[:3, :3] @ points.T).T + M[:3, 3], atol=1e-12)
    again = Similarity.from_matrix(M.tolist(), where="a test")
    assert again.scale == pytest.approx(2.0)
    assert_allclose(again.matrix(), M, atol=1e-12)
    for bad in (torch.diag(torch.tensor([1.0, 1.0, -1.0, 1.0])), torch.zeros(4, 4), torch.eye(3)):
        with pytest.raises(GeometryError, match="a test: expected"):
            Similarity.from_matrix(bad, where="a test")


def test_what_thinning_costs_is_tried_with_photos_of_neither_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 12)  # along a line, 10 cm apart
    frame_by_jpeg = {made.jpeg(frame): frame for frame in made}

    class NearestPose:
        """A localizer that answers with the nearest pose of the map."""

        def __init__(self, features: MapFeatures, network: object) -> None:
            self.T_world_cam = features.T_world_cam

        def localize(self, image: bytes, *, camera: object) -> Answer:
            apart = (self.T_world_cam.t - frame_by_jpeg[image].T_world_cam.t).norm(dim=1)
            return Answer(self.T_world_cam[int(apart.argmin())], True, 1.0, "")

    monkeypatch.setattr(thinning_cost, "Localizer", NearestPose)
    cost = thinning_cost.cost_of_thinning(made, 2, no_network(), num_tried=4)
    assert (cost.before.num_queries, cost.before.num_right) == (4, 4)
    assert cost.before.median_error_m == pytest.approx(0.1)
    assert cost.after.median_error_m > 0.15
    assert cost.after.num_right < 4
    assert len(made) == 12
    with pytest.raises(ConfigError, match="expected fewer photos"):
        thinning_cost.cost_of_thinning(made, 12, no_network())
