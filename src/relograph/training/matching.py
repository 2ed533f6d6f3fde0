"""What MatchGNN is taught with: where every cell went, how views moved, and which images see the same."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relograph.geometry import Pose
from relograph.graphs.correspondence import Lenses, TrueMatches, true_matches
from relograph.models.match_gnn import (
    COARSE_STRIDE,
    FINE_RADIUS,
    FINE_STRIDE,
    ImageFeatures,
    MatchAnswers,
    Matches,
    MatchGNN,
    fine_expectation,
)
from relograph.retrieval import covisibility_loss
from relograph.rooms import StreamBatch
from relograph.training.objective import Objective

SMALLEST_ANGLE_RAD = 1e-4
FINE_CELLS = 256
LESSONS = ("coarse", "seen", "fine", "edge", "fused", "overlap", "retrieval")


@dataclass(frozen=True, kw_only=True)
class MatchLossConfig:
    """How much each lesson counts."""

    coarse: float = 1.0
    """The right cell."""
    seen: float = 0.5
    """Whether a cell is seen at all."""
    fine: float = 0.5
    """The place within a cell."""
    edge: float = 0.5
    """The pose of every edge, with the error that it expects."""
    fused: float = 1.0
    """The pose that all edges together say."""
    overlap: float = 0.2
    """The share of the query that a reference sees."""
    retrieval: float = 0.3
    """Descriptors that are near where images see the same."""
    known_intrinsics: float = 0.5
    """Share of the steps in which the network is told the lenses."""


class MatchObjective(Objective):
    """MatchGNN together with its losses."""

    def __init__(self, model: MatchGNN, config: MatchLossConfig | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = config or MatchLossConfig()
        self._latest = {name: torch.zeros(()) for name in LESSONS}

    def watched(self) -> dict[str, Tensor]:
        """What each lesson cost in the latest step."""
        return self._latest

    def encode(self, batch: StreamBatch) -> ImageFeatures:
        """Features of all images of a batch, graph by graph."""
        return self.model.encode(batch.images.permute(0, 1, 3, 4, 2).flatten(0, 1))

    def answer(self, batch: StreamBatch) -> MatchAnswers:
        """What the network says without being told any lens, with all references."""
        query, references = split_nodes(self.encode(batch), batch.overlap.shape[1])
        everything = torch.ones_like(batch.overlap[:, 1:], dtype=torch.bool)
        answers: MatchAnswers = self.model(query, references, batch.T_world_cam[:, 1:], everything)
        return answers

    def forward(self, batch: StreamBatch, ref_mask: Bool[Tensor, "B R"], *, tell_lenses: bool) -> Float[Tensor, ""]:
        """The weighted sum of all lessons' losses. References that `ref_mask` leaves out are not shown."""
        num_graphs, num_nodes = batch.overlap.shape
        features = self.encode(batch)
        query, references = split_nodes(features, num_nodes)
        lenses = Lenses(batch.K, batch.distortion)
        T_world_ref, T_world_query = batch.T_world_cam[:, 1:], batch.T_world_cam[:, 0]
        answers: MatchAnswers = self.model(
            query,
            references,
            T_world_ref,
            ref_mask,
            query_lenses=Lenses(batch.K[:, 0], batch.distortion[:, 0]) if tell_lenses else None,
            ref_lenses=Lenses(batch.K[:, 1:], batch.distortion[:, 1:]) if tell_lenses else None,
        )
        with torch.no_grad():
            truth = true_matches(batch.depth_m, batch.T_world_cam, lenses, COARSE_STRIDE)
        seen = truth.visible & batch.is_here[:, None, None]
        visible = seen & ref_mask[..., None]
        overlap = seen.float().mean(dim=-1)  # [B, R]
        cell, offset = true_cells(truth, batch.depth_m.shape[2:])
        posed_edges = ref_mask & batch.is_here[:, None]
        many_query_fine = query.fine.repeat_interleave(num_nodes - 1, dim=0)
        some = some_of(visible.flatten(0, 1), FINE_CELLS)
        expected, log_chance = fine_expectation(
            many_query_fine, references.fine, some, cell.flatten(0, 1).gather(1, some)
        )
        descriptors = self.model.descriptor(features.context).unflatten(0, (num_graphs, num_nodes))
        losses = {
            "coarse": coarse_loss(answers.matches, cell, visible),
            "seen": seen_loss(answers.matches, seen, ref_mask),
            "fine": fine_loss(
                expected,
                log_chance,
                offset.flatten(0, 1).gather(1, some[..., None].expand(-1, -1, 2)),
                visible.flatten(0, 1).gather(1, some),
            ),
            "edge": edge_loss(answers, T_world_ref.inverse() @ T_world_query[:, None], posed_edges),
            "fused": fused_loss(answers.T_world_query, T_world_query, batch.is_here),
            "overlap": masked_mean(
                F.binary_cross_entropy_with_logits(answers.overlap, overlap, reduction="none"), ref_mask
            ),
            "retrieval": covisibility_loss(
                descriptors,
                F.pad(overlap, (1, 0), value=1.0),
                torch.ones_like(batch.overlap, dtype=torch.bool),
                negatives=batch.home[:, None] != batch.home,
            ),
        }
        self._latest = {name: loss.detach() for name, loss in losses.items()}
        return torch.stack([getattr(self.config, name) * loss for name, loss in losses.items()]).sum()


