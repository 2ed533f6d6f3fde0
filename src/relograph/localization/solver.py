"""The query's pose from points that were matched between it and references of known pose; no 3-D map is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, lgamma, log, radians, sqrt

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry import Camera, Pose
from relograph.localization.consensus import SAMPLE, consensus_pose, import_poselib
from relograph.localization.covariance import covariance, distance_to_references
from relograph.localization.epipolar import (
    TINY,
    TOUCHING_M,
    EpipolarErrors,
    EpipolarMatches,
    Guess,
    LensGuess,
    epipolar_matches,
)
from relograph.localization.focal import (
    LOG_FOCAL_SIGMA,
    NUM_TRIED,
    FoundLens,
    UnknownFocal,
    tried_log_focals,
)
from relograph.localization.refinement import Fit, Prior, approach, refine, robust_cost
from relograph.models.match_gnn import LIKELY_FOCAL
from relograph.models.settling import BEND_SIGMA

MIN_MATCHES = 8
NUM_CONSENSUS, NUM_ROUGH = 1000, 400
"""Matches that RANSAC looks at, and those that rough guesses are made with; all of them are refined on."""
MAX_TRIALS, MAX_TRIALS_OF_FOCAL = 5000, 400
NUM_RUNS = 2
"""Of RANSAC. Where matches are off by as much as the limit of an inlier, a run ends now at this pose and now at that,
and only the best of several fits all of the matches."""
NUM_REFINED = 3
"""Focal lengths of a search that are refined."""
AGREED = 0.3
"""Share of the matches that agree with a pose and its focal lengths, from which no others are searched for."""
MAX_ROTATION_SIGMA_RAD = radians(10)
MAX_SCALE_SIGMA = 0.1
"""Share of the distance to the references: a centre less sure than this is called unobservable."""
TYPICAL_DEPTH_M = 2.5
"""How far away things are, within a factor of two, when nothing at all says how far."""
NEAREST_M = 1e-3
MAX_FOCAL_ERROR, MAX_FOCAL_SURPRISE = 0.05, 4.0
"""How far a given focal length may be from what matches ask for, as a share of it and in standard deviations, before
it is doubted: a right answer bears as much, and not much more."""
MAX_SURPRISE_OF_FILES = 2.0
"""How far, in standard deviations, a focal length may be from what a photo's file tells, before that counts no more."""
MIN_SAVED = 0.1
"""Share of the squared errors, and of the noise of right matches, that other focal lengths save, from which on those
that were given are refuted. A wrong one is felt by every right match; a wrong pose only gathers other matches."""
CHANCE = 1e-3
"""How many poses as good as the answer may be expected among matches that are all wrong."""


@dataclass(frozen=True)
class MatchedPoints:
    """M pairs of points that show the same place in the query and in one of the references."""

    query_xy: Float[Tensor, "M 2"] | Float[np.ndarray, "M 2"]
    """In pixels of the query; the top-left corner of an image is (0, 0)."""
    ref_xy: Float[Tensor, "M 2"] | Float[np.ndarray, "M 2"]
    """In pixels of the reference."""
    ref_idx: Int[Tensor, "M"] | Int[np.ndarray, "M"]
    """Which reference."""
    weight: Float[Tensor, "M"] | Float[np.ndarray, "M"] | None = None
    """How far each match is to be trusted, beside the others; None trusts all alike."""


@dataclass(frozen=True)
class Doubt:
    """What matches say where no lens is believed."""

    T_world_query: Pose
    query: FoundLens
    refs: FoundLens
    """That of all references."""


@dataclass(frozen=True)
class SolverAnswer:
    """Where the query was taken, how sure that is, and on what it rests."""

    T_world_cam: Pose | None
    """None where matches do not tell; `reason` then says why."""
    covariance: Float[Tensor, "6 6"]
    """Of the rotation vector in the camera's frame (radians) and of the centre in the world (metres), in this order:
    the true pose is `T_world_cam` turned by `R @ exp(rotation vector)` and moved by the centre's error."""
    scale_observable: bool
    """Whether the matches alone tell how far the query is from the references, to 10 %. Where they do not, the distance
    is that of the regressed pose, or a guess; the rotation holds all the same."""
    num_inliers: int
    inlier_mask: Bool[Tensor, "M"]
    """Matches that agree with the pose, within the limit and in front of both cameras."""
    num_inliers_by_ref: Int[Tensor, "R"]
    focal_px: float
    """The query's focal length, given or found."""
    focal_sigma_px: float
    """Zero where it was given and is believed."""
    ref_focal_px: Float[Tensor, "R"]
    focal_refuted: bool
    """Whether matches contradict a focal length that was given. It is found with the pose then."""
    T_by_other_focals: Pose | None
    """Where a given focal length is in doubt: the pose with the one that matches like a little better."""
    noise_px: float
    """Standard deviation of the errors of right matches."""
    reason: str
    """Why there is no pose, why its scale is not observable, or which focal lengths were wrong; empty where all is
    well."""


