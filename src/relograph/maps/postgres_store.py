"""A map in a PostgreSQL database, which many hosts read and change at once.

A database holds one map, in the schema `relograph`. A photo is a row, with its features as bytea, because queries read
photos one by one. Descriptors are pgvector's halfvec: the half precision that they have, to the last bit.

A writer holds an advisory lock for as long as its transaction, so there is one at a time. Readers take no locks. What a
reader has begun to read stays readable because its transaction stays open, and with it the moment that it sees.
"""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor

from relograph.environment import installed_version
from relograph.errors import DatasetError, MissingExtraError
from relograph.maps.places import PostgresAddress
from relograph.maps.records import (
    Damage,
    MapFrame,
    MapSettings,
    Snapshot,
    VerifyReport,
    frames_by_shard,
)
from relograph.maps.shards import (
    DESCRIPTOR,
    JPEG,
    JPEG_END,
    AnyShard,
    MissingShardError,
    RemoteShard,
    Shard,
    damaged,
    joined,
)
from relograph.maps.store import WAIT_S, Fill, fill_nothing
from relograph.maps.tables import (
    DamagedRowError,
    Migration,
    Rows,
    TableChange,
    TableReader,
    check_rows,
    is_row_whole,
    last_change,
    migrate,
    shards_num_bytes,
)
from relograph.progress import SILENT, Progress
from relograph.retrieval import stored_index
from relograph.retrieval.index import unit_rows

if installed_version("psycopg") is None:
    raise MissingExtraError("psycopg", "postgres", "A map in PostgreSQL")
import psycopg
from psycopg import errors

SCHEMA = "relograph"
ROOM_WAIT = "2s"
"""How long to wait for readers with a table that is to be written anew, smaller: others wait behind."""
LOCK = 0x52474D50
"""The advisory lock of writers. Its number is free within the map's own database."""
VECTOR_EXTENSION = "vector"
CACHE_BYTES = 256 * 2**20
"""Of features that a reader keeps at hand: neighbouring frames of a video ask for the same references."""
_KEEP_ALIVE = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4"}
"""A writer whose host is gone without a word is given up after 50 seconds, and with it its lock."""
_PATIENCE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
"""With a server whose host is gone without a word: 25 seconds, unless the address says otherwise."""

MIGRATIONS: tuple[Migration, ...] = (
    """
    CREATE TABLE settings (
        id integer PRIMARY KEY CHECK (id = 1),
        value text NOT NULL,
        sha256 bytea NOT NULL
    );
    CREATE TABLE changes (
        id bigint PRIMARY KEY,
        kind text NOT NULL,
        at_utc text NOT NULL,
        about text NOT NULL,
        num_frames bigint NOT NULL,
        frames_xor bytea NOT NULL,
        sha256 bytea NOT NULL
    );
    CREATE TABLE cameras (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        line text NOT NULL UNIQUE
    );
    CREATE TABLE shards (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        sha256 text NOT NULL UNIQUE,
        num_bytes bigint NOT NULL,
        height integer NOT NULL,
        width integer NOT NULL
    );
    CREATE TABLE photos (
        shard_id bigint NOT NULL REFERENCES shards (id) ON DELETE CASCADE,
        shard_row integer NOT NULL,
        descriptor halfvec NOT NULL,
        jpeg bytea STORAGE EXTERNAL NOT NULL,
        features bytea STORAGE EXTERNAL NOT NULL,
        PRIMARY KEY (shard_id, shard_row)
    );
    CREATE TABLE frames (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        qw double precision NOT NULL, qx double precision NOT NULL,
        qy double precision NOT NULL, qz double precision NOT NULL,
        x double precision NOT NULL, y double precision NOT NULL, z double precision NOT NULL,
        photo_width integer NOT NULL,
        photo_height integer NOT NULL,
        camera_id bigint NOT NULL REFERENCES cameras (id),
        sequence text,
        timestamp_s double precision,
        photo_sha256 text NOT NULL,
        shard_id bigint NOT NULL REFERENCES shards (id),
        shard_row integer NOT NULL,
        data_sha256 text NOT NULL,
        change_id bigint NOT NULL REFERENCES changes (id) DEFERRABLE INITIALLY DEFERRED,
        sha256 bytea NOT NULL
    );
    CREATE INDEX frames_by_shard ON frames (shard_id, shard_row);
    """,
)
"""What brings a database from one schema version to the next, beginning with an empty one. EXTERNAL: features hardly
shrink, and trying to takes the server longer than writing them."""

