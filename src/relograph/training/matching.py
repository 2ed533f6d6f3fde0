"""What MatchGNN is taught with: where every cell went, how views moved, and which images see the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from relograph.geometry import Pose
from relograph.graphs.correspondence import Lenses, TrueMatches, true_matches
from relograph.models.match_gnn import (
    COARSE_STRIDE,
    FINE_RADIUS,
    FINE_STRIDE,
    Flow,
    ImageFeatures,
    MatchAnswers,
    Matches,
    MatchGNN,
    PoseAnswers,
    at_anchors,
    fine_offset,
)
from relograph.models.match_kernels import fused_window_products
from relograph.retrieval import covisibility_loss_of_images
from relograph.rooms import StreamBatch
from relograph.rooms.raycast import Kernels
from relograph.rooms.stream import UnseenGraphs
from relograph.training.match_drill import as_a_matcher_errs, unseen_matches
from relograph.training.objective import Objective

SMALLEST_ANGLE_RAD = 1e-4
FINE_CELLS = 256
FINE_OUTSIDE = -1e3
"""Log chances below it are of fine cells outside the image, to which no place belongs."""
LEAST_OVERLAP = 0.02
"""Share of the query that some reference must see before all of them together are asked where it was taken."""
LESSONS = ("coarse", "seen", "fine", "edge", "fused", "overlap", "retrieval", "drill")


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
    drill: float = 1.0
    """Poses of graphs that nobody photographed: edge, fused and overlap lessons from true matches with errors."""
    known_intrinsics: float = 0.5
    """Share of the steps in which the network is told the lenses."""


class Shown:
    """What a step shows and tells of a batch.

    No dataclass: Lightning would look for tensors in it to convert, and refuse, as it cannot change a frozen one.
    """

    def __init__(
        self,
        batch: StreamBatch,
        ref_mask: Bool[Tensor, "B R"],
        drill_mask: Bool[Tensor, "D R"] | None = None,
        *,
        tell_lenses: bool,
    ) -> None:
        """References that the masks leave out are not shown. Lenses are told of the photographs, or of the others.

        `drill_mask` is that of the graphs without photographs; without it they are left out.
        """
        self.batch, self.ref_mask, self.drill_mask, self.tell_lenses = batch, ref_mask, drill_mask, tell_lenses


class MatchObjective(Objective):
    """MatchGNN together with its losses."""

    def __init__(self, model: MatchGNN, config: MatchLossConfig | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = config or MatchLossConfig()
        self.ray_kernels = Kernels()
        """What follows the rays of the drill."""
        self._latest = {name: torch.zeros(()) for name in LESSONS}

    def watched(self) -> dict[str, Tensor]:
        """What each lesson cost in the latest step."""
        return self._latest

    def learned_apart(self) -> list[list[nn.Parameter]]:
        """What sees images, and what turns matches into poses: the pose takes matches as they are."""
        posing = [*self.model.edge.parameters(), *self.model.messages.parameters(), *self.model.head.parameters()]
        known = {id(weight) for weight in posing}
        return [[weight for weight in self.parameters() if id(weight) not in known], posing]

    def encode(self, batch: StreamBatch) -> ImageFeatures:
        """Features of all images of a batch: those of the queries, then those of references, a query's together."""
        images = batch.images.permute(0, 1, 3, 4, 2)
        # In this order they need not be copied apart.
        return self.model.encode(torch.cat([images[:, 0], images[:, 1:].flatten(0, 1)]))

    def answer(self, batch: StreamBatch) -> MatchAnswers:
        """What the network says without being told any lens, with all references."""
        query, references = apart(self.encode(batch), len(batch.overlap))
        everything = torch.ones_like(batch.overlap[:, 1:], dtype=torch.bool)
        answers: MatchAnswers = self.model(query, references, batch.T_world_cam[:, 1:], everything)
        return answers

    def forward(self, shown: Shown) -> Float[Tensor, ""]:
        """The weighted sum of all lessons' losses."""
        batch = shown.batch
        num_nodes = batch.overlap.shape[1]
        features = self.encode(batch)
        query, references = apart(features, len(batch.overlap))
        lenses = Lenses(batch.K, batch.distortion)
        with torch.no_grad():
            truth = true_matches(batch.depth_m, batch.T_world_cam, lenses, COARSE_STRIDE)
        seen = truth.visible & batch.is_here[:, None, None]
        image_hw = (batch.depth_m.shape[2], batch.depth_m.shape[3])
        cell, offset = true_cells(truth, image_hw)
        matches: Matches = self.model.matcher(
            query,
            references,
            num_nodes - 1,
            asked=cell,
            keep_log_coarse=self.model.config.pose_teaches_matches,  # only then all chances are looked at
        )
        some = some_of(seen.flatten(0, 1), FINE_CELLS)
        fine = at_anchors(query.fine).repeat_interleave(num_nodes - 1, dim=0)
        fine = fine.gather(1, some[..., None].expand(-1, -1, fine.shape[-1]))
        kernels = self.model.matcher.kernels
        products = None if kernels is None else fused_window_products(kernels)
        expected, log_chance = fine_offset(fine, references.fine, cell.flatten(0, 1).gather(1, some), products)
        asked = [
            PoseQuestions(
                flow=self.model.flow(matches, image_hw, image_hw, **lenses_of(lenses, told=shown.tell_lenses)),
                T_world_cam=batch.T_world_cam,
                overlap=seen.float().mean(dim=-1),
                ref_mask=shown.ref_mask,
                is_here=batch.is_here,
            )
        ]
        if batch.unseen is not None and shown.drill_mask is not None:
            asked.append(self.drill_questions(batch.unseen, shown.drill_mask, tell_lenses=not shown.tell_lenses))
        of_photographs, *of_drill = self.pose_lessons(asked)
        losses = {
            # References that are not shown are hidden from the pose alone: their matches are there, and teach.
            "coarse": coarse_loss(matches, seen),
            "seen": seen_loss(matches, seen),
            # Windows lie around the true cells, so the fine features need not wait for the coarse ones.
            "fine": fine_loss(
                expected,
                log_chance,
                offset.flatten(0, 1).gather(1, some[..., None].expand(-1, -1, 2)),
                seen.flatten(0, 1).gather(1, some),
            ),
            **of_photographs,
            "retrieval": covisibility_loss_of_images(self.describe(features, len(seen)), batch.overlap_of_images),
            "drill": self.weighted(of_drill[0]) if of_drill else seen.new_zeros((), dtype=torch.float32),
        }
        self._latest = {name: loss.detach() for name, loss in losses.items()}
        return self.weighted(losses)

    def describe(self, features: ImageFeatures, num_graphs: int) -> Float[Tensor, "BN D"]:
        """Descriptors of all images of a batch, graph by graph."""
        descriptors = self.model.descriptor(features.context)
        of_references = descriptors[num_graphs:].unflatten(0, (num_graphs, -1))
        return torch.cat([descriptors[:num_graphs, None], of_references], dim=1).flatten(0, 1)

    def weighted(self, losses: Mapping[str, Float[Tensor, ""]]) -> Float[Tensor, ""]:
        """The sum of losses, each as much as it counts."""
        return torch.stack([getattr(self.config, name) * loss for name, loss in losses.items()]).sum()

    def pose_lessons(self, asked: Sequence["PoseQuestions"]) -> list[dict[str, Float[Tensor, ""]]]:
        """The lessons about poses of several sets of graphs, which are answered all at once: a GPU likes it so."""
        answers = self.model.pose(
            Flow.of_graphs([questions.flow for questions in asked]),
            Pose.cat([questions.T_world_cam[:, 1:] for questions in asked]),
            torch.cat([questions.ref_mask for questions in asked]),
        )
        ends = list(accumulate(len(questions.ref_mask) for questions in asked))
        return [
            pose_lessons(answers[end - len(questions.ref_mask) : end], questions)
            for questions, end in zip(asked, ends, strict=True)
        ]

    def drill_questions(
        self, graphs: UnseenGraphs, ref_mask: Bool[Tensor, "D R"], *, tell_lenses: bool
    ) -> "PoseQuestions":
        """Questions about graphs that nobody photographed, with true matches and errors for their flow."""
        truth = unseen_matches(graphs, self.ray_kernels)
        matches = as_a_matcher_errs(truth, graphs.image_hw)
        told = lenses_of(Lenses(graphs.K, graphs.distortion), told=tell_lenses)
        return PoseQuestions(
            flow=self.model.flow(matches, graphs.image_hw, graphs.image_hw, **told),
            T_world_cam=graphs.T_world_cam,
            overlap=truth.visible.float().mean(dim=-1),
            ref_mask=ref_mask,
            is_here=torch.ones_like(ref_mask[:, 0]),
        )


