"""The query's pose from matches: exact, noisy, full of wrong matches, and where geometry does not tell."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from matched_rooms import CAMERA, MatchedRoom, matched_room
from numpy.testing import assert_allclose
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from relograph.errors import GeometryError, MissingExtraError
from relograph.evaluation.peers.protocol import PeerPoints
from relograph.evaluation.peers.solving import poselib_pose
from relograph.geometry import Camera, Pose, pose_error
from relograph.localization import solver
from relograph.localization.focal import FoundLens, UnknownFocal
from relograph.localization.solver import Doubt, MatchedPoints, SolverAnswer, solve_query_pose

DISTORTED = Camera(640, 480, 500.0, 520.0, 310.0, 250.0, (-0.25, 0.08, 0.001, -0.002), "opencv")
FISHEYE = Camera(800, 600, 400.0, 400.0, 400.0, 300.0, (0.05, -0.01, 0.0, 0.0), "fisheye")
PORTRAIT = Camera.from_focal(480, 640, 600.0)


def error(answer: SolverAnswer, room: MatchedRoom) -> tuple[float, float]:
    """Degrees and metres."""
    assert answer.T_world_cam is not None, answer.reason
    rotation_deg, translation_m = pose_error(answer.T_world_cam, room.T_world_query)
    return float(rotation_deg), float(translation_m)


def assert_exact(answer: SolverAnswer, room: MatchedRoom) -> None:
    assert_allclose(error(answer, room), 0, atol=1e-6)


def tangent_error(answer: SolverAnswer, room: MatchedRoom) -> np.ndarray:
    """What the covariance is about: by which rotation vector and move the truth differs from the answer."""
    turn = Rotation.from_matrix((answer.T_world_cam.R.mT @ room.T_world_query.R).numpy()).as_rotvec()
    return np.concatenate([turn, (room.T_world_query.t - answer.T_world_cam.t).numpy()])


def near(pose: Pose, rng: np.random.Generator, sigma_rad: float = 0.03, sigma_m: float = 0.05) -> Pose:
    """As a regression would answer."""
    return pose @ Pose.from_axis_angle(rng.normal(0, sigma_rad, 3), rng.normal(0, sigma_m, 3))


def assert_sound(answer: SolverAnswer) -> None:
    """An answer, or none with a reason; never NaN."""
    if answer.T_world_cam is None:
        assert answer.reason
        assert answer.num_inliers == 0
        return
    assert answer.T_world_cam.R.isfinite().all()
    assert answer.T_world_cam.t.isfinite().all()
    assert answer.covariance.isfinite().all()
    assert np.linalg.eigvalsh(answer.covariance)[0] > 0


# Exact matches


@pytest.mark.parametrize("num_refs", [2, 3, 7, 20])
def test_exact_matches_give_the_exact_pose(num_refs):
    room = matched_room(np.random.default_rng(num_refs), num_refs=num_refs)
    answer = room.solve()
    assert_exact(answer, room)
    assert answer.scale_observable
    assert answer.reason == ""
    assert answer.num_inliers == len(room.ref_idx)
    assert answer.num_inliers_by_ref.tolist() == np.bincount(room.ref_idx).tolist()


@pytest.mark.usefixtures("shapes_unchecked")
def test_rough_matches_of_a_wall_are_solved_no_worse_than_by_poselib_alone():
    """Errors as large as the limit of an inlier, and views that leave several poses nearly as good as the best one."""
    camera = Camera.from_focal(320, 240, 262.5)
    errors_m = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        turns = rng.normal(0, 0.3, (8, 3))
        room = matched_room(rng, query_camera=camera, ref_cameras=[camera] * 7, planar=True, turns=turns)
        room = room.with_noise(rng, 1.5).with_wrong_matches(rng, 0.4)
        points = PeerPoints(room.query_xy, room.ref_xy, room.ref_idx)
        alone = poselib_pose(points, room.T_world_ref, room.query_camera, room.ref_cameras).T_world_cam
        errors_m.append([float(pose_error(T, room.T_world_query)[1]) for T in (room.solve().T_world_cam, alone)])
    ours, poselibs = np.quantile(errors_m, [0.5, 0.75, 0.9], axis=0).T
    assert (ours < poselibs).all()


def test_wrong_matches_among_exact_ones_leave_the_pose_exact():
    rng = np.random.default_rng(1)
    room = matched_room(rng, per_ref=200).with_wrong_matches(rng, 0.4)
    answer = room.solve()
    assert_exact(answer, room)
    inlier = answer.inlier_mask.numpy()
    assert inlier[room.is_right].all()
    assert inlier[~room.is_right].mean() < 0.03  # those that happen to lie on their epipolar line


def test_lenses_of_every_kind_meet_in_one_solution():
    rng = np.random.default_rng(2)
    room = matched_room(rng, query_camera=DISTORTED, ref_cameras=[CAMERA, FISHEYE, PORTRAIT, DISTORTED, FISHEYE])
    assert_exact(room.solve(), room)
    straight = replace(DISTORTED, distortion=(), model="pinhole")
    assert error(room.solve(query_camera=straight), room)[1] > 1e-3  # the distortion matters


@pytest.mark.parametrize("roll_deg", [90, 180])
def test_a_rolled_query_is_solved(roll_deg):
    rng = np.random.default_rng(38)
    turns = rng.normal(0, 0.1, (6, 3))
    turns[0] = [0.0, 0.0, np.radians(roll_deg)]
    room = matched_room(rng, num_refs=5, turns=turns).with_wrong_matches(rng, 0.2)
    assert_exact(room.solve(), room)


def test_references_that_look_from_sixty_degrees_aside_are_as_good():
    rng = np.random.default_rng(39)
    aside = np.radians([-60, -45, 45, 60])
    middle = np.array([0.0, 0.0, 3.0])
    centers = middle - 3.0 * np.column_stack([np.sin(aside), np.zeros(4), np.cos(aside)])
    turns = np.column_stack([np.zeros(5), [0.0, *aside], np.zeros(5)])
    room = matched_room(rng, num_refs=4, centers=centers, turns=turns).with_wrong_matches(rng, 0.2)
    assert_exact(room.solve(), room)


def test_tensors_of_any_precision_are_welcome():
    rng = np.random.default_rng(3)
    room = matched_room(rng)
    matches = MatchedPoints(
        torch.from_numpy(room.query_xy).float(),
        torch.from_numpy(room.ref_xy).float(),
        torch.from_numpy(room.ref_idx).int(),
        torch.ones(len(room.ref_idx)),
    )
    answer = solve_query_pose(matches, room.T_world_ref.to(torch.float32), CAMERA, room.ref_cameras)
    assert_allclose(error(answer, room), 0, atol=1e-3)
    assert answer.T_world_cam.dtype == torch.float64


# Noise


@pytest.mark.usefixtures("shapes_unchecked")
def test_noise_and_wrong_matches_cost_no_more_than_the_covariance_says():
    mahalanobis, centimetres = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        room = matched_room(rng).with_noise(rng, 1.0).with_wrong_matches(rng, 0.4)
        answer = room.solve()
        off = tangent_error(answer, room)
        mahalanobis.append(off @ np.linalg.solve(answer.covariance.numpy(), off))
        centimetres.append(100 * error(answer, room)[1])
        assert answer.noise_px == pytest.approx(1.0, abs=0.2)
    assert np.median(mahalanobis) < 2 * 5.35  # the median of chi squared with 6 degrees of freedom is 5.35
    assert np.median(centimetres) < 1.0


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("ref_sigma_m", "ref_sigma_deg", "wrong"),
    [(0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.005, 0.05, 0.0)],
    ids=["noise", "wrong matches", "inexact references"],
)
def test_the_covariance_is_that_of_repeated_experiments(monkeypatch, ref_sigma_m, ref_sigma_deg, wrong):
    monkeypatch.setattr(solver, "NUM_RUNS", 0)  # the covariance is that of the solution, however that was found
    rng = np.random.default_rng(11)
    exact = matched_room(rng, num_refs=5, per_ref=80)
    offs, variances = [], []
    for _ in range(80):
        room = exact.with_noise(rng, 1.0).with_wrong_matches(rng, wrong)
        turns = Rotation.from_rotvec(rng.normal(0, np.radians(ref_sigma_deg), (5, 3))).as_matrix()
        T_world_ref = Pose(
            torch.from_numpy(turns) @ exact.T_world_ref.R,
            exact.T_world_ref.t + ref_sigma_m * torch.from_numpy(rng.normal(size=(5, 3))),
        )
        answer = replace(room, T_world_ref=T_world_ref).solve(
            start=exact.T_world_query, ref_sigma_m=ref_sigma_m, ref_sigma_deg=ref_sigma_deg
        )
        offs.append(tangent_error(answer, exact))
        variances.append(answer.covariance.diagonal().numpy())
    sampled, predicted = np.sqrt(np.mean(np.square(offs), axis=0)), np.sqrt(np.mean(variances, axis=0))
    assert ((predicted / sampled > 1 / 1.3) & (predicted / sampled < 1.3)).all(), predicted / sampled


def test_least_squares_by_another_library_agree():
    rng = np.random.default_rng(5)
    room = matched_room(rng).with_noise(rng, 0.5)
    K_inverse = np.linalg.inv(CAMERA.K.numpy())
    query, ref = (np.column_stack([xy, np.ones(len(xy))]) for xy in (room.query_xy, room.ref_xy))
    R_world_ref, centers = room.T_world_ref.R.numpy()[room.ref_idx], room.T_world_ref.t.numpy()[room.ref_idx]

    def sampson_px(x: np.ndarray) -> np.ndarray:
        """Fundamental matrices, one a match, and Hartley and Zisserman's (11.9)."""
        R_query_world = Rotation.from_rotvec(x[:3]).as_matrix().T
        t = (centers - x[3:]) @ R_query_world.T
        cross = np.cross(t[:, None], np.eye(3)).transpose(0, 2, 1)  # [t]x has the columns t x e_i
        F = K_inverse.T @ cross @ R_query_world @ R_world_ref @ K_inverse
        lines_query = np.einsum("mij,mj->mi", F, ref)
        lines_ref = np.einsum("mij,mi->mj", F, query)
        size = np.sqrt((lines_query[:, :2] ** 2).sum(axis=1) + (lines_ref[:, :2] ** 2).sum(axis=1))
        return (query * lines_query).sum(axis=1) / size

    truth = np.concatenate([room.T_world_query.axis_angle(), room.T_world_query.t])
    plain = least_squares(sampson_px, truth, x_scale=0.01)
    answer = room.solve()
    off = tangent_error(answer, replace(room, T_world_query=Pose.from_axis_angle(plain.x[:3], plain.x[3:])))
    deviations = np.sqrt(answer.covariance.diagonal().numpy())
    assert (np.abs(off) < deviations).all()  # ours weighs large errors less
    assert np.sum(sampson_px(plain.x) ** 2) == pytest.approx(
        np.sum(sampson_px(np.concatenate([answer.T_world_cam.axis_angle(), answer.T_world_cam.t])) ** 2), rel=0.005
    )


