"""How far matches are from agreeing with a pose: the Sampson error in pixels, and its slope by every unknown.

A match of the query and a reference says that three directions lie in one plane: the ray of the query, the ray of the
reference, and the line between the two cameras. In world coordinates, with b from the reference to the query,

    e = b . (y_ref x y_query) = 0.

The Sampson error divides e by the length of its gradient with respect to the four pixel coordinates. To first order it
is the distance by which the two points must move to agree, and the gradient goes through the lens: cameras with other
focal lengths and with distortion meet in one unit, pixels of the images as they were given.

The length of the gradient is that of lenses as they are given: what an unknown one bends changes it by a fifth at most,
and in the corners alone, where the lens is likely.

Letters: M matches, P = 6 + 2 G unknowns: a rotation vector in the query's camera frame, its centre in the world, and of
G lenses the logs of focal lengths, then the bends. Vectors of matches are stored component by component, [3, M].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sin

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from relograph.geometry import Camera, Pose
from relograph.localization.focal import FoundLens, UnknownFocal
from relograph.models.settling import BEND_LIMIT

TOUCHING_M = 1e-6
"""Two cameras nearer than this have no line between them; they are taken to stand so far apart along x."""
TINY = float(np.finfo(float).tiny)
LOG_FOCAL_LIMIT = np.log(8.0)
"""Focal lengths stay within an eighth and eight times the longer side of the image."""


@dataclass(frozen=True)
class LensGuess:
    """What is solved for of G lenses that are not known."""

    log_focal: Float64[np.ndarray, "G"]
    """In units of the image's longer side; of those that were given and are not believed, of the given one."""
    bend: Float64[np.ndarray, "G"]
    """As in `FoundLens`."""

    @staticmethod
    def straight(log_focal: Float64[np.ndarray, "G"]) -> "LensGuess":
        """Lenses that bend nothing."""
        return LensGuess(log_focal, np.zeros_like(log_focal))

    @property
    def unknowns(self) -> Float64[np.ndarray, "L"]:
        return np.concatenate([self.log_focal, self.bend])

    def moved_by(self, step: Float64[np.ndarray, "L"]) -> "LensGuess":
        zoom, bending = np.split(step, 2)
        log_focal = np.clip(self.log_focal + zoom, -LOG_FOCAL_LIMIT, LOG_FOCAL_LIMIT)
        return LensGuess(log_focal, np.clip(self.bend + bending, -BEND_LIMIT, BEND_LIMIT))

    def only(self, which: Bool[np.ndarray, "G"]) -> "LensGuess":
        return LensGuess(self.log_focal[which], self.bend[which])

    def and_as_given(self, num: int) -> "LensGuess":
        """These, and so many more that are as they were given."""
        return LensGuess(np.append(self.log_focal, np.zeros(num)), np.append(self.bend, np.zeros(num)))


@dataclass(frozen=True)
class Guess:
    """What is solved for: the query's pose, and lenses that are not known."""

    R_world_cam: Float64[np.ndarray, "3 3"]
    center: Float64[np.ndarray, "3"]
    lens: LensGuess

    @staticmethod
    def at(T_world_cam: Pose, lens: LensGuess) -> "Guess":
        T = T_world_cam.detach().to("cpu", torch.float64)
        return Guess(T.R.numpy(), T.t.numpy(), lens)

    def pose(self) -> Pose:
        return Pose.from_rotation_and_translation(self.R_world_cam, self.center)

    def moved_by(self, step: Float64[np.ndarray, "P"]) -> "Guess":
        R = self.R_world_cam @ rotation_matrix(step[:3])
        return Guess(R, self.center + step[3:6], self.lens.moved_by(step[6:]))

    def step_to(self, other: "Guess") -> Float64[np.ndarray, "6"]:
        """The step that leads to the other's pose."""
        turn = Pose.from_rotation_and_translation(self.R_world_cam.T @ other.R_world_cam, np.zeros(3))
        return np.concatenate([turn.axis_angle().numpy(), other.center - self.center])

    def is_finite(self) -> bool:
        return bool(np.isfinite(self.R_world_cam).all() and np.isfinite(self.center).all())


