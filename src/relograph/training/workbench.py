"""What trainings and evaluations on the same scenes share: frames, descriptors, first weights."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.configuration import config_to_dict
from relograph.errors import CheckpointError, ConfigError, TrainingError
from relograph.models import ResNet, build_model
from relograph.models.checkpoint import INDEX_FILE, load_checkpoint, load_encoder_weights, load_into
from relograph.models.retriever import Retriever
from relograph.progress import SILENT, Progress
from relograph.retrieval import read_descriptors
from relograph.scenes import Scene
from relograph.training.config import TrainConfig
from relograph.training.data import RelocalizationData, has_room_for, load_data
from relograph.training.running import (
    WHITENING_IMAGES,
    Trained,
    evenly_spaced,
    load_retriever,
    load_trained,
    make_retriever,
)

RUN_FILE = "run.json"
"""In a run's folder, what it is a run of."""


@dataclass(frozen=True)
class Start:
    """The weights that trainings start from; where there are none, they start from random ones."""

    encoder: ResNet | None = None
    retriever: Retriever | None = None
    """What finds neighbours, with an encoder of its own or that one; where there is none, it is made from the encoder
    and the training images."""
    fingerprint: str = "random weights"
    """Which weights these are."""


@dataclass(frozen=True)
class Workbench:
    """Everything that a training needs beside its configuration, made once for many of them."""

    data: RelocalizationData
    descriptors: Float[Tensor, "F D"]
    retriever: Retriever | None
    """None where descriptors were brought along."""
    start: Start
    retrieval: str
    """Where the descriptors came from, as a fingerprint."""

    @property
    def scene_names(self) -> tuple[str, ...]:
        return self.data.frames.scene_names


def start_from(
    config: TrainConfig,
    *,
    init: Path | None = None,
    encoder_weights: Path | None = None,
    device: torch.device | str = "cpu",
) -> Start:
    """The encoder and the retriever of an earlier run, or an encoder with public weights, or neither."""
    if init is not None and encoder_weights is not None:
        raise ConfigError(
            f"expected --init or --encoder-weights, found both ({init} and {encoder_weights}). An encoder starts from "
            "one of them; leave the other out."
        )
    if init is not None:
        return _start_from_run(init, device)
    if encoder_weights is not None:
        encoder = first_encoder(config)
        load_encoder_weights(encoder, encoder_weights)
        return Start(encoder.to(device), None, f"file {hashlib.sha256(encoder_weights.read_bytes()).hexdigest()[:16]}")
    return Start()


def _start_from_run(run: Path, device: torch.device | str) -> Start:
    """A training's encoder as it learned it, and the retriever that found its neighbours. A pre-training has both in
    its retriever, which may also be all that there is of it."""
    best, folder = run / "best", run / "retriever" if (run / "retriever").is_dir() else run
    if (run / RUN_FILE).is_file() and not best.is_dir():
        raise CheckpointError(
            f"{run}: expected a run that has learned something, found one without a checkpoint in {best}. Let it train "
            "on, or name another run."
        )
    trained = load_trained(run, device=device) if best.is_dir() else None
    if trained is None or not trained.scene_names:
        retriever = load_retriever(folder, device=device)
        return Start(retriever.encoder, retriever, f"run {load_checkpoint(folder).sha256[:16]}")
    fingerprint = f"run {load_checkpoint(best).sha256[:16]}"
    if folder == run:  # it was trained with descriptors from elsewhere
        return Start(trained.model.encoder, None, fingerprint)
    fingerprint += f" with {load_checkpoint(folder).sha256[:16]}"
    return Start(trained.model.encoder, load_retriever(folder, device=device), fingerprint)


def first_encoder(config: TrainConfig) -> ResNet:
    """The encoder that a training of this configuration starts from where it is given none."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        return build_model(config.model).encoder


def set_up_workbench(
    scenes: Sequence[Scene],
    config: TrainConfig,
    *,
    cache: Path,
    start: Start,
    device: torch.device | str = "cpu",
    descriptors: Path | None = None,
    progress: Progress = SILENT,
) -> Workbench:
    """Frames of the scenes, on the GPU where they fit, and their descriptors: of a user's file, of the start's
    retriever, or of one that is made from the start's encoder."""
    data = load_data(scenes, config.data, cache, device=device, progress=progress)
    if not data.frames.images.is_cuda:
        data = data.to(device, images_too=has_room_for(data.frames.images.numel(), torch.device(device)))
    if descriptors is not None:
        read = read_descriptors(descriptors, data.frames.names).to(device)
        digest = hashlib.sha256(descriptors.read_bytes()).hexdigest()
        return Workbench(data, read, None, start, f"file {digest[:16]}")
    retriever, retrieval = start.retriever, start.fingerprint
    if retriever is None:
        encoder = start.encoder if start.encoder is not None else first_encoder(config)
        rows = data.train_rows(data.frames.scene_names)
        retriever = make_retriever(encoder.to(device), data, rows, config.retrieval_as_used, config.seed)
        retrieval = f"NetVLAD on {start.fingerprint}, {json.dumps(config_to_dict(config.retrieval))}"
    described = retriever.describe(data.frames.images, progress=progress)
    return Workbench(data, described, retriever, start, retrieval)


