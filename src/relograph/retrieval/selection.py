"""Which reference images stand beside a query in its graph: ranked, then thinned out with a stride.

A "row" is the number of an image among all F images of a training or an evaluation. A ranking holds rows of the query's
own scene, best first, never the query itself, and ends with -1 where there are no more.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relograph.progress import SILENT, Progress
from relograph.retrieval.index import BLOCK_ELEMENTS, ExactIndex, best_rows


def rank_references(
    query_rows: Int[Tensor, "Q"],
    database: Bool[Tensor, "F"],
    descriptors: Float[Tensor, "F D"],
    scene_idx: Int[Tensor, "F"],
    sequence_idx: Int[Tensor, "F"],
    *,
    length: int,
    exclude_same_sequence: bool = False,
    same_sequence_if_alone: bool = False,
    progress: Progress = SILENT,
) -> Int[Tensor, "Q L"]:
    """The `length` most similar database rows of each query, from its own scene.

    Args:
        database: Which rows may be references.
        exclude_same_sequence: Leaves out the query's own sequence, whose frames are nearly the query itself: a model
            that only ever sees them in training has not learned what a new walk through the place looks like.
        same_sequence_if_alone: Where that leaves a query without any reference, its own sequence answers after all.
    """
    query_rows = query_rows.long()
    ranked = query_rows.new_full((len(query_rows), length), -1)
    with progress.task("ranking references", total=len(query_rows)) as advance:
        for scene in scene_idx[query_rows].unique().tolist():
            of_scene = scene_idx[query_rows] == scene
            queries = query_rows[of_scene]
            references = (database & (scene_idx == scene)).nonzero().squeeze(1)
            index = ExactIndex(descriptors[references], sequences=sequence_idx[references])
            own = _position_in(references, queries)
            position = index.search(
                descriptors[queries],
                length,
                exclude_rows=own,
                exclude_sequences=sequence_idx[queries] if exclude_same_sequence else None,
            ).row
            if exclude_same_sequence and same_sequence_if_alone:
                alone = (position < 0).all(dim=1)
                position[alone] = index.search(descriptors[queries[alone]], length, exclude_rows=own[alone]).row
            # One more entry, so that the position -1 is the row -1.
            ranked[of_scene] = torch.cat([references, references.new_tensor([-1])])[position]
            advance(len(queries))
    return ranked


def rank_at_random(
    query_rows: Int[Tensor, "Q"],
    database: Bool[Tensor, "F"],
    scene_idx: Int[Tensor, "F"],
    *,
    length: int,
    generator: torch.Generator,
) -> Int[Tensor, "Q L"]:
    """As many different database rows of each query's own scene, drawn at random: the paper's Baseline-2."""
    rows = torch.arange(len(scene_idx), device=scene_idx.device)
    ranked = []
    for queries in query_rows.split(max(1, BLOCK_ELEMENTS // max(len(rows), 1))):
        lots = torch.rand(len(queries), len(rows), generator=generator, device=generator.device).to(rows.device)
        allowed = database & (scene_idx == scene_idx[queries, None]) & (rows != queries[:, None])
        ranked.append(best_rows(lots.masked_fill(~allowed, -torch.inf), length)[1])
    return torch.cat(ranked)


def select_strided(
    ranked: Int[Tensor, "B L"], num_references: int, stride: int, offset: Int[Tensor, "B"] | int = 0
) -> Int[Tensor, "B num_references"]:
    """Every `stride`-th row of each ranking, beginning with number `offset`, which is less than the stride.

    Adjacent video frames see the same thing; a stride trades some similarity for a wider view. In training the offset
    is random, at test it is 0, which keeps the most similar row. Where a ranking is too short the stride shrinks to
    the largest that fits, and the offset with it; where there are fewer rows than asked for all are taken, then -1.

    Example:
        >>> ranked = torch.arange(10).expand(2, 10)
        >>> select_strided(ranked, num_references=3, stride=3, offset=torch.tensor([0, 2]))
        tensor([[0, 3, 6],
                [2, 5, 8]])
        >>> select_strided(ranked, num_references=4, stride=5, offset=0)
        tensor([[0, 3, 6, 9],
                [0, 3, 6, 9]])
    """
    num_ranked = (ranked >= 0).sum(dim=1)
    if isinstance(offset, int):
        offset = torch.full_like(num_ranked, offset)
    # The largest stride whose last pick is still in the list: with this offset, or with one below any smaller stride.
    with_offset = (num_ranked - 1 - offset) // max(num_references - 1, 1)
    fitting = torch.where(with_offset > offset, with_offset, num_ranked // num_references).clamp(1, stride)
    start = torch.minimum(offset, fitting - 1)
    picks = start[:, None] + fitting[:, None] * torch.arange(num_references, device=ranked.device)  # [B, R]
    inside = picks < num_ranked[:, None]
    return torch.where(inside, ranked.gather(1, torch.where(inside, picks, 0)), -1)


def sequence_windows(
    sequence_idx: Int[Tensor, "F"], rows: Int[Tensor, "Q"], length: int = 8
) -> Int[Tensor, "Q length"]:
    """Each row and the frames around it in its own sequence, nearest in time first: the graphs of Baseline-3.

    Rows of one sequence lie one after the other in time order. At the ends of a sequence the window moves inwards; a
    sequence with fewer frames than `length` leaves -1.

    Example:
        >>> sequence_windows(torch.tensor([7, 7, 7, 7, 7, 9, 9]), torch.tensor([0, 3, 6]), length=3)
        tensor([[ 0,  1,  2],
                [ 3,  2,  4],
                [ 6,  5, -1]])
    """
    frame = torch.arange(len(sequence_idx), device=sequence_idx.device)
    changes = sequence_idx[1:] != sequence_idx[:-1]
    edge = changes.new_ones(1)
    first = torch.where(torch.cat([edge, changes]), frame, 0).cummax(dim=0).values
    last = torch.where(torch.cat([changes, edge]), frame, len(frame)).flip(0).cummin(dim=0).values.flip(0)
    first, last = first[rows], last[rows]
    begin = torch.minimum(rows - (length - 1) // 2, last - length + 1)
    window = torch.maximum(begin, first)[:, None] + torch.arange(length, device=rows.device)  # [Q, length]
    inside = window <= last[:, None]
    order = torch.where(inside, (window - rows[:, None]).abs(), len(frame)).argsort(dim=1, stable=True)
    return torch.where(inside, window, -1).gather(1, order)


def _position_in(references: Int[Tensor, "R"], queries: Int[Tensor, "Q"]) -> Int[Tensor, "Q"]:
    """Where each query stands in the sorted references, -1 where it is none of them."""
    position = torch.searchsorted(references, queries)
    followed = torch.cat([references, references.new_tensor([-1])])  # a query past the last finds no row there
    return torch.where(followed[position] == queries, position, -1)
