"""Plots of errors: how many queries are within an error, how errors grow with distance, how rounds matter.

Every function returns a `Figure` of its own and leaves matplotlib's state alone, so plots can be drawn in threads, in
services and without a display. Colours are those of Okabe and Ito, which people with colour-blindness tell apart, and
two more; line styles tell them apart once again.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from relograph.errors import ConfigError
from relograph.evaluation.metrics import RECALL_THRESHOLDS, prediction_errors
from relograph.evaluation.paper_numbers import PublishedRounds
from relograph.evaluation.predictions import Predictions
from relograph.evaluation.writing import write_whole

FORMATS = ("png", "pdf", "svg")

INK, GREY, PALE = "#22262b", "#6b7480", "#cdd3da"
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7B4B2A", "#882255")
_LINE_STYLES = ("-", (0, (6, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


@dataclass(frozen=True)
class _Kind:
    """One of the two kinds of error."""

    label: str
    smallest: float
    """Where an axis begins at the earliest; errors below it are drawn there."""
    thresholds: tuple[float, ...]
    threshold_text: Callable[[float], str]


_KINDS = (
    _Kind(
        "translation error [m]",
        1e-3,
        tuple(sorted({metres for metres, _ in RECALL_THRESHOLDS.values()})),
        lambda metres: f"{100 * metres:g} cm",
    ),
    _Kind(
        "rotation error [°]",
        1e-2,
        tuple(sorted({degrees for _, degrees in RECALL_THRESHOLDS.values()})),
        lambda degrees: f"{degrees:g}°",
    ),
)


@dataclass(frozen=True)
class _Errors:
    """What is drawn of one method; each pair is translation in metres, rotation in degrees."""

    errors: tuple[Float64[np.ndarray, "Q"], Float64[np.ndarray, "Q"]]
    nearest: tuple[Float64[np.ndarray, "Q"], Float64[np.ndarray, "Q"]]
    weight: Float64[np.ndarray, "Q"]
    """Adds up to 1; every scene has the same share, as in the averages of tables."""


def cumulative_errors_figure(
    predictions_by_method: Mapping[str, Predictions], *, baseline: str | None = None, title: str = ""
) -> Figure:
    """The share of queries below each error, translation and rotation side by side, a line for each method.

    Scenes count the same, however many queries they have. Queries that were not localized keep a line below 100 %. Thin
    verticals are the thresholds of the recalls. The method called `baseline` is drawn in black.
    """
    methods = {name: _errors_of(predictions) for name, predictions in predictions_by_method.items()}
    styles = method_styles(list(methods), baseline)
    figure, panels = two_panels(title)
    for kind, (axes, about) in enumerate(zip(panels, _KINDS, strict=True)):
        axes.set_xscale("log")
        label_in_plain_numbers(axes.xaxis)
        errors = [method.errors[kind] for method in methods.values()]
        axes.set_xlim(_limits(errors, about, about.thresholds))
        for name, method in methods.items():
            order = np.argsort(method.errors[kind])
            order = order[np.isfinite(method.errors[kind][order])]
            error = np.maximum(method.errors[kind][order], about.smallest)
            share = np.cumsum(method.weight[order])
            axes.plot(error, share, drawstyle="steps-post", label=name, **styles[name])
        for threshold in about.thresholds:
            axes.axvline(threshold, color=PALE, linewidth=1.0, zorder=0)
            axes.text(
                threshold, 1.012, about.threshold_text(threshold), color=GREY, fontsize=8, ha="center", va="bottom"
            )
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        finish_axes(axes, about.label, "" if kind else "queries with a smaller error", errors)
    legend_below(figure, panels[0])
    return figure


def errors_by_distance_figure(
    predictions_by_method: Mapping[str, Predictions],
    *,
    baseline: str | None = None,
    num_bins: int = 8,
    title: str = "",
) -> Figure:
    """Errors against the distance to the nearest reference image: medians and quartiles of the queries in bins.

    Bins hold about the same number of queries each and are the same for all methods. A method has no point where half
    of a bin was not localized. The dotted line is the error of a retrieval that always knows the nearest reference and
    copies its pose.
    """
    methods = {name: _errors_of(predictions) for name, predictions in predictions_by_method.items()}
    styles = method_styles(list(methods), baseline)
    distance_m = np.concatenate([np.zeros(0), *(method.nearest[0] for method in methods.values())])
    edges = bin_edges(distance_m, num_bins)
    figure, panels = two_panels(title)
    for kind, (axes, about) in enumerate(zip(panels, _KINDS, strict=True)):
        axes.set_yscale("log")
        label_in_plain_numbers(axes.yaxis)
        drawn = []
        for name, method in methods.items():
            x, quartiles = _quartiles_by_bin(method.nearest[0], method.errors[kind], edges)
            drawn.append(quartiles.ravel())
            known = np.isfinite(quartiles[:, 1])
            low, median, high = np.maximum(quartiles[known], about.smallest).T
            axes.plot(x[known], median, marker="o", markersize=3.5, label=name, **styles[name])
            high = np.minimum(high, 1e6)  # beyond any axis, where a quarter of the queries was not localized
            band = {"color": styles[name]["color"], "alpha": min(0.16, 0.5 / len(methods)), "linewidth": 0}
            axes.fill_between(x[known], low, high, zorder=1, **band)
        copied = np.concatenate([np.zeros(0), *(method.nearest[kind] for method in methods.values())])
        x, quartiles = _quartiles_by_bin(distance_m, copied, edges)
        median = np.maximum(quartiles[:, 1], about.smallest)
        axes.plot(x, median, ":", color=GREY, linewidth=1.5, label="pose of the nearest reference", zorder=2)
        axes.set_ylim(_limits([*drawn, median], about, ()))
        axes.set_xlim(0, 1.02 * x[-1] if len(x) and x[-1] > 0 else 1)
        finish_axes(axes, "distance to the nearest reference [m]", about.label, drawn)
    legend_below(figure, panels[0])
    return figure


def rounds_figure(
    losses: Mapping[tuple[int, int], float],
    *,
    measured_on: str,
    published: PublishedRounds | None = None,
    title: str = "",
) -> Figure:
    """The loss by rounds of message passing in training and at test time, and the paper's beside it.

    Keys are (rounds in training, rounds at test time). Lower is better, and the lowest is framed. Each grid has colours
    of its own: losses on different data cannot be compared.
    """
    grids = {f"measured on {measured_on}": losses}
    if published is not None:
        grids[f"published on {published.scene} of {published.dataset}"] = published.losses
    figure = Figure(figsize=(0.6 + 3.9 * len(grids), 4.2), dpi=130, facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    for axes, (heading, grid) in zip(panels, grids.items(), strict=True):
        _draw_grid(axes, grid)
        axes.set_title(heading, fontsize=10, color=INK, pad=8)
    panels[0].set_ylabel("rounds in training", color=INK)
    if title:
        figure.suptitle(title, fontsize=10.5, color=INK)
    return figure


def training_figure(log: Sequence[Mapping[str, float | None]], *, title: str = "") -> Figure:
    """The loss of a training against its steps, and that of the validations, from the rows of its log."""
    figure = Figure(figsize=(7.2, 3.8), dpi=130, facecolor="white", layout="constrained")
    axes = figure.subplots()
    drawn = []
    styles = method_styles(["validation_loss"], None)
    for name, label, style in (
        ("loss", "training", {"color": GREY, "linewidth": 1.2, "marker": ".", "markersize": 3}),
        ("validation_loss", "validation", {"marker": "o", "markersize": 3.5, **styles["validation_loss"]}),
    ):
        points = [(row["step"], row[name]) for row in log if row.get(name) is not None and row.get("step") is not None]
        steps, losses = np.array(points, dtype=np.float64).reshape(-1, 2).T
        axes.plot(steps, losses, label=label, **style)
        drawn.append(losses)
    if title:
        axes.set_title(title, fontsize=11, color=INK)
    finish_axes(axes, "steps", "loss", drawn)
    legend_below(figure, axes)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, PDF or SVG file, whole or not at all; the same figure gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(
            f"{path}: expected the name of a picture to end in {', '.join(f'.{name}' for name in FORMATS)}, found "
            f"{path.suffix!r}. Rename it."
        )
    write_whole(path, figure_bytes(figure, kind))


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as PNG, PDF or SVG; the same figure gives the same bytes."""
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "relograph"}):  # else names inside the file are random
        figure.savefig(content, format=kind, metadata=undated)
    return content.getvalue()