@dataclass(frozen=True)
class EpipolarMatches:
    """Matches as rays: all that does not change while the query's pose is looked for."""

    query_plane: Float64[np.ndarray, "3 M"]
    """Rays (x, y, 0) in the query's frame, at a focal length of 1 longer side where it is unknown."""
    query_slopes: Float64[np.ndarray, "2 3 M"]
    """How they move with the two pixel coordinates."""
    query_group: int
    """Which of the unknown lenses is the query's; -1 where it is known."""
    ref_plane: Float64[np.ndarray, "3 M"]
    """The same of the references, turned to world axes."""
    ref_slopes: Float64[np.ndarray, "2 3 M"]
    ref_axis: Float64[np.ndarray, "3 M"]
    """Where each reference looks: its z axis in the world."""
    ref_center: Float64[np.ndarray, "3 M"]
    ref_idx: Int64[np.ndarray, "M"]
    R_world_ref: Float64[np.ndarray, "R 3 3"]
    group_by_ref: Int64[np.ndarray, "R"]
    num_groups: int

    def __len__(self) -> int:
        return int(self.query_plane.shape[1])

    def __getitem__(self, rows: Int64[np.ndarray, "rows"]) -> "EpipolarMatches":
        """Some of the matches."""
        return replace(
            self,
            query_plane=self.query_plane[:, rows],
            query_slopes=self.query_slopes[:, :, rows],
            ref_plane=self.ref_plane[:, rows],
            ref_slopes=self.ref_slopes[:, :, rows],
            ref_axis=self.ref_axis[:, rows],
            ref_center=self.ref_center[:, rows],
            ref_idx=self.ref_idx[rows],
        )

    def at(self, guess: Guess) -> "EpipolarErrors":
        return EpipolarErrors(self, guess)

    def lens_guess(self, query: FoundLens, refs: FoundLens) -> LensGuess:
        """The unknown lenses, of which the query has one and all references another."""
        by_group = [query if group == self.query_group else refs for group in range(self.num_groups)]
        log_focal = np.array([np.log(lens.focal) for lens in by_group], dtype=np.float64)
        return LensGuess(log_focal, np.array([lens.bend for lens in by_group], dtype=np.float64))

    @property
    def lenses_given(self) -> tuple[bool, bool]:
        """Whether the query's was, and any of the references'."""
        return self.query_group < 0, bool((self.group_by_ref < 0).any())

    def with_free_lenses(self, of_query: bool, of_refs: bool) -> "EpipolarMatches":
        """The same matches as if the lens of the query, or those of the references, were not known.

        What was given becomes unknown in units of what was given: one of the query, one that all references that had
        one share.
        """
        query_group, group_by_ref, num_groups = self.query_group, self.group_by_ref, self.num_groups
        query_given, refs_given = self.lenses_given
        if of_query and query_given:
            query_group, num_groups = num_groups, num_groups + 1
        if of_refs and refs_given:
            group_by_ref, num_groups = np.where(group_by_ref < 0, num_groups, group_by_ref), num_groups + 1
        return replace(self, query_group=query_group, group_by_ref=group_by_ref, num_groups=num_groups)

    def query_rays(self, lens: LensGuess) -> Float64[np.ndarray, "3 M"]:
        """Rays (x, y, 1) in the query's frame."""
        rays = self.query_plane * self.query_shrink(lens)
        if self.query_group >= 0:
            rays += self.query_bend(lens) * self.query_bending(lens)
        rays[2] = 1.0
        return rays

    def ref_rays(self, lens: LensGuess) -> Float64[np.ndarray, "3 M"]:
        """Rays of the references, in the world."""
        rays: Float64[np.ndarray, "3 M"] = self.ref_plane * self.ref_shrink(lens) + self.ref_axis
        if self.num_groups:
            rays += self.ref_bend(lens) * self.ref_bending(lens)
        return rays

    def query_bending(self, lens: LensGuess) -> Float64[np.ndarray, "3 M"]:
        """By how much a bend of 1 would move the query's rays, in its frame."""
        return _bending(self.query_plane * self.query_shrink(lens))

    def ref_bending(self, lens: LensGuess) -> Float64[np.ndarray, "3 M"]:
        """By how much a bend of 1 would move those of the references, in the world."""
        return _bending(self.ref_plane * self.ref_shrink(lens))

    def pixel_rad(self, lens: LensGuess) -> float:
        """The angle of a pixel, on the average over both images of all matches."""
        query = np.linalg.norm(self.query_slopes, axis=1) * self.query_shrink(lens)  # [2, M]
        ref = np.linalg.norm(self.ref_slopes, axis=1) * self.ref_shrink(lens)
        return float(query.mean() + ref.mean()) / 2

    def query_shrink(self, lens: LensGuess) -> float:
        return float(np.exp(-lens.log_focal[self.query_group])) if self.query_group >= 0 else 1.0

    def query_bend(self, lens: LensGuess) -> float:
        return float(lens.bend[self.query_group]) if self.query_group >= 0 else 0.0

    def ref_shrink(self, lens: LensGuess) -> Float64[np.ndarray, "M"] | float:
        return self._by_match(np.exp(-lens.log_focal), 1.0) if self.num_groups else 1.0

    def ref_bend(self, lens: LensGuess) -> Float64[np.ndarray, "M"] | float:
        return self._by_match(lens.bend, 0.0) if self.num_groups else 0.0

    def _by_match(self, of_groups: Float64[np.ndarray, "G"], of_known: float) -> Float64[np.ndarray, "M"]:
        by_group = np.append(of_groups, of_known)  # the last, -1, is that of known lenses
        by_match: Float64[np.ndarray, "M"] = by_group[self.group_by_ref][self.ref_idx]
        return by_match


