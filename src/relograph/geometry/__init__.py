"""Poses, rotations, pose errors, pose averaging and cameras.

One convention everywhere: `T_world_cam` is camera-to-world, camera axes are +X right, +Y down, +Z forward, vectors are
columns, lengths are metres, quaternions are wxyz with w >= 0, and the top-left corner of an image is (0, 0).
"""

from relograph.geometry.averaging import geometric_median, gramkow_mean, l1_rotation_median, markley_mean
from relograph.geometry.camera import Camera
from relograph.geometry.pose import Pose, check_rotation
from relograph.geometry.pose_errors import PoseError, pose_error, rotation_error_deg, translation_error_m
from relograph.geometry.rotations import (
    axis_angle_to_matrix,
    exp_quat,
    log_quat,
    matrix_to_axis_angle,
    matrix_to_quat_wxyz,
    matrix_to_rotation_6d,
    nearest_rotation,
    quat_conjugate,
    quat_in_upper_hemisphere,
    quat_multiply,
    quat_wxyz_to_matrix,
    quat_wxyz_to_xyzw,
    quat_xyzw_to_wxyz,
    rotation_6d_to_matrix,
)

__all__ = [
    "Camera",
    "Pose",
    "PoseError",
    "axis_angle_to_matrix",
    "check_rotation",
    "exp_quat",
    "geometric_median",
    "gramkow_mean",
    "l1_rotation_median",
    "log_quat",
    "markley_mean",
    "matrix_to_axis_angle",
    "matrix_to_quat_wxyz",
    "matrix_to_rotation_6d",
    "nearest_rotation",
    "pose_error",
    "quat_conjugate",
    "quat_in_upper_hemisphere",
    "quat_multiply",
    "quat_wxyz_to_matrix",
    "quat_wxyz_to_xyzw",
    "quat_xyzw_to_wxyz",
    "rotation_6d_to_matrix",
    "rotation_error_deg",
    "translation_error_m",
]
