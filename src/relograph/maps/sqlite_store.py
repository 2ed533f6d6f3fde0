"""A map as a directory: SQLite for what is small and changes, files for what is large and does not.

A connection lives as long as one reading or one change: nothing is shared by threads or kept over a fork, and the last
to close it leaves no write-ahead log behind.
"""

import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from relograph.errors import DatasetError
from relograph.maps.durable_files import flush_folder, partial_beside, write_durably, write_partial
from relograph.maps.finding import FrameFinder, MapIndex, Newer
from relograph.maps.records import (
    Damage,
    MapFrame,
    MapSettings,
    Snapshot,
    VerifyReport,
    frames_by_shard,
)
from relograph.maps.shards import AnyShard, MissingShardError, Shard
from relograph.maps.store import WAIT_S, Fill, fill_nothing
from relograph.maps.tables import (
    DamagedRowError,
    Migration,
    TableChange,
    TableReader,
    check_rows,
    is_row_whole,
    last_change,
    migrate,
    move_scale_into_settings,
    read_newer,
    shards_num_bytes,
)
from relograph.progress import SILENT, Progress

T = TypeVar("T")
DATABASE, SHARDS = "map.sqlite", "shards"
PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Before a map is read again that changed while it was read."""
APPLICATION_ID = 0x52474D50
"""By which SQLite files of ours are known."""
MIGRATIONS: tuple[Migration, ...] = (
    """
    CREATE TABLE settings (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        value TEXT NOT NULL,
        sha256 BLOB NOT NULL
    );
    CREATE TABLE changes (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        at_utc TEXT NOT NULL,
        about TEXT NOT NULL,
        num_frames INTEGER NOT NULL,
        frames_xor BLOB NOT NULL,
        sha256 BLOB NOT NULL
    );
    CREATE TABLE cameras (
        id INTEGER PRIMARY KEY,
        line TEXT NOT NULL UNIQUE
    );
    CREATE TABLE shards (
        id INTEGER PRIMARY KEY,
        sha256 TEXT NOT NULL UNIQUE,
        num_bytes INTEGER NOT NULL,
        height INTEGER NOT NULL,
        width INTEGER NOT NULL
    );
    CREATE TABLE frames (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        qw REAL NOT NULL, qx REAL NOT NULL, qy REAL NOT NULL, qz REAL NOT NULL,
        x REAL NOT NULL, y REAL NOT NULL, z REAL NOT NULL,
        photo_width INTEGER NOT NULL,
        photo_height INTEGER NOT NULL,
        camera_id INTEGER NOT NULL REFERENCES cameras (id),
        sequence TEXT,
        timestamp_s REAL,
        photo_sha256 TEXT NOT NULL,
        shard_id INTEGER NOT NULL REFERENCES shards (id),
        shard_row INTEGER NOT NULL,
        data_sha256 TEXT NOT NULL,
        change_id INTEGER NOT NULL REFERENCES changes (id) DEFERRABLE INITIALLY DEFERRED,
        sha256 BLOB NOT NULL
    );
    CREATE INDEX frames_by_shard ON frames (shard_id);
    """,
    move_scale_into_settings,
)
"""What brings a database from one schema version to the next, beginning with an empty one."""

_SHARD_NAME = re.compile(r"[0-9a-f]{64}\.safetensors(\.partial-[0-9a-f]{8})?")


class SqliteStore(TableReader):
    """A map in a folder."""

    def __init__(self, folder: Path, *, wait_s: float = WAIT_S) -> None:
        """Where a map is or will be; `open` and `create` see to it that there is one."""
        self.folder = folder
        self._wait_s = wait_s
        self._is_swept = False
        self._ahead: dict[str, Path] = {}
        """Shards' files, whole and on the disk, that no change has given their names yet, by SHA-256."""
        self._names_ahead: set[str] = set()
        """Of these, of files that are still being written, and of those that have their own names by now."""
        self._index = MapIndex(folder, self)

    @staticmethod
    def open(folder: Path, *, wait_s: float = WAIT_S) -> "SqliteStore":
        """The map that is there, brought up to date if its schema is an older one."""
        store = SqliteStore(folder, wait_s=wait_s)
        if not store._database.is_file():
            raise DatasetError(f"{folder}: expected a map, found no {DATABASE} there. Check the path, or make the map.")
        version = store._read(partial(_version_to_read, folder))
        if version < len(MIGRATIONS):
            with store._writing() as db:
                _migrate(db, store.where)
                db.execute("COMMIT")
        return store

    @staticmethod
    def create(
        folder: Path,
        settings: MapSettings,
        kind: str,
        about: dict[str, object],
        fill: Fill = fill_nothing,
        *,
        wait_s: float = WAIT_S,
    ) -> "SqliteStore":
        """A map in a new folder, or in one where an earlier attempt was stopped before there was a map."""
        store = SqliteStore(folder, wait_s=wait_s)
        with _clear_errors(store.where):
            folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in folder.iterdir() if path.name.split("-")[0] not in (DATABASE, SHARDS)]
            if others:
                raise DatasetError(
                    f"{folder}: expected an empty folder for a map, found {sorted(others)[0]!r} in it. "
                    "Choose another place."
                )
            (folder / SHARDS).mkdir(exist_ok=True)
            flush_folder(folder)
            with closing(store._connect("rwc")) as db:
                db.execute("PRAGMA journal_mode = WAL")
        with store._writing() as db:
            if _schema_version(db, store.where, allow_empty=True):
                raise DatasetError(
                    f"{folder}: expected no map, found one of {last_change(db)[1]:,} photos. "
                    "Add to it, or choose another place."
                )
            _migrate(db, store.where)
            with store._change(db, kind, about) as change:
                change.set_settings(settings)
                fill(change)
        return store

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def _database(self) -> Path:
        return self.folder / DATABASE

    @property
    def _log(self) -> Path:
        return self.folder / f"{DATABASE}-wal"

    # Reading

    def shards(self, frames: Iterable[MapFrame]) -> dict[str, AnyShard]:
        size_by_shard = {frame.shard: frame.size_hw for frame in frames}
        return {sha256: self._shard(sha256, size_hw) for sha256, size_hw in size_by_shard.items()}

    def newer_than(self, revision: int) -> Newer:
        return self._read(lambda db: read_newer(db, revision))

    def finder(self, snapshot: Snapshot, progress: Progress = SILENT) -> FrameFinder | None:
        return self._index.finder(snapshot, progress)

    def tend(self, progress: Progress = SILENT, *, anew: bool = False) -> None:
        self._index.tend(progress, anew=anew)
        if anew:  # the database gives back the room of rows that are gone
            with suppress(DatasetError), _clear_errors(self.where), closing(self._connect("rw")) as db:
                db.execute("VACUUM")

    def num_bytes(self) -> dict[str, int]:
        shards = self._read(shards_num_bytes)
        database = sum(path.stat().st_size for path in self.folder.glob(f"{DATABASE}*"))
        index = self._index.num_bytes
        return {"shards": shards, "database": database} | ({"index": index} if index else {})

    # Changing

    @contextmanager
    def writing_ahead(self) -> Iterator[Callable[[Shard], None]]:
        def write(shard: Shard) -> None:
            path = self._shard_path(shard.sha256)
            with _clear_errors(self.where):
                if shard.sha256 in self._ahead or path.exists():  # the same photos under other names
                    return
                partial = partial_beside(path)
                self._names_ahead.add(partial.name)  # before there is a file that could be taken for garbage
                write_partial(partial, shard.pieces())
            self._ahead[shard.sha256] = partial

        try:
            yield write
        finally:
            self._ahead.clear()
            while self._names_ahead:
                with suppress(OSError):
                    (self.folder / SHARDS / self._names_ahead.pop()).unlink(missing_ok=True)

    @contextmanager
    def change(self, kind: str, about: dict[str, object]) -> Iterator["_SqliteChange"]:
        with self._writing() as db:
            _schema_version(db, self.where)
            if not self._is_swept:
                self._sweep(db)
            with self._change(db, kind, about) as change:
                yield change
        if change.dropped_shards:
            self._is_swept = False
            with suppress(DatasetError), self._writing(wait_s=0.0) as db:  # else the next writer does it
                self._sweep(db)

    @contextmanager
    def _change(self, db: sqlite3.Connection, kind: str, about: dict[str, object]) -> Iterator["_SqliteChange"]:
        change = _SqliteChange(db, self.folder / SHARDS, self._ahead, kind, about)
        try:
            yield change
            change.finish()
            if change.wrote_shards:
                flush_folder(self.folder / SHARDS)  # their names are on the disk before the rows that lead to them
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # an interrupt may come when all is done already
                change.undo_shards()
            raise

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Removes files that no frame leads to. Whoever holds the write lock knows that nobody is about to use them."""
        names = self._shard_files()  # first: of what is written ahead from now on, `kept` may know nothing
        kept = _kept_shard_files(db) | self._names_ahead
        for name in names:
            if name not in kept:
                (self.folder / SHARDS / name).unlink(missing_ok=True)
        self._is_swept = True

    def _shard_files(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder / SHARDS) if _SHARD_NAME.fullmatch(name))  # noqa: PTH208

    def _shard(self, sha256: str, size_hw: tuple[int, int]) -> Shard:
        return Shard.from_file(self._shard_path(sha256), size_hw)

    def _shard_path(self, sha256: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", sha256):  # a damaged database must not lead out of the folder
            raise MissingShardError(f"{self.where}: expected the SHA-256 of a shard, found {sha256[:80]!r}.")
        return self.folder / SHARDS / f"{sha256}.safetensors"

    # Verifying

    def verify(self, progress: Progress = SILENT) -> VerifyReport:
        while True:
            revision, report = self._read(lambda db: (_readable_revision(db), self._verify(db, progress)))
            # A shard may be missing because a writer removed it since: then the newer map is looked at.
            if report.is_whole or self._read(_readable_revision) == revision:
                return report

    def _verify(self, db: sqlite3.Connection, progress: Progress) -> VerifyReport:
        damages: list[Damage] = []
        frames: list[MapFrame] = []
        num_bytes: dict[str, int] = {}
        wrong: list[str] = []
        try:
            damages += check_rows(db, DATABASE, frames)
            num_bytes |= db.execute("SELECT sha256, num_bytes FROM shards").fetchall()
            wrong += [f"a row of {table} leads nowhere" for table, *_ in db.execute("PRAGMA foreign_key_check")]
            lines = [line for (line,) in db.execute("PRAGMA integrity_check(10)")]
            wrong += [f"SQLite's own check: {line}" for line in lines if line != "ok"]
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            wrong.append(f"it cannot be read: {error}")
        damages += [Damage(DATABASE, what, tuple(str(frame.name) for frame in frames)) for what in wrong]
        by_shard = frames_by_shard(frames)
        with progress.task("verifying photos", total=len(frames)) as advance:
            for (sha256, size_hw), its_frames in by_shard.items():
                damages += self._verify_shard(sha256, size_hw, num_bytes.get(sha256), its_frames)
                advance(len(its_frames))
        damages += self._index.verify(frames)
        kept = {f"{sha256}.safetensors" for sha256, _ in by_shard}
        # Where the database is damaged nothing is known to be garbage.
        is_known = not any(damage.file == DATABASE for damage in damages)
        garbage = [f"{SHARDS}/{name}" for name in self._shard_files() if name not in kept] if is_known else []
        return VerifyReport(len(frames), tuple(damages), tuple(garbage))

    def _verify_shard(
        self, sha256: str, size_hw: tuple[int, int], num_bytes: int | None, frames: list[MapFrame]
    ) -> Iterator[Damage]:
        everyone = tuple(frame.name for frame in frames)
        file = f"{SHARDS}/{sha256}.safetensors"
        try:
            path = self._shard_path(sha256)
            with path.open("rb") as opened:
                is_whole = hashlib.file_digest(opened, "sha256").hexdigest() == sha256
            if is_whole:
                if path.stat().st_size != num_bytes:
                    yield Damage(DATABASE, f"the size of shards/{sha256}.safetensors is not what it says", everyone)
                return
            shard = self._shard(sha256, size_hw)
            affected = tuple(frame.name for frame in frames if not is_row_whole(shard, frame.shard_row, frame))
        except FileNotFoundError:
            yield Damage(file, "it is missing", everyone)
        except (OSError, DatasetError) as error:
            yield Damage(file, f"it cannot be read: {error}", everyone)
        else:
            yield Damage(file, "its bytes are not those that were written", affected or everyone)

    # Connections

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        if os.access(self.folder, os.W_OK):
            return self._read_once(read, "rw", "PRAGMA query_only = ON")
        # Who may not write here reads beside those who may without being known to them: what a log holds is safe from
        # them, but the file alone is not, and log and file come and go.
        for pause_s in PAUSES_S:
            before = self._files_now()
            has_log = len(before) > 1
            try:
                found = self._read_once(read, "ro" if has_log else "ro&immutable=1")
            except DatasetError:
                if self._files_now() == before:
                    raise
            else:
                if has_log or self._files_now() == before:
                    return found
            time.sleep(pause_s)
        raise DatasetError(f"{self.where}: expected to read the map, found it changing all the time. Try again.")

    def _read_once(self, read: Callable[[sqlite3.Connection], T], mode: str, *statements: str) -> T:
        with _clear_errors(self.where), closing(self._connect(mode, *statements)) as db:
            db.execute("BEGIN")
            return read(db)

    def _files_now(self) -> list[tuple[int, int]]:
        """When the database and its log, if that holds anything, were written last, and how long they are."""
        stats = []
        for path in (self._database, self._log):
            with suppress(FileNotFoundError):  # a log goes with its last writer, at any moment
                stats.append(path.stat())
        return [(stat.st_mtime_ns, stat.st_size) for stat in stats if stat.st_size > 0]

    @contextmanager
    def _writing(self, *, wait_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """A write transaction, which whoever uses it commits; else it is undone."""
        with _clear_errors(self.where), closing(self._connect("rw", wait_s=wait_s)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            yield db

    def _connect(self, mode: str, *statements: str, wait_s: float | None = None) -> sqlite3.Connection:
        wait_s = self._wait_s if wait_s is None else wait_s
        uri = f"{self._database.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, timeout=wait_s, isolation_level=None)
        try:
            for statement in statements:
                db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db


class _SqliteChange(TableChange):
    """A change in the making, whose shards are files."""

    def __init__(
        self, db: sqlite3.Connection, shards: Path, ahead: dict[str, Path], kind: str, about: dict[str, object]
    ) -> None:
        super().__init__(db, kind, about)
        self._shards, self._ahead = shards, ahead
        self._new_files: list[Path] = []

    @property
    def wrote_shards(self) -> bool:
        return bool(self._new_files)

    def _keep(self, shard: Shard) -> None:
        path, pieces = self._shards / f"{shard.sha256}.safetensors", shard.pieces()
        self._insert_shard(shard, sum(len(piece) for piece in pieces))
        # Over what may lie there: it is no part of the map, and may be damaged.
        try:
            self._ahead.pop(shard.sha256).replace(path)
        except (KeyError, FileNotFoundError):  # not written ahead, or another writer has swept it away since
            write_durably(path, pieces)
        self._new_files.append(path)

    def undo_shards(self) -> None:
        """Removes the files of a change that is given up, while the write lock is held."""
        for path in self._new_files:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _version_to_read(folder: Path, db: sqlite3.Connection) -> int:
    try:
        return _schema_version(db, str(folder))
    except sqlite3.OperationalError:  # what a disk or another process does
        raise
    except sqlite3.DatabaseError as error:
        raise DatasetError(
            f"{folder}: expected a whole map, found {DATABASE} so damaged that no photo in it can be named: "
            f"{error}. Restore that file from a copy, or make the map again."
        ) from error


def _readable_revision(db: sqlite3.Connection) -> int | None:
    try:
        return last_change(db)[0]
    except sqlite3.DatabaseError:
        return None


def _kept_shard_files(db: sqlite3.Connection) -> set[str]:
    return {f"{sha256}.safetensors" for (sha256,) in db.execute("SELECT sha256 FROM shards")}


# The schema


def _schema_version(db: sqlite3.Connection, where: str, *, allow_empty: bool = False) -> int:
    """The version of the schema; 0 is an empty database."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (num_tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if num_tables == 0 and application_id == 0:
        if allow_empty:
            return 0
        raise DatasetError(f"{where}: expected a map, found one whose making was stopped. Create it again.")
    if application_id != APPLICATION_ID:
        raise DatasetError(f"{where}: expected a map, found another program's {DATABASE}. Choose another place.")
    if version > len(MIGRATIONS):
        raise DatasetError(
            f"{where}: expected a map of version {len(MIGRATIONS)} at most, found version {version}. "
            "Use the newer relograph that made it."
        )
    return int(version)