class EpipolarErrors:
    """The errors of all matches at one guess, and their slopes."""

    def __init__(self, matches: EpipolarMatches, guess: Guess) -> None:
        self.matches, self.guess = matches, guess
        R = guess.R_world_cam
        self.y_query = R @ matches.query_rays(guess.lens)
        self.y_ref = matches.ref_rays(guess.lens)
        query_slopes = R @ matches.query_slopes * matches.query_shrink(guess.lens)  # [2, 3, M], in the world
        ref_slopes = matches.ref_slopes * matches.ref_shrink(guess.lens)
        baseline = guess.center[:, None] - matches.ref_center
        touching = (baseline * baseline).sum(axis=0) < TOUCHING_M**2
        if touching.any():
            baseline[:, touching] = np.array([[TOUCHING_M], [0.0], [0.0]])
        self.baseline = baseline
        self.e_by_query = cross(baseline, self.y_ref)  # the gradient of e with respect to y_query
        self.e_by_ref = cross(self.y_query, baseline)
        by_query_pixel = (query_slopes * self.e_by_query).sum(axis=1)  # [2, M]
        by_ref_pixel = (ref_slopes * self.e_by_ref).sum(axis=1)
        e = (self.y_query * self.e_by_query).sum(axis=0)
        square = (by_query_pixel**2).sum(axis=0) + (by_ref_pixel**2).sum(axis=0) + TINY
        self.per_length = 1 / np.sqrt(square)
        self.error_px: Float64[np.ndarray, "M"] = e * self.per_length
        # Half the gradient of `square` goes through these two.
        self.query_pull = (query_slopes * by_query_pixel[:, None]).sum(axis=0)  # [3, M]
        self.ref_pull = (ref_slopes * by_ref_pixel[:, None]).sum(axis=0)
        self.shrinking = self.error_px * self.per_length**2

    def jacobian(self) -> Float64[np.ndarray, "P M"]:
        """Slopes of the errors by the query's rotation, its centre and the lenses."""
        turn = cross(self.y_query, self._by_query_ray()) - self.shrinking * cross(self.query_pull, self.e_by_query)
        by_rotation = self.guess.R_world_cam.T @ turn
        return np.concatenate([by_rotation, self._by_center(), self._by_lens()])

    def jacobian_of_references(self) -> Float64[np.ndarray, "6 M"]:
        """Slopes of the errors by each match's own reference: its rotation vector and its centre, in world axes."""
        by_rotation = cross(self.y_ref, self._by_ref_ray()) - self.shrinking * cross(self.ref_pull, self.e_by_ref)
        return np.concatenate([by_rotation, -self._by_center()])

    def is_in_front(self, tolerance_rad: float) -> Bool[np.ndarray, "M"]:
        """Whether the two rays of each match meet in front of both cameras, or are as good as parallel.

        Seen from the line between the cameras, both rays leave to the same side, and that of the query is steeper.
        """
        along = self.baseline / np.linalg.norm(self.baseline, axis=0)
        query, ref = (y / np.linalg.norm(y, axis=0) for y in (self.y_query, self.y_ref))
        query_along, ref_along = (query * along).sum(axis=0), (ref * along).sum(axis=0)
        query_across, ref_across = query - query_along * along, ref - ref_along * along
        query_angle = np.arctan2(np.linalg.norm(query_across, axis=0), query_along)
        ref_angle = np.arctan2(np.linalg.norm(ref_across, axis=0), ref_along)
        near_line = np.minimum(*(np.minimum(angle, np.pi - angle) for angle in (query_angle, ref_angle)))
        same_side = ((query_across * ref_across).sum(axis=0) > 0) | (near_line < tolerance_rad)
        in_front: Bool[np.ndarray, "M"] = same_side & (query_angle - ref_angle > -tolerance_rad)
        return in_front

    def inverse_depth(self) -> Float64[np.ndarray, "M"]:
        """One over the distance from the query to the point that a match shows, in 1/m.

        Where the rays pass each other, of the points of the query's ray the one nearest to the reference's.
        """
        query, ref = (y / np.linalg.norm(y, axis=0) for y in (self.y_query, self.y_ref))
        normal = cross(query, ref)
        depth_by_parallax = np.abs((cross(ref, self.baseline) * normal).sum(axis=0))
        inverse: Float64[np.ndarray, "M"] = (normal**2).sum(axis=0) / np.maximum(depth_by_parallax, TINY)
        return inverse

    def _by_center(self) -> Float64[np.ndarray, "3 M"]:
        slopes = cross(self.y_ref, self.y_query * self.per_length - self.shrinking * self.query_pull)
        slopes -= self.shrinking * cross(self.ref_pull, self.y_query)
        return slopes

    def _by_query_ray(self) -> Float64[np.ndarray, "3 M"]:
        """Slopes of the errors by the query's rays, while the length of a pixel stays."""
        slopes: Float64[np.ndarray, "3 M"] = self.e_by_query * self.per_length
        slopes -= self.shrinking * cross(self.baseline, self.ref_pull)
        return slopes

    def _by_ref_ray(self) -> Float64[np.ndarray, "3 M"]:
        slopes: Float64[np.ndarray, "3 M"] = self.e_by_ref * self.per_length
        slopes -= self.shrinking * cross(self.query_pull, self.baseline)
        return slopes

    def _by_lens(self) -> Float64[np.ndarray, "L M"]:
        """By the logs of focal lengths, then by the bends.

        To zoom is to move the image plane away from a lens, whose rays it then bends less.
        """
        matches, lens = self.matches, self.guess.lens
        zoom, bending = np.zeros((2, matches.num_groups, len(matches)))
        if matches.query_group >= 0:
            slopes = self._by_query_ray()
            by_bend = (slopes * (self.guess.R_world_cam @ matches.query_bending(lens))).sum(axis=0)
            bending[matches.query_group] += by_bend
            zoom[matches.query_group] += self.guess.R_world_cam[:, 2] @ slopes
            zoom[matches.query_group] -= 2 * matches.query_bend(lens) * by_bend
        if (matches.group_by_ref >= 0).any():
            slopes = self._by_ref_ray()
            by_bend = (slopes * matches.ref_bending(lens)).sum(axis=0)
            by_zoom = (slopes * matches.ref_axis).sum(axis=0) - 2 * matches.ref_bend(lens) * by_bend
            for group in range(matches.num_groups):
                of_group = (matches.group_by_ref == group)[matches.ref_idx]
                bending[group] += np.where(of_group, by_bend, 0.0)
                zoom[group] += np.where(of_group, by_zoom, 0.0)
        return np.concatenate([zoom, bending])


