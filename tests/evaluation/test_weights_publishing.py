"""Weights get into the package whole, small, calibrated, measured and better than those before, or not at all."""

import json
from pathlib import Path

import pytest

from evaluation.made_weights import make_archive, make_results, make_weights
from relograph.errors import CheckpointError, DatasetError, RelographError
from relograph.evaluation import weights_publishing
from relograph.evaluation.training_history import read_rounds, write_history
from relograph.evaluation.weights_publishing import publish_weights, read_published
from relograph.models import checkpoint
from relograph.models.shipped import MODEL_CARD_FILE, load_match_gnn, save_match_gnn


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "textures.zip")


@pytest.fixture
def run(tmp_path: Path, results: Path, archive: Path) -> Path:
    """A training whose weights may be published."""
    sha256 = make_weights(tmp_path / "run" / "weights", archive=archive)
    make_results(results / "matchgnn" / "validation-rooms", sha256)
    return tmp_path / "run"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "package" / "matchgnn"


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def test_what_is_published_is_what_was_trained(run: Path, results: Path, archive: Path, package: Path):
    said = publish_weights(run, package, results=results, textures=archive)
    trained, published = load_match_gnn(run / "weights"), load_match_gnn(package)
    assert published.sha256 == trained.sha256
    assert published.calibration == trained.calibration
    assert f"sha256      {trained.sha256}" in said
    assert "training    rounds: 2, seconds: 1,500, graphs: 64,000" in said
    assert "card        there" in said
    assert sorted(path.suffix for path in package.iterdir()) == [".json", ".md", ".safetensors"]


def test_no_folder_of_anybody_is_published(run: Path, results: Path, archive: Path, package: Path, tmp_path: Path):
    assert str(tmp_path) in json.dumps(load_match_gnn(run / "weights").metadata)
    publish_weights(run, package, results=results, textures=archive)
    assert all(str(tmp_path).encode() not in content for content in everything_in(package).values())
    assert load_match_gnn(package).metadata["provenance"]["command"].endswith("--output $OUTPUT")


def test_the_card_tells_data_training_results_and_licences(run: Path, results: Path, archive: Path, package: Path):
    sha256 = load_match_gnn(run / "weights").sha256
    make_results(results / "matchgnn" / "test-rooms", sha256, "test rooms", metres=0.0234)
    make_results(results / "old" / "test-rooms", "0" * 64, "test rooms", metres=0.0999)
    publish_weights(run, package, results=results, textures=archive)
    card = (package / MODEL_CARD_FILE).read_text()
    words = " ".join(card.split())
    for told in (
        sha256,
        "1,500 seconds (25.0 minutes) and 64,000 photographed graphs",
        "in 2 rounds",
        "an archive of 4 crops",
        "of which 2 are for training",
        "| nice-textures | 1.0-1 | CC0-1.0 (2), GPL-2.0-or-later (1) | 2 | 1 | 0 |",
        "are under CC0-1.0, GPL-2.0-or-later, MIT, each",
        "below 61% for a pose that matches agree on, below 52% for the network's own where they agree on none",
        "fitted to 1,234 answers",
        "| relograph | 0.042 m |",
        "| relograph | 0.023 m |",
        "| queries of others | 0.42% |",
        "`relograph eval --output $OUTPUT`",
    ):
        assert told in words, told
    assert "0.100 m" not in words  # of other weights
    sections = [line for line in card.splitlines() if line.startswith("#")]
    assert sections == [
        "# MatchGNN: model card",
        *("## What it is", "## Intended use", "## Limits", "## Training data", "## Training", "## Results"),
        *("### Validation rooms", "### Test rooms", "## Licences"),
    ]
    assert max(map(len, (line for line in card.splitlines() if not line.startswith(("|", "**"))))) <= 120


@pytest.mark.parametrize(
    ("grey_share", "told"),
    [(0.0, "all lessons are in colour"), (0.1, "10% of the lessons of the last round have a grey query")],
)
def test_the_card_tells_whether_lessons_had_grey_photos(
    results: Path, archive: Path, package: Path, tmp_path: Path, grey_share: float, told: str
):
    sha256 = make_weights(tmp_path / "run" / "weights", archive=archive, grey_share=grey_share)
    make_results(results / "validation-rooms", sha256)
    publish_weights(tmp_path / "run", package, results=results, textures=archive)
    assert f"- **Colour:** {told}" in " ".join((package / MODEL_CARD_FILE).read_text().split())


