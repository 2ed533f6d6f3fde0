"""The parts of `relograph bench serve`, and what is said of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relograph.errors import ConfigError
from relograph.evaluation.experiment_report import benchmarks_block, filled
from relograph.evaluation.writing import write_documents
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn
from relograph.progress import SILENT, Progress
from relograph.serving.load.faults import map_in_postgres, measure_database, measure_killed_worker
from relograph.serving.load.hostile import OPTIONS, measure_hostile
from relograph.serving.load.overhead import measure_overhead
from relograph.serving.load.overload import measure_overload
from relograph.serving.load.place import Place, make_place
from relograph.serving.load.server import running_server

PARTS = ("overhead", "hostile", "killed-worker", "database", "overload")
PAGE, BLOCK = "load.md", "serve-benchmark"

OVERHEAD_P50_MS, OVERHEAD_P99_MS = 5.0, 15.0
SHARE_OF_BEST = 0.9
GROWTH_MB_PER_MINUTE, GROWTH_SHARE = 1.0, 0.05
"""Up to which memory counts as flat: samples of it are never quite the same."""


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """How long and how hard a service is tried."""

    parts: tuple[str, ...] = PARTS
    """What to measure."""
    workers: int = 2
    """Processes of the service, where more than one is asked for: killed-worker and overload."""
    num_references: int = 7
    """Of each query that is not hostile."""
    queries: int = 150
    """One after the other, for overhead."""
    requests: int = 10_000
    """Hostile ones."""
    fault_s: float = 45.0
    """Seconds under load for killed-worker and for database, a third of them after all is well again."""
    step_s: float = 20.0
    """Seconds for each number of clients while the best throughput is looked for."""
    overload_s: float = 600.0
    """Seconds of twice that."""
    seed: int = 0
    """Of the room and of the hostile requests."""
    device: str = "cpu"
    """Where the service computes."""

    def __post_init__(self) -> None:
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise ConfigError(f"expected parts among {', '.join(PARTS)}, got {unknown[0]!r}. See --part.")
        if "killed-worker" in self.parts and self.workers < 2:
            raise ConfigError(f"expected 2 or more --workers, of whom one is killed, got {self.workers}.")


def benchmark_serve(
    config: LoadConfig,
    *,
    network: LoadedMatchGNN | None = None,
    place: Place | None = None,
    keep: Callable[[Sequence[Mapping[str, object]]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """Figures of each part, in which a real service answers by the package's weights; `keep` sees them as they come."""
    rows: list[dict[str, object]] = []
    with TemporaryDirectory(prefix="relograph-load-") as folder:
        if place is None:
            place = make_place(
                Path(folder),
                network or load_match_gnn(),
                num_references=config.num_references,
                seed=config.seed,
                progress=progress,
            )
        with progress.task("trying the service", total=len(config.parts)) as advance:
            for part in config.parts:
                rows += (asdict(row) for row in _measure(part, config, place))
                keep(rows)
                advance(1)
    return rows


def _measure(part: str, config: LoadConfig, place: Place) -> Iterable[Any]:
    fields: dict[str, Any] = {"num_references": config.num_references}
    photos, there = place.photos, {"device": config.device}
    match part:
        case "overhead":
            with running_server(place.map, options=there) as server:
                return measure_overhead(server, photos, num_queries=config.queries, **fields)
        case "hostile":
            with running_server(place.map, options={**OPTIONS, **there}, with_keys=True) as server:
                return [measure_hostile(server, photos, num_requests=config.requests, seed=config.seed, **fields)]
        case "killed-worker":
            with running_server(place.map, workers=config.workers, options=there) as server:
                return [measure_killed_worker(server, photos, workers=config.workers, seconds=config.fault_s, **fields)]
        case "database":
            with (
                map_in_postgres(place.map) as (postgres, address),
                running_server(address, options=there) as server,
            ):
                return [measure_database(server, postgres, photos, seconds=config.fault_s, **fields)]
        case _:
            with running_server(place.map, workers=config.workers, options=there) as server:
                return [
                    measure_overload(
                        server,
                        photos,
                        workers=config.workers,
                        step_s=config.step_s,
                        seconds=config.overload_s,
                        **fields,
                    )
                ]


# What is said of them


