"""Whole sweeps with the tiny preset on scenes of a few photos."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from relograph.errors import ConfigError, DatasetError
from relograph.evaluation import read_predictions
from relograph.evaluation.experiment_report import margins_over_copying, method_rows, read_result
from relograph.evaluation.experiment_run import (
    SweepOptions,
    command_without_paths,
    recognised_dataset,
    run_experiments,
    scene_of_the_paper,
)
from relograph.evaluation.experiments import EXPERIMENTS
from relograph.evaluation.writing import write_whole
from relograph.graphs import relative_targets
from relograph.progress import SILENT
from relograph.scenes import open_scenes
from relograph.training.presets import TINY
from relograph.training.running import graph_rows, load_trained
from relograph.training.workbench import Start, set_up_workbench
from small_roots import write_cambridge_root, write_seven_scenes_root

pytestmark = pytest.mark.usefixtures("undrawn")  # but in the sweep that all share

SETTINGS = ("optim.epochs=1", "optim.batch_size=8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seven_scenes_root(tmp_path_factory.mktemp("data") / "seven", ("chess", "heads"), num_frames=6)


def run(names: list[str], root: Path, output: Path, say=lambda line: None, progress=SILENT, **options: Any):
    """The warnings that a sweep gave."""
    warnings: list[str] = []
    settings = SweepOptions(preset="tiny", **{"settings": SETTINGS, "dataset": "7scenes", **options})
    cache = output.parent / "cache"
    run_experiments(names, root, output, settings, cache=cache, say=say, warn=warnings.append, progress=progress)
    return warnings


@pytest.fixture(scope="module")
def sweep(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every experiment on two scenes; of the figures that all tables have, only files with their titles."""
    output = tmp_path_factory.mktemp("sweep") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "relograph.evaluation.experiment_results.save_figure",
            lambda figure, path: write_whole(path, figure.get_suptitle().encode()),
        )
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
            assert job["training_stride"] in (1, 2)
            assert {"git_commit", "source_sha256", "device_name", "timestamp_utc"} <= job["provenance"].keys()
            assert "command" not in job["provenance"]  # it may name paths
        for figure in metadata["figures"]:
            is_of_all_tables = figure["file"].endswith(("-cumulative-errors.png", "-errors-by-distance.png"))
            assert is_of_all_tables or (sweep / "figures" / figure["file"]).stat().st_size > 1000


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


def test_the_grid_of_rounds_is_over_all_edges_as_the_papers(sweep: Path, root: Path):
    (folder,) = sweep.glob("jobs/single-camera-heads-stride2-rounds3-*")
    workbench = set_up_workbench(open_scenes(root), TINY, cache=sweep.parent / "cache", start=Start())
    data, trained = workbench.data, load_trained(folder)
    rows = graph_rows(data.test_rows(["heads"]), data.frames.in_map, workbench.descriptors, data, TINY.graph)
    with torch.no_grad():
        edges = trained.model(data.frames.images[rows], torch.ones_like(rows, dtype=torch.bool)).edges
    difference = (edges - relative_targets(data.frames.T_world_cam[rows], "camera")).abs()
    loss = difference[..., :3].sum(-1) + difference[..., 3:].sum(-1) * np.exp(3) - 3
    loss = loss[:, ~torch.eye(4, dtype=torch.bool)].mean()
    (row,) = [row for row in results(sweep, "rounds")["results"] if row["rounds_in_training"] == 3]
    assert_allclose(row["loss"], float(loss), rtol=1e-3)


def test_predictions_say_where_they_came_from(sweep: Path):
    (path,) = sweep.glob("jobs/ours-camera-??????????/predictions-nearest-all.csv.gz")
    _, metadata = read_predictions(path)
    facts = json.loads((path.parent / "job.json").read_text())
    assert metadata["checkpoint_sha256"] == facts["checkpoint_sha256"]
    assert metadata["config"]["optim"]["batch_size"] == 8
    assert metadata["data_fingerprint"] == results(sweep, "table1")["metadata"]["data_fingerprint"]
    assert {"git_commit", "source_sha256", "seed"} <= metadata["provenance"].keys()


def test_unseen_scenes_say_what_the_retrieval_has_seen_of_them(sweep: Path):
    markdown = (sweep / "tables" / "table2.md").read_text()
    assert "trained on the others; K-means and PCA of the retrieval have seen the maps of all scenes" in markdown
    assert "K-means" not in (sweep / "tables" / "table1.md").read_text()


def test_a_table_names_its_target_and_how_long_networks_were_trained(sweep: Path):
    # 12 training frames of which 6 are held out, and 2 scenes: 12 graphs are two batches of 8.
    setting = "(C = 32, images 48x64, camera target, 16 graphs a training)"
    assert f"Measured on 7-Scenes {setting}." in (sweep / "tables" / "averaging.md").read_text()
    assert "camera and world targets" in (sweep / "tables" / "table1.md").read_text()


