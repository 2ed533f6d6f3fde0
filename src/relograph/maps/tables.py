"""The tables of a map: what is said of its photos and its changes, in SQL that SQLite and PostgreSQL both understand.

A store opens transactions and keeps shards; what happens within a transaction is here.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Protocol, TypeVar, runtime_checkable

from relograph.errors import DatasetError
from relograph.maps.finding import Newer
from relograph.maps.records import ChangeRecord, Damage, MapFrame, MapSettings, Snapshot, digest, xor
from relograph.maps.shards import Shard
from relograph.scenes.names import safe_name

NAMES_AT_ONCE = 500
"""In one question: databases allow a limited number of values."""

_SELECT_FRAMES = """
    SELECT frames.name, qw, qx, qy, qz, x, y, z, photo_width, photo_height, cameras.line, sequence, timestamp_s,
           photo_sha256, shards.sha256, shard_row, shards.height, shards.width, data_sha256, change_id, frames.sha256
    FROM frames JOIN cameras ON cameras.id = camera_id JOIN shards ON shards.id = shard_id
"""
_WRITE_CHANGE = """
    INSERT INTO changes (id, kind, at_utc, about, num_frames, frames_xor, sha256) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at_utc = excluded.at_utc, about = excluded.about,
        num_frames = excluded.num_frames, frames_xor = excluded.frames_xor, sha256 = excluded.sha256
"""
_NOTHING = bytes(32)

Row = tuple[Any, ...]
T = TypeVar("T")


@runtime_checkable  # the tests check every argument's type while they run
class Rows(Protocol):
    """What a question is answered with."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...

    @property
    def rowcount(self) -> int: ...


