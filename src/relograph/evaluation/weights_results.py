"""What was measured with one set of MatchGNN's weights: the evaluations under results/ that name its hash."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.evaluation.place_report import comparison_table
from relograph.evaluation.training_history import HISTORY_FILE
from relograph.evaluation.writing import write_whole

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
KEPT = (".json", ".md")
"""Files of an evaluation that stay in the repository, beside those pictures. What shows photos does not: they belong to
whoever took them."""

SHOWN_FIRST = ("10 cm 5°", "25 cm 10°", "accepted", "s / query")
"""Columns of a table that has little room."""

Document = Mapping[str, Any]
"""A file of results: its metadata and its rows."""


@dataclass(frozen=True)
class EvaluationResults:
    """One run of `relograph eval --rooms` or `--scene`."""

    folder: Path
    metadata: Mapping[str, Any]
    """Of its results.json."""
    rows: Sequence[Mapping[str, Any]]
    """Of the same file, one for each method."""

    @property
    def place(self) -> str:
        """Where queries were localized."""
        return str(self.metadata["data"] if "num_homes" in self.metadata else self.metadata["dataset"])

    @property
    def title(self) -> str:
        """The same, to begin a line with."""
        return f"{self.place[0].upper()}{self.place[1:]}"

    @property
    def pictures(self) -> list[tuple[Path, str]]:
        """Those that were drawn, with what they show."""
        return [(self.folder / name, shows) for name, shows in PICTURES.items() if (self.folder / name).is_file()]

    def short_table(self) -> str:
        """Every method with the figures that are asked for first, in Markdown."""
        heading = f"{self.rows[0]['num_queries']:,} queries, {self.metadata['num_references']} references each"
        if "map_images" in self.metadata:
            heading += f", {self.metadata['map_images']:,} photos in the map"
        table = comparison_table(self.title, self.rows, f"{heading}.", only=SHOWN_FIRST)
        return table.markdown(references=False).strip()

    def table(self) -> str:
        """Every method, as the evaluation wrote it in Markdown."""
        return self._text("table.md")

    def report(self) -> str:
        """All that it wrote: more than the table where it was in rooms."""
        return self._text("report.md") if (self.folder / "report.md").is_file() else self.table()

    def made_by(self) -> str:
        """Where the numbers came from, in a line."""
        told = self.metadata
        commit = str(told["git_commit"] or "unknown")[:7]
        return (
            f"{told['device_name']}, {told['num_cores']} cores, torch {told['torch']}, commit {commit}: "
            f"`{told['command']}`"
        )

    def keep_in(self, folder: Path) -> None:
        """Copy what stays in the repository to a folder there."""
        for path in sorted(self.folder.iterdir()):
            if path.suffix in KEPT or path.name in PICTURES:
                write_whole(folder / path.name, path.read_bytes())

    def _text(self, name: str) -> str:
        path = self.folder / name
        if not path.is_file():
            raise DatasetError(
                f"{path}: expected the table of the evaluation whose results are beside it, found none. Copy the whole "
                "folder, or evaluate again."
            )
        return path.read_text(encoding="utf-8").strip()


def results_of_weights(weights_sha256: str, results: Path) -> list[EvaluationResults]:
    """The evaluations of those weights in `results` and below: validation rooms, test rooms, then places by name."""
    found = []
    for path in sorted(results.rglob("results.json")):
        document = _document(path)
        if document is not None and document["metadata"].get("weights_sha256") == weights_sha256:
            found.append(EvaluationResults(path.parent, document["metadata"], document["results"]))
    rooms = (VALIDATION_ROOMS, TEST_ROOMS)
    return sorted(found, key=lambda one: (rooms.index(one.place) if one.place in rooms else len(rooms), one.place))


def history_of_weights(weights_sha256: str, results: Path) -> Document | None:
    """The rounds that led to those weights, where `relograph weights history` has written them."""
    for path in sorted(results.rglob(HISTORY_FILE)):
        document = _document(path)
        if document is not None and document["metadata"].get("weights_sha256") == weights_sha256:
            return document
    return None


def _document(path: Path) -> Document | None:
    """A file of results; None for any other JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    is_result = isinstance(document, dict) and {"metadata", "results"} <= set(document)
    return document if is_result and isinstance(document["metadata"], dict) else None