@dataclass(frozen=True)
class PoseQuestions:
    """Graphs that the network is asked the poses of, and the truth about them."""

    flow: Flow
    T_world_cam: Pose
    """Batch shape [B, N], the queries first."""
    overlap: Float[Tensor, "B R"]
    ref_mask: Bool[Tensor, "B R"]
    """References that are shown."""
    is_here: Bool[Tensor, "B"]
    """Queries that were taken where their references were."""


def lenses_of(lenses: Lenses, *, told: bool) -> dict[str, Lenses | None]:
    """What the network is told of the lenses of graphs: those of the query and of its references, or nothing."""
    if not told:
        return {"query_lenses": None, "ref_lenses": None}
    return {
        "query_lenses": Lenses(lenses.K[:, 0], lenses.distortion[:, 0]),
        "ref_lenses": Lenses(lenses.K[:, 1:], lenses.distortion[:, 1:]),
    }


def pose_lessons(answers: PoseAnswers, questions: PoseQuestions) -> dict[str, Float[Tensor, ""]]:
    """What is learned about poses. Where no reference sees anything, only edges are asked, which may doubt."""
    T_world_query, T_world_ref = questions.T_world_cam[:, 0], questions.T_world_cam[:, 1:]
    overlap, ref_mask, is_here = questions.overlap, questions.ref_mask, questions.is_here
    is_seen = ((overlap > LEAST_OVERLAP) & ref_mask).any(dim=1)
    wrong_overlap = F.binary_cross_entropy_with_logits(answers.overlap, overlap, reduction="none")
    return {
        "edge": edge_loss(answers, T_world_ref.inverse() @ T_world_query[:, None], ref_mask & is_here[:, None]),
        "fused": fused_loss(answers.T_world_query, T_world_query, is_here & is_seen),
        "overlap": masked_mean(wrong_overlap, ref_mask),
    }


