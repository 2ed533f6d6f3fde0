"""Where a map is: a folder, or the address of a database."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from relograph.errors import ConfigError
from relograph.maps.records import MapSettings
from relograph.maps.sqlite_store import SqliteStore
from relograph.maps.store import Fill, MapStore, fill_nothing

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
        told = re.findall(r"(?:(?<=[?&]password=)|(?<=[?&]sslpassword=))[^&]*|(?<=:)[^/:@][^@]*(?=@)", self.uri)
        for password in sorted({*told, *map(unquote, told)} - {""}, key=len, reverse=True):
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


def open_store(where: Path | str | PostgresAddress) -> MapStore:
    """The map that is there, brought up to date if its schema is an older one."""
    place = parse_place(where)
    if isinstance(place, Path):
        return SqliteStore.open(place)
    from relograph.maps.postgres_store import PostgresStore  # needs a package of its own

    return PostgresStore.open(place)


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
    address, mark, query = uri.partition("?")
    scheme, _, rest = address.partition("://")
    user, at, host = rest.rpartition("@")  # the last: what stands before it may be a password in disguise
    kept = [part for part in query.split("&") if part and "password" not in part.partition("=")[0]]
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{mark if kept else ''}{'&'.join(kept)}"
