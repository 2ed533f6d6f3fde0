"""How many queries a service answers at its best, and what it does when twice as many come."""

import re
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relograph.errors import RelographError
from relograph.percentiles import percentile
from relograph.serving.load.asking import Reply, ask_at_a_rate, ask_while, by_status, for_seconds, num_wrong
from relograph.serving.load.place import Photo
from relograph.serving.load.server import RunningServer, Usage

CLIENTS = (1, 2, 4, 8)
"""Who ask at once while the best throughput is looked for."""
TIMES_THE_BEST = 2.0
SETTLING_SHARE = 0.1
"""Of the time under load: memory that is taken once, by the first queries that wait together, is no growth."""
SAMPLE_S = 2.0
MAX_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Overload:
    """A service that is offered twice what it can hold."""

    part: str = "overload"
    workers: int
    best_per_second: float
    """Answers to clients who wait for each before they ask again; as many clients as gave the most."""
    best_clients: int
    offered_per_second: float
    seconds: float
    """Under that load."""
    answered_per_second: float
    share_of_best: float
    statuses: dict[str, int]
    wrong_answers: int
    photos_together: float
    """That the network encodes at once under that load, in the mean."""
    refused_without_retry_after: int
    accepted_p50_ms: float
    accepted_p99_ms: float
    refused_p50_ms: float | None
    """None where nobody was refused."""
    refused_p99_ms: float | None
    rss_first_mb: float
    """Resident memory after the first tenth of the time."""
    rss_last_mb: float
    rss_slope_mb_per_minute: float
    """Of the straight line through all samples after that."""
    open_files_first: int
    open_files_last: int
    threads_first: int
    threads_last: int


def measure_overload(
    server: RunningServer,
    photos: Sequence[Photo],
    *,
    workers: int,
    step_s: float,
    seconds: float,
    clients: Sequence[int] = CLIENTS,
    **fields: object,
) -> Overload:
    """The best throughput with so many clients for `step_s` each, then `seconds` of twice that."""
    per_second: dict[int, float] = {}
    for num_clients in clients:
        told: list[Reply] = []
        ask_while(for_seconds(step_s), server.client, photos, told, num_clients=num_clients, **fields)
        per_second[num_clients] = _throughput(told)
    best_clients = max(per_second, key=per_second.__getitem__)
    best = per_second[best_clients]
    if best == 0.0:
        raise RelographError(
            "expected answers of a service without load, found none that is right. Try another --seed."
        )
    batches_before = _batches(server)
    with _sampled(server) as samples:
        began = time.perf_counter()
        replies = ask_at_a_rate(
            server.client,
            photos,
            per_second=TIMES_THE_BEST * best,
            seconds=seconds,
            max_at_once=MAX_AT_ONCE,
            **fields,
        )
    num_photos, num_batches = (after - before for after, before in zip(_batches(server), batches_before, strict=True))
    in_time = [reply for reply in replies if reply.status == 200 and reply.ended <= began + seconds]
    accepted_ms = [1000 * reply.seconds for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status == 429]
    refused_ms = [1000 * reply.seconds for reply in refused]
    settled = [sample for sample in samples if sample[0] >= began + SETTLING_SHARE * seconds] or samples[-1:]
    first, last = settled[0][1], settled[-1][1]
    return Overload(
        workers=workers,
        best_per_second=best,
        best_clients=best_clients,
        offered_per_second=len(replies) / seconds,
        seconds=seconds,
        answered_per_second=len(in_time) / seconds,
        share_of_best=len(in_time) / seconds / best,
        statuses=by_status(replies),
        wrong_answers=num_wrong(replies),
        photos_together=num_photos / num_batches if num_batches else 0.0,
        refused_without_retry_after=sum(not reply.retry_after_s for reply in refused),
        accepted_p50_ms=percentile(accepted_ms, 50),
        accepted_p99_ms=percentile(accepted_ms, 99),
        refused_p50_ms=percentile(refused_ms, 50) if refused else None,
        refused_p99_ms=percentile(refused_ms, 99) if refused else None,
        rss_first_mb=first.rss_mb,
        rss_last_mb=last.rss_mb,
        rss_slope_mb_per_minute=_slope_per_minute([(moment, usage.rss_mb) for moment, usage in settled]),
        open_files_first=first.open_files,
        open_files_last=last.open_files,
        threads_first=first.threads,
        threads_last=last.threads,
    )


def _batches(server: RunningServer) -> tuple[float, float]:
    """How many photos the service has encoded, and in how many goes, by its own metrics."""
    with server.client() as client:
        told = client.get("/metrics").content.decode()
    photos, goes = (
        re.search(rf"^relograph_batch_photos_{name} (\S+)$", told, re.MULTILINE) for name in ("sum", "count")
    )
    return (float(photos[1]), float(goes[1])) if photos and goes else (0.0, 0.0)


def _throughput(replies: Sequence[Reply]) -> float:
    """Right answers a second, from the first request to the last reply."""
    first, last = min(reply.began for reply in replies), max(reply.ended for reply in replies)
    return sum(reply.is_right is True for reply in replies) / (last - first)


def _slope_per_minute(samples: Sequence[tuple[float, float]]) -> float:
    if len(samples) < 2:
        return 0.0
    moments, values = zip(*samples, strict=True)
    return 60 * statistics.linear_regression(moments, values).slope


@contextmanager
def _sampled(server: RunningServer) -> Iterator[list[tuple[float, Usage]]]:
    """What the service takes, every so often until the end of the block, with the moment of each look."""
    samples: list[tuple[float, Usage]] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_S if samples else 0.0):
            samples.append((time.perf_counter(), server.usage()))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
