"""MatchGNN: what must not matter does not, what must matter does, and its parts agree with slow ones."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.testing import assert_close

from relograph.errors import ConfigError
from relograph.geometry import Pose, rotation_error_deg
from relograph.graphs.correspondence import Lenses, cell_anchors
from relograph.models.match_gnn import (
    COARSE_STRIDE,
    FINE_RADIUS,
    FINE_STRIDE,
    ImageFeatures,
    MatchAnswers,
    MatchConfig,
    Matches,
    MatchGNN,
    at_anchors,
    cell_places,
    fine_offset,
    fuse,
    gently_within,
    residual_rotation,
)
from relograph.training.presets import MATCHGNN_TINY

TINY = replace(MATCHGNN_TINY.model, rounds=2)
HEIGHT, WIDTH = 48, 64


@pytest.fixture(scope="module")
def network() -> MatchGNN:
    """Random weights, also in the last layer, which starts at zero: an untrained network says "not moved" to all."""
    torch.manual_seed(0)
    network = MatchGNN(TINY)
    for parameter in network.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network.double().eval()


def poses(*shape: int, seed: int = 0) -> Pose:
    generator = torch.Generator().manual_seed(seed)
    rotvec, t = (torch.randn(*shape, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return Pose.from_axis_angle(0.4 * rotvec, t)


def photos(count: int, seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=generator)


def features(network: MatchGNN, images: Tensor) -> ImageFeatures:
    """In float64, where order and padding cannot hide in rounding."""
    return network.encode(images.double())


@torch.no_grad()
def answer(
    network: MatchGNN, num_references: int = 4, T_world_ref: Pose | None = None, **options: object
) -> MatchAnswers:
    query = features(network, photos(1))
    references = features(network, photos(num_references, seed=1))
    T_world_ref = poses(1, num_references) if T_world_ref is None else T_world_ref
    there = torch.ones(1, num_references, dtype=torch.bool)
    return network(query, references, T_world_ref, there, **options)


def assert_poses_close(one: Pose, other: Pose, atol: float = 1e-8) -> None:
    assert_allclose(one.R, other.R, atol=atol)
    assert_allclose(one.t, other.t, atol=atol)


def test_moving_the_world_moves_the_answer_with_it(network: MatchGNN) -> None:
    T_new_world = poses(1, seed=5)
    here, moved = answer(network), answer(network, T_world_ref=T_new_world[:, None] @ poses(1, 4))
    assert_poses_close(moved.T_world_query, T_new_world @ here.T_world_query)
    assert_poses_close(moved.T_ref_query, here.T_ref_query)


@torch.no_grad()
def test_the_order_of_the_references_does_not_matter(network: MatchGNN) -> None:
    order = torch.tensor([2, 0, 3, 1])
    query, references, T_world_ref = features(network, photos(1)), features(network, photos(4, seed=1)), poses(1, 4)
    there = torch.ones(1, 4, dtype=torch.bool)
    plain = network(query, references, T_world_ref, there)
    turned = network(query, references[order], T_world_ref[:, order], there)
    assert_poses_close(turned.T_world_query, plain.T_world_query)
    assert_poses_close(turned.T_ref_query, plain.T_ref_query[:, order])


@torch.no_grad()
def test_references_that_are_not_there_do_not_matter(network: MatchGNN) -> None:
    query, references, T_world_ref = features(network, photos(1)), features(network, photos(4, seed=1)), poses(1, 4)
    few = network(query, references[:2], T_world_ref[:, :2], torch.ones(1, 2, dtype=torch.bool))
    padded = network(query, references, T_world_ref, torch.tensor([[True, True, False, False]]))
    assert_poses_close(padded.T_world_query, few.T_world_query)


@torch.no_grad()
@pytest.mark.parametrize("num_there", [2, 4])
def test_references_that_are_not_there_do_not_matter_to_the_last_layer(network: MatchGNN, num_there: int) -> None:
    """Nor do their order and the world's place, as it hears matches of all references at once."""
    network = copy.deepcopy(network)
    network.matcher.log_temperature.fill_(5.0)  # random weights are sure of nothing else, and nothing would settle
    query, references, T_world_ref = features(network, photos(1)), features(network, photos(6, seed=1)), poses(1, 6)
    T_new_world = poses(1, seed=5)

    def settled(order: list[int], num_there: int, T_world_ref: Pose) -> Pose:
        matches = network.matcher(query, references[torch.tensor(order)], len(order))
        flows = network.flows(matches, (HEIGHT, WIDTH), (HEIGHT, WIDTH), None, None)
        there = torch.arange(len(order))[None] < num_there
        return network.answer(matches.mutual, flows, T_world_ref[:, order], there).settled.T_world_query

    first = list(range(num_there))
    few = settled(first, num_there, T_world_ref)
    assert_poses_close(settled(list(range(6)), num_there, T_world_ref), few)
    assert_poses_close(settled(first[::-1], num_there, T_world_ref), few)
    assert_poses_close(settled(first, num_there, T_new_world[:, None] @ T_world_ref), T_new_world @ few)


