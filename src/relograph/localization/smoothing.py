"""Poses along a video, each by what its neighbours say too: a camera moves on as it moved.

The camera has a pose and two velocities, of its centre in the world and of its turning in its own frame, which white
noise changes. Each answer measures the pose with its own covariance; a refused frame measures nothing. A Kalman filter
goes forward and Rauch, Tung and Striebel's smoother goes back, both on the rotation group itself: errors are small
rotation vectors in the camera's frame.

Wrong answers are sure of themselves now and then, so measurements have the tails of Student's t distribution: the
passes are repeated, and each time an answer counts the less, the farther it is from what all of them say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from relograph.errors import GeometryError
from relograph.geometry import Pose
from relograph.localization.confidence import RIGHT_DEG, RIGHT_M
from relograph.localization.epipolar import rotation_matrix
from relograph.localization.localizer import Answer

ACCELERATION = 1.5
"""Metres a second, by which the velocity of a camera in somebody's hands changes within a second."""
ANGULAR_ACCELERATION = 2.5
"""Radians a second, by which its turning does."""
SPEED, ANGULAR_SPEED = 1.5, 2.0
"""Metres and radians a second that are usual when nothing is known yet."""
LEAST_SIGMA_M, LEAST_SIGMA_RAD = 0.005, 0.003
"""No answer is more precise: its covariance knows of noise in the matches, not of what all matches share."""
DEGREES_OF_FREEDOM = 4.0
NUM_PASSES = 15
LONGEST_GAP_S = 2.0
"""Between answers; nothing is carried over a longer one."""

_POSE, _VELOCITY = slice(0, 6), slice(6, 12)


@dataclass(frozen=True)
class SmoothedPose:
    """A frame's pose after smoothing."""

    T_world_cam: Pose | None
    """None where neither the frame's answer nor its neighbours tell it."""
    covariance: Float[Tensor, "6 6"]
    """Of the rotation vector in the camera's frame (radians) and of the centre in the world (metres)."""
    raw_weight: float
    """How far the frame's own answer counted, within [0, 1]; 0 where there was none."""


def smooth_answers(answers: Sequence[Answer], times_s: Sequence[float]) -> list[SmoothedPose]:
    """The poses of a video's frames, in the order of time, by all of its answers.

    A frame that was refused gets a pose where its neighbours tell it to 25 cm and 10 degrees, and a wrong one theirs.
    """
    if len(answers) != len(times_s) or any(b <= a for a, b in pairwise(times_s)):
        raise GeometryError(
            f"expected a time for each of {len(answers)} answers, each later than the one before, found {len(times_s)} "
            "that are not. Sort the frames."
        )
    nothing = SmoothedPose(None, torch.diag(torch.full((6,), torch.inf, dtype=torch.float64)), 0.0)
    smoothed = [nothing] * len(answers)
    measured = [row for row, answer in enumerate(answers) if answer.T_world_cam is not None]
    for first, last in _without_long_gaps(measured, times_s):
        rows = range(first, last + 1)
        part = _smooth_part([answers[row] for row in rows], np.array([times_s[row] for row in rows]))
        smoothed[first : last + 1] = part
    return smoothed


def _without_long_gaps(measured: Sequence[int], times_s: Sequence[float]) -> list[tuple[int, int]]:
    """First and last frames of the parts of a video between which nothing is known for too long."""
    parts: list[tuple[int, int]] = []
    for row in measured:
        if parts and times_s[row] - times_s[parts[-1][1]] <= LONGEST_GAP_S:
            parts[-1] = (parts[-1][0], row)
        else:
            parts.append((row, row))
    return parts


@dataclass(frozen=True)
class _State:
    """Where the camera is and how it moves: R and center of T_world_cam, velocities, and the covariance of it all."""

    R: Float64[np.ndarray, "3 3"]
    center: Float64[np.ndarray, "3"]
    velocity: Float64[np.ndarray, "6"]
    """Of turning in the camera's frame, and of the centre in the world."""
    P: Float64[np.ndarray, "12 12"]

    def moved(self, error: Float64[np.ndarray, "12"], P: Float64[np.ndarray, "12 12"]) -> "_State":
        return _State(
            self.R @ rotation_matrix(error[:3]), self.center + error[3:6], self.velocity + error[_VELOCITY], P
        )

    def error_to(self, other: "_State") -> Float64[np.ndarray, "12"]:
        """What `moved` has to be given to get there."""
        return np.concatenate([_log(self.R.T @ other.R), other.center - self.center, other.velocity - self.velocity])


def _smooth_part(answers: Sequence[Answer], times_s: Float64[np.ndarray, "N"]) -> list[SmoothedPose]:
    measurements = [_measurement(answer) for answer in answers]
    weights = np.ones(len(answers))
    states: list[_State] = []
    for _ in range(NUM_PASSES):
        states = _forward_and_back(measurements, times_s, weights)
        before, weights = (
            weights,
            np.array([_weight(state, measurement) for state, measurement in zip(states, measurements, strict=True)]),
        )
        if np.abs(weights - before).max() < 1e-3:
            break
    return [
        _as_pose(state, weight if measurement is not None else 0.0)
        for state, weight, measurement in zip(states, weights, measurements, strict=True)
    ]


Measurement = tuple[Float64[np.ndarray, "3 3"], Float64[np.ndarray, "3"], Float64[np.ndarray, "6 6"]]
"""Rotation and centre of T_world_cam, and their covariance."""


