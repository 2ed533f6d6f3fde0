"""The whole evaluation in rooms, on homes of a few photos and with a network that knows nothing."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluation.made_places import painted_place
from localization.small_networks import small_network
from relograph.errors import ConfigError
from relograph.evaluation import conditions, rooms_gather
from relograph.evaluation.asking import ask
from relograph.evaluation.conditions import condition_groups
from relograph.evaluation.place_localizer import OurWay
from relograph.evaluation.place_rooms import RoomPlace, room_place, room_places
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.rooms_gather import RoomsOptions, make_homes, stranger_rows
from relograph.evaluation.rooms_run import evaluate_rooms
from relograph.evaluation.rooms_varied import kind_in
from relograph.geometry import Pose, rotation_error_deg
from relograph.localization import UnknownFocal
from relograph.localization.confidence import SOLVED_SIGNS
from relograph.localization.localizer import Answer, UsedReference
from relograph.models.shipped import load_match_gnn, save_match_gnn
from relograph.rooms.room_maps import RoomMapConfig, room_maps
from rooms.tiny_rooms import tiny_atlas

pytestmark = pytest.mark.usefixtures("few_textures", "undrawn")

TINY = RoomMapConfig(map_views=4, query_views=2, image_height=48, image_width=64, unseen_views=1)
OPTIONS = RoomsOptions(num_homes=1, num_stranger_maps=1, reference_counts=(1, 2), every_for_counts=2)
CONFIG = PlaceConfig(num_references=2)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    save_match_gnn(folder, small_network().model, {})
    return folder


@pytest.fixture(scope="module")
def homes() -> list[RoomPlace]:
    """One that is scored, and one that lends its queries."""
    made = room_maps("validation", replace(TINY, num_homes=2), atlas=tiny_atlas())
    return [room_place(f"home-{number:02d}", home) for number, home in enumerate(made)]


@pytest.fixture(scope="module")
def output(weights: Path, homes: list[RoomPlace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation in a home, whose report is `report.md`."""
    folder = tmp_path_factory.mktemp("rooms")
    warnings: list[str] = []
    report = evaluate_rooms(
        "validation",
        load_match_gnn(weights),
        OPTIONS,
        CONFIG,
        homes=homes,
        output=folder,
        paths={folder: "$OUTPUT"},
        warn=warnings.append,
    )
    assert (folder / "report.md").read_text() == report
    return folder


def results(output: Path, name: str) -> list[dict[str, object]]:
    document = json.loads((output / name).read_text())
    assert document["metadata"]["data"] == "validation rooms"
    return document["results"]


def test_ours_are_scored_beside_copying_with_and_without_a_focal_length(output: Path):
    rows = {row["method"]: row for row in results(output, "results.json")}
    assert list(rows) == [
        "copy top-1",
        "copy nearest by true pose",
        "relograph, regression, f given",
        "relograph, regression",
        "relograph, solver, f 20% too long",
        "relograph, solver, f searched",
        "relograph, solver, f given",
    ]
    assert all(row["num_queries"] == 2 for row in rows.values())
    assert all(row["seconds_per_query"] is None for row in rows.values())  # batches beside solvers tell no times
    nearest, top1 = (rows[name]["median_translation_error_m"] for name in ("copy nearest by true pose", "copy top-1"))
    assert nearest <= top1
    assert all(name in (output / "report.md").read_text() for name in rows)


def test_every_stranger_is_counted(output: Path):
    counts = {row["kind"]: row["num_queries"] for row in results(output, "false-accepts.json")}
    assert counts["queries of other homes"] == 2
    assert counts["queries of other homes; solver, f searched"] == 1  # one in ten, and the first
    assert counts["queries of other homes; regression"] == 1
    kinds = {kind.partition(";")[0] for kind in counts}
    assert kinds <= {"queries of other homes", "views of the home that its map does not show"}


def test_accuracy_is_told_for_every_number_of_references(output: Path):
    told = {(row["method"], row["num_references"]) for row in results(output, "references.json")}
    assert told == {
        (method, count) for method in ("relograph, regression", "relograph, solver, f given") for count in (1, 2)
    }
    assert all(row["num_queries"] == 1 for row in results(output, "references.json"))  # every second one


def test_retrieval_is_scored_against_what_the_map_allows(output: Path, homes: list[RoomPlace]):
    (row,) = results(output, "retrieval.json")
    assert (row["num_queries"], row["num_references"]) == (2, 2)
    best = homes[0].place.overlap.sort(dim=1, descending=True).values[:, :2]
    assert row["mean_overlap_possible"] == pytest.approx(float(best.mean()))
    assert row["mean_overlap"] <= row["mean_overlap_possible"]
    assert f"References show {row['mean_overlap']:.1%} in the mean" in (output / "report.md").read_text()


