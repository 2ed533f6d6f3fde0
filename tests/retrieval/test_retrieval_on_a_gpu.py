"""The same retrieval on a GPU, where there is one, up to rounding."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from relograph.geometry import Pose
from relograph.retrieval import (
    ExactIndex,
    NetVLAD,
    PCAWhitening,
    covisibility_loss,
    expected_error_loss,
    frustum_overlap,
    rank_at_random,
    rank_references,
    sample_local_features,
    select_strided,
    sequence_windows,
)

SCENE_IDX = torch.tensor([0] * 30 + [1] * 20)
SEQUENCE_IDX = torch.arange(50) // 10
DATABASE = torch.arange(50) % 4 != 0


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded())


def netvlad(device: str) -> Tensor:
    torch.manual_seed(0)
    layer, maps = NetVLAD(6, 4).to(device), random_numbers(5, 6, 4, 5).to(device)
    layer.initialise(sample_local_features(maps, 12, seeded()), seeded())
    return layer(maps)


def whitening(device: str) -> Tensor:
    d = random_numbers(40, 8).to(device)
    whitened = PCAWhitening.fit(d, 5)(d)
    return whitened @ whitened.T


def search(device: str) -> Tensor:
    groups = SCENE_IDX.to(device)
    index = ExactIndex(random_numbers(50, 7).to(device), groups, SEQUENCE_IDX.to(device))
    return index.search(
        random_numbers(50, 7).to(device),
        40,
        groups=groups,
        exclude_sequences=SEQUENCE_IDX.to(device),
        exclude_rows=torch.arange(50, device=device),
    ).row


def ranking(device: str) -> Tensor:
    ranked = rank_references(
        torch.arange(50, device=device),
        DATABASE.to(device),
        random_numbers(50, 7).to(device),
        SCENE_IDX.to(device),
        SEQUENCE_IDX.to(device),
        length=25,
        exclude_same_sequence=True,
        same_sequence_if_alone=True,
    )
    return select_strided(ranked, 7, 5, torch.arange(50, device=device) % 5)


def random_ranking(device: str) -> Tensor:
    rows = torch.arange(50, device=device)
    return rank_at_random(rows, DATABASE.to(device), SCENE_IDX.to(device), length=25, generator=seeded())


def windows(device: str) -> Tensor:
    return sequence_windows(SEQUENCE_IDX.to(device), torch.arange(50, device=device))


def losses(device: str) -> Tensor:
    d, values = random_numbers(3, 5, 8).to(device), random_numbers(3, 5).abs().to(device)
    mask, negatives = torch.ones(3, 5, device=device).bool(), ~torch.eye(3, device=device).bool()
    return torch.stack(
        [covisibility_loss(d, values, mask, negatives=negatives), expected_error_loss(d, values, mask, temperature=0.2)]
    )


def overlap(device: str) -> Tensor:
    T = Pose.from_axis_angle(0.3 * random_numbers(10, 3), 0.3 * random_numbers(10, 3)).to(device)
    return frustum_overlap(T[:, None], T[None])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("retrieve", [netvlad, whitening, search, ranking, random_ranking, windows, losses, overlap])
def test_a_gpu_retrieves_what_a_cpu_retrieves(retrieve: Callable[[str], Tensor]):
    on_gpu = retrieve("cuda")
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), retrieve("cpu"), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_training_step_never_waits_for_the_gpu():
    ranked = torch.arange(35, device="cuda").expand(4, 35)
    rows = torch.arange(4, device="cuda")
    scene_idx = torch.zeros(50, device="cuda").long()
    generator = torch.Generator("cuda").manual_seed(0)
    layer, maps = NetVLAD(6, 4).cuda(), torch.rand(32, 6, 4, 5, device="cuda")
    mask, values = torch.ones(4, 8, device="cuda").bool(), torch.rand(4, 8, device="cuda")
    negatives = torch.eye(4, device="cuda") == 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        select_strided(ranked, 7, 5, rows)
        select_strided(ranked, 7, 5, 0)
        rank_at_random(rows, scene_idx == 0, scene_idx, length=7, generator=generator)
        sequence_windows(scene_idx, rows)
        d = layer(maps).unflatten(0, (4, 8))
        loss = covisibility_loss(d, values, mask, negatives=negatives) + expected_error_loss(d, values, mask)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert layer.centres.grad is not None
    assert layer.centres.grad.isfinite().all()
