"""`Camera`: from points to pixels and back, for pinhole cameras with and without lens distortion."""

from dataclasses import dataclass, replace
from math import inf, isfinite, pi, tan
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry.distortion import distort_fisheye, distort_opencv, rim, undistort_fisheye, undistort_opencv

CameraModel = Literal["pinhole", "opencv", "fisheye"]

NUM_COEFFICIENTS = {"pinhole": (0,), "opencv": (4, 5), "fisheye": (4,)}


@dataclass(frozen=True)
class Camera:
    """A camera's image size and intrinsics, in pixels.

    The top-left corner of the image is (0, 0) and the centre of its first pixel (0.5, 0.5), as in COLMAP. Distortion is
    OpenCV's: (k1, k2, p1, p2) or (k1, k2, p1, p2, k3) for `opencv`, (k1, k2, k3, k4) for `fisheye`.

    Example:
        >>> camera = Camera.from_focal(640, 480, 525.0)
        >>> camera.project(torch.tensor([0.0, 0.0, 2.0]))
        tensor([320., 240.])
        >>> camera.unproject(torch.tensor([845.0, 240.0]))
        tensor([1., 0., 1.])
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = ()
    model: CameraModel = "pinhole"

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise GeometryError(
                f"An image has at least one pixel a side, found {self.width}x{self.height}. Check width and height."
            )
        if not (0 < self.fx < inf and 0 < self.fy < inf):
            raise GeometryError(
                f"Focal lengths are positive numbers of pixels, found fx={self.fx}, fy={self.fy}. Check the intrinsics."
            )
        if not (isfinite(self.cx) and isfinite(self.cy)):
            raise GeometryError(
                f"A principal point is two finite numbers of pixels, found ({self.cx}, {self.cy}). Check cx and cy."
            )
        if self.model not in NUM_COEFFICIENTS:
            raise GeometryError(
                f"Camera models are {', '.join(NUM_COEFFICIENTS)}, found '{self.model}'. Undistort the images first."
            )
        if len(self.distortion) not in NUM_COEFFICIENTS[self.model] or not all(map(isfinite, self.distortion)):
            expected = " or ".join(map(str, NUM_COEFFICIENTS[self.model]))
            raise GeometryError(
                f"The camera model '{self.model}' has {expected} finite distortion coefficients, found "
                f"{self.distortion}. Check their number, or choose another model."
            )

    @staticmethod
    def from_focal(width: int, height: int, focal_px: float) -> "Camera":
        """The pinhole camera of that focal length which looks through the middle of its image."""
        return Camera(width, height, focal_px, focal_px, width / 2, height / 2)

    @property
    def K(self) -> Float[Tensor, "3 3"]:
        """The calibration matrix, in pixels, float64."""
        return torch.tensor([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]], dtype=torch.float64)

    def project(self, points_cam: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 2"]:
        """Image coordinates (x, y), in pixels, of points in camera coordinates; NaN for points that have no image.

        Those lie behind the camera (z <= 0), or so far off the axis that the distortion formula would fold them back
        into the image. Points that miss the sensor do have coordinates: compare them with width and height.
        """
        z = points_cam[..., 2:]
        has_image = z > 0
        xy = points_cam[..., :2] / torch.where(has_image, z, 1.0)
        if self.model != "pinhole":
            has_image = has_image & self._is_inside_rim(xy)
            xy = self._distort(torch.where(has_image, xy, 0.0))
        return torch.where(has_image, xy * _pair(self.fx, self.fy, xy) + _pair(self.cx, self.cy, xy), torch.nan)

    def unproject(self, xy: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 3"]:
        """Rays (x, y, 1) through image coordinates in pixels: times a depth in metres they are points.

        NaN where no ray leads: outside the disc into which a distorting lens maps the world.
        """
        on_plane = (xy - _pair(self.cx, self.cy, xy)) / _pair(self.fx, self.fy, xy)
        if self.model != "pinhole":
            on_plane = self._undistort(on_plane)
        return torch.cat([on_plane, torch.ones_like(on_plane[..., :1])], dim=-1)

    def pixel_grid(
        self, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> Float[Tensor, "H W 2"]:
        """The image coordinates (x, y) of every pixel's centre; the first is (0.5, 0.5)."""
        x = torch.arange(self.width, dtype=dtype, device=device) + 0.5
        y = torch.arange(self.height, dtype=dtype, device=device) + 0.5
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # [H, W, 2]

    def scaled_to(self, width: int, height: int) -> "Camera":
        """The camera of the same image resized; the two sides may scale differently.

        Example:
            >>> Camera.from_focal(640, 480, 525.0).scaled_to(320, 240)
            Camera(width=320, height=240, fx=262.5, fy=262.5, cx=160.0, cy=120.0, distortion=(), model='pinhole')
        """
        x_scale, y_scale = width / self.width, height / self.height
        return replace(
            self,
            width=width,
            height=height,
            fx=self.fx * x_scale,
            fy=self.fy * y_scale,
            cx=self.cx * x_scale,
            cy=self.cy * y_scale,
        )

    def rotated_90(self, k: int) -> "Camera":
        """The camera of the same image turned by k quarter turns counter-clockwise, as `np.rot90(image, k)` turns it.

        The camera's axes turn with its image: a quarter turn makes the ray (x, y, 1) the ray (y, -x, 1). A pose that
        belonged to the image before is `T_world_cam @ Pose.from_axis_angle([0, 0, k * pi / 2], [0, 0, 0])` after.
        """
        camera = self
        for _ in range(k % 4):
            distortion = camera.distortion
            if camera.model == "opencv":
                k1, k2, p1, p2, *k3 = distortion
                distortion = (k1, k2, -p2, p1, *k3)
            camera = replace(
                camera,
                width=camera.height,
                height=camera.width,
                fx=camera.fy,
                fy=camera.fx,
                cx=camera.cy,
                cy=camera.width - camera.cx,
                distortion=distortion,
            )
        return camera

    def _is_inside_rim(self, xy: Float[Tensor, "*B 2"]) -> Bool[Tensor, "*B 1"]:
        if self.model == "fisheye":
            rim_angle = rim(self.distortion)
            radius = tan(rim_angle) if rim_angle < pi / 2 else inf
        else:
            k1, k2, _, _, *k3 = self.distortion
            radius = rim((k1, k2, *k3))
        return xy.square().sum(-1, keepdim=True).sqrt() < radius

    def _distort(self, xy: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 2"]:
        return (distort_fisheye if self.model == "fisheye" else distort_opencv)(xy, self.distortion)

    def _undistort(self, distorted: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 2"]:
        return (undistort_fisheye if self.model == "fisheye" else undistort_opencv)(distorted, self.distortion)


def _pair(x: float, y: float, like: Tensor) -> Float[Tensor, "2"]:
    return torch.tensor([x, y], dtype=like.dtype, device=like.device)
