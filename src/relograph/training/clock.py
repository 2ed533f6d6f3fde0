"""How long a training runs, where clusters stop and continue processes as they like."""

import signal
import threading
import time
from types import FrameType, TracebackType


class TrainingClock:
    """Seconds of work since it was entered, and those before.

    Time in which the process stood still (SIGSTOP, by which clusters suspend jobs) is not worked: of the lap in which
    it was continued nothing counts, as nobody is told when it was stopped.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._was_stopped = False

    def __enter__(self) -> "TrainingClock":
        self._last = time.perf_counter()
        # Python lets only the main thread listen to signals; in another one a stop is counted like work.
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGCONT, self._before)

    def _continued(self, number: int, frame: FrameType | None) -> None:
        self._was_stopped = True

    def lap(self) -> float:
        """All seconds of work until now."""
        now = time.perf_counter()
        if not self._was_stopped:
            self.seconds += now - self._last
        self._last, self._was_stopped = now, False
        return self.seconds
