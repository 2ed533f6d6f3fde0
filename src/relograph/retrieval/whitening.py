"""PCA whitening: short descriptors in which no common direction speaks louder than the rest."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from relograph.errors import ConfigError


@dataclass(frozen=True)
class PCAWhitening:
    """Projects descriptors on their principal directions, scales each to unit variance, then all to unit length.

    Example:
        >>> descriptors = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
        >>> whitening = PCAWhitening.fit(descriptors, dim=8)
        >>> whitening(descriptors).shape
        torch.Size([200, 8])
    """

    mean: Float[Tensor, "D"]
    projection: Float[Tensor, "D d"]
    """Principal directions, each divided by the standard deviation along it."""

    @staticmethod
    def fit(descriptors: Float[Tensor, "F D"], dim: int) -> "PCAWhitening":
        """The whitening of these descriptors to `dim` numbers; a sample of a few thousand images is enough.

        Works on the smaller of the two Gram matrices: NetVLAD's descriptors are longer than most sets have images.
        """
        num, full_dim = descriptors.shape
        if not 1 <= dim <= min(num - 1, full_dim):
            raise ConfigError(
                f"PCA of {num} descriptors of {full_dim} numbers keeps between 1 and {min(num - 1, full_dim)}, "
                f"got {dim}. Keep fewer, or fit on more images."
            )
        # float64: whitening divides by the small eigenvalues, which float32 would drown in the rounding of the large.
        mean = descriptors.double().mean(dim=0)
        centred = descriptors.double() - mean
        few_images = num < full_dim
        eigenvalues, eigenvectors = torch.linalg.eigh(centred @ centred.T if few_images else centred.T @ centred)
        eigenvalues, eigenvectors = eigenvalues.flip(0)[:dim], eigenvectors.flip(1)[:, :dim]
        # Directions with next to no variance, where images repeat, are not blown up.
        spread = eigenvalues.clamp_min(1e-12 * num).maximum(1e-6 * eigenvalues[0]).sqrt()
        directions = centred.T @ eigenvectors / spread if few_images else eigenvectors  # [D, d]
        return PCAWhitening(mean, directions * ((num - 1) ** 0.5 / spread)).to(descriptors.dtype)

    def __call__(self, descriptors: Float[Tensor, "*B D"]) -> Float[Tensor, "*B d"]:
        return normalize((descriptors - self.mean) @ self.projection, dim=-1)

    def tensors(self) -> dict[str, Tensor]:
        """What to save; `PCAWhitening(**tensors)` makes the same whitening again."""
        return {"mean": self.mean, "projection": self.projection}

    def to(self, *args: Any, **kwargs: Any) -> "PCAWhitening":
        """The same whitening on another device or in another precision; arguments as of `torch.Tensor.to`."""
        return PCAWhitening(self.mean.to(*args, **kwargs), self.projection.to(*args, **kwargs))
