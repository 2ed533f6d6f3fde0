"""The documentation as a site: it is built without a warning, is whole, and opens from the disk without the network."""

import json
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image, ImageColor

import painted_box
import relograph
from relograph.evaluation.qualitative import ANSWER_COLOR
from test_documents import REPOSITORY

pytest.importorskip("mkdocs", reason="no mkdocs: pip install 'relograph[docs]'")


class Loaded(HTMLParser):
    """What a page makes a browser load, other than by a click."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("stylesheet", "icon", "preload", "preconnect", "modulepreload"):
            return
        self.urls += [url for name in ("src", "srcset", "poster") if (url := values.get(name))]
        if tag == "link" and (url := values.get("href")):
            self.urls.append(url)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=REPOSITORY, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_the_documents_is_in_the_navigation():
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w/.-]+\.md", json.dumps(nav))
    docs = REPOSITORY / "docs"
    assert {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} == {
        name for name in listed if not name.startswith("repository/")
    }
    assert len(listed) == len(set(listed))


def test_no_page_loads_anything_from_elsewhere(site: Path):
    seen = 0
    for page in pages(site):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        seen += len(loaded.urls)
        assert [url for url in loaded.urls if re.match(r"[a-z]+:|//", url) and not url.startswith("data:")] == [], page
    assert seen > len(pages(site))
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"url\(['\"]?([^'\")]+)|@import ['\"]([^'\"]+)", sheet.read_text(encoding="utf-8"))
        assert [url for both in urls for url in both if re.match(r"https?:|//", url)] == [], sheet


def test_links_lead_to_files_of_the_site(site: Path):
    for page in pages(site):
        if page.name == "404.html":
            continue  # a server shows it at any address
        for href in re.findall(r'href="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", href):
                assert (page.parent / href).exists(), f"{page.relative_to(site)}: {href}"


def test_the_reference_describes_every_public_name(site: Path):
    page = (site / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<h3 id="relograph\.(\w+)" class="doc', page))
    assert described == set(relograph.__all__) - {"__version__"}
    assert "The chance that the best pose is within 25 cm and 10 degrees of the truth." in page  # a field's docstring


def test_what_lies_outside_the_documents_is_there_too(site: Path):
    example = (site / "repository" / "examples" / "01_localize_one_photo.py.html").read_text(encoding="utf-8")
    assert "Posed photos become a map, and a photo gets a pose in it." in re.sub(r"<[^>]+>", "", example)
    assert "How the code is laid out" in (site / "repository" / "CONTRIBUTING.html").read_text(encoding="utf-8")


def test_the_pictures_of_the_concepts_can_be_drawn_anew(tmp_path: Path):
    pytest.importorskip("poselib", reason="no PoseLib: pip install 'relograph[geometry]'")
    script = runpy.run_path(str(REPOSITORY / "docs" / "pictures" / "draw_concepts.py"))
    scene = relograph.open_scene(painted_box.write_scene(tmp_path / "box", num_map=6))
    script["draw_concepts"](scene, tmp_path)
    shown = re.findall(
        r"pictures/(concept-\w+\.png)", (REPOSITORY / "docs" / "concepts.md").read_text(encoding="utf-8")
    )
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(shown)
    for name in shown:
        with Image.open(tmp_path / name) as drawn:
            assert drawn.width > 700
    # The legend has the very colour of the lines.
    with Image.open(tmp_path / "concept-matches.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    assert (pixels[0, 0] == 255).all()
    of_lines, of_legend = ((part == ImageColor.getrgb(ANSWER_COLOR)).all(axis=-1) for part in (pixels, pixels[-40:]))
    assert of_lines.sum() > 1000
    assert of_legend.sum() > 50


@pytest.mark.parametrize("width", [1280, 390])
def test_from_the_disk_the_site_is_read_and_searched_without_the_network(site: Path, browser: Any, width: int):
    page = browser.new_page(viewport={"width": width, "height": 844})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto((site / "index.html").as_uri())
    if width < 700:
        page.click("label.md-header__button[for=__search]")
    page.click(".md-search__input")
    page.keyboard.type("covariance")
    page.wait_for_selector(".md-search-result__item a[href*='localize.html']")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto((site / "concepts.html").as_uri())
    widths = page.evaluate("[...document.querySelectorAll('article img')].map(image => image.naturalWidth)")
    assert len(widths) >= 6
    assert min(widths) > 0
    page.close()
    assert [text for text in complaints if not text.startswith(("file:", "data:", "blob:"))] == []
