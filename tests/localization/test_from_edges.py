"""From edges to a pose: which edge is read, and what an average makes of all of them."""

import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from relograph.geometry import Pose, pose_error
from relograph.graphs import Target
from relograph.localization import query_pose

NUM_QUERIES, NUM_REFERENCES = 5, 7
READINGS = ("nearest", "random", "average-markley", "average-gramkow")
EVERYBODY = torch.ones(NUM_QUERIES, NUM_REFERENCES, dtype=torch.bool)


def random_poses(*batch_shape: int, seed: int, turn: float = 1.0) -> Pose:
    """Cameras turned by less than half a turn from the world frame, within a few metres of its origin."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.nn.functional.normalize(torch.randn(*batch_shape, 3, generator=generator).double(), dim=-1)
    angle = turn * torch.rand(*batch_shape, 1, generator=generator).double()
    return Pose.from_axis_angle(axis * angle, 2 * torch.randn(*batch_shape, 3, generator=generator).double())


T_WORLD_QUERY = random_poses(NUM_QUERIES, seed=0)
T_WORLD_REF = random_poses(NUM_QUERIES, NUM_REFERENCES, seed=1)


def perfect_edges(target: Target) -> Tensor:
    """What the edges [reference, query] should say, by scipy."""
    edges = torch.zeros(NUM_QUERIES, NUM_REFERENCES, 6, dtype=torch.float64)
    for q in range(NUM_QUERIES):
        R_query, t_query = Rotation.from_matrix(T_WORLD_QUERY.R[q].numpy()), T_WORLD_QUERY.t[q].numpy()
        for r in range(NUM_REFERENCES):
            R_ref, t_ref = Rotation.from_matrix(T_WORLD_REF.R[q, r].numpy()), T_WORLD_REF.t[q, r].numpy()
            if target == "world":
                translation, log_quat = t_query - t_ref, (R_query.as_rotvec() - R_ref.as_rotvec()) / 2
            else:
                translation = R_ref.inv().apply(t_query - t_ref)
                log_quat = (R_ref.inv() * R_query).as_rotvec() / 2
            edges[q, r] = torch.cat([torch.from_numpy(translation), torch.from_numpy(log_quat)])
    return edges


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_poses_close(T_a: Pose, T_b: Pose, tolerance: float = 1e-6) -> None:
    rotation_deg, translation_m = pose_error(T_a, T_b)
    assert rotation_deg.max() < tolerance * 100
    assert translation_m.max() < tolerance


@pytest.mark.parametrize("target", ["world", "camera"])
@pytest.mark.parametrize("reading", READINGS)
def test_perfect_edges_give_the_exact_pose_however_they_are_read(reading: str, target: Target) -> None:
    found = query_pose(perfect_edges(target), T_WORLD_REF, EVERYBODY, target, reading=reading, generator=seeded())
    assert_poses_close(found, T_WORLD_QUERY)


def test_the_nearest_edge_is_the_first() -> None:
    edges = perfect_edges("camera")
    edges[:, 1:] = 100.0
    assert_poses_close(query_pose(edges, T_WORLD_REF, EVERYBODY, "camera"), T_WORLD_QUERY)
    edges = perfect_edges("camera")
    edges[:, 0, 0] += 1.0
    off_m = pose_error(query_pose(edges, T_WORLD_REF, EVERYBODY, "camera"), T_WORLD_QUERY)[1]
    torch.testing.assert_close(off_m, torch.ones(NUM_QUERIES, dtype=torch.float64))


# One edge at random


def with_numbered_edges() -> tuple[Tensor, Pose]:
    """Edges that put the query at x = their number, whatever the query."""
    edges = torch.zeros(NUM_QUERIES, NUM_REFERENCES, 6, dtype=torch.float64)
    edges[:, :, 0] = torch.arange(NUM_REFERENCES)
    return edges, Pose.identity(NUM_QUERIES, NUM_REFERENCES)


def drawn(ref_mask: Tensor, seed: int) -> list[int]:
    edges, T_world_ref = with_numbered_edges()
    found = query_pose(edges, T_world_ref, ref_mask, "camera", reading="random", generator=seeded(seed))
    return found.t[:, 0].round().int().tolist()


def test_a_random_edge_is_that_of_the_seed() -> None:
    assert drawn(EVERYBODY, 0) == drawn(EVERYBODY, 0)
    assert drawn(EVERYBODY, 0) != drawn(EVERYBODY, 1)


def test_a_random_edge_is_drawn_evenly_among_the_references_there_are() -> None:
    mask = EVERYBODY.clone()
    mask[0, 4:] = False
    mask[1, 1:] = False
    counts = torch.zeros(NUM_QUERIES, NUM_REFERENCES)
    for seed in range(400):
        for query, reference in enumerate(drawn(mask, seed)):
            counts[query, reference] += 1
    assert (counts[~mask] == 0).all()
    assert counts[1, 0] == 400
    # 57 of 400 for each of seven, 100 for each of four: five standard deviations are 35 and 43.
    assert (counts[2:] - 400 / 7).abs().max() < 35
    assert (counts[0, :4] - 100).abs().max() < 43


# Averages


@pytest.mark.parametrize("target", ["world", "camera"])
@pytest.mark.parametrize("reading", ["average-markley", "average-gramkow"])
def test_one_wild_edge_does_not_move_an_average(reading: str, target: Target) -> None:
    edges = perfect_edges(target)
    edges[:, 3, :3] += 50.0  # metres
    found = query_pose(edges, T_WORLD_REF, EVERYBODY, target, reading=reading)
    # The other six agree, so the geometric median is where they are; a mean would be off by 12 m.
    assert pose_error(found, T_WORLD_QUERY)[1].max() < 1e-6


@pytest.mark.parametrize(("reading", "others"), [("average-markley", "chordal"), ("average-gramkow", "sum")])
def test_rotations_are_averaged_as_their_inventors_say(reading: str, others: str) -> None:
    edges, T_world_ref = torch.zeros(1, 3, 6, dtype=torch.float64), Pose.identity(1, 3)
    turns = Rotation.from_rotvec([[0.1, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.2, 0.7]])
    edges[0, :, 3:] = torch.from_numpy(turns.as_rotvec()) / 2
    found = query_pose(edges, T_world_ref, torch.ones(1, 3, dtype=torch.bool), "camera", reading=reading)
    if others == "chordal":
        expected = turns.mean()
    else:
        quats = turns.as_quat()  # all on one side
        expected = Rotation.from_quat(quats.sum(axis=0))
    torch.testing.assert_close(found.R[0], torch.from_numpy(expected.as_matrix()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("reading", READINGS)
def test_a_reference_that_is_missing_says_nothing(reading: str) -> None:
    edges, mask = perfect_edges("camera"), EVERYBODY.clone()
    mask[:, 2:] = False
    edges[:, 2:] = 9.0
    found = query_pose(edges, T_WORLD_REF, mask, "camera", reading=reading, generator=seeded())
    assert_poses_close(found, T_WORLD_QUERY)


@pytest.mark.parametrize("reading", READINGS)
def test_a_query_without_references_does_not_keep_the_others_from_an_answer(reading: str) -> None:
    # The caller knows that it has none, and does not look at what stands there.
    mask = EVERYBODY.clone()
    mask[2] = False
    found = query_pose(perfect_edges("camera"), T_WORLD_REF, mask, "camera", reading=reading, generator=seeded())
    others = torch.tensor([0, 1, 3, 4])
    assert_poses_close(found[others], T_WORLD_QUERY[others])
    assert found.t.isfinite().all()


@pytest.mark.parametrize("reading", READINGS)
def test_moving_the_world_moves_the_answer_with_it(reading: str) -> None:
    edges, T_new_world = perfect_edges("camera") + 0.1, random_poses(seed=5)
    here, there = (
        query_pose(edges, T_world_ref, EVERYBODY, "camera", reading=reading, generator=seeded())
        for T_world_ref in (T_WORLD_REF, T_new_world @ T_WORLD_REF)
    )
    assert_poses_close(there, T_new_world @ here, tolerance=1e-5)