def test_accuracy_is_told_against_what_the_best_reference_shows(output: Path):
    rows = results(output, "overlap.json")
    solver = [row for row in rows if row["method"] == "relograph, solver, f given"]
    assert sum(row["num_queries"] for row in solver) == 2
    assert all(0 <= row["median_overlap"] <= 1 for row in solver)


def test_what_int8_costs_is_told_on_the_same_queries(output: Path):
    rows = {(row["method"], row["precision"]): row for row in results(output, "int8.json")}
    as_scored = {row["method"]: row for row in results(output, "results.json")}
    for method in ("relograph, regression", "relograph, solver, f given"):
        half, byte = rows[method, "float16"], rows[method, "int8"]
        assert half["median_translation_error_m"] == as_scored[method]["median_translation_error_m"]
        assert byte["median_translation_error_m"] != half["median_translation_error_m"]
        assert byte["kilobytes_per_photo"] < 0.7 * half["kilobytes_per_photo"]


def test_pictures_and_answers_lie_beside_the_results(output: Path):
    for name in ("reliability", "false-accepts", "errors-by-references", "failures", "recall-by-overlap"):
        assert (output / f"{name}.png").stat().st_size > 1000
    assert (output / "predictions" / "relograph-regression.csv.gz").is_file()
    judged = {row["method"]: row["num_answers"] for row in results(output, "reliability.json")}
    assert judged["relograph, solver, f given"] + judged.get("relograph, regression after a failed solver", 0) >= 4


def test_no_path_gets_into_what_is_published(output: Path):
    for path in output.glob("*.json"):
        assert str(output) not in path.read_text()


def test_weights_are_not_calibrated_on_regression_alone(weights: Path, tmp_path: Path, monkeypatch):
    """And that is said before anything is photographed."""
    monkeypatch.setattr("relograph.evaluation.rooms_run.make_homes", lambda *args, **options: pytest.fail("too late"))
    monkeypatch.setitem(sys.modules, "poselib", None)  # as on a machine that has none
    with pytest.raises(ConfigError, match="expected the solver's answers to calibrate on too"):
        evaluate_rooms(
            "validation", small_network(), OPTIONS, PlaceConfig(), calibrate=weights, output=tmp_path, paths={}
        )


def test_untrained_weights_cannot_be_calibrated_and_say_so(weights: Path, homes: list[RoomPlace], tmp_path: Path):
    options = RoomsOptions(num_homes=1, num_stranger_maps=0, reference_counts=(), compare_int8=False)
    network = load_match_gnn(weights)
    with pytest.raises(ConfigError, match="Calibrate trained weights"):
        evaluate_rooms(
            "validation", network, options, CONFIG, homes=homes, calibrate=weights, output=tmp_path, paths={}
        )
    assert load_match_gnn(weights).calibration is None


def test_weights_that_answer_well_are_calibrated_before_anything_is_counted(
    homes: list[RoomPlace], tmp_path: Path, monkeypatch
):
    """Answers of a network that is right in the first of two queries, and of whose strangers one seems as sure."""
    folder = tmp_path / "weights"
    save_match_gnn(folder, small_network().model, {})
    far = Pose(torch.eye(3).double(), torch.full((3,), 50.0).double())
    right = homes[0].place.queries.T_world_cam[0]

    def said(pose: Pose, strength: float, way: OurWay) -> Answer:
        T_solved = None if way.solver == "regress" else pose
        signs = dict.fromkeys(SOLVED_SIGNS, strength)
        used = (UsedReference(0, "map-000", 0.5, 0.5, 9, 9),)
        return Answer(None, False, 0.0, "", T_regressed=pose, T_solved=T_solved, signs=signs, references=used)

    def as_if_trained(homes, network, config, options, ways, *args, **told):
        own = {way.name: [said(right, 3.0, way), said(far, -1.0, way)] for way in ways.own}
        strangers = {way.name: [said(far, -2.0, way), said(far, -3.0, way)] for way in ways.judged}
        return [{"own map": own}, {"queries of other homes": strangers}]

    def as_if_varied(homes, network, config, options, ways, *args, **told):
        turned = condition_groups(2, ())[0][0]
        T_turned = turned.form.poses(homes[0].place.queries.T_world_cam)[0]
        own = {way.name: [said(T_turned, 1.0, way)] for way in ways.judged}
        strangers = {way.name: [said(far, -1.0, way)] * 3 for way in ways.judged}
        return [{kind_in("own map", turned): own}, {kind_in("queries of other homes", turned): strangers}]

    monkeypatch.setattr("relograph.evaluation.rooms_run.gather", as_if_trained)
    monkeypatch.setattr("relograph.evaluation.rooms_run.gather_varied", as_if_varied)
    options = replace(OPTIONS, reference_counts=(), compare_int8=False)
    network = load_match_gnn(folder)
    report = evaluate_rooms(
        "validation", network, options, CONFIG, homes=homes, calibrate=folder, output=tmp_path / "out", paths={}
    )
    calibration = load_match_gnn(folder).calibration
    assert calibration is not None
    assert calibration.num_answers == 24
    assert "not calibrated" not in report
    rows = {row["kind"]: row for row in results(tmp_path / "out", "false-accepts.json")}
    assert rows["queries of other homes"]["false_accepts_as_calibrated"] == 0.0
    assert rows["queries of other homes"]["share_of_right_accepted_as_calibrated"] == 1.0
    told = {(row["condition"], row["method"]): row for row in results(tmp_path / "out", "conditions.json")}
    for condition, num_answers in (("as usual", 4), ("turned left", 2)):
        row = told[condition, "relograph, solver, f given"]
        assert (row["num_answers"], row["num_right"]) == (num_answers, 1)
        assert row["num_elsewhere"] == num_answers / 2  # of the strangers in a condition no more than its own queries
        assert row["share_of_right_accepted"] == row["share_of_accepted_right"] == 1.0
    assert told["turned right", "relograph, regression"]["share_of_right_accepted"] is None
    assert "are not in the map). The confidence was fitted to these very answers.\n" in report
    assert "| turned left | 6 | 3 | 100.0% / 100.0% | 100.0% / 100.0% | 100.0% / 100.0% |" in report


