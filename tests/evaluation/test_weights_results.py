"""What evaluations write is found by the weights that they name, as they write it."""

from dataclasses import replace
from pathlib import Path

from evaluation.made_weights import make_archive, make_weights
from relograph.evaluation.place_rooms import room_place
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.rooms_gather import RoomsOptions
from relograph.evaluation.rooms_run import evaluate_rooms
from relograph.evaluation.weights_publishing import publish_weights
from relograph.evaluation.weights_results import results_of_weights
from relograph.models.shipped import load_match_gnn
from relograph.rooms.room_maps import RoomMapConfig, room_maps
from rooms.tiny_rooms import tiny_atlas

TINY = RoomMapConfig(map_views=4, query_views=1, image_height=48, image_width=64)
OPTIONS = RoomsOptions(num_homes=1, num_stranger_maps=1, reference_counts=(1, 2), every_for_counts=1)


def test_what_an_evaluation_in_rooms_wrote_gets_onto_the_card(tmp_path: Path):
    archive = make_archive(tmp_path / "textures.zip")
    sha256 = make_weights(tmp_path / "weights", archive=archive)
    made = room_maps("validation", replace(TINY, num_homes=2), atlas=tiny_atlas())
    homes = [room_place(f"home-{number:02d}", home) for number, home in enumerate(made)]
    output = tmp_path / "runs" / "validation-rooms"
    network = load_match_gnn(tmp_path / "weights")
    config = PlaceConfig(num_references=2, solver="regress")
    evaluate_rooms("validation", network, OPTIONS, config, homes=homes, output=output, paths={output: "$OUTPUT"})
    (found,) = results_of_weights(sha256, tmp_path / "runs")
    assert found.title == "Validation rooms"
    assert "copy top-1" in found.table()
    assert {path.name for path, _ in found.pictures} >= {"errors-by-references.png", "recall-by-overlap.png"}
    assert results_of_weights("0" * 64, tmp_path / "runs") == []
    package, results = tmp_path / "package", tmp_path / "results"
    publish_weights(tmp_path / "weights", package, results=results, measured=[output], textures=archive)
    card = (package / "MODEL_CARD.md").read_text()
    assert found.table() in card
    assert found.report() in card
    kept = {path.name for path in (results / "matchgnn" / sha256[:12] / "validation-rooms").iterdir()}
    assert {"results.json", "report.md", "table.md", "references.json", "reliability.png"} <= kept
    assert not kept & {"parts", "predictions", "queries.csv", "table.tex", "failures.png"}