def solve_query_pose(
    matches: MatchedPoints,
    T_world_ref: Pose,
    query_camera: Camera | UnknownFocal,
    ref_cameras: Sequence[Camera | UnknownFocal],
    *,
    start: Pose | None = None,
    start_sigma_m: float = 0.1,
    start_lenses: tuple[FoundLens, FoundLens] | None = None,
    doubting: Doubt | None = None,
    also_from: Pose | None = None,
    max_error_px: float = 2.0,
    ref_sigma_m: float = 0.005,
    ref_sigma_deg: float = 0.05,
    seed: int = 0,
) -> SolverAnswer:
    """The query's pose, with its covariance, from matches with R references of known pose; or why there is none.

    PoseLib's RANSAC over all references at once, then robust least squares on epipolar errors in pixels, through each
    camera's lens. Unknown focal lengths are searched and refined with the pose and with how much their lenses bend, and
    so are given ones that matches contradict. Deterministic for a seed.

    A regressed pose may be given as `start`. It is refined like the answer of RANSAC, and the better of the two is
    kept. Its position counts only where matches cannot tell how far away it is, as the references stand too close
    together or too much in line with the query, or as no focal length is known well enough; there `start_sigma_m` is
    how far to trust it. `start_lenses` are those of the query and of the references that go with it, for those that are
    not known: where matches agree with them, no other focal lengths are searched for. `doubting` is where to begin once
    lenses that were given are in doubt; without it they are doubted from what they lead to, which takes longer and
    finds less. `also_from` is another pose to begin with, such as that of the video's last frame; it counts for nothing
    else.

    `ref_sigma_m` and `ref_sigma_deg` are how well the references' own poses are known. They enter the covariance:
    references two centimetres apart are no measure of scale if each is known to a centimetre.

    What it takes of one core is printed by `relograph bench match`: most of it goes into the suspicion of focal lengths
    that were given, and into the search of those that were not.
    """
    import_poselib()
    _check(matches, T_world_ref, ref_cameras)
    T_world_ref = T_world_ref.detach().to("cpu", torch.float64)
    start, also_from = (pose if pose is not None and _is_finite(pose) else None for pose in (start, also_from))
    ref_sigma = (radians(ref_sigma_deg), ref_sigma_m)
    problem = _problem(matches, T_world_ref, query_camera, ref_cameras, max_error_px, ref_sigma)
    num_given, num_usable = len(matches.query_xy), len(problem.matches)
    if num_usable < MIN_MATCHES:
        reason = f"{num_usable} of {num_given} matches are usable, and at least {MIN_MATCHES} are needed."
        return _no_answer(reason, num_given, query_camera, ref_cameras)
    starts = [pose for pose in (start, also_from) if pose is not None]
    begin = problem.prior.lens if start_lenses is None else problem.matches.lens_guess(*start_lenses)
    begins = [Guess.at(pose, begin) for pose in starts]
    fit = _best_fit(problem, begins, seed)
    if fit is not None and problem.expects_others(fit):
        problem = problem.expecting_anything()
        fit = _best_fit(problem, begins, seed)
    if fit is None:
        reason = f"No reference has {SAMPLE} usable matches, and there is no regressed pose to begin with."
        return _no_answer(reason, num_given, query_camera, ref_cameras)

    reason = ""
    other = _by_other_focals(problem, fit, starts, doubting, seed)
    focal_refuted = other is not None and _is_refuted(fit, other.fit)
    believed = _Solved(problem, fit) if other is None or not focal_refuted else other
    sigma = believed.covariance()
    scale_observable = _tells_scale(believed.fit, sigma)
    if not scale_observable:
        is_lens_open = _tells_scale(believed.fit, _with_lenses_known(sigma))
        believed = believed.with_scale(start, start_sigma_m)
        sigma = believed.covariance()
        if other is not None:
            other = believed if focal_refuted else other.with_scale(start, start_sigma_m)
            if not focal_refuted and not _is_contradicted(problem, other).all():
                other = None  # at the distance from elsewhere, matches like what was given
        whose = "a guess" if start is None else "that of the regressed pose"
        why = "The references stand too close together, or too much in line,"
        if is_lens_open:
            why = "The matches do not tell a focal length well enough"
        reason = f"{why} to tell the distance: it is {whose}."
    if other is not None:
        if not focal_refuted:
            # Two poses, of which the matches do not tell which is right, are as far apart as either may be off.
            apart = believed.fit.guess.step_to(other.fit.guess)
            sigma[:6, :6] += np.outer(apart, apart)
        words = _about_focals(problem, other, is_refuted=focal_refuted)
        reason = " ".join(filter(None, (words, reason)))
    problem, fit = believed.problem, believed.fit

    inlier = problem.inliers(fit.errors)
    num_inliers = int(inlier.sum())
    if not _beats_chance(num_inliers, problem, ref_cameras):
        reason = f"{num_inliers} of {num_usable} matches agree on a pose, no more than chance explains."
        return _no_answer(reason, num_given, query_camera, ref_cameras)
    if np.linalg.eigvalsh(sigma[:3, :3])[-1] > MAX_ROTATION_SIGMA_RAD**2:
        reason = "The matches lie so that they leave open where the query looks."
        return _no_answer(reason, num_given, query_camera, ref_cameras)
    inlier_mask = torch.zeros(num_given, dtype=torch.bool)
    inlier_mask[torch.from_numpy(problem.kept[inlier])] = True
    focal_px, focal_sigma_px = _focal(query_camera, problem.matches.query_group, fit.guess, sigma)
    groups = problem.matches.group_by_ref.tolist()
    ref_focals = [_focal(camera, group, fit.guess, sigma) for camera, group in zip(ref_cameras, groups, strict=True)]
    return SolverAnswer(
        T_world_cam=fit.guess.pose(),
        covariance=torch.from_numpy(sigma[:6, :6].copy()),
        scale_observable=scale_observable,
        num_inliers=num_inliers,
        inlier_mask=inlier_mask,
        num_inliers_by_ref=torch.from_numpy(np.bincount(problem.matches.ref_idx[inlier], minlength=len(ref_cameras))),
        focal_px=focal_px,
        focal_sigma_px=focal_sigma_px,
        ref_focal_px=torch.tensor([focal for focal, _ in ref_focals], dtype=torch.float64),
        focal_refuted=focal_refuted,
        T_by_other_focals=None if other is None or focal_refuted else other.fit.guess.pose(),
        noise_px=fit.noise_px,
        reason=reason,
    )


