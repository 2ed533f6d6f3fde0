"""How retrieval grows with the number of images: figures and a plot for `relograph bench retrieval`.

Every number is measured in a process of its own, so that its memory is that of one index and nothing else. What takes
long, the truth and the index, can be kept for the next run.
"""

import hashlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from relograph.environment import installed_version
from relograph.percentiles import percentile
from relograph.processes import forget_file, in_a_process, peak_memory_mb
from relograph.progress import SILENT, Progress
from relograph.retrieval.index import ExactIndex, best_rows
from relograph.retrieval.many_views import DescribedViews, drawn_like
from relograph.retrieval.mapped_graph import BUILDING_WIDTH, LINKS
from relograph.retrieval.stored_index import CONTENTS_FILE, FORMAT, StoredIndex

K = 10
NUM_ADDED = 100
EXACT_QUERIES = 30
"""That are timed with exact search, which takes as long for one as for another."""
VIEWS_FILE, TRUTH_FILE, INDEX_FOLDER, BUILD_FILE = "views.safetensors", "truth.safetensors", "index", "build.json"


@dataclass(frozen=True)
class RetrievalSpeed:
    """One row of the benchmark: an index of so many images."""

    images: int
    dim: int
    graph_images: int
    """Of them, those that the graph finds; 0 where all are compared."""
    build_s: float
    """Drawing descriptors not counted."""
    build_cpu_s: float
    """Of all cores together, drawing descriptors counted."""
    build_peak_mb: float
    """Of the whole process, torch included."""
    build_is_kept: bool
    """Whether these three are what an earlier run told of the index that it kept."""
    disk_mb: float
    open_s: float
    """With nothing of its files in memory."""
    first_query_ms: float
    """Right after that."""
    cold_query_ms: float
    """Of one query at a time, the median: all queries after that, while its files are still read from the disk."""
    query_ms: float
    """The same for the same queries once more: what they need of the files is in memory then."""
    query_p95_ms: float
    query_cpu_ms: float
    """What a core works for one of these, the mean; the time above is more where cores are shared."""
    recall_at_10: float
    """Share of the ten nearest rows, by exact search in float32, that are found."""
    num_queries: int
    add_100_ms: float
    """To add a hundred more images."""
    search_peak_mb: float
    exact_query_ms: float
    """Of exact search in memory, the median."""
    exact_peak_mb: float


