"""The turn that explains where directions went is the true one, also among wrong directions."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.geometry import axis_angle_to_matrix, rotation_error_deg
from relograph.models.turning import directions, rotation_between, turn_by


def seen_before_and_after(rotvec: np.ndarray, *, count: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Directions in front of a camera, and where they are once it is turned."""
    rng = np.random.default_rng(seed)
    a = directions(torch.from_numpy(rng.uniform(-0.6, 0.6, (count, 2))))
    return a, torch.from_numpy(Rotation.from_rotvec(rotvec).apply(a.numpy()))


@pytest.mark.parametrize(
    "rotvec",
    [[0, 0, 0], [0.1, -0.2, 0.05], [0, 0.9, 0], [0, 0, 3.1], [0.3, 0.2, -1.6], [1e-7, 0, 0]],
    ids=str,
)
def test_a_turn_is_found_exactly(rotvec: list[float]):
    a, b = seen_before_and_after(np.array(rotvec))
    R = rotation_between(a, b, torch.ones(len(a), dtype=torch.float64))
    assert_allclose(R, Rotation.from_rotvec(rotvec).as_matrix(), atol=1e-6)


def test_it_agrees_with_kabsch_where_errors_are_small():
    a, b = seen_before_and_after(np.array([0.2, -0.1, 0.4]))
    rng = np.random.default_rng(1)
    weight = torch.from_numpy(rng.uniform(0.2, 1.0, len(a)))
    b = torch.nn.functional.normalize(b + 1e-3 * torch.from_numpy(rng.normal(size=b.shape)), dim=-1)
    expected, _ = Rotation.align_vectors(b.numpy(), a.numpy(), weights=weight.numpy())
    assert rotation_error_deg(rotation_between(a, b, weight), torch.from_numpy(expected.as_matrix())) < 0.003


def test_wrong_directions_have_little_say():
    a, b = seen_before_and_after(np.array([0.1, 0.3, 0.0]))
    rng = np.random.default_rng(2)
    b[:60] = directions(torch.from_numpy(rng.uniform(-0.6, 0.6, (60, 2))))
    R = rotation_between(a, b, torch.ones(len(a), dtype=torch.float64))
    truth = torch.from_numpy(Rotation.from_rotvec([0.1, 0.3, 0.0]).as_matrix())
    assert rotation_error_deg(R, truth) < 0.5
    without_weight = torch.ones(len(a), dtype=torch.float64)
    without_weight[:60] = 0
    assert rotation_error_deg(rotation_between(a, b, without_weight), truth) < 0.01


def test_every_pair_of_a_batch_has_its_own_turn():
    turns = [np.array([0.1, 0, 0]), np.array([0, -0.5, 1.0])]
    a, b = (torch.stack(part) for part in zip(*(seen_before_and_after(turn) for turn in turns), strict=True))
    R = rotation_between(a, b, torch.ones(a.shape[:2], dtype=torch.float64))
    assert_allclose(R, Rotation.from_rotvec(turns).as_matrix(), atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["noise", "all the same", "float32"])
def test_what_tells_nothing_still_gives_a_rotation(kind: str, weight: float):
    generator = torch.Generator().manual_seed(0)
    a, b = (directions(2 * torch.rand(100, 2, generator=generator, dtype=torch.float64) - 1) for _ in range(2))
    if kind == "all the same":
        a, b = a[:1].expand_as(a), b[:1].expand_as(b)
    if kind == "float32":
        a, b = a.float(), b.float()
    R = rotation_between(a, b, torch.full((100,), weight, dtype=a.dtype))
    assert_allclose(R @ R.mT, torch.eye(3), atol=1e-5)
    assert_allclose(torch.linalg.det(R), 1.0, atol=1e-5)


@pytest.mark.parametrize("angle_rad", [0.0, 1e-9, 1e-3, 0.7, 3.1, 9.0])
def test_aturn_by_a_vector_is_the_rotation_about_it(angle_rad: float) -> None:
    axis = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vector = angle_rad * axis / axis.norm(dim=-1, keepdim=True)
    assert_allclose(turn_by(vector), axis_angle_to_matrix(vector), atol=1e-12)
