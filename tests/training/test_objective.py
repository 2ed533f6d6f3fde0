"""What is differentiated in a step: which edges count, how they are divided, and what reaches NetVLAD."""

from dataclasses import dataclass, replace

import pytest
import torch
from tiny_trainings import HEIGHT, TINY, WIDTH
from torch import Tensor

from relograph.models import all_edges, build_model
from relograph.retrieval import NetVLAD
from relograph.training.config import RetrievalConfig
from relograph.training.losses import pose_distance
from relograph.training.objective import PoseObjective


@dataclass(frozen=True)
class Batch:
    """What an objective is called with, in the order of its arguments."""

    images: Tensor
    node_mask: Tensor
    edge_mask: Tensor
    edge_targets: Tensor
    node_targets: Tensor
    overlap: Tensor
    scene_idx: Tensor
    num_edges: Tensor
    num_nodes: Tensor


def random_batch(num_graphs: int = 4, num_nodes: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(0)
    graphs = (num_graphs, num_nodes)
    everybody = torch.ones(graphs, dtype=torch.bool)
    return Batch(
        images=torch.randint(0, 256, (*graphs, HEIGHT, WIDTH, 3), generator=generator, dtype=torch.uint8),
        node_mask=everybody,
        edge_mask=all_edges(everybody),
        edge_targets=torch.randn(*graphs, num_nodes, 6, generator=generator),
        node_targets=torch.randn(*graphs, 6, generator=generator),
        overlap=torch.rand(graphs, generator=generator),
        scene_idx=torch.arange(num_graphs),
        num_edges=torch.tensor(float(num_graphs * num_nodes * (num_nodes - 1))),
        num_nodes=torch.tensor(float(num_graphs * num_nodes)),
    )


def make_objective(kind: str = "relpose_gnn", retrieval: RetrievalConfig | None = None) -> PoseObjective:
    """An objective with random weights whose batch norm does not look at the batch."""
    torch.manual_seed(0)
    model = build_model(replace(TINY.model, kind=kind))
    netvlad = None if retrieval is None else NetVLAD(model.encoder.map_channels, num_clusters=2)
    return PoseObjective(model, netvlad, retrieval).eval()


def loss_of(objective: PoseObjective, batch: Batch) -> Tensor:
    return objective(*vars(batch).values())


def only_the_first_pair(batch: Batch) -> Batch:
    """Edge dropout that leaves the two edges between the query and its first reference."""
    kept = torch.zeros_like(batch.edge_mask)
    kept[:, 0, 1] = kept[:, 1, 0] = True
    return replace(batch, edge_mask=kept)


def test_the_loss_is_the_mean_over_the_edges() -> None:
    objective, batch = make_objective(), random_batch()
    said = objective.model(batch.images, batch.node_mask).edges
    distance = pose_distance(said, batch.edge_targets)
    expected = torch.stack([distance[b, i, j] for b in range(4) for i in range(3) for j in range(3) if i != j]).mean()
    torch.testing.assert_close(loss_of(objective, batch), expected)


def test_a_dropped_edge_is_not_in_the_loss() -> None:
    objective, batch = make_objective(), only_the_first_pair(random_batch())
    before = loss_of(objective, batch)
    targets = batch.edge_targets.clone()
    targets[:, 2] += 10.0
    targets[:, :, 2] += 10.0
    assert torch.equal(loss_of(objective, replace(batch, edge_targets=targets)), before)
    targets[:, 0, 1] += 10.0
    assert not torch.equal(loss_of(objective, replace(batch, edge_targets=targets)), before)


def test_no_message_goes_over_a_dropped_edge() -> None:
    objective, batch = make_objective(), random_batch()
    other_image = batch.images.clone()
    other_image[:, 2] = 255 - other_image[:, 2]
    changed = replace(batch, images=other_image)
    # With all edges kept the third image is heard, also in the poses of the other two.
    first_pair = all_edges(batch.node_mask)
    first_pair[:, 2] = first_pair[:, :, 2] = False
    said, said_of_changed = (objective.model(b.images, b.node_mask).edges[first_pair] for b in (batch, changed))
    assert (said - said_of_changed).abs().max() > 1e-4
    dropped, dropped_of_changed = (loss_of(objective, only_the_first_pair(b)) for b in (batch, changed))
    torch.testing.assert_close(dropped, dropped_of_changed, rtol=1e-6, atol=1e-6)


def test_parts_of_a_batch_divided_by_its_edges_add_up_to_the_whole() -> None:
    objective, batch = make_objective("sequence_gnn"), random_batch()
    mask = batch.edge_mask.clone()
    mask[0, 2] = mask[0, :, 2] = False  # the first half has fewer edges
    batch = replace(batch, edge_mask=mask, num_edges=mask.sum().float())
    halves = [
        loss_of(
            objective,
            replace(
                batch,
                **{name: value[half] for name, value in vars(batch).items() if name not in ("num_edges", "num_nodes")},
            ),
        )
        for half in (slice(0, 2), slice(2, 4))
    ]
    torch.testing.assert_close(halves[0] + halves[1], loss_of(objective, batch))


@pytest.mark.parametrize(
    ("kind", "edges_count", "nodes_count"),
    [
        ("relpose_gnn", True, False),
        ("pair_mlp", True, False),
        ("posenet", False, True),
        ("atloc", False, True),
        ("sequence_gnn", True, True),
    ],
)
def test_a_network_is_judged_by_what_it_says(kind: str, edges_count: bool, nodes_count: bool) -> None:
    objective, batch = make_objective(kind), random_batch()
    before = loss_of(objective, batch)
    other_edges = replace(batch, edge_targets=batch.edge_targets + 1.0)
    other_nodes = replace(batch, node_targets=batch.node_targets + 1.0)
    assert (not torch.equal(loss_of(objective, other_edges), before)) == edges_count
    assert (not torch.equal(loss_of(objective, other_nodes), before)) == nodes_count


# NetVLAD along with the network


@pytest.mark.parametrize("loss", ["covisibility", "pose"])
def test_netvlad_learns_along(loss: str) -> None:
    objective = make_objective(retrieval=RetrievalConfig(loss=loss))
    loss_of(objective, random_batch()).backward()
    assert objective.netvlad.centres.grad.abs().max() > 1e-6
    assert objective.model.encoder.conv1.weight.grad.abs().max() > 1e-6


@pytest.mark.parametrize("loss", ["covisibility", "pose"])
def test_the_loss_of_retrieval_has_a_weight(loss: str) -> None:
    batch = random_batch()
    none, once, twice = (
        loss_of(make_objective(retrieval=RetrievalConfig(loss=loss, loss_weight=weight)), batch)
        for weight in (0.0, 1.0, 2.0)
    )
    assert (once - none).abs() > 1e-3
    torch.testing.assert_close(twice - none, 2 * (once - none), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(none, loss_of(make_objective(), batch))


def test_retrieval_by_poses_learns_which_pose_is_right_and_does_not_bend_the_poses() -> None:
    head_gradients = []
    for retrieval in (None, RetrievalConfig(loss="pose", loss_weight=10.0)):
        objective = make_objective(retrieval=retrieval)
        loss_of(objective, random_batch()).backward()
        head_gradients.append(objective.model.pose_head.weight.grad)
    torch.testing.assert_close(head_gradients[1], head_gradients[0])


def test_only_images_of_other_scenes_are_certain_not_to_be_seen() -> None:
    objective = make_objective(retrieval=RetrievalConfig(loss="covisibility"))
    batch = random_batch()
    elsewhere, same_place = (
        loss_of(objective, batch),
        loss_of(objective, replace(batch, scene_idx=torch.zeros(4).long())),
    )
    # Images of other scenes join the softmax as wrong answers, which makes it harder to be right.
    assert elsewhere > same_place + 0.1
