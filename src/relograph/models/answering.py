"""Running a network over many queries: every image is encoded once, then the graphs are decoded from features."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.graphs import PosedImages
from relograph.models.relpose_gnn import PoseModel
from relograph.progress import SILENT, Progress

# At C = 2048 the attention of a graph takes 17 MB, a few times over.
DECODED_AT_ONCE = 32


def answering_precision(device: torch.device) -> AbstractContextManager[object]:
    """Within it images are encoded and matched: on a GPU in bfloat16, in which networks learn to do so, else as it is.

    Poses are none of it: they are computed in float32 after it.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


@dataclass(frozen=True)
class RawAnswers:
    """What a network says about Q queries, before it becomes poses: in the network's own units."""

    all_edges: Float[Tensor, "Q N N 6"] | None
    """Of every edge of the queries' graphs."""
    nodes: Float[Tensor, "Q 6"] | None
    """Of the queries themselves."""

    @property
    def edges(self) -> Float[Tensor, "Q R 6"] | None:
        """Of the edges [reference, query], which localize."""
        return None if self.all_edges is None else self.all_edges[:, 1:, 0]


@torch.no_grad()
def encode_rows(
    model: PoseModel,
    frames: PosedImages,
    rows: Int[Tensor, "R"],
    *,
    batch_size: int = 128,
    progress: Progress = SILENT,
) -> Float[Tensor, "R C"]:
    """Node features of some frames, computed where the weights are."""
    model.eval()
    device = next(model.parameters()).device
    features = []
    with progress.task("encoding images", total=len(rows)) as advance:
        for some in rows.split(batch_size):
            pixels = frames.images[some.to(frames.images.device)].to(device)
            features.append(model.encode(pixels[:, None])[:, 0])
            advance(len(some))
    return torch.cat(features)


@torch.no_grad()
def answer_graphs(
    model: PoseModel,
    frames: PosedImages,
    graph_rows: Int[Tensor, "Q N"],
    *,
    batch_size: int = 128,
    progress: Progress = SILENT,
) -> RawAnswers:
    """What a network says about graphs of rows, the query first; -1 is a node that is not there."""
    needed = graph_rows[graph_rows >= 0].unique()  # sorted
    features = encode_rows(model, frames, needed, batch_size=batch_size, progress=progress)
    place = torch.searchsorted(needed, graph_rows.clamp_min(0).contiguous()).clamp_max(len(needed) - 1)
    edges, nodes = [], []
    with progress.task("localizing queries", total=len(graph_rows)) as advance:
        for some, rows in zip(place.split(DECODED_AT_ONCE), graph_rows.split(DECODED_AT_ONCE), strict=True):
            predictions = model.decode(features[some.to(features.device)], (rows >= 0).to(features.device))
            if predictions.edges is not None:
                edges.append(predictions.edges)
            if predictions.nodes is not None:
                nodes.append(predictions.nodes[:, 0])
            advance(len(rows))
    return RawAnswers(torch.cat(edges) if edges else None, torch.cat(nodes) if nodes else None)
