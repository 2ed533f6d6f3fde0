"""The last layer finds the pose that matches agree on, whatever the lens, and stays where it is if they are silent."""

import math

import pytest
import torch
from torch import Tensor

from relograph.geometry import Pose, axis_angle_to_matrix, pose_error
from relograph.models import settling
from relograph.models.settling import Settled, settle

POINTS, REFERENCES = 300, 4


class Scene:
    """Points in front of cameras, seen by a query and by references of known pose, as rays of a likely lens."""

    def __init__(
        self,
        *,
        focal: tuple[float, float] = (1.0, 1.0),
        k1: tuple[float, float] = (0.0, 0.0),
        wrong_share: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator) * 2 - 1

        points = torch.cat([1.5 * draw(POINTS, 2), 3.0 + draw(POINTS, 1)], dim=1)
        self.T_world_ref = Pose.from_axis_angle(0.15 * draw(REFERENCES, 3), 0.5 * draw(REFERENCES, 3))
        self.T_world_query = Pose.from_axis_angle(0.1 * draw(3), 0.3 * draw(3))
        seen = [distorted(seen_by(pose, points), k1[1]) for pose in self.T_world_ref]
        here = distorted(seen_by(self.T_world_query, points), k1[0])
        self.here = here[None, None].expand(1, REFERENCES, -1, -1) * focal[0]
        self.there = torch.stack(seen)[None] * focal[1]
        self.there = self.there + noise * torch.randn(self.there.shape, generator=generator)
        is_wrong = torch.rand(1, REFERENCES, POINTS, generator=generator) < wrong_share
        self.there = torch.where(is_wrong[..., None], 0.5 * draw(*self.there.shape), self.there)
        self.weight = torch.ones(1, REFERENCES, POINTS)
        T_off = pose_of([0.02, -0.03, 0.02], [0.06, 0.05, -0.08])
        self.T_begin = (self.T_world_query @ T_off).reshape(1, 1)

    def settled(self, *, knows: bool = True, knows_refs: bool | None = None, T_begin: Pose | None = None) -> Settled:
        return settle(
            self.here,
            self.there,
            self.weight,
            torch.tensor([[knows, knows if knows_refs is None else knows_refs]]),
            self.T_world_ref.reshape(1, REFERENCES),
            self.T_begin if T_begin is None else T_begin,
            torch.tensor([[0.1, 0.05]]),
        )

    def error(self, settled: Settled) -> tuple[float, float]:
        error = pose_error(settled.T_world_query[0], self.T_world_query)
        return float(error.translation_error_m), float(error.rotation_error_deg)


def pose_of(axis_angle: list[float], center: list[float]) -> Pose:
    return Pose.from_axis_angle(axis_angle, center).to(torch.float32)


def seen_by(T_world_cam: Pose, points: Tensor) -> Tensor:
    in_camera = T_world_cam.inverse().apply(points)
    return in_camera[:, :2] / in_camera[:, 2:]


def distorted(rays: Tensor, k1: float) -> Tensor:
    return rays * (1 + k1 * rays.square().sum(dim=-1, keepdim=True))


def test_matches_without_errors_give_the_pose():
    scene = Scene()
    begin = pose_error(scene.T_begin[0, 0], scene.T_world_query)
    assert begin.translation_error_m > 0.1
    settled = scene.settled()
    metres, degrees = scene.error(settled)
    assert metres < 1e-3
    assert degrees < 0.02
    assert settled.agreement[0] > 0.99
    assert (settled.log_focal.abs() < 1e-4).all()


@pytest.mark.parametrize("focal", [(1.0, 1.0), (0.8, 0.8), (1.3, 1.25), (0.85, 1.15)], ids=str)
def test_focal_lengths_that_nobody_told_are_found(focal: tuple[float, float]):
    scene = Scene(focal=focal)
    settled = scene.settled(knows=False)
    metres, degrees = scene.error(settled)
    assert metres < 0.01
    assert degrees < 0.2
    assert settled.log_focal[0].exp().tolist() == pytest.approx(focal, rel=0.02)


