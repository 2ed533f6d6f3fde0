"""`relograph eval`: a training run on the test queries of scenes, beside copying the nearest reference."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.evaluating import copy_top1, evaluate
from relograph.evaluation.metrics import score
from relograph.evaluation.predictions import Predictions, write_predictions
from relograph.evaluation.tables import COPY_TOP1, MethodRow
from relograph.localization import EdgeReading
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.results import command_line, provenance
from relograph.retrieval import read_descriptors, read_pairs
from relograph.scenes import open_scenes
from relograph.training.config import GraphConfig
from relograph.training.data import RelocalizationData, load_data
from relograph.training.running import load_retriever, load_trained


@dataclass(frozen=True)
class RunEvaluation:
    """What a run answered, and the rows of its table."""

    predictions: Predictions
    rows: tuple[MethodRow, ...]
    """Copying the most similar reference first."""
    setting: str


def evaluate_run(
    run: Path,
    root: Path,
    *,
    scene_names: Sequence[str] | None = None,
    reading: EdgeReading = "nearest",
    output: Path | None = None,
    pairs: Path | None = None,
    descriptors: Path | None = None,
    device: str = "cpu",
    cache: Path,
    seed: int = 0,
    warn: Callable[[str], None] = lambda note: None,
    progress: Progress = SILENT,
) -> RunEvaluation:
    """Localize the test frames of scenes with a trained network; the predictions are written before they are scored.

    References are found by the run's own retrieval, by a user's list of pairs or by a user's descriptors.
    """
    if pairs is not None and descriptors is not None:
        raise ConfigError(f"expected --pairs or --descriptors, found both ({pairs} and {descriptors}). Leave one out.")
    trained = load_trained(run, device=device)
    scenes = open_scenes(root, scene_names)
    if not any(frame.split == "test" for scene in scenes for frame in scene):
        raise DatasetError(
            f"{root}: expected test frames to localize, found none in {', '.join(scene.name for scene in scenes)}. "
            "Give data with a test split."
        )
    config = trained.config
    # The walks that were rendered for training are no part of the map.
    data = load_data(scenes, replace(config.data, extra_walks=0), cache, device=device, progress=progress)
    names = data.frames.scene_names
    for note in small_maps(data, config.graph):
        warn(note)
    ranked = described = None
    if pairs is not None:
        ranked = read_pairs(pairs, data.frames.names, database=data.frames.in_map, scene_idx=data.frames.scene_idx)
        ranked = ranked.to(device)
        retrieval = f"pairs {hashlib.sha256(pairs.read_bytes()).hexdigest()}"
    elif descriptors is not None:
        described = read_descriptors(descriptors, data.frames.names).to(device)
        retrieval = f"descriptors {hashlib.sha256(descriptors.read_bytes()).hexdigest()}"
    else:
        folder = retriever_folder(run)
        described = load_retriever(folder, device=device).describe(data.frames.images, progress=progress)
        retrieval = f"retriever {load_checkpoint(folder).sha256}"
    answers = evaluate(
        trained,
        data,
        names,
        descriptors=described,
        ranked=ranked,
        readings=(reading,),
        seed=seed,
        progress=progress,
    )
    predictions = next(iter(answers.values()))
    name = f"{config.model.kind}, {reading}" if config.model.predicts_edges else config.model.kind
    if output is not None:
        metadata = {
            "method": name,
            "reading": reading,
            "config": config_to_dict(config),
            "checkpoint_sha256": load_checkpoint(run / "best" if (run / "best").is_dir() else run).sha256,
            "data_fingerprint": data.fingerprint,
            "retrieval": retrieval,
            "provenance": provenance(command=command_line(), seed=seed, device=device),
        }
        write_predictions(output, predictions, metadata=metadata)
    height, width = data.frames.images.shape[1:3]
    trained_on = ", ".join(trained.scene_names) or "rooms without end"
    return RunEvaluation(
        predictions,
        (
            MethodRow(
                name=COPY_TOP1, scores=score(copy_top1(data, names, described, ranked=ranked)), is_copy_top1=True
            ),
            MethodRow(
                name=name,
                scores=score(predictions),
                num_test_frames=config.graph.num_nodes if config.graph.selection == "sequence" else 1,
            ),
        ),
        f"C = {config.model.channels}, {height}x{width}, trained on {trained_on}",
    )


def small_maps(data: RelocalizationData, graph: GraphConfig) -> list[str]:
    """Of each scene whose map is smaller than a graph a sentence."""
    if graph.selection not in ("retrieval", "random"):
        return []
    counts = {
        name: int((data.frames.in_map & (data.frames.scene_idx == scene)).sum())
        for scene, name in enumerate(data.frames.scene_names)
    }
    return [
        f"the map of {name} has {count} image{'s' if count != 1 else ''} and a graph {graph.num_references} "
        "references: graphs of this scene take what there is."
        for name, count in counts.items()
        if count < graph.num_references
    ]


def retriever_folder(run: Path) -> Path:
    """Where a run keeps its retrieval; `run` may also be a checkpoint in it, such as RUN/best."""
    run_folder = run if (run / "best").is_dir() else run.resolve().parent
    for folder in (run / "retriever", run_folder / "retriever"):
        if folder.is_dir():
            return folder
    raise DatasetError(
        f"{run}: expected the run's retrieval in {run_folder / 'retriever'}, found none, as in a run that was trained "
        "with descriptors from elsewhere. Give --descriptors or --pairs."
    )
