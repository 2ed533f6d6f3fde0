"""Which references stand in a graph: rankings against slow loops, and what holds for every strided choice."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relograph.retrieval import rank_at_random, rank_references, select_strided, sequence_windows

# Rankings by similarity


class Photos:
    """Random photos of a few scenes with a few sequences each, some of them in the database."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, 30))
        self.scene_idx = torch.from_numpy(np.sort(rng.integers(0, 3, num)))
        self.sequence_idx = 10 * self.scene_idx + torch.from_numpy(rng.integers(0, 3, num))
        self.database = torch.from_numpy(rng.random(num) < 0.7)
        self.descriptors = torch.from_numpy(rng.normal(size=(num, 5)))
        self.query_rows = torch.from_numpy(rng.integers(0, num, 8))

    def rank(self, length: int, **options: bool) -> list[list[int]]:
        ranked = rank_references(
            self.query_rows,
            self.database,
            self.descriptors,
            self.scene_idx,
            self.sequence_idx,
            length=length,
            **options,
        )
        return ranked.tolist()

    def rank_slowly(self, query: int, length: int, *, exclude_same_sequence: bool) -> list[int]:
        rows = [
            row
            for row in range(len(self.database))
            if self.database[row]
            and row != query
            and self.scene_idx[row] == self.scene_idx[query]
            and not (exclude_same_sequence and self.sequence_idx[row] == self.sequence_idx[query])
        ]
        unit = self.descriptors / self.descriptors.norm(dim=1, keepdim=True)
        rows.sort(key=lambda row: -float(unit[row] @ unit[query]))
        return (rows + [-1] * length)[:length]


photos = st.builds(Photos, st.integers(0, 2**32 - 1))


@given(photos=photos, length=st.integers(1, 35), exclude_same_sequence=st.booleans())
def test_references_are_those_of_the_own_scene_by_similarity_without_the_query(photos, length, exclude_same_sequence):
    expected = [
        photos.rank_slowly(query, length, exclude_same_sequence=exclude_same_sequence)
        for query in photos.query_rows.tolist()
    ]
    assert photos.rank(length, exclude_same_sequence=exclude_same_sequence) == expected


@given(photos=photos)
def test_a_query_whose_scene_has_one_sequence_falls_back_to_it_when_asked_to(photos):
    alone = photos.rank(6, exclude_same_sequence=True)
    with_company = photos.rank(6, exclude_same_sequence=False)
    expected = [there if here[0] < 0 else here for here, there in zip(alone, with_company, strict=True)]
    assert photos.rank(6, exclude_same_sequence=True, same_sequence_if_alone=True) == expected


# Random references


def test_random_references_are_different_database_rows_of_the_own_scene():
    scene_idx = torch.tensor([0] * 10 + [1] * 10)
    database = torch.arange(20) % 10 < 8
    queries = torch.arange(20).repeat(50)
    drawn = rank_at_random(queries, database, scene_idx, length=7, generator=torch.Generator().manual_seed(0))
    assert (drawn >= 0).all()
    assert (drawn != queries[:, None]).all()
    assert database[drawn].all()
    assert (scene_idx[drawn] == scene_idx[queries, None]).all()
    assert all(len(set(row)) == 7 for row in drawn.tolist())


def test_random_references_are_all_drawn_equally_often():
    queries = torch.zeros(6000).long()
    drawn = rank_at_random(
        queries, torch.ones(5).bool(), torch.zeros(5).long(), length=1, generator=torch.Generator().manual_seed(0)
    )
    # 1500 each, with a standard deviation of sqrt(6000 * 1/4 * 3/4) = 34.
    count = torch.bincount(drawn.flatten(), minlength=5)
    assert count[0] == 0
    assert ((count[1:] - 1500).abs() < 4 * 34).all()


def test_random_references_repeat_with_their_seed_and_end_where_the_scene_ends():
    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return rank_at_random(
            torch.arange(6), torch.ones(6).bool(), torch.tensor([0, 0, 0, 0, 0, 1]), length=7, generator=generator
        )

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert (draw(0)[:5] >= 0).sum(dim=1).tolist() == [4] * 5
    assert draw(0)[5].tolist() == [-1] * 7  # the only photo of its scene


