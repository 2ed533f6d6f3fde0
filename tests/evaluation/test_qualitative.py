"""Best, median and worst cameras: the ranking by hand-made errors, and what is drawn of it."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from made_predictions import predictions_with_errors
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import DatasetError
from relograph.evaluation import Predictions
from relograph.evaluation.qualitative import (
    ANSWER_COLOR,
    TRUE_COLOR,
    chosen_ranks,
    draw_qualitative,
    rank_predictions,
    upright_page,
)
from relograph.geometry import Pose

LEGEND_PIXELS = 50


def at_the_origin(axis_angles: list[list[float]], centers: list[list[float]], **options: object) -> Predictions:
    """Answers to queries whose true camera stands at the origin and looks along z."""
    frames = [f"heads/seq-01/frame-{idx:06d}.color.png" for idx in range(len(centers))]
    answers = Pose.from_axis_angle(axis_angles, centers)
    return Predictions.from_poses(["heads"] * len(frames), frames, Pose.identity(len(frames)), answers, **options)


def map_cameras() -> Pose:
    """Cameras in a square of two metres around the origin that look along z."""
    centers = torch.tensor([[x, 0.0, z] for x in (-1.0, 1.0) for z in (-1.0, 1.0)])
    return Pose.from_axis_angle(torch.zeros(4, 3), centers)


def places_of(path, color: str) -> np.ndarray:
    """Pixels (x, y) of a colour above the legend."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        pixels = np.array(picture.convert("RGB")).astype(float)[:-LEGEND_PIXELS]
    there = np.abs(pixels - 255 * np.array(to_rgb(color))).max(axis=-1) < 12
    return np.argwhere(there)[:, ::-1]


# The ranking


def test_answers_are_ranked_by_metres_plus_20_times_half_radians():
    # |t|_1 + e^3 |log q|_1 with log q half the axis-angle vector, by hand: 1.0, 0.3 + 0.4 = 0.7, 20.0855 * 0.1 = 2.01,
    # 0.5 + 20.0855 * 0.01 = 0.70086, 0.
    predictions = at_the_origin(
        [[0, 0, 0], [0, 0, 0], [0.2, 0, 0], [0, 0, -0.02], [0, 0, 0]],
        [[0, -1.0, 0], [0.3, 0, -0.4], [0, 0, 0], [0, 0.5, 0], [0, 0, 0]],
    )
    assert rank_predictions(predictions).tolist() == [4, 1, 3, 0, 2]


def test_a_ranking_does_not_depend_on_the_order_of_the_queries():
    errors = [0.4, 0.1, 0.9, 0.02, 0.5]
    predictions = predictions_with_errors(errors, [0.0] * 5)
    ranked = [predictions.frame[row] for row in rank_predictions(predictions).tolist()]
    reordered = [3, 1, 4, 0, 2]
    moved = Predictions.from_poses(
        [predictions.scene[row] for row in reordered],
        [predictions.frame[row] for row in reordered],
        predictions.T_world_true[reordered],
        predictions.T_world_cam[reordered],
    )
    assert [moved.frame[row] for row in rank_predictions(moved).tolist()] == ranked


def test_queries_that_were_not_localized_come_last():
    predictions = predictions_with_errors([math.inf, 5.0, math.inf, 0.1], [math.inf, 90.0, math.inf, 1.0])
    assert rank_predictions(predictions).tolist() == [3, 1, 0, 2]


def test_a_good_answer_for_a_camera_turned_by_180_degrees_is_not_the_worst():
    # 179 and -179 degrees about z are 2 degrees apart, though their logs are nearly pi apart.
    turn = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    true = Pose.from_axis_angle(torch.stack([turn * math.radians(179), 0 * turn]), torch.zeros(2, 3))
    answers = Pose.from_axis_angle(torch.stack([-turn * math.radians(179), turn * math.radians(3)]), torch.zeros(2, 3))
    predictions = Predictions.from_poses(["heads"] * 2, ["heads/a", "heads/b"], true, answers)
    assert rank_predictions(predictions).tolist() == [0, 1]


def test_the_paper_shows_ranks_1_to_3_2499_to_2501_and_4998_to_5000_of_5000():
    ranks = [rank + 1 for rank in chain.from_iterable(chosen_ranks(5000).values())]
    assert ranks == [1, 2, 3, 2499, 2500, 2501, 4998, 4999, 5000]


