"""Scores against numbers computed by hand, and where they hurt: nothing predicted, everything failed."""

import json
import math

import numpy as np
import pytest
from made_predictions import predictions_with_errors

from relograph.errors import DatasetError
from relograph.evaluation import Predictions, SceneScore, average, mean_of_runs, prediction_errors, score

LOST = math.inf


def test_scores_of_five_queries_by_hand() -> None:
    translation_m = [0.04, 0.08, 0.20, 0.24, 3.0]
    rotation_deg = [4.0, 6.0, 4.9, 9.0, 90.0]
    (kitchen,) = score(predictions_with_errors(translation_m, rotation_deg))
    assert kitchen.scene == "kitchen"
    assert kitchen.num_queries == 5
    assert kitchen.num_not_localized == 0
    assert kitchen.median_translation_error_m == pytest.approx(0.20)
    assert kitchen.mean_translation_error_m == pytest.approx(3.56 / 5)
    assert kitchen.median_rotation_error_deg == pytest.approx(6.0)
    assert kitchen.mean_rotation_error_deg == pytest.approx(113.9 / 5)
    assert kitchen.recall_5cm_5deg == 1 / 5
    assert kitchen.recall_10cm_5deg == 1 / 5  # the second is near enough, but turned by 6 degrees
    assert kitchen.recall_25cm_10deg == 4 / 5


def test_a_failure_is_infinite_in_the_median_a_miss_in_recall_and_absent_from_the_mean() -> None:
    (kitchen,) = score(predictions_with_errors([0.01, LOST, 0.03, LOST, 0.02], [1.0, 0.0, 3.0, 0.0, 2.0]))
    assert kitchen.num_not_localized == 2
    assert kitchen.share_not_localized == 0.4
    assert kitchen.median_translation_error_m == pytest.approx(0.03)  # of 0.01 0.02 0.03 inf inf
    assert kitchen.median_rotation_error_deg == pytest.approx(3.0)
    assert kitchen.mean_translation_error_m == pytest.approx(0.02)
    assert kitchen.recall_5cm_5deg == 3 / 5


def test_one_more_failure_never_makes_a_score_better() -> None:
    errors = np.random.default_rng(0).uniform(0.0, 0.3, 9)
    (before,) = score(predictions_with_errors(errors, errors * 10))
    (after,) = score(predictions_with_errors([*errors, LOST], [*(errors * 10), 0.0]))
    assert after.median_translation_error_m > before.median_translation_error_m
    assert after.recall_25cm_10deg < before.recall_25cm_10deg


def test_where_half_of_the_queries_fail_the_median_is_infinite() -> None:
    (kitchen,) = score(predictions_with_errors([0.01, LOST], [1.0, 0.0]))
    assert kitchen.median_translation_error_m == math.inf
    assert kitchen.mean_translation_error_m == pytest.approx(0.01)


def test_where_everything_failed_there_is_no_mean_and_no_recall() -> None:
    (kitchen,) = score(predictions_with_errors([LOST, LOST], [0.0, 0.0]))
    assert kitchen.median_rotation_error_deg == math.inf
    assert math.isnan(kitchen.mean_rotation_error_deg)
    assert kitchen.recall_25cm_10deg == 0.0
    assert kitchen.share_not_localized == 1.0


def test_no_predictions_have_no_score_and_an_average_of_nothing() -> None:
    assert score(Predictions.cat([])) == []
    nothing = average([])
    assert nothing.num_queries == 0
    assert math.isnan(nothing.median_translation_error_m)
    assert math.isnan(nothing.share_not_localized)


def test_errors_of_half_turns_and_tiny_turns_are_not_lost() -> None:
    errors = prediction_errors(predictions_with_errors([1e-9, 1e-9], [180.0, 1e-6]))
    assert errors.rotation_error_deg.tolist() == pytest.approx([180.0, 1e-6], rel=1e-6)
    assert errors.translation_error_m.tolist() == pytest.approx([1e-9, 1e-9], rel=1e-5)


def test_scenes_are_scored_by_themselves_and_count_the_same_in_the_average() -> None:
    large = predictions_with_errors([0.1] * 30, [1.0] * 30, scene="large")
    small = predictions_with_errors([0.3, 0.3, LOST], [3.0, 3.0, 0.0], scene="small")
    scores = score(Predictions.cat([large, small]))
    assert [scored.scene for scored in scores] == ["large", "small"]
    both = average(scores, "both")
    assert both.scene == "both"
    assert both.median_translation_error_m == pytest.approx(0.2)
    assert both.median_rotation_error_deg == pytest.approx(2.0)
    assert both.recall_25cm_10deg == pytest.approx(0.5)
    assert (both.num_queries, both.num_not_localized) == (33, 1)


def test_the_average_with_a_scene_that_failed_is_infinite() -> None:
    parts = [predictions_with_errors([0.1], [1.0], scene="a"), predictions_with_errors([LOST], [0.0], scene="b")]
    both = average(score(Predictions.cat(parts)))
    assert both.median_translation_error_m == math.inf
    assert both.recall_25cm_10deg == 0.5


def test_seeds_are_averaged_scene_by_scene_in_whatever_order_they_come() -> None:
    def run(metres: float, *scenes: str) -> list[SceneScore]:
        return score(Predictions.cat([predictions_with_errors([metres], [metres], scene=scene) for scene in scenes]))

    means = mean_of_runs([run(0.1, "a", "b"), run(0.2, "b", "a"), run(0.6, "a", "b")])
    assert [(scored.scene, scored.num_queries, scored.num_runs) for scored in means] == [("a", 1, 3), ("b", 1, 3)]
    assert [scored.median_translation_error_m for scored in means] == pytest.approx([0.3, 0.3])
    with pytest.raises(DatasetError, match="expected every run on the scenes a, b, found one on a"):
        mean_of_runs([run(0.1, "a", "b"), run(0.2, "a")])


def test_the_share_of_failures_is_that_of_all_runs() -> None:
    runs = [score(predictions_with_errors(errors, [0.0, 0.0])) for errors in ([0.1, LOST], [LOST, LOST], [0.1, 0.1])]
    (kitchen,) = mean_of_runs(runs)
    assert (kitchen.num_queries, kitchen.num_not_localized) == (2, 3)
    assert kitchen.share_not_localized == 0.5
    assert average([kitchen, kitchen]).share_not_localized == 0.5


@pytest.mark.parametrize("errors", [[0.01, 0.2, LOST], [LOST, LOST], []])
def test_scores_survive_json(errors: list[float]) -> None:
    scores = score(predictions_with_errors(errors, errors)) or [average([])]
    rows = json.loads(json.dumps([scored.as_row() for scored in scores], allow_nan=False))
    for scored, row in zip(scores, rows, strict=True):
        read = SceneScore.from_row({**row, "method": "ours"}, "scores.json")
        assert repr(read) == repr(scored)  # NaN is not equal to NaN, but is written like it


@pytest.mark.parametrize("value", ["0.1", True, {}, "absent"])
def test_a_row_that_is_no_score_is_refused(value: object) -> None:
    row = score(predictions_with_errors([0.1], [1.0]))[0].as_row() | {"mean_rotation_error_deg": value}
    if value == "absent":
        del row["mean_rotation_error_deg"]
    with pytest.raises(DatasetError, match=r"scores\.json: expected a score with mean_rotation_error_deg, found"):
        SceneScore.from_row(row, "scores.json")
