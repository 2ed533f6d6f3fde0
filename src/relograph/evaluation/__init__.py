"""From predictions on disk to scores, tables and plots."""

from relograph.evaluation.metrics import (
    RECALL_THRESHOLDS,
    SceneScore,
    average,
    mean_of_runs,
    prediction_errors,
    score,
)
from relograph.evaluation.predictions import (
    NearestReference,
    Predictions,
    nearest_reference,
    read_predictions,
    write_predictions,
)
from relograph.evaluation.tables import MethodRow, ResultsTable, results_table, rounds_table, summary_table

__all__ = [
    "RECALL_THRESHOLDS",
    "MethodRow",
    "NearestReference",
    "Predictions",
    "ResultsTable",
    "SceneScore",
    "average",
    "mean_of_runs",
    "nearest_reference",
    "prediction_errors",
    "read_predictions",
    "results_table",
    "rounds_table",
    "score",
    "summary_table",
    "write_predictions",
]
