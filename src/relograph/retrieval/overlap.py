"""How much two cameras see of the same things, where only their poses are known."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.geometry import Pose


def frustum_overlap(
    T_world_a: Pose,
    T_world_b: Pose,
    *,
    field_of_view_deg: float = 60.0,
    aspect: float = 4 / 3,
    near_m: float = 0.5,
    far_m: float = 4.0,
) -> Float[Tensor, "*B"]:
    """Expected share of what camera a sees that camera b sees too, within [0, 1]; batch shapes broadcast.

    Without depth a surface may lie anywhere in a's frustum, between `near_m` and `far_m`, and face any way that a can
    see. It counts if b has it in its image, times the chance that it also faces b: 1 - angle / 180 degrees, where the
    angle is that between the two lines of sight. The defaults are those of a room; outdoors use larger distances.
    Nothing hides anything, so a wall between two rooms is not noticed.

    Args:
        field_of_view_deg: The horizontal one, of both cameras.
        aspect: Image width over height.

    Example:
        >>> here = Pose.identity()
        >>> turned_round = Pose.from_axis_angle([0.0, math.pi, 0.0], [0.0, 0.0, 0.0])
        >>> [round(float(frustum_overlap(here, other)), 3) for other in (here, turned_round)]
        [1.0, 0.0]
    """
    half_width = math.tan(math.radians(field_of_view_deg) / 2)
    half_height = half_width / aspect
    T_b_a = T_world_b.inverse() @ T_world_a
    x, y, z = torch.meshgrid(
        _middles(-half_width, half_width, 8, like=T_b_a.t),
        _middles(-half_height, half_height, 6, like=T_b_a.t),
        _middles(near_m, far_m, 8, like=T_b_a.t),
        indexing="ij",
    )
    points_a = torch.stack([x * z, y * z, z], dim=-1).flatten(0, 2)  # [P, 3]
    turned = points_a @ T_b_a.R.mT  # [*B, P, 3], a's lines of sight along b's axes
    points_b = turned + T_b_a.t[..., None, :]
    x, y, z = points_b.unbind(dim=-1)
    in_image = (z > 0) & (x.abs() < half_width * z) & (y.abs() < half_height * z)
    sine = torch.linalg.vector_norm(torch.linalg.cross(turned, points_b), dim=-1)
    angle = torch.atan2(sine, (turned * points_b).sum(dim=-1))
    return (in_image * (1 - angle / math.pi)).mean(dim=-1)


def _middles(low: float, high: float, num: int, like: Tensor) -> Float[Tensor, "num"]:
    """The middles of `num` equal parts."""
    return low + (high - low) * (torch.arange(num, dtype=like.dtype, device=like.device) + 0.5) / num
