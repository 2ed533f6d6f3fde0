"""Table, plots and failures of a comparison in a place, in one folder:

predictions/*.csv.gz    what each method answered, written first
queries.csv             confidence, inliers, focal length, seconds and overlap of each answer
results.json            scores with their provenance
table.md, table.tex
cumulative-errors.png, errors-by-distance.png, recall-by-overlap.png
failures.png            queries that went wrong, beside their references
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from torch import Tensor

from relograph.evaluation.contact_sheet import PhotoRow, photo_sheet, short_name
from relograph.evaluation.metrics import prediction_errors
from relograph.evaluation.place import Place
from relograph.evaluation.place_answers import MethodAnswers
from relograph.evaluation.place_methods import COPY_NEAREST
from relograph.evaluation.place_plots import recall_by_overlap_figure
from relograph.evaluation.plots import cumulative_errors_figure, errors_by_distance_figure, save_figure
from relograph.evaluation.predictions import Predictions, write_predictions
from relograph.evaluation.tables import COPY_TOP1, INFINITE, MISSING, Block, ResultsTable, Span
from relograph.evaluation.writing import write_whole
from relograph.geometry import pose_error

NUM_FAILURES = 8
COPIES = (COPY_TOP1, COPY_NEAREST)
Parts = Sequence[tuple[Place, Int[Tensor, "_ _"]]]
"""Places with the references of their queries, in the order of the answers."""


def write_answers(folder: Path, method: MethodAnswers, metadata: Mapping[str, object]) -> None:
    """What a method answered, before anything is scored."""
    path = folder / "predictions" / f"{file_name(method.name)}.csv.gz"
    write_predictions(path, method.predictions, metadata={"method": method.name, **metadata})


def draw_comparison(folder: Path, methods: Sequence[MethodAnswers], title: str) -> list[Path]:
    """The plots of a comparison; the files that were written."""
    by_name = {method.name: method.predictions for method in methods}
    baseline = COPY_TOP1 if COPY_TOP1 in by_name else None
    on_references = [method for method in methods if method.name != COPY_NEAREST]
    figures = {
        "cumulative-errors.png": cumulative_errors_figure(by_name, baseline=baseline, title=title),
        "errors-by-distance.png": errors_by_distance_figure(by_name, baseline=baseline, title=title),
        "recall-by-overlap.png": recall_by_overlap_figure(on_references, baseline=baseline, title=title),
    }
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    return [folder / name for name in figures]


def write_table(folder: Path, table: ResultsTable) -> None:
    """The table in both languages."""
    write_whole(folder / "table.md", table.markdown().encode())
    write_whole(folder / "table.tex", table.latex(label="tab:place").encode())


def comparison_table(
    title: str, rows: Sequence[Mapping[str, object]], heading: str, *, only: Collection[str] = ()
) -> ResultsTable:
    """The table of `MethodAnswers.as_row`s; the best of every column is bold, copying apart.

    `only` are titles of columns for who has little room; those without a value are left out then.
    """
    columns = [
        _Column("5 cm 5°", "recall_5cm_5deg", 1, ".1%"),
        _Column("10 cm 5°", "recall_10cm_5deg", 1, ".1%"),
        _Column("25 cm 10°", "recall_25cm_10deg", 1, ".1%"),
        _Column("no pose", "num_not_localized", 0, "d"),
        _Column("accepted", "share_accepted", 0, ".1%"),
        _Column("right of accepted", "share_right_of_accepted", 0, ".1%"),
        _Column("s / query", "seconds_per_query", -1, ".3f"),
        _Column("of it solver", "solver_seconds_per_query", 0, ".3f"),
        _Column("s / map image", "seconds_per_map_image", -1, ".3f"),
    ]
    if only:
        columns = [
            column for column in columns if column.title in only and any(row[column.key] is not None for row in rows)
        ]
    metres = _Column("", "median_translation_error_m", -1, ".3f")
    degrees = _Column("", "median_rotation_error_deg", -1, ".2f")
    body = []
    for row in rows:
        median = (
            Span(text=f"{metres.text(row, INFINITE)} m", bold=metres.is_best(row, rows)),
            Span(text=" / "),
            Span(text=f"{degrees.text(row, INFINITE)}°", bold=degrees.is_best(row, rows)),
        )
        body.append(
            (
                (Span(text=str(row["method"])),),
                median,
                *((Span(text=column.text(row, MISSING), bold=column.is_best(row, rows)),) for column in columns),
            )
        )
    header = ("Method", "Median", *(column.title for column in columns))
    copies = frozenset(number for number, row in enumerate(rows) if row["method"] == COPY_NEAREST)
    return ResultsTable(
        title=title, blocks=(Block(heading=heading, header=header, rows=tuple(body), rule_after=copies),)
    )


def worst_queries(predictions: Predictions) -> list[int]:
    """Rows of the predictions from the largest error to the smallest, those without an answer first."""
    errors = prediction_errors(predictions)
    # Metres and degrees on one scale: 25 cm count as much as 10 degrees.
    badness = np.maximum(errors.translation_error_m.numpy() / 0.25, errors.rotation_error_deg.numpy() / 10.0)
    return [int(row) for row in np.argsort(-badness, kind="stable")]


def draw_failures(path: Path, parts: Parts, predictions: Predictions, num_shown: int = NUM_FAILURES) -> None:
    """The queries with the largest errors, those without an answer first, each beside its references."""
    errors = prediction_errors(predictions)
    error_m, error_deg = errors.translation_error_m.numpy(), errors.rotation_error_deg.numpy()
    ends = np.cumsum([len(place.queries) for place, _ in parts])
    sheet = []
    for query in worst_queries(predictions)[:num_shown]:
        part = int(np.searchsorted(ends, query, side="right"))
        place, references = parts[part]
        row = query - int(ends[part] - len(place.queries))
        found = np.isfinite(error_m[query])
        said = f"{error_m[query]:.2f} m\n{error_deg[query]:.1f}°" if found else "not\nlocalized"
        sheet.append(_failure_row(place, row, references[row].tolist(), said))
    num_references = max(references.shape[1] for _, references in parts)
    columns = ["query", *(f"reference {number}" for number in range(1, num_references + 1))]
    save_figure(photo_sheet(sheet, columns, photo_width_in=1.35), path)


def file_name(method: str) -> str:
    """A method's name as the name of a file.

    Example:
        >>> file_name("ALIKED + LightGlue + PoseLib")
        'aliked-lightglue-poselib'
    """
    return re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")


def _failure_row(place: Place, query: int, references: Sequence[int], label: str) -> PhotoRow:
    photos: list[UInt8[np.ndarray, "_ _ 3"] | None] = [place.queries.read(query)]
    captions = [short_name(place.queries.names[query])]
    for row in references:
        photos.append(place.map.read(row) if row >= 0 else None)
        if row < 0:
            captions.append("none")
            continue
        away = pose_error(place.map.T_world_cam[row], place.queries.T_world_cam[query])
        captions.append(f"{away.translation_error_m:.2f} m, {away.rotation_error_deg:.0f}°")
    return PhotoRow(photos, label, captions)


@dataclass(frozen=True)
class _Column:
    """A column of the table."""

    title: str
    key: str
    better: int
    """1 where more is better, -1 where less is, 0 where neither is marked."""
    form: str

    def text(self, row: Mapping[str, object], missing: str) -> str:
        value = row[self.key]
        return missing if value is None else format(value, self.form)

    def is_best(self, row: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> bool:
        """Whether it reads as well as the best does, among two or more that did not just copy."""
        values = [self._value(other) for other in rows if other["method"] not in COPIES]
        known = [value for value in values if value is not None]
        if not self.better or len(values) < 2 or row["method"] in COPIES or row[self.key] is None:
            return False
        best = max(known, key=lambda value: self.better * value)
        return self.text(row, "") == format(best, self.form)

    def _value(self, row: Mapping[str, object]) -> float | None:
        value = row[self.key]
        return None if value is None else float(value)  # type: ignore[arg-type]  # a score or a time
