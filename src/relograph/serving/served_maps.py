"""Maps that are served: each is read once and asked by many, and read again when somebody has changed it.

A thread for each map looks at its revision. What it has read is swapped in as a whole: queries that are under way keep
what they began with. A map that cannot be read is away until it can. Another thread for each map changes it, one change
after the other, and a few read the small photos that are looked at.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import relograph
from relograph.errors import CheckpointError, RelographError
from relograph.localization.photos import PhotoFile
from relograph.maps import Map
from relograph.maps.adding import EncodedPhotos, require_network
from relograph.maps.features import ShardedFeatures
from relograph.maps.places import PostgresAddress, open_store, parse_place
from relograph.maps.records import MapFrame, MapSettings
from relograph.maps.store import MapStore
from relograph.models.shipped import LoadedMatchGNN
from relograph.serving.config import ServeConfig, named_maps
from relograph.serving.errors import ServiceError, map_away, map_locked, not_found
from relograph.serving.metrics import Metrics

LOGGER = logging.getLogger("relograph.serving")
READING_THREADS = 4
"""Of each map, for small photos that are looked at."""
T = TypeVar("T")


@dataclass(frozen=True)
class MapMoment:
    """A map as it was when it was read."""

    revision: int
    settings: MapSettings
    frames: tuple[MapFrame, ...]
    features: ShardedFeatures
    """Row i is the i-th of `frames`."""

    @cached_property
    def row_by_name(self) -> dict[str, int]:
        return {frame.name: row for row, frame in enumerate(self.frames)}

    def jpeg(self, row: int) -> bytes:
        """The small photo that the map keeps."""
        features = self.features
        return features.shards[features.shard_of[row]].jpeg(int(features.place[row]))


@dataclass(frozen=True)
class Added:
    """What became of a photo that was to be added."""

    frame: MapFrame | None
    """The photo of that name; None where somebody else has removed it already."""
    was_there: bool
    """Whether there was one of that name before."""
    wrong: str | None
    """What keeps the photo out, if anything."""


class ServedMap:
    """One map under its name."""

    def __init__(self, name: str, where: str, network: LoadedMatchGNN, config: ServeConfig, metrics: Metrics) -> None:
        self.name, self._where, self._network = name, where, network
        self._poll_s, self._wait_s, self._metrics = config.poll_s, config.map_wait_s, metrics
        self._store: MapStore | None = None
        self._moment: MapMoment | None = None
        self._fingerprint: tuple[int, bytes] | None = None
        self._is_away = True
        self._one_reader = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"change {name}")
        self._readers = ThreadPoolExecutor(READING_THREADS, thread_name_prefix=f"read {name}")
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch {name}", daemon=True)

    def start(self) -> None:
        """Reads the map and begins to watch it. One that cannot be read may come back: that is no error here."""
        try:
            self.look()
        except RelographError as error:
            LOGGER.warning("The map %s cannot be read yet: %s", self.name, error)
        self._thread.start()

    def stop(self) -> None:
        self._writer.shutdown()
        self._is_stopped.set()
        self._readers.shutdown(cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_away(self) -> bool:
        return self._is_away

    @property
    def now(self) -> MapMoment:
        """The map as it was last read."""
        moment = self._moment
        if moment is None or self._is_away:
            raise map_away(self.name)
        return moment

    def look(self) -> None:
        """Reads the map again if it has changed, or another has taken its place."""
        with self._one_reader:
            try:
                if self._store is None:
                    self._store = open_store(self._where, wait_s=self._wait_s)
                fingerprint = self._store.fingerprint()
                if fingerprint != self._fingerprint:
                    self._moment = _read(self._store, self._network)
                    self._fingerprint = fingerprint
            except RelographError:
                self._set_away(True)
                raise
            self._set_away(False)

    def reading(self, error: RelographError) -> ServiceError:
        """What to say where the map could not be read for a request."""
        if not self._is_away:
            LOGGER.warning("The map %s cannot be read: %s", self.name, error)
        self._set_away(True)
        return map_away(self.name)

    async def read(self, read: Callable[[], T]) -> T:
        """What `read` gives, by threads of this map: where its disk or database is slow, no other map waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    # Changing

    async def add(
        self, photo: PhotoFile, encode: Callable[[MapFrame | None, MapSettings], list[EncodedPhotos]]
    ) -> Added:
        """Takes a photo in, encoded by whoever has the network."""
        return await self._in_turn(partial(self._add, photo, encode))

    async def remove(self, name: str) -> None:
        """Takes a photo out."""
        await self._in_turn(partial(self._remove, name))

    async def _in_turn(self, change: Callable[[], T]) -> T:
        """What `change` gives, by the one thread that changes this map: those who wait hold none that others need."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, change)
        except ServiceError:
            raise
        except RelographError as error:  # those who read may go on
            LOGGER.warning("The map %s cannot be changed: %s", self.name, error)
            raise (map_away if self._is_away else map_locked)(self.name) from error

    def _add(self, photo: PhotoFile, encode: Callable[[MapFrame | None, MapSettings], list[EncodedPhotos]]) -> Added:
        store = self._opened()
        known = store.find([photo.name]).get(photo.name)
        added = Map(store, self._network).add_encoded(encode(known, store.settings()), _about(), skip_bad_frames=True)
        store.tend()
        self.look()
        wrong = added.left_out[0] if added.left_out else None
        return Added(store.find([photo.name]).get(photo.name), known is not None, wrong)

    def _remove(self, name: str) -> None:
        store = self._opened()
        if not store.find([name]):
            raise not_found()
        Map(store, self._network).remove([name])
        self.look()

    def _opened(self) -> MapStore:
        if self._store is None:
            raise map_away(self.name)
        return self._store

    # Watching

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._poll_s):
            was_away = self._is_away
            try:
                self.look()
                if was_away:
                    LOGGER.warning("The map %s can be read again.", self.name)
            except RelographError as error:
                if not was_away:
                    LOGGER.warning("The map %s cannot be read: %s", self.name, error)
            except Exception:
                self._set_away(True)
                LOGGER.exception("The map %s cannot be read.", self.name)

    def _set_away(self, is_away: bool) -> None:
        self._is_away = is_away
        self._metrics.map_ready.labels(self.name).set(not is_away)
        if self._moment is not None:
            self._metrics.map_frames.labels(self.name).set(len(self._moment.frames))
            self._metrics.map_revision.labels(self.name).set(self._moment.revision)


def open_maps(config: ServeConfig, network: LoadedMatchGNN, metrics: Metrics) -> dict[str, ServedMap]:
    """The maps of a service by their names, not started yet."""
    named = named_maps(config.maps)
    return {name: ServedMap(name, where, network, config, metrics) for name, where in named.items()}


def check_maps(config: ServeConfig, network_sha256: str) -> None:
    """Raises where a map that is there is none of these weights, or a folder is no map; a database may come back."""
    for name, where in named_maps(config.maps).items():
        try:
            settings = open_store(where, wait_s=config.map_wait_s).settings()
        except RelographError:
            if not isinstance(parse_place(where), PostgresAddress):
                raise
            continue
        if settings.network_sha256 != network_sha256:
            raise CheckpointError(
                f"{name}: expected a map of the weights that are served ({network_sha256[:12]}), found one of others "
                f"({settings.network_sha256[:12]}). Give those weights with --weights, or make the map again."
            )


def _read(store: MapStore, network: LoadedMatchGNN) -> MapMoment:
    some = Map(store, network)
    features = some.features  # first: it may see a newer map than the first look did
    snapshot = some.snapshot
    require_network(snapshot.settings, network)
    return MapMoment(snapshot.revision, snapshot.settings, snapshot.frames, features)


def _about() -> dict[str, object]:
    return {"relograph": relograph.__version__, "from": "relograph serve"}
