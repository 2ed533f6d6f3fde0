"""A graph from its file answers as the one that was written."""

from pathlib import Path

import numpy as np
import pytest

from relograph.retrieval.mapped_graph import load_graph, map_graph, new_graph, write_graph

faiss = pytest.importorskip("faiss")
DIM = 24


def descriptors(count: int) -> np.ndarray:
    some = np.random.default_rng(0).normal(size=(count, DIM)).astype(np.float32)
    return some / np.linalg.norm(some, axis=1, keepdims=True)


def test_a_mapped_graph_answers_as_the_one_that_was_written(tmp_path: Path):
    rows = descriptors(3000)
    graph = new_graph(DIM)
    graph.train(rows)
    graph.add(rows)
    shape = write_graph(graph, tmp_path / "graph")
    assert shape.num_rows == 3000
    assert shape.top_level >= 1
    assert shape.num_bytes == (tmp_path / "graph").stat().st_size
    expected = graph.search(rows[:200], 10)
    for opened in (map_graph, load_graph):
        found = opened(tmp_path / "graph", shape).search(rows[:200], 10)
        np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_array_equal(found[0], expected[0])


def test_a_graph_in_memory_grows_and_its_file_stays(tmp_path: Path):
    rows = descriptors(1200)
    graph = new_graph(DIM)
    graph.train(rows)
    graph.add(rows[:1000])
    shape = write_graph(graph, tmp_path / "graph")
    before = (tmp_path / "graph").read_bytes()
    grown = load_graph(tmp_path / "graph", shape)
    grown.add(rows[1000:])
    np.testing.assert_array_equal(grown.search(rows[1000:], 1)[1][:, 0], np.arange(1000, 1200))
    assert (tmp_path / "graph").read_bytes() == before