def _migrate(db: sqlite3.Connection, where: str) -> None:
    version = _schema_version(db, where, allow_empty=True)
    migrate(db, MIGRATIONS[version:])
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


# Errors


@contextmanager
def _clear_errors(where: str) -> Iterator[None]:
    """One line about what the disk or SQLite says; whatever was not committed is undone, and the map is as it was."""
    try:
        yield
    except (sqlite3.Error, DamagedRowError) as error:
        raise DatasetError(f"{where}: {_explain(error)}") from error
    except OSError as error:
        file = f" {error.filename}" if error.filename else ""
        raise DatasetError(
            f"{where}: expected to read or write the map, the system answered:{file} {error.strerror or error}. "
            "The map is as it was; check its rights and the free space."
        ) from error


def _explain(error: sqlite3.Error | DamagedRowError) -> str:
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "expected to change the map, found another process changing it. Try again when it is done."
    if code == "SQLITE_FULL":
        return "expected to write the map, found the disk full. The map is as it was; free some space."
    if code.startswith("SQLITE_READONLY"):
        return "expected to change the map, found that it can only be read. The map is as it was; check its rights."
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH")):
        return (
            f"expected to read or write {DATABASE}, found: {error} ({code}). The map is as it was; check its "
            "rights and the free space."
        )
    return (
        f"expected a whole map, found {DATABASE} damaged: {error}. Run `relograph map verify`, and restore it from a "
        "copy."
    )
