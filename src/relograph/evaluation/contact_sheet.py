"""Sheets of photographs in rows and columns, and the one of the references that were chosen for queries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from relograph.errors import DatasetError
from relograph.evaluation.plots import save_figure
from relograph.geometry import pose_error
from relograph.graphs import PosedImages

INK, GREY, PALE = "#22262b", "#6b7480", "#eef0f3"
QUERY_COLOR = "#D55E00"

# Photographs hardly compress: a sheet of so many pixels is a PNG file of a little less than 1 MB.
LARGEST_PIXELS = 800_000

_MARGIN_IN, _GAP_IN, _TITLE_IN, _CAPTION_IN, _LABEL_IN = 0.12, 0.05, 0.3, 0.2, 0.8
_LONGEST_NAME = 22


@dataclass(frozen=True)
class PhotoRow:
    """One row of a sheet."""

    photos: Sequence[UInt8[np.ndarray, "_ _ 3"] | None]
    """From left to right; None is an empty place."""
    label: str = ""
    """To the left of the row."""
    captions: Sequence[str] = ()
    """Below the photos, one for each, or none at all."""
    begins_group: bool = False
    """Whether some space sets it apart from the row above."""


def draw_neighbours(frames: PosedImages, rows_by_label: Mapping[str, Int[Tensor, "Q N"]], path: Path) -> None:
    """Queries and the references that several ways of choosing found for them, for example with stride 1 and 5.

    `rows_by_label` holds for each way the same Q queries, each before its references, best first; -1 is a reference
    that is not there. Each query has a row for each way, with the query on the left. Below a reference stands how far
    it is from the query.
    """
    if not rows_by_label or not all(rows.numel() for rows in rows_by_label.values()):
        raise DatasetError(
            f"{path}: expected queries with their references to draw, found none. Choose at least one query."
        )
    queries = next(iter(rows_by_label.values()))[:, 0].tolist()
    for label, rows in rows_by_label.items():
        if rows[:, 0].tolist() != queries:
            raise DatasetError(
                f"{path}: expected the same queries in the same order for all of {', '.join(rows_by_label)}, found "
                f"others for {label}. Pass the query's row before its references."
            )
    sheet = [
        graph_row(frames, rows[place].tolist(), label, begins_group=label_idx == 0 and place > 0)
        for place in range(len(queries))
        for label_idx, (label, rows) in enumerate(rows_by_label.items())
    ]
    num_references = max(rows.shape[1] for rows in rows_by_label.values()) - 1
    columns = ["query", *(f"reference {number}" for number in range(1, num_references + 1))]
    save_figure(photo_sheet(sheet, columns, photo_width_in=1.35), path)


def graph_row(frames: PosedImages, graph: Sequence[int], label: str, *, begins_group: bool) -> PhotoRow:
    """The row of a query and its references, with their distances from it; -1 is a reference that is not there."""
    query, *references = graph
    photos = [frames.images[row].cpu().numpy() if row >= 0 else None for row in graph]
    captions = [short_name(frames.names[query])]
    for row in references:
        if row < 0:
            captions.append("none")
            continue
        error = pose_error(frames.T_world_cam[row], frames.T_world_cam[query])
        captions.append(f"{error.translation_error_m:.2f} m, {error.rotation_error_deg:.0f}°")
    return PhotoRow(photos, label, captions, begins_group)


def photo_sheet(
    rows: Sequence[PhotoRow], columns: Sequence[str], *, photo_width_in: float, space_below_in: float = 0.0
) -> Figure:
    """Rows of photos under the titles of their columns; the first column, the queries, is framed.

    There is at least one photo in each row, and all of a row have the shape of the first. Large sheets have fewer
    pixels for each photo. `space_below_in` inches at the bottom are left free.
    """
    label_in = _LABEL_IN if any(row.label for row in rows) else 0.0
    left_in = [_MARGIN_IN + label_in + column * (photo_width_in + _GAP_IN) for column in range(len(columns))]
    # The queries stand a little apart from what belongs to them.
    left_in = [left_in[0], *(left + 2 * _GAP_IN for left in left_in[1:])]
    heights_in = [photo_width_in * _aspect(row) for row in rows]
    top_in, tops_in = _MARGIN_IN + _TITLE_IN, []
    for row, height_in in zip(rows, heights_in, strict=True):
        top_in += 3 * _GAP_IN if row.begins_group else 0
        tops_in.append(top_in)
        top_in += height_in + (_CAPTION_IN if row.captions else _GAP_IN)
    size_in = (left_in[-1] + photo_width_in + _MARGIN_IN, top_in + _MARGIN_IN + space_below_in)
    dpi = min(150.0, math.sqrt(LARGEST_PIXELS / (size_in[0] * size_in[1])))
    figure = Figure(figsize=size_in, dpi=dpi, facecolor="white")

    def write(x_in: float, y_in: float, text: str, color: str = INK, **style: Any) -> None:
        figure.text(x_in / size_in[0], 1 - y_in / size_in[1], text, va="center", color=color, **style)

    for column, title in enumerate(columns):
        write(left_in[column] + photo_width_in / 2, _MARGIN_IN + _TITLE_IN / 2, title, ha="center", fontsize=10)
    for row, top_in, height_in in zip(rows, tops_in, heights_in, strict=True):
        write(_MARGIN_IN, top_in + height_in / 2, row.label, ha="left", fontsize=10)
        for column, photo in enumerate(row.photos):
            place_in = (left_in[column], size_in[1] - top_in - height_in, photo_width_in, height_in)
            axes = figure.add_axes(tuple(np.array(place_in) / np.array(size_in * 2)))
            axes.set(xticks=[], yticks=[], facecolor=PALE)
            axes.spines[:].set(visible=column == 0, color=QUERY_COLOR, linewidth=2)
            if photo is not None:
                axes.imshow(photo, aspect="auto")
            if row.captions:
                middle_in = left_in[column] + photo_width_in / 2
                caption_in = top_in + height_in + _CAPTION_IN / 2
                write(middle_in, caption_in, row.captions[column], ha="center", fontsize=8, color=GREY)
    return figure


def short_name(frame: str) -> str:
    """The end of a frame's name, short enough to stand below a photo.

    Example:
        >>> short_name("kitchen/seq-03/frame-000120.color.png")
        'seq-03/frame-000120'
    """
    folder, name = ["", *frame.split("/")][-2:]
    name = "/".join(filter(None, (folder, name.split(".")[0] or name)))
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"


def _aspect(row: PhotoRow) -> float:
    height, width = next(photo.shape[:2] for photo in row.photos if photo is not None)
    return float(height / width)
