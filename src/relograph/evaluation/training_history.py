"""How MatchGNN got better, round after round: the validations of all rounds against the time that training took."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from relograph.errors import DatasetError
from relograph.evaluation.plots import finish_axes, label_in_plain_numbers, legend_below, method_styles, two_panels
from relograph.models.checkpoint import load_checkpoint
from relograph.results import write_result
from relograph.training.loop import read_log
from relograph.training.match_training import WEIGHTS, TrainingRecord

HISTORY_FILE = "training.json"
"""Among the results of MatchGNN."""
TOLD = ("git_commit", "device_name", "torch", "timestamp_utc")
"""Of what made a round."""


@dataclass(frozen=True)
class Validation:
    """The figures of validation rooms at one moment of a training."""

    round: int
    seconds: float
    """Of training, those of the rounds before included."""
    graphs: int
    """Photographed graphs that were seen until then, likewise."""
    loss: float
    figures: Mapping[str, float | None]

    def as_row(self) -> dict[str, object]:
        """For a file of results."""
        return {
            "round": self.round,
            "seconds": self.seconds,
            "graphs": self.graphs,
            "validation_loss": self.loss,
            **self.figures,
        }

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Validation":
        """What `as_row` was made of."""
        figures = dict(row)
        number, seconds, graphs, loss = (
            figures.pop(name) for name in ("round", "seconds", "graphs", "validation_loss")
        )
        return Validation(number, seconds, graphs, loss, figures)


@dataclass(frozen=True)
class Round:
    """A training that started where the one before it ended."""

    number: int
    seconds: float
    """That it lasted, up to the weights that were kept."""
    graphs: int
    """Photographed graphs that it saw, likewise."""
    weights_sha256: str
    textures_sha256: str | None
    """Of the photographs on its rooms' walls; None where there were none."""
    provenance: Mapping[str, Any]
    validations: tuple[Validation, ...]
    """All of them, also those after the weights that were kept."""

    @property
    def kept(self) -> Validation:
        """The one whose weights were kept."""
        return min(self.validations, key=lambda validation: validation.loss)

    def as_row(self) -> dict[str, object]:
        """For a file of results."""
        return {
            "round": self.number,
            "seconds": self.seconds,
            "graphs": self.graphs,
            "weights_sha256": self.weights_sha256,
            "textures_sha256": self.textures_sha256,
            "validation_loss": self.kept.loss,
            **self.kept.figures,
            **{name: self.provenance.get(name) for name in TOLD},
            "command": command_without_folders(str(self.provenance.get("command", ""))),
        }

    @staticmethod
    def from_row(row: Mapping[str, Any], validations: Sequence[Validation]) -> "Round":
        """What `as_row` was made of, with the validations of this round among others."""
        return Round(
            number=row["round"],
            seconds=row["seconds"],
            graphs=row["graphs"],
            weights_sha256=row["weights_sha256"],
            textures_sha256=row["textures_sha256"],
            provenance={name: row[name] for name in (*TOLD, "command")},
            validations=tuple(one for one in validations if one.round == row["round"]),
        )


def read_rounds(runs: Sequence[Path], written: Path | None = None) -> list[Round]:
    """The rounds that led to the weights of the last run, each from the weights of the one before it.

    Where the first of these runs does not start from random weights, the rounds before it are those that are `written`
    in the file of an earlier history; and where that file has the runs already, as after a publication, those that
    follow the last of them there stay as well.
    """
    checkpoints = [load_checkpoint(run / WEIGHTS) for run in runs]
    told = read_history(written) if written is not None and written.exists() else []
    given = {checkpoint.sha256 for checkpoint in checkpoints}
    again = [idx for idx, one in enumerate(told) if one.weights_sha256 in given]
    before, after = (told[: again[0]], told[again[-1] + 1 :]) if again else (told, [])
    rounds = [] if checkpoints[0].metadata.get("start") is None else [*before]
    for run, checkpoint in zip(runs, checkpoints, strict=True):
        metadata: Mapping[str, Any] = checkpoint.metadata
        before_s, before_graphs = sum(one.seconds for one in rounds), sum(one.graphs for one in rounds)
        expected = rounds[-1].weights_sha256 if rounds else None
        if metadata.get("start") != expected:
            raise DatasetError(
                f"{run}: expected a round that starts from {_start_text(expected)}, found one from "
                f"{_start_text(metadata.get('start'))}. Name all rounds in their order; those before the first may be "
                "in the file that --output names."
            )
        record = TrainingRecord.of(metadata)
        if record.graphs <= before_graphs or "provenance" not in metadata:
            raise DatasetError(
                f"{run}: expected the folder of a training of MatchGNN, found weights that none has made. Name another."
            )
        batch_size = metadata["config"]["optim"]["batch_size"]
        validations = []
        for row in _log(run / "log.csv"):
            loss = row.get("validation_loss")
            if loss is None:
                continue
            graphs = int(row.get("step") or 0) * batch_size
            validations.append(
                Validation(
                    len(rounds) + 1,
                    before_s + (row.get("seconds") or 0.0),
                    before_graphs + graphs,
                    loss,
                    {name: row.get(name) for name in metadata["validation"] if name != "loss"},
                )
            )
        if not validations:
            raise DatasetError(f"{run / 'log.csv'}: expected validations, found none. Name a run that had one.")
        rounds.append(
            Round(
                number=len(rounds) + 1,
                seconds=record.seconds - before_s,
                graphs=record.graphs - before_graphs,
                weights_sha256=checkpoint.sha256,
                textures_sha256=(metadata.get("textures") or {}).get("sha256"),
                provenance=metadata["provenance"],
                validations=tuple(validations),
            )
        )
    if after and told[again[-1]].weights_sha256 != rounds[-1].weights_sha256:
        start, end = (_start_text(one.weights_sha256) for one in (told[again[-1]], rounds[-1]))
        raise DatasetError(
            f"{written}: expected that its round {after[0].number} starts from {end} of the last run, found that it "
            f"starts from {start}. Name another --output and the folders of all rounds, as this file would lose that "
            "round."
        )
    return [*rounds, *after]


