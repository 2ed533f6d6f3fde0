"""Our own rows: which cameras and references the Localizer is given, and that it does not cheat."""

import sys
from dataclasses import replace

import pytest
import torch
from numpy.testing import assert_array_equal
from torch.testing import assert_close

from evaluation.made_places import painted_place
from localization.small_networks import small_network
from relograph.evaluation.place import references_by_pose
from relograph.evaluation.place_localizer import REGRESSION, OurMap, OurWay, our_answers, used_references
from relograph.evaluation.place_run import PlaceConfig, compare_in_place, our_ways, with_what_is_installed
from relograph.evaluation.solver_pool import solver_pool
from relograph.geometry import Camera, Pose

NETWORK = small_network()
PLACE = painted_place()
SOLVER = OurWay("auto", "given")


@pytest.fixture(scope="module")
def our_map() -> OurMap:
    return OurMap.of(PLACE.map, NETWORK)


def test_regression_is_told_nothing_of_cameras(our_map: OurMap):
    """Else it could not be said that it needs no intrinsics: wrong ones change nothing."""
    wrong = (Camera.from_focal(320, 240, 90.0),)
    wrongly = replace(
        PLACE,
        map=replace(PLACE.map, cameras=wrong * len(PLACE.map)),
        queries=replace(PLACE.queries, cameras=wrong * len(PLACE.queries)),
    )
    told, lied_to = (our_answers(place, our_map, NETWORK, REGRESSION, num_references=3) for place in (PLACE, wrongly))
    for one, other in zip(told, lied_to, strict=True):
        assert_array_equal(one.T_regressed.t, other.T_regressed.t)
        assert one.T_solved is None


def test_the_solver_is_told_the_focal_length_or_has_to_find_it(our_map: OurMap):
    one = PLACE.with_queries([0])
    (given,) = our_answers(one, our_map, NETWORK, SOLVER, num_references=2)
    (searched,) = our_answers(one, our_map, NETWORK, OurWay("auto", "searched"), num_references=2)
    assert given.focal_px == pytest.approx(260.0)
    assert searched.focal_px != pytest.approx(260.0, rel=1e-6)


def test_answers_know_nothing_of_the_truth(our_map: OurMap):
    """Queries whose true poses are all wrong are answered the same."""
    elsewhere = Pose.from_axis_angle([[0.0, 1.0, 0.0]] * 2, [[50.0, 0.0, 0.0]] * 2)
    lost = replace(PLACE, queries=replace(PLACE.queries, T_world_cam=elsewhere))
    right, wrong = (our_answers(place, our_map, NETWORK, REGRESSION, num_references=3) for place in (PLACE, lost))
    for one, other in zip(right, wrong, strict=True):
        assert_array_equal(one.T_regressed.t, other.T_regressed.t)


def test_references_that_are_given_are_those_that_are_used(our_map: OurMap):
    nearest = references_by_pose(PLACE, 3, 1)
    answers = our_answers(PLACE, our_map, NETWORK, REGRESSION, num_references=3, references=nearest)
    assert_close(used_references(answers, 3), nearest)


def test_all_methods_of_a_comparison_have_the_references_of_our_retrieval(our_map: OurMap):
    config = PlaceConfig(num_references=3, peers=("sift",), peer_solvers=("poselib",))
    kept = []
    comparison = compare_in_place(PLACE, NETWORK, config, our_map=our_map, keep=kept.append)
    assert {method.name for method in kept} == {method.name for method in comparison.methods}
    retrieved = used_references(our_answers(PLACE, our_map, NETWORK, REGRESSION, num_references=3), 3)
    assert_close(comparison.references, retrieved)
    copied, nearest, sift, regression, solver = comparison.methods
    assert copied.predictions.top1 == sift.predictions.top1 == regression.predictions.top1
    assert [method.name for method in comparison.methods] == [
        "copy top-1",
        "copy nearest by true pose",
        "SIFT + PoseLib",
        "relograph, regression",
        "relograph, solver, f given",
    ]
    assert_close(copied.predictions.T_world_cam.t, PLACE.map.T_world_cam.t[retrieved[:, 0]])
    assert sift.as_row()["recall_5cm_5deg"] == 1.0
    assert solver.as_row()["seconds_per_map_image"] > 0
    assert len(nearest.map_seconds) == 0


def test_without_a_network_the_others_are_compared_on_the_nearest_by_pose():
    comparison = compare_in_place(PLACE, None, PlaceConfig(num_references=3, references_by="pose", stride=1))
    assert_close(comparison.references, references_by_pose(PLACE, 3, 1))
    assert len(comparison.methods) == 2


def test_where_no_focal_length_is_known_the_solver_searches():
    ways = our_ways(PLACE.with_unknown_focal(), PlaceConfig())
    assert [way.focal for way in ways] == ["none", "searched"]
    assert our_ways(PLACE, PlaceConfig(solver="regress")) == [REGRESSION]


def test_a_place_asked_for_more_references_than_it_has_photos_uses_all(our_map: OurMap):
    answers = our_answers(PLACE, our_map, NETWORK, REGRESSION, num_references=8)
    used = used_references(answers, 8)
    assert (used >= 0).sum(dim=1).tolist() == [6, 6]
    assert torch.equal(used[:, 6:], torch.full((2, 2), -1))


def test_without_poselib_the_rows_that_need_it_are_left_out_with_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "poselib", None)  # as on a machine that has none
    told: list[str] = []
    config = with_what_is_installed(PlaceConfig(peers=("sift",)), told.append)
    assert (config.solver, config.peers) == ("regress", ())
    assert len(told) == 1
    assert "left out: Solving for a pose needs the package poselib" in told[0]


def test_other_processes_solve_the_same_answers_in_the_same_order(our_map: OurMap):
    alone = our_answers(PLACE, our_map, NETWORK, SOLVER, num_references=2)
    with solver_pool(1) as pool:
        shared = our_answers(PLACE, our_map, NETWORK, SOLVER, num_references=2, pool=pool)
    assert [answer.confidence for answer in shared] == [answer.confidence for answer in alone]
    for one, other in zip(shared, alone, strict=True):
        assert_array_equal(one.T_best.t, other.T_best.t)
        assert one.focal_px == other.focal_px
