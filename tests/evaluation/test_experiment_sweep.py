"""Whole sweeps with the tiny preset on scenes of a few photos."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.errors import ConfigError, DatasetError
from relograph.evaluation import read_predictions
from relograph.evaluation.experiment_report import margins_over_copying, method_rows, read_result
from relograph.evaluation.experiment_run import SweepOptions, command_without_paths, run_experiments
from relograph.evaluation.experiments import EXPERIMENTS
from relograph.progress import SILENT
from relograph.scenes import open_scenes
from small_roots import write_cambridge_root, write_seven_scenes_root

SETTINGS = ("optim.epochs=1", "optim.batch_size=8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seven_scenes_root(tmp_path_factory.mktemp("data") / "seven", ("chess", "heads"), num_frames=6)


def run(names: list[str], root: Path, output: Path, say=lambda line: None, progress=SILENT, **options: Any):
    """The warnings that a sweep gave."""
    warnings: list[str] = []
    settings = SweepOptions(preset="tiny", **{"settings": SETTINGS, **options})
    cache = output.parent / "cache"
    run_experiments(names, root, output, settings, cache=cache, say=say, warn=warnings.append, progress=progress)
    return warnings


@pytest.fixture(scope="module")
def sweep(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every experiment on two scenes."""
    output = tmp_path_factory.mktemp("sweep") / "out"
    run(["all"], root, output)
    return output


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def results(sweep: Path, name: str) -> dict[str, Any]:
    return json.loads((sweep / "results" / f"{name}.json").read_text())


def test_every_experiment_leaves_results_with_their_provenance(sweep: Path, root: Path):
    names = set(EXPERIMENTS) - {"table3"}
    assert {path.stem for path in (sweep / "results").iterdir()} == names
    for name in names:
        metadata = results(sweep, name)["metadata"]
        assert metadata["dataset"] == "7-Scenes"
        assert metadata["scenes"] == ["chess", "heads"]
        assert (metadata["channels"], metadata["image_size_hw"]) == (32, [48, 64])
        assert str(root.parent) not in json.dumps(metadata)
        for job in metadata["jobs"]:
            assert job["num_graphs"] > 0
            assert len(job["checkpoint_sha256"]) == 64
        for figure in metadata["figures"]:
            assert (sweep / "figures" / figure["file"]).stat().st_size > 1000


def test_world_targets_say_how_many_edges_cross_the_jump(sweep: Path):
    shares = {
        job["name"]: job["share_of_edges_across_the_jump"] for job in results(sweep, "table1")["metadata"]["jobs"]
    }
    assert shares["ours-world"] == 0  # cameras of this wall are turned by a few degrees
    assert shares["ours-camera"] is None


def test_scores_are_those_of_the_predictions_on_disk(sweep: Path):
    (path,) = sweep.glob("jobs/ours-camera-??????????/predictions-nearest-all.csv.gz")
    predictions, _ = read_predictions(path)
    of_scene = np.array(predictions.scene) == "heads"
    error_m = np.linalg.norm((predictions.T_world_cam.t - predictions.T_world_true.t).numpy(), axis=1)[of_scene]
    difference = predictions.T_world_cam.R.mT @ predictions.T_world_true.R
    error_deg = np.degrees(Rotation.from_matrix(difference.numpy()).magnitude())[of_scene]
    (score,) = [
        row
        for row in results(sweep, "table1")["results"]
        if row["method"] == "RelPoseGNN, camera target" and row["scene"] == "heads"
    ]
    assert score["num_queries"] == 6
    assert_allclose(score["median_translation_error_m"], np.median(error_m), rtol=1e-9)
    assert_allclose(score["median_rotation_error_deg"], np.median(error_deg), rtol=1e-6)


def test_the_mean_of_seeds_is_the_mean(sweep: Path):
    errors = {
        row["method"]: row["median_translation_error_m"]
        for row in results(sweep, "table4")["results"]
        if row["scene"] == "chess"
    }
    seeds = [errors[f"Baseline-2: random references, seed {seed}"] for seed in range(3)]
    assert len(set(seeds)) == 3
    assert_allclose(errors["Baseline-2: mean of 3 seeds"], np.mean(seeds))


