"""Processes that work ahead: in order, without end, and gone when nobody needs them."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from relograph.errors import RelographError
from relograph.rooms.homes_ahead import made_ahead

PARENT = """
import math, multiprocessing, time
from relograph.rooms.homes_ahead import made_ahead
if __name__ == "__main__":
    made = made_ahead(math.factorial, 1)
    next(made)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def test_things_come_in_order_without_anybody_ahead() -> None:
    made = made_ahead(math.factorial, 0)
    assert list(islice(made, 5)) == [1, 1, 2, 6, 24]


def test_things_come_in_order_from_processes_that_end_with_the_iterator() -> None:
    made = made_ahead(math.factorial, 2)
    assert list(islice(made, 40)) == [math.factorial(number) for number in range(40)]
    assert len(multiprocessing.active_children()) == 2
    made.close()
    assert multiprocessing.active_children() == []


def test_a_process_that_was_ended_from_outside_is_told_in_one_line() -> None:
    with pytest.raises(RelographError, match="found one ended from outside") as caught:
        next(made_ahead(os._exit, 1))
    assert "\n" not in str(caught.value)
    assert multiprocessing.active_children() == []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # one that has ended and that nobody has asked for yet is called Z there
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_processes_end_when_their_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert workers
    patience = time.monotonic() + 30
    while any(map(is_alive, workers)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
