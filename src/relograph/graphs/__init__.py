"""From frames to batches of graphs: nodes, directed edges, relative-pose targets."""

from relograph.graphs.edges import drop_edges
from relograph.graphs.posed_images import GraphBatch, PosedImages, gather_graphs
from relograph.graphs.targets import (
    Target,
    absolute_pose,
    absolute_targets,
    crosses_the_jump,
    relative_targets,
    target_units,
)

__all__ = [
    "GraphBatch",
    "PosedImages",
    "Target",
    "absolute_pose",
    "absolute_targets",
    "crosses_the_jump",
    "drop_edges",
    "gather_graphs",
    "relative_targets",
    "target_units",
]
