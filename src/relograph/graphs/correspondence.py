"""Where each place of the query is seen in the other images of its graph, from exact depth: truth for matching."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry import Pose

NEWTON_STEPS = 4
DEPTH_TOLERANCE, DEPTH_TOLERANCE_M = 0.03, 0.03


@dataclass(frozen=True)
class Lenses:
    """Pinhole cameras with two radial coefficients, as OpenCV defines them."""

    K: Float[Tensor, "*B 3 3"]
    distortion: Float[Tensor, "*B 2"]

    @property
    def focal_px(self) -> Float[Tensor, "*B 1 2"]:
        """Along x and y, to meet the pixels of each camera."""
        # A view: the same by a list of indices would be copied to a GPU, and wait for it.
        return self.K[..., :2, :2].diagonal(dim1=-2, dim2=-1)[..., None, :]

    def rays(self, xy: Float[Tensor, "*B P 2"]) -> Float[Tensor, "*B P 2"]:
        """Directions (x / z, y / z) of pixels."""
        bent = (xy - self.K[..., None, :2, 2]) / self.focal_px
        k1, k2 = self.distortion[..., None, :1], self.distortion[..., None, 1:]
        bent_radius = bent.norm(dim=-1, keepdim=True)
        radius = bent_radius
        for _ in range(NEWTON_STEPS):  # on radius (1 + k1 radius^2 + k2 radius^4) = bent_radius
            square = radius * radius
            value = radius * (1 + square * (k1 + square * k2)) - bent_radius
            slope = 1 + square * (3 * k1 + 5 * square * k2)
            radius = radius - value / slope
        straight: Tensor = bent * (radius / bent_radius.clamp_min(1e-9))
        return straight

    def pixels(self, points: Float[Tensor, "*B P 3"]) -> Float[Tensor, "*B P 2"]:
        """Where points in the camera's frame are seen; those behind it anywhere."""
        straight = points[..., :2] / points[..., 2:].clamp_min(1e-6)
        square = straight.square().sum(dim=-1, keepdim=True)
        k1, k2 = self.distortion[..., None, :1], self.distortion[..., None, 1:]
        bent = straight * (1 + square * (k1 + square * k2))
        return bent * self.focal_px + self.K[..., None, :2, 2]


def cell_anchors(height: int, width: int, stride: int, device: torch.device | None = None) -> Float[Tensor, "P 2"]:
    """What stands for each cell of `stride` x `stride` pixels, row by row: the centre of its middle pixel.

    Example:
        >>> cell_anchors(16, 16, 8)
        tensor([[ 4.5000,  4.5000],
                [12.5000,  4.5000],
                [ 4.5000, 12.5000],
                [12.5000, 12.5000]])
    """
    x = torch.arange(width // stride, device=device) * stride + stride // 2 + 0.5
    y = torch.arange(height // stride, device=device) * stride + stride // 2 + 0.5
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([grid_x, grid_y], dim=-1).flatten(0, 1)


@dataclass(frozen=True)
class TrueMatches:
    """Of every cell of the query, in each reference."""

    xy: Float[Tensor, "B R P 2"]
    """Where its anchor is seen, in pixels."""
    visible: Bool[Tensor, "B R P"]
    """Whether it is seen: inside the image, and nothing stands before it."""


def true_matches(depth_m: Float[Tensor, "B N H W"], T_world_cam: Pose, lenses: Lenses, stride: int) -> TrueMatches:
    """Where the anchors of the query (node 0) are seen in the other images."""
    num_graphs, num_nodes, height, width = depth_m.shape
    anchors = cell_anchors(height, width, stride, depth_m.device)
    column, row = anchors.floor().long().unbind(dim=-1)
    query = Lenses(lenses.K[:, 0], lenses.distortion[:, 0])
    rays = query.rays(anchors.expand(num_graphs, -1, -1))
    depth = depth_m[:, 0, row, column][..., None]  # [B, P, 1]
    in_query = torch.cat([rays * depth, depth], dim=-1)  # [B, P, 3]
    in_world = T_world_cam[:, 0].apply(in_query)
    others = T_world_cam[:, 1:]
    in_ref = others.inverse().apply(in_world[:, None].expand(-1, num_nodes - 1, -1, -1))  # [B, R, P, 3]
    xy = Lenses(lenses.K[:, 1:], lenses.distortion[:, 1:]).pixels(in_ref)
    z = in_ref[..., 2]
    column, row = xy[..., 0].floor(), xy[..., 1].floor()
    inside = (z > 1e-3) & (column >= 0) & (row >= 0) & (column < width) & (row < height)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
    seen_m = depth_m[:, 1:].flatten(2).gather(2, place)
    same = (z - seen_m).abs() < (DEPTH_TOLERANCE * z).clamp_min(DEPTH_TOLERANCE_M)
    return TrueMatches(xy, inside & same)
