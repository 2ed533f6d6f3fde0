"""The whole evaluation in rooms, on homes of a few photos and with a network that knows nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluation.made_places import place_on_a_line
from localization.small_networks import small_network
from relograph.errors import ConfigError
from relograph.evaluation.place_rooms import RoomPlace, room_place
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.rooms_run import RoomsOptions, evaluate_rooms, make_homes, some_queries
from relograph.geometry import rotation_error_deg
from relograph.localization import UnknownFocal
from relograph.models.shipped import load_match_gnn, save_match_gnn
from relograph.rooms.room_maps import RoomMapConfig, room_maps
from rooms.tiny_rooms import tiny_atlas

TINY = RoomMapConfig(map_views=4, query_views=1, image_height=48, image_width=64, unseen_views=1)
OPTIONS = RoomsOptions(num_homes=1, num_stranger_maps=1, reference_counts=(1, 2), every_for_counts=1)


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
        homes,
        load_match_gnn(weights),
        OPTIONS,
        PlaceConfig(num_references=2),
        output=folder,
        paths={folder: "$OUTPUT"},
        warn=warnings.append,
    )
    (folder / "report.md").write_text(report)
    (folder / "warnings.json").write_text(json.dumps(warnings))
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
        "relograph, regression",
        "relograph, solver, f searched",
        "relograph, solver, f given",
    ]
    assert all(row["num_queries"] == 1 for row in rows.values())
    nearest, top1 = (rows[name]["median_translation_error_m"] for name in ("copy nearest by true pose", "copy top-1"))
    assert nearest <= top1
    assert all(name in (output / "report.md").read_text() for name in rows)


def test_every_stranger_is_counted(output: Path):
    counts = {row["kind"]: row["num_queries"] for row in results(output, "false-accepts.json")}
    assert counts["queries of other homes"] == 1
    assert set(counts) <= {"queries of other homes", "views of the home that its map does not show"}


def test_accuracy_is_told_for_every_number_of_references(output: Path):
    told = {(row["method"], row["num_references"]) for row in results(output, "references.json")}
    assert told == {
        (method, count) for method in ("relograph, regression", "relograph, solver, f given") for count in (1, 2)
    }


def test_pictures_and_answers_lie_beside_the_results(output: Path):
    for name in ("reliability", "false-accepts", "errors-by-references", "failures", "recall-by-overlap"):
        assert (output / f"{name}.png").stat().st_size > 1000
    assert (output / "predictions" / "relograph-regression.csv.gz").is_file()
    assert results(output, "reliability.json")[0]["num_answers"] >= 2


def test_no_path_gets_into_what_is_published(output: Path):
    for path in output.glob("*.json"):
        assert str(output) not in path.read_text()


def test_weights_are_not_calibrated_on_regression_alone(weights: Path, homes: list[RoomPlace], tmp_path: Path):
    config = PlaceConfig(num_references=2, solver="regress")
    with pytest.raises(ConfigError, match="expected the solver's answers to calibrate on too"):
        evaluate_rooms(
            "validation", homes, small_network(), OPTIONS, config, calibrate=weights, output=tmp_path, paths={}
        )


def test_untrained_weights_cannot_be_calibrated_and_say_so(weights: Path, homes: list[RoomPlace], tmp_path: Path):
    with pytest.raises(ConfigError, match="Calibrate trained weights"):
        evaluate_rooms(
            "validation",
            homes,
            load_match_gnn(weights),
            RoomsOptions(num_homes=1, num_stranger_maps=0, reference_counts=()),
            PlaceConfig(num_references=2),
            calibrate=weights,
            output=tmp_path,
            paths={},
        )
    assert load_match_gnn(weights).calibration is None


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


def test_some_strangers_come_evenly_from_all_homes():
    places = [place_on_a_line([0.0], [1.0, 2.0, 3.0, 4.0], name) for name in ("home-01", "home-02")]
    few = some_queries(places, 4)  # numbers 0, 2, 5 and 7 of eight
    assert few[0].queries.names == ("query-0", "query-2")
    assert few[1].queries.names == ("query-1", "query-3")
    assert [len(place.queries) for place in some_queries(places, 100)] == [4, 4]
