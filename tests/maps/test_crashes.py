"""A writer that is killed at any moment leaves a whole map; `make crash-test` kills it more often."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("options", [[], ["--postgresql"]], ids=["folder", "postgresql"])
def test_ten_kills_leave_whole_maps(options: list[str]):
    done = subprocess.run(
        [sys.executable, FOLDER / "crashing.py", "--kills", "10", "--seed", "7", *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("10 kills: ")
    assert "no committed photo was lost" in done.stdout
