"""Descriptors on disk: found as by exact search, with a graph and without, and safe from whatever ends a process."""

import builtins
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.retrieval import ExactIndex, StoredIndex, mapped_graph, stored_index

DIM = 16


@pytest.fixture
def early_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph where a hundred rows would do without."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(stored_index, "EXACT_UP_TO", 100)
    monkeypatch.setattr(stored_index, "WAITING_ROWS", 50)


@pytest.fixture
def no_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *arguments: object, **options: object) -> object:
        if name == "faiss":
            raise ImportError(name)
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(mapped_graph, "installed_version", lambda name: None)


def clustered(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, DIM, generator=torch.Generator().manual_seed(99))
    return centres[torch.randint(20, (count,), generator=generator)] + 0.3 * torch.randn(
        count, DIM, generator=generator
    )


def halved(descriptors: torch.Tensor) -> torch.Tensor:
    """As they are kept: of unit length, in half precision."""
    return torch.nn.functional.normalize(descriptors, dim=1).half().float()


def assert_same_neighbours(index: StoredIndex, rows: torch.Tensor, descriptors: torch.Tensor) -> None:
    """The index finds what exact search finds among `rows`."""
    queries = clustered(30, seed=5)
    truth = ExactIndex(halved(descriptors)[rows]).search(queries, 5)
    found = index.search(queries, 5)
    torch.testing.assert_close(found.similarity, truth.similarity)
    assert torch.equal(found.row, rows[truth.row])


@pytest.mark.usefixtures("early_graph")
@pytest.mark.parametrize("count", [40, 90, 400])
def test_it_finds_what_exact_search_finds_with_a_graph_and_without(tmp_path: Path, count: int):
    descriptors = clustered(count)
    index = StoredIndex.create(tmp_path / "index", descriptors.split(64))
    assert index.num_graph_rows == (count if count > 100 else 0)
    assert len(index) == index.num_rows == count
    assert_same_neighbours(StoredIndex(tmp_path / "index"), torch.arange(count), descriptors)


@pytest.mark.usefixtures("early_graph")
def test_rows_that_were_added_are_found_before_and_after_the_graph_has_grown(tmp_path: Path):
    descriptors = clustered(400)
    index = StoredIndex.create(tmp_path, [descriptors[:300]])
    assert index.add([descriptors[300:320], descriptors[320:340]]) == range(300, 340)
    assert index.num_graph_rows == 300
    assert_same_neighbours(index, torch.arange(340), descriptors)
    assert index.add([descriptors[340:]]) == range(340, 400)
    assert index.num_graph_rows == 400
    assert_same_neighbours(index, torch.arange(400), descriptors)
    assert len(list(tmp_path.iterdir())) == 4  # the old graph is gone


@pytest.mark.usefixtures("early_graph")
def test_who_adds_often_grows_the_graph_when_all_is_there(tmp_path: Path):
    descriptors = clustered(400)
    index = StoredIndex.create(tmp_path, [descriptors[:200]])
    for block in descriptors[200:].split(40):
        index.add([block], grow=False)
    assert index.num_graph_rows == 200
    assert index.needs_growth
    assert_same_neighbours(index, torch.arange(400), descriptors)
    index.grow_graph()
    assert index.num_graph_rows == 400
    assert not index.needs_growth
    assert_same_neighbours(StoredIndex(tmp_path), torch.arange(400), descriptors)


def test_keys_and_revision_are_kept_with_the_rows_that_they_came_with(tmp_path: Path):
    index = StoredIndex.create(
        tmp_path, clustered(6).split(4), keys=torch.tensor([10, -20, 30, 40, 50, 60]), revision=3
    )
    index.add([clustered(2)], keys=torch.tensor([7, 2**62]), revision=4)
    index.remove([1, 6], revision=6)
    for each in (index, StoredIndex(tmp_path)):
        assert each.revision == 6
        assert each.keys().tolist() == [10, 30, 40, 50, 60, 2**62]
        assert each.rows().tolist() == [0, 2, 3, 4, 5, 7]
    index.add([clustered(1)])  # a row's key is its number, where none is given, and the revision stays
    assert (index.keys()[-1].item(), index.revision) == (8, 6)
    with pytest.raises(ConfigError, match="a key for each descriptor, found 1 keys"):
        index.add([clustered(2)], keys=torch.tensor([1]), revision=9)
    assert (StoredIndex(tmp_path).num_rows, StoredIndex(tmp_path).revision) == (9, 6)


def test_to_add_a_few_reads_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    index = StoredIndex.create(tmp_path, [clustered(90)])
    monkeypatch.setattr(StoredIndex, "descriptors", lambda self, rows: pytest.fail("descriptors were read"))
    index.add([clustered(3)])
    index.remove([91])
    monkeypatch.undo()
    assert len(index) == 92