def retriever_of(trained: Trained, workbench: Workbench) -> Retriever:
    """NetVLAD as it was trained along with a network, on that network's encoder, whitened on its training images."""
    config, data = trained.config.retrieval_as_used, workbench.data
    retriever = Retriever(trained.model.encoder, num_clusters=config.num_clusters, image_height=config.image_height)
    where = trained.folder / "best"
    tensors = load_checkpoint(where).tensors
    netvlad = {name.removeprefix("netvlad."): tensor for name, tensor in tensors.items() if name.startswith("netvlad.")}
    load_into(retriever.netvlad, netvlad, where=str(where))
    retriever = retriever.to(data.is_test.device)
    rows = evenly_spaced(data.train_rows(trained.scene_names), WHITENING_IMAGES)
    dim = min(config.descriptor_dim, len(rows) - 1, retriever.netvlad.descriptor_dim)
    if dim > 0:
        retriever.whiten(data.frames.images[rows.to(data.frames.images.device)], dim)
    return retriever


def what_to_know(workbench: Workbench, config: TrainConfig, scene_names: Sequence[str]) -> list[str]:
    """What works, but not as a user may expect, a sentence each."""
    notes = [f"{note}." for note in workbench.data.notes]
    for name in scene_names:
        count = len(workbench.data.train_rows([name]))
        if config.graph.selection != "alone" and count < config.graph.num_nodes:
            notes.append(
                f"{name} has {count} training frame{'' if count == 1 else 's'} and a graph has "
                f"{config.graph.num_nodes} images: graphs of this scene take the frames there are."
            )
    return notes


def has_checkpoint(output: Path) -> bool:
    """Whether a training in this folder has saved what it learned."""
    return any((output / kind / INDEX_FILE).is_file() for kind in ("last", "best"))


@contextmanager
def claimed_run_folder(output: Path, identity: Mapping[str, object]) -> Iterator[None]:
    """Note in a run's folder what it is a run of, and keep other trainings out of it meanwhile.

    A run of the same settings goes on, and one that has saved no checkpoint yet makes room; another one is an error.
    """
    output.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output, os.O_RDONLY)
    try:
        _lock_run_folder(descriptor, output)
        if has_checkpoint(output):
            _refuse_another_run(output, identity)
        elif (output / RUN_FILE).exists():
            shutil.rmtree(output / "retriever", ignore_errors=True)  # of the run that makes room
        partial = output / f".{RUN_FILE}.{token_hex(4)}.partial"
        partial.write_text(json.dumps(identity, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(output / RUN_FILE)
        yield
    finally:
        os.close(descriptor)


def _lock_run_folder(descriptor: int, output: Path) -> None:
    """Raise if another process trains here; some systems have no locks, and there nobody can tell."""
    try:
        import fcntl  # not on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TrainingError(
            f"{output}: expected a folder that nobody trains in, found another training at work in it. Wait for it, or "
            "name another folder with --output."
        ) from error
    except (ImportError, OSError):
        return


def _refuse_another_run(output: Path, identity: Mapping[str, object]) -> None:
    path = output / RUN_FILE
    with suppress(FileNotFoundError):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(
                f"{path}: expected what this run is a run of, found no JSON. Remove the folder, or name another."
            ) from error
        different = _first_difference(json.loads(json.dumps(identity)), found)
        if different:
            raise ConfigError(
                f"{output}: expected a new folder or an unfinished run of the same settings, found one with "
                f"{different}. Name another folder with --output."
            )


def _first_difference(wanted: object, found: object, path: str = "") -> str:
    """In words, the first value that differs; empty where none does."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted({*wanted, *found}):
            difference = _first_difference(wanted.get(key), found.get(key), f"{path}.{key}" if path else key)
            if difference:
                return difference
        return ""
    return "" if wanted == found else f"{path.removeprefix('config.')} {found!r} where {wanted!r} was asked for"
