"""An ablation in small: trained for a few steps, scored in a home of a few photos."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from relograph.errors import ConfigError
from relograph.evaluation import ablation
from relograph.evaluation.ablation import VARIANTS, ablate, ablation_table, variants_of
from relograph.evaluation.experiment_report import ablation_block
from relograph.evaluation.rooms_gather import RoomsOptions
from relograph.models.match_gnn import MatchGNN
from relograph.results import write_result
from relograph.rooms.room_maps import RoomMapConfig
from relograph.training.match_training import MatchTrainConfig
from relograph.training.presets import MATCHGNN, MATCHGNN_TINY

pytestmark = pytest.mark.usefixtures("few_textures", "undrawn")

ONE_STEP = replace(MATCHGNN_TINY, optim=replace(MATCHGNN_TINY.optim, epochs=1, steps_per_epoch=1))
OPTIONS = RoomsOptions(
    num_homes=1,
    num_stranger_maps=0,
    reference_counts=(),
    compare_int8=False,
    rooms=RoomMapConfig(map_views=4, query_views=2, image_height=48, image_width=64),
)


def changed(name: str) -> MatchTrainConfig:
    (variant,) = variants_of(name)
    return variant.change(MATCHGNN)


def test_every_ingredient_is_left_out_alone():
    assert changed("everything") == changed("no-photographs") == MATCHGNN
    assert [variant.name for variant in VARIANTS if not variant.sees_photographs] == ["no-photographs"]
    poses, attention, fine = (changed(name) for name in ("no-map-poses", "no-attention", "no-fine-level"))
    assert poses == replace(MATCHGNN, model=replace(MATCHGNN.model, map_poses=False))
    assert attention == replace(MATCHGNN, model=replace(MATCHGNN.model, self_layers=0, cross_layers=0))
    assert (fine.model.fine_places, fine.loss.fine, fine.loss.coarse) == (False, 0.0, MATCHGNN.loss.coarse)
    unmatched = changed("no-matching-loss")
    assert (unmatched.loss.coarse, unmatched.loss.seen, unmatched.loss.fine) == (0.0, 0.0, 0.0)
    assert unmatched.loss.fused == MATCHGNN.loss.fused
    assert unmatched.model.pose_teaches_matches


def test_what_is_left_out_changes_no_name_of_a_weight():
    whole = set(MatchGNN(MATCHGNN_TINY.model).state_dict())
    for variant in VARIANTS:
        names = set(MatchGNN(variant.change(MATCHGNN_TINY).model).state_dict())
        assert names <= whole
        assert names == whole or variant.name == "no-attention"


def test_an_unknown_variant_is_named():
    with pytest.raises(ConfigError, match="found 'no-luck'"):
        variants_of("everything,no-luck")


def test_what_photographs_bring_needs_photographs(tmp_path: Path):
    with pytest.raises(ConfigError, match="expected --textures PATH to see what photographs bring"):
        ablate(ONE_STEP, variants_of(None), OPTIONS, output=tmp_path, paths={})


def test_variants_are_trained_and_scored_and_only_those_that_are_missing(tmp_path: Path, monkeypatch):
    trained: list[str] = []
    train = ablation.match_run

    def killed_at_the_second(config, output, **options):
        trained.append(output.parent.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(config, output, **options)

    monkeypatch.setattr(ablation, "match_run", killed_at_the_second)
    variants = variants_of("everything,no-matching-loss")

    def run() -> str:
        return ablate(ONE_STEP, variants, OPTIONS, output=tmp_path / "runs", results=tmp_path, paths={})

    with pytest.raises(KeyboardInterrupt):
        run()
    (first,) = {row["variant"] for row in json.loads((tmp_path / "ablation.json").read_text())["results"]}
    assert first == "everything"
    table = run()
    assert trained == ["everything", "no-matching-loss", "no-matching-loss"]
    assert run() == table == (tmp_path / "ablation.md").read_text()
    assert len(trained) == 3
    document = json.loads((tmp_path / "ablation.json").read_text())
    assert document["metadata"]["data"] == "validation rooms"
    rows = {(row["variant"], row["method"]): row for row in document["results"]}
    assert set(rows) == {
        (variant.name, method)
        for variant in variants
        for method in ("relograph, regression", "relograph, solver, f given")
    }
    assert all((row["num_queries"], row["graphs"]) == (2, 2) for row in rows.values())
    assert len({row["weights_sha256"] for row in rows.values()}) == 2


def test_the_page_has_the_table_with_where_it_came_from(tmp_path: Path):
    assert ablation_block(tmp_path) == "Nothing has been measured yet."
    row = {"variant": "everything", "without": "nothing", "graphs": 7, "method": "relograph, regression"}
    row |= {"median_translation_error_m": 0.1, "median_rotation_error_deg": 2.0, "recall_25cm_10deg": 0.9}
    write_result(tmp_path / "ablation.json", [row], command="relograph ablate", seed=0)
    block = ablation_block(tmp_path)
    assert "| nothing | 7 | 0.100 m / 2.00° | 90.0% |" in block
    assert "`relograph ablate`" in block


def test_the_table_has_a_line_for_each_variant_and_a_gap_where_the_solver_is_not():
    row = {"variant": "everything", "without": "nothing", "graphs": 1200, "method": "relograph, regression"}
    row |= {"median_translation_error_m": 0.1, "median_rotation_error_deg": 2.0, "recall_25cm_10deg": 0.9}
    solver = {**row, "method": "relograph, solver, f given", "median_translation_error_m": None}
    other = {**row, "variant": "no-attention", "without": "attention", "recall_25cm_10deg": 0.5}
    assert ablation_table([row, solver, other]).splitlines()[2:] == [
        "| nothing | 1,200 | 0.100 m / 2.00° | 90.0% | ∞ | 90.0% |",
        "| attention | 1,200 | 0.100 m / 2.00° | 50.0% | – | – |",
    ]
