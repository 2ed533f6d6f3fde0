"""`relograph eval --scene` and `--rooms`, as one types them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import painted_box
from localization.small_networks import small_network
from relograph.cli.app import app
from relograph.models.shipped import save_match_gnn


def invoke(*arguments: str | Path):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painted_box.write_scene(tmp_path_factory.mktemp("data") / "cube")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_match_gnn(folder, small_network().model, {})
    return folder


def test_methods_are_compared_in_a_scene_and_told_in_one_table(scene: Path, weights: Path, tmp_path: Path):
    lists = ("--map", "map.txt", "--query", scene / "query.txt", "--queries", "2:1")
    options = ("--weights", weights, "--references", 3, "--peers", "sift", "--output", tmp_path / "out")
    done = invoke("--scene", scene, *lists, *options, "--also-focal", 312)
    assert done.exit_code == 0, done.output
    assert "1 queries, 8 photos in the map, 3 references by our own retrieval." in done.stdout
    for focal in ("f given", "f = 312"):
        assert f"| relograph, solver, {focal} |" in done.stdout
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {row["method"]: row for row in document["results"]}
    assert rows["SIFT + PoseLib"]["median_translation_error_m"] < 0.02
    assert document["metadata"]["dataset"] == "cube"
    assert len(document["metadata"]["data_fingerprint"]) == 64
    assert str(tmp_path) not in json.dumps(document)
    assert str(scene.parent) not in json.dumps(document)


def test_without_a_folder_for_them_results_are_in_one_of_the_scene(scene: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("relograph.models.shipped.SHIPPED_WEIGHTS", tmp_path / "none")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = invoke("--scene", scene, "--references-by", "pose", "--peers", "sift", "--queries", 4)
    assert done.exit_code == 0, done.output
    assert Path("runs/eval-cube/results.json").is_file()


def test_a_list_that_is_not_there_is_told_by_its_option_and_what_it_has(scene: Path):
    done = invoke("--scene", scene, "--query", "none.txt")
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"error: --query none.txt: expected a list of frames of the scene, a name a line, here or in {scene}, found"
    )


def test_peers_are_compared_without_weights_on_the_nearest_by_pose(scene: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("relograph.models.shipped.SHIPPED_WEIGHTS", tmp_path / "none")
    options = ("--references-by", "pose", "--stride", 1, "--peers", "sift", "--focal", "unknown", "--queries", 2)
    done = invoke("--scene", scene, *options, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "warning: our own rows are left out: " in done.stderr
    assert "warning: PoseLib alone does not search focal lengths" in done.stderr
    assert "| SIFT + our solver |" in done.stdout
    assert "SIFT + PoseLib" not in done.stdout
    assert "relograph" not in done.stdout.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "expected a training run, --scene ROOT or --rooms PART to evaluate, found none"),
        (("run", "--scene", "cube"), "expected a training run, --scene or --rooms, found two of them"),
        (("run",), "expected --data ROOT, the scenes to evaluate run on, found none"),
        (("--scene", "cube"), "expected a scene, found nothing there"),
        (("--scene", "cube", "--output", "out", "--queries", "ten"), "--queries: expected N or N:FIRST"),
        (("--scene", "cube", "--output", "out", "--peers", "surf"), "--peers: expected names among sift"),
        (("--scene", "cube", "--output", "out"), "expected a scene, found nothing there"),
        (("--rooms", "test", "--output", "out", "--calibrate", "w"), "--calibrate is done on validation rooms"),
        (("--rooms", "validation", "--scene", "s", "--output", "out", "--calibrate", "w"), "Leave --scene out."),
        (
            ("--rooms", "validation", "--output", "out", "--calibrate", "w", "--weights", "v"),
            "expected one set of weights",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line_and_no_traceback(arguments, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
