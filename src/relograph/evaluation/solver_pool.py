"""Solving in several processes while the network goes on: for many answers whose time nobody measures."""

import multiprocessing
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from relograph.errors import RelographError
from relograph.localization.localizer import Answer, Compared, Solver, answer_compared
from relograph.models.shipped import Calibration
from relograph.processes import start_worker


@dataclass(frozen=True)
class SolverPool:
    """Processes that turn comparisons into answers."""

    processes: ProcessPoolExecutor
    num_workers: int

    def submit(self, compared: Compared, solvers: Sequence[Solver], calibration: Calibration) -> "PendingAnswers":
        """The answer of each solver, as soon as some process has them."""
        on_cpu = {field.name: getattr(compared.matches, field.name) for field in fields(compared.matches)}
        on_cpu = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in on_cpu.items()}
        compared = replace(compared, matches=type(compared.matches)(**on_cpu))
        # As bytes: tensors that go by themselves take a piece of shared memory each, of which there are not so many.
        # They go through this pool's own pipe, as all that it hands over does, and never come from a file or a user.
        return PendingAnswers(self.processes.submit(_answer, pickle.dumps((compared, tuple(solvers), calibration))))


@dataclass(frozen=True)
class PendingAnswers:
    """Answers that some process is at work on."""

    pickled: "Future[bytes]"

    def result(self) -> list[Answer]:
        """The answer of each solver, once they are there."""
        try:
            answers: list[Answer] = pickle.loads(self.pickled.result())
        except BrokenProcessPool as error:
            raise RelographError(
                "expected every process that solves to live, found one ended from outside, as a machine short of "
                "memory does. Close other programs, or run with fewer --workers."
            ) from error
        return answers


@contextmanager
def solver_pool(num_workers: int) -> Iterator[SolverPool | None]:
    """Processes that solve; none at all where `num_workers` is 0."""
    if num_workers == 0:
        yield None
        return
    # Fresh processes, not forks: a fork of a process whose torch has threads can hang.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, mp_context=spawn, initializer=_start_solver)
    try:
        yield SolverPool(pool, num_workers)
    finally:
        pool.shutdown(cancel_futures=True)


def _start_solver() -> None:
    start_worker()
    torch.set_num_threads(1)  # there are as many workers as cores


def _answer(pickled: bytes) -> bytes:
    compared, solvers, calibration = pickle.loads(pickled)
    return pickle.dumps([answer_compared(compared, solver, calibration) for solver in solvers])
