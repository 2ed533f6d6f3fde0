"""Matches of graphs that nobody photographed: the same as those of photographs, and spoilt as a matcher errs."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from relograph.graphs.correspondence import Lenses, TrueMatches, true_matches
from relograph.models.match_gnn import COARSE_STRIDE
from relograph.rooms import RoomStream
from relograph.rooms.raycast import Kernels
from relograph.rooms.stream import UnseenGraphs
from relograph.rooms.textures import TextureAtlas
from relograph.rooms.world import Rooms, Views
from relograph.training.match_drill import as_a_matcher_errs, unseen_matches
from relograph.training.presets import MATCHGNN_TINY

STREAM = replace(MATCHGNN_TINY.stream, graphs_per_batch=3, unseen_graphs=3, num_nodes=4)


@pytest.mark.parametrize("portrait_share", [0.0, 1.0])
def test_rays_tell_the_same_matches_as_depths_of_photographs(few_textures: TextureAtlas, portrait_share: float) -> None:
    config = replace(STREAM, portrait_share=portrait_share, num_homes=1, homes_renewed_per_batch=0)
    (batch,) = islice(RoomStream(config, atlas=few_textures), 1)
    assert batch.unseen is not None
    from_depth = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), COARSE_STRIDE)
    # The cameras of the photographs, as if nobody had photographed them.
    pose, K = batch.T_world_cam, batch.K.flatten(0, 1)
    views = Views(
        pose.R.flatten(0, 1),
        pose.t.flatten(0, 1),
        torch.stack([K[:, 0, 0], K[:, 1, 1]], dim=1),
        K[:, :2, 2],
        batch.distortion.flatten(0, 1),
    )
    rooms: Rooms = batch.unseen.rooms[torch.zeros(3, dtype=torch.long)]
    by_rays = unseen_matches(UnseenGraphs(rooms, views, batch.unseen.image_hw, batch.unseen.num_boxes), Kernels())
    assert from_depth.visible.any()
    # Depth is looked up in the nearest pixel, so at edges of things the two may differ.
    assert (by_rays.visible == from_depth.visible).float().mean() > 0.97
    both = by_rays.visible & from_depth.visible
    assert (by_rays.xy - from_depth.xy)[both].abs().max() < 0.05


def test_a_matchers_errors_leave_most_matches_near_the_truth() -> None:
    torch.manual_seed(0)
    visible = torch.rand(64, 7, 48) < 0.6
    truth = TrueMatches(torch.rand(64, 7, 48, 2) * torch.tensor([64.0, 48.0]), visible)
    spoilt = as_a_matcher_errs(truth, (48, 64))
    off_px = (spoilt.xy - truth.xy).norm(dim=-1)
    confident = spoilt.confidence > 0.25
    assert 0.4 < (off_px < 4)[visible].float().mean() < 0.9
    assert (off_px < 4)[visible & confident].float().mean() > 0.7
    assert confident[~visible].float().mean() < 0.05
    assert spoilt.confidence.min() >= 0
    assert spoilt.confidence.max() <= 1
    # Pairs differ: some are matched nearly everywhere and well, others hardly and badly.
    per_pair = torch.where(visible & confident, off_px, torch.nan).nanmedian(dim=-1).values
    assert per_pair.nan_to_num(9).quantile(0.1) < 1 < 3 < per_pair.nan_to_num(0).quantile(0.9)
