"""Finds the photos of a large map by their descriptors, through a `StoredIndex` that lies beside the map's database.

The index is made from the map and can be made again. It names the change of the map that it is in step with, and each
of its rows a photo and its data, so that whatever it lacks or has too much of is seen: after a kill, beside a second
writer, in a restored copy. A reader puts up with that: what is gone it leaves out, and what is new it compares itself.
Writers bring the index in step when they are done, which costs what they added.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.errors import DatasetError
from relograph.maps.records import Damage, MapFrame, Snapshot, frames_by_shard
from relograph.maps.shards import AnyShard
from relograph.progress import SILENT, Progress
from relograph.retrieval import stored_index
from relograph.retrieval.index import ExactIndex
from relograph.retrieval.mapped_graph import has_faiss
from relograph.retrieval.stored_index import StoredIndex

INDEX, LOCK, PARTIAL = "index", "index.lock", "index.partial-"
MOST_GONE = 0.5
"""Share of an index's rows that may be of photos that are gone before it is made anew."""


@runtime_checkable  # the tests check every argument's type while they run
class FrameFinder(Protocol):
    """Finds photos of a map as it was at one moment."""

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        """Places among the moment's frames of up to `num` photos, most alike first, and the cosines of that."""
        ...


@dataclass(frozen=True)
class Newer:
    """What a map has that it had not after an earlier change."""

    revision: int
    num_frames: int
    """In all."""
    frames: tuple[MapFrame, ...]
    """That came since."""


@runtime_checkable
class IndexedStore(Protocol):
    """What the index needs of the store that it belongs to."""

    def num_frames(self) -> int: ...
    def newer_than(self, revision: int) -> Newer: ...
    def snapshot(self) -> Snapshot: ...
    def shards(self, frames: Iterable[MapFrame]) -> Mapping[str, AnyShard]: ...


