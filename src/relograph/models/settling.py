"""The last layer of MatchGNN: from what the edges say, the pose on which matches agree, by steps of Gauss and Newton.

The pose network sees the whole and is never far off, but it reads numbers off a CNN, a few centimetres here and a
degree there. A match says precisely one thing: the ray of the query, that of the reference and the line between the two
cameras lie in one plane. In world coordinates, with b from the reference to the query,

    e = b . (y_ref x y_query) = 0.

e over the length of its gradient by the four image coordinates is about how far the two points are from agreeing
(Sampson). The layer minimises these errors over all references at once: matches count by their confidence, fall silent
beyond a width that narrows from step to step (Geman and McClure's kernel), behind a camera, or where they would be far
nearer than the rest; and what the network said counts as it expects to err. Nothing is drawn at random, and lenses that
nobody told are found with the pose: their focal lengths, and how much they bend. So no lens has to be known, and no
solver installed.

A lens puts the ray y = p (1 + bend |p|^2) where one that does not bend would put the ray p: k1 is about -bend.

Letters: B graphs, S poses to begin with, M matches; unknowns are the query's rotation vector in its own frame, its
centre, the logs of two focal lengths, the query's and the references', over those that rays were made with, and the
bends of these two lenses. Vectors of matches are stored component by component, [3, B, S, M].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry import Pose
from relograph.models.turning import turn_by

NUM_MATCHES = 2048
"""Of a query, in all its references: those of most weight."""
EVERY_AT_FIRST = 4
"""Rough steps, from all poses to begin with, look at every so many-th of them."""
ROUGH_WIDTHS_PX = (16.0, 16.0, 8.0, 8.0)
LAST_WIDTHS_PX = (4.0, 4.0, 2.0, 2.0, 1.5, 1.5)
AGREES_PX = 2.0
PIXEL = 1 / 272
"""Of an image 320 wide behind a likely lens, as a ray."""
NEARNESS = 2.0
"""Times nearer than the median that a point may be before it loses weight: parallax of wrong matches is huge."""
LOG_FOCAL_SIGMA, LOG_FOCAL_RATIO_SIGMA = 0.4, 0.3
"""Of a focal length that is not known; and of the query's over the references', which are often by one camera."""
BEND_SIGMA = 0.05
"""Of a lens that is not known."""
LOG_FOCAL_LIMIT, BEND_LIMIT = 1.0, 0.3
"""No step leads further."""
FIRST_LOG_FOCALS = ((0.0, 0.0), (-0.3, -0.3), (0.3, 0.3), (-0.3, 0.3), (0.3, -0.3))
"""To begin with: of the query, of the references."""
DAMPING = 1e-3
TOUCHING_M = 1e-3
"""Cameras nearer than this to each other have no line between them to speak of."""
KNOWN = 1e8
"""Precision of what is known."""


@dataclass(frozen=True)
class Settled:
    """Where B queries were taken, as their matches have it."""

    T_world_query: Pose
    log_focal: Float[Tensor, "B 2"]
    """Of the query and of its references, over what rays were made with; zero where lenses are known."""
    bend: Float[Tensor, "B 2"]
    """Of the same two; zero where lenses are known."""
    agreement: Float[Tensor, "B"]
    """Share of the matches, by weight, that agree with the pose."""

    def __getitem__(self, queries: slice) -> "Settled":
        return Settled(**{name: part[queries] for name, part in vars(self).items()})


@dataclass(frozen=True)
class _Rays:
    """The matches of B queries: all that does not change from step to step."""

    query: Float[Tensor, "2 B 1 M"]
    ref_plane: Float[Tensor, "3 B 1 M"]
    """Rays (x, y, 0) of the references, turned to world axes."""
    ref_axes: tuple[Float[Tensor, "3 B 1 M"], Float[Tensor, "3 B 1 M"], Float[Tensor, "3 B 1 M"]]
    ref_center: Float[Tensor, "3 B 1 M"]
    weight: Float[Tensor, "B 1 M"]

    def every(self, step: int) -> "_Rays":
        axes = (self.ref_axes[0][..., ::step], self.ref_axes[1][..., ::step], self.ref_axes[2][..., ::step])
        thinned = (part[..., ::step] for part in (self.query, self.ref_plane, self.ref_center, self.weight))
        query, ref_plane, ref_center, weight = thinned
        return _Rays(query, ref_plane, axes, ref_center, weight)


@dataclass(frozen=True)
class _Guess:
    """What is solved for."""

    T_world_query: Pose
    """Batch shape [B, S]."""
    log_focal: Float[Tensor, "B S 2"]
    bend: Float[Tensor, "B S 2"]


@dataclass(frozen=True)
class _Expected:
    """What the network said, and how sure it is."""

    T_world_query: Pose
    """Batch shape [B, 1]."""
    precision: Float[Tensor, "B 1 10 10"]

    def offset(self, guess: _Guess) -> Float[Tensor, "B S 10"]:
        T = self.T_world_query.inverse() @ guess.T_world_query
        turn = torch.stack([T.R[..., k, j] - T.R[..., j, k] for j, k in ((1, 2), (2, 0), (0, 1))], dim=-1) / 2
        return torch.cat([turn, guess.T_world_query.t - self.T_world_query.t, guess.log_focal, guess.bend], dim=-1)


def settle(
    query_rays: Float[Tensor, "B R P 2"],
    ref_rays: Float[Tensor, "B R P 2"],
    weight: Float[Tensor, "B R P"],
    knows_lenses: Bool[Tensor, "B 2"],
    T_world_ref: Pose,
    T_begin: Pose,
    sigma: Float[Tensor, "B 2"],
) -> Settled:
    """The pose of each query on which its matches agree, from the best of poses to begin with.

    Rays are (x / z, y / z), of a likely lens where it is not known: of the query, and of all references. `T_begin` has
    batch shape [B, S]; the first of them is what was expected, with errors of about `sigma`: metres, radians.
    """
    # Along the axes of the pose that was expected: steps are damped axis by axis, and the world's own may lie anyhow.
    T_world_axes = Pose(T_begin.R[:, :1], torch.zeros_like(T_begin.t[:, :1]))
    T_axes_ref, T_axes_begin = T_world_axes.inverse() @ T_world_ref, T_world_axes.inverse() @ T_begin
    rays = _heaviest(query_rays, ref_rays, weight, T_axes_ref)
    expected = _Expected(T_axes_begin[:, :1], _precision(sigma, knows_lenses))
    guess = _first_guesses(T_axes_begin, knows_lenses)
    guess = _steps(rays.every(EVERY_AT_FIRST), guess, expected, ROUGH_WIDTHS_PX)
    disagreement = _disagreement(rays.every(EVERY_AT_FIRST), guess)
    best = disagreement.argmin(dim=1)[:, None]
    T = guess.T_world_query
    R, t = T.R.take_along_dim(best[..., None, None], 1), T.t.take_along_dim(best[..., None], 1)
    log_focal, bend = (part.take_along_dim(best[..., None], 1) for part in (guess.log_focal, guess.bend))
    guess = _Guess(Pose(R, t), log_focal, bend)
    guess = _steps(rays, guess, expected, LAST_WIDTHS_PX)
    in_all = rays.weight.sum(dim=-1)
    share = (in_all - _disagreement(rays, guess)) / in_all.clamp_min(torch.finfo(weight.dtype).tiny)
    T = guess.T_world_query
    is_pose = T.R.isfinite().all(dim=(-2, -1)) & T.t.isfinite().all(dim=-1) & share.isfinite()  # [B, 1]
    R = torch.where(is_pose[..., None, None], T.R, T_axes_begin.R[:, :1])
    t = torch.where(is_pose[..., None], T.t, T_axes_begin.t[:, :1])
    log_focal, bend = (part.masked_fill(~is_pose[..., None], 0.0)[:, 0] for part in (guess.log_focal, guess.bend))
    return Settled((T_world_axes @ Pose(R, t))[:, 0], log_focal, bend, share.masked_fill(~is_pose, 0.0)[:, 0])


def _heaviest(
    query_rays: Float[Tensor, "B R P 2"],
    ref_rays: Float[Tensor, "B R P 2"],
    weight: Float[Tensor, "B R P"],
    T_world_ref: Pose,
) -> _Rays:
    flat = weight.flatten(1)
    chosen_weight, chosen = flat.topk(min(NUM_MATCHES, flat.shape[1]), dim=1)  # [B, M]
    here, there = (
        rays.flatten(1, 2).take_along_dim(chosen[..., None], dim=1).movedim(-1, 0)[:, :, None]
        for rays in (query_rays, ref_rays)
    )
    ref = chosen // weight.shape[2]
    x, y, z = T_world_ref.R.take_along_dim(ref[..., None, None], dim=1)[:, None].movedim((-1, -2), (0, 1))
    center = T_world_ref.t.take_along_dim(ref[..., None], dim=1)[:, None].movedim(-1, 0)
    return _Rays(here, x * there[0] + y * there[1], (x, y, z), center, chosen_weight[:, None])


def _precision(sigma: Float[Tensor, "B 2"], knows_lenses: Bool[Tensor, "B 2"]) -> Float[Tensor, "B 1 10 10"]:
    """Of what is expected: turn, centre, lenses that are likely, and focal lengths that are likely the same."""
    of_pose = sigma.square().reciprocal().flip(-1).repeat_interleave(3, dim=1)
    of_focals, of_bends = (
        torch.full_like(sigma, likely**-2.0).masked_fill(knows_lenses, KNOWN)
        for likely in (LOG_FOCAL_SIGMA, BEND_SIGMA)
    )
    precision = torch.diag_embed(torch.cat([of_pose, of_focals, of_bends], dim=1))
    ratio = torch.zeros_like(precision[0])
    # By ranges, also of one: a number at a single place is copied to a GPU, and no recording can have that.
    ratio[6:8, 6:8] = LOG_FOCAL_RATIO_SIGMA**-2.0
    ratio[6:7, 7:8] = ratio[7:8, 6:7] = -(LOG_FOCAL_RATIO_SIGMA**-2.0)
    # Over what rays were made with: of a lens that is known its own focal length, and not a likely one.
    is_open = (~knows_lenses).all(dim=1)[:, None, None]
    return (precision + ratio * is_open)[:, None]


def _first_guesses(T_begin: Pose, knows_lenses: Bool[Tensor, "B 2"]) -> _Guess:
    """What was expected with several focal lengths, and the other poses with likely ones."""
    num_graphs, num_poses = T_begin.batch_shape
    log_focal = T_begin.t.new_zeros(num_graphs, len(FIRST_LOG_FOCALS) + num_poses - 1, 2)
    # Written number by number: to copy a tensor to a GPU would wait for all that it has to do.
    for number, focals in enumerate(FIRST_LOG_FOCALS):
        for lens, focal in enumerate(focals):
            log_focal[:, number, lens] = focal
    log_focal = log_focal.masked_fill(knows_lenses[:, None], 0.0)
    which = [0] * len(FIRST_LOG_FOCALS) + list(range(1, num_poses))
    T = Pose.stack([T_begin[:, number] for number in which], dim=1)
    return _Guess(T, log_focal, torch.zeros_like(log_focal))


def _steps(rays: _Rays, guess: _Guess, expected: _Expected, widths_px: Sequence[float]) -> _Guess:
    for width_px in widths_px:
        errors = _Errors(rays, guess)
        pull = rays.weight * errors.in_front / (1 + (errors.error / (width_px * PIXEL)).square()).square()
        pull = pull * errors.plausibility(pull > 0.1 * rays.weight) / PIXEL**2
        J = errors.jacobian()  # [B, S, 10, M]
        pulled = J * pull[..., None, :]
        H = pulled @ J.mT + expected.precision
        slope = pulled @ errors.error[..., None] + expected.precision @ expected.offset(guess)[..., None]
        step = _solved(H, slope.squeeze(-1))
        turn, move, zoom, bending = step.split([3, 3, 2, 2], dim=-1)
        T = guess.T_world_query
        T = Pose(T.R @ turn_by(-turn), T.t - move)
        log_focal = (guess.log_focal - zoom).clamp(-LOG_FOCAL_LIMIT, LOG_FOCAL_LIMIT)
        guess = _Guess(T, log_focal, (guess.bend - bending).clamp(-BEND_LIMIT, BEND_LIMIT))
    return guess


def _disagreement(rays: _Rays, guess: _Guess) -> Float[Tensor, "B S"]:
    """Weight of the matches that do not agree with a pose, each as far as it does not."""
    errors = _Errors(rays, guess)
    square = (errors.error / (AGREES_PX * PIXEL)).square()
    return (rays.weight * torch.where(errors.in_front, square / (1 + square), 1.0)).sum(dim=-1)


class _Errors:
    """Sampson errors of matches at guesses, as rays, and their slopes by the unknowns."""

    def __init__(self, rays: _Rays, guess: _Guess) -> None:
        self.rays = rays
        self.query_shrink, self.ref_shrink = torch.exp(-guess.log_focal)[..., None].unbind(dim=-2)
        self.query_bend, self.ref_bend = guess.bend[..., None].unbind(dim=-2)
        self.axes = guess.T_world_query.R[..., None].movedim((-2, -3), (0, 1)).unbind(dim=0)  # each [3, B, S, 1]
        x, y, z = self.axes
        here, there = rays.query * self.query_shrink, rays.ref_plane * self.ref_shrink
        plane = x * here[0] + y * here[1]
        # By how much bends of 1 would move y_query and y_ref.
        self.query_bending = plane * here.square().sum(dim=0)
        self.ref_bending = there * there.square().sum(dim=0)
        self.y_query = plane + self.query_bend * self.query_bending + z
        self.y_ref = there + self.ref_bend * self.ref_bending + rays.ref_axes[2]
        self.baseline = guess.T_world_query.t[..., None].movedim(-2, 0) - rays.ref_center
        self.e_by_query = _cross(self.baseline, self.y_ref)
        self.e_by_ref = _cross(self.y_query, self.baseline)
        self.by_query_xy = [_dot(axis, self.e_by_query) * self.query_shrink for axis in (x, y)]
        self.by_ref_xy = [_dot(axis, self.e_by_ref) * self.ref_shrink for axis in rays.ref_axes[:2]]
        by_xy = torch.stack(self.by_query_xy + self.by_ref_xy)
        self.per_length = (by_xy.square().sum(dim=0) + TOUCHING_M**2).rsqrt()
        self.error: Float[Tensor, "B S M"] = _dot(self.y_query, self.e_by_query) * self.per_length
        self.normal = _cross(self.y_query, self.y_ref)
        self.depth_by_parallax = -_dot(self.e_by_query, self.normal)
        is_before_ref = _dot(self.e_by_ref, self.normal) >= 0
        self.in_front: Bool[Tensor, "B S M"] = (self.depth_by_parallax >= 0) & is_before_ref

    def plausibility(self, heard: Bool[Tensor, "B S M"]) -> Float[Tensor, "B S M"]:
        """Less than 1 for points that would be nearer by far than those that are heard."""
        tiny = torch.finfo(self.error.dtype).tiny
        nearness = _dot(self.normal, self.normal) / self.depth_by_parallax.abs().clamp_min(tiny)
        median = nearness.masked_fill(~heard, torch.nan).nanmedian(dim=-1, keepdim=True).values
        limit = NEARNESS * median.nan_to_num(torch.inf)
        return (limit / nearness.clamp_min(tiny)).clamp_max(1.0).square()

    def jacobian(self) -> Float[Tensor, "B S 10 M"]:
        (x, y, z), (ref_x, ref_y, ref_z) = self.axes, self.rays.ref_axes
        query_pull = (x * self.by_query_xy[0] + y * self.by_query_xy[1]) * self.query_shrink
        ref_pull = (ref_x * self.by_ref_xy[0] + ref_y * self.by_ref_xy[1]) * self.ref_shrink
        shrinking = self.error * self.per_length.square()  # by how much the length takes back of the slopes of e
        by_query = self.per_length * self.e_by_query - shrinking * _cross(self.baseline, ref_pull)
        by_ref = self.per_length * self.e_by_ref - shrinking * _cross(query_pull, self.baseline)
        turn = _cross(self.y_query, by_query) - shrinking * _cross(query_pull, self.e_by_query)
        move = -self.per_length * self.normal - shrinking * (
            _cross(self.y_ref, query_pull) + _cross(ref_pull, self.y_query)
        )
        # To zoom is to move the image plane away from a lens, whose rays it then bends less.
        query_bend, ref_bend = _dot(self.query_bending, by_query), _dot(self.ref_bending, by_ref)
        query_zoom = _dot(z, by_query) - 2 * self.query_bend * query_bend
        ref_zoom = _dot(ref_z, by_ref) - 2 * self.ref_bend * ref_bend
        turns = (_dot(axis, turn) for axis in self.axes)
        return torch.stack([*turns, *move, query_zoom, ref_zoom, query_bend, ref_bend], dim=-2)


def _cross(a: Float[Tensor, "3 *#B"], b: Float[Tensor, "3 *#B"]) -> Float[Tensor, "3 *B"]:
    if a.is_cuda:
        crossed: Tensor = torch.linalg.cross(a, b, dim=0)
        return crossed
    # Many times faster on a CPU than torch's own, which steps from one component to the next.
    return torch.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _dot(a: Float[Tensor, "3 *#B"], b: Float[Tensor, "3 *#B"]) -> Float[Tensor, "*B"]:
    return (a * b).sum(dim=0)


def _solved(H: Float[Tensor, "B S K K"], y: Float[Tensor, "B S K"]) -> Float[Tensor, "B S K"]:
    """The solution of (H + damping) x = y for H of positive diagonal."""
    scale = H.diagonal(dim1=-2, dim2=-1).rsqrt()  # unknowns of one unit, so that float32 is precise enough
    H = H * scale[..., None] * scale[..., None, :] + DAMPING * torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    y = y * scale
    # torch's own solver waits for a GPU.
    solved: Tensor = _eliminated(H, y) if H.is_cuda else torch.linalg.solve(H, y)
    return solved * scale


def _eliminated(H: Float[Tensor, "B S K K"], y: Float[Tensor, "B S K"]) -> Float[Tensor, "B S K"]:
    """The solution of H x = y for positive definite H."""
    rest = torch.cat([H, y[..., None]], dim=-1)
    for _ in range(H.shape[-1]):
        row = rest[..., :1, 1:] / rest[..., :1, :1]
        # Of all other rows, those that were done before included, so that nothing has to be put in afterwards.
        others = torch.addcmul(rest[..., 1:, 1:], rest[..., 1:, :1], row, value=-1)
        rest = torch.cat([others, row], dim=-2)
    return rest.squeeze(-1)
