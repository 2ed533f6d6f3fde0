"""Camera axes of other software: where x, y and z point, and what becomes of the world.

Inside the package camera axes are OpenCV's, and so is everything that these functions begin or end with. Other axes
change what a pose says in two ways only:

- The camera's axes are renamed. Its centre stays where it is in the world.
- Where they are left-handed (Unity), so is their world: the sign of every third world coordinate changes, and nothing
  else. A rotation matrix between two left-handed frames is a proper one again.

The world's axes are never turned: which way is up is a matter of the map, not of a camera.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from relograph.geometry.pose import Pose

AxesName = Literal["opencv", "opengl", "arkit", "unity", "ros"]

AXES = {
    "opencv": "right down forward",
    "opengl": "right up back",
    "ros": "forward left up",
    "unity": "right up forward",
}
"""Where the camera's x, y and z axes point, seen from behind it, with the photo upright."""

ARKIT_IN_WIDE_PHOTOS, ARKIT_IN_TALL_PHOTOS = "right up back", "down right back"
"""ARKit's axes belong to the phone's sensor, which is read along its long side: x points to the end where the home
button was. In a photo that is taller than wide, taken with the phone upright, that is down."""

_DIRECTION_IN_OPENCV_AXES = {
    "right": (1.0, 0.0, 0.0),
    "left": (-1.0, 0.0, 0.0),
    "down": (0.0, 1.0, 0.0),
    "up": (0.0, -1.0, 0.0),
    "forward": (0.0, 0.0, 1.0),
    "back": (0.0, 0.0, -1.0),
}


def axes_from_words(words: str) -> Float64[np.ndarray, "3 3"] | None:
    """The matrix `R_opencv_axes` of axes in words; None where they are no three axes at right angles.

    It takes coordinates along these axes to OpenCV's, and has the determinant -1 where they are left-handed.

    Example:
        >>> axes_from_words("right up back").diagonal().tolist()
        [1.0, -1.0, -1.0]
    """
    axes = [_DIRECTION_IN_OPENCV_AXES.get(word) for word in words.split()]
    matrix = np.array([axis for axis in axes if axis is not None]).T
    # One word of each pair makes a signed permutation, whose rows have one entry each.
    if len(axes) != 3 or None in axes or not (np.abs(matrix).sum(axis=1) == 1.0).all():
        return None
    return matrix


def axes_of(name: AxesName, *, is_tall: bool = False) -> Float64[np.ndarray, "3 3"]:
    """The matrix `R_opencv_axes` of a camera by the name of its software.

    `is_tall` says that the upright photo is taller than wide, on which ARKit's axes depend and no others.
    """
    arkit = ARKIT_IN_TALL_PHOTOS if is_tall else ARKIT_IN_WIDE_PHOTOS
    matrix = axes_from_words(arkit if name == "arkit" else AXES[name])
    assert matrix is not None
    return matrix


def to_axes(T_world_cam: Pose, R_opencv_axes: Float64[np.ndarray, "3 3"]) -> Pose:
    """The pose of the same camera along other axes, in a mirrored world where they are left-handed.

    Example:
        >>> unity = axes_of("unity")
        >>> to_axes(Pose.from_axis_angle([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]), unity).t
        tensor([ 1.,  2., -3.], dtype=torch.float64)
    """
    mirror = _mirror(R_opencv_axes)
    R = mirror @ T_world_cam.R.numpy() @ R_opencv_axes
    return Pose.from_rotation_and_translation(R, T_world_cam.t.numpy() @ mirror)


def from_axes(T_world_axes: Pose, R_opencv_axes: Float64[np.ndarray, "3 3"]) -> Pose:
    """The pose `T_world_cam` of a camera whose pose is told along other axes: the way back of `to_axes`."""
    mirror = _mirror(R_opencv_axes)
    R_world_cam = mirror @ T_world_axes.R.numpy() @ R_opencv_axes.T
    return Pose.from_rotation_and_translation(R_world_cam, T_world_axes.t.numpy() @ mirror)


def covariance_to_axes(
    covariance: Float[Tensor, "6 6"], R_opencv_axes: Float64[np.ndarray, "3 3"]
) -> Float[Tensor, "6 6"]:
    """The covariance of a pose along other axes: of its rotation vector in the camera's frame, and of its centre.

    A mirror leaves the sense of a rotation where it changes that of an axis, so a left-handed rotation vector has one
    more sign.
    """
    J = np.zeros((6, 6))
    J[:3, :3] = np.linalg.det(R_opencv_axes).round() * R_opencv_axes.T
    J[3:, 3:] = _mirror(R_opencv_axes)
    return _turned(covariance, J)


def covariance_of_body(covariance: Float[Tensor, "6 6"], T_world_cam: Pose, T_cam_body: Pose) -> Float[Tensor, "6 6"]:
    """The covariance of `T_world_cam @ T_cam_body`, whose last factor is known."""
    x, y, z = T_cam_body.t.tolist()
    J = np.zeros((6, 6))
    J[:3, :3] = T_cam_body.R.numpy().T
    # The camera's error turns the arm from the camera to the body, and moves its end.
    J[3:, :3] = -T_world_cam.R.numpy() @ np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    J[3:, 3:] = np.eye(3)
    return _turned(covariance, J)


def _turned(covariance: Float[Tensor, "6 6"], J: Float64[np.ndarray, "6 6"]) -> Float[Tensor, "6 6"]:
    if not covariance.isfinite().all():  # of nothing, nothing is known, whatever the axes
        return covariance
    return torch.from_numpy(J @ covariance.double().numpy() @ J.T)


def _mirror(R_opencv_axes: Float64[np.ndarray, "3 3"]) -> Float64[np.ndarray, "3 3"]:
    # A left-handed camera lives in a left-handed world; mirroring both leaves a proper rotation between them.
    mirror: Float64[np.ndarray, "3 3"] = np.diag([1.0, 1.0, np.round(np.linalg.det(R_opencv_axes))])
    return mirror
