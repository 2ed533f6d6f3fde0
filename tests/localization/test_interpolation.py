"""Interpolation of the retrieved poses: the weights of a constrained least squares, and poses made with them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

from relograph.geometry import Pose
from relograph.localization import interpolated_pose

NUM_QUERIES, NUM_REFERENCES, DIM = 4, 5, 12
EVERYBODY = torch.ones(NUM_QUERIES, NUM_REFERENCES, dtype=torch.bool)


def unit_vectors(*shape: int, seed: int) -> torch.Tensor:
    vectors = torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=-1)


def references_near(query: torch.Tensor) -> torch.Tensor:
    """Descriptors [Q, R, D] not far from those of the queries."""
    return torch.nn.functional.normalize(
        query[:, None] + unit_vectors(*query.shape[:1], NUM_REFERENCES, seed=1), dim=-1
    )


QUERY = unit_vectors(NUM_QUERIES, seed=0)
REFERENCES = references_near(QUERY)
GENERATOR = np.random.default_rng(2)
CENTERS = torch.from_numpy(GENERATOR.normal(size=(NUM_QUERIES, NUM_REFERENCES, 3)))
TURNS = Rotation.from_rotvec(0.3 * GENERATOR.normal(size=(NUM_QUERIES * NUM_REFERENCES, 3)))
T_WORLD_REF = Pose(torch.from_numpy(TURNS.as_matrix()).reshape(NUM_QUERIES, NUM_REFERENCES, 3, 3), CENTERS)


def weights_by_search(query: np.ndarray, references: np.ndarray, ridge: float) -> np.ndarray:
    """The weights that add up to one and come nearest to the query, found by a general solver."""
    scale = np.mean(np.sum((query - references) ** 2, axis=1))

    def cost(weights: np.ndarray) -> float:
        return float(np.sum((query - weights @ references) ** 2) + ridge * scale * np.sum(weights**2))

    start = np.full(len(references), 1 / len(references))
    one = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    return minimize(cost, start, constraints=[one], method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000}).x


@pytest.mark.parametrize("ridge", [0.01, 0.1, 1.0])
def test_the_centre_is_the_weighted_mean_of_a_constrained_least_squares(ridge: float) -> None:
    found = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, EVERYBODY, ridge=ridge)
    for q in range(NUM_QUERIES):
        weights = weights_by_search(QUERY[q].numpy(), REFERENCES[q].numpy(), ridge)
        assert_allclose(found.t[q], weights @ CENTERS[q].numpy(), atol=1e-5)


def test_rotations_are_averaged_with_the_weights_that_pull() -> None:
    found = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, EVERYBODY)
    some_are_negative = False
    for q in range(NUM_QUERIES):
        weights = weights_by_search(QUERY[q].numpy(), REFERENCES[q].numpy(), 0.1)
        some_are_negative |= bool((weights < 0).any())
        turns = TURNS[q * NUM_REFERENCES : (q + 1) * NUM_REFERENCES]
        assert_allclose(found.R[q], turns.mean(weights.clip(min=0)).as_matrix(), atol=1e-5)
    assert some_are_negative


def test_a_query_that_is_one_of_its_references_is_where_that_one_is() -> None:
    references = REFERENCES.clone()
    references[:, 2] = QUERY
    found = interpolated_pose(QUERY, references, T_WORLD_REF, EVERYBODY, ridge=1e-9)
    assert_allclose(found.t, CENTERS[:, 2], atol=1e-4)
    assert_allclose(found.R, T_WORLD_REF.R[:, 2], atol=1e-4)


def test_references_that_look_all_alike_count_alike() -> None:
    references = QUERY[:, None].expand(-1, NUM_REFERENCES, -1)
    for query in (QUERY, -QUERY):  # the very same descriptor, and one that is as far from all of them
        found = interpolated_pose(query, references, T_WORLD_REF, EVERYBODY)
        assert_allclose(found.t, CENTERS.mean(dim=1), atol=1e-6)


def test_two_references_that_look_alike_share_their_weight() -> None:
    references = REFERENCES.clone()
    references[:, 1] = references[:, 0]
    swapped = Pose(T_WORLD_REF.R[:, [1, 0, 2, 3, 4]], T_WORLD_REF.t[:, [1, 0, 2, 3, 4]])
    here, there = (interpolated_pose(QUERY, references, poses, EVERYBODY) for poses in (T_WORLD_REF, swapped))
    assert_allclose(here.t, there.t, atol=1e-9)
    assert here.t.abs().max() < 10  # no huge weights of opposite sign


def test_a_missing_reference_counts_for_nothing() -> None:
    mask, references = EVERYBODY.clone(), REFERENCES.clone()
    mask[:, 3:] = False
    references[:, 3:] = unit_vectors(NUM_QUERIES, 2, seed=9)
    found = interpolated_pose(QUERY, references, T_WORLD_REF, mask)
    alone = interpolated_pose(QUERY, REFERENCES[:, :3], T_WORLD_REF[:, :3], EVERYBODY[:, :3])
    assert_allclose(found.t, alone.t, atol=1e-9)
    assert_allclose(found.R, alone.R, atol=1e-9)


def test_a_query_with_one_reference_is_where_that_one_is() -> None:
    mask = EVERYBODY.clone()
    mask[:, 1:] = False
    found = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, mask)
    assert_allclose(found.t, CENTERS[:, 0], atol=1e-12)


def test_a_query_without_references_does_not_keep_the_others_from_an_answer() -> None:
    mask = EVERYBODY.clone()
    mask[1] = False
    found = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, mask)
    everybody = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, EVERYBODY)
    others = torch.tensor([0, 2, 3])
    assert_allclose(found.t[others], everybody.t[others], atol=1e-12)
    assert found.t.isfinite().all()


def test_float32_descriptors_as_networks_give_them_are_good_enough() -> None:
    precise = interpolated_pose(QUERY, REFERENCES, T_WORLD_REF, EVERYBODY)
    rough = interpolated_pose(QUERY.float(), REFERENCES.float(), T_WORLD_REF.to(torch.float32), EVERYBODY)
    assert_allclose(rough.t, precise.t, atol=1e-4)
    alike = REFERENCES[:, :1].expand(-1, NUM_REFERENCES, -1)
    found = interpolated_pose(alike[:, 0].float(), alike.float(), T_WORLD_REF.to(torch.float32), EVERYBODY)
    assert_allclose(found.t, CENTERS.mean(dim=1), atol=1e-4)