def test_matches_of_one_point_are_not_as_many_independent_ones():
    rng = np.random.default_rng(6)
    together = matched_room(rng, num_refs=7, per_ref=60).with_noise(rng, 1.0)
    assert len(np.unique(together.query_xy, axis=0)) < len(together.query_xy) / 2
    apart = replace(together, query_xy=together.query_xy + rng.normal(0, 1e-9, together.query_xy.shape))
    deviations = [room.solve().covariance.diagonal().sqrt().mean() for room in (together, apart)]
    assert deviations[0] > 1.1 * deviations[1]


# Symmetries


def test_moving_the_world_moves_the_answer_with_it():
    rng = np.random.default_rng(7)
    room = matched_room(rng).with_noise(rng, 1.0).with_wrong_matches(rng, 0.3)
    T_new_old = Pose.from_axis_angle([0.3, -1.2, 2.0], [100.0, -20.0, 5.0])
    before, after = room.solve(), replace(room, T_world_ref=T_new_old @ room.T_world_ref).solve()
    moved = T_new_old @ before.T_world_cam
    deviation_m = before.covariance[3:, 3:].diagonal().sum().sqrt()
    assert float(pose_error(after.T_world_cam, moved)[1]) < 0.02 * deviation_m
    turned = T_new_old.R @ before.covariance[3:, 3:] @ T_new_old.R.mT
    assert_allclose(after.covariance[3:, 3:], turned, rtol=0.05, atol=0.05 * float(turned.diagonal().max()))


