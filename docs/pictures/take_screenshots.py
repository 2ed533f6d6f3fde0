"""Takes the pictures of docs/view.md and docs/report.md, of the room that `make demo` makes, in a real Chromium.

Run: python docs/pictures/take_screenshots.py demo/rooms/room-1 demo/pictures  # what the second folder has is kept
"""

import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from relograph.scenes import open_scene

PICTURES = Path(__file__).parent
FLAGS = (
    *("--headless", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
)
SIZE = {"width": 1200, "height": 760}
EVERY = 3
"""One photo in so many: a minute instead of three."""


WAIT_MS = 20_000
"""For frusta to fade in, where no GPU draws them."""


def relograph(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "relograph", *map(str, arguments)]


def save(page: Page, name: str) -> None:
    """A screenshot in few colours, which is a third as large; the legend's small squares keep theirs."""
    path = PICTURES / name
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(192, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def main(room: Path, out: Path) -> None:
    room, out = room.resolve(), out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    scene = open_scene(room)
    for name, frames in (("map.txt", scene.train), ("query.txt", scene.test)):
        (out / name).write_text("".join(f"{frame.name}\n" for frame in list(frames)[::EVERY]))
    if not (out / "eval").is_dir():
        lists = ("--map", out / "map.txt", "--query", out / "query.txt")
        subprocess.run(relograph("eval", "--scene", room, *lists, "--output", out / "eval"), check=True)
    if not (out / "room.map").is_dir():
        subprocess.run(relograph("map", "create", out / "room.map", room, "--split", "train"), check=True)
    answers = out / "eval" / "predictions" / "relograph-regression.csv.gz"
    view = ("view", "room.map", "--predictions", answers, "--photos", room)
    subprocess.run(relograph(*view, "--save", out / "room.html"), check=True, cwd=out)
    subprocess.run(relograph("report", out / "eval", "--data", room), check=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        page = browser.new_page(viewport=SIZE)
        page.goto((out / "room.html").as_uri())
        page.locator("#walk input").fill("12")
        page.wait_for_timeout(500)
        save(page, "view-page.png")
        page.goto((out / "eval" / "report.html").as_uri())
        page.wait_for_timeout(500)
        save(page, "report.png")
        served = subprocess.Popen(
            relograph(*view, "--no-open", "--port", 0), stdout=subprocess.PIPE, text=True, cwd=out
        )
        try:
            assert served.stdout is not None
            page.goto(served.stdout.readline().split()[0])
            page.get_by_text("Software WebGL").wait_for()
            page.locator(".mantine-Notification-closeButton").first.click()
            page.wait_for_timeout(WAIT_MS)
            save(page, "view-live.png")
        finally:
            served.terminate()
            served.wait()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