@dataclass(frozen=True)
class _Problem:
    """The usable matches, in an order of their own, and how to judge them."""

    matches: EpipolarMatches
    kept: Int64[np.ndarray, "M"]
    """Which of the given matches they are."""
    weight: Float64[np.ndarray, "M"]
    query_point: Int64[np.ndarray, "M"]
    """Matches of the same point of the query have the same number."""
    max_error_px: float
    ref_sigma: tuple[float, float]
    """How well the references are known: radians, metres."""
    prior: Prior
    """What is known of lenses, and of the centre where matches do not tell it."""
    given_log_focal: tuple[float, float]
    """Of the query, and of the references in the mean, in units of the longer side; 0 where none was given."""

    def approach(self, guess: Guess) -> Guess:
        return approach(self.matches, self.weight, guess, self.prior, self.max_error_px)

    def refine(self, guess: Guess, *, precisely: bool = True) -> Fit:
        return refine(self.matches, self.weight, guess, self.prior, self.max_error_px, precisely=precisely)

    def covariance(self, fit: Fit, *, exact_references: bool = False) -> Float64[np.ndarray, "P P"]:
        ref_sigma = (0.0, 0.0) if exact_references else self.ref_sigma
        return covariance(fit, self.prior, self.max_error_px, self.query_point, *ref_sigma)

    def sample(self, num: int, rng: np.random.Generator) -> "_Problem":
        """The problem with so many of its matches, drawn by their weights."""
        if len(self.matches) <= num:
            return self
        # The largest of log weight + Gumbel noise are a sample without replacement.
        lots = np.log(self.weight) + rng.gumbel(size=len(self.matches))
        rows = np.sort(np.argpartition(lots, -num)[-num:])
        weight = np.ones(num)  # their weights have had their say
        return replace(
            self, matches=self.matches[rows], kept=self.kept[rows], weight=weight, query_point=np.arange(num)
        )

    def with_free_lenses(self, of_query: bool = True, of_refs: bool = True) -> "_Problem":
        """The problem as if these lenses were not known; those that are given are where to begin."""
        matches = self.matches.with_free_lenses(of_query, of_refs)
        num_freed = matches.num_groups - self.matches.num_groups
        sigma = np.append(self.prior.log_focal_sigma, np.full(num_freed, LOG_FOCAL_SIGMA))
        prior = replace(self.prior, lens=self.prior.lens.and_as_given(num_freed), log_focal_sigma=sigma)
        return replace(self, matches=matches, prior=prior)

    def guess_of(self, doubt: Doubt, num_unknown: int) -> Guess:
        """Where to begin, of a problem whose lenses are free; those after the unknown ones were given."""
        group, lens = np.arange(self.matches.num_groups), self.matches.lens_guess(doubt.query, doubt.refs)
        was_given = group >= num_unknown  # these are over what was given, and keep their own distortion
        log_given = np.where(group == self.matches.query_group, *self.given_log_focal)
        log_focal = lens.log_focal - np.where(was_given, log_given, 0.0)
        return Guess.at(doubt.T_world_query, LensGuess(log_focal, np.where(was_given, 0.0, lens.bend)))

    def expects_others(self, fit: Fit) -> bool:
        """Whether matches find another focal length than a file told, as of a photo that was cut since."""
        off = np.abs(fit.guess.lens.log_focal - self.prior.lens.log_focal)
        sigma = self.prior.log_focal_sigma
        return bool(np.any((sigma < LOG_FOCAL_SIGMA) & (off > MAX_SURPRISE_OF_FILES * sigma)))

    def expecting_anything(self) -> "_Problem":
        """The problem as if nothing were expected of unknown lenses but what all lenses are like."""
        likely, sigma = np.outer([LIKELY_FOCAL, LOG_FOCAL_SIGMA], np.ones(self.matches.num_groups))
        lens = LensGuess.straight(np.log(likely))
        return replace(self, prior=replace(self.prior, lens=lens, log_focal_sigma=sigma))

    def cost(self, guess: Guess) -> float:
        errors = self.matches.at(guess)
        return robust_cost(errors, self.weight, self.prior, self.max_error_px, self.max_error_px / 2)

    def inliers(self, errors: EpipolarErrors) -> Bool[np.ndarray, "M"]:
        """Matches within the limit whose rays meet in front of both cameras, as far as pixels can tell."""
        tolerance_rad = 2 * self.max_error_px * self.matches.pixel_rad(errors.guess.lens)
        is_inlier: Bool[np.ndarray, "M"] = errors.is_in_front(tolerance_rad)
        is_inlier &= np.abs(errors.error_px) <= self.max_error_px
        return is_inlier


