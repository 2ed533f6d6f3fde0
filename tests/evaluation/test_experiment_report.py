"""From files of results to docs/results.md and the README."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relograph.errors import DatasetError
from relograph.evaluation import MethodRow, SceneScore, average
from relograph.evaluation.experiment_report import (
    filled,
    latex_page,
    map_block,
    margins_over_copying,
    method_rows,
    read_result,
    read_results,
    results_page,
    write_report,
)


def score(scene: str, metres: float, degrees: float) -> SceneScore:
    return SceneScore(
        scene=scene,
        num_queries=10,
        num_not_localized=0,
        median_translation_error_m=metres,
        mean_translation_error_m=metres,
        median_rotation_error_deg=degrees,
        mean_rotation_error_deg=degrees,
        recall_5cm_5deg=0.0,
        recall_10cm_5deg=0.0,
        recall_25cm_10deg=0.5,
    )


COMMITTED = Path(__file__).parents[2] / "results" / "experiments"
COPYING = [score("room-1", 0.2, 8.0), score("room-2", 0.4, 4.0)]
OURS = [score("room-1", 0.1, 2.0), score("room-2", 0.2, 4.0)]
"""Half the metres everywhere; in the second room the degrees are the same."""


def result_rows(method: str, scores: list[SceneScore], *, copies: bool) -> list[dict[str, object]]:
    about = {"method": method, "num_test_frames": 1, "is_copy_top1": copies, "note": ""}
    return [{**about, **scene_score.as_row()} for scene_score in scores]


def write_results(folder: Path, name: str, results: list[dict[str, object]], **metadata: Any) -> None:
    job = {
        "name": "ours-camera",
        "key": "1f0c9a3b2e",
        "scenes": ["room-1", "room-2"],
        "num_graphs": 64000,
        "training_seconds": 90.0,
        "best_validation": 0.25,
        "share_of_edges_across_the_jump": 0.0123,
        "checkpoint_sha256": "9be1" * 16,
        "target": "camera",
        "provenance": {"device_name": "Testing Device", "torch": "2.11.0", "git_commit": "3f1c2abdead"},
    }
    about = {
        "experiment": name.split("-")[0],
        "dataset": "SevenRooms",
        "channels": 512,
        "image_size_hw": [128, 171],
        "jobs": [job],
        "figures": [],
        "device_name": "Laptop",
        "torch": "2.13.0",
        "git_commit": "087f60cdead",
        "command": f"relograph experiments run {name} --data $DATA",
    }
    folder.mkdir(parents=True, exist_ok=True)
    document = {"metadata": {**about, **metadata}, "results": results}
    (folder / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A README with a block for results, and results of two experiments."""
    (tmp_path / "docs").mkdir()
    readme = "# Title\n\n<!-- results begins -->\nold\n<!-- results ends -->\n\nThe end.\n"
    (tmp_path / "README.md").write_text(readme)
    rows = [
        *result_rows("NetVLAD (copy top-1)", COPYING, copies=True),
        *result_rows("RelPoseGNN, camera target", OURS, copies=False),
    ]
    results = tmp_path / "results" / "experiments"
    write_results(results, "table1", rows, figures=[{"file": "table1-errors.png", "caption": "Errors."}])
    losses = [{"scene": "room-2", "rounds_in_training": 2, "rounds_at_test": r, "loss": -2.0 - r} for r in (1, 2)]
    write_results(results, "rounds", losses)
    return tmp_path


def report(repository: Path, **options: bool) -> list[Path]:
    return write_report(repository / "results" / "experiments", repository / "docs", **options)


def test_the_page_has_our_rows_the_papers_rows_and_where_they_came_from(repository: Path):
    report(repository)
    page = (repository / "docs" / "results.md").read_text()
    assert "## Scenes seen in training: SevenRooms, C = 512, images 128x171" in page
    assert "| RelPoseGNN, camera target | 1 | **0.10 m** / **2.0°** | **0.20 m** / **4.0°** |" in page
    assert "Published on 7-Scenes, cited from Turkoglu et al. 2021 (Table 1); not measured here." in page
    assert "1 training, 1.5 minutes, on Testing Device with torch 2.11.0, commit 3f1c2ab, scored at" in page
    assert "scored at 087f60c: `relograph experiments run table1 --data $DATA`" in page
    assert "Measured on SevenRooms (C = 512, images 128x171, camera target, 64,000 graphs a training)." in page
    assert "![Errors.](pictures/table1-errors.png)" in page
    assert "| R = 2 | -3.00 | **-4.00** |" in page
    assert page.index("## Scenes seen in training") < page.index("## Rounds of message passing")
    assert "| ours-camera | C = 512, images 128x171 | 2 | 64,000 | 90 | 0.250 | 1.23 % | `9be19be19be1` |" in page
    assert page.count("| ours-camera |") == 1  # both experiments used it


