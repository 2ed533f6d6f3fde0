"""Peers that live in an environment of their own, made by `make peers`: asked through files, in a process of theirs."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import relograph
from relograph.errors import ConfigError, RelographError
from relograph.evaluation.peers.protocol import JobMatches, MatchJob, read_matches, write_job

SOURCE = Path(relograph.__file__).parents[1]
CHECKOUT = SOURCE.parent


def peers_python() -> Path:
    """The interpreter of the peers' environment."""
    python, script = CHECKOUT / ".venv-peers" / "bin" / "python", CHECKOUT / "peers" / "match.py"
    if not (python.exists() and script.exists()):
        raise ConfigError(
            f"The peers need an environment of their own, and there is none beside {SOURCE}. Run: make peers, in a "
            "checkout of relograph, or leave them out with --peers sift."
        )
    return python


def match_separately(method: str, job: MatchJob, advance: Callable[[int], None] = lambda steps: None) -> JobMatches:
    """The matches of a method of peers/match.py, by a process of its own."""
    command = [str(peers_python()), str(CHECKOUT / "peers" / "match.py"), method]
    with tempfile.TemporaryDirectory(prefix="relograph-peer-") as temporary:
        folder, matches = Path(temporary) / "job", Path(temporary) / "matches.npz"
        folder.mkdir()
        write_job(folder, job)
        with (Path(temporary) / "stderr").open("w+", encoding="utf-8", errors="replace") as said:
            with subprocess.Popen(
                [*command, str(folder), str(matches)],
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=os.environ | {"PYTHONPATH": str(SOURCE)},
            ) as process:
                assert process.stdout is not None
                try:
                    for _ in process.stdout:
                        advance(1)
                except BaseException:  # somebody pressed Ctrl-C: without this one would wait for the process's end
                    process.kill()
                    raise
            said.seek(0)
            last_words = said.read().strip().splitlines()[-1:] or ["nothing"]
        if process.returncode:
            raise RelographError(
                f"{method}: expected matches from its process, found that it ended with code {process.returncode} and "
                f"said: {last_words[0]}. Run: make peers"
            )
        return read_matches(matches, job)
