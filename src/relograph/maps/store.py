"""Where a map is kept: the interface that every backend has."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from relograph.maps.finding import FrameFinder
from relograph.maps.records import ChangeRecord, MapFrame, MapSettings, Snapshot, VerifyReport
from relograph.maps.shards import AnyShard, Shard
from relograph.progress import SILENT, Progress

WAIT_S = 30.0
"""How long a second writer waits for the first."""


@runtime_checkable  # the tests check every argument's type while they run
class Change(Protocol):
    """A transaction that changes a map: all of it happens, or nothing."""

    def put_shard(self, shard: Shard) -> str:
        """Keeps a shard and returns its SHA-256; without a frame that leads to it, it goes again."""
        ...

    def insert(self, frames: Sequence[MapFrame]) -> None:
        """Takes in frames whose names are new and whose shards are there."""
        ...

    def update(self, frames: Sequence[MapFrame]) -> None:
        """Puts frames in the place of those of the same names."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Removes the frames of those names, which must be there."""
        ...

    def set_settings(self, settings: MapSettings) -> None: ...

    def continue_history(self, changes: Sequence[ChangeRecord]) -> None:
        """Makes a new map the continuation of another, whose changes these are: frames keep the numbers of theirs."""
        ...


Fill = Callable[[Change], None]
"""What puts photos into a map while it is made: whoever sees the map sees them all."""


def fill_nothing(change: Change) -> None:
    """An empty map."""


@runtime_checkable
class MapStore(Protocol):
    """A map's frames, shards and changes. Methods may be called from several threads and processes."""

    @property
    def where(self) -> str:
        """What messages call the map."""
        ...

    def snapshot(self) -> Snapshot:
        """The settings and all frames in the order in which they came, at one moment."""
        ...

    def settings(self) -> MapSettings: ...

    def revision(self) -> int:
        """The number of the last change."""
        ...

    def fingerprint(self) -> tuple[int, bytes]:
        """That number and the XOR of all photos' hashes: another map in the same place has others."""
        ...

    def num_frames(self) -> int: ...

    def find(self, names: Iterable[str]) -> dict[str, MapFrame]:
        """Those of the frames of these names that are there, by name."""
        ...

    def changes(self) -> list[ChangeRecord]:
        """What was done to the map, oldest first."""
        ...

    def shards(self, frames: Iterable[MapFrame]) -> dict[str, AnyShard]:
        """The shards of those frames by their SHA-256.

        They stay readable as long as they are used, also when a later change removes them; `MissingShardError` where
        one has gone already.
        """
        ...

    def finder(self, snapshot: Snapshot, progress: Progress = SILENT) -> FrameFinder | None:
        """What finds frames of a snapshot by their descriptors; None where they are so few that all are compared."""
        ...

    def tend(self, progress: Progress = SILENT, *, anew: bool = False) -> None:
        """Brings what `finder` needs in step with the frames, which whoever changed them asks for.

        `anew` makes it again from the frames that there are, and gives back the room of those that are gone.
        """
        ...

    def num_bytes(self) -> dict[str, int]:
        """What the map takes, by part."""
        ...

    def writing_ahead(self) -> AbstractContextManager[Callable[[Shard], None]]:
        """What other threads may hand shards that `put_shard` will be given in a change to come: it has less to do.

        What no change has kept is gone at the end.
        """
        ...

    def change(self, kind: str, about: dict[str, object]) -> AbstractContextManager[Change]:
        """A transaction. There is one at a time: a second waits a while, then fails. Readers are not blocked."""
        ...

    def verify(self, progress: Progress = SILENT) -> VerifyReport:
        """Reads every byte and tells what is not as it was written."""
        ...
