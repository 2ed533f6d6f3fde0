"""Answers with their truth: what counts as localized, and why not."""

import math

import pytest
import torch

from relograph.evaluation.evaluating import as_predictions
from relograph.geometry import Pose
from relograph.graphs import PosedImages
from relograph.training.config import GraphConfig
from relograph.training.data import RelocalizationData
from relograph.training.running import graph_rows


def three_queries_and_a_reference() -> PosedImages:
    return PosedImages(
        images=torch.zeros(4, 2, 2, 3, dtype=torch.uint8),
        T_world_cam=Pose.from_axis_angle(
            torch.zeros(4, 3), torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 0, 2]])
        ),
        scene_idx=torch.zeros(4, dtype=torch.long),
        sequence_idx=torch.tensor([0, 0, 0, 1]),
        in_map=torch.tensor([False, False, False, True]),
        names=("a", "b", "c", "map"),
        scene_names=("kitchen",),
    )


def test_an_answer_that_is_not_finite_is_none_and_says_so():
    frames, queries = three_queries_and_a_reference(), torch.tensor([0, 1, 2])
    T_world_cam = Pose(torch.eye(3).repeat(3, 1, 1), torch.zeros(3, 3))
    T_world_cam.t[1] = math.nan
    T_world_cam.R[2] = math.inf
    everywhere = torch.ones(3, dtype=torch.bool)
    predictions = as_predictions(frames, queries, T_world_cam, everywhere, torch.tensor([3, 3, 3]))
    assert predictions.localized.tolist() == [True, False, False]
    assert predictions.reason == ("", "the pose is not finite", "the pose is not finite")
    assert predictions.top1 == ("map", "map", "map")


def test_a_query_without_references_is_told_apart_from_a_broken_answer():
    frames, queries = three_queries_and_a_reference(), torch.tensor([0, 1])
    T_world_cam = Pose(torch.eye(3).repeat(2, 1, 1), torch.zeros(2, 3))
    T_world_cam.t[0] = math.nan
    predictions = as_predictions(frames, queries, T_world_cam, torch.tensor([False, True]), torch.tensor([-1, 3]))
    assert predictions.reason == ("the map has no reference images of this scene", "")
    assert predictions.top1 == ("", "map")
    # One metre to the right of the origin, and two metres behind the reference.
    assert predictions.nearest_reference_m[1].item() == pytest.approx(math.sqrt(5))


def test_a_sequence_of_query_frames_has_none_of_the_map_where_both_were_filmed_in_one_go():
    frames = PosedImages(
        images=torch.zeros(9, 2, 2, 3, dtype=torch.uint8),
        T_world_cam=Pose.from_axis_angle(torch.zeros(9, 3), torch.zeros(9, 3)),
        scene_idx=torch.zeros(9, dtype=torch.long),
        sequence_idx=torch.zeros(9, dtype=torch.long),
        in_map=torch.tensor([True, False] * 4 + [True]),
        names=tuple("abcdefghi"),
        scene_names=("kitchen",),
    )
    held_out = torch.tensor([False] * 8 + [True])
    data = RelocalizationData(frames, ~frames.in_map, held_out, "one sequence, every other frame for the test")
    graph = GraphConfig(num_nodes=4, selection="sequence")
    rows = graph_rows(data.test_rows(["kitchen"]), frames.in_map, None, data, graph)
    assert rows[:, 0].tolist() == [1, 3, 5, 7]
    assert all(sorted(row) == [1, 3, 5, 7] for row in rows.tolist())
