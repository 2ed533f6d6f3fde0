"""NetVLAD (Arandjelovic et al., CVPR 2016): an image as what its local features add to a few visual words."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from relograph.errors import ConfigError
from relograph.retrieval.kmeans import kmeans, squared_distances


class NetVLAD(nn.Module):
    """Global image descriptors of unit length from a map of local features, differentiable in both.

    With local features x_i of unit length, one at each place of the map, the part of cluster k is

        V_k = sum_i a_k(x_i) (x_i - c_k),    a_k(x) = softmax_k(w_k . x + b_k).

    Each V_k is scaled to unit length (intra-normalisation: one repeated pattern must not drown the others), then the
    whole. The weights w, b and the centres c are learned apart from each other; `initialise` starts them together.

    Example:
        >>> netvlad = NetVLAD(in_channels=512, num_clusters=64)
        >>> netvlad(torch.rand(2, 512, 8, 11)).shape
        torch.Size([2, 32768])
    """

    def __init__(self, in_channels: int, num_clusters: int = 64, alpha: float = 100.0) -> None:
        """`alpha` is how sharply a feature goes to its nearest centre until `initialise` chooses it from data."""
        super().__init__()
        if in_channels < 1 or num_clusters < 2:
            raise ConfigError(
                f"NetVLAD needs at least one channel and two clusters, got {in_channels} and {num_clusters}. "
                "The usual number of clusters is 64."
            )
        self.assign = nn.Conv2d(in_channels, num_clusters, kernel_size=1)
        self.centres = nn.Parameter(normalize(torch.randn(num_clusters, in_channels), dim=1))
        self._assign_to_nearest(alpha)

    @property
    def descriptor_dim(self) -> int:
        """Length of a descriptor: clusters times channels."""
        return self.centres.numel()

    def forward(self, feature_map: Float[Tensor, "M C H W"]) -> Float[Tensor, "M KC"]:
        # In float32 also within autocast: the logits are sharp, and bfloat16 would round them by half a unit.
        with torch.autocast(feature_map.device.type, enabled=False):
            x = _unit_features(feature_map.to(self.centres.dtype), dim=1)
            a = self.assign(x).softmax(dim=1).flatten(2)  # [M, K, HW]
            V = a @ x.flatten(2).mT - a.sum(dim=2)[:, :, None] * self.centres  # [M, K, C]
            return normalize(normalize(V, dim=2).flatten(1), dim=1)

    @torch.no_grad()
    def initialise(self, local_features: Float[Tensor, "P C"], generator: torch.Generator) -> None:
        """Starts from the K-means centres of local features, with soft assignments that are nearly hard.

        As in the paper (appendix A): w_k = 2 alpha c_k and b_k = -alpha |c_k|^2, so that a_k falls off with the
        squared distance from c_k, and alpha such that the largest weight is about 100 times the second.
        """
        x = _unit_features(local_features.to(self.centres), dim=1)
        self.centres.copy_(kmeans(x, len(self.centres), generator))
        nearest, second = squared_distances(x, self.centres).topk(2, largest=False).values.unbind(dim=1)
        # Features that are all alike have no gap; then any sharpness will do.
        self._assign_to_nearest(math.log(100.0) / max(float((second - nearest).mean()), 1e-3))

    @torch.no_grad()
    def _assign_to_nearest(self, alpha: float) -> None:
        assert self.assign.bias is not None
        self.assign.weight.copy_(2 * alpha * self.centres[:, :, None, None])
        self.assign.bias.copy_(-alpha * self.centres.square().sum(dim=1))


def sample_local_features(
    feature_map: Float[Tensor, "M C H W"], num_per_image: int, generator: torch.Generator
) -> Float[Tensor, "P C"]:
    """Local features at random places, at most `num_per_image` of each image: what `NetVLAD.initialise` starts from.

    Example:
        >>> sample_local_features(torch.rand(3, 512, 8, 11), 50, torch.Generator().manual_seed(0)).shape
        torch.Size([150, 512])
    """
    num_images, num_channels, height, width = feature_map.shape
    keys = torch.rand(num_images, height * width, generator=generator, device=generator.device)
    places = keys.argsort(dim=1)[:, :num_per_image].to(feature_map.device)
    features = feature_map.flatten(2).mT  # [M, HW, C]
    return features.gather(1, places[:, :, None].expand(-1, -1, num_channels)).flatten(0, 1)


def _unit_features(x: Tensor, dim: int) -> Tensor:
    # A place where no channel fires stays zero; a larger floor than the usual 1e-12 keeps its gradient finite.
    return normalize(x, dim=dim, eps=1e-6)
