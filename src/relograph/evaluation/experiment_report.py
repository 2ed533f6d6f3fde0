"""From committed results to documents: docs/results.md and the blocks of figures in the README."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relograph.evaluation.experiments import EXPERIMENTS
from relograph.evaluation.metrics import SceneScore
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.tables import MethodRow, ResultsTable, results_table, rounds_table, summary_table


@dataclass(frozen=True)
class NamedTable:
    """A table and what a file of it is called."""

    name: str
    table: ResultsTable


def setting_of(metadata: Mapping[str, Any]) -> str:
    """What the networks of an experiment have in common."""
    height, width = metadata["image_size_hw"]
    return f"C = {metadata['channels']}, images {height}x{width}"


def tables_of(document: Mapping[str, Any]) -> list[NamedTable]:
    """The tables of a file of results, with the paper's rows where it has some."""
    metadata, results = document["metadata"], document["results"]
    experiment = EXPERIMENTS[metadata["experiment"]]
    dataset, setting = metadata["dataset"], setting_of(metadata)
    if experiment.name == "rounds":
        losses = {(row["rounds_in_training"], row["rounds_at_test"]): row["loss"] for row in results}
        scene = results[0]["scene"]
        table = rounds_table(experiment.title, losses, dataset=dataset, scene=scene, setting=setting)
        return [NamedTable(experiment.name, table)]
    rows = method_rows(document)
    if not rows:
        return []
    published = paper_numbers().tables[experiment.published] if experiment.published else None
    return [
        NamedTable(
            experiment.name,
            results_table(experiment.title, rows, dataset=dataset, published=published, setting=setting),
        ),
        NamedTable(
            f"{experiment.name}-summary",
            summary_table(f"{experiment.title}: all figures", rows, dataset=dataset, setting=setting),
        ),
    ]


def method_rows(document: Mapping[str, Any]) -> list[MethodRow]:
    """The methods of a file of results, each with its scores."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["results"]:
        if "method" in row:
            rows.setdefault(row["method"], []).append(row)
    return [
        MethodRow(
            name=method,
            scores=[SceneScore.from_row(row, where=method) for row in of_method],
            num_test_frames=of_method[0]["num_test_frames"],
            is_copy_top1=of_method[0]["is_copy_top1"],
            note=of_method[0]["note"],
        )
        for method, of_method in rows.items()
    ]
