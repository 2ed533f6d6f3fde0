"""Takes the pictures of docs/web-page.md: the service's page in a Chromium, on the map of the demo.

Run it after `make demo`, which makes the map: python docs/pictures/draw_web_page.py
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
QUERY = "seq-03/frame-000010.color.png"
ANOTHER_ROOM = (693, 178, 917, 345)
"""A view of the second room in rooms_preview.png, which the demo's map does not have."""
DESK, PHONE = {"width": 1280, "height": 1150}, {"width": 360, "height": 740}
GAP = 16
FLAGS = ("--headless", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def take_pictures(browser: Any, url: str, found: Path, not_found: Path, no_photo: Path, folder: Path) -> None:
    """What the page says to a photo of the map, to one of another place, and to a file that is none."""
    shot(browser, url, found, folder / "web-page.png", viewport=DESK)
    with TemporaryDirectory() as temporary:
        phones = [Path(temporary) / f"{number}.png" for number in range(3)]
        for photo, path, scheme in zip((found, not_found, no_photo), phones, ("light", "dark", "light"), strict=True):
            shot(browser, url, photo, path, viewport=PHONE, color_scheme=scheme, has_touch=True, is_mobile=True)
        side_by_side(phones, folder / "web-page-phone.png")


def shot(browser: Any, url: str, photo: Path, path: Path, **options: Any) -> None:
    context = browser.new_context(reduced_motion="reduce", **options)
    page = context.new_page()
    page.goto(url)
    page.locator("#legend").wait_for()
    page.set_input_files("#choose", photo)
    page.locator("#verdict .verdict, #problem:not([hidden])").first.wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")  # the references' photos
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    context.close()


def side_by_side(paths: list[Path], path: Path) -> None:
    pictures = [Image.open(one).convert("RGB") for one in paths]
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    joined = Image.new("RGB", (width, max(picture.height for picture in pictures)), "#8a929c")
    left = 0
    for picture in pictures:
        joined.paste(picture, (left, 0))
        left += picture.width + GAP
    joined.save(path, optimize=True)


def wait_until_ready(url: str) -> None:
    for _ in range(120):
        try:
            urlopen(f"{url}/readyz").close()
            return
        except URLError:  # it reads its weights and maps
            time.sleep(0.5)
    raise SystemExit(f"{url} was not ready within a minute")


def main(demo: Path) -> None:
    command = [sys.executable, "-m", "relograph", "serve", str(demo / "room-1.map"), "--port", "0"]
    with (
        TemporaryDirectory() as temporary,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service,
        sync_playwright() as playwright,
    ):
        try:
            assert service.stderr is not None
            url = service.stderr.readline().split()[0]
            wait_until_ready(url)
            another, text = Path(temporary) / "another-room.png", Path(temporary) / "shopping-list.txt"
            Image.open(HERE / "rooms_preview.png").crop(ANOTHER_ROOM).resize((896, 668)).save(another)
            text.write_text("milk, bread\n")
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
            take_pictures(browser, url, demo / "rooms" / "room-1" / QUERY, another, text, HERE)
            browser.close()
        finally:
            service.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo"))
