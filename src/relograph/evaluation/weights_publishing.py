"""From the folder of a training into the package: MatchGNN's weights with their calibration and their model card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relograph.errors import CheckpointError, DatasetError
from relograph.evaluation.model_card import CardFacts, model_card
from relograph.evaluation.training_history import command_without_folders, errors_text
from relograph.evaluation.weights_results import (
    VALIDATION_ROOMS,
    EvaluationResults,
    history_of_weights,
    results_of_weights,
)
from relograph.evaluation.writing import write_whole
from relograph.models.checkpoint import INDEX_FILE, MAX_SHARD_BYTES, Checkpoint, load_checkpoint, save_checkpoint
from relograph.models.shipped import MODEL_CARD_FILE, LoadedMatchGNN, load_match_gnn
from relograph.rooms.texture_sources import SourcePackage, read_texture_sources
from relograph.rooms.textures import fingerprint_of_photographs
from relograph.training.match_training import WEIGHTS, TrainingRecord

MAX_BYTES = 36_000_000
"""Of the weights: they are part of every clone and of every installed package."""
LEAST_GAIN = 0.02
"""Share by which new weights must be better: every set of weights stays in the repository for good."""


@dataclass(frozen=True)
class Published:
    """What is in a folder of weights."""

    network: LoadedMatchGNN
    num_bytes: int
    """Of the weights and their index."""
    card: str | None
    """The model card; None where there is none or where it is that of other weights."""

    def lines(self) -> list[str]:
        """What a person wants to know of them."""
        metadata: Mapping[str, Any] = self.network.metadata
        record, calibration = TrainingRecord.of(metadata), self.network.calibration
        made, validation = metadata.get("provenance"), metadata.get("validation")
        config = self.network.model.config
        num_weights = sum(parameter.numel() for parameter in self.network.model.parameters())
        lines = [
            f"sha256      {self.network.sha256}",
            f"size        {num_weights:,} weights, {self.num_bytes / 1e6:.1f} MB on disk",
            f"network     {config.channels} channels, {config.self_layers} + {config.cross_layers} layers, descriptors "
            f"of {config.descriptor_dim}",
            f"training    rounds: {record.rounds}, seconds: {record.seconds:,.0f}, graphs: {record.graphs:,}",
        ]
        if isinstance(made, Mapping):
            commit = made.get("git_commit") or "unknown"
            lines.append(f"made with   {made.get('device_name')}, torch {made.get('torch')}, commit {commit}")
        if isinstance(validation, Mapping):
            lines.append(f"validation  {errors_text(validation)}, without intrinsics")
        if calibration is None:
            lines.append("confidence  not calibrated")
        else:
            odds = (calibration.solved, calibration.unsolved, calibration.regressed)
            lines.append(
                f"confidence  calibrated on {calibration.num_answers:,} answers; refuses below "
                f"{' / '.join(f'{one.threshold:.0%}' for one in odds)} (solved / unsolved / regressed)"
            )
        return [*lines, f"card        {'there' if self.card else 'none of these weights'}"]


def weights_folder(path: Path) -> Path:
    """The folder of weights that is meant by that of a run, or by itself."""
    return path / WEIGHTS if (path / WEIGHTS).is_dir() else path


def read_published(folder: Path | None = None) -> Published:
    """What is in a folder of weights, or in the package."""
    from relograph.models import shipped

    network = load_match_gnn(folder)
    folder = shipped.SHIPPED_WEIGHTS if folder is None else folder
    path = folder / MODEL_CARD_FILE
    card = path.read_text(encoding="utf-8") if path.is_file() else None
    return Published(network, weights_bytes(folder), card if card and network.sha256 in card else None)


def weights_bytes(folder: Path) -> int:
    """Bytes of the weights of a folder and of their index."""
    return sum(path.stat().st_size for path in (*folder.glob("*.safetensors"), folder / INDEX_FILE))


def publish_weights(
    source: Path, target: Path, *, results: Path, measured: Sequence[Path] = (), textures: Path | None
) -> list[str]:
    """Copy the weights of a run, or of a folder, into the package with their calibration, and write their card.

    What was `measured` with them, outputs of `relograph eval`, is copied to a folder of their own in `results`.
    A kill leaves the old weights or the new ones, whole and with their calibration; the same command given again then
    writes the card that is missing. Given for weights that are published already, it only writes their card anew, which
    tells what was measured since. What it did is given back in lines.
    """
    source = weights_folder(source)
    network = load_match_gnn(source)
    packages = _texture_sources(source, network, textures)
    _require_all_that_a_card_tells(source, network)
    new = [evaluation for folder in measured for evaluation in _measured(folder, network)]
    if not any(one.place == VALIDATION_ROOMS for one in (*new, *results_of_weights(network.sha256, results))):
        raise DatasetError(
            f"{results}: expected results of the weights {network.sha256[:12]} in validation rooms, found none. Run: "
            f"relograph eval --rooms validation --weights {source} --output DIR, and give --measured DIR."
        )
    before = load_checkpoint(target) if (target / INDEX_FILE).exists() else None
    lines = [] if before is None else [_compared(network, before)]
    checkpoint = load_checkpoint(source)
    provenance: Mapping[str, Any] = checkpoint.metadata["provenance"]  # type: ignore[assignment]  # required above
    command = command_without_folders(str(provenance["command"]))
    metadata = {**checkpoint.metadata, "provenance": {**provenance, "command": command}}
    num_bytes = weights_bytes(source)
    _require_small(source, num_bytes)
    for evaluation in new:
        evaluation.keep_in(results / "matchgnn" / network.sha256[:12] / evaluation.folder.name)
    facts = CardFacts(
        network=replace(network, metadata=metadata),
        num_bytes=num_bytes,
        textures=packages,
        evaluations=results_of_weights(network.sha256, results),
        history=history_of_weights(network.sha256, results),
    )
    card = model_card(facts).encode()
    save_checkpoint(target, checkpoint.tensors, metadata)
    write_whole(target / MODEL_CARD_FILE, card)
    published = read_published(target)
    if published.network.sha256 != network.sha256 or published.card is None:
        raise CheckpointError(f"{target}: expected what was just written, found something else. Publish again.")
    return [*lines, *published.lines()]


def _compared(network: LoadedMatchGNN, before: Checkpoint) -> str:
    """How the new weights compare with those before, in a line; an error where they are not clearly better."""
    if network.sha256 == before.sha256:
        return "These weights are published already; their card is written anew."
    new: Mapping[str, Any] = network.metadata["validation"]  # type: ignore[assignment]  # required before
    old: Mapping[str, Any] = before.metadata["validation"]  # type: ignore[assignment]  # it was published
    both = f"{errors_text(new)} (loss {new['loss']:.4f}) against {errors_text(old)} (loss {old['loss']:.4f})"
    if new["loss"] > (1 - LEAST_GAIN) * old["loss"]:
        raise CheckpointError(
            f"expected weights that are {LEAST_GAIN:.0%} better in validation rooms than the published ones, found "
            f"{both}. Train another round."
        )
    said = f"Better in validation rooms than the published ones: {both}."
    if differences := _validated_differently(network.metadata, before.metadata):
        said += f" Mind that their validation rooms differ in {', '.join(differences)}."
    return said


def _validated_differently(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Names of what makes validation rooms and differs between two trainings."""
    differences = [
        f"stream.{name}"
        for name, value in new["config"]["stream"].items()
        if value != old["config"]["stream"].get(name, value)
    ]
    if new["config"]["validation_batches"] != old["config"]["validation_batches"]:
        differences.append("validation_batches")
    if new["textures"] != old["textures"]:
        differences.append("textures")
    if ("settled_m" in new["validation"]) != ("settled_m" in old["validation"]):
        differences.append("the last layer, which one of them was validated without")
    return differences


