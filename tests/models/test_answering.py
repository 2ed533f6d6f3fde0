"""Many queries at once: every image is encoded once, and the answers are those of whole graphs of images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from tiny_networks import random_images, tiny_network
from torch import Tensor

from relograph.geometry import Pose
from relograph.graphs import PosedImages, gather_graphs
from relograph.models import answer_graphs, encode_rows

NUM_FRAMES = 9
ROWS = torch.tensor([[8, 0, 3, 1], [7, 3, -1, -1], [8, 4, 4, 0], [6, 5, 1, -1], [0, 8, 7, 6]])
"""Graphs that share images, out of order, with nodes that are missing; frame 4 is in one of them twice, 2 in none."""


@pytest.fixture(scope="module")
def frames() -> PosedImages:
    images = random_images(1, NUM_FRAMES)[0]
    return PosedImages(
        images=images,
        T_world_cam=Pose.identity(NUM_FRAMES, dtype=torch.float32),
        scene_idx=torch.zeros(NUM_FRAMES, dtype=torch.long),
        sequence_idx=torch.zeros(NUM_FRAMES, dtype=torch.long),
        in_map=torch.ones(NUM_FRAMES, dtype=torch.bool),
        names=tuple(str(frame) for frame in range(NUM_FRAMES)),
        scene_names=("room",),
    )


@pytest.mark.parametrize("kind", ["relpose_gnn", "pair_mlp", "posenet", "atloc", "sequence_gnn"])
@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_answers_are_those_of_the_network_on_whole_graphs(frames: PosedImages, kind: str, batch_size: int) -> None:
    network = tiny_network(kind=kind)
    answers = answer_graphs(network, frames, ROWS, batch_size=batch_size)
    graphs = gather_graphs(frames, ROWS)
    with torch.no_grad():
        whole = network(graphs.images, graphs.node_mask)
    assert (answers.edges is None) == (whole.edges is None)
    assert (answers.nodes is None) == (whole.nodes is None)
    if whole.edges is not None:
        there = graphs.node_mask[:, 1:]
        torch.testing.assert_close(answers.edges[there], whole.edges[:, 1:, 0][there])
    if whole.nodes is not None:
        torch.testing.assert_close(answers.nodes, whole.nodes[:, 0])


@pytest.mark.parametrize("batch_size", [2, 128])
def test_every_image_is_encoded_once_and_only_those_that_are_needed(frames: PosedImages, batch_size: int) -> None:
    network = tiny_network()
    seen: list[Tensor] = []
    network.encoder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    answer_graphs(network, frames, ROWS[:2], batch_size=batch_size)
    encoded = torch.cat(seen)
    needed = frames.images[[0, 1, 3, 7, 8]]
    assert encoded.equal(needed)


def test_features_come_in_the_order_of_the_rows(frames: PosedImages) -> None:
    network = tiny_network()
    rows = torch.tensor([5, 0, 5, 2])
    features = encode_rows(network, frames, rows, batch_size=3)
    with torch.no_grad():
        expected = network.encode(frames.images[None])[0]
    torch.testing.assert_close(features, expected[rows])


def test_a_network_in_training_answers_as_in_evaluation(frames: PosedImages) -> None:
    network = tiny_network()
    expected = answer_graphs(network, frames, ROWS).edges
    network.train()
    before = network.encoder.bn1.running_mean.clone()
    assert answer_graphs(network, frames, ROWS).edges.equal(expected)
    assert network.encoder.bn1.running_mean.equal(before)
    assert not expected.requires_grad


class Counting:
    """Progress that adds up, task by task."""

    def __init__(self) -> None:
        self.done: dict[str, tuple[int, int]] = {}

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        self.done[description] = (0, total)

        def advance(steps: int) -> None:
            self.done[description] = (self.done[description][0] + steps, total)

        yield advance


def test_progress_counts_images_and_queries(frames: PosedImages) -> None:
    progress = Counting()
    answer_graphs(tiny_network(), frames, ROWS[:2], batch_size=2, progress=progress)
    assert progress.done == {"encoding images": (5, 5), "localizing queries": (2, 2)}
