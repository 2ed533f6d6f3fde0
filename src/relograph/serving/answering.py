"""From a photo in memory to its answer: a bounded queue, one network for all maps, and a solver beside it.

accept   or refuse, on the event loop: so many queries may be under way, and no more
decode   by a few threads
network  by one thread: photos that wait together are encoded together, and compared with their references one by one
solve    by another, which words the answer too, while the network is at the next query

A query whose client has gone, or whose time is up, is a cancelled future: nothing more is done for it.
"""

import asyncio
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar, cast

import torch

from relograph.errors import RelographError
from relograph.freed_memory import give_back_freed_memory
from relograph.localization.localizer import Answer, Compared, EncodedQuery, Judged, Localizer, SeenQuery, judge
from relograph.localization.localizer import Solver as SolverName
from relograph.localization.prior import Prior
from relograph.maps.features import ShardedFeatures
from relograph.maps.records import MapSettings
from relograph.models.shipped import LoadedMatchGNN
from relograph.serving.config import ServeConfig
from relograph.serving.errors import busy, stopping
from relograph.serving.metrics import Metrics
from relograph.serving.served_maps import MapMoment, ServedMap

LOGGER = logging.getLogger("relograph.serving")
T = TypeVar("T")

BATCH_ON_A_GPU = 8
DECODING_THREADS = 2
LONGEST_RETRY_S = 60
ANSWERS_BETWEEN_GIVING_BACK = 64
"""The C library keeps what threads free, a little more with each answer. To give it back takes 4 ms, and makes the next
answer 8 ms slower."""
FORGETTING = 0.1
"""Weight of the newest query in the mean time of one."""


@dataclass(frozen=True)
class Ask:
    """A query on its way."""

    served: ServedMap
    moment: MapMoment
    """The map as it was when the query was accepted."""
    seen: SeenQuery
    prior: Prior | None
    num_references: int
    solver: SolverName
    began: float
    """When it began to wait for the network."""
    word: "Callable[[Outcome], object]"
    """Makes of its outcome what the client is told."""
    result: "Future[object]"


@dataclass(frozen=True)
class Outcome:
    """What became of a query."""

    answer: Answer
    judged: Judged | None
    compared: Compared | None
    """None where there was nothing to compare."""
    queue_s: float
    """Waiting for the network, and then for the solver."""


