"""Edge dropout: pairs fall at random, both directions together, and never all of a graph's."""

import pytest
import torch
from torch import Generator, Tensor

from relograph.graphs import drop_edges


def complete_graphs(num_graphs: int, num_nodes: int) -> Tensor:
    """Masks [B, N, N] of all edges between different nodes."""
    return ~torch.eye(num_nodes, dtype=torch.bool).repeat(num_graphs, 1, 1)


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_a_pair_falls_in_both_directions(rate: float) -> None:
    kept = drop_edges(complete_graphs(200, 8), rate, seeded())
    assert torch.equal(kept, kept.mT)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_the_share_that_falls_is_the_rate_for_every_pair(rate: float) -> None:
    num_graphs = 4000
    kept = drop_edges(complete_graphs(num_graphs, 8), rate, seeded())
    first, second = torch.triu_indices(8, 8, offset=1)
    dropped = 1 - kept[:, first, second].double().mean(dim=0)  # [28], a share for each pair
    # 0.04 is more than five standard deviations of a share among 4000; of all 28 * 4000 together it is 0.0015.
    assert (dropped - rate).abs().max() < 0.04
    assert dropped.mean().item() == pytest.approx(rate, abs=0.008)


def test_pairs_fall_independently_of_each_other() -> None:
    kept = drop_edges(complete_graphs(4000, 8), 0.5, seeded())
    num_pairs = kept.sum(dim=(1, 2)).double() / 2
    assert num_pairs.var().item() == pytest.approx(28 * 0.5 * 0.5, rel=0.1)  # a binomial distribution's


@pytest.mark.parametrize("rate", [0.5, 0.999, 1.0])
@pytest.mark.parametrize("num_nodes", [2, 3, 8])
def test_a_graph_never_loses_all_its_edges(rate: float, num_nodes: int) -> None:
    kept = drop_edges(complete_graphs(500, num_nodes), rate, seeded())
    assert kept.any(dim=(1, 2)).all()
    assert torch.equal(kept, kept.mT)


def test_the_pair_that_survives_a_rate_of_one_is_not_always_the_same() -> None:
    kept = drop_edges(complete_graphs(500, 4), 1.0, seeded())
    assert (kept.sum(dim=(1, 2)) == 2).all()
    assert kept.any(dim=0).sum() == 4 * 3


def test_edges_that_were_not_there_do_not_come_into_being() -> None:
    edge_mask = complete_graphs(300, 5)
    edge_mask[:, 3:, :] = edge_mask[:, :, 3:] = False  # nodes 3 and 4 are padding
    edge_mask[150:] = False  # and these graphs have one image each
    kept = drop_edges(edge_mask, 0.5, seeded())
    assert not (kept & ~edge_mask).any()
    assert kept[:150].any(dim=(1, 2)).all()
    assert not kept[150:].any()


def test_a_rate_of_zero_keeps_every_edge() -> None:
    edge_mask = complete_graphs(3, 8)
    assert torch.equal(drop_edges(edge_mask, 0.0, seeded()), edge_mask)


def test_the_mask_that_came_stays_as_it_was() -> None:
    edge_mask = complete_graphs(3, 8)
    drop_edges(edge_mask, 0.5, seeded())
    assert torch.equal(edge_mask, complete_graphs(3, 8))


def test_chance_has_a_seed_and_moves_on() -> None:
    edge_mask, generator = complete_graphs(4, 8), seeded()
    first, second = drop_edges(edge_mask, 0.5, generator), drop_edges(edge_mask, 0.5, generator)
    assert not torch.equal(first, second)
    assert torch.equal(drop_edges(edge_mask, 0.5, seeded()), first)
