"""What becomes of a service that thousands of hostile requests are sent to, and of each of them."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relograph.serving.load.asking import HOST, Client, Reply
from relograph.serving.load.attacks import READ_KEY, WRITE_KEY, Attack, attacks, burst
from relograph.serving.load.place import Photo
from relograph.serving.load.server import RunningServer, Usage

AT_ONCE = 24
BURST = 64
"""Queries at once, twice as many as the service accepts."""
BURST_SHARE = 0.25
"""Of the requests, at the most."""
NO_END_S = 60.0
"""A connection that the service has not ended by then will not end."""
MAX_ANSWER_BYTES = 16_000_000
SETTLE_S = 3.0
SAMPLES = 20
FIRST_SHARE = 0.25
"""Of the requests, after which memory is taken for warm."""
OPTIONS = {"header_timeout_s": 2, "body_timeout_s": 3, "allow_writes": True, "allowed_host": HOST}
"""Of the service, which has keys: slow senders are waited for, and there is more that can be asked and refused."""
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3})[^\r\n]*\r\n")
INTERNALS = re.compile(rb"Traceback|File \"|site-packages|\.py\b")
LEFT, CLOSED, NO_END = "left", "closed", "no end"
"""What became of a request without a status: its client left, the connection was closed, or neither ever happened."""


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A service after many hostile requests."""

    part: str = "hostile"
    requests: int
    seconds: float
    statuses: dict[str, int]
    by_kind: dict[str, dict[str, int]]
    server_errors: int
    """Statuses of 500 and above."""
    never_ended: int
    told_internals: int
    """Answers that show something of the program."""
    tracebacks: int
    """In the service's log."""
    let_in: int
    """Requests without the right key that were answered by anything but the refusal that belongs to them."""
    examples: list[str]
    """Of requests that were answered as none should be, the first few."""
    is_alive: bool
    right_after: bool
    """Whether a photo that was sent at the end was localized within 10 cm."""
    rss_first_mb: float
    """After a quarter of the requests."""
    rss_last_mb: float
    open_files_first: int
    """Before the first request."""
    open_files_last: int
    threads_first: int
    """After a quarter of the requests: a pool's threads are made when they are needed."""
    threads_last: int


@dataclass
class _Seen:
    """What became of requests so far."""

    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    told_internals: int = 0
    let_in: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, attack: Attack, outcomes: Sequence[str], content: bytes) -> None:
        self.by_kind.setdefault(attack.kind, Counter()).update(outcomes)
        tells = bool(INTERNALS.search(content)) and not content.startswith(b"HTTP/1.1 200")
        self.told_internals += tells
        # Nobody is let in by a connection that is closed before the whole body has come.
        is_let_in = bool(attack.refusals) and not set(outcomes) <= {*attack.refusals, CLOSED}
        self.let_in += is_let_in
        is_bad = tells or is_let_in or NO_END in outcomes or any(_is_server_error(outcome) for outcome in outcomes)
        if is_bad and len(self.examples) < 5:
            self.examples.append(f"{attack.kind}: {b''.join(attack.pieces)[:300]!r} -> {', '.join(outcomes)}")

    def count(self, *wanted: str) -> int:
        return sum(counts[outcome] for counts in self.by_kind.values() for outcome in wanted)


