"""Requests that nobody sends by accident, as the bytes that go over the wire. The same seed makes the same ones.

Each kind is a function of a generator of random numbers and of a photo that the service would localize.
"""

import base64
import gzip
import io
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from PIL import Image

from relograph.environment import installed_version
from relograph.errors import MissingExtraError
from relograph.serving.load.asking import BOUNDARY, HOST, LOCALIZE, photo_request
from relograph.serving.load.place import MAP_NAME, Photo

FRAMES = f"/v1/maps/{MAP_NAME}/frames"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
READ_KEY, WRITE_KEY = (f"rg_{scope:-<43}" for scope in ("read", "write"))
"""In the place of the service's own keys, which are others each time, and as long as those."""


@dataclass(frozen=True)
class Attack:
    """What is sent, and how."""

    kind: str
    pieces: tuple[bytes, ...]
    pause_s: float = 0.0
    """Before each piece but the first."""
    leaves: bool = False
    """Whether the client goes away without waiting for an answer."""
    ends: bool = False
    """Whether the client says that nothing more will come, and waits."""
    refusals: tuple[str, ...] = ()
    """Statuses of which one must be the answer; none where others will do."""


def http(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    key: str | None = WRITE_KEY,
    length: int | None = None,
) -> bytes:
    """A request after which the service closes the connection."""
    shown = {} if key is None else {"Authorization": f"Bearer {key}"}
    lines = {"Host": HOST, "Connection": "close", **shown, **(headers or {})}
    if body or length is not None or method in ("POST", "PUT", "PATCH"):
        lines.setdefault("Content-Length", str(len(body) if length is None else length))
    first = "".join(
        [f"{method} {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]
    )
    return first.encode("utf-8", "surrogateescape") + body


def query(content: bytes, **fields: object) -> bytes:
    """A query whose photo is `content`, with as little work for the model as there can be."""
    return form([("num_references", b"1"), *((name, str(value).encode()) for name, value in fields.items())], content)


def form(fields: list[tuple[str, bytes]], image: bytes | None, path: str = LOCALIZE) -> bytes:
    parts = [(f'form-data; name="{name}"', value) for name, value in fields]
    if image is not None:
        parts.append(('form-data; name="image"; filename="photo"', image))
    return http("POST", path, form_body(parts), {"Content-Type": FORM})


def form_body(parts: list[tuple[str, bytes]]) -> bytes:
    text = [
        f"--{BOUNDARY}\r\nContent-Disposition: {words}\r\n\r\n".encode() + value + b"\r\n" for words, value in parts
    ]
    return b"".join(text) + f"--{BOUNDARY}--\r\n".encode()


def json_query(document: object) -> bytes:
    return http("POST", LOCALIZE, json.dumps(document).encode(), {"Content-Type": "application/json"})


# Photos


def mutated_image(rng: Random, photo: Photo) -> Attack:
    """A photo with some bytes changed, left out, doubled or put elsewhere."""
    data = bytearray(_saved(photo, rng.choice(("JPEG", "PNG", "WEBP"))))
    for _ in range(rng.choice((1, 3, 20, 200))):
        # Mostly in the first lines, which say what the rest is: damage behind them is often just another picture.
        where = rng.randrange(min(len(data), 700) if rng.random() < 0.7 else len(data))
        how = rng.randrange(4)
        if how == 0:
            data[where] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[where] = rng.choice((0, 0x7F, 0x80, 0xFF))
        elif how == 2:
            del data[where : where + rng.choice((1, 2, 40))]
        else:
            data[where:where] = data[where : where + rng.choice((1, 4, 100))]
        if not data:
            break
    return Attack("mutated image", (query(bytes(data)),))


def cut_image(rng: Random, photo: Photo) -> Attack:
    data = _saved(photo, rng.choice(("JPEG", "PNG", "WEBP")))
    return Attack("mutated image", (query(data[: rng.randrange(len(data))]),))


def bomb(rng: Random, photo: Photo) -> Attack:
    """A few bytes that say they are a large photo, or become a large body."""
    side = rng.choice((20_000, 65_500, 2**31 - 1))
    made: bytes
    match rng.randrange(7):
        case 0:  # zeros, well packed
            made = query(_png(8000, 6000, _packed_zeros(6000 * (1 + 3 * 8000))))
        case 1:  # a large photo by its header, and next to nothing in it
            made = query(_png(side, side, zlib.compress(bytes(1000))))
        case 2:
            made = query(_png(64, 64, _packed_zeros(10_000_000)))
        case 3:  # a comment that becomes 50 MB
            text = b"zTXt" + b"Comment\0\0" + _packed_zeros(50_000_000)
            made = query(_png(64, 64, zlib.compress(bytes(64 * 193)), extra=_chunk(text[:4], text[4:])))
        case 4:
            large = bytearray(photo.content)
            found = large.find(b"\xff\xc0")
            large[found + 5 : found + 9] = struct.pack(">HH", 65_500, 65_500)
            made = query(bytes(large))
        case 5:  # scan after scan over all pixels
            made = query(_many_scans(photo, rng.choice((90, 1000, 20_000))))
        case _:
            body, headers = photo_request(photo)
            packed = gzip.compress(body + bytes(10_000_000))
            made = http("POST", LOCALIZE, packed, {**headers, "Content-Encoding": "gzip"})
    return Attack("decompression bomb", (made,))


def _saved(photo: Photo, format: str) -> bytes:
    if format == "JPEG":
        return photo.content
    file = io.BytesIO()
    Image.open(io.BytesIO(photo.content)).resize((160, 120)).save(file, format)
    return file.getvalue()


@cache
def _packed_zeros(count: int) -> bytes:
    return zlib.compress(bytes(count), 9)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _png(width: int, height: int, packed: bytes, extra: bytes = b"") -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def _many_scans(photo: Photo, count: int) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(photo.content)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    scan = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + count * scan[:60] + data[-2:]


# Bodies


def wrong_types(rng: Random, photo: Photo) -> Attack:
    """Fields of other types than they should be, in JSON or in a form, for queries and for new photos."""
    strange: list[Any] = [None, True, -1, 0, 1e400, 10**400, "", "ten", "NaN", [], [[]], {}, {"a": 1}, "\0", "é" * 300]
    strange += [float("nan"), float("-inf"), "1e999", "9" * 5000, [1, 2], list(range(1000)), "../../etc/passwd"]
    names = ["focal_px", "camera", "prior", "num_references", "solver", "axes", "with_matches", "unknown", "image"]
    name, value = rng.choice(names), rng.choice(strange)
    image = base64.b64encode(photo.content).decode()
    way = rng.randrange(6)
    if way == 0:
        made = json_query({"image_base64": image, "num_references": 1, name: value})
    elif way == 1:
        made = json_query({"image_base64": rng.choice([value, image[:-3] + "*", image + "=", "ÿ"])})
    elif way == 2:
        depth = rng.choice((10, 1000, 100_000))
        made = http("POST", LOCALIZE, b"[" * depth, {"Content-Type": "application/json"})
    elif way == 3:
        prior = {"cam_center_world": rng.choice(strange), "quat_wxyz": rng.choice(strange), "radius_m": value}
        made = json_query({"image_base64": image, "prior": prior})
    elif way == 4:
        fields = [(name, json.dumps(value).encode())]
        made = form(fields, rng.choice((photo.content, b"", b"GIF89a", b"%PDF-1.7", b"<svg/>", b"BM" + bytes(60))))
    else:
        matrix = rng.choice([value, [[value] * 4] * 4, [[2.0, 0, 0, 0]] * 4])
        fields = [
            ("name", rng.choice((b"a.png", b"../a", b"/a", b"a\0b", b"\xff"))),
            ("T_world_cam", json.dumps(matrix).encode()),
        ]
        made = form(fields, photo.content, FRAMES)
    return Attack("wrong types", (made,))


def broken_multipart(rng: Random, photo: Photo) -> Attack:
    """Forms that are not quite forms."""
    body, headers = photo_request(photo)
    match rng.randrange(8):
        case 0:
            headers = {
                "Content-Type": rng.choice(("multipart/form-data", "multipart/form-data; boundary=", "text/plain"))
            }
        case 1:
            headers = {"Content-Type": f"multipart/form-data; boundary={'x' * rng.choice((70, 300, 4000))}"}
        case 2:
            body = body[: rng.randrange(len(body))]
        case 3:
            body = body.replace(b"\r\n", rng.choice((b"\n", b"\r", b"\r\r\n")))
        case 4:
            body = form_body([(f'form-data; name="f{number}"', b"1") for number in range(rng.choice((17, 2000)))])
        case 5:
            body = form_body([('form-data; name="image"', photo.content)] * 2)
        case 6:
            words = rng.choice(
                ("attachment", "form-data", 'form-data; name="' + "n" * 5000, "form-data; name*=utf-8''%ff")
            )
            body = form_body([(words, b"1"), ('form-data; name="image"', photo.content)])
        case _:
            changed = bytearray(body)
            for _ in range(30):
                changed[rng.randrange(min(600, len(changed)))] = rng.randrange(256)
            body = bytes(changed)
    return Attack("broken multipart", (http("POST", LOCALIZE, body, headers),))


def truncated_body(rng: Random, photo: Photo) -> Attack:
    """Less than was promised, and then nothing more."""
    body, headers = photo_request(photo)
    sent = body[: rng.randrange(len(body))]
    made = http("POST", LOCALIZE, sent, headers, length=len(body))
    leaves = rng.random() < 0.5
    return Attack("truncated body", (made,), leaves=leaves, ends=not leaves)


def wrong_length(rng: Random, photo: Photo) -> Attack:
    """Lengths that are none, are two, or are more than anybody may send."""
    body, headers = photo_request(photo)
    length = rng.choice(("-1", "abc", "1e3", "9" * 40, str(10**9), "0x10", "1, 2", "", str(len(body) + 5)))
    made = http("POST", LOCALIZE, body, {**headers, "Content-Length": length})
    if rng.random() < 0.3:
        made = made.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n", 1)
    return Attack("truncated body", (made,), ends=True)


def chunked_nonsense(rng: Random, photo: Photo) -> Attack:
    """Chunks whose lengths lie, or which come beside a length."""
    body, headers = photo_request(photo)
    chunks = rng.choice(
        (
            b"zz\r\nabc\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\nabc\r\n",
            b"-5\r\nabc\r\n0\r\n\r\n",
            b"5;" + b"x" * 40_000 + b"\r\nabcde\r\n0\r\n\r\n",
            b"3\r\nabcdefgh\r\n0\r\n\r\n",
            b"0\r\nTrailer: " + b"y" * 40_000 + b"\r\n\r\n",
            b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
            b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n",
        )
    )
    encoding = rng.choice(("chunked", "chunked", "gzip, chunked", "identity", "chunked, chunked"))
    lines = {
        "Host": HOST,
        "Connection": "close",
        "Authorization": f"Bearer {WRITE_KEY}",
        "Transfer-Encoding": encoding,
        **headers,
    }
    if rng.random() < 0.3:
        lines["Content-Length"] = "4"
    first = "".join(
        [f"POST {LOCALIZE} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]
    )
    return Attack("chunked nonsense", (first.encode() + chunks,), ends=True)


# First lines


def huge_headers(rng: Random, photo: Photo) -> Attack:
    size = rng.choice((1000, 31_000, 33_000, 200_000, 2_000_000))
    way = rng.randrange(4)
    if way == 0:
        made = http("GET", "/v1/maps", headers={"X-Long": "a" * size})
    elif way == 1:
        made = http("GET", "/v1/maps", headers={f"X-{number}": "b" for number in range(size // 8)})
    elif way == 2:
        made = http("GET", "/v1/maps?" + "c" * size)
    else:
        made = http("GET", "/v1/maps", headers={"Authorization": "Bearer " + "d" * size, "X-Request-ID": "e" * size})
    return Attack("huge headers", (made,))


def path_trick(rng: Random, photo: Photo) -> Attack:
    """Ways out of the addresses that there are, and into the file system."""
    steps = rng.choice(
        ("../", "..%2f", "%2e%2e/", "..\\", "..%5c", "%252e%252e%252f", "....//", "..;/", "%c0%ae%c0%ae/")
    )
    target = rng.choice(("etc/passwd", "map.sqlite", "proc/self/environ", "src/relograph/serving/app.py"))
    base = rng.choice(
        ("/", "/page/", "/docs/", "/v1/maps/", f"/v1/maps/{MAP_NAME}/thumbnails/", f"{FRAMES}/", "//", "/v1/")
    )
    ends = rng.choice(("", "%00", "%00.jpg", "?x=../", "#", "/.", ";a=b", "%0d%0aX-Injected: 1"))
    path = base + steps * rng.choice((1, 3, 12)) + target + ends
    if rng.random() < 0.2:
        path = rng.choice(
            (
                f"http://other.example{path}",
                "*",
                "/" + "a/" * 3000,
                "/%",
                "/%zz",
                "/\udcff\udcfe",
                "/v1/maps/%F0%9F%92%A9",
            )
        )
    headers = {"Host": rng.choice((HOST, HOST, HOST, "other.example", "", "127.0.0.1:99999", "[::1", "a b"))}
    return Attack("path trick", (http(rng.choice(("GET", "HEAD", "DELETE")), path, headers=headers),))


def wrong_method(rng: Random, photo: Photo) -> Attack:
    method = rng.choice(
        ("PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "get", "X" * 3000, "DELETE", "GET")
    )
    path = rng.choice((LOCALIZE, FRAMES, "/v1/maps", "/healthz", "/metrics", "/openapi.json", "/", "/docs"))
    return Attack("wrong method", (http(method, path, rng.choice((b"", b"x" * 100))),))


def no_http(rng: Random, photo: Photo) -> Attack:
    """What is not HTTP at all, or is of another version."""
    made = rng.choice(
        (
            bytes(rng.randrange(256) for _ in range(rng.choice((1, 50, 5000)))),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET /healthz HTTP/1.0\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nBad\0Name: x\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n folded: x\r\n\r\n",
            b"\r\n" * 3000 + http("GET", "/healthz"),
            b"GET /v1/maps HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
        )
    )
    return Attack("no HTTP", (made,), ends=True)


# Keys


def without_the_right_key(rng: Random, photo: Photo) -> Attack:
    """No key, a wrong one, the right one where none belongs, or one that is good for less."""
    body, headers = photo_request(photo)
    frame = f"{FRAMES}/{photo.name}"
    changes = (("POST", FRAMES), ("DELETE", frame))
    questions = (*changes, ("POST", LOCALIZE), ("GET", "/v1/maps"), ("GET", FRAMES), ("GET", "/metrics"))
    way = rng.randrange(5)
    method, path = rng.choice(changes if way == 0 else questions)
    key = None
    if way == 0:
        key = READ_KEY
    elif way == 1:
        key = rng.choice((WRITE_KEY + "x", "x" + WRITE_KEY, f"rg_{rng.randbytes(21).hex()}x", "rg_", "\u00e9", "null"))
    elif way == 2:
        headers["Authorization"] = rng.choice((WRITE_KEY, f"Basic {WRITE_KEY}", f"Bearer{WRITE_KEY}", "Bearer", ""))
    elif way == 3:
        path += f"?{rng.choice(('key', 'api_key', 'access_token', 'authorization'))}={WRITE_KEY}"
    else:
        headers[rng.choice(("Cookie", "X-API-Key", "Proxy-Authorization"))] = rng.choice(
            (WRITE_KEY, f"Bearer {WRITE_KEY}", f"key={WRITE_KEY}")
        )
    sent = http(method, path, body if method == "POST" else b"", headers, key=key)
    return Attack("without the right key", (sent,), refusals=("403",) if way == 0 else ("401",))


def burst(num: int, photo: Photo) -> list[Attack]:
    """Queries that are nothing unusual but for their number at once."""
    return [Attack("burst", (query(photo.content),))] * num


# Time


def pipelined(rng: Random, photo: Photo) -> Attack:
    """Many requests at once over one connection, before the first is answered."""
    going_on = http("GET", "/healthz").replace(b"Connection: close\r\n", b"")
    number = rng.choice((2, 10, 50))
    last = rng.choice((http("GET", "/v1/maps"), http("POST", LOCALIZE, b"{}", {"Content-Type": "application/json"})))
    return Attack("pipelining", (going_on * number + last,))


def early_disconnect(rng: Random, photo: Photo) -> Attack:
    """Goes away with the whole query sent, or after a part of it."""
    made = query(photo.content)
    if rng.random() < 0.5:
        return Attack("early disconnect", (made,), leaves=True)
    cut = rng.randrange(1, len(made))
    return Attack("early disconnect", (made[:cut], made[cut:]), pause_s=0.01, leaves=True)


def slow_sender(rng: Random, photo: Photo) -> Attack:
    """First lines or a body that come in drop by drop, or never."""
    made = query(photo.content)
    if rng.random() < 0.5:
        drops = tuple(made[place : place + 1] for place in range(60))
    else:
        body = made.index(b"\r\n\r\n") + 4
        drops = (made[:body], *(made[place : place + 1] for place in range(body, body + 60)))
    return Attack("slow sender", drops, pause_s=0.25)


# All together


Maker = Callable[[Random, Photo], Attack]
SHARES: Mapping[Maker, int] = {
    mutated_image: 14,
    cut_image: 6,
    bomb: 2,
    wrong_types: 12,
    broken_multipart: 7,
    truncated_body: 4,
    wrong_length: 2,
    chunked_nonsense: 4,
    huge_headers: 3,
    path_trick: 7,
    wrong_method: 3,
    no_http: 3,
    without_the_right_key: 4,
    pipelined: 1,
    early_disconnect: 3,
    slow_sender: 2,
}
"""Of a hundred requests; the others are made from the schema."""
SCHEMA_SHARE = 100 - sum(SHARES.values())


def attacks(count: int, photo: Photo, schema: Mapping[str, Any], *, seed: int) -> Iterator[Attack]:
    """So many of them, in an order of their own; `schema` is the service's, as OpenAPI."""
    rng = Random(seed)
    num_by_schema = count * SCHEMA_SHARE // 100
    makers = rng.choices(list(SHARES), list(SHARES.values()), k=count - num_by_schema)
    # What a schema makes takes a while, so it is made before the clock runs.
    made: list[Attack | Maker] = [*makers, *schema_attacks(num_by_schema, schema, seed=seed)]
    rng.shuffle(made)
    for number, one in enumerate(made):
        yield one if isinstance(one, Attack) else one(Random(f"{seed} {number}"), photo)


def schema_attacks(count: int, schema: Mapping[str, Any], *, seed: int) -> list[Attack]:
    """Requests that schemathesis makes for every operation: half within the schema, half against it."""
    if installed_version("schemathesis") is None:
        raise MissingExtraError("schemathesis", "dev", "Making requests from a schema")
    import requests
    import schemathesis

    made: list[Attack] = []
    described: Any = schemathesis.openapi.from_dict(dict(schema))
    operations = [result.ok() for result in described.get_all_operations()]
    each = -(-count // (2 * len(operations)))
    for number, operation in enumerate(operations):
        for kind, mode in (
            ("within the schema", schemathesis.GenerationMode.POSITIVE),
            ("against the schema", schemathesis.GenerationMode.NEGATIVE),
        ):
            told = (
                {"map": MAP_NAME} if "{map}" in operation.path else None
            )  # none of another name would get any further
            strategy = operation.as_strategy(generation_mode=mode, path_parameters=told)
            for case in _examples(strategy, each, seed=1000 * seed + number):
                request = requests.Request(**case.as_transport_kwargs(base_url=f"http://{HOST}")).prepare()
                made.append(Attack(kind, (_as_bytes(request),)))
    rng = Random(seed)
    return rng.sample(made, count) if len(made) >= count else [*made, *rng.choices(made, k=count - len(made))]


def _examples(strategy: Any, count: int, *, seed: int) -> list[Any]:
    """What a strategy of hypothesis makes; nothing where there is nothing to make."""
    import hypothesis
    from hypothesis import HealthCheck, Phase

    made: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(example: Any) -> None:
        made.append(example)

    with suppress(hypothesis.errors.Unsatisfiable):  # nothing is against the schema of an operation without parameters
        collect()
    return made


def _as_bytes(request: Any) -> bytes:
    body = request.body or b""
    body = body.encode() if isinstance(body, str) else body
    ours = ("host", "connection", "authorization", "x-schemathesis-testcaseid")  # the last is another one each time
    headers = {name: value for name, value in request.headers.items() if name.lower() not in ours}
    texts = {_text(name): _text(value) for name, value in headers.items()}
    made = http(request.method, request.path_url, body, texts)
    drawn = re.search(rb"boundary=([0-9a-f]{32})", made)  # another one each time, too
    return made if drawn is None else made.replace(drawn[1], b"0" * 32)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
