"""The losses that train retrieval: their values by hand, their gradients, and what a short training makes of them."""

import math

import pytest
import torch
from torch import Tensor, nn

from relograph.retrieval import (
    ExactIndex,
    NetVLAD,
    covisibility_loss,
    covisibility_loss_of_images,
    expected_error_loss,
)


def unit(*angles_deg: float) -> Tensor:
    """Descriptors on the unit circle, [1, N, 2]."""
    angles = torch.tensor(angles_deg, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=-1)[None]


def everywhere(d: Tensor) -> Tensor:
    return torch.ones(d.shape[:2], dtype=torch.bool)


# Values


def test_the_covisibility_loss_is_the_cross_entropy_of_overlap_shares():
    d = unit(0, 60, 90)  # cosines with the query: 1/2 and 0
    overlap = torch.tensor([[1.0, 0.6, 0.2]]).double()  # shares 3/4 and 1/4
    e = math.exp(0.5 / 0.5)
    expected = -0.75 * math.log(e / (e + 1)) - 0.25 * math.log(1 / (e + 1))
    assert float(covisibility_loss(d, overlap, everywhere(d), temperature=0.5)) == pytest.approx(expected)


def test_the_expected_error_weighs_errors_by_the_softmax_of_similarity():
    d = unit(0, 60, 90)
    error = torch.tensor([[9.0, 2.0, 5.0]]).double()
    e = math.exp(0.5 / 0.5)
    expected = (e * 2.0 + 1 * 5.0) / (e + 1)
    assert float(expected_error_loss(d, error, everywhere(d), temperature=0.5)) == pytest.approx(expected)


def test_references_of_other_scenes_join_the_softmax_and_those_of_the_same_scene_do_not():
    d = torch.cat([unit(0, 60, 90), unit(0, 0, 180), unit(10, 20, 30)])
    overlap = torch.tensor([[1.0, 0.5, 0.0]]).double().expand(3, 3)
    negatives = torch.tensor([[False, True, False], [True, False, True], [False, True, False]])
    node_mask = everywhere(d)
    node_mask[1, 2] = False
    loss = covisibility_loss(d[:1], overlap[:1], node_mask[:1], temperature=0.5)
    e = math.exp(0.5 / 0.5)
    assert float(loss) == pytest.approx(-math.log(e / (e + 1)))
    per_query = []
    for b in range(3):
        logits = [d[b, 0] @ d[b, j] / 0.5 for j in (1, 2) if node_mask[b, j]]
        logits += [d[b, 0] @ d[c, j] / 0.5 for c in range(3) for j in (1, 2) if negatives[b, c] and node_mask[c, j]]
        per_query.append(-torch.stack(logits).log_softmax(dim=0)[0])
    with_negatives = covisibility_loss(d, overlap, node_mask, negatives=negatives, temperature=0.5)
    torch.testing.assert_close(with_negatives, torch.stack(per_query).mean())


def test_every_image_looks_for_what_it_sees_among_all_others():
    generator = torch.Generator().manual_seed(1)
    d = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    overlap = torch.rand(5, 5, generator=generator, dtype=torch.float64)
    overlap[3] = torch.eye(5, dtype=torch.float64)[3]  # sees nothing of the others, and does not count
    by_image = []
    for image in (0, 1, 2, 4):
        others = [i for i in range(5) if i != image]
        nodes = torch.tensor([image, *others])
        by_image.append(covisibility_loss(d[None, nodes], overlap[image, nodes][None], everywhere(d[None])))
    torch.testing.assert_close(covisibility_loss_of_images(d, overlap), torch.stack(by_image).mean())


def test_padding_and_the_query_itself_are_not_looked_at():
    generator = torch.Generator().manual_seed(0)
    d, values = torch.randn(3, 5, 8, generator=generator), torch.rand(3, 5, generator=generator)
    padded = torch.cat([d, torch.full((3, 2, 8), torch.nan)], dim=1)
    node_mask = torch.cat([everywhere(d), torch.zeros(3, 2).bool()], dim=1)
    padded = torch.where(node_mask[:, :, None], padded, 7.0)
    with_nan = torch.cat([values, torch.full((3, 2), torch.nan)], dim=1)
    with_nan[:, 0] = torch.nan
    for loss in (covisibility_loss, expected_error_loss):
        torch.testing.assert_close(loss(padded, with_nan, node_mask), loss(d, values, everywhere(d)))


def test_graphs_that_say_nothing_do_not_count():
    d = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    node_mask = everywhere(d)
    node_mask[1:, 1:] = False  # two graphs without references
    values = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    for loss in (covisibility_loss, expected_error_loss):
        torch.testing.assert_close(loss(d, values, node_mask), loss(d[:1], values[:1], node_mask[:1]))
        (gradient,) = torch.autograd.grad(loss(d, values, node_mask), d)
        assert gradient.isfinite().all()
        assert (gradient[1:] == 0).all()
        assert float(loss(d[1:], values[1:], node_mask[1:]).detach()) == 0.0
    assert float(covisibility_loss(d, torch.zeros(3, 4), everywhere(d)).detach()) == 0.0  # nothing overlaps


