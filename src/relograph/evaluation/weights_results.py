"""What was measured with one set of MatchGNN's weights: the files under results/ that name its hash."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relograph.evaluation.false_accepts import FalseAccepts, false_accepts_table
from relograph.evaluation.place_report import comparison_table
from relograph.evaluation.training_history import HISTORY_FILE

VALIDATION_ROOMS, TEST_ROOMS = "validation rooms", "test rooms"
"""As `relograph eval --rooms` calls its data."""
PICTURES = {
    "cumulative-errors.png": "how many queries are within an error",
    "errors-by-references.png": "median errors against the number of references",
    "recall-by-overlap.png": "queries that are localized, against what the best reference shows of them",
    "reliability.png": "how often answers are right, against their confidence",
    "false-accepts.png": "strangers that are accepted, against right answers that are",
}
"""Drawn by an evaluation beside its results, with what they show."""

Document = Mapping[str, Any]
"""A file of results: its metadata and its rows."""


@dataclass(frozen=True)
class EvaluationResults:
    """One run of `relograph eval --rooms` or `--scene`."""

    folder: Path
    by_file: Mapping[str, Document]
    """Files of the folder that are of these weights, `results.json` among them."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the table of methods."""
        metadata: Mapping[str, Any] = self.by_file["results.json"]["metadata"]
        return metadata

    @property
    def place(self) -> str:
        """Where queries were localized."""
        return str(self.metadata["data"] if "num_homes" in self.metadata else self.metadata["dataset"])

    @property
    def pictures(self) -> list[tuple[Path, str]]:
        """Those that were drawn, with what they show."""
        return [(self.folder / name, shows) for name, shows in PICTURES.items() if (self.folder / name).is_file()]

    def table(self) -> str:
        """Every method in Markdown."""
        rows, metadata = self.by_file["results.json"]["results"], self.metadata
        queries = f"{rows[0]['num_queries']:,} queries"
        where = f"in {metadata['num_homes']} homes" if "num_homes" in metadata else f"focal length {metadata['focal']}"
        heading = f"{queries}, {where}, {metadata['num_references']} references by {metadata['references_by']}."
        return comparison_table(f"Localization in {self.place}", rows, heading).markdown().strip()

    def sections(self) -> list[str]:
        """All that was measured, in Markdown."""
        parts = [self.table()]
        if references := self.by_file.get("references.json"):
            parts += ["Median errors by the number of references:", references_table(references["results"])]
        if false_accepts := self.by_file.get("false-accepts.json"):
            rows = false_accepts["results"]
            parts.append(false_accepts_table([_false_accepts(row) for row in rows]).strip())
            if rows and (accepted := rows[0]["share_of_right_accepted_as_calibrated"]) is not None:
                parts.append(f"As calibrated, {accepted:.1%} of right answers are accepted.")
        if reliability := self.by_file.get("reliability.json"):
            parts += [
                f"{row['method']}: expected calibration error {row['expected_calibration_error']:.1%} over "
                f"{row['num_answers']:,} answers."
                for row in reliability["results"]
            ]
        return [*parts, made_by(self.metadata)]


def results_of_weights(weights_sha256: str, results: Path) -> list[EvaluationResults]:
    """The evaluations of those weights below `results`: validation rooms, test rooms, then places by name."""
    found = []
    for path in sorted(results.rglob("results.json")):
        documents = {file.name: _document(file) for file in sorted(path.parent.glob("*.json"))}
        of_weights = {
            name: document
            for name, document in documents.items()
            if document is not None and document["metadata"].get("weights_sha256") == weights_sha256
        }
        if "results.json" in of_weights:
            found.append(EvaluationResults(path.parent, of_weights))
    rooms = (VALIDATION_ROOMS, TEST_ROOMS)
    return sorted(found, key=lambda one: (rooms.index(one.place) if one.place in rooms else len(rooms), one.place))


def history_of_weights(weights_sha256: str, results: Path) -> Document | None:
    """The rounds that led to those weights, where `relograph weights history` has written them."""
    for path in sorted(results.rglob(HISTORY_FILE)):
        document = _document(path)
        if document is not None and document["metadata"].get("weights_sha256") == weights_sha256:
            return document
    return None


def references_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Median errors in Markdown: a row for each method, a column for each number of references."""
    counts = sorted({row["num_references"] for row in rows})
    errors = {(row["method"], row["num_references"]): _median(row) for row in rows}
    lines = [
        f"| Method | {' | '.join(map(str, counts))} |",
        f"| :--- |{' :---: |' * len(counts)}",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        lines.append(f"| {method} | {' | '.join(errors.get((method, count), '–') for count in counts)} |")
    return "\n".join(lines)


def made_by(metadata: Mapping[str, Any]) -> str:
    """Where numbers came from, in a line."""
    commit = str(metadata["git_commit"] or "unknown")[:7]
    return (
        f"{metadata['device_name']}, {metadata['num_cores']} cores, torch {metadata['torch']}, commit {commit}: "
        f"`{metadata['command']}`"
    )


def _median(row: Mapping[str, Any]) -> str:
    metres, degrees = row["median_translation_error_m"], row["median_rotation_error_deg"]
    return "∞" if metres is None or degrees is None else f"{metres:.3f} m / {degrees:.2f}°"


def _false_accepts(row: Mapping[str, Any]) -> FalseAccepts:
    shares = (row["false_accepts_at_95_percent"], row["false_accepts_as_calibrated"])
    return FalseAccepts(row["kind"], row["num_queries"], *(math.nan if share is None else share for share in shares))


def _document(path: Path) -> Document | None:
    """A file of results; None for any other JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    is_result = isinstance(document, dict) and {"metadata", "results"} <= set(document)
    return document if is_result and isinstance(document["metadata"], dict) else None
