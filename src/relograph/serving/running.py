"""Processes, sockets and signals: from a configuration to a service that runs until it is told to end."""

import asyncio
import math
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from relograph.environment import compute_device, installed_version, num_cores
from relograph.errors import ConfigError, MissingExtraError, RelographError
from relograph.models.shipped import load_match_gnn

if _missing := [
    name for name in ("fastapi", "prometheus-client", "python-multipart", "uvicorn") if not installed_version(name)
]:
    raise MissingExtraError(_missing[0], "serve", "The service")
import uvicorn
from uvicorn.supervisors import Multiprocess

from relograph.serving.config import ServeConfig

if TYPE_CHECKING:
    from fastapi import FastAPI

HEALTH_CHECK_S = 60
"""Within which a process must answer its parent: one that encodes photos may be busy for a while."""
LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        "uvicorn.access": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "python_multipart": {"level": "CRITICAL"},  # a line for every damaged form, of no use to the operator
        "relograph.serving": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}


def serve(config: ServeConfig, tell: Callable[[str], None] = lambda url: None) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what was accepted.

    `tell` is called with the service's address as soon as it listens there.
    """
    from relograph.serving.keys import KeyRing
    from relograph.serving.served_maps import check_maps

    # Before processes are made: all of them would fail alike, and be made again.
    compute_device(config.device)
    check_maps(config, load_match_gnn(config.weights).sha256)
    if config.keys is not None:
        KeyRing(config.keys)
    settings = uvicorn_config(config, partial(make_app, config))
    with listen(config) as listening, _metrics_folder() if config.workers > 1 else nullcontext():
        host, port = listening.getsockname()[:2]
        tell_it = partial(tell, f"http://{f'[{host}]' if ':' in host else host}:{port}")
        if config.workers > 1:
            workers = _Workers(settings, listening, tell_it)
            workers.run()
            if workers.have_failed:
                raise RelographError(
                    f"expected {config.workers} processes that serve, found that they do not start: what they wrote "
                    "above says why. Try fewer --workers if memory is short."
                )
            return
        # uvicorn repeats a signal to whoever listened before it, when all is done: that is then no reason to fail.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            _Server(settings, tell_it).run([listening])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)


class _Server(uvicorn.Server):
    """One process, which tells when it listens."""

    def __init__(self, settings: uvicorn.Config, tell: Callable[[], None]) -> None:
        super().__init__(settings)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


class _Workers(Multiprocess):
    """Several processes; that one of them listens is told, and from then on each that dies is made again.

    Before, what ended all of them would end the next ones, too.
    """

    def __init__(self, settings: uvicorn.Config, listening: socket.socket, tell: Callable[[], None]) -> None:
        super().__init__(settings, [listening])
        self._tell = tell
        self._have_listened = self.have_failed = False

    def keep_subprocess_alive(self) -> None:
        if self.should_exit.is_set():  # by a signal
            return
        (listening,) = self.sockets
        if not self._have_listened and listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._have_listened = True
            self._tell()
        if self._have_listened:
            for process in self.processes:
                process.child_conn.close()  # or one that dies while it is asked for a sign is waited for all the same
            super().keep_subprocess_alive()
        elif all(process.exitcode is not None for process in self.processes):
            self.should_exit.set()
        self.have_failed = self.should_exit.is_set()


def make_app(config: ServeConfig) -> "FastAPI":
    """The application of one process, which reads its own weights and maps."""
    from relograph.serving.app import create_app
    from relograph.serving.service import Service

    if config.workers > 1:
        torch.set_num_threads(max(1, num_cores() // config.workers))
    return create_app(Service(config))


def uvicorn_config(config: ServeConfig, make: "Callable[[], FastAPI]") -> uvicorn.Config:
    """How uvicorn runs the application that `make` gives, once in each process."""
    from relograph.serving.connections import PatientProtocol
    from relograph.serving.guarding import HEADER_BYTES

    protocol = partial(
        PatientProtocol,
        header_timeout_s=config.header_timeout_s,
        answer_timeout_s=config.body_timeout_s,
        max_connections=config.max_connections,
    )
    return uvicorn.Config(
        make,
        factory=True,
        workers=config.workers,
        http=cast(type[asyncio.Protocol], protocol),
        ws="none",
        lifespan="on",
        log_config=LOG,
        access_log=config.access_log,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=math.ceil(config.header_timeout_s),
        timeout_graceful_shutdown=math.ceil(config.shutdown_timeout_s),
        timeout_worker_healthcheck=HEALTH_CHECK_S,
    )


def listen(config: ServeConfig) -> socket.socket:
    """The socket that all processes of a service share."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Named, or asyncio would not know it for TCP: answers would wait 40 ms for the client to confirm their first lines.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"expected to listen on {config.host} port {config.port}, the system answered: {error.strerror}. "
            "Choose another --host or --port."
        ) from None
    listening.set_inheritable(True)
    return listening


@contextmanager
def _metrics_folder() -> Iterator[None]:
    """Where processes put their numbers, so that each can tell those of all."""
    from relograph.serving.metrics import FOLDER_VARIABLE

    before = os.environ.get(FOLDER_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="relograph-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[FOLDER_VARIABLE]
            else:
                os.environ[FOLDER_VARIABLE] = before
