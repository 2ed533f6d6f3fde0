"""Things that are made one after the other, by processes that work ahead of whoever takes them."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from typing import TypeVar

import torch

from relograph.errors import RelographError
from relograph.processes import start_worker

Made = TypeVar("Made")

AHEAD = 8
"""Things that each process may be ahead by: enough to bridge a validation's end, too few to fill the memory."""


def made_ahead(make: Callable[[int], Made], workers: int) -> Generator[Made, None, None]:
    """`make(0)`, `make(1)` and so on without end, always in this order; without workers each when it is asked for.

    The processes end with the iterator: when it is closed, dropped or when this process dies. `make` and what it makes
    must be picklable.
    """
    if workers == 0:
        yield from map(make, count())
        return
    # Fresh processes, not forks: a fork of a process whose torch has threads can hang.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start_home_worker)
    try:
        coming = deque(pool.submit(make, number) for number in range(AHEAD * workers))
        for number in count(len(coming)):
            made = coming.popleft().result()
            coming.append(pool.submit(make, number))
            yield made
    except BrokenProcessPool as error:
        raise RelographError(
            "expected every process that furnishes homes to live, found one ended from outside, as a machine short of "
            "memory does. Close other programs and run the command again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_home_worker() -> None:
    start_worker()
    torch.set_num_threads(1)  # there are as many workers as cores to spare
