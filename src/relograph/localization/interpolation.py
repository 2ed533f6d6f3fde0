"""Retrieval with interpolation: the query's pose as a weighted mean of its references', without any network."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.geometry import Pose, markley_mean


def interpolated_pose(
    query: Float[Tensor, "Q D"],
    references: Float[Tensor, "Q R D"],
    T_world_ref: Pose,
    ref_mask: Bool[Tensor, "Q R"],
    *,
    ridge: float = 0.1,
) -> Pose:
    r"""T_world_query [Q] with the weights that make the references' descriptors into the query's.

        w = argmin | d_q - sum_r w_r d_r |^2 + ridge |w|^2   with   sum_r w_r = 1

    Torii, Sivic and Pajdla (2011) localize so; Sattler et al. (CVPR 2019) use it as a baseline. Weights may be
    negative for positions; rotations average with the positive ones. `ridge`, a share of the mean squared distance,
    keeps nearly equal descriptors from getting huge opposite weights. Where a reference is missing `ref_mask` is False;
    where all are, the pose means nothing.
    """
    difference = query[:, None] - references  # [Q, R, D]: with weights that sum to one, d_q - sum w d = sum w (d_q - d)
    gram = difference @ difference.mT  # [Q, R, R]
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    there = (ref_mask | ~ref_mask.any(dim=1, keepdim=True)).to(gram.dtype)
    squared = gram.diagonal(dim1=1, dim2=2) * there
    scale = (squared.sum(dim=1) / there.sum(dim=1)).clamp_min(1e-12)
    gram = gram + ridge * scale[:, None, None] * eye
    # A missing reference gets a weight of zero: its row says w_r = 0.
    gram = gram * there[:, :, None] * there[:, None, :] + eye * (1 - there)[:, :, None]
    weights = torch.linalg.solve(gram, there[..., None]).squeeze(-1)
    weights = weights / weights.sum(dim=1, keepdim=True)
    center = (weights[..., None] * T_world_ref.t).sum(dim=1)
    return Pose.from_quat_wxyz(markley_mean(T_world_ref.quat_wxyz(), weights.clamp_min(0)), center)
