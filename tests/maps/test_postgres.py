"""A map in PostgreSQL is the map that it would be in a folder, for many readers and writers at once.

The server is a real one. Its user `guest` needs a password, which no message may repeat.
"""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from made_maps import contents, descriptors_of, generated_features, made_map, no_network, photos
from numpy.testing import assert_allclose
from postgres_server import PASSWORD, Server

from relograph.errors import DatasetError, RelographError
from relograph.geometry import Pose
from relograph.maps import Map, Similarity, postgres_store, tables
from relograph.maps.places import PostgresAddress
from relograph.maps.postgres_store import PostgresStore
from relograph.maps.shards import AnyShard
from relograph.retrieval import ExactIndex, stored_index

pytestmark = pytest.mark.usefixtures("generated")


@pytest.fixture
def address(server: Server) -> str:
    return server.new_database()


def run(address: str, sql: str, *values: object) -> None:
    with psycopg.connect(address, autocommit=True, options="-c search_path=relograph,public") as db:
        db.execute(sql, values)


def told(attempt: Callable[[], object]) -> str:
    """The one line of an attempt that fails."""
    with pytest.raises(RelographError) as caught:
        attempt()
    line = str(caught.value)
    assert "\n" not in line
    assert PASSWORD not in line
    return line


def connections(server: Server, address: str) -> list[tuple[object, ...]]:
    name = address.partition("?")[0].rpartition("/")[2]
    return server.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()")


def cut_connections(server: Server, address: str) -> None:
    for (pid,) in connections(server, address):
        server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")


# The same map


@pytest.mark.parametrize("options", [{}, {"precision": "int8"}, {"levels": ()}])
def test_a_map_goes_to_the_server_and_back_frame_for_frame(address: str, tmp_path: Path, options: dict[str, object]):
    made = made_map(tmp_path / "here", 11, **options)
    made.add(photos(2, prefix="again/"))  # the same photos under other names
    made.remove([f"walk/{i:04d}.png" for i in (1, 5, 6)])
    there = made.copy(address)
    back = Map.open(address).copy(tmp_path / "back")
    here = Map.open(tmp_path / "here")
    for copy in (there, back):
        assert copy.verify() == here.verify()
        assert copy.settings == here.settings
        assert copy.changes()[: len(here.changes())] == here.changes()  # with all that it tells of the photos' origin
        assert copy.changes()[-1].kind == "copy"
        assert [frame.change for frame in copy] == [frame.change for frame in here]
        if not options.get("levels", True):
            assert [copy.jpeg(frame) for frame in copy] == [here.jpeg(frame) for frame in here]
        else:
            assert contents(copy) == contents(here)
        for one, other in zip(copy, here, strict=True):
            assert (one.name, one.quat_wxyz, one.cam_center_world) == (
                other.name,
                other.quat_wxyz,
                other.cam_center_world,
            )
            assert (one.data_sha256, one.photo_sha256) == (other.data_sha256, other.photo_sha256)
    assert there.frames == back.frames  # with the same shards
    there.add(photos(1, first=50), network=no_network())
    assert there.verify().is_whole


def test_a_copy_that_fails_leaves_nothing_and_can_be_made_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = made_map(tmp_path / "m", 9)
    put_shard = tables.TableChange.put_shard

    def fail_at_the_second(self: tables.TableChange, shard: AnyShard) -> str:
        if self._db.execute("SELECT count(*) FROM shards").fetchone()[0] == 1:
            raise DatasetError("the disk is full")
        return put_shard(self, shard)

    for target in (address, tmp_path / "copy"):
        with monkeypatch.context() as patch:
            patch.setattr(tables.TableChange, "put_shard", fail_at_the_second)
            assert told(lambda target=target: made.copy(target)) == "the disk is full"
        assert "expected a map, found" in told(lambda target=target: Map.open(target))
        assert contents(made.copy(target)) == contents(made)


