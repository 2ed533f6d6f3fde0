"""What an edge should say: the relative pose of its two images, in the paper's world frame or in a camera's."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry import Pose

Target = Literal["world", "camera"]


def relative_targets(T_world_cam: Pose, target: Target) -> Float[Tensor, "B N N 6"]:
    """[translation in metres (3), log of the quaternion (3)] of every edge [i, j] between cameras [B, N].

    `world` is the paper's: absolute poses subtracted, c_j - c_i and log q_j - log q_i. It depends on the world frame.
    `camera` is the pose of camera j in the frame of camera i, whatever the world.
    """
    if target == "world":
        pose_vectors = absolute_targets(T_world_cam)
        return pose_vectors[:, None, :, :] - pose_vectors[:, :, None, :]
    num_nodes = T_world_cam.t.shape[1]
    T_world_i = Pose(
        T_world_cam.R[:, :, None].expand(-1, -1, num_nodes, -1, -1),
        T_world_cam.t[:, :, None].expand(-1, -1, num_nodes, -1),
    )
    T_world_j = Pose(
        T_world_cam.R[:, None].expand(-1, num_nodes, -1, -1, -1), T_world_cam.t[:, None].expand(-1, num_nodes, -1, -1)
    )
    return absolute_targets(T_world_i.inverse() @ T_world_j)


def absolute_targets(T_world_cam: Pose) -> Float[Tensor, "*B 6"]:
    """[camera centre in metres (3), log of the quaternion (3)] of poses."""
    return torch.cat([T_world_cam.t, T_world_cam.log_quat()], dim=-1)


def target_units(metres_per_unit: float, device: torch.device | str) -> Float[Tensor, "6"]:
    """What the six numbers that a network says of a pose are multiplied with, to be metres and the log as it is.

    It is filled on the device: a copy from the host would make every training step wait.

    Example:
        >>> target_units(20.0, "cpu").tolist()
        [20.0, 20.0, 20.0, 1.0, 1.0, 1.0]
    """
    metres = torch.full((3,), metres_per_unit, dtype=torch.float32, device=device)
    return torch.cat([metres, torch.ones_like(metres)])


def absolute_pose(prediction: Float[Tensor, "*B 6"], T_world_ref: Pose, target: Target) -> Pose:
    """T_world_query, from what edges [reference, query] say and the poses of their references."""
    translation, log_quat = prediction.split(3, dim=-1)
    if target == "world":
        return Pose.from_log_quat(T_world_ref.log_quat() + log_quat, T_world_ref.t + translation)
    return T_world_ref @ Pose.from_log_quat(log_quat, translation)


def crosses_the_jump(T_world_cam: Pose) -> Bool[Tensor, "B N N"]:
    """Edges whose world target is not the rotation between their cameras, but takes the long way round.

    The log of an absolute rotation jumps where a camera is turned by 180 degrees from the world frame: two similar
    views on either side of the jump have very different logs.
    """
    quat_wxyz = T_world_cam.quat_wxyz()
    return torch.einsum("bik,bjk->bij", quat_wxyz, quat_wxyz) < 0
