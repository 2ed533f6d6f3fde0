"""The paper's numbers: whole, cited, and consistent with themselves as far as the paper is."""

import math

import pytest

from relograph.evaluation.paper_numbers import PublishedRow, PublishedTable, paper_numbers

PAPER = paper_numbers()
ROWS = [(name, table, row) for name, table in PAPER.tables.items() for row in table.rows]

# Averages that the paper prints and its own per-scene numbers do not give: (table, row, column, unit).
WRONG_AVERAGES = {
    ("table3", "Bayesian PoseNet", "Avg. (4)", "m"),  # 1.92 by its scenes, printed 1.96
    ("table3", "Bayesian PoseNet", "Avg. (4)", "deg"),  # 6.3, printed 6.0
    ("table3", "Geometric PoseNet", "Avg. (4)", "deg"),  # 2.85, printed 2.7
    ("table3", "ADPoseNet", "Avg. (4)", "deg"),  # 4.4, printed 4.2
}
# Averages that are printed although not every scene of their column is.
AVERAGES_OVER_FEWER = {
    ("table1", "CamNet", "Avg."),  # published without its scenes
    ("table3", "ADPoseNet", "Avg. (4)"),  # without Hospital
}


def test_every_table_of_the_paper_is_there_with_all_its_rows() -> None:
    assert {name: len(table.rows) for name, table in PAPER.tables.items()} == {
        "table1": 26,
        "table2": 5,
        "table3": 19,
        "table4": 4,
        "single-scene": 6,
        "averaging": 2,
        "stride": 2,
    }


def test_the_papers_own_results_are_those_of_its_abstract_tables() -> None:
    seen = PAPER.tables["table1"].row("RelPoseGNN")
    assert (seen.averages["Avg."].translation_m, seen.averages["Avg."].rotation_deg) == (0.16, 5.2)
    assert (seen.errors["Stairs"].translation_m, seen.errors["Stairs"].rotation_deg) == (0.22, 6.5)
    unseen = PAPER.tables["table2"].row("RelPoseGNN")
    assert (unseen.averages["Avg. (3)"].translation_m, unseen.averages["Avg. (7)"].rotation_deg) == (0.30, 13.6)
    cambridge = PAPER.tables["table3"].row("RelPoseGNN")
    assert (cambridge.errors["Court"].translation_m, cambridge.averages["Avg. (5)"].rotation_deg) == (3.2, 2.3)
    assert PAPER.source.short() == "Turkoglu et al. 2021"
    assert PAPER.source.arxiv == "2104.02538"


def test_the_papers_margin_over_retrieval_is_the_one_that_ours_is_held_to() -> None:
    table = PAPER.tables["table1"]
    copied, paper = table.row("DenseVLAD").averages["Avg."], table.row("RelPoseGNN").averages["Avg."]
    assert copied.translation_m is not None
    assert copied.rotation_deg is not None
    assert paper.translation_m is not None
    assert paper.rotation_deg is not None
    assert round(copied.translation_m / paper.translation_m, 1) == 1.6
    assert round(copied.rotation_deg / paper.rotation_deg, 1) == 2.4


def average_is_right(table: PublishedTable, row: PublishedRow, column: str, unit: str) -> bool:
    """Whether the printed average can be the mean of numbers that round to the printed ones."""
    attribute, digits = ("translation_m", 2) if unit == "m" else ("rotation_deg", table.rotation_digits)
    printed = getattr(row.averages[column], attribute)
    scenes = [getattr(row.errors[scene], attribute) for scene in table.averages[column] if scene in row.errors]
    if printed is None or not scenes:
        return True
    # Half a unit of the last digit may be lost in every scene, and another half in the average.
    return abs(math.fsum(scenes) / len(scenes) - printed) <= 10.0**-digits + 1e-9


def test_averages_are_those_of_the_scenes_but_for_the_papers_own_slips() -> None:
    wrong = {
        (name, row.name, column, unit)
        for name, table, row in ROWS
        for column in row.averages
        for unit in ("m", "deg")
        if not average_is_right(table, row, column, unit)
    }
    assert wrong == WRONG_AVERAGES


def test_averages_are_over_all_their_scenes_but_for_two() -> None:
    over_fewer = {
        (name, row.name, column)
        for name, table, row in ROWS
        for column in row.averages
        if any(scene not in row.errors for scene in table.averages[column])
    }
    assert over_fewer == AVERAGES_OVER_FEWER


@pytest.mark.parametrize(("name", "table", "row"), ROWS, ids=[f"{name}-{row.name}" for name, _, row in ROWS])
def test_a_row_names_scenes_of_its_data_set_and_a_work_that_is_cited(
    name: str, table: PublishedTable, row: PublishedRow
) -> None:
    assert set(row.errors) <= set(table.folder_by_scene)
    assert set(row.diverged) <= set(row.errors)
    assert set(row.averages) <= set(table.averages)
    assert row.errors or row.averages
    work = PAPER.citations[row.citation]
    assert work.authors
    assert 2015 <= work.year <= 2021
    assert work.title in work.full()
    assert work.venue in work.full()
    assert (row.group == "ours") == (row.citation == PAPER.source.key)


def test_flags_are_those_of_the_footnotes() -> None:
    table1, table2, table3 = (PAPER.tables[name] for name in ("table1", "table2", "table3"))
    assert [row.name for row in table1.rows if row.not_reproduced] == ["GL-Net", "AnchorPoint", "CamNet"]
    assert [row.name for row in table3.rows if row.not_reproduced] == ["GL-Net", "AnchorPoint"]
    assert {row.group for row in table1.rows if row.scene_specific} == {"structure", "Seq.", "APR"}
    assert {row.group for row in table1.rows if not row.scene_specific} == {"IR", "RPR", "ours"}
    assert [(row.name, row.diverged) for row in table2.rows if row.diverged] == [
        ("NN-Net reprod.", ("Heads", "Kitchen"))
    ]
    assert [row.name for row in table3.rows if row.distance_2d] == ["AnchorPoint publ. code"]
    assert {row.name: row.num_test_frames for row in table1.rows if row.num_test_frames > 1} == {
        "VidLoc": 200,
        "LsG": 7,
        "MapNet": 3,
        "GL-Net": 8,
    }


def test_a_method_has_the_same_numbers_in_every_table_that_repeats_it() -> None:
    table1 = PAPER.tables["table1"]
    for repeating in (PAPER.tables["table4"], PAPER.tables["single-scene"]):
        for row in repeating.rows:
            if row.name in {other.name for other in table1.rows}:
                assert row.errors == table1.row(row.name).errors
                assert row.averages == table1.row(row.name).averages


def test_rounds_are_the_diagonal_and_the_row_of_two() -> None:
    losses = PAPER.rounds.losses
    assert {key for key in losses if key[0] == key[1]} == {(1, 1), (2, 2), (3, 3), (4, 4)}
    assert {key for key in losses if key[0] == 2} == {(2, 1), (2, 2), (2, 3), (2, 4)}
    assert min(losses, key=lambda key: losses[key]) == (3, 3)
    assert losses[2, 1] == -0.71
