"""How a command fails: one line for what a user can mend, a traceback for what is our bug."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from relograph.cli.printing import printable
from relograph.errors import RelographError

_ADVICE_BY_ERRNO = {
    errno.EACCES: "Check the rights of that path, or choose another.",
    errno.EDQUOT: "Your quota is used up: remove files, or choose another disk.",
    errno.EEXIST: "Choose another path, or move away what is there.",
    errno.EFBIG: "The file system holds no file of that size: choose another disk.",
    errno.EIO: "The disk failed to answer: check it, or choose another.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.ELOOP: "Mend the symbolic link, which leads back to itself.",
    errno.EMFILE: "Allow more open files with `ulimit -n 4096`.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOENT: "Check the path; the folder that a file goes into must be there.",
    errno.ENOSPC: "Free some space, or choose another disk.",
    errno.ENOTDIR: "Part of that path is a file: name a folder.",
    errno.EPERM: "Check the rights of that path, or choose another.",
    errno.EROFS: "That file system can only be read: choose another path.",
}
"""What to do about the failures of the machine that reach a command; any other OSError is our bug."""


@contextmanager
def failures_as_one_line(*, keep_traceback: bool = False) -> Iterator[None]:
    """Turns what a user can mend into one line on stderr and an exit code: 1, or 130 after Ctrl-C.

    A reader that closed our pipe (`relograph doctor | head -1`) has seen enough: that is no failure to talk about.
    """
    try:
        yield
        sys.stdout.flush()  # a closed pipe shows here rather than at exit, where Python would complain about it
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except RelographError as error:
        if keep_traceback:
            raise
        typer.echo(printable(f"error: {error}"), err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        if keep_traceback or error.errno not in _ADVICE_BY_ERRNO:
            raise
        typer.echo(printable(f"error: {describe_os_error(error)}"), err=True)
        raise typer.Exit(1) from None


def describe_os_error(error: OSError) -> str:
    """One line about a failure of the machine: where, what, its errno, and what to do.

    Example:
        >>> describe_os_error(OSError(errno.ENOSPC, "No space left on device", "rooms/frame.png"))
        'rooms/frame.png: No space left on device (ENOSPC). Free some space, or choose another disk.'
    """
    places = [os.fsdecode(place) for place in (error.filename, error.filename2) if isinstance(place, str | bytes)]
    where = f"{' -> '.join(places)}: " if places else ""
    number = error.errno or 0
    return (
        f"{where}{error.strerror} ({errno.errorcode.get(number, number)}). {_ADVICE_BY_ERRNO.get(number, '')}".rstrip()
    )
