"""From a rough pose to the best one: robust least squares on epipolar errors.

The estimate is an M-estimate. Cauchy's kernel, whose pull never quite ends, brings a rough guess near; then Tukey's
biweight, as wide as the errors that are left, ignores wrong matches altogether and is 95 % as precise as least squares
on the right ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from relograph.localization.epipolar import TINY, EpipolarErrors, EpipolarMatches, Guess, LensGuess

Kernel = Callable[[Float64[np.ndarray, "M"]], tuple[Float64[np.ndarray, "M"], Float64[np.ndarray, "M"]]]
"""From squared errors, in squared widths, to costs and weights."""

MAX_STEPS = 25
MIN_ROUNDS, MAX_ROUNDS = 3, 6
SETTLED, NEARLY_SETTLED, ROUGHLY_SETTLED = 1e-5, 1e-3, 3e-3
"""When to stop: a step that saves so little of the errors' variance moves the answer by 0.3 % of its standard
deviation, or by 3 % where it is not to be precise. On the way there, it is enough that a step saves little a match, by
the width of the kernel."""
ROUGH_WIDTHS = (8.0, 2.0)
"""Of Cauchy's kernel, in inlier limits."""
TUKEY_WIDTH = 4.685
"""In standard deviations: 95 % efficiency on Gaussian errors."""
NEARNESS = 2.0
"""Times nearer than the median that a point may be before it loses weight."""
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Prior:
    """What is known before any match is seen, as Gaussians; a sigma is infinite where nothing is."""

    center: Float64[np.ndarray, "3"]
    center_sigma_m: float
    lens: LensGuess
    log_focal_sigma: Float64[np.ndarray, "G"]
    bend_sigma: float
    center_emphasis: Float64[np.ndarray, "3 3"] = field(default_factory=lambda: np.eye(3))
    """How many times over the centre's prior counts, along each direction. More than once where the matches claim to
    know more than they can, as those of references that are not exact do."""

    def precision(self) -> Float64[np.ndarray, "P P"]:
        """What the prior weighs in a fit."""
        of_bends = np.full(len(self.lens.bend), self.bend_sigma**-2.0)
        precision = np.diag(np.concatenate([np.zeros(6), self.log_focal_sigma**-2.0, of_bends]))
        precision[3:6, 3:6] = self.center_emphasis * self.center_sigma_m**-2.0
        return precision

    def scatter(self) -> Float64[np.ndarray, "P P"]:
        """The covariance of the prior's pull: its precision, were it not for the emphasis."""
        scatter = self.precision()
        scatter[3:6, 3:6] = self.center_emphasis @ scatter[3:6, 3:6]
        return scatter

    def offset(self, guess: Guess) -> Float64[np.ndarray, "P"]:
        return np.concatenate([np.zeros(3), guess.center - self.center, guess.lens.unknowns - self.lens.unknowns])

    def cost(self, guess: Guess) -> float:
        offset = self.offset(guess)
        return float(offset @ self.precision() @ offset)


@dataclass(frozen=True)
class Fit:
    """A refined pose, and with what it was found."""

    guess: Guess
    errors: EpipolarErrors
    weight: Float64[np.ndarray, "M"]
    """Of each match, given and by its plausibility."""
    width_px: float
    """Errors beyond this had no say."""
    noise_px: float
    """Standard deviation of the errors of right matches."""
    cost: float
    """Weighted sum of squared errors, each at most the squared limit of an inlier, and of the prior's."""


def approach(
    matches: EpipolarMatches,
    weight: Float64[np.ndarray, "M"],
    guess: Guess,
    prior: Prior,
    max_error_px: float,
) -> Guess:
    """A rough guess brought near, by kernels that begin wide."""
    errors = matches.at(guess)
    for width_px in (width * max_error_px for width in ROUGH_WIDTHS):
        settled = ROUGHLY_SETTLED * width_px**2 * len(matches)
        errors = _minimised(errors, weight, prior, _cauchy, width_px, width_px, settled)
    return errors.guess


