"""A map as a directory: SQLite for what is small and changes, files for what is large and does not.

All SQL is here. A connection lives as long as one reading or one change: nothing is shared by threads or kept over a
fork, and the last to close it leaves no write-ahead log behind.
"""

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.maps.durable_files import flush_folder, write_durably
from relograph.maps.records import ChangeRecord, Damage, MapFrame, MapSettings, Snapshot, VerifyReport, digest, xor
from relograph.maps.shards import MissingShardError, Shard
from relograph.progress import SILENT, Progress
from relograph.scenes.names import safe_name

DATABASE, SHARDS = "map.sqlite", "shards"
APPLICATION_ID = 0x52474D50
"""By which SQLite files of ours are known."""
WAIT_S = 30.0
"""How long a second writer waits for the first."""
NAMES_AT_ONCE = 500
"""In one question: SQLite allows a limited number of values."""


def _move_scale_into_settings(db: sqlite3.Connection) -> None:
    """Whether the scale is known stood with the photos that brought it, in the history, which copies do not share."""
    abouts = [json.loads(about) for (about,) in db.execute("SELECT about FROM changes")]
    is_known = all(about.get("scale_is_known", True) for about in abouts)
    for old, sha256 in db.execute("SELECT value, sha256 FROM settings").fetchall():  # none in a map that is being made
        _require_digest(old, sha256)
        value = json.dumps(json.loads(old) | {"scale_is_known": is_known}, sort_keys=True)
        db.execute("UPDATE settings SET value = ?, sha256 = ?", [value, digest(value)])


MIGRATIONS: tuple[str | Callable[[sqlite3.Connection], None], ...] = (
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
    _move_scale_into_settings,
)
"""What brings a database from one schema version to the next, beginning with an empty one."""

_SELECT_FRAMES = """
    SELECT frames.name, qw, qx, qy, qz, x, y, z, photo_width, photo_height, cameras.line, sequence, timestamp_s,
           photo_sha256, shards.sha256, shard_row, shards.height, shards.width, data_sha256, change_id, frames.sha256
    FROM frames JOIN cameras ON cameras.id = camera_id JOIN shards ON shards.id = shard_id
"""
_SHARD_NAME = re.compile(r"[0-9a-f]{64}\.safetensors(\.partial-[0-9a-f]{8})?")
_NOTHING = bytes(32)
_Row = tuple[Any, ...]