def test_the_poses_of_the_references_are_used(network: MatchGNN) -> None:
    plain, shuffled = answer(network), answer(network, T_world_ref=poses(1, 4)[:, [1, 0, 3, 2]])
    moved = (plain.T_ref_query.t - shuffled.T_ref_query.t).norm(dim=-1)
    assert (moved > 1e-3).all()  # not only through the frame: what an edge says changes too


def test_the_answer_is_no_references_pose(network: MatchGNN) -> None:
    answered, T_world_ref = answer(network).T_world_query, poses(1, 4)
    assert ((answered.t[:, None] - T_world_ref.t).norm(dim=-1) > 1e-3).all()
    assert (rotation_error_deg(answered.R[:, None].expand(-1, 4, -1, -1), T_world_ref.R) > 0.1).all()


def with_config(network: MatchGNN, **changes: object) -> MatchGNN:
    """The same weights in a network that lacks an ingredient, or has one more."""
    other = MatchGNN(replace(TINY, **changes)).double().eval()
    other.load_state_dict(network.state_dict())
    return other


def test_without_the_maps_poses_an_edge_says_the_same_wherever_the_others_stand(network: MatchGNN) -> None:
    ablated = with_config(network, map_poses=False)
    plain, shuffled = answer(ablated), answer(ablated, T_world_ref=poses(1, 4)[:, [1, 0, 3, 2]])
    assert_poses_close(plain.T_ref_query, shuffled.T_ref_query)
    assert (plain.T_ref_query.t - answer(network).T_ref_query.t).abs().max() > 1e-3


def test_without_the_fine_level_places_are_the_middles_of_cells(network: MatchGNN) -> None:
    fine, coarse = answer(network).matches, answer(with_config(network, fine_places=False)).matches
    assert torch.equal(coarse.best, fine.best)
    anchors = cell_anchors(HEIGHT, WIDTH, COARSE_STRIDE, torch.device("cpu")).double()
    assert_allclose(coarse.xy, anchors[coarse.best])
    assert_allclose(coarse.sigma_px, 8 / math.sqrt(12))
    assert not torch.equal(fine.xy, coarse.xy)


@pytest.mark.parametrize("taught", [False, True])
def test_poses_teach_matches_only_where_they_are_to(network: MatchGNN, taught: bool) -> None:
    pupil = with_config(network, pose_teaches_matches=taught)
    query, references = features(pupil, photos(1)), features(pupil, photos(4, seed=1))
    answers = pupil(query, references, poses(1, 4), torch.ones(1, 4, dtype=torch.bool))
    assert_poses_close(answers.T_world_query.detach(), answer(network).T_world_query)  # it says the same
    answers.T_world_query.t.sum().backward()
    reached = [parameter.grad is not None and bool(parameter.grad.any()) for parameter in pupil.encoder.parameters()]
    assert any(reached) == taught
    assert all(parameter.grad.isfinite().all() for parameter in pupil.parameters() if parameter.grad is not None)
    assert pupil.matcher.log_temperature.grad is not None or not taught