def test_figures_name_the_setting_as_tables_do(sweep: Path):
    for name in ("table1", "table4"):
        setting = read_result(sweep / "results" / f"{name}.json").setting
        assert "C = 32, images 48x64" in setting
        for kind in ("cumulative-errors", "errors-by-distance"):
            assert setting in (sweep / "figures" / f"{name}-{kind}.png").read_text()


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


def test_a_finished_sweep_is_taken_as_it_is_even_where_its_weights_are_gone(sweep: Path, root: Path, tmp_path: Path):
    left = tmp_path / "left"
    shutil.copytree(sweep / "jobs", left / "jobs", ignore=shutil.ignore_patterns("best", "last"))
    before, said = contents(left / "jobs"), list[str]()
    run(["all"], root, left, say=said.append)
    assert contents(left / "jobs") == before
    names = [name for name in EXPERIMENTS if name != "table3"]
    assert [line.split(":")[0] for line in said] == names
    for name in names:
        assert results(left, name)["results"] == results(sweep, name)["results"]


@pytest.fixture
def finished(sweep: Path, tmp_path: Path) -> Path:
    """A sweep of which one training on all scenes is done."""
    for name in ("ours-camera-??????????", "copy-top-1-??????????"):
        (folder,) = sweep.glob(f"jobs/{name}")
        shutil.copytree(folder, tmp_path / "out" / "jobs" / folder.name)
    return tmp_path / "out"


def change_facts(finished: Path, **facts: Any) -> None:
    (path,) = finished.glob("jobs/ours-camera-*/job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_results_keep_what_trained_their_networks_and_tell_that_it_was_other_code(finished: Path, root: Path):
    made_with = {"source_sha256": "0" * 64, "device_name": "Far Away", "git_commit": "1" * 40, "torch": "2.0"}
    change_facts(finished, provenance=made_with)
    (warning,) = run(["averaging"], root, finished)
    assert warning.startswith("other code than this made ")
    assert "ours-camera-" in warning
    assert results(finished, "averaging")["metadata"]["jobs"][0]["provenance"] == made_with


def test_a_stride_that_was_stretched_in_training_is_told_below_the_table(finished: Path, root: Path):
    change_facts(finished, training_stride=12)
    run(["averaging"], root, finished)
    markdown = (finished / "tables" / "averaging.md").read_text()
    (note,) = [line for line in markdown.splitlines() if "trained with stride 12, as there are more frames" in line]
    assert note.startswith("RelPoseGNN, nearest edge; RelPoseGNN, one random edge; RelPoseGNN, averaged")


def test_damaged_files_are_made_again_without_a_training(finished: Path, root: Path, sweep: Path):
    (job,) = finished.glob("jobs/ours-camera-*")
    weights = contents(job / "best")
    facts, answers = job / "job.json", job / "predictions-random-all.csv.gz"
    facts.write_text(facts.read_text()[:100])
    answers.write_bytes(answers.read_bytes()[:100])
    warnings = run(["averaging"], root, finished)
    assert warnings[:2] == [
        f"{answers}: found damaged predictions; they are made again.",
        f"{facts}: found a damaged file; it is written again from the checkpoint beside it.",
    ]
    assert contents(job / "best") == weights
    assert results(finished, "averaging")["results"] == results(sweep, "averaging")["results"]


def test_a_run_that_was_killed_after_two_networks_trains_the_third_without_their_weights(
    root: Path, tmp_path: Path, sweep: Path
):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "relograph", "experiments", "run", "aggregation", "--preset", "tiny"]
    command += ["--data", root, "--output", output, "--cache", tmp_path / "cache", "--dataset", "7scenes"]
    for setting in SETTINGS:
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        said = [running.stdout.readline().split(":")[0] for _ in range(2)]
        running.kill()
    assert said == ["ours-camera", "ours-camera-max"]
    for weights in [*output.glob("jobs/*/best"), *output.glob("jobs/*/last")]:
        shutil.rmtree(weights)  # too large to be brought away from a machine that is lost
    finished = [path.parent for path in output.glob("jobs/*/job.json")]
    before = {folder: contents(folder) for folder in finished}
    assert len(finished) == 2
    assert not list(output.glob("results/*"))
    trained: list[str] = []
    run(["aggregation"], root, output, say=trained.append)
    assert [line.split(":")[0] for line in trained] == ["ours-camera-sum", "aggregation"]
    assert {folder: contents(folder) for folder in finished} == before
    assert results(output, "aggregation")["results"] == results(sweep, "aggregation")["results"]


def test_what_is_wanted_of_a_network_without_weights_is_trained_for_again(finished: Path, root: Path, sweep: Path):
    (job,) = finished.glob("jobs/ours-camera-*")
    shutil.rmtree(job / "best")
    (job / "predictions-random-all.csv.gz").unlink()
    said: list[str] = []
    run(["averaging"], root, finished, say=said.append)
    assert [line.split(":")[0] for line in said] == ["ours-camera", "averaging"]
    assert results(finished, "averaging")["results"] == results(sweep, "averaging")["results"]


