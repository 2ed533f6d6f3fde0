"""The service as processes of its own on 127.0.0.1, and what they take of the machine."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from relograph.errors import ConfigError, RelographError
from relograph.serving.keys import Scope, create_key
from relograph.serving.load.asking import Client
from relograph.serving.load.place import MAP_NAME

PROC = Path("/proc")
START_S, STOP_S = 120.0, 60.0
KEPT_LINES = 400
WORKER = b"multiprocessing.spawn"
"""In the command line of each process that uvicorn starts."""


@dataclass(frozen=True)
class Usage:
    """What all processes of a service take together."""

    rss_mb: float
    """Resident memory, in 1e6 bytes; what processes share counts for each."""
    open_files: int
    threads: int
    processes: int


@dataclass
class RunningServer:
    """A service that runs."""

    port: int
    keys: Mapping[str, str]
    """By their scopes; none where nobody has to show one."""
    _process: subprocess.Popen[str]
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    num_tracebacks: int = 0
    """In its log: bugs, whatever the client was told."""

    def client(self, *, kept: bool = True) -> Client:
        """One who may do everything."""
        return Client(self.port, kept=kept, key=self.keys.get("write"))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """Of its log."""
        return list(self._lines)

    def workers(self) -> list[int]:
        """Ids of the processes that answer, beside the one that watches over them; none where it answers itself."""
        return [pid for pid in self._children() if WORKER in _read(PROC / str(pid) / "cmdline")]

    def usage(self) -> Usage:
        pids = [self._process.pid, *self._children()]
        fields = [_status(pid) for pid in pids]
        alive = [(pid, values) for pid, values in zip(pids, fields, strict=True) if "VmRSS" in values]
        return Usage(
            rss_mb=sum(int(values["VmRSS"].split()[0]) for _, values in alive) * 1024 / 1e6,
            open_files=sum(_num_files(pid) for pid, _ in alive),
            threads=sum(int(values["Threads"]) for _, values in alive),
            processes=len(alive),
        )

    def _children(self) -> list[int]:
        parents = {int(path.name): _status(int(path.name)).get("PPid") for path in PROC.glob("[0-9]*")}
        return sorted(pid for pid, parent in parents.items() if parent == str(self._process.pid))

    def _follow(self, log: Iterable[str]) -> None:
        for line in log:
            self._lines.append(line.rstrip())
            self.num_tracebacks += line.startswith("Traceback")

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_S
        with self.client(kept=False) as client:
            while client.get("/readyz").status != 200:
                if not self.is_alive or time.monotonic() > end:
                    raise _not_started(self.last_lines)
                time.sleep(0.05)


@contextmanager
def running_server(
    where: Path | str, *, workers: int = 1, options: Mapping[str, object] | None = None, with_keys: bool = False
) -> Iterator[RunningServer]:
    """A service of one map, called `room`, until the end of the block; `options` are those of `relograph serve`.

    One `with_keys` answers holders of a key, of which there is one of each scope.
    """
    if not PROC.is_dir():
        raise ConfigError(f"expected {PROC} to see what a service takes, found none. Measure on Linux.")
    with TemporaryDirectory(prefix="relograph-keys-") as folder:
        file = Path(folder) / "keys.json"
        scopes: tuple[Scope, ...] = ("read", "write") if with_keys else ()
        keys: dict[str, str] = {scope: create_key(file, scope)[0] for scope in scopes}
        with _started(where, workers, {**(options or {}), **({"keys": file} if with_keys else {})}, keys) as server:
            yield server


@contextmanager
def _started(
    where: Path | str, workers: int, options: Mapping[str, object], keys: Mapping[str, str]
) -> Iterator[RunningServer]:
    words = [word for name, value in options.items() for word in _option(name, value)]
    command = [sys.executable, "-m", "relograph", "serve", f"{MAP_NAME}={where}", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workers", str(workers), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that nothing of it is left behind, whatever happens here
    )
    assert process.stderr is not None
    try:
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if address := re.match(r"http://127\.0\.0\.1:(\d+) ", line):
                break
        else:
            raise _not_started(said)
        server = RunningServer(int(address[1]), keys, process)
        following = threading.Thread(target=server._follow, args=(process.stderr,), daemon=True)
        following.start()
        server._wait_until_ready()
        yield server
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stderr is not None and not process.stderr.closed:
        with suppress(ValueError):  # the thread that follows it may have closed it
            process.stderr.close()


def _option(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option] if value else []
    return [option, str(value)]


def _not_started(lines: list[str]) -> RelographError:
    told = " ".join(line.strip() for line in lines[-3:]) or "nothing"
    return RelographError(f"expected a service that starts, it said: {told}. Try `relograph serve` by itself.")


def _status(pid: int) -> dict[str, str]:
    lines = _read(PROC / str(pid) / "status").decode(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone meanwhile
        return b""


def _num_files(pid: int) -> int:
    try:
        return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
    except OSError:
        return 0
