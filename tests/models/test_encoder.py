"""The encoder is the ResNet34 that everybody's weights are for, written a second time from its state_dict alone."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from relograph.errors import ConfigError
from relograph.models import ResNet


def random_pictures(num: int, height: int = 45, width: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (num, height, width, 3), generator=generator, dtype=torch.uint8)


def encoder_with_a_past(blocks: tuple[int, ...] = (2, 1, 3, 1), width: int = 4, out_channels: int = 7) -> ResNet:
    """A small encoder whose batch norms have seen something: all their numbers are random."""
    torch.manual_seed(0)
    encoder = ResNet(out_channels, blocks=blocks, width=width)
    for name, values in encoder.state_dict().items():
        if "bn" in name or "downsample.1" in name:
            values.copy_(torch.rand(values.shape) + 0.5)
    return encoder.eval()


# The names


def torchvision_shapes() -> dict[str, list[int]]:
    """Names and shapes in torchvision's resnet34 files."""
    shapes: dict[str, list[int]] = {}

    def batch_norm(name: str, channels: int) -> None:
        for kind in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{kind}"] = [channels]
        shapes[f"{name}.num_batches_tracked"] = []

    shapes["conv1.weight"] = [64, 3, 7, 7]
    batch_norm("bn1", 64)
    channels_in = 64
    for layer, (channels, num_blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
        for block in range(num_blocks):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = [channels, channels_in, 3, 3]
            batch_norm(f"{name}.bn1", channels)
            shapes[f"{name}.conv2.weight"] = [channels, channels, 3, 3]
            batch_norm(f"{name}.bn2", channels)
            if channels_in != channels:
                shapes[f"{name}.downsample.0.weight"] = [channels, channels_in, 1, 1]
                batch_norm(f"{name}.downsample.1", channels)
            channels_in = channels
    shapes["fc.weight"] = [1000, 512]
    shapes["fc.bias"] = [1000]
    return shapes


def test_names_and_shapes_are_those_of_torchvisions_files() -> None:
    with torch.device("meta"):
        state = ResNet(1000).state_dict()
    expected = torchvision_shapes()
    assert len(expected) == 218  # what torchvision's own state_dict counts
    assert {name: list(values.shape) for name, values in state.items()} == expected
    assert list(state) == list(expected)  # and they stand in the same order


def test_with_imagenets_classes_it_has_as_many_parameters_and_operations_as_torchvision_publishes() -> None:
    # torchvision.models.ResNet34_Weights.IMAGENET1K_V1.meta: num_params 21797672, _ops 3.664 (10^9 multiply-adds)
    with torch.device("meta"):
        encoder = ResNet(1000).eval()
        with FlopCounterMode(display=False) as counter:
            encoder(torch.zeros(1, 224, 224, 3))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 21_797_672
    assert counter.get_total_flops() / 2e9 == pytest.approx(3.664, abs=5e-4)


# The numbers


def residual_network(images: Tensor, state: dict[str, Tensor], blocks: tuple[int, ...]) -> Tensor:
    """ResNet of basic blocks (He et al. 2016) on images [M, H, W, 3] as torchvision's transforms prepare them."""

    def batch_norm(x: Tensor, name: str) -> Tensor:
        scale = state[f"{name}.weight"] / (state[f"{name}.running_var"] + 1e-5).sqrt()
        shift = state[f"{name}.bias"] - state[f"{name}.running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    x = images.permute(0, 3, 1, 2) / 255.0
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    x = batch_norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").relu()
    x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for layer, num_blocks in enumerate(blocks, start=1):
        for block in range(num_blocks):
            name = f"layer{layer}.{block}"
            stride = 2 if layer > 1 and block == 0 else 1
            y = F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = batch_norm(y, f"{name}.bn1").relu()
            y = F.conv2d(y, state[f"{name}.conv2.weight"], padding=1)
            y = batch_norm(y, f"{name}.bn2")
            if f"{name}.downsample.0.weight" in state:
                x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
                x = batch_norm(x, f"{name}.downsample.1")
            x = (x + y).relu()
    return x.flatten(2).mean(dim=2) @ state["fc.weight"].T + state["fc.bias"]


def test_vectors_are_those_of_the_residual_network_computed_from_the_weights_alone() -> None:
    blocks = (2, 1, 3, 1)
    encoder = encoder_with_a_past(blocks)
    images = random_pictures(3)
    expected = residual_network(images, encoder.state_dict(), blocks)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-4, atol=1e-4)
    assert (expected[0] - expected[1]).abs().max() > 0.1  # so the comparison above says something


def test_bytes_and_floats_of_the_same_pixels_give_the_same_vectors() -> None:
    encoder, images = encoder_with_a_past(), random_pictures(2)
    assert torch.equal(encoder(images), encoder(images.float()))


@pytest.mark.parametrize(
    ("image_size_hw", "map_size_hw"), [((256, 341), (8, 11)), ((256, 455), (8, 15)), ((32, 32), (1, 1))]
)
def test_the_last_feature_map_has_a_32nd_of_the_image_size(
    image_size_hw: tuple[int, int], map_size_hw: tuple[int, int]
) -> None:
    with torch.device("meta"):
        encoder = ResNet(2048)
        feature_map = encoder.feature_map(torch.zeros(2, *image_size_hw, 3))
    assert feature_map.shape == (2, 512, *map_size_hw)
    assert encoder.map_channels == 512


def test_a_vector_is_pooled_from_the_feature_map_that_retrieval_sees_too() -> None:
    encoder, images = encoder_with_a_past(), random_pictures(2)
    assert torch.equal(encoder.pool(encoder.feature_map(images)), encoder(images))


def test_evaluation_sees_each_image_alone_and_training_sees_the_batch() -> None:
    encoder, images = encoder_with_a_past(), random_pictures(4)
    torch.testing.assert_close(encoder(images[:1]), encoder(images)[:1], rtol=1e-5, atol=1e-5)
    encoder.train()
    assert (encoder(images[:2])[:1] - encoder(images)[:1]).abs().max() > 1e-2


def test_evaluation_leaves_the_running_statistics_alone() -> None:
    encoder = encoder_with_a_past()
    before = {name: values.clone() for name, values in encoder.state_dict().items()}
    encoder(random_pictures(2))
    assert all(torch.equal(values, before[name]) for name, values in encoder.state_dict().items())


def test_convolutions_start_with_the_variance_that_keeps_the_size_of_gradients() -> None:
    torch.manual_seed(0)
    weight = ResNet(16, blocks=(1, 1, 1, 1), width=32).layer3[0].conv1.weight  # 64 channels to 128
    fan_out = 128 * 3 * 3
    assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.02)


@pytest.mark.parametrize(("blocks", "width"), [((3, 4, 6), 64), ((3, 4, 0, 3), 64), ((3, 4, 6, 3), 0)])
def test_an_encoder_that_is_none_is_refused(blocks: tuple[int, ...], width: int) -> None:
    with pytest.raises(ConfigError, match=r"4 stages of at least 1 block and 1 channel.*ResNet34 has \(3, 4, 6, 3\)"):
        ResNet(16, blocks=blocks, width=width)