# What is drawn


def _errors_of(predictions: Predictions) -> _Errors:
    errors = prediction_errors(predictions)
    scenes, scene_idx, counts = np.unique(
        np.array(predictions.scene, dtype=str), return_inverse=True, return_counts=True
    )
    return _Errors(
        errors=(errors.translation_error_m.numpy(), errors.rotation_error_deg.numpy()),
        nearest=(predictions.nearest_reference_m.numpy(), predictions.nearest_reference_deg.numpy()),
        weight=1 / (counts[scene_idx] * float(max(len(scenes), 1))),
    )


def bin_edges(distance_m: Float64[np.ndarray, "P"], num_bins: int) -> Float64[np.ndarray, "edges"]:
    """Edges of at most that many bins with about as many distances in each."""
    known = distance_m[np.isfinite(distance_m)]
    if not len(known):
        return np.zeros(0)
    return np.unique(np.quantile(known, np.linspace(0, 1, num_bins + 1)))


def _quartiles_by_bin(
    distance_m: Float64[np.ndarray, "Q"], error: Float64[np.ndarray, "Q"], edges: Float64[np.ndarray, "edges"]
) -> tuple[Float64[np.ndarray, "bins"], Float64[np.ndarray, "bins 3"]]:
    """The median distance in each bin that holds queries, and the quartiles of the errors there."""
    known = np.isfinite(distance_m)
    bin_idx = np.searchsorted(edges[1:-1], distance_m[known], side="right")
    bins = [(distance_m[known][bin_idx == i], error[known][bin_idx == i]) for i in np.unique(bin_idx)]
    x = [float(np.median(distances)) for distances, _ in bins]
    # An infinite error cannot be interpolated: NaN otherwise, between it and a finite one.
    quartiles = [np.quantile(errors, (0.25, 0.5, 0.75), method="higher") for _, errors in bins]
    return np.array(x), np.array(quartiles).reshape(-1, 3)