_TABLES = "the database"
T = TypeVar("T")
GRAPH, GRAPH_MEMORY = "photos_by_descriptor", "512MB"
SEARCH_WIDTH, LARGEST_SEARCH_WIDTH = 200, 1000
"""Photos that are kept in sight while a query looks for its neighbours (ef_search); the most that pgvector takes."""
CANDIDATES_PER_NEIGHBOUR = 4
"""Of the graph for each neighbour that is wanted."""


class PostgresStore(TableReader):
    """A map in a database."""

    def __init__(self, address: PostgresAddress, *, wait_s: float = WAIT_S) -> None:
        """Where a map is or will be; `open` and `create` see to it that there is one."""
        self.address = address
        self._wait_s = wait_s

    @staticmethod
    def open(address: PostgresAddress, *, wait_s: float = WAIT_S) -> "PostgresStore":
        """The map that is there, brought up to date if its schema is an older one."""
        store = PostgresStore(address, wait_s=wait_s)
        version = store._read(lambda db: _schema_version(db, store.where))
        if version < len(MIGRATIONS):
            with store._writing() as db:
                _migrate(db, store.where)
        return store

    @staticmethod
    def create(
        address: PostgresAddress,
        settings: MapSettings,
        kind: str,
        about: dict[str, object],
        fill: Fill = fill_nothing,
        *,
        wait_s: float = WAIT_S,
    ) -> "PostgresStore":
        """A map in a database that has none yet."""
        store = PostgresStore(address, wait_s=wait_s)
        with store._writing() as db:
            if _schema_version(db, store.where, allow_empty=True):
                raise DatasetError(
                    f"{store.where}: expected no map, found one of {last_change(db)[1]:,} photos. "
                    "Add to it, or choose another database."
                )
            _migrate(db, store.where)
            change = _PostgresChange(db, kind, about)
            change.set_settings(settings)
            fill(change)
            change.finish()
        return store

    @property
    def where(self) -> str:
        return str(self.address)

    # Reading

    def shards(self, frames: Iterable[MapFrame]) -> dict[str, AnyShard]:
        return _Reader(self).shards({frame.shard: frame.size_hw for frame in frames})

    def finder(self, snapshot: Snapshot, progress: Progress = SILENT) -> "_Finder | None":
        """What finds frames of the snapshot in the server; None where they are so few that all are compared here."""
        if len(snapshot.frames) <= stored_index.EXACT_UP_TO:
            return None
        return _Finder(_Reader(self), snapshot.frames)

    def tend(self, progress: Progress = SILENT, *, anew: bool = False) -> None:
        """The server keeps its own graph in step; room is given back unless readers are in the way."""
        if not anew:
            return
        with suppress(DatasetError), self.clear_errors(), self._connect() as connection:
            connection.autocommit = True  # as no transaction may do it
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [ROOM_WAIT])
            for table in ("photos", "shards", "frames", "cameras"):
                connection.execute(f"VACUUM (FULL) {SCHEMA}.{table}")

    def num_bytes(self) -> dict[str, int]:
        with self._reading() as db:
            (everything,) = db.execute(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = ?::regnamespace"
                " AND relkind = 'r'",
                [SCHEMA],
            ).fetchone()
            shards = shards_num_bytes(db)
        return {"shards": shards, "database": max(0, int(everything) - shards)}

    # Changing

    @contextmanager
    def writing_ahead(self) -> Iterator[Callable[[Shard], None]]:
        yield lambda shard: None  # rows of a change that has not begun cannot be told from those that are lost

    @contextmanager
    def change(self, kind: str, about: dict[str, object]) -> Iterator["_PostgresChange"]:
        with self._writing() as db:
            _schema_version(db, self.where)
            change = _PostgresChange(db, kind, about)
            yield change
            change.finish()

    # Verifying

    def verify(self, progress: Progress = SILENT) -> VerifyReport:
        damages: list[Damage] = []
        frames: list[MapFrame] = []
        with self._reading() as db:
            try:
                damages += check_rows(db, _TABLES, frames)
            except (ValueError, TypeError) as error:
                everyone = tuple(str(frame.name) for frame in frames)
                damages.append(Damage(_TABLES, f"it cannot be read: {error}", everyone))
            with progress.task("verifying photos", total=len(frames)) as advance:
                for (sha256, size_hw), its_frames in frames_by_shard(frames).items():
                    damages += _verify_shard(db, sha256, size_hw, its_frames)
                    advance(len(its_frames))
        return VerifyReport(len(frames), tuple(damages), ())

    # Connections

    def _read(self, read: Callable[["_Database"], T]) -> T:
        with self._reading() as db:
            return read(db)

    @contextmanager
    def _reading(self) -> Iterator["_Database"]:
        """A read transaction, which sees the map as it is now whatever writers do meanwhile."""
        with self.clear_errors(), self.connect_to_read() as connection:
            yield _Database(connection)

    @contextmanager
    def _writing(self) -> Iterator["_Database"]:
        """A write transaction, which is committed at its end."""
        with self.clear_errors(), self._connect() as connection:
            # Not a moment, as for readers: that would begin before the lock is there and hide what the other did.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            db = _Database(connection)
            _set(db, search_path=f"{SCHEMA}, public", lock_timeout=f"{round(1000 * self._wait_s)}ms", **_KEEP_ALIVE)
            db.execute("SELECT pg_advisory_xact_lock(?)", [LOCK])
            _set(db, lock_timeout="0")
            yield db

    def connect_to_read(self) -> "psycopg.Connection[Any]":
        connection = self._connect()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        _set(_Database(connection), search_path=f"{SCHEMA}, public", idle_in_transaction_session_timeout="0")
        return connection

    def _connect(self) -> "psycopg.Connection[Any]":
        try:
            patience: dict[str, Any] = {
                name: value for name, value in _PATIENCE.items() if name not in self.address.uri
            }
            # Nothing is prepared: a pooler before the server may give every transaction another connection.
            return psycopg.connect(
                self.address.uri, connect_timeout=max(2, round(self._wait_s)), prepare_threshold=None, **patience
            )
        except (
            psycopg.ProgrammingError
        ):  # what cannot be read may be a password in the wrong place: nothing is repeated
            raise DatasetError(
                "expected an address like postgresql://USER@HOST/DATABASE, found one that cannot be read. Check it."
            ) from None
        except psycopg.OperationalError as error:
            raise DatasetError(
                f"{self.where}: expected a PostgreSQL server that lets us in, found: {self.address.clean(str(error))}. "
                "Check that it runs, the address, the user and the password."
            ) from None

    @contextmanager
    def clear_errors(self) -> Iterator[None]:
        """One line about what the server says; whatever was not committed is undone, and the map is as it was."""
        try:
            yield
        except psycopg.Error as error:
            raise DatasetError(f"{self.where}: {self.address.clean(_explain(error))}") from None
        except DamagedRowError as error:
            raise DatasetError(
                f"{self.where}: expected a whole map, found it damaged: {error}. Run `relograph map verify`, and "
                "restore it from a copy."
            ) from error


