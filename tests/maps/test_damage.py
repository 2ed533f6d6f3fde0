"""Whatever happens to the disk, a map is as it was, and what is not as it was written is found."""

import errno
import os
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_maps import contents, made_map, no_network, photos

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Pose
from relograph.localization.photos import PhotoInMemory
from relograph.maps import Map, SqliteStore, durable_files, sqlite_store
from relograph.maps.adding import encode_photos
from relograph.maps.shards import Shard

pytestmark = pytest.mark.usefixtures("generated")


def flip_bit(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def shard_files(made: Map) -> set[str]:
    return {path.name for path in Path(made.store.where, "shards").iterdir()}


def one_shard(made: Map, some: list[PhotoInMemory]) -> Shard:
    """What the map would keep of them."""
    (encoded,) = encode_photos(((photo, None) for photo in some), made.network.model, made.settings)
    (shard,) = encoded.shards
    return shard


# Damage


def test_a_flipped_bit_in_a_shard_is_found_and_the_photo_named(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    frame = made.frames[5]
    shard = tmp_path / "m" / "shards" / f"{frame.shard}.safetensors"
    data, part = shard.read_bytes(), made.jpeg(frame)
    flip_bit(shard, data.index(part) + len(part) // 2)
    report = Map.open(tmp_path / "m").verify()
    assert report.affected_frames == (frame.name,)
    assert [damage.file for damage in report.damages] == [f"shards/{shard.name}"]


@pytest.mark.parametrize("place", [0.0, 0.01, 0.2, 0.5, 0.9, 0.9999])
def test_no_bit_of_a_shard_flips_unseen(tmp_path: Path, place: float):
    made = made_map(tmp_path / "m", 4)
    (shard,) = (tmp_path / "m" / "shards").iterdir()
    flip_bit(shard, int(place * shard.stat().st_size), 3)
    report = made.verify()
    assert not report.is_whole
    assert set(report.affected_frames) <= {frame.name for frame in made}
    assert report.affected_frames


def test_a_flipped_bit_in_the_database_is_found_unless_nothing_is_kept_there(tmp_path: Path):
    expected = contents(made_map(tmp_path / "m", 8))
    database = tmp_path / "m" / "map.sqlite"
    whole = database.read_bytes()
    rng = np.random.default_rng(0)
    num_found = num_named = 0
    for byte in rng.integers(0, len(whole), 60):
        flip_bit(database, int(byte), int(rng.integers(8)))
        try:
            damaged = Map.open(tmp_path / "m")
            report = damaged.verify()
            is_found = not report.is_whole
            num_named += bool(report.affected_frames)
        except DatasetError:  # too damaged to be opened
            is_found = True
        if not is_found:
            assert contents(damaged) == expected
        num_found += is_found
        for path in tmp_path.glob("m/map.sqlite*"):
            path.unlink()
        database.write_bytes(whole)
    assert num_found > 5
    assert num_named >= 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE frames SET x = x + 1e-12 WHERE name = 'walk/0003.png'",
        "UPDATE frames SET shard_row = 0 WHERE name = 'walk/0003.png'",
        "UPDATE frames SET photo_sha256 = 'no' WHERE name = 'walk/0003.png'",
    ],
)
def test_a_changed_row_is_found_by_name(tmp_path: Path, statement: str):
    made = made_map(tmp_path / "m", 8)
    with sqlite3.connect(tmp_path / "m" / "map.sqlite") as db:
        db.execute(statement)
    db.close()
    assert made.verify().affected_frames == ("walk/0003.png",)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM frames WHERE name = 'walk/0003.png'",
        "UPDATE changes SET num_frames = 7 WHERE id = 2",
        "UPDATE settings SET value = replace(value, 'float16', 'int8')",
        "DELETE FROM changes WHERE id = (SELECT max(id) FROM changes)",
        "UPDATE shards SET num_bytes = num_bytes + 4096",
    ],
)
def test_a_lost_row_is_found(tmp_path: Path, statement: str):
    made = made_map(tmp_path / "m", 8)
    db = sqlite3.connect(tmp_path / "m" / "map.sqlite", isolation_level=None)
    db.execute(statement)
    db.close()
    assert not made.verify().is_whole


