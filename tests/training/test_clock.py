"""The clock of a training counts work, and no time in which the process stood still."""

import os
import signal
import threading

import pytest

from relograph.training.clock import TrainingClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    time_s = [100.0]
    monkeypatch.setattr("relograph.training.clock.time.perf_counter", lambda: time_s[0])
    return time_s


def test_laps_add_up_to_what_was_before(now: list[float]) -> None:
    with TrainingClock(5.0) as clock:
        now[0] = 102.0
        assert clock.lap() == 7.0
        now[0] = 102.5
        assert clock.lap() == 7.5


def test_a_lap_in_which_the_process_was_continued_does_not_count(now: list[float]) -> None:
    before = signal.getsignal(signal.SIGCONT)
    with TrainingClock() as clock:
        now[0] = 101.0
        clock.lap()
        os.kill(os.getpid(), signal.SIGCONT)
        now[0] = 900.0
        assert clock.lap() == 1.0
        now[0] = 902.0
        assert clock.lap() == 3.0
    assert signal.getsignal(signal.SIGCONT) == before


def test_it_runs_outside_the_main_thread_too(now: list[float]) -> None:
    counted = []

    def count() -> None:
        with TrainingClock() as clock:
            now[0] = 104.0
            counted.append(clock.lap())

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert counted == [4.0]
