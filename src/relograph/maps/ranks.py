"""A map that many processes make together, as torchrun starts them, on one host or on several.

Every process encodes its share of the photos. The first alone opens the map: it takes in the shards of all in turn. So
the map becomes the one that a single process would have made, change for change, and a folder on a shared disk has one
host that writes to it, which is all that SQLite allows. Where a process ends early, the map is whole with the photos up
to there, and the same photos can be added again.
"""

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import distributed

from relograph.errors import DatasetError, GeometryError
from relograph.localization.photos import PosedPhoto
from relograph.maps.adding import EncodedPhotos, encode_photos, require_network
from relograph.maps.reading import BadPhoto
from relograph.maps.records import MapFrame, MapSettings
from relograph.maps.shards import PHOTOS_PER_SHARD, Shard
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN

_DONE = b"done"


@contextmanager
def torchrun_ranks() -> Iterator["Ranks | None"]:
    """The processes that torchrun started; None where there is this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield None
        return
    distributed.init_process_group("gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def device_of_process(device: str) -> str:
    """Where this process computes: of several on a host each has a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


@dataclass(frozen=True)
class Ranks:
    """`size` processes, of which this is number `rank`."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def encode(
        self,
        photos: Sequence[PosedPhoto],
        known: Mapping[str, MapFrame],
        model: MatchGNN,
        settings: MapSettings,
    ) -> Generator[EncodedPhotos, None, None]:
        """What the first process does: all photos in their order, encoded by whoever's turn it is."""
        told = {"settings": settings.to_json(), "known": [asdict(frame) for frame in known.values()]}
        for rank in range(1, self.size):
            self._send(json.dumps(told).encode(), rank)
        own = self._encode_share(photos, known, model, settings)
        for number in range(-(-len(photos) // PHOTOS_PER_SHARD)):
            rank = number % self.size
            yield next(own) if rank == 0 else _from_bytes(self._receive(rank))
        for rank in range(1, self.size):
            self._send(_DONE, rank)  # before that the others must not leave: what they sent may be on its way still

    def help(self, photos: Sequence[PosedPhoto], network: LoadedMatchGNN) -> None:
        """What the others do: they encode their share for the first."""
        told = json.loads(self._receive(0))
        settings = MapSettings.from_json(told["settings"])
        require_network(settings, network)
        known = {values["name"]: _frame(values) for values in told["known"]}
        for some in self._encode_share(photos, known, fold_match_gnn(network.model), settings):
            self._send(_to_bytes(some), 0)
        self._receive(0)

    def _encode_share(
        self, photos: Sequence[PosedPhoto], known: Mapping[str, MapFrame], model: MatchGNN, settings: MapSettings
    ) -> Iterator[EncodedPhotos]:
        starts = range(self.rank * PHOTOS_PER_SHARD, len(photos), self.size * PHOTOS_PER_SHARD)
        share = (photos[row] for start in starts for row in range(start, min(start + PHOTOS_PER_SHARD, len(photos))))
        return encode_photos(((photo, known.get(photo.name)) for photo in share), model, settings)

    def _send(self, data: bytes, rank: int) -> None:
        with _clear_errors(rank):
            distributed.send(torch.tensor([len(data)]), rank)
            distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank)

    def _receive(self, rank: int) -> bytes:
        with _clear_errors(rank):
            num_bytes = torch.zeros(1, dtype=torch.int64)
            distributed.recv(num_bytes, rank)
            data = torch.empty(int(num_bytes), dtype=torch.uint8)
            distributed.recv(data, rank)
            return data.numpy().tobytes()


@contextmanager
def _clear_errors(rank: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        raise DatasetError(
            f"expected process {rank} to go on, found it gone. The map is whole; see what that process says, and add "
            "the photos again."
        ) from None


# What goes from one process to another


def _to_bytes(photos: EncodedPhotos) -> bytes:
    files = [shard.encode() for shard in photos.shards]
    told = {
        "frames": [asdict(frame) for frame in photos.frames],
        "shards": [[*shard.size_hw, len(file)] for shard, file in zip(photos.shards, files, strict=True)],
        "num_there": photos.num_there,
        "bad": [[isinstance(error, GeometryError), str(error)] for error in photos.bad],
    }
    header = json.dumps(told).encode()
    return b"".join([len(header).to_bytes(8), header, *files])


def _from_bytes(data: bytes) -> EncodedPhotos:
    start = 8 + int.from_bytes(data[:8])
    told = json.loads(data[8:start])
    shards = []
    for height, width, num_bytes in told["shards"]:
        shards.append(Shard.from_bytes(data[start : start + num_bytes], (height, width), "another process"))
        start += num_bytes
    bad: list[BadPhoto] = [(GeometryError if is_pose else DatasetError)(line) for is_pose, line in told["bad"]]
    frames = tuple(_frame(values) for values in told["frames"])
    return EncodedPhotos(frames, tuple(shards), told["num_there"], tuple(bad))


def _frame(values: dict[str, Any]) -> MapFrame:
    told: dict[str, Any] = {name: tuple(of) if isinstance(of, list) else of for name, of in values.items()}
    return MapFrame(**told)
