"""`relograph report` of small runs that the tests make: its sections, their numbers, and the page in a browser."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import painted_box
from cli.commands import invoke
from evaluation.made_predictions import predictions_with_errors
from localization.small_networks import small_network
from relograph.evaluation import Predictions, read_predictions, write_predictions
from relograph.evaluation.metrics import score
from relograph.models.shipped import save_match_gnn
from relograph.results import write_result
from small_roots import write_seven_scenes_root
from test_documents import REPOSITORY

SECTIONS = ["Results", "Plots", "Failures", "Saliency", "Cameras in 3-D", "Provenance"]
EVIL = "<img src=x onerror=alert(1)>$x^{$</script>"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seven_scenes_root(tmp_path_factory.mktemp("data") / "seven", ("chess", "heads"), num_frames=6)


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run that was evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    quick = ("--preset", "tiny", "--set", "optim.epochs=1", "--set", "optim.batch_size=8")
    for command in (("train", *quick, "--output", folder), ("eval", folder)):
        done = invoke(*command, "--data", root, "--cache", folder.parent / "cache")
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def run_report(run: Path, root: Path) -> Path:
    done = invoke("report", run, "--data", root, "--cache", run.parent / "cache")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{run}/report.html\n"
    return run / "report.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison in a place."""
    folder = tmp_path_factory.mktemp("compared")
    scene = painted_box.write_scene(folder / "cube", num_map=4, num_queries=2)
    save_match_gnn(folder / "weights", small_network().model, {})
    options = ("--weights", folder / "weights", "--references", 2, "--solver", "regress", "--output", folder / "out")
    done = invoke("eval", "--scene", scene, *options)
    assert done.exit_code == 0, done.output
    return folder / "out"


def write_hostile_comparison(folder: Path) -> Path:
    """Answers whose names are anything but harmless."""
    made = predictions_with_errors([0.01, 0.5, np.inf], [1.0, 20.0, np.inf], scene=EVIL)
    path = folder / "predictions" / "img-src-x-onerror-alert-1-x-script.csv.gz"
    write_predictions(path, made, metadata={"method": EVIL})
    (scores,) = score(made)
    times = dict.fromkeys(("seconds_per_query", "solver_seconds_per_query", "seconds_per_map_image"), 0.1)
    row = {"method": EVIL, **scores.as_row(), **times, "share_accepted": None, "share_right_of_accepted": None}
    details = {"dataset": EVIL, "num_queries": 3, "focal": EVIL}
    write_result(folder / "results.json", [row], command=f"relograph eval `{EVIL}`", seed=None, details=details)
    return folder


def titles(page: str) -> list[str]:
    return [html.unescape(title) for title in re.findall(r"<h2>(.*?)</h2>", page)]


