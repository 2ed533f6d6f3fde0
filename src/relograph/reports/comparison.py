"""The report of a comparison in a place or in rooms: the folder that `relograph eval --scene` or `--rooms` wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.evaluation.place_report import COPIES, comparison_table, file_name
from relograph.evaluation.predictions import Predictions, read_predictions
from relograph.reports.answers import (
    CAMERAS,
    FAILURES,
    NO_DATA_OF_ROOMS,
    PLOTS,
    PROVENANCE,
    SALIENCY,
    SALIENCY_OF_MATCHES,
    cameras_section,
    failures_section,
    provenance_facts,
    settings_facts,
    worst_table,
)
from relograph.reports.page import Part, Picture, Report, Section, Text, code
from relograph.reports.posed_data import PosedData

RESULTS_FILE, REPORT_FILE, PREDICTIONS_FOLDER = "results.json", "report.md", "predictions"
CAPTION_BY_PLOT = {
    "cumulative-errors.png": "Share of queries below each error; thin verticals are the thresholds of the recalls.",
    "errors-by-distance.png": "Errors by the distance to the nearest photo of the map.",
    "recall-by-overlap.png": "Queries that are localized, by how much of their view the best reference shows.",
    "errors-by-references.png": "Median errors by the number of references.",
    "reliability.png": "Whether confidence keeps its promise: the share that is right, by how sure the answers are.",
    "false-accepts.png": "Strangers that are accepted against right answers that are, over all thresholds.",
}
"""Of what an evaluation draws."""


def comparison_report(folder: Path, data: PosedData | None) -> Report:
    """All that the folder of a comparison has to show."""
    metadata, rows = _read_results(folder / RESULTS_FILE)
    command = code(str(metadata.get("command", "relograph eval")))
    method, predictions = _main_answers(folder, rows)
    of_rooms = "num_homes" in metadata
    if data is not None and predictions is not None:
        data.require(predictions.frame, folder)
    sections = [
        _results(folder, metadata, rows),
        _plots(folder, command),
        _failures(folder, predictions, data, command, method),
        Section(SALIENCY, missing=SALIENCY_OF_MATCHES),
        _cameras(folder, method, predictions, data, command, of_rooms=of_rooms),
        Section(PROVENANCE, [*_provenance(metadata)]),
    ]
    name = metadata.get("dataset") or metadata.get("data") or folder.name
    count = f"{rows[0]['num_queries']:,} queries, " if rows and "num_queries" in rows[0] else ""
    about = f"{count}{len(rows)} methods on the same references. In 3-D and among failures: {method}."
    return Report(f"Localization in {name}", about, sections)


def _results(folder: Path, metadata: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Section:
    # Of rooms there is more than one table, in the words of the evaluation; that of a place is made anew.
    if (folder / REPORT_FILE).is_file():
        return Section("Results", [Text((folder / REPORT_FILE).read_text(encoding="utf-8"))])
    references = f"{metadata.get('num_references')} references by {metadata.get('references_by')}"
    heading = f"{metadata.get('num_queries')} queries, {metadata.get('map_images')} photos in the map, {references}."
    try:
        table = comparison_table("All methods", rows, heading)
    except KeyError as error:
        raise DatasetError(
            f"{folder / RESULTS_FILE}: expected results of `relograph eval`, found a row without {error}. "
            "Evaluate again."
        ) from None
    return Section("Results", [Text(table.markdown())])


def _plots(folder: Path, command: str) -> Section:
    there = [
        Picture.of_file(folder / name, f"{caption} Drawn by {command}.")
        for name, caption in CAPTION_BY_PLOT.items()
        if (folder / name).is_file()
    ]
    return Section(PLOTS, there, "" if there else f"No plots in {folder.name}: evaluate again.")


def _failures(
    folder: Path, predictions: Predictions | None, data: PosedData | None, command: str, method: str
) -> Section:
    if not (folder / "failures.png").is_file():
        if predictions is None:
            return Section(FAILURES, missing=f"No predictions in {folder.name}/{PREDICTIONS_FOLDER}.")
        return failures_section(predictions, data, command)
    caption = f"The largest errors of the last method, each beside its references. Drawn by {command}."
    parts: list[Part] = [] if predictions is None else [worst_table(predictions)]
    return Section(FAILURES, [*parts, Picture.of_file(folder / "failures.png", caption)])


def _cameras(
    folder: Path, method: str, predictions: Predictions | None, data: PosedData | None, command: str, *, of_rooms: bool
) -> Section:
    if predictions is None:
        return Section(CAMERAS, missing=f"No predictions in {folder.name}/{PREDICTIONS_FOLDER}.")
    if of_rooms:
        return cameras_section(_by_home(predictions), data, command, NO_DATA_OF_ROOMS)
    return cameras_section({method: predictions}, data, command)


def _provenance(metadata: Mapping[str, Any]) -> list[Part]:
    known = (
        *("command", "git_commit", "git_dirty", "source_sha256", "timestamp_utc", "python", "relograph", "torch"),
        *("numpy", "device", "device_name", "num_cores", "seed"),
    )
    more = {name: value for name, value in metadata.items() if name not in known}
    return [provenance_facts("Evaluation", metadata), settings_facts("What was compared", more)]


def _main_answers(folder: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[str, Predictions | None]:
    """The last method that is no copying, and what it answered, where that is there."""
    names = [str(row["method"]) for row in rows if row.get("method") not in COPIES] or [
        str(row.get("method")) for row in rows
    ]
    for name in reversed(names):
        path = folder / PREDICTIONS_FOLDER / f"{file_name(name)}.csv.gz"
        if path.is_file():
            return name, read_predictions(path)[0]
    return names[-1] if names else "nothing", None


def _by_home(predictions: Predictions) -> dict[str, Predictions]:
    """Answers by the home that their names begin with: homes have worlds of their own."""
    homes: dict[str, list[int]] = {}
    for row, name in enumerate(predictions.frame):
        homes.setdefault(name.partition("/")[0], []).append(row)
    return {home: predictions.rows(rows) for home, rows in homes.items()}


def _read_results(path: Path) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        metadata, rows = document["metadata"], document["results"]
        is_right = isinstance(metadata, dict) and all("method" in row for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: expected results of `relograph eval`, found: {error}. Evaluate again.") from error
    if not is_right:
        raise DatasetError(f"{path}: expected results of `relograph eval`, found something else. Evaluate again.")
    return metadata, rows
