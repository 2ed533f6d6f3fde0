"""docs/clients.md: its curl commands and its Python are run as they are written, against a real service."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import painted_box
import relograph
from relograph.models.shipped import load_match_gnn
from relograph.serving.keys import create_key
from serving.running_services import Running, running
from test_documents import REPOSITORY

PAGE = (REPOSITORY / "docs" / "clients.md").read_text(encoding="utf-8")


def code_of(language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's reader is: a folder with a photo, a map of the place, and a file of keys."""
    folder = tmp_path_factory.mktemp("reader")
    scene = relograph.open_scene(painted_box.write_scene(folder / "scene", num_map=4))
    relograph.Map.create(folder / "office.map", scene.train)
    Image.open(folder / "scene" / "seq-02" / "frame-000000.color.png").save(folder / "photo.jpg", quality=95)
    return folder


@pytest.fixture(scope="module")
def service(reader: Path) -> Iterator[tuple[Running, str]]:
    """The service that the page speaks of, and a key of it."""
    key, _ = create_key(reader / "keys.json", "write")
    with running(
        str(reader / "office.map"), network=load_match_gnn(), keys=reader / "keys.json", allow_writes=True
    ) as service:
        yield service, key


def test_the_curl_commands_do_what_the_page_says(service: tuple[Running, str], reader: Path):
    if shutil.which("curl") is None:
        pytest.skip("no curl on PATH: apt-get install curl")
    running_service, key = service
    script = "set -euo pipefail\n" + code_of("sh").replace("curl --fail-with-body", "curl --silent --fail-with-body")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=reader,
        env={**os.environ, "SERVICE": running_service.url, "RELOGRAPH_API_KEY": key, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("answer.json", "matches.json", "answer-to-json.json"):
        answer = json.loads((reader / name).read_text())
        assert answer["localized"], f"{name}: {answer['reason']}"
    matches = json.loads((reader / "matches.json").read_text())
    assert matches["axes"] == "opengl"
    assert len(matches["references"]) == 4
    assert matches["references"][0]["matches"]["inlier"]
    assert json.loads((reader / "added.json").read_text())["sequence"] == "today"
    assert (reader / "thumbnail.jpg").read_bytes().startswith(b"\xff\xd8")
    assert "relograph_requests_total" in (reader / "metrics.txt").read_text()
    assert '{"status":"ok"}' in done.stdout.replace(" ", "")
    assert '"num_frames":4' in done.stdout.replace(" ", "")


def test_every_address_of_the_service_has_its_curl_command(service: tuple[Running, str]):
    commands = code_of("sh").replace("\\\n", " ").splitlines()
    for path, methods in service[0].client.get("/openapi.json").json()["paths"].items():
        address = re.escape(path).replace(r"\{map\}", "office").replace(r"\{frame\}", r"\S+")
        here = [line for line in commands if re.search(rf'\$SERVICE{address}(\?\S*)?"', line)]
        for method in methods:
            sends = {
                "get": r"^((?! -F | --data | --request ).)*$",
                "post": " -F | --data ",
                "delete": "--request DELETE",
            }
            assert any(re.search(sends[method], line) for line in here), f"{method} {path}"


def test_the_python_of_the_page_runs(
    service: tuple[Running, str], reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    running_service, key = service
    monkeypatch.chdir(reader)
    monkeypatch.setenv("RELOGRAPH_API_KEY", key)
    exec(compile(code_of("py").replace("http://127.0.0.1:8000", running_service.url), "clients.md", "exec"), {})
    said = capsys.readouterr().out
    assert "right with a chance of" in said
    assert said.count("of the matches agree") == 2
    assert "office 4 [[" in said
    assert "404 not_found" in said
