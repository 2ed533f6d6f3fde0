"""`relograph experiments list`, `run` and `report` as one types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.evaluation.experiments import EXPERIMENTS
from small_roots import write_seven_scenes_root


def invoke(*arguments: str | Path):
    return CliRunner().invoke(app, ["experiments", *map(str, arguments)])


def test_every_experiment_is_listed_with_what_it_does():
    lines = invoke("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(EXPERIMENTS[line.split()[0]].about in line for line in lines)


def test_a_sweep_becomes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_seven_scenes_root(Path("seven"), ("chess", "heads"), num_frames=4)
    settings = ("--preset", "tiny", "--set", "optim.epochs=1", "--output", "sweep", "--cache", "cache")
    named = ("--target", "world", "--label", "small", "--dataset", "sevenrooms")
    done = invoke("run", "aggregation", "--data", "seven", *settings, *named)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "aggregation: sweep/results/aggregation-small.json"
    metadata = json.loads(Path("sweep/results/aggregation-small.json").read_text())["metadata"]
    assert (metadata["dataset"], metadata["target"]) == ("SevenRooms", "world")
    Path("docs").mkdir()
    Path("README.md").write_text("nothing to fill in\n")
    written = invoke("report", "--results", "sweep/results", "--latex", "tables.tex")
    assert written.stdout.splitlines() == ["docs/results.md: written.", "tables.tex"]
    assert "RelPoseGNN, max" in Path("docs/results.md").read_text()
    assert r"\label{tab:aggregation-small}" in Path("tables.tex").read_text()
    assert invoke("report", "--results", "sweep/results", "--check").exit_code == 0
    Path("docs/results.md").write_text("something else")
    refused = invoke("report", "--results", "sweep/results", "--check")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: docs/results.md: expected what the files in sweep/results say")


def test_an_unknown_name_is_one_line_that_suggests_the_nearest(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "seven", ("chess",), num_frames=2)
    done = invoke("run", "strid", "--data", root, "--preset", "tiny", "--output", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith("found 'strid'. Did you mean 'stride'?")
