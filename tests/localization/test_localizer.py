"""From a photo to an answer: exact matches give the exact pose, and bad input an honest refusal."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image, ImageFilter
from small_networks import CAMERA, noise_photo, posed_photos, small_network

from relograph.errors import ConfigError, DatasetError, GeometryError
from relograph.geometry import Camera, Pose, pose_error, rotation_error_deg
from relograph.graphs.correspondence import Lenses, true_matches
from relograph.localization import localizer as localizer_module
from relograph.localization import solver as solver_module
from relograph.localization.focal import FoundLens, UnknownFocal
from relograph.localization.localizer import (
    Answer,
    Compared,
    Localizer,
    answer_compared,
    expected_error,
    select_matches,
)
from relograph.localization.map_features import MapFeatures
from relograph.localization.photos import PhotoInMemory
from relograph.localization.prior import Prior
from relograph.localization.solver import SolverAnswer, solve_query_pose
from relograph.models.match_gnn import COARSE_STRIDE, Matches
from relograph.models.shipped import Calibration, LoadedMatchGNN, Odds
from relograph.rooms import RoomStream, StreamBatch, StreamConfig, textures
from relograph.rooms.photograph import Effects

HEIGHT, WIDTH = 144, 192
ACCEPT_ALL = Calibration(*(Odds({}, 30.0, 0.5),) * 3, "", 0)


# Exact matches in rendered rooms


@pytest.fixture(scope="module")
def room() -> StreamBatch:
    """A query and five references in a rendered room that all see much of the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(textures.FAMILY_SIZES, 1))
        atlas = textures.make_atlas(0)
    config = StreamConfig(
        image_height=HEIGHT,
        image_width=WIDTH,
        graphs_per_batch=1,
        num_nodes=6,
        num_homes=1,
        views_per_home=48,
        overlap=(0.5, 0.95),
        any_roll_share=0.0,
        homes_renewed_per_batch=0,
        effects=Effects.none(),
    )
    (batch,) = islice(RoomStream(config, atlas=atlas), 1)
    return batch


UNTRAINED_M = 0.01
"""Hardly a match of an untrained network agrees with its pose, and rounding decides which ones do."""


def camera_of(batch: StreamBatch, node: int) -> Camera:
    K = batch.K[0, node]
    k1, k2 = batch.distortion[0, node].tolist()
    fx, fy, cx, cy = (float(K[i, j]) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return Camera(WIDTH, HEIGHT, fx, fy, cx, cy, (k1, k2, 0.0, 0.0), "opencv")


def compared_by_truth(
    batch: StreamBatch, *, noise_px: float = 0.0, wrong_share: float = 0.0, T_regressed: Pose | None = None
) -> Compared:
    """As if the network had matched without an error but these, and regressed a pose 10 cm and 2 degrees away."""
    truth = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), COARSE_STRIDE)
    generator = torch.Generator().manual_seed(0)
    shape = truth.visible.shape
    xy = truth.xy + noise_px * torch.randn(truth.xy.shape, generator=generator)
    anywhere = torch.rand(truth.xy.shape, generator=generator) * torch.tensor([WIDTH, HEIGHT])
    is_wrong = torch.rand(shape, generator=generator) < wrong_share
    matches = Matches(
        xy=torch.where(is_wrong[..., None], anywhere, xy),
        confidence=0.9 * truth.visible.float(),
        best=torch.zeros(shape, dtype=torch.long),
        mutual=truth.visible,
        sigma_px=torch.ones(shape),
        seen=torch.zeros(shape),
    )
    T_world_cam = batch.T_world_cam[0].to(dtype=torch.float64)
    num_refs = len(T_world_cam) - 1
    T_off = Pose.from_axis_angle([0.0, np.radians(2.0), 0.0], [0.08, 0.06, 0.0])
    T_regressed = T_world_cam[0] @ T_off if T_regressed is None else T_regressed
    return Compared(
        rows=tuple(range(num_refs)),
        names=tuple(f"{i}.png" for i in range(num_refs)),
        similarity=torch.linspace(0.9, 0.5, num_refs),
        matches=matches,
        T_world_ref=T_world_cam[1:],
        query_hw=(HEIGHT, WIDTH),
        query_camera=camera_of(batch, 0),
        ref_cameras=tuple(camera_of(batch, node) for node in range(1, num_refs + 1)),
        T_world_edges=T_regressed.reshape(1).expand(num_refs),
        log_sigma=torch.full((num_refs, 2), log(0.05)),
        overlap=torch.full((num_refs,), 2.0),
        T_regressed=T_regressed,
        agreement=0.9,
        lenses=(FoundLens(0.9), FoundLens(0.9)),
    )


