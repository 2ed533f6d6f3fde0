"""A confidence that can be trusted, fitted to what the network answered in validation rooms, and to nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.localization.confidence import (
    REGRESSED_SIGNS,
    SOLVED_SIGNS,
    Reliability,
    confidence,
    fit_odds,
    is_right,
    reliability,
)
from relograph.localization.localizer import Answer
from relograph.models.shipped import Calibration, Odds


@dataclass(frozen=True)
class JudgedAnswers:
    """Answers with what is true of them, of queries in their own map and of strangers."""

    answers: tuple[Answer, ...]
    T_true: tuple[Pose | None, ...]
    """None where the query is not in the map."""

    def __add__(self, other: "JudgedAnswers") -> "JudgedAnswers":
        return JudgedAnswers(self.answers + other.answers, self.T_true + other.T_true)

    @staticmethod
    def of_queries(answers: Sequence[Answer], T_true: Pose) -> "JudgedAnswers":
        """Of queries in their own map."""
        return JudgedAnswers(tuple(answers), tuple(T_true))

    @staticmethod
    def of_strangers(answers: Sequence[Answer]) -> "JudgedAnswers":
        """Of queries that are not in the map."""
        return JudgedAnswers(tuple(answers), (None,) * len(answers))

    def with_pose(self, *, solved: bool) -> "JudgedAnswers":
        """Those whose pose was solved from matches, or those whose pose the network said."""
        kept = [
            (answer, T_true)
            for answer, T_true in zip(self.answers, self.T_true, strict=True)
            if (answer.T_solved is not None if solved else answer.T_regressed is not None)
        ]
        return JudgedAnswers(tuple(answer for answer, _ in kept), tuple(T_true for _, T_true in kept))

    @property
    def elsewhere(self) -> Bool[Tensor, "A"]:
        return torch.tensor([T_true is None for T_true in self.T_true], dtype=torch.bool)

    def right(self, *, solved: bool) -> Bool[Tensor, "A"]:
        """Whether the solved pose, or the network's, is within 25 cm and 10 degrees; a stranger's never is."""
        poses = [answer.T_solved if solved else answer.T_regressed for answer in self.answers]
        return torch.tensor(
            [
                T_true is not None and pose is not None and bool(is_right(pose, T_true))
                for pose, T_true in zip(poses, self.T_true, strict=True)
            ],
            dtype=torch.bool,
        )


def fit_calibration(solved: JudgedAnswers, regressed: JudgedAnswers, network_sha256: str) -> Calibration:
    """The calibration of a network, from its answers with the solver and from those without it."""
    solved, regressed = solved.with_pose(solved=True), regressed.with_pose(solved=False)
    if not solved.answers or not regressed.answers:
        raise ConfigError(
            f"expected answers by matches and by the network to calibrate on, found {len(solved.answers)} and "
            f"{len(regressed.answers)}. Calibrate trained weights."
        )
    odds: dict[bool, Odds] = {}
    for is_solved, answers, names in ((True, solved, SOLVED_SIGNS), (False, regressed, REGRESSED_SIGNS)):
        signs = [answer.signs for answer in answers.answers]
        odds[is_solved] = fit_odds(signs, answers.right(solved=is_solved), answers.elsewhere, names)
    return Calibration(
        solved=odds[True],
        regressed=odds[False],
        network_sha256=network_sha256,
        num_answers=len(solved.answers) + len(regressed.answers),
    )


def reliability_of(answers: JudgedAnswers, odds: Odds, *, solved: bool) -> Reliability:
    """How well a calibration's confidence keeps its promise, over queries in their own map and strangers alike."""
    answers = answers.with_pose(solved=solved)
    chance = torch.tensor([confidence(answer.signs, odds) for answer in answers.answers], dtype=torch.float64)
    return reliability(chance, answers.right(solved=solved))


def rejudged(answer: Answer, calibration: Calibration) -> Answer:
    """The same answer with the confidence of another calibration; one without a pose stays as it is."""
    if answer.T_best is None:
        return answer
    odds = calibration.regressed if answer.T_solved is None else calibration.solved
    chance = confidence(answer.signs, odds)
    return replace(answer, confidence=chance, localized=chance >= odds.threshold)