class _Database:
    """A transaction in which question marks stand for values, as in SQLite."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows:
        return self._connection.execute(_with_percent(sql), values, binary=True)

    @contextmanager
    def part(self) -> Iterator[None]:
        """Within it a failure leaves the rest of the transaction as it is."""
        with self._connection.transaction():
            yield

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_with_percent(sql), rows)


def _set(db: _Database, **settings: str) -> None:
    """Settings of the server that hold for this transaction."""
    calls = ", ".join(f"set_config('{name}', ?, true)" for name in settings)
    db.execute(f"SELECT {calls}", list(settings.values()))


def _with_percent(sql: str) -> str:
    return sql.replace("?", "%s")


class _PostgresChange(TableChange):
    """A change in the making, whose shards are rows."""

    def _keep(self, shard: Shard) -> None:
        shard_id = self._insert_shard(shard, shard.num_bytes)
        texts = [_halfvec(descriptor) for descriptor in shard.descriptors]
        self._db.executemany(
            "INSERT INTO photos (shard_id, shard_row, descriptor, jpeg, features) VALUES (?, ?, ?::halfvec, ?, ?)",
            ((shard_id, row, text, shard.jpeg(row), _features(shard, row)) for row, text in enumerate(texts)),
        )

    def finish(self) -> None:
        super().finish()
        if self._num_frames > stored_index.EXACT_UP_TO:
            self._index_descriptors()

    def _index_descriptors(self) -> None:
        """Makes pgvector's graph over all descriptors, once; from then on the server grows it with every photo."""
        if self._db.execute("SELECT to_regclass(?)::text", [GRAPH]).fetchone()[0] is None:
            (dimension,) = self._db.execute("SELECT vector_dims(descriptor) FROM photos LIMIT 1").fetchone()
            self._db.execute("SELECT set_config('maintenance_work_mem', ?, true)", [GRAPH_MEMORY])
            self._db.execute(
                f"CREATE INDEX {GRAPH} ON photos USING hnsw ((descriptor::halfvec({dimension})) halfvec_ip_ops)"
            )


