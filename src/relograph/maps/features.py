"""The features of a map as the Localizer uses them, left in the map's shards until they are asked for."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from threading import Lock

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from relograph.errors import DatasetError
from relograph.localization.map_features import NUM_LEVELS, MapFeatures, StoredFeatures, complete_levels
from relograph.maps.finding import FrameFinder
from relograph.maps.records import MapFrame, MapSettings, frame_poses
from relograph.maps.shards import AnyShard
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import ImageFeatures, MatchGNN
from relograph.scenes.images import decode_image

NUM_RECENT = 32
"""Photos whose features stay at hand after they were computed: as many as one query may have. They take 100 MB."""


class RecentFeatures:
    """What was computed last: the next frame of a video mostly has the same references. Threads may share it."""

    def __init__(self, most: int = NUM_RECENT) -> None:
        self._most = most
        self._by_key: OrderedDict[tuple[int, torch.device], ImageFeatures] = OrderedDict()
        self._lock = Lock()

    def get(self, row: int, device: torch.device) -> ImageFeatures | None:
        """Those of a photo; None where they have to be computed."""
        with self._lock:
            features = self._by_key.get((row, device))
            if features is not None:
                self._by_key.move_to_end((row, device))
            return features

    def put(self, row: int, device: torch.device, features: ImageFeatures) -> None:
        with self._lock:
            self._by_key[row, device] = features
            while len(self._by_key) > self._most:
                self._by_key.popitem(last=False)


@dataclass(frozen=True)
class ShardedFeatures(MapFeatures):
    """Features of a map at one moment. Its descriptors are in memory, the rest is read from the map.

    Where the map does not keep all levels, `model` computes them again from the small photos that it keeps.
    """

    shards: tuple[AnyShard, ...]
    shard_of: tuple[int, ...]
    """Of each photo; its row there is its `place`."""
    model: MatchGNN | None = None
    finder: FrameFinder | None = None
    """What finds photos of a large map; its descriptors stay on the disk."""
    recent: RecentFeatures = field(default_factory=RecentFeatures, repr=False, compare=False)

    @staticmethod
    def read(
        frames: Sequence[MapFrame],
        settings: MapSettings,
        shard_by_sha256: Mapping[str, AnyShard],
        model: MatchGNN | None = None,
        finder: FrameFinder | None = None,
    ) -> "ShardedFeatures":
        """Features of those frames; their order is that of the rows."""
        number = {sha256: i for i, sha256 in enumerate(shard_by_sha256)}
        shards = tuple(shard_by_sha256.values())
        shard_of = tuple(number[frame.shard] for frame in frames)
        place = torch.tensor([frame.shard_row for frame in frames], dtype=torch.long)
        descriptors = torch.zeros(len(frames), 0)
        if finder is None:
            descriptors = _descriptors(shards, torch.tensor(shard_of, dtype=torch.long), place)
        return ShardedFeatures(
            names=tuple(frame.name for frame in frames),
            T_world_cam=frame_poses(frames),
            cameras=tuple(frame.camera for frame in frames),
            sizes=tuple(frame.working_size for frame in frames),
            descriptors=descriptors,
            stored_by_size={},
            place=place,
            network_sha256=settings.network_sha256,
            precision=settings.precision,
            shards=shards,
            shard_of=shard_of,
            model=model,
            finder=finder,
        )

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        return super().nearest(descriptor, num) if self.finder is None else self.finder.nearest(descriptor, num)

    def similarity(self, descriptor: Float[Tensor, "D"], rows: Sequence[int]) -> Float[Tensor, "R"]:
        if self.finder is None:
            return super().similarity(descriptor, rows)
        own = [self.shards[self.shard_of[row]].descriptors[int(self.place[row])] for row in rows]
        return torch.stack(own).float() @ descriptor.cpu().float()

    def take(
        self, rows: Sequence[int], device: torch.device
    ) -> Iterator[tuple[tuple[int, int], list[int], ImageFeatures]]:
        for size_hw in dict.fromkeys(self.sizes[row].size_hw for row in rows):
            which = [i for i, row in enumerate(rows) if self.sizes[row].size_hw == size_hw]
            yield size_hw, which, self._of_one_size([rows[i] for i in which], device)

    def _of_one_size(self, rows: Sequence[int], device: torch.device) -> ImageFeatures:
        found = {row: self.recent.get(row, device) for row in rows}
        missing = [row for row in rows if found[row] is None]  # one that is asked for twice, twice
        if missing:
            places = [(self.shards[self.shard_of[row]], int(self.place[row])) for row in missing]
            stored = StoredFeatures.cat([shard.stored([place]) for shard, place in places])
            levels = stored.take_levels(torch.arange(len(missing)), device)
            if len(levels) == NUM_LEVELS:
                return ImageFeatures(*levels)
            jpegs = [shard.jpeg(place) for shard, place in places]
            computed = complete_levels(self._answering_model, _decoded(jpegs), levels, device)
            for number, row in enumerate(missing):
                # By a list, which copies: one photo is not to keep those that were computed with it.
                of_photo = computed[[number]]
                self.recent.put(row, device, of_photo)
                found[row] = of_photo
        of_rows = [found[row] for row in rows]
        parts = (torch.cat([getattr(features, part.name) for features in of_rows]) for part in fields(ImageFeatures))
        return ImageFeatures(*parts)

    @cached_property
    def _answering_model(self) -> MatchGNN:
        if self.model is None:
            raise DatasetError(
                "expected a map that keeps all its features, found one that keeps few. Open it with the network that "
                "made it, which computes them again."
            )
        return fold_match_gnn(self.model)

    @property
    def bytes_per_photo(self) -> float:
        num_rows = sum(len(shard) for shard in self.shards)
        return sum(shard.num_bytes for shard in self.shards) / max(num_rows, 1)


def _descriptors(shards: tuple[AnyShard, ...], shard_of: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Of all photos in their order, [F, D]."""
    if not shards:
        return torch.zeros(0, 0)
    of_shards = [shard.descriptors for shard in shards]
    first = torch.tensor([0, *(len(some) for some in of_shards)]).cumsum(0)
    return torch.cat(of_shards)[first[shard_of] + place].float()


def _decoded(jpegs: Sequence[bytes]) -> UInt8[Tensor, "M H W 3"]:
    """Small photos of one size."""
    return torch.stack([torch.from_numpy(decode_image(jpeg, "a photo of the map")) for jpeg in jpegs])
