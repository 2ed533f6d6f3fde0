"""The best, the median and the worst answers of a method as cameras in 3-D, beside the true ones."""

import math
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from torch import Tensor

from relograph.errors import DatasetError
from relograph.evaluation.contact_sheet import GREY, INK, short_name
from relograph.evaluation.metrics import prediction_errors
from relograph.evaluation.plots import save_figure
from relograph.evaluation.predictions import Predictions
from relograph.geometry import Pose
from relograph.graphs import absolute_targets
from relograph.training.losses import pose_distance

TRUE_COLOR, ANSWER_COLOR, MAP_COLOR = "#009E73", "#0072B2", "#98a1ad"
PANELS_IN_A_ROW = 3

# A camera in its own frame that sees 4:3 images under 62 degrees: its centre, the corners of its image from the upper
# left on, clockwise, and the tip of a mark above the image.
_CAMERA = np.array([[0, 0, 0], [-0.6, -0.45, 1], [0.6, -0.45, 1], [0.6, 0.45, 1], [-0.6, 0.45, 1], [0, -0.75, 1]])
_CAMERA_LINES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (1, 5), (5, 2))

# What is seen of a page's right, ahead and up from 35 degrees above, from behind and a little from the right:
# parallel lines stay parallel, and lengths along an axis can be compared all over the page.
_AZIMUTH, _ELEVATION = math.radians(-65), math.radians(35)
_SEEN = np.array(
    [
        [-math.sin(_AZIMUTH), -math.sin(_ELEVATION) * math.cos(_AZIMUTH)],
        [math.cos(_AZIMUTH), -math.sin(_ELEVATION) * math.sin(_AZIMUTH)],
        [0.0, math.cos(_ELEVATION)],
    ]
)


def rank_predictions(predictions: Predictions) -> Int[Tensor, "Q"]:
    """Rows of the predictions from the best answer to the worst, by the paper's loss with beta 0 and gamma -3.

    The loss compares absolute poses, [camera centre, log of the quaternion]. A rotation has two logs, those of q and
    -q; the one nearer to the truth's counts, or a good answer for a camera turned by 180 degrees could come last.
    Queries that were not localized come last, and equals keep their order.
    """
    true_vector, answer = absolute_targets(predictions.T_world_true), absolute_targets(predictions.T_world_cam)
    center, log = answer.split(3, dim=-1)
    length = torch.linalg.vector_norm(log, dim=-1, keepdim=True).clamp_min(1e-12)
    other_answer = torch.cat([center, log - math.pi * log / length], dim=-1)
    loss = torch.minimum(pose_distance(answer, true_vector), pose_distance(other_answer, true_vector))
    return loss.where(predictions.localized, math.inf).argsort(stable=True)


