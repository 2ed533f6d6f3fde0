"""How long work tells how far it is."""

import re
import time

import pytest

from relograph.progress import SILENT, TerminalProgress


def test_a_finished_task_leaves_its_count_on_stderr_and_nothing_on_stdout(capsys: pytest.CaptureFixture[str]):
    with TerminalProgress().task("rendering [seq-01]", total=3) as advance:
        advance(2)
        advance(1)
    printed = capsys.readouterr()
    assert "rendering [seq-01]" in printed.err  # brackets are the user's, not markup
    assert "3/3" in printed.err
    assert printed.out == ""


def test_a_bar_says_how_many_steps_a_second_and_how_much_time_is_left(capsys: pytest.CaptureFixture[str]):
    started = time.perf_counter()
    with TerminalProgress().task("training (graphs)", total=600_000) as advance:
        advance(599_000)  # what a run that goes on had done before: no speed of this one
        for _ in range(10):
            time.sleep(0.01)
            advance(100)
    least = 1000 / (time.perf_counter() - started)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("training (graphs) ")
    (rate,) = re.findall(r" 600000/600000 ([\d,]+)/s ", line)
    assert re.search(r"/s \d:\d\d:\d\d$", line)  # since it began; that nothing is left needs no words
    assert least <= int(rate.replace(",", "")) <= 1000 / (10 * 0.01)


def test_tasks_within_a_task_leave_one_line_in_all(capsys: pytest.CaptureFixture[str]):
    progress = TerminalProgress()
    with progress.task("rooms", total=2) as advance:
        for _ in range(2):
            with progress.task("frames", total=5) as advance_inner:
                advance_inner(5)
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("rooms")
    assert "2/2" in lines[0]


def test_an_error_within_a_task_passes_and_the_next_task_has_a_bar_again(capsys: pytest.CaptureFixture[str]):
    progress = TerminalProgress()
    with pytest.raises(ZeroDivisionError), progress.task("first", total=1):
        raise ZeroDivisionError
    with progress.task("second", total=4) as advance:
        advance(4)
    assert "4/4" in capsys.readouterr().err


def test_a_library_call_prints_nothing(capsys: pytest.CaptureFixture[str]):
    with SILENT.task("rendering", total=3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
