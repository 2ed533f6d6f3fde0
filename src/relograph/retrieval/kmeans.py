"""K-means in torch: the visual words that NetVLAD starts from."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from relograph.errors import ConfigError


def kmeans(
    points: Float[Tensor, "P C"], num_clusters: int, generator: torch.Generator, max_iterations: int = 100
) -> Float[Tensor, "K C"]:
    """Centres of `num_clusters` clusters of the points, by Lloyd's iteration from a k-means++ start.

    The same points and a generator in the same state give the same centres. A cluster that loses all its points goes
    on from a point that is far from its own centre.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [10.0], [12.0]])
        >>> kmeans(points, 2, torch.Generator().manual_seed(0)).sort(dim=0).values
        tensor([[ 0.5000],
                [11.0000]])
    """
    if len(points) < num_clusters:
        raise ConfigError(
            f"K-means needs at least one point for each of its {num_clusters} clusters, found {len(points)} points. "
            "Use fewer clusters, or take points from more images."
        )
    centres = _spread_start(points, num_clusters, generator)
    assigned = None
    for _ in range(max_iterations):
        distance, nearest = squared_distances(points, centres).min(dim=1)
        if assigned is not None and torch.equal(nearest, assigned):
            break
        assigned = nearest
        # Means as a product of matrices: scattered sums depend on their order on a GPU.
        membership = one_hot(nearest, num_clusters).to(points.dtype)  # [P, K]
        size = membership.sum(dim=0)[:, None]  # [K, 1]
        means = membership.T @ points / size.clamp_min(1)
        centres = torch.where(size > 0, means, points[distance.topk(num_clusters).indices])
    return centres


def squared_distances(points: Float[Tensor, "P C"], centres: Float[Tensor, "K C"]) -> Float[Tensor, "P K"]:
    """Squared distance of every point from every centre."""
    squares = points.square().sum(dim=1)[:, None] + centres.square().sum(dim=1)
    return (squares - 2 * points @ centres.T).clamp_min(0)


def _spread_start(points: Float[Tensor, "P C"], num_clusters: int, generator: torch.Generator) -> Float[Tensor, "K C"]:
    """Points drawn one after the other, each with a chance that grows with its squared distance from those before."""
    draws = torch.rand(num_clusters, generator=generator, device=generator.device, dtype=torch.float64)
    draws = draws.to(points.device)
    distance = points.new_ones(len(points))  # the first is any point
    chosen: list[Tensor] = []
    for draw in draws:
        cumulative = distance.double().cumsum(dim=0)
        index = torch.searchsorted(cumulative, draw * cumulative[-1], right=True).clamp_max(len(points) - 1)
        to_new = (points - points[index]).square().sum(dim=1)
        distance = torch.minimum(distance, to_new) if chosen else to_new
        chosen.append(index)
    return points[torch.stack(chosen)]
