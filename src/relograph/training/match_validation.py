"""How good MatchGNN is in rooms that it was not trained on: poses without intrinsics, and matches."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.geometry import Pose, pose_error
from relograph.graphs.correspondence import Lenses, true_matches
from relograph.models.match_gnn import COARSE_STRIDE, MatchAnswers, MatchGNN
from relograph.rooms import StreamBatch
from relograph.training.loop import Validated
from relograph.training.matching import MatchObjective

RIGHT_PX = 4.0
CONFIDENT = 0.5
FIGURES = (
    "median_m",
    "median_deg",
    "settled_m",
    "settled_deg",
    "right_matches",
    "confident_px",
    "turned_m",
    "turned_deg",
)
"""Median errors of the fused pose, and of the one that the last layer makes of it; share of visible cells matched
within 4 px; median error of confident matches. Then the last layer's where the query is turned."""


@torch.no_grad()
def match_figures(
    objective: MatchObjective,
    batches: Sequence[StreamBatch],
    turned: Sequence[StreamBatch] = (),
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Validated:
    """The figures of all batches together; what is minimised is metres plus degrees / 30 of the settled pose.

    Queries of `turned` batches are turned against their references. They have figures of their own alone, so that what
    is minimised is the same as in rounds that were never shown such queries.

    Within `autocast` answers are given, but not scored: bfloat16 knows no tenth of a degree.
    """
    errors: dict[str, list[Tensor]] = {"median": [], "settled": [], "turned": []}
    off_px, confident_px = [], []
    for batch in batches:
        with autocast():
            answers = objective.answer(batch)
        errors["median"].append(errors_of(answers.T_world_query, batch))
        errors["settled"].append(errors_of(settled(objective.model, answers, batch), batch))
        truth = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), COARSE_STRIDE)
        distance = (answers.matches.xy - truth.xy).norm(dim=-1)
        off_px.append(distance[truth.visible])
        confident_px.append(distance[truth.visible & (answers.matches.confidence > CONFIDENT)])
    for batch in turned:
        with autocast():
            answers = objective.answer(batch)
        errors["turned"].append(errors_of(settled(objective.model, answers, batch), batch))
    (median_m, median_deg), (settled_m, settled_deg) = (_medians(errors[name]) for name in ("median", "settled"))
    turned_m, turned_deg = _medians(errors["turned"]) if turned else (None, None)
    figures = {
        "median_m": median_m,
        "median_deg": median_deg,
        "settled_m": settled_m,
        "settled_deg": settled_deg,
        "right_matches": float((torch.cat(off_px) < RIGHT_PX).float().mean()),
        "confident_px": _median(torch.cat(confident_px)),
        "turned_m": turned_m,
        "turned_deg": turned_deg,
    }
    return Validated(settled_m + settled_deg / 30, figures)


def settled(model: MatchGNN, answers: MatchAnswers, batch: StreamBatch) -> Pose:
    """The poses that the last layer makes of answers."""
    everything = torch.ones_like(batch.overlap[:, 1:], dtype=torch.bool)
    T_world_ref = batch.T_world_cam[:, 1:]
    return model.settle(answers, answers.matches.mutual, answers.flow, T_world_ref, everything).T_world_query


def errors_of(T_world_query: Pose, batch: StreamBatch) -> Float[Tensor, "2 Q"]:
    """Metres and degrees of each query that was taken where its references were."""
    error = pose_error(T_world_query, batch.T_world_cam[:, 0])
    return torch.stack([error.translation_error_m, error.rotation_error_deg])[:, batch.is_here]


def _medians(errors: Sequence[Float[Tensor, "2 _"]]) -> tuple[float, float]:
    metres, degrees = torch.cat(list(errors), dim=1).median(dim=1).values.tolist()
    return metres, degrees


def _median(values: Tensor) -> float | None:
    """None where there are no values."""
    return float(values.median()) if len(values) else None
