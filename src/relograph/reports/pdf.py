"""An HTML file as PDF, by the print of a browser that is installed."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from relograph.errors import ConfigError
from relograph.evaluation.writing import write_whole

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
SECONDS = 300
"""That a browser may take; a page of many figures takes seconds."""


def find_browser() -> str:
    """The first browser on PATH that can print."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise ConfigError(
            "--pdf: expected Chromium or Chrome on PATH to print with, found neither. Install one, for example: "
            "apt-get install chromium; or open the HTML file in a browser and print it."
        )
    return found


def print_to_pdf(page: Path, path: Path, browser: str) -> None:
    """Prints a page that needs nothing from elsewhere."""
    with tempfile.TemporaryDirectory(prefix="relograph-") as folder:
        printed = Path(folder) / "report.pdf"
        command = [
            browser,
            *("--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND", "--no-pdf-header-footer"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses to run as root with it
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={printed}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            said = " ".join(done.stderr.split())[-300:]
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if not printed.is_file():
            raise ConfigError(
                f"--pdf: expected {browser} to print {page}, found none printed: {said or 'no word of why'}. "
                "Open the HTML file in a browser and print it."
            )
        write_whole(path, printed.read_bytes())
