"""Descriptors on disk and the nearest of them: all are compared up to 50,000, past that a graph shows the way.

The folder of an index holds

    index.json        how many rows there are, which were removed, and the size and SHA-256 of the graph
    descriptors.f16   a record a row: its descriptor in half precision and the CRC-32 of that
    graph-*.faiss     FAISS's HNSW over the first rows, in 8 bits a number

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
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt32
from torch import Tensor

from relograph.environment import installed_version
from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.progress import SILENT, Progress
from relograph.retrieval.index import ExactIndex, Neighbours, best_rows, unit_rows

CONTENTS_FILE, DESCRIPTORS_FILE, GRAPH_FILES = "index.json", "descriptors.f16", "graph-*.faiss"
FORMAT = "relograph index 1"
EXACT_UP_TO = 50_000
"""Rows of which all are compared: so few take no longer than the graph's overhead is worth."""
WAITING_ROWS = 5_000
"""New rows that are compared one by one before the graph grows: they cost a query a quarter of a millisecond."""
LINKS = 32
"""Of a row to others in the graph (HNSW's M)."""
BUILDING_WIDTH = 80
"""Rows that are kept in sight while a new one looks for its neighbours (HNSW's efConstruction)."""
SEARCH_WIDTH = 256
"""Rows that are kept in sight while a query looks for its own (efSearch)."""
CANDIDATES_PER_NEIGHBOUR = 4
"""Of the graph, which sees 8 bits of each number, for each neighbour that is wanted."""
SCALE_ROWS = 100_000
"""Rows that the scales of the 8 bits are learned from."""
ROWS_AT_ONCE = 2**16


def has_faiss() -> bool:
    """Whether the package is installed that graphs need."""
    return installed_version("faiss-cpu") is not None or installed_version("faiss-gpu") is not None


@dataclass(frozen=True)
class Damage:
    """A file of an index that is not as it was written."""

    path: Path
    rows: tuple[int, ...]
    """Whose descriptors are affected; none where a damaged graph can be made anew from sound descriptors."""


