"""`relograph eval`: a training run on the test queries of scenes, beside copying the nearest reference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.evaluating import copy_top1, evaluate
from relograph.evaluation.metrics import score
from relograph.evaluation.predictions import Predictions, write_predictions
from relograph.evaluation.tables import COPY_TOP1, MethodRow
from relograph.localization import EdgeReading
from relograph.progress import SILENT, Progress
from relograph.results import command_line
from relograph.retrieval import read_descriptors, read_pairs
from relograph.scenes import open_scenes
from relograph.training.data import load_data
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
    ranked = described = None
    if pairs is not None:
        ranked = read_pairs(pairs, data.frames.names, database=data.frames.in_map, scene_idx=data.frames.scene_idx)
        ranked = ranked.to(device)
    elif descriptors is not None:
        described = read_descriptors(descriptors, data.frames.names).to(device)
    else:
        if not (run / "retriever").is_dir():
            raise DatasetError(
                f"{run}: expected the run's retrieval in {run / 'retriever'}, found none: it was trained with "
                "descriptors from elsewhere. Give --descriptors or --pairs."
            )
        described = load_retriever(run / "retriever", device=device).describe(data.frames.images, progress=progress)
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
        write_predictions(output, predictions, metadata={"method": name, "command": command_line()})
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
