"""What tests of the localizer share."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def shapes_unchecked() -> Iterator[None]:
    """For tests that do a hundred times what others do once with shapes checked: it takes a third of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
