"""The files of the service's page: nothing of others but what NOTICE names, nothing that its content policy forbids."""

import hashlib
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "src" / "relograph" / "serving" / "page"
VENDORED = "three.module.min.js"
OURS = sorted(path.name for path in PAGE.iterdir() if path.name != VENDORED)


def test_three_is_the_release_that_the_notice_names():
    content = (PAGE / VENDORED).read_bytes()
    notice = " ".join((REPOSITORY / "NOTICE").read_text(encoding="utf-8").split())
    assert f"its SHA-256 is {hashlib.sha256(content).hexdigest()}" in notice
    (release,) = re.findall(r"three\.js, release 0\.(\d+)\.0", notice)
    assert f'const t="{release}"'.encode() in content[:300]
    assert b"Copyright 2010-2024 Three.js Authors" in content[:300]


@pytest.mark.parametrize("name", OURS)
def test_no_file_of_the_page_speaks_of_another_host(name: str):
    text = (PAGE / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == []


def test_the_page_has_no_script_or_style_inside():
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=", text) == []


@pytest.mark.parametrize("name", OURS)
def test_what_a_file_of_the_page_asks_for_is_there(name: str):
    text = (PAGE / name).read_text(encoding="utf-8")
    asked = re.findall(r'(?:href|src)="page/([^"]+)"|(?:from|import\() ?"\./([^"]+)"', text)
    assert [file for pair in asked for file in pair if file and not (PAGE / file).is_file()] == []


def test_every_element_that_a_script_looks_up_is_in_the_page():
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    scripts = "".join((PAGE / name).read_text(encoding="utf-8") for name in OURS if name.endswith(".js"))
    looked_up = set(re.findall(r'byId\("([a-z-]+)"\)', scripts))
    assert looked_up
    assert looked_up - set(re.findall(r'\sid="([a-z-]+)"', text)) == set()
