"""The exact index against a search in numpy that looks at every pair."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from relograph.retrieval import ExactIndex


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def slow_search(database, queries, k, allowed=None):
    """Rows and cosines by sorting all of them; allowed[q, f] says who may answer."""
    cosine = np.array([[q @ f / np.linalg.norm(q) / np.linalg.norm(f) for f in database] for q in queries])
    if allowed is not None:
        cosine[~allowed] = -np.inf
    cosine = np.pad(cosine, ((0, 0), (0, max(0, k - len(database)))), constant_values=-np.inf)
    row = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(cosine, row, axis=1)
    return best, np.where(np.isfinite(best), row, -1)


@pytest.mark.parametrize("k", [1, 5, 40, 60])
def test_search_finds_what_brute_force_finds(rng, k):
    database, queries = rng.normal(size=(40, 7)), 3 * rng.normal(size=(11, 7))
    found = ExactIndex(torch.from_numpy(database)).search(torch.from_numpy(queries), k)
    similarity, row = slow_search(database, queries, k)
    assert_allclose(found.similarity, similarity, atol=1e-12)
    assert_array_equal(found.row, row)


def test_groups_sequences_and_the_query_itself_are_kept_apart(rng):
    database, queries = rng.normal(size=(40, 7)), rng.normal(size=(11, 7))
    groups, query_groups = rng.integers(0, 3, 40), rng.integers(0, 4, 11)  # nobody is in group 3
    sequences, query_sequences = rng.integers(0, 4, 40), rng.integers(0, 4, 11)
    own = rng.integers(-1, 40, 11)
    index = ExactIndex(*map(torch.from_numpy, (database, groups, sequences)))
    found = index.search(
        torch.from_numpy(queries),
        12,
        groups=torch.from_numpy(query_groups),
        exclude_sequences=torch.from_numpy(query_sequences),
        exclude_rows=torch.from_numpy(own),
    )
    allowed = groups == query_groups[:, None]
    allowed &= sequences != query_sequences[:, None]
    allowed &= np.arange(40) != own[:, None]
    similarity, row = slow_search(database, queries, 12, allowed)
    assert (row < 0).all(axis=1).any()
    assert_array_equal(found.row, row)
    assert_allclose(found.similarity, similarity, atol=1e-12)


@pytest.mark.parametrize("block_size", [1, 4, 11, 100])
def test_blocks_of_any_size_give_the_same_answer(rng, block_size):
    database, queries = torch.from_numpy(rng.normal(size=(40, 7))), torch.from_numpy(rng.normal(size=(11, 7)))
    groups, own = torch.from_numpy(rng.integers(0, 3, 40)), torch.from_numpy(rng.integers(0, 40, 11))
    index = ExactIndex(database, groups)
    whole = index.search(queries, 6, groups=groups[:11], exclude_rows=own)
    in_blocks = index.search(queries, 6, groups=groups[:11], exclude_rows=own, block_size=block_size)
    assert torch.equal(in_blocks.row, whole.row)
    torch.testing.assert_close(in_blocks.similarity, whole.similarity)


def test_copies_of_an_image_come_back_in_the_order_of_their_rows():
    database = torch.eye(3).repeat(5, 1)
    found = ExactIndex(database).search(torch.tensor([[0.0, 1.0, 0.0]]), 5)
    assert found.row.tolist() == [[1, 4, 7, 10, 13]]


def test_descriptors_in_half_precision_are_compared_in_full():
    close = torch.tensor([[1.0, 0.001], [1.0, 0.0], [1.0, 0.002]], dtype=torch.bfloat16)
    found = ExactIndex(close).search(torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16), 3)
    assert found.similarity.dtype == torch.float32
    assert found.row.tolist() == [[1, 0, 2]]


def test_nothing_is_found_in_an_empty_database_and_nothing_for_no_query():
    assert ExactIndex(torch.empty(0, 4)).search(torch.ones(2, 4), 3).row.tolist() == [[-1, -1, -1]] * 2
    assert ExactIndex(torch.ones(5, 4)).search(torch.empty(0, 4), 3).row.shape == (0, 3)


def test_a_search_by_labels_that_the_index_was_not_given_fails():
    with pytest.raises(ValueError, match="made without the labels"):
        ExactIndex(torch.ones(5, 4)).search(torch.ones(1, 4), 3, groups=torch.zeros(1).long())