def test_the_grid_of_rounds_is_the_diagonal_and_the_papers_row(sweep: Path):
    cells = {
        (row["rounds_in_training"], row["rounds_at_test"]): row["loss"] for row in results(sweep, "rounds")["results"]
    }
    assert set(cells) == {(1, 1), (2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (4, 4)}
    assert len({cells[2, at_test] for at_test in (1, 2, 3, 4)}) == 4


def test_qualitative_answers_are_ranked_from_best_to_worst(sweep: Path):
    rows = results(sweep, "qualitative")["results"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["translation_error_m"] < rows[-1]["translation_error_m"]


def test_tables_are_written_in_two_languages(sweep: Path):
    markdown = (sweep / "tables" / "table1.md").read_text()
    assert "NetVLAD + interpolation" in markdown
    assert "Published on 7-Scenes" in markdown
    assert r"\begin{tabular}" in (sweep / "tables" / "table1.tex").read_text()
    assert "25 cm, 10°" in (sweep / "tables" / "table1-summary.md").read_text()


def test_a_finished_sweep_is_taken_as_it_is(sweep: Path, root: Path):
    before = contents(sweep / "jobs")
    said: list[str] = []
    run(["all"], root, sweep, say=said.append)
    assert contents(sweep / "jobs") == before
    assert [line.split(":")[0] for line in said] == [name for name in EXPERIMENTS if name != "table3"]


class InterruptedSweepError(Exception):
    """Somebody pressed Ctrl-C."""


def stop_after(num_jobs: int) -> Callable[[str], None]:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == num_jobs:
            raise InterruptedSweepError

    return say


def test_a_sweep_that_was_stopped_between_trainings_goes_on_with_the_next(root: Path, tmp_path: Path, sweep: Path):
    output = tmp_path / "out"
    with pytest.raises(InterruptedSweepError):
        run(["averaging", "aggregation"], root, output, say=stop_after(1))
    (first,) = (output / "jobs").iterdir()
    before = contents(first)
    run(["averaging"], root, output)
    after = contents(first)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        f"predictions-{reading}-all.csv.gz" for reading in ("nearest", "random", "average-markley", "average-gramkow")
    }
    # The same seed on the same data: another sweep in another folder answers the same, byte for byte.
    for name in set(after) - set(before):
        assert after[name][1] == (sweep / "jobs" / first.name / name).read_bytes()


class StoppingProgress:
    """Stops in the midst of a training."""

    def __init__(self, num_graphs: int) -> None:
        self.left = num_graphs

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield self.advance if description.startswith("training") else lambda steps: None

    def advance(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise InterruptedSweepError


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(root: Path, tmp_path: Path):
    settings = ("optim.epochs=3", "optim.batch_size=4")
    run(["averaging"], root, tmp_path / "whole", settings=settings)
    with pytest.raises(InterruptedSweepError):
        run(["averaging"], root, tmp_path / "parts", settings=settings, progress=StoppingProgress(16))
    (job,) = (tmp_path / "parts" / "jobs").iterdir()
    assert (job / "last").exists()
    assert not (job / "job.json").exists()
    run(["averaging"], root, tmp_path / "parts", settings=settings)
    whole, parts = (results(tmp_path / name, "averaging") for name in ("whole", "parts"))
    assert whole["metadata"]["jobs"][0]["checkpoint_sha256"] == parts["metadata"]["jobs"][0]["checkpoint_sha256"]
    assert whole["results"] == parts["results"]


class RecordingProgress:
    """Remembers what the bars were told."""

    def __init__(self) -> None:
        self.bars: list[list[Any]] = []

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        bar = [description, total, 0]
        self.bars.append(bar)

        def advance(steps: int) -> None:
            bar[2] += steps

        yield advance


def test_one_bar_counts_the_graphs_of_all_trainings(root: Path, tmp_path: Path):
    progress = RecordingProgress()
    run(["aggregation"], root, tmp_path / "out", progress=progress)
    (whole,) = [bar for bar in progress.bars if bar[0].startswith("sweep")]
    trainings = [bar for bar in progress.bars if bar[0].startswith("training")]
    assert len(trainings) == 3
    assert whole[1] == whole[2] == sum(total for _, total, _ in trainings)


def test_copying_with_a_users_descriptors_is_the_pose_of_the_nearest_descriptor(root: Path, tmp_path: Path):
    rng = np.random.default_rng(0)
    frames = {f"{scene.name}/{frame.name}": frame for scene in open_scenes(root) for frame in scene}
    descriptors = rng.normal(size=(len(frames), 5)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", names=list(frames), descriptors=descriptors)
    run(["averaging"], root, tmp_path / "out", descriptors=tmp_path / "mine.npz")
    unit = descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True)
    errors = []
    for query, (name, frame) in enumerate(frames.items()):
        if name.startswith("chess/seq-03"):
            similarity = [
                unit[query] @ unit[row] if other.startswith("chess/seq-0") and "seq-03" not in other else -2.0
                for row, other in enumerate(frames)
            ]
            copied = list(frames.values())[int(np.argmax(similarity))]
            errors.append(np.linalg.norm(copied.T_world_cam.t - frame.T_world_cam.t))
    row = results(tmp_path / "out", "averaging")["results"][0]
    assert (row["method"], row["scene"]) == ("NetVLAD (copy top-1)", "chess")
    assert_allclose(row["median_translation_error_m"], np.median(errors), rtol=1e-6)


def test_cambridge_is_scored_in_metres_between_camera_centres(tmp_path: Path):
    folders = ("KingsCollege", "ShopFacade", "Street")
    root = write_cambridge_root(tmp_path / "cambridge", folders, num_frames=6)
    warnings = run(["table3"], root, tmp_path / "out")
    assert warnings == ["Street is not in the paper's tables and is left out; --scenes takes it in."]
    metadata = results(tmp_path / "out", "table3")["metadata"]
    assert (metadata["dataset"], metadata["scenes"]) == ("Cambridge Landmarks", ["KingsCollege", "ShopFacade"])
    # One factor for all axes: the spread of the training cameras, here of both scenes around their own middles.
    (ours,) = [job for job in metadata["jobs"] if job["name"] == "ours-world"]
    squared = []
    for folder in folders[:2]:
        # The second of the two training sequences is held out.
        lines = (root / folder / "dataset_train.txt").read_text().splitlines()[3:9]
        centres = np.array([[float(word) for word in line.split()[1:4]] for line in lines])
        squared.append(((centres - centres.mean(axis=0)) ** 2).sum(axis=1))
    assert_allclose(ours["metres_per_unit"], np.sqrt(np.mean(squared)), rtol=1e-5)
    (path,) = (tmp_path / "out" / "jobs").glob("copy-top-1-*/predictions-nearest-all.csv.gz")
    predictions, _ = read_predictions(path)
    frame = predictions.frame.index("ShopFacade/seq3/frame00002.png")
    line = (root / "ShopFacade" / "dataset_test.txt").read_text().splitlines()[3 + 1]
    assert_allclose(predictions.T_world_true.t[frame], [float(word) for word in line.split()[1:4]], rtol=1e-6)
    markdown = (tmp_path / "out" / "tables" / "table3.md").read_text()
    assert "| Method | Frames | College | Shop | Avg. (4) | Avg. (5) |" in markdown


def test_table3_on_other_data_says_what_it_is(root: Path, tmp_path: Path):
    warnings = run(["table3"], root, tmp_path / "out", scene_names=["chess"])
    assert warnings == [
        "table3 is the paper's table of Cambridge Landmarks; these are other scenes (7-Scenes), shown as such."
    ]


def test_a_label_keeps_two_sweeps_apart(root: Path, tmp_path: Path):
    run(["averaging"], root, tmp_path / "out", label="small")
    assert (tmp_path / "out" / "results" / "averaging-small.json").exists()
    assert (tmp_path / "out" / "figures" / "averaging-small-cumulative-errors.png").exists()


def test_margins_over_copying_are_worked_out_for_every_method(sweep: Path):
    sentences = margins_over_copying(method_rows(read_result(sweep / "results" / "averaging.json")))
    assert len(sentences) == 4
    assert all(sentence.startswith("RelPoseGNN, ") and "of 2 scenes" in sentence for sentence in sentences)


def test_a_scene_without_test_frames_is_named(root: Path, tmp_path: Path):
    copied = write_seven_scenes_root(tmp_path / "root", ("chess", "fire"), num_frames=2)
    (copied / "fire" / "TestSplit.txt").write_text("")
    with pytest.raises(DatasetError, match="found none in fire"):
        run(["averaging"], copied, tmp_path / "out")


def test_a_scene_too_small_for_its_graphs_is_told(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "root", ("chess",), num_frames=2)
    warnings = run(["averaging"], root, tmp_path / "out")
    assert warnings == [
        "chess has 2 training frames and a graph has 4 images: graphs of this scene take the frames there are."
    ]


def test_what_cannot_be_planned_is_said_before_anything_is_trained(root: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="table2 leaves one scene out"):
        run(["averaging", "table2"], root, tmp_path / "out", scene_names=["chess"])
    assert not (tmp_path / "out").exists()


def test_the_command_is_kept_without_paths(monkeypatch: pytest.MonkeyPatch):
    words = ["/usr/bin/relograph", "experiments", "run", "all", "--data", "/data/seven scenes", "--output=/home/me/out"]
    monkeypatch.setattr("sys.argv", [*words, "--set", "graph.stride=1"])
    names = {"/data/seven scenes": "$DATA", "/home/me/out": "$OUTPUT"}
    expected = "relograph experiments run all --data $DATA --output=$OUTPUT --set graph.stride=1"
    assert command_without_paths(names) == expected
