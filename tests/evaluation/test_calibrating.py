"""Calibration from answers of which it is known whether they are right."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from evaluation.made_places import answer, photos, place_on_a_line
from relograph.errors import ConfigError
from relograph.evaluation.calibrating import JudgedAnswers, fit_calibration, rejudged, reliability_of
from relograph.evaluation.place_localizer import OurWay, our_row
from relograph.evaluation.place_methods import copy_first
from relograph.evaluation.place_run import Comparison
from relograph.evaluation.reliability import reliability_figure, reliability_row
from relograph.localization.confidence import REGRESSED_SIGNS, SOLVED_SIGNS, reliability


def judged(seed: int, *, solved: bool, count: int = 300) -> JudgedAnswers:
    """Answers that are right the more often the stronger their signs, and strangers whose signs are weak."""
    rng = np.random.default_rng(seed)
    names = SOLVED_SIGNS if solved else REGRESSED_SIGNS
    strength = rng.normal(1.0, 1.0, count)
    is_right = rng.random(count) < 1 / (1 + np.exp(-3 * strength))

    def signs(strength: float) -> dict[str, float]:
        return {name: float(strength + 0.1 * rng.normal()) for name in names}

    answers = [
        answer(0.0 if ok else 2.0, 0.5, solved=solved, signs=signs(s)) for s, ok in zip(strength, is_right, strict=True)
    ]
    own = JudgedAnswers.of_queries(answers, photos("query", [0.0] * count).T_world_cam)
    return own + JudgedAnswers.of_strangers([answer(1.0, 0.5, solved=solved, signs=signs(-2.0)) for _ in range(100)])


@pytest.fixture(scope="module")
def calibration():
    return fit_calibration(judged(0, solved=True), judged(1, solved=False), "a" * 64)


def test_a_calibration_keeps_its_promise_on_answers_it_has_not_seen(calibration):
    for solved, odds in ((True, calibration.solved), (False, calibration.regressed)):
        found = reliability_of(judged(7, solved=solved), odds, solved=solved)
        assert found.expected_calibration_error < 0.05
        assert int(found.num_answers.sum()) == 400


def test_a_calibration_belongs_to_its_network_and_says_what_it_was_learned_from(calibration):
    assert calibration.network_sha256 == "a" * 64
    assert calibration.num_answers == 800


def test_answers_are_judged_again_by_a_new_calibration(calibration):
    strong, weak = (dict.fromkeys(SOLVED_SIGNS, value) for value in (3.0, -3.0))
    sure, unsure = (rejudged(answer(0.0, 0.5, signs=signs), calibration) for signs in (strong, weak))
    assert sure.localized
    assert sure.confidence > 0.9
    assert not unsure.localized
    assert unsure.confidence < 0.1
    nowhere = answer(None, 0.0)
    assert rejudged(nowhere, calibration) is nowhere


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
    strangers = JudgedAnswers.of_strangers([answer(0.0, 0.9)])
    assert not strangers.right(solved=True).any()
    assert strangers.elsewhere.all()


def test_without_answers_by_matches_there_is_nothing_to_calibrate():
    nothing = JudgedAnswers.of_strangers([answer(None, 0.0)])
    with pytest.raises(ConfigError, match=r"found 0 and 0\. Calibrate trained weights"):
        fit_calibration(nothing, nothing, "a" * 64)


def test_the_reliability_diagram_shows_bins_that_have_answers():
    found = reliability(
        torch.tensor([0.95, 0.95, 0.95, 0.95, 0.15], dtype=torch.float64),
        torch.tensor([True, True, True, False, False]),
    )
    assert [row["share_right"] for row in reliability_row(found)["bins"]] == [0.0, 0.75]
    points = reliability_figure(found, title="rooms").axes[0].containers[1].lines[0]
    assert_allclose(points.get_xdata(), [0.15, 0.95])
    assert_allclose(points.get_ydata(), [0.0, 0.75])
