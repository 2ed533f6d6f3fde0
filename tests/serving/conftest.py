"""What tests of the service share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.running_services import Running, running, write_map


@pytest.fixture(scope="session")
def untouched_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map of four photos of noise, to copy: nobody opens it, so none of SQLite's files comes or goes meanwhile."""
    folder = tmp_path_factory.mktemp("maps") / "kitchen.map"
    write_map(folder)
    return folder


@pytest.fixture(scope="session")
def map_of_noise(untouched_map: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, to be read by many."""
    return Path(shutil.copytree(untouched_map, tmp_path_factory.mktemp("read") / "kitchen.map"))


@pytest.fixture
def kitchen(untouched_map: Path, tmp_path: Path) -> str:
    """A map that a test may change."""
    shutil.copytree(untouched_map, tmp_path / "kitchen.map")
    return str(tmp_path / "kitchen.map")


@pytest.fixture(scope="module")
def asked(map_of_noise: Path) -> Iterator[Running]:
    """A service that the tests of a file only ask."""
    with running(str(map_of_noise), max_body_mb=2.0, max_megapixels=2.0) as service:
        yield service