def test_neither_the_order_of_matches_nor_a_second_run_changes_the_answer():
    rng = np.random.default_rng(8)
    room = matched_room(rng, per_ref=250).with_noise(rng, 1.0).with_wrong_matches(rng, 0.4)
    order = rng.permutation(len(room.ref_idx))
    once, twice, shuffled = room.solve(seed=3), room.solve(seed=3), room.take(order).solve(seed=3)
    for other in (twice, shuffled):
        assert torch.equal(once.T_world_cam.matrix(), other.T_world_cam.matrix())
        assert torch.equal(once.covariance, other.covariance)
    assert torch.equal(once.inlier_mask[torch.from_numpy(order)], shuffled.inlier_mask)


# Weights


def test_matches_without_weight_have_no_say():
    rng = np.random.default_rng(9)
    room = matched_room(rng)
    lying = room.ref_idx % 2 == 1
    shifted = replace(room, ref_xy=room.ref_xy + np.where(lying[:, None], [25.0, 10.0], 0.0))
    weight = np.where(lying, 0.0, 0.7)
    matches = replace(shifted.matches, weight=weight)
    answer = solve_query_pose(matches, room.T_world_ref, CAMERA, room.ref_cameras)
    assert_exact(answer, room)
    assert not answer.inlier_mask.numpy()[lying].any()


def test_trusted_matches_decide_between_two_poses_of_equally_many():
    rng = np.random.default_rng(10)
    room, other = matched_room(rng), matched_room(rng)
    other = replace(other, T_world_ref=room.T_world_ref)
    both = np.concatenate([np.full(len(room.ref_idx), 0.9), np.full(len(other.ref_idx), 0.3)])
    matches = MatchedPoints(
        np.concatenate([room.query_xy, other.query_xy]),
        np.concatenate([room.ref_xy, other.ref_xy]),
        np.concatenate([room.ref_idx, other.ref_idx]),
        both,
    )
    answer = solve_query_pose(matches, room.T_world_ref, CAMERA, room.ref_cameras)
    assert error(answer, room)[1] < 1e-3


# The regressed pose


@pytest.mark.parametrize(
    "wrong_start",
    [
        Pose.from_axis_angle([3.0, 0.0, 0.0], [1000.0, 0.0, 0.0]),
        Pose.from_axis_angle([0.0, 3.14, 0.0], [0.0, 0.0, 0.0]),
        Pose.from_axis_angle([0.0, 0.0, 0.0], [np.nan, 0.0, 0.0]),
    ],
    ids=["far away", "turned round", "not a number"],
)
def test_a_wrong_start_is_ignored(wrong_start):
    rng = np.random.default_rng(12)
    room = matched_room(rng).with_noise(rng, 1.0).with_wrong_matches(rng, 0.3)
    with_start, without = room.solve(start=wrong_start), room.solve()
    assert_allclose(with_start.T_world_cam.matrix(), without.T_world_cam.matrix(), atol=1e-4)


def test_a_start_that_is_a_references_pose_does_no_harm():
    rng = np.random.default_rng(13)
    room = matched_room(rng)
    assert_exact(room.solve(start=room.T_world_ref[0]), room)


def test_a_start_solves_where_no_reference_has_enough_matches_for_a_sample():
    rng = np.random.default_rng(14)
    room = matched_room(rng, num_refs=12, per_ref=4)
    assert room.solve().T_world_cam is None
    assert "regressed pose" in room.solve().reason
    assert_exact(room.solve(start=near(room.T_world_query, rng)), room)


# Where the scale is not to be seen


def bunched_room(rng: np.random.Generator, spread_m: float, num_refs: int = 7) -> MatchedRoom:
    """References around a place 0.59 m from the query."""
    centers = np.array([0.5, 0.1, 0.3]) + rng.normal(0, spread_m, (num_refs, 3))
    return matched_room(rng, num_refs=num_refs, per_ref=150, centers=centers)


@pytest.mark.parametrize(
    ("spread_m", "num_refs"), [(0.003, 7), (0.0, 7), (0.0, 1)], ids=["a bunch", "one point", "one reference"]
)
def test_bunched_references_answer_rotation_and_say_that_scale_is_not_seen(spread_m, num_refs):
    rng = np.random.default_rng(15)
    room = bunched_room(rng, spread_m, num_refs).with_noise(rng, 1.0).with_wrong_matches(rng, 0.2)
    answer = room.solve(ref_sigma_m=0.005)
    assert not answer.scale_observable
    assert "distance" in answer.reason
    assert answer.num_inliers > 0.7 * room.is_right.sum()  # inliers alone do not reveal it
    rotation_deg, translation_m = error(answer, room)
    assert rotation_deg < 0.7
    assert translation_m < 1.0  # not kilometres
    along = np.array([0.5, 0.1, 0.3]) / np.linalg.norm([0.5, 0.1, 0.3])
    along_m = np.sqrt(along @ answer.covariance[3:, 3:].numpy() @ along)
    assert along_m > 0.1 * 0.59
    assert translation_m < 3 * along_m