class Answering:
    """The network with what stands before and behind it."""

    def __init__(self, network: LoadedMatchGNN, config: ServeConfig, metrics: Metrics) -> None:
        nothing = ShardedFeatures.read((), MapSettings(network_sha256=network.sha256), {})
        self._localizer = Localizer(nothing, network)
        self._capacity, self._metrics = config.queue, metrics
        usual = 1 if self._localizer.device.type == "cpu" else BATCH_ON_A_GPU
        self._batch = usual if config.batch is None else config.batch
        self._num_accepted = self._num_solved = 0
        self._mean_s = 0.5
        self._work: queue.SimpleQueue[Ask | _Job | None] = queue.SimpleQueue()
        self._gate, self._is_closed = threading.Lock(), False
        self._decoders = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="decode")
        self._solver = ThreadPoolExecutor(1, thread_name_prefix="solve")
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends when what was accepted is done."""
        self._decoders.shutdown()
        with self._gate:
            self._is_closed = True
            self._work.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._solver.shutdown()

    # Before the network

    @property
    def retry_after_s(self) -> int:
        """About when there will be room: what is accepted now is done then."""
        return min(max(math.ceil(self._num_accepted * self._mean_s), 1), LONGEST_RETRY_S)

    def require_room(self) -> None:
        """Raises where nothing more is accepted: known before a body is read."""
        if self._num_accepted >= self._capacity:
            raise busy("queue_full", "As many queries are waiting as are accepted at once.", self.retry_after_s)

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """A place among the queries under way."""
        self.require_room()
        self._num_accepted += 1
        self._metrics.accepted.inc()
        try:
            yield
        finally:
            self._num_accepted -= 1
            self._metrics.accepted.dec()

    async def decode(self, read: Callable[[], T]) -> T:
        """What `read` makes of a body, by a thread for such work."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, read)

    async def answer(
        self,
        served: ServedMap,
        moment: MapMoment,
        seen: SeenQuery,
        prior: Prior | None,
        num_references: int,
        solver: SolverName,
        word: Callable[[Outcome], T],
    ) -> T:
        """What `word` makes of the outcome of a query that was accepted and decoded; cancelled, it is dropped.

        It is worded where it is solved: another thread would have to be woken for it.
        """
        ask = Ask(served, moment, seen, prior, num_references, solver, perf_counter(), word, Future())
        self._put(ask)
        return await asyncio.wrap_future(cast("Future[T]", ask.result))

    def on_network(self, work: Callable[[Localizer], T]) -> T:
        """What `work` gives that needs the network to itself; called by a thread that may wait."""
        job = _Job(work, Future())
        self._put(job)
        return job.result.result()  # type: ignore[return-value]  # a job gives what its work gives

    def _put(self, work: "Ask | _Job") -> None:
        """Behind the end of the queue nobody would ever look."""
        with self._gate:
            if self._is_closed:
                raise stopping()
            self._work.put(work)

    # The network's thread

    def _run(self) -> None:
        is_open = True
        while is_open:
            asks: list[Ask] = []
            work = self._work.get()
            while True:
                if work is None:
                    is_open = False
                elif isinstance(work, _Job):
                    work.run(self._localizer)
                elif work.result.set_running_or_notify_cancel():
                    asks.append(work)
                if not is_open or len(asks) >= self._batch:
                    break
                try:
                    work = self._work.get_nowait()
                except queue.Empty:
                    break
            del work  # and with it a map that may have changed by the time of the next query
            while asks:
                # Powers of two: a GPU records what it does for each number of photos that it meets.
                num = 1 << (len(asks).bit_length() - 1)
                self._answer(asks[:num])
                asks = asks[num:]

    def _answer(self, asks: list[Ask]) -> None:
        begun = perf_counter()
        try:
            self._metrics.batch_photos.observe(len(asks))
            encoded = self._localizer.encode([ask.seen for ask in asks])
        except Exception as error:
            for ask in asks:
                ask.result.set_exception(error)
            return
        for ask, query in zip(asks, encoded, strict=True):
            try:
                compared = self._compare(ask, query)
            except Exception as error:
                ask.result.set_exception(error)
                continue
            self._solver.submit(self._solve, ask, compared, begun - ask.began, perf_counter())
        a_query_s = (perf_counter() - begun) / len(asks)
        self._mean_s += FORGETTING * (a_query_s - self._mean_s)

    def _compare(self, ask: Ask, query: EncodedQuery) -> Compared | Answer:
        try:
            return self._localizer.on(ask.moment.features, ask.num_references).compare_encoded(query, ask.prior)
        except RelographError as error:
            raise ask.served.reading(error) from error

    # The solver's thread

    def _solve(self, ask: Ask, compared: Compared | Answer, queue_s: float, compared_at: float) -> None:
        queue_s += perf_counter() - compared_at
        try:
            if isinstance(compared, Answer):
                outcome = Outcome(compared, None, None, queue_s)
            else:
                judged = judge(compared, ask.solver, self._localizer.calibration)
                outcome = Outcome(judged.answer, judged, compared, queue_s)
            ask.result.set_result(ask.word(outcome))
        except Exception as error:
            ask.result.set_exception(error)
        self._num_solved += 1
        if self._num_solved % ANSWERS_BETWEEN_GIVING_BACK == 0:
            give_back_freed_memory()


@dataclass(frozen=True)
class _Job:
    """Some other work for the network."""

    work: Callable[[Localizer], object]
    result: "Future[object]"

    def run(self, localizer: Localizer) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self.work(localizer))
        except Exception as error:
            self.result.set_exception(error)


def on_device(network: LoadedMatchGNN, device: str) -> LoadedMatchGNN:
    """The network where it is to compute."""
    return replace(network, model=network.model.to(torch.device(device)))