@dataclass(frozen=True)
class _Solved:
    """A problem with its fit: as it was given, or with lenses freed that were given."""

    problem: _Problem
    fit: Fit

    def covariance(self) -> Float64[np.ndarray, "P P"]:
        return self.problem.covariance(self.fit)

    def with_scale(self, start: Pose | None, start_sigma_m: float) -> "_Solved":
        return _with_scale(self.problem, self.fit, start, start_sigma_m)


def _problem(
    matches: MatchedPoints,
    T_world_ref: Pose,
    query_camera: Camera | UnknownFocal,
    ref_cameras: Sequence[Camera | UnknownFocal],
    max_error_px: float,
    ref_sigma: tuple[float, float],
) -> _Problem:
    """What is left of the matches without those that are not finite, have no weight or no ray, or are there twice."""
    query_xy, ref_xy = _float64(matches.query_xy), _float64(matches.ref_xy)
    ref_idx = np.asarray(torch.as_tensor(matches.ref_idx).cpu(), dtype=np.int64)
    weight = np.ones(len(ref_idx)) if matches.weight is None else _float64(matches.weight)
    is_pose = (T_world_ref.R.isfinite().all(dim=(1, 2)) & T_world_ref.t.isfinite().all(dim=1)).numpy()
    usable = np.isfinite(query_xy).all(axis=1) & np.isfinite(ref_xy).all(axis=1) & np.isfinite(weight) & (weight > 0)
    kept = np.flatnonzero(usable & is_pose[ref_idx])

    # One sort finds matches that are there twice and matches that share a point, and makes the answer the same whatever
    # order they came in.
    columns = (*query_xy.T, ref_idx, *ref_xy.T)
    kept = kept[np.lexsort([column[kept] for column in reversed(columns)])]
    differs = np.stack([np.diff(column[kept], prepend=np.nan) != 0 for column in columns])  # [5, M]
    kept = kept[differs.any(axis=0)]
    rays = epipolar_matches(query_xy[kept], ref_xy[kept], ref_idx[kept], T_world_ref, query_camera, ref_cameras)
    has_rays = np.isfinite(rays.query_plane).all(axis=0) & np.isfinite(rays.ref_plane).all(axis=0)
    if not has_rays.all():
        kept = kept[has_rays]
        rays = epipolar_matches(query_xy[kept], ref_xy[kept], ref_idx[kept], T_world_ref, query_camera, ref_cameras)

    by_group = {camera.group: camera for camera in (*ref_cameras, query_camera) if isinstance(camera, UnknownFocal)}
    in_order = [by_group[group] for group in sorted(by_group)]  # as rays number them
    likely = np.array([camera.likely for camera in in_order], dtype=np.float64)
    log_focal_sigma = np.array([camera.log_sigma for camera in in_order], dtype=np.float64)
    weight = weight[kept] / weight[kept].max(initial=TINY)  # their squares are numbers, however small they are
    new_point = (np.diff(query_xy[kept], axis=0, prepend=np.nan) != 0).any(axis=1)
    return _Problem(
        matches=rays,
        kept=kept,
        # Equal weights become ones, and unequal ones count for as many matches as they are worth.
        weight=weight * (weight.sum() / (weight**2).sum()) if len(kept) else weight,
        query_point=np.cumsum(new_point) - 1,
        max_error_px=max_error_px,
        ref_sigma=ref_sigma,
        prior=Prior(np.zeros(3), np.inf, LensGuess.straight(np.log(likely)), log_focal_sigma, BEND_SIGMA),
        given_log_focal=(_given_log_focal([query_camera]), _given_log_focal(ref_cameras)),
    )