def made_by(method: str, commit: str | None, source: str, *, num_trainings: int = 1) -> dict[str, object]:
    return {
        "method": method,
        "num_trainings": num_trainings,
        "num_steps": 1200 * num_trainings,
        "num_graphs": 76800 * num_trainings,
        "training_seconds": 61.6 * num_trainings,
        "code": [{"git_commit": commit, "source_sha256": source * 64}],
        "device_names": ["Testing Device"],
    }


def report_of_rows(repository: Path, *rows: dict[str, object]) -> tuple[str, str]:
    """The page and the README of a table whose rows were made so."""
    results = repository / "results" / "experiments"
    document = json.loads((results / "table1.json").read_text())
    write_results(results, "table1", document["results"], rows=list(rows))
    report(repository)
    return (repository / "docs" / "results.md").read_text(), (repository / "README.md").read_text()


def test_every_row_is_shown_with_what_made_it(repository: Path):
    copying = made_by("NetVLAD (copy top-1)", "3f1c2abdead", "a", num_trainings=0)
    page, readme = report_of_rows(repository, copying, made_by("RelPoseGNN, camera target", "3f1c2abdead", "a"))
    assert "| NetVLAD (copy top-1) | – | – | – | – | 3f1c2ab | Testing Device |" in page
    assert "| RelPoseGNN, camera target | 1 | 1,200 | 76,800 | 62 | 3f1c2ab | Testing Device |" in page
    assert "Not all rows" not in page + readme


def test_rows_of_different_commits_are_told_on_the_page_and_in_the_readme(repository: Path):
    documents = report_of_rows(repository, made_by("A", "1" * 40, "a"), made_by("B", "2" * 40, "b"))
    for text in documents:
        assert "**Not all rows are of one commit:** A: 1111111; B: 2222222." in text


def test_rows_of_one_commit_that_was_changed_meanwhile_are_told_with_their_source(repository: Path):
    page, _ = report_of_rows(repository, made_by("A", None, "a"), made_by("B", None, "b"))
    expected = "A: unknown (source aaaaaaa); B: unknown (source bbbbbbb)."
    assert f"**Not all rows are of one commit:** {expected}" in page


def test_the_readme_gets_the_seen_scenes_between_its_markers_and_nothing_else(repository: Path):
    report(repository)
    readme = (repository / "README.md").read_text()
    assert readme.startswith("# Title\n\n<!-- results begins -->\n\n**Scenes seen in training**")
    assert readme.endswith("<!-- results ends -->\n\nThe end.\n")
    assert "| NetVLAD (copy top-1) | 1 | 0.20 m / 8.0° | 0.40 m / **4.0°** | 0.30 m / 6.0° |" in readme
    assert "Published" not in readme
    assert "old" not in readme


def test_a_second_report_changes_nothing(repository: Path):
    assert len(report(repository)) == 2
    assert report(repository) == []
    assert report(repository, check=True) == []


def test_a_document_that_differs_from_the_results_is_told(repository: Path):
    report(repository)
    readme = repository / "README.md"
    readme.write_text(readme.read_text().replace("0.10 m", "0.01 m"))
    with pytest.raises(DatasetError, match=r"README\.md: expected what the files in .* say, found another text"):
        report(repository, check=True)
    assert "0.01 m" in readme.read_text()


def test_remarks_beside_the_results_stand_below_their_table(repository: Path):
    (repository / "results" / "experiments" / "rounds.md").write_text("More rounds do not help here.\n")
    report(repository)
    page = (repository / "docs" / "results.md").read_text()
    assert page.index("| R = 2 | -3.00") < page.index("More rounds do not help here.") < page.index("## Trainings")


def test_two_sweeps_of_one_experiment_stand_one_below_the_other(repository: Path):
    rows = result_rows("NetVLAD (copy top-1)", COPYING, copies=True)
    write_results(repository / "results" / "experiments", "table1-full", rows, channels=2048)
    report(repository)
    page = (repository / "docs" / "results.md").read_text()
    assert page.index("SevenRooms, C = 512") < page.index("SevenRooms, C = 2048") < page.index("## Rounds")
    readme = (repository / "README.md").read_text()
    assert readme.index("SevenRooms (C = 2048") < readme.index("SevenRooms (C = 512")


def test_two_sweeps_of_one_size_have_headings_that_tell_them_apart(repository: Path):
    results = repository / "results" / "experiments"
    document = json.loads((results / "rounds.json").read_text())
    longer = [{**job, "num_graphs": 128000} for job in document["metadata"]["jobs"]]
    write_results(results, "rounds-longer", document["results"], jobs=longer)
    report(repository)
    headings = re.findall(r"^## .*", (repository / "docs" / "results.md").read_text(), flags=re.MULTILINE)
    assert len(set(headings)) == len(headings)