def test_every_row_says_what_made_it(sweep: Path):
    metadata = results(sweep, "table1")["metadata"]
    rows = {row["method"]: row for row in metadata["rows"]}
    assert list(rows) == list(dict.fromkeys(row["method"] for row in results(sweep, "table1")["results"]))
    assert rows["NetVLAD (copy top-1)"]["num_trainings"] == 0
    jobs = [job for job in metadata["jobs"] if job["name"].startswith("posenet")]
    assert rows["PoseNet"]["num_trainings"] == len(jobs) == 2
    assert rows["PoseNet"]["num_steps"] == sum(job["num_steps"] for job in jobs) > 0
    assert rows["PoseNet"]["device_names"] == [jobs[0]["provenance"]["device_name"]]
    code = {key: jobs[0]["provenance"][key] for key in ("git_commit", "source_sha256")}
    assert code in rows["PoseNet"]["code"]


class SlowTraining:
    """A clock on which only steps of training take time, a minute each, and the progress that moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield self.advance if description.startswith("training") else lambda steps: None

    def advance(self, graphs: int) -> None:
        self.now_s += 60 * graphs / 8


@pytest.mark.parametrize(
    ("minutes", "answered"),
    [(1.5, []), (3.5, ["ours-camera"]), (5.0, ["ours-camera", "ours-camera-max"])],  # each takes two minutes
)
def test_a_run_ends_in_order_when_its_minutes_are_over(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, answered: list[str]
):
    clock, said = SlowTraining(), list[str]()
    for module in ("experiment_run", "experiment_sweep"):
        monkeypatch.setattr(f"relograph.evaluation.{module}.time", clock)
    run(["aggregation"], root, tmp_path / "out", say=said.append, progress=clock, minutes=minutes)
    missing = [name for name in ("ours-camera", "ours-camera-max", "ours-camera-sum") if name not in answered]
    assert [line.split(":")[0] for line in said[:-1]] == answered
    assert said[-1] == (
        f"aggregation: {len(answered)} of 3 networks are there; run the command again for the others "
        f"({', '.join(missing)})"
    )
    assert not list(tmp_path.glob("out/results/*"))
    assert clock.now_s <= 60 * (minutes + 1)


def test_minutes_that_are_none_are_refused(root: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--minutes: expected 0 or more, found -1"):
        run(["averaging"], root, tmp_path / "out", minutes=-1.0)


class InterruptedSweepError(Exception):
    """Somebody pressed Ctrl-C."""


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
    (job,) = tmp_path.glob("parts/jobs/ours-camera-*")
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
    warnings = run(["table3"], root, tmp_path / "out", dataset="cambridge")
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


def test_two_settings_in_one_folder_copy_each_with_its_own_retrieval(finished: Path, root: Path, tmp_path: Path):
    settings = (*SETTINGS, "seed=5", "data.image_height=32", "model.encoder_width=16")
    run(["averaging"], root, finished, settings=settings, label="other")
    run(["averaging"], root, tmp_path / "fresh", settings=settings)
    assert results(finished, "averaging-other")["results"] == results(tmp_path / "fresh", "averaging")["results"]


def test_a_network_whose_retrieval_was_trained_along_is_asked_with_it(root: Path, tmp_path: Path):
    settings = (*SETTINGS, "retrieval.loss=covisibility", "optim.learning_rate=0.05", "optim.warmup_steps=0")
    run(["averaging"], root, tmp_path / "out", settings=settings)
    jobs = tmp_path / "out" / "jobs"
    copied, answered = (
        read_predictions(next(jobs.glob(f"{name}-*/predictions-nearest-all.csv.gz")))[0].top1
        for name in ("copy-top-1", "ours-camera")
    )
    assert copied != answered
    note = results(tmp_path / "out", "averaging")["results"][-1]["note"]
    assert note.startswith("finds references with the retrieval that was trained along")


def test_the_papers_data_are_recognised_by_most_of_their_scenes_and_no_others(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "mine", ("chess", "fire", "heads", "office"), num_frames=1)
    assert recognised_dataset(root, open_scenes(root)) == "7-Scenes"
    assert recognised_dataset(root, open_scenes(root, ["fire"])) == "7-Scenes"
    assert recognised_dataset(root / "fire", open_scenes(root / "fire")) == "7-Scenes"
    (root / "chess").rename(root / "mygarage")
    assert recognised_dataset(root, open_scenes(root)) == "mine"
    assert recognised_dataset(root, open_scenes(root, ["office"])) == "mine"


def test_experiments_on_one_scene_take_the_papers_where_there_is_one():
    assert scene_of_the_paper(("chess", "pumpkin", "stairs"), "7-Scenes") == "pumpkin"
    assert scene_of_the_paper(("chess", "pumpkin", "stairs"), "my rooms") == "stairs"
    assert scene_of_the_paper(("chess", "heads"), "7-Scenes") == "heads"


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
