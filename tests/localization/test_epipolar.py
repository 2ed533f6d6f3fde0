"""Epipolar errors in pixels: against plain formulas, and their slopes against differences."""

import numpy as np
import pytest
import torch
from matched_rooms import CAMERA, matched_room
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

from relograph.geometry import Camera, Pose
from relograph.localization.epipolar import Guess, LensGuess, cross, epipolar_matches, rotation_matrix
from relograph.localization.focal import UnknownFocal

DISTORTED = Camera(640, 480, 500.0, 520.0, 310.0, 250.0, (-0.2, 0.05, 0.001, -0.002), "opencv")
FISHEYE = Camera(800, 600, 420.0, 400.0, 390.0, 310.0, (0.05, -0.01, 0.002, 0.0), "fisheye")
MIXED = [CAMERA, DISTORTED, FISHEYE]


def noisy_errors(query_camera, ref_cameras, T_world_ref=None):
    rng = np.random.default_rng(3)
    room = matched_room(rng, per_ref=20, query_camera=DISTORTED, ref_cameras=MIXED).with_noise(rng, 3.0)
    T_world_ref = room.T_world_ref if T_world_ref is None else T_world_ref(room.T_world_ref)
    matches = epipolar_matches(room.query_xy, room.ref_xy, room.ref_idx, T_world_ref, query_camera, ref_cameras)
    guess = Guess.at(
        room.T_world_query, LensGuess(np.full(matches.num_groups, -0.2), np.full(matches.num_groups, 0.04))
    )
    return matches, guess.moved_by(np.linspace(0.01, 0.03, 6 + 2 * matches.num_groups))


@pytest.mark.parametrize(
    ("query_camera", "ref_cameras"),
    [
        (DISTORTED, MIXED),
        (UnknownFocal(640, 480), [UnknownFocal(640, 480)] * 3),
        (UnknownFocal(640, 480, group=1), [UnknownFocal(640, 480, group=0), CAMERA, UnknownFocal(800, 600, group=1)]),
        (CAMERA, [UnknownFocal(640, 480, group=5), CAMERA, CAMERA]),
    ],
    ids=["all known", "one focal length", "two focal lengths", "one of a reference"],
)
def test_slopes_are_those_of_small_differences(query_camera, ref_cameras):
    matches, guess = noisy_errors(query_camera, ref_cameras)
    step = 1e-6 * np.eye(6 + 2 * matches.num_groups)
    differences = [
        (matches.at(guess.moved_by(d)).error_px - matches.at(guess.moved_by(-d)).error_px) / 2e-6 for d in step
    ]
    jacobian = matches.at(guess).jacobian()
    assert_allclose(jacobian, differences, atol=1e-7 * np.abs(jacobian).max())


@pytest.mark.parametrize("axis", range(6))
def test_slopes_by_the_references_are_those_of_small_differences(axis):
    step = torch.zeros(6, dtype=torch.float64)
    step[axis] = 1e-6

    def errors(sign: float) -> np.ndarray:
        def moved(T: Pose) -> Pose:
            turn = torch.from_numpy(rotation_matrix((sign * step[:3]).numpy()))
            return Pose(turn @ T.R, T.t + sign * step[3:])

        matches, guess = noisy_errors(DISTORTED, MIXED, moved)
        return matches.at(guess).error_px

    matches, guess = noisy_errors(DISTORTED, MIXED)
    jacobian = matches.at(guess).jacobian_of_references()
    assert_allclose(jacobian[axis], (errors(1) - errors(-1)) / 2e-6, atol=1e-7 * np.abs(jacobian).max())


@pytest.mark.parametrize("ref", [0, 1, 2], ids=["pinhole", "distorted", "fisheye"])
def test_an_error_is_how_far_the_two_points_are_from_any_point_of_the_room(ref):
    rng = np.random.default_rng(4)
    exact = matched_room(rng, per_ref=4, query_camera=DISTORTED, ref_cameras=MIXED)
    room = exact.with_noise(rng, 0.7)
    room, exact = room.take(room.ref_idx == ref), exact.take(exact.ref_idx == ref)
    matches = epipolar_matches(room.query_xy, room.ref_xy, room.ref_idx, room.T_world_ref, DISTORTED, MIXED)
    errors = matches.at(Guess.at(room.T_world_query, LensGuess.straight(np.zeros(0)))).error_px
    T_query_world, T_ref_world = room.T_world_query.inverse(), room.T_world_ref[ref].inverse()
    for i, error_px in enumerate(errors):

        def offsets(point, i=i) -> np.ndarray:
            point = torch.from_numpy(point)
            in_query, in_ref = (
                DISTORTED.project(T_query_world.apply(point)),
                MIXED[ref].project(T_ref_world.apply(point)),
            )
            return np.concatenate([in_query.numpy() - room.query_xy[i], in_ref.numpy() - room.ref_xy[i]])

        ray = DISTORTED.unproject(torch.from_numpy(exact.query_xy[i]))
        nearest = least_squares(offsets, room.T_world_query.apply(3 * ray).numpy(), x_scale=0.1)
        assert np.sqrt(2 * nearest.cost) == pytest.approx(abs(error_px), rel=0.02, abs=2e-3)