class MapIndex:
    """The index of a map in a folder, once the map has more than `stored_index.EXACT_UP_TO` photos."""

    def __init__(self, map_folder: Path, store: IndexedStore) -> None:
        self._folder, self._store = map_folder, store

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._folder / INDEX).glob("*"))

    def finder(self, snapshot: Snapshot, progress: Progress = SILENT) -> FrameFinder | None:
        """What finds frames of the snapshot; None where they are so few, or FAISS is missing, that all are compared."""
        if len(snapshot.frames) <= stored_index.EXACT_UP_TO or not has_faiss():
            return None
        keys, index = _keys(snapshot.frames), self._opened()
        if index is None or index.needs_growth or _num_missing(keys, index) > stored_index.WAITING_ROWS:
            self.tend(progress)
            index = self._opened()
        return None if index is None else _IndexedFrames(snapshot.frames, keys, index, self._store)

    def tend(self, progress: Progress = SILENT, *, anew: bool = False) -> None:
        """Brings the index in step with the map, or makes it `anew` from the photos that there are, if they are many.

        Nothing happens where another process is at it, or where the disk is full or cannot be written: readers find
        photos without, and the next writer will do it.
        """
        is_large = self._store.num_frames() > stored_index.EXACT_UP_TO and has_faiss()
        if not is_large and not (anew and (self._folder / INDEX).exists()):
            return
        with self._lock() as is_mine, suppress(DatasetError, OSError):
            if is_mine and not is_large:
                self._set_aside()
                self._remove_partial()
            elif is_mine:
                index = None if anew else self._opened()
                index = self._made_anew(progress) if index is None else self._caught_up(index, progress)
                if index.needs_growth:
                    index.grow_graph(progress=progress)

    def verify(self, frames: Sequence[MapFrame]) -> list[Damage]:
        """What is wrong with the index, of which these photos are found; reads all of it."""
        if not (self._folder / INDEX).exists():
            return []
        advice = "`relograph map compact` makes the index anew"
        try:
            index = StoredIndex(self._folder / INDEX, warn=_nobody)
            found = index.verify()
        except (DatasetError, OSError) as error:
            return [Damage(INDEX, f"it cannot be read: {error}; {advice}", ())]
        name_by_key = {int(key): frame.name for key, frame in zip(_keys(frames), frames, strict=True)} if found else {}
        key_by_row = dict(zip(index.rows().tolist(), index.keys().tolist(), strict=True)) if found else {}
        damages = []
        for damage in found:
            names = [name_by_key.get(key_by_row.get(row, 0)) for row in damage.rows]
            what = f"its bytes are not those that were written; {advice}"
            damages.append(Damage(f"{INDEX}/{damage.path.name}", what, tuple(name for name in names if name)))
        return damages

    def _opened(self) -> StoredIndex | None:
        """The index, if there is one that can be used."""
        try:
            return StoredIndex(self._folder / INDEX, warn=_nobody)
        except (DatasetError, OSError):
            return None

    def _made_anew(self, progress: Progress) -> StoredIndex:
        self._remove_partial()
        snapshot = self._store.snapshot()
        frames = _by_shard(snapshot.frames)
        new = self._folder / f"{PARTIAL}{token_hex(4)}"
        descriptors = self._descriptors(frames)
        StoredIndex.create(new, descriptors, keys=_keys(frames), revision=snapshot.revision, progress=progress)
        # A reader that looks between these two finds no index, and compares all.
        self._set_aside()
        new.rename(self._folder / INDEX)
        self._remove_partial()
        return StoredIndex(self._folder / INDEX, warn=_nobody)

    def _set_aside(self) -> None:
        """The index, in one step: half of one would be a damaged one."""
        with suppress(FileNotFoundError):
            (self._folder / INDEX).rename(self._folder / f"{PARTIAL}{token_hex(4)}")

    def _remove_partial(self) -> None:
        """Indices in the making, or on their way out, of processes that were killed."""
        for left_over in self._folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(left_over)

    def _caught_up(self, index: StoredIndex, progress: Progress) -> StoredIndex:
        newer = self._store.newer_than(index.revision)
        num_gone = len(index) + len(newer.frames) - newer.num_frames
        if num_gone == 0 and newer.revision >= index.revision:
            frames, revision = _by_shard(newer.frames), newer.revision
        else:
            snapshot = self._store.snapshot()
            keys, its_keys = _keys(snapshot.frames), index.keys()
            index.remove(index.rows()[~torch.isin(its_keys, keys)].tolist())
            missing = (~torch.isin(keys, its_keys)).nonzero().squeeze(1).tolist()
            frames, revision = _by_shard([snapshot.frames[place] for place in missing]), snapshot.revision
        if index.num_rows - len(index) > MOST_GONE * index.num_rows:
            return self._made_anew(progress)
        index.add(self._descriptors(frames), keys=_keys(frames), revision=revision, grow=False)
        return index

    def _descriptors(self, frames: Sequence[MapFrame]) -> Iterator[Float[Tensor, "_ D"]]:
        """Of frames that stand by their shards, one of which is read at a time."""
        for (sha256, _), its_frames in frames_by_shard(frames).items():
            yield _described(its_frames, self._store.shards(its_frames)[sha256])

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Whether nobody else is changing the index, nor will until this is left."""
        try:
            descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:  # a disk that can only be read
            yield False
            return
        import fcntl  # not on Windows

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)


class _IndexedFrames:
    """Frames of a snapshot: most are found through the index, those that are newer than it are compared."""

    def __init__(
        self, frames: Sequence[MapFrame], keys: Int[Tensor, "F"], index: StoredIndex, store: IndexedStore
    ) -> None:
        rows, its_keys = index.rows(), index.keys()
        in_order, place_in_order = keys.sort()
        place = torch.searchsorted(in_order, its_keys).clamp_max(len(keys) - 1)
        is_there = in_order[place] == its_keys
        index.hide(rows[~is_there].tolist())
        self._index = index
        self._place_of_row = torch.full((index.num_rows,), -1)
        self._place_of_row[rows[is_there]] = place_in_order[place[is_there]]
        is_new = torch.ones(len(frames), dtype=torch.bool)
        is_new[self._place_of_row[rows[is_there]]] = False
        by_shard = _by_shard([frames[place] for place in is_new.nonzero().squeeze(1).tolist()])
        place_by_name = {frames[place].name: place for place in is_new.nonzero().squeeze(1).tolist()}
        self._new_places = torch.tensor([place_by_name[frame.name] for frame in by_shard], dtype=torch.long)
        shards = store.shards(by_shard)
        new = [_described(its_frames, shards[sha256]) for (sha256, _), its_frames in frames_by_shard(by_shard).items()]
        self._new = ExactIndex(torch.cat(new)) if new else None

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        found = self._index.search(descriptor[None], num)
        place, similarity = self._place_of_row[found.row[0]], found.similarity[0]
        if self._new is not None:
            new = self._new.search(descriptor[None].cpu(), num)
            place = torch.cat([place, self._new_places[new.row[0]]])
            similarity = torch.cat([similarity, new.similarity[0]])
        order = torch.from_numpy(np.lexsort((place.numpy(), -similarity.numpy())))[:num]
        order = order[similarity[order] > -torch.inf]
        return place[order].tolist(), similarity[order]


def _keys(frames: Sequence[MapFrame]) -> Int[Tensor, "F"]:
    """A number for each photo that is another for another name or other data."""
    digests = (hashlib.blake2b(f"{f.name}\0{f.data_sha256}".encode(), digest_size=8).digest() for f in frames)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.int64)


def _num_missing(keys: Int[Tensor, "F"], index: StoredIndex) -> int:
    return int((~torch.isin(keys, index.keys())).sum())


def _by_shard(frames: Iterable[MapFrame]) -> list[MapFrame]:
    """The frames, those of one shard together."""
    return [frame for its_frames in frames_by_shard(frames).values() for frame in its_frames]


def _described(frames: Sequence[MapFrame], shard: AnyShard) -> Float[Tensor, "_ D"]:
    """Their descriptors in their shard."""
    return shard.descriptors[[frame.shard_row for frame in frames]].float()


def _nobody(line: str) -> None:
    """Hears that FAISS is missing, which whoever asks here knows."""
