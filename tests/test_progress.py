"""How long work tells how far it is."""

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