def test_damaged_settings_name_all_photos_and_hide_no_other_damage(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    lost = f"shards/{made.frames[0].shard}.safetensors"
    (tmp_path / "m" / lost).unlink()
    db = sqlite3.connect(tmp_path / "m" / "map.sqlite", isolation_level=None)
    db.execute("UPDATE settings SET value = replace(value, 'float16', 'int8')")
    db.close()
    report = made.verify()
    assert report.num_frames == 8
    assert {damage.file: len(damage.frames) for damage in report.damages} == {"map.sqlite": 8, lost: 4}


def test_lost_shards_name_their_photos_and_garbage_is_listed_and_swept(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    shards = tmp_path / "m" / "shards"
    leftovers = {f"{'0' * 64}.safetensors", f"{'1' * 64}.safetensors.partial-0123abcd"}
    for name in leftovers:
        (shards / name).write_bytes(b"cut off")
    (shards / "mine.txt").touch()
    report = made.verify()
    assert report.is_whole
    assert set(report.garbage) == {f"shards/{name}" for name in leftovers}
    Map.open(tmp_path / "m", network=no_network()).add(photos(1, first=8))
    assert not leftovers & {path.name for path in shards.iterdir()}
    assert (shards / "mine.txt").exists()  # what is not ours stays
    (shards / f"{made.frames[0].shard}.safetensors").unlink()
    report = made.verify()
    assert report.affected_frames == tuple(f"walk/{i:04d}.png" for i in range(4))
    with pytest.raises(DatasetError, match="expected a shard of the map, found none"):
        Map.open(tmp_path / "m").features  # noqa: B018


def test_a_shard_that_was_cut_is_refused_when_it_is_read(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    (shard,) = (tmp_path / "m" / "shards").iterdir()
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(DatasetError, match="found a damaged one"):
        Map.open(tmp_path / "m").features  # noqa: B018
    assert len(made.verify().affected_frames) == 4


# Full and read-only disks


def test_a_disk_that_is_full_when_a_shard_is_written_leaves_the_map_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = made_map(tmp_path / "m", 6)
    before = contents(made)

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(durable_files.os, "fsync", no_space)
        with pytest.raises(DatasetError, match="No space left on device") as caught:
            made.add(photos(4, first=6))
    assert "\n" not in str(caught.value)
    assert contents(made) == before
    report = made.verify()
    assert report.is_whole
    assert not report.garbage
    made.add(photos(4, first=6))
    assert len(made) == 10


def test_nothing_that_was_written_ahead_is_left_when_a_photo_is_bad(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    (bad,) = photos(1, first=11)
    bad = replace(bad, T_world_cam=Pose(bad.T_world_cam.R, bad.T_world_cam.t * float("nan")))
    with pytest.raises(GeometryError, match="expected a pose of finite numbers"):
        made.add([*photos(7, first=4), bad, *photos(8, first=12)])
    assert len(made) == 8  # of the next four photos three were written already
    assert shard_files(made) == {f"{frame.shard}.safetensors" for frame in made}


def test_a_shard_is_written_ahead_once_however_often_its_photos_come(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    before = shard_files(made)
    known, new = one_shard(made, photos(4)), one_shard(made, photos(4, first=4))
    with made.store.writing_ahead() as write:
        for shard in (known, new, new):
            write(shard)
        (ahead,) = shard_files(made) - before
        assert ahead.startswith(f"{new.sha256}.safetensors.partial-")
    assert shard_files(made) == before


@contextmanager
def small_disk(folder: Path, kilobytes: int):
    """A file system of its own in `folder`, where the tests run with the rights to mount one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no rights to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_really_fills_up_leaves_the_map_as_it_was(tmp_path: Path):
    with small_disk(tmp_path / "disk", 900):
        ballast = tmp_path / "disk" / "ballast"
        ballast.write_bytes(bytes(200_000))
        made = made_map(tmp_path / "disk" / "m", 4)
        with pytest.raises(DatasetError) as caught:
            made.add(photos(100, first=4))
        assert "\n" not in str(caught.value)
        assert "The map is as it was" in str(caught.value)
        assert len(made) >= 4
        assert len(contents(made)) == len(made)
        assert made.verify().is_whole
        ballast.unlink()
        made.remove([frame.name for frame in made.frames[4:]])
        made.add(photos(2, first=4))
        assert made.verify().is_whole
        assert len(made) == 6


def test_a_read_only_disk_is_read_and_not_written(tmp_path: Path):
    with small_disk(tmp_path / "disk", 4000):
        made = made_map(tmp_path / "disk" / "m", 4)
        before = contents(made)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        reader = Map.open(tmp_path / "disk" / "m", network=no_network())
        assert contents(reader) == before
        assert reader.verify().is_whole
        for change in (
            lambda: reader.add(photos(1, first=9)),
            lambda: reader.remove(["walk/0000.png"]),
            reader.compact,
        ):
            with pytest.raises(DatasetError, match=r"can only be read|unable to open|Read-only") as caught:
                change()
            assert "\n" not in str(caught.value)
        with pytest.raises(DatasetError, match="Read-only file system"):
            made_map(tmp_path / "disk" / "other", 1)
        assert contents(reader) == before


@pytest.mark.usefixtures("not_allowed_to_write")
@pytest.mark.parametrize("num_changes_at_once", [1, 2])
def test_who_may_not_write_reads_a_map_that_another_changes(tmp_path: Path, num_changes_at_once: int):
    made = made_map(tmp_path / "m", 8)
    reader = SqliteStore.open(tmp_path / "m")
    changes = iter([lambda: made.remove(["walk/0000.png", "walk/0001.png"]), made.compact])

    def read(db: sqlite3.Connection) -> list[str]:
        some = [name for (name,) in db.execute("SELECT name FROM frames ORDER BY name LIMIT 1")]
        for change in islice(changes, num_changes_at_once):
            change()
        return some + [name for (name,) in db.execute("SELECT name FROM frames ORDER BY name LIMIT -1 OFFSET 1")]

    assert reader._read(read) == [f"walk/{i:04d}.png" for i in range(2, 8)]


@pytest.mark.usefixtures("not_allowed_to_write")
def test_a_log_may_go_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = made_map(tmp_path / "m", 4)
    (tmp_path / "m" / "map.sqlite-wal").touch()
    stat = Path.stat

    def gone_by_then(path: Path, **named: Any) -> os.stat_result:
        if path.name.endswith("-wal"):
            path.unlink(missing_ok=True)
        return stat(path, **named)

    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "stat", gone_by_then)
    assert made.store.num_frames() == 4


@pytest.fixture
def not_allowed_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is done as by a user who may not write to the map's folder; root may write everywhere."""
    monkeypatch.setattr(sqlite_store.os, "access", lambda path, mode: False)


# Two writers


def test_a_second_writer_waits_and_then_fails_while_readers_go_on(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    impatient = Map(SqliteStore.open(tmp_path / "m", wait_s=0.05), no_network())
    with made.store.change("test", {}) as change:
        change.remove(["walk/0000.png"])
        with pytest.raises(DatasetError, match="found another process changing it") as caught:
            impatient.remove(["walk/0001.png"])
        assert "\n" not in str(caught.value)
        assert len(Map.open(tmp_path / "m").features) == 4  # what is not committed is not seen
    impatient.remove(["walk/0001.png"])
    assert [frame.name for frame in Map.open(tmp_path / "m")] == ["walk/0002.png", "walk/0003.png"]


def test_two_writers_at_once_lose_nothing(tmp_path: Path):
    made_map(tmp_path / "m", 2)

    def write(first: int) -> None:
        Map.open(tmp_path / "m", network=no_network()).add(photos(24, first=first))

    with ThreadPoolExecutor() as pool:  # SQLite's locks are between connections, and each has its own
        list(pool.map(write, (100, 200)))
    made = Map.open(tmp_path / "m")
    assert len(contents(made)) == 50
    assert made.verify().is_whole


def test_what_another_writer_sweeps_away_is_written_again(tmp_path: Path):
    made = made_map(tmp_path / "m", 4)
    before = shard_files(made)
    with made.store.writing_ahead() as write:
        new = ((photo, None) for photo in photos(4, first=4))
        encoded = list(encode_photos(new, made.network.model, made.settings, write=write))
        (ahead,) = shard_files(made) - before
        Map.open(tmp_path / "m", network=no_network()).add(photos(4, first=100))
        assert ahead not in shard_files(made)
        made.add_encoded(encoded, {})
    assert [frame.name for frame in made] == [photo.name for first in (0, 100, 4) for photo in photos(4, first=first)]
    report = made.verify()
    assert report.is_whole
    assert not report.garbage


def test_a_writer_does_not_sweep_away_what_it_is_writing_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shard = one_shard(made_map(tmp_path / "m", 4), photos(4, first=4))
    store = SqliteStore.open(tmp_path / "m")  # whose first change sweeps
    leftover = tmp_path / "m" / "shards" / f"{'1' * 64}.safetensors.partial-0123abcd"
    leftover.touch()
    fsync = os.fsync

    def change_meanwhile(descriptor: int) -> None:
        with store.change("test", {}):
            """Nothing but the sweep."""
        fsync(descriptor)

    with store.writing_ahead() as write:
        with monkeypatch.context() as patch:
            patch.setattr(durable_files.os, "fsync", change_meanwhile)
            write(shard)
        (ahead,) = tmp_path.glob("m/shards/*.partial-*")
        assert ahead.read_bytes() == shard.encode()


def test_a_change_that_fails_halfway_is_undone(tmp_path: Path):
    made = made_map(tmp_path / "m", 8)
    before = contents(made)
    some_shard = next(iter(made.shards(made.frames).values()))

    def fail_halfway() -> None:
        with made.store.change("test", {}) as change:
            change.remove(["walk/0000.png"])
            change.put_shard(some_shard.take([1, 2]))
            change.remove(["nowhere.png"])

    with pytest.raises(DatasetError, match="found none named"):
        fail_halfway()
    assert contents(made) == before
    assert not made.verify().garbage


def test_an_interrupt_after_the_commit_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As when somebody presses Ctrl-C while the disk writes: Python hears of it when all is done."""
    made = made_map(tmp_path / "m", 8)

    class Interrupted(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            done = super().execute(sql, *values)
            if sql == "COMMIT":
                raise KeyboardInterrupt
            return done

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
        with pytest.raises(KeyboardInterrupt):
            made.add(photos(4, first=8))
    after = Map.open(tmp_path / "m")
    assert len(after) == 12
    assert after.verify().is_whole


# Versions


def test_an_older_schema_is_brought_up_to_date_and_a_newer_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = contents(made_map(tmp_path / "m", 4))
    newer = (*sqlite_store.MIGRATIONS, "ALTER TABLE frames ADD COLUMN weather TEXT")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, "MIGRATIONS", newer)
        assert contents(Map.open(tmp_path / "m")) == before
        assert Map.open(tmp_path / "m").verify().is_whole
    with pytest.raises(DatasetError, match="version 2 at most, found version 3"):
        Map.open(tmp_path / "m")


def test_the_database_of_another_program_is_left_alone(tmp_path: Path):
    (tmp_path / "m").mkdir()
    with sqlite3.connect(tmp_path / "m" / "map.sqlite") as db:
        db.execute("CREATE TABLE diary (day TEXT)")
    db.close()
    for attempt in (lambda: Map.open(tmp_path / "m"), lambda: made_map(tmp_path / "m", 1)):
        with pytest.raises(DatasetError, match="found another program's"):
            attempt()
    (tmp_path / "m" / "map.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(DatasetError, match="so damaged that no photo in it can be named: file is not a database"):
        Map.open(tmp_path / "m")
