"""The service's page in a real Chromium, from a real service with the package's own weights: what users do, and what
they are told when it cannot be done.
"""

import io
import json
import re
import runpy
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import painted_box
from relograph.geometry import Pose
from relograph.maps import Map
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn
from relograph.scenes import open_scene
from relograph.serving.keys import create_key, revoke_key
from relograph.viewer.answers import map_of_demo
from serving.running_services import Running, network_at_work, running, wait_until

REPOSITORY = Path(__file__).parents[2]
DESK, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
SETTLE_MS = 150  # until what was asked for is drawn; no motion has to end, as the browser asks for none
ANSWER_COLOR, REFERENCE_COLOR, MAP_COLOR = (0x00, 0x72, 0xB2), (0x00, 0x9E, 0x73), (0x7B, 0x85, 0x91)
ABOUT_RIGHT_M = 0.1
WITHOUT_WEBGL = """{
  const before = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
    return kind.startsWith("webgl") ? null : before.call(this, kind, ...rest);
  };
}"""


@pytest.fixture(scope="module")
def scene_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small painted room with eight photos for the map and two queries."""
    return painted_box.write_scene(tmp_path_factory.mktemp("room") / "cube", num_map=8, num_queries=2)


@pytest.fixture(scope="module")
def network() -> LoadedMatchGNN:
    return load_match_gnn()


@pytest.fixture(scope="module")
def map_path(scene_root: Path, network: LoadedMatchGNN) -> Path:
    """The map that the demo would leave behind."""
    path = scene_root.with_name("cube.map")
    map_of_demo(path, list(open_scene(scene_root).train), network)
    return path


@pytest.fixture(scope="module")
def service(map_path: Path, network: LoadedMatchGNN) -> Iterator[Running]:
    with running(str(map_path), network=network, queue=1) as service:
        yield service


@pytest.fixture(scope="module")
def query(scene_root: Path) -> Path:
    return scene_root / "seq-02" / "frame-000000.color.png"


@pytest.fixture(scope="module")
def T_world_query(query: Path) -> Pose:
    T = np.loadtxt(str(query).replace(".color.png", ".pose.txt"))
    return Pose.from_rotation_and_translation(T[:3, :3], T[:3, 3])


@contextmanager
def opened(
    browser: Any, url: str, *, statuses: tuple[int, ...] = (), script: str = "", **options: Any
) -> Iterator[Any]:
    """The page; at the end, whatever it complained of or asked elsewhere is an error, but answers of those statuses."""
    context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
    context.add_init_script(script)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: is_about_speed(message.text) or complaints.append(f"{message.type}: {message.text}")
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: is_ours(request.url, url) or complaints.append(request.url))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    told = tuple(
        f"error: Failed to load resource: the server responded with a status of {status}" for status in statuses
    )
    assert [text for text in complaints if not (told and text.startswith(told))] == []


def is_about_speed(text: str) -> bool:
    """That reading a picture of the view back, as a test does, is slow."""
    return "GL Driver Message (OpenGL, Performance" in text


def is_ours(address: str, url: str) -> bool:
    return urlsplit(address).scheme in ("blob", "data") or address.startswith(url)


@pytest.fixture
def page(browser: Any, service: Running) -> Iterator[Any]:
    with opened(browser, service.url) as page:
        wait_for_map(page)
        yield page


@pytest.fixture(scope="module")
def answered(browser: Any, service: Running, query: Path) -> Iterator[Any]:
    """The page with the answer to the query, for tests that leave it as it is."""
    with opened(browser, service.url) as page:
        wait_for_map(page)
        assert num_pixels(page, MAP_COLOR) > 50
        assert num_pixels(page, ANSWER_COLOR) == 0
        assert ask(page, query) == "Found"
        yield page


def wait_for_map(page: Any, num_photos: int = 8) -> None:
    page.locator("#frames-count", has_text=f"({num_photos})").wait_for()


def ask(page: Any, photo: Path | dict[str, Any], outcome: str = "#verdict .verdict") -> str:
    """Choose a photo; what the page says in the end."""
    page.set_input_files("#choose", photo)
    return said(page, outcome)


def said(page: Any, outcome: str = "#verdict .verdict") -> str:
    page.locator(outcome).wait_for(timeout=60_000)
    page.wait_for_timeout(SETTLE_MS)
    return str(page.locator(outcome).inner_text())


def answer_of(page: Any) -> dict[str, Any]:
    return dict(json.loads(page.locator("#json").text_content()))


def num_pixels(page: Any, color: tuple[int, int, int]) -> int:
    """Of the view, that have about that color."""
    over = [page.locator(part) for part in ("#legend", "#view-buttons", "#chosen")]
    shot = page.locator("#canvas").screenshot(mask=over, mask_color="#ff00ff")
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
    return int((np.abs(pixels - color).max(axis=-1) < 24).sum())


def place_of(page: Any, group: str, row: int) -> tuple[float, float]:
    """Where a camera of the view is in the window."""
    page.locator("#canvas").scroll_into_view_if_needed()
    x, y = page.evaluate(
        """async ([group, row]) => {
          const { view } = await import(new URL("page/page.js", document.baseURI));
          const box = view.canvas.getBoundingClientRect();
          const [x, y] = view.place(view.frusta[group].cameras[row]);
          return [x + box.left, y + box.top];
        }""",
        [group, row],
    )
    return x, y


def test_a_photo_is_found_where_it_was_taken(answered: Any, T_world_query: Pose):
    page, answer = answered, answer_of(answered)
    assert np.linalg.norm(np.array(answer["cam_center_world"]) - T_world_query.t.numpy()) < ABOUT_RIGHT_M
    words = page.locator("#verdict").inner_text()
    assert "right within 25 cm and 10 degrees" in words
    x, y, z = (f"{value:.2f}" for value in answer["cam_center_world"])
    assert f"The camera was at x {x}, y {y}, z {z} m." in words
    bar, filled = (page.locator(css).bounding_box()["width"] for css in (".bar", ".bar i"))
    assert filled / bar == pytest.approx(answer["confidence"], abs=0.01)
    labels = page.locator("#legend label").all_inner_texts()
    assert labels == ["map (8)", f"references ({len(answer['references'])})", "answer (1)"]
    assert num_pixels(page, ANSWER_COLOR) > 100
    assert num_pixels(page, REFERENCE_COLOR) > 100
    assert answer["map"]["name"] in page.locator("#tables").inner_text()


def test_references_are_shown_with_the_matches_that_agree_and_those_that_do_not(answered: Any):
    page, references = answered, answer_of(answered)["references"]
    assert page.locator(".pair strong").all_inner_texts() == [reference["name"] for reference in references]
    matches = [reference["matches"]["inlier"] for reference in references]
    assert page.locator(".pair .in line").count() == sum(map(sum, matches)) > 0
    assert page.locator(".pair line").count() == sum(map(len, matches))
    sizes = page.evaluate("() => [...document.querySelectorAll('.photos img')].map(image => image.naturalWidth)")
    assert len(sizes) == 2 * len(references)
    assert min(sizes) > 100
    page.uncheck("#show-in")
    assert not page.locator(".pair .in").first.is_visible()
    page.check("#show-in")
    page.uncheck("#show-out")
    assert page.locator(".pair .in line").first.is_visible()
    page.check("#show-out")


def boxes_of_first_pair(page: Any) -> list[dict[str, float]]:
    """Where the photo and the first reference are in the window; their first line that agrees joins them."""
    boxes = [page.locator(".pair").first.locator("img").nth(i).bounding_box() for i in (0, 1)]
    matches = answer_of(page)["references"][0]["matches"]
    row = matches["inlier"].index(True)
    ends = page.evaluate(
        """() => {
          const line = document.querySelector(".pair .in line");
          const start = new DOMPoint(line.x1.baseVal.value, line.y1.baseVal.value);
          const end = new DOMPoint(line.x2.baseVal.value, line.y2.baseVal.value);
          return [start, end].map(point => point.matrixTransform(line.getScreenCTM())).map(({ x, y }) => [x, y]);
        }"""
    )
    for box, (x, y), there in zip(boxes, (matches["query_xy"][row], matches["ref_xy"][row]), ends, strict=True):
        expected = (box["x"] + x * box["width"], box["y"] + y * box["height"])
        assert tuple(there) == pytest.approx(expected, abs=1.5)
    return boxes


def test_lines_begin_and_end_where_the_matches_are(answered: Any):
    ours, reference = boxes_of_first_pair(answered)
    assert ours["y"] == reference["y"]
    assert ours["x"] + ours["width"] < reference["x"]


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_panorama_is_above_the_photos_it_was_compared_with(
    browser: Any, service: Running, query: Path, viewport: dict[str, int], tmp_path: Path
):
    """Beside them it would be a strip that nobody can read."""
    photo = Image.open(query)
    band = (0, photo.height // 3, photo.width, photo.height // 3 + photo.width // 4)
    photo.crop(band).resize((1600, 400)).save(tmp_path / "panorama.png")
    with opened(browser, service.url, viewport=viewport) as page:
        wait_for_map(page)
        ask(page, tmp_path / "panorama.png")
        page.wait_for_load_state("networkidle")
        ours, reference = boxes_of_first_pair(page)
        assert ours["width"] == pytest.approx(page.locator(".photos").first.bounding_box()["width"], abs=1)
        assert ours["width"] / ours["height"] == pytest.approx(4, rel=0.02)
        assert reference["y"] > ours["y"] + ours["height"]
        assert reference["height"] == pytest.approx(ours["width"] / 2, rel=0.02)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_camera_that_is_clicked_shows_its_photo(answered: Any, query: Path):
    page = answered
    assert not page.locator("#chosen").is_visible()
    page.mouse.click(*place_of(page, "answer", 0))
    page.locator("#chosen img").wait_for()
    assert page.locator("#chosen figcaption").inner_text().startswith(f"{query.name} (answer), at ")
    page.uncheck("#show-answer")
    page.uncheck("#show-references")
    page.wait_for_timeout(SETTLE_MS)
    assert num_pixels(page, ANSWER_COLOR) == 0
    page.mouse.click(*place_of(page, "map", 3))
    page.locator("#chosen figcaption", has_text="(map)").wait_for()
    page.locator("#chosen img").wait_for()
    assert page.evaluate("() => document.querySelector('#chosen img').naturalWidth") > 100
    page.click("#close-chosen")
    assert not page.locator("#chosen").is_visible()
    page.check("#show-answer")
    page.check("#show-references")


def test_the_view_turns_and_comes_closer_and_goes_back(page: Any):
    def apart() -> float:
        (x0, y0), (x1, y1) = place_of(page, "map", 0), place_of(page, "map", 1)
        return float(np.hypot(x1 - x0, y1 - y0))

    before = apart()
    page.click("#closer")
    page.wait_for_timeout(SETTLE_MS)
    assert apart() > 1.15 * before
    x, y = place_of(page, "map", 0)
    page.mouse.move(x, y + 150)
    page.mouse.down()
    page.mouse.move(x + 120, y + 150, steps=4)
    page.mouse.up()
    page.wait_for_timeout(SETTLE_MS)
    assert np.hypot(*np.subtract(place_of(page, "map", 0), (x, y))) > 2
    assert not page.locator("#chosen").is_visible()  # to drag is not to click
    page.click("#whole")
    page.wait_for_timeout(SETTLE_MS)
    assert apart() == pytest.approx(before, rel=0.01)


def test_twenty_thousand_cameras_are_one_mesh_and_each_can_be_clicked(page: Any):
    """They are not drawn here: without a GPU that takes seconds."""
    instances, found = page.evaluate(
        """async () => {
          const { view } = await import(new URL("page/page.js", document.baseURI));
          view.clear();
          view.setShown("map", false);
          for (let at = 0; at < 20000; at += 1000) {
            view.addMapCameras(Array.from({ length: 1000 }, (_, i) => {
              const [x, y] = [(at + i) % 200, Math.floor((at + i) / 200)];
              const T_world_cam = [[1, 0, 0, 4e6 + x], [0, 0, 1, 5e6 + y], [0, -1, 0, 1.5], [0, 0, 0, 1]];
              return { name: `${at + i}`, group: "map", width: 640, height: 480, focal_px: 500, T_world_cam };
            }));
          }
          view.orbit.fromAbove();
          await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          view.setShown("map", true);
          const asked = [0, 10100, 19999].map(row => view.frusta.map.cameras[row]);
          return [view.frusta.map.meshes.map(mesh => mesh.geometry.instanceCount),
            asked.map(camera => view.cameraAt(...view.place(camera)).name)];
        }"""
    )
    assert instances == [20_000]
    assert found == ["0", "10100", "19999"]  # far from the world's origin, too


def test_the_answer_is_downloaded_as_the_service_sent_it(answered: Any):
    page = answered
    with page.expect_download() as download:
        page.click("#download")
    assert json.loads(Path(download.value.path()).read_text()) == answer_of(page)
    page.click("#copy")
    page.locator("#copied", has_text="cop").wait_for()


def test_options_go_with_the_photo_and_are_asked_again(page: Any, query: Path):
    page.click("#options summary")
    page.fill("#num-references", "3")
    page.fill("#focal", str(painted_box.CAMERA.fx))
    page.select_option("#solver", "geometric")
    ask(page, query)
    assert len(answer_of(page)["references"]) == 3
    assert answer_of(page)["focal_px"] == pytest.approx(painted_box.CAMERA.fx)
    page.fill("#num-references", "99")
    page.click("#again")
    assert page.evaluate("() => document.querySelector('#num-references').validity.rangeOverflow")
    page.fill("#num-references", "2")
    page.click("#again")
    page.locator("#legend", has_text="references (2)").wait_for()


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_photo_can_be_dropped_and_pasted(page: Any, query: Path, kind: str):
    page.evaluate(
        """([bytes, kind]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: "image/png" }));
          document.body.dispatchEvent(kind === "drop" ? new DragEvent(kind, { dataTransfer: data, bubbles: true })
            : new ClipboardEvent(kind, { clipboardData: data, bubbles: true }));
        }""",
        [list(query.read_bytes()), kind],
    )
    assert said(page) == "Found"
    assert page.locator("#photo-note").inner_text() == f"{kind}.png"


def test_a_tall_photo_that_the_browser_cannot_show_keeps_its_shape(page: Any, query: Path, tmp_path: Path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="no decoder of HEIC: pip install 'relograph[heic]'")
    tall = Image.open(query).convert("RGB").crop((70, 0, 250, 240))
    pillow_heif.from_pillow(tall).save(tmp_path / "tall.heic")
    ask(page, tmp_path / "tall.heic")
    box = page.locator(".pair .no-photo").first.bounding_box()
    assert box["width"] / box["height"] == pytest.approx(180 / 240, rel=0.02)
    assert (answer_of(page)["width"], answer_of(page)["height"]) == (180, 240)
    is_text_on_top = """() => {
      const { x, y, width, height } = document.querySelector(".no-photo span").getBoundingClientRect();
      return document.elementFromPoint(x + width / 2, y + height / 2).matches(".no-photo span");
    }"""
    page.locator(".pair svg").first.evaluate("svg => { svg.style.pointerEvents = 'auto'; }")  # or it is never hit
    page.locator(".pair").first.scroll_into_view_if_needed()
    assert page.evaluate(is_text_on_top)


def test_a_photo_of_another_place_is_not_found_and_it_is_said_why(page: Any, T_world_query: Pose, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere.png"
    Image.fromarray(painted_box.photo(painted_box.painting(99), T_world_query)).save(elsewhere)
    assert ask(page, elsewhere) == "Not found in this map"
    answer = answer_of(page)
    assert answer["localized"] is False
    assert page.locator("#reason").inner_text() == answer["reason"]
    assert not [text for text in page.locator("#legend label").all_inner_texts() if "answer" in text]
    assert num_pixels(page, ANSWER_COLOR) == 0
    assert page.locator(".pair").count() == len(answer["references"])


def test_what_is_no_photo_is_told_and_the_next_photo_is_answered(browser: Any, service: Running, query: Path):
    with opened(browser, service.url, statuses=(415, 422)) as page:
        wait_for_map(page)
        words = ask(page, {"name": "list.txt", "mimeType": "text/plain", "buffer": b"milk, bread"}, "#problem")
        assert "The server cannot read this" in words
        assert "JPEG" in words
        assert page.locator("#photo-note").inner_text() == "list.txt (this browser cannot show it)"
        whole = query.read_bytes()
        words = ask(page, {"name": "half.png", "mimeType": "image/png", "buffer": whole[: len(whole) // 2]}, "#problem")
        assert "The server cannot read this file as a photo." in words
        assert ask(page, query) == "Found"
        assert not page.locator("#problem").is_visible()


def test_a_busy_server_is_asked_again_when_it_said(browser: Any, service: Running, query: Path):
    with opened(browser, service.url, statuses=(429,)) as page:
        wait_for_map(page)
        with service.service.answering.accepted():  # the one place that there is
            words = ask(page, query, "#problem")
        assert "The server is busy." in words
        assert re.search(r"Try again in \d+ seconds?\.", words)
        again = page.get_by_role("button", name="Try again", exact=True)
        again.click()
        assert said(page) == "Found"


def test_a_photo_whose_localizing_was_stopped_is_asked_about_again(page: Any, service: Running, query: Path):
    with network_at_work(service):
        page.set_input_files("#choose", query)
        page.click("#stop")
        assert "Stopped." in said(page, "#problem")
        assert not page.locator("#working").is_visible()
    page.get_by_role("button", name="Try again").click()
    assert said(page) == "Found"


def test_a_map_that_the_key_may_not_see_any_more_is_not_named_and_others_are_offered(
    browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN, tmp_path: Path
):
    keys = tmp_path / "keys.json"
    both, key = create_key(keys, "read")
    one, _ = create_key(keys, "read", maps=["hall"])
    with (
        running(str(map_path), f"hall={map_path}", network=network, keys=keys) as service,
        opened(browser, service.url, statuses=(401, 404)) as page,
    ):
        page.fill("#key", both)
        page.keyboard.press("Enter")
        wait_for_map(page)
        revoke_key(keys, key.id)
        wait_until(lambda: service.client.get("/v1/maps", headers={"Authorization": f"Bearer {both}"}).is_error)
        page.set_input_files("#choose", query)
        page.fill("#key", one)
        page.keyboard.press("Enter")
        assert "That is not there any more." in said(page, "#problem")
        assert page.locator("#about-map").inner_text() == "relograph"
        page.get_by_role("button", name="Try again").click()
        assert said(page) == "Found"
        assert page.locator("#about-map").inner_text() == "Map hall: 8 photos"


@contextmanager
def map_taken_away(service: Running, folder: Path) -> Iterator[None]:
    """The service has noticed that its map cannot be read."""
    (folder / "map.sqlite").rename(folder / "gone")
    wait_until(lambda: service.client.get("/readyz").status_code == 503)
    yield
    (folder / "gone").rename(folder / "map.sqlite")


def test_a_map_that_is_away_comes_back_by_itself(
    browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN, tmp_path: Path
):
    folder = Path(shutil.copytree(map_path, tmp_path / "cube.map"))
    with running(str(folder), network=network) as service, ExitStack() as stack:
        with map_taken_away(service, folder):
            page = stack.enter_context(opened(browser, service.url, statuses=(503,)))
            words = said(page, "#problem")
            assert "The map is away just now." in words
            assert "The server cannot read cube." in words
            assert page.get_by_role("button", name="Try again").is_visible()
        wait_for_map(page)  # nobody pressed anything
        assert not page.locator("#problem").is_visible()
        with map_taken_away(service, folder):
            assert "The map is away just now." in ask(page, query, "#problem")
        assert said(page) == "Found"


def test_a_key_that_may_see_no_map_is_told_so(browser: Any, map_path: Path, network: LoadedMatchGNN, tmp_path: Path):
    secret, _ = create_key(tmp_path / "keys.json", "read", maps=["another"])
    with (
        running(str(map_path), network=network, keys=tmp_path / "keys.json") as guarded,
        opened(browser, guarded.url, statuses=(401,)) as page,
    ):
        page.fill("#key", secret)
        page.keyboard.press("Enter")
        words = said(page, "#problem")
        assert "There is no map to look in." in words
        assert "none that your key may see" in words


def test_a_server_that_went_away_is_told(browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN):
    with ExitStack() as stack:
        gone = stack.enter_context(running(str(map_path), network=network))
        page = stack.enter_context(opened_whatever_it_says(browser, gone.url))
        wait_for_map(page)
        gone.stop()
        page.wait_for_timeout(1000)
        assert "The server does not answer." in ask(page, query, "#problem")
        assert page.get_by_role("button", name="Try again").is_enabled()


@contextmanager
def opened_whatever_it_says(browser: Any, url: str) -> Iterator[Any]:
    """The page where the browser itself complains that nobody is there."""
    page = browser.new_page(viewport=DESK)
    page.goto(url)
    yield page
    page.close()


def test_a_key_is_asked_for_where_the_service_wants_one_and_kept_for_the_tab(
    browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN, tmp_path: Path
):
    secret, _ = create_key(tmp_path / "keys.json", "read")
    with (
        running(str(map_path), network=network, keys=tmp_path / "keys.json") as guarded,
        opened(browser, guarded.url, statuses=(401,)) as page,
    ):
        page.locator("#key").wait_for()
        page.keyboard.type("schlüssel€")  # the field has the focus
        page.keyboard.press("Enter")
        page.locator("#key-note", has_text="plain letters, digits and signs only").wait_for()
        page.reload()  # and such a key is not kept
        page.locator("#key").wait_for()
        assert "plain letters" not in page.locator("#key-note").inner_text()
        page.fill("#key", "not this one")
        page.keyboard.press("Enter")
        page.locator("#key-note", has_text="does not know the key").wait_for()
        page.fill("#key", secret)
        page.keyboard.press("Enter")
        wait_for_map(page)
        assert not page.locator("#key-form").is_visible()
        assert ask(page, query) == "Found"
        page.locator(".photos img").nth(1).wait_for()  # photos of the map come by the key, too
        page.reload()
        wait_for_map(page)
        assert not page.locator("#key-form").is_visible()


def test_in_a_map_of_unknown_scale_nothing_is_said_in_metres(
    browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN, tmp_path: Path
):
    shutil.copytree(map_path, tmp_path / "cube.map")
    place = Map.open(tmp_path / "cube.map")
    with place.store.change("test", {}) as change:
        change.set_settings(replace(place.settings, scale_is_known=False))
    with running(str(place.store.where), network=network) as service, opened(browser, service.url) as page:
        wait_for_map(page)
        assert ask(page, query) == "Found"
        words = page.locator("#verdict").inner_text()
        assert "right within 0.25 of the map's own units and 10 degrees" in words
        assert "Chances are calibrated in metres; here they are a guess." in words
        assert not re.search(r"\d c?m\b", page.locator("body").inner_text())


def test_of_several_maps_one_is_chosen(
    browser: Any, map_path: Path, query: Path, network: LoadedMatchGNN, tmp_path: Path
):
    smaller = map_of_demo(tmp_path / "corner.map", list(open_scene(query.parents[1]).train)[:3], network)
    with (
        running(str(map_path), str(smaller.store.where), network=network) as service,
        opened(browser, service.url) as page,
    ):
        wait_for_map(page)
        assert page.locator("#map option").all_inner_texts() == ["cube", "corner"]
        ask(page, query)
        page.select_option("#map", "corner")
        wait_for_map(page, 3)
        assert page.locator("#about-map").inner_text() == "Map corner: 3 photos"
        page.locator("#tables", has_text="corner").wait_for()  # the photo is looked for in the other map, too
        assert answer_of(page)["map"]["name"] == "corner"


def test_one_map_needs_no_choice(page: Any):
    assert not page.locator("#map").is_visible()
    assert page.locator("#about-map").inner_text() == "Map cube: 8 photos"


def test_on_a_phone_all_is_within_its_width_and_a_finger_does_what_a_mouse_does(
    browser: Any, service: Running, query: Path
):
    with opened(browser, service.url, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        wait_for_map(page)
        assert page.locator("#take").get_attribute("capture") == "environment"
        assert page.locator("label[for=take]").is_visible()
        assert ask(page, query) == "Found"
        for part in page.locator("details").all():
            part.evaluate("part => { part.open = true; }")
        assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE["width"]
        small = page.evaluate(
            """() => [...document.querySelectorAll(".button")].map(button => button.getBoundingClientRect())
              .filter(({ width, height }) => width && Math.min(width, height) < 36).length"""
        )
        assert small == 0  # for a thumb
        page.touchscreen.tap(*place_of(page, "answer", 0))
        page.locator("#chosen img").wait_for()
        assert page.locator("#chosen figcaption").inner_text().startswith(query.name)


def test_all_of_it_can_be_done_by_keys(page: Any, query: Path):
    def tab_to(element_id: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.id") == element_id:
                return
        pytest.fail(f"no way to {element_id} by the tabulator")

    choosers: list[Any] = []
    page.on(
        "filechooser", lambda chooser: choosers.append(chooser)
    )  # before the first key: it takes the browser a moment to know of it
    tab_to("choose")
    ring = page.evaluate("() => getComputedStyle(document.querySelector('label[for=choose]')).outlineStyle")
    assert ring == "solid"
    page.keyboard.press("Enter")
    for _ in range(200):
        if not choosers:
            page.wait_for_timeout(SETTLE_MS)
    choosers[0].set_files(query)
    assert said(page) == "Found"
    assert page.locator("#verdict").get_attribute("aria-live") == "polite"

    tab_to("canvas")
    before = place_of(page, "map", 0)
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(SETTLE_MS)
    assert place_of(page, "map", 0) != before
    assert num_pixels(page, ANSWER_COLOR) > 100
    tab_to("show-answer")
    page.keyboard.press("Space")
    page.wait_for_timeout(SETTLE_MS)
    assert num_pixels(page, ANSWER_COLOR) == 0
    page.locator("#frames-part summary").focus()
    page.keyboard.press("Enter")
    tab_to("frames")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator("#chosen figcaption", has_text="frame-000001").wait_for()
    page.get_by_role("button", name="Show its camera").first.focus()
    page.keyboard.press("Enter")
    page.locator("#chosen figcaption", has_text="(reference)").wait_for()


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = name => {
    const channels = [1, 3, 5].map(at => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16) / 255);
    const linear = channels.map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const grounds = ["--back", "--card"];
  const texts = ["--ink", "--soft", "--good", "--bad", "--accent"].flatMap(
    text => grounds.map(ground => contrast(text, ground)));
  const marks = ["--map", "--reference", "--answer", "--soft"].map(mark => contrast(mark, "--back"));
  return { texts: [...texts, contrast("--on-accent", "--accent")], marks, isDark: light("--back") < 0.1 };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_with_enough_contrast(
    browser: Any, service: Running, query: Path, scheme: str
):
    """As WCAG 2.2 AA asks: 4.5 for text, 3 for what is drawn."""
    with opened(browser, service.url, color_scheme=scheme) as page:
        wait_for_map(page)
        found = page.evaluate(CONTRASTS)
        assert found["isDark"] == (scheme == "dark")
        assert min(found["texts"]) >= 4.5
        assert min(found["marks"]) >= 3
        ask(page, query)
        ground = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
        assert (np.median(ground) < 64) == (scheme == "dark")


def test_without_webgl_the_rest_works(browser: Any, service: Running, query: Path):
    with opened(browser, service.url, script=WITHOUT_WEBGL) as page:
        wait_for_map(page)
        assert "cannot draw in 3-D" in page.locator("#no-canvas").inner_text()
        assert not page.locator("#canvas").is_visible()
        assert ask(page, query) == "Found"
        page.click("#frames-part summary")
        page.select_option("#frames", index=4)
        page.locator("#chosen img").wait_for()


def test_motion_is_left_out_for_who_asked_for_less(browser: Any, service: Running):
    """A look that is not at once there is there later."""
    look = """async () => {
      const { view } = await import(new URL("page/page.js", document.baseURI));
      view.orbit.fromAbove();
      return view.orbit.look.elevation;
    }"""
    with opened(browser, service.url, reduced_motion="reduce") as page:
        wait_for_map(page)
        assert page.evaluate(look) == pytest.approx(1.5)
    with opened(browser, service.url, reduced_motion="no-preference") as page:
        wait_for_map(page)
        assert page.evaluate(look) < 1.4


def test_the_pictures_of_the_documents_can_be_taken_anew(
    browser: Any, service: Running, query: Path, T_world_query: Pose, tmp_path: Path
):
    elsewhere, no_photo = tmp_path / "elsewhere.jpg", tmp_path / "list.txt"
    Image.fromarray(painted_box.photo(painted_box.painting(99), T_world_query)).save(elsewhere)
    no_photo.write_text("milk, bread")
    script = runpy.run_path(str(REPOSITORY / "docs" / "pictures" / "draw_web_page.py"))
    script["take_pictures"](browser, service.url, query, elsewhere, no_photo, tmp_path)
    page = (REPOSITORY / "docs" / "web-page.md").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.glob("*.png")} == set(re.findall(r"pictures/([\w-]+\.png)", page))
