"""Real services on 127.0.0.1 for tests: uvicorn in a thread, a small network, maps of a few photos of noise."""

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image

from localization.small_networks import noise_photo, posed_photos, small_network
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.localizer import Localizer
from relograph.maps import Map
from relograph.models.shipped import LoadedMatchGNN, Odds
from relograph.serving.app import create_app
from relograph.serving.config import ServeConfig
from relograph.serving.running import listen, uvicorn_config
from relograph.serving.service import Service

# Random weights have no answers to be sure of, and rounding, which differs between processors, moves them: whatever
# pose matches agree on is believed.
NETWORK = replace(small_network(), calibration=replace(UNCALIBRATED, solved=Odds({}, 2.0, 0.5)))
HERE = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 1.0, 3.0], [0.0, 0.0, 0.0, 1.0]]


def write_map(where: Path | str, num_photos: int = 4, network: LoadedMatchGNN = NETWORK) -> Map:
    return Map.create(where, posed_photos(num_photos), network=network)


def photo_file(seed: int = 0, format: str = "JPEG", **options: Any) -> bytes:
    """A photo of the map, or of noise that is not there."""
    return encoded(noise_photo(seed), format, **options)


def encoded(pixels: np.ndarray, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


@dataclass(frozen=True)
class Running:
    """A service that runs, and who asks it."""

    service: Service
    url: str
    client: httpx.Client
    server: uvicorn.Server

    def localize(self, image: bytes | None = None, map: str = "kitchen", **fields: object) -> httpx.Response:
        image = photo_file() if image is None else image
        values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        return self.client.post(f"/v1/maps/{map}/localize", files={"image": ("photo", image)}, data=values)

    def add(self, name: str, image: bytes | None = None, map: str = "kitchen", **fields: object) -> httpx.Response:
        image = photo_file(77) if image is None else image
        values = {"name": name, "T_world_cam": json.dumps(HERE)} | {key: str(value) for key, value in fields.items()}
        return self.client.post(f"/v1/maps/{map}/frames", files={"image": ("photo", image)}, data=values)

    def stop(self) -> None:
        """As SIGTERM does; whoever has the service waits for its end."""
        self.server.should_exit = True


@contextmanager
def running(
    *maps: str,
    network: LoadedMatchGNN = NETWORK,
    key: str | None = None,
    prepare: Callable[[Service], None] = lambda service: None,
    **settings: Any,
) -> Iterator[Running]:
    """A service of those maps until the end of the block; `prepare` sees it before it runs."""
    config = ServeConfig(maps=maps, port=0, **{"poll_s": 0.05, **settings})
    service = Service(config, network)
    prepare(service)
    server = uvicorn.Server(uvicorn_config(config, lambda: create_app(service)))
    with listen(config) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            with httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False) as client:
                yield Running(service, url, client, server)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def network_at_work(service: Running) -> Iterator[None]:
    """The network is busy with something else until the end of the block."""
    free, begun = threading.Event(), threading.Event()

    def work(_: Localizer) -> None:
        begun.set()
        free.wait()

    thread = threading.Thread(target=service.service.answering.on_network, args=(work,))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        free.set()
        thread.join()


def wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Until something holds that others bring about."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def error_of(response: httpx.Response, status: int) -> tuple[str, str]:
    """Code and sentence of an answer that is an error of that status, in the one form that errors have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    (body,) = response.json().values()
    assert set(body) == {"code", "message"}
    assert "\n" not in body["message"]
    return body["code"], body["message"]
