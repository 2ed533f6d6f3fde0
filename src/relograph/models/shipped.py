"""MatchGNN as users meet it: weights in half precision, checked byte by byte, with what is needed to trust them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relograph.configuration import config_from_dict, config_to_dict
from relograph.errors import CheckpointError, ConfigError
from relograph.models.checkpoint import INDEX_FILE, Checkpoint, load_checkpoint, load_into, save_checkpoint
from relograph.models.match_gnn import MatchConfig, MatchGNN

SHIPPED_WEIGHTS = Path(__file__).parent.parent / "weights" / "matchgnn"
MODEL_CARD_FILE = "MODEL_CARD.md"
CALIBRATION = "calibration"
"""In the metadata of weights: what is judged by it and the weights themselves change in one step."""


@dataclass(frozen=True)
class Odds:
    """A logistic regression: the log odds that an answer is right are `bias` plus its signs times their weights."""

    weight_by_sign: Mapping[str, float]
    bias: float
    threshold: float
    """Answers that are less likely right than this are refused."""


@dataclass(frozen=True)
class Calibration:
    """How sure answers are, learned from answers in validation rooms."""

    solved: Odds
    """Of poses that were solved from matches."""
    unsolved: Odds
    """Of poses that the network said, after matches had agreed on none."""
    regressed: Odds
    """Of poses that the network said, where matches were not asked."""
    network_sha256: str
    """Of the weights that gave the answers."""
    num_answers: int
    """That it was learned from."""


@dataclass(frozen=True)
class LoadedMatchGNN:
    """A network that is ready to answer."""

    model: MatchGNN
    """In evaluation mode, in float32 on the CPU."""
    sha256: str
    """Of the weights; features of a map belong to one such number."""
    metadata: dict[str, object]
    calibration: Calibration | None = None
    """None where nobody has calibrated these weights."""


def weights_are_shipped() -> bool:
    """Whether a network is part of the package."""
    return (SHIPPED_WEIGHTS / INDEX_FILE).exists()


def load_match_gnn(folder: Path | None = None) -> LoadedMatchGNN:
    """The network in `folder`, or the one that is part of the package."""
    if folder is None:
        folder = SHIPPED_WEIGHTS
        if not weights_are_shipped():
            raise CheckpointError(
                f"{folder}: expected the weights of MatchGNN in the package, found none: this build has none. "
                "Give --weights DIR, a folder that a training wrote."
            )
    checkpoint = load_checkpoint(folder)
    model = _model_of(_saved_config(folder, checkpoint.metadata), checkpoint.tensors, where=str(folder))
    return LoadedMatchGNN(model, checkpoint.sha256, checkpoint.metadata, _saved_calibration(folder, checkpoint))


def save_match_gnn(
    folder: Path, model: MatchGNN, metadata: Mapping[str, object], *, dtype: torch.dtype = torch.float16
) -> str:
    """Writes the network's weights, rounded to `dtype`, and returns their SHA-256.

    The size of the network is saved with `metadata`, as its `config.model`. What was here before goes, and its
    calibration with it.
    """
    tensors = {name: _rounded(name, tensor, dtype) for name, tensor in model.state_dict().items()}
    config = metadata.get("config")
    config = dict(config) if isinstance(config, Mapping) else {}
    save_checkpoint(folder, tensors, {**metadata, "config": {**config, "model": config_to_dict(model.config)}})
    return load_checkpoint(folder).sha256


def save_calibration(folder: Path, calibration: Calibration) -> None:
    """Saves the calibration with the weights in `folder`, to which it must belong."""
    checkpoint = load_checkpoint(folder)
    if calibration.network_sha256 != checkpoint.sha256:
        raise CheckpointError(
            f"{folder}: expected a calibration of these weights, found one of others. Calibrate these weights."
        )
    save_checkpoint(folder, checkpoint.tensors, {**checkpoint.metadata, CALIBRATION: asdict(calibration)})


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Variances may be larger than half precision can hold, and are few.
    if not tensor.is_floating_point() or name.endswith(("running_mean", "running_var")):
        return tensor
    rounded = tensor.detach().to(dtype)
    if not rounded.isfinite().all():
        raise CheckpointError(
            f"expected weights that {dtype} can hold, found in {name} values up to {tensor.abs().max():.3g}. "
            "Save them in float32, or train with weight decay."
        )
    return rounded


def _model_of(config: MatchConfig, tensors: Mapping[str, Tensor], where: str) -> MatchGNN:
    # Random weights first: a network without any, on torch's device `meta`, imports torch's compiler, a second of work.
    with torch.random.fork_rng(devices=[]):
        model = MatchGNN(config)
    load_into(model, tensors, where)
    return model.eval().requires_grad_(False)


def _saved_config(folder: Path, metadata: Mapping[str, object]) -> MatchConfig:
    config = metadata.get("config")
    values = config.get("model") if isinstance(config, Mapping) else None
    if not isinstance(values, Mapping):
        raise CheckpointError(
            f"{folder}: expected the weights of a MatchGNN with its configuration, found a checkpoint without one. "
            "Choose the folder `weights` of a training with --preset matchgnn."
        )
    try:
        return config_from_dict(MatchConfig, values)
    except ConfigError as error:
        raise CheckpointError(
            f"{folder}: expected the configuration of a MatchGNN, found another: {error} "
            "Choose the folder `weights` of a training with --preset matchgnn."
        ) from error


def _saved_calibration(folder: Path, checkpoint: Checkpoint) -> Calibration | None:
    values: Any = checkpoint.metadata.get(CALIBRATION)
    if values is None:
        return None
    try:
        roads = {name: Odds(**values[name]) for name in ("solved", "unsolved", "regressed")}
        calibration = Calibration(**{**values, **roads})
        numbers = [
            number for odds in roads.values() for number in (*odds.weight_by_sign.values(), odds.bias, odds.threshold)
        ]
        is_whole = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    except (TypeError, KeyError, AttributeError):
        is_whole = False
    if not is_whole or calibration.network_sha256 != checkpoint.sha256:
        found = "one of others" if is_whole else "something else"
        raise CheckpointError(
            f"{folder}: expected a calibration of these weights, found {found}. Calibrate these weights again."
        )
    return calibration
