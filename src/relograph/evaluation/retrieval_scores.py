"""How good the references are that retrieval finds, where it is known what each photo of a map shows of a query."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

USEFUL_OVERLAP = 0.3
"""Share of a query's view that a reference shows at least, to be of use."""


@dataclass(frozen=True)
class RetrievalScores:
    """Figures over queries; what the map would have allowed stands beside what was found."""

    num_queries: int
    num_references: int
    share_with_useful: float
    """Queries of whose references at least one is of use."""
    share_with_useful_in_map: float
    """Those for which the map has one."""
    mean_overlap: float
    """Of all references that were found."""
    mean_overlap_possible: float
    """Of as many that overlap most."""
    mean_best_overlap: float
    """Of the best among those that were found."""
    mean_best_overlap_possible: float

    def as_row(self) -> dict[str, object]:
        """For a file of results."""
        return asdict(self)

    def text(self) -> str:
        """In a sentence or two."""
        return (
            f"Retrieval: {self.share_with_useful:.1%} of {self.num_queries:,} queries have a reference that shows more "
            f"than {USEFUL_OVERLAP:.0%} of their view among {self.num_references}; the map has one for "
            f"{self.share_with_useful_in_map:.1%}. References show {self.mean_overlap:.1%} in the mean, the best ones "
            f"would {self.mean_overlap_possible:.1%}; the best of each query {self.mean_best_overlap:.1%} of "
            f"{self.mean_best_overlap_possible:.1%}.\n"
        )


def retrieval_scores(
    parts: Sequence[tuple[Float[Tensor, "_ _"], Int[Tensor, "_ _"]]], num_references: int
) -> RetrievalScores:
    """Scores of references [Q, R], -1 where there are fewer, by the overlaps [Q, M] of queries and photos of their map.

    Example:
        >>> overlap = torch.tensor([[0.9, 0.1, 0.5], [0.0, 0.2, 0.1]])
        >>> scores = retrieval_scores([(overlap, torch.tensor([[1, 2], [1, 2]]))], 2)
        >>> scores.share_with_useful, round(scores.mean_overlap, 3), round(scores.mean_overlap_possible, 3)
        (0.5, 0.225, 0.425)
    """
    found, possible = [], []
    for overlap, references in parts:
        of_references = overlap.double().gather(1, references.clamp_min(0))
        found.append(of_references.masked_fill(references < 0, torch.nan))
        most = overlap.double().sort(dim=1, descending=True).values[:, : references.shape[1]]
        possible.append(torch.nn.functional.pad(most, (0, references.shape[1] - most.shape[1]), value=torch.nan))
    chosen, best = torch.cat(found), torch.cat(possible)
    best_chosen, best_possible = (values.nan_to_num(0.0).amax(dim=1) for values in (chosen, best))
    return RetrievalScores(
        num_queries=len(chosen),
        num_references=num_references,
        share_with_useful=_mean(best_chosen > USEFUL_OVERLAP),
        share_with_useful_in_map=_mean(best_possible > USEFUL_OVERLAP),
        mean_overlap=_mean(chosen),
        mean_overlap_possible=_mean(best),
        mean_best_overlap=_mean(best_chosen),
        mean_best_overlap_possible=_mean(best_possible),
    )


def _mean(values: Tensor) -> float:
    return float(values.double().nanmean())
