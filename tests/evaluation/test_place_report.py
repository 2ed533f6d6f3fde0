"""Tables, plots and sheets of a comparison."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.testing import assert_allclose
from PIL import Image

from evaluation.made_places import place_on_a_line
from relograph.evaluation import read_predictions
from relograph.evaluation.place_answers import MethodAnswers, QueryAnswer
from relograph.evaluation.place_methods import copy_first, copy_nearest
from relograph.evaluation.place_plots import acceptance_figure, errors_by_references_figure, recall_by_overlap_figure
from relograph.evaluation.place_report import (
    comparison_table,
    draw_comparison,
    draw_failures,
    write_answers,
    write_table,
)

PLACE = place_on_a_line([0.0, 1.0, 2.0], [0.1, 0.9, 2.3, 2.6])
REFERENCES = torch.tensor([[0, 1], [1, 0], [2, 1], [2, -1]])


def method(name: str, x_m: list[float | None], seconds: float) -> MethodAnswers:
    poses = [None if x is None else place_on_a_line([x], []).map.T_world_cam[0] for x in x_m]
    answers = [QueryAnswer(pose, network_seconds=seconds, solver_seconds=0.01) for pose in poses]
    return MethodAnswers.of_place(name, PLACE, REFERENCES, answers, np.array([0.5]))


METHODS = [
    copy_first(PLACE, REFERENCES),
    copy_nearest(PLACE),
    method("slow", [0.1, 0.9, 2.3, 2.6], 1.0),
    method("quick", [0.18, 0.9, None, None], 0.1),
]


def test_the_best_of_every_column_is_bold_and_copying_never_is():
    table = comparison_table("Corridor", [row.as_row() for row in METHODS], "4 queries.").markdown()
    copied, _, slow, quick = (line for line in table.splitlines() if "°" in line and "Median" not in line)
    assert "**" not in copied
    assert "**0.000 m**" in slow
    assert "∞ m" in quick
    assert slow.count("**100.0%**") == 3
    assert "**0.110**" in quick
    assert "**0.500**" in slow
    assert "**0.500**" in quick  # as good as the best


def test_a_short_table_has_the_named_columns_that_have_values():
    rows = [row.as_row() for row in METHODS]
    titles = {"25 cm 10°", "accepted", "s / query"}  # nobody told whether these would accept their answers
    table = comparison_table("Corridor", rows, "4 queries.", only=titles).markdown()
    (header,) = (line for line in table.splitlines() if "Median" in line)
    assert header == "| Method | Median | 25 cm 10° | s / query |"


def test_answers_are_on_disk_before_they_are_scored_and_read_the_same(tmp_path: Path):
    write_answers(tmp_path, METHODS[-1], {"dataset": "corridor"})
    predictions, metadata = read_predictions(tmp_path / "predictions" / "quick.csv.gz")
    assert metadata == {"method": "quick", "dataset": "corridor"}
    assert predictions.localized.tolist() == [True, True, False, False]


def test_a_comparison_draws_its_plots(tmp_path: Path):
    for path in draw_comparison(tmp_path, METHODS, "corridor"):
        with Image.open(path) as picture:
            assert picture.size[0] > 300
    write_table(tmp_path, comparison_table("Corridor", [row.as_row() for row in METHODS], "4 queries."))
    assert r"\begin{table*}" in (tmp_path / "table.tex").read_text()


def test_failures_come_from_the_place_that_they_happened_in(tmp_path: Path):
    """Two places one after the other: the worst answer is the second one's only query, whose photo is all white."""
    dark, bright = place_on_a_line([0.0], [0.1, 0.2], "dark"), place_on_a_line([0.0], [5.0], "bright")
    white = replace(bright.queries, read=lambda row: np.full((24, 32, 3), 255, dtype=np.uint8))
    bright = replace(bright, queries=white)
    parts = [(dark, torch.tensor([[0], [0]])), (bright, torch.tensor([[0]]))]
    whole = MethodAnswers.cat([copy_first(*part) for part in parts], "all")
    draw_failures(tmp_path / "failures.png", parts, whole.predictions, num_shown=1)
    with Image.open(tmp_path / "failures.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    height, width = pixels.shape[:2]
    query = pixels[height // 2, width // 2 - width // 12]  # inside the framed photo on the left
    assert query.tolist() == [255, 255, 255]


def test_recall_is_drawn_against_the_overlap_of_each_bin():
    quick = METHODS[-1]
    figure = recall_by_overlap_figure([quick], num_bins=2)
    line = figure.axes[0].lines[0]
    far, near = (quick.overlap <= np.median(quick.overlap)), (quick.overlap > np.median(quick.overlap))
    assert_allclose(sorted(line.get_xdata()), sorted(np.median(quick.overlap[some]) for some in (far, near)))
    assert sorted(line.get_ydata()) == [0.0, 1.0]  # both near ones are within 25 cm, neither of the far ones


def test_errors_are_drawn_against_the_number_of_references():
    figure = errors_by_references_figure({"ours": {7: (0.05, 1.5), 1: (0.2, 4.0)}})
    metres, degrees = (axes.lines[0] for axes in figure.axes)
    assert_allclose(metres.get_xdata(), [1, 7])
    assert_allclose(metres.get_ydata(), [0.2, 0.05])
    assert_allclose(degrees.get_ydata(), [4.0, 1.5])


def test_the_acceptance_curve_counts_strangers_at_every_threshold():
    right, strangers = np.array([0.2, 0.6, 0.8, 0.9]), np.array([0.1, 0.5, 0.7, 0.05])
    line = acceptance_figure(right, {"queries of other homes": strangers}).axes[0].lines[0]
    assert_allclose(line.get_xdata(), [1.0, 0.75, 0.5, 0.25])
    # Above 0.2 are two strangers of four, above 0.6 one, above 0.8 none: drawn as half of one.
    assert_allclose(line.get_ydata(), [0.5, 0.25, 0.125, 0.125])


def test_without_right_answers_the_acceptance_curve_says_that_there_is_nothing():
    figure = acceptance_figure(np.zeros(0), {"strangers": np.array([0.5])})
    assert any("nothing to draw" in text.get_text() for text in figure.axes[0].texts)