# How it looks


def two_panels(title: str) -> tuple[Figure, list[Axes]]:
    """A white figure with two axes side by side."""
    layout = ConstrainedLayoutEngine(wspace=0.06)
    figure = Figure(figsize=(11, 5.0), dpi=130, facecolor="white", layout=layout)
    panels = list(figure.subplots(1, 2))
    if title:
        figure.suptitle(title, fontsize=10.5, color=INK)
    return figure, panels


def method_styles(names: Sequence[str], baseline: str | None) -> dict[str, dict[str, Any]]:
    """How the line of each method looks, by its place in the order, so that it looks alike in every panel."""
    styles: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(name for name in names if name != baseline):
        again, color_idx = divmod(place, len(_COLORS))  # a color that comes again has another line
        color, line_style = _COLORS[color_idx], _LINE_STYLES[(color_idx + again) % len(_LINE_STYLES)]
        styles[name] = {"color": color, "linestyle": line_style, "linewidth": 1.9, "zorder": 3}
    if baseline is not None:
        styles[baseline] = {"color": INK, "linestyle": "-", "linewidth": 1.9, "zorder": 2}
    return styles


def _limits(errors: Iterable[Float64[np.ndarray, "_"]], about: _Kind, shown: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis of a decade or more, without the outermost hundredths but with the values `shown`."""
    finite = np.concatenate([np.zeros(0), *(values[np.isfinite(values)] for values in errors)])
    finite = np.maximum(finite, about.smallest) if len(finite) else np.array(about.thresholds)
    low, high = np.quantile(finite, (0.01, 0.99))
    low, high = min([low, *shown]) / 1.3, max([high, *shown]) * 1.3
    half_a_decade, middle = math.sqrt(10), math.sqrt(low * high)
    return min(low, middle / half_a_decade), max(high, middle * half_a_decade)


def label_in_plain_numbers(axis: Axis) -> None:
    """A logarithmic axis that says 0.1, 0.2, 0.5, 1 instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finish_axes(axes: Axes, x_label: str, y_label: str, drawn: Iterable[Float64[np.ndarray, "_"]]) -> None:
    """Labels, a pale grid and no frame; where nothing of what was `drawn` is finite, a sentence says so."""
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.grid(color="#eef0f3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=GREY, labelcolor=INK, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    if not any(np.isfinite(values).any() for values in drawn):
        axes.text(
            0.5,
            0.5,
            "nothing to draw: no query was localized",
            transform=axes.transAxes,
            ha="center",
            va="center",
            color=GREY,
        )


CHARACTERS_PER_INCH = 13.3
"""Of a legend's line."""


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for all axes, in as many columns as have room."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        room = int(CHARACTERS_PER_INCH * figure.get_figwidth())
        columns = max(1, min(4, len(labels), room // (max(map(len, labels)) + 11)))
        # Handles as long as show two dashes beside a marker.
        figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=4.4
        )


def _draw_grid(axes: Axes, losses: Mapping[tuple[int, int], float]) -> None:
    trained, tested = sorted({train for train, _ in losses}), sorted({test for _, test in losses})
    low, high = min(losses.values(), default=0.0), max(losses.values(), default=1.0)
    colors = mpl.colormaps["cividis_r"]
    for (train, test), loss in losses.items():
        column, row = tested.index(test), trained.index(train)
        # The darkest and the lightest tenths are left out: numbers are read better on the rest.
        place = 0.1 + 0.8 * ((loss - low) / (high - low) if high > low else 1.0)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colors(1 - place), edgecolor="white", lw=2))
        best = math.isclose(loss, low)
        ink = "white" if 1 - place > 0.5 else INK
        axes.text(
            column,
            row,
            f"{loss:.2f}".replace("-", "\N{MINUS SIGN}"),
            color=ink,
            ha="center",
            va="center",
            weight="bold" if best else "normal",
        )
        if best:
            axes.add_patch(
                Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", lw=2.2, zorder=3)
            )
    axes.set(xlim=(-0.5, max(len(tested), 1) - 0.5), ylim=(max(len(trained), 1) - 0.5, -0.5))
    axes.set_xticks(range(len(tested)), [f"R = {rounds}" for rounds in tested])
    axes.set_yticks(range(len(trained)), [f"R = {rounds}" for rounds in trained])
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel("rounds at test time", color=INK)
    axes.set_facecolor("#f3f5f7")
    for spine in axes.spines.values():
        spine.set_visible(False)
