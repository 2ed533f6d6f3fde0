"""The audit of what relograph is installed with."""

import runpy
from importlib import metadata
from pathlib import Path

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


def test_the_licence_is_told_as_the_package_tells_it_and_unknown_ones_are_none_that_is_known():
    assert "BSD" in AUDIT["licence"](metadata.distribution("uvicorn"))
    assert AUDIT["FREE"].search("MIT License")
    assert not AUDIT["FREE"].search("GPL-3.0-only")
    assert not AUDIT["FREE"].search("")
