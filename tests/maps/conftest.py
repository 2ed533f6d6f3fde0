"""Maps of tests are made of generated features, unless a test says otherwise."""

from collections.abc import Iterator

import pytest
from made_maps import use_generated_features
from postgres_server import Server


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> None:
    use_generated_features(monkeypatch)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
