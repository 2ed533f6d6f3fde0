"""Calibration from answers of which it is known whether they are right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from evaluation.made_places import answer, photos, place_on_a_line
from relograph.errors import ConfigError
from relograph.evaluation.calibrating import (
    SIGNS_BY_ROAD,
    JudgedAnswers,
    Road,
    fit_calibration,
    rejudged,
    reliability_of,
)
from relograph.evaluation.place_localizer import OurWay, our_row
from relograph.evaluation.place_methods import copy_first
from relograph.evaluation.place_run import Comparison
from relograph.evaluation.reliability import reliability_figure, reliability_row
from relograph.localization.confidence import SOLVED_SIGNS, reliability

SOLVER_BY_ROAD = {"solved": "auto", "unsolved": "auto", "regressed": "regress"}


def judged(
    seed: int, road: Road, *, bias: float = 0.0, focal_known: bool = True, count: int = 300, num_strangers: int = 100
) -> JudgedAnswers:
    """Answers whose log odds of being right are `bias` plus thrice their strength, and strangers, who show little."""
    rng = np.random.default_rng(seed)
    strength = rng.normal(1.0, 1.0, count)
    is_right = rng.random(count) < 1 / (1 + np.exp(-bias - 3 * strength))

    def made(x_m: float, strength: float):
        signs = {name: float(strength + 0.1 * rng.normal()) for name in SIGNS_BY_ROAD[road]}
        signs["focal_known"] = float(focal_known)
        return answer(x_m, 0.5, solved=road == "solved", signs=signs)

    solver = SOLVER_BY_ROAD[road]
    answers = [made(0.0 if ok else 2.0, s) for s, ok in zip(strength, is_right, strict=True)]
    own = JudgedAnswers.of_queries(answers, solver, photos("query", [0.0] * count).T_world_cam)
    return own + JudgedAnswers.of_strangers([made(1.0, -2.0) for _ in range(num_strangers)], solver)


ALL = (judged(0, "solved"), judged(1, "unsolved", bias=-3.0), judged(2, "regressed"))


@pytest.fixture(scope="module")
def calibration():
    return fit_calibration(ALL, "a" * 64)


@pytest.mark.parametrize(("road", "bias"), [("solved", 0.0), ("unsolved", -3.0), ("regressed", 0.0)])
def test_a_calibration_keeps_its_promise_on_answers_it_has_not_seen(calibration, road, bias):
    found = reliability_of(judged(7, road, bias=bias), calibration)
    assert found.expected_calibration_error < 0.05
    assert int(found.num_answers.sum()) == 400


def test_answers_after_a_failed_solver_are_not_judged_by_those_to_all_queries(calibration):
    """Where matches agree on no pose the network is wrong more often, with the same signs."""
    after_failure = judged(7, "unsolved", bias=-3.0)
    as_before = replace(calibration, unsolved=calibration.regressed)
    assert reliability_of(after_failure, as_before).expected_calibration_error > 0.15
    assert reliability_of(after_failure, calibration).expected_calibration_error < 0.05


def test_solved_answers_keep_their_promise_with_focal_lengths_given_and_searched():
    """Fitted to focal lengths that are given alone, they promised too much where they were searched."""
    others = (judged(1, "unsolved", bias=-3.0), judged(2, "regressed"))
    given, searched = judged(0, "solved"), judged(3, "solved", bias=-3.0, focal_known=False)
    as_before, both = (fit_calibration((*others, *solved), "a" * 64) for solved in ((given,), (given, searched)))
    unseen = judged(8, "solved", bias=-3.0, focal_known=False)
    assert reliability_of(unseen, as_before).expected_calibration_error > 0.15
    assert reliability_of(unseen, both).expected_calibration_error < 0.05
    assert reliability_of(judged(7, "solved"), both).expected_calibration_error < 0.05


@pytest.mark.parametrize(("num_right", "chance"), [(0, 1 / 43), (9, 10 / 43)])
def test_with_few_right_answers_after_a_failed_solver_all_are_as_sure_as_their_share(num_right, chance):
    truth = photos("query", [0.0] * 40).T_world_cam
    failed = [answer(0.0 if row < num_right else 2.0, 0.5, solved=False, signs={}) for row in range(40)]
    few = JudgedAnswers.of_queries(failed, "auto", truth)
    calibration = fit_calibration([judged(0, "solved"), judged(2, "regressed"), few], "a" * 64)
    judged_again = rejudged(failed[0], "auto", calibration)
    assert judged_again.confidence == pytest.approx(chance)
    assert not judged_again.localized


def test_more_strangers_keep_more_out_but_do_not_make_right_answers_less_sure():
    """The number of strangers that are looked for is ours to choose; it says nothing about a user's photos."""
    few, many = (
        fit_calibration([judged(0, "solved", num_strangers=count), judged(2, "regressed")], "a" * 64)
        for count in (300, 3000)
    )
    middling = answer(0.0, 0.5, signs=dict.fromkeys(SOLVED_SIGNS, 0.5))
    sure, also_sure = (rejudged(middling, "auto", calibration).confidence for calibration in (few, many))
    assert also_sure == pytest.approx(sure, abs=0.02)


def test_where_the_solver_never_failed_the_network_is_not_believed_after_its_first_failure():
    calibration = fit_calibration([judged(0, "solved"), judged(2, "regressed")], "a" * 64)
    assert not rejudged(answer(0.0, 0.5, solved=False, signs={}), "auto", calibration).localized


