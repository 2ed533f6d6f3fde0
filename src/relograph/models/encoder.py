"""The visual encoder: ResNet34, with the parameter names of torchvision's, so that its public weights load."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from relograph.errors import ConfigError

# What ImageNet's networks were trained with; any fixed choice serves a network that starts from random weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ResidualBlock(nn.Module):
    """x <- ReLU(x + BN conv ReLU BN conv x); where the shape changes, the shortcut is a 1x1 convolution."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Float[Tensor, "M C H W"]) -> Float[Tensor, "M C2 H2 W2"]:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet(nn.Module):
    """Images to vectors: x = fc(mean over the pixels of the last feature map)."""

    mean: Tensor
    std: Tensor

    def __init__(self, out_channels: int, *, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        """`blocks` residual blocks in each of four stages, the first of `width` channels; ResNet34 is the default."""
        super().__init__()
        if len(blocks) != 4 or min(blocks) < 1 or width < 1:
            raise ConfigError(
                f"the encoder needs 4 stages of at least 1 block and 1 channel, got blocks {blocks} and width {width}. "
                "ResNet34 has (3, 4, 6, 3) and 64."
            )
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        channels_in = width
        for stage, count in enumerate(blocks):
            channels = width << stage
            first = ResidualBlock(channels_in, channels, stride=1 if stage == 0 else 2)
            rest = [ResidualBlock(channels, channels, stride=1) for _ in range(count - 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(first, *rest))
            channels_in = channels
        self.map_channels = channels_in
        self.fc = nn.Linear(channels_in, out_channels)
        # Not saved: torchvision's files have no such keys.
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD) * 255, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def feature_map(self, images: Tensor) -> Float[Tensor, "M C h w"]:
        """The last feature map of images [M, H, W, 3] with values within 0 and 255, at a 32nd of their size."""
        x = (images - self.mean) / self.std
        # [M, H, W, 3] seen as [M, 3, H, W] is already channels-last, the order the GPU's convolutions like best.
        x = F.relu(self.bn1(self.conv1(x.permute(0, 3, 1, 2))))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return x

    def pool(self, feature_map: Float[Tensor, "M C h w"]) -> Float[Tensor, "M out"]:
        """The vectors of images whose last feature maps are known."""
        return self.fc(feature_map.mean(dim=(2, 3)))  # type: ignore[no-any-return]  # nn.Module is untyped

    def forward(self, images: Tensor) -> Float[Tensor, "M out"]:
        """Vectors of images [M, H, W, 3] with values within 0 and 255 (uint8 or float)."""
        return self.pool(self.feature_map(images))
