"""A bounded queue before the network: what does not fit is told when to come again, what is accepted is answered."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from relograph.serving import answering, bodies
from relograph.serving.answering import DECODING_THREADS, Answering
from relograph.serving.errors import ServiceError
from serving.running_services import Running, error_of, network_at_work, photo_file, running, wait_until


def num_accepted(service: Running) -> int:
    return service.service.answering._num_accepted


def test_what_does_not_fit_into_the_queue_is_told_when_to_come_again(kitchen: str):
    with running(kitchen, queue=2) as service, ThreadPoolExecutor(2) as pool:
        with network_at_work(service):
            accepted = [pool.submit(service.localize, solver="regress") for _ in range(2)]
            wait_until(lambda: num_accepted(service) == 2)
            response = service.localize(solver="regress")
            assert error_of(response, 429)[0] == "queue_full"
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert "relograph_accepted_queries 2.0" in service.client.get("/metrics").text
            assert service.client.get("/v1/maps").status_code == 200  # what needs no network goes on
        assert [future.result().status_code for future in accepted] == [200, 200]
        assert num_accepted(service) == 0
        assert service.localize(solver="regress").status_code == 200


def test_a_query_that_waits_too_long_is_dropped(kitchen: str):
    with running(kitchen, query_timeout_s=0.3) as service:
        encoded_before = num_encoded(service)
        with network_at_work(service):
            response = service.localize(solver="regress")
            assert error_of(response, 429)[0] == "too_slow"
            assert response.headers["retry-after"]
        settle(service)
        assert num_encoded(service) == encoded_before  # nothing was done for it


def num_encoded(service: Running) -> float:
    for metric in service.service.metrics.batch_photos.collect():
        return next(sample.value for sample in metric.samples if sample.name.endswith("_count"))
    raise AssertionError


def settle(service: Running) -> None:
    """Until the network has looked at all that waits for it."""
    service.service.answering.on_network(lambda _: None)


@contextmanager
def sent(service: Running) -> Iterator[None]:
    """A whole query is sent and accepted; its client goes at the end of the block, without an answer."""
    body = b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + photo_file() + b"\r\n--x--\r\n"
    head = (
        "POST /v1/maps/kitchen/localize HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2]))) as opened:
        opened.sendall(head.encode() + body)
        wait_until(lambda: num_accepted(service) == 1)
        yield
    wait_until(lambda: num_accepted(service) == 0)


def test_nothing_is_done_for_a_client_that_has_gone(kitchen: str):
    with running(kitchen) as service:
        encoded_before = num_encoded(service)
        with network_at_work(service), sent(service):
            pass
        settle(service)
        assert num_encoded(service) == encoded_before


def test_the_body_of_a_client_that_has_gone_is_forgotten_before_its_turn(kitchen: str, monkeypatch: pytest.MonkeyPatch):
    free, kept = threading.Event(), set()

    class Body(bytes):
        def __del__(self) -> None:
            kept.discard(id(self))

    async def read_body(*arguments: Any) -> Body:
        body = Body(await bodies.read_body(*arguments))
        kept.add(id(body))
        return body

    monkeypatch.setattr("relograph.serving.app.read_body", read_body)
    with running(kitchen) as service:
        for _ in range(DECODING_THREADS):
            service.service.answering._decoders.submit(free.wait)
        try:
            with sent(service):
                assert len(kept) == 1
            wait_until(lambda: not kept)
        finally:
            free.set()


def test_what_was_accepted_is_answered_after_the_service_was_told_to_end(kitchen: str):
    with running(kitchen) as service, ThreadPoolExecutor(3) as pool:
        with network_at_work(service):
            accepted = [pool.submit(service.localize, solver="regress") for _ in range(3)]
            wait_until(lambda: num_accepted(service) == 3)
            service.stop()
            wait_until(lambda: not accepts(service))
        assert [future.result().status_code for future in accepted] == [200, 200, 200]


def test_work_that_comes_after_the_end_is_refused_and_waits_for_nobody(kitchen: str):
    with running(kitchen) as service:
        service.service.answering.stop()
        with pytest.raises(ServiceError, match=r"about to end"):
            service.service.answering.on_network(lambda localizer: None)


def accepts(service: Running) -> bool:
    try:
        httpx.get(f"{service.url}/healthz", trust_env=False)
    except httpx.TransportError:
        return False
    return True


def test_photos_that_wait_together_are_encoded_together(kitchen: str):
    with running(kitchen, batch=4) as service, ThreadPoolExecutor(7) as pool:
        alone = {seed: service.localize(photo_file(seed), solver="regress").json() for seed in (0, 1, 2, 3)}
        with network_at_work(service):
            waiting = [
                pool.submit(service.localize, photo_file(seed), solver="regress") for seed in (0, 1, 2, 3, 0, 1, 2)
            ]
            wait_until(lambda: num_accepted(service) == 7)
            wait_until(lambda: service.service.answering._work.qsize() == 7)
        for seed, future in zip((0, 1, 2, 3, 0, 1, 2), waiting, strict=True):
            said = future.result().json()
            assert [used["name"] for used in said["references"]] == [used["name"] for used in alone[seed]["references"]]
            assert said["confidence"] == pytest.approx(alone[seed]["confidence"], abs=1e-3)
        samples = {
            s.labels.get("le"): s.value for s in next(iter(service.service.metrics.batch_photos.collect())).samples
        }
        # Four alone; then four, two and one.
        assert (samples["1.0"], samples["2.0"], samples["4.0"]) == (5.0, 6.0, 7.0)


def test_a_failure_of_the_network_is_that_query_s_alone(kitchen: str, monkeypatch: pytest.MonkeyPatch):
    compare = Answering._compare

    def fail_for_few_references(self: Answering, ask, query):
        if ask.num_references == 1:
            raise ZeroDivisionError
        return compare(self, ask, query)

    monkeypatch.setattr(Answering, "_compare", fail_for_few_references)
    with running(kitchen) as service:
        assert error_of(service.localize(num_references=1), 500)[0] == "internal"
        assert service.localize(num_references=2, solver="regress").status_code == 200
        assert num_accepted(service) == 0


def test_metrics_count_requests_answers_and_maps(kitchen: str, tmp_path: Path):
    with running(kitchen) as service:
        service.localize(solver="regress")
        service.localize(solver="regress")
        service.client.get("/v1/maps/none")
        service.client.get("/nowhere/1")
        service.client.request("BREW", "/nowhere/2")
        response = service.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        lines = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    localize = 'route="/v1/maps/{map}/localize"'
    assert lines[f'relograph_requests_total{{method="POST",{localize},status="200"}}'] == "2.0"
    assert lines['relograph_requests_total{method="GET",route="/v1/maps/{map}",status="404"}'] == "1.0"
    assert lines['relograph_requests_total{method="GET",route="other",status="404"}'] == "1.0"
    assert lines['relograph_requests_total{method="other",route="other",status="404"}'] == "1.0"
    answered = [
        float(value) for name, value in lines.items() if name.startswith('relograph_queries_total{map="kitchen"')
    ]
    assert sum(answered) == 2.0
    assert lines['relograph_confidence_count{map="kitchen"}'] == "2.0"
    for stage in ("decode", "queue", "encode", "retrieve", "match", "solve"):
        assert lines[f'relograph_stage_seconds_count{{stage="{stage}"}}'] == "2.0"
    assert lines['relograph_map_frames{map="kitchen"}'] == "4.0"
    assert lines['relograph_map_ready{map="kitchen"}'] == "1.0"
    assert float(lines['relograph_map_revision{map="kitchen"}']) >= 1.0


def test_freed_memory_is_given_back_now_and_then(map_of_noise: Path, monkeypatch: pytest.MonkeyPatch):
    given_back: list[int] = []
    monkeypatch.setattr(answering, "ANSWERS_BETWEEN_GIVING_BACK", 3)
    monkeypatch.setattr(answering, "give_back_freed_memory", lambda: given_back.append(0))
    with running(str(map_of_noise)) as service:
        for _ in range(7):
            assert service.localize(photo_file(), solver="regress").status_code == 200
    assert len(given_back) == 2