def test_every_change_is_the_same_in_a_folder_and_in_a_database(address: str, tmp_path: Path):
    results = []
    for place, aside in ((address, tmp_path / "a"), (str(tmp_path / "m"), tmp_path / "b")):
        some = made_map(place, 20)
        some.remove([f"walk/{i:04d}.png" for i in range(20) if i % 4 and i < 16])
        some.compact()
        some.merge(made_map(aside, 5), Similarity(Pose.from_axis_angle([0.1, 0.2, 0.3], [4.0, 5.0, 6.0])), prefix="b/")
        some.move(Similarity(Pose.from_axis_angle([0.3, 0.1, 0.2], [1.0, 1.0, 1.0]), scale=2.0))
        gone = some.compact(10)
        assert some.verify().is_whole
        results.append((some.frames, contents(some), gone.distance_m.tolist(), [c.kind for c in some.changes()]))
    assert results[0] == results[1]


def test_no_name_reaches_the_server_as_sql(address: str):
    hostile = "'; DROP SCHEMA relograph CASCADE; -- %s ?.png"
    some = made_map(address, 1)
    some.add([photo.__class__(hostile, photo.pixels, photo.T_world_cam) for photo in photos(1, first=8)])
    assert hostile in some
    some.remove([hostile])
    assert len(some) == 1


# Readers and writers


def test_a_reader_keeps_what_it_has_read_and_leaves_no_connection(server: Server, address: str):
    some = made_map(address, 8)
    reader = Map.open(address)
    before = contents(reader)
    other = Map.open(address)
    features = other.features  # read, but no photo of it yet
    some.remove([frame.name for frame in some.frames[:4]])
    other_names = dict(zip(features.names, range(8), strict=True))
    assert other.jpeg(some.frames[0]) == some.jpeg(some.frames[0])
    for shard in features.shards:
        assert shard.stored([0]).parts[0].isfinite().all()
    assert len(other_names) == len(before) == 8
    reader.refresh()
    assert contents(reader) == {name: value for name, value in before.items() if name >= "walk/0004.png"}
    del features, shard
    for one in (some, reader, other):
        one.refresh()
    for _ in range(200):  # a server takes a moment to see that somebody has left
        if not connections(server, address):
            return
        time.sleep(0.05)
    pytest.fail("a reader that is gone has left its connection")


def test_a_second_writer_waits_and_then_fails_while_readers_go_on(address: str):
    some = made_map(address, 4)
    impatient = Map(PostgresStore.open(PostgresAddress(address), wait_s=0.2), no_network())
    with some.store.change("test", {}) as change:
        change.remove(["walk/0000.png"])
        assert "found another process changing it" in told(lambda: impatient.remove(["walk/0001.png"]))
        assert len(Map.open(address).features) == 4  # what is not committed is not seen
    impatient.remove(["walk/0001.png"])
    assert [frame.name for frame in Map.open(address)] == ["walk/0002.png", "walk/0003.png"]


def test_two_writers_at_once_lose_nothing(address: str):
    made_map(address, 2)

    def write(first: int) -> None:
        Map.open(address, network=no_network()).add(photos(16, first=first))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, (100, 200)))
    some = Map.open(address)
    assert len(contents(some)) == 34
    assert some.verify().is_whole


# What goes wrong


def test_a_connection_that_is_lost_in_a_change_leaves_the_map_as_it_was(server: Server, address: str):
    some = made_map(address, 6)
    before = contents(some)

    def lose() -> None:
        with some.store.change("test", {}) as change:
            change.remove(["walk/0000.png"])
            cut_connections(server, address)
            change.remove(["walk/0001.png"])

    assert "found the connection lost" in told(lose)
    assert contents(some) == before
    some.remove(["walk/0000.png"])  # the lock is free
    assert some.verify().is_whole


def test_a_reader_goes_on_after_its_connection_was_lost(server: Server, address: str):
    features = made_map(address, 6).features
    cut_connections(server, address)
    assert features.shards[1].stored([0]).parts[0].isfinite().all()