@runtime_checkable
class Database(Protocol):
    """A transaction. A question mark stands for a value; sqlite3's connections are such already."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...


class TableReader(ABC):
    """What a store is asked that its tables answer, each question in a transaction of its own."""

    @abstractmethod
    def _read(self, read: Callable[[Any], T]) -> T:
        """What `read` finds in the database, which it sees as the map is now whatever writers do meanwhile."""

    def snapshot(self) -> Snapshot:
        return self._read(read_snapshot)

    def settings(self) -> MapSettings:
        return self._read(read_settings)

    def revision(self) -> int:
        return self._read(lambda db: last_change(db)[0])

    def fingerprint(self) -> tuple[int, bytes]:
        number, _, frames_xor = self._read(last_change)
        return number, bytes(frames_xor)

    def num_frames(self) -> int:
        return self._read(lambda db: last_change(db)[1])

    def find(self, names: Iterable[str]) -> dict[str, MapFrame]:
        wanted = list(names)
        return self._read(lambda db: find_frames(db, wanted))

    def changes(self) -> list[ChangeRecord]:
        return self._read(read_changes)


Migration = str | Callable[[Database], None]
"""What brings tables from one version to the next: SQL, or a function where that is not enough."""


class DamagedRowError(ValueError):
    """A row is not the one that was written."""


def migrate(db: Database, migrations: Sequence[Migration]) -> None:
    for step in migrations:
        if callable(step):
            step(db)
        else:
            for statement in step.split(";"):
                if statement.strip():
                    db.execute(statement)


def move_scale_into_settings(db: Database) -> None:
    """Whether the scale is known stood with the photos that brought it, in the history, which copies do not share."""
    abouts = [json.loads(about) for (about,) in db.execute("SELECT about FROM changes")]
    is_known = all(about.get("scale_is_known", True) for about in abouts)
    for old, sha256 in db.execute("SELECT value, sha256 FROM settings").fetchall():  # none in a map that is being made
        _require_digest(old, sha256)
        value = json.dumps(json.loads(old) | {"scale_is_known": is_known}, sort_keys=True)
        db.execute("UPDATE settings SET value = ?, sha256 = ?", [value, digest(value)])


# Reading


def read_snapshot(db: Database) -> Snapshot:
    revision, settings = last_change(db)[0], read_settings(db)
    return Snapshot(
        revision, settings, tuple(_frame(row) for row in db.execute(f"{_SELECT_FRAMES} ORDER BY frames.id"))
    )


def read_newer(db: Database, revision: int) -> Newer:
    """What came after a change."""
    last, num_frames, _ = last_change(db)
    # From the last one back: changes bring frames in the order of their numbers, so the others need not be looked at.
    backwards = (_frame(row) for row in db.execute(f"{_SELECT_FRAMES} ORDER BY frames.id DESC"))
    frames = list(takewhile(lambda frame: frame.change > revision, backwards))
    return Newer(last, num_frames, tuple(reversed(frames)))


def read_settings(db: Database) -> MapSettings:
    value, sha256 = db.execute("SELECT value, sha256 FROM settings").fetchone()
    _require_digest(value, sha256)
    return MapSettings.from_json(value)


def last_change(db: Database) -> tuple[int, int, bytes]:
    """Its number, how many frames there are after it, and the XOR of their hashes."""
    row = db.execute("SELECT id, num_frames, frames_xor FROM changes ORDER BY id DESC LIMIT 1").fetchone()
    return row or (0, 0, _NOTHING)


def find_frames(db: Database, names: Iterable[str]) -> dict[str, MapFrame]:
    return {row[0]: _frame(row) for row in _select_named(db, list(names))}


def read_changes(db: Database) -> list[ChangeRecord]:
    rows = db.execute("SELECT id, kind, at_utc, about, num_frames, frames_xor FROM changes ORDER BY id")
    return [
        ChangeRecord(number, kind, at, json.loads(about), count, xor_) for number, kind, at, about, count, xor_ in rows
    ]


def shards_num_bytes(db: Database) -> int:
    return int(db.execute("SELECT coalesce(sum(num_bytes), 0) FROM shards").fetchone()[0])


def _select_named(db: Database, names: Sequence[str]) -> Iterator[Row]:
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = names[start : start + NAMES_AT_ONCE]
        yield from db.execute(f"{_SELECT_FRAMES} WHERE frames.name IN ({', '.join('?' * len(some))})", some)


def check_rows(db: Database, where: str, frames: list[MapFrame]) -> Iterator[Damage]:
    """What is wrong with rows of the tables, the map's part `where`; the frames in them are put into the list."""
    frames_xor, is_whole = _NOTHING, True
    for row in db.execute(f"{_SELECT_FRAMES} ORDER BY frames.id"):
        frame = _frame(row)
        frames.append(frame)
        frames_xor = xor(frames_xor, _frame_sha256(frame))
        if _frame_sha256(frame) != row[-1]:
            is_whole = False
            yield Damage(where, f"the row of {frame.name!r} is not as it was written", (str(frame.name),))
    everyone = tuple(str(frame.name) for frame in frames)
    for number, (*told, xor_then, sha256) in enumerate(
        db.execute("SELECT id, kind, at_utc, about, num_frames, frames_xor, sha256 FROM changes ORDER BY id"), start=1
    ):
        if told[0] != number:
            is_whole = False
            yield Damage(where, f"expected change {number}, found change {told[0]}: some rows are lost", everyone)
            break
        if digest(*told, bytes(xor_then).hex()) != sha256:
            is_whole = False
            yield Damage(where, f"the row of change {told[0]} is not as it was written", ())
    _, num_frames, expected_xor = last_change(db)
    if is_whole and (len(frames), frames_xor) != (num_frames, expected_xor):
        lost = f"expected {num_frames:,} photos, found {len(frames):,}: some rows are lost"
        yield Damage(where, lost, everyone)
    try:
        read_settings(db)
    except (DamagedRowError, DatasetError, ValueError, TypeError, KeyError) as error:  # they say how all are read
        yield Damage(where, str(error), everyone)


# Changing