@pytest.mark.parametrize("num_references", [1, 7, 32])
def test_any_number_of_references(network: MatchGNN, num_references: int) -> None:
    answered = answer(network, num_references)
    assert answered.T_ref_query.batch_shape == (1, num_references)
    assert answered.T_world_query.t.isfinite().all()
    assert_allclose(torch.linalg.det(answered.T_world_query.R), [1.0], atol=1e-9)


def test_lenses_that_are_known_change_the_answer(network: MatchGNN) -> None:
    K = torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]], dtype=torch.float64)
    query = Lenses(K.expand(1, 3, 3), torch.zeros(1, 2, dtype=torch.float64))
    references = Lenses(K.expand(1, 4, 3, 3), torch.zeros(1, 4, 2, dtype=torch.float64))
    told = answer(network, query_lenses=query, ref_lenses=references)
    assert (told.T_world_query.t - answer(network).T_world_query.t).norm() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("knows", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_the_pose_network_is_told_all_lenses_or_none_and_the_last_layer_what_is_known(
    network: MatchGNN, knows: tuple[bool, bool]
) -> None:
    matches = answer(network, num_references=2).matches
    hw = (HEIGHT, WIDTH)
    lenses = [of if is_known else None for of, is_known in zip(lens(), knows, strict=True)]
    flows = network.flows(matches, hw, hw, *lenses)
    assert flows.known.knows[0, 0, 0].tolist() == [float(is_known) for is_known in knows]
    assert flows.told.knows[0, 0, 0].tolist() == [float(all(knows))] * 2
    assert flows.untold.knows[0, 0, 0].tolist() == [0.0, 0.0]
    assert torch.equal(flows.told.here, flows.untold.here) != all(knows)
    assert torch.equal(flows.known.there, flows.untold.there) != knows[1]


@torch.no_grad()
@pytest.mark.parametrize("knows", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_answers_are_those_of_lenses_as_they_are_told_and_doubts_those_of_none(
    network: MatchGNN, knows: tuple[bool, bool]
) -> None:
    matches = answer(network, num_references=2).matches
    everything, T_world_ref = torch.ones(1, 2, dtype=torch.bool), poses(1, 2)
    lenses = [of if is_known else None for of, is_known in zip(lens(), knows, strict=True)]
    flows = network.flows(matches, (HEIGHT, WIDTH), (HEIGHT, WIDTH), *lenses)
    found = network.answer(matches.mutual, flows, T_world_ref, everything)
    for flow, told, settled in (
        (flows.known, flows.told, found.settled),
        (flows.untold, flows.untold, found.doubting),
    ):
        edges = network.pose(told, T_world_ref, everything)
        alone = network.settle(edges, matches.mutual, flow, T_world_ref, everything)
        assert_close(settled.T_world_query.matrix(), alone.T_world_query.matrix(), atol=1e-6, rtol=0)
        assert_close(settled.log_focal, alone.log_focal, atol=1e-6, rtol=0)
    told_edges = network.pose(flows.told, T_world_ref, everything)
    assert_close(found.edges.T_ref_query.matrix(), told_edges.T_ref_query.matrix(), atol=1e-9, rtol=0)
    assert_close(found.edges.log_sigma, told_edges.log_sigma, atol=1e-9, rtol=0)


@torch.no_grad()
def test_an_upright_query_among_wide_references(network: MatchGNN) -> None:
    query, references = features(network, photos(1, height=WIDTH, width=HEIGHT)), features(network, photos(3, seed=1))
    answered = network(query, references, poses(1, 3), torch.ones(1, 3, dtype=torch.bool))
    assert answered.matches.xy.shape == (1, 3, WIDTH * HEIGHT // COARSE_STRIDE**2, 2)
    assert (answered.matches.xy[..., 0] < WIDTH + FINE_RADIUS * FINE_STRIDE).all()


def matches_of(xy: Tensor, confidence: Tensor) -> Matches:
    nothing = torch.zeros_like(confidence)
    return Matches(xy, confidence, nothing.long(), nothing.bool(), nothing, nothing)


def lens() -> tuple[Lenses, Lenses]:
    """Of one query, and of its two references."""
    K = torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]], dtype=torch.float64)
    none = torch.zeros(2, dtype=torch.float64)
    return Lenses(K.expand(1, 3, 3), none.expand(1, 2)), Lenses(K.expand(1, 2, 3, 3), none.expand(1, 2, 2))