def _measurement(answer: Answer) -> Measurement | None:
    if answer.T_world_cam is None:
        return None
    covariance = answer.covariance.double().numpy()
    if not np.isfinite(covariance).all():  # an answer that knows nothing of its error is as good as a right one
        covariance = np.diag([np.radians(RIGHT_DEG) ** 2] * 3 + [RIGHT_M**2] * 3)
    least = np.diag([LEAST_SIGMA_RAD**2] * 3 + [LEAST_SIGMA_M**2] * 3)
    T_world_cam = answer.T_world_cam.to(torch.float64)
    return T_world_cam.R.numpy(), T_world_cam.t.numpy(), covariance + least


def _forward_and_back(
    measurements: Sequence[Measurement | None], times_s: Float64[np.ndarray, "N"], weights: Float64[np.ndarray, "N"]
) -> list[_State]:
    """The states by all measurements, an answer's covariance divided by its weight."""
    first = measurements[0]
    assert first is not None  # a part begins with an answer
    usual = np.diag([100.0] * 3 + [1e6] * 3 + [ANGULAR_SPEED**2] * 3 + [SPEED**2] * 3)
    predicted = [_State(first[0], first[1], np.zeros(6), usual)]
    filtered: list[_State] = []
    steps: list[Float64[np.ndarray, "12 12"]] = []
    for row, measurement in enumerate(measurements):
        if row:
            state, F = _predicted(filtered[-1], times_s[row] - times_s[row - 1])
            predicted.append(state)
            steps.append(F)
        filtered.append(_updated(predicted[-1], measurement, weights[row]))
    smoothed = [filtered[-1]]
    for row in range(len(filtered) - 2, -1, -1):
        before, ahead, after = filtered[row], predicted[row + 1], smoothed[-1]
        gain = np.linalg.solve(ahead.P, steps[row] @ before.P).T
        P = before.P + gain @ (after.P - ahead.P) @ gain.T
        smoothed.append(before.moved(gain @ ahead.error_to(after), (P + P.T) / 2))
    return smoothed[::-1]


def _predicted(state: _State, step_s: float) -> tuple[_State, Float64[np.ndarray, "12 12"]]:
    """The state some time later, and how its error follows from that of the state before."""
    turn = rotation_matrix(state.velocity[:3] * step_s)
    F = np.eye(12)
    F[:3, :3] = turn.T
    F[:6, 6:] = step_s * np.eye(6)
    # White noise on the velocities, integrated over the step.
    density = np.diag([ANGULAR_ACCELERATION**2] * 3 + [ACCELERATION**2] * 3)
    Q = np.block([[density * step_s**3 / 3, density * step_s**2 / 2], [density * step_s**2 / 2, density * step_s]])
    later = _State(state.R @ turn, state.center + step_s * state.velocity[3:], state.velocity, F @ state.P @ F.T + Q)
    return later, F


def _updated(state: _State, measurement: Measurement | None, weight: float) -> _State:
    if measurement is None:
        return state
    error, noise = _innovation(state, measurement), measurement[2] / weight
    gain = np.linalg.solve(state.P[_POSE, _POSE] + noise, state.P[_POSE]).T  # [12, 6]
    keep = np.eye(12)
    keep[:, _POSE] -= gain
    P = keep @ state.P @ keep.T + gain @ noise @ gain.T  # Joseph's form stays positive
    return state.moved(gain @ error, P)


def _innovation(state: _State, measurement: Measurement) -> Float64[np.ndarray, "6"]:
    return np.concatenate([_log(state.R.T @ measurement[0]), measurement[1] - state.center])


def _weight(state: _State, measurement: Measurement | None) -> float:
    """By Student's t: 1 or so for an answer as far off as it expects, next to nothing for one that is wrong."""
    if measurement is None:
        return 1.0
    error = _innovation(state, measurement)
    distance = float(error @ np.linalg.solve(measurement[2], error))
    return min(1.0, (DEGREES_OF_FREEDOM + len(error)) / (DEGREES_OF_FREEDOM + distance))


def _as_pose(state: _State, weight: float) -> SmoothedPose:
    covariance = torch.from_numpy(state.P[_POSE, _POSE].copy())
    largest = [float(np.linalg.eigvalsh(state.P[some, some])[-1]) for some in (slice(0, 3), slice(3, 6))]
    is_known = largest[0] < np.radians(RIGHT_DEG) ** 2 and largest[1] < RIGHT_M**2
    U, _, Vt = np.linalg.svd(state.R)  # many products have left it a little off
    pose = Pose.from_rotation_and_translation(U @ Vt, state.center)
    return SmoothedPose(pose if is_known else None, covariance, weight)


def _log(R: Float64[np.ndarray, "3 3"]) -> Float64[np.ndarray, "3"]:
    """The rotation vector; in numpy, which takes a tenth of the time of torch for one small matrix."""
    along = np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2  # the axis times the sine
    sine = float(np.linalg.norm(along))
    angle = float(np.arctan2(sine, (np.trace(R) - 1) / 2))
    if sine > 1e-6:
        return along * (angle / sine)
    if angle < 1:
        return along
    twice = R + np.eye(3)  # at half a turn every column of it is along the axis
    column: Float64[np.ndarray, "3"] = twice[:, np.diag(twice).argmax()]
    return column * (angle / float(np.linalg.norm(column)))
