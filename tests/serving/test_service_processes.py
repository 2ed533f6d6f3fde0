"""The command itself, in processes of its own: several workers, one of them killed, and an end in order."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.models.shipped import load_match_gnn, save_match_gnn
from serving.running_services import NETWORK, photo_file, wait_until, write_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, and a map that they made."""
    folder = tmp_path_factory.mktemp("service")
    save_match_gnn(folder / "weights", NETWORK.model, {})
    write_map(folder / "kitchen.map", network=load_match_gnn(folder / "weights"))
    return folder


@contextmanager
def command(
    folder: Path, *arguments: str, program: Sequence[str] = ("-m", "relograph")
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The command, its address once it has told it, and the lines that it writes."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "kitchen.map", "--weights", "weights", "--port", "0", *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")))
    reader.start()
    try:
        wait_until(lambda: bool(addresses(lines)) or process.poll() is not None, 60.0)
        yield process, "".join(addresses(lines)), lines
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        reader.join()
        process.stderr.close()


def addresses(lines: list[str]) -> list[str]:
    return re.findall(r"^http://127\.0\.0\.1:\d+", "".join(lines), re.MULTILINE)


def is_up(url: str, within_s: float = 30.0) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=within_s).status_code == 200
    except httpx.TransportError:
        return False


def localize(url: str) -> httpx.Response:
    # A connection of its own each, so that processes share them.
    form = {"files": {"image": photo_file()}, "data": {"solver": "regress"}}
    return httpx.post(f"{url}/v1/maps/kitchen/localize", **form, trust_env=False, timeout=60.0)


def metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=30.0).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in tasks if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


@contextmanager
def asleep(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile, so that others have to."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_address_is_told_once_the_service_answers_there(folder: Path, workers: str):
    with command(folder, "--workers", workers) as (_, url, lines):
        assert httpx.get(f"{url}/readyz", trust_env=False, timeout=30.0).status_code == 200
    assert len(lines) == 1


FAILING = """
import sys
from relograph.cli.app import app
from relograph.serving import running

def fail(config):
    print("no room for weights", file=sys.stderr, flush=True)
    sys.exit({code})

if __name__ == "__main__":
    running.make_app = fail
    app()
"""


@pytest.mark.parametrize("code", [1, 3])  # of a process by an exception, and by uvicorn
def test_processes_that_all_fail_at_the_start_are_an_error_and_not_made_again(folder: Path, code: int):
    (folder / "failing.py").write_text(FAILING.format(code=code))
    with command(folder, "--workers", "2", program=["failing.py"]) as (process, url, lines):
        assert process.wait(60) == 1
    assert url == ""
    assert lines[:-1] == ["no room for weights\n"] * 2
    assert lines[-1].startswith("error: expected 2 processes that serve, found that they do not start")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to find a worker")
def test_two_workers_count_together_and_a_killed_one_is_replaced(folder: Path):
    with command(folder, "--workers", "2") as (process, url, lines):
        wait_until(lambda: len(children(process.pid)) == 2, 60.0)
        first, second = sorted(children(process.pid))
        for other in (second, first):  # each answers three, or one of them might answer all
            with asleep(other), ThreadPoolExecutor(3) as pool:
                wait_until(lambda: is_up(url), 60.0)
                assert {response.status_code for response in pool.map(localize, [url] * 3)} == {200}
        with asleep(first):  # each is counted when its answer is out
            wait_until(lambda: metric(url, "relograph_queries_total") == 6.0)
            wait_until(lambda: metric(url, 'relograph_requests_total{method="POST"') == 6.0)
        assert metric(url, "relograph_accepted_queries") == 0.0

        os.kill(first, signal.SIGKILL)
        wait_until(lambda: is_up(url), 60.0)
        wait_until(lambda: first not in children(process.pid) and len(children(process.pid)) == 2, 60.0)
        wait_until(lambda: is_up(url), 60.0)
        assert localize(url).status_code == 200
        wait_until(lambda: metric(url, "relograph_queries_total") == 7.0)  # what the dead one counted stays
        assert metric(url, "relograph_map_ready") == 1.0

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not [line for line in lines if "Traceback" in line], lines


HELD = """
import os
import time
from pathlib import Path
from relograph.cli.app import app
from relograph.serving.answering import Answering

def start_and_tell(self, start=Answering.start):
    start(self)
    Path(f"held/started-{os.getpid()}").touch()

def answer_when_told(self, asks, answer=Answering._answer):
    Path(f"held/asked-{os.getpid()}").touch()
    while not Path("held/go").exists():
        time.sleep(0.01)
    answer(self, asks)

Answering.start, Answering._answer = start_and_tell, answer_when_told
if __name__ == "__main__":
    app()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_under_way_are_given_after_sigterm_and_the_command_ends_well(folder: Path, workers: int):
    (folder / "held.py").write_text(HELD)
    held = folder / "held"
    shutil.rmtree(held, ignore_errors=True)
    held.mkdir()

    def num_processes(that: str) -> int:
        return len(list(held.glob(f"{that}-*")))

    with command(folder, "--workers", str(workers), program=["held.py"]) as (process, url, lines):
        wait_until(lambda: num_processes("started") == workers, 60.0)
        with ThreadPoolExecutor(30) as pool:
            accepted: list[Future[httpx.Response]] = []
            try:
                while num_processes("asked") < workers:  # one of them may take several in a row
                    accepted.append(pool.submit(localize, url))
                    wait_until(lambda: metric(url, "relograph_accepted_queries") == len(accepted), 60.0)
                process.send_signal(signal.SIGTERM)
                wait_until(lambda: not is_up(url, within_s=1.0))
                assert not any(query.done() for query in accepted)
            finally:
                (held / "go").touch()
            assert {query.result().status_code for query in accepted} == {200}
        assert process.wait(60) == 0
    assert not [line for line in lines if "Traceback" in line], lines


def test_what_is_wrong_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    for arguments, says in (
        (["kitchen.map", "--host", "0.0.0.0"], "serve keys create"),
        (["none.map"], "expected a map"),
        (["kitchen.map", "kitchen=kitchen.map"], "two called kitchen"),
        (["kitchen.map"], "--weights"),
        (["kitchen.map", "--weights", "weights", "--keys", "none.json"], "none.json"),
        (["kitchen.map", "--queue", "0"], "--queue"),
        (["kitchen.map", "--cors-origin", "*"], "an origin like"),
        (["kitchen.map", "--weights", "weights", "--port", "70000"], "a port"),
    ):
        done = CliRunner().invoke(app, ["serve", *arguments])
        assert done.exit_code == 1, arguments
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
        if "See `" in done.stderr:
            assert "See `relograph serve run --help`" in done.stderr


def test_the_help_says_where_the_options_are_and_there_they_are():
    assert "relograph serve run --help" in " ".join(CliRunner().invoke(app, ["serve", "--help"]).stdout.split())
    assert "--max-megapixels" in CliRunner().invoke(app, ["serve", "run", "--help"]).stdout


def test_a_port_that_is_taken_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import socket

    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", "kitchen.map", "--weights", "weights", "--port", str(port)])
    assert done.exit_code == 1
    assert "Choose another --host or --port" in done.stderr
