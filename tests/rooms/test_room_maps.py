"""Homes that nobody trains on: maps with one lens, queries near them with lenses of their own, the same every time."""

from dataclasses import replace

import pytest
import torch
from numpy.testing import assert_array_equal
from tiny_rooms import tiny_atlas

from relograph.errors import ConfigError
from relograph.geometry import rotation_error_deg
from relograph.rooms.room_maps import FIRST_SEED, RoomMap, RoomMapConfig, room_maps
from relograph.rooms.stream import StreamConfig

SMALL = RoomMapConfig(num_homes=1, map_views=10, query_views=16, image_height=8, image_width=16)


@pytest.fixture(scope="module")
def home() -> RoomMap:
    (home,) = room_maps("test", SMALL, atlas=tiny_atlas())
    return home


def test_a_map_has_one_lens_and_every_query_its_own(home: RoomMap) -> None:
    assert home.is_query.sum() == 16
    assert len(home.K[~home.is_query].unique(dim=0)) == 1
    assert len(home.K[home.is_query].unique(dim=0)) == 16
    assert home.images.shape == (26, 8, 16, 3)


def test_copying_the_nearest_pose_is_not_good_enough(home: RoomMap) -> None:
    """In the median over many homes it errs by 0.2 m and 8 degrees; one home may be easier or harder."""
    query, mapped = home.T_world_cam[home.is_query], home.T_world_cam[~home.is_query]
    distance = (query.t[:, None] - mapped.t).norm(dim=-1)
    angle = rotation_error_deg(query.R[:, None].expand(-1, 10, -1, -1), mapped.R.expand(16, -1, -1, -1))
    nearest = (distance / 0.3 + angle / 15).argmin(dim=1)
    rows = torch.arange(16)
    assert 0.12 < distance[rows, nearest].median() < 0.5
    assert 4 < angle[rows, nearest].median() < 20


def test_the_same_numbers_give_the_same_home_and_parts_never_meet(home: RoomMap) -> None:
    (again,) = room_maps("test", SMALL, atlas=tiny_atlas())
    (other,) = room_maps("validation", SMALL, atlas=tiny_atlas())
    assert_array_equal(again.images, home.images)
    assert_array_equal(again.T_world_cam.t, home.T_world_cam.t)
    assert not torch.equal(other.T_world_cam.t, home.T_world_cam.t)


def test_every_query_sees_something_of_the_map_and_a_view_sees_itself(home: RoomMap) -> None:
    assert home.overlap.shape == (26, 10)
    assert (home.overlap[:10].diagonal() > 0.95).all()
    assert home.overlap[home.is_query].amax(dim=1).median() > 0.3


def test_unseen_views_share_next_to_nothing_with_the_map_and_leave_the_rest_as_it_was(home: RoomMap) -> None:
    (with_unseen,) = room_maps("test", replace(SMALL, unseen_views=5), atlas=tiny_atlas())
    assert with_unseen.is_unseen.sum() >= 1
    assert with_unseen.overlap[with_unseen.is_unseen].max() < 0.02
    assert not (with_unseen.is_unseen & with_unseen.is_query).any()
    assert_array_equal(with_unseen.images[~with_unseen.is_unseen], home.images)


def test_seeds_of_the_parts_are_seeds_of_a_stream() -> None:
    for first in FIRST_SEED.values():
        StreamConfig(seed=first)


def test_a_part_without_views_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        RoomMapConfig(map_views=0)
