"""Clients of a service on 127.0.0.1: they take the time, and compare each answer with the truth."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from types import TracebackType
from typing import Any

from relograph.serving.load.place import MAP_NAME, Photo

HOST = "127.0.0.1"
LOCALIZE = f"/v1/maps/{MAP_NAME}/localize"
ASKING_TIMEOUT_S = 60.0
FRESH_S = 5.0
"""A connection that was idle for longer is not used again: services close those, ours after 10 s."""
BROKEN = 0
"""In the place of a status, where the connection broke before an answer came."""
PAUSE_S = 0.05
BOUNDARY = "relograph-photo-boundary"


@dataclass(frozen=True)
class Reply:
    """What a client was told, and when."""

    status: int
    began: float
    ended: float
    """By the clock of `time.perf_counter`."""
    content: bytes = b""
    retry_after_s: float | None = None
    is_right: bool | None = None
    """Whether the pose is that of the photo; None where there is no answer to a photo."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """One who asks one thing after the other, over one connection or over a new one each time."""

    def __init__(self, port: int, *, kept: bool = True, key: str | None = None) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=ASKING_TIMEOUT_S)
        self._kept, self._last_used = kept, 0.0
        self._shown = {} if key is None else {"Authorization": f"Bearer {key}"}

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str) -> Reply:
        return self._ask("GET", path, None, {})

    def localize(self, photo: Photo, **fields: object) -> Reply:
        body, headers = photo_request(photo, **fields)
        reply = self._ask("POST", LOCALIZE, body, headers)
        if reply.status != 200:
            return reply
        is_right = photo.is_right(reply.json()["T_world_cam"])
        return Reply(reply.status, reply.began, reply.ended, reply.content, None, is_right)

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        began = time.perf_counter()
        if began > self._last_used + FRESH_S:  # the service may be closing it this moment, as any would
            self._connection.close()
        try:
            self._connection.request(method, path, body, {**headers, **self._shown})
            response = self._connection.getresponse()
            content = response.read()
            retry_after = response.headers.get("retry-after")
            retry_after_s = None if retry_after is None else float(retry_after)
            return Reply(response.status, began, time.perf_counter(), content, retry_after_s)
        except (OSError, HTTPException):
            self._connection.close()
            return Reply(BROKEN, began, time.perf_counter())
        finally:
            self._last_used = time.perf_counter()
            if not self._kept:
                self._connection.close()


def photo_request(photo: Photo, **fields: object) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a query as a form."""
    texts = {"camera": photo.camera_line, **{name: str(value) for name, value in fields.items()}}
    parts = [_part(f'name="{name}"', text.encode()) for name, text in texts.items()]
    parts.append(_part(f'name="image"; filename="{photo.name}"', photo.content))
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def _part(disposition: str, content: bytes) -> bytes:
    return f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


# Many at once


def ask_while(
    goes_on: Callable[[], bool],
    make_client: Callable[[], Client],
    photos: Sequence[Photo],
    replies: list[Reply],
    *,
    num_clients: int,
    **fields: object,
) -> None:
    """Puts into `replies`, as they come, what clients are told each of whom asks again as soon as it is answered.

    One who was not waits a little.
    """

    def ask(first: int) -> None:
        with make_client() as client:
            for photo in _from(photos, first):
                reply = client.localize(photo, **fields)
                replies.append(reply)
                if not goes_on():
                    break
                if reply.status != 200:
                    time.sleep(PAUSE_S)

    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(ask, range(num_clients)))  # which raises what a client raised


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Whether fewer seconds have passed since now."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def ask_at_a_rate(
    make_client: Callable[[], Client],
    photos: Sequence[Photo],
    *,
    per_second: float,
    seconds: float,
    max_at_once: int,
    **fields: object,
) -> list[Reply]:
    """Replies to requests that come at their time, whether or not earlier ones were answered.

    Not more than `max_at_once` wait for an answer: a service that keeps more waiting would be offered less, which shows
    in the number of replies.
    """
    local, clients = threading.local(), []

    def ask(photo: Photo) -> Reply:
        if not hasattr(local, "client"):
            local.client = make_client()
            clients.append(local.client)
        return local.client.localize(photo, **fields)  # type: ignore[no-any-return]  # a thread's own

    begin = time.perf_counter()
    with ThreadPoolExecutor(max_at_once) as pool:
        asked = []
        for number, photo in zip(range(max(1, round(per_second * seconds))), cycle(photos), strict=False):
            time.sleep(max(0.0, begin + number / per_second - time.perf_counter()))
            asked.append(pool.submit(ask, photo))
        replies = sorted((future.result() for future in asked), key=lambda reply: reply.ended)
    for client in clients:
        client.__exit__(None, None, None)
    return replies


def _from(photos: Sequence[Photo], first: int) -> Iterator[Photo]:
    return cycle([*photos[first % len(photos) :], *photos[: first % len(photos)]])


def by_status(replies: Iterable[Reply]) -> dict[str, int]:
    """How many replies there were of each status."""
    counts = Counter("broken" if reply.status == BROKEN else str(reply.status) for reply in replies)
    return dict(sorted(counts.items()))


def num_wrong(replies: Iterable[Reply]) -> int:
    """Answers whose pose is not that of their photo."""
    return sum(reply.is_right is False for reply in replies)
