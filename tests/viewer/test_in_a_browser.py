"""The page of cameras in a real Chromium: it draws, shows photos, listens, and asks nobody for anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from relograph.geometry import Pose
from relograph.scenes.frame import FileSource, Frame
from relograph.viewer import CameraGroup, write_cameras_page
from relograph.viewer.cameras_page import Slider

BLUE, ORANGE = "#0072b2", "#d55e00"
SIZE = {"width": 900, "height": 600}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cameras side by side that look the same way, two of them answers; one has a red photo."""
    folder = tmp_path_factory.mktemp("page")
    Image.new("RGB", (64, 48), (200, 30, 30)).save(folder / "red.png")
    level = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)

    def side_by_side(*x: float) -> Pose:
        centers = torch.tensor([[at, 0.0, 0.0] for at in x], dtype=torch.float64)
        return Pose(level.expand(len(x), 3, 3), centers)

    photo = Frame("red.png", side_by_side(0.0)[0], FileSource(folder / "red.png"))
    truth = CameraGroup("truth", BLUE, side_by_side(0.0, 2.0), ["the first", "the second"], [photo, None])
    answer = CameraGroup("answer", ORANGE, side_by_side(0.4, 2.4), ["answer one", "answer two"])
    write_cameras_page(
        folder / "page.html",
        [truth, answer],
        title="A <b>room</b>",
        note="localized  2 of 2\nverdict    fine",
        lines=[(0, 1)],
    )
    return folder / "page.html"


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    with opened_page(browser, page_file) as opened:
        yield opened


@contextmanager
def opened_page(browser: Any, page_file: Path) -> Iterator[Any]:
    """The page, opened; whatever it complains of or asks for is an error."""
    opened = browser.new_page(viewport=SIZE)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: complaints.append(request.url))
    opened.goto(page_file.as_uri())
    settle(opened)
    yield opened
    opened.close()
    assert [text for text in complaints if not text.startswith(("file:", "data:"))] == []


