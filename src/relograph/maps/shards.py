"""Shards: the bulky data of some photos of one size, in safetensors, never changed once written."""

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

from relograph.errors import DatasetError
from relograph.localization.map_features import StoredFeatures
from relograph.maps.records import LEVELS, Level

FORMAT = "relograph shard 1"
PHOTOS_PER_SHARD = 64
"""Enough that a map of 100,000 photos has few files, and few enough to be held in memory while they are encoded."""

DESCRIPTOR, JPEG, JPEG_END, STEP = "descriptor", "jpeg", "jpeg_end", "step"
HEADER_LENGTH_BYTES = 8
"""At the start of a file of safetensors: how long its header is."""
TYPES = {"F32": torch.float32, "F16": torch.float16, "I64": torch.int64, "I8": torch.int8, "U8": torch.uint8}
_NAME_OF_TYPE = {kind: name for name, kind in TYPES.items()}
PART_BY_TENSOR = {DESCRIPTOR: "descriptor", JPEG: "jpeg", JPEG_END: "jpeg"}
"""What tensors are for, in the words of whoever asks what takes the room; all others are features."""


@dataclass(frozen=True)
class MappedFile:
    """A shard's file, of which nothing is read before something of it is asked for.

    safetensors' own reader reads the header of a file as it opens it: of a large map, a thousand places on the disk
    before the first query, which then needs seven.
    """

    path: Path
    mapped: mmap.mmap

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return self.read()

    def read(self) -> dict[str, Tensor]:
        """Its tensors, which are read from the disk as they are used, and its descriptors, which are small, at once."""
        # What is needed of every photo is little; the megabytes beside it that a disk would read as well are not.
        self.mapped.madvise(mmap.MADV_RANDOM)
        try:
            start = HEADER_LENGTH_BYTES + int.from_bytes(self.mapped[:HEADER_LENGTH_BYTES], "little")
            header = json.loads(self.mapped[HEADER_LENGTH_BYTES:start])
            tensors = {name: self._tensor(start, **told) for name, told in header.items() if name != "__metadata__"}
            check_tensors(tensors)
            begin, end = (start + offset for offset in header[DESCRIPTOR]["data_offsets"])
            begin -= begin % mmap.PAGESIZE
            self.mapped.madvise(mmap.MADV_WILLNEED, begin, end - begin)  # in one go, not page by page
            tensors[DESCRIPTOR] = tensors[DESCRIPTOR].clone()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(str(self.path), error) from error
        self.mapped.madvise(mmap.MADV_NORMAL)
        return tensors

    def _tensor(self, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
        begin, end = data_offsets
        kind, count = TYPES[dtype], math.prod(shape)
        if not 0 <= begin <= end <= len(self.mapped) - start or count * kind.itemsize != end - begin:
            raise ValueError("its header tells of more than it has")
        if count == 0:
            return torch.zeros(shape, dtype=kind)
        return torch.frombuffer(self.mapped, dtype=kind, count=count, offset=start + begin).reshape(shape)


def check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Raises unless they belong together."""
    num_rows = len(tensors[DESCRIPTOR])
    if any(len(tensor) != num_rows for name, tensor in tensors.items() if name != JPEG):
        raise ValueError("its tensors have different numbers of rows")
    if num_rows and int(tensors[JPEG_END][-1]) != len(tensors[JPEG]):
        raise ValueError("its JPEGs are not as long as it says")


@dataclass(frozen=True)
class Shard:
    """M photos of one size: tensors by name, whose rows are the photos, and their JPEGs one after the other."""

    size_hw: tuple[int, int]
    held: dict[str, Tensor] | MappedFile

    @staticmethod
    def of(
        size_hw: tuple[int, int],
        stored: StoredFeatures,
        levels: Sequence[Level],
        descriptors: Float[Tensor, "M D"],
        jpegs: Sequence[bytes],
    ) -> "Shard":
        """The photos with those levels of their features."""
        parts = zip(LEVELS, stored.parts, strict=False)  # what is not kept need not be there
        tensors: dict[str, Tensor] = {level: part for level, part in parts if level in levels}
        if stored.steps is not None:
            steps = zip(LEVELS, stored.steps, strict=False)
            tensors |= {f"{level}.{STEP}": step for level, step in steps if level in levels}
        return Shard(size_hw, tensors | {DESCRIPTOR: descriptors} | joined(jpegs))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.held if isinstance(self.held, dict) else self.held.tensors

    def __len__(self) -> int:
        return len(self.tensors[DESCRIPTOR])

    @property
    def descriptors(self) -> Float[Tensor, "M D"]:
        return self.tensors[DESCRIPTOR]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def stored(self, rows: Sequence[int]) -> StoredFeatures:
        """Features of some photos: the levels that are kept."""
        kept = [level for level in LEVELS if level in self.tensors]
        parts = tuple(self.tensors[level][rows] for level in kept)
        steps = tuple(self.tensors[f"{level}.{STEP}"][rows] for level in kept if f"{level}.{STEP}" in self.tensors)
        return StoredFeatures(parts, steps or None)

    def jpeg(self, row: int) -> bytes:
        """The photo as the network saw it."""
        return self._jpeg(row).numpy().tobytes()

    def take(self, rows: Sequence[int]) -> "Shard":
        """Some of the photos."""
        tensors = {name: tensor[list(rows)] for name, tensor in self.tensors.items() if name not in (JPEG, JPEG_END)}
        return Shard(self.size_hw, tensors | joined([self.jpeg(row) for row in rows]))

    @staticmethod
    def cat(shards: Sequence["Shard"]) -> "Shard":
        """The photos of shards of one size, one after the other."""
        (size_hw,) = {shard.size_hw for shard in shards}
        names = [name for name in shards[0].tensors if name not in (JPEG, JPEG_END)]
        tensors = {name: torch.cat([shard.tensors[name] for shard in shards]) for name in names}
        return Shard(size_hw, tensors | joined([shard.jpeg(row) for shard in shards for row in range(len(shard))]))

    def row_sha256(self, row: int) -> str:
        """Of all that the shard holds of one photo."""
        sha256 = hashlib.sha256()
        for name in sorted(self.tensors):
            if name != JPEG_END:
                data = self._jpeg(row) if name == JPEG else self.tensors[name][row]
                sha256.update(name.encode())
                sha256.update(data.contiguous().numpy().data)
        return sha256.hexdigest()

    def whole(self) -> "Shard":
        """All of it at hand: itself."""
        return self

    @cached_property
    def sha256(self) -> str:
        """Of the file, after which the shard is named."""
        sha256 = hashlib.sha256()
        for piece in self.pieces():
            sha256.update(piece)
        return sha256.hexdigest()

    def pieces(self) -> list[memoryview]:
        """The file, piece after piece, without a copy of what is large; the same photos give the same bytes.

        safetensors' own writer makes one piece of all, while which no other thread of Python's runs.
        """
        height, width = self.size_hw
        header: dict[str, object] = {"__metadata__": {"format": f"{FORMAT}, {height} x {width}"}}
        buffers, end = [], 0
        for name in sorted(self.tensors, key=lambda name: (-self.tensors[name].element_size(), name)):  # all aligned
            tensor = self.tensors[name].contiguous()
            begin, end = end, end + tensor.numel() * tensor.element_size()
            told = {"dtype": _NAME_OF_TYPE[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
            header[name] = told
            buffers.append(tensor.numpy().data.cast("B") if tensor.numel() else memoryview(b""))
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_LENGTH_BYTES)
        return [memoryview(len(text).to_bytes(HEADER_LENGTH_BYTES, "little") + text), *buffers]

    def encode(self) -> bytes:
        """The file in one."""
        return b"".join(self.pieces())

    @staticmethod
    def from_bytes(data: bytes, size_hw: tuple[int, int], where: str) -> "Shard":
        try:
            return Shard(size_hw, tensors_from_bytes(data)).checked()
        except (SafetensorError, ValueError, KeyError) as error:
            raise damaged(where, error) from error

    @staticmethod
    def from_file(path: Path, size_hw: tuple[int, int]) -> "Shard":
        """The shard, mapped into memory: only what is used is read, and the file may be removed meanwhile.

        That it is damaged is told by whoever uses it first.
        """
        try:
            with path.open("rb") as file:
                return Shard(size_hw, MappedFile(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)))
        except FileNotFoundError:
            raise MissingShardError(
                f"{path}: expected a shard of the map, found none. Restore it from a copy of the map, or run "
                "`relograph map verify` to see which photos are lost."
            ) from None
        except (OSError, ValueError) as error:
            raise damaged(str(path), error) from error

    def checked(self) -> "Shard":
        """Itself, if its tensors belong together."""
        check_tensors(self.tensors)
        return self

    def _jpeg(self, row: int) -> UInt8[Tensor, "n"]:
        start = self._jpeg_ends[row - 1] if row else 0
        return self.tensors[JPEG][start : self._jpeg_ends[row]]

    @cached_property
    def _jpeg_ends(self) -> list[int]:
        return [int(end) for end in self.tensors[JPEG_END].tolist()]


@dataclass(frozen=True)
class RemoteShard:
    """M photos of one size that are kept elsewhere: each is fetched when it is asked for."""

    size_hw: tuple[int, int]
    num_rows: int
    num_bytes: int
    fetch: Callable[[Sequence[int]], Shard]
    """Some of the photos."""
    fetch_jpeg: Callable[[int], bytes]
    fetch_descriptors: Callable[[], Float[Tensor, "M D"]]

    def __len__(self) -> int:
        return self.num_rows

    @property
    def descriptors(self) -> Float[Tensor, "M D"]:
        return self.fetch_descriptors()

    def stored(self, rows: Sequence[int]) -> StoredFeatures:
        """Features of some photos: the levels that are kept."""
        return self.fetch(rows).stored(range(len(rows)))

    def jpeg(self, row: int) -> bytes:
        """The photo as the network saw it."""
        return self.fetch_jpeg(row)

    def take(self, rows: Sequence[int]) -> Shard:
        """Some of the photos."""
        return self.fetch(rows)

    def whole(self) -> Shard:
        """All photos at hand."""
        return self.fetch(range(len(self)))


AnyShard = Shard | RemoteShard


class MissingShardError(DatasetError):
    """A shard that the map leads to is not there: it was lost, or the map has changed since it was read."""


def joined(jpegs: Sequence[bytes]) -> dict[str, Tensor]:
    """JPEGs one after the other, and where each ends."""
    ends = torch.tensor([len(jpeg) for jpeg in jpegs], dtype=torch.int64).cumsum(0)
    return {JPEG: torch.frombuffer(bytearray(b"".join(jpegs)), dtype=torch.uint8), JPEG_END: ends}


def damaged(where: str, error: Exception) -> DatasetError:
    """What is raised where a shard is not what it should be."""
    return DatasetError(
        f"{where}: expected a shard of the map, found a damaged one: {error}. Restore it from a copy of the map, or "
        "run `relograph map verify` to see which photos are affected."
    )