@pytest.mark.usefixtures("early_graph")
def test_rows_that_were_removed_answer_no_more_and_the_others_keep_their_numbers(tmp_path: Path):
    descriptors = clustered(340)
    index = StoredIndex.create(tmp_path, [descriptors[:300]])
    index.add([descriptors[300:]])  # too few to grow the graph
    gone = [*range(0, 300, 3), 310, 320]
    index.remove(gone)
    left = torch.tensor(sorted(set(range(340)) - set(gone)))
    assert len(index) == len(left)
    assert torch.equal(index.rows(), left)
    for each in (index, StoredIndex(tmp_path)):
        assert_same_neighbours(each, left, descriptors)
    with pytest.raises(ConfigError, match="within 0 and 339"):
        index.remove([340])


@pytest.mark.usefixtures("early_graph")
def test_rows_that_are_hidden_answer_nobody_who_asks_this_object(tmp_path: Path):
    descriptors = clustered(330)
    index = StoredIndex.create(tmp_path, [descriptors[:300]])
    index.add([descriptors[300:]])
    index.hide([*range(0, 300, 4), 305])
    left = torch.tensor(sorted(set(range(330)) - {*range(0, 300, 4), 305}))
    assert len(index) == len(left)
    assert_same_neighbours(index, left, descriptors)
    assert_same_neighbours(StoredIndex(tmp_path), torch.arange(330), descriptors)


@pytest.mark.usefixtures("early_graph")
def test_a_querys_own_row_can_be_left_out(tmp_path: Path):
    descriptors = clustered(330)
    index = StoredIndex.create(tmp_path, [descriptors[:300]])
    index.add([descriptors[300:]])
    own = torch.tensor([5, 310, -1])
    queries = descriptors[[5, 310, 7]]
    truth = ExactIndex(halved(descriptors)).search(queries, 4, exclude_rows=own)
    assert torch.equal(index.search(queries, 4, exclude_rows=own).row, truth.row)
    assert index.search(queries, 1).row.squeeze(1).tolist() == [5, 310, 7]


def test_more_neighbours_than_rows_are_filled_up(tmp_path: Path):
    index = StoredIndex.create(tmp_path, [torch.eye(3)])
    found = index.search(torch.tensor([[1.0, 0.5, 0.0]]), k=5)
    assert found.row.tolist() == [[0, 1, 2, -1, -1]]
    assert found.similarity[0, 3:].tolist() == [-torch.inf, -torch.inf]


def test_an_index_whose_rows_were_all_removed_finds_none(tmp_path: Path):
    index = StoredIndex.create(tmp_path, [torch.eye(3)])
    index.remove([0, 1, 2])
    assert index.search(torch.eye(3)[:2], k=1).row.tolist() == [[-1], [-1]]


def test_copies_of_a_photo_come_back_in_the_order_of_their_rows(tmp_path: Path):
    index = StoredIndex.create(tmp_path, [torch.eye(4).repeat(3, 1)])
    assert index.search(torch.eye(4)[:1], k=3).row.tolist() == [[0, 4, 8]]


@pytest.mark.usefixtures("early_graph")
def test_without_faiss_all_rows_are_compared_and_one_line_says_so(tmp_path: Path, request: pytest.FixtureRequest):
    descriptors = clustered(300)
    StoredIndex.create(tmp_path, [descriptors])
    request.getfixturevalue("no_faiss")
    lines: list[str] = []
    index = StoredIndex(tmp_path, warn=lines.append)
    assert_same_neighbours(index, torch.arange(300), descriptors)
    assert len(lines) == 1
    assert "300 descriptors are compared one by one" in lines[0]
    assert "pip install 'relograph[index]'" in lines[0]
    with pytest.raises(MissingExtraError, match=r"relograph\[index\]"):
        index.grow_graph()


@pytest.mark.usefixtures("early_graph", "no_faiss")
def test_an_index_of_any_size_is_made_without_faiss(tmp_path: Path):
    descriptors = clustered(300)
    index = StoredIndex.create(tmp_path, [descriptors])
    assert index.num_graph_rows == 0
    assert_same_neighbours(index, torch.arange(300), descriptors)


# Damage


@pytest.mark.usefixtures("early_graph")
@pytest.mark.parametrize("name", [stored_index.DESCRIPTORS_FILE, stored_index.KEYS_FILE])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_a_flipped_bit_in_a_descriptor_or_key_is_found_and_its_row_named(tmp_path: Path, name: str, place: float):
    index = StoredIndex.create(tmp_path, [clustered(200)])
    assert index.verify() == []
    path = tmp_path / name
    flip_bit(path, int(place * path.stat().st_size))
    (damage,) = StoredIndex(tmp_path).verify()
    assert damage.path == tmp_path / stored_index.DESCRIPTORS_FILE
    assert damage.rows == (int(place * 200),)


@pytest.mark.usefixtures("early_graph")
def test_a_flipped_bit_in_the_graph_is_found_and_the_graph_made_anew(tmp_path: Path):
    descriptors = clustered(200)
    StoredIndex.create(tmp_path, [descriptors])
    (path,) = tmp_path.glob(stored_index.GRAPH_FILES)
    flip_bit(path, path.stat().st_size - 100)
    index = StoredIndex(tmp_path)
    assert [(damage.path, damage.rows) for damage in index.verify()] == [(path, ())]
    index.grow_graph(anew=True)
    assert index.verify() == []
    assert_same_neighbours(index, torch.arange(200), descriptors)