class SqliteStore:
    """A map in a folder."""

    def __init__(self, folder: Path, *, wait_s: float = WAIT_S) -> None:
        """Where a map is or will be; `open` and `create` see to it that there is one."""
        self.folder = folder
        self._wait_s = wait_s
        self._is_swept = False

    @staticmethod
    def open(folder: Path, *, wait_s: float = WAIT_S) -> "SqliteStore":
        """The map that is there, brought up to date if its schema is an older one."""
        store = SqliteStore(folder, wait_s=wait_s)
        if not store._database.is_file():
            raise DatasetError(f"{folder}: expected a map, found no {DATABASE} there. Check the path, or make the map.")
        with store._reading() as db:
            version = _schema_version(db, store.where)
        if version < len(MIGRATIONS):
            with store._writing() as db:
                _migrate(db, store.where)
                db.execute("COMMIT")
        return store

    @staticmethod
    def create(
        folder: Path, settings: MapSettings, about: dict[str, object], *, wait_s: float = WAIT_S
    ) -> "SqliteStore":
        """An empty map in a new folder, or in one where an earlier attempt was stopped before there was a map."""
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
                    f"{folder}: expected no map, found one of {_last_change(db)[1]:,} photos. "
                    "Add to it, or choose another place."
                )
            _migrate(db, store.where)
            change = _SqliteChange(db, folder / SHARDS, "create", about)
            change.set_settings(settings)
            change.finish()
            db.execute("COMMIT")
        return store

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def _database(self) -> Path:
        return self.folder / DATABASE

    # Reading

    def snapshot(self) -> Snapshot:
        with self._reading() as db:
            revision = _last_change(db)[0]
            settings = _settings(db)
            frames = tuple(_frame(row) for row in db.execute(f"{_SELECT_FRAMES} ORDER BY frames.id"))
            return Snapshot(revision, settings, frames)

    def settings(self) -> MapSettings:
        with self._reading() as db:
            return _settings(db)

    def revision(self) -> int:
        with self._reading() as db:
            return _last_change(db)[0]

    def num_frames(self) -> int:
        with self._reading() as db:
            return _last_change(db)[1]

    def find(self, names: Iterable[str]) -> dict[str, MapFrame]:
        with self._reading() as db:
            rows = (row for some in _in_parts(list(names)) for row in _select_named(db, some))
            return {row[0]: _frame(row) for row in rows}

    def changes(self) -> list[ChangeRecord]:
        with self._reading() as db:
            rows = db.execute("SELECT id, kind, at_utc, about, num_frames FROM changes ORDER BY id")
            return [ChangeRecord(number, kind, at, json.loads(about), count) for number, kind, at, about, count in rows]

    def shard(self, sha256: str, size_hw: tuple[int, int]) -> Shard:
        return Shard.from_file(self._shard_path(sha256), size_hw)

    def num_bytes(self) -> dict[str, int]:
        with self._reading() as db:
            (shards,) = db.execute("SELECT coalesce(sum(num_bytes), 0) FROM shards").fetchone()
        database = sum(path.stat().st_size for path in self.folder.glob(f"{DATABASE}*"))
        return {"shards": shards, "database": database}

    # Changing

    @contextmanager
    def change(self, kind: str, about: dict[str, object]) -> Iterator["_SqliteChange"]:
        with self._writing() as db:
            _schema_version(db, self.where)
            if not self._is_swept:
                self._sweep(db)
            change = _SqliteChange(db, self.folder / SHARDS, kind, about)
            try:
                yield change
                change.finish()
                if change.wrote_shards:
                    flush_folder(self.folder / SHARDS)  # their names are on the disk before the rows that lead to them
                db.execute("COMMIT")
            except BaseException:
                change.undo_shards()
                raise
        if change.dropped_shards:
            self._is_swept = False
            with suppress(DatasetError), self._writing(wait_s=0.0) as db:  # else the next writer does it
                self._sweep(db)

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Removes files that no frame leads to. Whoever holds the write lock knows that nobody is about to use them."""
        kept = _kept_shard_files(db)
        for name in self._shard_files():
            if name not in kept:
                (self.folder / SHARDS / name).unlink(missing_ok=True)
        self._is_swept = True

    def _shard_files(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder / SHARDS) if _SHARD_NAME.fullmatch(name))  # noqa: PTH208

    def _shard_path(self, sha256: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", sha256):  # a damaged database must not lead out of the folder
            raise MissingShardError(f"{self.where}: expected the SHA-256 of a shard, found {sha256[:80]!r}.")
        return self.folder / SHARDS / f"{sha256}.safetensors"

    # Verifying

    def verify(self, progress: Progress = SILENT) -> VerifyReport:
        while True:
            with _clear_errors(self.where), closing(self._connect_to_read()) as db:
                db.execute("BEGIN")
                revision = _readable_revision(db)
                report = self._verify(db, progress)
                db.execute("ROLLBACK")
                # A shard may be missing because a writer removed it since: then the newer map is looked at.
                if report.is_whole or _readable_revision(db) == revision:
                    return report

    def _verify(self, db: sqlite3.Connection, progress: Progress) -> VerifyReport:
        damages: list[Damage] = []
        frames: list[MapFrame] = []
        try:
            for (line,) in db.execute("PRAGMA integrity_check(10)"):
                if line != "ok":
                    damages.append(Damage(DATABASE, f"SQLite's own check: {line}", ()))
            for table, *_ in db.execute("PRAGMA foreign_key_check"):
                damages.append(Damage(DATABASE, f"a row of {table} leads nowhere", ()))
            frames, found = _check_rows(db)
            damages += found
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            damages.append(Damage(DATABASE, f"it cannot be read: {error}", tuple(frame.name for frame in frames)))
        frames_by_shard: dict[tuple[str, tuple[int, int]], list[MapFrame]] = {}
        for frame in frames:
            frames_by_shard.setdefault((frame.shard, frame.size_hw), []).append(frame)
        with progress.task("verifying photos", total=len(frames)) as advance:
            for (sha256, size_hw), its_frames in frames_by_shard.items():
                damages += self._verify_shard(sha256, size_hw, its_frames)
                advance(len(its_frames))
        kept = {f"{sha256}.safetensors" for sha256, _ in frames_by_shard}
        # Where the database is damaged nothing is known to be garbage.
        is_known = not any(damage.file == DATABASE for damage in damages)
        garbage = [f"{SHARDS}/{name}" for name in self._shard_files() if name not in kept] if is_known else []
        return VerifyReport(len(frames), tuple(damages), tuple(garbage))

    def _verify_shard(self, sha256: str, size_hw: tuple[int, int], frames: list[MapFrame]) -> Iterator[Damage]:
        everyone = tuple(frame.name for frame in frames)
        file = f"{SHARDS}/{sha256}.safetensors"
        try:
            with self._shard_path(sha256).open("rb") as opened:
                is_whole = hashlib.file_digest(opened, "sha256").hexdigest() == sha256
            if is_whole:
                return
            shard = self.shard(sha256, size_hw)
            affected = tuple(frame.name for frame in frames if not _is_row_whole(shard, frame))
        except FileNotFoundError:
            yield Damage(file, "it is missing", everyone)
        except (OSError, DatasetError) as error:
            yield Damage(file, f"it cannot be read: {error}", everyone)
        else:
            yield Damage(file, "its bytes are not those that were written", affected or everyone)

    # Connections

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction, which sees the map as it is now whatever writers do meanwhile."""
        with _clear_errors(self.where), closing(self._connect_to_read()) as db:
            db.execute("BEGIN")
            yield db

    @contextmanager
    def _writing(self, *, wait_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """A write transaction, which whoever uses it commits; else it is undone."""
        with _clear_errors(self.where), closing(self._connect("rw", wait_s=wait_s)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            yield db

    def _connect_to_read(self) -> sqlite3.Connection:
        if os.access(self.folder, os.W_OK):
            return self._connect("rw", "PRAGMA query_only = ON")
        # Reading next to a write-ahead log needs files beside it. Where none can be made there is no writer either,
        # and without a log the file alone is the map.
        log = self._database.with_name(f"{DATABASE}-wal")
        has_log = log.exists() and log.stat().st_size > 0
        return self._connect("ro" if has_log else "ro&immutable=1")

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


class _SqliteChange:
    """A change in the making, within the write transaction of `db`."""

    def __init__(self, db: sqlite3.Connection, shards: Path, kind: str, about: dict[str, object]) -> None:
        self._db = db
        self._shards = shards
        self._kind, self._about = kind, about
        last, self._num_frames, self._frames_xor = _last_change(db)
        self.number = last + 1
        self._new_files: list[Path] = []
        self._is_empty = True
        self._may_drop_shards = False
        self.dropped_shards = False

    @property
    def wrote_shards(self) -> bool:
        return bool(self._new_files)

    def put_shard(self, shard: Shard) -> str:
        data = shard.encode()
        sha256 = hashlib.sha256(data).hexdigest()
        known = self._db.execute("SELECT 1 FROM shards WHERE sha256 = ?", [sha256]).fetchone()
        if known is None:
            path = self._shards / f"{sha256}.safetensors"
            write_durably(path, data)  # over what may lie there: it is no part of the map, and may be damaged
            self._new_files.append(path)
            values = (sha256, len(data), *shard.size_hw)
            self._db.execute("INSERT INTO shards (sha256, num_bytes, height, width) VALUES (?, ?, ?, ?)", values)
        return sha256

    def insert(self, frames: Sequence[MapFrame]) -> None:
        for frame in frames:
            if safe_name(frame.name, where="the map") != frame.name:
                raise DatasetError(f"expected the shortest form of a name, found {frame.name!r}. Use safe_name of it.")
            frame = replace(frame, change=self.number)
            try:
                self._db.execute(
                    "INSERT INTO frames (name, qw, qx, qy, qz, x, y, z, photo_width, photo_height, sequence,"
                    " timestamp_s, photo_sha256, shard_row, data_sha256, camera_id, shard_id, change_id, sha256)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (frame.name, *self._values(frame), self.number, _frame_sha256(frame)),
                )
            except sqlite3.IntegrityError as error:
                if "frames.name" not in str(error):
                    raise
                raise DatasetError(
                    f"expected every name once, found {frame.name!r} in the map already. Remove it first, or rename it."
                ) from None
            self._frames_xor = xor(self._frames_xor, _frame_sha256(frame))
            self._num_frames += 1
            self._is_empty = False

    def update(self, frames: Sequence[MapFrame]) -> None:
        old_sha256 = self._sha256_by_name([frame.name for frame in frames])
        for frame in frames:
            self._db.execute(
                "UPDATE frames SET qw = ?, qx = ?, qy = ?, qz = ?, x = ?, y = ?, z = ?, photo_width = ?,"
                " photo_height = ?, sequence = ?, timestamp_s = ?, photo_sha256 = ?, shard_row = ?, data_sha256 = ?,"
                " camera_id = ?, shard_id = ?, sha256 = ? WHERE name = ?",
                (*self._values(frame), _frame_sha256(frame), frame.name),
            )
            self._frames_xor = xor(xor(self._frames_xor, old_sha256[frame.name]), _frame_sha256(frame))
            self._is_empty, self._may_drop_shards = False, True

    def remove(self, names: Sequence[str]) -> None:
        for sha256 in self._sha256_by_name(names).values():
            self._frames_xor = xor(self._frames_xor, sha256)
            self._num_frames -= 1
            self._is_empty, self._may_drop_shards = False, True
        self._db.executemany("DELETE FROM frames WHERE name = ?", [[name] for name in names])

    def set_settings(self, settings: MapSettings) -> None:
        value = settings.to_json()
        self._db.execute("INSERT OR REPLACE INTO settings (id, value, sha256) VALUES (1, ?, ?)", [value, digest(value)])
        self._is_empty = False

    def finish(self) -> None:
        """Writes down what was done; a change of nothing is none."""
        if self._may_drop_shards or self._new_files:
            unused = "FROM shards WHERE NOT EXISTS (SELECT 1 FROM frames WHERE shard_id = shards.id)"
            self.dropped_shards = self._db.execute(f"DELETE {unused}").rowcount > 0
        if self._is_empty:
            return
        about, at_utc = json.dumps(self._about, sort_keys=True), datetime.now(UTC).isoformat(timespec="seconds")
        told = (self.number, self._kind, at_utc, about, self._num_frames)
        self._db.execute(
            "INSERT INTO changes (id, kind, at_utc, about, num_frames, frames_xor, sha256)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*told, self._frames_xor, digest(*told, self._frames_xor.hex())),
        )

    def undo_shards(self) -> None:
        """Removes the files of a change that is given up, while the write lock is held."""
        for path in self._new_files:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _values(self, frame: MapFrame) -> tuple[object, ...]:
        self._db.execute("INSERT OR IGNORE INTO cameras (line) VALUES (?)", [frame.camera_line])
        (camera_id,) = self._db.execute("SELECT id FROM cameras WHERE line = ?", [frame.camera_line]).fetchone()
        shard_id = self._db.execute("SELECT id FROM shards WHERE sha256 = ?", [frame.shard]).fetchone()
        assert shard_id is not None, "put_shard comes first"
        return (
            *frame.quat_wxyz,
            *frame.cam_center_world,
            frame.photo_width,
            frame.photo_height,
            frame.sequence,
            frame.timestamp_s,
            frame.photo_sha256,
            frame.shard_row,
            frame.data_sha256,
            camera_id,
            shard_id[0],
        )

    def _sha256_by_name(self, names: Sequence[str]) -> dict[str, bytes]:
        found = {row[0]: row[-1] for some in _in_parts(names) for row in _select_named(self._db, some)}
        missing = [name for name in names if name not in found]
        if missing:
            raise DatasetError(
                f"expected photos of the map, found none named {missing[0]!r}"
                f"{f' and {len(missing) - 1:,} others' if len(missing) > 1 else ''}. "
                "Look them up with `relograph map info --names`."
            )
        return found


# Rows


def _frame(row: _Row) -> MapFrame:
    name, qw, qx, qy, qz, x, y, z, photo_width, photo_height, *others = row
    camera_line, sequence, timestamp_s, photo_sha256, shard, shard_row, height, width, data_sha256, change, _ = others
    return MapFrame(
        name,
        (qw, qx, qy, qz),
        (x, y, z),
        photo_width,
        photo_height,
        camera_line,
        sequence,
        timestamp_s,
        photo_sha256,
        shard,
        shard_row,
        (height, width),
        data_sha256,
        change,
    )


def _frame_sha256(frame: MapFrame) -> bytes:
    return digest(
        frame.name,
        *(value + 0.0 for value in (*frame.quat_wxyz, *frame.cam_center_world)),  # SQLite has no -0.0
        frame.photo_width,
        frame.photo_height,
        frame.camera_line,
        frame.sequence,
        None if frame.timestamp_s is None else frame.timestamp_s + 0.0,
        frame.photo_sha256,
        frame.shard,
        frame.shard_row,
        frame.size_hw,
        frame.data_sha256,
        frame.change,
    )


def _settings(db: sqlite3.Connection) -> MapSettings:
    value, sha256 = db.execute("SELECT value, sha256 FROM settings").fetchone()
    _require_digest(value, sha256)
    return MapSettings.from_json(value)


def _require_digest(settings: str, sha256: bytes) -> None:
    if digest(settings) != sha256:
        raise sqlite3.DatabaseError("the map's settings are not those that were written")


def _last_change(db: sqlite3.Connection) -> tuple[int, int, bytes]:
    """Its number, how many frames there are after it, and the XOR of their hashes."""
    row = db.execute("SELECT id, num_frames, frames_xor FROM changes ORDER BY id DESC LIMIT 1").fetchone()
    return row or (0, 0, _NOTHING)


def _readable_revision(db: sqlite3.Connection) -> int | None:
    try:
        return _last_change(db)[0]
    except sqlite3.DatabaseError:
        return None


def _select_named(db: sqlite3.Connection, names: Sequence[str]) -> Iterator[_Row]:
    marks = ", ".join("?" * len(names))
    yield from db.execute(f"{_SELECT_FRAMES} WHERE frames.name IN ({marks})", names)


def _in_parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + NAMES_AT_ONCE] for start in range(0, len(names), NAMES_AT_ONCE))


