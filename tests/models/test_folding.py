"""Batch norm folded into convolutions: the same answers from fewer layers."""

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from relograph.models import ResNet
from relograph.models.folding import ConvolvedLinear, fold_batch_norm, fold_match_gnn, folded_convolution
from relograph.models.match_gnn import Attention, MatchGNN
from relograph.training.presets import MATCHGNN_TINY


def encoder_with_a_past(blocks: tuple[int, ...] = (2, 1, 3, 1), width: int = 8) -> ResNet:
    """A small encoder whose batch norms have all been somewhere: their scales may even be negative."""
    torch.manual_seed(0)
    encoder = ResNet(5, blocks=blocks, width=width)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.normal_(mean=0.5)
            module.bias.data.normal_()
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3)
    return encoder.eval()


def pictures(height: int = 45, width: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (3, height, width, 3), generator=generator, dtype=torch.uint8)


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def test_a_convolution_and_its_batch_norm_are_one_convolution_by_hand():
    convolution, norm = nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.0).eval()
    convolution.weight.copy_(torch.tensor([3.0, -1.0]).reshape(2, 1, 1, 1))
    norm.weight.copy_(torch.tensor([2.0, 5.0]))
    norm.bias.copy_(torch.tensor([0.5, -4.0]))
    norm.running_mean.copy_(torch.tensor([1.0, -2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 25.0]))
    folded = folded_convolution(convolution, norm)
    # 2 (3 x - 1) / 2 + 0.5 = 3 x - 0.5 and 5 (-x + 2) / 5 - 4 = -x - 2
    assert folded.weight.flatten().tolist() == [3.0, -1.0]
    assert folded.bias.tolist() == [-0.5, -2.0]


@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_a_folded_encoder_says_what_the_encoder_says_in_evaluation(fused: bool):
    encoder = encoder_with_a_past().double()
    folded = fold_batch_norm(encoder, fused=fused)
    assert relative_difference(folded(pictures()), encoder(pictures())) < 1e-10
    maps = [part.feature_map(pictures()) for part in (folded, encoder)]
    assert relative_difference(*maps) < 1e-10
    folded.train()
    assert relative_difference(folded(pictures()), encoder(pictures())) < 1e-10


@torch.no_grad()
def test_the_papers_encoder_folds_too():
    encoder = encoder_with_a_past(blocks=(3, 4, 6, 3), width=4).double()
    assert relative_difference(fold_batch_norm(encoder)(pictures()), encoder(pictures())) < 1e-10


def test_folding_leaves_the_encoder_as_it_is_and_no_batch_norm_behind():
    encoder = encoder_with_a_past()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    folded = fold_batch_norm(encoder)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    folded.conv1.weight.data.zero_()
    folded.fc.weight.data.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert all(parameter.requires_grad for parameter in encoder.parameters())


@torch.no_grad()
def test_channels_last_weights_stay_channels_last():
    encoder = encoder_with_a_past().to(memory_format=torch.channels_last)
    for module in fold_batch_norm(encoder).modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@torch.no_grad()
def test_a_gpu_gives_the_same_answers_from_a_folded_encoder(fused: bool, dtype: torch.dtype, tolerance: float):
    # ResNet34's width: few channels take other kernels.
    encoder = encoder_with_a_past(blocks=(3, 4, 6, 3), width=64).cuda().to(memory_format=torch.channels_last)
    folded = fold_batch_norm(encoder, fused=fused).to(dtype)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False):
        wanted = encoder(pictures(96, 128).cuda())
        found = folded(pictures(96, 128).cuda()).float()
    assert relative_difference(found, wanted) < tolerance


@torch.no_grad()
def test_a_folded_match_gnn_sees_the_same_without_batch_norm():
    torch.manual_seed(0)
    network = MatchGNN(MATCHGNN_TINY.model).double()
    images = torch.randint(0, 256, (2, 32, 48, 3), generator=torch.Generator().manual_seed(1)).double()
    for _ in range(3):
        network.encode(images)  # in training: the averages become those of the images
    expected, folded = network.eval().encode(images), fold_match_gnn(network)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    for name in ("context", "coarse", "fine"):
        assert_allclose(getattr(folded.train().encode(images), name), getattr(expected, name), atol=1e-9)
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules())  # which is left as it was


@torch.no_grad()
def test_layers_of_tokens_say_the_same_as_convolutions_on_a_cpu_and_are_exported_as_they_are():
    torch.manual_seed(0)
    network = MatchGNN(MATCHGNN_TINY.model).eval()
    folded, exported = fold_match_gnn(network), fold_match_gnn(network, for_export=True)
    assert not any(isinstance(module, ConvolvedLinear) for module in exported.modules())
    for name, plain in network.named_modules():
        if isinstance(plain, Attention):
            attention = folded.get_submodule(name)
            assert not any(isinstance(module, nn.Linear) for module in attention.modules())
            tokens = torch.randn(2, 500, plain.out.in_features)
            assert_allclose(attention(tokens), plain(tokens), atol=1e-5)
