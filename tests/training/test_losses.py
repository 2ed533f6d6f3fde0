"""The paper's loss: its numbers by hand, and where its learned weights come to rest."""

import math

import pytest
import torch

from relograph.training.losses import INITIAL_BETA, INITIAL_GAMMA, PoseLoss, pose_distance

TRUTH = torch.tensor([1.0, 2.0, 3.0, 0.1, 0.2, 0.3])
OFF_BY_6_METRES_AND_A_HALF = torch.tensor([1.0, -2.0, 3.0, 0.1, 0.25, -0.15])
"""From the truth: errors add up to 6 metres along the axes and to 0.5 in the log of the quaternion."""
OFF = TRUTH + OFF_BY_6_METRES_AND_A_HALF


def test_the_distance_is_the_papers_formula() -> None:
    beta, gamma = 0.5, -1.0
    by_hand = 6 * math.exp(-0.5) + 0.5 + 0.5 * math.exp(1.0) - 1.0
    assert pose_distance(OFF, TRUTH, beta, gamma).item() == pytest.approx(by_hand, rel=1e-6)


def test_the_fixed_loss_has_the_weights_that_training_starts_from() -> None:
    assert (INITIAL_BETA, INITIAL_GAMMA) == (0.0, -3.0)
    assert pose_distance(OFF, TRUTH).item() == pytest.approx(6 + 0.5 * math.exp(3.0) - 3.0, rel=1e-6)
    start = PoseLoss()
    assert (start.beta.item(), start.gamma.item()) == (0.0, -3.0)


def test_a_perfect_answer_leaves_the_two_weights_alone() -> None:
    assert pose_distance(TRUTH, TRUTH, 0.25, -0.75).item() == pytest.approx(-0.5)


def test_each_error_counts_whatever_its_sign() -> None:
    assert torch.equal(pose_distance(TRUTH + (OFF - TRUTH), TRUTH), pose_distance(TRUTH - (OFF - TRUTH), TRUTH))


def test_the_loss_is_a_sum_over_the_poses_that_are_there() -> None:
    loss = PoseLoss()
    said = torch.stack([OFF, TRUTH, OFF])
    there = torch.tensor([True, True, False])
    expected = pose_distance(OFF, TRUTH) + pose_distance(TRUTH, TRUTH)
    torch.testing.assert_close(loss(said, TRUTH.expand(3, 6), there), expected)


def test_a_pose_that_is_not_there_gets_no_gradient() -> None:
    said = torch.stack([OFF, OFF]).requires_grad_()
    PoseLoss()(said, TRUTH.expand(2, 6), torch.tensor([True, False])).backward()
    assert (said.grad[0] != 0).all()
    assert (said.grad[1] == 0).all()


@pytest.mark.parametrize(("weight", "rest"), [("beta", math.log(6.0)), ("gamma", math.log(0.5))])
def test_a_weight_rests_at_the_log_of_its_error(weight: str, rest: float) -> None:
    # d/dw (E e^-w + w) = 0 at w = log E, and it is a minimum: the gradient points away on both sides.
    gradients = []
    for at in (rest - 0.5, rest, rest + 0.5):
        loss = PoseLoss()
        with torch.no_grad():
            getattr(loss, weight).fill_(at)
        loss(OFF[None], TRUTH[None], torch.tensor([True])).backward()
        gradients.append(getattr(loss, weight).grad.item())
    assert gradients[0] < -0.1
    assert gradients[1] == pytest.approx(0.0, abs=1e-6)
    assert gradients[2] > 0.1


def test_answers_in_bfloat16_are_compared_in_float32() -> None:
    said = torch.tensor([[100.0, 0.0, 0.0, 0.0, 0.0, 0.0]]).bfloat16()
    truth = torch.tensor([[99.9, 0.0, 0.0, 0.0, 0.0, 0.0]])  # bfloat16 would round it to 100
    assert pose_distance(said, truth, 0.0, 0.0).item() == pytest.approx(0.1, rel=1e-4)
