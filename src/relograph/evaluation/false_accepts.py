"""Queries that are not in the map, and how many of them are taken for localized all the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

ACCEPTED_OF_RIGHT = 0.95
"""False accepts are counted where this share of right answers is accepted."""


@dataclass(frozen=True)
class Strangers:
    """Answers to queries that are not in the map, of one kind."""

    kind: str
    confidence: Float64[np.ndarray, "S"]
    accepted: Bool[np.ndarray, "S"]
    """Whether the query was called localized, by the threshold of the calibration."""


@dataclass(frozen=True)
class FalseAccepts:
    """How many strangers of one kind are accepted."""

    kind: str
    num_queries: int
    at_95_percent: float
    """Share that is accepted by the threshold that accepts 95 % of right answers; NaN where there are none."""
    as_calibrated: float
    """Share that is called localized, as a user has it."""

    def as_row(self) -> dict[str, object]:
        """For a file of results."""
        return {
            "kind": self.kind,
            "num_queries": self.num_queries,
            "false_accepts_at_95_percent": None if math.isnan(self.at_95_percent) else self.at_95_percent,
            "false_accepts_as_calibrated": None if math.isnan(self.as_calibrated) else self.as_calibrated,
        }


def accepting_95_percent(confidence_of_right: Float64[np.ndarray, "R"]) -> float:
    """The highest threshold by which at least 95 % of right answers are accepted; NaN where none is right.

    Example:
        >>> accepting_95_percent(np.arange(1, 101) / 100)
        0.06
    """
    if not len(confidence_of_right):
        return math.nan
    ranked = np.sort(confidence_of_right)
    # Rounded first: 0.05 of 100 is a little more than 5 in floating point.
    refused = math.floor(round((1 - ACCEPTED_OF_RIGHT) * len(ranked), 9))
    return float(ranked[refused])


def count_false_accepts(
    confidence_of_right: Float64[np.ndarray, "R"], strangers: Sequence[Strangers]
) -> list[FalseAccepts]:
    """Of each kind of strangers the share that is accepted."""
    threshold = accepting_95_percent(confidence_of_right)
    return [
        FalseAccepts(
            of_kind.kind,
            len(of_kind.confidence),
            _share(of_kind.confidence >= threshold) if not math.isnan(threshold) else math.nan,
            _share(of_kind.accepted),
        )
        for of_kind in strangers
    ]


def false_accepts_table(found: Sequence[FalseAccepts]) -> str:
    """The counts in Markdown."""
    lines = [
        "| queries that are not in the map | number | accepted where 95 % of right ones are | accepted as calibrated |",
        "|---|---|---|---|",
    ]
    for row in found:
        shares = (f"{share:.2%}" if not math.isnan(share) else "–" for share in (row.at_95_percent, row.as_calibrated))
        lines.append(f"| {row.kind} | {row.num_queries:,} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def _share(accepted: Bool[np.ndarray, "S"]) -> float:
    return float(accepted.mean()) if len(accepted) else math.nan
