"""Rounds become one history: in their order, on one clock, with nobody's folders in it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.made_weights import make_weights
from relograph.errors import DatasetError
from relograph.evaluation.plots import save_figure
from relograph.evaluation.training_history import (
    command_without_folders,
    history_figure,
    read_history,
    read_rounds,
    rounds_table,
    write_history,
)
from relograph.models.checkpoint import load_checkpoint
from relograph.training.match_validation import FIGURES
from relograph.training.presets import MATCHGNN_TINY

BATCH = MATCHGNN_TINY.optim.batch_size


def write_log(run: Path, losses: dict[int, float], seconds_per_step: float) -> None:
    """A log with validations after those steps, and a row without one."""
    columns = ("step", "seconds", "loss", "validation_loss", *FIGURES)
    with (run / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerow([1, seconds_per_step, 3.0, *[""] * (1 + len(FIGURES))])
        for step, loss in losses.items():
            poses = (loss / 2, 15 * loss, loss / 4, 3 * loss)
            rows.writerow([step, seconds_per_step * step, 2.0, loss, *poses, 0.5, "", "", ""])


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two rounds: 100 steps in 60 s, after which nothing got better, and 50 more in 90 s."""
    first, second = tmp_path / "round-1", tmp_path / "round-2"
    sha256 = make_weights(first / "weights", rounds=1, seconds=60.0, graphs=100 * BATCH, loss=0.2)
    write_log(first, {50: 0.4, 100: 0.2, 150: 0.3}, 0.6)
    make_weights(
        second / "weights",
        seed=1,
        start=sha256,
        rounds=2,
        seconds=150.0,
        graphs=150 * BATCH,
        loss=0.1,
        calibrated=False,
    )
    write_log(second, {25: 0.15, 50: 0.1}, 1.8)
    return [first, second]


@pytest.fixture
def third(runs: list[Path], tmp_path: Path) -> Path:
    """One more round: 20 steps in 30 s."""
    run = tmp_path / "round-3"
    start = load_checkpoint(runs[1] / "weights").sha256
    make_weights(run / "weights", seed=2, start=start, rounds=3, seconds=180.0, graphs=170 * BATCH, loss=0.05)
    write_log(run, {10: 0.08, 20: 0.05}, 1.5)
    return run


@pytest.fixture
def written(runs: list[Path], third: Path, tmp_path: Path) -> Path:
    """The file of the first two rounds, whose folders are gone by then."""
    path = tmp_path / "training.json"
    write_history(read_rounds(runs), path, command="relograph weights history a b")
    for run in runs:
        run.rename(run.with_name(f"gone-{run.name}"))
    return path


def test_rounds_follow_each_other_on_one_clock(runs: list[Path]):
    first, second = read_rounds(runs)
    assert [one.seconds for one in first.validations] == pytest.approx([30.0, 60.0, 90.0])
    assert [one.graphs for one in first.validations] == [50 * BATCH, 100 * BATCH, 150 * BATCH]
    assert [one.seconds for one in second.validations] == pytest.approx([60.0 + 45.0, 60.0 + 90.0])
    assert first.kept.seconds == 60.0
    assert second.kept.figures == {
        "median_m": 0.05,
        "median_deg": 1.5,
        "right_matches": 0.5,
        "confident_px": None,
    }


def test_the_file_has_every_validation_and_the_picture_is_drawn(runs: list[Path], tmp_path: Path):
    rounds = read_rounds(runs)
    write_history(rounds, tmp_path / "training.json", command="relograph weights history /home/me/a /home/me/b")
    save_figure(history_figure(rounds), tmp_path / "training.png")
    text = (tmp_path / "training.json").read_text()
    document = json.loads(text)
    assert str(tmp_path) not in text
    assert document["metadata"]["command"] == "relograph weights history $PATH $PATH"
    assert document["metadata"]["weights_sha256"] == rounds[-1].weights_sha256
    assert [row["round"] for row in document["results"]] == [1, 1, 1, 2, 2]
    told = document["metadata"]["rounds"]
    assert [(row["seconds"], row["graphs"]) for row in told] == [(60.0, 100 * BATCH), (90.0, 50 * BATCH)]
    assert told[0]["command"] == "relograph train --preset matchgnn --output $OUTPUT"
    assert rounds_table(told).splitlines()[-1].startswith("| 2 | 1.5 | ")
    assert (tmp_path / "training.png").stat().st_size > 10_000


