"""How long work tells how far it is: a bar in a terminal, nothing in a library call.

A function that works for more than a second takes `progress: Progress = SILENT`:

    with progress.task("rendering", total=len(frames)) as advance:
        for frame in frames:
            render(frame)
            advance(1)
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress as RichDisplay


BAR_WIDTH = 20
"""Characters; with it a line of numbers in the thousands fits into a terminal of 80."""


@runtime_checkable  # the tests check every argument's type while they run
class Progress(Protocol):
    """Where work reports to."""

    def task(self, description: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """A piece of work of `total` steps; what `with` gives is called with the number of steps just done."""
        ...


class SilentProgress:
    """Reports to nobody: the default of every library function.

    Example:
        >>> with SilentProgress().task("rendering", total=3) as advance:
        ...     advance(2)
    """

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda steps: None


class TerminalProgress:
    """Bars on stderr, one a task, with steps per second and the time that is left; stdout stays free for answers.

    Where stderr is no terminal (a log file, CI) a finished task leaves one plain line instead of a moving bar.
    """

    def __init__(self) -> None:
        self._display: RichDisplay | None = None

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        # A terminal holds one live display at a time, so a task within a task is a second bar in the first's
        # display, gone when it is done: a hundred small tasks must not leave a hundred lines.
        if self._display is not None:
            task_id = self._display.add_task(description, total=total)
            try:
                yield partial(self._display.advance, task_id)
            finally:
                self._display.remove_task(task_id)
            return
        with _new_display() as self._display:
            try:
                yield partial(self._display.advance, self._display.add_task(description, total=total))
            finally:
                self._display = None


def _new_display() -> "RichDisplay":
    from rich.console import Console  # rich is slow to import, and a library call never shows a bar
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
    )
    from rich.text import Text

    class PaceColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = rate_text(task.finished_speed or task.speed)
            return Text(f"{rate} {time_text(task.elapsed or 0.0, task.time_remaining)}".strip())

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=BAR_WIDTH),
        MofNCompleteColumn(),
        PaceColumn(),
        console=Console(stderr=True),
    )


def rate_text(steps_per_second: float | None) -> str:
    """How fast a task goes, in the steps that its bar counts; nothing before that is known.

    Example:
        >>> [rate_text(rate) for rate in (0.04567, 61.28, 5432.1, None)]
        ['0.0457/s', '61.3/s', '5,432/s', '']
    """
    if steps_per_second is None:
        return ""
    return f"{steps_per_second:,.0f}/s" if steps_per_second >= 100 else f"{steps_per_second:.3g}/s"


def time_text(elapsed_s: float, left_s: float | None) -> str:
    """How long a task will go on; where that is not known, or it is done, how long it has taken.

    Example:
        >>> time_text(61.2, 3.0), time_text(61.2, 0.0), time_text(0.4, None)
        ('0:00:03 left', '0:01:01', '0:00:00')
    """
    return f"{timedelta(seconds=math.ceil(left_s))} left" if left_s else f"{timedelta(seconds=int(elapsed_s))}"


SILENT: Progress = SilentProgress()
