"""Where a map is: a folder, or the address of a database."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from relograph.errors import ConfigError
from relograph.maps.records import MapSettings
from relograph.maps.sqlite_store import SqliteStore
from relograph.maps.store import WAIT_S, Fill, MapStore, fill_nothing

_POSTGRES = re.compile("postgres(ql)?://")


@dataclass(frozen=True)
class PostgresAddress:
    """A database of a PostgreSQL server.

    Example:
        >>> PostgresAddress("postgresql://ada:secret@host:5432/kitchen?sslmode=require&password=secret")
        PostgresAddress(shown='postgresql://ada@host:5432/kitchen?sslmode=require')
    """

    uri: str = field(repr=False)
    """As libpq takes it; may have a password."""
    shown: str = field(init=False)
    """Without one: what messages and histories say."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", _without_password(self.uri))

    def __str__(self) -> str:
        return self.shown

    def clean(self, text: str) -> str:
        """A message of the server's or of libpq's in one line, without the password."""
        for password in _passwords(self.uri):
            text = text.replace(password, "***")
        return " ".join(text.split())


MapPlace = Path | PostgresAddress


def parse_place(where: Path | str | PostgresAddress) -> MapPlace:
    """A folder, or what stands behind `postgresql://`."""
    if isinstance(where, Path | PostgresAddress):
        return where
    if _POSTGRES.match(where):
        return PostgresAddress(where)
    if "://" in where:
        scheme = where.partition("://")[0]
        raise ConfigError(
            f"expected the folder of a map or postgresql://USER@HOST/DATABASE, found an address of {scheme}://. "
            "Maps are kept in folders and in PostgreSQL."
        )
    return Path(where)


def open_store(where: Path | str | PostgresAddress, *, wait_s: float = WAIT_S) -> MapStore:
    """The map that is there, brought up to date if its schema is an older one."""
    place = parse_place(where)
    if isinstance(place, Path):
        return SqliteStore.open(place, wait_s=wait_s)
    from relograph.maps.postgres_store import PostgresStore  # needs a package of its own

    return PostgresStore.open(place, wait_s=wait_s)


def create_store(
    where: Path | str | PostgresAddress,
    settings: MapSettings,
    kind: str,
    about: dict[str, object],
    fill: Fill = fill_nothing,
) -> MapStore:
    """A new map, which whoever sees it sees with all that `fill` put into it."""
    place = parse_place(where)
    if isinstance(place, Path):
        return SqliteStore.create(place, settings, kind, about, fill)
    from relograph.maps.postgres_store import PostgresStore

    return PostgresStore.create(place, settings, kind, about, fill)


def _without_password(uri: str) -> str:
    scheme, user, _, host, query = _parts(uri)
    kept = [part for part in query if "password" not in part.partition("=")[0]]
    return f"{scheme}://{f'{user}@' if user else ''}{host}{'?' if kept else ''}{'&'.join(kept)}"


def _passwords(uri: str) -> list[str]:
    """All that may be one, as it stands in the address and as it is meant, the longest first."""
    _, _, password, _, query = _parts(uri)
    values = [part.partition("=") for part in query]
    told = {password, *password.split("@"), *(value for name, _, value in values if "password" in name)}
    return sorted({*told, *map(unquote, told)} - {""}, key=len, reverse=True)


def _parts(uri: str) -> tuple[str, str, str, str, list[str]]:
    """Scheme, user, password, the host and what follows it, and the parts of the query."""
    address, _, query = uri.partition("?")
    scheme, _, rest = address.partition("://")
    login, _, host = rest.rpartition("@")  # the last one: those before it may belong to the password
    user, _, password = login.partition(":")
    return scheme, user, password, host, [part for part in query.split("&") if part]
