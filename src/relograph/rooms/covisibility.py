"""How much of one view another view sees, decided by depth."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.rooms.raycast import Vector, dot, of_image, pixel_centers, plus, ray_directions
from relograph.rooms.world import Views


def project(views: Views, points: Vector) -> tuple[Float[Tensor, "B P 2"], Float[Tensor, "B P"]]:
    """Pixel coordinates, lens distortion included, and depth of points of the room."""
    offset = plus(points, of_image(views.center), -1.0)
    x, y, z = (dot(of_image(views.R_room_cam[:, :, axis]), offset) for axis in range(3))  # R^T (p - c)
    safe_z = torch.where(z > 1e-6, z, 1.0)
    x, y = x / safe_z, y / safe_z
    r2 = x * x + y * y
    stretch = 1 + r2 * (views.distortion[:, :1] + r2 * views.distortion[:, 1:])
    xy = torch.stack([x * stretch, y * stretch], dim=-1)
    return xy * views.focal_px[:, None] + views.principal_px[:, None], z


def covisibility(
    views_a: Views,
    depth_a_m: Float[Tensor, "B H W"],
    views_b: Views,
    depth_b_m: Float[Tensor, "B H2 W2"],
    *,
    tolerance: float = 0.05,
) -> Float[Tensor, "B"]:
    """Share of the pixels of view A whose surface is seen in view B, within [0, 1].

    A point counts if it falls into image B, no surface of B lies in front of it (the depths agree within `tolerance`
    of the depth, or 3 cm), and its surface faces camera B: a thin wall has another side.
    """
    height, width = depth_a_m.shape[1:]
    rays = ray_directions(views_a, pixel_centers(height, width, depth_a_m.device))
    points = plus(of_image(views_a.center), rays, depth_a_m.flatten(1))
    return share_seen(points, width, views_b, depth_b_m, tolerance=tolerance)


def share_seen(
    points: Vector, width: int, views: Views, depth_m: Float[Tensor, "B H W"], *, tolerance: float
) -> Float[Tensor, "B"]:
    """Share of the points of images of a `width`, row by row, that other views see; see `covisibility`."""
    xy, z = project(views, points)
    height_b, width_b = depth_m.shape[1:]
    x, y = xy[..., 0].floor(), xy[..., 1].floor()
    inside = (z > 1e-6) & (x >= 0) & (y >= 0) & (x < width_b) & (y < height_b)
    pixel = (y.clamp(0, height_b - 1) * width_b + x.clamp(0, width_b - 1)).long()
    seen_m = depth_m.flatten(1).gather(1, pixel)
    same = (z - seen_m).abs() < (tolerance * z).clamp_min(0.03)
    return (inside & same & faces(views, points, z.shape[1] // width, width)).float().mean(dim=1)


def faces(views: Views, points: Vector, height: int, width: int) -> Bool[Tensor, "B P"]:
    """Whether the surface through the points of an image, row by row, shows its front to other cameras."""
    grid = torch.stack(points, dim=-1).unflatten(1, (height, width))  # [B, H, W, 3]
    # To the next pixel, at the end of a row or column from the one before.
    to_right = torch.cat([grid[:, :, 1:] - grid[:, :, :-1], grid[:, :, -1:] - grid[:, :, -2:-1]], dim=2)
    to_below = torch.cat([grid[:, 1:] - grid[:, :-1], grid[:, -1:] - grid[:, -2:-1]], dim=1)
    away = torch.linalg.cross(to_right, to_below)  # x right, y down: away from the camera that sees the front
    towards_camera: Tensor = (away * (views.center[:, None, None] - grid)).sum(dim=-1)
    return towards_camera.flatten(1) < 0
