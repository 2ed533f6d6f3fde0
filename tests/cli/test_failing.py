"""How commands fail: one line for what a user can mend, a traceback for a bug."""

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from commands import invoke

from relograph.cli.failing import failures_as_one_line

RELOGRAPH = [sys.executable, "-m", "relograph"]
RELOGRAPH_WITH_FEW_TEXTURES = [
    sys.executable,
    "-c",
    "from relograph.rooms import textures; textures.FAMILY_SIZES = dict.fromkeys(textures.FAMILY_SIZES, 1); "
    "from relograph.cli import main; main()",
]


def test_a_user_error_is_one_line_on_stderr_and_exit_code_1(tmp_path: Path):
    command = [*RELOGRAPH, "scene", "info", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr


def test_a_user_error_keeps_its_traceback_on_request(tmp_path: Path):
    command = [*RELOGRAPH, "--traceback", "scene", "info", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "DatasetError" in done.stderr


def test_a_line_break_or_an_escape_sequence_in_a_name_is_shown_and_not_obeyed(tmp_path: Path):
    done = invoke("scene", "info", tmp_path / "two\nlines\x1b[31m")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert r"two\nlines\x1b[31m" in done.stderr


def test_an_unknown_device_is_a_user_error(tmp_path: Path):
    done = invoke("rooms", "create", tmp_path / "rooms", "--device", "abacus")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "'abacus'" in done.stderr
    assert not (tmp_path / "rooms").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*RELOGRAPH, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device (ENOSPC). Free some space, or choose another disk.\n"


def test_a_failure_of_the_machine_names_the_path(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit) as exit_, failures_as_one_line():
        Path("no/such/folder/file.txt").write_text("")
    assert exit_.value.exit_code == 1
    assert capsys.readouterr().err == (
        "error: no/such/folder/file.txt: No such file or directory (ENOENT). "
        "Check the path; the folder that a file goes into must be there.\n"
    )


def test_a_reader_that_has_seen_enough_ends_a_command_quietly():
    process = subprocess.Popen([*RELOGRAPH, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before the command has started to print
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


def test_ctrl_c_is_one_line_and_exit_code_130(capsys: pytest.CaptureFixture[str]):
    # A process started in the background ignores Ctrl-C, and the tests may run in one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(typer.Exit) as exit_, failures_as_one_line():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert exit_.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("bug", [ZeroDivisionError("a bug"), OSError(errno.ENOTTY, "not a user's business")])
def test_a_bug_keeps_its_traceback(bug: Exception):
    with pytest.raises(type(bug)), failures_as_one_line():
        raise bug


def test_a_command_that_is_asked_to_end_takes_its_workers_and_its_half_written_folder_along(tmp_path: Path):
    process = subprocess.Popen(
        [*RELOGRAPH_WITH_FEW_TEXTURES, "rooms", "create", str(tmp_path), "--rooms", "1", "--workers", "2"],
        stderr=subprocess.DEVNULL,
    )
    # The first photo on disk shows that the workers are at work.
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*/*/*.color.png")) and time.monotonic() < until:
        time.sleep(0.2)
    children = [
        int(status.parent.name)
        for status in Path("/proc").glob("[0-9]*/status")
        if f"PPid:\t{process.pid}\n" in _text_or_nothing(status)
    ]
    assert len(children) >= 2
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert list(tmp_path.iterdir()) == []
    until = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.2)
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


def _text_or_nothing(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended meanwhile
        return ""