def test_the_card_lists_the_rounds_where_their_history_was_written(
    run: Path, results: Path, archive: Path, package: Path, tmp_path: Path
):
    first = tmp_path / "first"
    sha256 = make_weights(first / "weights", seed=1, rounds=1, seconds=600, graphs=20_000)
    of_run = make_weights(run / "weights", archive=archive, start=sha256)
    make_results(results / "matchgnn" / "validation-rooms", of_run)
    for folder in (first, run):
        (folder / "log.csv").write_text("step,validation_loss,median_m,median_deg\n10,0.2,0.1,3.0\n")
    write_history(read_rounds([first, run]), results / "matchgnn" / "training.json", command="relograph")
    publish_weights(run, package, results=results, textures=archive)
    card = (package / MODEL_CARD_FILE).read_text()
    assert "| 1 | 10.0 | 20,000 | 0.100 m / 3.00° before the last layer |" in card
    assert "| 2 | 15.0 | 44,000 | 0.100 m / 3.00° before the last layer |" in card
    assert "Earlier rounds took photographs from other archives: none." in card


def test_weights_without_calibration_or_results_are_refused(
    run: Path, results: Path, archive: Path, package: Path, tmp_path: Path
):
    make_weights(tmp_path / "raw", archive=archive, calibrated=False)
    with pytest.raises(CheckpointError, match=r"expected weights with a calibration, found none\. Run: relograph eval"):
        publish_weights(tmp_path / "raw", package, results=results, textures=archive)
    make_weights(tmp_path / "other", archive=archive, seed=1)
    with pytest.raises(DatasetError, match=r"expected results of the weights [0-9a-f]{12} in validation rooms"):
        publish_weights(tmp_path / "other", package, results=results, textures=archive)
    assert everything_in(package) == {}


def test_what_was_measured_is_kept_with_the_results(run: Path, archive: Path, package: Path, tmp_path: Path):
    sha256 = load_match_gnn(run / "weights").sha256
    make_results(tmp_path / "runs" / "validation-rooms", sha256)
    make_results(tmp_path / "runs" / "kitchen", sha256, "a kitchen", focal="525")
    results = tmp_path / "kept"
    measured = [tmp_path / "runs" / "validation-rooms", tmp_path / "runs" / "kitchen"]
    publish_weights(run, package, results=results, measured=measured, textures=archive)
    kept = {path.relative_to(results / "matchgnn" / sha256[:12]).as_posix() for path in results.rglob("*.*")}
    assert kept == {
        *(f"validation-rooms/{name}" for name in ("results.json", "table.md", "report.md", "errors-by-references.png")),
        *(f"kitchen/{name}" for name in ("results.json", "table.md", "errors-by-references.png")),
    }
    assert "### A kitchen" in (package / MODEL_CARD_FILE).read_text()
    make_results(tmp_path / "of-others", "0" * 64)
    with pytest.raises(DatasetError, match="of-others: expected what `relograph eval` wrote of the weights"):
        publish_weights(package, package, results=results, measured=[tmp_path / "of-others"], textures=archive)


def test_nothing_is_kept_of_weights_that_are_refused(
    run: Path, results: Path, archive: Path, package: Path, tmp_path: Path
):
    publish_weights(run, package, results=results, textures=archive)
    before = sorted(results.rglob("*"))
    make_results(tmp_path / "measured", make_weights(tmp_path / "worse", archive=archive, seed=1, loss=0.2))
    with pytest.raises(CheckpointError, match="Train another round"):
        publish_weights(
            tmp_path / "worse", package, results=results, measured=[tmp_path / "measured"], textures=archive
        )
    assert sorted(results.rglob("*")) == before


def test_results_without_their_table_are_one_line(run: Path, results: Path, archive: Path, package: Path):
    for name in ("table.md", "report.md"):
        (results / "matchgnn" / "validation-rooms" / name).unlink()
    with pytest.raises(DatasetError, match=r"table\.md: expected the table of the evaluation"):
        publish_weights(run, package, results=results, textures=archive)
    assert everything_in(package) == {}


def test_results_in_test_rooms_alone_do_not_choose_weights(archive: Path, package: Path, tmp_path: Path):
    sha256 = make_weights(tmp_path / "weights", archive=archive)
    make_results(tmp_path / "results" / "test-rooms", sha256, "test rooms")
    with pytest.raises(DatasetError, match="in validation rooms, found none"):
        publish_weights(tmp_path / "weights", package, results=tmp_path / "results", textures=archive)


def test_weights_that_no_training_wrote_are_refused(tmp_path: Path, results: Path, package: Path, run: Path):
    trained = load_match_gnn(run / "weights")
    save_match_gnn(tmp_path / "bare", trained.model, {"calibration": trained.metadata["calibration"]})
    with pytest.raises(CheckpointError, match="found some without its training"):
        publish_weights(tmp_path / "bare", package, results=results, textures=None)


