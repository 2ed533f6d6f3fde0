"""A confidence is kept: fitted on answers whose chance to be right is known, it says that chance."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.localization.confidence import (
    REGRESSED_SIGNS,
    RIDGE,
    SOLVED_SIGNS,
    UNCALIBRATED,
    accepting_threshold,
    confidence,
    fit_odds,
    is_right,
    reliability,
    sureness,
)
from relograph.models.shipped import Odds


def made_answers(
    num: int, weight: dict[str, float], bias: float, seed: int = 0
) -> tuple[list[dict[str, float]], Tensor]:
    """Answers with random signs that are right with the chance that a logistic curve gives them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num, len(weight)))
    chance = 1 / (1 + np.exp(-(x @ np.array(list(weight.values())) + bias)))
    signs = [dict(zip(weight, row.tolist(), strict=True)) for row in x]
    return signs, torch.from_numpy(rng.random(num) < chance)


def nowhere(num: int) -> Tensor:
    return torch.zeros(num, dtype=torch.bool)


def test_the_true_curve_is_found():
    signs, right = made_answers(20_000, {"inliers": 2.0, "overlap": 0.5}, -1.0)
    odds = fit_odds(signs, right, nowhere(len(right)), ["inliers", "overlap"])
    assert odds.weight_by_sign["inliers"] == pytest.approx(2.0, rel=0.06)
    assert odds.weight_by_sign["overlap"] == pytest.approx(0.5, rel=0.1)
    assert odds.bias == pytest.approx(-1.0, rel=0.06)


def test_the_fit_agrees_with_a_general_minimiser():
    signs, right = made_answers(300, {"a": 1.0, "b": -0.7, "c": 0.1}, 0.3)
    odds = fit_odds(signs, right, nowhere(300), ["a", "b", "c"])
    x = np.array([[answer[name] for name in "abc"] for answer in signs])
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)

    def cost(w: np.ndarray) -> float:
        log_odds = scaled @ w[:3] + w[3]
        return float(np.mean(np.logaddexp(0, log_odds) - right.numpy() * log_odds) + RIDGE * (w[:3] ** 2).sum() / 2)

    best = minimize(cost, np.zeros(4), bounds=[(0, None)] * 3 + [(None, None)], tol=1e-14)
    assert_allclose(list(odds.weight_by_sign.values()), best.x[:3] / x.std(axis=0), atol=2e-4)


def test_no_sign_speaks_against_an_answer():
    """A sign that misleads by chance gets no say: more of it never lowers the confidence."""
    signs, right = made_answers(5000, {"inliers": 1.0, "agreement": -0.5}, 0.0)
    odds = fit_odds(signs, right, nowhere(5000), ["inliers", "agreement"])
    assert odds.weight_by_sign["agreement"] == 0.0
    assert odds.weight_by_sign["inliers"] > 0.8


def test_signs_that_never_err_leave_finite_weights():
    signs = [{"inliers": float(i)} for i in range(100)]
    right = torch.arange(100) >= 50
    odds = fit_odds(signs, right, ~right, ["inliers"])
    assert np.isfinite(odds.weight_by_sign["inliers"])
    assert confidence({"inliers": 20.0}, odds) < 0.05
    assert confidence({"inliers": 80.0}, odds) > 0.95


def test_a_sign_that_is_always_the_same_does_no_harm():
    signs, right = made_answers(2000, {"inliers": 1.0}, 0.0)
    odds = fit_odds([{**answer, "overlap": 3.0} for answer in signs], right, nowhere(2000), ["inliers", "overlap"])
    assert 0 < confidence({"inliers": 0.0, "overlap": 3.0}, odds) < 1


@pytest.mark.parametrize("right", [torch.zeros(5).bool(), torch.ones(5).bool()], ids=["none", "all"])
def test_one_kind_of_answer_is_not_enough(right: Tensor):
    with pytest.raises(ConfigError, match="right and wrong answers"):
        fit_odds([{"inliers": 1.0}] * 5, right, nowhere(5), ["inliers"])