@pytest.mark.parametrize("spread_m", [0.003, 0.0], ids=["a bunch", "one point"])
def test_the_regressed_scale_takes_over_where_none_is_seen(spread_m):
    rng = np.random.default_rng(16)
    room = bunched_room(rng, spread_m).with_noise(rng, 1.0).with_wrong_matches(rng, 0.2)
    start = near(room.T_world_query, rng, sigma_m=0.03)
    answer = room.solve(start=start, start_sigma_m=0.03, ref_sigma_m=0.005)
    assert not answer.scale_observable
    assert "regressed" in answer.reason
    along = -room.T_world_ref.t.mean(dim=0).numpy()
    along = along / np.linalg.norm(along)
    across_m = np.linalg.norm(np.cross(along, (answer.T_world_cam.t - room.T_world_query.t).numpy()))
    start_along_m = abs(along @ (start.t - room.T_world_query.t).numpy())
    assert across_m < 0.02  # matches tell the direction
    assert error(answer, room)[1] < start_along_m + 0.03
    assert np.sqrt(along @ answer.covariance[3:, 3:].numpy() @ along) == pytest.approx(0.03, rel=0.2)


def test_an_unknown_that_no_match_sees_is_survived():
    """The centre along x, exactly: its slopes are all zero."""
    room = matched_room(np.random.default_rng(40), num_refs=1, centers=[[1.0, 0.0, 0.0]], turns=np.zeros((2, 3)))
    answer = room.solve()
    assert_sound(answer)
    assert not answer.scale_observable
    assert_allclose(error(answer, room)[0], 0, atol=1e-6)
    assert_allclose(answer.T_world_cam.t[1:], 0, atol=1e-6)
    deviations = answer.covariance[3:, 3:].diagonal().sqrt()
    assert deviations[0] > 0.3
    assert (deviations[1:] < 0.02).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_a_focal_length_leaves_the_distance_open_the_references_are_not_blamed(seed):
    """A wall that all look at: a longer lens farther away shows nearly the same."""
    rng = np.random.default_rng(seed)
    room = matched_room(rng, num_refs=4, per_ref=20, planar=True, turns=np.zeros((5, 3))).with_noise(rng, 1.0)
    known = room.solve(start=room.T_world_query)
    assert known.scale_observable
    unknown = room.solve(start=room.T_world_query, query_camera=UnknownFocal(640, 480))
    assert not unknown.scale_observable
    assert unknown.reason.startswith("The matches do not tell a focal length well enough to tell the distance")


def test_references_in_line_with_the_query_do_not_tell_how_far_it_is():
    rng = np.random.default_rng(17)
    direction = np.array([0.5, 0.1, 0.3])
    room = matched_room(rng, num_refs=5, centers=np.outer(np.linspace(1.0, 2.0, 5), direction)).with_noise(rng, 1.0)
    answer = room.solve()
    assert not answer.scale_observable
    assert error(answer, room)[0] < 0.5
    start = near(room.T_world_query, rng, sigma_m=0.03)
    assert error(room.solve(start=start, start_sigma_m=0.03), room)[1] < 0.1


def test_references_in_a_line_beside_the_query_do_tell():
    rng = np.random.default_rng(18)
    centers = np.array([0.0, 0.0, -0.4]) + np.outer(np.linspace(-0.5, 0.5, 5), [1.0, 0.2, 0.0])
    room = matched_room(rng, num_refs=5, centers=centers).with_noise(rng, 1.0)
    answer = room.solve()
    assert answer.scale_observable
    assert error(answer, room)[1] < 0.02


def test_inexact_references_need_more_spread():
    rng = np.random.default_rng(19)
    room = bunched_room(rng, 0.03).with_noise(rng, 0.5)
    assert room.solve(ref_sigma_m=0.0005).scale_observable
    assert not room.solve(ref_sigma_m=0.03).scale_observable


# Focal lengths


@pytest.mark.parametrize("focal_px", [340.0, 525.0, 950.0])
def test_a_focal_length_that_all_images_share_is_found(focal_px):
    rng = np.random.default_rng(20)
    camera = Camera.from_focal(640, 480, focal_px)
    room = matched_room(rng, query_camera=camera, ref_cameras=[camera] * 7)
    room = room.with_noise(rng, 1.0).with_wrong_matches(rng, 0.3)
    unknown = UnknownFocal(640, 480)
    answer = room.solve(query_camera=unknown, ref_cameras=[unknown] * 7)
    assert answer.focal_px == pytest.approx(focal_px, rel=0.01)
    assert abs(answer.focal_px - focal_px) < 4 * answer.focal_sigma_px
    assert answer.focal_sigma_px < 0.02 * focal_px
    assert_allclose(answer.ref_focal_px, answer.focal_px)
    assert error(answer, room)[1] < 0.03


def test_the_querys_focal_length_alone_is_found():
    rng = np.random.default_rng(21)
    camera = Camera.from_focal(480, 640, 700.0)
    room = matched_room(rng, query_camera=camera).with_noise(rng, 1.0).with_wrong_matches(rng, 0.3)
    answer = room.solve(query_camera=UnknownFocal(480, 640))
    assert answer.focal_px == pytest.approx(700.0, rel=0.01)
    assert error(answer, room)[1] < 0.03
    assert_allclose(answer.ref_focal_px, 525.0)


def test_focal_lengths_of_two_cameras_are_found_apart():
    rng = np.random.default_rng(22)
    room = matched_room(rng, query_camera=Camera.from_focal(640, 480, 850.0)).with_noise(rng, 0.5)
    query, refs = UnknownFocal(640, 480, group=0), UnknownFocal(640, 480, group=1)
    answer = room.solve(query_camera=query, ref_cameras=[refs] * 7)
    assert answer.focal_px == pytest.approx(850.0, rel=0.01)
    assert_allclose(answer.ref_focal_px, 525.0, rtol=0.01)


