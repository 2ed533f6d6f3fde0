"""Which posed images look like a query: descriptors, their index, and the choice of a graph's references."""

from relograph.retrieval.index import ExactIndex, Neighbours
from relograph.retrieval.netvlad import NetVLAD, sample_local_features
from relograph.retrieval.selection import rank_at_random, rank_references, select_strided, sequence_windows

__all__ = [
    "ExactIndex",
    "Neighbours",
    "NetVLAD",
    "rank_at_random",
    "rank_references",
    "sample_local_features",
    "select_strided",
    "sequence_windows",
]