def test_rounds_whose_folders_are_gone_are_those_of_the_file(written: Path, third: Path, tmp_path: Path):
    rounds = read_rounds([third], written)
    assert [one.number for one in rounds] == [1, 2, 3]
    assert (rounds[2].seconds, rounds[2].graphs) == (30.0, 20 * BATCH)
    assert [one.seconds for one in rounds[2].validations] == pytest.approx([150.0 + 15.0, 150.0 + 30.0])
    assert [one.graphs for one in rounds[2].validations] == [160 * BATCH, 170 * BATCH]
    metres = history_figure(rounds).axes[0]
    assert metres.lines[2].get_xdata().tolist() == pytest.approx([2.5, 2.75, 3.0])

    before = json.loads(written.read_text())
    write_history(rounds, written, command="relograph weights history c")
    after = json.loads(written.read_text())
    assert after["metadata"]["weights_sha256"] == load_checkpoint(third / "weights").sha256
    assert after["metadata"]["rounds"][:2] == before["metadata"]["rounds"]
    assert after["results"][: len(before["results"])] == before["results"]
    assert [row["round"] for row in after["results"]] == [1, 1, 1, 2, 2, 3, 3]


def test_a_round_that_the_file_has_already_is_read_again_and_not_added_twice(written: Path, third: Path):
    write_history(read_rounds([third], written), written, command="relograph weights history c")
    told = json.loads(written.read_text())
    write_history(read_rounds([third], written), written, command="relograph weights history c")
    again = json.loads(written.read_text())
    assert (again["metadata"]["rounds"], again["results"]) == (told["metadata"]["rounds"], told["results"])


def test_rounds_of_the_published_history_stay_what_they_are_to_the_last_letter(tmp_path: Path):
    published = Path(__file__).parents[2] / "results" / "matchgnn" / "training.json"
    write_history(read_history(published), tmp_path / "again.json", command="relograph weights history")
    before, after = (json.loads(path.read_text()) for path in (published, tmp_path / "again.json"))
    assert json.dumps(after["metadata"]["rounds"]) == json.dumps(before["metadata"]["rounds"])
    assert json.dumps(after["results"]) == json.dumps(before["results"])


def test_a_round_that_does_not_start_where_the_file_ends_is_refused(written: Path, third: Path, tmp_path: Path):
    stranger = tmp_path / "stranger"
    start = load_checkpoint(tmp_path / "gone-round-1" / "weights").sha256
    make_weights(stranger / "weights", seed=3, start=start, rounds=2, graphs=150 * BATCH)
    write_log(stranger, {50: 0.1}, 1.0)
    ends = load_checkpoint(tmp_path / "gone-round-2" / "weights").sha256
    with pytest.raises(
        DatasetError, match=f"starts from the weights {ends[:12]}, found one from the weights {start[:12]}"
    ):
        read_rounds([stranger], written)
    with pytest.raises(DatasetError, match=r"starts from random weights, .* in the file that --output names\.$"):
        read_rounds([third], tmp_path / "none.json")


@pytest.mark.parametrize("named", [["gone-round-1"], ["gone-round-2"], ["gone-round-1", "gone-round-2"]])
def test_rounds_after_one_that_is_read_again_stay_in_the_file(
    written: Path, third: Path, tmp_path: Path, named: list[str]
):
    write_history(read_rounds([third], written), written, command="relograph weights history c")
    before = json.loads(written.read_text())
    rounds = read_rounds([tmp_path / name for name in named], written)
    assert [one.number for one in rounds] == [1, 2, 3]
    write_history(rounds, written, command="relograph weights history b")
    after = json.loads(written.read_text())
    assert after["metadata"]["weights_sha256"] == load_checkpoint(third / "weights").sha256
    assert (after["metadata"]["rounds"], after["results"]) == (before["metadata"]["rounds"], before["results"])


