"""How sure a pose is, from the matches that it was found with."""

import numpy as np
from jaxtyping import Float64, Int64

from relograph.localization.refinement import Fit, Prior

FAR = 10.0
"""Distances to the references beyond which a centre is not expected, whatever the matches say."""


def covariance(
    fit: Fit,
    weight: Float64[np.ndarray, "M"],
    prior: Prior,
    max_error_px: float,
    query_point: Int64[np.ndarray, "M"],
    ref_sigma_rad: float,
    ref_sigma_m: float,
) -> Float64[np.ndarray, "P P"]:
    """Covariance of the unknowns: rotation vector in the camera's frame, centre in the world, logs of focal lengths.

    Huber's sandwich H^-1 B H^-1 at the solution: H is the curvature of the cost, B the scatter of the matches' pulls.
    Matches of one point of the query (equal `query_point`) share its noise, and so they pull together. B has the
    scatter of a few more matches added, one an unknown, that are off by half the limit of an inlier: few matches say
    little about their own noise. The references' own errors, independent of each other, come on top.
    """
    errors = fit.errors
    J = errors.jacobian()  # [P, M]
    inside = 1 - np.minimum(errors.error_px / fit.width_px, 1.0) ** 2
    inside = np.where(np.abs(errors.error_px) < fit.width_px, inside, 0.0)
    kernel_weight = weight * inside**2
    # Tukey's pull weakens with the error, so its curvature is less than its weight; on the average over all matches,
    # lest single ones turn it negative.
    total = float(kernel_weight.sum())
    curvature = float((weight * inside * (5 * inside - 4)).sum()) / total if total > 0 else 1.0
    curvature = float(np.clip(curvature, 0.3, 1.0))
    A = curvature * (J * kernel_weight) @ J.T

    pulls = J * (kernel_weight * errors.error_px)
    num_points = int(query_point.max()) + 1 if len(query_point) else 1
    by_point = np.stack([np.bincount(query_point, pull, minlength=num_points) for pull in pulls])  # [P, points]
    num_pulling = max(int(np.count_nonzero(np.bincount(query_point, kernel_weight))), 1)
    B = by_point @ by_point.T + len(J) / num_pulling * (max_error_px / 2) ** 2 * A

    variance = fit.noise_px**2
    precision = prior.precision() + _far_precision(fit)
    H = A + variance * np.diag(precision)
    size = np.sqrt(np.maximum(np.diag(H), np.finfo(float).tiny))
    H_inverse = np.linalg.pinv(H / np.outer(size, size), hermitian=True) / np.outer(size, size)
    matches_part = H_inverse @ (B + variance**2 * np.diag(precision)) @ H_inverse

    J_ref = errors.jacobian_of_references()
    refs_part = np.zeros_like(H)
    ref_variance = np.repeat([ref_sigma_rad**2, ref_sigma_m**2], 3)
    for ref in np.unique(errors.matches.ref_idx):
        of_ref = errors.matches.ref_idx == ref
        by_ref = H_inverse @ (curvature * (J[:, of_ref] * kernel_weight[of_ref]) @ J_ref[:, of_ref].T)  # [P, 6]
        refs_part += by_ref * ref_variance @ by_ref.T
    both = matches_part + refs_part
    symmetric: Float64[np.ndarray, "P P"] = (both + both.T) / 2
    return symmetric


def distance_to_references(fit: Fit) -> float:
    """Of the query, in metres: the median over the matches that had a say."""
    distances = np.linalg.norm(fit.errors.baseline, axis=0)
    heard = np.abs(fit.errors.error_px) < fit.width_px
    return float(np.median(distances[heard] if heard.any() else distances))


def _far_precision(fit: Fit) -> Float64[np.ndarray, "P"]:
    """That no answer is infinitely unsure: half a turn for rotations, many times the distance to the references."""
    far_m = FAR * max(1.0, distance_to_references(fit))
    return np.concatenate([np.full(3, np.pi**-2.0), np.full(3, far_m**-2.0), np.zeros(len(fit.guess.log_focal))])