# Photos


def _halfvec(descriptor: Float[Tensor, "D"]) -> str:
    assert descriptor.dtype == torch.float16, "descriptors are kept in half precision"
    return str(descriptor.tolist())


def _features(shard: Shard, row: int) -> bytes:
    """All of a photo but for its descriptor and its JPEG, as safetensors."""
    others = sorted(name for name in shard.tensors if name not in (DESCRIPTOR, JPEG, JPEG_END))
    return bytes_from_tensors({name: shard.tensors[name][row].contiguous() for name in others})


_PHOTO_COLUMNS = "shard_row, halfvec_send(descriptor), jpeg, features"
_SHARD_ID = "(SELECT id FROM shards WHERE sha256 = ?)"


def _photo(size_hw: tuple[int, int], vector: bytes, jpeg: bytes, features: bytes) -> Shard:
    """A shard of one photo."""
    tensors = {name: tensor[None] for name, tensor in tensors_from_bytes(features).items()}
    return Shard(size_hw, tensors | {DESCRIPTOR: _halves([vector])} | joined([jpeg])).checked()


def _halves(vectors: Sequence[bytes]) -> Float[Tensor, "M D"]:
    """Descriptors as `halfvec_send` writes each: two numbers of 16 bits, then those of the descriptor, big-endian."""
    numbers = np.frombuffer(b"".join(vectors), dtype=">f2").reshape(len(vectors), -1)
    return torch.from_numpy(numbers[:, 2:].astype(np.float16))