def test_margins_are_ratios_of_averages_and_count_scenes_that_are_better_in_both():
    rows = [
        MethodRow(name="copy", scores=COPYING, is_copy_top1=True),
        MethodRow(name="ours", scores=OURS),
    ]
    # 0.3 m over 0.15 m, and 6 degrees over 3.
    assert margins_over_copying(rows) == [
        "ours: 2.00x in translation and 2.00x in rotation on average, at least 2.00x and 1.00x in a scene, and better "
        "in both on 1 of 2 scenes."
    ]


def test_a_margin_that_cannot_be_told_is_a_dash():
    rows = [
        MethodRow(name="copy", scores=COPYING, is_copy_top1=True),
        MethodRow(name="ours", scores=[OURS[0], score("room-2", math.inf, 1.0)]),
    ]
    assert margins_over_copying(rows) == [
        "ours: – in translation and 4.00x in rotation on average, at least – and 4.00x in a scene, and better in both "
        "on 1 of 2 scenes."
    ]


def test_the_committed_tables_of_seen_scenes_beat_copying_by_the_papers_margin():
    """On the better of the two targets: in every room, and on average 1.6 times in metres and 2.4 times in degrees."""
    for name in ("table1", "table1-full"):
        file = read_result(COMMITTED / f"{name}.json")
        rows = {row.name: row for row in method_rows(file)}
        copying, ours = rows["NetVLAD (copy top-1)"].scores, rows["RelPoseGNN, camera target"].scores
        assert "RelPoseGNN, world target" in rows
        assert [score.scene for score in ours] == [f"room-{number}" for number in range(1, 8)]
        for ours_there, copied in zip(ours, copying, strict=True):
            assert ours_there.median_translation_error_m < copied.median_translation_error_m
            assert ours_there.median_rotation_error_deg < copied.median_rotation_error_deg
        ours_mean, copied_mean = average(ours), average(copying)
        assert copied_mean.median_translation_error_m > 1.6 * ours_mean.median_translation_error_m
        assert copied_mean.median_rotation_error_deg > 2.4 * ours_mean.median_rotation_error_deg


def test_images_of_networks_without_graphs_are_not_counted_as_graphs(repository: Path):
    results = repository / "results" / "experiments"
    document = json.loads((results / "table1.json").read_text())
    (job,) = document["metadata"]["jobs"]
    others = [{**job, "name": f"posenet-room-{n}", "target": None, "num_graphs": 1000 * n} for n in (1, 2)]
    sequence = {**job, "name": "baseline3-camera", "target": None, "num_graphs": 1000}
    write_results(results, "table1", document["results"], jobs=[job, sequence, *others])
    setting = "camera target, 1,000 to 64,000 graphs a training, 1,000 to 2,000 images where there are no graphs"
    assert read_result(results / "table1.json").setting == f"C = 512, images 128x171, {setting}"


def test_all_tables_come_in_latex_with_what_they_cite(repository: Path):
    page = latex_page(read_results(repository / "results" / "experiments"))
    assert page.count(r"\begin{table*}") == 3
    assert r"\label{tab:table1-summary}" in page
    assert "% @inproceedings{turkoglu2021visual," in page


def test_a_file_that_is_no_result_is_named(repository: Path):
    (repository / "results" / "experiments" / "notes.json").write_text('{"metadata": {}}')
    with pytest.raises(DatasetError, match=r"notes\.json: expected what `relograph experiments run` wrote"):
        report(repository)


@pytest.mark.parametrize("key", ["dataset", "channels", "jobs"])
def test_a_file_that_lacks_something_is_named_with_what_it_lacks(repository: Path, key: str):
    path = repository / "results" / "experiments" / "table1.json"
    document = json.loads(path.read_text())
    del document["metadata"][key]
    path.write_text(json.dumps(document))
    with pytest.raises(DatasetError, match=rf"table1\.json: .*, found one without {key}\. Move the file"):
        report(repository)


def test_results_of_an_unknown_commit_are_said_to_be(repository: Path):
    about = {"device": "cpu", "device_name": "Laptop", "num_cores": 2, "torch": "2.13.0", "git_commit": None}
    metadata = about | {"command": "bench"}
    row = {"rooms": 7, "images": 2100, "workers": 2, "seconds": 209.0, "images_per_second": 10.05}
    document = {"metadata": metadata, "results": [row]}
    (repository / "results" / "rooms_cpu.json").write_text(json.dumps(document))
    page = repository / "docs" / "rooms.md"
    page.write_text("# Rooms\n\n<!-- rooms-benchmark begins --><!-- rooms-benchmark ends -->\n")
    report(repository)
    assert "Laptop, 2 cores, torch 2.13.0, commit unknown: `bench`" in page.read_text()


