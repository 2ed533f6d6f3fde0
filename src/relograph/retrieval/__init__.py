"""Which posed images look like a query: descriptors, their index, and the choice of a graph's references."""

from relograph.retrieval.index import ExactIndex, Neighbours
from relograph.retrieval.losses import covisibility_loss, covisibility_loss_of_images, expected_error_loss
from relograph.retrieval.netvlad import NetVLAD, sample_local_features
from relograph.retrieval.overlap import frustum_overlap
from relograph.retrieval.selection import rank_at_random, rank_references, select_strided, sequence_windows
from relograph.retrieval.stored_index import Damage, StoredIndex
from relograph.retrieval.user_supplied import read_descriptors, read_pairs
from relograph.retrieval.whitening import PCAWhitening

__all__ = [
    "Damage",
    "ExactIndex",
    "Neighbours",
    "NetVLAD",
    "PCAWhitening",
    "StoredIndex",
    "covisibility_loss",
    "covisibility_loss_of_images",
    "expected_error_loss",
    "frustum_overlap",
    "rank_at_random",
    "rank_references",
    "read_descriptors",
    "read_pairs",
    "sample_local_features",
    "select_strided",
    "sequence_windows",
]