@pytest.mark.parametrize(("off_m", "is_searched"), [(0.05, False), (6.0, True)])
def test_focal_lengths_to_begin_with_spare_the_search_where_matches_agree_with_them(monkeypatch, off_m, is_searched):
    searches = []
    search = solver._search_focal
    monkeypatch.setattr(solver, "_search_focal", lambda *args: searches.append(1) or search(*args))
    rng = np.random.default_rng(3)
    room = matched_room(rng).with_noise(rng, 0.3).with_wrong_matches(rng, 0.3)
    unknown = UnknownFocal(640, 480)
    focal = 525 / 640 * (1 + off_m)
    T_off = Pose.from_axis_angle([0.0, off_m, 0.0], [off_m, 0.0, off_m])
    answer = room.solve(
        query_camera=unknown,
        ref_cameras=[unknown] * len(room.ref_cameras),
        start=room.T_world_query @ T_off,
        start_lenses=(FoundLens(focal), FoundLens(focal)),
    )
    assert bool(searches) == is_searched
    assert answer.focal_px == pytest.approx(525, rel=0.01)
    metres, degrees = error(answer, room)
    assert metres < 0.06
    assert degrees < 0.2


def test_photos_of_one_camera_share_its_focal_length_at_every_size():
    rng = np.random.default_rng(23)
    small, large = Camera.from_focal(320, 240, 262.5), Camera.from_focal(1280, 960, 1050.0)
    room = matched_room(rng, query_camera=small, ref_cameras=[large, CAMERA, small, large])
    sizes = [UnknownFocal(camera.width, camera.height) for camera in room.ref_cameras]
    answer = room.solve(query_camera=UnknownFocal(320, 240), ref_cameras=sizes)
    assert answer.focal_px == pytest.approx(262.5, rel=1e-6)
    assert_allclose(answer.ref_focal_px, [1050.0, 525.0, 262.5, 1050.0], rtol=1e-6)
    assert_exact(answer, room)


def bent(camera: Camera, k1: float) -> Camera:
    return replace(camera, distortion=(k1, 0.0, 0.0, 0.0), model="opencv")


@pytest.mark.parametrize(("k1", "ref_k1"), [(0.05, 0.05), (-0.05, 0.05), (0.0, -0.08)])
def test_a_lens_that_bends_and_nobody_told_of_does_not_move_the_pose(k1, ref_k1):
    rng = np.random.default_rng(24)
    query, ref = bent(CAMERA, k1), bent(CAMERA, ref_k1)
    room = matched_room(rng, query_camera=query, ref_cameras=[ref] * 7, per_ref=300)
    room = room.with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    unknown = [UnknownFocal(640, 480, group=group) for group in (0, 1)]
    answer = room.solve(query_camera=unknown[0], ref_cameras=[unknown[1]] * 7)
    assert answer.focal_px == pytest.approx(525.0, rel=0.01)
    rotation_deg, translation_m = error(answer, room)
    assert rotation_deg < 0.05  # 0.065 and more by lenses that bend nothing
    assert translation_m < 0.015
    assert answer.noise_px < 0.6  # as much as there is
    off = tangent_error(answer, room)
    assert off @ np.linalg.solve(answer.covariance.numpy(), off) < 25


def told_by_a_file(camera: Camera, share: float) -> UnknownFocal:
    """A focal length that is so many times the right one, and known within 5 %."""
    likely = share * camera.fx / max(camera.width, camera.height)
    return UnknownFocal(camera.width, camera.height, likely=likely, log_sigma=0.05)


def test_what_a_file_tells_of_a_focal_length_helps_where_matches_do_not_tell_it():
    errors_m, with_file_m = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        room = matched_room(rng, num_refs=2, per_ref=80, planar=True).with_noise(rng, 0.7).with_wrong_matches(rng, 0.3)
        start = near(room.T_world_query, rng)
        by_file = told_by_a_file(CAMERA, float(np.exp(rng.normal(0, 0.02))))
        answers = [room.solve(query_camera=camera, start=start) for camera in (UnknownFocal(640, 480), by_file)]
        errors_m.append(error(answers[0], room)[1])
        with_file_m.append(error(answers[1], room)[1])
        assert answers[1].focal_px == pytest.approx(CAMERA.fx, rel=0.1)
    assert np.mean(with_file_m) < 0.7 * np.mean(errors_m)
    assert max(with_file_m) < max(errors_m)


@pytest.mark.parametrize("share", [0.96, 1.04])
def test_matches_know_a_focal_length_better_than_a_file_does(share):
    rng = np.random.default_rng(25)
    room = matched_room(rng, query_camera=bent(CAMERA, -0.05)).with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    answer = room.solve(query_camera=told_by_a_file(CAMERA, share))
    assert answer.focal_px == pytest.approx(CAMERA.fx, rel=0.01)
    assert error(answer, room)[1] < 0.01
    believed = room.solve(query_camera=with_focal(CAMERA, share))
    assert error(believed, room)[1] > 0.02


@pytest.mark.parametrize("share", [0.96, 1.04])
def test_what_files_tell_of_the_lens_of_all_references_is_not_believed_either(share):
    rng = np.random.default_rng(27)
    lens = bent(CAMERA, 0.05)
    room = matched_room(rng, query_camera=lens, ref_cameras=[lens] * 7)
    room = room.with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    start = near(room.T_world_query, rng)
    query = told_by_a_file(CAMERA, share)
    refs = [replace(query, group=1)] * 7
    assert error(room.solve(query_camera=query, ref_cameras=refs, start=start), room)[1] < 0.01
    believed = room.solve(query_camera=query, ref_cameras=[with_focal(CAMERA, share)] * 7, start=start)
    assert error(believed, room)[1] > 0.015