def _given_log_focal(cameras: Sequence[Camera | UnknownFocal]) -> float:
    given = [log(camera.fx / max(camera.width, camera.height)) for camera in cameras if isinstance(camera, Camera)]
    return sum(given) / max(len(given), 1)


def _best_fit(problem: _Problem, begins: Sequence[Guess], seed: int) -> Fit | None:
    """The best of what RANSAC finds and of the guesses to begin with, refined."""
    rng = np.random.default_rng(seed)
    few = problem.sample(NUM_ROUGH, rng)
    guesses = [few.approach(guess) for guess in begins]
    if problem.matches.num_groups:
        # As they are, too: where focal lengths are unknown, wide kernels lead away from what is nearly right.
        fits = [few.refine(guess) for guess in (*begins, *guesses)]
        is_agreed = any(few.inliers(fit.errors).mean() >= AGREED for fit in fits)
        guesses = [fit.guess for fit in (fits if is_agreed else _search_focal(few, fits, seed))]
    best = min(guesses, key=problem.cost, default=None)
    # RANSAC does not begin with the best so far: it refines only samples that beat it, and few of them beat a local
    # minimum that was refined already.
    lens = problem.prior.lens if best is None else best.lens
    found = [
        consensus_pose(problem.sample(NUM_CONSENSUS, rng).matches, lens, problem.max_error_px, MAX_TRIALS, seed + run)
        for run in range(NUM_RUNS)
    ]
    guesses = [guess for guess in (best, *found) if guess is not None]
    return problem.refine(min(guesses, key=problem.cost)) if guesses else None


