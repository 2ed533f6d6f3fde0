"""The Localizer on maps that are kept on disk, and with a prior that is right or wrong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_networks import CAMERA, noise_photo, posed_photos, small_network

from relograph.errors import CheckpointError, ConfigError, DatasetError
from relograph.geometry import Pose
from relograph.localization import localizer as localizer_module
from relograph.localization.localizer import Localizer
from relograph.localization.map_features import MapFeatures, StoredFeatures
from relograph.localization.map_view import MapView, StoredMap
from relograph.localization.photos import PhotoInMemory
from relograph.localization.prior import Prior
from relograph.maps import Map, finding
from relograph.maps import features as map_features_on_disk
from relograph.maps.asking import open_map_to_ask
from relograph.maps.features import RecentFeatures
from relograph.maps.joining import join_maps
from relograph.maps.records import LEVELS
from relograph.maps.shards import Shard
from relograph.models import shipped
from relograph.models.match_gnn import ImageFeatures
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn, save_match_gnn
from relograph.retrieval import stored_index


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    return small_network()


@pytest.fixture(scope="module")
def on_disk(network: LoadedMatchGNN, tmp_path_factory: pytest.TempPathFactory) -> Map:
    return Map.create(tmp_path_factory.mktemp("maps") / "a.map", posed_photos(6), network=network)


# Maps on disk


def test_a_map_and_features_in_memory_are_what_a_localizer_needs(tmp_path: Path, network: LoadedMatchGNN):
    # All levels are kept: those that are computed again, from JPEGs, differ.
    on_disk = Map.create(tmp_path / "whole.map", posed_photos(6), network=network, levels=LEVELS)
    in_memory = MapFeatures.of(posed_photos(6), network)
    assert isinstance(in_memory, MapView)
    assert isinstance(on_disk, StoredMap)
    assert isinstance(on_disk.features, MapView)
    by_map, by_features = (
        Localizer(place, network, solver="regress").localize(noise_photo(3), camera=CAMERA)
        for place in (on_disk, in_memory)
    )
    assert by_map.references[0].name == by_features.references[0].name == "photo-3.png"
    similarity = [{used.name: used.similarity for used in answer.references} for answer in (by_map, by_features)]
    assert similarity[0] == pytest.approx(similarity[1], abs=1e-3)
    # Not their poses: an untrained network settles elsewhere for the last bit of half precision.
    everyone, cpu = list(range(6)), torch.device("cpu")
    ((_, _, of_map),), ((_, _, of_memory),) = (view.take(everyone, cpu) for view in (on_disk.features, in_memory))
    for level in LEVELS:
        assert_allclose(getattr(of_map, level).float(), getattr(of_memory, level).float(), atol=1e-3)


def test_a_map_that_was_opened_without_a_network_answers_with_the_localizers(on_disk: Map, network: LoadedMatchGNN):
    opened = Map.open(on_disk.store.folder)  # keeps the coarse features only
    answer = Localizer(opened, network, solver="regress").localize(noise_photo(3), camera=CAMERA)
    assert answer.references[0].name == "photo-3.png"
    with pytest.raises(CheckpointError, match="expected"):
        Localizer(opened, small_network(sha256="b" * 64))


def test_maps_that_were_opened_without_a_network_are_joined_by_the_given_one(on_disk: Map, network: LoadedMatchGNN):
    here, there = Map.open(on_disk.store.folder), Map.open(on_disk.store.folder)
    with pytest.raises(DatasetError, match="of 6 are localized there and that they agree on no motion"):
        join_maps(here, there, network)  # which is untrained


def test_a_large_map_without_faiss_says_that_all_photos_are_compared(
    on_disk: Map, network: LoadedMatchGNN, monkeypatch: pytest.MonkeyPatch
):
    where = str(on_disk.store.folder)
    about_faiss = "A query is compared with all of 6 photos, as FAISS is missing: pip install 'relograph[index]'."
    assert about_faiss not in open_map_to_ask(where, None, [], network).warnings
    monkeypatch.setattr(stored_index, "EXACT_UP_TO", 5)
    monkeypatch.setattr(finding, "has_faiss", lambda: False)
    assert about_faiss in open_map_to_ask(where, None, [], network).warnings


def test_only_the_references_are_read_from_the_disk(on_disk: Map, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    stored = Shard.stored

    def noted(shard: Shard, rows: Sequence[int]) -> StoredFeatures:
        read.extend(rows)
        return stored(shard, rows)

    monkeypatch.setattr(Shard, "stored", noted)
    answer = Localizer(on_disk, num_references=2, solver="regress").localize(noise_photo(3), camera=CAMERA)
    assert sorted(read) == sorted(used.row for used in answer.references)
    assert len(read) == 2


def computed_photos(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with how many photos features are computed of, each time."""
    counts: list[int] = []
    complete_levels = map_features_on_disk.complete_levels

    def noted(model: object, images: torch.Tensor, *rest: object) -> ImageFeatures:
        counts.append(len(images))
        return complete_levels(model, images, *rest)

    monkeypatch.setattr(map_features_on_disk, "complete_levels", noted)
    return counts


