"""K-means finds the clusters that are there, and the same ones every time."""

import pytest
import torch
from scipy.cluster.vq import kmeans2

from relograph.errors import ConfigError
from relograph.retrieval.kmeans import kmeans, squared_distances


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_far_apart_clusters_are_found_whatever_the_draw():
    middles = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
    points = (middles[:, None] + torch.randn(4, 25, 2, generator=seeded())).flatten(0, 1)
    for seed in range(20):
        centres = kmeans(points, 4, seeded(seed))
        nearest = torch.cdist(middles, centres).argmin(dim=1)
        torch.testing.assert_close(centres[nearest], points.unflatten(0, (4, 25)).mean(dim=1))


def test_clusters_are_a_fixed_point_of_scipys_iteration():
    points = torch.rand(300, 5, generator=seeded(), dtype=torch.float64)
    centres = kmeans(points, 12, seeded(1))
    scipys, _ = kmeans2(points.numpy(), centres.numpy(), iter=1, minit="matrix")
    torch.testing.assert_close(torch.from_numpy(scipys), centres)


def test_the_same_generator_gives_the_same_centres():
    points = torch.rand(200, 5, generator=seeded())
    assert torch.equal(kmeans(points, 10, seeded(3)), kmeans(points, 10, seeded(3)))
    assert not torch.equal(kmeans(points, 10, seeded(3)), kmeans(points, 10, seeded(4)))


def test_more_clusters_than_different_points_put_a_centre_on_each():
    points = torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 5.0]]).repeat(4, 1)
    centres = kmeans(points, 7, seeded())
    assert centres.shape == (7, 2)
    assert squared_distances(points, centres).amin(dim=1).max() < 1e-6


def test_fewer_points_than_clusters_are_refused():
    with pytest.raises(ConfigError, match="each of its 64 clusters, found 3 points"):
        kmeans(torch.rand(3, 8), 64, seeded())
