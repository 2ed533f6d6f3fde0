"""`relograph map` and `relograph localize` take the address of a database wherever they take a folder."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from postgres_server import PASSWORD, Server
from torch.distributed.run import get_args_parser
from typer.main import get_command
from typer.testing import CliRunner, Result

from painted_box import write_scene
from relograph.cli.app import app
from relograph.maps import Map
from relograph.maps.places import PostgresAddress
from relograph.models import shipped
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import save_match_gnn
from relograph.scenes import open_scene
from relograph.training.presets import MATCHGNN_TINY

PAGE = Path(__file__).parents[2] / "docs" / "maps.md"


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scene, a photo of it, and weights as if they were part of the package."""
    torch.manual_seed(0)
    save_match_gnn(tmp_path / "weights", MatchGNN(MATCHGNN_TINY.model), {})
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "weights")
    scene = open_scene(write_scene(tmp_path / "kitchen", num_map=3, num_queries=1))
    (tmp_path / "photo.jpg").write_bytes(scene[0].image.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


def test_the_page_on_shared_maps_does_what_it_says(server: Server, kitchen: Path):
    address_by_name: dict[str, str] = {}
    lines = "".join(re.findall(r"^```shell\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))
    for line in lines.replace("\\\n", " ").splitlines():
        match shlex.split(line, comments=True):
            case ["pip", "install", "relograph[postgres]"]:
                pass
            case ["createdb", "-h", "maps.example.org", name]:
                address_by_name[name] = server.new_database()
            case ["relograph", *arguments]:
                run(*(_address(argument, address_by_name) for argument in arguments))
            case ["torchrun", *arguments]:  # what it does is in test_ranks.py
                parsed = get_args_parser().parse_args(arguments)
                assert (parsed.module, parsed.training_script) == (True, "relograph")
                group, name, *others = parsed.training_script_args
                get_command(app).commands[group].commands[name].make_context(name, others)
            case _:
                pytest.fail(f"a command that no test knows how to check: {line}")
    here, there = Map.open("kitchen.map"), Map.open(address_by_name["again"])
    assert len(here) == 4
    assert here.frames == there.frames


def _address(argument: str, address_by_name: dict[str, str]) -> str:
    host, _, name = argument.rpartition("/")
    return address_by_name[name] if host == "postgresql://maps.example.org" else argument


def test_every_command_takes_the_address_of_a_map(server: Server, kitchen: Path):
    address = server.as_guest(server.new_database(), PASSWORD)
    said = [run("map", "create", address, "kitchen").stdout]
    assert said == [f"{PostgresAddress(address)}: 4 photos.\n"]
    names = run("map", "info", address, "--names").stdout.split()
    said += [run("map", "info", address, "--picture", "above.png").stdout, run("map", "verify", address).stdout]
    assert f"{PostgresAddress(address)}: 4 photos, nothing wrong." in said[-1]
    said.append(run("map", "split", address, "part.map", names[0]).stdout)
    said.append(run("map", "remove", address, names[0]).stdout)
    np.savetxt("T.txt", np.eye(4))
    said.append(run("map", "merge", address, "part.map", "--transform", "T.txt", "--prefix", "part/").stdout)
    said.append(run("map", "add", address, "kitchen").stdout)
    said.append(run("map", "compact", address, "--photos", 3).stdout)
    said.append(run("map", "export", address, "colmap").stdout)
    Path("points.txt").write_text("0 0 0 0 0 10\n1 0 0 0 0.00001 10\n0 0 1 0.00001 0 10\n")
    said.append(run("map", "georeference", address, "--points", "points.txt").stdout)
    said.append(run("localize", "photo.jpg", "--map", address, "--solver", "regress").output)
    assert len(Map.open(address)) == 3
    assert [line for line in said if "s3cr3t" in line] == []
    failed = CliRunner().invoke(app, ["map", "info", server.as_guest(address, "wrong s3cr3t")])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error: postgresql://guest@")
    assert failed.stderr.count("\n") == 1
    assert "s3cr3t" not in failed.stderr


def test_a_shared_map_is_looked_at_as_one_in_a_folder_is(server: Server, kitchen: Path):
    address = server.new_database()
    run("map", "create", "kitchen.map", "kitchen")
    run("map", "copy", "kitchen.map", address)
    pages = []
    for where in ("kitchen.map", address):
        run("view", where, "--save", "view.html")
        (data,) = re.findall(r'id="data">(.*?)</script>', Path("view.html").read_text(), flags=re.DOTALL)
        pages.append(json.loads(data))
    assert pages[0]["groups"] == pages[1]["groups"]
    assert len(pages[1]["photos"]) == 4
    assert pages[0]["photos"] == pages[1]["photos"]