def chosen_ranks(num_queries: int) -> dict[str, range]:
    """Which ranks, from 0 on, are drawn as the best, the median and the worst; none of them twice.

    Example:
        >>> chosen_ranks(5000)
        {'Best': range(0, 3), 'Median': range(2498, 2501), 'Worst': range(4997, 5000)}
        >>> chosen_ranks(2)
        {'Best': range(0, 1), 'Worst': range(1, 2)}
    """
    count = min(PANELS_IN_A_ROW, max(1, num_queries // 3))
    starts = {"Best": 0, "Median": (num_queries - count) // 2, "Worst": num_queries - count}
    chosen: dict[str, range] = {}
    for name, start in starts.items():
        if all(start not in ranks for ranks in chosen.values()):
            chosen[name] = range(start, start + count)
    return chosen


def draw_qualitative(predictions: Predictions, T_world_map: Pose, path: Path, title: str) -> None:
    """The paper's figure: the three best, median and worst answers in one scene in blue, the truth in green.

    Each panel shows one query among the cameras of the map, from the same side and upright if people held the cameras
    upright, with its rank and its errors. A query without an answer shows the true camera alone, and the reason. Fewer
    than nine queries make fewer panels.
    """
    if not len(predictions):
        raise DatasetError(f"{path}: expected predictions to draw, found none. Evaluate at least one query.")
    if len(predictions.scenes) > 1:
        raise DatasetError(
            f"{path}: expected predictions in one scene, found {', '.join(predictions.scenes)}. "
            "Draw each scene for itself, with Predictions.of_scene."
        )
    T_world_map = T_world_map.detach().to("cpu").to(torch.float64)
    T_page_world = upright_page(Pose.cat([T_world_map, predictions.T_world_true]))
    T_page_true, T_page_answer = T_page_world @ predictions.T_world_true, T_page_world @ predictions.T_world_cam
    map_centers = (T_page_world @ T_world_map).t.numpy()
    shown = np.concatenate([map_centers, T_page_true.t.numpy()])
    errors, order = prediction_errors(predictions), rank_predictions(predictions).tolist()

    ranks_by_name = chosen_ranks(len(order))
    figure, panels = _empty_panels(len(ranks_by_name), len(ranks_by_name["Best"]), title)
    for line, (heading, ranks) in zip(panels, ranks_by_name.items(), strict=True):
        line[0].text(-0.05, 0.5, heading, transform=line[0].transAxes, fontsize=13, color=INK, rotation=90, va="center")
        for axes, rank in zip(line, ranks, strict=True):
            row = order[rank]
            answer = T_page_answer[row] if predictions.localized[row] else None
            _draw_panel(axes, T_page_true[row], answer, map_centers, shown)
            name = short_name(predictions.frame[row])
            if answer is None:
                verdict, below = "not localized", shorten(f"{name}: {predictions.reason[row]}", 56, placeholder=" …")
            else:
                verdict = f"{errors.translation_error_m[row]:.3f} m, {errors.rotation_error_deg[row]:.2f}°"
                below = name
            axes.set_title(f"#{rank + 1}   {verdict}", fontsize=11, color=INK, pad=14)
            axes.text(0.5, 1.015, below, transform=axes.transAxes, ha="center", fontsize=8, color=GREY)
    figure.legend(
        handles=[
            Line2D([], [], color=TRUE_COLOR, linewidth=2, label="truth"),
            Line2D([], [], color=ANSWER_COLOR, linewidth=2, label="estimate"),
            Line2D([], [], color=MAP_COLOR, linestyle="", marker="o", markersize=3, label="cameras of the map"),
        ],
        loc="lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=1.4,
        columnspacing=1.4,
    )
    save_figure(figure, path)


def upright_page(T_world_cam: Pose) -> Pose:
    """The turn from the world to a page whose axes are right, ahead and up for people who held these cameras upright.

    Up is against the cameras' mean y axis, or the first one's where they cancel out. Ahead is where the first looks.
    """
    up = -T_world_cam.R[:, :, 1].mean(dim=0)
    if torch.linalg.vector_norm(up) < 0.01:
        up = -T_world_cam.R[0, :, 1]
    up = up / torch.linalg.vector_norm(up)
    # The axis of the first camera that is most nearly level: its z axis, unless it looks up or down.
    _, down_axis, forward = T_world_cam.R[0].unbind(dim=1)
    ahead = forward if abs(forward @ up) < 0.99 else down_axis
    ahead = ahead - (ahead @ up) * up
    ahead = ahead / torch.linalg.vector_norm(ahead)
    return Pose(torch.stack([torch.linalg.cross(ahead, up), ahead, up]), torch.zeros_like(up))


def _empty_panels(num_rows: int, num_columns: int, title: str) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a title, and its panels row by row, with room for headings."""
    (left_in, bottom_in), (width_in, height_in), heading_in, title_in = (0.5, 0.45), (3.4, 2.15), 0.5, 0.4
    size_in = (left_in + num_columns * width_in, bottom_in + num_rows * (height_in + heading_in) + title_in)
    figure = Figure(figsize=size_in, dpi=110, facecolor="white")
    figure.text(0.5, 1 - 0.55 * title_in / size_in[1], title, fontsize=13, color=INK, ha="center", va="center")
    panels = figure.subplots(
        num_rows,
        num_columns,
        squeeze=False,
        gridspec_kw={
            "left": left_in / size_in[0],
            "right": 1,
            "bottom": bottom_in / size_in[1],
            "top": 1 - (title_in + heading_in) / size_in[1],
            "hspace": heading_in / height_in,
            "wspace": 0.05,
        },
    )
    return figure, [list(row) for row in panels]


def _draw_panel(
    axes: Axes,
    T_page_true: Pose,
    T_page_answer: Pose | None,
    map_centers: Float64[np.ndarray, "M 3"],
    shown: Float64[np.ndarray, "P 3"],
) -> None:
    """Two cameras over a floor that reaches as far as the points `shown`, or farther where the answer lies beyond."""
    if T_page_answer is not None:
        shown = np.concatenate([shown, T_page_answer.t.numpy()[None]])
    low, high = shown.min(axis=0), shown.max(axis=0)
    camera_size = 0.16 * max(float((high - low).max()), 0.1)  # a place of one camera has a size too
    low, high = low - camera_size, high + camera_size
    spacing = _draw_floor(axes, low, high)
    map_feet = np.concatenate([map_centers[:, :2], np.full((len(map_centers), 1), low[2])], axis=1)
    dots: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgewidth": 0, "color": MAP_COLOR}
    axes.plot(*(map_feet @ _SEEN).T, **dots, markersize=1.4, alpha=0.35, zorder=2)
    axes.plot(*(map_centers @ _SEEN).T, **dots, markersize=2.4, zorder=3)
    # The truth in broader lines, so that it shows around an answer that covers it.
    _draw_camera(axes, T_page_true, camera_size, low[2], color=TRUE_COLOR, linewidth=2.8, zorder=4)
    if T_page_answer is not None:
        _draw_camera(axes, T_page_answer, camera_size, low[2], color=ANSWER_COLOR, linewidth=1.4, zorder=6)
        between = torch.stack([T_page_true.t, T_page_answer.t]).numpy() @ _SEEN
        axes.plot(*between.T, color=INK, linewidth=1, linestyle=(0, (2, 1.5)), zorder=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.02)
    axes.set_axis_off()
    axes.text(0.98, 0.02, f"squares of {spacing:g} m", transform=axes.transAxes, ha="right", fontsize=8, color=GREY)


def _draw_floor(axes: Axes, low: Float64[np.ndarray, "3"], high: Float64[np.ndarray, "3"]) -> float:
    """The bottom of a box in squares; returns their side in metres, a power of ten."""
    spacing: float = 10.0 ** math.floor(math.log10((high - low)[:2].max() / 2))
    x, y = (np.arange(math.ceil(low[i] / spacing), high[i] / spacing) * spacing for i in (0, 1))
    lines = [[(at, low[1], low[2]), (at, high[1], low[2])] for at in (low[0], *x, high[0])]
    lines += [[(low[0], at, low[2]), (high[0], at, low[2])] for at in (low[1], *y, high[1])]
    axes.add_collection(LineCollection(list(np.array(lines) @ _SEEN), colors="#dde2e7", linewidths=0.8, zorder=1))
    return spacing


def _draw_camera(
    axes: Axes, T_page_cam: Pose, size: float, floor: float, *, color: str, linewidth: float, zorder: int
) -> None:
    """A pyramid from the camera's centre to its image, a mark on the image's upper side, and a stem to the floor."""
    points = T_page_cam.apply(size * _CAMERA).numpy()
    stem = np.array([points[0], [*points[0, :2], floor]]) @ _SEEN
    foot: dict[str, Any] = {"marker": "o", "markevery": [1], "markersize": 1.2 + linewidth, "markeredgewidth": 0}
    axes.plot(*stem.T, color=color, linewidth=0.3 * linewidth, **foot, alpha=0.7, zorder=zorder)
    points = points @ _SEEN
    axes.add_patch(Polygon(points[1:5], facecolor=color, alpha=0.22, zorder=zorder))
    lines = [points[list(line)] for line in _CAMERA_LINES]
    axes.add_collection(LineCollection(lines, colors=color, linewidths=linewidth, capstyle="round", zorder=zorder + 1))
