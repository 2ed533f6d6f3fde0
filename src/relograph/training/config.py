"""Everything that decides what a training does; it is saved with what the training makes."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from relograph.errors import ConfigError
from relograph.models import ModelConfig

MIN_IMAGE_HEIGHT = 32
"""Pixels; the encoder makes one of them."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What images a network sees."""

    image_height: int = 256
    """Pixels; the width follows from the photos' aspect."""
    extra_walks: int = 0
    """More walks through each room, rendered when training starts; for scenes made by `relograph rooms` only."""
    extra_every: int = 2
    """Every so many-th view of such a walk is used."""
    holdout_share: float = 0.1
    """Share of its training frames that a scene with one training sequence holds out; others hold out a sequence."""
    metres_per_unit: float = 1.0
    """One factor for all axes and scenes between metres and what the network says; 0 takes the cameras' spread."""

    def __post_init__(self) -> None:
        _at_least(MIN_IMAGE_HEIGHT, "data.image_height", self.image_height)
        if self.extra_walks < 0 or self.extra_every < 1:
            raise ConfigError(
                f"data.extra_walks must be at least 0 and data.extra_every at least 1, got {self.extra_walks} and "
                f"{self.extra_every}."
            )
        if not 0 < self.holdout_share < 1:
            raise ConfigError(f"data.holdout_share must be within 0 and 1, got {self.holdout_share}.")
        if self.metres_per_unit < 0:
            raise ConfigError(f"data.metres_per_unit must not be negative, got {self.metres_per_unit}.")


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """How one query and its references become a graph."""

    num_nodes: int = 8
    """Images in a graph, the query included."""
    selection: Literal["retrieval", "random", "sequence", "alone"] = "retrieval"
    """References by similarity, at random from the scene, the frames around the query, or none."""
    stride: int = 5
    """Every so many-th of the most similar images becomes a reference."""
    references_from: Literal["all", "map"] = "all"
    """Training references are any training frames, or only those that are references at test time too."""
    exclude_same_sequence: bool = False
    """Leave out, in training, references from the query's own sequence."""
    edge_dropout: float = 0.5
    """Share of pairs removed at random while training. Evaluation removes none."""

    def __post_init__(self) -> None:
        if self.num_nodes < (1 if self.selection == "alone" else 2) or self.stride < 1:
            raise ConfigError(
                f"graph.num_nodes must be at least 2 and graph.stride at least 1, got {self.num_nodes} and "
                f"{self.stride}."
            )
        if not 0.0 <= self.edge_dropout < 1.0:
            raise ConfigError(
                f"graph.edge_dropout must be in [0, 1), got {self.edge_dropout}. Use 0 to keep every edge."
            )

    @property
    def num_references(self) -> int:
        """Images in a graph beside the query."""
        return self.num_nodes - 1


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """How neighbours are found."""

    num_clusters: int = 16
    """Visual words of NetVLAD."""
    image_height: int = 128
    """Pixels that descriptors are computed at; where NetVLAD is trained along, those that the network sees."""
    descriptor_dim: int = 256
    """Numbers of a descriptor after PCA-whitening; 0 keeps NetVLAD's own."""
    loss: Literal["none", "covisibility", "pose"] = "none"
    """Train NetVLAD along: towards images that see the same, or that give the right pose. `none` keeps it as it is."""
    loss_weight: float = 1.0
    """Weight of that loss beside the pose loss."""

    def __post_init__(self) -> None:
        _at_least(1, "retrieval.num_clusters", self.num_clusters)
        _at_least(MIN_IMAGE_HEIGHT, "retrieval.image_height", self.image_height)
        _at_least(0, "retrieval.descriptor_dim", self.descriptor_dim, "0 keeps NetVLAD's own numbers")
        _at_least(0, "retrieval.loss_weight", self.loss_weight, "retrieval.loss=none trains without it")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How the weights are found."""

    learning_rate: float = 5e-5
    """Of Adam, before the schedule lowers it."""
    weight_decay: float = 5e-4
    """L2 penalty of Adam; the weights of the loss have none."""
    batch_size: int = 8
    """Graphs in a step, over all processes together."""
    epochs: int = 50
    """Epochs that a training lasts, unless it stops early."""
    minutes: float = 0.0
    """Minutes that it lasts instead, however many epochs that makes; the cosine follows the clock. 0 counts epochs."""
    steps_per_epoch: int = 0
    """Steps between two validations; 0 means that every training frame is the query once."""
    schedule: Literal["step", "cosine"] = "step"
    """The paper's steps, or half a cosine down to zero."""
    step_epochs: int = 20
    """Epochs between two steps of the schedule."""
    step_factor: float = 0.1
    """What a step multiplies the learning rate with."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows from zero."""
    gradient_clip: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""
    average_decay: float = 0.0
    """Of a running mean of the weights, which is what is validated and kept; 0 keeps the weights as they are."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of matrix products and convolutions; weights and losses are float32."""
    compile: bool = False
    """Let torch compile the network: worth its minute in long trainings on a GPU."""
    replay: bool = False
    """Let one GPU replay recorded steps: worth it where kernels are so small that Python is slower to ask for them."""
    freeze_batch_norm: bool = False
    """Keep the encoder's running statistics as they are."""
    patience: int = 10
    """Epochs without a better validation before training stops; 0 never stops early."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(
                f"optim.learning_rate: expected a positive number, found {self.learning_rate}. Write it like 5e-5."
            )
        if not 0 < self.step_factor <= 1:
            raise ConfigError(
                f"optim.step_factor: expected more than 0 and at most 1, found {self.step_factor}. Use 1 to keep the "
                "learning rate as it is."
            )
        _at_least(0, "optim.weight_decay", self.weight_decay)
        _at_least(1, "optim.batch_size", self.batch_size)
        _at_least(1, "optim.epochs", self.epochs)
        _at_least(0, "optim.minutes", self.minutes, "0 counts epochs")
        _at_least(0, "optim.steps_per_epoch", self.steps_per_epoch, "0 shows every training frame once")
        _at_least(1, "optim.step_epochs", self.step_epochs)
        _at_least(0, "optim.warmup_steps", self.warmup_steps)
        _at_least(0, "optim.gradient_clip", self.gradient_clip, "0 does not clip")
        if not 0 <= self.average_decay < 1:
            raise ConfigError(
                f"optim.average_decay: expected 0 or more and less than 1, found {self.average_decay}. Use 0.999 for "
                "the mean of about a thousand steps, or 0 for none."
            )
        _at_least(0, "optim.patience", self.patience, "0 never stops early")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 0
    """Of weights, order, offsets and dropout, each with a generator of its own."""

    def __post_init__(self) -> None:
        _at_least(0, "seed", self.seed)
        kind, selection = self.model.kind, self.graph.selection
        if kind == "sequence_gnn" and selection != "sequence":
            raise ConfigError(
                f"model.kind=sequence_gnn: expected graph.selection=sequence, found {selection}. Set both, or choose "
                "another kind."
            )
        if self.model.predicts_edges and selection in ("sequence", "alone"):
            raise ConfigError(
                f"model.kind={kind}: expected references whose poses are known (graph.selection=retrieval or random), "
                f"found {selection}. Choose one of these, or a kind that says absolute poses."
            )
        if kind in ("posenet", "atloc") and self.retrieval.loss == "pose":
            raise ConfigError(
                f"retrieval.loss=pose: expected a network that says relative poses, found model.kind={kind}, which "
                "looks at one image. Set retrieval.loss=covisibility, or choose another kind."
            )

    @property
    def retrieval_as_used(self) -> RetrievalConfig:
        """How neighbours are found, with descriptors at the height that NetVLAD is trained at, if it is."""
        if self.retrieval.loss == "none":
            return self.retrieval
        return replace(self.retrieval, image_height=self.data.image_height)


def _at_least(least: int, setting: str, found: float, advice: str = "") -> None:
    """Raise unless a setting is a finite number from `least` on."""
    if not least <= found < math.inf:
        hint = f"; {advice}" if advice else ""
        raise ConfigError(f"{setting}: expected {least} or more, found {found}. Give such a number{hint}.")