@pytest.mark.parametrize("num_queries", range(1, 30))
def test_no_rank_is_shown_twice_and_the_first_and_the_last_always_are(num_queries):
    groups = chosen_ranks(num_queries)
    ranks = list(chain.from_iterable(groups.values()))
    assert ranks == sorted(set(ranks))
    assert (ranks[0], ranks[-1]) == (0, num_queries - 1)
    assert len(ranks) == (9 if num_queries >= 9 else num_queries // 3 * 3 if num_queries >= 3 else num_queries)


# The figure


def test_truth_is_green_and_answers_are_blue(tmp_path):
    draw_qualitative(at_the_origin([[0.0, 0, 0]], [[1.0, 0, 0]]), map_cameras(), tmp_path / "figure.png", "heads")
    assert len(places_of(tmp_path / "figure.png", TRUE_COLOR)) > 100
    assert len(places_of(tmp_path / "figure.png", ANSWER_COLOR)) > 50


@pytest.mark.parametrize(
    ("center", "axis", "sign"),
    [([1.0, 0, 0], 0, 1), ([-1.0, 0, 0], 0, -1), ([0, 1.0, 0], 1, 1), ([0, -1.0, 0], 1, -1)],
    ids=["right", "left", "below", "above"],
)
def test_an_answer_is_drawn_on_the_side_where_it_lies(tmp_path, center, axis, sign):
    # The camera's x is right and its y is down; on the page x grows to the right and y grows down.
    draw_qualitative(at_the_origin([[0.0, 0, 0]], [center]), map_cameras(), tmp_path / "figure.png", "heads")
    true, answer = (places_of(tmp_path / "figure.png", color).mean(axis=0) for color in (TRUE_COLOR, ANSWER_COLOR))
    assert sign * (answer - true)[axis] > 25


def test_a_query_that_was_not_localized_is_never_drawn_as_a_guess(tmp_path):
    lost = at_the_origin([[0.0, 0, 0]], [[1.0, 0, 0]], reason=["no reference images"])
    draw_qualitative(lost, map_cameras(), tmp_path / "figure.png", "heads")
    assert len(places_of(tmp_path / "figure.png", TRUE_COLOR)) > 100
    assert len(places_of(tmp_path / "figure.png", ANSWER_COLOR)) == 0


def test_nine_queries_make_nine_panels(tmp_path):
    predictions = at_the_origin([[0.0, 0, 0]] * 9, [[0.1 * idx, 0, 0] for idx in range(9)])
    draw_qualitative(predictions, map_cameras(), tmp_path / "figure.png", "heads")
    x, y = places_of(tmp_path / "figure.png", TRUE_COLOR).T
    with Image.open(tmp_path / "figure.png") as picture:
        width, height = picture.size
    panels = {(column, row) for column, row in zip(x * 3 // width, y * 3 // (height - LEGEND_PIXELS), strict=True)}
    assert panels == {(column, row) for column in range(3) for row in range(3)}
    assert (tmp_path / "figure.png").stat().st_size < 1e6


def test_an_answer_far_outside_and_a_map_without_cameras_are_drawn(tmp_path):
    far = at_the_origin([[0.0, 0, 0]], [[5000.0, 0, 0]])
    draw_qualitative(far, Pose.identity(0), tmp_path / "figure.png", "heads")
    for color in (TRUE_COLOR, ANSWER_COLOR):
        assert len(places_of(tmp_path / "figure.png", color)) > 50


def test_no_predictions_are_refused_in_one_line(tmp_path):
    with pytest.raises(DatasetError, match="found none") as caught:
        draw_qualitative(Predictions.cat([]), map_cameras(), tmp_path / "a.png", "")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_predictions_in_two_scenes_are_refused_in_one_line(tmp_path):
    both = Predictions.cat([predictions_with_errors([0.1], [1.0], scene=scene) for scene in ("chess", "fire")])
    with pytest.raises(DatasetError, match="in one scene, found chess, fire") as caught:
        draw_qualitative(both, map_cameras(), tmp_path / "figure.png", "")
    assert "\n" not in str(caught.value)


def test_a_figure_replaces_the_one_before_whole(tmp_path):
    (tmp_path / "figure.png").write_text("old")
    draw_qualitative(predictions_with_errors([0.1], [1.0]), map_cameras(), tmp_path / "figure.png", "kitchen")
    assert len(places_of(tmp_path / "figure.png", TRUE_COLOR)) > 100
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_a_place_that_cannot_be_written_to_is_one_clear_line_and_no_litter(tmp_path):
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(DatasetError, match=r"figure\.png") as caught:
        draw_qualitative(predictions_with_errors([0.1], [1.0]), map_cameras(), tmp_path / "figure.png", "kitchen")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


# Which way is up


def test_the_page_is_right_ahead_and_up_of_an_upright_camera():
    # OpenCV's axes: x right, y down, z forward.
    assert_allclose(upright_page(Pose.identity(3)).R, [[1, 0, 0], [0, 0, 1], [0, -1, 0]], atol=1e-12)


@pytest.mark.parametrize("turned", ["down", "opposed"])
def test_a_page_is_upright_whatever_the_cameras_look_at(turned):
    level, looking_down = Pose.identity(), Pose.from_axis_angle([-math.pi / 2, 0, 0], [0.0, 0, 0])
    upside_down = Pose.from_axis_angle([0, 0, math.pi], [0.0, 0, 0])
    assert_allclose(looking_down.R[:, 2], [0, 1, 0], atol=1e-12)  # y is down
    cameras = [looking_down, *[level] * 60] if turned == "down" else [level, upside_down]
    R_page_world = upright_page(Pose.stack(cameras)).R
    assert_allclose(R_page_world @ R_page_world.mT, np.eye(3), atol=1e-12)
    assert_allclose(torch.linalg.det(R_page_world), 1)
    assert_allclose(R_page_world[2], [0, -1, 0], atol=0.05)