def error_of(answer: Answer, batch: StreamBatch) -> tuple[float, float]:
    assert answer.T_best is not None
    error = pose_error(answer.T_best, batch.T_world_cam[0, 0].to(dtype=torch.float64))
    return float(error.translation_error_m), float(error.rotation_error_deg)


def test_exact_matches_give_the_exact_pose(room: StreamBatch):
    answer = answer_compared(compared_by_truth(room), "auto")
    metres, degrees = error_of(answer, room)
    assert metres < 0.002  # depth comes in float32, and lenses of the renderer and of the solver differ by rounding
    assert degrees < 0.02
    assert answer.localized
    assert answer.reason == ""
    assert answer.scale_observable
    assert answer.T_world_cam is answer.T_solved
    assert answer.num_inliers == sum(reference.num_inliers for reference in answer.references) > 100


def test_matches_with_errors_give_a_pose_as_good_as_they_say(room: StreamBatch):
    answer = answer_compared(compared_by_truth(room, noise_px=0.3, wrong_share=0.3), "geometric")
    metres, degrees = error_of(answer, room)
    sigma_m = float(answer.covariance[3:, 3:].trace().sqrt())
    assert answer.localized
    assert metres < 4 * sigma_m < 0.1
    assert degrees < 0.5


def test_an_unknown_focal_length_is_found(room: StreamBatch):
    compared = replace(compared_by_truth(room, noise_px=0.1), query_camera=UnknownFocal(WIDTH, HEIGHT, 7))
    answer = answer_compared(compared, "auto")
    assert answer.focal_px == pytest.approx(camera_of(room, 0).fx, rel=0.03)
    assert error_of(answer, room)[0] < 0.05
    regressed = answer_compared(compared, "regress")
    assert regressed.focal_px == pytest.approx(max(WIDTH, HEIGHT) * 0.9)


def test_the_solver_may_be_left_out(room: StreamBatch):
    compared = compared_by_truth(room)
    answer = answer_compared(compared, "regress", ACCEPT_ALL)
    assert answer.T_world_cam is compared.T_regressed
    assert answer.T_solved is None
    assert_allclose(answer.covariance.diagonal(), [0.05**2] * 6, rtol=1e-5)


@pytest.mark.usefixtures("shapes_unchecked")
def test_useless_matches_leave_the_networks_pose_or_none(room: StreamBatch):
    compared = compared_by_truth(room, wrong_share=1.0)
    auto, geometric = (answer_compared(compared, solver, ACCEPT_ALL) for solver in ("auto", "geometric"))
    assert auto.localized
    assert auto.T_world_cam is compared.T_regressed
    assert not geometric.localized
    assert geometric.T_world_cam is None
    assert geometric.reason.startswith("0 of") or "matches agree" in geometric.reason
    assert geometric.confidence == 0.0


def test_references_that_do_not_see_the_query_are_refused(room: StreamBatch):
    """Nothing matches, and the network says that nothing is seen: no guess is passed for an answer."""
    compared = compared_by_truth(room)
    nothing = replace(compared.matches, mutual=torch.zeros_like(compared.matches.mutual))
    unseen = replace(
        compared,
        matches=nothing,
        overlap=torch.full_like(compared.overlap, -6.0),
        log_sigma=torch.full_like(compared.log_sigma, log(2.0)),
    )
    for solver in ("auto", "geometric", "regress"):
        answer = answer_compared(unseen, solver)
        assert_honest(answer)
        assert not answer.localized
        assert answer.num_inliers == 0
    assert "0 of 0 matches are usable" in answer_compared(unseen, "geometric").reason