def cells(page: str, first: str) -> list[list[str]]:
    """Rows of tables that begin with a cell."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    texts = [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    return [row for row in texts if row and row[0] == first]


# Training runs


def test_the_report_of_a_training_run_has_every_section_with_the_numbers_of_its_evaluation(run_report: Path, run: Path):
    page = run_report.read_text()
    assert titles(page) == SECTIONS
    assert 'class="missing"' not in page
    predictions, _ = read_predictions(run / "predictions.csv.gz")
    chess, heads = score(predictions)
    medians, figures = cells(page, "relpose_gnn, nearest")
    assert medians[2] == f"{chess.median_translation_error_m:.2f} m / {chess.median_rotation_error_deg:.1f}°"
    assert medians[3] == f"{heads.median_translation_error_m:.2f} m / {heads.median_rotation_error_deg:.1f}°"
    recall = (chess.recall_25cm_10deg + heads.recall_25cm_10deg) / 2
    assert figures[5] == f"{100 * recall:.1f} %"


def test_copying_is_measured_as_the_evaluation_measures_it(run_report: Path, run: Path, root: Path, tmp_path: Path):
    done = invoke("eval", run, "--data", root, "--cache", run.parent / "cache", "--output", tmp_path / "again.csv")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("| copy top-1 | 1 |")]
    expected = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
    assert cells(run_report.read_text(), "copy top-1")[0] == expected


def test_failures_are_those_with_the_largest_errors(run_report: Path, run: Path):
    predictions, _ = read_predictions(run / "predictions.csv.gz")
    away_m = (predictions.T_world_cam.t - predictions.T_world_true.t).norm(dim=1)
    page = run_report.read_text()
    row = int(away_m.argmax())
    (found,) = cells(page, predictions.frame[row])
    assert found[1].startswith(f"{away_m[row]:.3f} m / ")
    assert "The largest errors, each beside the most similar photo of the map." in page


def test_provenance_says_command_commit_versions_device_and_settings(run_report: Path, run: Path):
    page = run_report.read_text()
    about = json.loads((run / "run.json").read_text())
    facts = dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', page))
    assert facts["optim.epochs"] == "1"
    assert facts["data"] == about["data"]
    assert facts["versions"].startswith("relograph ")
    assert "cpu" in facts["device"]
    assert len(facts["weights SHA-256"]) == 64
    assert {"command", "commit", "seed", "time"} <= facts.keys()


def test_without_data_it_is_told_what_they_would_show(run: Path, tmp_path: Path):
    done = invoke("report", run, "--output", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert titles(page) == SECTIONS
    missing = re.findall(r'<p class="missing">(.*?)</p>', page)
    assert len(missing) == 4
    assert all("<code>--data ROOT</code>" in line for line in missing)


def test_a_run_that_was_not_evaluated_says_how(run: Path, tmp_path: Path):
    alone = tmp_path / "alone"
    shutil.copytree(run, alone, ignore=shutil.ignore_patterns("predictions*", "report*"))
    assert invoke("report", alone).exit_code == 0
    page = (alone / "report.html").read_text()
    assert titles(page) == SECTIONS
    assert page.count(f"No predictions here: <code>relograph eval {alone} --data ROOT</code> makes some.") == 3
    assert "The loss of the training by its steps." in page


def test_a_training_of_matchgnn_says_where_it_is_evaluated(tmp_path: Path):
    about = {"config": {"optim": {"epochs": 1}}, "start": "random weights", "textures": None}
    (tmp_path / "run.json").write_text(json.dumps(about))
    (tmp_path / "log.csv").write_text("step,loss,validation_loss\n10,2.5,\n20,1.5,1.75\n")
    assert invoke("report", tmp_path).exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert titles(page) == SECTIONS
    assert f"relograph eval --rooms test --weights {tmp_path}/weights --output DIR" in page
    assert "The run has no finished checkpoint." in page


def test_data_of_another_run_are_refused(run: Path, tmp_path: Path):
    other = write_seven_scenes_root(tmp_path / "seven", ("office",), num_frames=3)
    done = invoke("report", run, "--data", other)
    assert done.exit_code == 1
    assert "expected --data with the frames that were localized, found no 'chess/" in done.stderr


# Comparisons and sweeps


def test_the_report_of_a_comparison_has_its_table_plots_and_failures(compared: Path):
    done = invoke("report", compared)
    assert done.exit_code == 0, done.output
    page = (compared / "report.html").read_text()
    assert titles(page) == SECTIONS
    document = json.loads((compared / "results.json").read_text())
    for row in document["results"]:
        (found,) = cells(page, row["method"])
        median = f"{row['median_translation_error_m']:.3f} m / {row['median_rotation_error_deg']:.2f}°"
        assert found[1] == median
    assert page.count("<figure>") == 5  # three plots, failures, cameras
    assert f"Drawn by <code>{document['metadata']['command']}</code>." in html.unescape(page)
    assert "<code>relograph localize PHOTO --map MAP --explain why.html</code>" in page


def test_homes_of_rooms_are_shown_each_in_its_own_world(tmp_path: Path):
    parts = [predictions_with_errors([0.1] * 3, [1.0] * 3, scene=f"home-{number}", seed=number) for number in range(3)]
    everyone = Predictions.cat(parts)
    rooms = Predictions.from_poses(
        ["test rooms"] * 9, everyone.frame, everyone.T_world_true, everyone.T_world_cam, top1=everyone.top1
    )
    write_predictions(tmp_path / "predictions" / "ours.csv.gz", rooms, metadata={})
    details = {"data": "test rooms", "num_homes": 3}
    write_result(tmp_path / "results.json", [{"method": "ours"}], command="relograph eval", seed=0, details=details)
    (tmp_path / "report.md").write_text(
        "**Localization in test rooms**\n\n| Method | Median |\n|---|---|\n| ours | 1 m |\n"
    )
    done = invoke("report", tmp_path)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert cells(page, "ours") == [["ours", "1 m"]]
    assert re.findall(r'<iframe title="Cameras in 3-D: (.*?)"', page) == ["home-0", "home-1"]
    assert "1 more places are left out to keep this file small." in page
    assert "rooms are made for an evaluation, and not kept." in page


def test_the_report_of_experiments_says_what_the_documents_say(tmp_path: Path):
    done = invoke("report", REPOSITORY / "results" / "experiments", "--output", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    readme = (REPOSITORY / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if line.startswith("| RelPoseGNN, camera target | 1 | **0.32 m**")]
    expected = [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
    assert expected in cells(page, "RelPoseGNN, camera target")
    assert "Not in experiments/figures: " in page


def test_a_folder_of_something_else_is_refused_in_one_line(tmp_path: Path):
    done = invoke("report", tmp_path)
    assert done.exit_code == 1
    assert "expected the folder of a training run (run.json)" in done.stderr
    (tmp_path / "results.json").write_text("[]")
    assert "expected results of `relograph eval`" in invoke("report", tmp_path).stderr
    (tmp_path / "results.json").write_text('{"metadata": {}, "results": [{"method": "ours"}]}')
    assert "found a row without 'median_translation_error_m'" in invoke("report", tmp_path).stderr
    assert not (tmp_path / "report.html").exists()


# In the browser


def complaints_of(browser: Any, path: Path, width: int, scheme: str) -> list[str]:
    """What a page complains of or asks for elsewhere; it must fit into the window, and its pictures must be seen."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(path.as_uri())
    page.locator("iframe").last.scroll_into_view_if_needed()
    frame = page.frames[-1]
    frame.wait_for_function("() => cameras.some(camera => camera.seen)")
    assert frame.locator("#walk output").inner_text().startswith("1 / ")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    widths = "Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth, () => 0)))"
    assert all(page.evaluate(widths))
    page.close()
    return [text for text in complaints if not text.startswith(("file:", "data:", "about:"))]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")], ids=["desk", "phone"])
def test_a_report_opens_offline_without_a_complaint(browser: Any, run_report: Path, width: int, scheme: str):
    assert complaints_of(browser, run_report, width, scheme) == []


def test_hostile_names_do_nothing(browser: Any, tmp_path: Path):
    folder = write_hostile_comparison(tmp_path / "hostile")
    done = invoke("report", folder)
    assert done.exit_code == 0, done.output
    assert complaints_of(browser, folder / "report.html", 1200, "light") == []
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    assert page.locator("h1").inner_text() == f"Localization in {EVIL}"
    assert page.locator("img[src=x]").count() == 0
    page.close()


def test_it_is_printed_to_pages(browser: Any, tmp_path: Path):
    folder = write_hostile_comparison(tmp_path / "hostile")
    done = invoke("report", folder, "--output", tmp_path / "report.html", "--pdf", tmp_path / "report.pdf")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [str(tmp_path / "report.html"), str(tmp_path / "report.pdf")]
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", content)) >= 2
