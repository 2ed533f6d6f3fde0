"""Exact nearest neighbours: every database descriptor is compared, in blocks that fit the memory."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, pad

BLOCK_ELEMENTS = 2**26
"""Similarities held at one time: 256 MB in float32."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest database rows of Q queries, most similar first."""

    similarity: Float[Tensor, "Q k"]
    """Cosine, within [-1, 1]; -inf where there are no more rows."""
    row: Int[Tensor, "Q k"]
    """Rows of the database; -1 where there are no more."""


class ExactIndex:
    """Finds the database descriptors most similar to a query's, by cosine, on the device that holds them.

    Rows may carry two labels: a query is answered from its own group (its scene) and never from its own sequence.

    Example:
        >>> index = ExactIndex(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        >>> index.search(torch.tensor([[2.0, 0.1]]), k=2).row
        tensor([[0, 2]])
    """

    def __init__(
        self,
        descriptors: Float[Tensor, "F D"],
        groups: Int[Tensor, "F"] | None = None,
        sequences: Int[Tensor, "F"] | None = None,
    ) -> None:
        self._descriptors = unit_rows(descriptors)
        self._groups = groups
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._descriptors)

    def search(
        self,
        queries: Float[Tensor, "Q D"],
        k: int,
        *,
        groups: Int[Tensor, "Q"] | None = None,
        exclude_sequences: Int[Tensor, "Q"] | None = None,
        exclude_rows: Int[Tensor, "Q"] | None = None,
        block_size: int | None = None,
    ) -> Neighbours:
        """The `k` most similar rows of each query, padded with -1 where fewer are allowed; equals go by row number.

        Args:
            groups: Each query's group; only rows of the same group answer.
            exclude_sequences: Each query's sequence, whose rows do not answer.
            exclude_rows: One row for each query that does not answer, its own; -1 for none.
            block_size: Queries compared at a time, else as many as `BLOCK_ELEMENTS` allows.
        """
        queries = unit_rows(queries).to(self._descriptors.dtype)
        block_size = block_size or max(1, BLOCK_ELEMENTS // max(len(self), 1))
        blocks = []
        for block in torch.arange(len(queries), device=queries.device).split(block_size):
            similarity = queries[block] @ self._descriptors.T  # [b, F]
            if groups is not None:
                similarity.masked_fill_(_given(self._groups) != groups[block, None], -torch.inf)
            if exclude_sequences is not None:
                similarity.masked_fill_(_given(self._sequences) == exclude_sequences[block, None], -torch.inf)
            if exclude_rows is not None:
                rows = torch.arange(len(self), device=similarity.device)
                similarity.masked_fill_(rows == exclude_rows[block, None], -torch.inf)
            blocks.append(best_rows(similarity, k))
        similarity, row = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return Neighbours(similarity, row)


def best_rows(score: Float[Tensor, "Q F"], k: int) -> tuple[Float[Tensor, "Q k"], Int[Tensor, "Q k"]]:
    """The `k` highest scores of each line and their columns, highest first; -inf and -1 past the last finite score.

    Equal scores stand in the order of their columns, so that two copies of a photo come back in the same order always.
    """
    row = score.topk(min(k, score.shape[1]), dim=1).indices.sort(dim=1).values
    best, order = score.gather(1, row).sort(dim=1, descending=True, stable=True)
    row = torch.where(best > -torch.inf, row.gather(1, order), -1)
    num_missing = k - row.shape[1]
    return pad(best, (0, num_missing), value=-torch.inf), pad(row, (0, num_missing), value=-1)


def unit_rows(descriptors: Float[Tensor, "F D"]) -> Float[Tensor, "F D"]:
    """Descriptors of length 1, in float32 at least: similarities of neighbouring video frames differ by little."""
    return normalize(descriptors.detach().to(torch.promote_types(descriptors.dtype, torch.float32)), dim=1)


def _given(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("The index was made without the labels that this search compares: pass them when it is made.")
    return labels