class _Reader:
    """A transaction that stays open as long as the shards that it gave are in use, and sees the map as it was then.

    Its connection is made anew in a process that was forked, and after it was lost: what a shard's name stands for
    does not change, so that whatever is still there is the same.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._connection: psycopg.Connection[Any] | None = None
        self._kept = _KeptPhotos()
        self._num_rows_by_sha256: dict[str, int] = {}
        self._descriptors: dict[str, Float[Tensor, "_ D"]] = {}
        self._connection = self._connected()  # the moment that is seen begins here

    def shards(self, size_by_sha256: dict[str, tuple[int, int]]) -> dict[str, AnyShard]:
        if not size_by_sha256:
            return {}
        sizes = self._ask(partial(_read_sizes, sha256s=list(size_by_sha256)))
        shards: dict[str, AnyShard] = {}
        for sha256, size_hw in size_by_sha256.items():
            if sha256 not in sizes:
                raise self._missing(sha256)
            shards[sha256] = RemoteShard(
                size_hw,
                *sizes[sha256],
                partial(self._fetch, sha256, size_hw),
                partial(self._fetch_jpeg, sha256),
                partial(self._fetch_descriptors, sha256),
            )
        self._num_rows_by_sha256 = {sha256: len(shard) for sha256, shard in shards.items()}
        return shards

    def _fetch_descriptors(self, sha256: str) -> Float[Tensor, "M D"]:
        """Of one shard; of a map so small that all are compared, whoever asks for those will ask for all."""
        if sha256 not in self._descriptors:
            is_small = sum(self._num_rows_by_sha256.values()) <= stored_index.EXACT_UP_TO
            sha256s = list(self._num_rows_by_sha256) if is_small else [sha256]
            self._descriptors |= self._ask(partial(_read_descriptors, sha256s=sha256s))
        if len(self._descriptors.get(sha256, ())) != self._num_rows_by_sha256[sha256]:
            raise self._missing(sha256)
        return self._descriptors[sha256]

    def _fetch(self, sha256: str, size_hw: tuple[int, int], rows: Sequence[int]) -> Shard:
        photos = {row: photo for row in rows if (photo := self._kept.get(sha256, row)) is not None}
        if wanted := [row for row in dict.fromkeys(rows) if row not in photos]:
            found = self._ask(partial(_read_photos, sha256=sha256, size_hw=size_hw, rows=wanted))
            if len(found) < len(wanted):
                raise self._missing(sha256)
            self._kept.put(sha256, found)
            photos |= found
        return Shard.cat([photos[row] for row in rows])

    def _fetch_jpeg(self, sha256: str, row: int) -> bytes:
        kept = self._kept.get(sha256, row)
        jpeg = self._ask(partial(_read_jpeg, sha256=sha256, row=row)) if kept is None else kept.jpeg(0)
        if jpeg is None:
            raise self._missing(sha256)
        return jpeg

    def propose(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[str], Float[Tensor, "n D"]]:
        """Names and descriptors of about `num` photos that look like a query."""
        rows = self._ask(partial(_read_proposals, descriptor=descriptor, num=num))
        return [name for name, _ in rows], _halves([vector for _, vector in rows])

    def _missing(self, sha256: str) -> MissingShardError:
        return MissingShardError(
            f"{self._store.where}: expected a shard of the map ({sha256[:12]}), found none. If others have changed the "
            "map since it was read, read it again; else run `relograph map verify`."
        )

    def _ask(self, question: Callable[[_Database], T]) -> T:
        """The server's answer; where the connection was lost it is asked again."""
        with self._lock, self._store.clear_errors():
            for is_last in (False, True):
                connection = self._connection = self._connected()
                try:
                    return question(_Database(connection))
                except BaseException as error:
                    connection.close()
                    if is_last or not isinstance(error, psycopg.OperationalError):
                        raise
            raise AssertionError("the last attempt returns or raises")

    def _connected(self) -> "psycopg.Connection[Any]":
        if self._connection is None or self._connection.closed or self._process != os.getpid():
            self._connection, self._process = self._store.connect_to_read(), os.getpid()
            weakref.finalize(self, _close, self._connection, self._process)
        return self._connection


class _KeptPhotos:
    """Photos that were read lately, up to `CACHE_BYTES`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._photos: OrderedDict[tuple[str, int], Shard] = OrderedDict()
        self._num_bytes = 0

    def get(self, sha256: str, row: int) -> Shard | None:
        with self._lock:
            if (sha256, row) in self._photos:
                self._photos.move_to_end((sha256, row))
            return self._photos.get((sha256, row))

    def put(self, sha256: str, photos: dict[int, Shard]) -> None:
        with self._lock:
            for row, photo in photos.items():
                if (sha256, row) not in self._photos:
                    self._photos[sha256, row] = photo
                    self._num_bytes += photo.num_bytes
            while self._num_bytes > CACHE_BYTES:
                _, dropped = self._photos.popitem(last=False)
                self._num_bytes -= dropped.num_bytes


def _propose_sql(dimension: int) -> str:
    return (
        "WITH near AS MATERIALIZED (SELECT shard_id, shard_row, descriptor FROM photos"
        f" ORDER BY descriptor::halfvec({dimension}) <#> ?::halfvec LIMIT ?)"
        " SELECT name, halfvec_send(descriptor) FROM near JOIN frames USING (shard_id, shard_row)"
    )


class _Finder:
    """Photos of a snapshot by their descriptors: the server's graph proposes some, and they are compared here."""

    def __init__(self, reader: _Reader, frames: Sequence[MapFrame]) -> None:
        self._reader = reader
        self._place_by_name = {frame.name: place for place, frame in enumerate(frames)}

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        """Places among the frames of up to `num` photos, most alike first, and the cosines of that."""
        num_asked = CANDIDATES_PER_NEIGHBOUR * num
        while True:
            names, vectors = self._reader.propose(descriptor, num_asked)
            places = [self._place_by_name[name] for name in names if name in self._place_by_name]
            # Photos that are gone, or newer than the snapshot, may have been in the way.
            if len(places) >= min(num, len(self._place_by_name)) or num_asked >= 2 * len(self._place_by_name):
                break
            num_asked *= 4
        known = [row for row, name in enumerate(names) if name in self._place_by_name]
        if not known:
            return [], torch.zeros(0)
        similarity = (unit_rows(vectors[known]) @ unit_rows(descriptor[None].cpu()).T).squeeze(1)
        place = torch.tensor(places)
        order = place.argsort()  # equals stand in the order of the map
        similarity, best = similarity[order].sort(descending=True, stable=True)
        return place[order][best][:num].tolist(), similarity[:num]


