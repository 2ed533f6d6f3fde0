"""RelPoseGNN, the paper's network: a graph of images, messages on its edges, a relative pose out of every edge.

Turkoglu, Brachmann, Schindler, Brostow, Monszpart: Visual Camera Re-Localization Using Graph Neural Networks and
Relative Pose Supervision, 3DV 2021. Section numbers are the paper's.

Letters: B graphs, N nodes (node 0 is the query), C channels; `x_i` receives, `x_j` sends, edge [i, j] holds what is
known about the pair in that order. Complete graphs of a few nodes are dense tensors [B, N, N, C]; the diagonal is
computed along and never used.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from relograph.errors import ConfigError
from relograph.models.encoder import ResNet

Aggregation = Literal["mean", "max", "sum"]
Readout = Literal["paper", "post"]


@dataclass(frozen=True)
class PosePredictions:
    """What a network says about B graphs: [translation (3), log of the quaternion (3)] of edges, of nodes, or both."""

    edges: Float[Tensor, "B N N 6"] | None = None
    """Entry [i, j] is the pose of image j relative to image i."""
    nodes: Float[Tensor, "B N 6"] | None = None
    """Poses in the world frame that the network has learned by heart."""


class PoseModel(nn.Module):
    """Images of a graph to vectors (`encode`), vectors to poses (`decode`): what all networks here have in common."""

    def __init__(self, encoder: ResNet) -> None:
        super().__init__()
        self.encoder = encoder

    def encode(self, images: Tensor) -> Float[Tensor, "B N C"]:
        """Node features of images [B, N, H, W, 3] with values within 0 and 255. A map's are computed once and kept."""
        x: Tensor = self.encoder(images.flatten(0, 1))
        return x.reshape(*images.shape[:2], -1)

    def decode(
        self,
        x: Float[Tensor, "B N C"],
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"] | None = None,
    ) -> PosePredictions:
        """Poses from node features. `edge_mask` keeps some edges only (edge dropout); the default is all of them."""
        raise NotImplementedError

    def forward(
        self, images: Tensor, node_mask: Bool[Tensor, "B N"], edge_mask: Bool[Tensor, "B N N"] | None = None
    ) -> PosePredictions:
        """Poses for images [B, N, H, W, 3] with values within 0 and 255; `node_mask` is False where there is none."""
        return self.decode(self.encode(images), node_mask, edge_mask)


class PairLinear(nn.Linear):
    r"""One linear layer on a concatenation: W [e_ij; x_i; x_j] + b, or without one of the three parts.

    The parts of W are applied before the concatenation: W_i x_i is the same for all j, so it is computed N times and
    not N^2 times. The parameters are those of the plain layer on the concatenation.
    """

    def __init__(self, out_channels: int, *, edge: int = 0, receiver: int = 0, sender: int = 0) -> None:
        super().__init__(edge + receiver + sender, out_channels)
        self.parts = (edge, receiver, sender)

    def forward(  # type: ignore[override]  # a pair has two ends
        self, edge: Float[Tensor, "B N N De"] | None, x: Float[Tensor, "B N C"]
    ) -> Float[Tensor, "B N N D"]:
        of_edge, of_receiver, of_sender = self.weight.split(self.parts, dim=1)
        out = F.linear(x, of_sender, self.bias)[:, None, :, :]  # [B, 1, N, D]
        if self.parts[1]:
            out = out + F.linear(x, of_receiver)[:, :, None, :]  # [B, N, N, D]
        if edge is not None:
            out = out + F.linear(edge, of_edge)  # [B, N, N, D]
        return out


class NonLocalAttention(nn.Module):
    r"""m <- m + W_g softmax(W_theta m m^T W_phi^T) W_f m: the elements of a vector attend to each other.

    The vector is taken as a sequence of C / `reduction` scalars: attention with one channel. The softmax is computed
    in float32 or better, as its arguments are products without any bound.
    """

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        if channels % reduction:
            raise ConfigError(f"channels must be a multiple of {reduction}, got {channels}.")
        inner = channels // reduction
        self.theta = nn.Linear(channels, inner)
        self.phi = nn.Linear(channels, inner)
        self.f = nn.Linear(channels, inner)
        self.g = nn.Linear(inner, channels)

    def forward(self, m: Float[Tensor, "*E C"]) -> Float[Tensor, "*E C"]:
        precise = torch.promote_types(m.dtype, torch.float32)
        theta, phi, value = (layer(m).to(precise) for layer in (self.theta, self.phi, self.f))  # [*E, C/n]
        scores = theta[..., :, None] * phi[..., None, :]  # [*E, C/n, C/n]
        attended = (scores.softmax(dim=-1) * value[..., None, :]).sum(dim=-1)  # [*E, C/n]
        return m + self.g(attended.to(m.dtype))  # type: ignore[no-any-return]  # nn.Module is untyped