def _kept_shard_files(db: sqlite3.Connection) -> set[str]:
    return {f"{sha256}.safetensors" for (sha256,) in db.execute("SELECT sha256 FROM shards")}


def _check_rows(db: sqlite3.Connection) -> tuple[list[MapFrame], list[Damage]]:
    """All frames, and what is wrong with rows of the database."""
    damages, frames, frames_xor = [], [], _NOTHING
    for row in db.execute(f"{_SELECT_FRAMES} ORDER BY frames.id"):
        frame = _frame(row)
        if _frame_sha256(frame) != row[-1]:
            damages.append(Damage(DATABASE, f"the row of {frame.name!r} is not as it was written", (str(frame.name),)))
        frames.append(frame)
        frames_xor = xor(frames_xor, _frame_sha256(frame))
    for *told, xor_then, sha256 in db.execute(
        "SELECT id, kind, at_utc, about, num_frames, frames_xor, sha256 FROM changes"
    ):
        if digest(*told, bytes(xor_then).hex()) != sha256:
            damages.append(Damage(DATABASE, f"the row of change {told[0]} is not as it was written", ()))
    _, num_frames, expected_xor = _last_change(db)
    if not damages and (len(frames), frames_xor) != (num_frames, expected_xor):
        damages.append(
            Damage(DATABASE, f"expected {num_frames:,} photos, found {len(frames):,}: some rows are lost", ())
        )
    _settings(db)  # raises where they are damaged
    return frames, damages


def _is_row_whole(shard: Shard, frame: MapFrame) -> bool:
    return frame.shard_row < len(shard) and shard.row_sha256(frame.shard_row) == frame.data_sha256


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
    for step in MIGRATIONS[version:]:
        if callable(step):
            step(db)
        else:
            for statement in step.split(";"):
                db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


# Errors


@contextmanager
def _clear_errors(where: str) -> Iterator[None]:
    """One line about what the disk or SQLite says; whatever was not committed is undone, and the map is as it was."""
    try:
        yield
    except sqlite3.Error as error:
        raise DatasetError(f"{where}: {_explain(error)}") from error
    except OSError as error:
        file = f" {error.filename}" if error.filename else ""
        raise DatasetError(
            f"{where}: expected to read or write the map, the system answered:{file} {error.strerror or error}. "
            "The map is as it was; check its rights and the free space."
        ) from error


def _explain(error: sqlite3.Error) -> str:
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
