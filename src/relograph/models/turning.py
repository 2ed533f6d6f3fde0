"""The turn of a camera that explains where directions went, as if everything were far away.

Much of what moves in an image moves because the camera turned, and that part says nothing about where it went. Taken
away, what is left is parallax. All of it runs on a GPU without waiting for it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

TURN_STEPS = 5
TURN_WIDTH_RAD = 0.1
"""Directions that are further off after the turn count less: things that are near, or matches that are wrong."""
LEAST_WEIGHT = 1e-6
STIFFNESS = 1e-3
"""Of the turn about directions that are all the same, which nothing tells."""


def directions(rays: Float[Tensor, "*B 2"]) -> Float[Tensor, "*B 3"]:
    """Rays (x / z, y / z) as vectors of length 1."""
    return F.normalize(F.pad(rays, (0, 1), value=1.0), dim=-1)


def rotation_between(
    a: Float[Tensor, "*B P 3"], b: Float[Tensor, "*B P 3"], weight: Float[Tensor, "*B P"]
) -> Float[Tensor, "*B 3 3"]:
    """The rotation R that takes directions `a` to `b` by their weights: robust least squares on b - R a.

    It begins with the mean of the one on the mean of the other and the best turn about that, which is exact where there
    are no errors; then come steps of Gauss and Newton under Cauchy's kernel.
    """
    weight = weight[..., None] + LEAST_WEIGHT
    mean_a, mean_b = (F.normalize((weight * y).sum(dim=-2), dim=-1) for y in (a, b))
    R = _swing(mean_a, mean_b)
    axis = mean_b[..., None, :]
    across_a, across_b = (y - (y * axis).sum(dim=-1, keepdim=True) * axis for y in (a @ R.mT, b))
    sine = (weight * axis * torch.linalg.cross(across_a, across_b)).sum(dim=(-2, -1))
    cosine = (weight * across_a * across_b).sum(dim=(-2, -1))
    R = turn_by(mean_b * torch.atan2(sine, cosine)[..., None]) @ R
    eye = torch.eye(3, dtype=R.dtype, device=R.device)
    for _ in range(TURN_STEPS):
        turned = a @ R.mT
        error = torch.linalg.cross(turned, b)
        trust = weight / (1 + error.square().sum(dim=-1, keepdim=True) / TURN_WIDTH_RAD**2)
        # sum of trust (I - y y^T) times the step = sum of trust (y x b)
        total = trust.sum(dim=(-2, -1))[..., None, None]
        H = (1 + STIFFNESS) * total * eye - (trust * turned).mT @ turned
        R = turn_by(_solved(H, (trust * error).sum(dim=-2))) @ R
    return R


def _swing(a: Float[Tensor, "*B 3"], b: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """The shortest rotation that takes direction `a` to `b`; cameras look ahead, so they are never opposite."""
    # Half way between them is the axis of a half turn that exchanges them; another one about `a` undoes its twist.
    half = F.normalize(a + b, dim=-1)[..., None]
    eye = torch.eye(3, dtype=a.dtype, device=a.device)
    return (2 * half @ half.mT - eye) @ (2 * a[..., None] @ a[..., None, :] - eye)


def turn_by(vector: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation about a vector by its length in radians (Rodrigues): by quaternions it is 87 small kernels."""
    half = 0.5 * vector.norm(dim=-1)[..., None, None] / torch.pi  # sinc(x) is sin(pi x) / (pi x)
    eye = torch.eye(3, dtype=vector.dtype, device=vector.device)
    rows = vector[..., None, :].expand(*vector.shape, 3)
    cross = torch.linalg.cross(eye.expand_as(rows), rows)  # times a vector, the cross product with it
    R: Tensor = eye + torch.sinc(2 * half) * cross + 0.5 * torch.sinc(half).square() * (cross @ cross)
    return R


def _solved(H: Float[Tensor, "*B 3 3"], y: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3"]:
    """The solution of H x = y for symmetric H, by Cramer's rule: torch's own solver waits for the GPU."""
    first, second, third = H.unbind(dim=-1)
    adjugate = torch.stack(
        [torch.linalg.cross(second, third), torch.linalg.cross(third, first), torch.linalg.cross(first, second)], dim=-2
    )
    determinant = (adjugate[..., 0, :] * first).sum(dim=-1, keepdim=True)
    return (adjugate @ y[..., None]).squeeze(-1) / determinant