@dataclass(frozen=True)
class _Graph:
    file: str
    num_rows: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class _Contents:
    """What index.json says."""

    dim: int
    num_rows: int = 0
    removed: tuple[int, ...] = ()
    graph: _Graph | None = None


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
        self._open()

    @staticmethod
    def create(
        folder: Path,
        descriptors: Iterable[Float[Tensor, "_ D"]],
        *,
        progress: Progress = SILENT,
        warn: Callable[[str], None] = warnings.warn,
    ) -> "StoredIndex":
        """A new index of all rows of `descriptors`, which come in blocks so that they need not fit the memory."""
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
            (folder / DESCRIPTORS_FILE).write_bytes(b"")
        _write_contents(folder, _Contents(dim=first.shape[1]))
        index = StoredIndex(folder, warn=warn)
        index.add(_chained(first, blocks), progress=progress)
        return index

    def __len__(self) -> int:
        """Rows that answer: those that were removed do not."""
        return self._contents.num_rows - len(self._contents.removed)

    @property
    def num_rows(self) -> int:
        """Rows that were ever added; the next one gets this number."""
        return self._contents.num_rows

    @property
    def num_graph_rows(self) -> int:
        """Of these, the first ones, which the graph finds; the others are compared one by one."""
        return 0 if self._graph is None else self._graph.ntotal

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
        queries = unit_rows(queries.cpu()).float()
        if not len(self):
            return Neighbours(torch.full((len(queries), k), -torch.inf), torch.full((len(queries), k), -1))
        if queries.shape[1] != self._contents.dim:
            raise ConfigError(
                f"{self._folder}: expected descriptors of {self._contents.dim} numbers, found {queries.shape[1]}. "
                "Use the weights that the index was made with."
            )
        num_wanted = k if exclude_rows is None else k + 1
        parts = [self._search_waiting(queries, num_wanted)] if len(self._waiting_rows) else []
        if self._graph is not None:
            parts.append(self._search_graph(queries, num_wanted))
        row = torch.cat([part.row for part in parts], dim=1)
        similarity = torch.cat([part.similarity for part in parts], dim=1)
        if exclude_rows is not None:
            similarity = similarity.masked_fill(row == exclude_rows.cpu()[:, None], -torch.inf)
        return _best(row, similarity, k)

    def add(self, descriptors: Iterable[Float[Tensor, "_ D"]], *, progress: Progress = SILENT) -> range:
        """The numbers of new rows, one for each descriptor. All of them are in the index, or none if this is killed."""
        contents = self._contents
        path, num_rows = self._folder / DESCRIPTORS_FILE, contents.num_rows
        with _trouble_in_one_line(path), path.open("r+b") as file:
            # What lies beyond was left there by a process that was killed before it counted.
            file.truncate(num_rows * _record(contents.dim).itemsize)
        for block in descriptors:
            records = self._records(block)
            with _trouble_in_one_line(path), path.open("ab") as file:
                file.write(records.tobytes())
                file.flush()
                os.fsync(file.fileno())
            num_rows += len(block)
        added = range(contents.num_rows, num_rows)
        self._commit(replace(contents, num_rows=num_rows))
        if self._needs_growth():
            self.grow_graph(progress=progress)
        return added

    def remove(self, rows: Sequence[int]) -> None:
        """Makes rows answer no more. They stay in the files until an index is created from those that are left."""
        strange = [row for row in rows if not 0 <= row < self.num_rows]
        if strange:
            raise ConfigError(
                f"{self._folder}: expected rows within 0 and {self.num_rows - 1} to remove, found {strange[0]}."
            )
        self._commit(replace(self._contents, removed=tuple(sorted({*self._contents.removed, *rows}))))

    def rows(self) -> Int[Tensor, "F"]:
        """The numbers of all rows that answer."""
        return self._is_there(0).nonzero().squeeze(1)

    def descriptors(self, rows: Int[Tensor, "N"]) -> Float[Tensor, "N D"]:
        """Descriptors of some rows, as they are kept."""
        return torch.from_numpy(self._stored["descriptor"][rows.numpy()]).float()

    def verify(self) -> list[Damage]:
        """Every file that is not as it was written; reads all of the index."""
        stored, damages = self._stored, []
        damaged: list[int] = []
        for first in range(0, self.num_rows, ROWS_AT_ONCE):
            block = stored[first : first + ROWS_AT_ONCE]
            damaged += (first + np.flatnonzero(_checksums(block["descriptor"]) != block["crc32"])).tolist()
        if damaged:
            damages.append(Damage(self._folder / DESCRIPTORS_FILE, tuple(damaged)))
        graph = self._contents.graph
        if graph is not None and _sha256(self._folder / graph.file) != graph.sha256:
            damages.append(Damage(self._folder / graph.file, ()))
        return damages

    def grow_graph(self, *, progress: Progress = SILENT, anew: bool = False) -> None:
        """Takes all rows into the graph; `anew` makes it from the descriptors alone, as after damage to its file."""
        faiss, contents = _faiss(), self._contents
        if contents.graph is None or anew:
            graph = faiss.IndexHNSWSQ(contents.dim, faiss.ScalarQuantizer.QT_8bit, LINKS, faiss.METRIC_INNER_PRODUCT)
            graph.hnsw.efConstruction = BUILDING_WIDTH
            graph.train(self._block(np.linspace(0, self.num_rows - 1, min(SCALE_ROWS, self.num_rows)).astype(int)))
        else:
            graph = faiss.read_index(str(self._folder / contents.graph.file))  # a mapped one cannot grow
        with progress.task("growing the graph of descriptors", total=self.num_rows - graph.ntotal) as advance:
            for first in range(graph.ntotal, self.num_rows, ROWS_AT_ONCE):
                block = self._block(slice(first, min(first + ROWS_AT_ONCE, self.num_rows)))
                graph.add(block)
                advance(len(block))
        path = self._folder / GRAPH_FILES.replace("*", token_hex(4))
        # FAISS writes in place, and a file of which half is there crashes its reader.
        with _whole(path) as partial:
            try:
                faiss.write_index(graph, str(partial))
            except RuntimeError as error:  # what FAISS says of a full disk
                raise OSError(str(error)) from error
        about = _Graph(path.name, self.num_rows, path.stat().st_size, _sha256(path))
        self._commit(replace(contents, graph=about))
        for old in self._folder.glob(f"{GRAPH_FILES}*"):
            if old != path:
                old.unlink(missing_ok=True)

    # What is open

    def _open(self) -> None:
        self._contents, self._graph = self._open_graph()
        contents, record = self._contents, _record(self._contents.dim)
        path = self._folder / DESCRIPTORS_FILE
        num_bytes = path.stat().st_size if path.exists() else 0
        if num_bytes < contents.num_rows * record.itemsize:
            raise DatasetError(
                f"{path}: expected {contents.num_rows} descriptors in {contents.num_rows * record.itemsize} bytes, "
                f"found {num_bytes}. The file was cut short: make the index again from the map."
            )
        self._stored: Shaped[np.ndarray, "F"] = np.empty(0, record)
        if contents.num_rows:
            self._stored = np.memmap(path, record, mode="r", shape=(contents.num_rows,))
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
            if num_bytes == contents.graph.num_bytes:
                with suppress(FileNotFoundError):
                    faiss = _faiss()
                    return contents, faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            if _read_contents(self._folder) == contents:
                raise DatasetError(
                    f"{path}: expected the index's graph of {contents.graph.num_bytes} bytes, found {num_bytes}. "
                    "Make the index again from the map."
                )

    def _search_parameters(self) -> Any:
        faiss, is_there = _faiss(), self._is_there(0)[: self.num_graph_rows]
        if bool(is_there.all()):
            return faiss.SearchParametersHNSW(efSearch=SEARCH_WIDTH)
        selector = faiss.IDSelectorBitmap(np.packbits(is_there.numpy(), bitorder="little"))
        return faiss.SearchParametersHNSW(efSearch=SEARCH_WIDTH, sel=selector)

    def _search_graph(self, queries: Float[Tensor, "Q D"], k: int) -> Neighbours:
        num_candidates = min(max(CANDIDATES_PER_NEIGHBOUR * k, SEARCH_WIDTH // 4), self.num_graph_rows)
        _, rows = self._graph.search(queries.numpy(), num_candidates, params=self._parameters)
        row = torch.from_numpy(rows)
        candidates = self.descriptors(row.clamp_min(0).flatten()).unflatten(0, tuple(row.shape))
        similarity = (unit_rows(candidates.flatten(0, 1)).view_as(candidates) @ queries[..., None]).squeeze(2)
        return _best(row, similarity.masked_fill(row < 0, -torch.inf), k)

    def _search_waiting(self, queries: Float[Tensor, "Q D"], k: int) -> Neighbours:
        if self._waiting is None:
            self._waiting = ExactIndex(self.descriptors(self._waiting_rows))
        found = self._waiting.search(queries, k)
        return Neighbours(found.similarity, torch.where(found.row < 0, -1, self._waiting_rows[found.row.clamp_min(0)]))

    def _is_there(self, first: int) -> Tensor:
        """Whether each row from number `first` on was not removed."""
        is_there = torch.ones(self.num_rows, dtype=torch.bool)
        is_there[list(self._contents.removed)] = False
        return is_there[first:]

    def _needs_growth(self) -> bool:
        num_waiting = self.num_rows - (0 if self._contents.graph is None else self._contents.graph.num_rows)
        return self.num_rows > EXACT_UP_TO and num_waiting > WAITING_ROWS and has_faiss()

    def _block(self, rows: Any) -> Float[np.ndarray, "F D"]:
        return np.ascontiguousarray(self._stored["descriptor"][rows], dtype=np.float32)

    def _records(self, block: Float[Tensor, "F D"]) -> Shaped[np.ndarray, "F"]:
        dim = self._contents.dim
        if block.shape[1] != dim or not bool(block.isfinite().all()):
            raise ConfigError(
                f"{self._folder}: expected descriptors of {dim} finite numbers, found some of {block.shape[1]}"
                f"{'' if block.isfinite().all() else ' that are not finite'}. Use the weights that the index was made "
                "with."
            )
        records = np.empty(len(block), _record(dim))
        records["descriptor"] = unit_rows(block.cpu()).half().numpy()
        records["crc32"] = _checksums(records["descriptor"])
        return records

    def _commit(self, contents: _Contents) -> None:
        _write_contents(self._folder, contents)
        self._open()


def _best(row: Int[Tensor, "Q C"], similarity: Float[Tensor, "Q C"], k: int) -> Neighbours:
    """The `k` most similar of some rows; equals go by row number."""
    order = row.argsort(dim=1)
    row, similarity = row.gather(1, order), similarity.gather(1, order)
    best, place = best_rows(similarity, k)
    return Neighbours(best, torch.where(place < 0, -1, row.gather(1, place.clamp_min(0))))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss", "index", "A graph over descriptors") from error
    return faiss


# Files


def _record(dim: int) -> "np.dtype[np.void]":
    return np.dtype([("descriptor", "<f2", (dim,)), ("crc32", "<u4")])


def _checksums(descriptors: Float[np.ndarray, "F D"]) -> UInt32[np.ndarray, "F"]:
    """The CRC-32 of each row."""
    raw = np.ascontiguousarray(descriptors).view(np.uint8)
    return np.fromiter((zlib.crc32(row) for row in raw), np.uint32, len(raw))


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
        return _Contents(
            **{**told, "removed": tuple(told["removed"]), "graph": None if graph is None else _Graph(**graph)}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: expected the contents of an index, found a file that is damaged or none of ours: {error}. "
            "Make the index again from the map."
        ) from error


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
