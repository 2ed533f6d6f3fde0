"""`relograph train`: a run folder with all that an evaluation needs."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError
from relograph.progress import SILENT, Progress
from relograph.retrieval import read_pairs
from relograph.scenes import open_scenes
from relograph.training.config import TrainConfig
from relograph.training.loop import make_fabric, read_log
from relograph.training.match_training import MatchTrainConfig, earlier_round, textures_of, train_match_gnn
from relograph.training.running import pretrain, save_retriever, train_on_scenes
from relograph.training.workbench import (
    claimed_run_folder,
    has_checkpoint,
    retriever_of,
    set_up_workbench,
    start_from,
    what_to_know,
)


@dataclass(frozen=True)
class TrainRun:
    """A finished training."""

    folder: Path
    num_steps: int
    best_validation: float | None
    """The fixed loss of the checkpoint that was kept; None where nothing could be held out."""
    is_first_process: bool
    """Whether this process is the one that speaks."""


def train_run(
    config: TrainConfig,
    root: Path,
    output: Path,
    *,
    scene_names: Sequence[str] | None = None,
    init: Path | None = None,
    encoder_weights: Path | None = None,
    descriptors: Path | None = None,
    pairs: Path | None = None,
    device: str = "cpu",
    cache: Path,
    warn: Callable[[str], None],
    progress: Progress = SILENT,
) -> TrainRun:
    """Train on the scenes of a data set; a run that was stopped goes on.

    References are found by NetVLAD, by a user's descriptors or by a user's list of pairs.
    """
    if pairs is not None and descriptors is not None:
        raise ConfigError(f"expected --pairs or --descriptors, found both ({pairs} and {descriptors}). Leave one out.")
    if pairs is not None and config.graph.selection != "retrieval":
        raise ConfigError(
            f"expected graph.selection=retrieval with --pairs, found {config.graph.selection}, which takes no pairs. "
            "Leave one of them out."
        )
    scenes = open_scenes(root, scene_names)
    fabric = make_fabric(device, config.optim.precision)
    progress = progress if fabric.is_global_zero else SILENT
    start = start_from(config, init=init, encoder_weights=encoder_weights, device=fabric.device)
    workbench = set_up_workbench(
        scenes, config, cache=cache, start=start, device=fabric.device, descriptors=descriptors, progress=progress
    )
    names, frames = workbench.scene_names, workbench.data.frames
    retrieval, of_frames = workbench.retrieval, None
    if pairs is not None:
        of_frames = read_pairs(pairs, frames.names, database=frames.in_map, scene_idx=frames.scene_idx)
        of_frames = of_frames.to(fabric.device)
        retrieval = f"pairs {hashlib.sha256(pairs.read_bytes()).hexdigest()[:16]}, {retrieval}"
    identity = {
        "config": config_to_dict(config),
        "scenes": list(names),
        "data": workbench.data.fingerprint,
        "start": start.fingerprint,
        "retrieval": retrieval,
    }
    with claimed_run_folder(output, identity) if fabric.is_global_zero else nullcontext():
        if fabric.is_global_zero:
            for note in what_to_know(workbench, config, names):
                warn(note)
            if of_frames is not None:
                rows = workbench.data.train_rows(names)
                num_alone = int((of_frames[rows] < 0).all(dim=1).sum())
                if num_alone:
                    warn(
                        f"{num_alone:,} of {len(rows):,} training frames have no pair in {pairs}: they are no queries."
                    )
            # Once there is a checkpoint, the retriever beside it may be the one that was trained along.
            is_kept = has_checkpoint(output) and (output / "retriever").is_dir()
            if workbench.retriever is not None and not is_kept:
                save_retriever(workbench.retriever, output / "retriever")
        trained = train_on_scenes(
            config,
            workbench.data,
            names,
            output,
            fabric=fabric,
            descriptors=workbench.descriptors,
            pairs=of_frames,
            encoder=start.encoder,
            progress=progress,
        )
        if config.retrieval.loss != "none" and fabric.is_global_zero:
            save_retriever(retriever_of(trained, workbench), output / "retriever")
        return _finished(output, is_first_process=fabric.is_global_zero)


def pretrain_run(
    config: TrainConfig, output: Path, *, init: Path | None = None, device: str = "cpu", progress: Progress = SILENT
) -> TrainRun:
    """Train the encoder and the retrieval on rooms without end; a run that was stopped goes on."""
    fabric = make_fabric(device, config.optim.precision)
    start = start_from(config, init=init, device=fabric.device)
    progress = progress if fabric.is_global_zero else SILENT
    # NetVLAD's words are of its own encoder's features; those of another it learns anew.
    retriever = start.retriever if start.retriever and start.retriever.encoder is start.encoder else None
    netvlad = retriever.netvlad if retriever else None
    identity = {"config": config_to_dict(config), "start": start.fingerprint}
    with claimed_run_folder(output, identity) if fabric.is_global_zero else nullcontext():
        pretrain(config, output, fabric=fabric, encoder=start.encoder, netvlad=netvlad, progress=progress)
        return _finished(output, is_first_process=fabric.is_global_zero)


def match_run(
    config: MatchTrainConfig,
    output: Path,
    *,
    init: Path | None = None,
    textures: Path | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> TrainRun:
    """A round of training MatchGNN on rooms without end; one that was stopped goes on.

    `init` is an earlier round's run or its weights, `textures` a folder or a zip file of photographs.
    """
    earlier = None if init is None else earlier_round(init, config)
    fabric = make_fabric(device, config.optim.precision)
    progress = progress if fabric.is_global_zero else SILENT
    identity = {
        "config": config_to_dict(config),
        "start": "random weights" if earlier is None else f"weights {earlier.sha256[:16]}",
        "textures": textures_of(textures),
    }
    with claimed_run_folder(output, identity) if fabric.is_global_zero else nullcontext():
        train_match_gnn(config, output, fabric=fabric, earlier=earlier, photographs=textures, progress=progress)
        return _finished(output, is_first_process=fabric.is_global_zero)


def _finished(output: Path, *, is_first_process: bool) -> TrainRun:
    log = read_log(output / "log.csv")
    validations = [row["validation_loss"] for row in log if row["validation_loss"] is not None]
    num_steps = int(log[-1]["step"] or 0) if log else 0
    return TrainRun(output, num_steps, min(validations, default=None), is_first_process)