def test_each_way_to_an_answer_has_odds_of_its_own(room: StreamBatch):
    solved, unsolved, regressed = (Odds({}, log(odds), 0.0) for odds in (1 / 9, 2 / 8, 3 / 7))
    calibration = Calibration(solved, unsolved, regressed, "", 0)
    useful, useless = compared_by_truth(room), compared_by_truth(room, wrong_share=1.0)
    asked = ((useful, "auto"), (useless, "auto"), (useful, "regress"))
    chances = [answer_compared(compared, solver, calibration).confidence for compared, solver in asked]
    assert_allclose(chances, [0.1, 0.2, 0.3])


@pytest.mark.usefixtures("shapes_unchecked")
def test_whether_the_focal_length_was_known_is_a_sign(room: StreamBatch):
    known = compared_by_truth(room)
    unknown = replace(known, query_camera=UnknownFocal(WIDTH, HEIGHT, 1))
    signs = [answer_compared(compared, "auto").signs["focal_known"] for compared in (known, unknown)]
    assert signs == [1.0, 0.0]


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_wrong_focal_length_is_found_out(room: StreamBatch):
    true = compared_by_truth(room, noise_px=0.1)
    camera = camera_of(room, 0)
    wrong = replace(true, query_camera=replace(camera, fx=1.2 * camera.fx, fy=1.2 * camera.fy), scale=0.5)
    answer = answer_compared(wrong, "auto")
    assert error_of(answer, room)[0] < 0.05
    assert answer.focal_px == pytest.approx(camera.fx / 0.5, rel=0.05)  # in the photo's own pixels
    assert answer.signs["focal_known"] == 0.0
    assert "too long" in answer.reason


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_pose_that_another_focal_length_would_move_is_less_sure(room: StreamBatch, monkeypatch):
    camera = camera_of(room, 0)
    wrong = replace(
        compared_by_truth(room, noise_px=0.1), query_camera=replace(camera, fx=1.2 * camera.fx, fy=1.2 * camera.fy)
    )

    def answer(compared: Compared, name: str) -> Answer:
        with monkeypatch.context() as patch:
            patch.setattr(solver_module, name, 1.0)
            return answer_compared(compared, "auto")

    moved = answer(wrong, "MAX_FOCAL_ERROR").T_best
    wrong = replace(wrong, T_regressed=moved)  # the network, told the same, is wrong in the same way
    trusted, doubted = answer(wrong, "MAX_FOCAL_ERROR"), answer(wrong, "MIN_SAVED")
    assert_allclose(doubted.T_best.t, trusted.T_best.t)
    assert trusted.reason == ""
    assert "may be wrong" in doubted.reason
    for sign in ("precision", "agreement"):
        assert doubted.signs[sign] < trusted.signs[sign] - 1


def only_the_first_reference(room: StreamBatch) -> StreamBatch:
    """A room whose references are all its first one."""
    names = ("images", "depth_m", "T_world_cam", "K", "distortion", "overlap")
    return replace(room, **{name: getattr(room, name)[:, [0, 1, 1, 1]] for name in names})


def test_references_at_one_point_leave_the_scale_to_the_network(room: StreamBatch):
    """References that only turn about one point: matches are exact, and still do not tell how far away it is."""
    one = only_the_first_reference(room)
    answer = answer_compared(compared_by_truth(one), "auto")
    metres, degrees = error_of(answer, one)
    assert not answer.scale_observable
    assert "distance" in answer.reason
    assert degrees < 0.3
    assert metres < 0.12  # no further off than the regressed pose


def test_where_only_the_distance_is_open_the_rotation_is_answered_all_the_same(room: StreamBatch):
    """Odds that ask for precision refuse a pose whose distance is the network's guess, and not where it looks."""
    precise = Calibration(*(Odds({"precision": 1.0}, -3.0, 0.5), *(Odds({}, -3.0, 0.5),) * 2), "", 0)
    never = replace(ACCEPT_ALL, solved=Odds({}, -3.0, 0.5))
    one = compared_by_truth(only_the_first_reference(room))
    answer = answer_compared(one, "auto", precise)
    assert not answer.localized
    assert answer.T_world_cam is None
    assert answer.R_world_cam is not None
    assert float(rotation_error_deg(answer.R_world_cam, room.T_world_cam[0, 0].R.double())) < 0.3
    assert "to tell the distance" in answer.reason
    assert answer.reason.endswith("Where the camera looks is sure all the same.")
    assert answer_compared(one, "auto", never).R_world_cam is None
    several = answer_compared(compared_by_truth(room), "auto", never)
    assert several.scale_observable
    assert several.R_world_cam is None
    strangers = answer_compared(compared_by_truth(only_the_first_reference(room), wrong_share=1.0), "auto", precise)
    assert not strangers.localized
    assert strangers.R_world_cam is None
    assert strangers.reason.endswith("The place may not be in the map.")


