"""From predictions on disk to scores, tables and plots."""

from relograph.evaluation.metrics import RECALL_THRESHOLDS, SceneScore, average, prediction_errors, score
from relograph.evaluation.predictions import (
    NearestReference,
    Predictions,
    nearest_reference,
    read_predictions,
    write_predictions,
)

__all__ = [
    "RECALL_THRESHOLDS",
    "NearestReference",
    "Predictions",
    "SceneScore",
    "average",
    "nearest_reference",
    "prediction_errors",
    "read_predictions",
    "score",
    "write_predictions",
]
