"""The networks that the paper compares with: what each of them sees, and how large it is."""

import pytest
import torch
from tiny_networks import everybody, random_features, random_images, tiny_network

from relograph.models import ModelConfig, SequenceGNN, all_edges, build_model


def num_parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def made_of_nothing(kind: str, **options: object) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(ModelConfig(kind=kind, **options))


# Baseline-1: pairs without a graph


def test_a_pair_sees_its_two_images_and_no_other() -> None:
    network, x = tiny_network(kind="pair_mlp"), random_features()
    before = network.decode(x, everybody(x)).edges
    x[:, 2] += 1.0
    changed = (network.decode(x, everybody(x)).edges - before).abs().amax(dim=-1) > 1e-4
    with_the_other_image = torch.zeros(5, 5, dtype=torch.bool)
    with_the_other_image[2, :] = with_the_other_image[:, 2] = True
    assert torch.equal(changed, with_the_other_image.expand(2, 5, 5))


def test_a_pair_has_a_direction_without_a_graph_too() -> None:
    network, x = tiny_network(kind="pair_mlp"), random_features()
    edges = network.decode(x, everybody(x)).edges
    assert (edges - edges.transpose(1, 2)).abs().amax(dim=-1)[all_edges(everybody(x))].min() > 1e-4


def test_a_pair_is_fully_connected_layers_on_the_concatenation_of_two_vectors() -> None:
    network, x = tiny_network(kind="pair_mlp"), random_features()
    state = network.state_dict()
    hidden = torch.cat([x[:, 3], x[:, 1]], dim=-1) @ state["pair.weight"].T + state["pair.bias"]
    for layer in range(4):
        hidden = hidden.relu() @ state[f"hidden.{layer}.weight"].T + state[f"hidden.{layer}.bias"]
    torch.testing.assert_close(network.decode(x, everybody(x)).edges[:, 3, 1], hidden)


def test_masks_change_no_pair() -> None:
    network, x = tiny_network(kind="pair_mlp"), random_features()
    nobody = torch.zeros(2, 5, dtype=torch.bool)
    edges = network.decode(x, everybody(x)).edges
    assert torch.equal(network.decode(x, nobody, all_edges(nobody)).edges, edges)


@pytest.mark.parametrize("channels", [64, 256, 2048])
@pytest.mark.parametrize(
    "encoder", [{}, {"encoder_blocks": (1, 1, 1, 1), "encoder_width": 8}], ids=["resnet34", "tiny"]
)
def test_pairs_have_the_graph_networks_number_of_parameters_within_two_percent(
    channels: int, encoder: dict[str, object]
) -> None:
    pairs = made_of_nothing("pair_mlp", channels=channels, **encoder)
    graph = made_of_nothing("relpose_gnn", channels=channels, **encoder)
    assert num_parameters(pairs) == pytest.approx(num_parameters(graph), rel=0.02)
    beyond = [num_parameters(network) - num_parameters(network.encoder) for network in (pairs, graph)]
    assert beyond[0] == pytest.approx(beyond[1], rel=0.02)  # and not because the encoder outweighs the rest


# PoseNet and AtLoc: one image, one absolute pose


@pytest.mark.parametrize("kind", ["posenet", "atloc"])
def test_an_absolute_pose_comes_from_one_image_alone(kind: str) -> None:
    network, images = tiny_network(kind=kind), random_images()
    together = network(images, everybody(images))
    alone = network(images[:, 2:3], everybody(images[:, 2:3]))
    assert together.edges is None
    torch.testing.assert_close(together.nodes[:, 2:3], alone.nodes)
    assert (together.nodes[:, 0] - together.nodes[:, 1]).abs().amax(dim=-1).min() > 1e-6


def test_posenet_is_one_linear_layer_on_the_rectified_vector() -> None:
    network, x = tiny_network(kind="posenet"), random_features()
    expected = x.clamp(min=0) @ network.pose_head.weight.T + network.pose_head.bias
    torch.testing.assert_close(network.decode(x, everybody(x)).nodes, expected)


