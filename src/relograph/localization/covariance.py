"""How sure a pose is, from the matches that it was found with."""

import numpy as np
from jaxtyping import Float64, Int64

from relograph.localization.epipolar import TINY, EpipolarMatches, Guess
from relograph.localization.refinement import Fit, Prior, tukey_weight

STEP = 0.03
"""Of a difference: a share of the standard deviation, or so, and at most that of a radian and of a metre."""
LEAST_CURVATURE = 0.1
ROUNDING = 1e-12
FAR = 10.0
"""Distances to the references beyond which a centre is not expected, whatever the matches say."""


def covariance(
    fit: Fit,
    prior: Prior,
    max_error_px: float,
    query_point: Int64[np.ndarray, "M"],
    ref_sigma_rad: float,
    ref_sigma_m: float,
) -> Float64[np.ndarray, "P P"]:
    """Covariance of the unknowns: rotation vector in the camera's frame, centre in the world, and what lenses have.

    Huber's sandwich H^-1 B H^-1 at the solution: H is the curvature of the cost, B the scatter of the matches' pulls.
    Matches of one point of the query (equal `query_point`) share its noise, and so they pull together. A few matches
    more, one an unknown, are counted as off by a quarter of the limit of an inlier: a handful of matches says little
    about its own noise. The references' own errors, independent of each other, come on top.
    """
    heard = np.flatnonzero((np.abs(fit.errors.error_px) < fit.width_px) & (fit.weight > 0))
    matches, weight, query_point = fit.errors.matches[heard], fit.weight[heard], query_point[heard]
    errors = matches.at(fit.guess)
    J = errors.jacobian()  # [P, M]
    kernel_weight = weight * tukey_weight(errors.error_px, fit.width_px)
    gauss_newton = (J * kernel_weight) @ J.T
    slope_at_fit = np.asarray(J @ (kernel_weight * errors.error_px))
    A = _curvature(matches, weight, fit, slope_at_fit, gauss_newton)

    _, same_point = np.unique(query_point, return_inverse=True)
    pulls = np.stack([np.bincount(same_point, pull) for pull in J * (kernel_weight * errors.error_px)])  # [P, points]
    added_variance = len(J) / max(pulls.shape[1], 1) * (max_error_px / 4) ** 2
    B = pulls @ pulls.T + added_variance * A

    # What was known before pulls too, as much as its own uncertainty.
    variance = fit.noise_px**2 + added_variance
    far = np.diag(_far_precision(fit))
    known = variance * (prior.precision() + far)
    H_inverse = _inverse(A + known)
    matches_part = H_inverse @ (B + variance**2 * (prior.scatter() + far)) @ H_inverse

    J_ref = errors.jacobian_of_references()
    response = _inverse(gauss_newton + known)
    refs_part = np.zeros_like(A)
    ref_variance = np.repeat([ref_sigma_rad**2, ref_sigma_m**2], 3)
    for ref in np.unique(matches.ref_idx):
        of_ref = matches.ref_idx == ref
        by_ref = response @ (J[:, of_ref] * kernel_weight[of_ref]) @ J_ref[:, of_ref].T  # [P, 6]
        refs_part += by_ref * ref_variance @ by_ref.T
    both = matches_part + refs_part
    symmetric: Float64[np.ndarray, "P P"] = (both + both.T) / 2
    return symmetric


def _curvature(
    matches: EpipolarMatches,
    weight: Float64[np.ndarray, "M"],
    fit: Fit,
    slope_at_fit: Float64[np.ndarray, "P"],
    gauss_newton: Float64[np.ndarray, "P P"],
) -> Float64[np.ndarray, "P P"]:
    """Half the second derivative of the robust cost, by differences of its slope.

    Gauss and Newton's approximation J^T W J takes the noise in J for signal, where parallax is small, and the pull of
    Tukey's kernel for a spring, where it weakens with the error. The curvature is kept within bounds of it: positive.
    """
    size = np.sqrt(np.diag(gauss_newton))
    size = np.maximum(size, 1e-9 * size.max() + 1e-12)  # some unknowns may be seen by no match

    def slope(guess: Guess) -> Float64[np.ndarray, "P"]:
        errors = matches.at(guess)
        pull = weight * tukey_weight(errors.error_px, fit.width_px) * errors.error_px
        return np.asarray(errors.jacobian() @ pull)

    steps = np.minimum(STEP * max(fit.noise_px, 1e-3) / size, STEP)
    rows = [(slope(fit.guess.moved_by(move)) - slope_at_fit) / move.sum() for move in np.diag(steps)]
    exact = np.stack(rows) / np.outer(size, size)
    values, vectors = np.linalg.eigh(gauss_newton / np.outer(size, size))
    seen = values > ROUNDING * values[-1]  # along the other directions there is no curvature at all
    root, vectors = np.sqrt(values[seen]), vectors[:, seen]
    shares, directions = np.linalg.eigh((vectors / root).T @ ((exact + exact.T) / 2) @ (vectors / root))
    directions = size[:, None] * ((vectors * root) @ directions)
    curvature: Float64[np.ndarray, "P P"] = (directions * np.clip(shares, LEAST_CURVATURE, 1.0)) @ directions.T
    return curvature


def _inverse(H: Float64[np.ndarray, "P P"]) -> Float64[np.ndarray, "P P"]:
    """Of a symmetric matrix, whatever the units of its unknowns."""
    size = np.sqrt(np.maximum(np.diag(H), TINY))
    inverse: Float64[np.ndarray, "P P"] = np.linalg.pinv(H / np.outer(size, size), hermitian=True)
    inverse /= np.outer(size, size)
    return inverse


def distance_to_references(fit: Fit) -> float:
    """Of the query, in metres: the median over the matches that had a say."""
    distances = np.linalg.norm(fit.errors.baseline, axis=0)
    heard = np.abs(fit.errors.error_px) < fit.width_px
    return float(np.median(distances[heard] if heard.any() else distances))


def _far_precision(fit: Fit) -> Float64[np.ndarray, "P"]:
    """That no answer is infinitely unsure: half a turn for rotations, many times the distance to the references."""
    far_m = FAR * max(1.0, distance_to_references(fit))
    return np.concatenate([np.full(3, np.pi**-2.0), np.full(3, far_m**-2.0), np.zeros(len(fit.guess.lens.unknowns))])