def test_no_server_a_wrong_password_and_no_map_are_told_in_one_line(
    server: Server, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert "expected a PostgreSQL server that lets us in, found: " in told(
        lambda: Map.open(server.as_guest(f"postgresql://@/map?host={tmp_path}", PASSWORD))
    )
    wrong = server.as_guest(address, "wrong")
    assert "password authentication failed" in told(lambda: Map.open(wrong))
    assert "expected an address like postgresql://" in told(lambda: Map.open(f"postgresql://ada:{PASSWORD}@host/map"))
    assert "expected a map, found a database without one" in told(lambda: Map.open(address))
    with monkeypatch.context() as patch:
        patch.setattr(postgres_store, "VECTOR_EXTENSION", "relograph_wishes")
        assert 'expected a server with pgvector, found: extension "relograph_wishes" is not' in told(
            lambda: made_map(address, 1)
        )
    server.execute("CREATE SCHEMA relograph", address)
    assert "found another program's schema" in told(lambda: made_map(address, 1))
    server.execute("DROP SCHEMA relograph", address)
    made_map(address, 1)
    assert "expected no map, found one of 1 photos" in told(lambda: made_map(address, 1))


def test_a_user_who_may_only_read_is_told_so(server: Server, address: str):
    made_map(address, 2)
    name = f"reader_{address.partition('?')[0].rpartition('/')[2]}"
    server.execute(f"CREATE USER {name}")
    server.execute(f"GRANT USAGE ON SCHEMA relograph TO {name}", address)
    server.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA relograph TO {name}", address)
    reader = Map.open(address.replace("postgres:@", f"{name}@"), network=no_network())
    assert len(contents(reader)) == 2
    assert "can only be read" in told(lambda: reader.remove(["walk/0000.png"]))
    assert len(contents(reader)) == 2


def test_no_password_is_kept_or_shown(server: Server, address: str, tmp_path: Path):
    secret = server.as_guest(address, PASSWORD)
    made_map(secret, 2)
    some = Map.open(secret)
    assert PASSWORD not in repr(some.store.address) + some.store.where
    back = some.copy(tmp_path / "back")
    assert back.changes()[-1].about["from"] == some.store.where
    for file in (tmp_path / "back").rglob("map.sqlite*"):
        assert PASSWORD.encode() not in file.read_bytes()
        assert b"s3cr3t" not in file.read_bytes()


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE photos SET features = set_bit(features, 8 * length(features) - 20, 1 - get_bit(features, 8 * length("
        "features) - 20)) WHERE shard_id = 2 AND shard_row = 1",
        "UPDATE photos SET features = substring(features from 1 for 100) WHERE shard_id = 2 AND shard_row = 1",
        "UPDATE photos SET jpeg = set_bit(jpeg, 99, 1 - get_bit(jpeg, 99)) WHERE shard_id = 2 AND shard_row = 1",
        "UPDATE photos SET descriptor = (SELECT descriptor FROM photos WHERE shard_id = 1 AND shard_row = 0)"
        " WHERE shard_id = 2 AND shard_row = 1",
        "DELETE FROM photos WHERE shard_id = 2 AND shard_row = 1",
        "UPDATE frames SET x = x + 1e-12 WHERE name = 'walk/0005.png'",
    ],
)
def test_what_is_not_as_it_was_written_is_found_by_name(address: str, damage: str):
    some = made_map(address, 8)
    run(address, damage)
    assert some.verify().affected_frames == ("walk/0005.png",)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM frames WHERE name = 'walk/0003.png'",
        "UPDATE settings SET value = replace(value, 'float16', 'int8')",
        "DELETE FROM changes WHERE id = (SELECT max(id) FROM changes) - 1",
    ],
)
def test_lost_and_changed_rows_are_found(address: str, damage: str):
    some = made_map(address, 8)
    run(address, "ALTER TABLE frames DROP CONSTRAINT frames_change_id_fkey")
    run(address, damage)
    assert not some.verify().is_whole


# Room


def test_compacting_gives_the_servers_room_back_unless_somebody_reads(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_store, "ROOM_WAIT", "100ms")
    made = made_map(address, 40)
    made.remove([f"walk/{i:04d}.png" for i in range(30)])
    before, size = contents(made), sum(made.store.num_bytes().values())
    with psycopg.connect(address, options="-c search_path=relograph,public") as reader:
        reader.execute("SELECT count(*) FROM photos")
        made.compact()  # is done all the same
    assert sum(made.store.num_bytes().values()) > size / 2
    made.compact()
    assert sum(made.store.num_bytes().values()) < size / 2
    assert contents(made) == before
    assert made.verify().is_whole