def _search_focal(problem: _Problem, fits: list[Fit], seed: int) -> list[Fit]:
    """Fits with focal lengths that matches agree on, one dimension at a time, and those to begin with.

    All unknown focal lengths are searched alike; then each group's for itself. Of those that were given and are not
    believed, shares of what was given are tried.
    """
    num_groups, fits = problem.matches.num_groups, list(fits)
    for groups in [list(range(num_groups))] + ([[group] for group in range(num_groups)] if num_groups > 1 else []):
        lens = min(fits, key=lambda fit: fit.cost).guess.lens if fits else problem.prior.lens
        tries: list[Guess] = []
        for tried in tried_log_focals():
            log_focal = lens.log_focal.copy()
            log_focal[groups] = tried
            lens = replace(lens, log_focal=log_focal)
            first = min(tries, key=problem.cost, default=None)
            guess = consensus_pose(problem.matches, lens, problem.max_error_px, MAX_TRIALS_OF_FOCAL, seed, first)
            tries += [] if guess is None else [guess]
        fits += [problem.refine(guess) for guess in sorted(tries, key=problem.cost)[:NUM_REFINED]]
    return fits


def _by_other_focals(
    problem: _Problem, fit: Fit, starts: Sequence[Pose], doubting: Doubt | None, seed: int
) -> _Solved | None:
    """A better fit with focal lengths that are far from those that were given, if there is one.

    Matches with several references tell a focal length to 1 %: each epipolar line asks for its own. A few of them raise
    the suspicion, and all of them confirm it. A focal length that they do not tell to 5 % is believed as it was given.
    """
    freed = problem.with_free_lenses()
    num_unknown, num_freed = problem.matches.num_groups, freed.matches.num_groups - problem.matches.num_groups
    if not num_freed:
        return None
    few = freed.sample(NUM_ROUGH, np.random.default_rng(seed))
    lens = fit.guess.lens.and_as_given(num_freed)
    # The pose fits the given focal lengths as well as it can, maybe metres from the truth: a narrow kernel hears only
    # matches that like them. Who never believed them knows better, or else those that it begins with may.
    begins = [replace(fit.guess, lens=lens)]
    if doubting is not None and _is_finite(doubting.T_world_query):
        doubt = freed.guess_of(doubting, num_unknown)
        begins.append(min((doubt, few.approach(doubt)), key=few.cost))
        misled: Sequence[Pose] = ()
    else:
        misled = starts
        begins += [Guess.at(pose, lens) for pose in misled]
        begins += [few.approach(begin) for begin in begins]
    suspicion = min((few.refine(begin, precisely=False) for begin in begins), key=lambda fit: fit.cost).guess
    if np.all(np.abs(suspicion.lens.log_focal[num_unknown:]) < MAX_FOCAL_ERROR):
        return None
    while True:
        guesses = [suspicion, *(Guess.at(pose, suspicion.lens) for pose in misled)]
        other = _best_fit(freed, guesses, seed)
        if other is None or other.cost > fit.cost:
            return None
        solved = _Solved(freed, other)
        is_wrong = _is_contradicted(problem, solved)
        if is_wrong.all():
            return solved
        if not is_wrong.any():
            return None
        # The query's and the references', of which one is contradicted: the other is believed.
        of_query = bool(is_wrong[0])
        freed = problem.with_free_lenses(of_query, not of_query)
        heard = np.concatenate([np.ones(num_unknown, dtype=bool), is_wrong])
        suspicion = replace(other.guess, lens=other.guess.lens.only(heard))


def _is_contradicted(problem: _Problem, freed: _Solved) -> Bool[np.ndarray, "F"]:
    """Of the focal lengths that the problem has and the other one has freed: whether matches tell another one."""
    num_unknown, num_groups = problem.matches.num_groups, freed.problem.matches.num_groups
    error = np.abs(freed.fit.guess.lens.log_focal[num_unknown:])
    sigma = np.sqrt(np.diag(freed.covariance())[6 + num_unknown : 6 + num_groups])
    contradicted: Bool[np.ndarray, "F"] = sigma < MAX_FOCAL_ERROR
    contradicted &= error > np.maximum(MAX_FOCAL_ERROR, MAX_FOCAL_SURPRISE * sigma)
    return contradicted


