"""Scores of a method: medians, means and recalls, scene by scene, and averaged over scenes as papers do.

A query that was not localized stays in the denominator: its error is infinite in a median and it is a miss in a
recall. A mean would only be infinite, so means are over the localized queries, and `num_not_localized` says how many
were left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace

import numpy as np
from jaxtyping import Float64

from relograph.errors import DatasetError
from relograph.evaluation.predictions import Predictions
from relograph.geometry import PoseError, pose_error

RECALL_THRESHOLDS = {
    "recall_5cm_5deg": (0.05, 5.0),
    "recall_10cm_5deg": (0.10, 5.0),
    "recall_25cm_10deg": (0.25, 10.0),
}
"""The metres and degrees that both errors must be below, by the name of the score."""


@dataclass(frozen=True, kw_only=True)
class SceneScore:
    """How well a method did on one scene, or on average over several."""

    scene: str
    num_queries: int
    num_not_localized: int
    """Over all runs."""
    median_translation_error_m: float
    """Over all queries; infinite where half of them or more were not localized."""
    mean_translation_error_m: float
    """Over the localized queries; NaN where there are none."""
    median_rotation_error_deg: float
    mean_rotation_error_deg: float
    recall_5cm_5deg: float
    """Share of all queries within 5 cm and 5 degrees."""
    recall_10cm_5deg: float
    recall_25cm_10deg: float
    num_runs: int = 1
    """Runs, such as seeds, that the figures are means of; each answered every query."""

    @property
    def share_not_localized(self) -> float:
        """Between 0 and 1; NaN where there are no queries."""
        return self.num_not_localized / (self.num_queries * self.num_runs) if self.num_queries else math.nan

    def as_row(self) -> dict[str, object]:
        """The score for a file of results; JSON knows no infinity and no NaN, so None stands for both."""
        return {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in asdict(self).items()
        }

    @staticmethod
    def from_row(row: Mapping[str, object], where: str) -> "SceneScore":
        """The score that `as_row` wrote; other keys are passed over. `where` begins the message of an error."""
        values: dict[str, object] = {}
        for field in fields(SceneScore):
            value = row.get(field.name, None if field.default is MISSING else field.default)
            if field.type is float and field.name in row and value is None:
                # A median of too many failures, or a figure over no query at all.
                value = math.inf if field.name.startswith("median") and row.get("num_queries") else math.nan
            if field.type is float and type(value) is int:
                value = float(value)
            if type(value) is not field.type:
                raise DatasetError(
                    f"{where}: expected a score with {field.name}, found {value!r:.40} there. "
                    "Score the predictions again."
                )
            values[field.name] = value
        return SceneScore(**values)  # type: ignore[arg-type]  # each was checked just above


def prediction_errors(predictions: Predictions) -> PoseError:
    """The rotation and translation error of every query; infinite where it was not localized."""
    rotation, translation = pose_error(predictions.T_world_cam, predictions.T_world_true)
    return PoseError(
        rotation.where(predictions.localized, math.inf), translation.where(predictions.localized, math.inf)
    )


def score(predictions: Predictions) -> list[SceneScore]:
    """The score of every scene, in the order in which scenes first appear."""
    errors = prediction_errors(predictions)
    names = np.array(predictions.scene)
    return [
        _score_scene(
            scene, errors.translation_error_m.numpy()[names == scene], errors.rotation_error_deg.numpy()[names == scene]
        )
        for scene in predictions.scenes
    ]


def average(scores: Sequence[SceneScore], name: str = "average") -> SceneScore:
    """The mean of the scenes' figures, each scene counting the same, as in the paper; the queries are summed.

    Over no scenes at all every figure is NaN.

    Example:
        >>> from dataclasses import replace
        >>> chess = SceneScore(
        ...     scene="chess", num_queries=2000, num_not_localized=0,
        ...     median_translation_error_m=0.08, mean_translation_error_m=0.1,
        ...     median_rotation_error_deg=2.7, mean_rotation_error_deg=3.0,
        ...     recall_5cm_5deg=0.2, recall_10cm_5deg=0.5, recall_25cm_10deg=0.9)
        >>> stairs = replace(chess, scene="stairs", num_queries=1000, median_translation_error_m=0.32)
        >>> both = average([chess, stairs])
        >>> both.num_queries, both.median_translation_error_m
        (3000, 0.2)
    """
    figures = {
        field.name: sum(getattr(score, field.name) for score in scores) / len(scores) if scores else math.nan
        for field in fields(SceneScore)
        if field.type is float
    }
    return SceneScore(
        scene=name,
        num_queries=sum(score.num_queries for score in scores),
        num_not_localized=sum(score.num_not_localized for score in scores),
        num_runs=max((score.num_runs for score in scores), default=1),
        **figures,
    )


def mean_of_runs(runs: Sequence[Sequence[SceneScore]]) -> list[SceneScore]:
    """The mean over runs of one method, such as three seeds, scene by scene."""
    first, *others = runs
    scenes = [score.scene for score in first]
    for other in others:
        if sorted(score.scene for score in other) != sorted(scenes):
            raise DatasetError(
                f"Scores: expected every run on the scenes {', '.join(scenes)}, found one on "
                f"{', '.join(score.scene for score in other) or 'none'}. Finish the runs that were cut short."
            )
    return [
        replace(
            average([score for run in runs for score in run if score.scene == of_first.scene], of_first.scene),
            num_queries=of_first.num_queries,
            num_runs=len(runs),
        )
        for of_first in first
    ]


def _score_scene(
    scene: str, translation_m: Float64[np.ndarray, "Q"], rotation_deg: Float64[np.ndarray, "Q"]
) -> SceneScore:
    localized = np.isfinite(translation_m)
    recalls = {
        name: float(((translation_m < metres) & (rotation_deg < degrees)).mean())
        for name, (metres, degrees) in RECALL_THRESHOLDS.items()
    }
    return SceneScore(
        scene=scene,
        num_queries=len(translation_m),
        num_not_localized=int((~localized).sum()),
        median_translation_error_m=float(np.median(translation_m)),
        mean_translation_error_m=float(translation_m[localized].mean()) if localized.any() else math.nan,
        median_rotation_error_deg=float(np.median(rotation_deg)),
        mean_rotation_error_deg=float(rotation_deg[localized].mean()) if localized.any() else math.nan,
        num_runs=1,
        **recalls,
    )