def split_nodes(features: ImageFeatures, num_nodes: int) -> tuple[ImageFeatures, ImageFeatures]:
    """The queries of graphs, and their references, those of a query together."""
    is_query = torch.arange(len(features.coarse), device=features.coarse.device) % num_nodes == 0
    return features[is_query], features[~is_query]


def some_of(visible: Bool[Tensor, "M P"], count: int) -> Int[Tensor, "M S"]:
    """Some cells of each pair at random, those that are seen first: windows around all would fill the memory."""
    luck = torch.rand(visible.shape, device=visible.device) + visible
    return luck.topk(min(count, visible.shape[1]), dim=1).indices


def masked_mean(values: Float[Tensor, "*B"], mask: Bool[Tensor, "*B"]) -> Float[Tensor, ""]:
    """Mean over the mask, 0 where it is empty."""
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp_min(1)


def true_cells(truth: TrueMatches, image_hw: tuple[int, int] | torch.Size) -> tuple[Tensor, Tensor]:
    """Of every true match the cell of the reference [B, R, P], and the pixels from that cell's anchor [B, R, P, 2]."""
    rows, columns = image_hw[0] // COARSE_STRIDE, image_hw[1] // COARSE_STRIDE
    column = (truth.xy[..., 0] / COARSE_STRIDE).floor().clamp(0, columns - 1)
    row = (truth.xy[..., 1] / COARSE_STRIDE).floor().clamp(0, rows - 1)
    anchor = torch.stack([column, row], dim=-1) * COARSE_STRIDE + COARSE_STRIDE // 2 + 0.5
    return (row * columns + column).long(), truth.xy - anchor


def coarse_loss(matches: Matches, cell: Tensor, visible: Bool[Tensor, "B R P"]) -> Float[Tensor, ""]:
    """Negative log of the chance that is given to the right cell, both ways."""
    assert matches.log_coarse is not None  # the network keeps it unless it is told not to
    log_right = matches.log_coarse.gather(3, cell[..., None]).squeeze(-1)
    return masked_mean(-0.5 * log_right, visible)


def seen_loss(matches: Matches, visible: Bool[Tensor, "B R P"], ref_mask: Bool[Tensor, "B R"]) -> Float[Tensor, ""]:
    """Cross entropy of whether a cell is seen."""
    wrong = F.binary_cross_entropy_with_logits(matches.seen, visible.float(), reduction="none")
    return masked_mean(wrong.mean(dim=-1), ref_mask)


def fine_loss(
    expected: Float[Tensor, "M P 2"],
    log_chance: Float[Tensor, "M P K"],
    offset: Float[Tensor, "M P 2"],
    visible: Bool[Tensor, "M P"],
) -> Float[Tensor, ""]:
    """Pixels between the expected and the true place, and the chance given to the right fine cell."""
    distance = F.smooth_l1_loss(expected, offset, reduction="none").sum(dim=-1)
    # An anchor is the left upper pixel of its fine cell, so half a pixel more is counted from the cell's border.
    step = ((offset + 0.5) / FINE_STRIDE).floor().clamp(-FINE_RADIUS, FINE_RADIUS).long()
    width = 2 * FINE_RADIUS + 1
    right = (step[..., 1] + FINE_RADIUS) * width + step[..., 0] + FINE_RADIUS
    log_right = log_chance.gather(2, right[..., None]).squeeze(-1)
    return masked_mean(distance - 0.5 * log_right, visible)


def angle_between(R_a: Float[Tensor, "*B 3 3"], R_b: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B"]:
    """Radians between rotations, with a gradient also where they agree."""
    chord = (R_a - R_b).square().sum(dim=(-2, -1))  # 8 sin^2(angle / 2)
    return 2 * torch.asin((chord / 8).clamp(SMALLEST_ANGLE_RAD**2, 0.999).sqrt())


def edge_loss(answers: MatchAnswers, T_ref_query: Pose, ref_mask: Bool[Tensor, "B R"]) -> Float[Tensor, ""]:
    """Laplace's negative log likelihood: errors divided by what was expected, and the log of what was expected."""
    distance = (answers.T_ref_query.t - T_ref_query.t).abs().sum(dim=-1)
    angle = angle_between(answers.T_ref_query.R, T_ref_query.R)
    errors = torch.stack([distance, angle], dim=-1)
    return masked_mean((errors * torch.exp(-answers.log_sigma) + answers.log_sigma).sum(dim=-1), ref_mask)


def fused_loss(T_world_query: Pose, T_true: Pose, is_here: Bool[Tensor, "B"]) -> Float[Tensor, ""]:
    """Metres and, five times, radians: a degree counts like nine centimetres. Only where there is a true pose."""
    distance = (T_world_query.t - T_true.t).norm(dim=-1)
    return masked_mean(distance + 5 * angle_between(T_world_query.R, T_true.R), is_here)