def test_a_round_in_the_place_of_one_that_the_file_has_is_refused(written: Path, third: Path, tmp_path: Path):
    write_history(read_rounds([third], written), written, command="relograph weights history c")
    second, other = tmp_path / "gone-round-2", tmp_path / "other"
    start = load_checkpoint(second / "weights").sha256
    end = make_weights(other / "weights", seed=3, start=start, rounds=3, seconds=180.0, graphs=170 * BATCH)
    write_log(other, {20: 0.06}, 1.5)
    found = f"its round 3 starts from the weights {end[:12]} of the last run, found that it starts from the weights "
    with pytest.raises(DatasetError, match=rf"{found}{start[:12]}\. Name another --output"):
        read_rounds([second, other], written)
    assert [one.number for one in read_rounds([tmp_path / "gone-round-1", second, other])] == [1, 2, 3]


def test_another_first_round_begins_a_history_of_its_own(written: Path, tmp_path: Path):
    first = tmp_path / "first"
    make_weights(first / "weights", seed=3, rounds=1, seconds=60.0, graphs=100 * BATCH)
    write_log(first, {100: 0.2}, 0.6)
    (only,) = read_rounds([first], written)
    assert only.number == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda document: document["metadata"].pop("rounds"), "another file"),
        (lambda document: document["metadata"]["rounds"][0].pop("seconds"), "another file"),
        (lambda document: document["results"].clear(), "rounds without a validation"),
        (lambda document: document["metadata"]["rounds"].pop(), "rounds that end with other weights than it names"),
    ],
)
def test_a_file_of_anything_else_is_one_line(
    written: Path, third: Path, change: Callable[[dict[str, Any]], object], found: str
):
    document = json.loads(written.read_text())
    change(document)
    written.write_text(json.dumps(document))
    with pytest.raises(DatasetError, match=f"expected earlier rounds as .* writes them, found {found}. Restore the fi"):
        read_rounds([third], written)


def test_a_file_that_is_no_json_is_one_line(written: Path, third: Path):
    written.write_text("{")
    with pytest.raises(DatasetError, match="found another file"):
        read_rounds([third], written)


def test_a_line_of_the_picture_ends_with_the_weights_that_were_kept_and_the_next_starts_there(runs: list[Path]):
    metres, degrees = history_figure(read_rounds(runs)).axes
    assert [line.get_xdata().tolist() for line in metres.lines] == [
        pytest.approx([0.5, 1.0]),
        pytest.approx([1.0, 1.75, 2.5]),
    ]
    assert degrees.lines[1].get_ydata().tolist() == pytest.approx([3.0, 2.25, 1.5])


def test_rounds_that_do_not_follow_each_other_are_refused(runs: list[Path]):
    first, second = runs
    with pytest.raises(DatasetError, match="expected a round that starts from random weights, found one from the weig"):
        read_rounds([second])
    with pytest.raises(DatasetError, match=r"starts from the weights [0-9a-f]{12}, found one from random weights"):
        read_rounds([first, first])


def test_a_run_without_a_log_or_without_validations_is_one_line(runs: list[Path]):
    write_log(runs[0], {}, 1.0)
    with pytest.raises(DatasetError, match="expected validations, found none"):
        read_rounds(runs)
    (runs[0] / "log.csv").unlink()
    with pytest.raises(DatasetError, match="expected the log of a training, found: No such file"):
        read_rounds(runs)


@pytest.mark.parametrize(
    ("command", "published"),
    [
        ("relograph train --init=/a/b --set seed=3", "relograph train --init=$INIT --set seed=3"),
        ("relograph train --encoder-weights ../w.pth", "relograph train --encoder-weights $ENCODER_WEIGHTS"),
        ("relograph eval runs/one --output out", "relograph eval $PATH --output out"),
        ("relograph train --set 'data.name=a b'", "relograph train --set 'data.name=a b'"),
    ],
)
def test_no_folder_of_anybody_is_told(command: str, published: str):
    assert command_without_folders(command) == published
    assert command_without_folders(published) == published
