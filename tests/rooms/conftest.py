"""What the tests of rooms share."""

import pytest
from tiny_rooms import LAYOUT, RANGE_BY_FAMILY, tiny_atlas

from relograph.rooms.layout import Home, make_home
from relograph.rooms.textures import TextureAtlas


@pytest.fixture(scope="session")
def atlas() -> TextureAtlas:
    """Plain squares: for tests that are not about textures."""
    return tiny_atlas()


@pytest.fixture(scope="session")
def homes() -> list[Home]:
    """Homes of every number of rooms."""
    homes = [make_home(seed, RANGE_BY_FAMILY, LAYOUT) for seed in range(12)]
    assert {len(home.rooms) for home in homes} == {1, 2, 3}
    return homes
