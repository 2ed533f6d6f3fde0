"""What Prometheus reads: requests, stages, the queue, answers, maps.

Several processes write into files of one folder, which the variable PROMETHEUS_MULTIPROC_DIR names before
prometheus_client is first imported; whichever is asked adds them up.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHARES = tuple(tenths / 10 for tenths in range(1, 11))


class Metrics:
    """Of one process; what it tells is of all."""

    def __init__(self) -> None:
        disable_created_metrics()  # a series for each series, of no use
        folder = os.environ.get(FOLDER_VARIABLE)
        self._folder = None if folder is None else Path(folder)
        # Files are read whole when they are asked for; a registry of one's own would count this process twice.
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "relograph_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "relograph_request_seconds",
            "From a request's first line to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.stage_seconds = Histogram(
            "relograph_stage_seconds",
            "Of queries, by stage: decode, queue, encode, retrieve, match, solve.",
            ["stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self.queries = Counter(
            "relograph_queries", "Queries by what became of them.", ["map", "outcome"], registry=registry
        )
        self.confidence = Histogram(
            "relograph_confidence", "Of answers, refused ones included.", ["map"], buckets=SHARES, registry=registry
        )
        self.batch_photos = Histogram(
            "relograph_batch_photos", "Photos encoded together.", buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.accepted = Gauge(
            "relograph_accepted_queries",
            "Queries that are waiting or in work.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.map_frames = Gauge(
            "relograph_map_frames",
            "Photos of a map, as last read.",
            ["map"],
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.map_revision = Gauge(
            "relograph_map_revision",
            "Number of a map's last change, as last read.",
            ["map"],
            multiprocess_mode="livemin",
            registry=registry,
        )
        self.map_ready = Gauge(
            "relograph_map_ready",
            "1 where a map can be read by every process.",
            ["map"],
            multiprocess_mode="livemin",
            registry=registry,
        )

    def answered(self, map_name: str, outcome: str, confidence: float, seconds: Mapping[str, float]) -> None:
        """Counts a query that was answered."""
        self.queries.labels(map_name, outcome).inc()
        self.confidence.labels(map_name).observe(confidence)
        for stage, value in seconds.items():
            self.stage_seconds.labels(stage).observe(value)

    def text(self) -> bytes:
        """All processes' numbers as Prometheus reads them."""
        if self._folder is None:
            return generate_latest(self._registry)
        self._forget_the_dead(self._folder)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone, path=str(self._folder))
        return generate_latest(everyone)

    @staticmethod
    def _forget_the_dead(folder: Path) -> None:
        """Counts of a process that is gone stay; what it held at the end does not."""
        for path in folder.glob("gauge_live*.db"):
            pid = int(path.stem.rpartition("_")[2])
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                with suppress(FileNotFoundError):  # another process may be doing the same
                    mark_process_dead(pid, path=str(folder))
            except PermissionError:
                pass
