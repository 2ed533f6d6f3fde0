"""What the network does for a query: from photos to features, and from these to matches and poses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from relograph.geometry import Pose
from relograph.graphs.correspondence import Lenses
from relograph.models.answering import answering_precision
from relograph.models.match_gnn import Flows, ImageFeatures, Matches, MatchGNN
from relograph.models.settling import Settled


@dataclass(frozen=True)
class AlikeReferences:
    """References of one size."""

    size_hw: tuple[int, int]
    features: ImageFeatures
    lenses: Lenses | None
    """Batch shape [1, R]; None where one is not known, of these or of references of other sizes."""
    num: int


@dataclass(frozen=True)
class Found:
    """What the network finds of one query among R references."""

    matches: Matches
    T_ref_query: Pose
    log_sigma: Float[Tensor, "1 R 2"]
    overlap: Float[Tensor, "1 R"]
    settled: Settled
    doubting: Settled
    """What it would be if no lens had been told."""


@dataclass(frozen=True)
class QueryNetwork:
    """What the network does for a query, in two parts that are tensors alone, so that a GPU can replay them."""

    model: MatchGNN
    device: torch.device

    @torch.no_grad()
    def encode(self, images: UInt8[Tensor, "M H W 3"]) -> tuple[ImageFeatures, Float[Tensor, "M D"]]:
        """Features and descriptors of photos."""
        with answering_precision(self.device):
            features = self.model.encode(images)
            return features, self.model.descriptor(features.context)

    @torch.no_grad()
    def look(
        self,
        query: ImageFeatures,
        query_hw: tuple[int, int],
        query_lens: Lenses | None,
        alike: Sequence[AlikeReferences],
        back: Int[Tensor, "R"],
        T_local_ref: Pose,
    ) -> Found:
        """Matches and poses of one query.

        `back` puts references of all sizes, one size after the other, into their order again.
        """
        model, matches_by_size = self.model, []
        flows: list[Flows] = []
        for some in alike:
            with answering_precision(self.device):
                matches = model.matcher(query, some.features, some.num, keep_log_coarse=False)
            flows.append(model.flows(matches, query_hw, some.size_hw, query_lens, some.lenses))
            matches_by_size.append(matches)
        matches = Matches(
            **{
                name: torch.cat([getattr(some, name) for some in matches_by_size], dim=1)[:, back]
                for name in ("xy", "confidence", "best", "mutual", "sigma_px", "seen")
            }
        )
        everything = torch.ones(1, len(back), dtype=torch.bool, device=self.device)
        answers = model.answer(matches.mutual, Flows.of_references(flows, back), T_local_ref, everything)
        edges = answers.edges
        return Found(matches, edges.T_ref_query, edges.log_sigma, edges.overlap, answers.settled, answers.doubting)
