"""`relograph view` as one types it, in a real Chromium: frusta in their colours, a slider, and no request elsewhere."""

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image, ImageColor

import painted_box
from localization.small_networks import small_network
from relograph.evaluation import Predictions, write_predictions
from relograph.evaluation.qualitative import MAP_COLOR, TRUE_COLOR
from relograph.geometry import Pose
from relograph.localization.answer_files import SavedAnswer
from relograph.maps import Map
from relograph.scenes import open_scene
from relograph.viewer.cameras_page import Slider
from relograph.viewer.live import FIELD_OF_VIEW, LiveView, framing_view
from relograph.viewer.shown import BAND_COLORS, REFERENCE_COLOR, Shown, groups_of_answers, photos_in
from serving.running_services import wait_until

pytest.importorskip("viser", reason="no viser: pip install 'relograph[viewer]'")


@dataclass
class Opened:
    """A browser's page on a viewer."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def pixels(self) -> np.ndarray:
        """What is drawn to the left of the panel."""
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return np.asarray(shot)[:, :560].astype(int)


@pytest.fixture(scope="module")
def viewed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("live")
    scene = open_scene(painted_box.write_scene(folder / "cube", num_map=4, num_queries=3))
    Map.create(folder / "cube.map", scene.train, network=small_network())
    truth = Pose.stack([frame.T_world_cam for frame in scene.test])
    shift_m = np.array([[0.01, 0, 0], [0.6, 0, 0], [0, 0, 0]])
    names = [frame.name for frame in scene.test]
    write_predictions(
        folder / "answers.csv",
        Predictions.from_poses(
            ["cube"] * 3,
            names,
            truth,
            Pose.from_rotation_and_translation(truth.R.numpy(), truth.t.numpy() + shift_m),
            top1=[scene.train[0].name] * 3,
            reason=["", "", "<b>Nothing</b> matches."],
        ),
        metadata={},
    )
    options = ("--predictions", folder / "answers.csv", "--photos", scene.root, "--no-open", "--port", 0)
    command = [sys.executable, "-m", "relograph", "view", folder / "cube.map", *options]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http://127.0.0.1:")
            assert line.endswith(" (Ctrl-C ends it)\n")
            page = browser.new_page(viewport={"width": 960, "height": 540})
            opened = Opened(page, line.split()[0])
            page.on("pageerror", lambda error: opened.complaints.append(str(error)))
            page.on("request", lambda request: opened.complaints.append(request.url))
            page.goto(opened.url)
            page.get_by_text(names[0]).first.wait_for(timeout=60_000)
            yield opened
            page.close()
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 128 + 15  # it ends when it is asked to
    ours = (opened.url, f"blob:{opened.url}", "data:")
    assert [complaint for complaint in opened.complaints if not complaint.startswith(ours)] == []


def color_seen(viewed: Opened, color: str) -> bool:
    wanted = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)])
    return bool((np.abs(viewed.pixels() - wanted).max(axis=-1) < 30).sum() > 20)


def wait_until_seen(viewed: Opened, color: str) -> None:
    """Frusta fade in, on a slow machine slowly."""
    for _ in range(60):
        if color_seen(viewed, color):
            return
        viewed.page.wait_for_timeout(500)
    pytest.fail(f"nothing is drawn in {color}")


def test_cameras_are_drawn_in_the_colours_of_their_errors(viewed: Opened):
    text = viewed.page.locator("body").inner_text()
    assert "4 photos in the map." in text
    assert "2 of 3 queries localized, median error 0.600 m / 0.00°." in text
    for label in ("map (3)", "references (1)", "truth (2)", "truth, not localized (1)", "answers beyond (1)"):
        assert label in text
    wait_until_seen(viewed, BAND_COLORS[-1])
    wait_until_seen(viewed, BAND_COLORS[0])


def test_the_first_view_is_filled_by_the_cameras_and_the_panel_hides_none(viewed: Opened):
    wait_until_seen(viewed, MAP_COLOR)
    wait_until_seen(viewed, BAND_COLORS[-1])
    viewed.page.add_style_tag(content=".mantine-Notification-root { display: none }")  # that no GPU draws
    panel_left = int(viewed.page.get_by_text("4 photos in the map.").bounding_box()["x"])
    pixels = np.asarray(Image.open(io.BytesIO(viewed.page.screenshot())).convert("RGB")).astype(int)
    colors = np.array([ImageColor.getrgb(color) for color in (MAP_COLOR, REFERENCE_COLOR, TRUE_COLOR, *BAND_COLORS)])
    drawn = (np.abs(pixels[:, :panel_left, None] - colors).max(axis=-1) < 30).any(axis=-1)
    rows, columns = np.nonzero(drawn)
    height = len(pixels)
    (left, right), (top, bottom) = (np.quantile(some, (0.005, 0.995)) for some in (columns, rows))
    assert abs((left + right) / 2 - panel_left / 2) < 0.08 * panel_left
    assert abs((top + bottom) / 2 - height / 2) < 0.08 * height
    assert max(right - left, bottom - top) > 0.7 * min(panel_left, height)


def test_all_points_are_within_the_first_view_and_reach_its_border():
    rng = np.random.default_rng(0)
    for _ in range(20):
        up, direction = rng.normal(size=(2, 3))
        points = rng.normal(size=(50, 3)) * rng.uniform(1.0, 20.0, 3) + rng.normal(size=3) * 100
        look_at, position = framing_view(points, direction, up / np.linalg.norm(up))
        ahead = (look_at - position) / np.linalg.norm(look_at - position)
        right = np.cross(ahead, up) / np.linalg.norm(np.cross(ahead, up))
        away = points - position
        seen = away @ np.stack([right, np.cross(right, ahead)]).T / (away @ ahead)[:, None] / np.tan(FIELD_OF_VIEW / 2)
        assert (away @ ahead > 0).all()
        assert 0.7 < np.abs(seen).max() < 1.0
        assert_allclose(seen.min(axis=0), -seen.max(axis=0), atol=0.01)  # as much room on both sides


def test_the_slider_moves_along_the_queries(viewed: Opened):
    page = viewed.page
    number = page.locator("input[type=text], input[inputmode]").first
    assert number.input_value() == "1"
    number.fill("3")
    number.press("Enter")
    page.get_by_text("<b>Nothing</b> matches.").first.wait_for(timeout=60_000)  # as text: names are from outside
    assert "not localized" in page.locator("body").inner_text()


def test_the_photo_of_a_query_that_has_no_place_is_shown(tmp_path: Path):
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "lost.png")
    answers = [SavedAnswer("lost.png", None, "Nothing matches.", 0.1), SavedAnswer("gone.png", None, "Nothing.", 0.1)]
    found = groups_of_answers(answers, photos_in(tmp_path))
    slider = Slider("query", found.captions, range(len(found.groups)))
    view = LiveView(Shown("Room", "", found.groups, (), slider), port=0)
    try:
        assert view._photo_shown.visible
        assert_allclose(view._photo_shown.image.mean(axis=(0, 1)), [200, 30, 30], atol=4)
        view._slider.value = 2
        wait_until(lambda: not view._photo_shown.visible)
    finally:
        view.stop()


def test_a_group_can_be_left_out(viewed: Opened):
    wait_until_seen(viewed, BAND_COLORS[-1])
    viewed.page.get_by_label("answers beyond (1)").click()
    for _ in range(60):
        if not color_seen(viewed, BAND_COLORS[-1]):
            break
        viewed.page.wait_for_timeout(500)
    assert not color_seen(viewed, BAND_COLORS[-1])
