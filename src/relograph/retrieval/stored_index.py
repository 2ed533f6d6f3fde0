"""Descriptors on disk and the nearest of them: all are compared up to 50,000, past that a graph shows the way.

The folder of an index holds

    index.json        how many rows there are, which were removed, and the shape and SHA-256 of the graph
    descriptors.f16   a record a row: its descriptor in half precision, and the CRC-32 of that and of its key
    keys.i64          the key of each row: a number by which whoever made the index knows it
    graph-*.hnsw      FAISS's HNSW over the first rows, in 8 bits a number

The graph proposes candidates, and the records say which of them are nearest. What is not in index.json does not count:
it is replaced in one step after all that it speaks of has reached the disk, so that a process that is killed leaves the
index as it was. Rows keep their numbers for ever. New rows are appended and compared one by one until there are enough
of them to grow the graph, so that to add a few costs little. One process may write at a time; any number may read.
"""

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64, Shaped, UInt32
from torch import Tensor

from relograph.errors import ConfigError, DatasetError
from relograph.progress import SILENT, Progress
from relograph.retrieval.index import ExactIndex, Neighbours, unit_rows
from relograph.retrieval.mapped_graph import (
    GraphShape,
    has_faiss,
    import_faiss,
    load_graph,
    map_graph,
    new_graph,
    write_graph,
)

CONTENTS_FILE, DESCRIPTORS_FILE, KEYS_FILE, GRAPH_FILES = "index.json", "descriptors.f16", "keys.i64", "graph-*.hnsw"
FORMAT = "relograph index 2"
EXACT_UP_TO = 50_000
"""Rows of which all are compared: so few take no longer than the graph's overhead is worth."""
WAITING_ROWS = 5_000
"""New rows that are compared one by one before the graph grows: they cost a query a quarter of a millisecond."""
SEARCH_WIDTH = 256
"""Rows that are kept in sight while a query looks for its own (efSearch)."""
CANDIDATES_PER_NEIGHBOUR = 4
"""Of the graph, which sees 8 bits of each number, for each neighbour that is wanted."""
SCALE_ROWS = 100_000
"""Rows that the scales of the 8 bits are learned from."""
ROWS_AT_ONCE = 2**16
KEY_BYTES = 8


@dataclass(frozen=True)
class Damage:
    """A file of an index that is not as it was written."""

    path: Path
    rows: tuple[int, ...]
    """Whose descriptors are affected; none where a damaged graph can be made anew from sound descriptors."""


@dataclass(frozen=True)
class _Graph:
    file: str
    sha256: str
    shape: GraphShape


@dataclass(frozen=True)
class _Contents:
    """What index.json says."""

    dim: int
    num_rows: int = 0
    removed: tuple[int, ...] = ()
    revision: int = 0
    graph: _Graph | None = None


_Found = tuple[Int64[np.ndarray, "Q C"], Float32[np.ndarray, "Q C"]]
"""Rows and their similarity to each query; -1 and -inf where there are no more."""


