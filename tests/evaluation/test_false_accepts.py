"""Strangers: counted where 95 % of right answers are accepted, and as a user has it."""

import math

import numpy as np
import pytest

from relograph.evaluation.false_accepts import (
    Strangers,
    accepting_95_percent,
    count_false_accepts,
    false_accepts_table,
)


@pytest.mark.parametrize(("count", "refused"), [(20, 1), (100, 5), (19, 0), (1, 0)])
def test_at_most_one_right_answer_in_twenty_is_refused(count, refused):
    right = np.linspace(0.5, 1.0, count)
    threshold = accepting_95_percent(right)
    assert (right < threshold).sum() == refused


def test_strangers_are_counted_from_that_threshold_on():
    right = np.linspace(0.61, 1.0, 40)  # 0.61, 0.62, ...: two are refused, so the threshold is 0.63
    strangers = Strangers("other homes", np.array([0.1, 0.62, 0.631, 0.9]), np.array([False, False, True, True]))
    (found,) = count_false_accepts(right, [strangers])
    assert found.at_95_percent == 0.5
    assert found.as_calibrated == 0.5
    assert found.as_row()["num_queries"] == 4


def test_without_right_answers_there_is_no_such_threshold():
    strangers = Strangers("other homes", np.array([0.4]), np.array([False]))
    (found,) = count_false_accepts(np.zeros(0), [strangers])
    assert math.isnan(found.at_95_percent)
    assert found.as_row()["false_accepts_at_95_percent"] is None
    assert "| other homes | 1 | – | 0.00% |" in false_accepts_table([found])