@pytest.mark.parametrize("share", [0.5, 1.7])
def test_a_file_that_is_contradicted_by_matches_is_not_believed(share):
    """As that of a photo that was cut since."""
    rng = np.random.default_rng(26)
    room = matched_room(rng).with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    told, untold = (
        room.solve(query_camera=camera, start=near(room.T_world_query, np.random.default_rng(1)))
        for camera in (told_by_a_file(CAMERA, share), UnknownFocal(640, 480))
    )
    assert_allclose(pose_error(told.T_world_cam, untold.T_world_cam), 0, atol=1e-4)
    assert told.focal_px == pytest.approx(CAMERA.fx, rel=0.01)


def test_without_an_answer_the_focal_length_is_what_was_expected():
    nothing = MatchedPoints(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    answer = solve_query_pose(nothing, Pose.identity(0), told_by_a_file(CAMERA, 1.0), [])
    assert (answer.focal_px, answer.focal_sigma_px) == pytest.approx((525.0, 0.05 * 525.0))


# Focal lengths that were given and are wrong


def with_focal(camera: Camera, share: float) -> Camera:
    return replace(camera, fx=share * camera.fx, fy=share * camera.fy)


@pytest.mark.parametrize(
    ("of_query", "of_refs", "words"),
    [
        (1.2, 1.0, "the query's 20% too long."),
        (0.57, 1.0, "the query's 43% too short."),
        (1.0, 1.2, "the references' 20% too long."),
        (1.2, 1.2, "the query's 20% too long and the references' 20% too long."),
    ],
)
@pytest.mark.parametrize("has_start", [False, True])
def test_a_wrong_focal_length_is_found_out(of_query, of_refs, words, has_start):
    rng = np.random.default_rng(40)
    room = matched_room(rng).with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    answer = room.solve(
        query_camera=with_focal(CAMERA, of_query),
        ref_cameras=[with_focal(camera, of_refs) for camera in room.ref_cameras],
        start=near(room.T_world_query, rng, sigma_m=0.3) if has_start else None,
    )
    assert answer.focal_refuted
    assert answer.T_by_other_focals is None
    assert answer.reason.endswith(words)
    assert answer.focal_px == pytest.approx(CAMERA.fx, rel=0.01)
    assert (answer.focal_sigma_px > 0) == (of_query != 1.0)  # the right one is believed as it was given
    assert_allclose(answer.ref_focal_px, CAMERA.fx, rtol=0.01)
    degrees, metres = error(answer, room)
    assert degrees < 0.2
    assert metres < 0.02


@pytest.mark.parametrize("seed", [44, 46])
def test_a_focal_length_that_a_pose_metres_away_fits_is_found_out_by_the_regressed_pose(seed):
    rng = np.random.default_rng(seed)
    room = matched_room(rng).with_noise(rng, 0.5).with_wrong_matches(rng, 0.3)
    start = near(room.T_world_query, rng, sigma_m=0.1)
    answer = room.solve(query_camera=with_focal(CAMERA, 1.75), start=start)
    assert answer.focal_refuted
    assert error(answer, room)[1] < 0.02


@pytest.mark.parametrize("share", [0.45, 0.6, 1.9])
def test_a_focal_length_that_is_far_off_is_found_out_by_who_never_believed_it(share):
    """From where the wrong one leads no step finds back, and a regressed pose that was told of it is no better."""
    num_found = {False: 0, True: 0}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        centers, turns = rng.normal(0, [0.2, 0.1, 0.5], (7, 3)), rng.normal(0, 0.1, (8, 3))
        room = matched_room(rng, per_ref=60, centers=centers, turns=turns)
        room = room.with_noise(rng, 0.7).with_wrong_matches(rng, 0.5)
        camera = with_focal(CAMERA, share)
        misled = near(room.T_world_query, rng, sigma_m=1.0)
        lens = FoundLens(CAMERA.fx / 640 * 1.02)
        doubt = Doubt(near(room.T_world_query, rng, sigma_m=0.1), lens, lens)
        for doubting in (None, doubt):
            answer = room.solve(query_camera=camera, start=misled, doubting=doubting)
            is_found = answer.T_world_cam is not None and error(answer, room)[1] < 0.1
            num_found[doubting is not None] += is_found
    assert num_found[True] == 12, num_found
    assert num_found[False] < 12, num_found


def test_a_right_focal_length_is_left_alone_by_a_doubt():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        room = matched_room(rng).with_noise(rng, 1.0).with_wrong_matches(rng, 0.3)
        believed, doubted = (
            room.solve(start=near(room.T_world_query, np.random.default_rng(seed)), doubting=doubting)
            for doubting in (None, Doubt(near(room.T_world_query, rng), FoundLens(0.9), FoundLens(0.9)))
        )
        assert not doubted.focal_refuted
        assert_allclose(pose_error(doubted.T_world_cam, believed.T_world_cam), 0, atol=1e-4)


def test_a_doubted_focal_length_leaves_the_regressed_distance_where_the_references_stand_together(monkeypatch):
    rng = np.random.default_rng(45)
    room = bunched_room(rng, 0.0).with_noise(rng, 0.3)
    monkeypatch.setattr(solver, "MIN_SAVED", 1.0)  # no other focal length is so much better
    start = near(room.T_world_query, rng, sigma_m=0.05)
    answer = room.solve(query_camera=with_focal(CAMERA, 1.2), start=start)
    assert answer.T_by_other_focals is not None
    assert not answer.scale_observable
    assert (answer.T_by_other_focals.t - room.T_world_query.t).norm() < 0.1
    assert torch.linalg.eigvalsh(answer.covariance[3:, 3:])[-1] < 0.4**2


def thin_room(seed: int) -> tuple[MatchedRoom, Pose]:
    """Few matches, half of them wrong, with references that stand together; and what a regression says."""
    rng = np.random.default_rng(seed)
    num_refs, spread_m = int(rng.choice([2, 3, 7])), float(rng.choice([0.02, 0.05]))
    centers = np.array([0.5, 0.1, 0.3]) + rng.normal(0, spread_m, (num_refs, 3))
    per_ref, planar = int(rng.choice([15, 30, 60])), bool(rng.random() < 0.5)
    room = matched_room(rng, num_refs=num_refs, per_ref=per_ref, centers=centers, planar=planar)
    room = room.with_noise(rng, 0.7).with_wrong_matches(rng, 0.5)
    return room, near(room.T_world_query, rng)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("seed", [3094, 3453, 3544])
def test_a_right_focal_length_is_believed_at_the_distance_that_the_regressed_pose_says(seed):
    """At another distance few matches would like another focal length better."""
    room, start = thin_room(seed)
    answer = room.solve(start=start)
    assert not answer.scale_observable
    assert not answer.focal_refuted
    assert answer.T_by_other_focals is None
    assert "ocal length" not in answer.reason


def test_where_one_of_two_focal_lengths_is_told_the_other_is_believed():
    """Two references 10 cm apart tell their own focal length, and not the query's."""
    rng = np.random.default_rng(78)
    centers = np.array([0.5, 0.1, 0.3]) + rng.normal(0, 0.1, (2, 3))
    room = matched_room(rng, num_refs=2, per_ref=60, centers=centers).with_noise(rng, 0.7).with_wrong_matches(rng, 0.3)
    answer = room.solve(ref_cameras=[with_focal(camera, 1.2) for camera in room.ref_cameras])
    assert answer.focal_refuted
    assert answer.focal_px == CAMERA.fx
    assert_allclose(answer.ref_focal_px, CAMERA.fx, rtol=0.05)
    assert error(answer, room)[1] < 0.1


def test_a_wrong_focal_length_of_the_query_is_found_out_where_the_references_have_none():
    rng = np.random.default_rng(41)
    room = matched_room(rng).with_noise(rng, 0.3)
    unknown = [UnknownFocal(640, 480)] * len(room.ref_cameras)
    answer = room.solve(query_camera=with_focal(CAMERA, 1.3), ref_cameras=unknown)
    assert answer.focal_refuted
    assert answer.focal_px == pytest.approx(CAMERA.fx, rel=0.02)
    assert_allclose(answer.ref_focal_px, CAMERA.fx, rtol=0.02)


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_right_focal_length_is_left_alone():
    for seed in range(12):
        rng = np.random.default_rng(seed)
        room = matched_room(rng, num_refs=1 + seed % 7, planar=seed % 2 == 0).with_noise(rng, 1.0)
        answer = room.with_wrong_matches(rng, 0.3).solve(start=near(room.T_world_query, rng))
        assert not answer.focal_refuted
        assert "ocal length" not in answer.reason
        assert answer.focal_px == CAMERA.fx
        assert answer.focal_sigma_px == 0


@pytest.mark.parametrize("seed", range(2))
def test_matches_that_agree_on_another_pose_and_another_focal_length_do_not_refute_a_given_one(seed):
    """As walls do that look alike: the other pose has more matches, but those of the right one fit no better by it."""
    rng = np.random.default_rng(seed)
    centers, turns = rng.normal(0, [0.4, 0.16, 0.24], (7, 3)), rng.normal(0, 0.12, (8, 3))
    room = matched_room(rng, per_ref=60, centers=centers, turns=turns).with_noise(rng, 0.5)
    turns[0] += [0.0, 0.3, 0.0]
    camera = with_focal(CAMERA, 0.8)
    alike = matched_room(rng, per_ref=75, query_camera=camera, centers=centers, turns=turns).with_noise(rng, 0.5)
    both = replace(
        room,
        **{
            name: np.concatenate([getattr(room, name), getattr(alike, name)])
            for name in ("query_xy", "ref_xy", "ref_idx", "is_right")
        },
    )
    answer = both.solve(start=near(room.T_world_query, rng))
    assert not answer.focal_refuted
    assert answer.T_world_cam is None  # far apart as they are, either pose may be right


def test_a_doubted_focal_length_widens_the_covariance(monkeypatch):
    """Where matches like another focal length better, but not by so much that the given one must be wrong."""
    rng = np.random.default_rng(42)
    room = matched_room(rng).with_noise(rng, 0.5)
    wrong = with_focal(CAMERA, 1.2)
    monkeypatch.setattr(solver, "MIN_SAVED", 1.0)
    doubted = room.solve(query_camera=wrong)
    assert not doubted.focal_refuted
    assert doubted.reason.endswith("may be wrong: the matches would have the query's 20% too long.")
    assert doubted.focal_px == wrong.fx
    assert_allclose(pose_error(doubted.T_by_other_focals, room.T_world_query), 0, atol=0.1)
    monkeypatch.setattr(solver, "MAX_FOCAL_ERROR", 1.0)
    trusted = room.solve(query_camera=wrong)
    assert trusted.T_by_other_focals is None
    off = tangent_error(trusted, room)
    assert off @ np.linalg.solve(trusted.covariance, off) > 100  # as if it were sure
    assert off @ np.linalg.solve(doubted.covariance, off) < 20


# Hard and bad input


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("num_matches", range(8))
def test_too_few_matches_are_no_answer(num_matches, start):
    room = matched_room(np.random.default_rng(24))
    answer = room.take(slice(num_matches)).solve(start=room.T_world_query if start else None)
    assert_sound(answer)
    assert answer.T_world_cam is None
    assert f"{num_matches} of {num_matches} matches" in answer.reason


def test_a_query_without_references_has_no_answer():
    nothing = MatchedPoints(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, dtype=int))
    answer = solve_query_pose(nothing, Pose.identity(0), UnknownFocal(640, 480), [])
    assert answer.T_world_cam is None
    assert answer.covariance.diagonal().isinf().all()
    assert answer.focal_px > 0


