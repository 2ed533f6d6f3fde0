"""One position, or one rotation, from many estimates, some of which may be badly wrong.

The means (Markley, Gramkow) are least squares: every estimate pulls in proportion to its distance. The medians
(Weiszfeld for positions, Hartley et al. for rotations) minimise the sum of distances: every estimate pulls with the
same force, and fewer than half of them may lie anywhere. All are batched over leading dimensions, with weights or not.
They finish an answer and are not meant to be trained through: their gradients are not promised, and Markley's mean has
none where two eigenvalues are equal, as with two estimates.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry.rotations import (
    axis_angle_to_matrix,
    matrix_to_axis_angle,
    nearest_rotation,
    quat_in_upper_hemisphere,
)

MAX_STEPS = 1000  # a limit for the unforeseen: random estimates take 5 in the median, 40 at most
ROUNDING = 1e-12
SMALL_STEP = 1e-10
"""Share of the spread of the points (of a radian, for rotations) below which a step ends the iteration."""


def geometric_median(
    points: Float[Tensor, "*B N D"], weights: Float[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B D"]:
    """The point with the least weighted sum of distances to the given points, in their unit.

    Example:
        >>> geometric_median(torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]]))  # on a line it is the usual median
        tensor([2.])
    """
    weights = _checked_weights(weights, points).double()
    x = points.double()  # beside a far outlier float32 has no digits left for the others
    start = x.median(dim=-2).values  # [*B, D] coordinate by coordinate: near enough to start from
    # Steps are judged against the distance within which half of the points lie, which outliers do not stretch; where
    # half of the points are one, against the farthest.
    ranked = torch.linalg.vector_norm(x - start[..., None, :], dim=-1).sort(dim=-1).values  # [*B, N]
    half_way, farthest = ranked[..., x.shape[-2] // 2, None], ranked[..., -1:]
    spread = torch.where(half_way > 0, half_way, farthest)
    median = _weiszfeld(
        x,
        weights,
        start,
        offsets_from=lambda here: x - here[..., None, :],
        moved_by=torch.add,
        # Nor are steps that the coordinates have no digits for.
        small=torch.maximum(SMALL_STEP * spread, torch.finfo(x.dtype).eps * x.abs().amax(dim=(-2, -1))[..., None]),
    )
    return median.to(points.dtype)


def l1_rotation_median(
    R: Float[Tensor, "*B N 3 3"], weights: Float[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B 3 3"]:
    """The rotation with the least weighted sum of angles to the given rotations.

    Weiszfeld's iteration in the tangent space of the current estimate (Hartley, Aftab and Trumpf 2011), from the least
    squares mean. Rotations that are all over the place can have several minima, of which it finds one.
    """
    flat = R.double().flatten(-2)  # [*B, N, 9]
    weights = _checked_weights(weights, R[..., 0]).double()

    def rotation(flat: Float[Tensor, "*B 9"]) -> Float[Tensor, "*B 3 3"]:
        return nearest_rotation(flat.reshape(*flat.shape[:-1], 3, 3))

    def rotations_from(here: Float[Tensor, "*B 9"]) -> Float[Tensor, "*B N 3"]:
        return matrix_to_axis_angle(rotation(here)[..., None, :, :].mT @ R.double())

    median = _weiszfeld(
        flat,
        weights,
        start=rotation((weights[..., None] * flat).sum(-2)).flatten(-2),
        offsets_from=rotations_from,
        moved_by=lambda here, step: (rotation(here) @ axis_angle_to_matrix(step)).flatten(-2),
        small=torch.full_like(weights[..., :1], SMALL_STEP),
    )
    return rotation(median).to(R.dtype)


def markley_mean(
    quats_wxyz: Float[Tensor, "*B N 4"], weights: Float[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B 4"]:
    """The unit quaternion wxyz, w >= 0, nearest in weighted least squares to all given unit quaternions.

    The eigenvector of the largest eigenvalue of sum w q q^T (Markley et al. 2007), in which the sign of q cancels. As
    rotation matrices: it minimises the weighted sum of squared differences of their entries.
    """
    weights = _checked_weights(weights, quats_wxyz)
    scatter = torch.einsum("...n,...ni,...nj->...ij", weights, quats_wxyz, quats_wxyz)  # [*B, 4, 4]
    return quat_in_upper_hemisphere(torch.linalg.eigh(scatter).eigenvectors[..., -1])


def gramkow_mean(
    quats_wxyz: Float[Tensor, "*B N 4"], weights: Float[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B 4"]:
    """The normalised weighted sum of unit quaternions wxyz, w >= 0 (Gramkow 2001).

    Of each q and -q the one on the side of Markley's mean is added, so that neither signs nor the order matter.
    """
    weights = _checked_weights(weights, quats_wxyz)
    side = (quats_wxyz * markley_mean(quats_wxyz, weights)[..., None, :]).sum(-1, keepdim=True)
    total = (weights[..., None] * torch.where(side < 0, -quats_wxyz, quats_wxyz)).sum(-2)
    return quat_in_upper_hemisphere(total / torch.linalg.vector_norm(total, dim=-1, keepdim=True))


def _weiszfeld(
    x: Float[Tensor, "*B N D"],
    weights: Float[Tensor, "*B N"],
    start: Float[Tensor, "*B D"],
    offsets_from: Callable[[Tensor], Tensor],
    moved_by: Callable[[Tensor, Tensor], Tensor],
    small: Float[Tensor, "*B 1"],
) -> Float[Tensor, "*B D"]:
    """The point with the least sum of distances to `x`, in a flat or a curved space.

    `offsets_from(here)` gives the tangent vectors [*B, N, T] that lead from a point to each of `x`, and `moved_by` goes
    along one. Weiszfeld's step always goes down, but creeps where the median is one of `x` or close to one. So each
    round tries Newton's step too, and asks whether the nearest of `x` is itself the median.
    """
    here = start
    for _ in range(MAX_STEPS):
        offsets = offsets_from(here)
        nearest = torch.linalg.vector_norm(offsets, dim=-1).argmin(dim=-1)  # [*B]
        x_nearest = x.gather(-2, nearest[..., None, None].expand(*start.shape[:-1], 1, x.shape[-1])).squeeze(-2)
        is_median = (_steps(offsets_from(x_nearest), weights, small)[0] == 0).all(-1, keepdim=True)  # [*B, 1]

        careful, bold = _steps(offsets, weights, small)
        after_careful, after_bold = moved_by(here, careful), moved_by(here, bold)
        dare = _cost(offsets_from(after_bold), weights) <= _cost(offsets_from(after_careful), weights)  # [*B, 1]
        here = torch.where(is_median, x_nearest, torch.where(dare, after_bold, after_careful))
        if (is_median | (torch.where(dare, bold, careful).abs() <= small)).all():
            break
    return here


def _steps(
    offsets: Float[Tensor, "*B N T"], weights: Float[Tensor, "*B N"], small: Float[Tensor, "*B 1"]
) -> tuple[Float[Tensor, "*B T"], Float[Tensor, "*B T"]]:
    """Weiszfeld's and Newton's steps towards the median, given the offsets of all points from here.

    On one of the points both formulas divide by zero; there, both are the step of Vardi and Zhang (2000).
    """
    distances = torch.linalg.vector_norm(offsets, dim=-1)  # [*B, N]
    on_top = distances <= small
    stiffness = torch.where(on_top, 0.0, weights / torch.where(on_top, 1.0, distances))  # [*B, N]
    pull = (stiffness[..., None] * offsets).sum(-2)  # [*B, T]
    total = stiffness.sum(-1, keepdim=True).clamp(min=torch.finfo(offsets.dtype).tiny)  # [*B, 1]

    # The points on top hold with their weight: we move only if the others pull harder.
    holding = torch.where(on_top, weights, 0.0).sum(-1, keepdim=True)  # [*B, 1]
    pulling = torch.linalg.vector_norm(pull, dim=-1, keepdim=True)
    let_go = pulling > holding * (1 + ROUNDING)
    careful = torch.where(let_go, 1 - holding / torch.where(let_go, pulling, 1.0), 0.0) * pull / total

    # The Hessian, by the total: each point resists only across its own direction. Points on one line resist nowhere
    # along it, hence the small multiple of the identity.
    directions = offsets / torch.where(on_top, 1.0, distances)[..., None]
    along = torch.einsum("...n,...ni,...nj->...ij", stiffness / total, directions, directions)
    identity = torch.eye(offsets.shape[-1], dtype=offsets.dtype, device=offsets.device)
    bold = torch.linalg.solve((1 + ROUNDING) * identity - along, (pull / total)[..., None]).squeeze(-1)
    return careful, torch.where(holding > 0, careful, bold)


def _cost(offsets: Float[Tensor, "*B N T"], weights: Float[Tensor, "*B N"]) -> Float[Tensor, "*B 1"]:
    return torch.sum(weights * torch.linalg.vector_norm(offsets, dim=-1), dim=-1, keepdim=True)


def _checked_weights(weights: Float[Tensor, "*B N"] | None, vectors: Float[Tensor, "*B N D"]) -> Float[Tensor, "*B N"]:
    """The weights, or ones, once there is something to average with them."""
    if vectors.shape[-2] == 0:
        raise GeometryError("An average is over at least one estimate, found none. Check what was left out before.")
    if not vectors.isfinite().all():
        raise GeometryError("An average is over finite numbers, found NaN or infinity. Leave those estimates out.")
    if weights is None:
        return torch.ones_like(vectors[..., 0])
    if not (weights.isfinite().all() and (weights >= 0).all() and (weights.sum(-1) > 0).all()):
        raise GeometryError(
            "Weights of an average are finite, at least 0 and not all 0, found others. Check where they come from."
        )
    return weights
