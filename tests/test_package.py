"""What a user gets by installing and importing the package."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import relograph
from relograph.environment import PURPOSE_BY_EXTRA, extras

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    listing = "import sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def optional_modules() -> set[str]:
    """Modules that only an extra brings, as far as they are installed here."""
    required = {Requirement(line).name for line in PROJECT["dependencies"]}
    optional = {
        Requirement(line).name for lines in PROJECT["optional-dependencies"].values() for line in lines
    } - required
    return {module for module, names in packages_distributions().items() if optional & set(names)} - {"relograph"}


def test_importing_relograph_loads_neither_torch_nor_numpy_nor_an_optional_package():
    loaded = modules_after("import relograph")
    assert "relograph" in loaded
    assert not loaded & {"torch", "numpy", "PIL", "rich", "typer", "matplotlib"}
    assert not loaded & optional_modules()


def test_help_loads_no_torch():
    loaded = modules_after(
        "import sys; sys.argv = ['relograph', '--help']\n"
        "from relograph.cli import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert done.code == 0"
    )
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "PIL", "matplotlib"}
    assert not loaded & optional_modules()


def test_no_public_name_loads_an_optional_package():
    loaded = modules_after("import relograph\nfor name in relograph.__all__: getattr(relograph, name)")
    assert "torch" in loaded
    assert not loaded & optional_modules()


def test_pycolmap_counts_as_optional_in_these_tests():
    assert "pycolmap" in optional_modules()  # else the tests above would pass without looking


def test_every_public_name_is_listed_and_leads_somewhere():
    assert set(relograph.__all__) <= set(dir(relograph))
    for name in relograph.__all__:
        assert getattr(relograph, name) is not None
    assert relograph.Pose.__module__.startswith("relograph.geometry")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sceen'"):
        relograph.Sceen  # noqa: B018


def test_the_version_is_the_same_in_the_package_the_metadata_and_the_citation():
    assert relograph.__version__ == PROJECT["version"]
    citation = (REPOSITORY / "CITATION.cff").read_text().splitlines()
    assert f"version: {PROJECT['version']}" in citation


def test_doctor_knows_the_purpose_of_every_extra():
    assert set(PURPOSE_BY_EXTRA) == set(PROJECT["optional-dependencies"])
    assert [extra.name for extra in extras()] == list(PURPOSE_BY_EXTRA)


def test_the_dev_extra_is_complete_where_the_tests_run():
    assert {extra.name for extra in extras() if extra.is_complete} >= {"dev", "geometry"}


def test_torch_is_capped_and_packages_that_need_a_cuda_torch_are_not_asked_for():
    lines = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]
    requirements = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert "2.13.1" in requirements["torch"].specifier
    assert "2.10.0" not in requirements["torch"].specifier
    assert "2.14.0" not in requirements["torch"].specifier
    assert not {"torchvision", "timm"} & set(requirements)


def test_the_licence_is_the_whole_of_apache_2_0():
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.split()) > 1500