def test_a_fresh_network_says_that_the_camera_only_turned() -> None:
    """Points so far away that only the turn of the camera moves them: the turn is the answer, at the same place."""
    fresh = MatchGNN(TINY).double().eval()
    T_ref_query = Pose.from_axis_angle([[0.1, -0.05, 0.02], [0.0, 0.15, -0.6]], torch.zeros(2, 3))
    query_lens, ref_lens = lens()
    anchors = cell_anchors(HEIGHT, WIDTH, COARSE_STRIDE).double()
    rays = torch.nn.functional.pad(query_lens.rays(anchors[None])[0], (0, 1), value=1.0)
    xy = ref_lens.pixels(T_ref_query.apply(rays.expand(2, -1, -1))[None])
    matches = matches_of(xy, torch.ones(1, 2, len(anchors), dtype=torch.float64))
    flow = fresh.flow(matches, (HEIGHT, WIDTH), (HEIGHT, WIDTH), query_lens, ref_lens)
    with torch.no_grad():
        answered = fresh.regress(matches, flow, poses(1, 2), torch.ones(1, 2, dtype=torch.bool))
    assert_poses_close(answered.T_ref_query, T_ref_query[None], atol=1e-6)
    assert_allclose(flow.parallax(flow.turn())[:, 2:4], torch.zeros(2, 2, 6, 8), atol=1e-6)