class StoredIndex:
    """The index in a folder: `ExactIndex` for maps of any size, without its labels of scenes and sequences.

    Without FAISS every row is compared, whatever their number, and one line says so. Similarity is the cosine, and it
    is computed on the CPU.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = StoredIndex.create(Path(folder), [torch.eye(3)])
        ...     index.add([torch.tensor([[1.0, 1.0, 0.0]])])
        ...     index.remove([0])
        ...     index.search(torch.tensor([[1.0, 0.1, 0.0]]), k=2).row
        range(3, 4)
        tensor([[3, 1]])
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = warnings.warn) -> None:
        """Opens the index in `folder`. Its files are mapped into memory, and read as far as they are asked for."""
        self._folder = folder
        self._warn = warn
        self._hidden: set[int] = set()
        self._open()

    @staticmethod
    def create(
        folder: Path,
        descriptors: Iterable[Float[Tensor, "_ D"]],
        *,
        keys: Int[Tensor, "F"] | None = None,
        revision: int = 0,
        progress: Progress = SILENT,
        warn: Callable[[str], None] = warnings.warn,
    ) -> "StoredIndex":
        """A new index of all rows of `descriptors`, which come in blocks so that they need not fit the memory.

        Keys and revision are as for `add`.
        """
        if (folder / CONTENTS_FILE).exists():
            raise DatasetError(
                f"{folder}: expected a folder without an index, found one. Add to it, or choose another folder."
            )
        blocks = iter(descriptors)
        first = next(blocks, None)
        if first is None:
            raise ConfigError("An index is made of at least one block of descriptors, got none.")
        with _trouble_in_one_line(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (DESCRIPTORS_FILE, KEYS_FILE):
                (folder / name).write_bytes(b"")
        _write_contents(folder, _Contents(dim=first.shape[1]))
        index = StoredIndex(folder, warn=warn)
        index.add(_chained(first, blocks), keys=keys, revision=revision, progress=progress)
        return index

    def __len__(self) -> int:
        """Rows that answer: those that were removed do not."""
        return self._num_there

    @property
    def num_rows(self) -> int:
        """Rows that were ever added; the next one gets this number."""
        return self._contents.num_rows

    @property
    def num_graph_rows(self) -> int:
        """Of these, the first ones, which the graph finds; the others are compared one by one."""
        return 0 if self._graph is None else self._graph.ntotal

    @property
    def revision(self) -> int:
        """What was last given with a change."""
        return self._contents.revision

    @property
    def num_bytes(self) -> int:
        """That the index takes on disk."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def search(
        self, queries: Float[Tensor, "Q D"], k: int, *, exclude_rows: Int[Tensor, "Q"] | None = None
    ) -> Neighbours:
        """The `k` most similar rows of each query, padded with -1 where there are fewer; equals go by row number.

        `exclude_rows` is one row for each query that does not answer, its own; -1 for none.
        """
        if queries.shape[1] != self._contents.dim:
            raise ConfigError(
                f"{self._folder}: expected descriptors of {self._contents.dim} numbers, found {queries.shape[1]}. "
                "Use the weights that the index was made with."
            )
        # In numpy from here on: what torch takes to begin a step is more than these steps take.
        query = _unit(queries.detach().cpu().float().numpy())
        num_wanted = k if exclude_rows is None else k + 1
        parts = [(np.full((len(query), k), -1), np.full((len(query), k), -np.inf, np.float32))]
        if len(self._waiting_rows):
            parts.append(self._search_waiting(query, num_wanted))
        if self._graph is not None:
            parts.append(self._search_graph(query, num_wanted))
        row, similarity = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
        if exclude_rows is not None:
            similarity[row == exclude_rows.cpu().numpy()[:, None]] = -np.inf
        order = np.lexsort((row, -similarity))[:, :k]
        row, similarity = np.take_along_axis(row, order, axis=1), np.take_along_axis(similarity, order, axis=1)
        row[np.isneginf(similarity)] = -1
        return Neighbours(torch.from_numpy(similarity), torch.from_numpy(row))

    def add(
        self,
        descriptors: Iterable[Float[Tensor, "_ D"]],
        *,
        keys: Int[Tensor, "N"] | None = None,
        revision: int | None = None,
        grow: bool = True,
        progress: Progress = SILENT,
    ) -> range:
        """The numbers of new rows, one for each descriptor. All of them are in the index, or none if this is killed.

        Args:
            keys: Of the new rows, else their numbers.
            revision: Of what the index speaks of, as it is with these rows; it is kept in the same step.
            grow: Whether the graph may take rows in now; who adds often and little does that by `grow_graph` at last.
        """
        contents, num_rows = self._contents, self._contents.num_rows
        with self._appending(DESCRIPTORS_FILE) as to_descriptors, self._appending(KEYS_FILE) as to_keys:
            for block in descriptors:
                new = range(num_rows - contents.num_rows, num_rows - contents.num_rows + len(block))
                if keys is not None and new.stop > len(keys):
                    raise ConfigError(f"{self._folder}: expected a key for each descriptor, found {len(keys)} keys.")
                its_keys = torch.arange(num_rows, num_rows + len(block)) if keys is None else keys[new.start : new.stop]
                key_array = its_keys.numpy().astype("<i8")
                with _trouble_in_one_line(self._folder):
                    to_descriptors.write(self._records(block, key_array).tobytes())
                    to_keys.write(key_array.tobytes())
                num_rows += len(block)
        added = range(contents.num_rows, num_rows)
        self._commit(replace(contents, num_rows=num_rows, revision=_newer(contents, revision)))
        if grow and self.needs_growth:
            self.grow_graph(progress=progress)
        return added

    def remove(self, rows: Sequence[int], *, revision: int | None = None) -> None:
        """Makes rows answer no more. They stay in the files until an index is created from those that are left."""
        strange = [row for row in rows if not 0 <= row < self.num_rows]
        if strange:
            raise ConfigError(
                f"{self._folder}: expected rows within 0 and {self.num_rows - 1} to remove, found {strange[0]}."
            )
        removed = tuple(sorted({*self._contents.removed, *rows}))
        self._commit(replace(self._contents, removed=removed, revision=_newer(self._contents, revision)))

    def hide(self, rows: Sequence[int]) -> None:
        """Makes rows answer no more to those who ask this object; the files stay as they are."""
        self._hidden |= set(rows)
        self._prepare()

    def rows(self) -> Int[Tensor, "F"]:
        """The numbers of all rows that answer."""
        return self._is_there(0).nonzero().squeeze(1)

    def descriptors(self, rows: Int[Tensor, "N"]) -> Float[Tensor, "N D"]:
        """Descriptors of some rows, as they are kept."""
        return torch.from_numpy(self._stored["descriptor"][rows.numpy()]).float()

    def keys(self) -> Int[Tensor, "F"]:
        """Of all rows that answer, in the order of `rows`."""
        path = self._folder / KEYS_FILE
        keys = np.fromfile(path, "<i8", count=self.num_rows) if self.num_rows else np.empty(0, np.int64)
        return torch.from_numpy(keys.astype(np.int64))[self._is_there(0)]

    def verify(self) -> list[Damage]:
        """Every file that is not as it was written; reads all of the index."""
        stored, damages = self._stored, []
        damaged: list[int] = []
        keys = np.fromfile(self._folder / KEYS_FILE, "<i8", count=self.num_rows)
        for first in range(0, self.num_rows, ROWS_AT_ONCE):
            block = stored[first : first + ROWS_AT_ONCE]
            checksums = _checksums(block["descriptor"], keys[first : first + ROWS_AT_ONCE])
            damaged += (first + np.flatnonzero(checksums != block["crc32"])).tolist()
        if damaged:
            damages.append(Damage(self._folder / DESCRIPTORS_FILE, tuple(damaged)))
        graph = self._contents.graph
        if graph is not None and _sha256(self._folder / graph.file) != graph.sha256:
            damages.append(Damage(self._folder / graph.file, ()))
        return damages

    def grow_graph(self, *, progress: Progress = SILENT, anew: bool = False) -> None:
        """Takes all rows into the graph; `anew` makes it from the descriptors alone, as after damage to its file."""
        contents = self._contents
        if contents.graph is None or anew:
            graph = new_graph(contents.dim)
            graph.train(self._block(np.linspace(0, self.num_rows - 1, min(SCALE_ROWS, self.num_rows)).astype(int)))
        else:
            graph = load_graph(self._folder / contents.graph.file, contents.graph.shape)
        with progress.task("growing the graph of descriptors", total=self.num_rows - graph.ntotal) as advance:
            for first in range(graph.ntotal, self.num_rows, ROWS_AT_ONCE):
                block = self._block(slice(first, min(first + ROWS_AT_ONCE, self.num_rows)))
                graph.add(block)
                advance(len(block))
        path = self._folder / GRAPH_FILES.replace("*", token_hex(4))
        with _whole(path) as partial:
            shape = write_graph(graph, partial)
        self._commit(replace(contents, graph=_Graph(path.name, _sha256(path), shape)))
        for old in self._folder.glob(f"{GRAPH_FILES}*"):
            if old != path:
                old.unlink(missing_ok=True)

    # What is open

    def _open(self) -> None:
        self._contents, self._graph = self._open_graph()
        contents, record = self._contents, _record(self._contents.dim)
        path = self._folder / DESCRIPTORS_FILE
        for each, bytes_per_row in ((path, record.itemsize), (self._folder / KEYS_FILE, KEY_BYTES)):
            num_bytes = each.stat().st_size if each.exists() else 0
            if num_bytes < contents.num_rows * bytes_per_row:
                raise DatasetError(
                    f"{each}: expected {contents.num_rows} rows in {contents.num_rows * bytes_per_row} bytes, "
                    f"found {num_bytes}. The file was cut short: make the index again from the map."
                )
        self._stored: Shaped[np.ndarray, "F"] = np.empty(0, record)
        if contents.num_rows:
            self._stored = np.memmap(path, record, mode="r", shape=(contents.num_rows,))
        self._prepare()

    def _prepare(self) -> None:
        """For the next search, which may have other rows to leave out or to compare."""
        self._num_there = int(self._is_there(0).sum())
        self._waiting_rows = self.num_graph_rows + self._is_there(self.num_graph_rows).nonzero().squeeze(1)
        self._waiting: ExactIndex | None = None  # made by the first query: who only adds need not read it all
        self._parameters = None if self._graph is None else self._search_parameters()

    def _open_graph(self) -> tuple[_Contents, Any]:
        """What is in the index, and its graph where there is one; a graph may be replaced while one looks."""
        while True:
            contents = _read_contents(self._folder)
            if contents.graph is None:
                return contents, None
            if not has_faiss():
                self._warn(
                    f"{self._folder}: all {contents.num_rows:,} descriptors are compared one by one, which is slow, as "
                    "FAISS is not installed. Run: pip install 'relograph[index]'"
                )
                return contents, None
            path = self._folder / contents.graph.file
            num_bytes = path.stat().st_size if path.exists() else 0
            if num_bytes == contents.graph.shape.num_bytes:
                with suppress(FileNotFoundError):
                    return contents, map_graph(path, contents.graph.shape)
            if _read_contents(self._folder) == contents:
                raise DatasetError(
                    f"{path}: expected the index's graph of {contents.graph.shape.num_bytes} bytes, found {num_bytes}. "
                    "Make the index again from the map."
                )

    def _search_parameters(self) -> Any:
        faiss, is_there = import_faiss(), self._is_there(0)[: self.num_graph_rows]
        if bool(is_there.all()):
            return faiss.SearchParametersHNSW(efSearch=SEARCH_WIDTH)
        selector = faiss.IDSelectorBitmap(np.packbits(is_there.numpy(), bitorder="little"))
        return faiss.SearchParametersHNSW(efSearch=SEARCH_WIDTH, sel=selector)

    def _search_graph(self, query: Float32[np.ndarray, "Q D"], k: int) -> _Found:
        num_candidates = min(max(CANDIDATES_PER_NEIGHBOUR * k, SEARCH_WIDTH // 4), self.num_graph_rows)
        _, row = self._graph.search(query, num_candidates, params=self._parameters)
        candidates = _unit(self._stored["descriptor"][row.clip(min=0)].astype(np.float32))  # [Q, C, D]
        similarity = (candidates @ query[..., None])[..., 0]
        similarity[row < 0] = -np.inf
        return row, similarity

    def _search_waiting(self, query: Float32[np.ndarray, "Q D"], k: int) -> _Found:
        if self._waiting is None:
            self._waiting = ExactIndex(self.descriptors(self._waiting_rows))
        found = self._waiting.search(torch.from_numpy(query), k)
        row = torch.where(found.row < 0, -1, self._waiting_rows[found.row.clamp_min(0)])
        return row.numpy(), found.similarity.numpy()

    def _is_there(self, first: int) -> Tensor:
        """Whether each row from number `first` on was not removed."""
        is_there = torch.ones(self.num_rows, dtype=torch.bool)
        is_there[[*self._contents.removed, *self._hidden]] = False
        return is_there[first:]

    @property
    def needs_growth(self) -> bool:
        """Whether so many rows are compared one by one that the graph should take them in."""
        num_waiting = self.num_rows - (0 if self._contents.graph is None else self._contents.graph.shape.num_rows)
        return self.num_rows > EXACT_UP_TO and num_waiting > WAITING_ROWS and has_faiss()

    def _block(self, rows: Any) -> Float[np.ndarray, "F D"]:
        return np.ascontiguousarray(self._stored["descriptor"][rows], dtype=np.float32)

    @contextmanager
    def _appending(self, name: str) -> Iterator[BinaryIO]:
        """One of the files that grow, at its end; what is written has reached the disk when this is left."""
        path = self._folder / name
        bytes_per_row = KEY_BYTES if name == KEYS_FILE else _record(self._contents.dim).itemsize
        with _trouble_in_one_line(path):
            # What lies beyond was left there by a process that was killed before it counted.
            os.truncate(path, self._contents.num_rows * bytes_per_row)
            file = path.open("ab")
        with file:
            yield file
            with _trouble_in_one_line(path):
                file.flush()
                os.fsync(file.fileno())

    def _records(self, block: Float[Tensor, "F D"], keys: Int64[np.ndarray, "F"]) -> Shaped[np.ndarray, "F"]:
        dim = self._contents.dim
        if block.shape[1] != dim or not bool(block.isfinite().all()):
            raise ConfigError(
                f"{self._folder}: expected descriptors of {dim} finite numbers, found some of {block.shape[1]}"
                f"{'' if block.isfinite().all() else ' that are not finite'}. Use the weights that the index was made "
                "with."
            )
        records = np.empty(len(block), _record(dim))
        records["descriptor"] = unit_rows(block.cpu()).half().numpy()
        records["crc32"] = _checksums(records["descriptor"], keys)
        return records

    def _commit(self, contents: _Contents) -> None:
        _write_contents(self._folder, contents)
        self._open()


def _unit(descriptors: Float32[np.ndarray, "*F D"]) -> Float32[np.ndarray, "*F D"]:
    """Of length 1."""
    length = np.sqrt(np.einsum("...d,...d->...", descriptors, descriptors))
    unit: Float32[np.ndarray, "*F D"] = descriptors / np.maximum(length, 1e-12)[..., None]
    return unit


# Files


def _record(dim: int) -> "np.dtype[np.void]":
    return np.dtype([("descriptor", "<f2", (dim,)), ("crc32", "<u4")])


def _checksums(descriptors: Float[np.ndarray, "F D"], keys: Int64[np.ndarray, "F"]) -> UInt32[np.ndarray, "F"]:
    """The CRC-32 of each row and its key."""
    raw = np.ascontiguousarray(descriptors).view(np.uint8)
    raw_keys = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY_BYTES)
    rows = zip(raw, raw_keys, strict=True)
    return np.fromiter((zlib.crc32(key.tobytes(), zlib.crc32(row)) for row, key in rows), np.uint32, len(raw))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_contents(folder: Path, contents: _Contents) -> None:
    told = {"format": FORMAT, **asdict(contents)}
    text = json.dumps({**told, "sha256": _sha256_of(told)})
    with _whole(folder / CONTENTS_FILE) as partial:
        partial.write_text(text, encoding="utf-8")


def _read_contents(folder: Path) -> _Contents:
    path = folder / CONTENTS_FILE
    if not path.is_file():
        raise DatasetError(f"{folder}: expected an index of descriptors, found no {CONTENTS_FILE}. Check the path.")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.pop("sha256") != _sha256_of(told) or told.pop("format") != FORMAT:
            raise ValueError("its checksum or its format is another")
        graph = told["graph"]
        if graph is not None:
            graph = _Graph(**{**graph, "shape": GraphShape(**graph["shape"])})
        return _Contents(**{**told, "removed": tuple(told["removed"]), "graph": graph})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: expected the contents of an index, found a file that is damaged or none of ours: {error}. "
            "Make the index again from the map."
        ) from error


def _newer(contents: _Contents, revision: int | None) -> int:
    return contents.revision if revision is None else revision


def _sha256_of(told: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Where to write what then appears at `path` in one step, on the disk, or not at all."""
    partial = path.with_name(f"{path.name}.partial-{token_hex(4)}")
    with _trouble_in_one_line(path):
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _trouble_in_one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{path}: expected to write an index here, found: {error}. Check the rights and the free space, or choose "
            "another place; what was there before is still whole."
        ) from error


def _chained(first: Tensor, rest: Iterator[Tensor]) -> Iterator[Tensor]:
    yield first
    yield from rest