def _is_refuted(fit: Fit, other: Fit) -> bool:
    """Whether other focal lengths explain the matches so much better that those of the first fit are wrong."""
    return other.cost < (1 - MIN_SAVED) * fit.cost and other.noise_px < (1 - MIN_SAVED) * fit.noise_px


def _about_focals(problem: _Problem, freed: _Solved, *, is_refuted: bool) -> str:
    """In words, which given focal lengths are wrong, or may be."""
    num_unknown, matches = problem.matches.num_groups, freed.problem.matches
    shares = np.exp(-freed.fit.guess.lens.log_focal[num_unknown:]) - 1
    whose = {True: "the query's", False: "the references'"}
    wrong = " and ".join(
        f"{whose[group == matches.query_group]} {abs(share):.0%} too {'long' if share > 0 else 'short'}"
        for group, share in enumerate(shares, start=num_unknown)
    )
    if is_refuted:
        return f"Focal lengths that were given contradict the matches, which count for more: {wrong}."
    return f"Focal lengths that were given may be wrong: the matches would have {wrong}."


def _tells_scale(fit: Fit, sigma: Float64[np.ndarray, "P P"]) -> bool:
    """Whether the centre is known to a share of its distance from the references."""
    center_sigma_m = float(np.sqrt(np.linalg.eigvalsh(sigma[3:6, 3:6])[-1]))
    return center_sigma_m <= MAX_SCALE_SIGMA * distance_to_references(fit)


def _with_lenses_known(sigma: Float64[np.ndarray, "P P"]) -> Float64[np.ndarray, "6 6"]:
    """The covariance of the pose as it would be if lenses were known as they were found."""
    shared = sigma[:6, 6:]
    of_pose: Float64[np.ndarray, "6 6"] = (
        sigma[:6, :6] - shared @ np.linalg.pinv(sigma[6:, 6:], hermitian=True) @ shared.T
    )
    return of_pose


def _with_scale(problem: _Problem, fit: Fit, start: Pose | None, start_sigma_m: float) -> _Solved:
    """The problem and its fit with a distance from elsewhere.

    Matches still tell the direction in which the query stands from the references. The distance is the regressed
    pose's; without one, such that things are as far away as they usually are.
    """
    errors, inlier = fit.errors, problem.inliers(fit.errors)
    heard = inlier if inlier.any() else np.ones_like(inlier)
    middle = errors.matches.ref_center[:, heard].mean(axis=1)
    away = fit.guess.center - middle
    away = away / max(float(np.linalg.norm(away)), TOUCHING_M)
    if start is None:
        median_inverse_depth = float(np.median(errors.inverse_depth()[heard]))
        distance_m = TYPICAL_DEPTH_M * median_inverse_depth * distance_to_references(fit)
        distance_m = start_sigma_m = float(np.clip(distance_m, NEAREST_M, TYPICAL_DEPTH_M))
    else:
        start_center = Guess.at(start, fit.guess.lens).center
        distance_m = max(abs(float(away @ (start_center - middle))), NEAREST_M)
    # Epipolar errors are blind to whether the query stands on this side or the other; what is behind a camera is not.
    sides = [replace(fit.guess, center=middle + side * distance_m * away) for side in (1.0, -1.0)]
    guess = max(sides, key=lambda guess: int(problem.inliers(problem.matches.at(guess)).sum()))
    center = guess.center if start is None else start_center
    with_prior = replace(problem, prior=replace(problem.prior, center=center, center_sigma_m=start_sigma_m))
    begins = (guess, replace(guess, center=center))
    fit = min((with_prior.refine(with_prior.approach(begin)) for begin in begins), key=lambda fit: fit.cost)

    # To the fit, references are exact. Where their errors make most of the uncertainty, what the matches say about the
    # centre counts for too much, and the prior has to count for as many times more.
    exact, inexact = (problem.covariance(fit, exact_references=exact)[3:6, 3:6] for exact in (True, False))
    variances, directions = np.linalg.eigh(inexact)
    emphasis = variances / np.einsum("ik,ij,jk->k", directions, exact, directions)
    prior = replace(with_prior.prior, center_emphasis=(directions * np.maximum(emphasis, 1.0)) @ directions.T)
    with_prior = replace(with_prior, prior=prior)
    return _Solved(with_prior, with_prior.refine(fit.guess))