def test_a_prior_is_another_place_for_the_solver_to_begin(room: StreamBatch):
    """Four matches a reference are too few for RANSAC, and the network's pose is too far off to begin with."""
    T_world_query = room.T_world_cam[0, 0].to(dtype=torch.float64)
    far = T_world_query @ Pose.from_axis_angle([0.0, 1.0, 0.5], [1.5, 0.5, -1.0])
    near = T_world_query @ Pose.from_axis_angle([0.0, 0.03, 0.0], [0.05, 0.02, 0.0])
    compared = compared_by_truth(room, T_regressed=far)
    few = torch.zeros_like(compared.matches.mutual)
    for reference, mutual in enumerate(compared.matches.mutual[0]):
        cells = mutual.nonzero()[:, 0]
        few[0, reference, cells[torch.linspace(0, len(cells) - 1, 4).long()]] = True
    compared = replace(compared, matches=replace(compared.matches, mutual=few))

    def metres(prior: Prior | None) -> float:
        return error_of(answer_compared(replace(compared, prior=prior), "geometric", ACCEPT_ALL), room)[0]

    assert metres(None) > 0.5
    assert metres(Prior(near, looks=True)) < 1e-3
    assert metres(Prior(near, looks=False)) < 1e-3


def test_a_wrong_prior_does_not_move_the_answer(room: StreamBatch):
    T_wrong = room.T_world_cam[0, 0].to(dtype=torch.float64) @ Pose.from_axis_angle([0.0, 2.0, 0.0], [9.0, 0.0, 9.0])
    compared = replace(compared_by_truth(room, noise_px=0.3, wrong_share=0.3), prior=Prior(T_wrong, looks=True))
    answer = answer_compared(compared, "auto")
    assert answer.localized
    assert error_of(answer, room)[0] < 0.05


def test_a_refusal_says_why(room: StreamBatch):
    strict = Calibration(Odds({"inliers": 1.0}, -20.0, 0.9), *(Odds({}, 0.0, 0.9),) * 2, "", 0)
    answer = answer_compared(compared_by_truth(room), "auto", strict)
    assert not answer.localized
    assert answer.T_world_cam is None
    assert answer.T_best is not None
    assert answer.reason.startswith("Not sure enough: the pose is right with a chance of 0%, and 90% are asked for.")
    assert "matches agree on a pose" in answer.reason


@pytest.mark.usefixtures("shapes_unchecked")
def test_better_matches_are_surer(room: StreamBatch):
    chances = [
        answer_compared(compared_by_truth(room, noise_px=noise_px, wrong_share=wrong), "auto").confidence
        for noise_px, wrong in ((0.0, 0.0), (0.5, 0.4), (0.5, 0.8))
    ]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.9


def test_weights_that_make_no_pose_are_refused(room: StreamBatch):
    nowhere = Pose(torch.full((3, 3), torch.nan).double(), torch.zeros(3).double())
    answer = answer_compared(compared_by_truth(room, T_regressed=nowhere), "auto")
    assert not answer.localized
    assert "no pose" in answer.reason


# Which matches


