"""`Pose`: a batch of rigid transforms, rotation matrix and translation, that never changes once made."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry.arrays import Nested, as_float_tensor
from relograph.geometry.rotations import (
    axis_angle_to_matrix,
    exp_quat,
    log_quat,
    matrix_to_axis_angle,
    matrix_to_quat_wxyz,
    matrix_to_rotation_6d,
    quat_wxyz_to_matrix,
    quat_wxyz_to_xyzw,
    quat_xyzw_to_wxyz,
    rotation_6d_to_matrix,
)

ORTHONORMAL_TOLERANCE = 1e-3
"""Largest deviation of an entry of R^T R from the identity's that rounding in a text file may explain."""


@dataclass(frozen=True, eq=False, repr=False)
class Pose:
    """A batch of rigid transforms x -> R x + t, batched over leading dimensions, differentiable.

    Names read "to from": `T_world_cam` takes camera coordinates to world coordinates, its `t` is the camera centre in
    the world, and the inner names of a product touch.

    Example:
        >>> T_world_ref = Pose.from_axis_angle([0.0, 0.0, torch.pi / 2], [1.0, 2.0, 3.0])
        >>> T_ref_query = Pose.from_axis_angle([0.0, 0.0, 0.0], [0.5, 0.0, 0.0])
        >>> T_world_query = T_world_ref @ T_ref_query
        >>> T_world_query.t
        tensor([1.0000, 2.5000, 3.0000], dtype=torch.float64)
    """

    R: Float[Tensor, "*B 3 3"]
    """Rotation matrix; acts on column vectors."""
    t: Float[Tensor, "*B 3"]
    """Translation, in metres."""

    def __post_init__(self) -> None:
        _check_shapes(self.R, self.t)

    # Constructors

    @staticmethod
    def identity(
        *batch_shape: int, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> "Pose":
        """The transforms that move nothing."""
        R = torch.eye(3, dtype=dtype, device=device).expand(*batch_shape, 3, 3)
        return Pose(R, torch.zeros(*batch_shape, 3, dtype=dtype, device=device))

    @staticmethod
    def from_rotation_and_translation(R: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from rotation matrices [..., 3, 3] and translations [..., 3], which broadcast to one batch.

        Only shapes are checked: numbers from outside go through `check_rotation` first.
        """
        R, t = _on_one_device(R, t)
        with suppress(ValueError):  # shapes that do not broadcast are named below
            # numpy's, as torch's own imports a computer algebra system on its first call.
            batch_shape = np.broadcast_shapes(R.shape[:-2], t.shape[:-1])
            R, t = R.expand(*batch_shape, *R.shape[-2:]), t.expand(*batch_shape, *t.shape[-1:])
        _check_shapes(R, t)
        dtype = torch.promote_types(R.dtype, t.dtype)
        return Pose(R.to(dtype), t.to(dtype))

    @staticmethod
    def from_matrix(M: Tensor | Nested) -> "Pose":
        """Transforms from homogeneous matrices, [..., 4, 4] or [..., 3, 4]; a fourth row is not looked at."""
        M = as_float_tensor(M)
        if M.shape[-2:] not in ((4, 4), (3, 4)):
            raise GeometryError(
                f"A pose matrix is 4x4 or 3x4, found shape {list(M.shape)}. Pass [R | t] with t in the last column."
            )
        return Pose(M[..., :3, :3], M[..., :3, 3])

    @staticmethod
    def from_quat_wxyz(quat_wxyz: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from quaternions (w, x, y, z) of any length but zero, and translations."""
        quat_wxyz, t = _on_one_device(quat_wxyz, t)
        _check_last_size(quat_wxyz, 4, "A quaternion")
        return Pose.from_rotation_and_translation(quat_wxyz_to_matrix(quat_wxyz), t)

    @staticmethod
    def from_quat_xyzw(quat_xyzw: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from quaternions (x, y, z, w) of any length but zero, and translations."""
        quat_xyzw, t = _on_one_device(quat_xyzw, t)
        _check_last_size(quat_xyzw, 4, "A quaternion")
        return Pose.from_quat_wxyz(quat_xyzw_to_wxyz(quat_xyzw), t)

    @staticmethod
    def from_axis_angle(axis_angle: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from rotation vectors (axis times angle in radians) and translations."""
        axis_angle, t = _on_one_device(axis_angle, t)
        _check_last_size(axis_angle, 3, "An axis-angle vector")
        return Pose.from_rotation_and_translation(axis_angle_to_matrix(axis_angle), t)

    @staticmethod
    def from_log_quat(log_q: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from log quaternions (half the axis-angle vector) and translations."""
        log_q, t = _on_one_device(log_q, t)
        _check_last_size(log_q, 3, "A log quaternion")
        return Pose.from_quat_wxyz(exp_quat(log_q), t)

    @staticmethod
    def from_6d(d6: Tensor | Nested, t: Tensor | Nested) -> "Pose":
        """Transforms from 6D rotations (two columns, made orthonormal) and translations."""
        d6, t = _on_one_device(d6, t)
        _check_last_size(d6, 6, "A 6D rotation")
        return Pose.from_rotation_and_translation(rotation_6d_to_matrix(d6), t)

    @staticmethod
    def stack(poses: "Sequence[Pose]", dim: int = 0) -> "Pose":
        """The poses along a new batch dimension."""
        return Pose(
            torch.stack([pose.R for pose in poses], dim=dim if dim >= 0 else dim - 2),
            torch.stack([pose.t for pose in poses], dim=dim if dim >= 0 else dim - 1),
        )

    @staticmethod
    def cat(poses: "Sequence[Pose]", dim: int = 0) -> "Pose":
        """The poses joined along a batch dimension that they have."""
        return Pose(
            torch.cat([pose.R for pose in poses], dim=dim if dim >= 0 else dim - 2),
            torch.cat([pose.t for pose in poses], dim=dim if dim >= 0 else dim - 1),
        )

    # The group

    def __matmul__(self, other: "Pose") -> "Pose":
        """The transform that does `other` first and then this one; batch shapes broadcast."""
        R = (self.R[..., None] * other.R[..., None, :, :]).sum(dim=-2)
        return Pose(R, _times(self.R, other.t) + self.t)

    def inverse(self) -> "Pose":
        """The transform back: the inverse of `T_a_b` is `T_b_a`."""
        R_inverse = self.R.mT
        return Pose(R_inverse, -_times(R_inverse, self.t))

    def apply(self, points: Tensor | Nested) -> Tensor:
        """The points R p + t, in the frame that the pose leads to.

        Points of shape [*batch, 3] are one for each pose and broadcast with the batch. Points with more dimensions than
        the batch, [*batch, N, 3] or [*batch, H, W, 3], are many for each pose. Arrays and lists take the pose's dtype.

        Example:
            >>> Pose.from_axis_angle([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]).apply([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
            tensor([[1., 2., 3.],
                    [2., 3., 4.]], dtype=torch.float64)
        """
        if not isinstance(points, Tensor):
            points = as_float_tensor(points).to(self.t)
        _check_last_size(points, 3, "A point")
        num_batch_dims = len(self.batch_shape)
        if points.ndim - 1 <= num_batch_dims:
            return _times(self.R, points) + self.t
        many_shape = points.shape[num_batch_dims:]
        flat = points.reshape(*points.shape[:num_batch_dims], -1, 3)  # [*B, N, 3]
        moved = _times(self.R[..., None, :, :], flat) + self.t[..., None, :]
        return moved.reshape(*moved.shape[:num_batch_dims], *many_shape)

    # Descriptions

    def matrix(self) -> Float[Tensor, "*B 4 4"]:
        """The homogeneous matrix [[R, t], [0, 1]]."""
        top = torch.cat([self.R, self.t[..., None]], dim=-1)  # [*B, 3, 4]
        bottom = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=self.dtype, device=self.device)
        return torch.cat([top, bottom.expand(*self.batch_shape, 1, 4)], dim=-2)

    def quat_wxyz(self) -> Float[Tensor, "*B 4"]:
        """The rotation as a unit quaternion (w, x, y, z), w >= 0."""
        return matrix_to_quat_wxyz(self.R)

    def quat_xyzw(self) -> Float[Tensor, "*B 4"]:
        """The rotation as a unit quaternion (x, y, z, w), w >= 0."""
        return quat_wxyz_to_xyzw(self.quat_wxyz())

    def axis_angle(self) -> Float[Tensor, "*B 3"]:
        """The rotation as axis times angle in radians, of length within [0, pi]."""
        return matrix_to_axis_angle(self.R)

    def log_quat(self) -> Float[Tensor, "*B 3"]:
        """The rotation as log quaternion: half the axis-angle vector, of length within [0, pi/2]."""
        return log_quat(self.quat_wxyz())

    def rotation_6d(self) -> Float[Tensor, "*B 6"]:
        """The first two columns of the rotation matrix."""
        return matrix_to_rotation_6d(self.R)

    # The batch

    @property
    def batch_shape(self) -> torch.Size:
        return self.R.shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        return self.R.dtype

    @property
    def device(self) -> torch.device:
        return self.R.device

    def to(self, *args: Any, **kwargs: Any) -> "Pose":
        """The same pose on another device or in another precision; the arguments are those of `torch.Tensor.to`."""
        return Pose(self.R.to(*args, **kwargs), self.t.to(*args, **kwargs))

    def detach(self) -> "Pose":
        """The same numbers without their gradient history."""
        return Pose(self.R.detach(), self.t.detach())

    def reshape(self, *batch_shape: int) -> "Pose":
        """The same poses in another batch shape, in which one size may be -1."""
        return Pose(self.R.reshape(*batch_shape, 3, 3), self.t.reshape(*batch_shape, 3))

    def expand(self, *batch_shape: int) -> "Pose":
        """The poses repeated, without copying, to a larger batch shape; -1 keeps a size."""
        return Pose(self.R.expand(*batch_shape, 3, 3), self.t.expand(*batch_shape, 3))

    def __getitem__(self, index: Any) -> "Pose":
        """The poses at an index, slice or mask into the batch dimensions."""
        index = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in index):
            index = (*index, Ellipsis)
        return Pose(self.R[(*index, slice(None), slice(None))], self.t[(*index, slice(None))])

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("A single pose has no length.")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator["Pose"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        if self.batch_shape:
            return f"Pose(batch_shape={tuple(self.batch_shape)}, {kind}, {self.device})"
        axis_angle = self.detach().axis_angle()
        angle = float(torch.linalg.vector_norm(axis_angle))
        axis = (axis_angle / angle).tolist() if angle > 0 else [0.0, 0.0, 0.0]
        return (
            "Pose(t=({:.4g}, {:.4g}, {:.4g}) m, ".format(*self.t.tolist())
            + f"R={angle * 180 / torch.pi:.4g} deg about "
            + "({:.4g}, {:.4g}, {:.4g}), ".format(*axis)
            + f"{kind}, {self.device})"
        )


def _times(R: Float[Tensor, "*#B 3 3"], v: Float[Tensor, "*#B 3"]) -> Float[Tensor, "*B 3"]:
    """The vectors R v.

    Written out, as in all products here: within autocast a matrix product would be rounded to bfloat16, which moves a
    point three metres away by a centimetre.
    """
    return (R * v[..., None, :]).sum(dim=-1)


def check_rotation(R: Tensor | Nested, where: str) -> Float[Tensor, "*B 3 3"]:
    """The matrices as they came, if they are rotations; else a `GeometryError` that begins with `where`.

    Entries of R^T R may be 1e-3 off the identity's, which text files with few digits need; `nearest_rotation` then
    removes what is left.
    """
    R = as_float_tensor(R)
    if R.shape[-2:] != (3, 3):
        raise GeometryError(
            f"{where}: expected a 3x3 rotation matrix, found shape {list(R.shape)}. Check the number of values."
        )
    if not R.isfinite().all():
        raise GeometryError(
            f"{where}: expected a rotation of finite numbers, found NaN or infinity. Mend this pose, or leave it out."
        )
    deviation = (R.mT @ R - torch.eye(3, dtype=R.dtype, device=R.device)).abs().amax(dim=(-2, -1))
    worst = float(deviation.max()) if deviation.numel() else 0.0
    if not worst <= ORTHONORMAL_TOLERANCE:  # NaN too, from entries whose squares overflow
        raise GeometryError(
            f"{where}: expected a rotation matrix, whose columns are orthonormal to {ORTHONORMAL_TOLERANCE:g}, found "
            f"R^T R off the identity by {worst:.3g}. Check the order of the values, and that R carries no scale."
        )
    if (torch.linalg.det(R) < 0).any():
        raise GeometryError(
            f"{where}: expected a rotation matrix (determinant +1), found a mirrored one (determinant -1). "
            f"Check the axes: one of them is flipped, or two are swapped."
        )
    return R


def _on_one_device(a: Tensor | Nested, b: Tensor | Nested) -> tuple[Tensor, Tensor]:
    """Both as tensors; an array or a list goes where the tensor beside it lives."""
    device = next((values.device for values in (a, b) if isinstance(values, Tensor)), None)
    return as_float_tensor(a, device), as_float_tensor(b, device)


def _check_shapes(R: Tensor, t: Tensor) -> None:
    if R.shape[-2:] != (3, 3) or t.shape[-1:] != (3,) or R.shape[:-2] != t.shape[:-1]:
        raise GeometryError(
            f"A pose is a rotation [..., 3, 3] and a translation [..., 3] of the same batch shape, found shapes "
            f"{list(R.shape)} and {list(t.shape)}. Check the number and the order of the values."
        )


def _check_last_size(values: Tensor, size: int, what: str) -> None:
    if values.shape[-1:] != (size,):
        raise GeometryError(
            f"{what} has {size} numbers, found an array of shape {list(values.shape)}. Put the {size} numbers last."
        )
