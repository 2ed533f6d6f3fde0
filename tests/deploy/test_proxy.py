"""The proxy of deploy/, started: two real services behind a real Caddy, of which one goes away."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from relograph import Client
from relograph.serving.keys import create_key
from serving.running_services import photo_file, running, wait_until, write_map
from test_documents import REPOSITORY


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def caddy(folder: Path, *replicas: str) -> Iterator[str]:
    """Caddy by the file of deploy/, but for the replicas' addresses, and on a port of this machine without TLS."""
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("no caddy on PATH: apt-get install caddy")
    file = (REPOSITORY / "deploy" / "Caddyfile").read_text(encoding="utf-8")
    for number, url in enumerate(replicas, start=1):
        assert f"relograph-{number}:8000" in file
        file = file.replace(f"relograph-{number}:8000", urlsplit(url).netloc)
    (folder / "Caddyfile").write_text(file)
    url = f"http://127.0.0.1:{free_port()}"
    environment = {**os.environ, "SITE": url, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}
    with (folder / "caddy.log").open("w") as log:
        command = [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
        proxy = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield url
        finally:
            proxy.terminate()
            proxy.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_clients_notice_nothing_when_a_replica_goes_away(tmp_path: Path):
    place = tmp_path / "office.map"
    write_map(place)
    key, _ = create_key(tmp_path / "keys.json", "read")
    settings = {"keys": tmp_path / "keys.json", "open_metrics": True}
    with (
        running(str(place), **settings) as first,
        running(str(place), **settings) as second,
        caddy(tmp_path, first.url, second.url) as url,
        Client(url, api_key=key) as client,
    ):
        wait_until(lambda: answers(url))
        assert httpx.get(f"{first.url}/metrics", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 404
        assert client.localize("office", photo_file()).map_name == "office"
        first.stop()
        wait_until(lambda: not answers(first.url))
        for _ in range(4):
            assert client.localize("office", photo_file()).map_name == "office"
        served = second.service.metrics.requests.labels("POST", "/v1/maps/{map}/localize", "200")
        wait_until(lambda: served._value.get() >= 4)  # the last is counted when its answer is out
