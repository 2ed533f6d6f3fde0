"""How long work tells how far it is: a bar in a terminal, nothing in a library call.

A function that works for more than a second takes `progress: Progress = SILENT`:

    with progress.task("rendering", total=len(frames)) as advance:
        for frame in frames:
            render(frame)
            advance(1)
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress as RichDisplay


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
    """Bars on stderr, one a task, with the time that is left; stdout stays free for what a command answers.

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
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


SILENT: Progress = SilentProgress()
