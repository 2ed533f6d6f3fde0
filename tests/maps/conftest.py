"""Maps of tests are made of generated features, unless a test says otherwise; they are kept wherever maps can be."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_maps import use_generated_features
from postgres_server import Server

NewPlace = Callable[[], str]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> None:
    use_generated_features(monkeypatch)


@pytest.fixture(scope="session")
def server() -> Server:
    return Server()


@pytest.fixture(params=["folder", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> NewPlace:
    """Gives places for maps, of each kind in turn."""
    if request.param == "postgresql":
        return request.getfixturevalue("server").new_database
    numbers = iter(range(1000))
    return lambda: str(tmp_path / f"map-{next(numbers)}")
