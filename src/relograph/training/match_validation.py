"""How good MatchGNN is in rooms that it was not trained on: poses without intrinsics, and matches."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from relograph.geometry import pose_error
from relograph.graphs.correspondence import Lenses, true_matches
from relograph.models.match_gnn import COARSE_STRIDE
from relograph.rooms import StreamBatch
from relograph.training.loop import Validated
from relograph.training.matching import MatchObjective

RIGHT_PX = 4.0
CONFIDENT = 0.5
FIGURES = ("median_m", "median_deg", "settled_m", "settled_deg", "right_matches", "confident_px")
"""Median errors of the fused pose, and of the one that the last layer makes of it; share of visible cells matched
within 4 px; median error of confident matches."""


@torch.no_grad()
def match_figures(
    objective: MatchObjective,
    batches: Sequence[StreamBatch],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Validated:
    """The figures of all batches together; what is minimised is metres plus degrees / 30 of the settled pose.

    Within `autocast` answers are given, but not scored: bfloat16 knows no tenth of a degree.
    """
    of_settled: list[Tensor] = []
    of_fused: list[Tensor] = []
    off_px, confident_px = [], []
    for batch in batches:
        with autocast():
            answers = objective.answer(batch)
        T_world_ref, everything = batch.T_world_cam[:, 1:], torch.ones_like(batch.overlap[:, 1:], dtype=torch.bool)
        settled = objective.model.settle(answers, T_world_ref, everything)
        for T_world_query, errors in ((settled.T_world_query, of_settled), (answers.T_world_query, of_fused)):
            error = pose_error(T_world_query, batch.T_world_cam[:, 0])
            errors.append(torch.stack([error.translation_error_m, error.rotation_error_deg])[:, batch.is_here])
        truth = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), COARSE_STRIDE)
        distance = (answers.matches.xy - truth.xy).norm(dim=-1)
        off_px.append(distance[truth.visible])
        confident_px.append(distance[truth.visible & (answers.matches.confidence > CONFIDENT)])
    medians = [torch.cat(errors, dim=1).median(dim=1).values.tolist() for errors in (of_settled, of_fused)]
    (settled_m, settled_deg), (median_m, median_deg) = medians
    figures = {
        "median_m": median_m,
        "median_deg": median_deg,
        "settled_m": settled_m,
        "settled_deg": settled_deg,
        "right_matches": float((torch.cat(off_px) < RIGHT_PX).float().mean()),
        "confident_px": _median(torch.cat(confident_px)),
    }
    return Validated(settled_m + settled_deg / 30, figures)


def _median(values: Tensor) -> float | None:
    """None where there are no values."""
    return float(values.median()) if len(values) else None
