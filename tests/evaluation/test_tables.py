"""Tables of results: what stands where, what is bold, and that both languages say the same."""

import math
import re
from dataclasses import replace

import pytest

from relograph.evaluation.metrics import SceneScore, average
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.tables import (
    MethodRow,
    ResultsTable,
    bibtex,
    markdown_references,
    results_table,
    rounds_table,
    summary_table,
)

PAPER = paper_numbers()
ROOMS = [f"room-{number}" for number in range(1, 8)]


def scored(scene: str, metres: float, degrees: float) -> SceneScore:
    return replace(
        average([]), scene=scene, num_queries=10, median_translation_error_m=metres, median_rotation_error_deg=degrees
    )


def method(name: str, *errors: tuple[float, float], scenes: list[str] = ROOMS, copies: bool = False) -> MethodRow:
    scores = [scored(scene, *pair) for scene, pair in zip(scenes, errors, strict=False)]
    return MethodRow(name=name, scores=scores, is_copy_top1=copies)


def markdown_rows(table: ResultsTable) -> list[list[list[str]]]:
    """The cells of every block, its header first, as a reader of Markdown splits them."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", table.markdown(), flags=re.MULTILINE)
    split = [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
        for block in blocks
    ]
    for rows in split:
        assert len({len(row) for row in rows}) == 1  # else it is no table
    return [[rows[0], *rows[2:]] for rows in split]


def latex_rows(table: ResultsTable) -> list[list[list[str]]]:
    tabulars = re.findall(r"\\begin{tabular}{(l[c]*)}\n(.*?)\\end{tabular}", table.latex("t:x"), flags=re.DOTALL)
    blocks = []
    for columns, body in tabulars:
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        rows = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
        assert all(len(row) == len(columns) for row in rows)
        blocks.append([[cell.strip() for cell in row] for row in rows])
    return blocks


def from_latex(cell: str) -> str:
    """The cell as Markdown would have it."""
    cell = re.sub(r"\\textbf{((?:[^{}]|{[^{}]*})*)}", r"**\1**", cell)
    cell = re.sub(r"\\textsuperscript{(.*?)}(?=$|~)", r"<sup>\1</sup>", cell)
    cell = re.sub(r"~\\cite{(.*?)}", lambda found: f" [{PAPER.citations[found[1]].short()}]", cell)
    for latex, text in ((r"$^\circ$", "°"), (r"$\dagger$", "†"), (r"$\infty$", "∞"), ("--", "–"), (r"\_", r"\_")):
        cell = cell.replace(latex, text)
    return cell


def test_a_cell_is_metres_and_degrees_and_the_best_of_each_is_bold() -> None:
    ours = method("ours", (0.161, 5.24), (0.30, 4.0), scenes=["a", "b"])
    copied = method("NetVLAD", (0.26, 4.1), (0.304, 12.5), scenes=["a", "b"], copies=True)
    (rows,) = markdown_rows(results_table("T", [ours, copied], dataset="SevenRooms"))
    assert rows == [
        ["Method", "Frames", "a", "b", "Avg."],
        ["NetVLAD", "1", "0.26 m / **4.1°**", "**0.30 m** / 12.5°", "0.28 m / 8.3°"],
        ["ours", "1", "**0.16 m** / 5.2°", "**0.30 m** / **4.0°**", "**0.23 m** / **4.6°**"],
    ]


def test_copying_the_top1_is_the_first_row_wherever_it_was_given() -> None:
    rows = [method("a", (1, 1)), method("copied", (2, 2), copies=True), method("b", (3, 3))]
    (block,) = markdown_rows(results_table("T", rows, dataset="SevenRooms"))
    assert [row[0] for row in block] == ["Method", "copied", "a", "b"]


def test_copying_the_top1_has_a_row_even_before_it_was_measured() -> None:
    table = results_table("T", [method("a", (1, 1))], dataset="SevenRooms")
    assert markdown_rows(table)[0][1] == ["copy top-1", "1", "–", "–"]
    assert "copy top-1: not measured yet." in table.markdown()
    (summary,) = markdown_rows(summary_table("T", [method("a", (1, 1))], dataset="SevenRooms"))
    assert summary[1] == ["copy top-1", *["–"] * 6]


def test_nothing_measured_is_a_table_too() -> None:
    table = results_table("T", [], dataset="SevenRooms", published=PAPER.tables["table1"])
    assert markdown_rows(table)[0] == [["Method", "Frames", "Avg."], ["copy top-1", "1", "–"]]
    assert markdown_rows(summary_table("T", [], dataset="SevenRooms"))[0][1][0] == "copy top-1"


def test_a_single_row_has_no_best_and_rows_that_print_alike_share_it() -> None:
    assert "**0" not in results_table("T", [method("a", (0.1, 1))], dataset="x").markdown()
    alike = results_table("T", [method("a", (0.1, 1)), method("b", (0.1001, 2))], dataset="x")
    assert [row[2] for row in markdown_rows(alike)[0][2:]] == ["**0.10 m** / **1.0°**", "**0.10 m** / 2.0°"]


def test_failures_are_infinite_and_never_best() -> None:
    rows = [method("a", (math.inf, math.inf)), method("b", (9.0, 90.0))]
    table = results_table("T", rows, dataset="x")
    assert [row[2] for row in markdown_rows(table)[0]] == ["room-1", "–", "∞ m / ∞°", "**9.00 m** / **90.0°**"]
    assert "∞: half of the queries or more were not localized." in table.markdown()
    assert r"$\infty$ m / $\infty$$^\circ$" in table.latex("t")
    everything_failed = results_table("T", [rows[0], rows[0]], dataset="x")
    assert "**∞" not in everything_failed.markdown()


def test_table_2_is_averaged_over_three_and_over_seven_rooms() -> None:
    errors = [(0.1 * number, 1.0 * number) for number in range(1, 8)]
    table = results_table("T", [method("a", *errors)], dataset="SevenRooms", published=PAPER.tables["table2"])
    ours, published = markdown_rows(table)
    assert ours[0][2:] == [*ROOMS, "Avg. (3)", "Avg. (7)"]
    assert ours[2][-2:] == ["0.33 m / 3.3°", "0.40 m / 4.0°"]  # of rooms 1, 3 and 6, and of all
    assert "Avg. (3) is over room-1, room-3 and room-6." in table.markdown()
    assert published[0][3:] == [*PAPER.tables["table2"].folder_by_scene, "Avg. (3)", "Avg. (7)"]


def test_table_3_on_cambridge_is_averaged_over_four_and_over_five_scenes_by_their_names() -> None:
    folders = ["GreatCourt", "KingsCollege", "OldHospital", "ShopFacade", "StMarysChurch"]
    errors = [(3.2, 2.2), (0.48, 1.0), (1.14, 2.5), (0.48, 2.5), (1.54, 3.2)]
    table = results_table(
        "T",
        [method("a", *errors, scenes=folders)],
        dataset="Cambridge Landmarks",
        published=PAPER.tables["table3"],
    )
    ours, published = markdown_rows(table)
    assert ours[0][2:] == ["College", "Hospital", "Shop", "Church", "Court", "Avg. (4)", "Avg. (5)"]
    assert ours[2][2] == "0.48 m / 1.0°"
    assert ours[2][-2:] == ["0.91 m / 2.3°", "1.37 m / 2.3°"]
    assert published[0][3:] == ours[0][2:]


def test_an_average_over_a_scene_that_was_not_measured_is_a_dash() -> None:
    chess_and_kitchen = method("a", (0.1, 1.0), (0.2, 2.0), scenes=["chess", "redkitchen"])
    table = results_table("T", [chess_and_kitchen], dataset="7-Scenes", published=PAPER.tables["table2"])
    assert markdown_rows(table)[0][0][2:] == ["Chess", "Kitchen", "Avg. (3)", "Avg. (7)"]
    assert markdown_rows(table)[0][2][2:] == ["0.10 m / 1.0°", "0.20 m / 2.0°", "–", "–"]


def test_fewer_rooms_than_the_paper_has_scenes_have_one_average() -> None:
    table = results_table("T", [method("a", (1, 1), (3, 3))], dataset="x", published=PAPER.tables["table2"])
    assert markdown_rows(table)[0][0][2:] == ["room-1", "room-2", "Avg."]
    assert markdown_rows(table)[0][2][-1] == "2.00 m / 2.0°"


@pytest.mark.parametrize("name", list(PAPER.tables))
def test_published_rows_stand_below_ours_cited_and_never_bold(name: str) -> None:
    published = PAPER.tables[name]
    table = results_table("T", [method("a", (9, 99)), method("b", (8, 98))], dataset="SevenRooms", published=published)
    _, below = markdown_rows(table)
    assert len(below) == 1 + len(published.rows)
    for cells, row in zip(below[1:], published.rows, strict=True):
        assert f"[{PAPER.citations[row.citation].short()}]" in cells[0]
        assert "**" not in "".join(cells)
    text = table.markdown()
    assert f"cited from Turkoglu et al. 2021 ({published.where}); not measured here." in text
    assert "SevenRooms is other data: these numbers cannot be compared with those above." in text
    for row in published.rows:
        assert PAPER.citations[row.citation].title in text


def test_on_the_papers_own_data_its_rows_can_be_compared() -> None:
    table = results_table(
        "T", [method("a", (0.1, 1), scenes=["chess"])], dataset="7-Scenes", published=PAPER.tables["table1"]
    )
    assert "cannot be compared" not in table.markdown()


def test_marks_of_the_paper_are_kept_and_explained() -> None:
    table1 = results_table("T", [], dataset="x", published=PAPER.tables["table1"])
    names = [row[0] for row in markdown_rows(table1)[1]]
    assert r"DSAC\*<sup>\*</sup> [Brachmann and Rother 2021]" in names
    assert r"AnchorPoint<sup>\*?</sup> [Saha et al. 2018]" in names
    assert r"\* made for one scene" in table1.markdown()
    assert "? not reproduced by the paper's authors" in table1.markdown()
    table2 = results_table("T", [], dataset="x", published=PAPER.tables["table2"])
    assert markdown_rows(table2)[1][2][5] == "0.30 m / 15.5°<sup>†</sup>"
    assert "† training diverged" in table2.markdown()
    table3 = results_table("T", [], dataset="x", published=PAPER.tables["table3"])
    assert "0.82 m (2D) / –" in table3.markdown()
    vidloc = next(row for row in markdown_rows(table1)[1] if row[0].startswith("VidLoc"))
    assert vidloc[2:4] == ["200", "0.18 m / –"]


def test_the_supplements_tables_print_two_decimals_of_a_degree() -> None:
    table = results_table("T", [method("a", (0.1, 1.234))], dataset="x", published=PAPER.tables["averaging"])
    assert "0.10 m / 1.23°" in table.markdown()
    assert "0.16 m / 5.24°" in table.markdown()


@pytest.mark.parametrize("name", list(PAPER.tables))
def test_latex_says_the_same_as_markdown(name: str) -> None:
    rows = [method("a", *[(0.1, 2.0)] * 7), method("b", *[(0.2, 1.0)] * 6), method("c", (math.inf, math.inf))]
    table = results_table("T", rows, dataset="SevenRooms", published=PAPER.tables[name])
    in_markdown = [[[cell.replace(r"\*", "*") for cell in row] for row in block] for block in markdown_rows(table)]
    assert [[[from_latex(cell) for cell in row] for row in block] for block in latex_rows(table)] == in_markdown


def test_latex_is_well_formed_whatever_the_names() -> None:
    nasty = replace(method("100 % & {x}_1 ~ ^$#\\", (1, 1)), note="50 % of a_b")
    table = results_table(
        "T & T_1", [nasty, method("[a]", (2, 2)), method("*", (3, 3))], dataset="a_b | c", setting="<1>"
    )
    text = table.latex("t:x")
    assert r"100 \% \& \{x\}\_1 \textasciitilde{} \textasciicircum{}\$\#\textbackslash{} & 1 &" in text
    assert r"{}[a] & 1" in text  # a bracket after the end of a row would be its option
    assert r"{}* & 1" in text
    assert r"\caption{T \& T\_1}" in text
    without_escapes = re.sub(r"\\[\\{}%&$#_]", "", text)
    assert without_escapes.count("{") == without_escapes.count("}")
    assert without_escapes.count("$") % 2 == 0
    environments = re.findall(r"\\(begin|end){([a-z*]+)}", text)
    assert environments == [("begin", "table*"), ("begin", "tabular"), ("end", "tabular"), ("end", "table*")]
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert rule in text


def test_markdown_survives_names_with_its_own_signs() -> None:
    nasty = method("a|b *c* [d] <e>\nf", (1, 1))
    (rows,) = markdown_rows(results_table("T", [nasty], dataset="x"))
    assert rows[2][0] == r"a\|b \*c\* \[d\] \<e\> f"


def test_the_setting_and_the_notes_of_methods_are_printed() -> None:
    noted = replace(method("a", (1, 1)), note="mean of 3 seeds")
    text = results_table("T", [noted], dataset="SevenRooms", setting="C = 512, 128 × 171 px").markdown()
    assert "Measured on SevenRooms (C = 512, 128 × 171 px)." in text
    assert "a: mean of 3 seeds." in text


def test_the_summary_holds_means_recalls_and_failures_over_the_scenes_that_all_have() -> None:
    def full(scene: str, *, mean: float, recall: float, lost: int) -> SceneScore:
        return SceneScore(
            scene=scene,
            num_queries=10,
            num_not_localized=lost,
            median_translation_error_m=mean / 2,
            mean_translation_error_m=mean,
            median_rotation_error_deg=mean * 10,
            mean_rotation_error_deg=mean * 20,
            recall_5cm_5deg=recall / 4,
            recall_10cm_5deg=recall / 2,
            recall_25cm_10deg=recall,
        )

    copied = [full("a", mean=0.4, recall=0.2, lost=0), full("b", mean=0.6, recall=0.4, lost=0)]
    ours = [full("a", mean=0.2, recall=0.6, lost=1), full("b", mean=0.2, recall=0.8, lost=2)]
    ours += [full("c", mean=9.0, recall=0.0, lost=9)]  # no other method was measured there
    methods = [MethodRow(name="NetVLAD", scores=copied, is_copy_top1=True), MethodRow(name="ours", scores=ours)]
    table = summary_table("T", methods, dataset="SevenRooms")
    assert "Averaged over 2 scenes of SevenRooms." in table.markdown()
    assert markdown_rows(table)[0][1:] == [
        ["NetVLAD", "0.25 m / 5.0°", "0.50 m / 10.0°", "7.5 %", "15.0 %", "30.0 %", "**0.0 %**"],
        ["ours", "**0.10 m** / **2.0°**", "**0.20 m** / **4.0°**", "**17.5 %**", "**35.0 %**", "**70.0 %**", "15.0 %"],
    ]


def test_rounds_are_a_grid_of_training_against_test_with_the_papers_below() -> None:
    losses = {(1, 1): -1.5, (2, 1): -0.5, (2, 2): -2.0, (3, 3): -1.9}
    table = rounds_table("T", losses, dataset="SevenRooms", scene="room-5")
    ours, paper = markdown_rows(table)
    assert ours == [
        ["Trained with", "tested with R = 1", "tested with R = 2", "tested with R = 3"],
        ["R = 1", "-1.50", "", ""],
        ["R = 2", "-0.50", "**-2.00**", ""],
        ["R = 3", "", "", "-1.90"],
    ]
    assert paper[2] == ["R = 2", "-0.71", "-2.34", "-0.85", "-0.88"]
    assert "room-5 of SevenRooms is other data" in table.markdown()
    assert "other data" not in rounds_table("T", losses, dataset="7-Scenes", scene="pumpkin").markdown()
    assert markdown_rows(rounds_table("T", {}, dataset="x", scene="y"))[0] == [["Trained with"]]


def test_every_citation_has_an_entry_and_a_short_name_of_its_own() -> None:
    keys = list(PAPER.citations)
    assert len({work.short() for work in PAPER.citations.values()}) == len(keys)
    entries = bibtex([*keys, keys[0]])
    assert re.findall(r"^@\w+{(.*),$", entries, flags=re.MULTILINE) == keys
    assert entries.count("{") == entries.count("}")
    assert "@article{brachmann2020dsacstar," in entries
    assert "  author = {Alex Kendall and Matthew Grimes and Roberto Cipolla}," in entries
    assert len(markdown_references(keys).splitlines()) == len(keys)


def test_references_can_be_left_to_the_end_of_a_page() -> None:
    table = results_table("T", [], dataset="x", published=PAPER.tables["table4"])
    assert PAPER.source.title in table.markdown()
    assert PAPER.source.title not in table.markdown(references=False)
    assert table.citations == (PAPER.source.key,)
