"""Rows of a comparison: what is scored, what is timed, what is only told."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation.made_places import answer, painted_place, place_on_a_line
from relograph.evaluation.metrics import score
from relograph.evaluation.place_answers import MethodAnswers, QueryAnswer, write_query_details
from relograph.evaluation.place_localizer import OurWay, our_row
from relograph.evaluation.place_methods import copy_first, copy_nearest, peer_answers

PLACE = place_on_a_line([0.0, 1.0], [0.1, 0.9])
REFERENCES = torch.tensor([[0, 1], [0, -1]])


def test_copying_gives_the_first_reference_and_nothing_where_there_is_none():
    row = copy_first(PLACE, REFERENCES).as_row()
    assert row["median_translation_error_m"] == pytest.approx((0.1 + 0.9) / 2)
    assert row["seconds_per_query"] is None
    none = copy_first(PLACE, torch.tensor([[0], [-1]]))
    assert none.predictions.localized.tolist() == [True, False]
    assert none.predictions.reason[1] == "no reference was found"


def test_copying_the_nearest_looks_at_true_poses():
    assert copy_nearest(PLACE).as_row()["median_translation_error_m"] == pytest.approx(0.1)


def test_times_and_shares_of_a_row_are_means_over_its_queries():
    answers = [
        QueryAnswer(PLACE.queries.T_world_cam[0], confidence=0.9, accepted=1, network_seconds=0.2, solver_seconds=0.1),
        QueryAnswer(PLACE.map.T_world_cam[0], confidence=0.8, accepted=1, network_seconds=0.4, solver_seconds=0.1),
    ]
    row = MethodAnswers.of_place("ours", PLACE, REFERENCES, answers, np.array([0.02, 0.04])).as_row()
    assert row["seconds_per_query"] == pytest.approx(0.4)
    assert row["solver_seconds_per_query"] == pytest.approx(0.1)
    assert row["seconds_per_map_image"] == pytest.approx(0.03)
    assert row["share_accepted"] == 1.0
    assert row["share_right_of_accepted"] == 0.5  # the second is 0.9 m off


def test_a_pose_that_is_refused_is_scored_all_the_same_and_counted_as_refused():
    answers = [answer(0.1, 0.9), answer(0.9, 0.2)]
    row = our_row(PLACE, OurWay("auto", "given"), answers, REFERENCES, np.array([0.1]))
    assert row.as_row()["recall_5cm_5deg"] == 1.0
    assert row.as_row()["share_accepted"] == 0.5
    assert row.as_row()["seconds_per_query"] == pytest.approx(0.36)


def test_the_solver_alone_does_not_answer_with_what_the_network_says():
    answers = [answer(0.1, 0.9, solved=False), answer(0.9, 0.9)]
    alone = our_row(PLACE, OurWay("geometric", "given"), answers, REFERENCES, np.array([0.1]))
    both = our_row(PLACE, OurWay("auto", "given"), answers, REFERENCES, np.array([0.1]))
    assert alone.predictions.localized.tolist() == [False, True]
    assert both.predictions.localized.tolist() == [True, True]


def test_answers_of_several_places_become_those_of_one():
    parts = [copy_first(place_on_a_line([0.0], [0.5], name), torch.tensor([[0]])) for name in ("home-00", "home-01")]
    whole = MethodAnswers.cat(parts, "test rooms")
    assert whole.predictions.frame == ("home-00/query-0", "home-01/query-0")
    (scores,) = score(whole.predictions)
    assert (scores.scene, scores.num_queries) == ("test rooms", 2)


def test_details_leave_out_what_a_method_does_not_know(tmp_path: Path):
    way = OurWay("auto", "searched")
    ours = our_row(PLACE, way, [answer(0.1, 0.9), answer(None, 0.1)], REFERENCES, np.array([0.1]))
    write_query_details(tmp_path / "queries.csv", [copy_first(PLACE, REFERENCES), ours])
    copied, _, sure, _ = csv.DictReader((tmp_path / "queries.csv").read_text().splitlines())
    assert (copied["method"], copied["confidence"], copied["solver_seconds"]) == ("copy top-1", "", "")
    assert (sure["method"], sure["confidence"], sure["frame"]) == ("relograph, solver, f searched", "0.9", "query-0")


def test_sift_is_solved_twice_from_the_same_matches():
    place = painted_place()
    references = torch.tensor([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, -1]])
    plain, ours = peer_answers(place, references, "sift", ("poselib", "relograph"))
    assert (plain.name, ours.name) == ("SIFT + PoseLib", "SIFT + our solver")
    for row in (plain.as_row(), ours.as_row()):
        assert row["median_translation_error_m"] < 0.01
        assert row["recall_5cm_5deg"] == 1.0
    assert (plain.network_seconds == ours.network_seconds).all()
    assert len(plain.map_seconds) == 6
