"""The networks that the paper compares with: pairs without a graph, absolute poses, a graph over a video."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from relograph.models.encoder import ResNet
from relograph.models.relpose_gnn import (
    NonLocalAttention,
    PairLinear,
    PoseModel,
    PosePredictions,
    RelPoseGNN,
    all_edges,
)


class PairMLP(PoseModel):
    """Baseline-1: the same pairs, fully connected layers instead of the graph network.

    Edge [i, j] sees the images i and j and nothing else. The number of parameters is that of `RelPoseGNN` within 2 %.
    """

    def __init__(
        self, channels: int = 2048, *, encoder_blocks: tuple[int, ...] = (3, 4, 6, 3), encoder_width: int = 64
    ) -> None:
        super().__init__(ResNet(channels, blocks=encoder_blocks, width=encoder_width))
        # RelPoseGNN has 12.5 C^2 weights beyond the encoder: 2 C^2 here in the pair layer, 10.5 C^2 in three others.
        wide = round(3.5 * channels)
        self.pair = PairLinear(channels, receiver=channels, sender=channels)
        self.hidden = nn.ModuleList(
            [nn.Linear(channels, wide), nn.Linear(wide, channels), nn.Linear(channels, wide), nn.Linear(wide, 6)]
        )

    def decode(
        self,
        x: Float[Tensor, "B N C"],
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"] | None = None,
    ) -> PosePredictions:
        """Relative poses of all pairs; the masks change nothing here, as no pair sees another."""
        edge = self.pair(None, x)
        for layer in self.hidden:
            edge = layer(F.relu(edge))
        return PosePredictions(edges=edge)


class AbsolutePoseNet(PoseModel):
    """PoseNet with learned loss weights, or with `attention` AtLoc: one image in, its pose in the world frame out."""

    def __init__(
        self,
        channels: int = 2048,
        *,
        attention: bool,
        reduction: int = 8,
        encoder_blocks: tuple[int, ...] = (3, 4, 6, 3),
        encoder_width: int = 64,
    ) -> None:
        super().__init__(ResNet(channels, blocks=encoder_blocks, width=encoder_width))
        self.attention = NonLocalAttention(channels, reduction) if attention else nn.Identity()
        self.pose_head = nn.Linear(channels, 6)

    def decode(
        self,
        x: Float[Tensor, "B N C"],
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"] | None = None,
    ) -> PosePredictions:
        """Absolute poses; each image stands alone, so the masks change nothing."""
        return PosePredictions(nodes=self.pose_head(self.attention(F.relu(x))))


class SequenceGNN(RelPoseGNN):
    """Baseline-3: the paper's graph network over consecutive frames, with absolute poses read from its nodes too."""

    def __init__(self, channels: int = 2048, **options: object) -> None:
        super().__init__(channels, **options)  # type: ignore[arg-type]  # passed on as they came
        self.node_head = nn.Linear(channels, 6)

    def decode(
        self,
        x: Float[Tensor, "B N C"],
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"] | None = None,
    ) -> PosePredictions:
        """Relative poses of the edges and absolute poses of the nodes after the last round."""
        x, edge = self.refine(x, all_edges(node_mask) if edge_mask is None else edge_mask, nodes_too=True)
        return PosePredictions(edges=self.pose_head(edge), nodes=self.node_head(F.relu(x)))