def measure_hostile(
    server: RunningServer, photos: Sequence[Photo], *, num_requests: int, seed: int, **fields: object
) -> Hostile:
    """So many hostile requests, several at once, some of them in a burst, then one that is not."""
    with server.client(kept=False) as client:
        for photo in photos:  # whatever is made once is made now
            client.localize(photo, **fields)
        schema = client.get("/openapi.json").json()
        at_once = burst(min(BURST, int(BURST_SHARE * num_requests)), photos[0])
        made = list(attacks(num_requests - len(at_once), photos[0], schema, seed=seed))
        before = server.usage()
        seen = _Seen()
        began = time.perf_counter()
        warm = round(FIRST_SHARE * len(made))
        asyncio.run(_send_all(server, at_once, seen, num_at_once=len(at_once)))
        asyncio.run(_send_all(server, made[:warm], seen))
        first = _settled(server)
        asyncio.run(_send_all(server, made[warm:], seen))
        seconds = time.perf_counter() - began
        last = _settled(server)
        right_after = _after_what_waits(client, photos[0], **fields).is_right is True
    totals: Counter[str] = sum(seen.by_kind.values(), Counter())
    return Hostile(
        requests=len(made) + len(at_once),
        seconds=seconds,
        statuses=dict(sorted(totals.items())),
        by_kind={kind: dict(sorted(counts.items())) for kind, counts in sorted(seen.by_kind.items())},
        server_errors=sum(number for outcome, number in totals.items() if _is_server_error(outcome)),
        never_ended=totals[NO_END],
        told_internals=seen.told_internals,
        tracebacks=server.num_tracebacks,
        let_in=seen.let_in,
        examples=seen.examples,
        is_alive=server.is_alive,
        right_after=right_after,
        rss_first_mb=first.rss_mb,
        rss_last_mb=last.rss_mb,
        open_files_first=before.open_files,
        open_files_last=last.open_files,
        threads_first=first.threads,
        threads_last=last.threads,
    )


def _is_server_error(outcome: str) -> bool:
    return outcome.startswith("5")


def _settled(server: RunningServer) -> Usage:
    time.sleep(SETTLE_S)  # connections that were left are closed by then
    return server.usage()


def _after_what_waits(client: Client, photo: Photo, **fields: object) -> Reply:
    """What is told of a photo; queries whose clients have left may still fill the queue."""
    end = time.monotonic() + NO_END_S
    while (reply := client.localize(photo, **fields)).status == 429 and time.monotonic() < end:
        time.sleep(SETTLE_S)
    return reply


# Over the wire


async def _send_all(server: RunningServer, made: Iterable[Attack], seen: _Seen, *, num_at_once: int = AT_ONCE) -> None:
    waiting = iter(made)

    async def sender() -> None:
        for attack in waiting:
            content, is_over = await _send(server.port, _with_keys(attack, server.keys))
            seen.add(attack, _outcomes(attack, content, is_over=is_over), content)

    await asyncio.gather(*(sender() for _ in range(num_at_once)))


def _with_keys(attack: Attack, keys: Mapping[str, str]) -> Attack:
    read, write = keys["read"].encode(), keys["write"].encode()
    pieces = (piece.replace(READ_KEY.encode(), read).replace(WRITE_KEY.encode(), write) for piece in attack.pieces)
    return replace(attack, pieces=tuple(pieces))


async def _send(port: int, attack: Attack) -> tuple[bytes, bool]:
    """What the service said until it closed the connection, and whether it did."""
    content = bytearray()
    try:
        async with asyncio.timeout(NO_END_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            receiving = asyncio.ensure_future(_receive(reader, content))
            try:
                for number, piece in enumerate(attack.pieces):
                    if number and attack.pause_s:
                        await asyncio.wait({receiving}, timeout=attack.pause_s)
                    if receiving.done():
                        break
                    writer.write(piece)
                    await writer.drain()
                if attack.ends and not receiving.done():
                    writer.write_eof()
                if not attack.leaves:
                    await receiving
            finally:
                receiving.cancel()
                writer.close()
    except TimeoutError:
        return bytes(content), False
    except OSError:  # the service had heard enough
        pass
    return bytes(content), True


async def _receive(reader: asyncio.StreamReader, content: bytearray) -> None:
    try:
        while len(content) < MAX_ANSWER_BYTES and (some := await reader.read(65_536)):
            content += some
    except OSError:
        pass


def _outcomes(attack: Attack, content: bytes, *, is_over: bool) -> list[str]:
    statuses = [found[1].decode() for found in STATUS_LINE.finditer(content)]
    if not is_over:
        return [*statuses, NO_END]
    return statuses or [LEFT if attack.leaves else CLOSED]
