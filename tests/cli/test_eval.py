"""`relograph eval` on what is smaller, or named otherwise, than one would expect."""

from pathlib import Path

import pytest
from commands import invoke

from relograph.evaluation import read_predictions
from relograph.models.checkpoint import load_checkpoint
from small_roots import write_seven_scenes_root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on one scene, which lies beside it as `seven`."""
    folder = tmp_path_factory.mktemp("runs")
    write_seven_scenes_root(folder / "seven", ("chess",), num_frames=4)
    settings = ("--preset", "tiny", "--set", "optim.epochs=1", "--cache", folder / "cache")
    done = invoke("train", "--data", folder / "seven", "--output", folder / "run", *settings)
    assert done.exit_code == 0, done.output
    return folder / "run"


def evaluate(run: Path, root: Path, output: Path):
    done = invoke("eval", run, "--data", root, "--output", output, "--cache", output.parent / "cache")
    assert done.exit_code == 0, done.output
    return done


def test_a_map_that_is_smaller_than_a_graph_is_told(run: Path, tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "small", ("solo",), num_frames=1)
    told = evaluate(run, root, tmp_path / "answers.csv").stderr.splitlines()
    warning = "the map of solo has 2 images and a graph 3 references: graphs of this scene take what there is."
    assert [line for line in told if line.startswith("warning")] == [f"warning: {warning}"]


def test_a_map_as_large_as_a_graph_is_not(run: Path, tmp_path: Path):
    assert "warning" not in evaluate(run, run.parent / "seven", tmp_path / "answers.csv").stderr


def test_the_checkpoint_in_a_run_is_evaluated_as_the_run(run: Path, tmp_path: Path):
    for name, folder in {"run": run, "best": run / "best"}.items():
        evaluate(folder, run.parent / "seven", tmp_path / f"{name}.csv")
    of_run, of_best = ((tmp_path / f"{name}.csv").read_text().splitlines()[1:] for name in ("run", "best"))
    assert of_run == of_best


def test_predictions_say_where_they_came_from(run: Path, tmp_path: Path):
    evaluate(run, run.parent / "seven", tmp_path / "answers.csv")
    _, metadata = read_predictions(tmp_path / "answers.csv")
    checkpoint = load_checkpoint(run / "best")
    assert metadata["config"] == checkpoint.metadata["config"]
    assert metadata["checkpoint_sha256"] == checkpoint.sha256
    assert metadata["data_fingerprint"] == checkpoint.metadata["data_fingerprint"]
    assert metadata["retrieval"] == f"retriever {load_checkpoint(run / 'retriever').sha256}"
    assert {"command", "git_commit", "source_sha256", "seed"} <= metadata["provenance"].keys()
