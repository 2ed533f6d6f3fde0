"""What is too large, too slow, too much or from elsewhere is refused before work is done for it."""

import io
import logging
import select
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFile

from localization.small_networks import noise_photo
from relograph.serving import bodies
from relograph.serving.errors import ServiceError
from serving.running_services import Running, encoded, error_of, photo_file, running, wait_until

PATH = "/v1/maps/kitchen/localize"


@contextmanager
def connected(service: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=20) as opened:
        yield opened


def received(opened: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    try:
        while part := opened.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


# Size


def test_a_body_that_says_that_it_is_too_large_is_refused_unread(asked: Running):
    with connected(asked) as opened:
        opened.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n".encode())
        answer = received(opened)  # not a byte of it was sent
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"too_large"' in answer
    assert b"connection: close" in answer.lower()


def test_a_body_without_a_length_is_refused_once_it_is_too_large(asked: Running):
    num_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_sent
        for _ in range(1000):
            num_sent += 1
            yield bytes(65536)

    try:
        response = asked.client.post(PATH, content=endless(), headers={"Content-Type": "application/json"})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # the service closed while we were sending: as good a refusal
    else:
        assert error_of(response, 413)[0] == "too_large"
    assert num_sent < 500  # 33 MB, much more than lies between the two
    assert asked.localize(solver="regress").status_code == 200


def test_all_bodies_together_have_a_limit(kitchen: str):
    photo = encoded(noise_photo(0, 300, 300))  # 270 KB, which alone are none too many
    with running(kitchen, max_body_mb=0.4, max_bodies_mb=0.5) as service:
        receiving = service.service.receiving
        with connected(service) as opened:
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n\r\n"
            opened.sendall(head.encode() + bytes(300_000))
            wait_until(lambda: receiving.num_bytes == 300_000)
            response = service.localize(photo, solver="regress")
            assert error_of(response, 429)[0] == "too_many_uploads"
            assert int(response.headers["retry-after"]) >= 1
            assert receiving.num_bytes == 300_000
        wait_until(lambda: receiving.num_bytes == 0)
        assert service.localize(photo, solver="regress").status_code == 200


def test_long_first_lines_are_refused(asked: Running):
    response = asked.client.get("/v1/maps", headers={"X-Long": "x" * 100_000})
    assert error_of(response, 431)[0] == "headers_too_large"
    with connected(asked) as opened:
        opened.sendall(b"GET /v1/maps HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        for _ in range(100):
            opened.sendall(b"x" * 1000)
            if select.select([opened], [], [], 0.02)[0]:  # it has been answered before its end
                break
        assert error_of(as_response(received(opened)), 431)[0] == "headers_too_large"
    assert asked.client.get(f"/v1/maps/{'x' * 20_000}").status_code == 404


def as_response(answer: bytes) -> httpx.Response:
    """Bytes of an answer, whole and with the headers that browsers obey, as httpx would have it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    response = httpx.Response(
        int(first.split()[1]), headers=[tuple(line.split(": ", 1)) for line in lines], content=body
    )
    assert int(response.headers["content-length"]) == len(body)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["connection"] == "close"
    return response


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01 hello, is this TLS?\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n".encode(),
    ],
    ids=["no HTTP", "no header", "no chunk"],
)
def test_what_is_no_http_is_told_in_the_one_form_of_errors(asked: Running, request_bytes: bytes):
    with connected(asked) as opened:
        opened.sendall(request_bytes)
        assert error_of(as_response(received(opened)), 400)[0] == "bad_request"


def test_what_is_no_http_behind_an_answer_ends_the_connection(asked: Running, caplog: pytest.LogCaptureFixture):
    with connected(asked) as opened:
        opened.sendall(b"POST /v1/maps/hall/localize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        wait_until(lambda: b'"not_found"' in opened.recv(65536, socket.MSG_PEEK))
        opened.sendall(b"nonsense\r\n")
        assert received(opened).count(b"HTTP/1.1 ") == 1
    assert [record for record in caplog.records if record.name == "asyncio"] == []  # all was handled


# Photos


def png_of(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_a_photo_that_unpacks_to_gigabytes_is_refused_by_its_header(asked: Running, monkeypatch: pytest.MonkeyPatch):
    bomb = png_of(30_000, 30_000, zlib.compress(bytes(1_000_000)))
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", None)  # nothing may be decoded
        assert error_of(asked.localize(bomb), 413)[0] == "too_large"
        large = png_of(2_000, 1_500, zlib.compress(bytes(1_000)))
        code, message = error_of(asked.localize(large), 413)
    assert code == "too_large"
    assert "2000 x 1500" in message


def test_a_webp_of_the_largest_size_is_refused_by_its_header(asked: Running):
    file = io.BytesIO()
    Image.new("RGB", (16_383, 2_000)).save(file, "WEBP", lossless=True, method=0)
    code, message = error_of(asked.localize(file.getvalue()), 413)
    assert code == "too_large"
    assert "16383 x 2000" in message


def test_a_jpeg_of_endless_scans_is_refused(asked: Running):
    photo = encoded(noise_photo(0), "JPEG", progressive=True)
    assert asked.localize(photo, solver="regress").status_code == 200
    scan = photo[photo.rindex(b"\xff\xda") : -2]
    code, message = error_of(asked.localize(photo[:-2] + scan * bodies.MAX_JPEG_SCANS + b"\xff\xd9"), 422)
    assert code == "bad_image"
    assert "scans" in message


def jpeg_of_scans(height: int, width: int, count: int) -> bytes:
    """A grey photo whose last scan is repeated."""
    photo = encoded(np.full((height, width, 3), 128, dtype=np.uint8), "JPEG", progressive=True)
    last = photo.rindex(b"\xff\xda")
    return photo[:-2] + photo[last:-2] * (count - photo.count(b"\xff\xda")) + b"\xff\xd9"


def test_the_more_pixels_a_jpeg_has_the_fewer_scans_are_decoded():
    max_pixels = 2_000_000
    for height, width, most in ((1000, 2000, 20), (500, 1000, 80), (50, 100, 100)):
        assert bodies.check_photo(jpeg_of_scans(height, width, most), max_pixels) == (width, height)
        with pytest.raises(ServiceError, match=f"at most {most} scans in a JPEG .* found {most + 1}"):
            bodies.check_photo(jpeg_of_scans(height, width, most + 1), max_pixels)


def test_scans_are_counted_neither_in_a_thumbnail_nor_behind_the_photo():
    thumbnail = b"\xff\xe1" + struct.pack(">H", 60_002) + b"\xff\xda" * 30_000
    photo = photo_file(0, "JPEG", progressive=True)
    assert bodies.check_photo(photo[:2] + thumbnail + photo[2:] + b"\xff\xda" * 1000, 20_000) == (160, 120)


def test_a_jpeg_of_endless_segments_is_refused_before_it_is_looked_at(asked: Running):
    code, message = error_of(asked.localize(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 400_000), 422)
    assert code == "bad_image"
    assert "segments" in message


def test_a_photo_whose_data_ends_early_is_bad_and_no_failure(asked: Running):
    for photo in (photo_file(0, "PNG"), photo_file(0, "JPEG"), photo_file(0, "WEBP")):
        for size in (20, len(photo) // 3, len(photo) - 30):
            assert asked.localize(photo[:size], solver="regress").status_code in (415, 422)


def test_photos_with_flipped_bytes_are_answered_or_refused(asked: Running):
    rng = np.random.default_rng(0)
    for format in ("PNG", "JPEG", "WEBP"):
        for _ in range(4):
            photo = bytearray(photo_file(0, format))
            for place in rng.integers(0, min(len(photo), 2000), 8):
                photo[place] = rng.integers(256)
            assert asked.localize(bytes(photo), solver="regress").status_code in (200, 413, 415, 422)


# Time


@pytest.fixture(scope="module")
def hasty(map_of_noise) -> Iterator[Running]:
    with running(str(map_of_noise), body_timeout_s=0.3, header_timeout_s=0.3) as service:
        yield service


def test_a_body_that_drips_is_given_up(hasty: Running):
    with connected(hasty) as opened:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        opened.sendall(head.encode())
        drip_until_closed(opened)
        answer = received(opened)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_too_slow"' in answer


def test_a_client_that_leaves_amid_its_body_is_no_failure_of_the_service(
    map_of_noise, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    with running(str(map_of_noise)) as service:
        monkeypatch.setattr(logging.getLogger("relograph.serving"), "propagate", True)  # which the service switches off
        with connected(service) as opened:
            opened.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf".encode())
            wait_until(lambda: service.service.receiving.num_bytes == 4)
        counted = service.service.metrics.requests.labels("POST", "/v1/maps/{map}/localize", "499")
        wait_until(lambda: counted._value.get() == 1)
    assert caplog.records == []


def drip_until_closed(opened: socket.socket) -> None:
    """A byte now and then, until there is an answer or an end."""
    opened.setblocking(False)
    for _ in range(200):
        time.sleep(0.02)
        try:
            opened.send(b" ")
            opened.recv(1, socket.MSG_PEEK)
            break
        except BlockingIOError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    opened.settimeout(20)


@pytest.mark.parametrize("first", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_that_says_nothing_or_drips_is_closed(hasty: Running, first: bytes):
    with connected(hasty) as opened:
        opened.sendall(first)
        if first:
            drip_until_closed(opened)
        assert received(opened) == b""


def test_a_second_request_on_a_connection_may_not_drip_either(hasty: Running):
    with connected(hasty) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: b'"ok"' in opened.recv(65536, socket.MSG_PEEK))
        opened.recv(65536)
        opened.sendall(b"GET /healthz HTTP/1.1\r\n")
        drip_until_closed(opened)
        assert received(opened) == b""


def test_the_rest_of_a_refused_body_may_not_drip_for_ever(hasty: Running):
    with connected(hasty) as opened:
        opened.sendall(b"POST /v1/maps/hall/localize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        wait_until(lambda: b'"not_found"' in opened.recv(65536, socket.MSG_PEEK))
        opened.recv(65536)
        drip_until_closed(opened)
        assert received(opened) == b""


LONG_S = 600.0
"""So that no other limit of time ends a connection."""


def is_held(service: Running, opened: socket.socket) -> bool:
    """Whether the service holds its end of a connection."""
    return any(some.client == opened.getsockname() for some in set(service.server.server_state.connections))


def test_an_answer_that_nobody_fetches_is_given_up(map_of_noise):
    ask = b"GET /page/three.module.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        running(str(map_of_noise), body_timeout_s=0.3, header_timeout_s=LONG_S) as service,
        connected(service) as opened,
    ):
        wait_until(lambda: is_held(service, opened))
        opened.sendall(ask * 30)  # more than lies between the two
        wait_until(lambda: not is_held(service, opened))


def test_there_are_only_so_many_connections(map_of_noise):
    with running(str(map_of_noise), max_connections=3, header_timeout_s=LONG_S) as service, ExitStack() as all_opened:
        held = [all_opened.enter_context(connected(service)) for _ in range(3)]
        wait_until(lambda: all(is_held(service, one) for one in held))
        with connected(service) as one_more:
            assert received(one_more) == b""
        for one in held:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert received(one).startswith(b"HTTP/1.1 200 ")
        assert service.client.get("/healthz").status_code == 200


# From elsewhere


def test_a_request_to_another_name_is_refused_where_no_key_is_asked_for(asked: Running):
    for host in ("evil.example", "127.0.0.1.evil.example:8000", "", "localhost@evil.example"):
        assert error_of(asked.client.get("/v1/maps", headers={"Host": host}), 421)[0] == "wrong_host"
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:8000"):
        assert asked.client.get("/v1/maps", headers={"Host": host}).status_code == 200


def test_a_form_on_another_web_page_cannot_ask_or_change(asked: Running):
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        response = asked.client.post(PATH, files={"image": photo_file()}, headers={"Origin": origin})
        assert error_of(response, 403)[0] == "cross_origin"
        response = asked.client.delete("/v1/maps/kitchen/frames/photo-0.png", headers={"Origin": origin})
        assert error_of(response, 403)[0] == "cross_origin"
    own = asked.client.post(
        PATH, files={"image": photo_file()}, data={"solver": "regress"}, headers={"Origin": asked.url}
    )
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers


def test_a_page_may_ask_from_an_origin_that_the_operator_names(kitchen: str):
    with running(kitchen, cors_origins=("https://app.example",), allowed_hosts=("maps.example",)) as service:
        ask = {"Origin": "https://app.example", "Host": "maps.example"}
        before = service.client.options(
            PATH,
            headers=ask | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"},
        )
        assert before.headers["access-control-allow-origin"] == "https://app.example"
        response = service.client.post(PATH, files={"image": photo_file()}, data={"solver": "regress"}, headers=ask)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        other = service.client.get("/v1/maps", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_every_answer_carries_the_headers_that_browsers_obey(asked: Running):
    for path in ("/", "/docs", "/healthz", "/v1/maps", "/v1/maps/none", "/nowhere", "/page/page.js"):
        headers = asked.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_a_request_keeps_its_number_if_it_has_a_plain_one(asked: Running):
    given = asked.client.get("/healthz", headers={"X-Request-ID": "phone-17.a"}).headers["x-request-id"]
    assert given == "phone-17.a"
    for odd in ("<script>", "x" * 100, "a b"):
        assert asked.client.get("/healthz", headers={"X-Request-ID": odd}).headers["x-request-id"] != odd


def test_a_bug_is_told_by_a_number_alone(
    kitchen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the secret of /etc/passwd")

    with running(kitchen) as service:
        monkeypatch.setattr(logging.getLogger("relograph.serving"), "propagate", True)  # which the service switches off
        monkeypatch.setattr("relograph.serving.app.frame_messages", fail)
        response = service.client.get("/v1/maps/kitchen/frames")
        code, message = error_of(response, 500)
        assert code == "internal"
        assert response.headers["x-request-id"] in message
        assert "secret" not in response.text
        assert "Zero" not in response.text
        (record,) = caplog.records  # the operator finds all by that number
        assert response.headers["x-request-id"] in record.getMessage()
        assert "the secret of /etc/passwd" in str(record.exc_info)
        assert service.client.get("/v1/maps").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/docs/../keys.py",
        "/v1/maps/..%2fkitchen.map",
        "/v1/maps/kitchen/thumbnails/../../../etc/passwd",
        "/v1/maps/kitchen/thumbnails/%2fetc%2fpasswd",
        "/v1/maps/kitchen/thumbnails/photo-0.png%00",
        "/v1/maps/%ff%fe",
    ],
)
def test_no_path_leads_to_a_file(asked: Running, path: str):
    with connected(asked) as opened:
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = received(opened)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"not_found"' in answer


def test_other_methods_and_addresses_are_refused_in_the_one_form_of_errors(asked: Running):
    assert error_of(asked.client.put("/v1/maps"), 405)[0] == "method_not_allowed"
    assert error_of(asked.client.get("/v1/nowhere"), 404)[0] == "not_found"
    assert error_of(asked.client.get("/v1/maps/kitchen/frames?limit=0"), 422)[0] == "invalid_request"
    assert error_of(asked.client.get("/v1/maps/kitchen/frames?offset=-1"), 422)[0] == "invalid_request"
