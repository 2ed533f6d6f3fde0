"""What one method answered to the queries of places, with what it took."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from relograph.evaluation.metrics import score
from relograph.evaluation.place import Place, overlap_with_references
from relograph.evaluation.predictions import Predictions, nearest_reference
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose
from relograph.localization.confidence import is_right


class QueryAnswer(NamedTuple):
    """One answer; a method that does not know a number leaves it NaN."""

    T_world_cam: Pose | None
    reason: str = ""
    """Why there is no pose."""
    confidence: float = math.nan
    """Probability that the answer is right, within [0, 1]."""
    accepted: float = math.nan
    """1 where the method calls the query localized, 0 where it finds its own pose too unsure."""
    num_inliers: float = math.nan
    focal_px: float = math.nan
    """Of the query, given or found."""
    network_seconds: float = math.nan
    """For features and matches."""
    solver_seconds: float = math.nan
    """On the CPU, after the matches."""


@dataclass(frozen=True, eq=False)
class MethodAnswers:
    """The answers of one method to Q queries, of one place or of several.

    Every pose that a method finds is scored, sure or not: most methods never refuse. Whether one that does is right to
    do so, is scored by itself.
    """

    name: str
    predictions: Predictions
    confidence: Float64[np.ndarray, "Q"]
    accepted: Float64[np.ndarray, "Q"]
    num_inliers: Float64[np.ndarray, "Q"]
    focal_px: Float64[np.ndarray, "Q"]
    network_seconds: Float64[np.ndarray, "Q"]
    solver_seconds: Float64[np.ndarray, "Q"]
    overlap: Float64[np.ndarray, "Q"]
    """Largest share of a query's view that one of its references shows."""
    map_seconds: Float64[np.ndarray, "F"]
    """For each photo of the map that was looked at; none where a method looks at none."""

    @staticmethod
    def of_place(
        name: str,
        place: Place,
        references: Int[Tensor, "Q R"],
        answers: Sequence[QueryAnswer],
        map_seconds: Float64[np.ndarray, "F"] | None = None,
    ) -> "MethodAnswers":
        """The answers to a place's queries, in their order."""
        nowhere = Pose(torch.full((3, 3), torch.nan, dtype=torch.float64), torch.full((3,), torch.nan).double())
        poses = [nowhere if a.T_world_cam is None else a.T_world_cam.to("cpu").to(torch.float64) for a in answers]
        predictions = Predictions.from_poses(
            scene=[place.name] * len(answers),
            frame=place.queries.names,
            T_world_true=place.queries.T_world_cam,
            T_world_cam=Pose.stack(poses) if poses else Pose.identity(0),
            top1=[place.map.names[row] if row >= 0 else "" for row in references[:, 0].tolist()],
            nearest=nearest_reference(place.queries.T_world_cam, place.map.T_world_cam),
            reason=[(a.reason or "no pose was found") if a.T_world_cam is None else "" for a in answers],
        )

        def column(field: str) -> Float64[np.ndarray, "Q"]:
            return np.array([getattr(answer, field) for answer in answers], dtype=np.float64)

        return MethodAnswers(
            name,
            predictions,
            column("confidence"),
            column("accepted"),
            column("num_inliers"),
            column("focal_px"),
            column("network_seconds"),
            column("solver_seconds"),
            overlap_with_references(place, references).double().numpy(),
            np.zeros(0) if map_seconds is None else map_seconds,
        )

    @staticmethod
    def cat(parts: "Sequence[MethodAnswers]", scene: str) -> "MethodAnswers":
        """All answers of one method as those of one scene; a query's name then begins with its place's."""
        predictions = Predictions.cat([part.predictions for part in parts])
        names = tuple(f"{of}/{frame}" for of, frame in zip(predictions.scene, predictions.frame, strict=True))
        predictions = replace(predictions, scene=(scene,) * len(predictions), frame=names)
        return MethodAnswers(
            parts[0].name,
            predictions,
            *(
                np.concatenate([getattr(part, field) for part in parts])
                for field in (
                    *("confidence", "accepted", "num_inliers", "focal_px", "network_seconds", "solver_seconds"),
                    *("overlap", "map_seconds"),
                )
            ),
        )

    @property
    def right(self) -> Bool[np.ndarray, "Q"]:
        """Of each query, whether the answer is within 25 cm and 10 degrees; where there is none it is not."""
        return np.asarray(is_right(self.predictions.T_world_cam, self.predictions.T_world_true).numpy())

    def as_row(self) -> dict[str, object]:
        """Scores and times for a file of results; None where there is no number."""
        (scores,) = score(self.predictions)
        solver_s = _mean(self.solver_seconds)
        return {
            "method": self.name,
            **scores.as_row(),
            "seconds_per_query": _or_none(_mean(self.network_seconds) + solver_s),
            "solver_seconds_per_query": _or_none(solver_s),
            "seconds_per_map_image": _or_none(_mean(self.map_seconds)),
            "share_accepted": _or_none(_mean(self.accepted)),
            "share_right_of_accepted": _or_none(_mean(self.right[self.accepted == 1].astype(np.float64))),
        }


def write_query_details(path: Path, methods: Sequence[MethodAnswers]) -> None:
    """One CSV file with a line for each answer: what predictions do not hold."""
    columns = ("confidence", "accepted", "num_inliers", "focal_px", "network_seconds", "solver_seconds", "overlap")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["method", "scene", "frame", *columns])
    for method in methods:
        for query, (scene, frame) in enumerate(zip(method.predictions.scene, method.predictions.frame, strict=True)):
            values = (float(getattr(method, column)[query]) for column in columns)
            rows.writerow([method.name, scene, frame, *("" if math.isnan(v) else f"{v:.6g}" for v in values)])
    write_whole(path, text.getvalue().encode("utf-8", errors="surrogateescape"))


def _mean(values: Float64[np.ndarray, "_"]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
