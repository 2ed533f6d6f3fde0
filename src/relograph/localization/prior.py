"""Where a photo was taken as far as somebody knows already, and the photos of a map that are near there.

A prior may be wrong. It brings photos near it into the comparison, beside those that look like the query, and the
solver tries it as one more place to begin; nothing is refused for being far from it.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.geometry.axes import AxesName, axes_of, from_axes
from relograph.localization.spread import choose_spread_references
from relograph.scenes.names import parse_float, parse_floats, pose_from_matrix, pose_from_quat_wxyz, read_text

CANDIDATES_PER_REFERENCE = 5


@dataclass(frozen=True)
class Prior:
    """About where a photo was taken."""

    T_world_cam: Pose
    """Of the camera in OpenCV's axes; kept in float64."""
    looks: bool = True
    """Whether the direction is known, and not the place alone."""
    radius_m: float = 3.0
    """How far off the place may be: photos of the map that are farther away are not preferred."""

    def __post_init__(self) -> None:
        if not 0 < self.radius_m < float("inf"):
            raise ConfigError(f"expected a radius in metres above 0, got {self.radius_m}. Leave it out if unknown.")
        if self.T_world_cam.batch_shape:
            raise ConfigError(
                f"expected one pose as a prior, got {self.T_world_cam.batch_shape.numel()}. Give one of them."
            )
        object.__setattr__(self, "T_world_cam", self.T_world_cam.detach().to("cpu", torch.float64))

    def start(self, T_regressed: Pose) -> Pose:
        """A pose for the solver to begin with; where the prior knows no direction, it is that of the regressed one."""
        return self.T_world_cam if self.looks else Pose(T_regressed.R, self.T_world_cam.t)

    def references(self, T_world_map: Pose, num: int) -> list[int]:
        """Rows of the map's photos that are near and look the same way, spread out; none where none is near."""
        distance_m = torch.linalg.vector_norm(T_world_map.t - self.T_world_cam.t, dim=-1)
        near = torch.exp(-0.5 * (2 * distance_m / self.radius_m).square())
        if self.looks:
            near = near * (T_world_map.R[..., 2] @ self.T_world_cam.R[:, 2]).clamp_min(0)
        near = near.masked_fill(distance_m > self.radius_m, 0.0)
        rows = near.argsort(descending=True)[: CANDIDATES_PER_REFERENCE * num]
        rows = rows[near[rows] > 1e-3]
        chosen = choose_spread_references(T_world_map[rows], near[rows], num)
        return [int(row) for row in rows[chosen]]


AnyPrior = Prior | Pose | None
"""What is known of where a photo was taken: a bare pose means `Prior(pose)`."""


def as_prior(given: object) -> Prior | None:
    """The prior that somebody means; what cannot be one is an error that says what can."""
    if given is None or isinstance(given, Prior):
        return given
    if isinstance(given, Pose):
        return Prior(given)
    raise ConfigError(
        f"expected a Pose or a Prior as prior, got {type(given).__name__}. Of a place alone: "
        "Prior(Pose.from_axis_angle([0, 0, 0], [x, y, z]), looks=False)."
    )


@dataclass(frozen=True)
class ToldPrior:
    """A prior as it was told, along the camera axes of some software."""

    T_world_axes: Pose
    looks: bool
    axes: AxesName = "opencv"
    radius_m: float = 3.0

    def of(self, *, is_tall: bool) -> Prior:
        """For a photo that is taller than wide or not, on which the axes may depend."""
        T_world_cam = from_axes(self.T_world_axes, axes_of(self.axes, is_tall=is_tall))
        return Prior(T_world_cam, self.looks, self.radius_m)


def parse_prior(text: str, axes: AxesName = "opencv", radius_m: float = 3.0) -> ToldPrior:
    """The prior in `x y z`, in `x y z qw qx qy qz`, or in a file with a 4x4 camera-to-world matrix, along these axes.

    Example:
        >>> parse_prior("1, 2, 3", "unity").of(is_tall=False).T_world_cam.t
        tensor([ 1.,  2., -3.], dtype=torch.float64)
    """
    tokens = text.replace(",", " ").split()
    looks = True
    if Path(text).is_file():
        numbers = parse_floats(read_text(Path(text)), 16, text)
        T = pose_from_matrix([numbers[row : row + 4] for row in range(0, 16, 4)], text)
    elif len(tokens) in (3, 7):
        values = [parse_float(token, "--prior") for token in tokens]
        looks = len(values) == 7
        T = pose_from_quat_wxyz(values[3:] if looks else (1.0, 0.0, 0.0, 0.0), values[:3], "--prior")
    else:
        raise ConfigError(
            f"expected a prior as 'x y z', as 'x y z qw qx qy qz' or as a file with a 4x4 matrix, got {text[:60]!r}. "
            "Write the numbers in quotes, or check the path."
        )
    told = ToldPrior(T, looks, axes, radius_m)
    told.of(is_tall=False)  # says now what is wrong with it
    return told