def benchmark_retrieval(
    views: DescribedViews,
    counts: Sequence[int],
    *,
    seed: int = 0,
    parts: Path | None = None,
    keep: Callable[[list[dict[str, object]]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """A row for each number of images; `keep` is called with all rows so far whenever there is one more.

    Indices and what should be found in them are kept in the folder `parts`, for the next run.
    """
    rows: list[dict[str, object]] = []
    with progress.task("measuring retrieval", total=len(counts)) as advance:
        for count in counts:
            rows.append(asdict(retrieval_speed(views, count, seed=seed, parts=parts)))
            keep(rows)
            advance(1)
    return rows


def retrieval_speed(views: DescribedViews, count: int, *, seed: int = 0, parts: Path | None = None) -> RetrievalSpeed:
    """The row of an index of `count` images, which is made for it, or was kept in `parts` by an earlier run."""
    with _place(views, count, seed, parts) as folder:
        views.save(folder / VIEWS_FILE)
        if not (folder / TRUTH_FILE).exists():
            in_a_process(_find_truth, folder, count, seed)
        is_kept = (folder / BUILD_FILE).exists()
        if not is_kept:
            shutil.rmtree(folder / INDEX_FOLDER, ignore_errors=True)
            in_a_process(_build, folder, count, seed)
        build = json.loads((folder / BUILD_FILE).read_text())
        for path in (folder / INDEX_FOLDER).iterdir():
            forget_file(path)
        open_s, cold_s, query_s, cpu_s, found, search_peak_mb = in_a_process(_search, folder)
        exact_query_s, exact_peak_mb = in_a_process(_search_exactly, folder)
        add_s = in_a_process(_add, folder)
        truth = load_file(folder / TRUTH_FILE)["row"]
    return RetrievalSpeed(
        images=count,
        dim=views.map.shape[1],
        build_is_kept=is_kept,
        **build,
        open_s=open_s,
        first_query_ms=1e3 * cold_s[0],
        cold_query_ms=1e3 * statistics.median(cold_s),
        query_ms=1e3 * statistics.median(query_s),
        query_p95_ms=1e3 * percentile(query_s, 95),
        query_cpu_ms=1e3 * cpu_s / len(query_s),
        recall_at_10=_recall(found, truth),
        num_queries=len(query_s),
        add_100_ms=1e3 * add_s,
        search_peak_mb=search_peak_mb,
        exact_query_ms=1e3 * statistics.median(exact_query_s),
        exact_peak_mb=exact_peak_mb,
    )


def _recall(found: Int[Tensor, "Q k"], truth: Int[Tensor, "Q k"]) -> float:
    """Share of the true neighbours that were found."""
    hit = (truth[:, :, None] == found[:, None]).any(dim=2) & (truth >= 0)
    return float(hit.sum() / (truth >= 0).sum())


@contextmanager
def _place(views: DescribedViews, count: int, seed: int, parts: Path | None) -> Iterator[Path]:
    """A folder for all that is made for one number of images: another for other descriptors or another index."""
    if parts is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    told = [FORMAT, LINKS, BUILDING_WIDTH, installed_version("faiss-cpu"), count, seed]
    digest = hashlib.sha256(json.dumps(told).encode())
    for tensor in (views.map, views.home, views.queries):
        digest.update(tensor.contiguous().numpy().data)
    folder = parts / f"{count}-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


# Work of the processes


def _find_truth(folder: Path, count: int, seed: int) -> None:
    """Rows by comparing all descriptors, in float32, block by block."""
    views = DescribedViews.load(folder / VIEWS_FILE)
    best, rows = torch.empty(len(views.queries), 0), torch.empty(len(views.queries), 0, dtype=torch.long)
    first = 0
    for block in drawn_like(views, count, seed=seed):
        similarity, row = best_rows(views.queries @ block.T, min(K, len(block)))
        best, rows = torch.cat([best, similarity], dim=1), torch.cat([rows, first + row], dim=1)
        best, place = best_rows(best, min(K, best.shape[1]))
        rows = rows.gather(1, place)
        first += len(block)
    _write_whole(folder / TRUTH_FILE, lambda path: save_file({"row": rows.contiguous()}, path))


def _build(folder: Path, count: int, seed: int) -> None:
    """Makes the index, then a file that tells what that took."""
    views, drawing_s = DescribedViews.load(folder / VIEWS_FILE), 0.0

    def blocks() -> Iterator[Float[Tensor, "F D"]]:
        nonlocal drawing_s
        begin = time.perf_counter()
        for block in drawn_like(views, count, seed=seed):
            drawing_s += time.perf_counter() - begin
            yield block
            begin = time.perf_counter()

    begin = time.perf_counter()
    index = StoredIndex.create(folder / INDEX_FOLDER, blocks())
    told = {
        "graph_images": index.num_graph_rows,
        "build_s": time.perf_counter() - begin - drawing_s,
        "build_cpu_s": time.process_time(),
        "build_peak_mb": peak_memory_mb(),
        "disk_mb": index.num_bytes / 1e6,
    }
    _write_whole(folder / BUILD_FILE, lambda path: path.write_text(json.dumps(told)))


def _search(folder: Path) -> tuple[float, list[float], list[float], float, Int[Tensor, "Q k"], float]:
    """Seconds to open the index, for each query, for each again, and of a core for those; rows found; peak in MB."""
    queries = DescribedViews.load(folder / VIEWS_FILE).queries
    begin = time.perf_counter()
    index = StoredIndex(folder / INDEX_FOLDER)
    open_s = time.perf_counter() - begin
    cold_s, rows = _timed_queries(lambda query: index.search(query, K).row, queries)
    begin = time.process_time()
    query_s, _ = _timed_queries(lambda query: index.search(query, K).row, queries)
    return open_s, cold_s, query_s, time.process_time() - begin, rows, peak_memory_mb()


def _add(folder: Path) -> float:
    """Seconds to add some images; the index is as it was after that."""
    new, contents = DescribedViews.load(folder / VIEWS_FILE).map[:NUM_ADDED], folder / INDEX_FOLDER / CONTENTS_FILE
    index, before = StoredIndex(folder / INDEX_FOLDER), contents.read_bytes()
    begin = time.perf_counter()
    index.add([new], grow=False)
    seconds = time.perf_counter() - begin
    contents.write_bytes(before)
    return seconds


def _search_exactly(folder: Path) -> tuple[list[float], float]:
    """Seconds for each query in memory, and peak memory in MB."""
    queries, index = DescribedViews.load(folder / VIEWS_FILE).queries, StoredIndex(folder / INDEX_FOLDER)
    exact = ExactIndex(index.descriptors(index.rows()))
    del index
    seconds, _ = _timed_queries(lambda query: exact.search(query, K).row, queries[:EXACT_QUERIES])
    return seconds, peak_memory_mb()


def _timed_queries(
    search: Callable[[Float[Tensor, "1 D"]], Int[Tensor, "1 k"]], queries: Float[Tensor, "Q D"]
) -> tuple[list[float], Int[Tensor, "Q k"]]:
    seconds, rows = [], []
    for query in queries.split(1):
        begin = time.perf_counter()
        rows.append(search(query))
        seconds.append(time.perf_counter() - begin)
    return seconds, torch.cat(rows)


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file that is there when all of it is."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.replace(path)


# What is shown


def retrieval_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as a Markdown table."""
    columns = {
        "images": "{images:,}",
        "query [ms]": "{query_ms:.2f}",
        "of a core": "{query_cpu_ms:.2f}",
        "95% below [ms]": "{query_p95_ms:.2f}",
        "from disk [ms]": "{cold_query_ms:.2f}",
        "recall@10": "{recall_at_10:.3f}",
        "exact [ms]": "{exact_query_ms:.2f}",
        "open [s]": "{open_s:.3f}",
        "add 100 [ms]": "{add_100_ms:.1f}",
        "build [s]": "{build_s:.1f}",
        "memory to build [MB]": "{build_peak_mb:,.0f}",
        "to search": "{search_peak_mb:,.0f}",
        "exact": "{exact_peak_mb:,.0f}",
        "disk [MB]": "{disk_mb:,.0f}",
    }
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(text.format(**row) for text in columns.values())} |" for row in rows]
    return "\n".join(lines)


def draw_growth(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Time of a query, of opening and adding, and memory against the number of images, as a picture."""
    draw_against_images(
        [{**row, "add_100_s": 1e-3 * float(str(row["add_100_ms"]))} for row in rows],
        {
            "one query [ms]": {"stored index": "query_ms", "exact, in memory": "exact_query_ms"},
            "time [s]": {"to open": "open_s", "to add 100 images": "add_100_s"},
            "memory of the process [MB]": {
                "to search": "search_peak_mb",
                "to build": "build_peak_mb",
                "exact, in memory": "exact_peak_mb",
            },
        },
        path,
    )


WIDE_RANGE = 30.0


def draw_against_images(
    rows: Sequence[Mapping[str, object]], columns_by_label: Mapping[str, Mapping[str, str]], path: Path
) -> None:
    """Columns of rows against their number of images, as a picture: a panel for each label, a line for each column.

    Axes are logarithmic where values differ so much; else they begin at zero, as ticks between powers of ten are odd.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(columns_by_label), 3.6), layout="constrained")
    panels = figure.subplots(1, len(columns_by_label), squeeze=False)[0]
    images = [row["images"] for row in rows]
    for axes, (label, columns) in zip(panels, columns_by_label.items(), strict=True):
        for (name, column), style in zip(columns.items(), ("o-", "s--", "^:"), strict=False):
            axes.plot(images, [row[column] for row in rows], style, label=name)
        values = [float(str(row[column])) for row in rows for column in columns.values()]
        axes.set(xscale="log", xlabel="images", ylabel=label)
        if min(values) > 0 and max(values) > WIDE_RANGE * min(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
