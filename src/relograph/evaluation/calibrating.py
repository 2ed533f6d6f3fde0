"""A confidence that can be trusted, fitted to what the network answered in validation rooms, and to nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.localization.confidence import (
    REGRESSED_SIGNS,
    SOLVED_SIGNS,
    Reliability,
    accepting_threshold,
    confidence,
    fit_odds,
    is_right,
    reliability,
)
from relograph.localization.localizer import Answer, Solver
from relograph.models.shipped import Calibration, Odds

Road = Literal["solved", "unsolved", "regressed"]
"""How an answer came about; a `Calibration` has odds for each."""
SIGNS_BY_ROAD: Mapping[Road, tuple[str, ...]] = {
    "solved": SOLVED_SIGNS,
    "unsolved": REGRESSED_SIGNS,
    "regressed": REGRESSED_SIGNS,
}
FEWEST_TO_FIT = 20
"""Right ones, and wrong ones: with fewer, signs are not weighed."""


def road_of(answer: Answer, solver: Solver) -> Road | None:
    """How an answer that `solver` was asked for came about; None where it has no pose."""
    if answer.T_solved is not None:
        return "solved"
    if answer.T_regressed is None or solver == "geometric":
        return None
    return "regressed" if solver == "regress" else "unsolved"


@dataclass(frozen=True)
class JudgedAnswers:
    """Answers with what is true of them, of queries in their own map and of strangers; all of them have a pose."""

    answers: tuple[Answer, ...] = ()
    roads: tuple[Road, ...] = ()
    T_true: tuple[Pose | None, ...] = ()
    """None where the query is not in the map."""

    def __len__(self) -> int:
        return len(self.answers)

    def __add__(self, other: "JudgedAnswers") -> "JudgedAnswers":
        return JudgedAnswers(self.answers + other.answers, self.roads + other.roads, self.T_true + other.T_true)

    @staticmethod
    def of_queries(answers: Sequence[Answer], solver: Solver, T_true: Pose) -> "JudgedAnswers":
        """Of queries in their own map."""
        return JudgedAnswers._with_pose(answers, solver, list(T_true))

    @staticmethod
    def of_strangers(answers: Sequence[Answer], solver: Solver) -> "JudgedAnswers":
        """Of queries that are not in the map."""
        return JudgedAnswers._with_pose(answers, solver, [None] * len(answers))

    @staticmethod
    def _with_pose(answers: Sequence[Answer], solver: Solver, T_true: Sequence[Pose | None]) -> "JudgedAnswers":
        roads = [road_of(answer, solver) for answer in answers]
        return JudgedAnswers(
            tuple(answer for answer, road in zip(answers, roads, strict=True) if road is not None),
            tuple(road for road in roads if road is not None),
            tuple(true for true, road in zip(T_true, roads, strict=True) if road is not None),
        )

    def _take(self, rows: Sequence[int]) -> "JudgedAnswers":
        return JudgedAnswers(
            tuple(self.answers[row] for row in rows),
            tuple(self.roads[row] for row in rows),
            tuple(self.T_true[row] for row in rows),
        )

    def on(self, road: Road) -> "JudgedAnswers":
        """Those that came about that way."""
        return self._take([row for row, of in enumerate(self.roads) if of == road])

    def balanced(self) -> "JudgedAnswers":
        """With no more strangers than queries in their own map, evenly chosen: for all answers that were asked for.

        A chance of being right depends on how many photos are of places that the map does not show. Nobody knows that
        of a user's, so half of them it is, and not the ten in eleven that are looked for to count false accepts. Among
        those that the solver fails on they are still more than half, as it should be.
        """
        own = [row for row, true in enumerate(self.T_true) if true is not None]
        strangers = [row for row, true in enumerate(self.T_true) if true is None]
        step = max(1, ceil(len(strangers) / max(1, len(own))))
        return self._take(own + strangers[::step])

    @property
    def elsewhere(self) -> Bool[Tensor, "A"]:
        return torch.tensor([T_true is None for T_true in self.T_true], dtype=torch.bool)

    @property
    def right(self) -> Bool[Tensor, "A"]:
        """Whether the pose is within 25 cm and 10 degrees; a stranger's never is."""
        return torch.tensor(
            [
                T_true is not None and answer.T_best is not None and bool(is_right(answer.T_best, T_true))
                for answer, T_true in zip(self.answers, self.T_true, strict=True)
            ],
            dtype=torch.bool,
        )

    def chances(self, calibration: Calibration) -> Float[Tensor, "A"]:
        """How sure the calibration makes them."""
        odds = [odds_on(road, calibration) for road in self.roads]
        chances = [confidence(answer.signs, of) for answer, of in zip(self.answers, odds, strict=True)]
        return torch.tensor(chances, dtype=torch.float64)

    def by_odds(self, odds: Odds) -> Float[Tensor, "A"]:
        """How sure those odds make them, however they came about."""
        return torch.tensor([confidence(answer.signs, odds) for answer in self.answers], dtype=torch.float64)

    def accepted(self, calibration: Calibration) -> Bool[Tensor, "A"]:
        """Which of them the calibration makes sure enough."""
        thresholds = [odds_on(road, calibration).threshold for road in self.roads]
        return self.chances(calibration) >= torch.tensor(thresholds, dtype=torch.float64)