def test_other_conditions_are_told_beside_all_tables_which_stay_what_they_are(
    output: Path, weights: Path, homes: list[RoomPlace], tmp_path: Path, monkeypatch
):
    for group in ("OTHER_PHOTOS", "SPARSE_MAPS", "WRONG_FOCALS"):  # one of each, as every one takes its time
        monkeypatch.setattr(conditions, group, getattr(conditions, group)[:1])
    network, varied = load_match_gnn(weights), replace(OPTIONS, varied=True)
    report = evaluate_rooms("validation", network, varied, CONFIG, homes=homes, output=tmp_path, paths={})
    before = (output / "report.md").read_text()
    assert report.startswith(before)
    assert "**In other conditions**" in report.removeprefix(before)
    assert "these very answers" not in report
    rows = results(tmp_path, "conditions.json")
    assert len({row["method"] for row in rows}) == 3
    asked: dict[str, dict[str, int]] = {}
    for row in rows:
        asked.setdefault(row["method"].removeprefix("relograph, "), {})[row["condition"]] = row["num_answers"]
    names = ["turned left", "one photo in 2 of the map", "f 20% too short", "references: 1"]
    # Both queries, what the map does not show, and one of the other home's two queries.
    in_each = 3 + len(homes[0].unseen.queries)
    assert {name: asked["solver, f given"][name] for name in names} == dict.fromkeys(names, in_each)
    # Of who is told no focal length, none is asked again for a wrong one.
    expected = {name: 0 if name.startswith("f ") else in_each for name in names}
    assert {name: asked["regression"][name] for name in names} == expected
    assert {file.name for file in (tmp_path / "parts").iterdir()} >= {"home-00-varied.json.gz", "home-01.json.gz"}


def test_a_run_that_was_ended_goes_on_where_it_was(homes: list[RoomPlace], output: Path, tmp_path: Path, monkeypatch):
    asked: list[int] = []

    def ask_until_killed(questions, *args, **options):
        asked.append(len(questions))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(questions, *args, **options)

    monkeypatch.setattr(rooms_gather, "ask", ask_until_killed)
    network, options = small_network(), replace(OPTIONS, reference_counts=())
    config = replace(CONFIG, solver="regress")

    def evaluate() -> str:
        return evaluate_rooms("validation", network, options, config, homes=homes, output=tmp_path, paths={})

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert [file.name for file in (tmp_path / "parts").iterdir()] == ["home-00.json.gz"]
    report = evaluate()
    assert len(asked) == 3  # the second home alone was asked for again
    assert evaluate() == report
    assert len(asked) == 3
    other = replace(network, sha256="b" * 64)
    evaluate_rooms("validation", other, options, config, homes=homes, output=tmp_path, paths={})
    assert len(asked) == 5  # answers of other weights are no answers


def test_another_place_takes_part_on_both_sides(homes: list[RoomPlace], tmp_path: Path):
    options, config = replace(OPTIONS, reference_counts=()), replace(CONFIG, solver="regress")
    elsewhere = painted_place(num_map=3, num_queries=1)
    evaluate_rooms(
        "validation", small_network(), options, config, homes=homes, elsewhere=elsewhere, output=tmp_path, paths={}
    )
    counts = {row["kind"]: row["num_queries"] for row in results(tmp_path, "false-accepts.json")}
    assert counts["queries of cube in maps of homes"] == 1
    assert counts["queries of homes in the map of cube"] == 2


