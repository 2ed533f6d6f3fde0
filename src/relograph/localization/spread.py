"""References that are like the query and yet stand apart: without a baseline between them there is no scale."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose


def choose_spread_references(
    T_world_ref: Pose,
    similarity: Float[Tensor, "C"],
    num: int,
    *,
    spread_weight: float = 0.3,
    near_m: float | None = None,
) -> Int[Tensor, "chosen"]:
    """Up to `num` of C candidates, as indices in the order of their choice: similar to the query, and spread out.

    The most similar comes first. Then, again and again, the one with the most of

        similarity - spread_weight * redundancy,

    with similarities as shares of the best one: one that stands apart is preferred to one in a bunch if it loses less
    than `spread_weight` of the best similarity. Similarities are cosines, or others that are about 0 for images that
    have nothing in common. Redundancy is 1 beside a chosen reference that looks the same way, 1/2 where it looks
    elsewhere from the same place (another view, but no baseline), and falls to 0 over a distance of `near_m`. By
    default that is half of the 80th percentile of the distances between candidates, so that rooms and streets have
    their own scale. Candidates whose pose or similarity is not finite are never chosen.

    Example:
        >>> centers = torch.tensor([[0.0, 0, 0], [0.01, 0, 0], [0.02, 0, 0], [1.0, 0, 0], [2.0, 0, 0]])
        >>> T_world_ref = Pose(torch.eye(3).expand(5, 3, 3), centers)
        >>> choose_spread_references(T_world_ref, torch.tensor([0.9, 0.89, 0.88, 0.8, 0.3]), 2).tolist()
        [0, 3]
    """
    if num < 0 or spread_weight < 0 or (near_m is not None and not near_m > 0):
        raise ConfigError(
            f"A choice of references is of 0 or more, with a spread_weight of 0 or more and a near_m above 0, got "
            f"num={num}, spread_weight={spread_weight}, near_m={near_m}."
        )
    usable = similarity.isfinite() & T_world_ref.t.isfinite().all(dim=-1) & T_world_ref.R.isfinite().all(dim=(-2, -1))
    candidates = usable.nonzero().squeeze(-1)  # [U]
    if not len(candidates) or not num:
        return candidates[:0]
    T_world_ref, similarity = T_world_ref[candidates].detach(), similarity[candidates].detach().double()
    most = similarity.max()
    score = (similarity - most) / most.abs().clamp_min(torch.finfo(torch.float64).tiny)
    redundancy = _redundancy(T_world_ref, near_m)  # [U, U]
    penalty = torch.zeros_like(score)
    chosen: list[int] = []
    for _ in range(min(num, len(candidates))):
        best = int((score - spread_weight * penalty).argmax())
        chosen.append(best)
        score[best] = -torch.inf
        penalty = torch.maximum(penalty, redundancy[best])
    return candidates[torch.tensor(chosen, device=candidates.device)]


def _redundancy(T_world_ref: Pose, near_m: float | None) -> Float[Tensor, "U U"]:
    """How little each candidate adds to each other one, within [0, 1]."""
    center, looks = T_world_ref.t.double(), T_world_ref.R[..., 2].double()
    distance = torch.linalg.vector_norm(center[:, None] - center, dim=-1)
    if near_m is None:
        near_m = max(float(distance.flatten().quantile(0.8)) / 2, 1e-9)
    parallel = (looks @ looks.mT).clamp(0, 1)
    return torch.exp(-0.5 * (distance / near_m).square()) * (1 + parallel) / 2