def read_history(path: Path) -> list[Round]:
    """The rounds that `write_history` wrote; what it would write of them is what the file says."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        validations = [Validation.from_row(row) for row in document["results"]]
        rounds = [Round.from_row(row, validations) for row in document["metadata"]["rounds"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_history(path, getattr(error, "strerror", None) or "another file") from error
    if not rounds or not all(one.validations for one in rounds):
        raise _no_history(path, "rounds without a validation")
    if rounds[-1].weights_sha256 != document["metadata"].get("weights_sha256"):
        raise _no_history(path, "rounds that end with other weights than it names")
    return rounds


def write_history(rounds: Sequence[Round], path: Path, *, command: str) -> None:
    """All validations of all rounds, in one file of results."""
    rows = [validation.as_row() for of_round in rounds for validation in of_round.validations]
    details = {"weights_sha256": rounds[-1].weights_sha256, "rounds": [of_round.as_row() for of_round in rounds]}
    write_result(path, rows, command=command_without_folders(command), seed=None, details=details)


def history_figure(rounds: Sequence[Round]) -> Figure:
    """Median errors in validation rooms against the minutes of training, a line for each round.

    A line ends with the weights that were kept, and the next one starts there.
    """
    styles = method_styles([_name(of_round) for of_round in rounds], None)
    figure, panels = two_panels("Validation rooms, without intrinsics, before the last layer")
    labels = {"median_m": "median translation error [m]", "median_deg": "median rotation error [°]"}
    for axes, (figure_name, label) in zip(panels, labels.items(), strict=True):
        axes.set_yscale("log")
        label_in_plain_numbers(axes.yaxis)
        drawn = []
        for number, of_round in enumerate(rounds):
            shown = [one for one in of_round.validations if one.seconds <= of_round.kept.seconds]
            shown = [rounds[number - 1].kept, *shown] if number else shown
            errors = np.array([one.figures.get(figure_name) for one in shown], dtype=np.float64)
            minutes = [one.seconds / 60 for one in shown]
            name = _name(of_round)
            axes.plot(minutes, errors, marker="o", markersize=3.0, label=name, **styles[name])
            drawn.append(errors)
        axes.set_xlim(left=0)
        finish_axes(axes, "minutes of training", label, drawn)
    legend_below(figure, panels[0])
    return figure


def rounds_table(rounds: Sequence[Mapping[str, Any]]) -> str:
    """The rounds of a history in Markdown, from what `Round.as_row` says."""
    lines = [
        "| Round | Minutes | Graphs | Validation rooms | Device | Commit |",
        "| ---: | ---: | ---: | :---: | :--- | :--- |",
    ]
    for row in rounds:
        commit = str(row["git_commit"] or "unknown")[:7]
        lines.append(
            f"| {row['round']} | {row['seconds'] / 60:.1f} | {row['graphs']:,} | {errors_text(row)} | "
            f"{row['device_name']} | {commit} |"
        )
    return "\n".join(lines)


def errors_text(figures: Mapping[str, Any]) -> str:
    """Median errors of a validation, as far as it was asked: rounds before the last layer was there lack its errors.

    Example:
        >>> errors_text({"median_m": 0.0421, "median_deg": 1.2, "settled_m": 0.0131, "settled_deg": 0.3})
        '0.013 m / 0.30° (0.042 m / 1.20° before the last layer)'
    """
    fused = f"{figures['median_m']:.3f} m / {figures['median_deg']:.2f}° before the last layer"
    if figures.get("settled_m") is None:
        return fused
    return f"{figures['settled_m']:.3f} m / {figures['settled_deg']:.2f}° ({fused})"


def command_without_folders(command: str) -> str:
    """A command with a name in the place of every path, that of the option before it: no folder of anybody is told.

    Example:
        >>> command_without_folders("relograph train --preset matchgnn --textures /home/me/t.zip --set seed=1")
        'relograph train --preset matchgnn --textures $TEXTURES --set seed=1'
    """
    words, option = [], "PATH"
    for word in shlex.split(command):
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if word.startswith("--"):
            option = name.lstrip("-").upper().replace("-", "_")
        if "/" in value or re.fullmatch(r"\$[A-Z_]+", value):
            words.append(f"{name}{equals}${option}")
        else:
            words.append(shlex.quote(word))
            option = option if word.startswith("--") else "PATH"
    return " ".join(words)


def _name(of_round: Round) -> str:
    return f"round {of_round.number}"


def _start_text(sha256: object) -> str:
    return "random weights" if sha256 is None else f"the weights {str(sha256)[:12]}"


def _no_history(path: Path, found: str) -> DatasetError:
    return DatasetError(
        f"{path}: expected earlier rounds as `relograph weights history` writes them, found {found}. Restore the "
        "file, or move it away and name the folders of all rounds."
    )


def _log(path: Path) -> list[dict[str, float | None]]:
    try:
        return read_log(path)
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(
            f"{path}: expected the log of a training, found: {getattr(error, 'strerror', None) or error}. Name the "
            "folder that `relograph train` was given as --output."
        ) from error