def test_the_error_of_two_pinhole_cameras_is_sampsons():
    rng = np.random.default_rng(5)
    room = matched_room(rng, num_refs=1, per_ref=50).with_noise(rng, 2.0)
    guess = Guess.at(room.T_world_query, LensGuess.straight(np.zeros(0)))
    matches = epipolar_matches(room.query_xy, room.ref_xy, room.ref_idx, room.T_world_ref, CAMERA, [CAMERA])

    # The textbook: F = K^-T [t]x R K^-1 and Hartley and Zisserman's (11.9).
    K_inverse = np.linalg.inv(CAMERA.K.numpy())
    T_query_ref = (room.T_world_query.inverse() @ room.T_world_ref[0]).matrix().numpy()
    x, y, z = T_query_ref[:3, 3]
    F = K_inverse.T @ np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ T_query_ref[:3, :3] @ K_inverse
    query, ref = (np.column_stack([xy, np.ones(len(xy))]) for xy in (room.query_xy, room.ref_xy))
    lines_query, lines_ref = ref @ F.T, query @ F
    textbook = (query * lines_query).sum(axis=1) / np.sqrt(
        (lines_query[:, :2] ** 2).sum(axis=1) + (lines_ref[:, :2] ** 2).sum(axis=1)
    )
    assert_allclose(np.abs(matches.at(guess).error_px), np.abs(textbook), rtol=1e-9)


def test_a_point_is_as_far_away_as_it_is_and_in_front():
    rng = np.random.default_rng(6)
    room = matched_room(rng, per_ref=50)
    matches = epipolar_matches(room.query_xy, room.ref_xy, room.ref_idx, room.T_world_ref, CAMERA, room.ref_cameras)
    errors = matches.at(Guess.at(room.T_world_query, LensGuess.straight(np.zeros(0))))
    depth = 1 / errors.inverse_depth()
    rays = CAMERA.unproject(torch.from_numpy(room.query_xy))
    unit = rays / torch.linalg.vector_norm(rays, dim=-1, keepdim=True)
    points = room.T_world_query.apply(unit * torch.from_numpy(depth)[:, None])
    for i, T_world_ref in enumerate(room.T_world_ref):
        seen = CAMERA.project(T_world_ref.inverse().apply(points[room.ref_idx == i])).numpy()
        assert_allclose(seen, room.ref_xy[room.ref_idx == i], atol=1e-6)
    assert errors.is_in_front(1e-6).all()


def test_points_behind_a_camera_are_not_in_front():
    rng = np.random.default_rng(7)
    room = matched_room(rng, per_ref=50)
    matches = epipolar_matches(room.query_xy, room.ref_xy, room.ref_idx, room.T_world_ref, CAMERA, room.ref_cameras)
    # Mirrored at its reference, the query's centre leaves epipolar planes as they are, but rays meet behind.
    for i, T_world_ref in enumerate(room.T_world_ref):
        mirrored = Pose(room.T_world_query.R, 2 * T_world_ref.t - room.T_world_query.t)
        errors = matches[np.flatnonzero(room.ref_idx == i)].at(Guess.at(mirrored, LensGuess.straight(np.zeros(0))))
        assert_allclose(errors.error_px, 0, atol=1e-6)
        assert not errors.is_in_front(1e-6).any()


@pytest.mark.parametrize(("num_a", "num_b", "expected"), [(4, 4, 4), (1, 4, 4), (1, 0, 0), (0, 0, 0)])
def test_cross_products_are_numpys_also_of_no_vectors(num_a, num_b, expected):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, num_a)), rng.normal(size=(3, num_b))
    assert cross(a, b).shape == (3, expected)
    assert_allclose(cross(a, b), np.cross(a, b, axis=0))