def test_atloc_is_posenet_with_the_papers_attention_in_between() -> None:
    network, x = tiny_network(kind="atloc"), random_features()
    attended = network.attention(x.clamp(min=0))
    torch.testing.assert_close(network.decode(x, everybody(x)).nodes, network.pose_head(attended))
    assert not torch.allclose(attended, x.clamp(min=0), atol=1e-3)
    # 2048: theta, phi and f to 256 and g back, with their biases
    of_attention = 3 * (2048 * 256 + 256) + 256 * 2048 + 2048
    assert num_parameters(made_of_nothing("atloc")) - num_parameters(made_of_nothing("posenet")) == of_attention


def test_posenet_is_the_encoder_and_a_head() -> None:
    assert num_parameters(made_of_nothing("posenet")) == 21_284_672 + (512 * 2048 + 2048) + (2048 * 6 + 6)


# Baseline-3: a graph over a video


def sequence_network(**options: object) -> SequenceGNN:
    network = tiny_network(kind="sequence_gnn", **options)
    assert isinstance(network, SequenceGNN)
    return network


@pytest.mark.parametrize("readout", ["paper", "post"])
def test_edges_over_a_video_say_what_the_papers_network_says(readout: str) -> None:
    network, x = sequence_network(readout=readout), random_features()
    paper = tiny_network(readout=readout, seed=1)
    paper.load_state_dict({name: v for name, v in network.state_dict().items() if not name.startswith("node_head")})
    torch.testing.assert_close(network.decode(x, everybody(x)).edges, paper.decode(x, everybody(x)).edges)


def test_absolute_poses_over_a_video_are_read_from_the_nodes_after_the_last_round() -> None:
    network, x = sequence_network(rounds=2), random_features()
    passing, edge_mask = network.message_passing, all_edges(everybody(x))
    edge = network.edge_init(None, x).relu()
    nodes = x
    for _ in range(2):
        edge = passing.update_edges(edge, nodes)
        nodes = passing.update_nodes(nodes, edge, edge_mask)
    expected = nodes.clamp(min=0) @ network.node_head.weight.T + network.node_head.bias
    torch.testing.assert_close(network.decode(x, everybody(x)).nodes, expected)


def test_with_one_round_a_frame_hears_of_the_others_even_where_its_edges_do_not() -> None:
    network, x = sequence_network(rounds=1), random_features()
    before = network.decode(x, everybody(x))
    x[:, 2] += 1.0
    after = network.decode(x, everybody(x))
    assert torch.equal(after.edges[:, 0, 1], before.edges[:, 0, 1])
    assert (after.nodes - before.nodes)[:, [0, 1, 3, 4]].abs().amax(dim=-1).min() > 1e-5


def test_frames_that_are_not_there_and_edges_that_are_dropped_reach_no_absolute_pose() -> None:
    network, x = sequence_network(), random_features()
    node_mask = torch.tensor([True, True, True, False, False]).expand(2, -1)
    expected = network.decode(x[:, :3], everybody(x[:, :3])).nodes
    torch.testing.assert_close(network.decode(x, node_mask).nodes[:, :3], expected)
    torch.testing.assert_close(network.decode(x, everybody(x), all_edges(node_mask)).nodes[:, :3], expected)


def test_the_video_network_is_the_papers_and_one_head_more() -> None:
    more = num_parameters(made_of_nothing("sequence_gnn")) - num_parameters(made_of_nothing("relpose_gnn"))
    assert more == 2048 * 6 + 6


# All of them


@pytest.mark.parametrize("kind", ["relpose_gnn", "pair_mlp", "posenet", "atloc", "sequence_gnn"])
def test_every_network_answers_the_same_twice_and_trains_all_its_weights(kind: str) -> None:
    network, images = tiny_network(kind=kind), random_images()

    def answer() -> torch.Tensor:
        said = network(images, everybody(images))
        return torch.cat([values.flatten(0, -2) for values in (said.edges, said.nodes) if values is not None])

    assert torch.equal(answer(), answer())
    network.train()
    answer().square().sum().backward()
    assert [name for name, weight in network.named_parameters() if not weight.grad.any()] == []
