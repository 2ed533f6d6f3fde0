"""From a configuration to a network."""

from dataclasses import dataclass
from typing import Literal

from relograph.errors import ConfigError
from relograph.graphs import Target
from relograph.models.baselines import AbsolutePoseNet, PairMLP, SequenceGNN
from relograph.models.relpose_gnn import Aggregation, PoseModel, Readout, RelPoseGNN

Kind = Literal["relpose_gnn", "pair_mlp", "posenet", "atloc", "sequence_gnn"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network, and how large."""

    kind: Kind = "relpose_gnn"
    """The paper's `relpose_gnn`, or a baseline: `pair_mlp` (1), `sequence_gnn` (3), `posenet`, `atloc`."""
    channels: int = 2048
    """Length C of node and edge features."""
    rounds: int = 2
    """Rounds R of message passing."""
    target: Target = "camera"
    """Relative poses in the reference's camera frame, or `world`: the paper's differences of absolute poses."""
    readout: Readout = "paper"
    """Poses from the edges as the last round leaves them, or `post`: after one more edge update."""
    aggregation: Aggregation = "mean"
    """How the messages that reach a node become one."""
    attention_reduction: int = 8
    """Factor n between a message and the sequence that the non-local attention sees."""
    encoder_blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    """Residual blocks in each stage of the encoder; the default is ResNet34."""
    encoder_width: int = 64
    """Channels of the encoder's first stage."""

    def __post_init__(self) -> None:
        if self.channels < 1 or self.rounds < 1 or self.attention_reduction < 1:
            raise ConfigError(
                "model.channels, model.rounds and model.attention_reduction must be at least 1, got "
                f"{self.channels}, {self.rounds} and {self.attention_reduction}."
            )

    @property
    def predicts_edges(self) -> bool:
        """Whether the network says relative poses: it needs references to localize."""
        return self.kind in ("relpose_gnn", "pair_mlp")


def build_model(config: ModelConfig) -> PoseModel:
    """The network of a configuration, with random weights from torch's generator."""
    encoder = {"encoder_blocks": config.encoder_blocks, "encoder_width": config.encoder_width}
    if config.kind == "pair_mlp":
        return PairMLP(config.channels, **encoder)  # type: ignore[arg-type]  # one dict for two types
    if config.kind in ("posenet", "atloc"):
        return AbsolutePoseNet(
            config.channels,
            attention=config.kind == "atloc",
            reduction=config.attention_reduction,
            **encoder,  # type: ignore[arg-type]  # one dict for two types
        )
    graph_network = SequenceGNN if config.kind == "sequence_gnn" else RelPoseGNN
    return graph_network(
        config.channels,
        rounds=config.rounds,
        aggregation=config.aggregation,
        readout=config.readout,
        reduction=config.attention_reduction,
        **encoder,  # type: ignore[arg-type]  # one dict for two types
    )