def test_the_page_on_exports_tells_what_they_cost(repository: Path):
    metadata = {
        "device": "cpu",
        "device_name": "Laptop",
        "num_cores": 2,
        "torch": "2.13.0",
        "git_commit": "087f60c",
        "command": "export",
    }
    row = {"num_queries": 150, "share_localized": 0.9, "encode_ms": 30.0, "match_ms": 200.0}
    row |= {"median_rotation_error_deg": 0.1, "share_within_10_cm_5_deg": 0.98, "share_within_25_cm_10_deg": 0.99}
    errors_m = {"torch": 0.005, "onnx": 0.006}
    rows = [row | {"runtime": runtime, "median_translation_error_m": error} for runtime, error in errors_m.items()]
    file = repository / "results" / "export_int8.json"
    file.write_text(json.dumps({"metadata": metadata, "results": rows}))
    page = repository / "docs" / "export.md"
    page.write_text("# Exports\n\n<!-- export begins --><!-- export ends -->\n")
    assert page in report(repository)
    assert "Laptop, 2 cores, torch 2.13.0, commit 087f60c: `export`" in page.read_text()
    assert "| onnx | 150 | 0.0060 | 0.100 | 98.0% | 99.0% | 90.0% | 30 | 200 |" in page.read_text()


def test_the_pages_on_maps_quote_each_its_own_files(repository: Path):
    about = {"device": "cpu", "device_name": "Laptop", "num_cores": 2, "torch": "2.13.0", "git_commit": "087f60c"}
    for name in ("map_cpu", "map_growth"):
        document = json.loads((COMMITTED.parent / f"{name}.json").read_text())
        document["metadata"] = about | {"command": f"relograph bench of {name}"}
        (repository / "results" / f"{name}.json").write_text(json.dumps(document))
    pages = {"maps.md": ["map-benchmark"], "large-maps.md": ["map-growth", "retrieval-benchmark"]}
    for page, blocks in pages.items():
        text = "".join(f"<!-- {block} begins --><!-- {block} ends -->" for block in blocks)
        (repository / "docs" / page).write_text(text)
    report(repository)
    maps, large = ((repository / "docs" / page).read_text() for page in pages)
    assert re.findall("bench of [a-z_]+", maps) == ["bench of map_cpu"]
    assert re.findall("bench of [a-z_]+", large) == ["bench of map_growth"]
    assert "| context, coarse in int8 | " in maps
    assert "| 100,000 | " in large
    assert large.count("Nothing has been measured yet.") == 1  # of finding among a million


def test_what_a_gpu_does_stands_beside_what_a_cpu_does_or_is_said_to_be_missing(tmp_path: Path):
    document = json.loads((COMMITTED.parent / "map_cpu.json").read_text())
    assert map_block(tmp_path) == "Nothing has been measured yet."
    (tmp_path / "map_cpu.json").write_text(json.dumps(document))
    block, missing = map_block(tmp_path), "On a GPU this has not been measured yet: `make bench-gpu` does."
    assert block.endswith(f"\n\n{missing}")
    document["metadata"] |= {"device": "cuda", "device_name": "NVIDIA H200", "command": "bench on a GPU"}
    (tmp_path / "map_h200.json").write_text(json.dumps(document))
    with_gpu = map_block(tmp_path)
    assert block.removesuffix(f"\n\n{missing}") in with_gpu
    assert with_gpu.count("| context, coarse in int8 | ") == 2
    assert "NVIDIA H200, 2 cores" in with_gpu
    assert missing not in with_gpu


def test_a_document_without_markers_stays_as_it_is():
    assert filled("# Title\n", {"results": lambda: "numbers"}) == "# Title\n"


def test_without_a_readme_the_folder_is_said_to_be_wrong(tmp_path: Path):
    with pytest.raises(DatasetError, match="expected the README beside"):
        write_report(tmp_path / "results", tmp_path / "docs")


def test_figures_in_committed_remarks_are_those_of_the_tables():
    """Remarks are written by hand; a figure that no table has was typed wrongly, or is of an earlier sweep."""
    files = read_results(COMMITTED)
    tables = results_page([replace(file, remarks="") for file in files])
    for file in files:
        unit = "" if file.metadata["experiment"] == "rounds" else r"(?: m\b|°|x\b)"  # losses have none
        for figure in re.findall(rf"-?\d+\.\d+{unit}", file.remarks):
            assert figure in tables, f"{file.name}: {figure}"
