"""`relograph view`: the page that it saves, and what it refuses."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from cli.commands import invoke
from localization.made_answers import named
from localization.small_networks import posed_photos, small_network
from relograph.localization.answer_files import PoseWording, writing_answers
from relograph.maps import Map


@pytest.fixture(scope="module")
def map_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maps") / "small.map"
    Map.create(folder, posed_photos(3), network=small_network())
    return folder


def test_a_page_is_saved_that_holds_the_map_and_the_answers(map_folder: Path, tmp_path: Path):
    with writing_answers(tmp_path / "a.jsonl", "jsonl", PoseWording()) as writer:
        writer.write(named())
    done = invoke("view", map_folder, "--predictions", tmp_path / "a.jsonl", "--save", tmp_path / "view.html")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path}/view.html\n"
    page = (tmp_path / "view.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    told = json.loads(data)
    counts = {group["name"]: sum(camera is not None for camera in group["cameras"]) for group in told["groups"]}
    assert counts == {
        "map": 3,
        "answers, 90% sure or more": 1,
        "answers, 50% to 90% sure": 0,
        "answers, below 50%": 0,
    }
    assert told["slider"]["captions"] == ["a.jpg: localized (90% sure)."]
    assert len(told["photos"]) == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--predictions", "none.jsonl"), "none.jsonl"),
        (("--predictions", "answers.txt"), "expected answers of `relograph localize` (.jsonl)"),
        (("--photos", "nowhere"), "nowhere: expected a folder of photos, found none"),
        (("--host", "203.0.113.7"), "--host 203.0.113.7: expected an address of this machine"),
    ],
)
def test_what_cannot_be_shown_is_one_line(options, complaint, map_folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("view", map_folder, *options)
    assert done.exit_code == 1
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_viser_the_extra_is_named_and_a_page_can_still_be_saved(map_folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    done = invoke("view", map_folder)
    assert done.exit_code == 1
    assert "pip install 'relograph[viewer]'" in done.stderr
    assert invoke("view", map_folder, "--save", tmp_path / "view.html").exit_code == 0


def test_ctrl_c_ends_the_viewer_as_it_says(map_folder: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("viser", reason="no viewer: pip install 'relograph[viewer]'")
    monkeypatch.setattr(signal, "pause", lambda: signal.raise_signal(signal.SIGINT))
    done = invoke("view", map_folder, "--no-open", "--port", 0)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+ \(Ctrl-C ends it\)\n", done.stdout)
    assert done.stderr == ""
    assert done.exit_code == 0