def _beats_chance(num_inliers: int, problem: _Problem, ref_cameras: Sequence[Camera | UnknownFocal]) -> bool:
    """Whether so many inliers are not to be expected from matches that are all wrong (Moisan and Stival 2004).

    A wrong match is an inlier if it happens to lie within a band along the epipolar line. Every sample of matches that
    fixes a pose is a try at gathering inliers by chance.
    """
    # How much lenses bend is nearly known, and gathers no wrong matches.
    num_matches, sample = len(problem.matches), 6 + problem.matches.num_groups
    more, rest = num_inliers - sample, num_matches - sample
    band_px = 2 * sqrt(2) * problem.max_error_px
    by_chance = min(max(band_px * hypot(c.width, c.height) / (c.width * c.height) for c in ref_cameras), 0.5)
    share = more / rest if rest > 0 else 0.0
    if share <= by_chance:
        return False
    # Chernoff's bound on the chance of so many, times the number of samples and of focal lengths tried.
    surprise = share * log(share / by_chance) + (1 - share) * log(max(1 - share, 1e-12) / (1 - by_chance))
    log_samples = lgamma(num_matches + 1) - lgamma(sample + 1) - lgamma(rest + 1)
    log_samples += problem.matches.num_groups * log(NUM_TRIED)
    return log_samples - rest * surprise < log(CHANCE)


def _focal(
    camera: Camera | UnknownFocal, group: int, guess: Guess, sigma: Float64[np.ndarray, "P P"]
) -> tuple[float, float]:
    """A camera's focal length and its standard deviation, in pixels."""
    unit_px = camera.fx if isinstance(camera, Camera) else camera.longer_side
    if group < 0:
        return unit_px, 0.0
    focal_px = unit_px * float(np.exp(guess.lens.log_focal[group]))
    return focal_px, focal_px * float(np.sqrt(sigma[6 + group, 6 + group]))


def _expected_focal(camera: Camera | UnknownFocal) -> tuple[float, float]:
    """The same before any match is seen."""
    if isinstance(camera, Camera):
        return camera.fx, 0.0
    focal_px = camera.longer_side * camera.likely
    return focal_px, focal_px * camera.log_sigma


def _no_answer(
    reason: str, num_matches: int, query_camera: Camera | UnknownFocal, ref_cameras: Sequence[Camera | UnknownFocal]
) -> SolverAnswer:
    focal_px, focal_sigma_px = _expected_focal(query_camera)
    ref_focals = [_expected_focal(camera)[0] for camera in ref_cameras]
    return SolverAnswer(
        T_world_cam=None,
        covariance=torch.diag(torch.full((6,), torch.inf, dtype=torch.float64)),
        scale_observable=False,
        num_inliers=0,
        inlier_mask=torch.zeros(num_matches, dtype=torch.bool),
        num_inliers_by_ref=torch.zeros(len(ref_cameras), dtype=torch.int64),
        focal_px=focal_px,
        focal_sigma_px=focal_sigma_px,
        ref_focal_px=torch.tensor(ref_focals, dtype=torch.float64),
        focal_refuted=False,
        T_by_other_focals=None,
        noise_px=0.0,
        reason=reason,
    )


def _check(matches: MatchedPoints, T_world_ref: Pose, ref_cameras: Sequence[Camera | UnknownFocal]) -> None:
    num_refs = len(T_world_ref)
    if num_refs != len(ref_cameras):
        raise GeometryError(
            f"Every reference has a pose and a camera, found {num_refs} poses and {len(ref_cameras)} cameras. "
            f"Pass `UnknownFocal` for cameras that are not known."
        )
    ref_idx = torch.as_tensor(matches.ref_idx)
    if len(ref_idx) and not (int(ref_idx.min()) >= 0 and int(ref_idx.max()) < num_refs):
        raise GeometryError(
            f"Matches name references from 0 to {num_refs - 1}, found {int(ref_idx.min())} to {int(ref_idx.max())}. "
            f"Pass indices into the poses."
        )


def _is_finite(pose: Pose) -> bool:
    return bool(pose.R.isfinite().all() and pose.t.isfinite().all())


def _float64(values: "Tensor | np.ndarray[tuple[int, ...], np.dtype[np.floating]]") -> Float64[np.ndarray, "..."]:
    return np.asarray(torch.as_tensor(values).detach().cpu(), dtype=np.float64)