def test_a_flipped_bit_in_the_contents_is_found_when_the_index_is_opened(tmp_path: Path):
    StoredIndex.create(tmp_path, [clustered(20)])
    path = tmp_path / stored_index.CONTENTS_FILE
    flip_bit(path, path.read_text().index('"num_rows": 20') + len('"num_rows": '))
    with pytest.raises(DatasetError, match=r"index\.json: expected the contents of an index"):
        StoredIndex(tmp_path)


@pytest.mark.usefixtures("early_graph")
@pytest.mark.parametrize("pattern", [stored_index.DESCRIPTORS_FILE, stored_index.KEYS_FILE, stored_index.GRAPH_FILES])
def test_files_that_were_cut_short_or_are_gone_are_an_error_in_one_line(tmp_path: Path, pattern: str):
    StoredIndex.create(tmp_path, [clustered(200)])
    (path,) = tmp_path.glob(pattern)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DatasetError, match=f"{path.name}: expected"):
        StoredIndex(tmp_path)
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path.name}: expected"):
        StoredIndex(tmp_path)


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


# Bad input


def test_descriptors_of_another_length_or_not_finite_are_refused_and_nothing_is_added(tmp_path: Path):
    index = StoredIndex.create(tmp_path, [clustered(20)])
    with pytest.raises(ConfigError, match="of 16 finite numbers, found some of 5"):
        index.add([clustered(3), torch.randn(2, 5)])
    with pytest.raises(ConfigError, match="not finite"):
        index.add([torch.full((1, DIM), torch.nan)])
    with pytest.raises(ConfigError, match="of 16 numbers, found 5"):
        index.search(torch.randn(1, 5), 3)
    assert StoredIndex(tmp_path).num_rows == 20


def test_an_index_is_not_made_where_there_is_one_nor_opened_where_there_is_none(tmp_path: Path):
    with pytest.raises(DatasetError, match=r"found no index\.json"):
        StoredIndex(tmp_path)
    StoredIndex.create(tmp_path, [clustered(20)])
    with pytest.raises(DatasetError, match="expected a folder without an index"):
        StoredIndex.create(tmp_path, [clustered(20)])
    with pytest.raises(ConfigError, match="at least one block"):
        StoredIndex.create(tmp_path / "other", [])


def test_what_interrupts_an_addition_leaves_the_index_as_it_was(tmp_path: Path):
    descriptors = clustered(60)
    index = StoredIndex.create(tmp_path, [descriptors[:20]])

    def photos_that_end() -> object:
        yield clustered(30, seed=3)
        raise OSError("the camera was unplugged")

    with pytest.raises(OSError, match="unplugged"):  # not for the disk
        index.add(photos_that_end())
    index = StoredIndex(tmp_path)
    assert index.num_rows == 20
    index.add([descriptors[20:]])  # over what was left there
    assert_same_neighbours(StoredIndex(tmp_path), torch.arange(60), descriptors)
    assert index.verify() == []


def test_a_full_disk_is_one_line_and_leaves_the_index_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    index = StoredIndex.create(tmp_path, [clustered(20)])

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DatasetError, match=r"No space left on device\. Check the rights and the free space"):
        index.add([clustered(5)])
    with pytest.raises(DatasetError, match="No space left on device"):
        index.remove([3])
    monkeypatch.undo()
    assert len(StoredIndex(tmp_path)) == 20
    assert {path.name for path in tmp_path.iterdir()} == {
        stored_index.CONTENTS_FILE,
        stored_index.DESCRIPTORS_FILE,
        stored_index.KEYS_FILE,
    }


WRITER = """
import sys
from pathlib import Path
import torch
from relograph.retrieval import StoredIndex, stored_index
stored_index.EXACT_UP_TO, stored_index.WAITING_ROWS = 100, 50
index = StoredIndex(Path(sys.argv[1]))
while True:
    first = index.num_rows
    rows = index.add([torch.nn.functional.one_hot(torch.arange(first, first + 30) % 16, 16).float()])
    index.remove([rows[0]])
    print(rows.stop, flush=True)
"""


@pytest.mark.usefixtures("early_graph")
def test_a_writer_that_is_killed_loses_nothing_that_it_had_said_was_added(tmp_path: Path):
    folder, rng = tmp_path / "index", np.random.default_rng(0)
    StoredIndex.create(folder, [torch.eye(DIM)[torch.arange(90) % DIM]])
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(int(rng.integers(3, 12)))]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.communicate()[0].split()]
        index = StoredIndex(folder)
        assert index.num_rows >= told[-1]
        assert index.verify() == []
        row = int(index.rows()[-1])
        assert index.search(torch.eye(DIM)[[row % DIM]], 1).similarity.item() == pytest.approx(1.0)
        assert row % DIM == int(index.search(torch.eye(DIM)[[row % DIM]], 1).row.item()) % DIM
    index.grow_graph()  # removes what killed writers left
    assert len(list(folder.iterdir())) == 4
