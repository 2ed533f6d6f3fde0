"""`relograph weights`: from the run of a training to weights in the package, in commands."""

from pathlib import Path

import pytest
from commands import TRAIN_A_ROUND, invoke

from evaluation.made_weights import make_results
from relograph.models import shipped
from relograph.models.shipped import Calibration, Odds, load_match_gnn, save_calibration

pytestmark = pytest.mark.usefixtures("few_textures")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first round."""
    folder = tmp_path_factory.mktemp("rounds") / "first"
    done = invoke(*TRAIN_A_ROUND, "--output", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents to write into, where the commands run."""
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "README.md").write_text("<!-- weights begins --><!-- weights ends -->\n")
    (tmp_path / "docs" / "weights.md").write_text("<!-- weights-pictures begins --><!-- weights-pictures ends -->\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_round_becomes_weights_in_the_package(run: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = invoke("weights", "publish", run)
    assert refused.exit_code == 1
    assert "expected weights with a calibration, found none" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

    weights = run / "weights"
    sha256, odds = load_match_gnn(weights).sha256, Odds({"overlap": 1.0}, -3.0, 0.6)
    save_calibration(weights, Calibration(odds, odds, odds, network_sha256=sha256, num_answers=10))
    make_results(repository / "results" / "matchgnn" / "validation-rooms", sha256)
    history = invoke("weights", "history", run)
    assert history.exit_code == 0, history.output
    assert history.stdout.splitlines()[-2:] == [
        "results/matchgnn/training.json: written.",
        "docs/pictures/matchgnn-training.png: written.",
    ]
    published = invoke("weights", "publish", run)
    assert published.exit_code == 0, published.output
    assert "README.md: written." in published.stdout
    package = repository / "src" / "relograph" / "weights" / "matchgnn"
    assert load_match_gnn(package).sha256 == sha256
    card = (package / "MODEL_CARD.md").read_text()
    assert str(repository.parent) not in card
    assert "| 1 | " in card  # the round of the history
    assert "matchgnn-training.png" in (repository / "docs" / "weights.md").read_text()
    checked = invoke("weights", "report", "--check")
    assert checked.stdout == "The documents say what the weights and their results say.\n"

    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", package)
    for arguments in ((), (package,), (run,)):
        told = invoke("weights", "info", *arguments)
        assert told.exit_code == 0, told.output
        assert f"sha256      {sha256}" in told.stdout.splitlines()
        assert f"card        {'none of these weights' if arguments == (run,) else 'there'}" in told.stdout


def test_without_weights_the_message_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "none")
    done = invoke("weights", "info")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "found none" in done.stderr


def test_outside_of_a_repository_nothing_is_published(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("weights", "publish", run)
    assert done.exit_code == 1
    assert "docs/weights.md: expected the page on weights, found none. Run the command in the" in done.stderr
    assert list(tmp_path.iterdir()) == []
