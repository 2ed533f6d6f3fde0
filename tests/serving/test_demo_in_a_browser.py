"""What `make demo` ends by offering: its map, served as it says, and its queries dropped onto the page.

The room is the demo's own, which no training saw, and so are the weights. It has a tenth of its photos.
"""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.models.shipped import load_match_gnn
from relograph.rooms import seven_rooms
from relograph.scenes import open_scene
from serving.running_services import running
from serving.test_page_in_a_browser import ask, opened, wait_for_map

EVERY, NUM_MAP_PHOTOS, NUM_ASKED = 100, 20, 2
NEAR_M = 0.1


@dataclass(frozen=True)
class Demo:
    """What the demo said and left."""

    maps: tuple[str, ...]
    """Arguments of the command that it offers."""
    queries: Path
    """The folder of photos to drop."""
    names: tuple[str, ...]
    """Of the queries that it localized, the surest first."""
    room: Path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(seven_rooms.SIZES, "small", replace(seven_rooms.SIZES["small"], every=EVERY))
        patch.setattr(seven_rooms, "num_cores", lambda: 1)
        done = CliRunner().invoke(app, ["demo", str(folder)])
    assert done.exit_code == 0, done.output
    (command,) = re.findall(r"^In a browser: run  (.*)$", done.stdout, flags=re.MULTILINE)
    (queries,) = re.findall(r"^and drop photos of (.*) onto the page", done.stdout, flags=re.MULTILINE)
    _, serve, *maps = shlex.split(command)
    assert serve == "serve"
    found = re.findall(r"^(\S+\.png) +[\d.]+ m / .*\((\d+)% sure\)", done.stdout, flags=re.MULTILINE)
    names = tuple(name for name, sure in sorted(found, key=lambda one: -int(one[1])))
    return Demo(tuple(maps), Path(queries), names, folder / "rooms" / "room-1")


def test_the_page_localizes_the_demos_queries_where_they_were_taken(demo: Demo, browser: Any):
    truth_by_name = {frame.name: frame.T_world_cam.t.numpy() for frame in open_scene(demo.room).test}
    assert len(demo.names) >= NUM_ASKED  # the page knows less than the demo did: nobody tells it the focal length
    with running(*demo.maps, network=load_match_gnn()) as service, opened(browser, service.url) as page:
        wait_for_map(page, NUM_MAP_PHOTOS)
        assert page.locator("#about-map").inner_text() == f"Map room-1: {NUM_MAP_PHOTOS} photos"
        for name in demo.names[:NUM_ASKED]:
            photo = demo.queries / Path(name).name
            with page.expect_response(re.compile("/localize")) as asked:
                assert ask(page, photo) == "Found"
            page.locator("#photo-note", has_text=photo.name).wait_for()
            assert np.linalg.norm(asked.value.json()["cam_center_world"] - truth_by_name[name]) < NEAR_M
            shown = [float(number) for number in re.findall(r"[xyz] (-?[\d.]+)", page.locator("#verdict").inner_text())]
            assert np.linalg.norm(np.array(shown) - truth_by_name[name]) < NEAR_M
