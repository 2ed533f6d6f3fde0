"""A real Chromium for the tests, driven by Playwright; conftest.py skips them where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
)


def lacking() -> str | None:
    """What there is no browser for want of, and how to get it; None where there is one."""
    if CHROMIUM is None:
        return "no Chromium on PATH: apt-get install chromium"
    return None if find_spec("playwright") else "no Playwright: pip install 'relograph[dev]'"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser as long as the context lasts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()