def _require_all_that_a_card_tells(source: Path, network: LoadedMatchGNN) -> None:
    if network.calibration is None:
        raise CheckpointError(
            f"{source}: expected weights with a calibration, found none. Run: relograph eval --rooms validation "
            f"--calibrate {source} --output DIR"
        )
    for name in ("training", "validation", "provenance", "textures", "config"):
        if name not in network.metadata:
            raise CheckpointError(
                f"{source}: expected weights that a training of MatchGNN wrote, found some without its {name}. Choose "
                "the folder `weights` of a training with --preset matchgnn."
            )


def _measured(folder: Path, network: LoadedMatchGNN) -> list[EvaluationResults]:
    found = results_of_weights(network.sha256, folder)
    if not found:
        raise DatasetError(
            f"{folder}: expected what `relograph eval` wrote of the weights {network.sha256[:12]}, found no results of "
            "these. Evaluate them, or leave --measured out."
        )
    return found


def _require_small(source: Path, num_bytes: int) -> None:
    largest = max(path.stat().st_size for path in source.glob("*.safetensors"))
    # A shard's list of names comes on top of its tensors.
    if num_bytes > MAX_BYTES or largest > MAX_SHARD_BYTES + 100_000:
        raise CheckpointError(
            f"{source}: expected {MAX_BYTES / 1e6:.0f} MB of weights at most in shards of {MAX_SHARD_BYTES / 1e6:.0f} "
            f"MB, found {num_bytes / 1e6:.1f} MB, the largest shard of {largest / 1e6:.1f} MB. Train a smaller network."
        )


def _texture_sources(source: Path, network: LoadedMatchGNN, textures: Path | None) -> list[SourcePackage]:
    """The packages of the archive that the training took its photographs from, once it is known to be that one."""
    trained_with: Any = network.metadata.get("textures")
    if trained_with is None:
        if textures is not None:
            raise DatasetError(
                f"{textures}: expected no archive for weights that saw no photographs, found one. Leave --textures out."
            )
        return []
    if textures is None:
        raise DatasetError(
            f"{source}: expected --textures ZIP, the archive that these weights were trained with, found none. Give it."
        )
    packages = read_texture_sources(textures)
    found = fingerprint_of_photographs(textures)
    if found != trained_with["sha256"]:
        raise DatasetError(
            f"{textures}: expected the archive of the training, with SHA-256 {trained_with['sha256'][:12]}, found "
            f"another, with {found[:12]}. Name the one that the training was given."
        )
    return packages
