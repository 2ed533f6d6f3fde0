"""Tiny scenes in each format."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_scenes import WRITERS


@pytest.fixture
def tiny_scene(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the tiny scene in the named format and gives its folder."""

    def write(format: str) -> Path:
        root = tmp_path / "tiny"
        root.mkdir()
        WRITERS[format](root)
        return root

    return write