def odds_on(road: Road, calibration: Calibration) -> Odds:
    """Those by which answers are judged that came about that way."""
    return {"solved": calibration.solved, "unsolved": calibration.unsolved, "regressed": calibration.regressed}[road]


def fit_calibration(
    by_way: Sequence[JudgedAnswers], network_sha256: str, in_other_conditions: Sequence[JudgedAnswers] = ()
) -> Calibration:
    """The calibration of a network, from its answers in several ways: with and without the solver or a focal length.

    Each of its odds is fitted to the answers that it will judge. Those that the network gives after the solver has
    failed are other ones than those it gives to all queries: where matches do not agree, the network is mostly wrong,
    too. `in_other_conditions` are answers to other photos, in sparser maps, with wrong focal lengths, with other
    numbers of references, in each way: signs that tell right from wrong as usual alone get no weight with them.
    """
    usual, everything = (sum(groups, start=JudgedAnswers()) for groups in (by_way, (*by_way, *in_other_conditions)))
    # Each group of conditions counts for about as much as the usual one, as each asks for every query once (wrong focal
    # lengths for less, as only those who are told one are asked): what users have nobody knows, and of one kind alone
    # the confidence would be right for that kind alone.
    balanced = sum((group.balanced() for group in (*by_way, *in_other_conditions)), start=JudgedAnswers())
    num_solved, num_regressed = len(usual.on("solved")), len(usual.on("regressed"))
    if not num_solved or not num_regressed:
        raise ConfigError(
            f"expected answers by matches and by the network to calibrate on, found {num_solved} and {num_regressed}. "
            "Calibrate trained weights."
        )
    odds = {road: _fit(road, balanced.on(road), usual.on(road), everything.on(road)) for road in SIGNS_BY_ROAD}
    return Calibration(
        solved=odds["solved"],
        unsolved=odds["unsolved"],
        regressed=odds["regressed"],
        network_sha256=network_sha256,
        num_answers=len(everything),
    )


def _fit(road: Road, balanced: JudgedAnswers, usual: JudgedAnswers, everything: JudgedAnswers) -> Odds:
    """Fitted to balanced answers; the threshold keeps out what is elsewhere in any condition, as far as right answers
    pass in the usual one."""
    right = balanced.right
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    if road == "unsolved" and min(num_right, num_wrong) < FEWEST_TO_FIT:
        # A good solver leaves too few of them to tell right from wrong by signs: all are as sure as their share, and
        # where there are none at all, more likely wrong than right.
        return Odds({}, log((num_right + 1) / (num_wrong + 2)), 0.5)
    odds = fit_odds([answer.signs for answer in balanced.answers], right, balanced.elsewhere, SIGNS_BY_ROAD[road])
    to_pass = usual if usual.right.any() else everything
    threshold = accepting_threshold(
        to_pass.by_odds(odds)[to_pass.right], everything.by_odds(odds)[everything.elsewhere]
    )
    # Hardly any right answer is lost with those after a failed solver: they need not be let in at any price.
    return replace(odds, threshold=max(threshold, 0.5) if road == "unsolved" else threshold)


def reliability_of(judged: JudgedAnswers, calibration: Calibration) -> Reliability:
    """How well a calibration's confidence keeps its promise."""
    return reliability(judged.chances(calibration), judged.right)


def rejudged(answer: Answer, solver: Solver, calibration: Calibration) -> Answer:
    """The same answer with the confidence of another calibration; one without a pose stays as it is."""
    road = road_of(answer, solver)
    if road is None:
        return answer
    odds = odds_on(road, calibration)
    chance = confidence(answer.signs, odds)
    return replace(answer, confidence=chance, localized=chance >= odds.threshold)