def epipolar_matches(
    query_xy: Float64[np.ndarray, "M 2"],
    ref_xy: Float64[np.ndarray, "M 2"],
    ref_idx: Int64[np.ndarray, "M"],
    T_world_ref: Pose,
    query_camera: Camera | UnknownFocal,
    ref_cameras: Sequence[Camera | UnknownFocal],
) -> EpipolarMatches:
    """The matches as rays; NaN where a lens has no ray for a point. `T_world_ref` is on the CPU, in float64."""
    unknown = sorted({camera.group for camera in (query_camera, *ref_cameras) if isinstance(camera, UnknownFocal)})
    group_of = {group: i for i, group in enumerate(unknown)}
    groups = [group_of[camera.group] if isinstance(camera, UnknownFocal) else -1 for camera in ref_cameras]
    query_rays, query_slopes = _rays_and_slopes(query_camera, query_xy)
    rays, slopes = np.empty((3, len(ref_idx))), np.empty((2, 3, len(ref_idx)))
    # References mostly share a camera, and then their points go through its lens together.
    for camera in dict.fromkeys(ref_cameras):
        has_camera = np.array([other == camera for other in ref_cameras])[ref_idx]
        if has_camera.any():
            rays[:, has_camera], slopes[:, :, has_camera] = _rays_and_slopes(camera, ref_xy[has_camera])
    R = T_world_ref.R.numpy()[ref_idx].transpose(1, 2, 0)  # [3, 3, M]
    return EpipolarMatches(
        query_plane=query_rays,
        query_slopes=query_slopes,
        query_group=group_of[query_camera.group] if isinstance(query_camera, UnknownFocal) else -1,
        ref_plane=(R[:, :2] * rays[:2]).sum(axis=1),
        ref_slopes=(R[:, :2] * slopes[:, None, :2]).sum(axis=2),
        ref_axis=np.ascontiguousarray(R[:, 2]),
        ref_center=np.ascontiguousarray(T_world_ref.t.numpy()[ref_idx].T),
        ref_idx=ref_idx,
        R_world_ref=T_world_ref.R.numpy(),
        group_by_ref=np.array(groups, dtype=np.int64),
        num_groups=len(unknown),
    )


