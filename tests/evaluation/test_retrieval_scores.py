"""References against the best that a map would have allowed."""

import pytest
import torch

from relograph.evaluation.retrieval_scores import retrieval_scores


def test_scores_are_over_the_queries_of_all_homes():
    one, other = torch.tensor([[0.8, 0.4, 0.0]]), torch.tensor([[0.1, 0.2, 0.29], [0.5, 0.5, 0.5]])
    scores = retrieval_scores([(one, torch.tensor([[2, 1]])), (other, torch.tensor([[2, 1], [0, 1]]))], 2)
    assert (scores.num_queries, scores.num_references) == (3, 2)
    assert scores.share_with_useful == pytest.approx(2 / 3)
    assert scores.share_with_useful_in_map == pytest.approx(2 / 3)
    assert scores.mean_overlap == pytest.approx((0.0 + 0.4 + 0.29 + 0.2 + 0.5 + 0.5) / 6)
    assert scores.mean_overlap_possible == pytest.approx((0.8 + 0.4 + 0.29 + 0.2 + 0.5 + 0.5) / 6)
    assert scores.mean_best_overlap == pytest.approx((0.4 + 0.29 + 0.5) / 3)
    assert scores.mean_best_overlap_possible == pytest.approx((0.8 + 0.29 + 0.5) / 3)


def test_references_that_are_missing_are_not_counted():
    scores = retrieval_scores([(torch.tensor([[0.6]]), torch.tensor([[0, -1]]))], 2)
    assert scores.mean_overlap == scores.mean_overlap_possible == pytest.approx(0.6)
    assert "100.0% of 1 queries have a reference that shows more than 30%" in scores.text()