def test_turning_a_reference_does_not_change_parallax() -> None:
    """What is left when the turn is taken away belongs to the places of the cameras, not to where they look."""
    query_lens, ref_lens = lens()
    anchors = cell_anchors(HEIGHT, WIDTH, COARSE_STRIDE).double()
    generator = torch.Generator().manual_seed(0)
    depth = 1.5 + 2 * torch.rand(1, len(anchors), 1, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.pad(query_lens.rays(anchors[None]), (0, 1), value=1.0) * depth
    T_ref_query = Pose.from_axis_angle([[0.0, 0.0, 0.0], [0.05, -0.1, 0.4]], [[0.3, 0.0, 0.1], [0.0, 0.0, 0.0]])
    moved = T_ref_query.t[0].expand(2, 3)  # the same place, seen by references that look elsewhere
    in_refs = (T_ref_query.R @ (points[0] + moved[:, None])[..., None].squeeze(-1).mT).mT
    matches = matches_of(ref_lens.pixels(in_refs[None]), torch.ones(1, 2, len(anchors), dtype=torch.float64))
    flow = MatchGNN(TINY).flow(matches, (HEIGHT, WIDTH), (HEIGHT, WIDTH), query_lens, ref_lens)
    parallax = flow.parallax(flow.turn())[:, 2:4]
    assert parallax.abs().max() > 0.05
    assert_allclose(parallax[0], parallax[1], atol=1e-3)


def test_wrong_matches_without_confidence_are_not_seen() -> None:
    anchors = cell_anchors(HEIGHT, WIDTH, COARSE_STRIDE).double()
    confidence = torch.ones(1, 1, len(anchors), dtype=torch.float64)
    confidence[..., :10] = 0
    xy = anchors.expand(1, 1, -1, -1) + 3.0
    wrong = xy.clone()
    wrong[..., :10, :] = torch.nan
    network = MatchGNN(TINY)
    plain, spoilt = (
        network.flow(matches_of(some, confidence), (HEIGHT, WIDTH), (HEIGHT, WIDTH), None, None) for some in (xy, wrong)
    )
    assert_allclose(spoilt.parallax(spoilt.turn()), plain.parallax(plain.turn()), atol=1e-5)


@torch.no_grad()
def test_an_image_compared_with_itself_is_compared_both_ways_alike(network: MatchGNN) -> None:
    same = features(network, photos(1))
    log_coarse = network.matcher(same, same, 1).log_coarse[0, 0]
    assert_allclose(log_coarse, log_coarse.mT, atol=1e-10)


@torch.no_grad()
def test_the_chances_are_a_softmax_over_both_images(network: MatchGNN) -> None:
    query, reference = features(network, photos(1)), features(network, photos(1, seed=3))
    matches = network.matcher(query, reference, 1)
    q = network.matcher.describe(query.context, query.coarse, network.matcher.show(reference.context))
    r = network.matcher.describe(reference.context, reference.coarse, network.matcher.show(query.context))
    seen = network.matcher.seen(q).flatten(1)
    score = torch.exp(network.matcher.log_temperature) * (q[0] @ r[0].T) / 4
    chance = score.softmax(dim=1) * score.softmax(dim=0)
    assert_allclose(matches.log_coarse[0, 0].exp(), chance, atol=1e-12)
    assert_allclose(matches.confidence[0, 0], chance.amax(dim=1).sqrt() * seen[0].sigmoid(), atol=1e-12)
    assert (matches.best[0, 0] == chance.argmax(dim=1)).all()


def test_the_fine_place_agrees_with_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    query_fine, ref_fine = (torch.randn(1, 5, 24, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    query_cell, ref_cell = torch.tensor([[0, 13, 47]]), torch.tensor([[9, 47, 0]])
    fine = at_anchors(query_fine)[:, query_cell[0]]
    expected, log_chance = fine_offset(fine, ref_fine, ref_cell)
    columns = 32 // (COARSE_STRIDE // FINE_STRIDE)
    for i in range(3):
        (q_row, q_column), (r_row, r_column) = (
            (4 * (cell // columns) + 2, 4 * (cell % columns) + 2)
            for cell in (int(query_cell[0, i]), int(ref_cell[0, i]))
        )
        scores, steps = [], []
        for dy in range(-FINE_RADIUS, FINE_RADIUS + 1):
            for dx in range(-FINE_RADIUS, FINE_RADIUS + 1):
                y, x = r_row + dy, r_column + dx
                inside = 0 <= y < 24 and 0 <= x < 32
                product = float(query_fine[0, :, q_row, q_column] @ ref_fine[0, :, y, x]) if inside else -math.inf
                scores.append(product / 5**0.5)
                steps.append((FINE_STRIDE * dx, FINE_STRIDE * dy))
        chance = torch.tensor(scores, dtype=torch.float64).softmax(dim=0)
        assert_allclose(log_chance[0, i].exp(), chance, atol=1e-12)
        assert_allclose(expected[0, i], chance @ torch.tensor(steps, dtype=torch.float64), atol=1e-12)


def test_gentle_bounds_hold_and_let_gradients_through() -> None:
    x = torch.tensor([-100.0, -9.0, -3.0, -1.0, 4.0, 100.0], dtype=torch.float64, requires_grad=True)
    bounded = gently_within(x, -7.0, 3.0)
    assert_allclose(bounded.detach(), [-7.0, -6.873, -2.982, -1.016, 2.687, 3.0], atol=0.003)
    (slope,) = torch.autograd.grad(bounded.sum(), x)
    assert (slope[1:5] > 0.1).all()


def test_a_residual_of_zero_is_the_identity_and_any_other_a_rotation() -> None:
    residual = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    R = residual_rotation(residual)
    assert_allclose(R @ R.mT, torch.eye(3, dtype=torch.float64).expand(20, 3, 3), atol=1e-12)
    assert_allclose(torch.linalg.det(R), torch.ones(20), atol=1e-12)
    assert_allclose(residual_rotation(torch.zeros(6, dtype=torch.float64)), torch.eye(3), atol=1e-15)


def test_a_sure_edge_outweighs_unsure_ones() -> None:
    T_world_query = poses(1, 3)
    log_sigma = torch.tensor([[[-6.0, -6.0], [0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    fused = fuse(T_world_query, log_sigma, torch.ones(1, 3, dtype=torch.bool))
    assert_allclose(fused.t, T_world_query.t[:, 0], atol=1e-4)
    assert rotation_error_deg(fused.R, T_world_query.R[:, 0]).item() < 0.01


@pytest.mark.parametrize("off", [0.0, 1e-9, 1e-4, 0.02])
def test_where_edges_are_half_a_turn_apart_the_surest_decides_and_its_gradient_is_bounded(off: float) -> None:
    turn = torch.tensor([[[0.0, 0.0, 0.0], [0.0, 0.0, torch.pi - off]]], dtype=torch.float64, requires_grad=True)
    log_sigma = torch.tensor([[[0.0, 0.0], [0.0, 1e-3]]], dtype=torch.float64)
    edges = Pose.from_axis_angle(turn, torch.zeros(1, 2, 3, dtype=torch.float64))
    fused = fuse(edges, log_sigma, torch.ones(1, 2, dtype=torch.bool))
    assert_allclose(fused.R.detach(), torch.eye(3)[None], atol=1e-12)
    fused.R.sum().backward()
    assert turn.grad is not None
    assert turn.grad.norm() < 50


def test_edges_that_agree_are_fused_exactly() -> None:
    T = poses(1)
    same = Pose(T.R[:, None].expand(1, 3, 3, 3), T.t[:, None].expand(1, 3, 3))
    fused = fuse(same, torch.zeros(1, 3, 2, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool))
    assert_poses_close(fused, T, atol=1e-12)


def test_anchors_lie_in_the_middle_pixel_of_their_cell() -> None:
    anchors = cell_anchors(HEIGHT, WIDTH, COARSE_STRIDE)
    assert len(anchors) == 6 * 8
    assert anchors[0].tolist() == [4.5, 4.5]
    assert anchors[-1].tolist() == [WIDTH - 3.5, HEIGHT - 3.5]


def test_descriptors_have_unit_length(network: MatchGNN) -> None:
    with torch.no_grad():
        descriptors = network.descriptor(features(network, photos(3)).context)
    assert_allclose(descriptors.norm(dim=1), torch.ones(3), atol=1e-6)


def test_the_shipped_size_fits_its_bound() -> None:
    with torch.device("meta"):
        network = MatchGNN()
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) <= 36e6  # bytes in fp16


def test_heads_must_divide_the_channels() -> None:
    with pytest.raises(ConfigError, match=r"multiples of match\.heads"):
        MatchConfig(context_channels=100)


@torch.no_grad()
def test_matching_pair_by_pair_says_the_same(network: MatchGNN) -> None:
    query, references = features(network, photos(1)), features(network, photos(3, seed=1))
    kept, dropped = network.matcher(query, references, 3), network.matcher(query, references, 3, keep_log_coarse=False)
    assert dropped.log_coarse is None
    for name in ("xy", "confidence", "best", "mutual", "sigma_px", "seen"):
        assert_allclose(getattr(dropped, name), getattr(kept, name), atol=1e-12, err_msg=name)


@pytest.mark.parametrize("log_temperature", [0.0, 6.0])  # at the second, scores are hundreds apart
@torch.no_grad()
def test_chances_that_are_not_kept_are_the_same(network: MatchGNN, log_temperature: float) -> None:
    matcher = copy.deepcopy(network.matcher)
    matcher.log_temperature.fill_(log_temperature)
    q, r = torch.randn(2, 3, 20, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pair_by_pair = [matcher.passing_log_chance(*pair) for pair in zip(q.split(1), r.split(1), strict=True)]
    assert_allclose(torch.cat(pair_by_pair), matcher.log_chance(q, r), atol=1e-9)


@torch.no_grad()
def test_chances_that_are_not_kept_are_not_rounded_within_autocast(network: MatchGNN) -> None:
    q, r = torch.randn(2, 1, 20, 16, generator=torch.Generator().manual_seed(0))
    matcher = copy.deepcopy(network.matcher).float()
    wanted = matcher.passing_log_chance(q, r)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_allclose(matcher.passing_log_chance(q, r), wanted, atol=1e-6)


@torch.no_grad()
def test_a_match_is_mutual_where_both_cells_choose_each_other(network: MatchGNN) -> None:
    query, references = features(network, photos(1)), features(network, photos(2, seed=1))
    matches = network.matcher(query, references, 2)
    chance = matches.log_coarse[0]
    for ref in range(2):
        for cell in range(chance.shape[1]):
            best = int(chance[ref, cell].argmax())
            assert matches.mutual[0, ref, cell] == (int(chance[ref, :, best].argmax()) == cell)
    assert 0 < matches.mutual.sum() < matches.mutual.numel()


def test_the_spread_of_a_place_is_that_of_its_chances() -> None:
    fine = torch.zeros(1, 1, 8, dtype=torch.float64)  # all places look alike
    log_coarse = torch.zeros(1, 1, 1, dtype=torch.float64)
    ref_fine = torch.zeros(1, 8, 4, 4, dtype=torch.float64)  # one cell, whose window is cut on all sides
    *_, sigma_px = cell_places(log_coarse, fine, ref_fine)
    steps_px = torch.tensor([-4.0, -2.0, 0.0, 2.0], dtype=torch.float64)
    assert_allclose(sigma_px, steps_px.std(correction=0).view(1, 1))


def test_the_features_of_a_cell_look_at_its_anchor(network: MatchGNN) -> None:
    """Where an image is turned by half, features turn about the anchors: else rolled views match half a cell off."""
    image = torch.full((1, 64, 64, 3), 100.0, dtype=torch.float64, requires_grad=True)
    entering: list[Tensor] = []
    hook = network.encoder.to_eighth.register_forward_pre_hook(lambda _, inputs: entering.extend(inputs))
    network.encode(image)
    hook.remove()
    middle_tap = network.encoder.to_eighth[0].conv1.weight[:, :, 1:2, 1:2]
    centre = torch.nn.functional.conv2d(entering[0], middle_tap, stride=2)
    (gradient,) = torch.autograd.grad(centre[0, :, 3, 3].sum(), image)
    rows = gradient.abs().sum(dim=(0, 2, 3)).nonzero().squeeze(1)
    assert (rows.min() + rows.max()) / 2 == 3 * COARSE_STRIDE + COARSE_STRIDE // 2


@torch.no_grad()
def test_places_keep_their_pixels_where_the_network_is_rounded() -> None:
    """In bfloat16, 250.5 and 251.5 are the same number."""
    torch.manual_seed(0)
    fine, ref_fine = torch.randn(1, 2 * 40, 8), torch.randn(1, 8, 8, 160)
    log_coarse = torch.randn(1, 80, 80).log_softmax(dim=-1)
    exact = cell_places(log_coarse, fine, ref_fine)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = cell_places(log_coarse, fine, ref_fine)
    assert rounded[3].dtype == torch.float32
    assert exact[3][..., 0].max() > 256
    assert_allclose(rounded[3], exact[3], atol=1e-3)