@pytest.mark.parametrize("k1", [(0.05, 0.05), (-0.05, -0.05), (0.05, -0.05), (-0.08, 0.0)], ids=str)
def test_lenses_that_bend_are_found(k1: tuple[float, float]):
    scene = Scene(focal=(0.9, 1.1), k1=k1)
    settled = scene.settled(knows=False)
    metres, degrees = scene.error(settled)
    assert metres < 0.01
    assert degrees < 0.2
    assert settled.bend[0].tolist() == pytest.approx([-k1[0], -k1[1]], abs=0.03)


def test_the_lens_of_a_query_is_found_among_references_whose_lenses_are_known():
    scene = Scene(focal=(1.3, 1.0), k1=(0.05, 0.0), noise=0.5 * settling.PIXEL)
    settled = scene.settled(knows=False, knows_refs=True)
    assert settled.log_focal[0].exp().tolist() == pytest.approx([1.3, 1.0], rel=0.02)
    assert settled.bend[0, 0] == pytest.approx(-0.05, abs=0.015)
    assert settled.bend[0, 1].abs() < 1e-4
    assert scene.error(settled)[0] < 0.005


def test_a_lens_that_is_known_does_not_bend():
    settled = Scene(k1=(0.05, 0.05)).settled(knows=True)
    assert settled.bend.abs().max() < 1e-4


def test_the_slopes_of_errors_are_those_of_small_steps():
    scene = Scene(noise=settling.PIXEL)
    generator = torch.Generator().manual_seed(1)
    rays = settling._heaviest(
        scene.here.double(), scene.there.double(), scene.weight.double(), scene.T_world_ref.to(torch.float64)[None]
    )
    T = scene.T_begin.to(torch.float64)
    log_focal, bend = 0.1 * torch.randn(2, 1, 1, 2, generator=generator, dtype=torch.float64)

    def errors(step: Tensor) -> settling._Errors:
        moved = Pose(T.R @ axis_angle_to_matrix(step[:3]), T.t + step[3:6])
        return settling._Errors(rays, settling._Guess(moved, log_focal + step[6:8], bend + step[8:]))

    slopes = errors(torch.zeros(10).double()).jacobian()[0, 0]  # [10, M]
    for unknown, slope in zip(torch.eye(10).double(), slopes, strict=True):
        by_steps = (errors(1e-6 * unknown).error - errors(-1e-6 * unknown).error)[0, 0] / 2e-6
        torch.testing.assert_close(slope, by_steps, rtol=1e-4, atol=1e-5 * float(by_steps.abs().max()))


def test_a_wrong_focal_length_that_is_told_is_believed():
    scene = Scene(focal=(1.3, 1.3))
    assert scene.error(scene.settled(knows=True))[0] > 5 * scene.error(scene.settled(knows=False))[0]


def test_wrong_matches_fall_silent():
    scene = Scene(wrong_share=0.4, noise=0.5 * settling.PIXEL)
    settled = scene.settled()
    metres, degrees = scene.error(settled)
    assert metres < 0.02
    assert degrees < 0.3
    assert 0.4 < settled.agreement[0] < 0.75


def test_of_several_poses_to_begin_with_the_right_one_is_found():
    scene = Scene(wrong_share=0.3)
    far = pose_of([0.0, 1.2, 0.0], [2.0, 0.0, 1.0]).reshape(1, 1)
    settled = scene.settled(T_begin=Pose.cat([scene.T_world_query.reshape(1, 1) @ far, scene.T_begin], dim=1))
    # What was expected is far off and counts all the same, a little.
    assert scene.error(settled)[0] < 0.1


def test_without_matches_the_pose_is_what_was_expected():
    scene = Scene()
    scene.weight = torch.zeros_like(scene.weight)
    settled = scene.settled(knows=False)
    error = pose_error(settled.T_world_query[0], scene.T_begin[0, 0])
    assert error.translation_error_m < 1e-5
    assert error.rotation_error_deg < 0.1  # float32 knows no smaller angle from a trace
    assert settled.agreement[0] == 0


