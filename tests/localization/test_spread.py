"""References that are chosen for where they stand as well as for what they show."""

import numpy as np
import pytest
import torch

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.localization.spread import choose_spread_references


def candidates(centers, yaw_rad=None) -> Pose:
    centers = torch.as_tensor(np.asarray(centers), dtype=torch.float64)
    axis_angle = torch.zeros_like(centers)
    if yaw_rad is not None:
        axis_angle[:, 1] = torch.as_tensor(yaw_rad)
    return Pose.from_axis_angle(axis_angle, centers)


def video_and_others() -> tuple[Pose, torch.Tensor]:
    """Twenty frames of a video within four centimetres, most like the query, and ten around, a little less."""
    rng = np.random.default_rng(0)
    centers = np.concatenate([rng.normal(0, 0.02, (20, 3)), rng.normal(0, 0.6, (10, 3))])
    similarity = np.concatenate([np.linspace(0.90, 0.88, 20), np.linspace(0.85, 0.78, 10)])
    return candidates(centers), torch.from_numpy(similarity)


def test_the_most_similar_comes_first_and_none_comes_twice():
    T_world_ref, similarity = video_and_others()
    chosen = choose_spread_references(T_world_ref, similarity, 7)
    assert chosen[0] == similarity.argmax()
    assert len(set(chosen.tolist())) == 7


def test_seven_of_a_bunch_are_not_chosen_where_others_are_nearly_as_similar():
    T_world_ref, similarity = video_and_others()
    by_similarity = similarity.argsort(descending=True)[:7]
    assert (by_similarity < 20).all()
    chosen = choose_spread_references(T_world_ref, similarity, 7)
    assert (chosen >= 20).sum() >= 3

    def spread_m(rows: torch.Tensor) -> float:
        return float(T_world_ref.t[rows].std(dim=0).norm())

    assert spread_m(chosen) > 5 * spread_m(by_similarity)


def test_spread_does_not_buy_what_is_not_similar():
    centers = [[0.01 * i, 0.0, 0.0] for i in range(6)] + [[3.0, 0.0, 0.0]]
    similarity = torch.tensor([0.90, 0.89, 0.88, 0.87, 0.86, 0.85, 0.10])
    chosen = choose_spread_references(candidates(centers), similarity, 4)
    assert 6 not in chosen


def test_without_weight_for_spread_only_similarity_counts():
    T_world_ref, similarity = video_and_others()
    chosen = choose_spread_references(T_world_ref, similarity, 7, spread_weight=0.0)
    assert chosen.tolist() == similarity.argsort(descending=True)[:7].tolist()


def test_of_two_at_the_same_place_the_one_that_looks_elsewhere_is_preferred():
    T_world_ref = candidates([[0.0, 0.0, 0.0]] * 3 + [[2.0, 0.0, 0.0]], yaw_rad=[0.0, 0.02, 1.2, 0.0])
    similarity = torch.tensor([0.90, 0.85, 0.84, 0.10])
    assert choose_spread_references(T_world_ref, similarity, 2).tolist() == [0, 2]


def test_the_scale_is_that_of_the_candidates():
    T_world_ref, similarity = video_and_others()
    street = Pose(T_world_ref.R, 50 * T_world_ref.t)
    in_room, in_street = (choose_spread_references(T, similarity, 7).tolist() for T in (T_world_ref, street))
    assert in_room == in_street
    # With a room's scale given, all frames of the street's video stand apart.
    assert choose_spread_references(street, similarity, 7, near_m=0.02).tolist() == list(range(7))


def test_candidates_all_at_one_point_are_chosen_by_similarity():
    similarity = torch.tensor([0.1, 0.4, 0.3, 0.2])
    chosen = choose_spread_references(candidates(np.zeros((4, 3))), similarity, 3)
    assert chosen.tolist() == [1, 2, 3]


def test_fewer_candidates_than_asked_for_are_all_chosen():
    chosen = choose_spread_references(candidates(np.eye(3)), torch.tensor([0.5, 0.7, 0.6]), 7)
    assert sorted(chosen.tolist()) == [0, 1, 2]
    assert choose_spread_references(candidates(np.zeros((0, 3))), torch.zeros(0), 7).tolist() == []
    assert choose_spread_references(candidates(np.eye(3)), torch.ones(3), 0).tolist() == []


def test_candidates_that_are_not_finite_are_never_chosen():
    centers = np.eye(4)[:, :3].copy()
    centers[2] = np.nan
    similarity = torch.tensor([torch.nan, 0.5, 0.9, 0.4])
    assert choose_spread_references(candidates(centers), similarity, 4).tolist() == [1, 3]


@pytest.mark.parametrize("options", [{"spread_weight": -1.0}, {"near_m": 0.0}])
def test_options_that_make_no_sense_are_errors(options):
    with pytest.raises(ConfigError, match=r"spread_weight of 0 or more and a near_m above 0"):
        choose_spread_references(candidates(np.eye(3)), torch.ones(3), 2, **options)
