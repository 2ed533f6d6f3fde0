"""Photos of a large map are found through an index that is in step with the map, whatever happened to either."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_maps import descriptors_of, made_map, no_network, photos, use_small_indices

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.maps import Map, Similarity, finding
from relograph.maps.finding import INDEX, LOCK
from relograph.maps.shards import MappedFile, Shard
from relograph.maps.sqlite_store import SqliteStore
from relograph.retrieval import ExactIndex, StoredIndex

pytest.importorskip("faiss")


@pytest.fixture(autouse=True)
def small_indices(generated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_indices(monkeypatch)


def assert_found(some: Map, queries: torch.Tensor | None = None) -> None:
    """Through an index, and as by comparing all."""
    if queries is None:
        queries = torch.randn(20, 16, generator=torch.Generator().manual_seed(3))
    features = some.features
    assert features.finder is not None
    assert features.descriptors.numel() == 0
    truth = ExactIndex(descriptors_of(some)).search(queries, 5)
    for query, rows, similarity in zip(queries, truth.row, truth.similarity, strict=True):
        found, cosines = features.nearest(query, 5)
        assert found == rows.tolist()
        torch.testing.assert_close(cosines, similarity, atol=2e-3, rtol=0)  # the index keeps half precision
    row = len(some) // 2
    expected = features.nearest(queries[0], len(some))
    assert float(features.similarity(queries[0] / queries[0].norm(), [row])) == pytest.approx(
        float(expected[1][expected[0].index(row)]), abs=2e-3
    )


def index_of(some: Map) -> StoredIndex:
    return StoredIndex(Path(some.store.where) / INDEX)


def test_a_small_map_has_no_index(tmp_path: Path):
    made = made_map(tmp_path / "m", 20)
    assert made.features.finder is None
    assert not (tmp_path / "m" / INDEX).exists()
    assert set(made.store.num_bytes()) == {"shards", "database"}


def test_whatever_changes_a_map_its_photos_are_found_as_by_comparing_all(tmp_path: Path):
    made = made_map(tmp_path / "m", 60)
    assert_found(made)
    assert index_of(made).num_graph_rows == 60
    made.add(photos(7, first=100))
    assert index_of(made).num_graph_rows == 60  # few more are compared
    assert_found(made)
    assert_found(Map.open(tmp_path / "m"))
    made.remove([frame.name for frame in made.frames[3:50:4]])
    assert_found(made)
    made.merge(made_map(tmp_path / "other", 9), prefix="other/")
    assert_found(made)
    made.move(Similarity(Pose.from_axis_angle([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])))
    assert_found(made)
    assert made.verify().is_whole
    made.compact(40)
    assert len(index_of(made)) == index_of(made).num_rows == 40  # no room for those that are gone
    assert_found(made)
    assert_found(made.split(tmp_path / "part", [frame.name for frame in made.frames[:30]]))
    assert made.store.num_bytes()["index"] > 0


def test_a_photo_that_comes_again_with_other_pixels_is_found_as_it_is_now(tmp_path: Path):
    made = made_map(tmp_path / "m", 30)
    name = made.frames[4].name
    made.remove([name])
    made.add([type(photo)(name, photo.pixels, photo.T_world_cam) for photo in photos(1, first=500)])
    assert_found(made)
    assert_found(made, descriptors_of(made)[-1:])


def test_to_add_a_few_reads_their_shards_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 40)
    opened: list[Path] = []
    real = Shard.from_file
    monkeypatch.setattr(Shard, "from_file", lambda path, size_hw: opened.append(path) or real(path, size_hw))
    monkeypatch.setattr(SqliteStore, "snapshot", lambda self: pytest.fail("all photos were read"))
    made.add(photos(6, first=100))
    assert len(opened) == 2  # of four photos and of two
    assert index_of(made).num_rows == 46
    assert index_of(made).revision == made.store.revision()


def test_to_add_a_few_is_as_much_work_for_the_database_in_a_large_map_as_in_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps: list[int] = []
    real = SqliteStore._connect

    def counting(self: SqliteStore, *arguments: Any, **named: Any) -> sqlite3.Connection:
        db = real(self, *arguments, **named)
        db.set_progress_handler(lambda: steps.append(0), 10)
        return db

    monkeypatch.setattr(SqliteStore, "_connect", counting)
    work = []
    for num_photos in (40, 800):
        made = made_map(tmp_path / f"of-{num_photos}", num_photos)
        steps.clear()
        made.add(photos(2, first=1000))
        work.append(len(steps))
    assert work[1] < 1.5 * work[0]


def test_opening_reads_no_shard_and_a_query_only_those_of_its_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made_map(tmp_path / "m", 40)
    read: list[Path] = []
    real = MappedFile.read
    monkeypatch.setattr(MappedFile, "read", lambda file: read.append(file.path) or real(file))
    opened = Map.open(tmp_path / "m")
    features = opened.features
    rows, _ = features.nearest(torch.randn(16), 2)
    assert read == []
    for row in rows:
        features.shards[features.shard_of[row]].jpeg(int(features.place[row]))
    assert {path.stem for path in read} == {opened.frames[row].shard for row in rows}


def test_a_cut_shard_of_a_large_map_is_told_when_it_is_needed(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    path = tmp_path / "m" / "shards" / f"{made.frames[0].shard}.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    features = Map.open(tmp_path / "m").features
    assert features.shards[features.shard_of[39]].jpeg(int(features.place[39]))
    with pytest.raises(DatasetError, match="found a damaged one: its header tells of more than it has"):
        features.shards[features.shard_of[0]].jpeg(int(features.place[0]))
    assert made.frames[0].name in made.verify().affected_frames


def test_a_writer_that_ended_before_its_index_is_caught_up_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 40)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "tend", lambda self, progress=None, anew=False: None)  # as if it had been killed
        made.add(photos(3, first=100))
        made.remove([made.frames[0].name, made.frames[20].name])
        assert index_of(made).num_rows == 40
        assert_found(made)  # a reader puts up with it
    assert index_of(made).num_rows == 40
    made.add(photos(2, first=200))
    index = index_of(made)
    assert (index.num_rows, len(index), index.revision) == (45, 43, made.store.revision())
    assert_found(made)


def test_a_reader_of_an_index_far_behind_brings_it_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 40)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "tend", lambda self, progress=None, anew=False: None)
        made.add(photos(30, first=100))
    assert_found(Map.open(tmp_path / "m"))
    assert (index_of(made).num_rows, index_of(made).num_graph_rows) == (70, 70)


def test_a_reader_of_an_older_map_does_not_find_what_came_later(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    reader = Map.open(tmp_path / "m")
    assert len(reader.snapshot.frames) == 40
    made.add(photos(5, first=100))
    assert_found(reader, torch.cat([descriptors_of(reader)[:3], descriptors_of(made)[-3:]]))


def test_a_map_restored_from_an_older_copy_and_changed_since_is_not_misled(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    older = (tmp_path / "m" / "map.sqlite").read_bytes()
    made.add(photos(4, first=100))
    (tmp_path / "m" / "map.sqlite").write_bytes(older)
    restored = Map.open(tmp_path / "m", network=no_network())
    assert_found(restored)
    restored.add(photos(4, first=300))  # a change of the same number, and as many photos
    assert_found(restored)
    restored.add(photos(4, first=400))
    assert_found(restored)


def test_a_map_that_is_compacted_to_few_photos_has_no_index_any_more(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    made.remove([frame.name for frame in made.frames[:20]])
    assert made.features.finder is None
    assert (tmp_path / "m" / INDEX).exists()  # photos may come back
    made.compact()
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"map.sqlite", "shards", LOCK}
    made.add(photos(10, first=100))
    assert_found(made)


def test_an_index_of_photos_that_are_mostly_gone_is_made_anew(tmp_path: Path):
    made = made_map(tmp_path / "m", 60)
    made.remove([frame.name for frame in made.frames[:34]])
    assert index_of(made).num_rows == 26
    assert_found(made)


@pytest.mark.parametrize("name", ["index.json", "descriptors.f16", "keys.i64"])
def test_an_index_that_cannot_be_read_is_made_anew_and_the_map_is_whole(tmp_path: Path, name: str):
    made = made_map(tmp_path / "m", 40)
    path = tmp_path / "m" / INDEX / name
    os.truncate(path, path.stat().st_size // 2)
    (damage,) = made.verify().damages
    assert damage.file == INDEX
    assert "compact" in damage.what
    assert_found(Map.open(tmp_path / "m"))
    assert made.verify().is_whole


def test_verify_names_photos_whose_descriptors_are_damaged_in_the_index(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    path = tmp_path / "m" / INDEX / "descriptors.f16"
    data = bytearray(path.read_bytes())
    data[5 * len(data) // 40 + 3] ^= 16
    path.write_bytes(data)
    report = made.verify()
    assert [damage.file for damage in report.damages] == ["index/descriptors.f16"]
    assert report.affected_frames == (made.frames[5].name,)
    made.compact()
    assert made.verify().is_whole


def cannot_be_locked(folder: Path) -> Callable[[], object]:
    """As on a disk that can only be read."""
    (folder / LOCK).unlink()
    (folder / LOCK).mkdir()
    return (folder / LOCK).rmdir


def test_where_nothing_can_be_written_photos_are_found_all_the_same(tmp_path: Path):
    made = made_map(tmp_path / "m", 40)
    release = cannot_be_locked(tmp_path / "m")
    made.add(photos(30, first=100))
    assert index_of(made).num_rows == 40
    assert_found(made)
    (tmp_path / "m" / INDEX / "index.json").unlink()
    made.refresh()
    assert made.features.finder is None  # all are compared then
    assert made.features.nearest(descriptors_of(made)[50], 1)[0] == [50]
    release()
    made.refresh()
    assert_found(made)


def test_two_who_tend_the_index_at_once_do_not_meet(tmp_path: Path):
    import fcntl

    made = made_map(tmp_path / "m", 40)
    with (tmp_path / "m" / LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.add(photos(5, first=100))
        assert index_of(made).num_rows == 40
        assert_found(made)
    made.add(photos(1, first=200))
    assert index_of(made).num_rows == 46


def test_a_disk_that_is_full_for_the_index_alone_loses_no_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 40)

    def no_space(self: StoredIndex, *arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StoredIndex, "add", no_space)
        made.add(photos(5, first=100))
        assert len(made) == 45
        assert_found(made)
    assert made.verify().is_whole


def test_without_faiss_all_photos_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finding, "has_faiss", lambda: False)
    made = made_map(tmp_path / "m", 40)
    assert made.features.finder is None
    assert not (tmp_path / "m" / INDEX).exists()
    assert made.features.nearest(descriptors_of(made)[7], 1)[0] == [7]


def test_an_index_knows_a_photo_by_its_name_and_its_data(tmp_path: Path):
    made = made_map(tmp_path / "m", 3)
    made.add(photos(3, prefix="again/"))
    keys = finding._keys(made.frames)
    assert len(set(keys.tolist())) == 6
    assert len({frame.data_sha256 for frame in made}) == 3