def _close(connection: "psycopg.Connection[Any]", process: int) -> None:
    if process == os.getpid():  # a forked process must not end its parent's conversation
        with suppress(psycopg.Error):
            connection.close()


def _read_proposals(db: _Database, descriptor: Float[Tensor, "D"], num: int) -> list[tuple[str, bytes]]:
    width = min(LARGEST_SEARCH_WIDTH, max(num, SEARCH_WIDTH))
    _set(db, **{"hnsw.ef_search": str(width), "hnsw.iterative_scan": "strict_order"})
    return db.execute(_propose_sql(len(descriptor)), [_halfvec(descriptor.cpu().half()), num]).fetchall()


def _read_sizes(db: _Database, sha256s: list[str]) -> dict[str, tuple[int, int]]:
    """Of shards: how many photos, how many bytes."""
    rows = db.execute(
        "SELECT sha256, count(*), num_bytes FROM shards JOIN photos ON shard_id = shards.id WHERE sha256 = ANY (?)"
        " GROUP BY shards.id",
        [sha256s],
    )
    return {sha256: (num_rows, num_bytes) for sha256, num_rows, num_bytes in rows}


def _read_jpeg(db: _Database, sha256: str, row: int) -> bytes | None:
    found = db.execute(f"SELECT jpeg FROM photos WHERE shard_id = {_SHARD_ID} AND shard_row = ?", [sha256, row])
    jpeg = found.fetchone()
    return None if jpeg is None else bytes(jpeg[0])


def _read_descriptors(db: _Database, sha256s: list[str]) -> dict[str, Float[Tensor, "_ D"]]:
    vectors: dict[str, list[bytes]] = {}
    for sha256, vector in db.execute(
        "SELECT sha256, halfvec_send(descriptor) FROM shards JOIN photos ON shard_id = shards.id"
        " WHERE sha256 = ANY (?) ORDER BY shard_id, shard_row",
        [sha256s],
    ):
        vectors.setdefault(sha256, []).append(vector)
    return {sha256: _halves(some) for sha256, some in vectors.items()}


def _read_photos(db: _Database, sha256: str, size_hw: tuple[int, int], rows: Sequence[int]) -> dict[int, Shard]:
    answer = db.execute(
        f"SELECT {_PHOTO_COLUMNS} FROM photos WHERE shard_id = {_SHARD_ID} AND shard_row = ANY (?)",
        [sha256, list(rows)],
    )
    try:
        return {row: _photo(size_hw, vector, jpeg, features) for row, vector, jpeg, features in answer}
    except (SafetensorError, ValueError, KeyError) as error:
        raise damaged(f"shard {sha256[:12]}", error) from error


# Verifying


