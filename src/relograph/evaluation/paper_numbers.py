"""The numbers that the paper and its supplement print, for its own method and for those that it compares with.

They stand in `paper_numbers.json` beside this file, row by row as printed, each with the work that it cites.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Group = Literal["structure", "Seq.", "APR", "IR", "RPR", "ours"]
"""Kinds of methods, as the paper groups them: structure-based, sequence-based, absolute pose regression from one image,
image retrieval, relative pose regression, and the paper's own."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """A published work."""

    key: str
    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    kind: Literal["inproceedings", "article", "misc"] = "inproceedings"
    """The kind of entry in BibTeX."""
    arxiv: str | None = None
    url: str | None = None

    def short(self) -> str:
        """The work within a sentence.

        Example:
            >>> paper_numbers().citations["posenet16"].short()
            'Kendall and Cipolla 2016'
        """
        names = [author.split()[-1] for author in self.authors]
        if len(names) > 2:
            return f"{names[0]} et al. {self.year}"
        return f"{' and '.join(names)} {self.year}"

    def full(self) -> str:
        """The work in a list of references."""
        where = f" arXiv:{self.arxiv}." if self.arxiv else f" {self.url}" if self.url else ""
        return f"{', '.join(self.authors)}. {self.title}. {self.venue}, {self.year}.{where}"


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The two numbers of a cell; None where the paper prints none."""

    translation_m: float | None
    rotation_deg: float | None


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One method in one of the paper's tables."""

    name: str
    citation: str
    group: Group
    num_test_frames: int
    errors: Mapping[str, Errors]
    """Median errors by scene; scenes without a number are absent."""
    averages: Mapping[str, Errors]
    """By the name of the column."""
    scene_specific: bool = False
    """Marked * in the paper: made for one scene, useless in another."""
    not_reproduced: bool = False
    """Marked ? in the paper: its authors could not get these numbers again."""
    diverged: tuple[str, ...] = ()
    """Scenes marked with a dagger: training diverged, and the best model before that was taken."""
    distance_2d: bool = False
    """Distances are measured on the ground, without height."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One of the paper's tables of median errors."""

    where: str
    """Where in the paper it stands."""
    title: str
    dataset: str
    folder_by_scene: Mapping[str, str]
    """The scenes in the order of the columns, each with its folder in the data set."""
    averages: Mapping[str, tuple[str, ...]]
    """The scenes that each column of averages is over."""
    rotation_digits: int
    """Decimals of a degree that the paper prints."""
    rows: tuple[PublishedRow, ...]

    def row(self, name: str) -> PublishedRow:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True, kw_only=True)
class PublishedRounds:
    """The supplement's table of rounds of message passing in training and at test time."""

    where: str
    title: str
    dataset: str
    scene: str
    num_epochs: int
    measure: str
    losses: Mapping[tuple[int, int], float]
    """By rounds in training and rounds at test time."""


@dataclass(frozen=True, kw_only=True)
class PaperNumbers:
    """Everything that the paper measured."""

    source: Citation
    tables: Mapping[str, PublishedTable]
    """By the name of the experiment: table1, table2, table3, table4, single-scene, averaging, stride."""
    rounds: PublishedRounds
    citations: Mapping[str, Citation]


@cache
def paper_numbers() -> PaperNumbers:
    """The paper's numbers, read once.

    Example:
        >>> paper_numbers().tables["table1"].row("RelPoseGNN").averages["Avg."]
        Errors(translation_m=0.16, rotation_deg=5.2)
    """
    text = resources.files(__package__).joinpath("paper_numbers.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    citations = {
        key: Citation(key=key, **{**work, "authors": tuple(work["authors"])})
        for key, work in document["citations"].items()
    }
    rounds = document["rounds"]
    return PaperNumbers(
        source=citations[document["source"]],
        tables={name: _table(table, document["datasets"]) for name, table in document["tables"].items()},
        rounds=PublishedRounds(
            **{**rounds, "losses": {(cell["train"], cell["test"]): cell["loss"] for cell in rounds["losses"]}}
        ),
        citations=citations,
    )


def _table(table: dict[str, Any], datasets: dict[str, dict[str, str]]) -> PublishedTable:
    return PublishedTable(
        **{
            **table,
            "folder_by_scene": datasets[table["dataset"]],
            "averages": {name: tuple(scenes) for name, scenes in table["averages"].items()},
            "rows": tuple(_row(row) for row in table["rows"]),
        }
    )


def _row(row: dict[str, Any]) -> PublishedRow:
    return PublishedRow(
        **{
            **row,
            "errors": {scene: _errors(pair) for scene, pair in row["errors"].items()},
            "averages": {name: _errors(pair) for name, pair in row["averages"].items()},
            "diverged": tuple(row.get("diverged", ())),
        }
    )


def _errors(pair: list[float | None]) -> Errors:
    translation_m, rotation_deg = pair
    return Errors(translation_m=translation_m, rotation_deg=rotation_deg)