def test_gradients_are_right_and_reach_a_learned_temperature():
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    values = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    negatives = ~torch.eye(2).bool()
    mask = everywhere(d)
    assert torch.autograd.gradcheck(
        lambda d, t: covisibility_loss(d, values, mask, negatives=negatives, temperature=t), (d, temperature)
    )
    values.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda d, v, t: expected_error_loss(d, v, mask, temperature=t), (d, values, temperature)
    )


# What they teach


class ToyWorld:
    """A street of landmarks. A photo shows ten of them in a row, in a light that is much stronger than they are.

    A local feature is a landmark's code and, in other channels, the photo's light; photos of one place in different
    light look unlike until someone learns to ignore the light.
    """

    def __init__(self, num_landmarks: int = 60, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.codes = torch.randn(num_landmarks, 8, generator=self.generator)

    def photograph(self, place: Tensor) -> Tensor:
        """Feature maps [*B, 16, 2, 5]."""
        landmarks = place[..., None] + torch.arange(10)
        light = 2 * torch.randn(*place.shape, 1, 8, generator=self.generator)
        features = torch.cat([self.codes[landmarks], light.expand(*place.shape, 10, 8)], dim=-1)
        return features.mT.unflatten(-1, (2, 5))

    def places(self, *shape: int) -> Tensor:
        return torch.randint(0, len(self.codes) - 9, shape, generator=self.generator)

    @staticmethod
    def overlap(a: Tensor, b: Tensor) -> Tensor:
        return (1 - (a - b).abs() / 10).clamp_min(0)

    def recall(self, describe: nn.Module) -> float:
        """Share of new photos whose most similar map photo shows at least half of the same landmarks."""
        here, there = self.places(200), torch.arange(len(self.codes) - 9)
        with torch.no_grad():
            index = ExactIndex(describe(self.photograph(there)))
            top_1 = index.search(describe(self.photograph(here)), 1).row[:, 0]
        return float((self.overlap(here, there[top_1]) >= 0.5).float().mean())


def trainable_retrieval(world: ToyWorld) -> nn.Module:
    torch.manual_seed(0)
    projection, netvlad = nn.Conv2d(16, 8, 1), NetVLAD(8, 4)
    with torch.no_grad():
        features = projection(world.photograph(world.places(50)))
    netvlad.initialise(features.permute(0, 2, 3, 1).flatten(0, 2), torch.Generator().manual_seed(0))
    return nn.Sequential(projection, netvlad)


def train_on_graphs(world: ToyWorld, describe: nn.Module, loss_of, steps: int) -> None:
    """`loss_of(descriptors [B, N, D], places [B, N])` on graphs of a query, near places and places anywhere."""
    optimizer = torch.optim.Adam(describe.parameters(), lr=1e-2)
    for _ in range(steps):
        query = world.places(16, 1)
        near = query + torch.randint(-9, 10, (16, 4), generator=world.generator)
        places = torch.cat([query, near.clamp(0, len(world.codes) - 10), world.places(16, 3)], dim=1)
        descriptors = describe(world.photograph(places).flatten(0, 1)).unflatten(0, (16, 8))
        loss = loss_of(descriptors, places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_training_with_covisibility_finds_images_that_see_the_same():
    world = ToyWorld()
    describe = trainable_retrieval(world)
    before = world.recall(describe)
    node_mask = torch.ones(16, 8).bool()
    train_on_graphs(
        world,
        describe,
        lambda d, places: covisibility_loss(d, world.overlap(places[:, :1], places), node_mask),
        steps=150,
    )
    assert before < 0.5
    assert world.recall(describe) > 0.9


def test_training_with_the_pose_error_alone_finds_images_that_see_the_same_too():
    """A reference farther away gives a worse pose; nobody tells the descriptors what overlaps."""
    world = ToyWorld()
    describe = trainable_retrieval(world)
    before = world.recall(describe)
    node_mask = torch.ones(16, 8).bool()
    train_on_graphs(
        world,
        describe,
        lambda d, places: expected_error_loss(d, (places[:, :1] - places).abs() / 10, node_mask),
        steps=150,
    )
    assert before < 0.5
    assert world.recall(describe) > 0.9


def test_the_similarity_moves_towards_the_reference_with_the_lowest_error():
    d = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    best = torch.tensor([0, 1, 2, 3, 0, 1])
    error = torch.ones(6, 5)
    error[torch.arange(6), 1 + best] = 0.2
    optimizer = torch.optim.SGD([d], lr=5.0)
    for _ in range(200):
        optimizer.zero_grad()
        expected_error_loss(d, error, everywhere(d), temperature=0.5).backward()
        optimizer.step()
    most_similar = torch.cosine_similarity(d[:, :1], d[:, 1:], dim=-1).argmax(dim=1)
    assert torch.equal(most_similar, best)
