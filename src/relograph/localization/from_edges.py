"""From what the edges of a graph say to the query's pose: one edge, or the average of all."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry import Pose, geometric_median, gramkow_mean, markley_mean
from relograph.graphs import Target, absolute_pose

EdgeReading = Literal["nearest", "random", "average-markley", "average-gramkow"]


def query_pose(
    edges: Float[Tensor, "Q R 6"],
    T_world_ref: Pose,
    ref_mask: Bool[Tensor, "Q R"],
    target: Target,
    *,
    reading: EdgeReading = "nearest",
    generator: torch.Generator | None = None,
) -> Pose:
    """T_world_query [Q] from the edges [reference, query] of R references in the order of their similarity.

    `nearest` reads the first edge, which is the paper's choice; `random` one that is drawn; the averages take the
    geometric median (Weiszfeld) of the positions and Markley's or Gramkow's mean of the rotations. Where a reference is
    missing `ref_mask` is False; where all are, the pose means nothing.
    """
    T_world_query = absolute_pose(edges, T_world_ref, target)  # [Q, R]
    if reading in ("nearest", "random"):
        chosen = torch.zeros(len(edges), dtype=torch.long, device=edges.device)
        if reading == "random":
            lots = torch.rand(ref_mask.shape, generator=generator).to(edges.device)
            chosen = lots.masked_fill(~ref_mask, -1).argmax(dim=1)
        return T_world_query[torch.arange(len(edges), device=edges.device), chosen]
    weights = (ref_mask | ~ref_mask.any(dim=1, keepdim=True)).to(edges.dtype)
    center = geometric_median(T_world_query.t, weights)
    mean = markley_mean if reading == "average-markley" else gramkow_mean
    return Pose.from_quat_wxyz(mean(T_world_query.quat_wxyz(), weights), center)
