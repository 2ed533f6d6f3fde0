"""How the service is set up. The string under a field is its help on the command line, too."""

import ipaddress
import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from relograph.errors import ConfigError

MAP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a map may be called in an address."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """A service: which maps, where, for whom, and within which limits."""

    maps: tuple[str, ...]
    """Maps to serve: folders or postgresql://HOST/DATABASE, each as MAP or NAME=MAP."""
    host: str = "127.0.0.1"
    """Address to listen on; any but loopback needs --keys."""
    port: int = 8000
    """Port to listen on; 0 takes a free one and says which."""
    workers: int = 1
    """Processes that share the port, each with a network of its own."""
    weights: Path | None = None
    """Weights of MatchGNN that the maps were made with; without, the package's."""
    device: str = "cpu"
    """Where to compute, as torch writes it: cpu, cuda, cuda:1."""
    keys: Path | None = None
    """File of API keys, as `relograph serve keys create` writes it; without, anybody on this machine may ask."""
    allow_writes: bool = False
    """Let requests add and remove photos: those with a key of write scope, or without --keys all."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may call this host by, beside localhost; without --keys no others are answered."""
    cors_origins: tuple[str, ...] = ()
    """Origins such as https://app.example.org whose web pages may ask; none otherwise."""
    open_metrics: bool = False
    """Answer /metrics without a key."""
    queue: int = 32
    """Queries that a process accepts at once, the one in work included; more are answered with 429."""
    batch: int | None = None
    """Photos that are encoded together; without, 1 on a CPU and 8 on a GPU."""
    query_timeout_s: float = 30.0
    """How long an accepted query may wait and take before it is given up."""
    body_timeout_s: float = 20.0
    """How long a request's body may take to come in, and an answer to be fetched."""
    header_timeout_s: float = 10.0
    """How long a request's first lines may take to come in, and a connection may stay silent."""
    shutdown_timeout_s: float = 30.0
    """How long accepted requests may take after SIGTERM."""
    max_body_mb: float = 20.0
    """The largest body of a request, in megabytes."""
    max_megapixels: float = 50.0
    """The largest photo, in millions of pixels, by its header."""
    max_bodies_mb: float = 256.0
    """Memory for all bodies that are coming in at one time, in megabytes; over it, 429."""
    max_connections: int = 512
    """Connections that a process holds at once; more are closed."""
    poll_s: float = 1.0
    """How often a map is looked at for changes that others made, and one that is away is tried again, in seconds."""
    map_wait_s: float = 5.0
    """How long to wait for a map's database, or for another writer, in seconds."""
    access_log: bool = False
    """Write a line for every request."""

    def __post_init__(self) -> None:
        named_maps(self.maps)
        _require(0 <= self.port <= 65535, f"a port from 0 to 65535, got {self.port}")
        for name in ("workers", "queue", "max_connections"):
            _require(getattr(self, name) >= 1, f"{_option(name)} of at least 1, got {getattr(self, name)}")
        _require(self.batch is None or self.batch >= 1, f"--batch of at least 1, got {self.batch}")
        for name in (*(n for n in vars(self) if n.endswith("_s")), "max_body_mb", "max_megapixels", "max_bodies_mb"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, f"{_option(name)} above 0, got {value}")
        for origin in self.cors_origins:
            parts = urlsplit(origin)
            is_origin = (
                parts.scheme in ("http", "https") and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
            )
            _require(bool(is_origin), f"an origin like https://app.example.org, got {origin!r}")
        if self.keys is None and not self.is_loopback:
            raise ConfigError(
                f"expected API keys for a service that others can reach, found --host {self.host} without --keys. "
                "Make one with `relograph serve keys create --keys FILE` and give --keys FILE, or listen on 127.0.0.1."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def max_body_bytes(self) -> int:
        return round(1e6 * self.max_body_mb)

    @property
    def max_pixels(self) -> int:
        return round(1e6 * self.max_megapixels)


def named_maps(maps: tuple[str, ...]) -> dict[str, str]:
    """Where each map is, by the name that requests call it by.

    Example:
        >>> named_maps(("rooms/kitchen.map", "hall=other.map", "postgresql://ada@host/office?sslmode=require"))
        {'kitchen': 'rooms/kitchen.map', 'hall': 'other.map', 'office': 'postgresql://ada@host/office?sslmode=require'}
    """
    _require(bool(maps), "at least one map to serve, got none")
    named: dict[str, str] = {}
    for given in maps:
        name, where = _name_and_place(given)
        if name in named:
            raise ConfigError(f"expected maps of different names, got two called {name}. Call one otherwise: NAME=MAP.")
        named[name] = where
    return named


def _name_and_place(given: str) -> tuple[str, str]:
    name, equals, where = given.partition("=")
    if equals and MAP_NAME.fullmatch(name):  # an equals sign further on belongs to a path or an address
        _require(bool(where), f"a map behind {given!r}, got none")
        return name, where
    path = urlsplit(given).path if "://" in given else given
    derived = PurePosixPath(path).name.removesuffix(".map")
    if not MAP_NAME.fullmatch(derived):
        raise ConfigError(
            f"expected a map whose name can stand in an address (letters, digits, '.', '_', '-'), found "
            f"{derived[:80]!r}. Call it by such a name: NAME=MAP."
        )
    return derived, given


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ConfigError(f"expected {what}. See `relograph serve run --help`.")
