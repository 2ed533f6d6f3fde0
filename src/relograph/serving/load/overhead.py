"""What the service adds to the time of the model."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from relograph.errors import RelographError
from relograph.percentiles import percentile
from relograph.serving.load.asking import Client, Reply
from relograph.serving.load.place import Photo
from relograph.serving.load.server import RunningServer

MODEL = ("encode", "retrieve", "match", "solve")
WARM_UP = 3
TRIVIAL_SHARE = 5
"""Requests that need no model, for each that does: they take next to no time."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Milliseconds of requests of one kind, one after the other over one connection."""

    part: str = "overhead"
    request: str
    requests: int
    total_p50_ms: float
    """As the client sees it."""
    p50_ms: float
    """Of all but the model: what the client waited, less encoding, retrieving, matching and solving."""
    p99_ms: float
    decode_p50_ms: float
    """Of that, reading the photo."""


def measure_overhead(
    server: RunningServer, photos: Sequence[Photo], *, num_queries: int, **fields: object
) -> list[Overhead]:
    """Of queries, and of requests that are next to nothing."""
    with server.client() as client:
        rows = [_of_queries(client, photos, num_queries, **fields)]
        for path in ("/healthz", "/v1/maps"):
            waits_ms = [_milliseconds(client.get(path)) for _ in range(WARM_UP + TRIVIAL_SHARE * num_queries)]
            rows.append(_row(f"GET {path}", waits_ms[WARM_UP:], waits_ms[WARM_UP:], [0.0]))
    return rows


def _of_queries(client: Client, photos: Sequence[Photo], num_queries: int, **fields: object) -> Overhead:
    waits_ms, rest_ms, decodes_ms = [], [], []
    for number in range(WARM_UP + num_queries):
        reply = client.localize(photos[number % len(photos)], **fields)
        wait_ms = _milliseconds(reply)
        if number < WARM_UP:
            continue
        stages = reply.json()["latency_ms"]
        waits_ms.append(wait_ms)
        rest_ms.append(wait_ms - sum(stages[stage] for stage in MODEL))
        decodes_ms.append(stages["decode"])
    return _row("POST localize", waits_ms, rest_ms, decodes_ms)


def _milliseconds(reply: Reply) -> float:
    if reply.status != 200:
        raise RelographError(f"expected an answer of a service without load, found status {reply.status}.")
    return 1000 * reply.seconds


def _row(request: str, waits_ms: Sequence[float], rest_ms: Sequence[float], decodes_ms: Sequence[float]) -> Overhead:
    return Overhead(
        request=request,
        requests=len(waits_ms),
        total_p50_ms=statistics.median(waits_ms),
        p50_ms=percentile(rest_ms, 50),
        p99_ms=percentile(rest_ms, 99),
        decode_p50_ms=statistics.median(decodes_ms),
    )
