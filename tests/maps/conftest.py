"""Maps of tests are made of generated features, unless a test says otherwise."""

import pytest
from made_maps import use_generated_features


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> None:
    use_generated_features(monkeypatch)