def test_features_of_the_last_querys_references_are_not_computed_again(on_disk: Map, monkeypatch: pytest.MonkeyPatch):
    view = replace(on_disk.features, recent=RecentFeatures())
    cpu, counts = torch.device("cpu"), computed_photos(monkeypatch)
    ((_, _, first),) = view.take([0, 1, 2], cpu)
    ((_, which, second),) = view.take([2, 3, 0], cpu)
    assert counts == [3, 1]
    assert which == [0, 1, 2]
    for level in LEVELS:
        assert_array_equal(getattr(second, level)[[0, 2]], getattr(first, level)[[2, 0]])


def test_few_features_stay_at_hand(on_disk: Map, monkeypatch: pytest.MonkeyPatch):
    view = replace(on_disk.features, recent=RecentFeatures(2))
    cpu, counts = torch.device("cpu"), computed_photos(monkeypatch)
    for row in (0, 1, 0, 2, 0, 1):  # 1 goes when 2 comes, as 0 was asked for since
        list(view.take([row], cpu))
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize("num_levels", [1, 2, 3])
def test_a_reference_that_is_given_twice_is_compared_twice(num_levels: int, network: LoadedMatchGNN, tmp_path: Path):
    some = Map.create(tmp_path / "a.map", posed_photos(2), network=network, levels=LEVELS[:num_levels])
    localizer = Localizer(some, solver="regress")
    for _ in range(2):  # then with features at hand
        answer = localizer.localize(noise_photo(0), camera=CAMERA, references=[1, 0, 1])
        assert [used.row for used in answer.references] == [1, 0, 1]


def test_photos_that_are_added_to_the_map_are_found_at_once(network: LoadedMatchGNN, tmp_path: Path):
    photos = posed_photos(3)
    growing = Map.create(tmp_path / "a.map", photos[:2], network=network)
    localizer = Localizer(growing, solver="regress")
    assert len(localizer.localize(photos[2].pixels).references) == 2
    growing.add(photos[2:])
    assert localizer.localize(photos[2].pixels).references[0].name == "photo-2.png"


def test_the_network_is_the_maps_own_or_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_match_gnn(tmp_path / "weights", small_network().model, {})
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "weights")
    Map.create(tmp_path / "a.map", posed_photos(2), levels=[])
    opened = Map.open(tmp_path / "a.map")  # which keeps too little to do without the network
    assert len(opened.features) == 2
    answer = Localizer(opened, solver="regress").localize(noise_photo(1))
    assert answer.references[0].name == "photo-1.png"
    other = small_network(seed=1, sha256="b" * 64)
    with pytest.raises(CheckpointError, match="expected the weights that the map was made with"):
        Localizer(opened, other)
    assert Localizer(MapFeatures.of(posed_photos(1), load_match_gnn())).network.sha256 == opened.settings.network_sha256


# Many photos at once


