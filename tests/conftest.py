"""What tests of several folders share."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from chromium import chromium, lacking

if TYPE_CHECKING:
    from relograph.rooms.textures import TextureAtlas

# Tests run side by side in processes; torch's threads inside them would only wait for each other.
torch.set_num_threads(1)

# The same examples on every run, so that a red test is red for everybody; `pytest --hypothesis-profile=explore` looks
# for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests in a browser where there is none: before any of their fixtures is made, and all of them from this one
    place, so that pytest tells it in one line.
    """
    if "browser" in getattr(item, "fixturenames", ()) and (what := lacking()) is not None:
        pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the tests of a file."""
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def few_textures() -> "Iterator[TextureAtlas]":
    """An atlas of one texture of each family, and no more than that in any that is made while a file's tests run."""
    from relograph.rooms import textures  # not above: shapes are checked in what is imported from here on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(textures.FAMILY_SIZES, 1))
        yield _atlas_of_few_textures()


@functools.cache
def _atlas_of_few_textures() -> "TextureAtlas":
    from relograph.rooms.textures import make_atlas

    return make_atlas(0)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures without figures, which take longer to draw than all else; fixtures of wider scope draw them."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **options: file.write(b"a figure"))


@pytest.fixture
def seven_scenes_folder(tmp_path: Path) -> Path:
    """A scene of three frames in the 7-Scenes layout: a training sequence of two and a test sequence of one.

    The cameras look along the world's z axis and stand one metre apart on its x axis.
    """
    rng = np.random.default_rng(0)
    root = tmp_path / "kitchen"
    for split, sequence, frame, x in (("Train", 1, 0, 0.0), ("Train", 1, 1, 1.0), ("Test", 2, 0, 2.0)):
        folder = root / f"seq-{sequence:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (root / f"{split}Split.txt").write_text(f"sequence{sequence}\n")
        stem = f"frame-{frame:06d}"
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(folder / f"{stem}.color.png")
        Image.fromarray(np.full((24, 32), 1500, dtype=np.uint16)).save(folder / f"{stem}.depth.png")
        T_world_cam = np.eye(4)
        T_world_cam[0, 3] = x
        np.savetxt(folder / f"{stem}.pose.txt", T_world_cam)
    return root
