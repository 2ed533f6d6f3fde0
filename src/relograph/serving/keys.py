"""API keys: random, shown once, kept as hashes in a file that only its owner can read.

A key is `rg_` and 43 letters, 256 random bits. Of such a key a single SHA-256 tells nothing, and comparing it takes
microseconds; slow hashes are for passwords that people think of.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from relograph.errors import ConfigError, DatasetError
from relograph.scenes.names import reading
from relograph.serving.config import MAP_NAME

Scope = Literal["read", "write"]
PREFIX = "rg_"
FORMAT = "relograph keys 1"
LOOK_S = 1.0
LOGGER = logging.getLogger("relograph.serving")
NAME = re.compile(r"[^\x00-\x1f\x7f]{1,80}")


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key: not the key."""

    id: str
    """By which it is listed and revoked."""
    sha256: str
    scope: Scope
    name: str
    """Whose it is, for people."""
    created_utc: str
    expires_utc: str | None = None
    maps: tuple[str, ...] | None = None
    """That it may see; None for all."""

    def is_valid(self, now: datetime) -> bool:
        return self.expires_utc is None or now < datetime.fromisoformat(self.expires_utc)

    def may_see(self, map_name: str) -> bool:
        return self.maps is None or map_name in self.maps

    @property
    def may_write(self) -> bool:
        return self.scope == "write"


def create_key(
    path: Path, scope: Scope, name: str = "", *, expires: datetime | None = None, maps: Sequence[str] = ()
) -> tuple[str, ApiKey]:
    """A new key, which is told here and never again, and what the file at `path` now keeps of it."""
    if name and not NAME.fullmatch(name):
        raise ConfigError(f"expected a name of up to 80 letters, got {name[:80]!r}. Choose a shorter one.")
    for map_name in maps:
        if not MAP_NAME.fullmatch(map_name):
            raise ConfigError(f"expected the name of a served map, got {map_name[:80]!r}. See GET /v1/maps.")
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=secrets.token_hex(4),
        sha256=_hash(secret),
        scope=scope,
        name=name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        expires_utc=None if expires is None else expires.astimezone(UTC).isoformat(timespec="seconds"),
        maps=tuple(maps) or None,
    )
    with _locked(path):
        _write(path, [*(read_keys(path) if path.exists() else ()), key])
    return secret, key


def revoke_key(path: Path, key_id: str) -> ApiKey:
    """Takes a key out of the file; services that read it notice within a second."""
    with _locked(path):
        keys = read_keys(path)
        gone = [key for key in keys if key.id == key_id]
        if not gone:
            raise ConfigError(f"{path}: expected the id of a key, found none {key_id[:40]!r}. See `serve keys list`.")
        _write(path, [key for key in keys if key.id != key_id])
    return gone[0]


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in a file."""
    with reading(path):
        mode = path.stat().st_mode
        data = path.read_bytes()
    if mode & 0o077:
        raise DatasetError(
            f"{path}: expected a file of keys that only its owner can read, found the rights {mode & 0o777:o}. "
            f"Run: chmod 600 {path}"
        )
    try:
        document: Any = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"it does not say {FORMAT!r}")
        keys = [ApiKey(**{**key, "maps": key["maps"] and tuple(key["maps"])}) for key in document["keys"]]
        for key in keys:
            if key.scope not in ("read", "write") or not re.fullmatch("[0-9a-f]{64}", key.sha256):
                raise ValueError("a key in it is none")
            key.is_valid(datetime.now(UTC))
        return keys
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path}: expected a file of keys, found another: {error}. Restore it from a copy."
        ) from None


class KeyRing:
    """The keys in a file as they are now: it is looked at once a second at the most, and read again when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp, self._looked_at = _stamp(path), monotonic()
        self._keys = read_keys(path)

    def find(self, secret: str) -> ApiKey | None:
        """The key that `secret` is, where it is one that is valid now."""
        self._look_again()
        wanted, found = _hash(secret), None
        for key in self._keys:  # all of them: the time tells nobody which one it was
            if hmac.compare_digest(key.sha256, wanted):
                found = key
        return found if found is not None and found.is_valid(datetime.now(UTC)) else None

    def _look_again(self) -> None:
        if monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at, stamp = monotonic(), _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            keys = read_keys(self._path)
        except DatasetError as error:
            keys = []  # nobody gets in by a file that is gone or damaged
            LOGGER.warning("No key is valid any more: %s", error)
        self._stamp, self._keys = stamp, keys


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One command at a time changes the file."""
    with reading(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, keys: Sequence[ApiKey]) -> None:
    document = {"format": FORMAT, "keys": [asdict(key) for key in keys]}
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with reading(path):
        file = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(file, "w") as opened:
                if path.exists() and os.geteuid() == 0:  # who reads it under another name goes on reading it
                    owner = path.stat()
                    os.fchown(opened.fileno(), owner.st_uid, owner.st_gid)
                json.dump(document, opened, indent=1)
                opened.flush()
                os.fsync(opened.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
