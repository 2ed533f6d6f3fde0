"""How sure an answer is, as one number that can be trusted: the chance that it is within 25 cm and 10 degrees.

An answer shows signs: how many matches agree, how precisely they fix the pose, whether network and solver say the same.
A logistic regression on a few of them, fitted on answers in validation rooms, makes them one probability. Every sign is
turned so that more of it speaks for the answer, and no weight may be negative: where all signs of an answer are better
than another's, so is its confidence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose, pose_error
from relograph.models.shipped import Calibration, Odds

RIGHT_M, RIGHT_DEG = 0.25, 10.0
"""An answer within both is right."""
ACCEPTED_OF_RIGHT = 0.95
"""Share of right answers that are accepted, at least."""
ACCEPTED_OF_WRONG = 0.005
"""Share of queries from elsewhere that may be accepted: half of what is promised."""
SIGN_LIMIT = 6.0
RIDGE = 1e-3
NEWTON_STEPS = 100

REGRESSED_SIGNS = ("overlap", "certainty", "unanimity", "matched", "settled", "similarity")
SOLVED_SIGNS = ("inliers", "inlier_share", "precision", "agreement", "focal_known", *REGRESSED_SIGNS)
Signs = Mapping[str, float]

UNCALIBRATED = Calibration(
    solved=Odds({"inliers": 1.5, "inlier_share": 2.0, "precision": 0.5}, -7.5, 0.5),
    unsolved=Odds({"overlap": 0.5, "certainty": 1.0, "unanimity": 0.5}, -3.0, 0.5),
    regressed=Odds({"overlap": 0.5, "certainty": 1.0, "unanimity": 0.5}, -1.5, 0.5),
    network_sha256="",
    num_answers=0,
)
"""A guess, for weights that nobody has calibrated: fifty matches that agree are enough."""


def is_right(T_world_cam: Pose, T_true: Pose) -> Bool[Tensor, "*B"]:
    """Whether answers are within 25 cm and 10 degrees of the truth."""
    error = pose_error(T_world_cam, T_true)
    return (error.translation_error_m <= RIGHT_M) & (error.rotation_error_deg <= RIGHT_DEG)


def sureness(distance_m: float, angle_deg: float) -> float:
    """A sign from an error, expected or found: 0 where it is as large as a right answer's may be, more where smaller.

    Example:
        >>> sureness(0.125, 5.0)
        0.0
        >>> sureness(0.0125, 0.5) > 2 > -2 > sureness(2.0, 90.0)
        True
    """
    return min(max(log(1 / max(distance_m / RIGHT_M + angle_deg / RIGHT_DEG, 1e-9)), -SIGN_LIMIT), SIGN_LIMIT)


def confidence(signs: Signs, odds: Odds) -> float:
    """The chance that an answer with these signs is right, within [0, 1].

    Example:
        >>> confidence({"inliers": 4.0}, Odds({"inliers": 1.0}, -4.0, 0.5))
        0.5
    """
    log_odds = odds.bias + sum(weight * signs[name] for name, weight in odds.weight_by_sign.items())
    return 1 / (1 + exp(-min(max(log_odds, -30.0), 30.0)))


def fit_odds(
    signs: Sequence[Signs], right: Bool[Tensor, "A"], elsewhere: Bool[Tensor, "A"], names: Sequence[str]
) -> Odds:
    """The regression of which answers are right on the signs of those names, and the threshold to accept them from.

    `elsewhere` are queries that are not in the map: none of them is right, and the threshold is to keep them out.
    """
    if not right.any() or right.all() or (right & elsewhere).any():
        raise ConfigError(
            f"expected right and wrong answers to calibrate on, none of them right about a query from elsewhere, found "
            f"{int(right.sum())} right ones of {len(right)}. Calibrate trained weights, on more rooms."
        )
    x = torch.tensor([[answer[name] for name in names] for answer in signs], dtype=torch.float64)
    mean, std = x.mean(dim=0), x.std(dim=0, correction=0).clamp_min(1e-9)
    weight, bias = _fit_non_negative((x - mean) / std, right.double())
    weight = weight / std
    weight_by_sign = {name: float(w) for name, w in zip(names, weight, strict=True)}
    odds = Odds(weight_by_sign, float(bias - weight @ mean), 0.0)
    chance = torch.tensor([confidence(answer, odds) for answer in signs], dtype=torch.float64)
    return Odds(odds.weight_by_sign, odds.bias, accepting_threshold(chance[right], chance[elsewhere]))


def accepting_threshold(chance_of_right: Float[Tensor, "R"], chance_elsewhere: Float[Tensor, "E"]) -> float:
    """The confidence to accept answers from, by how sure right ones are and those to queries from elsewhere.

    As low as queries from elsewhere allow, so that most right answers pass, but not where answers are more likely wrong
    than right; and where that would refuse more than one in twenty right answers, the highest that does not.
    """
    keeps_right = float(chance_of_right.quantile(1 - ACCEPTED_OF_RIGHT, interpolation="lower"))
    if not len(chance_elsewhere):
        return min(keeps_right, 0.5)
    keeps_out = float(chance_elsewhere.quantile(1 - ACCEPTED_OF_WRONG, interpolation="higher"))
    return min(keeps_right, max(keeps_out + 1e-9, 0.5))  # those that are as sure as the last one stay out, too


def _fit_non_negative(x: Float[Tensor, "A S"], y: Float[Tensor, "A"]) -> tuple[Float[Tensor, "S"], Float[Tensor, ""]]:
    """Weights of zero or more, and the bias, that make the labels most likely; by Newton's method on those above zero.

    The ridge on the weights keeps them finite where the signs tell right from wrong without an error.
    """
    x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    ridge = torch.full((x.shape[1],), RIDGE, dtype=x.dtype)
    ridge[-1] = 0.0
    lowest = torch.zeros_like(ridge)
    lowest[-1] = -torch.inf
    w = torch.zeros_like(ridge)

    def cost(w: Tensor) -> float:
        return float(torch.nn.functional.binary_cross_entropy_with_logits(x @ w, y) + (ridge * w * w).sum() / 2)

    for _ in range(NEWTON_STEPS):
        chance = (x @ w).sigmoid()
        slope = x.mT @ (chance - y) / len(x) + ridge * w
        free = (w > lowest) | (slope < 0)
        H = (x.mT * (chance * (1 - chance))) @ x / len(x) + torch.diag(ridge + 1e-9)
        step = torch.zeros_like(w)
        step[free] = torch.linalg.solve(H[free][:, free], slope[free])
        if float(step @ slope) < 1e-12:
            break
        length, before = 1.0, cost(w)
        while length > 1e-6 and cost(torch.maximum(w - length * step, lowest)) > before:
            length /= 2
        w = torch.maximum(w - length * step, lowest)
    return w[:-1], w[-1]


@dataclass(frozen=True)
class Reliability:
    """Answers in bins of their confidence: what was promised, and what was kept."""

    mean_confidence: Float[Tensor, "bins"]
    share_right: Float[Tensor, "bins"]
    num_answers: Int[Tensor, "bins"]
    """Bins without answers have a mean and a share of NaN."""

    @property
    def expected_calibration_error(self) -> float:
        """The mean difference between promised and kept, over answers, within [0, 1]."""
        gap = (self.mean_confidence - self.share_right).abs().nan_to_num(0.0)
        return float((gap * self.num_answers).sum() / self.num_answers.sum().clamp_min(1))


def reliability(chance: Float[Tensor, "A"], right: Bool[Tensor, "A"], num_bins: int = 10) -> Reliability:
    """How often answers are right, by their confidence, in bins of equal width.

    Example:
        >>> reliability(torch.tensor([0.9, 0.9, 0.1]), torch.tensor([True, False, False]), 2).share_right
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    bin_idx = (chance * num_bins).long().clamp(0, num_bins - 1)
    count = torch.bincount(bin_idx, minlength=num_bins)
    promised = torch.bincount(bin_idx, weights=chance.double(), minlength=num_bins)
    kept = torch.bincount(bin_idx, weights=right.double(), minlength=num_bins)
    return Reliability(promised / count, kept / count, count)
