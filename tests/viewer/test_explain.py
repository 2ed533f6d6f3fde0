"""Why a query was localized or refused: what the page is made of, and the page in a real Chromium."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from localization.small_networks import CAMERA, posed_photos, small_network
from relograph.localization import localizer as localizer_module
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.localizer import Judged, Localizer
from relograph.localization.localizing import CameraTold, localize_query
from relograph.localization.map_features import MapFeatures
from relograph.localization.queries import Query
from relograph.localization.solver import MatchedPoints, solve_query_pose
from relograph.models.match_gnn import COARSE_STRIDE
from relograph.viewer import explain
from relograph.viewer.explain import Explained, cell_weights, explain_query, write_explanation

PHOTOS = posed_photos(5)
QUERY = Query("a <b>query</b>.png", PHOTOS[2].pixels, (160, 120))
TOLD = CameraTold(camera=CAMERA)
HALF = COARSE_STRIDE / 2


@pytest.fixture(scope="module")
def localizer() -> Localizer:
    network = small_network()
    return Localizer(MapFeatures.of(PHOTOS, network), network, num_references=3)


@pytest.fixture(scope="module")
def explained(localizer: Localizer) -> Explained:
    """A query that is itself in the map, with matches by hand: two with the first reference agree, one does not."""
    explained = explain_query(localizer, QUERY, TOLD)
    assert explained.compared is not None
    points = MatchedPoints(
        query_xy=np.array([[HALF, HALF], [HALF, HALF], [5 * HALF, 3 * HALF], [9 * HALF, 9 * HALF]]),
        ref_xy=np.array([[12.0, 14.0], [20.0, 22.0], [60.0, 70.0], [80.0, 30.0]]),
        ref_idx=np.array([0, 1, 0, 0]),
        weight=np.array([1.0, 1.0, 0.5, 0.7]),
    )
    references = tuple(
        replace(used, name=f"map-{i}.png", num_matches=matches, num_inliers=inliers)
        for i, (used, matches, inliers) in enumerate(
            zip(explained.named.answer.references, (3, 1, 0), (2, 1, 0), strict=True)
        )
    )
    T_best = explained.compared.T_regressed
    answer = replace(
        explained.named.answer,
        T_world_cam=T_best,
        T_solved=T_best,
        localized=True,
        confidence=0.83,
        reason="",
        num_inliers=3,
        references=references,
        covariance=torch.diag(torch.tensor([1e-4] * 3 + [4e-4] * 3, dtype=torch.float64)),
        signs={"inliers": 4.0, "inlier_share": 0.5, "precision": 1.0},
    )
    assert explained.judged is not None
    assert explained.judged.solved is not None
    solved = replace(explained.judged.solved, T_world_cam=T_best, inlier_mask=torch.tensor([True, True, True, False]))
    judged = Judged(answer, points, solved, UNCALIBRATED.solved)
    return replace(explained, named=replace(explained.named, answer=answer), judged=judged)


def written(path: Path, explained: Explained, localizer: Localizer, **options: Any) -> Path:
    photos = {row: photo.pixels for row, photo in enumerate(PHOTOS)}
    write_explanation(path, explained, localizer.map.T_world_cam, photos.get, **options)
    return path


def test_what_is_explained_is_the_answer_that_the_localizer_gives(localizer: Localizer):
    with pytest.MonkeyPatch.context() as patch:
        solve = Mock(wraps=solve_query_pose)
        patch.setattr(localizer_module, "solve_query_pose", solve)
        found = explain_query(localizer, QUERY, TOLD)
        assert solve.call_count == 1
    answer = localize_query(localizer, QUERY, TOLD).answer
    assert found.named.answer.localized == answer.localized
    assert found.named.answer.confidence == pytest.approx(answer.confidence)
    assert [used.name for used in found.named.answer.references] == [used.name for used in answer.references]
    assert found.judged is not None
    assert len(found.judged.points.ref_idx) == sum(used.num_matches for used in answer.references)
    if found.inlier is not None:
        assert int(found.inlier.sum()) == answer.num_inliers


def test_cells_count_by_their_matches_that_agree(explained: Explained):
    assert cell_weights(explained) == {(HALF, HALF): 1.0, (5 * HALF, 3 * HALF): 0.25}
    # Where no pose was solved for, all matches count.
    unsolved = replace(explained, judged=replace(explained.judged, solved=None))
    assert cell_weights(unsolved)[9 * HALF, 9 * HALF] == pytest.approx(0.35)


def test_a_photo_that_cannot_be_read_has_a_page_that_says_so(localizer: Localizer, tmp_path: Path):
    (tmp_path / "no.jpg").write_text("no photo")
    refused = explain_query(localizer, Query("no.jpg", tmp_path / "no.jpg", None))
    text = written(tmp_path / "why.html", refused, localizer).read_text()
    assert "Not localized" in text
    assert "expected a photo as JPEG" in text


def test_a_camera_of_another_shape_is_explained_as_a_refusal(localizer: Localizer):
    refused = explain_query(localizer, QUERY, CameraTold(camera=CAMERA.rotated_90(1)))
    assert "expected a camera for a photo of 160 x 120" in refused.named.answer.reason


def test_of_many_matches_some_are_drawn_and_it_is_said(explained, localizer, tmp_path, monkeypatch):
    monkeypatch.setattr(explain, "LINES_SHOWN", 2)
    first = written(tmp_path / "why.html", explained, localizer).read_text().split('<figure class="reference">')[1]
    assert first.count("<line ") == 2
    assert "2 of 3 matches agree, 2 are drawn; similarity" in first


def test_a_panorama_is_drawn_above_its_references(explained, localizer, tmp_path):
    compared = replace(explained.compared, query_hw=(60, 320))
    wide = replace(explained, compared=compared, query_pixels=explained.query_pixels[:60])
    first = written(tmp_path / "why.html", wide, localizer).read_text().split('<figure class="reference">')[1]
    below = 60 + explain.GAP
    assert f'viewBox="0 0 320 {below + 240}"' in first
    assert f'<image x="0" y="{below}" width="320" height="240"' in first
    # From the query's cell to the place in the reference below it.
    assert f'<line x1="{HALF:.1f}" y1="{HALF:.1f}" x2="12.0" y2="{below + 14:.1f}"/>' in first


def test_where_the_scale_is_not_known_no_length_is_said_in_centimetres(explained, localizer, tmp_path):
    known = written(tmp_path / "known.html", explained, localizer).read_text()
    assert "right, within 25 cm and 10 degrees, with a chance of" in known
    assert ">2.0 cm, 0.57°<" in known
    assert "Squares of 1 m." in known
    unknown = written(tmp_path / "unknown.html", explained, localizer, scale_is_known=False).read_text()
    assert "right, within 0.25 units of the map and 10 degrees, with a chance of" in unknown
    assert "Chances are calibrated in metres. Here they are a guess." in unknown
    assert ">0.020 units, 0.57°<" in unknown
    assert "Squares of 1 unit of the map." in unknown
    assert not re.search(r"\d c?m\b", re.sub(r"data:[^\"&]*", "", unknown))


def test_the_page_holds_all_it_needs(explained: Explained, localizer: Localizer, tmp_path: Path):
    text = written(tmp_path / "why.html", explained, localizer).read_text()
    assert re.findall(r"""(?:href|src)=["'](?!data:|#)[^"']*""", text) == []
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


# In the browser


@pytest.fixture(scope="module")
def page_file(explained: Explained, localizer: Localizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "why.html"
    return written(path, explained, localizer, notes=["The scale is not known."])


@pytest.fixture(params=[(1100, 800, "light"), (390, 844, "dark")], ids=["desk", "phone"])
def page(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, opened; whatever it complains of or asks for is an error."""
    width, height, scheme = request.param
    opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: complaints.append(request.url))
    opened.goto(page_file.as_uri())
    yield opened
    opened.close()
    assert [text for text in complaints if not text.startswith(("file:", "data:", "about:"))] == []


def test_the_page_says_what_was_decided_and_why(page: Any):
    assert page.locator("h1").inner_text() == "a <b>query</b>.png"
    assert page.locator(".verdict").inner_text() == "Localized"
    assert page.locator("#reason").inner_text() == "3 of 4 matches with 3 references agree on the pose."
    assert "83%" in page.locator("body").inner_text()
    assert page.locator(".note").inner_text() == "The scale is not known."
    assert page.locator("text=log odds").count() == 1
    assert page.locator("text=encode").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_photos_and_matches_are_drawn_and_can_be_left_out(page: Any):
    pairs = page.locator(".reference")
    assert pairs.count() == 3
    assert pairs.nth(0).locator("g.in line").count() == 2
    assert pairs.nth(0).locator("g.out line").count() == 1
    # From the query's cell on the left to the place in the reference on the right of it.
    line = pairs.nth(0).locator("g.in line").first
    left = page.evaluate("document.querySelector('.reference image').x.baseVal.value")
    assert float(line.get_attribute("x1")) == HALF
    assert float(line.get_attribute("x2")) == left + 12.0
    assert page.locator("rect.cell").count() == 2
    assert page.evaluate(
        """async () => (await Promise.all([...document.querySelectorAll("image")].map(image => {
             const photo = new Image();
             photo.src = image.href.baseVal;
             return photo.decode().then(() => photo.naturalWidth);
           }))).every(width => width > 100)"""
    )
    for switch, drawn in (("#show-in", "svg g.in line"), ("#show-out", "svg g.out line")):
        assert page.locator(drawn).first.is_visible()
        page.locator(switch).uncheck()
        assert not page.locator(drawn).first.is_visible()


def test_the_cameras_are_there_in_three_dimensions(page: Any):
    view = page.frame_locator("iframe")
    assert view.locator("#legend label").all_inner_texts() == ["map (2)", "references (3)", "answer (1)"]
    frame = page.frames[1]
    frame.wait_for_function("() => cameras.every(camera => camera.seen)")


def test_a_refusal_shows_its_best_guess_as_such(
    browser: Any, explained: Explained, localizer: Localizer, tmp_path: Path
):
    answer = replace(explained.named.answer, T_world_cam=None, localized=False, reason="Not sure enough: 12 %.")
    refused = replace(explained, named=replace(explained.named, answer=answer))
    page = browser.new_page()
    page.goto(written(tmp_path / "why.html", refused, localizer).as_uri())
    assert page.locator(".verdict").inner_text() == "Not localized"
    assert page.locator("#reason").inner_text() == "Not sure enough: 12 %."
    assert "best guess, refused (1)" in page.frame_locator("iframe").locator("#legend").inner_text()
    page.close()