# Versions


VERSION_1 = Path(__file__).parent / "version_1" / "postgres.sql"
"""What pg_dump said of a map that the first relograph with maps in PostgreSQL made, one of whose three photos was
removed."""


@pytest.fixture
def old(server: Server, address: str) -> str:
    server.execute("CREATE EXTENSION vector SCHEMA public", address)
    server.execute(VERSION_1.read_text(), address)
    return address


def version_of(server: Server, address: str) -> object:
    ((version,),) = server.execute("SELECT version FROM relograph.map_version", address)
    return version


def test_a_map_of_version_1_is_opened_verified_and_goes_on(server: Server, old: str, tmp_path: Path):
    assert version_of(server, old) == 1
    some = Map.open(old, network=no_network())
    assert version_of(server, old) == len(postgres_store.MIGRATIONS)
    assert [frame.name for frame in some] == ["0.png", "2.png"]
    assert some["2.png"].cam_center_world == (0.2, 0.0, 1 / 3)
    assert some.settings.precision == "int8"
    assert some.verify().is_whole
    assert [change.kind for change in some.changes()] == ["create", "add", "add", "remove"]
    assert contents(some.copy(tmp_path / "here")) == contents(some)
    some.add(photos(2))
    some.compact(3)
    assert len(some) == 3
    assert some.verify().is_whole


def test_an_older_schema_is_brought_up_to_date_and_a_newer_one_refused(
    server: Server, old: str, monkeypatch: pytest.MonkeyPatch
):
    before = contents(Map.open(old))
    newest = len(postgres_store.MIGRATIONS)
    for newer, message in (
        ((*postgres_store.MIGRATIONS, "ALTER TABLE frames ADD COLUMN weather text; SELECT 1 / 0"), "division by zero"),
        ((*postgres_store.MIGRATIONS, "ALTER TABLE frames ADD COLUMN weather text"), None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(postgres_store, "MIGRATIONS", newer)
            if message is not None:
                assert message in told(lambda: Map.open(old))  # and nothing of it is there for the next
                assert version_of(server, old) == newest
            else:
                assert contents(Map.open(old)) == before
                assert Map.open(old).verify().is_whole
    assert f"version {newest} at most, found version {newest + 1}" in told(lambda: Map.open(old))


# Finding photos


def test_photos_of_a_large_map_are_found_by_the_server_as_they_would_be_here(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored_index, "EXACT_UP_TO", 30)
    some = made_map(address, 30)
    assert some.store.finder(some.snapshot) is None
    assert not graph_of(address)
    some.add(photos(10, first=30))
    some.add(photos(3, prefix="again/"))
    some.remove([f"walk/{i:04d}.png" for i in (7, 8, 20)])
    snapshot, exact = some.snapshot, ExactIndex(descriptors_of(some))
    assert graph_of(address)
    finder = some.store.finder(snapshot)
    some.remove(["walk/0030.png"])  # and is found still by whoever read the map before
    for number in (0, 7, 30):
        _, descriptor = generated_features([hashlib.sha256(photos(1, first=number)[0].pixels.tobytes()).hexdigest()])
        expected = exact.search(descriptor.float(), 12)
        places, similarity = finder.nearest(descriptor[0].float(), 12)
        assert places == expected.row[0].tolist()
        assert_allclose(similarity, expected.similarity[0], rtol=1e-6)
    places, similarity = finder.nearest(descriptor[0].float(), 1000)
    assert sorted(places) == list(range(len(snapshot.frames)))
    assert (similarity.diff() <= 0).all()


def graph_of(address: str) -> bool:
    """Whether there is one, and the question that is put to the server goes through it."""
    with psycopg.connect(address, options="-c search_path=relograph,public -c enable_seqscan=off") as db:
        sql = postgres_store._propose_sql(16).replace("?", "%s")
        plan = "\n".join(line for (line,) in db.execute(f"EXPLAIN {sql}", [str([0.25] * 16), 4]))
    return f"Index Scan using {postgres_store.GRAPH} on photos" in plan
