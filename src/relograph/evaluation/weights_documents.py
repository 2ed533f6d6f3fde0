"""What the README and docs/weights.md say about the weights in the package, from their metadata and their results."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.evaluation.experiment_report import filled, read_readme
from relograph.evaluation.weights_results import TEST_ROOMS, VALIDATION_ROOMS, results_of_weights
from relograph.evaluation.writing import write_documents
from relograph.models.checkpoint import INDEX_FILE, load_checkpoint
from relograph.models.shipped import MODEL_CARD_FILE
from relograph.training.match_training import TrainingRecord

TRAINING_PICTURE = "matchgnn-training.png"
NOTHING_YET = "No weights are in the package yet: they are being trained."


def write_weights_documents(weights: Path, results: Path, docs: Path, *, check: bool = False) -> list[Path]:
    """Write the blocks of the README and of docs/weights.md anew, or with `check` only see that they are right."""
    (readme, readme_text), (page, page_text) = read_documents(docs)
    wanted = {
        readme: filled(readme_text, {"weights": lambda: weights_block(weights, results, readme.parent)}),
        page: filled(
            page_text,
            {
                "weights-tables": lambda: tables_block(weights, results),
                "weights-pictures": lambda: pictures_block(weights, results, docs),
            },
        ),
    }
    source = f"the weights in {weights} and their results"
    return write_documents(wanted, check=check, source=source, command="relograph weights report")


def read_documents(docs: Path) -> list[tuple[Path, str]]:
    """The README beside the documents and the page on weights among them, and what they say."""
    page = docs / "weights.md"
    if not page.is_file():
        raise DatasetError(
            f"{page}: expected the page on weights, found none. Run the command in the repository's folder, or name "
            "its docs folder with --docs."
        )
    return [read_readme(docs), (page, page.read_text(encoding="utf-8"))]


def weights_block(weights: Path, results: Path, root: Path) -> str:
    """For the README: how good the weights are where nobody trained, in short, and what made them."""
    if not (weights / INDEX_FILE).exists():
        return NOTHING_YET
    checkpoint = load_checkpoint(weights)
    metadata: Mapping[str, Any] = checkpoint.metadata
    record = TrainingRecord.of(metadata)
    card = _relative(weights / MODEL_CARD_FILE, root)
    evaluations = results_of_weights(checkpoint.sha256, results)
    # Validation rooms are what weights are chosen on; what is only scored says more.
    is_scored = any(evaluation.place == TEST_ROOMS for evaluation in evaluations)
    parts = [  # real places first
        evaluation.short_table()
        for evaluation in sorted(evaluations, key=lambda one: one.place in (TEST_ROOMS, VALIDATION_ROOMS))
        if not (is_scored and evaluation.place == VALIDATION_ROOMS)
    ]
    parts.append(
        f"The weights were trained for {record.seconds / 60:.0f} minutes on {metadata['provenance']['device_name']}, "
        f"from random ones and without any real frame:\n[the model card]({card}) tells all of it."
    )
    return "\n\n".join(parts)


def tables_block(weights: Path, results: Path) -> str:
    """For docs/weights.md: all that was measured with the weights, and by which commands."""
    if not (weights / INDEX_FILE).exists():
        return NOTHING_YET
    evaluations = results_of_weights(load_checkpoint(weights).sha256, results)
    return "\n\n".join(part for one in evaluations for part in (one.table(), one.made_by()))


def pictures_block(weights: Path, results: Path, docs: Path) -> str:
    """For docs/weights.md: the plots of the training and of what was measured."""
    if not (weights / INDEX_FILE).exists():
        return NOTHING_YET
    parts = []
    if (docs / "pictures" / TRAINING_PICTURE).is_file():
        caption = "Median errors in validation rooms against minutes of training. Drawn by `relograph weights history`."
        parts.append(f"![{caption}](pictures/{TRAINING_PICTURE})\n\n*{caption}*")
    for evaluation in results_of_weights(load_checkpoint(weights).sha256, results):
        for path, shows in evaluation.pictures:
            caption = f"{evaluation.title}: {shows}. Drawn by `relograph eval`."
            parts.append(f"![{caption}]({_relative(path, docs)})\n\n*{caption}*")
    return "\n\n".join(parts) if parts else "No plots are in the repository yet."


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()
