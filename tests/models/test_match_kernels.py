"""What matches without laying out all chances and windows says the same as what does."""

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from relograph.models.match_gnn import ImageFeatures, MatchGNN, fine_offset, laid_out_products
from relograph.models.match_kernels import MatchKernels, asked_chances, fused_window_products
from relograph.training.presets import MATCHGNN_TINY


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.4, 60.0])  # at the second, scores are hundreds apart
def test_asked_chances_and_their_gradients_are_those_of_all_chances(scale: float) -> None:
    q, r = random(3, 12, 8).requires_grad_(), random(3, 20, 8, seed=1).requires_grad_()
    factor = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    cell = torch.randint(0, 20, (3, 12), generator=torch.Generator().manual_seed(2))
    cell[:, 1] = cell[:, 0]  # two cells of the query that are seen in the same place
    weight = random(3, 12, seed=3)
    weight[:, 5] = 0
    score = factor * (q @ r.mT)
    log_chance = score.log_softmax(dim=2) + score.log_softmax(dim=1)
    wanted = log_chance.gather(2, cell[..., None]).squeeze(2)
    found = asked_chances(q, r, factor, cell, MatchKernels())
    assert_allclose(found.log_asked.detach(), wanted.detach(), rtol=1e-9)
    assert_allclose(found.log_best, log_chance.detach().amax(dim=2), rtol=1e-9, atol=1e-9)
    assert (found.best == log_chance.argmax(dim=2)).all()
    assert (found.best_of_column == log_chance.argmax(dim=1)).all()
    assert not found.log_best.requires_grad
    pairs = [torch.autograd.grad((weight * log).sum(), (q, r, factor)) for log in (found.log_asked, wanted)]
    for fused, plain in zip(*pairs, strict=True):
        assert_allclose(fused, plain, rtol=1e-8, atol=1e-8)


def test_asked_chances_of_rounded_descriptors_are_not_rounded() -> None:
    q, r = (random(2, 30, 16, seed=seed).to(torch.bfloat16).requires_grad_() for seed in (0, 1))
    scale = torch.tensor(0.5, requires_grad=True)
    cell = torch.arange(30).expand(2, -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = asked_chances(q, r, scale, cell, MatchKernels()).log_asked
    score = scale * (q.float() @ r.float().mT)
    wanted = (score.log_softmax(dim=2) + score.log_softmax(dim=1)).diagonal(dim1=1, dim2=2)
    assert_allclose(found.detach(), wanted.detach(), rtol=1e-5)
    pairs = [torch.autograd.grad(log.sum(), (q, r, scale)) for log in (found, wanted)]
    for fused, plain in zip(*pairs, strict=True):
        assert fused.dtype == plain.dtype
        assert (fused - plain).float().norm() < 0.01 * plain.float().norm()


def test_products_with_windows_that_are_not_laid_out_are_the_same() -> None:
    fine, table = random(2, 5, 4).requires_grad_(), random(40, 4, seed=1).requires_grad_()
    row = 10 * torch.randint(0, 4, (2, 5, 3), generator=torch.Generator().manual_seed(2))  # windows meet
    column = torch.randint(0, 10, (2, 5, 3), generator=torch.Generator().manual_seed(3))
    weight = random(2, 5, 9, seed=4)
    both = [
        products(fine, table, row, column) for products in (fused_window_products(MatchKernels()), laid_out_products)
    ]
    assert_allclose(both[0].detach(), both[1].detach(), rtol=1e-12)
    pairs = [torch.autograd.grad((weight * products).sum(), (fine, table)) for products in both]
    for fused, plain in zip(*pairs, strict=True):
        assert_allclose(fused, plain, rtol=1e-12)


def test_a_fine_place_is_the_same_where_no_window_is_laid_out() -> None:
    fine = random(2, 6, 8)
    ref_fine = random(2, 8, 24, 32, seed=1).to(memory_format=torch.channels_last)
    cell = torch.tensor([[0, 47, 7, 40, 20, 20]]).expand(2, -1)  # corners, whose windows are cut, and the middle twice
    plain, fused = (
        fine_offset(fine, ref_fine, cell),
        fine_offset(fine, ref_fine, cell, fused_window_products(MatchKernels())),
    )
    for one, other in zip(fused, plain, strict=True):
        assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_matches_are_the_same_where_nothing_is_laid_out() -> None:
    torch.manual_seed(0)
    matcher = MatchGNN(MATCHGNN_TINY.model).double().matcher
    query, references = (
        ImageFeatures(random(count, 16, 3, 4), random(count, 16, 6, 8, seed=1), random(count, 8, 24, 32, seed=2))
        for count in (2, 6)
    )
    asked = torch.randint(0, 48, (2, 3, 48), generator=torch.Generator().manual_seed(3))
    plain = matcher(query, references, 3, asked=asked, keep_log_coarse=False)
    matcher.kernels = MatchKernels()
    fused = matcher(query, references, 3, asked=asked, keep_log_coarse=False)
    assert 0 < plain.mutual.sum() < plain.mutual.numel()
    for name in ("xy", "confidence", "best", "mutual", "sigma_px", "seen", "log_asked"):
        assert_allclose(getattr(fused, name), getattr(plain, name), atol=1e-9, err_msg=name)
