"""Features of a map come back as they were computed, to the precision that they are kept in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_networks import CAMERA, noise_photo, posed_photos, small_network

from relograph.errors import CheckpointError, DatasetError
from relograph.geometry import Camera, Pose
from relograph.localization.focal import UnknownFocal
from relograph.localization.map_features import FILE, MapFeatures
from relograph.localization.photos import PhotoInMemory, WorkingSize
from relograph.models.match_gnn import ImageFeatures, MatchConfig
from relograph.models.shipped import LoadedMatchGNN

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    return small_network()


@pytest.fixture(scope="module")
def mixed(network: LoadedMatchGNN) -> tuple[list[PhotoInMemory], MapFeatures]:
    """Wide and upright photos in turn, more of each than are computed at once, with all kinds of cameras."""
    photos = posed_photos(20)
    for i in range(0, 20, 2):
        photos[i] = PhotoInMemory(
            f"upright-{i}.png", noise_photo(i, 160, 120), photos[i].T_world_cam, UnknownFocal(120, 160, 4)
        )
    photos[3] = PhotoInMemory("nothing-known.png", photos[3].pixels, photos[3].T_world_cam)
    return photos, MapFeatures.of(photos, network)


@torch.no_grad()
def test_every_photo_has_its_own_features(network: LoadedMatchGNN, mixed: tuple[list[PhotoInMemory], MapFeatures]):
    photos, features = mixed
    rows = [5, 2, 19, 18]
    found = {}
    for _, which, some in features.take(rows, CPU):
        found |= {rows[i]: some[k : k + 1] for k, i in enumerate(which)}
    for row in rows:
        pixels = WorkingSize.of(*photos[row].pixels.shape[1::-1]).pixels(photos[row].pixels)
        expected = network.model.encode(torch.from_numpy(pixels)[None])
        for name in ("context", "coarse", "fine"):
            one = getattr(expected, name)
            assert_allclose(getattr(found[row], name), one, atol=1e-3 * float(one.abs().max()), err_msg=name)
        assert_allclose(features.descriptors[row], network.model.descriptor(expected.context)[0], atol=1e-5)
        assert_array_equal(features.T_world_cam.t[row], photos[row].T_world_cam.t)


def test_photos_of_one_size_come_together(mixed: tuple[list[PhotoInMemory], MapFeatures]):
    _, features = mixed
    taken = {size_hw: which for size_hw, which, _ in features.take([4, 1, 2, 3], CPU)}
    assert taken == {(320, 240): [0, 2], (240, 320): [1, 3]}


@torch.no_grad()
def test_fine_features_are_matched_as_they_are_kept(network: LoadedMatchGNN):
    """To widen all of them for the few that a query looks at would take longer than to look."""
    ((_, _, kept),) = MapFeatures.of(posed_photos(3), network).take([0, 1, 2], CPU)
    assert [kept.context.dtype, kept.coarse.dtype, kept.fine.dtype] == [torch.float32, torch.float32, torch.float16]
    widened = ImageFeatures(kept.context, kept.coarse, kept.fine.float())
    found, expected = (network.model.matcher(widened[:1], some, 3, keep_log_coarse=False) for some in (kept, widened))
    assert_array_equal(found.xy, expected.xy)


@torch.no_grad()
def test_eight_bits_lose_less_than_a_hundredth(network: LoadedMatchGNN):
    photos = posed_photos(3)
    exact, rough = MapFeatures.of(photos, network), MapFeatures.of(photos, network, precision="int8")
    (_, _, expected), (_, _, found) = (next(iter(some.take([0, 1, 2], CPU))) for some in (exact, rough))
    for name in ("context", "coarse", "fine"):
        a, b = getattr(expected, name), getattr(found, name)
        assert (a - b).abs().amax(dim=(2, 3)).sub(0.0051 * a.abs().amax(dim=(2, 3))).max() < 1e-3, name
        assert not torch.equal(a, b)
    assert rough.bytes_per_photo < 0.55 * exact.bytes_per_photo


def test_a_photo_takes_the_megabytes_that_the_documentation_says():
    size = MatchConfig()
    numbers = size.context_channels * 15 * 20 + size.matched_channels * 30 * 40 + size.fine_channels * 120 * 160
    assert 2 * numbers == pytest.approx(1.6e6, rel=0.05)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_saved_features_come_back_bit_by_bit(tmp_path: Path, network: LoadedMatchGNN, precision: str):
    photos = posed_photos(3)
    lens = Camera(160, 120, 130, 131, 80, 61, (0.1, 0.0, 0.0, 0.01), "opencv")
    photos[1] = PhotoInMemory("b.png", noise_photo(7, 160, 120), photos[1].T_world_cam, UnknownFocal(120, 160, 2))
    photos[2] = PhotoInMemory("c.png", photos[2].pixels, photos[2].T_world_cam, lens)
    features = MapFeatures.of(photos, network, precision=precision)
    features.save(tmp_path / "map")
    loaded = MapFeatures.load(tmp_path / "map")
    assert (loaded.names, loaded.cameras, loaded.sizes) == (features.names, features.cameras, features.sizes)
    assert (loaded.network_sha256, loaded.precision) == (features.network_sha256, precision)
    assert_array_equal(loaded.T_world_cam.R, features.T_world_cam.R)
    assert_array_equal(loaded.descriptors, features.descriptors)
    for (_, which, some), (_, same, others) in zip(
        features.take([2, 1, 0], CPU), loaded.take([2, 1, 0], CPU), strict=True
    ):
        assert which == same
        assert torch.equal(some.fine, others.fine)
        assert torch.equal(some.context, others.context)


def test_saving_again_replaces_what_was_there_and_leaves_nothing_else(tmp_path: Path, network: LoadedMatchGNN):
    MapFeatures.of(posed_photos(3), network).save(tmp_path)
    MapFeatures.of(posed_photos(1), network).save(tmp_path)
    assert len(MapFeatures.load(tmp_path)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_map_that_is_not_there_or_damaged_is_one_clear_line(tmp_path: Path, network: LoadedMatchGNN):
    with pytest.raises(DatasetError, match="expected map features, found no"):
        MapFeatures.load(tmp_path)
    MapFeatures.of(posed_photos(1), network).save(tmp_path)
    data = (tmp_path / FILE).read_bytes()
    for damaged in (data[:-10], data[:100], b"", b"not a map"):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(DatasetError, match="Make the map again"):
            MapFeatures.load(tmp_path)


def test_features_of_other_weights_are_refused(network: LoadedMatchGNN):
    features = MapFeatures.of(posed_photos(1), network)
    features.require(network)
    with pytest.raises(CheckpointError, match="found those of others"):
        features.require(small_network(sha256="b" * 64))


def test_a_map_has_photos(network: LoadedMatchGNN):
    with pytest.raises(DatasetError, match="at least one photo"):
        MapFeatures.of([], network)


def test_progress_counts_every_photo(network: LoadedMatchGNN):
    class Counting:
        total = done = 0

        def task(self, description: str, total: int):
            from contextlib import contextmanager

            @contextmanager
            def counting():
                self.total = total
                yield self.advance

            return counting()

        def advance(self, steps: int) -> None:
            self.done += steps

    counting = Counting()
    MapFeatures.of(posed_photos(11), network, progress=counting)
    assert counting.total == counting.done == 11


def test_poses_far_away_are_kept_exactly(network: LoadedMatchGNN):
    far = Pose.from_axis_angle([0.0, 0.0, 0.1], np.array([500_000.125, 4_000_000.0625, 12.0]))
    features = MapFeatures.of([PhotoInMemory("a.png", noise_photo(0), far, CAMERA)], network)
    assert_array_equal(features.T_world_cam.t[0], far.t)
