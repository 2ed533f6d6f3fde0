"""Worker processes that never outlive the work they were started for."""

import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def in_a_process(work: Callable[..., Result], *arguments: object) -> Result:
    """What `work` returns in a new process: its memory is that of this work and nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=start_worker) as pool:
        return pool.submit(work, *arguments).result()


def peak_memory_mb() -> float:
    """The most memory that this process ever had, files that are mapped into it included."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage counts what the parent had when it started this process
        (peak_kb,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status.read_text(), flags=re.MULTILINE)
        return int(peak_kb) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_file(path: Path) -> None:
    """Makes the system drop what it holds of a file in memory, where it can be asked to."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def start_worker() -> None:
    """What a worker process does first: leave Ctrl-C to its parent, and end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