@pytest.mark.parametrize(("loss", "is_better"), [(0.0890, False), (0.2, False), (0.0881, True)])
def test_only_clearly_better_weights_take_the_place_of_others(
    loss: float, is_better: bool, run: Path, results: Path, archive: Path, package: Path, tmp_path: Path
):
    publish_weights(run, package, results=results, textures=archive)
    before = everything_in(package)
    make_results(results / "next", make_weights(tmp_path / "next", archive=archive, seed=1, loss=loss))
    if is_better:
        said = publish_weights(tmp_path / "next", package, results=results, textures=archive)
        assert said[0] == (
            "Better in validation rooms than the published ones: 0.044 m / 1.32° before the last layer (loss 0.0881) "
            "against 0.045 m / 1.35° before the last layer (loss 0.0900)."
        )
        assert load_match_gnn(package).sha256 == load_match_gnn(tmp_path / "next").sha256
    else:
        with pytest.raises(
            CheckpointError, match=r"found .* \(loss 0\.\d+\) against 0\.045 m / 1\.35° .* \(loss 0\.0900"
        ):
            publish_weights(tmp_path / "next", package, results=results, textures=archive)
        assert everything_in(package) == before


def test_other_validation_rooms_are_told(run: Path, results: Path, archive: Path, package: Path, tmp_path: Path):
    publish_weights(run, package, results=results, textures=archive)
    make_results(results / "next", make_weights(tmp_path / "next", seed=1, loss=0.05))
    said = publish_weights(tmp_path / "next", package, results=results, textures=None)
    assert said[0].endswith("Mind that their validation rooms differ in textures.")


def test_the_same_weights_only_get_a_new_card(run: Path, results: Path, archive: Path, package: Path):
    publish_weights(run, package, results=results, textures=archive)
    before = everything_in(package)
    make_results(results / "later", load_match_gnn(run / "weights").sha256, "test rooms")
    said = publish_weights(package, package, results=results, textures=archive)
    assert said[0] == "These weights are published already; their card is written anew."
    after = everything_in(package)
    assert "### Test rooms" in after.pop(MODEL_CARD_FILE).decode()
    assert before.pop(MODEL_CARD_FILE) is not None
    assert after == before


@pytest.mark.parametrize("most_bytes", [("MAX_BYTES", 100_000), ("MAX_SHARD_BYTES", 0)])
def test_weights_that_are_too_large_are_refused(
    most_bytes: tuple[str, int],
    run: Path,
    results: Path,
    archive: Path,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(weights_publishing, *most_bytes)
    with pytest.raises(CheckpointError, match=r"found 1\.\d MB, the largest shard of 1\.\d MB"):
        publish_weights(run, package, results=results, textures=archive)
    assert everything_in(package) == {}


def test_the_archive_must_be_that_of_the_training(
    run: Path, results: Path, archive: Path, package: Path, tmp_path: Path
):
    with pytest.raises(DatasetError, match="expected --textures ZIP"):
        publish_weights(run, package, results=results, textures=None)
    archive.write_bytes(archive.read_bytes() + b"\0" * 22)  # a comment, which a zip may have
    with pytest.raises(
        DatasetError, match=r"expected the archive of the training, with SHA-256 [0-9a-f]{12}, found an"
    ):
        publish_weights(run, package, results=results, textures=archive)
    make_results(results / "plain", make_weights(tmp_path / "plain"))
    with pytest.raises(DatasetError, match="Leave --textures out"):
        publish_weights(tmp_path / "plain", package, results=results, textures=archive)
    publish_weights(tmp_path / "plain", package, results=results, textures=None)
    assert "No photographs were used as textures." in (package / MODEL_CARD_FILE).read_text()


class Killed(BaseException):
    """What nobody catches."""


@pytest.mark.parametrize("num_writes", range(4))
def test_a_kill_leaves_the_old_weights_or_the_new_ones(
    num_writes: int,
    run: Path,
    results: Path,
    archive: Path,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    publish_weights(run, package, results=results, textures=archive)
    make_results(results / "next", make_weights(tmp_path / "next", archive=archive, seed=1, loss=0.05))
    hashes = [load_match_gnn(folder).sha256 for folder in (run / "weights", tmp_path / "next")]
    left, replace_file = num_writes, Path.replace

    def killed_after_some(self: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return replace_file(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_after_some)
        patched.setattr(checkpoint, "_remove_litter", lambda folder: None)  # nobody cleans up after a kill
        try:
            publish_weights(tmp_path / "next", package, results=results, textures=archive)
            was_killed = False
        except Killed:
            was_killed = True
    assert was_killed == (num_writes < 3)  # a shard, the index, the card
    found = read_published(package)
    assert found.network.sha256 == hashes[num_writes > 1]
    assert found.network.calibration is not None
    assert (found.card is None) == (num_writes == 2)
    publish_weights(tmp_path / "next", package, results=results, textures=archive)
    assert read_published(package).card is not None
    assert len(list(package.glob("*.safetensors"))) == 1


def test_what_is_no_folder_of_weights_is_one_line(tmp_path: Path, results: Path):
    with pytest.raises(RelographError) as caught:
        publish_weights(tmp_path, tmp_path / "package", results=results, textures=None)
    assert "\n" not in str(caught.value)
