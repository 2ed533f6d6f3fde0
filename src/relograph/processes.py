"""Worker processes that never outlive the work they were started for."""

import multiprocessing
import os
import signal
import threading


def start_worker() -> None:
    """What a worker process does first: leave Ctrl-C to its parent, and end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
