"""Plots: the numbers behind the lines, and what makes a plot legible."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_predictions import predictions_with_errors
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from relograph.errors import ConfigError
from relograph.evaluation import Predictions
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.plots import (
    cumulative_errors_figure,
    errors_by_distance_figure,
    method_styles,
    rounds_figure,
    save_figure,
)

LOST = float("inf")
NAMES = ("NetVLAD (copy top-1)", "NetVLAD + interpolation", "PoseNet", "AtLoc", "Baseline-1 (no GNN)")
NAMES += ("Baseline-2 (random graph)", "Baseline-3 (sequence graph)", "RelPoseGNN, world", "RelPoseGNN, camera")


def realistic(names: tuple[str, ...] = NAMES) -> dict[str, Predictions]:
    rng = np.random.default_rng(0)
    nearest_m = rng.gamma(2.0, 0.15, 60)
    return {
        name: predictions_with_errors(
            nearest_m * rng.lognormal(-0.1 * place, 0.5, 60), rng.lognormal(2.0, 0.7, 60), nearest_m=nearest_m
        )
        for place, name in enumerate(names)
    }


def line(axes: Axes, label: str) -> Line2D:
    return next(line for line in axes.lines if line.get_label() == label)


def share_below(axes: Axes, label: str, error: float) -> float:
    x, y = line(axes, label).get_data()
    return float(np.asarray(y)[np.asarray(x) < error][-1])


# Cumulative errors


def test_a_line_is_the_share_of_queries_below_each_error() -> None:
    errors_m = [0.02, 0.04, 0.08, 0.3]
    translation, rotation = cumulative_errors_figure({"a": predictions_with_errors(errors_m, [1, 4, 6, 20])}).axes
    assert share_below(translation, "a", 0.05) == pytest.approx(0.5)
    assert share_below(translation, "a", 0.25) == pytest.approx(0.75)
    assert share_below(rotation, "a", 5.0) == pytest.approx(0.5)


def test_failures_keep_the_line_below_one() -> None:
    translation, _ = cumulative_errors_figure({"a": predictions_with_errors([0.1, 0.2, LOST, LOST], [1] * 4)}).axes
    assert max(line(translation, "a").get_ydata()) == pytest.approx(0.5)


def test_scenes_count_the_same_however_many_queries_they_have() -> None:
    large = predictions_with_errors([0.01] * 8, [1] * 8, scene="large")
    small = predictions_with_errors([1.0] * 2, [1] * 2, scene="small")
    translation, _ = cumulative_errors_figure({"a": Predictions.cat([large, small])}).axes
    assert share_below(translation, "a", 0.5) == pytest.approx(0.5)


def test_thresholds_of_the_recalls_are_marked() -> None:
    translation, rotation = cumulative_errors_figure(realistic()).axes
    for axes, expected in ((translation, ["5 cm", "10 cm", "25 cm"]), (rotation, ["5°", "10°"])):
        assert [text.get_text() for text in axes.texts] == expected
    verticals = [line.get_xdata()[0] for line in translation.lines if list(line.get_ydata()) == [0, 1]]
    assert verticals == [0.05, 0.10, 0.25]


def test_errors_of_exactly_zero_have_a_place_on_the_logarithmic_axis() -> None:
    figure = cumulative_errors_figure({"a": predictions_with_errors([0.0, 0.0, 0.1], [0.0, 0.0, 1.0])})
    FigureCanvasAgg(figure).draw()
    assert min(line(figure.axes[0], "a").get_xdata()) == pytest.approx(1e-3)


# Errors by distance


def test_points_are_medians_of_bins_with_as_many_queries_each() -> None:
    nearest_m = np.arange(1, 13) / 10
    predictions = predictions_with_errors(nearest_m**2, nearest_m * 10, nearest_m=list(nearest_m))
    translation, rotation = errors_by_distance_figure({"a": predictions}, num_bins=4).axes
    x, y = line(translation, "a").get_data()
    assert list(x) == pytest.approx([0.2, 0.5, 0.8, 1.1])  # of 1 2 3, 4 5 6, 7 8 9, 10 11 12 tenths
    assert list(y) == pytest.approx([0.04, 0.25, 0.64, 1.21])
    assert list(line(rotation, "a").get_ydata()) == pytest.approx([2.0, 5.0, 8.0, 11.0])
    assert list(line(translation, "pose of the nearest reference").get_ydata()) == pytest.approx(list(x))


def test_the_band_reaches_from_quartile_to_quartile() -> None:
    errors_m = [0.1, 0.2, 0.3, 0.4, 0.5]
    predictions = predictions_with_errors(errors_m, [1] * 5, nearest_m=[0.2] * 5)
    translation, _ = errors_by_distance_figure({"a": predictions}).axes
    (band,) = (item for item in translation.collections if isinstance(item, PolyCollection))
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.2, 0.4))


def test_a_bin_that_was_mostly_not_localized_has_no_point_and_others_do() -> None:
    nearest_m = [0.1] * 5 + [0.9] * 5
    errors_m = [0.1] * 5 + [0.2] * 2 + [LOST] * 3
    figure = errors_by_distance_figure(
        {"a": predictions_with_errors(errors_m, [1] * 10, nearest_m=nearest_m)}, num_bins=2
    )
    FigureCanvasAgg(figure).draw()
    assert list(line(figure.axes[0], "a").get_xdata()) == [0.1]


def test_queries_without_a_reference_are_left_out() -> None:
    predictions = predictions_with_errors([0.1, 0.2, 5.0], [1] * 3, nearest_m=[0.1, 0.1, float("nan")])
    translation, _ = errors_by_distance_figure({"a": predictions}).axes
    assert list(line(translation, "a").get_ydata()) == pytest.approx([0.2])


# All of them


@pytest.mark.parametrize("draw", [cumulative_errors_figure, errors_by_distance_figure])
def test_nothing_localized_and_nothing_predicted_say_so(draw: object) -> None:
    everything_lost = {"a": predictions_with_errors([LOST] * 3, [0] * 3)}
    no_reference = replace(everything_lost["a"], nearest_reference_m=torch.full((3,), float("nan")).double())
    for methods in ({}, {"a": Predictions.cat([])}, everything_lost, {"a": no_reference}):
        figure = draw(methods)  # type: ignore[operator]  # one of the two functions
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:
            assert "no query was localized" in " ".join(text.get_text() for text in axes.texts)


@pytest.mark.parametrize("draw", [cumulative_errors_figure, errors_by_distance_figure])
def test_no_two_methods_look_alike_and_the_baseline_is_black(draw: object) -> None:
    figure = draw(realistic(), baseline=NAMES[0])  # type: ignore[operator]  # one of the two functions
    for axes in figure.axes:
        looks = {(line(axes, name).get_color(), line(axes, name).get_linestyle()) for name in NAMES}
        assert len({color for color, _ in looks}) == len(NAMES)
        assert line(axes, NAMES[0]).get_color() == "#22262b"
        assert axes.get_xlabel().endswith("[m]") or axes.get_xlabel().endswith("[°]")


def pixel_boxes(figure: Figure, texts: list[Text]) -> list[tuple[str, float, float, float, float]]:
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    return [(text, box.x0, box.y0, box.x1, box.y1) for text, box in boxes]


def visible_texts(figure: Figure) -> list[Text]:
    texts = list(figure.texts) + ([figure._suptitle] if figure._suptitle else [])  # type: ignore[attr-defined]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in dict.fromkeys(texts) if text.get_visible()]


@pytest.mark.parametrize("num_methods", [1, 3, 9])
@pytest.mark.parametrize("kind", ["cumulative", "distance", "rounds"])
def test_labels_are_on_the_page_and_do_not_overlap(kind: str, num_methods: int) -> None:
    methods = realistic(NAMES[:num_methods])
    setting = "C = 2048, images 256x341, camera target, 1,300,000 graphs a training"
    title = f"Scenes seen in training, SevenRooms\n{setting}, 10,400,000 images where there are no graphs"
    figure = {
        "cumulative": lambda: cumulative_errors_figure(methods, title=title),
        "distance": lambda: errors_by_distance_figure(methods, title=title),
        "rounds": lambda: rounds_figure(
            {(train, test): -float(train * test) for train in range(1, num_methods + 1) for test in (1, 2)},
            measured_on="room-5 of SevenRooms",
            published=paper_numbers().rounds,
            title=f"measured with {setting}",
        ),
    }[kind]()
    FigureCanvasAgg(figure).draw()
    boxes = pixel_boxes(figure, visible_texts(figure))
    assert len(boxes) > 10
    width, height = figure.canvas.get_width_height()
    for text, x0, y0, x1, y1 in boxes:
        assert 0 <= x0 < x1 <= width, text
        assert 0 <= y0 < y1 <= height, text
    for (text_a, ax0, ay0, ax1, ay1), (text_b, bx0, by0, bx1, by1) in itertools.combinations(boxes, 2):
        assert ax1 <= bx0 or bx1 <= ax0 or ay1 <= by0 or by1 <= ay0, (text_a, text_b)


def test_long_names_of_methods_stay_within_the_legend() -> None:
    names = tuple(f"a method with a name that goes on and on, number {number} of several" for number in range(5))
    figure = cumulative_errors_figure(realistic(names))
    FigureCanvasAgg(figure).draw()
    for _, x0, _, x1, _ in pixel_boxes(figure, list(figure.legends[0].get_texts())):
        assert 0 <= x0 < x1 <= figure.canvas.get_width_height()[0]


# Rounds


def test_the_grid_of_rounds_has_training_downwards_and_test_to_the_right() -> None:
    (axes,) = rounds_figure({(1, 1): -1.0, (2, 1): -0.5, (2, 4): -2.0}, measured_on="room-5").axes
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert places == {"−1.00": (0, 0), "−0.50": (0, 1), "−2.00": (1, 1)}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["R = 1", "R = 4"]
    assert axes.yaxis_inverted()
    (frame,) = (patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill())
    assert frame.contains_point(axes.transData.transform((1, 1)))  # around the lowest loss


def test_the_papers_grid_stands_beside_ours() -> None:
    published = paper_numbers().rounds
    _, paper = rounds_figure({(1, 1): 0.0}, measured_on="room-5", published=published).axes
    assert sorted(text.get_text() for text in paper.texts) == sorted(
        f"−{-loss:.2f}" for loss in published.losses.values()
    )
    assert paper.get_title() == "published on Pumpkin of 7-Scenes"


def test_no_rounds_are_an_empty_grid() -> None:
    figure = rounds_figure({}, measured_on="room-5")
    FigureCanvasAgg(figure).draw()
    assert not figure.axes[0].texts


# Files


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_same_figure_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        save_figure(cumulative_errors_figure(realistic(NAMES[:2])), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{suffix}", f"b.{suffix}"]


def test_a_saved_picture_has_ink_on_it(tmp_path: Path) -> None:
    save_figure(rounds_figure({(1, 1): 0.5}, measured_on="room-5"), tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    assert pixels.min() < 128 < pixels.max()


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"end in \.png, \.pdf, \.svg, found '\.gif'"):
        save_figure(rounds_figure({}, measured_on="x"), tmp_path / "a.gif")


def test_drawing_leaves_matplotlibs_state_alone(tmp_path: Path) -> None:
    code = """
import pathlib, sys, matplotlib
def settings():  # asking for the backend would choose one
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from relograph.evaluation.plots import rounds_figure, save_figure
save_figure(rounds_figure({(1, 1): 0.0}, measured_on="x"), pathlib.Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.svg")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_two_of_many_methods_look_alike() -> None:
    styles = method_styles([f"method {number}" for number in range(24)], "method 0")
    assert len({(style["color"], style["linestyle"]) for style in styles.values()}) == 24
