"""The paper's network: who hears of whom, in which direction, and whether the numbers are those of its equations."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from paper_on_pyg import PaperOnPyG
from tiny_networks import TINY, everybody, random_features, random_images, tiny_network
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose, pose_error
from relograph.graphs import Target, absolute_pose, drop_edges, relative_targets
from relograph.models import RelPoseGNN, all_edges, build_model
from relograph.models.relpose_gnn import Aggregation, MessagePassing, NonLocalAttention, PairLinear, aggregate
from relograph.training.losses import PoseLoss

AGGREGATIONS = get_args(Aggregation)
# Where messages reach the poses, and where they do not.
WITH_MESSAGES = [{"rounds": 2}, {"rounds": 3}, {"rounds": 1, "readout": "post"}, {"rounds": 2, "readout": "post"}]
WITHOUT_MESSAGES = {"rounds": 1, "readout": "paper"}


def poses_of(network: RelPoseGNN, x: Tensor, **masks: Tensor) -> Tensor:
    """What the edges say, without gradients."""
    with torch.no_grad():
        edges = network.decode(x, masks.pop("node_mask", everybody(x)), **masks).edges
    assert edges is not None
    return edges


def between(nodes: list[int], edges: Tensor) -> Tensor:
    """Values of the edges between some of the nodes, without the diagonal, [B, E, D]."""
    off_diagonal = ~torch.eye(len(nodes), dtype=torch.bool)
    return edges[:, nodes][:, :, nodes][:, off_diagonal]


# Symmetries


@pytest.mark.parametrize("options", [*WITH_MESSAGES, WITHOUT_MESSAGES])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_another_order_of_the_references_is_another_order_of_the_answer_and_nothing_else(
    options: dict[str, object], aggregation: str
) -> None:
    network = tiny_network(aggregation=aggregation, **options)
    x = random_features()
    order = torch.tensor([0, 3, 1, 4, 2])  # the query stays where it is
    torch.testing.assert_close(poses_of(network, x[:, order]), poses_of(network, x)[:, order][:, :, order])


def test_images_in_another_order_give_the_same_poses_in_that_order() -> None:
    network, images = tiny_network(), random_images()
    order = torch.tensor([0, 2, 3, 1])
    with torch.no_grad():
        edges = network(images, everybody(images)).edges
        reordered = network(images[:, order], everybody(images)).edges
    torch.testing.assert_close(reordered, edges[:, order][:, :, order])
    assert edges[:, 1:, 0].std(dim=1).min() > 1e-6  # the references do not all say the same


def test_graphs_of_one_batch_do_not_hear_of_each_other() -> None:
    network, x = tiny_network(), random_features(num_graphs=3)
    torch.testing.assert_close(poses_of(network, x[1:2]), poses_of(network, x)[1:2])


@pytest.mark.parametrize("options", [*WITH_MESSAGES, WITHOUT_MESSAGES])
def test_the_way_there_is_neither_the_way_back_nor_its_negative(options: dict[str, object]) -> None:
    edges = poses_of(tiny_network(**options), random_features())
    there, back = between([0, 1, 2, 3, 4], edges), between([0, 1, 2, 3, 4], edges.transpose(1, 2))
    assert (there - back).abs().amax(dim=-1).min() > 1e-4
    assert (there + back).abs().amax(dim=-1).min() > 1e-4


def test_edges_begin_with_a_direction() -> None:
    network, x = tiny_network(), random_features()
    begun = network.edge_init(None, x)
    assert (between([0, 1, 2], begun) - between([0, 1, 2], begun.transpose(1, 2))).abs().amax(dim=-1).min() > 1e-3


def test_edge_i_j_names_the_receiver_first() -> None:
    torch.manual_seed(0)
    of_receiver = PairLinear(1, receiver=1, sender=1)
    with torch.no_grad():
        of_receiver.weight.copy_(torch.tensor([[1.0, 10.0]]))  # 1 x_i + 10 x_j
        of_receiver.bias.zero_()
    x = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert of_receiver(None, x)[0, :, :, 0].tolist() == [[11, 21, 31], [12, 22, 32], [13, 23, 33]]


# Messages


def test_with_one_round_no_message_reaches_the_poses() -> None:
    network, x = tiny_network(**WITHOUT_MESSAGES), random_features()
    before = poses_of(network, x)
    x[:, 2] += 1.0
    after = poses_of(network, x)
    assert torch.equal(between([0, 1, 3, 4], after), between([0, 1, 3, 4], before))
    assert (after - before)[:, 2, [0, 1, 3, 4]].abs().amax(dim=-1).min() > 1e-3


@pytest.mark.parametrize("options", WITH_MESSAGES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_more_rounds_or_one_more_edge_update_bring_messages_to_every_pose(
    options: dict[str, object], aggregation: str
) -> None:
    network, x = tiny_network(aggregation=aggregation, **options), random_features()
    before = poses_of(network, x)
    x[:, 2] += 1.0
    changed = between([0, 1, 3, 4], poses_of(network, x) - before)
    assert changed.abs().amax(dim=-1).min() > 1e-6


@pytest.mark.parametrize("options", [*WITH_MESSAGES, WITHOUT_MESSAGES])
def test_every_weight_learns_but_those_of_messages_that_nobody_reads(options: dict[str, object]) -> None:
    network, images = tiny_network(**options).train(), random_images()
    goal = torch.randn(2, 4, 4, 6, dtype=torch.float64)
    (network(images, everybody(images)).edges - goal).square().sum().backward()
    silent = {name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()}
    of_messages = ("message_passing.message", "message_passing.attention", "message_passing.update")
    unread = {name for name, _ in network.named_parameters() if name.startswith(of_messages)}
    assert silent == (unread if options == WITHOUT_MESSAGES else set())


def test_rounds_share_their_weights() -> None:
    sizes = [sum(weight.numel() for weight in tiny_network(rounds=rounds).parameters()) for rounds in (1, 2, 4)]
    assert len(set(sizes)) == 1


# Training and evaluation


def test_evaluation_answers_twice_the_same_whatever_was_drawn_meanwhile() -> None:
    network, images = tiny_network(), random_images()
    with torch.no_grad():
        first = network(images, everybody(images)).edges
        torch.rand(100)
        assert torch.equal(network(images, everybody(images)).edges, first)


def test_training_a_step_and_coming_back_to_evaluation_leaves_no_chance_behind() -> None:
    network, images = tiny_network(), random_images()
    network.train()(images, everybody(images))
    network.eval()
    with torch.no_grad():
        assert torch.equal(network(images, everybody(images)).edges, network(images, everybody(images)).edges)


@pytest.mark.parametrize("options", WITH_MESSAGES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_dropped_edges_change_the_training_output(options: dict[str, object], aggregation: str) -> None:
    network, x = tiny_network(aggregation=aggregation, **options).train(), random_features()
    kept = drop_edges(all_edges(everybody(x)), 0.5, torch.Generator().manual_seed(0))
    assert 0 < kept.sum() < 2 * 20
    difference = poses_of(network, x, edge_mask=kept) - poses_of(network, x)
    assert difference.flatten(1).abs().amax(dim=1).min() > 1e-4


def test_evaluation_drops_no_edge() -> None:
    network, x = tiny_network(), random_features()
    whole = poses_of(network, x, edge_mask=all_edges(everybody(x)))
    assert torch.equal(poses_of(network.eval(), x), whole)
    assert torch.equal(poses_of(network.train(), x), whole)  # nor does training, but where it is told to


def test_a_dropped_edge_carries_no_message_in_either_direction() -> None:
    network, x = tiny_network(), random_features()
    alone = all_edges(everybody(x))
    alone[:, 2, :] = alone[:, :, 2] = False
    before = poses_of(network, x, edge_mask=alone)
    x[:, 2] += 1.0
    after = poses_of(network, x, edge_mask=alone)
    assert torch.equal(between([0, 1, 3, 4], after), between([0, 1, 3, 4], before))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_what_stands_in_place_of_missing_images_means_nothing(aggregation: str) -> None:
    network, x = tiny_network(aggregation=aggregation), random_features()
    padded = torch.cat([x, torch.full_like(x[:, :2], torch.nan)], dim=1)
    node_mask = torch.tensor([True] * 5 + [False] * 2).expand(2, -1)
    edges = poses_of(network, padded, node_mask=node_mask)
    torch.testing.assert_close(edges[:, :5, :5], poses_of(network, x))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_image_without_any_other_is_no_reason_for_nan(aggregation: str) -> None:
    network, x = tiny_network(aggregation=aggregation), random_features().requires_grad_()
    node_mask = torch.tensor([True, False, False, False, False]).expand(2, -1)
    edges = network.decode(x, node_mask).edges
    assert edges.isfinite().all()
    edges.sum().backward()
    assert x.grad.isfinite().all()


def test_edges_join_different_images_that_are_there() -> None:
    edge_mask = all_edges(torch.tensor([[True, True, False], [True, True, True]]))
    assert edge_mask.int().tolist() == [
        [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
        [[0, 1, 1], [1, 0, 1], [1, 1, 0]],
    ]


def test_features_that_were_kept_give_the_poses_that_their_images_give() -> None:
    network, images = tiny_network(), random_images()
    with torch.no_grad():
        kept = torch.cat([network.encode(images[:, :1]), network.encode(images[:, 1:])], dim=1)
        torch.testing.assert_close(network(images, everybody(images)).edges, poses_of(network, kept))


# The equations


@pytest.mark.parametrize("readout", ["paper", "post"])
@pytest.mark.parametrize("edges", ["all", "some"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_two_rounds_are_those_of_the_paper_on_pytorch_geometric(aggregation: str, edges: str, readout: str) -> None:
    network = tiny_network(aggregation=aggregation, readout=readout)
    other = PaperOnPyG(TINY.channels, aggregation).double()
    other.load_ours(network.state_dict())
    x = random_features(num_graphs=3, num_nodes=6)
    edge_mask = all_edges(everybody(x))
    if edges == "some":
        edge_mask = drop_edges(edge_mask, 0.5, torch.Generator().manual_seed(0))
        edge_mask[1, 4, :] = edge_mask[1, :, 4] = False  # and one node that nobody talks to
    graph, i, j = edge_mask.nonzero(as_tuple=True)
    with torch.no_grad():
        nodes, features = network.refine(x, edge_mask, nodes_too=True)
        poses = network.decode(x, everybody(x), edge_mask).edges
        edge_index = torch.stack([graph * 6 + j, graph * 6 + i])
        their_nodes, their_features, their_poses = other(x.flatten(0, 1), edge_index, rounds=2)
        if readout == "post":
            their_features = other.edge_updater(edge_index, edge=their_features, x=their_nodes)
            their_poses = other.W_pose(their_features)
    for ours, theirs in (
        (nodes.flatten(0, 1), their_nodes),
        (features[edge_mask], their_features),
        (poses[edge_mask], their_poses),
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        assert theirs.std() > 1e-3


@pytest.mark.parametrize(
    "parts", [{"edge": 3, "receiver": 4, "sender": 4}, {"edge": 3, "sender": 4}, {"receiver": 4, "sender": 4}]
)
def test_a_pair_layer_is_the_plain_layer_on_the_concatenation(parts: dict[str, int]) -> None:
    torch.manual_seed(0)
    layer = PairLinear(7, **parts).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    edge = torch.randn(2, 5, 5, 3, dtype=torch.float64) if "edge" in parts else None
    x_i, x_j = x[:, :, None].expand(-1, -1, 5, -1), x[:, None].expand(-1, 5, -1, -1)
    whole = torch.cat([*([] if edge is None else [edge]), *([x_i] if "receiver" in parts else []), x_j], dim=-1)
    torch.testing.assert_close(layer(edge, x), F.linear(whole, layer.weight, layer.bias))


def attended_slowly(attention: NonLocalAttention, m: list[float]) -> list[float]:
    """The equations of non-local attention, number by number."""

    def linear(layer: torch.nn.Linear, values: list[float]) -> list[float]:
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [bias + sum(w * v for w, v in zip(row, values, strict=True)) for row, bias in rows]

    theta, phi, f = linear(attention.theta, m), linear(attention.phi, m), linear(attention.f, m)
    heard = []
    for t in theta:
        weights = [math.exp(t * p) for p in phi]
        heard.append(sum(w * v for w, v in zip(weights, f, strict=True)) / sum(weights))
    return [old + new for old, new in zip(m, linear(attention.g, heard), strict=True)]


def test_attention_is_the_weighted_sum_over_all_elements_of_a_message() -> None:
    torch.manual_seed(0)
    attention = NonLocalAttention(24, reduction=4).double()
    m = 3 * torch.randn(2, 3, 24, dtype=torch.float64)
    expected = [[attended_slowly(attention, message.tolist()) for message in messages] for messages in m]
    torch.testing.assert_close(attention(m), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_attention_does_not_round_the_arguments_of_its_softmax_to_bfloat16() -> None:
    # Messages so large that products are in the hundreds, where bfloat16 only counts in steps of one or two.
    torch.manual_seed(0)
    attention = NonLocalAttention(32, reduction=4).bfloat16()
    m = (40 * torch.randn(6, 32)).bfloat16()
    theta, phi, f = (layer(m).double() for layer in (attention.theta, attention.phi, attention.f))
    weights = torch.softmax(theta[:, :, None] * phi[:, None, :], dim=-1)
    assert (theta[:, :, None] * phi[:, None, :]).abs().median() > 100
    heard = (weights @ f[:, :, None]).squeeze(-1).bfloat16()
    torch.testing.assert_close(attention(m), m + attention.g(heard), rtol=0, atol=0.1)


def test_messages_that_reach_a_node_are_averaged_added_or_compared_over_the_edges_that_are_there() -> None:
    messages = torch.tensor([[-1.0, -2.0, -6.0], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])[None, :, :, None]  # [1, 3, 3, 1]
    edge_mask = torch.tensor([[[False, True, True], [True, False, False], [False, False, False]]])
    by_hand = {"mean": [-4.0, 1.0, 0.0], "max": [-2.0, 1.0, 0.0], "sum": [-8.0, 1.0, 0.0]}
    assert {how: aggregate(messages, edge_mask, how).flatten().tolist() for how in AGGREGATIONS} == by_hand


# Sizes


def num_parameters(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_the_full_network_has_the_papers_74_8_million_parameters_module_by_module() -> None:
    with torch.device("meta"):
        network = RelPoseGNN()
    encoder, passing = network.encoder, network.message_passing
    millions = {
        "encoder": (num_parameters(encoder) - num_parameters(encoder.fc)) / 1e6,
        "encoder's last layer": num_parameters(encoder.fc) / 1e6,
        "edge init": num_parameters(network.edge_init) / 1e6,
        "edge update": num_parameters(passing.edge_in, passing.edge_out) / 1e6,
        "message": num_parameters(passing.message_in, passing.message_out) / 1e6,
        "attention": num_parameters(passing.attention) / 1e6,
        "node update": num_parameters(passing.update_in, passing.update_out) / 1e6,
        "pose head": num_parameters(network.pose_head) / 1e6,
    }
    assert {name: round(count, 2) for name, count in millions.items()} == {
        "encoder": 21.28,
        "encoder's last layer": 1.05,
        "edge init": 8.39,  # 2 C^2
        "edge update": 16.78,  # (3 + 1) C^2
        "message": 12.59,  # (2 + 1) C^2
        "attention": 2.10,  # 4 C^2 / 8
        "node update": 12.59,  # (2 + 1) C^2
        "pose head": 0.01,
    }
    assert num_parameters(network) / 1e6 == pytest.approx(sum(millions.values()))
    assert round(num_parameters(network) / 1e6, 1) == 74.8


def test_a_network_without_rounds_and_an_attention_that_does_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="rounds must be at least 1, got 0"):
        RelPoseGNN(16, rounds=0)
    with pytest.raises(ConfigError, match="multiple of 8, got 20"):
        MessagePassing(20)


# Learning


def smooth_pictures(num: int) -> Tensor:
    """Pictures [M, 32, 32, 3] of a few soft colours each, which differ after pooling too."""
    colours = torch.rand(num, 3, 4, 4)
    return F.interpolate(colours, size=(32, 32), mode="bilinear").mul(255).byte().permute(0, 2, 3, 1)


@pytest.mark.parametrize("target", get_args(Target))
def test_four_graphs_are_learned_by_heart_to_two_centimetres_and_half_a_degree(target: Target) -> None:
    torch.manual_seed(0)
    network = build_model(replace(TINY, channels=64, encoder_width=8))
    loss = PoseLoss()
    images = smooth_pictures(16).unflatten(0, (4, 4))
    T_world_cam = Pose.from_axis_angle(0.5 * torch.randn(4, 4, 3), torch.randn(4, 4, 3))
    goal = relative_targets(T_world_cam, target)
    node_mask = everybody(images)
    edge_mask = all_edges(node_mask)
    num_steps = 300
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=num_steps)
    for step in range(num_steps):
        network.train(step < num_steps // 2)  # the running statistics of the first half serve the second
        total = loss(network(images, node_mask).edges, goal, edge_mask)
        optimizer.zero_grad()
        (total / edge_mask.sum()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        edges = network.eval()(images, node_mask).edges
    T_world_query = absolute_pose(edges[:, 1:, 0], T_world_cam[:, 1:], target)  # [4, 3], one from each reference
    error = pose_error(T_world_query, T_world_cam[:, :1].expand(4, 3))
    assert error.translation_error_m.max() < 0.02
    assert error.rotation_error_deg.max() < 0.5
