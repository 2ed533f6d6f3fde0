"""What the documents say of the weights: all that was measured with these, and nothing that was not."""

from pathlib import Path

import pytest

from evaluation.made_weights import make_archive, make_results, make_weights
from relograph.errors import DatasetError
from relograph.evaluation.weights_documents import NOTHING_YET, write_weights_documents
from relograph.evaluation.weights_publishing import publish_weights

README = "# Title\n\n<!-- weights begins -->\n<!-- weights ends -->\n\nThe end.\n"
PAGE = """# Weights

<!-- weights-tables begins -->
<!-- weights-tables ends -->

<!-- weights-pictures begins -->
<!-- weights-pictures ends -->
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Documents, and published weights with results in validation rooms."""
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs" / "weights.md").write_text(PAGE)
    archive = make_archive(tmp_path / "textures.zip")
    sha256 = make_weights(tmp_path / "trained", archive=archive)
    make_results(tmp_path / "results" / "validation-rooms", sha256)
    publish_weights(tmp_path / "trained", tmp_path / "weights", results=tmp_path / "results", textures=archive)
    return tmp_path


def written(repository: Path, **options: bool) -> tuple[str, str]:
    """The README and the page, after writing."""
    write_weights_documents(repository / "weights", repository / "results", repository / "docs", **options)
    return (repository / "README.md").read_text(), (repository / "docs" / "weights.md").read_text()


def test_without_weights_the_documents_say_so(repository: Path):
    options = {"weights": repository / "none", "results": repository / "results", "docs": repository / "docs"}
    assert write_weights_documents(**options) == [repository / "README.md", repository / "docs" / "weights.md"]
    assert (repository / "README.md").read_text().count(NOTHING_YET) == 1
    assert write_weights_documents(**options, check=True) == []


def test_test_rooms_take_the_place_of_validation_rooms(repository: Path):
    assert "**Validation rooms**" in written(repository)[0]
    sha256 = make_weights(repository / "again", archive=repository / "textures.zip")
    make_results(repository / "results" / "test-rooms", sha256, "test rooms")
    readme, page = written(repository)
    assert "**Test rooms**" in readme
    assert "**Validation rooms**" not in readme
    assert "trained for 25 minutes" in readme
    assert "(weights/MODEL_CARD.md)" in readme
    assert readme.endswith("The end.\n")
    assert page.index("**Localization in validation rooms**") < page.index("**Localization in test rooms**")


def test_the_readme_has_the_first_figures_and_the_page_on_weights_what_made_them(repository: Path):
    readme, page = written(repository)
    assert "2,000 queries, 7 references each." in readme
    assert "| Method | Median | 10 cm 5° | 25 cm 10° | accepted |" in readme
    assert "| relograph, regression | 0.042 m / 1.23° | 72.0% | 83.0% | 94.0% |" in readme
    assert "`relograph eval --output $OUTPUT`" not in readme
    assert "`relograph eval --output $OUTPUT`" in page


def test_every_evaluation_of_a_place_is_told(repository: Path):
    sha256 = make_weights(repository / "again", archive=repository / "textures.zip")
    make_results(repository / "results" / "kitchen-525", sha256, "a kitchen", focal="525", metres=0.0451)
    make_results(repository / "results" / "kitchen-unknown", sha256, "a kitchen", focal="unknown", metres=0.0472)
    make_results(repository / "results" / "kitchen-before", "0" * 64, "a kitchen", focal="525", metres=0.0999)
    readme, page = written(repository)
    assert readme.count("**A kitchen**\n\n2,000 queries, 7 references each, 1,500 photos in the map.") == 2
    assert page.count("**Localization in a kitchen**") == 2
    assert "0.045 m" in readme
    assert "0.047 m" in readme
    assert "0.100 m" not in readme


def test_pictures_are_shown_once_they_are_drawn(repository: Path):
    drawn = repository / "results" / "validation-rooms" / "errors-by-references.png"
    drawn.unlink()
    assert "No plots are in the repository yet." in written(repository)[1]
    (repository / "docs" / "pictures" / "matchgnn-training.png").write_bytes(b"")
    drawn.write_bytes(b"")
    _, page = written(repository)
    assert "](pictures/matchgnn-training.png)" in page
    assert "](../results/validation-rooms/errors-by-references.png)" in page
    assert "*Validation rooms: median errors against the number of references. Drawn by `relograph eval`.*" in page


def test_a_document_that_says_something_else_is_noticed(repository: Path):
    written(repository)
    written(repository, check=True)
    readme = repository / "README.md"
    readme.write_text(readme.read_text().replace("0.042 m", "0.012 m"))
    with pytest.raises(DatasetError, match=r"README\.md: expected what the weights .* Run: relograph weights report"):
        written(repository, check=True)
