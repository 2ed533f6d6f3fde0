"""What MatchGNN is taught with: each lesson is right where the answer is, and costs more where it is not."""

import copy
from itertools import islice

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from relograph.geometry import Pose, rotation_error_deg
from relograph.graphs.correspondence import TrueMatches
from relograph.models.match_gnn import FINE_RADIUS, Flow, Matches, MatchGNN, PoseAnswers
from relograph.models.match_kernels import MatchKernels
from relograph.rooms import RoomStream, StreamBatch, StreamConfig
from relograph.rooms.photograph import Effects
from relograph.rooms.textures import TextureAtlas
from relograph.training.matching import (
    LESSONS,
    MatchLossConfig,
    MatchObjective,
    PoseQuestions,
    Shown,
    angle_between,
    coarse_loss,
    fine_cells,
    fine_loss,
    fused_loss,
    pose_lessons,
    some_of,
    true_cells,
)
from relograph.training.objective import clip_gradients
from relograph.training.presets import MATCHGNN_TINY

TINY = MATCHGNN_TINY.model
STREAM = StreamConfig(
    image_height=48,
    image_width=64,
    graphs_per_batch=2,
    num_nodes=3,
    num_homes=2,
    views_per_home=12,
    overlap=(0.3, 0.9),
    homes_renewed_per_batch=0,
    effects=Effects.none(),
    unseen_graphs=2,
)


@pytest.fixture(scope="module")
def batch(few_textures: TextureAtlas) -> StreamBatch:
    (batch,) = islice(RoomStream(STREAM, atlas=few_textures), 1)
    return batch


def test_a_match_lies_in_its_cell() -> None:
    xy = torch.tensor([[[[3.0, 9.0], [63.9, 47.9], [8.0, 0.0]]]])
    cell, offset = true_cells(TrueMatches(xy, torch.ones(1, 1, 3, dtype=torch.bool)), (48, 64))
    assert cell.flatten().tolist() == [8, 47, 1]
    assert_allclose(offset[0, 0], [[-1.5, -3.5], [3.4, 3.4], [-4.5, -4.5]], atol=1e-5)


def test_the_coarse_loss_is_the_log_of_the_right_cells_chance() -> None:
    nothing, log_asked = torch.zeros(1, 1, 2), torch.log(torch.tensor([[[0.9, 0.25]]]))
    matches = Matches(
        torch.zeros(1, 1, 2, 2),
        nothing,
        nothing.long(),
        nothing.bool(),
        nothing,
        nothing,
        log_asked=log_asked,
    )
    both, first = torch.tensor([[[True, True]]]), torch.tensor([[[True, False]]])
    assert_allclose(coarse_loss(matches, first), -0.5 * torch.log(torch.tensor(0.9)))
    assert_allclose(coarse_loss(matches, both), -0.25 * torch.log(torch.tensor(0.9 * 0.25)))
    assert coarse_loss(matches, ~both) == 0


def test_the_fine_loss_is_nothing_at_the_right_place() -> None:
    width = 2 * FINE_RADIUS + 1
    log_chance = torch.full((1, 1, width**2), -20.0)
    log_chance[0, 0, (FINE_RADIUS + 1) * width + FINE_RADIUS - 1] = 0.0  # one fine cell down, one to the left
    offset = torch.tensor([[[-2.0, 2.0]]])
    there = torch.ones(1, 1, dtype=torch.bool)
    assert fine_loss(offset, log_chance, offset, there) == 0
    assert fine_loss(offset + 1, log_chance, offset, there) > 0
    assert fine_loss(offset, log_chance, offset - 4, there) > 10


