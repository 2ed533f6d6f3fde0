"""Whether a confidence keeps its promise: of answers that claim 80 %, eight in ten are right."""

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from relograph.evaluation.plots import GREY, INK, finish_axes
from relograph.localization.confidence import Reliability

COLOR, PALE_COLOR = "#0072B2", "#cfe3f1"


def reliability_row(found: Reliability) -> dict[str, object]:
    """For a file of results; bins without answers are left out."""
    return {
        "expected_calibration_error": found.expected_calibration_error,
        "num_answers": int(found.num_answers.sum()),
        "bins": [
            {"mean_confidence": claimed, "share_right": kept, "num_answers": count}
            for claimed, kept, count in zip(
                found.mean_confidence.tolist(), found.share_right.tolist(), found.num_answers.tolist(), strict=True
            )
            if not math.isnan(claimed)
        ],
    }


def reliability_figure(found: Reliability, *, title: str = "") -> Figure:
    """The reliability diagram: on the diagonal, confidence is what it says. Bars are how many answers claim it."""
    figure = Figure(figsize=(5.6, 5.2), dpi=130, facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, linestyle=":", zorder=1)
    there = found.num_answers > 0
    claimed, kept, count = (
        values[there].double().numpy() for values in (found.mean_confidence, found.share_right, found.num_answers)
    )
    if len(count):
        axes.bar(claimed, count / count.sum(), width=0.07, color=PALE_COLOR, zorder=0)
        two_standard_errors = 2 * np.sqrt(kept * (1 - kept) / count)
        axes.errorbar(claimed, kept, yerr=two_standard_errors, marker="o", color=COLOR, linewidth=1.6, capsize=2)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    note = f"expected calibration error {100 * found.expected_calibration_error:.1f} %"
    axes.set_title("\n".join(filter(None, (title, note))), fontsize=11, color=INK)
    finish_axes(axes, "confidence", "answers within 25 cm and 10°", [kept])
    return figure
