"""Drill for the part of MatchGNN that turns matches into poses: true matches of graphs that nobody photographed.

What that part sees is geometry alone, so it needs no images to learn from, and geometry costs a thirtieth of them: a
few rays a cell instead of a photograph, no encoder, no matching. It also learns from the first step on, while the
matches of the network itself are still random. The true matches are spoilt in the ways in which a matcher errs.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from relograph.graphs.correspondence import TrueMatches, cell_anchors
from relograph.models.match_gnn import COARSE_STRIDE, Matches
from relograph.rooms.covisibility import project
from relograph.rooms.raycast import Kernels, first_hits, of_image, plus, ray_directions
from relograph.rooms.stream import UnseenGraphs

SAME_PLACE_M = 0.03
NOISE_PX = (0.3, 4.0)
"""Spread of matches around the truth, from a well trained network's to one that is at its beginning."""
PATCH_CELLS = 5
"""Size of the patches that are matched or not together: a bare wall has no cell that can be."""
SURE, UNSURE = (0.05, 1.0), (0.0, 0.25)
"""Confidences of good matches, and of others: a match that is right need not be sure."""
FALSELY_SURE = 0.03
"""Share of wrong matches that look like good ones."""


@torch.no_grad()
def unseen_matches(graphs: UnseenGraphs, kernels: Kernels) -> TrueMatches:
    """Where the anchors of each query are seen in its references, by rays alone."""
    num_graphs, num_nodes = graphs.T_world_cam.batch_shape
    height, width = graphs.image_hw
    node = torch.arange(num_graphs * num_nodes, device=graphs.views.center.device).unflatten(0, (num_graphs, num_nodes))
    query, reference = graphs.views[node[:, 0]], graphs.views[node[:, 1:].flatten()]
    anchors = cell_anchors(height, width, COARSE_STRIDE, node.device)
    rays = ray_directions(query, anchors)
    hits = first_hits(graphs.rooms, graphs.num_boxes, query.center, rays, kernels)
    points = plus(of_image(query.center), rays, hits.depth_m)  # three [B, P]
    graph = (node[:, 1:] // num_nodes).flatten()
    seen_points = (points[0][graph], points[1][graph], points[2][graph])  # [BR, P]
    xy, z = project(reference, seen_points)
    inside = (z > 1e-3) & (xy >= 0).all(dim=-1) & (xy[..., 0] < width) & (xy[..., 1] < height)
    towards = plus(seen_points, of_image(reference.center), -1.0)  # of length one where they end at the point
    reached = first_hits(graphs.rooms[graph], graphs.num_boxes, reference.center, towards, kernels).depth_m
    length_m = torch.stack(towards).norm(dim=0)
    visible = inside & ((1 - reached) * length_m < SAME_PLACE_M)
    by_query = (num_graphs, num_nodes - 1)
    return TrueMatches(xy.unflatten(0, by_query), visible.unflatten(0, by_query))


@torch.no_grad()
def as_a_matcher_errs(truth: TrueMatches, image_hw: tuple[int, int]) -> Matches:
    """True matches with errors: some lost patch by patch, all a little off, wrong ones anywhere and mostly unsure.

    How many are lost and how far they are off differs from pair to pair.
    """
    num_graphs, num_refs, num_cells = truth.visible.shape
    device, pair = truth.xy.device, (num_graphs, num_refs, 1)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, device=device)

    found = truth.visible & (_patches(truth.visible, image_hw) < uniform(0.3, 1.1, *pair))
    low, high = (math.log(limit) for limit in NOISE_PX)
    spread_px = uniform(low, high, *pair).exp()
    noise_px = spread_px[..., None] * torch.randn(*truth.xy.shape, device=device)
    far_off = torch.rand(*truth.visible.shape, device=device) < 0.05  # the cell beside the right one, or further
    noise_px = torch.where(far_off[..., None], noise_px + 10 * torch.randn(*truth.xy.shape, device=device), noise_px)
    height, width = image_hw
    anywhere = torch.rand(*truth.xy.shape, device=device)
    anywhere = torch.stack([anywhere[..., 0] * width, anywhere[..., 1] * height], dim=-1)
    looks_sure = found | (torch.rand(*truth.visible.shape, device=device) < FALSELY_SURE)
    luck = torch.rand(*truth.visible.shape, device=device)
    confidence = torch.where(
        looks_sure, SURE[0] + (SURE[1] - SURE[0]) * luck, UNSURE[0] + (UNSURE[1] - UNSURE[0]) * luck.square()
    )
    return Matches(
        xy=torch.where(found[..., None], truth.xy + noise_px, anywhere),
        confidence=confidence,
        best=torch.zeros_like(truth.visible, dtype=torch.long),  # nobody looks at cells here
        mutual=found,
        sigma_px=spread_px.expand(-1, -1, num_cells),
        seen=confidence.logit(eps=1e-4),
    )


def _patches(like: Bool[Tensor, "B R P"], image_hw: tuple[int, int]) -> Float[Tensor, "B R P"]:
    """Numbers within [0, 1] that neighbouring cells nearly share."""
    rows, columns = image_hw[0] // COARSE_STRIDE, image_hw[1] // COARSE_STRIDE
    coarse = (rows // PATCH_CELLS + 2, columns // PATCH_CELLS + 2)
    field = torch.rand(like.shape[0] * like.shape[1], 1, *coarse, device=like.device)
    field = F.interpolate(field, size=(rows, columns), mode="bilinear", align_corners=False)
    return field.reshape(like.shape)