def load_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table: what was wanted, what was found, and whether that is enough."""
    lines = ["| what | wanted | found | |", "| --- | --- | --- | --- |"]
    for row in rows:
        for what, wanted, found, holds in _LINES[row["part"]](row):
            lines.append(f"| {what} | {wanted} | {found} | {'' if holds is None else 'yes' if holds else '**no**'} |")
    return "\n".join(lines)


Line = tuple[str, str, str, bool | None]


def _overhead_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    found = f"p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms"
    if row["request"].startswith("GET"):
        yield f"{row['request']}, {row['requests']} times", "", found, None
        return
    yield (
        f"overhead of {row['requests']} queries: all but encode, retrieve, match and solve",
        f"p50 under {OVERHEAD_P50_MS:g} ms, p99 under {OVERHEAD_P99_MS:g} ms",
        f"{found}; of it {row['decode_p50_ms']:.1f} ms to read the photo, of {row['total_p50_ms']:.0f} ms in all",
        row["p50_ms"] < OVERHEAD_P50_MS and row["p99_ms"] < OVERHEAD_P99_MS,
    )


def _overload_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    others = {status: number for status, number in row["statuses"].items() if status not in ("200", "429")}
    yield (
        f"twice the load for {row['seconds'] / 60:g} minutes, {row['workers']} workers",
        f"{SHARE_OF_BEST:.0%} of the best throughput or more",
        f"{row['answered_per_second']:.2f} of {row['best_per_second']:.2f} a second ({row['share_of_best']:.0%}), "
        f"offered {row['offered_per_second']:.2f}",
        row["share_of_best"] >= SHARE_OF_BEST,
    )
    yield (
        "the rest",
        "429 with Retry-After, nothing else, no wrong answer",
        f"{_counts(row['statuses'])}; {row['refused_without_retry_after']} without Retry-After; "
        f"{row['wrong_answers']} wrong",
        not others and not row["refused_without_retry_after"] and not row["wrong_answers"],
    )
    if "photos_together" in row:  # which earlier results have not
        yield "photos that the network encodes together", "", f"{row['photos_together']:.1f} in the mean", None
    refused = "" if row["refused_p50_ms"] is None else f"; 429 after {row['refused_p50_ms']:.1f} ms"
    yield (
        "latency of what was accepted",
        "",
        f"p50 {row['accepted_p50_ms'] / 1000:.1f} s, p99 {row['accepted_p99_ms'] / 1000:.1f} s{refused}",
        None,
    )
    yield (
        "memory of all processes",
        f"flat: under {GROWTH_MB_PER_MINUTE:g} MB a minute",
        f"{row['rss_first_mb']:.0f} MB, at the end {row['rss_last_mb']:.0f} MB, "
        f"{row['rss_slope_mb_per_minute']:+.2f} MB a minute; files {row['open_files_first']}, then "
        f"{row['open_files_last']}; threads {row['threads_first']}, then {row['threads_last']}",
        row["rss_slope_mb_per_minute"] < GROWTH_MB_PER_MINUTE,
    )


def _hostile_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    yield (
        f"{row['requests']:,} hostile requests in {row['seconds'] / 60:.1f} minutes",
        "no 5xx, no crash, no connection without end, nothing told of the program",
        f"{_counts(row['statuses'])}; {row['tracebacks']} tracebacks in the log",
        row["is_alive"]
        and not any(row[name] for name in ("server_errors", "never_ended", "told_internals", "tracebacks")),
    )
    yield (
        "what they leave behind",
        f"memory within {GROWTH_SHARE:.0%} after the first quarter; no more files",
        f"{row['rss_first_mb']:.0f} MB, at the end {row['rss_last_mb']:.0f} MB; files {row['open_files_first']}, then "
        f"{row['open_files_last']}; threads {row['threads_first']}, then {row['threads_last']}",
        row["rss_last_mb"] <= (1 + GROWTH_SHARE) * row["rss_first_mb"]
        and row["open_files_last"] <= row["open_files_first"],
    )
    if "let_in" in row:  # which earlier results have not
        yield "of these without the right key", "401 or 403", f"{row['let_in']} got in", not row["let_in"]
    yield "a photo right after", "within 10 cm", "right" if row["right_after"] else "wrong", row["right_after"]
    for kind, counts in row["by_kind"].items():
        yield f"of these: {kind}", "", _counts(counts), None


def _killed_worker_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    yield (
        f"one of {row['workers']} workers killed, later all the others that were there",
        "the others go on, each is replaced",
        f"{row['answers_before']} answers before, {row['answers_between']} between the kills, {row['answers_after']} "
        f"after; a new process after {row['replaced_s']:.1f} s; the longest gap {row['longest_gap_s']:.1f} s",
        min(row["answers_between"], row["answers_after"]) > 0,
    )
    yield (
        "answers meanwhile",
        "none wrong; only connections to the killed break",
        f"{_counts(row['statuses'])}; {row['wrong_answers']} wrong",
        not row["wrong_answers"] and set(row["statuses"]) <= {"200", "broken"},
    )


def _database_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    statuses = [row[f"statuses_{when}"] for when in ("before", "stopped", "after")]
    yield (
        f"PostgreSQL stopped for {row['stopped_s']:.0f} s",
        "503 meanwhile, no wrong answer",
        f"{'; then '.join(map(_counts, statuses))}; 503 from {row['noticed_s']:.1f} s on; {row['wrong_answers']} wrong",
        all(set(counts) <= {"200", "503"} for counts in statuses) and not row["wrong_answers"],
    )
    yield (
        "PostgreSQL started again",
        "recovery by itself",
        f"an answer after {row['recovered_s']:.1f} s",
        set(row["statuses_after"]) == {"200"},
    )


_LINES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Line]]] = {
    "overhead": _overhead_lines,
    "overload": _overload_lines,
    "hostile": _hostile_lines,
    "killed-worker": _killed_worker_lines,
    "database": _database_lines,
}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{status} × {number:,}" for status, number in counts.items())


def write_load_page(results: Path, docs: Path, *, check: bool = False) -> list[Path]:
    """Writes the table in docs/load.md anew, or with `check` only sees that it says what the results say."""
    page = docs / PAGE
    if not page.is_file():
        return []

    def block() -> str:
        return benchmarks_block(results, "serve", lambda document: load_table(document["results"]), also_on_a_gpu=True)

    wanted = {page: filled(page.read_text(encoding="utf-8"), {BLOCK: block})}
    return write_documents(
        wanted, check=check, source=f"the files in {results}", command="relograph experiments report"
    )