def _verify_shard(db: _Database, sha256: str, size_hw: tuple[int, int], frames: list[MapFrame]) -> Iterator[Damage]:
    """What is wrong with a shard, whose photos together must be what its name says."""
    everyone = tuple(frame.name for frame in frames)
    what = f"shard {sha256}"
    photos: dict[int, Shard] = {}
    num_rows = 0
    try:
        with db.part():
            for row, *parts in db.execute(
                f"SELECT {_PHOTO_COLUMNS} FROM photos WHERE shard_id = {_SHARD_ID} ORDER BY shard_row", [sha256]
            ):
                num_rows += 1
                with suppress(SafetensorError, ValueError, KeyError):
                    photos[row] = _photo(size_hw, *parts)
    except (errors.DataCorrupted, errors.InternalError_) as error:  # the server's own checksums
        yield Damage(what, f"it cannot be read: {error}", everyone)
        return
    if not num_rows:
        yield Damage(what, "it is missing", everyone)
        return
    if list(photos) == list(range(num_rows)) and Shard.cat(list(photos.values())).sha256 == sha256:
        return
    whole = {
        frame.name for frame in frames if frame.shard_row in photos and is_row_whole(photos[frame.shard_row], 0, frame)
    }
    affected = tuple(name for name in everyone if name not in whole)
    yield Damage(what, "its bytes are not those that were written", affected or everyone)


# The schema


def _schema_version(db: _Database, where: str, *, allow_empty: bool = False) -> int:
    """The version of the schema; 0 is a database without a map."""
    (schema, table) = db.execute(
        "SELECT to_regnamespace(?)::text, to_regclass(?)::text", [SCHEMA, f"{SCHEMA}.map_version"]
    ).fetchone()
    if schema is None:
        if allow_empty:
            return 0
        raise DatasetError(
            f"{where}: expected a map, found a database without one. Check the address, or make the map."
        )
    if table is None:
        raise DatasetError(
            f"{where}: expected a map, found another program's schema {SCHEMA!r}. Choose another database."
        )
    (version,) = db.execute("SELECT version FROM map_version").fetchone()
    if version > len(MIGRATIONS):
        raise DatasetError(
            f"{where}: expected a map of version {len(MIGRATIONS)} at most, found version {version}. "
            "Use the newer relograph that made it."
        )
    return int(version)


def _migrate(db: _Database, where: str) -> None:
    version = _schema_version(db, where, allow_empty=True)
    if not version:
        _require_pgvector(db, where)
        db.execute(f"CREATE SCHEMA {SCHEMA}")
        db.execute("CREATE TABLE map_version (version integer NOT NULL)")
        db.execute("INSERT INTO map_version (version) VALUES (0)")
    migrate(db, MIGRATIONS[version:])
    db.execute("UPDATE map_version SET version = ?", [len(MIGRATIONS)])


def _require_pgvector(db: _Database, where: str) -> None:
    advice = "Install pgvector 0.7 or newer on the server, or ask its administrator."
    try:
        db.execute(f"CREATE EXTENSION IF NOT EXISTS {VECTOR_EXTENSION} SCHEMA public")
    except (errors.FeatureNotSupported, errors.UndefinedFile, errors.InsufficientPrivilege) as error:
        raise DatasetError(
            f"{where}: expected a server with pgvector, found: {error.diag.message_primary}. {advice}"
        ) from None
    if db.execute("SELECT to_regtype('halfvec')::text").fetchone()[0] is None:
        raise DatasetError(f"{where}: expected a pgvector that knows halfvec, found an older one. {advice}")


# Errors


def _explain(error: psycopg.Error) -> str:
    if isinstance(error, errors.LockNotAvailable):
        return "expected to change the map, found another process changing it. Try again when it is done."
    if isinstance(error, errors.DiskFull):
        return "expected to write the map, found the server's disk full. The map is as it was; free some space."
    if isinstance(error, errors.ReadOnlySqlTransaction | errors.InsufficientPrivilege):
        return f"expected to change the map, found that it can only be read: {error}. The map is as it was."
    if isinstance(error, psycopg.OperationalError):
        return (
            f"expected the server's answer, found the connection lost: {error}. The map is whole: a change that was "
            "under way is in it altogether or not at all. Try again."
        )
    return f"expected the server to do as it was asked, it answered: {error}. The map is as it was."
