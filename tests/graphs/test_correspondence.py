"""Where a place is seen: lenses against `Camera`, matches against geometry that can be reckoned by hand."""

import pytest
import torch
from numpy.testing import assert_allclose

from relograph.geometry import Camera, Pose
from relograph.graphs.correspondence import Lenses, cell_anchors, true_matches

HEIGHT, WIDTH = 48, 64
CAMERA = Camera(WIDTH, HEIGHT, 60.0, 60.0, 31.0, 25.0, distortion=(0.05, -0.01, 0.0, 0.0), model="opencv")


def lenses(camera: Camera, *shape: int) -> Lenses:
    return Lenses(camera.K.expand(*shape, 3, 3), torch.tensor(camera.distortion[:2]).double().expand(*shape, 2))


def test_rays_and_pixels_agree_with_the_camera() -> None:
    xy = cell_anchors(HEIGHT, WIDTH, 4).double()
    rays = lenses(CAMERA).rays(xy)
    assert_allclose(rays, CAMERA.unproject(xy)[:, :2], atol=1e-9)
    points = torch.cat([rays, torch.ones(len(rays), 1)], dim=1) * 2.5
    assert_allclose(lenses(CAMERA).pixels(points), xy, atol=1e-9)


def wall_seen_from(*centers: tuple[float, float, float]) -> tuple[torch.Tensor, Pose]:
    """Depth maps and poses of cameras that look along z at a wall 3 m from the origin."""
    T_world_cam = Pose.from_axis_angle(
        torch.zeros(1, len(centers), 3, dtype=torch.float64), torch.tensor([centers], dtype=torch.float64)
    )
    depth_m = torch.stack([torch.full((HEIGHT, WIDTH), 3 - z, dtype=torch.float64) for _, _, z in centers])[None]
    return depth_m, T_world_cam


def test_a_step_to_the_side_moves_a_wall_the_other_way() -> None:
    depth_m, T_world_cam = wall_seen_from((0, 0, 0), (0.2, 0, 0), (0, 0.1, 0))
    pinhole = Camera(WIDTH, HEIGHT, 60.0, 60.0, 32.0, 24.0)
    K = Lenses(pinhole.K.expand(1, 3, 3, 3), torch.zeros(1, 3, 2, dtype=torch.float64))
    matches = true_matches(depth_m, T_world_cam, K, stride=8)
    anchors = cell_anchors(HEIGHT, WIDTH, 8).double()
    assert_allclose(matches.xy[0, 0], anchors - torch.tensor([60 * 0.2 / 3, 0]), atol=1e-9)
    assert_allclose(matches.xy[0, 1], anchors - torch.tensor([0, 60 * 0.1 / 3]), atol=1e-9)
    assert matches.visible[0, 0].tolist() == (matches.xy[0, 0, :, 0] >= 0).tolist()


def test_what_something_stands_before_is_not_seen() -> None:
    depth_m, T_world_cam = wall_seen_from((0, 0, 0), (0, 0, 0))
    depth_m[0, 1, :, : WIDTH // 2] = 1.0  # a cupboard that only the reference has before it
    K = Lenses(CAMERA.K.expand(1, 2, 3, 3), torch.tensor([0.05, -0.01]).double().expand(1, 2, 2))
    matches = true_matches(depth_m, T_world_cam, K, stride=8)
    anchors = cell_anchors(HEIGHT, WIDTH, 8).double()
    assert_allclose(matches.xy[0, 0], anchors, atol=1e-9)
    assert matches.visible[0, 0].tolist() == (anchors[:, 0] > WIDTH // 2).tolist()


def test_what_is_behind_a_camera_is_not_seen() -> None:
    depth_m, T_world_cam = wall_seen_from((0, 0, 0), (0, 0, 4))
    matches = true_matches(depth_m, T_world_cam, lenses(CAMERA, 1, 2), stride=8)
    assert not matches.visible.any()


@pytest.mark.parametrize("stride", [2, 8, 16])
def test_every_cell_has_an_anchor_inside_it(stride: int) -> None:
    anchors = cell_anchors(HEIGHT, WIDTH, stride)
    cell = (anchors / stride).floor()
    assert len(cell.unique(dim=0)) == len(anchors) == HEIGHT * WIDTH // stride**2