def refine(
    matches: EpipolarMatches,
    weight: Float64[np.ndarray, "M"],
    guess: Guess,
    prior: Prior,
    max_error_px: float,
    *,
    precisely: bool = True,
) -> Fit:
    """The pose of the least robust error, from a guess that is near it; or one that is nearer to it."""
    errors = matches.at(guess)
    noise_px = _noise_px(errors, max_error_px)
    min_rounds, max_rounds = (MIN_ROUNDS, MAX_ROUNDS) if precisely else (MIN_ROUNDS - 1, MIN_ROUNDS)
    for number in range(max_rounds):
        before_px = noise_px
        width_px = float(np.clip(TUKEY_WIDTH * noise_px, 0.01 * max_error_px, 2 * max_error_px))
        settled = (SETTLED if precisely else NEARLY_SETTLED) * noise_px**2
        # By a wrong pose right matches may be behind a camera, and without them it stays wrong: a better one has to
        # judge them anew, and then again.
        trust = weight * _plausibility(errors, width_px)
        errors = _minimised(errors, trust, prior, _tukey, width_px, noise_px, settled)
        noise_px = _noise_px(errors, max_error_px)
        # A better pose makes the errors smaller, and those the kernel narrower.
        if number + 1 >= min_rounds and noise_px > 0.8 * before_px:
            break
    return Fit(
        errors.guess, errors, trust, width_px, noise_px, robust_cost(errors, weight, prior, max_error_px, noise_px)
    )


def robust_cost(
    errors: EpipolarErrors, weight: Float64[np.ndarray, "M"], prior: Prior, max_error_px: float, noise_px: float
) -> float:
    """By which guesses are compared: squared errors up to the limit of an inlier, and what the prior says."""
    truncated = np.minimum(errors.error_px**2, max_error_px**2)
    return float(weight @ truncated) + noise_px**2 * prior.cost(errors.guess)


def _minimised(
    errors: EpipolarErrors,
    weight: Float64[np.ndarray, "M"],
    prior: Prior,
    kernel: Kernel,
    width_px: float,
    noise_px: float,
    settled: float,
) -> EpipolarErrors:
    """The errors at the bottom of the robust cost, by the method of Levenberg and Marquardt."""
    precision = noise_px**2 * prior.precision()

    def judged(errors: EpipolarErrors) -> tuple[Float64[np.ndarray, "M"], float]:
        cost, kernel_weight = kernel((errors.error_px / width_px) ** 2)
        offset = prior.offset(errors.guess)
        return weight * kernel_weight, width_px**2 * float(weight @ cost) + float(offset @ precision @ offset)

    pull, cost = judged(errors)
    damping = 1e-4
    for _ in range(MAX_STEPS):
        J = errors.jacobian()
        pulled = J * pull
        H = pulled @ J.T + precision
        slope = pulled @ errors.error_px + precision @ prior.offset(errors.guess)
        diagonal = np.diag(H)
        stiffness = np.maximum(diagonal, 1e-9 * diagonal.max() + 1e-12)  # some unknowns may be seen by no match
        before = cost
        while damping < 1e8:
            step = -np.linalg.solve(H + damping * np.diag(stiffness), slope)
            trial = errors.matches.at(errors.guess.moved_by(step))
            trial_pull, trial_cost = judged(trial)
            if trial_cost < cost:
                errors, pull, cost = trial, trial_pull, trial_cost
                damping = max(damping / 10, 1e-10)
                break
            damping *= 10
        if before - cost <= settled:
            break
    return errors


def _plausibility(errors: EpipolarErrors, width_px: float) -> Float64[np.ndarray, "M"]:
    """Weights for where the point of a match would be: none behind a camera, less if nearer than others by far.

    A match has a say about the query's position in proportion to its parallax. Wrong matches have a huge one: of those
    that happen to lie near their epipolar line, a few can outvote all the right ones.
    """
    pixel_rad = errors.matches.pixel_rad(errors.guess.lens)
    inverse_depth = errors.inverse_depth()
    in_front = errors.is_in_front(width_px * pixel_rad)
    heard = in_front & (np.abs(errors.error_px) < width_px)
    nearest = NEARNESS * float(np.median(inverse_depth[heard])) if heard.any() else np.inf
    weight: Float64[np.ndarray, "M"] = in_front * np.minimum(nearest / np.maximum(inverse_depth, TINY), 1.0) ** 2
    return weight


def _noise_px(errors: EpipolarErrors, max_error_px: float) -> float:
    """Standard deviation of the errors, from the median of those that may belong to right matches."""
    size = np.abs(errors.error_px)
    near = size[size < 2 * max_error_px]
    return max(MAD_TO_SIGMA * float(np.median(near)), 1e-9) if len(near) else max_error_px


def _cauchy(square: Float64[np.ndarray, "M"]) -> tuple[Float64[np.ndarray, "M"], Float64[np.ndarray, "M"]]:
    return np.log1p(square), 1 / (1 + square)


def _tukey(square: Float64[np.ndarray, "M"]) -> tuple[Float64[np.ndarray, "M"], Float64[np.ndarray, "M"]]:
    inside = np.maximum(1 - square, 0.0)
    return (1 - inside**3) / 3, inside**2


def tukey_weight(error_px: Float64[np.ndarray, "M"], width_px: float) -> Float64[np.ndarray, "M"]:
    """Weights of errors in a fit."""
    return _tukey((error_px / width_px) ** 2)[1]
