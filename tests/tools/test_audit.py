"""The audit of what relograph is installed with."""

import runpy
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

AUDIT = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "audit.py"))


def test_a_requirement_without_a_lowest_version_is_named():
    lines = [Requirement("numpy>=1.26"), Requirement("torch<3"), Requirement("rich")]
    assert AUDIT["without_floor"](lines) == ["torch", "rich"]
    assert AUDIT["without_floor"](list(AUDIT["requirements"](["serve", "heic"]))) == []


def test_packages_are_followed_to_those_that_they_need():
    packages = AUDIT["installed_with"]([Requirement("fastapi>=0.1")])
    assert {"fastapi", "starlette", "pydantic", "pydantic-core"} <= set(packages)
    assert "pytest" not in packages


def test_the_licence_is_told_as_the_package_tells_it():
    assert "BSD" in AUDIT["licence"](metadata.distribution("uvicorn"))


@pytest.mark.parametrize(
    "told",
    ["MIT License", "BSD-3-Clause", "3-Clause BSD", "Apache 2.0", "Apache-2.0 OR GPL-3.0", "LGPLv3+", "MPL2", "(ISC)"],
)
def test_a_free_licence_is_known_by_its_name(told: str):
    assert AUDIT["FREE"].search(told)


@pytest.mark.parametrize(
    "told",
    ["", "GPL-3.0-only", "AGPLv3", "Limited use", "No redistribution permitted", "Miscellaneous", "Complex, see file"],
)
def test_letters_of_a_free_licence_within_other_words_are_none(told: str):
    assert not AUDIT["FREE"].search(told)
