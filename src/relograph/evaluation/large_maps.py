"""Views for `relograph bench retrieval`: rendered in validation rooms, and described by MatchGNN or by their pixels."""

from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.retrieval.many_views import Describe, DescribedViews, describe_pixels, describe_views

IMAGES_AT_ONCE = 16


def views_to_find(
    network: LoadedMatchGNN | None,
    *,
    num_views: int,
    num_queries: int,
    kept_at: Path | None = None,
    parts: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> DescribedViews:
    """Descriptors of rendered views: those that are kept in a file, or new ones, which are then kept there.

    Homes are kept in the folder `parts` as they are made, so that a run which is cut goes on where it was.

    Without a network they are described by their pixels, which says how the index works and little about figures.
    """
    if kept_at is not None and kept_at.exists():
        return DescribedViews.load(kept_at)
    describe, described_by = (
        (describe_pixels, "pixels of the views, for want of weights")
        if network is None
        else (_describe_with(network, device), f"MatchGNN {network.sha256[:12]}")
    )
    views = describe_views(
        "validation",
        describe,
        described_by,
        num_views=num_views,
        num_queries=num_queries,
        seed=seed,
        device=device,
        parts=parts,
        progress=progress,
    )
    if kept_at is not None:
        views.save(kept_at)
    return views


def _describe_with(network: LoadedMatchGNN, device: str) -> Describe:
    model = network.model.to(device)

    @torch.no_grad()
    def describe(images: UInt8[Tensor, "M H W 3"]) -> Float[Tensor, "M D"]:
        parts = images.to(device).split(IMAGES_AT_ONCE)
        return torch.cat([model.descriptor(model.encode(some).context) for some in parts])

    return describe