@pytest.mark.parametrize("focal_known", [True, False])
@pytest.mark.parametrize("start", [False, True])
def test_matches_that_are_all_wrong_are_no_answer(start, focal_known):
    rng = np.random.default_rng(25)
    room = matched_room(rng).with_wrong_matches(rng, 1.0)
    unknown = {} if focal_known else {"query_camera": UnknownFocal(640, 480)}
    answer = room.solve(start=room.T_world_query if start else None, **unknown)
    assert answer.T_world_cam is None
    assert "chance" in answer.reason


def test_a_useless_reference_is_outvoted_and_counted():
    rng = np.random.default_rng(26)
    room = matched_room(rng)
    useless = room.ref_idx >= 4
    elsewhere = rng.random(room.ref_xy.shape) * [640, 480]
    room = replace(room, ref_xy=np.where(useless[:, None], elsewhere, room.ref_xy))
    answer = room.solve()
    assert_exact(answer, room)
    assert answer.num_inliers_by_ref[:4].tolist() == [100] * 4
    assert (answer.num_inliers_by_ref[4:] < 10).all()


def test_matches_that_are_not_finite_are_left_out():
    rng = np.random.default_rng(27)
    room = matched_room(rng)
    query_xy, ref_xy, weight = room.query_xy.copy(), room.ref_xy.copy(), np.ones(len(room.ref_idx))
    query_xy[::5], ref_xy[1::5, 1], weight[2::5] = np.nan, np.inf, np.nan
    T_world_ref = Pose(room.T_world_ref.R, room.T_world_ref.t.clone())
    T_world_ref.t[3] = torch.nan
    answer = solve_query_pose(MatchedPoints(query_xy, ref_xy, room.ref_idx, weight), T_world_ref, CAMERA, [CAMERA] * 7)
    assert_exact(answer, room)
    good = np.isin(np.arange(len(room.ref_idx)) % 5, [3, 4]) & (room.ref_idx != 3)
    assert answer.inlier_mask.tolist() == good.tolist()