def some_matches(**changes: torch.Tensor) -> Matches:
    shape = (1, 2, HEIGHT // COARSE_STRIDE * (WIDTH // COARSE_STRIDE))
    default = {
        "xy": torch.ones(*shape, 2),
        "confidence": torch.full(shape, 0.5),
        "best": torch.zeros(shape, dtype=torch.long),
        "mutual": torch.ones(shape, dtype=torch.bool),
        "sigma_px": torch.ones(shape),
        "seen": torch.zeros(shape),
    }
    return Matches(**{**default, **changes})


def test_only_mutual_and_confident_matches_are_selected():
    plain = some_matches()
    mutual, confidence = plain.mutual.clone(), plain.confidence.clone()
    mutual[0, 0, 3:], confidence[0, 1, 5:] = False, 0.01
    points = select_matches(some_matches(mutual=mutual, confidence=confidence), (HEIGHT, WIDTH))
    assert np.bincount(points.ref_idx).tolist() == [3, 5]
    assert_allclose(np.sort(points.query_xy[points.ref_idx == 0, 0]), [4.5, 12.5, 20.5])


def test_a_place_that_may_be_far_off_counts_less():
    sigma_px = torch.ones(1, 2, 432)
    sigma_px[0, :, 1], sigma_px[0, :, 2] = 2.0, 0.2
    first_row = torch.arange(432).expand(1, 2, -1) < WIDTH // COARSE_STRIDE
    points = select_matches(some_matches(sigma_px=sigma_px, mutual=first_row), (HEIGHT, WIDTH))
    weight_by_x = dict(zip(points.query_xy[:, 0].tolist(), points.weight.tolist(), strict=True))
    assert weight_by_x[4.5] == weight_by_x[20.5] == pytest.approx(0.5)
    assert weight_by_x[12.5] == pytest.approx(0.125)


def test_the_best_matches_of_each_reference_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(localizer_module, "MATCHES_PER_REFERENCE", 300)
    confidence = torch.linspace(0.2, 0.9, 432).expand(1, 2, -1).clone()
    points = select_matches(some_matches(confidence=confidence), (HEIGHT, WIDTH))
    assert np.bincount(points.ref_idx).tolist() == [300, 300]
    assert min(points.weight) == pytest.approx(float(confidence[0, 0, 132]))


def test_the_expected_error_is_that_of_the_sure_edges():
    metres, radians = expected_error(torch.log(torch.tensor([[0.01, 0.02], [10.0, 1.0]])))
    assert metres == pytest.approx(0.01, rel=1e-3)
    assert radians == pytest.approx(0.02, rel=0.05)


# The whole road, with a network that knows nothing


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    return small_network()


@pytest.fixture(scope="module")
def localizer(network: LoadedMatchGNN) -> Localizer:
    return Localizer(MapFeatures.of(posed_photos(6), network), network, num_references=3)


@pytest.fixture(scope="module")
def regressing(localizer: Localizer) -> Localizer:
    """For what has nothing to do with the solver, which takes longest."""
    return Localizer(localizer.map, localizer.network, num_references=3, solver="regress")


def assert_honest(answer: Answer) -> None:
    """An answer or a refusal, with finite numbers."""
    assert 0.0 <= answer.confidence <= 1.0
    assert answer.localized == (answer.T_world_cam is not None)
    assert answer.localized or answer.reason
    for pose in (answer.T_world_cam, answer.T_regressed, answer.T_solved):
        if pose is not None:
            assert pose.t.isfinite().all()
            assert_allclose(torch.linalg.det(pose.R), 1.0, atol=1e-5)
    if answer.T_best is not None:
        assert answer.covariance.isfinite().all()
    assert all(np.isfinite(value) for value in answer.signs.values())


def bad_queries() -> dict[str, np.ndarray]:
    photo = noise_photo(2)
    blurred = np.asarray(Image.fromarray(photo).filter(ImageFilter.GaussianBlur(12)))
    return {
        "blurred": blurred,
        "black": np.zeros_like(photo),
        "white": np.full_like(photo, 255),
        "tiny": photo[:9, :8],
        "a placeholder": photo[:2, :3],
        "rotated": np.ascontiguousarray(np.rot90(photo)),
        "portrait": noise_photo(3, 200, 100),
        "panorama": noise_photo(3, 60, 600),
        "needle": noise_photo(3, 900, 9),
        "mirrored": np.ascontiguousarray(photo[:, ::-1]),
    }


@pytest.mark.parametrize("kind", bad_queries())
def test_bad_queries_get_an_honest_answer(localizer: Localizer, kind: str, monkeypatch: pytest.MonkeyPatch):
    """From each solver, of which two go by the same solution: it is found once."""
    monkeypatch.setattr(localizer_module, "solve_query_pose", once(solve_query_pose))
    compared = localizer.compare(bad_queries()[kind])
    if isinstance(compared, Answer):
        assert kind == "a placeholder"
        assert_honest(compared)
        return
    regressed, solved, either = (answer_compared(compared, solver) for solver in ("regress", "geometric", "auto"))
    for answer in (regressed, solved, either):
        assert_honest(answer)
    assert regressed.T_solved is None
    assert either.T_solved == solved.T_solved


def once(function: Callable[..., SolverAnswer]) -> Callable[..., SolverAnswer]:
    """The function as it is called for the first time."""
    found: list[SolverAnswer] = []

    def first(*arguments: object, **options: object) -> SolverAnswer:
        if not found:
            found.append(function(*arguments, **options))
        return found[0]

    return first


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("camera", [CAMERA, None], ids=["known", "unknown"])
def test_a_map_of_one_photo(network: LoadedMatchGNN, camera: Camera | None):
    single = Localizer(MapFeatures.of(posed_photos(1, camera=camera), network), network)
    answer = single.localize(noise_photo(0), camera=camera)
    assert_honest(answer)
    assert [reference.row for reference in answer.references] == [0]


@pytest.mark.usefixtures("shapes_unchecked")
def test_all_references_at_one_point(network: LoadedMatchGNN):
    bunched = Localizer(MapFeatures.of(posed_photos(5, spread_m=0.0), network), network)
    answer = bunched.localize(noise_photo(0), camera=CAMERA)
    assert_honest(answer)
    assert not answer.scale_observable


def test_photos_without_a_pose_are_never_references(network: LoadedMatchGNN):
    photos = posed_photos(3)
    nowhere = Pose(torch.eye(3).double(), torch.full((3,), torch.nan).double())
    photos[1] = PhotoInMemory("nowhere.png", photos[1].pixels, nowhere, CAMERA)
    answer = Localizer(MapFeatures.of(photos, network), network).localize(photos[1].pixels, camera=CAMERA)
    assert_honest(answer)
    assert {reference.row for reference in answer.references} == {0, 2}
    only = Localizer(MapFeatures.of(photos[1:2], network), network).localize(noise_photo(0))
    assert only.reason == "No photo of the map has a pose and a descriptor."


def test_a_photo_finds_itself_in_the_map(localizer: Localizer):
    answer = localizer.localize(noise_photo(3), camera=CAMERA)
    assert answer.references[0].row == 3
    assert answer.references[0].name == "photo-3.png"
    assert answer.references[0].similarity == pytest.approx(1.0, abs=1e-3)
    assert set(answer.seconds) == {"decode", "encode", "retrieve", "match", "solve"}


def test_references_may_be_given(regressing: Localizer):
    answer = regressing.localize(noise_photo(3), camera=CAMERA, references=[5, 1])
    assert [reference.row for reference in answer.references] == [5, 1]
    for rows in ([], [6], [-1]):
        with pytest.raises(ConfigError, match="rows of a map of 6 photos"):
            regressing.localize(noise_photo(3), references=rows)


def test_the_order_of_given_references_does_not_matter_where_their_sizes_differ(network: LoadedMatchGNN):
    photos = posed_photos(4)
    for i in (0, 2):
        upright = CAMERA.rotated_90(1)
        photos[i] = PhotoInMemory(f"{i}.png", noise_photo(i, 160, 120), photos[i].T_world_cam, upright)
    localizer = Localizer(MapFeatures.of(photos, network), network, solver="regress")
    one, other = (
        localizer.localize(noise_photo(9), camera=CAMERA, references=rows) for rows in ([0, 1, 2, 3], [3, 2, 0, 1])
    )
    assert one.T_regressed is not None
    assert_allclose(one.T_regressed.t, other.T_regressed.t, atol=UNTRAINED_M)
    in_order, shuffled = (
        localizer.compare(noise_photo(9), camera=CAMERA, references=r) for r in ([0, 1, 2, 3], [3, 2, 0, 1])
    )
    assert_allclose(in_order.T_world_edges.t[[3, 2, 0, 1]], shuffled.T_world_edges.t, atol=1e-4)
    overlap = {reference.row: reference.overlap for reference in one.references}
    assert_allclose([overlap[r.row] for r in other.references], [r.overlap for r in other.references], atol=1e-4)


def test_moving_the_world_moves_the_answer_with_it_even_far(network: LoadedMatchGNN):
    photos = posed_photos(4)
    T_new_world = Pose.from_axis_angle([0.3, -0.2, 1.0], [500_000.0, 4_000_000.0, 100.0])
    moved = [replace(photo, T_world_cam=T_new_world @ photo.T_world_cam) for photo in photos]
    localizers = [Localizer(MapFeatures.of(some, network), network, solver="regress") for some in (photos, moved)]
    before, after = (localizer.compare(noise_photo(9), camera=CAMERA).T_world_edges for localizer in localizers)
    assert_allclose(after.t, (T_new_world @ before).t, atol=1e-4, rtol=0)
    assert_allclose(after.R, (T_new_world @ before).R, atol=1e-4)
    here, there = (localizer.localize(noise_photo(9), camera=CAMERA) for localizer in localizers)
    assert here.T_regressed is not None
    expected = T_new_world @ here.T_regressed
    assert_allclose(there.T_regressed.t, expected.t, atol=UNTRAINED_M, rtol=0)
    assert_allclose(there.T_regressed.R, expected.R, atol=UNTRAINED_M)


def test_an_eight_bit_map_says_nearly_the_same(network: LoadedMatchGNN):
    half, eight_bits = (
        Localizer(MapFeatures.of(posed_photos(4), network, precision=precision), network, solver="regress").compare(
            noise_photo(2), camera=CAMERA, references=[0, 1, 3]
        )
        for precision in ("float16", "int8")
    )
    assert_allclose(half.T_world_edges.t, eight_bits.T_world_edges.t, atol=0.05)
    assert_allclose(half.T_regressed.t, eight_bits.T_regressed.t, atol=0.2)  # what trained ones lose is measured


def test_what_is_told_of_the_camera_changes_the_answer(regressing: Localizer):
    told, searched = (regressing.localize(noise_photo(9), camera=camera) for camera in (CAMERA, None))
    assert told.focal_px == pytest.approx(CAMERA.fx)  # in pixels of the photo as it was given
    assert not torch.equal(told.T_regressed.t, searched.T_regressed.t)


def test_a_file_may_be_a_query(regressing: Localizer, tmp_path: Path):
    localizer = regressing
    Image.fromarray(noise_photo(3)).save(tmp_path / "query.png")
    from_file = localizer.localize(tmp_path / "query.png", camera=CAMERA)
    from_bytes = localizer.localize((tmp_path / "query.png").read_bytes(), camera=CAMERA)
    assert_allclose(from_file.T_regressed.t, from_bytes.T_regressed.t)
    (tmp_path / "damaged.png").write_bytes((tmp_path / "query.png").read_bytes()[:500])
    refused = localizer.localize(tmp_path / "damaged.png")
    assert not refused.localized
    assert "damaged" in refused.reason
    with pytest.raises(DatasetError, match=r"missing\.png"):
        localizer.localize(tmp_path / "missing.png")


def test_a_camera_of_another_photo_is_an_error(localizer: Localizer):
    with pytest.raises(GeometryError, match="found one for 120 x 160"):
        localizer.localize(noise_photo(3), camera=CAMERA.rotated_90(1))


@pytest.mark.parametrize("focal_px", [4.2, 26.0])
def test_a_focal_length_in_millimetres_is_an_error(localizer: Localizer, focal_px: float):
    photo = noise_photo(3)
    height, width = photo.shape[:2]
    with pytest.raises(
        GeometryError, match=f"at least 32 pixels for a photo of {width} x {height}, found {focal_px:g}"
    ):
        localizer.localize(photo, camera=Camera.from_focal(width, height, focal_px))


def test_a_query_needs_a_reference(localizer: Localizer):
    with pytest.raises(ConfigError, match="1 to 32 references, got 0"):
        Localizer(localizer.map, localizer.network, num_references=0)