def _rays_and_slopes(
    lens: Camera | UnknownFocal, xy: Float64[np.ndarray, "M 2"]
) -> tuple[Float64[np.ndarray, "3 M"], Float64[np.ndarray, "2 3 M"]]:
    """Rays (x, y, 0) of pixels, and their slopes by the two pixel coordinates."""
    camera = lens.at(1.0) if isinstance(lens, UnknownFocal) else lens
    pixels = torch.from_numpy(xy).requires_grad_()
    with torch.enable_grad():
        rays = camera.unproject(pixels)[:, :2]  # [M, 2]
        x_slope, y_slope = (torch.autograd.grad(rays[:, i].sum(), pixels, retain_graph=True)[0] for i in range(2))
    plane, slopes = np.zeros((3, len(xy))), np.zeros((2, 3, len(xy)))
    plane[:2] = rays.detach().numpy().T
    slopes[:, 0], slopes[:, 1] = x_slope.numpy().T, y_slope.numpy().T
    return plane, slopes


def _bending(plane: Float64[np.ndarray, "3 M"]) -> Float64[np.ndarray, "3 M"]:
    """How rays move by a bend of their lens, from rays (x, y, 0) as they would be without."""
    bending: Float64[np.ndarray, "3 M"] = plane * (plane * plane).sum(axis=0)
    return bending


def cross(a: Float64[np.ndarray, "3 #M"], b: Float64[np.ndarray, "3 #M"]) -> Float64[np.ndarray, "3 M"]:
    """The cross products of vectors stored component by component; several times faster than numpy's."""
    product = np.empty((3, *np.broadcast_shapes(a.shape[1:], b.shape[1:])))  # of none, where there are no matches
    np.subtract(a[1] * b[2], a[2] * b[1], out=product[0])
    np.subtract(a[2] * b[0], a[0] * b[2], out=product[1])
    np.subtract(a[0] * b[1], a[1] * b[0], out=product[2])
    return product


def rotation_matrix(axis_angle: Float64[np.ndarray, "3"]) -> Float64[np.ndarray, "3 3"]:
    """The rotation about the vector's direction by its length in radians (Rodrigues)."""
    angle = float(np.linalg.norm(axis_angle))
    x, y, z = axis_angle
    skew = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    sine_part = sin(angle) / angle if angle else 1.0
    cosine_part = 2 * (sin(angle / 2) / angle) ** 2 if angle else 0.5  # (1 - cos(angle)) / angle^2
    rotation: Float64[np.ndarray, "3 3"] = np.eye(3) + sine_part * skew + cosine_part * skew @ skew
    return rotation
