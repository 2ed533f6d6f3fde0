"""What is installed holds all that is needed at run time: weights with their card, the viewer's page, types."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from evaluation.made_weights import make_weights

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the source archive of this source with small weights, whether it has its own or not."""
    project = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".gitignore"):
        shutil.copy(REPOSITORY / name, project)
    without_weights = shutil.ignore_patterns("__pycache__", "weights")
    shutil.copytree(REPOSITORY / "src", project / "src", ignore=without_weights)
    weights = project / "src" / "relograph" / "weights" / "matchgnn"
    make_weights(weights)
    (project / ".notes").mkdir()
    (project / ".notes" / "private.txt").write_text("of the one who builds it")
    (weights / "MODEL_CARD.md").write_text("# MatchGNN: model card\n")
    subprocess.run([sys.executable, "-m", "hatchling", "build"], cwd=project, check=True, capture_output=True)
    return project


@pytest.fixture(scope="module")
def names_in(built: Path) -> dict[str, set[str]]:
    """The files of both, from `relograph/` on."""
    (wheel,), (source,) = built.glob("dist/*.whl"), built.glob("dist/*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        in_wheel = set(file.namelist())
    with tarfile.open(source) as file:
        in_source = {name.partition("/")[2].removeprefix("src/") for name in file.getnames()}
    return {"wheel": in_wheel, "source": in_source}


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_weights_card_and_pages_are_part_of_what_is_installed(kind: str, built: Path, names_in: dict[str, set[str]]):
    weights = {path.name for path in (built / "src/relograph/weights/matchgnn").iterdir()}
    assert {Path(name).suffix for name in weights} == {".json", ".md", ".safetensors"}
    assert {f"relograph/weights/matchgnn/{name}" for name in weights} <= names_in[kind]
    assert {"relograph/viewer/cameras_page.html", "relograph/py.typed"} <= names_in[kind]
    service_page = {f"relograph/serving/page/{name}" for name in ("index.html", "page.js", "three.module.min.js")}
    assert service_page <= names_in[kind]


def test_every_file_of_the_source_is_in_the_wheel(built: Path, names_in: dict[str, set[str]]):
    source = {path.relative_to(built / "src").as_posix() for path in (built / "src").rglob("*") if path.is_file()}
    assert source == {name for name in names_in["wheel"] if name.startswith("relograph/")}


def test_nothing_else_of_a_checkout_gets_into_the_source_archive(names_in: dict[str, set[str]]):
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= names_in["source"]
    assert not any("notes" in name for name in names_in["source"])