class TableChange:
    """A change in the making, within the write transaction of `db`; a store's own keeps the shards."""

    def __init__(self, db: Database, kind: str, about: dict[str, object]) -> None:
        self._db = db
        self._kind, self._about = kind, about
        last, self._num_frames, self._frames_xor = last_change(db)
        self.number = last + 1
        self._goes_on = self._has_begun = False
        self._is_empty = True
        self._doubted_shards: set[str] = set()
        """To which no frame may lead when all is done; of those of a large map they are few."""
        self.dropped_shards = False

    def _keep(self, shard: Shard) -> None:
        """Keeps a shard that is new to the tables, and writes it down there."""
        raise NotImplementedError

    def put_shard(self, shard: Shard) -> str:
        if self._db.execute("SELECT 1 FROM shards WHERE sha256 = ?", [shard.sha256]).fetchone() is None:
            self._keep(shard)
            self._doubted_shards.add(shard.sha256)  # until a frame comes that leads to it
        return shard.sha256

    def _insert_shard(self, shard: Shard, num_bytes: int) -> int:
        """Its number."""
        values = (shard.sha256, num_bytes, *shard.size_hw)
        self._db.execute("INSERT INTO shards (sha256, num_bytes, height, width) VALUES (?, ?, ?, ?)", values)
        return self._id_of("shards", "sha256", shard.sha256)

    def continue_history(self, changes: Sequence[ChangeRecord]) -> None:
        assert self.number == 1, "a map that is being made has no history of its own"
        for change in changes:
            about = json.dumps(change.about, sort_keys=True)
            self._write_change((change.number, change.kind, change.at_utc, about, change.num_frames), change.frames_xor)
            self.number = change.number + 1
            self._goes_on = True

    def insert(self, frames: Sequence[MapFrame]) -> None:
        self._require_new([frame.name for frame in frames])
        if frames:
            self._begin()
        frames = frames if self._goes_on else [replace(frame, change=self.number) for frame in frames]
        self._db.executemany(
            "INSERT INTO frames (qw, qx, qy, qz, x, y, z, photo_width, photo_height, sequence, timestamp_s,"
            " photo_sha256, shard_row, data_sha256, camera_id, shard_id, sha256, name, change_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*values, frame.change) for values, frame in zip(self._values(frames), frames, strict=True)],
        )
        for frame in frames:
            self._frames_xor = xor(self._frames_xor, _frame_sha256(frame))
            self._num_frames += 1
            self._is_empty = False

    def update(self, frames: Sequence[MapFrame]) -> None:
        old_sha256 = self._sha256_by_name([frame.name for frame in frames])
        self._db.executemany(
            "UPDATE frames SET qw = ?, qx = ?, qy = ?, qz = ?, x = ?, y = ?, z = ?, photo_width = ?, photo_height = ?,"
            " sequence = ?, timestamp_s = ?, photo_sha256 = ?, shard_row = ?, data_sha256 = ?, camera_id = ?,"
            " shard_id = ?, sha256 = ? WHERE name = ?",
            self._values(frames),
        )
        for frame in frames:
            self._frames_xor = xor(xor(self._frames_xor, old_sha256[frame.name]), _frame_sha256(frame))
            self._is_empty = False

    def remove(self, names: Sequence[str]) -> None:
        for sha256 in self._sha256_by_name(names).values():
            self._frames_xor = xor(self._frames_xor, sha256)
            self._num_frames -= 1
            self._is_empty = False
        self._db.executemany("DELETE FROM frames WHERE name = ?", [[name] for name in names])

    def set_settings(self, settings: MapSettings) -> None:
        value = settings.to_json()
        self._db.execute("DELETE FROM settings")
        self._db.execute("INSERT INTO settings (id, value, sha256) VALUES (1, ?, ?)", [value, digest(value)])
        self._is_empty = False

    def finish(self) -> None:
        """Writes down what was done; a change of nothing is none."""
        doubted = sorted(self._doubted_shards)
        for some in (doubted[start : start + NAMES_AT_ONCE] for start in range(0, len(doubted), NAMES_AT_ONCE)):
            unused = "NOT EXISTS (SELECT 1 FROM frames WHERE shard_id = shards.id)"
            delete = f"DELETE FROM shards WHERE sha256 IN ({', '.join('?' * len(some))}) AND {unused}"
            self.dropped_shards |= self._db.execute(delete, some).rowcount > 0
        if not self._is_empty:
            about, at_utc = json.dumps(self._about, sort_keys=True), datetime.now(UTC).isoformat(timespec="seconds")
            self._write_change((self.number, self._kind, at_utc, about, self._num_frames), self._frames_xor)

    def _begin(self) -> None:
        """The change's row is there before frames that lead to it: SQLite would look through all frames for those."""
        if not (self._goes_on or self._has_begun):
            self._write_change((self.number, self._kind, "", "{}", 0), _NOTHING)
            self._has_begun = True

    def _write_change(self, told: tuple[int, str, str, str, int], frames_xor: bytes) -> None:
        self._db.execute(_WRITE_CHANGE, (*told, frames_xor, digest(*told, frames_xor.hex())))

    def _values(self, frames: Sequence[MapFrame]) -> list[tuple[object, ...]]:
        """Of each frame, in the order in which `update` names them."""
        lines = dict.fromkeys(frame.camera_line for frame in frames)
        self._db.executemany("INSERT INTO cameras (line) VALUES (?) ON CONFLICT DO NOTHING", [[line] for line in lines])
        camera_id = {line: self._id_of("cameras", "line", line) for line in lines}
        shard_id = {sha256: self._id_of("shards", "sha256", sha256) for sha256 in {frame.shard for frame in frames}}
        return [
            (
                *_without_minus_zero(frame.quat_wxyz),
                *_without_minus_zero(frame.cam_center_world),
                frame.photo_width,
                frame.photo_height,
                frame.sequence,
                frame.timestamp_s,
                frame.photo_sha256,
                frame.shard_row,
                frame.data_sha256,
                camera_id[frame.camera_line],
                shard_id[frame.shard],
                _frame_sha256(frame),
                frame.name,
            )
            for frame in frames
        ]

    def _id_of(self, table: str, column: str, value: str) -> int:
        row = self._db.execute(f"SELECT id FROM {table} WHERE {column} = ?", [value]).fetchone()
        assert row is not None, "put_shard comes first"
        return int(row[0])

    def _require_new(self, names: Sequence[str]) -> None:
        seen = {row[0] for row in _select_named(self._db, names)}
        for name in names:
            if safe_name(name, where="the map") != name:
                raise DatasetError(f"expected the shortest form of a name, found {name!r}. Use safe_name of it.")
            if name in seen:
                raise DatasetError(
                    f"expected every name once, found {name!r} in the map already. Remove it first, or rename it."
                )
            seen.add(name)

    def _sha256_by_name(self, names: Sequence[str]) -> dict[str, bytes]:
        """Hashes of frames that are about to change."""
        found: dict[str, bytes] = {}
        for row in _select_named(self._db, names):
            found[row[0]] = row[-1]
            self._doubted_shards.add(_frame(row).shard)
        missing = [name for name in names if name not in found]
        if missing:
            raise DatasetError(
                f"expected photos of the map, found none named {missing[0]!r}"
                f"{f' and {len(missing) - 1:,} others' if len(missing) > 1 else ''}. "
                "Look them up with `relograph map info --names`."
            )
        return found


# Rows


def _frame(row: Row) -> MapFrame:
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
        *_without_minus_zero((*frame.quat_wxyz, *frame.cam_center_world)),
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


def _without_minus_zero(values: Sequence[float]) -> tuple[float, ...]:
    """SQLite has none, and a map is to be the same wherever it is kept."""
    return tuple(value + 0.0 for value in values)


def _require_digest(settings: str, sha256: bytes) -> None:
    if digest(settings) != sha256:
        raise DamagedRowError("the map's settings are not those that were written")


def is_row_whole(shard: Shard, row: int, frame: MapFrame) -> bool:
    return row < len(shard) and shard.row_sha256(row) == frame.data_sha256
