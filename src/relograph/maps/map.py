"""`Map`: posed photos of a place, ready to localize others in it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import length_hint
from pathlib import Path

import numpy as np

import relograph
from relograph.errors import ConfigError, DatasetError
from relograph.localization.map_features import Precision
from relograph.localization.photos import PosedPhoto
from relograph.maps.adding import EncodedPhotos, encode_photos, require_network
from relograph.maps.copying import Advance, moved, packed, require_same_features
from relograph.maps.features import ShardedFeatures
from relograph.maps.places import PostgresAddress, create_store, open_store
from relograph.maps.ranks import Ranks
from relograph.maps.reading import in_chunks
from relograph.maps.records import (
    USUAL_LEVELS,
    ChangeRecord,
    Georeference,
    Level,
    MapFrame,
    MapSettings,
    Snapshot,
    VerifyReport,
    frame_poses,
)
from relograph.maps.shards import PHOTOS_PER_SHARD, AnyShard, MissingShardError
from relograph.maps.similarity import Similarity
from relograph.maps.store import Change, MapStore
from relograph.maps.thinning import Nearest, choose_spread_out, count_within, nearest_of
from relograph.models.folding import fold_match_gnn
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn
from relograph.progress import SILENT, Progress
from relograph.scenes.names import safe_name
from relograph.scenes.scene import Scene

SIZE_MARGIN = 0.99
"""Of the size that is asked for: photos of a shard are not all of one size."""
EMPTY_DATABASE_BYTES = 60_000
"""What a map takes besides its photos."""


@dataclass(frozen=True)
class Added:
    """What came of adding photos."""

    num_added: int
    num_there: int
    """Photos that the map had already, with the same pose."""
    left_out: tuple[str, ...]
    """Why bad photos were left out, a sentence each."""


class Map:
    """A map on disk. It is read when something of it is first asked for, and again after a change made through it.

    Others may change the map meanwhile: what was read stays as it was until `refresh`.
    """

    def __init__(self, store: MapStore, network: LoadedMatchGNN | None = None) -> None:
        self.store = store
        self._network = network
        self._snapshot: Snapshot | None = None
        self._features: ShardedFeatures | None = None

    @staticmethod
    def create(
        where: Path | str | PostgresAddress,
        scene: Scene | Iterable[PosedPhoto] = (),
        *,
        network: LoadedMatchGNN | None = None,
        precision: Precision = "float16",
        levels: Sequence[Level] = USUAL_LEVELS,
        skip_bad_frames: bool = False,
        num_processes: int = 0,
        progress: Progress = SILENT,
    ) -> "Map":
        """A new map of posed photos, by the network that is part of the package or another one.

        After a kill it holds the photos up to there, and `add` of the same scene goes on. For `num_processes` see
        `add`.
        """
        network = network or load_match_gnn()
        settings = MapSettings(
            network_sha256=network.sha256,
            precision=precision,
            levels=tuple(levels),
            scale_is_known=_scale_is_known(scene),
        )
        made = Map(create_store(where, settings, "create", _about(scene)), network)
        made.add(scene, skip_bad_frames=skip_bad_frames, num_processes=num_processes, progress=progress)
        return made

    @staticmethod
    def open(where: Path | str | PostgresAddress, *, network: LoadedMatchGNN | None = None) -> "Map":
        """The map that is there. A network is needed to add photos, and where the map does not keep all features."""
        opened = Map(open_store(where), network)
        if network is not None:
            require_network(opened.store.settings(), network)
        return opened

    # Reading

    @property
    def snapshot(self) -> Snapshot:
        """What the database said when it was read."""
        if self._snapshot is None:
            self._snapshot = self.store.snapshot()
        return self._snapshot

    @property
    def frames(self) -> tuple[MapFrame, ...]:
        """The photos in the order in which they came."""
        return self.snapshot.frames

    @property
    def settings(self) -> MapSettings:
        return self.snapshot.settings if self._snapshot is not None else self.store.settings()

    def __len__(self) -> int:
        return len(self.snapshot.frames) if self._snapshot is not None else self.store.num_frames()

    def __iter__(self) -> Iterator[MapFrame]:
        return iter(self.frames)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.store.find([name]))

    def __getitem__(self, name: str) -> MapFrame:
        found = self.store.find([name])
        if not found:
            raise DatasetError(
                f"{self.store.where}: expected a photo named {name!r}, found none of that name. See map.frames."
            )
        return found[name]

    @property
    def features(self) -> ShardedFeatures:
        """What the Localizer needs: row i is the i-th of `frames`."""
        while self._features is None:
            snapshot = self.snapshot
            try:
                shards = self.shards(snapshot.frames)
                model = None if self._network is None else self._network.model
                finder = self.store.finder(snapshot)
                self._features = ShardedFeatures.read(snapshot.frames, snapshot.settings, shards, model, finder)
            except MissingShardError:
                self.refresh()  # removed since the database was read: the newer map is what there is
                if self.snapshot.revision == snapshot.revision:
                    raise
        return self._features

    @property
    def network(self) -> LoadedMatchGNN:
        """That made the features: the one that the map was opened with, or else the package's."""
        return self.load_network()

    def load_network(self) -> LoadedMatchGNN:
        """The same, which may be read only now."""
        if self._network is None:
            self.answer_with(load_match_gnn())
        assert self._network is not None
        return self._network

    def answer_with(self, network: LoadedMatchGNN) -> None:
        """Let the network that made the features compute again what the map does not keep of them."""
        require_network(self.settings, network)
        if network is not self._network:
            self._network, self._features = network, None

    def shards(self, frames: Iterable[MapFrame]) -> dict[str, AnyShard]:
        """The shards of those frames by their SHA-256."""
        return self.store.shards(frames)

    def jpeg(self, frame: MapFrame) -> bytes:
        """The photo as the network saw it."""
        return self.shards([frame])[frame.shard].jpeg(frame.shard_row)

    def changes(self) -> list[ChangeRecord]:
        """What was done to the map, oldest first."""
        return self.store.changes()

    def refresh(self) -> None:
        """Sees what others have changed."""
        self._snapshot = self._features = None

    def verify(self, progress: Progress = SILENT) -> VerifyReport:
        """Reads every byte of the map and tells what is not as it was written."""
        return self.store.verify(progress)

    # Changing

    def add(
        self,
        photos: Scene | Iterable[PosedPhoto],
        *,
        network: LoadedMatchGNN | None = None,
        skip_bad_frames: bool = False,
        ranks: Ranks | None = None,
        num_processes: int = 0,
        progress: Progress = SILENT,
    ) -> Added:
        """Takes photos in, a shard at a time; each shard is a change that is kept whatever happens after it.

        A photo that is there already, with the same pose and camera, is passed over, so an `add` that was stopped can
        be repeated. One with the same name that is another photo is an error. With `ranks` other processes, which call
        `ranks.help` with the same photos, encode most of them.

        With `num_processes` so many processes read the photos instead of threads, which keeps a GPU busy where they are
        thousands; as with all processes of Python's, a script then says `if __name__ == "__main__":` first. With
        `ranks` threads read in any case.
        """
        settings, about = self.store.settings(), _about(photos)
        network = network or self.network
        require_network(settings, network)
        self._network, model = network, fold_match_gnn(network.model)
        with self.store.writing_ahead() as write_ahead:
            if ranks is None:
                with_known = self._with_known(photos)
                encoded = encode_photos(with_known, model, settings, num_processes=num_processes, write=write_ahead)
            else:
                everyone = list(photos)
                encoded = ranks.encode(everyone, self.store.find([photo.name for photo in everyone]), model, settings)
            with closing(encoded), progress.task("adding photos to the map", total=length_hint(photos)) as advance:
                added = self.add_encoded(
                    encoded,
                    about,
                    scale_is_known=_scale_is_known(photos),
                    skip_bad_frames=skip_bad_frames,
                    advance=advance,
                )
        self.store.tend(progress)
        return added

    def add_encoded(
        self,
        photos: Iterable[EncodedPhotos],
        about: dict[str, object],
        *,
        scale_is_known: bool = True,
        skip_bad_frames: bool = False,
        advance: Advance = lambda num_photos: None,
    ) -> Added:
        """Takes photos in whose features are there, each lot in a change of its own; `about` says where they are from.

        Who has added all asks the store to `tend` what finds them.
        """
        num_added, num_there, left_out = 0, 0, []
        try:
            for some in photos:
                if some.bad and not skip_bad_frames:
                    raise some.bad[0]
                left_out += [str(error) for error in some.bad]
                num_there += some.num_there
                if some.frames:
                    self._commit(some, about, scale_is_known=scale_is_known)
                    num_added += len(some.frames)
                advance(some.num_photos)
        finally:
            self.refresh()
        return Added(num_added, num_there, tuple(left_out))

    def remove(self, names: Sequence[str]) -> None:
        """Takes photos out, in one change."""
        with self.store.change("remove", _about(())) as change:
            change.remove(list(dict.fromkeys(names)))
        self._changed()

    def merge(
        self,
        other: "Map",
        T_this_other: Similarity | None = None,
        *,
        prefix: str = "",
        progress: Progress = SILENT,
    ) -> None:
        """Takes in all photos of another map, in one change; `T_this_other` takes that map's world to this one's.

        `prefix` is put before their names. Where the other map's scale is not known and the transform has none, that
        of this one is not known any more.
        """
        frames, names = list(other.frames), self.merged_names(other, prefix)
        about = _about(()) | {"from": other.store.where}
        if T_this_other is not None:
            frames = moved(frames, T_this_other)
            about["T_this_other"] = T_this_other.to_dict()
        is_scaled = T_this_other is not None and T_this_other.scale != 1.0
        scale_is_known = other.settings.scale_is_known or is_scaled
        self._take(other.store, frames, names, "merge", about, progress, scale_is_known=scale_is_known)

    def merged_names(self, other: "Map", prefix: str = "") -> list[str]:
        """How the photos of another map would be called here; an error where it cannot be merged."""
        require_same_features(self.store.settings(), other.settings)
        names = [safe_name(prefix + frame.name, where="the merged photo's name") for frame in other.frames]
        if known := self.store.find(names):
            raise DatasetError(
                f"{self.store.where}: expected photos with new names, found {len(known):,} of the same name in both "
                f"maps, such as {next(iter(known))!r}. Give those of the other map a prefix."
            )
        return names

    def copy(self, where: Path | str | PostgresAddress, *, progress: Progress = SILENT) -> "Map":
        """The same map with its history in another place, without the room of photos that are gone."""
        history = [change for change in self.changes() if change.number <= self.snapshot.revision]
        return self._new(where, self.frames, "copy", progress, history)

    def split(self, where: Path | str | PostgresAddress, names: Sequence[str], *, progress: Progress = SILENT) -> "Map":
        """A new map of some of the photos; this one keeps them."""
        wanted = set(names)
        frames = [frame for frame in self.frames if frame.name in wanted]
        if missing := wanted - {frame.name for frame in frames}:
            raise DatasetError(
                f"{self.store.where}: expected photos of the map, found none named {min(missing)!r}. See map.frames."
            )
        return self._new(where, frames, "split", progress)

    def _new(
        self,
        where: Path | str | PostgresAddress,
        frames: Sequence[MapFrame],
        kind: str,
        progress: Progress,
        history: Sequence[ChangeRecord] = (),
    ) -> "Map":
        """A map that holds frames of this one from its beginning on."""

        def fill(change: Change) -> None:
            change.continue_history(history)
            with progress.task("copying photos", total=len(frames)) as advance:
                change.insert(packed(self.store, frames, change, advance))

        about = _about(()) | {"from": self.store.where}
        made = Map(create_store(where, self.settings, kind, about, fill), self._network)
        made.store.tend(progress)
        return made

    def compact(self, num_frames: int | None = None, *, progress: Progress = SILENT) -> Nearest:
        """Keeps `num_frames` photos that stand apart, and no room for any that are gone, in one change.

        Says how far each photo that went is from the nearest that is left. Without a number all photos stay.
        """
        frames, T_world_cam = self.frames, frame_poses(self.frames)
        everyone = np.arange(len(frames))
        kept = everyone if num_frames is None else choose_spread_out(T_world_cam, num_frames)
        dropped = np.setdiff1d(everyone, kept)
        with (
            self.store.change("compact", _about(()) | {"num_frames": len(kept)}) as change,
            progress.task("packing the map", total=len(kept)) as advance,
        ):
            self._require_unchanged()
            change.remove([frames[row].name for row in dropped])
            stay = [frames[row] for row in kept]
            packed_frames = packed(self.store, stay, change, advance)
            change.update([new for new, old in zip(packed_frames, stay, strict=True) if new != old])
        self._changed(progress, anew=True)
        return nearest_of(T_world_cam, dropped, kept)

    def num_frames_within(self, num_bytes: int) -> int:
        """How many photos `compact` can be asked to keep for a map of at most that size."""
        shards, by_part = self.shards(self.frames), self.store.num_bytes()
        others = sum(by_part.values()) - by_part["shards"]
        fixed = min(others, EMPTY_DATABASE_BYTES)
        headers = by_part["shards"] / max(sum(shard.num_bytes for shard in shards.values()), 1)
        each = np.array([shards[frame.shard].num_bytes / len(shards[frame.shard]) for frame in self.frames])
        each = headers * each + (others - fixed) / max(len(self), 1)
        count = count_within(frame_poses(self.frames), each, SIZE_MARGIN * num_bytes - fixed)
        if not count:
            raise ConfigError(
                f"{self.store.where}: expected room for one photo at least, found {num_bytes:,} bytes for a map of "
                f"{len(self):,} photos in {sum(by_part.values()):,}. Allow more."
            )
        return count

    def move(self, T_new_world: Similarity) -> None:
        """Puts all photos into another world frame, in one change."""
        with self.store.change("move", _about(()) | {"T_new_world": T_new_world.to_dict()}) as change:
            self._require_unchanged()
            change.update(moved(self.frames, T_new_world))
            settings = self.store.settings()
            if settings.georeference is not None:
                change.set_settings(replace(settings, georeference=settings.georeference.in_world(T_new_world)))
        self.refresh()

    def set_georeference(self, georeference: Georeference) -> None:
        """Says where on Earth the map lies."""
        with self.store.change("georeference", _about(())) as change:
            change.set_settings(replace(self.store.settings(), georeference=georeference))
        self.refresh()

    def _take(
        self,
        source: MapStore,
        frames: Sequence[MapFrame],
        names: Sequence[str],
        kind: str,
        about: dict[str, object],
        progress: Progress,
        *,
        scale_is_known: bool = True,
    ) -> None:
        """Copies frames of another map under those names."""
        with (
            self.store.change(kind, about) as change,
            progress.task("copying photos", total=len(frames)) as advance,
        ):
            copied = packed(source, frames, change, advance)
            change.insert([replace(frame, name=name) for frame, name in zip(copied, names, strict=True)])
            self._doubt_scale(change, scale_is_known)
        self._changed(progress)

    def _doubt_scale(self, change: Change, scale_is_known: bool) -> None:
        """Says of the map that its scale is not known, where that of photos that come in is not."""
        settings = self.store.settings()
        if settings.scale_is_known and not scale_is_known:
            change.set_settings(replace(settings, scale_is_known=False))

    def _changed(self, progress: Progress = SILENT, *, anew: bool = False) -> None:
        """After photos came or went, by this map: they are found from now on."""
        self.refresh()
        self.store.tend(progress, anew=anew)

    def _require_unchanged(self) -> None:
        """Raises where another writer was faster: what is about to be done was thought out for an older map."""
        if self.store.revision() != self.snapshot.revision:
            self.refresh()
            raise DatasetError(
                f"{self.store.where}: expected the map as it was read, found that another process has changed it. "
                "Try again."
            )

    def _with_known(self, photos: Iterable[PosedPhoto]) -> Iterator[tuple[PosedPhoto, MapFrame | None]]:
        """Photos with the frames of the same name that the map has already."""
        for chunk in in_chunks(photos, PHOTOS_PER_SHARD):
            known = self.store.find([photo.name for photo in chunk])
            yield from ((photo, known.get(photo.name)) for photo in chunk)

    def _commit(self, photos: EncodedPhotos, about: dict[str, object], *, scale_is_known: bool) -> None:
        with self.store.change("add", about) as change:
            for shard in photos.shards:
                change.put_shard(shard)
            change.insert(photos.frames)
            self._doubt_scale(change, scale_is_known)


def _scale_is_known(photos: object) -> bool:
    return photos.scale_is_known if isinstance(photos, Scene) else True


def _about(photos: object) -> dict[str, object]:
    """Where a change came from."""
    about: dict[str, object] = {"relograph": relograph.__version__}
    if isinstance(photos, Scene):
        about |= {"scene": photos.name, "format": photos.format}
    return about
