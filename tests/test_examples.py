"""The examples run as they are written, on a small room and with weights that nobody trained."""

import runpy
import sys
from pathlib import Path

import pytest

import painted_box
import relograph
from localization.small_networks import small_network
from relograph.models import shipped
from relograph.models.shipped import save_match_gnn
from serving.running_services import running
from test_guides import write_video

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `make demo` leaves it, but for a smaller room; with a video and weights."""
    home = tmp_path_factory.mktemp("home")
    painted_box.write_scene(home / "demo" / "rooms" / "room-1", num_map=5, num_queries=3)
    walls = painted_box.painting(0)
    frames = [painted_box.photo(walls, T) for T in painted_box.poses(2, 2, 0.1, 0.08)]
    write_video(home / "walk.mp4", [frame for frame in frames for _ in range(2)], fps=10)
    save_match_gnn(home / "weights", small_network().model, {})
    return home


def run(name: str, home: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", home / "weights")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_one_photo(home, monkeypatch, capsys):
    run("01_localize_one_photo.py", home, monkeypatch)
    said = capsys.readouterr().out
    assert "right with a chance of" in said
    assert said.count("matches agree\n") == 1 + 5
    assert "'solve': " in said


def test_photos_of_every_kind(home, monkeypatch, capsys):
    run("02_photos_of_every_kind.py", home, monkeypatch)
    by_kind = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert by_kind["file"] == by_kind["bytes"] == by_kind["array"] == by_kind["PIL"]
    assert by_kind["batch"].count(",") == 2
    assert by_kind["prior"].startswith("seq-01/")
    assert "expected a photo as JPEG" in by_kind["refused:"]


def test_a_video(home, monkeypatch, capsys):
    run("03_localize_a_video.py", home, monkeypatch, "walk.mp4")
    said = capsys.readouterr().out
    assert "of 2 frames localized" in said
    assert "['walk.smoothed.tum', 'walk.tum']" in said


def test_maps_that_grow(home, monkeypatch, capsys):
    run("04_maps_that_grow.py", home, monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        "found at once: True",
        "merged: 4 photos, such as corner/seq-01/frame-000001.color.png",
        "whole: True",
        "exported: 4 photos for other programs",
    ]


def test_asking_a_server(home, monkeypatch, capsys):
    network = small_network()
    scene = relograph.open_scene(home / "demo" / "rooms" / "room-1")
    relograph.Map.create(home / "room-1.map", scene.train, network=network)
    with running(str(home / "room-1.map"), network=network) as service:
        run("05_ask_a_server.py", home, monkeypatch, service.url)
    said = capsys.readouterr().out
    assert said.startswith("room-1: 5 photos, change ")
    assert said.count("% sure") == said.count("bytes of JPEG") == 3


def test_every_example_has_a_test_and_says_how_to_run_it():
    tested = Path(__file__).read_text(encoding="utf-8")
    for example in sorted(EXAMPLES.glob("*.py")):
        assert f'"{example.name}"' in tested
        assert f"`python examples/{example.name}" in example.read_text(encoding="utf-8").split('"""')[1]
