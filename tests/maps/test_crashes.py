"""A writer that is killed at any moment leaves a whole map; `make crash-test` kills it more often."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(("num_kills", "options"), [(100, []), (10, ["--postgresql"])], ids=["folder", "postgresql"])
def test_kills_at_any_moment_leave_whole_maps(num_kills: int, options: list[str]):
    done = subprocess.run(
        [sys.executable, FOLDER / "crashing.py", "--kills", str(num_kills), "--seed", "7", *options],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = re.match(r"(\d+) kills: ", done.stdout)
    assert told is not None
    assert int(told[1]) >= num_kills
    assert "no committed photo was lost" in done.stdout