def test_a_batch_is_answered_as_its_photos_one_by_one(on_disk: Map, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(localizer_module, "PHOTOS_AT_ONCE", 3)
    localizer = Localizer(on_disk, num_references=3, solver="regress")
    (tmp_path / "no.jpg").write_bytes(b"no photo")
    images = [noise_photo(3), noise_photo(8, 160, 120), tmp_path / "no.jpg", noise_photo(1)]
    cameras = [CAMERA, None, None, None]
    together = localizer.localize_batch(images, cameras=cameras)
    alone = [localizer.localize(image, camera=camera) for image, camera in zip(images, cameras, strict=True)]
    assert [answer.focal_px for answer in together] == [answer.focal_px for answer in alone]
    assert "expected a photo as JPEG" in together[2].reason
    for one, other in zip(together, alone, strict=True):
        assert [used.row for used in one.references] == [used.row for used in other.references]
        if one.T_regressed is not None:
            assert_allclose(one.T_regressed.t, other.T_regressed.t, atol=1e-3)
            assert set(one.seconds) == {"decode", "encode", "retrieve", "match", "solve"}
    with pytest.raises(ConfigError, match="a camera for each of 4 photos, got 1"):
        localizer.localize_batch(images, cameras=[CAMERA])
    assert localizer.localize_batch([]) == []


# With a prior


@pytest.fixture(scope="module")
def two_rooms(network: LoadedMatchGNN) -> Localizer:
    """Eight photos here, numbers 0 to 7, and eight in a room that is 50 m away."""
    here, there = (
        Pose.from_axis_angle(np.zeros((8, 3)), [[x + 0.3 * i, 0.0, 0.0] for i in range(8)]) for x in (0.0, 50.0)
    )
    photos = [PhotoInMemory(f"{i}.png", noise_photo(i), pose, CAMERA) for i, pose in enumerate([*here, *there])]
    return Localizer(MapFeatures.of(photos, network), network, num_references=6, solver="regress")


def prior_at(x: float, looks: bool = True) -> Prior:
    return Prior(Pose.from_axis_angle([0.0, 0.0, 0.0], [x, 0.0, 0.0]), looks=looks)


@pytest.mark.parametrize("looks", [True, False])
def test_half_of_the_references_come_from_near_the_prior(two_rooms: Localizer, looks: bool):
    query = noise_photo(3)
    without, there, here = (
        [used.row for used in two_rooms.localize(query, prior=prior).references]
        for prior in (None, prior_at(51.0, looks), prior_at(1.0, looks))
    )
    for rows in (there, here):
        assert rows[:3] == without[:3]  # whatever the prior says, those that look like it most
        assert len(set(rows)) == 6
    assert all(row >= 8 for row in there[3:])
    assert all(row < 8 for row in here[3:])


def test_a_bare_pose_is_a_prior(two_rooms: Localizer):
    query, there = noise_photo(3), prior_at(51.0)
    by_prior = [used.row for used in two_rooms.localize(query, prior=there).references]
    assert any(row >= 8 for row in by_prior)
    assert [used.row for used in two_rooms.localize(query, prior=there.T_world_cam).references] == by_prior
    (answer,) = two_rooms.localize_batch([query], prior=there.T_world_cam)
    assert [used.row for used in answer.references] == by_prior


def test_a_wrong_prior_leaves_the_photo_that_is_the_query_itself(two_rooms: Localizer):
    answer = two_rooms.localize(noise_photo(3), prior=prior_at(51.0))
    assert answer.references[0].row == 3
    assert answer.references[0].similarity == pytest.approx(1.0, abs=1e-3)


def test_far_from_the_map_a_prior_changes_nothing(two_rooms: Localizer):
    query = noise_photo(5)
    without, far = (
        [used.row for used in two_rooms.localize(query, prior=prior).references] for prior in (None, prior_at(-500.0))
    )
    assert far == without


def test_a_single_reference_is_the_one_that_looks_like_the_query(two_rooms: Localizer, network: LoadedMatchGNN):
    single = Localizer(two_rooms.map, network, num_references=1, solver="regress")
    assert [used.row for used in single.localize(noise_photo(3), prior=prior_at(51.0)).references] == [3]