def aggregate(
    messages: Float[Tensor, "B N N C"], edge_mask: Bool[Tensor, "B N N"], how: Aggregation
) -> Float[Tensor, "B N C"]:
    """Mean, maximum or sum of the messages that reach each node over the edges that are there; 0 where none is."""
    there = edge_mask[..., None]
    if how == "max":
        largest = messages.masked_fill(~there, -torch.inf).amax(dim=2)
        return torch.where(there.any(dim=2), largest, 0)
    total = messages.masked_fill(~there, 0).sum(dim=2)
    if how == "sum":
        return total
    # Eq. (8) divides by the number of neighbours; we divide by the edges kept, so dropout does not change the scale.
    return total / there.sum(dim=2).clamp_min(1)


class MessagePassing(nn.Module):
    """Section 3.3: R rounds of edge update, messages, attention, aggregation and node update, with shared weights."""

    def __init__(self, channels: int, *, aggregation: Aggregation = "mean", reduction: int = 8) -> None:
        super().__init__()
        self.aggregation = aggregation
        self.edge_in = PairLinear(channels, edge=channels, receiver=channels, sender=channels)
        self.edge_out = nn.Linear(channels, channels)
        self.message_in = PairLinear(channels, edge=channels, sender=channels)
        self.message_out = nn.Linear(channels, channels)
        self.attention = NonLocalAttention(channels, reduction)
        self.update_in = nn.Linear(2 * channels, channels)
        self.update_out = nn.Linear(channels, channels)

    def update_edges(self, edge: Float[Tensor, "B N N C"], x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N N C"]:
        r"""e_ij <- f_edge([e_ij; x_i; x_j])"""
        return self.edge_out(F.relu(self.edge_in(edge, x)))  # type: ignore[no-any-return]  # nn.Module is untyped

    def messages(self, edge: Float[Tensor, "B N N C"], x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N N C"]:
        r"""Entry [i, j] is m_ji, from j to i: f_msg([e_ij; x_j]), then attended."""
        message = self.message_out(F.relu(self.message_in(edge, x)))
        return self.attention(message)  # type: ignore[no-any-return]  # nn.Module is untyped

    def update_nodes(
        self, x: Float[Tensor, "B N C"], edge: Float[Tensor, "B N N C"], edge_mask: Bool[Tensor, "B N N"]
    ) -> Float[Tensor, "B N C"]:
        r"""x_i <- f_upd([x_i; m_i]), m_i the aggregate of the messages over the edges of `edge_mask`"""
        m = aggregate(self.messages(edge, x), edge_mask, self.aggregation)  # [B, N, C]
        hidden = F.relu(self.update_in(torch.cat([x, m], dim=-1)))
        return self.update_out(hidden)  # type: ignore[no-any-return]  # nn.Module is untyped

    def forward(
        self,
        x: Float[Tensor, "B N C"],
        edge: Float[Tensor, "B N N C"],
        edge_mask: Bool[Tensor, "B N N"],
        rounds: int,
        *,
        nodes_last: bool,
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N N C"]]:
        """Nodes and edges after `rounds` rounds. Without `nodes_last` the last node update, which no edge sees, is
        left out: with R = 1 no message reaches the edges, with R = 2 one round of messages does."""
        for done in range(1, rounds + 1):
            edge = self.update_edges(edge, x)
            if done < rounds or nodes_last:
                x = self.update_nodes(x, edge, edge_mask)
        return x, edge


class RelPoseGNN(PoseModel):
    """The paper's model: images of a graph in, relative poses of all its directed edges out."""

    def __init__(
        self,
        channels: int = 2048,
        *,
        rounds: int = 2,
        aggregation: Aggregation = "mean",
        readout: Readout = "paper",
        reduction: int = 8,
        encoder_blocks: tuple[int, ...] = (3, 4, 6, 3),
        encoder_width: int = 64,
    ) -> None:
        super().__init__(ResNet(channels, blocks=encoder_blocks, width=encoder_width))
        if rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {rounds}. The paper has 2.")
        self.rounds = rounds
        self.readout = readout
        self.edge_init = PairLinear(channels, receiver=channels, sender=channels)
        self.message_passing = MessagePassing(channels, aggregation=aggregation, reduction=reduction)
        self.pose_head = nn.Linear(channels, 6)

    def refine(
        self, x: Float[Tensor, "B N C"], edge_mask: Bool[Tensor, "B N N"], *, nodes_too: bool = False
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N N C"]]:
        """Nodes and edges after message passing; the nodes are those of the last round only with `nodes_too`."""
        edge = F.relu(self.edge_init(None, x))  # [B, N, N, C]
        last = nodes_too or self.readout == "post"
        x, edge = self.message_passing(x, edge, edge_mask, self.rounds, nodes_last=last)
        if self.readout == "post":
            edge = self.message_passing.update_edges(edge, x)  # so that the last round's messages reach the poses
        return x, edge

    def decode(
        self,
        x: Float[Tensor, "B N C"],
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"] | None = None,
    ) -> PosePredictions:
        """Relative poses of all edges, those that `edge_mask` leaves out included."""
        _, edge = self.refine(x, all_edges(node_mask) if edge_mask is None else edge_mask)
        return PosePredictions(edges=self.pose_head(edge))


def all_edges(node_mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Every pair of different nodes that are there: no self-edges, none to padding."""
    off_diagonal = ~torch.eye(node_mask.shape[1], dtype=torch.bool, device=node_mask.device)
    return node_mask[:, :, None] & node_mask[:, None, :] & off_diagonal