# Every stride-th


@st.composite
def rankings(draw: st.DrawFn) -> torch.Tensor:
    """Rankings [B, L] of different rows, each with -1 from some place on."""
    length = draw(st.integers(1, 40))
    num_ranked = draw(st.lists(st.integers(0, length), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ranked = np.stack([rng.permutation(1000)[:length] for _ in num_ranked])
    return torch.from_numpy(np.where(np.arange(length) < np.array(num_ranked)[:, None], ranked, -1))


@given(ranked=rankings(), num_references=st.integers(1, 9), stride=st.integers(1, 6), data=st.data())
def test_a_strided_choice_has_as_many_different_references_as_there_can_be(ranked, num_references, stride, data):
    offset = torch.tensor(data.draw(st.lists(st.integers(0, stride - 1), min_size=len(ranked), max_size=len(ranked))))
    chosen = select_strided(ranked, num_references, stride, offset)
    assert chosen.shape == (len(ranked), num_references)
    for row, picks, start in zip(ranked.tolist(), chosen.tolist(), offset.tolist(), strict=True):
        row = [reference for reference in row if reference >= 0]
        taken = [reference for reference in picks if reference >= 0]
        assert picks == taken + [-1] * (num_references - len(taken))
        assert len(taken) == min(num_references, len(row))
        positions = [row.index(reference) for reference in taken]
        steps = {after - before for before, after in pairwise(positions)}
        assert len(steps) <= 1  # evenly spaced
        assert all(1 <= step <= stride for step in steps)
        if start + (num_references - 1) * stride < len(row):  # as in the paper
            assert taken == row[start::stride][:num_references]
        elif steps and len(row) >= num_references:  # no larger stride would have fitted
            assert min(start, max(steps)) + (num_references - 1) * (max(steps) + 1) >= len(row)


@given(ranked=rankings(), num_references=st.integers(1, 9), stride=st.integers(1, 6))
def test_offset_0_keeps_the_most_similar_reference(ranked, num_references, stride):
    assert torch.equal(select_strided(ranked, num_references, stride, 0)[:, 0], ranked[:, 0])


def test_the_papers_graph_takes_every_fifth_of_the_35_most_similar():
    ranked = torch.arange(100, 135)[None]
    assert select_strided(ranked, 7, 5, 0).tolist() == [[100, 105, 110, 115, 120, 125, 130]]
    assert select_strided(ranked, 7, 5, 4).tolist() == [[104, 109, 114, 119, 124, 129, 134]]


# Sequences


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    length=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_windows_hold_the_query_first_then_its_neighbours_in_time(lengths, length, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(100)[: len(lengths)]
    sequence_idx = torch.from_numpy(np.repeat(numbers, lengths))
    rows = torch.from_numpy(rng.integers(0, len(sequence_idx), 6))
    for row, window in zip(rows.tolist(), sequence_windows(sequence_idx, rows, length).tolist(), strict=True):
        frames = [frame for frame in window if frame >= 0]
        own = (sequence_idx == sequence_idx[row]).nonzero().flatten().tolist()
        assert window[0] == row
        assert window == frames + [-1] * (length - len(frames))
        assert len(frames) == min(length, len(own))
        assert set(frames) <= set(own)
        assert sorted(frames) == list(range(min(frames), min(frames) + len(frames)))  # no gap
        assert [abs(frame - row) for frame in frames] == sorted(abs(frame - row) for frame in frames)


def test_a_window_in_the_middle_of_a_sequence_lies_around_its_frame():
    assert sequence_windows(torch.zeros(100).long(), torch.tensor([50]), 8).tolist() == [
        [50, 49, 51, 48, 52, 47, 53, 54]
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rankings_may_be_of_either_width(dtype):
    photos = Photos(7)
    ranked = rank_references(
        photos.query_rows.to(dtype),
        photos.database,
        photos.descriptors,
        photos.scene_idx.to(dtype),
        photos.sequence_idx.to(dtype),
        length=9,
    )
    assert ranked.tolist() == photos.rank(9)