def apart(features: ImageFeatures, num_queries: int) -> tuple[ImageFeatures, ImageFeatures]:
    """Features of queries, and of the images that follow them."""
    # Split, not sliced: its gradient is put together in one piece.
    parts = [part.split([num_queries, len(part) - num_queries]) for part in vars(features).values()]
    return ImageFeatures(*(query for query, _ in parts)), ImageFeatures(*(others for _, others in parts))


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


def coarse_loss(matches: Matches, visible: Bool[Tensor, "B R P"]) -> Float[Tensor, ""]:
    """Negative log of the chance that is given to the right cell, both ways, of matches that were asked for it."""
    assert matches.log_asked is not None
    return masked_mean(-0.5 * matches.log_asked, visible)


def seen_loss(matches: Matches, visible: Bool[Tensor, "B R P"]) -> Float[Tensor, ""]:
    """Cross entropy of whether a cell is seen."""
    return F.binary_cross_entropy_with_logits(matches.seen, visible.float())


def fine_loss(
    expected: Float[Tensor, "M P 2"],
    log_chance: Float[Tensor, "M P K"],
    offset: Float[Tensor, "M P 2"],
    visible: Bool[Tensor, "M P"],
) -> Float[Tensor, ""]:
    """Pixels between the expected and the true place, and the chances given to the fine cells around it."""
    distance = F.smooth_l1_loss(expected, offset, reduction="none").sum(dim=-1)
    cell, share = fine_cells(offset)
    log_right = log_chance.gather(2, cell)  # [M, P, 4]
    share = share * (log_right > FINE_OUTSIDE)
    share = share / share.sum(dim=-1, keepdim=True).clamp_min(1e-6)
    surprise = (torch.xlogy(share, share) - share * log_right).sum(dim=-1)
    return masked_mean(distance + 0.5 * surprise, visible)


def fine_cells(offset: Float[Tensor, "*B 2"]) -> tuple[Int[Tensor, "*B 4"], Float[Tensor, "*B 4"]]:
    """The four fine cells of a window around a place, and their shares of it: their mean is the place.

    A fine cell stands for the pixel that its features are centred on, and the one of step 0 for the anchor. To teach
    the cell that covers the place instead would pull every match half a pixel to one side.
    """
    last = 2 * FINE_RADIUS
    place = (offset / FINE_STRIDE + FINE_RADIUS).clamp(0, last)
    low = place.floor().clamp(max=last - 1)
    x, y = (place - low).unbind(dim=-1)
    column, row = low.long().unbind(dim=-1)
    first = row * (last + 1) + column
    cell = torch.stack([first, first + 1, first + last + 1, first + last + 2], dim=-1)
    share = torch.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y], dim=-1)
    return cell, share


def angle_between(R_a: Float[Tensor, "*B 3 3"], R_b: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B"]:
    """Radians between rotations, with a gradient also where they agree."""
    chord = (R_a - R_b).square().sum(dim=(-2, -1))  # 8 sin^2(angle / 2)
    return 2 * torch.asin((chord / 8).clamp(SMALLEST_ANGLE_RAD**2, 0.999).sqrt())


def edge_loss(answers: PoseAnswers, T_ref_query: Pose, ref_mask: Bool[Tensor, "B R"]) -> Float[Tensor, ""]:
    """Laplace's negative log likelihood: errors divided by what was expected, and the log of what was expected."""
    distance = (answers.T_ref_query.t - T_ref_query.t).abs().sum(dim=-1)
    angle = angle_between(answers.T_ref_query.R, T_ref_query.R)
    errors = torch.stack([distance, angle], dim=-1)
    return masked_mean((errors * torch.exp(-answers.log_sigma) + answers.log_sigma).sum(dim=-1), ref_mask)


def fused_loss(T_world_query: Pose, T_true: Pose, is_here: Bool[Tensor, "B"]) -> Float[Tensor, ""]:
    """Metres and, five times, radians: a degree counts like nine centimetres. Only where there is a true pose."""
    distance = (T_world_query.t - T_true.t).norm(dim=-1)
    return masked_mean(distance + 5 * angle_between(T_world_query.R, T_true.R), is_here)
