"""Lens distortion on the plane z = 1, by OpenCV's two formulas, and its inverse.

The radial part of both is a polynomial 1 + c1 s + c2 s^2 + ... in the squared radius (opencv) or the squared angle from
the axis (fisheye). Where it stops growing the lens model ends: beyond that rim the formula folds the outside back into
the image. Distorting is the bare formula; undistorting answers NaN where no ray inside the rim leads.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry.rotations import SERIES_BELOW

# Newton doubles its digits with every step; most of these are for bisection, where a strong distortion leads it astray.
MAX_STEPS = 50


@lru_cache(maxsize=1024)
def rim(radial: tuple[float, ...]) -> float:
    """Radius (opencv) or angle (fisheye) where r (1 + c1 r^2 + c2 r^4 + ...) first stops growing; often infinity.

    Example:
        >>> round(rim((-1 / 3,)), 6)  # the slope is 1 - r^2
        1.0
    """
    # The slope is 1 + 3 c1 s + 5 c2 s^2 + ... in s = r^2. We look for 1/s: small coefficients are harmless there.
    roots = np.roots([1.0, *((2 * i + 3) * c for i, c in enumerate(radial))])
    real_roots = roots.real[(np.abs(roots.imag) < 1e-9 * np.abs(roots)) & (roots.real > 0)]
    return float(1 / np.sqrt(real_roots.max())) if real_roots.size else inf


def distort_opencv(xy: Float[Tensor, "*B 2"], coefficients: Sequence[float]) -> Float[Tensor, "*B 2"]:
    """Where the lens (k1, k2, p1, p2[, k3]) puts the ray (x, y, 1)."""
    k1, k2, p1, p2, *k3 = coefficients
    x, y = xy.unbind(-1)
    r_sq = x * x + y * y
    radial, _ = _polynomial((k1, k2, *k3), r_sq)
    x_distorted = x * radial + 2 * p1 * x * y + p2 * (r_sq + 2 * x * x)
    y_distorted = y * radial + p1 * (r_sq + 2 * y * y) + 2 * p2 * x * y
    return torch.stack([x_distorted, y_distorted], dim=-1)


def undistort_opencv(distorted: Float[Tensor, "*B 2"], coefficients: Sequence[float]) -> Float[Tensor, "*B 2"]:
    """The ray (x, y, 1) that the lens puts at the given place; NaN where there is none.

    The radial part is undone first, which brings Newton's method for the whole formula next to the solution. Only its
    last step is recorded for gradients: one Newton step from the solution has the gradient of the inverse function.
    """
    k1, k2, _, _, *k3 = coefficients
    edge = rim((k1, k2, *k3))
    with torch.no_grad():
        radius = torch.linalg.vector_norm(distorted, dim=-1, keepdim=True)
        xy = distorted * torch.where(radius > 0, _invert_radial(radius, (k1, k2, *k3), edge) / radius, 1.0)
        for _ in range(MAX_STEPS):
            before, xy = xy, _newton_step_opencv(xy, distorted, coefficients)
            if _is_settled(before, xy):
                break
        solved = _is_same(distort_opencv(xy, coefficients), distorted)
        solved &= torch.linalg.vector_norm(xy, dim=-1, keepdim=True) < edge
    # What has no solution takes the last step on the optical axis, lest its gradient be NaN.
    xy, usable = torch.where(solved, xy, 0.0), torch.where(solved, distorted, 0.0)
    return torch.where(solved, _newton_step_opencv(xy, usable, coefficients), torch.nan)


def distort_fisheye(xy: Float[Tensor, "*B 2"], coefficients: Sequence[float]) -> Float[Tensor, "*B 2"]:
    """Where the fisheye lens (k1, k2, k3, k4) puts the ray (x, y, 1), which is `theta = atan r` off the axis."""
    r_sq = xy.square().sum(-1, keepdim=True)
    small = r_sq < SERIES_BELOW
    r = torch.where(small, 1.0, r_sq).sqrt()
    theta_over_r = torch.where(small, 1 - r_sq * (1 / 3 - r_sq * (1 / 5 - r_sq / 7)), torch.atan(r) / r)
    radial, _ = _polynomial(coefficients, r_sq * theta_over_r.square())
    return xy * theta_over_r * radial


def undistort_fisheye(distorted: Float[Tensor, "*B 2"], coefficients: Sequence[float]) -> Float[Tensor, "*B 2"]:
    """The ray (x, y, 1) that the fisheye lens puts at the given place; NaN where there is none before 90 degrees."""
    with torch.no_grad():
        radius = torch.linalg.vector_norm(distorted, dim=-1, keepdim=True)
        theta = _invert_radial(radius, coefficients, min(rim(tuple(coefficients)), torch.pi / 2))
        solved = _is_same(theta * _polynomial(coefficients, theta.square())[0], radius)
    theta, usable = torch.where(solved, theta, 0.0), torch.where(solved, distorted, 0.0)
    radius_sq = usable.square().sum(-1, keepdim=True)
    small = radius_sq < SERIES_BELOW**2  # so small that two terms of tan(theta) / radius are exact
    radius = torch.where(small, 1.0, radius_sq).sqrt()
    theta = _newton_step_radial(theta, radius, coefficients)
    scale = torch.where(small, 1 + (1 / 3 - coefficients[0]) * radius_sq, theta.tan() / radius)
    return torch.where(solved, usable * scale, torch.nan)


def _polynomial(radial: Sequence[float], s: Tensor) -> tuple[Tensor, Tensor]:
    """The radial polynomial 1 + c1 s + c2 s^2 + ... and its derivative."""
    value, derivative = torch.zeros_like(s), torch.zeros_like(s)
    for coefficient in reversed((1.0, *radial)):
        derivative = derivative * s + value
        value = value * s + coefficient
    return value, derivative


def _is_same(a: Float[Tensor, "*B D"], b: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B 1"]:
    """Whether two places agree to a thousandth of a pixel at a focal length of 1000, or to rounding."""
    return ((a - b).abs() < max(1e-6, 64 * torch.finfo(a.dtype).eps)).all(dim=-1, keepdim=True)


def _is_settled(before: Tensor, after: Tensor) -> bool:
    """Whether the next Newton step, which squares what is left of the error, has nothing left to do."""
    return bool(((after - before).abs() < torch.finfo(after.dtype).eps ** 0.5).all())


def _newton_step_opencv(
    xy: Float[Tensor, "*B 2"], distorted: Float[Tensor, "*B 2"], coefficients: Sequence[float]
) -> Float[Tensor, "*B 2"]:
    k1, k2, p1, p2, *k3 = coefficients
    x, y = xy.unbind(-1)
    radial, slope = _polynomial((k1, k2, *k3), x * x + y * y)
    # The Jacobian of the distortion is symmetric: [[a, b], [b, c]].
    a = radial + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x
    b = 2 * x * y * slope + 2 * p1 * x + 2 * p2 * y
    c = radial + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x
    dx, dy = (distorted - distort_opencv(xy, coefficients)).unbind(-1)
    return xy + torch.stack([c * dx - b * dy, a * dy - b * dx], dim=-1) / (a * c - b * b)[..., None]


def _newton_step_radial(r: Tensor, distorted_radius: Tensor, radial: Sequence[float]) -> Tensor:
    value, derivative = _polynomial(radial, r.square())
    return r + (distorted_radius - r * value) / (value + 2 * r.square() * derivative)


def _invert_radial(distorted_radius: Tensor, radial: Sequence[float], edge: float) -> Tensor:
    """The r within [0, edge] with r (1 + c1 r^2 + ...) equal to the given radius, or next to the edge if there is none.

    The left side grows up to the edge, so the solution can be kept between bounds: where Newton's step leaves them, the
    middle is taken instead.
    """
    low, high = torch.zeros_like(distorted_radius), torch.full_like(distorted_radius, edge)
    r = torch.minimum(distorted_radius, high / 2)
    for _ in range(MAX_STEPS):
        value, _ = _polynomial(radial, r.square())
        too_small = r * value < distorted_radius
        low, high = torch.where(too_small, r, low), torch.where(too_small, high, r)
        newton = _newton_step_radial(r, distorted_radius, radial)
        middle = torch.where(high.isinf(), 2 * r, (low + high) / 2)
        before, r = r, torch.where((low <= newton) & (newton <= high), newton, middle)
        if _is_settled(before, r):
            break
    return r