def test_points_beyond_the_rim_of_a_lens_are_left_out():
    lens = Camera(640, 480, 500.0, 500.0, 320.0, 240.0, (-0.3, 0.0, 0.0, 0.0), "opencv")
    room = matched_room(np.random.default_rng(28), query_camera=lens, ref_cameras=[lens] * 4)
    query_xy = room.query_xy.copy()
    query_xy[::10] = [5000.0, 5000.0]
    answer = replace(room, query_xy=query_xy).solve()
    assert_exact(answer, room)
    assert not answer.inlier_mask[::10].any()


def test_repeated_matches_count_once():
    room = matched_room(np.random.default_rng(29))
    five_often = room.take(np.repeat(np.arange(5), 60))
    assert "5 of 300 matches" in five_often.solve().reason
    often = room.take(np.repeat(np.arange(len(room.ref_idx)), 3))
    assert_exact(often.solve(), room)
    assert often.solve().num_inliers == len(room.ref_idx)


def test_one_point_of_the_query_matched_everywhere_is_no_answer():
    room = matched_room(np.random.default_rng(30))
    answer = replace(room, query_xy=np.repeat(room.query_xy[:1], len(room.query_xy), axis=0)).solve()
    assert answer.T_world_cam is None


@pytest.mark.parametrize("start", [False, True])
def test_a_flat_scene_is_solved(start):
    rng = np.random.default_rng(31)
    room = matched_room(rng, planar=True)
    assert_exact(room.solve(start=near(room.T_world_query, rng) if start else None), room)


def test_a_query_at_the_place_of_a_reference_is_solved_with_the_others():
    rng = np.random.default_rng(32)
    centers = np.concatenate([np.zeros((1, 3)), rng.normal(0, 0.3, (5, 3))])
    room = matched_room(rng, num_refs=6, centers=centers).with_noise(rng, 1.0)
    answer = room.solve(start=room.T_world_ref[0])
    assert answer.scale_observable
    assert error(answer, room)[1] < 0.02


@pytest.mark.parametrize("sigma_px", [0.0, 1.0])
@pytest.mark.parametrize("start", [False, True])
def test_a_query_that_only_turned_has_its_rotation_answered(start, sigma_px):
    rng = np.random.default_rng(33)
    room = matched_room(rng, num_refs=4, centers=np.zeros((4, 3)))
    room = room.with_noise(rng, sigma_px) if sigma_px else room
    answer = room.solve(start=near(room.T_world_query, rng, sigma_m=0.03) if start else None)
    assert_sound(answer)
    assert not answer.scale_observable
    rotation_deg, translation_m = error(answer, room)
    assert rotation_deg < (0.5 if sigma_px else 1e-6)
    assert translation_m < 0.2


def test_every_small_set_of_matches_is_survived():
    rng = np.random.default_rng(34)
    room = matched_room(rng, num_refs=3).with_noise(rng, 1.0)
    for num_matches in range(8, 40, 5):
        rows = rng.permutation(len(room.ref_idx))[:num_matches]
        assert_sound(room.take(rows).solve(start=near(room.T_world_query, rng)))
        assert_sound(room.take(rows).with_wrong_matches(rng, 0.5).solve(seed=num_matches))


def test_poselib_missing_is_answered_with_the_extra_that_brings_it(monkeypatch):
    room = matched_room(np.random.default_rng(35), per_ref=10)
    monkeypatch.setitem(sys.modules, "poselib", None)  # what Python does when a module cannot be imported
    with pytest.raises(MissingExtraError, match=r"poselib.*relograph\[geometry\]"):
        room.solve()


def test_an_index_beyond_the_references_is_an_error():
    room = matched_room(np.random.default_rng(36), per_ref=10)
    with pytest.raises(GeometryError, match="from 0 to 6, found 1 to 7"):
        replace(room, ref_idx=room.ref_idx + 1).solve()


def test_a_reference_without_camera_is_an_error():
    room = matched_room(np.random.default_rng(37), per_ref=10)
    with pytest.raises(GeometryError, match="7 poses and 6 cameras"):
        room.solve(ref_cameras=[CAMERA] * 6)
