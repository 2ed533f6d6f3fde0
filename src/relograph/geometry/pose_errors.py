"""How far two poses are apart: degrees and metres."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.geometry.arrays import Nested, as_float_tensor
from relograph.geometry.pose import Pose


class PoseError(NamedTuple):
    """The two numbers that localization is judged by."""

    rotation_error_deg: Float[Tensor, "*B"]
    translation_error_m: Float[Tensor, "*B"]


def rotation_error_deg(
    R_a: Float[Tensor, "*#B 3 3"] | Nested, R_b: Float[Tensor, "*#B 3 3"] | Nested
) -> Float[Tensor, "..."]:
    """Angle of the rotation between `R_a` and `R_b`, in degrees, within [0, 180].

    The atan2 of its sine and cosine, both read off R_a^T R_b. The usual arccos of the trace returns exactly 0 for a
    1e-8 rad rotation in float64, so it cannot rank very good predictions.

    Example:
        >>> quarter_turn_z = [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        >>> float(rotation_error_deg(torch.eye(3, dtype=torch.float64), quarter_turn_z))
        90.0
    """
    R = torch.matmul(as_float_tensor(R_a).mT, as_float_tensor(R_b))
    axis_times_2_sin = torch.stack(
        [R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], dim=-1
    )
    two_sin = torch.linalg.vector_norm(axis_times_2_sin, dim=-1)
    two_cos = R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1
    return torch.rad2deg(torch.atan2(two_sin, two_cos))


def translation_error_m(
    t_a: Float[Tensor, "*#B 3"] | Nested, t_b: Float[Tensor, "*#B 3"] | Nested
) -> Float[Tensor, "..."]:
    """Distance between two positions, in metres.

    Example:
        >>> float(translation_error_m([0.0, 0.0, 0.0], [3.0, 4.0, 0.0]))
        5.0
    """
    offset = as_float_tensor(t_a) - as_float_tensor(t_b)
    return torch.linalg.vector_norm(offset, dim=-1)  # type: ignore[no-any-return]  # torch.linalg is not annotated


def pose_error(T_a: Pose, T_b: Pose) -> PoseError:
    """The angle in degrees and the distance in metres between two poses `T_world_cam` of the same camera.

    The distance is that of the camera centres, so both poses must be camera-to-world.
    """
    return PoseError(rotation_error_deg(T_a.R, T_b.R), translation_error_m(T_a.t, T_b.t))
