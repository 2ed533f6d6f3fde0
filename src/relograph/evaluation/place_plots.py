"""Plots of what decides whether a query is localized: what its references see, how many they are, how sure it seems."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from relograph.evaluation.metrics import RECALL_THRESHOLDS, prediction_errors
from relograph.evaluation.place_answers import MethodAnswers
from relograph.evaluation.plots import (
    GREY,
    INK,
    bin_edges,
    finish_axes,
    label_in_plain_numbers,
    legend_below,
    method_styles,
    two_panels,
)

SHOWN_RECALLS = ("recall_25cm_10deg", "recall_10cm_5deg")


NUM_OVERLAP_BINS = 6


def rows_by_overlap(methods: Sequence[MethodAnswers], num_bins: int = NUM_OVERLAP_BINS) -> list[dict[str, object]]:
    """Errors and recalls of each method against how much of a query's view its best reference shows.

    Bins hold about the same number of queries each and are the same for all methods.
    """
    edges = bin_edges(np.concatenate([np.zeros(0), *(method.overlap for method in methods)]), num_bins)
    rows: list[dict[str, object]] = []
    for method in methods:
        errors = prediction_errors(method.predictions)
        bin_idx = np.searchsorted(edges[1:-1], method.overlap, side="right")
        for number in np.unique(bin_idx):
            of_bin = bin_idx == number
            medians = [np.median(e.numpy()[of_bin]) for e in (errors.translation_error_m, errors.rotation_error_deg)]
            rows.append(
                {
                    "method": method.name,
                    "median_overlap": float(np.median(method.overlap[of_bin])),
                    "num_queries": int(of_bin.sum()),
                    "median_translation_error_m": float(medians[0]) if np.isfinite(medians[0]) else None,
                    "median_rotation_error_deg": float(medians[1]) if np.isfinite(medians[1]) else None,
                    **{recall: float(is_within(method, recall)[of_bin].mean()) for recall in SHOWN_RECALLS},
                }
            )
    return rows


def recall_by_overlap_figure(
    methods: Sequence[MethodAnswers],
    *,
    baseline: str | None = None,
    num_bins: int = NUM_OVERLAP_BINS,
    title: str = "",
) -> Figure:
    """The share of queries that are localized, against how much of their view the best reference shows."""
    styles = method_styles([method.name for method in methods], baseline)
    rows = rows_by_overlap(methods, num_bins)
    figure, panels = two_panels(title)
    for axes, recall in zip(panels, SHOWN_RECALLS, strict=True):
        drawn = []
        for method in methods:
            points = [(row["median_overlap"], row[recall]) for row in rows if row["method"] == method.name]
            middle, share = np.array(points, dtype=np.float64).reshape(-1, 2).T
            axes.plot(middle, share, marker="o", markersize=3.5, label=method.name, **styles[method.name])
            drawn.append(share)
        _shares(axes, "x", "y")
        finish_axes(axes, "share of the view that the best reference shows", _within_text(recall), drawn)
    legend_below(figure, panels[0])
    return figure


def errors_by_references_figure(
    rows: Mapping[str, Mapping[int, tuple[float, float]]], *, baseline: str | None = None, title: str = ""
) -> Figure:
    """Median errors, in metres and degrees, against the number of references, a line for each method."""
    styles = method_styles(list(rows), baseline)
    figure, panels = two_panels(title)
    labels = ("median translation error [m]", "median rotation error [°]")
    for kind, (axes, label) in enumerate(zip(panels, labels, strict=True)):
        drawn = []
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name, errors_by_count in rows.items():
            counts = sorted(errors_by_count)
            errors = np.array([errors_by_count[count][kind] for count in counts])
            axes.plot(counts, errors, marker="o", markersize=3.5, label=name, **styles[name])
            drawn.append(errors)
        ticks = sorted({count for errors_by_count in rows.values() for count in errors_by_count})
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        label_in_plain_numbers(axes.yaxis)
        finish_axes(axes, "references", label, drawn)
    legend_below(figure, panels[0])
    return figure


def acceptance_figure(
    right: Float64[np.ndarray, "R"], strangers: Mapping[str, Float64[np.ndarray, "_"]], *, title: str = ""
) -> Figure:
    """Strangers that are accepted against right answers that are, over all thresholds of the confidence.

    `right` are confidences of right answers; `strangers` those of queries that are not in the map, by kind.
    """
    figure = Figure(figsize=(6.4, 5.0), dpi=130, facecolor="white", layout="constrained")
    axes = figure.subplots()
    thresholds = np.sort(right)
    accepted = 1 - np.arange(len(thresholds)) / max(len(thresholds), 1)
    styles = method_styles(list(strangers), None)
    drawn = []
    for kind, confidence in strangers.items():
        if len(confidence) and len(right):
            wrong = (confidence[None] >= thresholds[:, None]).mean(axis=1)
            # A logarithm has no place for none, of which all that is known is that they are fewer than one.
            axes.plot(accepted, np.maximum(wrong, 0.5 / len(confidence)), label=kind, **styles[kind])
            drawn.append(wrong)
    axes.axvline(0.95, color=GREY, linewidth=1.0, linestyle=":")
    axes.axhline(0.01, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_yscale("log")
    axes.set_xlim(0.5, 1.0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    if title:
        axes.set_title(title, fontsize=11, color=INK)
    finish_axes(axes, "right answers that are accepted", "strangers that are accepted (none: as half of one)", drawn)
    legend_below(figure, axes)
    return figure


def is_within(method: MethodAnswers, recall: str) -> Bool[np.ndarray, "Q"]:
    """Of each query, whether both errors are below the thresholds of a recall."""
    metres, degrees = RECALL_THRESHOLDS[recall]
    errors = prediction_errors(method.predictions)
    return np.asarray(((errors.translation_error_m < metres) & (errors.rotation_error_deg < degrees)).numpy())


def _within_text(recall: str) -> str:
    metres, degrees = RECALL_THRESHOLDS[recall]
    return f"queries within {100 * metres:g} cm and {degrees:g}°"


def _shares(axes: Axes, *which: str) -> None:
    if "x" in which:
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
