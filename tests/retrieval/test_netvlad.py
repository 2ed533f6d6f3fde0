"""NetVLAD against the equations of its paper, written as slow loops."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from relograph.errors import ConfigError
from relograph.retrieval import NetVLAD, sample_local_features


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def netvlad() -> NetVLAD:
    """A layer for 6 channels and 4 clusters whose weights belong to no centre, as after some training."""
    torch.manual_seed(0)
    netvlad = NetVLAD(6, 4).double()
    for parameter in netvlad.parameters():
        torch.nn.init.normal_(parameter)
    return netvlad


@pytest.fixture
def feature_map() -> torch.Tensor:
    return torch.randn(3, 6, 4, 5, generator=seeded(), dtype=torch.float64)


def slow_netvlad(netvlad: NetVLAD, feature_map: torch.Tensor) -> np.ndarray:
    """Equation (4) of Arandjelovic et al. with their two normalisations, one number at a time."""
    w, b = netvlad.assign.weight.detach().numpy()[:, :, 0, 0], netvlad.assign.bias.detach().numpy()
    c = netvlad.centres.detach().numpy()
    descriptors = []
    for image in feature_map.numpy():
        V = np.zeros_like(c)
        for column in image.reshape(len(image), -1).T:
            x = column / math.sqrt(sum(value * value for value in column))
            weights = [math.exp(w[k] @ x + b[k]) for k in range(len(c))]
            for k in range(len(c)):
                for j in range(len(x)):
                    V[k, j] += weights[k] / sum(weights) * (x[j] - c[k, j])
        for k in range(len(c)):
            V[k] /= np.linalg.norm(V[k])
        descriptors.append(V.reshape(-1) / np.linalg.norm(V))
    return np.stack(descriptors)


def test_descriptors_are_those_of_the_papers_equation(netvlad, feature_map):
    assert_allclose(netvlad(feature_map).detach(), slow_netvlad(netvlad, feature_map), atol=1e-12)


def test_descriptors_have_unit_length_and_every_cluster_the_same_share(netvlad, feature_map):
    descriptor = netvlad(feature_map)
    assert netvlad.descriptor_dim == 24
    torch.testing.assert_close(descriptor.norm(dim=1), torch.ones(3).double())
    torch.testing.assert_close(descriptor.unflatten(1, (4, 6)).norm(dim=2), torch.full((3, 4), 0.5).double())


def test_a_pattern_that_repeats_does_not_drown_the_others():
    """Bursts: a hundred more places that look alike change the descriptor by nothing."""
    netvlad = NetVLAD(8, 2).double()
    patterns = torch.eye(8, dtype=torch.float64)
    near_first = torch.stack([patterns[0] + 0.3 * patterns[1], patterns[0] + 0.3 * patterns[2]])
    near_second = torch.stack([patterns[4] + 0.3 * patterns[5], patterns[4] + 0.2 * patterns[6]])
    netvlad.initialise(torch.cat([near_first, near_second]), seeded())
    netvlad.assign.weight.data *= 100  # all but hard assignments
    netvlad.assign.bias.data *= 100
    without_wall = torch.cat([near_first[:1], near_second[:1]]).T[None, :, :, None]  # [1, C, 2, 1]
    with_wall = torch.cat([near_first[:1], near_second[:1].expand(101, -1)]).T[None, :, :, None]
    torch.testing.assert_close(netvlad(with_wall), netvlad(without_wall))


def test_places_may_be_shuffled_and_brightness_scaled(netvlad, feature_map):
    shuffled = feature_map.flatten(2)[:, :, torch.randperm(20, generator=seeded())].unflatten(2, (4, 5))
    torch.testing.assert_close(netvlad(7.0 * shuffled), netvlad(feature_map))


def test_gradients_are_right_and_reach_every_parameter(netvlad, feature_map):
    assert torch.autograd.gradcheck(netvlad, feature_map.requires_grad_(), atol=1e-6)
    netvlad(feature_map).square().mul(torch.arange(24)).sum().backward()
    for name, parameter in netvlad.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, name
    assert feature_map.grad.abs().max() > 1e-6


def test_places_where_no_channel_fires_have_finite_gradients():
    netvlad = NetVLAD(6, 4)
    dark = torch.zeros(1, 6, 2, 2)
    dark[0, :, 0, 0] = 1.0
    dark.requires_grad_()
    netvlad(dark)[0, 0].backward()
    assert dark.grad.isfinite().all()


def test_autocast_does_not_round_descriptors():
    netvlad, feature_map = NetVLAD(6, 4), torch.rand(2, 6, 4, 5, generator=seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = netvlad(feature_map)
    assert torch.equal(inside, netvlad(feature_map))


# The start from K-means


@pytest.fixture
def local_features() -> torch.Tensor:
    return torch.randn(500, 6, generator=seeded(), dtype=torch.float64)


@torch.no_grad()
def test_after_initialisation_the_largest_weight_is_the_nearest_centres(local_features):
    netvlad = NetVLAD(6, 16).double()
    netvlad.initialise(local_features, seeded())
    x = local_features / local_features.norm(dim=1, keepdim=True)
    a = netvlad.assign(x[:, :, None, None]).squeeze().softmax(dim=1)
    assert torch.equal(a.argmax(dim=1), torch.cdist(x, netvlad.centres).argmin(dim=1))


@torch.no_grad()
def test_after_initialisation_weights_fall_off_with_squared_distance_a_hundredfold_to_the_second(local_features):
    netvlad = NetVLAD(6, 16).double()
    netvlad.initialise(local_features, seeded())
    x = local_features / local_features.norm(dim=1, keepdim=True)
    logits = netvlad.assign(x[:, :, None, None]).squeeze()
    squared = torch.cdist(x, netvlad.centres).square()
    best, second = logits.topk(2, dim=1).values.unbind(dim=1)
    assert float((best - second).mean()) == pytest.approx(math.log(100))
    # Equation (2) of the paper: proportional to exp(-alpha |x - c|^2), alpha being the same for all.
    alpha = math.log(100) / float(squared.topk(2, largest=False).values.diff(dim=1).mean())
    torch.testing.assert_close(logits.softmax(dim=1), (-alpha * squared).softmax(dim=1))


def test_initialisation_is_the_same_for_the_same_generator(local_features):
    layers = [NetVLAD(6, 16).double() for _ in range(2)]
    for layer in layers:
        layer.initialise(local_features, seeded(5))
    torch.testing.assert_close(layers[0].state_dict(), layers[1].state_dict(), rtol=0, atol=0)


def test_features_that_are_all_alike_leave_finite_weights():
    netvlad = NetVLAD(6, 4)
    netvlad.initialise(torch.ones(50, 6), seeded())
    assert netvlad(torch.rand(1, 6, 3, 3)).isfinite().all()


def test_one_cluster_is_refused():
    with pytest.raises(ConfigError, match="two clusters, got 512 and 1"):
        NetVLAD(512, 1)


def test_sampled_features_are_different_places_of_the_maps():
    feature_map = torch.arange(2 * 3 * 4 * 5).float().reshape(2, 3, 4, 5)
    some = sample_local_features(feature_map, 7, seeded())
    assert some.shape == (14, 3)
    assert len(some.unique(dim=0)) == 14
    everything = feature_map.permute(0, 2, 3, 1).reshape(-1, 3)
    assert {tuple(x) for x in some.tolist()} <= {tuple(x) for x in everything.tolist()}
    assert len(sample_local_features(feature_map, 100, seeded()).unique(dim=0)) == 40
