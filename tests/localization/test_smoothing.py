"""Walks through rendered rooms, measured as a Localizer would: noisy, now and then refused, now and then wrong."""

import numpy as np
import pytest
import torch
from made_answers import localized, refused

from relograph.errors import GeometryError
from relograph.geometry import Pose, pose_error
from relograph.localization.localizer import Answer
from relograph.localization.smoothing import smooth_answers
from relograph.rooms.layout import make_home
from relograph.rooms.seven_rooms import LAYOUT
from relograph.rooms.walks import STEP_S, walk
from rooms.tiny_rooms import RANGE_BY_FAMILY

SIGMA_M, SIGMA_RAD = 0.03, 0.01
EVERY = 3
NUM_FRAMES = 100


@pytest.fixture(scope="module")
def path() -> tuple[Pose, list[float]]:
    """Where a camera that somebody carries through a room is, ten times a second."""
    home = make_home(11, RANGE_BY_FAMILY, LAYOUT)
    steps = walk(home, np.random.default_rng(5), NUM_FRAMES * EVERY)
    T_world_cam = Pose.from_rotation_and_translation(steps.R_room_cam, steps.center)[::EVERY]
    return T_world_cam, [EVERY * STEP_S * index for index in range(NUM_FRAMES)]


def measured(T_world_cam: Pose, *, seed: int = 0) -> list[Answer]:
    rng = np.random.default_rng(seed)
    covariance = torch.diag(torch.tensor([SIGMA_RAD**2] * 3 + [SIGMA_M**2] * 3, dtype=torch.float64))
    turned = T_world_cam @ Pose.from_axis_angle(rng.normal(0, SIGMA_RAD, (NUM_FRAMES, 3)), np.zeros((NUM_FRAMES, 3)))
    noisy = Pose(turned.R, T_world_cam.t + torch.from_numpy(rng.normal(0, SIGMA_M, (NUM_FRAMES, 3))))
    return [localized(T, covariance=covariance) for T in noisy]


def errors(poses: list[Pose | None], T_true: Pose, rows) -> tuple[np.ndarray, np.ndarray]:
    found = pose_error(Pose.stack([poses[row] for row in rows]), T_true[list(rows)])
    return found.translation_error_m.numpy(), found.rotation_error_deg.numpy()


@pytest.mark.usefixtures("shapes_unchecked")
def test_noise_becomes_less_and_no_frame_is_lost(path):
    T_true, times_s = path
    answers = measured(T_true)
    smoothed = smooth_answers(answers, times_s)
    rows = range(NUM_FRAMES)
    raw_m, raw_deg = errors([answer.T_world_cam for answer in answers], T_true, rows)
    smooth_m, smooth_deg = errors([pose.T_world_cam for pose in smoothed], T_true, rows)
    assert np.sqrt((smooth_m**2).mean()) < 0.7 * np.sqrt((raw_m**2).mean())
    assert np.sqrt((smooth_deg**2).mean()) < 0.9 * np.sqrt((raw_deg**2).mean())
    assert min(pose.raw_weight for pose in smoothed) > 0.2

    # What it says of its own errors is so.
    off = torch.stack([pose.T_world_cam.t - T for pose, T in zip(smoothed, T_true.t, strict=True)])
    sigma = torch.stack([pose.covariance.diagonal()[3:].sqrt() for pose in smoothed])
    assert 0.7 < float((off / sigma).square().mean().sqrt()) < 1.4


@pytest.mark.usefixtures("shapes_unchecked")
def test_wrong_answers_count_next_to_nothing_and_refused_ones_are_filled_in(path):
    T_true, times_s = path
    answers = measured(T_true)
    rng = np.random.default_rng(2)
    wrong = [*range(10, NUM_FRAMES, 12), 60, 61, 62]
    for row in wrong:
        astray = Pose.from_axis_angle(rng.normal(0, 1.0, 3), T_true.t[row].numpy() + rng.normal(0, 2.0, 3))
        answers[row] = localized(astray, covariance=answers[row].covariance)
    gaps = [*range(30, 36), 90, 91]
    for row in gaps:
        answers[row] = refused()
    smoothed = smooth_answers(answers, times_s)
    poses = [pose.T_world_cam for pose in smoothed]
    smooth_m, smooth_deg = errors(poses, T_true, range(NUM_FRAMES))
    assert smooth_m.max() < 0.15
    assert smooth_deg.max() < 6.0
    assert max(smoothed[row].raw_weight for row in wrong) < 0.1
    assert all(smoothed[row].raw_weight == 0.0 for row in gaps)
    right = [row for row in range(NUM_FRAMES) if row not in (*wrong, *gaps)]
    assert np.median([smoothed[row].raw_weight for row in right]) > 0.9


def test_nothing_is_carried_over_a_long_gap_or_beyond_the_ends(path):
    T_true, times_s = path
    answers = measured(T_true)
    for row in (*range(5), *range(30, 70), *range(90, NUM_FRAMES)):
        answers[row] = refused()
    smoothed = smooth_answers(answers, times_s)
    known = [row for row, pose in enumerate(smoothed) if pose.T_world_cam is not None]
    assert known == [*range(5, 30), *range(70, 90)]


def test_a_second_without_answers_is_told_only_as_far_as_neighbours_tell_it(path):
    T_true, times_s = path
    answers = measured(T_true)
    for row in range(50, 69):
        answers[row] = refused()
    smoothed = smooth_answers(answers, times_s)
    sigmas = [pose.covariance.diagonal().sqrt() for pose in smoothed]
    sigma_m, sigma_deg = ([float(sigma[some].max()) for sigma in sigmas] for some in (slice(3, 6), slice(0, 3)))
    sigma_deg = np.degrees(sigma_deg)
    assert sigma_m[59] == max(sigma_m[45:75])
    is_known = [pose.T_world_cam is not None for pose in smoothed]
    assert is_known == [metres < 0.25 and degrees < 10 for metres, degrees in zip(sigma_m, sigma_deg, strict=True)]
    assert not is_known[59]


def test_the_answer_is_the_same_in_a_world_that_is_moved_and_turned(path):
    T_true, times_s = path
    answers = measured(T_true)[:20]
    T_new_world = Pose.from_axis_angle([0.4, -1.0, 2.0], [100.0, -50.0, 7.0])
    R = torch.block_diag(torch.eye(3, dtype=torch.float64), T_new_world.R)
    moved = [localized(T_new_world @ answer.T_world_cam, covariance=R @ answer.covariance @ R.mT) for answer in answers]
    for a, b in zip(smooth_answers(answers, times_s[:20]), smooth_answers(moved, times_s[:20]), strict=True):
        torch.testing.assert_close((T_new_world @ a.T_world_cam).matrix(), b.T_world_cam.matrix(), atol=1e-6, rtol=0)


def test_one_answer_alone_stays_as_it_is_and_none_is_none():
    alone = smooth_answers([refused(), localized(), refused()], [0.0, 0.1, 0.2])
    assert [pose.T_world_cam is not None for pose in alone] == [False, True, False]
    torch.testing.assert_close(alone[1].T_world_cam.matrix(), localized().T_world_cam.matrix())
    assert [pose.T_world_cam for pose in smooth_answers([refused()], [0.0])] == [None]
    assert smooth_answers([], []) == []


def test_times_that_do_not_grow_are_said():
    with pytest.raises(GeometryError, match="each later than the one before"):
        smooth_answers([localized(), localized()], [0.1, 0.1])