def test_strangers_are_as_many_as_queries_before_the_solver_fails_on_more_of_them():
    """Of 320 own queries it fails on 20, of as many strangers on all: among its failures, few are in the map."""
    failed = [answer(0.0 if row < 10 else 2.0, 0.5, solved=False, signs={}) for row in range(20)]
    of_way = judged(0, "solved", num_strangers=0)
    of_way += JudgedAnswers.of_queries(failed, "auto", photos("query", [0.0] * 20).T_world_cam)
    of_way += JudgedAnswers.of_strangers([answer(1.0, 0.5, solved=False, signs={}) for _ in range(3200)], "auto")
    calibration = fit_calibration([of_way, judged(2, "regressed")], "a" * 64)
    assert rejudged(failed[0], "auto", calibration).confidence == pytest.approx(11 / 343)


def test_what_the_network_says_after_a_failed_solver_is_not_accepted_when_it_is_more_likely_wrong():
    calibration = fit_calibration((*ALL[:2], judged(2, "regressed", bias=-3.0)), "a" * 64)
    assert calibration.unsolved.threshold >= 0.5
    assert calibration.regressed.threshold < 0.5  # or many right answers would not pass


def without_similarity(seed: int, road: Road) -> JudgedAnswers:
    """Answers whose similarity says nothing, as in photos that are turned."""
    of_road, rng = judged(seed, road), np.random.default_rng(seed)
    told = [{**said.signs, "similarity": float(rng.normal())} for said in of_road.answers]
    answers = tuple(replace(said, signs=signs) for said, signs in zip(of_road.answers, told, strict=True))
    return replace(of_road, answers=answers)


def test_a_sign_that_is_none_in_other_conditions_loses_its_weight():
    others = [without_similarity(10 + number, road) for number, road in enumerate(("solved", "regressed"))]
    as_usual, varied = (fit_calibration(ALL, "a" * 64, more) for more in ((), others))
    for before, after in ((as_usual.solved, varied.solved), (as_usual.regressed, varied.regressed)):
        assert after.weight_by_sign["similarity"] < 0.2 * before.weight_by_sign["similarity"]
    unseen = without_similarity(20, "solved")
    broken, kept = (reliability_of(unseen, made).expected_calibration_error for made in (as_usual, varied))
    assert kept < min(broken, 0.05)
    assert varied.num_answers == as_usual.num_answers + 800


def test_strangers_in_other_conditions_are_kept_out_too():
    """And right answers as usual pass all the same."""

    def made(x_m: float, strength: float):
        return answer(x_m, 0.5, signs=dict.fromkeys(SOLVED_SIGNS, strength))

    said = [made(0.0, 2.0)] * 200 + [made(2.0, -1.0)] * 100
    usual = JudgedAnswers.of_queries(said, "auto", photos("query", [0.0] * 300).T_world_cam)
    others = JudgedAnswers.of_strangers([made(1.0, 1.0)] * 200, "auto")
    as_usual, varied = (fit_calibration((usual, judged(2, "regressed")), "a" * 64, more) for more in ((), (others,)))
    assert others.accepted(as_usual).all()
    assert not others.accepted(varied).any()
    assert usual.accepted(varied).equal(usual.right)


def test_a_calibration_belongs_to_its_network_and_says_what_it_was_learned_from(calibration):
    assert calibration.network_sha256 == "a" * 64
    assert calibration.num_answers == 1200


def test_answers_are_judged_again_by_a_new_calibration(calibration):
    strong, weak = (dict.fromkeys(SOLVED_SIGNS, value) for value in (3.0, -3.0))
    sure, unsure = (rejudged(answer(0.0, 0.5, signs=signs), "auto", calibration) for signs in (strong, weak))
    assert sure.localized
    assert sure.confidence > 0.9
    assert not unsure.localized
    assert unsure.confidence < 0.1
    nowhere = answer(None, 0.0)
    assert rejudged(nowhere, "auto", calibration) is nowhere
    unsolved = answer(0.0, 0.0, solved=False, signs=strong)
    assert rejudged(unsolved, "geometric", calibration) is unsolved  # the network's pose was not asked for


def test_a_comparison_is_judged_again_and_copying_stays_without_confidence(calibration):
    place, references = place_on_a_line([0.0], [0.0, 0.1]), torch.tensor([[0], [0]])
    way, strong, weak = OurWay("auto", "given"), *(dict.fromkeys(SOLVED_SIGNS, value) for value in (3.0, -3.0))
    said = [answer(0.0, 0.2, signs=strong), answer(0.1, 0.9, signs=weak)]
    rows = (copy_first(place, references), our_row(place, way, said, references, np.array([0.1])))
    copied, ours = Comparison(place, references, rows, {way: said}).judged_by(calibration).methods
    assert ours.accepted.tolist() == [1.0, 0.0]
    assert ours.confidence[0] > 0.9 > 0.1 > ours.confidence[1]
    assert np.isnan(copied.confidence).all()


def test_strangers_are_never_right_wherever_they_are_put():
    strangers = JudgedAnswers.of_strangers([answer(0.0, 0.9)], "auto")
    assert not strangers.right.any()
    assert strangers.elsewhere.all()


def test_without_answers_by_matches_there_is_nothing_to_calibrate():
    nothing = JudgedAnswers.of_strangers([answer(None, 0.0)], "auto")
    with pytest.raises(ConfigError, match=r"found 0 and 0\. Calibrate trained weights"):
        fit_calibration([nothing], "a" * 64)


def test_the_reliability_diagram_shows_bins_that_have_answers():
    found = reliability(
        torch.tensor([0.95, 0.95, 0.95, 0.95, 0.15], dtype=torch.float64),
        torch.tensor([True, True, True, False, False]),
    )
    assert [row["share_right"] for row in reliability_row(found)["bins"]] == [0.0, 0.75]
    points = reliability_figure(found, title="rooms").axes[0].containers[1].lines[0]
    assert_allclose(points.get_xdata(), [0.15, 0.95])
    assert_allclose(points.get_ydata(), [0.0, 0.75])