def test_moving_the_world_moves_the_answer_with_it():
    scene = Scene(noise=settling.PIXEL, wrong_share=0.2)
    T_new_world = pose_of([0.3, -1.0, 0.5], [3.0, -2.0, 1.0])
    before = scene.settled()
    scene.T_world_ref, scene.T_begin = T_new_world @ scene.T_world_ref, T_new_world @ scene.T_begin
    after = scene.settled()
    error = pose_error(after.T_world_query, T_new_world @ before.T_world_query)
    assert error.translation_error_m.max() < 2e-3
    assert error.rotation_error_deg.max() < 0.1


def test_references_at_one_point_leave_the_distance_to_what_was_expected():
    scene = Scene()
    scene.T_world_ref = Pose(scene.T_world_ref.R, scene.T_world_ref.t[:1].expand(REFERENCES, -1))
    truth, points = scene.T_world_query, torch.randn(POINTS, 3, generator=torch.Generator().manual_seed(1))
    points = 0.7 * points + torch.tensor([0.0, 0.0, 3.5])
    scene.here = seen_by(truth, points)[None, None].expand(1, REFERENCES, -1, -1)
    scene.there = torch.stack([seen_by(pose, points) for pose in scene.T_world_ref])[None]
    settled = scene.settled()
    direction = torch.nn.functional.normalize(truth.t - scene.T_world_ref.t[0], dim=0)
    offset = settled.T_world_query.t[0] - truth.t
    across = offset - (offset @ direction) * direction
    assert across.norm() < 0.01
    assert offset.norm() < 0.15
    assert pose_error(settled.T_world_query[0], truth).rotation_error_deg < 0.2


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_damaged_rays_do_no_harm(value: float):
    scene = Scene()
    scene.there = scene.there.clone()
    scene.there[..., :40, :] = value
    settled = scene.settled()
    assert settled.T_world_query.R.isfinite().all()
    assert settled.T_world_query.t.isfinite().all()
    assert settled.agreement.isfinite().all()


def test_a_query_at_a_references_place_has_an_answer():
    scene = Scene()
    scene.T_begin = scene.T_world_ref[:1].reshape(1, 1)
    settled = scene.settled(knows=False)
    assert settled.T_world_query.t.isfinite().all()
    assert scene.error(settled)[0] < 1.0


def test_graphs_of_a_batch_do_not_hear_each_other():
    scenes = Scene(focal=(0.8, 0.8)), Scene(wrong_share=0.5)
    both = settle(
        *(torch.cat([getattr(scene, name) for scene in scenes]) for name in ("here", "there", "weight")),
        torch.tensor([[False, False], [True, True]]),
        Pose.stack([scene.T_world_ref for scene in scenes]),
        Pose.cat([scene.T_begin for scene in scenes]),
        torch.tensor([[0.1, 0.05]] * 2),
    )
    for graph, (scene, knows) in enumerate(zip(scenes, (False, True), strict=True)):
        alone = scene.settled(knows=knows)
        assert torch.allclose(both.T_world_query.t[graph], alone.T_world_query.t[0], atol=1e-4)
        assert torch.allclose(both.log_focal[graph], alone.log_focal[0], atol=1e-4)


def test_elimination_solves_as_torch_does():
    A = torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H, y = A @ A.mT, A[..., 0]
    damped = H + settling.DAMPING * torch.diag_embed(H.diagonal(dim1=-2, dim2=-1))
    expected = torch.linalg.solve(damped, y)
    scale = damped.diagonal(dim1=-2, dim2=-1).rsqrt()
    assert torch.allclose(settling._solved(H, y), expected)
    eliminated = settling._eliminated(damped * scale[..., None] * scale[..., None, :], y * scale) * scale
    assert torch.allclose(eliminated, expected)
