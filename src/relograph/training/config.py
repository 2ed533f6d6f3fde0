"""Everything that decides what a training does; it is saved with what the training makes."""

from dataclasses import dataclass, field
from typing import Literal

from relograph.errors import ConfigError
from relograph.models import ModelConfig


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
        if self.image_height < 32:
            raise ConfigError(f"data.image_height must be at least 32 pixels, got {self.image_height}.")
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
    """Pixels that descriptors are computed at."""
    descriptor_dim: int = 256
    """Numbers of a descriptor after PCA-whitening; 0 keeps NetVLAD's own."""
    loss: Literal["none", "covisibility", "pose"] = "none"
    """Train NetVLAD along: towards images that see the same, or that give the right pose. `none` keeps it as it is."""
    loss_weight: float = 1.0
    """Weight of that loss beside the pose loss."""


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
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of matrix products and convolutions; weights and losses are float32."""
    compile: bool = False
    """Let torch compile the network: worth its minute in long trainings on a GPU."""
    freeze_batch_norm: bool = False
    """Keep the encoder's running statistics as they are."""
    patience: int = 10
    """Epochs without a better validation before training stops; 0 never stops early."""

    def __post_init__(self) -> None:
        if min(self.batch_size, self.epochs, self.step_epochs) < 1 or self.learning_rate <= 0:
            raise ConfigError(
                "optim.batch_size, optim.epochs and optim.step_epochs must be at least 1 and optim.learning_rate "
                f"positive, got {self.batch_size}, {self.epochs}, {self.step_epochs} and {self.learning_rate}."
            )


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