def test_a_shorter_run_says_so(homes: list[RoomPlace], tmp_path: Path):
    options = replace(OPTIONS, every=2, reference_counts=())
    fewer = [replace(home, place=home.place.every_nth_query(2)) for home in homes]
    config = replace(CONFIG, solver="regress")
    report = evaluate_rooms("test", small_network(), options, config, homes=fewer, output=tmp_path, paths={})
    assert "1 queries (a shorter run: one in 2 of each home) in 1 homes" in report
    assert json.loads((tmp_path / "results.json").read_text())["metadata"]["one_query_in"] == 2


def test_a_home_is_a_place_whose_map_has_one_camera_and_whose_queries_have_their_own():
    (home,) = room_maps(
        "test",
        RoomMapConfig(num_homes=1, map_views=6, query_views=4, image_height=8, image_width=16),
        atlas=tiny_atlas(),
    )
    place = room_place("home-00", home).place
    assert len(set(place.map.cameras)) == 1
    assert len(set(place.queries.cameras)) == 4
    assert place.map.cameras[0].distortion[:2] == pytest.approx(home.distortion[0].tolist())
    assert (place.queries.read(1) == home.images[7].numpy()).all()
    assert rotation_error_deg(place.queries.T_world_cam.R[1], home.T_world_cam.R[7].double()) < 1e-3
    assert torch.equal(place.overlap, home.overlap[6:])
    unknown = place.with_unknown_focal()
    assert unknown.map.cameras[0] == UnknownFocal(16, 8, 0)
    assert unknown.queries.cameras[0] == UnknownFocal(16, 8, 1)


def test_homes_of_an_evaluation_are_one_more_than_are_scored():
    rooms = RoomMapConfig(map_views=2, query_views=1, image_height=8, image_width=16)
    one, other = make_homes("test", RoomsOptions(num_homes=1, rooms=rooms))
    assert one.place.fingerprint != other.place.fingerprint
    assert len(one.unseen.queries) == 0


def test_fewer_queries_of_each_home_may_be_asked_for():
    rooms = RoomMapConfig(map_views=2, query_views=5, image_height=8, image_width=16)
    one, _ = make_homes("test", RoomsOptions(num_homes=1, rooms=rooms, every=2, first=1))
    assert one.place.queries.names == ("query-001", "query-003")


def test_homes_are_photographed_once(tmp_path: Path, monkeypatch):
    config = RoomMapConfig(num_homes=2, map_views=2, query_views=1, image_height=8, image_width=16)
    monkeypatch.setattr("relograph.evaluation.place_rooms.make_atlas", lambda *args, **options: tiny_atlas())
    made = list(room_places("test", config, cache=tmp_path))
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert [file.name for file in files] == ["home-00.safetensors", "home-01.safetensors"]
    files[1].unlink()  # as if the run had been ended after the first
    again = list(room_places("test", config, cache=tmp_path))
    assert [home.place.fingerprint for home in again] == [home.place.fingerprint for home in made]
    assert torch.equal(again[0].place.overlap, made[0].place.overlap)
    assert again[1].place.queries.cameras == made[1].place.queries.cameras
    monkeypatch.setattr("relograph.evaluation.place_rooms.room_maps", lambda *args, **options: pytest.fail("again"))
    assert len(list(room_places("test", config, cache=tmp_path))) == 2


def test_homes_with_other_settings_or_textures_are_others(tmp_path: Path, monkeypatch):
    config = RoomMapConfig(num_homes=1, map_views=2, query_views=1, image_height=8, image_width=16)
    monkeypatch.setattr("relograph.evaluation.place_rooms.make_atlas", lambda *args, **options: tiny_atlas())
    photographs = tmp_path / "textures" / "test"
    photographs.mkdir(parents=True)
    (photographs / "wall.jpg").write_bytes(b"a photograph")
    cache = tmp_path / "cache"
    for changed in ({}, {"seed": 1}, {"textures": photographs.parent}):
        list(room_places("test", config, cache=cache, **changed))
    list(room_places("test", replace(config, move_m=0.3), cache=cache))
    list(room_places("validation", config, cache=cache))
    assert len(list(cache.iterdir())) == 5


def test_some_strangers_come_evenly_from_all_other_homes():
    assert stranger_rows([4, 4, 4], 1, 4) == [[0, 2], [], [1, 3]]  # numbers 0, 2, 5 and 7 of eight
    assert stranger_rows([4, 4, 4], 1, 100) == [[0, 1, 2, 3], [], [0, 1, 2, 3]]
