"""FAISS's HNSW in a file that is mapped into memory: to open it reads a byte a row.

FAISS maps its own files too, but looks at every link before it answers, which takes as long as the disk needs for all
of them. Here the arrays of a graph lie one after the other in a file, and FAISS is shown where they are.

    links   int32   of all rows on all their levels, -1 where there are fewer
    scales  float32 by which 8 bits become numbers, two for each dimension
    codes   uint8   the descriptors, a byte a number
    levels  uint8   of each row

Links lead from row to row unchecked. So a file is written whole or not at all, and its SHA-256 is kept elsewhere.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from relograph.environment import installed_version
from relograph.errors import MissingExtraError

LINKS = 32
"""Of a row to others (HNSW's M); twice as many on the lowest level, where all rows are."""
BUILDING_WIDTH = 80
"""Rows that are kept in sight while a new one looks for its neighbours (HNSW's efConstruction)."""


@dataclass(frozen=True)
class GraphShape:
    """What it takes to find the arrays of a graph in its file, and where a search begins."""

    dim: int
    num_rows: int
    num_links: int
    links_per_row: int
    entry_row: int
    top_level: int

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_links + 8 * self.dim + self.num_rows * (self.dim + 1)


def has_faiss() -> bool:
    """Whether the package is installed that graphs need."""
    return installed_version("faiss-cpu") is not None or installed_version("faiss-gpu") is not None


def import_faiss() -> Any:
    """FAISS, or an error that says how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss", "index", "A graph over descriptors") from error
    return faiss


def new_graph(dim: int, links_per_row: int = LINKS) -> Any:
    """A graph without rows, whose scales are still to be learned."""
    faiss = import_faiss()
    graph = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_8bit, links_per_row, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILDING_WIDTH
    return graph


def write_graph(graph: Any, path: Path) -> GraphShape:
    """Writes a graph of one row or more."""
    faiss = import_faiss()
    hnsw, storage = graph.hnsw, faiss.downcast_index(graph.storage)
    links = _view(hnsw.neighbors)
    with path.open("wb") as file:
        links.tofile(file)
        faiss.vector_to_array(storage.sq.trained).tofile(file)
        _view(storage.codes).tofile(file)
        faiss.vector_to_array(hnsw.levels).astype(np.uint8).tofile(file)
    return GraphShape(
        graph.d, graph.ntotal, len(links), hnsw.nb_neighbors(1), int(hnsw.entry_point), int(hnsw.max_level)
    )


def map_graph(path: Path, shape: GraphShape) -> Any:
    """The graph in a file, to be searched; it is read as far as a search gets, and cannot grow."""
    faiss = import_faiss()
    links, codes, graph = _open(path, shape)
    # A view has no owner of its own here: the index of FAISS holds on to the arrays instead.
    hnsw, storage = graph.hnsw, faiss.downcast_index(graph.storage)
    hnsw.neighbors = faiss.MaybeOwnedVectorInt32.create_view(faiss.swig_ptr(links), links.size, hnsw.neighbors.owner)
    storage.codes = faiss.MaybeOwnedVectorUInt8.create_view(faiss.swig_ptr(codes), codes.size, storage.codes.owner)
    graph.referenced_objects = [links, codes]
    return graph


def load_graph(path: Path, shape: GraphShape) -> Any:
    """The graph in a file, in memory, so that it can grow."""
    faiss = import_faiss()
    links, codes, graph = _open(path, shape)
    for array, vector in ((links, graph.hnsw.neighbors), (codes, faiss.downcast_index(graph.storage).codes)):
        vector.resize(len(array))
        _view(vector)[:] = array
    return graph


def _open(
    path: Path, shape: GraphShape
) -> tuple[Shaped[np.ndarray, "num_links"], Shaped[np.ndarray, "num_codes"], Any]:
    """Links and codes mapped into memory, and a graph that has all but these."""
    faiss, graph = import_faiss(), new_graph(shape.dim, shape.links_per_row)
    arrays, offset = [], 0
    for dtype, count in (
        ("<i4", shape.num_links),
        ("<f4", 2 * shape.dim),
        ("u1", shape.num_rows * shape.dim),
        ("u1", shape.num_rows),
    ):
        arrays.append(np.memmap(path, dtype, mode="r", offset=offset, shape=(count,)))
        offset += arrays[-1].nbytes
    links, scales, codes, levels = arrays
    hnsw, storage = graph.hnsw, faiss.downcast_index(graph.storage)
    links_up_to_level = faiss.vector_to_array(hnsw.cum_nneighbor_per_level).astype(np.uint64)
    offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(links_up_to_level[levels])])
    faiss.copy_array_to_vector(levels.astype(np.int32), hnsw.levels)
    faiss.copy_array_to_vector(offsets, hnsw.offsets)
    faiss.copy_array_to_vector(np.array(scales), storage.sq.trained)
    hnsw.entry_point, hnsw.max_level = shape.entry_row, shape.top_level
    graph.ntotal = storage.ntotal = shape.num_rows
    graph.is_trained = storage.is_trained = True
    return links, codes, graph


def _view(vector: Any) -> Shaped[np.ndarray, "N"]:
    """The numbers of one of FAISS's vectors, where they are."""
    view: Shaped[np.ndarray, "N"] = import_faiss().rev_swig_ptr(vector.data(), vector.size())
    return view
