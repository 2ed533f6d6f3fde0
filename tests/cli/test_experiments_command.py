"""`relograph experiments list`, `run`, `publish` and `report` as one types them."""

import json
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.cli.eval import Reading
from relograph.cli.experiments import Dataset, Target
from relograph.evaluation.experiment_run import DATASETS
from relograph.evaluation.experiments import EXPERIMENTS
from relograph.graphs import Target as EdgeTarget
from relograph.localization import EdgeReading
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

    published = invoke("publish", "sweep")
    assert published.stdout.splitlines()[0] == "results/experiments/aggregation-small.json: written."
    assert published.stdout.splitlines()[-1] == "docs/results.md: written."
    page = Path("docs/results.md").read_text()
    for figure in metadata["figures"]:
        assert f"(pictures/{figure['file']})" in page
        drawn = Path("sweep/figures", figure["file"]).read_bytes()
        assert len(drawn) > 1000
        assert Path("docs/pictures", figure["file"]).read_bytes() == drawn
    assert invoke("publish", "sweep").stdout == "The repository has what the sweep says.\n"
    assert invoke("report", "--check").exit_code == 0
    Path("sweep/figures", metadata["figures"][0]["file"]).unlink()
    assert "expected a figure that the results name" in invoke("publish", "sweep").stderr


def test_publishing_what_is_no_sweep_is_one_line(tmp_path: Path):
    done = invoke("publish", tmp_path, "--docs", tmp_path / "docs")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path}: expected the folder of a sweep with files in results/")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("offered", "known"),
    [(Target, get_args(EdgeTarget)), (Dataset, tuple(DATASETS)), (Reading, get_args(EdgeReading))],
)
def test_an_option_offers_what_the_code_knows(offered: type[StrEnum], known: tuple[str, ...]):
    assert tuple(choice.value for choice in offered) == known


def test_an_unknown_name_is_one_line_that_suggests_the_nearest(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "seven", ("chess",), num_frames=2)
    done = invoke("run", "strid", "--data", root, "--preset", "tiny", "--output", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith("found 'strid'. Did you mean 'stride'?")
