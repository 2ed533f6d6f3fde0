"""Predictions whose errors are known because they were made so."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from relograph.evaluation import NearestReference, Predictions
from relograph.geometry import Pose


def predictions_with_errors(
    translation_m: Sequence[float],
    rotation_deg: Sequence[float],
    *,
    scene: str = "kitchen",
    nearest_m: Sequence[float] | None = None,
    seed: int = 0,
) -> Predictions:
    """Answers that are that far from random true poses, in random directions; infinity is a query not localized."""
    rng = np.random.default_rng(seed)
    num_queries = len(translation_m)
    far, turned = np.asarray(translation_m, dtype=float), np.radians(np.asarray(rotation_deg, dtype=float))
    lost = ~np.isfinite(far)
    t_true, R_true = rng.normal(size=(num_queries, 3)) * 2, Rotation.random(num_queries, rng=rng)
    along, axis = unit_vectors(rng, num_queries), unit_vectors(rng, num_queries)
    R = R_true * Rotation.from_rotvec(axis * np.where(lost, 0.0, turned)[:, None])
    return Predictions.from_poses(
        [scene] * num_queries,
        [f"{scene}/seq-01/frame-{idx:06d}.color.png" for idx in range(num_queries)],
        Pose.from_rotation_and_translation(R_true.as_matrix(), t_true),
        Pose.from_rotation_and_translation(R.as_matrix(), t_true + along * np.where(lost, 0.0, far)[:, None]),
        top1=[f"{scene}/seq-02/frame-{idx:06d}.color.png" for idx in range(num_queries)],
        reason=["too few references" if is_lost else "" for is_lost in lost],
        nearest=NearestReference(
            torch.tensor(nearest_m if nearest_m is not None else [0.1] * num_queries, dtype=torch.float64),
            torch.full((num_queries,), math.pi, dtype=torch.float64),
        ),
    )


def unit_vectors(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.normal(size=(count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
