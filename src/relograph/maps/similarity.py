"""`Similarity`: a rigid motion with a scale, by which one map's world becomes another's."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry import Pose, check_rotation, nearest_rotation
from relograph.geometry.alignment import MAX_SCALE, Alignment
from relograph.geometry.arrays import Nested, as_float_tensor


@dataclass(frozen=True)
class Similarity:
    """x -> scale R x + t; with a scale of 1 it is a rigid motion.

    Example:
        >>> T_b_a = Similarity(Pose.from_axis_angle([0.0, 0.0, 0.0], [1.0, 0.0, 0.0]), scale=2.0)
        >>> T_b_a.apply([[1.0, 1.0, 1.0]])
        tensor([[3., 2., 2.]], dtype=torch.float64)
    """

    T: Pose
    """Rotation and translation, float64."""
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 1 / MAX_SCALE < self.scale < MAX_SCALE:
            raise GeometryError(f"A scale is a positive number, found {self.scale}. Check the points.")

    @staticmethod
    def identity() -> "Similarity":
        return Similarity(Pose.identity())

    @staticmethod
    def of(alignment: Alignment) -> "Similarity":
        """The motion that an alignment of points found."""
        return Similarity(alignment.T, alignment.scale)

    @staticmethod
    def from_matrix(M: Tensor | Nested, where: str) -> "Similarity":
        """From a 4x4 or 3x4 matrix [scale R | t]; `where` says who gave it, for the message."""
        matrix = as_float_tensor(M).double()
        if matrix.shape not in ((4, 4), (3, 4)) or not matrix.isfinite().all():
            raise GeometryError(
                f"{where}: expected a 4x4 matrix of finite numbers, found the shape {list(matrix.shape)}. Correct it."
            )
        scale = float(np.cbrt(float(torch.linalg.det(matrix[:3, :3]))))
        if not 1 / MAX_SCALE < scale < MAX_SCALE:
            raise GeometryError(
                f"{where}: expected a rotation times a positive scale, found one of scale {scale:g}. Correct it."
            )
        R = check_rotation(matrix[:3, :3] / scale, where)
        return Similarity(Pose(nearest_rotation(R), matrix[:3, 3]), scale if abs(scale - 1.0) > 1e-9 else 1.0)

    def matrix(self) -> Float[Tensor, "4 4"]:
        """[[scale R, t], [0, 1]]."""
        matrix = self.T.matrix().clone()
        matrix[:3, :3] *= self.scale
        return matrix

    def apply(self, points: Tensor | Nested) -> Float[Tensor, "*B 3"]:
        return self.T.apply(self.scale * as_float_tensor(points).double())

    def __matmul__(self, other: "Similarity") -> "Similarity":
        """First the other, then this one."""
        return Similarity(Pose(self.T.R @ other.T.R, self.apply(other.T.t)), self.scale * other.scale)

    def move(self, T_world_cam: Pose) -> Pose:
        """Cameras in the new world: their axes turn, their centres move and spread."""
        return Pose(self.T.R @ T_world_cam.R, self.apply(T_world_cam.t))

    def inverse(self) -> "Similarity":
        R_back = self.T.R.mT
        return Similarity(Pose(R_back, -(R_back @ self.T.t) / self.scale), 1 / self.scale)

    def to_dict(self) -> dict[str, object]:
        return {"matrix": self.matrix().tolist()}

    @staticmethod
    def from_dict(values: dict[str, object]) -> "Similarity":
        matrix = values["matrix"]
        assert isinstance(matrix, list)
        return Similarity.from_matrix(matrix, where="the map")
