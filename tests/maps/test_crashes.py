"""A writer that is killed at any moment leaves a whole map; `make crash-test` kills it more often."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def test_ten_kills_leave_whole_maps():
    done = subprocess.run(
        [sys.executable, FOLDER / "crashing.py", "--kills", "10", "--seed", "7"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("10 kills: ")
    assert "no committed photo was lost" in done.stdout