def test_the_shares_of_fine_cells_have_their_mean_at_the_place() -> None:
    """So that the chances that cost least are those whose expectation is right."""
    offset = torch.tensor([[-4.5, 3.5], [0.0, 0.0], [0.3, -1.7], [6.0, -6.0], [2.0, 1.0]])
    cell, share = fine_cells(offset)
    width = 2 * FINE_RADIUS + 1
    xy = 2.0 * torch.stack([cell % width - FINE_RADIUS, cell // width - FINE_RADIUS], dim=-1)
    assert_allclose((share[..., None] * xy).sum(dim=1), offset, atol=1e-5)
    assert_allclose(share.sum(dim=1), torch.ones(5), atol=1e-6)
    assert ((share >= 0) & (cell >= 0) & (cell < width**2)).all()


def test_the_cheapest_chances_are_the_shares() -> None:
    offset = torch.tensor([[[0.6, -1.0]]])
    cell, share = fine_cells(offset)
    there = torch.ones(1, 1, dtype=torch.bool)

    def cost(bend: float) -> float:
        chance = torch.full((1, 1, (2 * FINE_RADIUS + 1) ** 2), 1e-9)
        bent = share**bend / (share**bend).sum()
        return float(fine_loss(offset, chance.scatter(2, cell, bent).log(), offset, there))

    assert cost(1.0) < 1e-5 < min(cost(0.8), cost(1.25))


def test_fine_cells_outside_the_image_have_no_share() -> None:
    """The anchor of the last column has one fine cell to its right, and places in its cell lie up to 1.75 away."""
    log_chance = torch.zeros(1, 1, (2 * FINE_RADIUS + 1) ** 2)
    log_chance.unflatten(2, (2 * FINE_RADIUS + 1, -1))[..., FINE_RADIUS + 2 :] = -1e4
    offset = torch.tensor([[[3.5, 0.0]]])
    loss = fine_loss(offset, log_chance, offset, torch.ones(1, 1, dtype=torch.bool))
    assert loss.isfinite()
    assert abs(loss) < 1


def test_the_angle_between_rotations_agrees_with_the_metric() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (Pose.from_axis_angle(0.4 * torch.randn(50, 3, generator=generator), torch.zeros(50, 3)).R for _ in "ab")
    assert_allclose(torch.rad2deg(angle_between(a, b)), rotation_error_deg(a, b), rtol=1e-3)


def test_the_angle_has_a_gradient_where_rotations_agree() -> None:
    R = torch.eye(3, requires_grad=True)
    angle_between(R, torch.eye(3)).backward()
    assert R.grad is not None
    assert R.grad.isfinite().all()


def test_queries_from_elsewhere_have_no_pose_to_be_wrong_about() -> None:
    truth = Pose.from_axis_angle(torch.zeros(2, 3), torch.tensor([[0.0, 0, 0], [9.0, 0, 0]]))
    said = Pose.from_axis_angle(torch.zeros(2, 3), torch.zeros(2, 3))
    assert fused_loss(said, truth, torch.tensor([True, False])) < 0.01 < fused_loss(said, truth, torch.ones(2).bool())


def test_cells_that_are_seen_are_chosen_first() -> None:
    visible = torch.zeros(2, 40, dtype=torch.bool)
    visible[0, [3, 17]], visible[1, :20] = True, True
    chosen = some_of(visible, 10)
    assert {3, 17} <= set(chosen[0].tolist())
    assert (chosen[1] < 20).all()


def test_every_weight_learns_something(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    torch.nn.init.normal_(objective.model.head[3].weight, std=0.1)  # at zero, nothing before it has a gradient
    shown = torch.ones(2, 2, dtype=torch.bool)
    loss = objective(Shown(batch, shown, shown, tell_lenses=True))
    loss.backward()
    without = [name for name, weight in objective.named_parameters() if weight.grad is None or not weight.grad.any()]
    # Keys of a norm that only self-attention uses, or only cross-attention, are the exception.
    assert all("norm_other" in name for name in without), without
    assert set(objective.watched()) == set(LESSONS)


def test_the_pose_does_not_bend_the_matches(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    torch.nn.init.normal_(objective.model.head[3].weight, std=0.1)
    answers = objective.answer(batch)
    answers.T_world_query.t.sum().backward()
    assert all(weight.grad is None for weight in objective.model.encoder.parameters())
    assert any(weight.grad is not None for weight in objective.model.edge.parameters())


def test_references_that_the_pose_is_not_shown_teach_matching_all_the_same(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY)).eval()
    costs = []
    for ref_mask in (torch.tensor([[True, True], [True, True]]), torch.tensor([[True, False], [True, False]])):
        objective(Shown(batch, ref_mask, tell_lenses=False))
        costs.append(objective.watched())
    everything, one = costs
    assert everything["coarse"] == one["coarse"]
    assert everything["seen"] == one["seen"]
    assert everything["edge"] != one["edge"]


def test_lessons_on_one_batch_are_learned(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    optimizer = torch.optim.Adam(objective.parameters(), lr=3e-3)
    shown = torch.ones(2, 2, dtype=torch.bool)
    first, last = None, None
    for _ in range(40):
        loss = objective(Shown(batch, shown, tell_lenses=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = {name: float(value) for name, value in objective.watched().items()}
        first = first or last
    assert first is not None
    assert last is not None
    for lesson in ("coarse", "seen", "fine", "edge"):
        assert last[lesson] < 0.7 * first[lesson], lesson


def drill_loss(objective: MatchObjective, batch: StreamBatch, *, tell_lenses: bool) -> Tensor:
    assert batch.unseen is not None
    questions = objective.drill_questions(batch.unseen, torch.ones(2, 2, dtype=torch.bool), tell_lenses=tell_lenses)
    (lessons,) = objective.pose_lessons([questions])
    return objective.weighted(lessons)


def test_graphs_that_are_answered_together_are_answered_as_alone(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    torch.nn.init.normal_(objective.model.head[3].weight, std=0.1)
    assert batch.unseen is not None
    shown = torch.ones(2, 2, dtype=torch.bool)
    asked = [objective.drill_questions(batch.unseen, shown, tell_lenses=told) for told in (True, False)]
    together, alone = objective.pose_lessons(asked), [objective.pose_lessons([questions])[0] for questions in asked]
    assert together[0]["edge"] != together[1]["edge"]
    torch.testing.assert_close(together, alone)


def test_lessons_without_photographs_teach_the_poses_alone(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    torch.nn.init.normal_(objective.model.head[3].weight, std=0.1)
    drill_loss(objective, batch, tell_lenses=False).backward()
    model = objective.model
    for untouched in (model.encoder, model.matcher, model.descriptor):
        assert all(weight.grad is None for weight in untouched.parameters())
    assert all(weight.grad is not None for weight in model.head.parameters())


def test_poses_are_learned_without_photographs(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    optimizer = torch.optim.Adam(objective.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        torch.manual_seed(1)  # the same errors in every step, or luck would decide
        loss = drill_loss(objective, batch, tell_lenses=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_a_drill_that_is_not_asked_for_costs_nothing(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    objective(Shown(batch, torch.ones(2, 2, dtype=torch.bool), tell_lenses=True))
    assert objective.watched()["drill"] == 0


def test_nobody_is_asked_where_a_query_was_taken_that_no_reference_sees() -> None:
    T_world_ref = Pose.from_axis_angle(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
    truth = Pose.from_axis_angle(torch.zeros(1, 3), torch.tensor([[5.0, 0.0, 0.0]]))
    edge = torch.zeros(1, 2)
    answers = PoseAnswers(T_world_ref, torch.zeros(1, 2, 2), edge, T_world_ref[:, 0])
    T_world_cam = Pose.cat([truth[:, None], T_world_ref], dim=1)
    flow = Flow(*(torch.zeros(1, 2, 4, 2),) * 2, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4, 2), (2, 2))
    shown, here = torch.ones(1, 2, dtype=torch.bool), torch.ones(1, dtype=torch.bool)

    def lessons(overlap: list[float], shown: Tensor = shown, here: Tensor = here) -> dict[str, float]:
        questions = PoseQuestions(flow, T_world_cam, torch.tensor([overlap]), shown, here)
        losses = pose_lessons(answers, questions)
        return {name: float(loss) for name, loss in losses.items()}

    assert lessons([0.3, 0.0])["fused"] > 4
    assert lessons([0.0, 0.0])["fused"] == 0
    assert lessons([0.0, 0.3], shown=torch.tensor([[True, False]]))["fused"] == 0
    assert lessons([0.0, 0.0])["edge"] > 4  # an edge can say that it does not know
    assert lessons([0.3, 0.3], here=~here)["edge"] == 0


def test_no_gradient_connects_what_is_learned_apart(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    torch.nn.init.normal_(objective.model.head[3].weight, std=0.1)
    seeing, posing = objective.learned_apart()
    assert len(seeing) + len(posing) == len(list(objective.parameters()))
    shown = torch.ones(2, 2, dtype=torch.bool)
    for lessons, others in (
        (("edge", "fused", "overlap", "drill"), seeing),
        (("coarse", "seen", "fine", "retrieval"), posing),
    ):
        objective.config = MatchLossConfig(**{lesson: float(lesson in lessons) for lesson in LESSONS})
        objective.zero_grad(set_to_none=True)
        objective(Shown(batch, shown, shown, tell_lenses=True)).backward()
        assert not any(weight.grad is not None and weight.grad.any() for weight in others)


def test_a_large_gradient_of_the_pose_leaves_that_of_the_matches(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY))
    seeing, posing = objective.learned_apart()
    for weight in seeing:
        weight.grad = torch.full_like(weight, 1e-6)
    posing[0].grad = torch.full_like(posing[0], 1e6)
    clip_gradients(objective, 1.0)
    assert_allclose(seeing[0].grad, 1e-6 * torch.ones_like(seeing[0]))
    assert_allclose(posing[0].grad.norm(), 1.0, rtol=1e-4)


def test_matching_without_laying_out_all_chances_teaches_the_same(batch: StreamBatch) -> None:
    torch.manual_seed(0)
    plain = MatchObjective(MatchGNN(TINY))
    fused = copy.deepcopy(plain)
    fused.model.matcher.kernels = MatchKernels()
    shown = Shown(batch, torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool), tell_lenses=True)
    for objective in (plain, fused):
        torch.manual_seed(1)
        objective(shown).backward()
    for name in LESSONS:
        assert_allclose(fused.watched()[name], plain.watched()[name], rtol=1e-5, atol=1e-6, err_msg=name)
    gradients = dict(fused.named_parameters())
    for name, weight in plain.named_parameters():
        difference = (gradients[name].grad - weight.grad).norm()
        assert difference < 1e-3 * weight.grad.norm() + 1e-6, name


def test_retrieval_learns_which_images_see_the_same_graph_by_graph(batch: StreamBatch) -> None:
    """Queries are encoded before references, and descriptors come back in the order of the batch."""
    torch.manual_seed(0)
    objective = MatchObjective(MatchGNN(TINY)).eval()
    found = objective.describe(objective.encode(batch), len(batch.overlap))
    images = batch.images.flatten(0, 1).permute(0, 2, 3, 1)
    each = torch.cat([objective.model.descriptor(objective.model.encode(image[None]).context) for image in images])
    assert_allclose(found.detach(), each.detach(), atol=1e-5)