def settle(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


COUNT_PIXELS = """wanted => {
  const canvas = document.getElementById("view"), copy = document.createElement("canvas");
  copy.width = canvas.width; copy.height = canvas.height;
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const data = pen.getImageData(0, 0, copy.width, copy.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 150 && wanted.every((value, channel) => Math.abs(data[i + channel] - value) < 40)) count++;
  return count;
}"""


def num_pixels(page: Any, color: str) -> int:
    """Pixels of the canvas that have a color, as nearly as thin lines have it."""
    return int(page.evaluate(COUNT_PIXELS, [int(color[at : at + 2], 16) for at in (1, 3, 5)]))


def place_of(page: Any, caption: str) -> tuple[float, float]:
    """Where the camera with that caption is drawn."""
    x, y, _ = page.evaluate(f"() => cameras.find(camera => camera.caption === {caption!r}).seen")
    return x, y


def test_cameras_are_drawn_in_their_colors_with_a_legend(page: Any):
    assert page.locator("#about h1").inner_text() == "A <b>room</b>"
    assert page.locator("#note").inner_text() == "localized 2 of 2\nverdict fine"
    assert page.locator("#legend label").all_inner_texts() == ["truth (2)", "answer (2)"]
    assert num_pixels(page, BLUE) > 100
    assert num_pixels(page, ORANGE) > 100


def test_a_group_can_be_left_out(page: Any):
    page.locator("#legend input").nth(1).uncheck()
    settle(page)
    assert num_pixels(page, ORANGE) == 0
    assert num_pixels(page, BLUE) > 100


def test_pointing_at_a_camera_shows_its_photo_and_caption(page: Any):
    assert not page.locator("#shown").is_visible()
    page.mouse.move(*place_of(page, "the first"))
    assert page.locator("#shown span").inner_text() == "the first"
    page.locator("#shown img").wait_for()
    page.wait_for_function("() => document.querySelector('#shown img').naturalWidth == 64")
    page.mouse.move(*place_of(page, "answer two"))
    assert page.locator("#shown span").inner_text() == "answer two"
    assert not page.locator("#shown img").is_visible()


def test_the_slider_walks_along_answers_and_marks_them_with_their_references(browser: Any, tmp_path: Path):
    level = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    nan = float("nan")
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "red.png")
    photo = Frame("red.png", Pose.identity(), FileSource(tmp_path / "red.png"))

    def group(name: str, color: str, x: list[float], captions: list[str], frames: Any = None) -> CameraGroup:
        centers = torch.tensor([[at, 0.0, 0.0] for at in x], dtype=torch.float64)
        return CameraGroup(name, color, Pose(level.expand(len(x), 3, 3), centers), captions, frames)

    said = ["first: 0.100 m", "second: not localized", "third: 0.300 m"]
    groups = [
        group("references", BLUE, [-1.0, 3.0], ["r0", "r1"]),
        group("answers", ORANGE, [0.0, nan, 2.0], said, [None, photo, photo]),
    ]
    page_file = tmp_path / "page.html"
    write_cameras_page(page_file, groups, title="Room", slider=Slider("query", said, [1], 0, [[0], [], [1, 0]]))
    with opened_page(browser, page_file) as page:
        slider, marked = page.locator("#walk input"), "() => [current.map(c => c.caption), related.map(c => c.caption)]"
        assert page.locator("#walk output").inner_text() == "1 / 3"
        assert page.locator("#shown span").inner_text() == said[0]
        assert page.evaluate(marked) == [[said[0]], ["r0"]]
        slider.focus()
        page.keyboard.press("ArrowRight")  # the slider is the browser's own, and so are its keys
        assert page.locator("#shown span").inner_text() == said[1]
        assert page.evaluate(marked) == [[], []]
        page.wait_for_function("() => document.querySelector('#shown img').naturalWidth == 64")  # what was refused
        assert page.locator("#shown img").is_visible()
        page.keyboard.press("End")
        settle(page)
        assert page.locator("#walk output").inner_text() == "3 / 3"
        assert page.evaluate(marked) == [[said[2]], ["r1", "r0"]]
        assert page.evaluate("() => document.querySelector('#shown img').naturalWidth") == 64
        # Pointing at another camera shows that one; pointing away, the slider's again.
        page.mouse.move(*place_of(page, "r0"))
        assert page.locator("#shown span").inner_text() == "r0"
        page.mouse.move(890, 20)
        assert page.locator("#shown span").inner_text() == said[2]


def test_ten_thousand_cameras_are_all_drawn_and_the_slider_reaches_the_last(browser: Any, tmp_path: Path):
    rows = torch.arange(10_000, dtype=torch.float64)
    level = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    T_world_cam = Pose(level.expand(10_000, 3, 3), torch.stack([rows % 100, rows // 100, 0 * rows], dim=1))
    group = CameraGroup("map", BLUE, T_world_cam, [f"photo {row}" for row in range(10_000)])
    write_cameras_page(tmp_path / "page.html", [group], title="Large", slider=Slider("photo", group.captions, [0]))
    with opened_page(browser, tmp_path / "page.html") as page:
        assert page.locator("#legend label").inner_text() == "map (10000)"
        assert num_pixels(page, BLUE) > 5000
        page.locator("#walk input").focus()
        page.keyboard.press("End")
        assert page.locator("#shown span").inner_text() == "photo 9999"


def test_dragging_turns_the_wheel_comes_closer_and_keys_do_the_same(page: Any):
    def apart() -> float:
        (x0, y0), (x1, y1) = place_of(page, "the first"), place_of(page, "answer two")
        return float(np.hypot(x1 - x0, y1 - y0))

    before = apart()
    page.mouse.move(450, 550)
    page.mouse.wheel(0, -400)
    settle(page)
    closer = apart()
    assert closer > 1.2 * before
    azimuth = page.evaluate("() => look.azimuth")
    page.mouse.down()
    page.mouse.move(550, 550, steps=4)
    page.mouse.up()
    assert page.evaluate("() => look.azimuth") == pytest.approx(azimuth - 0.6, abs=1e-6)
    page.locator("#view").focus()
    page.keyboard.press("-")
    settle(page)
    assert page.evaluate("() => look.distance") > 0
    assert apart() != closer
