"""A real Chromium for the tests, driven by Playwright; without one they are skipped, with a line that says why."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser as long as the context lasts."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install 'relograph[dev]'")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()