def test_the_threshold_keeps_out_what_is_elsewhere_and_lets_pass_what_is_right():
    chance = torch.cat([torch.linspace(0.6, 1.0, 1000), torch.linspace(0.0, 0.5, 1000)]).double()
    right = torch.arange(2000) < 1000
    threshold = accepting_threshold(chance[right], chance[~right])
    assert (chance[right] >= threshold).all()  # there is a gap, so nobody is refused who is right
    assert (chance[~right] >= threshold).double().mean() <= 0.005


def test_what_is_more_likely_wrong_than_right_is_not_accepted_however_unsure_strangers_are():
    right, elsewhere = torch.linspace(0.3, 1.0, 1000).double(), torch.full((100,), 0.01).double()
    assert accepting_threshold(right.clamp_min(0.7), elsewhere) == 0.5
    assert accepting_threshold(right, elsewhere) == pytest.approx(0.335, abs=0.001)  # else too few right ones pass


def test_where_right_and_wrong_mix_nineteen_of_twenty_right_ones_pass():
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(4000, generator=generator, dtype=torch.float64)
    right = torch.arange(4000) < 2000
    threshold = accepting_threshold(chance[right], chance[~right])
    assert (chance[right] >= threshold).double().mean() == pytest.approx(0.95, abs=0.002)


def test_kept_promises_have_no_calibration_error_and_broken_ones_have():
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(50_000, generator=generator, dtype=torch.float64)
    right = torch.rand(50_000, generator=generator, dtype=torch.float64) < chance
    assert reliability(chance, right).expected_calibration_error < 0.01
    assert reliability(torch.ones_like(chance), right).expected_calibration_error == pytest.approx(0.5, abs=0.01)


def test_bins_count_all_answers_and_empty_ones_say_nothing():
    curve = reliability(torch.tensor([0.05, 0.95, 1.0]), torch.tensor([False, True, False]), 4)
    assert curve.num_answers.tolist() == [1, 0, 0, 2]
    assert_allclose(curve.share_right[[0, 3]], [0.0, 0.5])
    assert curve.share_right[1].isnan()
    assert curve.expected_calibration_error == pytest.approx((0.05 + 2 * (0.975 - 0.5)) / 3)


def test_right_is_within_25_cm_and_10_degrees():
    truth = Pose.identity(4)
    answers = Pose.from_axis_angle(
        np.radians([[9.9, 0, 0], [0, 0, 0], [10.1, 0, 0], [0, 0, 0]]),
        [[0.24, 0, 0], [0, 0.26, 0], [0, 0, 0], [0, 0, 0]],
    )
    assert is_right(answers, truth).tolist() == [True, False, False, True]


def test_smaller_errors_are_surer_and_none_is_infinitely_sure():
    values = [sureness(metres, 40 * metres) for metres in (0.0, 0.01, 0.1, 1.0, 1e9)]
    assert values == sorted(values, reverse=True)
    assert np.isfinite(values).all()


def test_a_confidence_stays_a_probability():
    assert 0 <= confidence({"inliers": -1e9}, Odds({"inliers": 1.0}, 0.0, 0.5)) < 1e-9
    assert 1 - 1e-9 < confidence({"inliers": 1e9}, Odds({"inliers": 1.0}, 0.0, 0.5)) <= 1


def test_the_guess_for_uncalibrated_weights_uses_signs_that_there_are():
    assert set(UNCALIBRATED.solved.weight_by_sign) <= set(SOLVED_SIGNS)
    assert set(UNCALIBRATED.regressed.weight_by_sign) <= set(REGRESSED_SIGNS)
    assert min(*UNCALIBRATED.solved.weight_by_sign.values(), *UNCALIBRATED.regressed.weight_by_sign.values()) > 0
