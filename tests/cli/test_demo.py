"""`relograph demo`: whatever weights there are, it says what they are worth."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from relograph import rooms
from relograph.cli.app import app
from relograph.maps import Map
from relograph.models import shipped
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import save_match_gnn
from relograph.training.presets import MATCHGNN_TINY
from small_roots import write_seven_scenes_root


@pytest.fixture(autouse=True)
def _a_small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(folder: Path, **options: object) -> None:
        write_seven_scenes_root(folder, ("room-1",), num_frames=6)

    monkeypatch.setattr(rooms, "create_seven_rooms", create)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the package's weights, without any."""
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "package")
    return tmp_path / "package"


def invoke(*arguments: str | Path):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


def save_untrained(folder: Path) -> None:
    torch.manual_seed(0)
    save_match_gnn(folder, MatchGNN(MATCHGNN_TINY.model).eval(), {})


def test_without_weights_the_room_is_drawn_and_nothing_localized(tmp_path: Path) -> None:
    done = invoke(tmp_path / "demo")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("localized  nothing: no weights come with this build.")
    assert (tmp_path / "demo" / "cameras_from_above.png").is_file()


@pytest.mark.parametrize("are_shipped", [True, False])
def test_weights_that_learned_nothing_are_told_plainly(are_shipped: bool, package: Path, tmp_path: Path) -> None:
    folder = package if are_shipped else tmp_path / "mine"
    save_untrained(folder)
    done = invoke(tmp_path / "demo", *(() if are_shipped else ("--weights", folder)))
    assert done.exit_code == 0, done.output
    where = "the package's" if are_shipped else str(folder)
    assert f"weights    {where}, SHA-256 " in done.stdout
    assert "verdict    " in done.stdout
    assert "copying    the pose of the most similar photo instead: median error " in done.stdout
    for name in ("answers_from_above.png", "answers.html"):
        assert (tmp_path / "demo" / name).is_file()


def test_it_ends_by_offering_its_map_and_photos_to_the_browser(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_untrained(tmp_path / "mine")
    monkeypatch.setenv("PATH", str(tmp_path))  # where no relograph is
    monkeypatch.setattr("sys.argv", [".venv/bin/relograph"])
    done = invoke(tmp_path / "demo", "--weights", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    (command,) = re.findall(r"^In a browser: run  (.*)$", done.stdout, flags=re.MULTILINE)
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/relograph"
    assert arguments == ["serve", str(tmp_path / "demo" / "room-1.map"), "--weights", str(tmp_path / "mine")]
    get_command(app).commands["serve"].commands["run"].make_context("run", arguments[1:])  # no option is unknown
    assert len(Map.open(tmp_path / "demo" / "room-1.map")) > 0
    (folder,) = re.findall(r"^and drop photos of (.*) onto the page", done.stdout, flags=re.MULTILINE)
    assert list(Path(folder).glob("*.color.png"))


def test_weights_that_are_none_are_told_before_anything_is_made(tmp_path: Path) -> None:
    done = invoke(tmp_path / "demo", "--weights", tmp_path / "nowhere")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "expected a checkpoint" in done.stderr
    assert not (tmp_path / "demo").exists()
