"""Image retrieval on the encoder's last feature map: an image to the descriptor by which its neighbours are found."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from relograph.models.encoder import ResNet
from relograph.progress import SILENT, Progress
from relograph.retrieval import NetVLAD, PCAWhitening, sample_local_features


class Retriever(nn.Module):
    """Encoder, NetVLAD and, once fitted, PCA-whitening. It shares its encoder with no one unless it is given one."""

    whitening_mean: Tensor
    whitening_projection: Tensor

    def __init__(self, encoder: ResNet, *, num_clusters: int = 16, image_height: int = 128) -> None:
        super().__init__()
        self.encoder = encoder
        self.netvlad = NetVLAD(encoder.map_channels, num_clusters)
        self.image_height = image_height
        self.register_buffer("whitening_mean", torch.zeros(0))
        self.register_buffer("whitening_projection", torch.zeros(0, 0))

    @property
    def is_whitened(self) -> bool:
        """Whether descriptors are reduced."""
        return len(self.whitening_mean) > 0

    def shown(self, images: UInt8[Tensor, "M H W 3"]) -> Tensor:
        """Images at the height that descriptors are computed at, whatever height the pose network sees."""
        height, width = images.shape[1:3]
        if height <= self.image_height:
            return images
        size = (self.image_height, round(width * self.image_height / height))
        pixels = images.permute(0, 3, 1, 2).float()
        return F.interpolate(pixels, size=size, mode="bilinear", antialias=True, align_corners=False).permute(
            0, 2, 3, 1
        )

    def forward(self, images: UInt8[Tensor, "M H W 3"]) -> Float[Tensor, "M D"]:
        """Descriptors of unit length."""
        descriptors: Tensor = self.netvlad(self.encoder.feature_map(self.shown(images)))
        if not self.is_whitened:
            return descriptors
        return PCAWhitening(self.whitening_mean, self.whitening_projection)(descriptors)

    @torch.no_grad()
    def describe(
        self, images: UInt8[Tensor, "F H W 3"], *, batch_size: int = 256, progress: Progress = SILENT
    ) -> Float[Tensor, "F D"]:
        """Descriptors of many images, computed where the weights are."""
        device = self.netvlad.centres.device
        descriptors = []
        self.eval()
        with progress.task("describing images", total=len(images)) as advance:
            for some in images.split(batch_size):
                descriptors.append(self(some.to(device)))
                advance(len(some))
        return torch.cat(descriptors)

    @torch.no_grad()
    def initialise(self, images: UInt8[Tensor, "F H W 3"], generator: torch.Generator, *, per_image: int = 32) -> None:
        """Start NetVLAD from the K-means centres of what the encoder sees in these images."""
        self.eval()
        device = self.netvlad.centres.device
        maps = [self.encoder.feature_map(self.shown(some.to(device))) for some in images.split(256)]
        self.netvlad.initialise(sample_local_features(torch.cat(maps), per_image, generator), generator)

    @torch.no_grad()
    def whiten(self, images: UInt8[Tensor, "F H W 3"], dim: int) -> None:
        """Fit the reduction to `dim` numbers on these images, to fewer where they are too few; 0 reduces nothing."""
        self.whitening_mean, self.whitening_projection = torch.zeros(0), torch.zeros(0, 0)
        dim = min(dim, len(images) - 1, self.netvlad.descriptor_dim)
        if dim > 0:
            whitening = PCAWhitening.fit(self.describe(images), dim)
            self.whitening_mean, self.whitening_projection = whitening.mean, whitening.projection
