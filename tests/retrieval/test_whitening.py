"""PCA whitening against numpy's singular values."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from relograph.errors import ConfigError
from relograph.retrieval import PCAWhitening


def descriptors(num: int, dim: int) -> torch.Tensor:
    """Correlated descriptors off the origin, float64."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(num, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim))


@pytest.mark.parametrize(("num", "dim"), [(200, 12), (20, 50)], ids=["many images", "fewer images than numbers"])
def test_whitened_descriptors_are_uncorrelated_with_unit_variance(num, dim):
    d = descriptors(num, dim)
    whitening = PCAWhitening.fit(d, 8)
    whitened = (d - whitening.mean) @ whitening.projection
    assert_allclose(np.cov(whitened.numpy().T), np.eye(8), atol=1e-9)


@pytest.mark.parametrize(("num", "dim"), [(200, 12), (20, 50)], ids=["many images", "fewer images than numbers"])
def test_similarities_are_those_of_numpys_decomposition(num, dim):
    d = descriptors(num, dim)
    centred = d.numpy() - d.numpy().mean(axis=0)
    _, singular_values, Vt = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ Vt[:8].T / singular_values[:8]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    whitened = PCAWhitening.fit(d, 8)(d)
    assert_allclose(whitened @ whitened.T, expected @ expected.T, atol=1e-9)


def test_a_whitening_comes_back_from_its_tensors():
    d = descriptors(30, 12).float()
    whitening = PCAWhitening.fit(d, 5)
    assert whitening.projection.dtype == torch.float32
    assert torch.equal(PCAWhitening(**whitening.tensors())(d), whitening(d))


def test_images_that_are_all_alike_give_finite_descriptors():
    alike = torch.rand(12, generator=torch.Generator().manual_seed(0)).expand(9, 12)
    assert PCAWhitening.fit(alike, 4)(alike).isfinite().all()


@pytest.mark.parametrize("dim", [0, 20, 51])
def test_more_directions_than_the_images_span_are_refused(dim):
    with pytest.raises(ConfigError, match=f"keeps between 1 and 19, got {dim}"):
        PCAWhitening.fit(descriptors(20, 50), dim)
