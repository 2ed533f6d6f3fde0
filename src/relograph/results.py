"""Files of numbers that say where they came from.

A number reaches a document one way: a command writes it with `write_result`, the file is committed, and the document
quotes the file.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import relograph
from relograph.environment import compute_device, installed_version, num_cores
from relograph.errors import ConfigError


def command_line() -> str:
    """The command that is running, as one would type it again in a shell, in the folder of its files.

    Folders of absolute paths are left out: they are those of a machine, and results are for everybody.
    """
    return shlex.join([program_name(), *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    option, equals, path = word.rpartition("=")
    return f"{option}{equals}{Path(path).name}" if Path(path).is_absolute() else word


def program_name() -> str:
    """What was called, without its folder: `python -m relograph` is relograph, too."""
    name = Path(sys.argv[0]).name
    return "relograph" if name == "__main__.py" else name


def write_result(
    path: Path,
    results: Sequence[Mapping[str, object]],
    *,
    command: str,
    seed: int | None,
    device: str = "cpu",
    details: Mapping[str, object] | None = None,
) -> None:
    """Writes `results`, one mapping a row, with their provenance as JSON; the file appears whole or not at all.

    `details` is further provenance, such as the data set or the checkpoint's hash. NaN and infinity are refused: JSON
    has no word for them, so a result that may lack a number says so with None.
    """
    metadata = provenance(command=command, seed=seed, device=device)
    for key, value in (details or {}).items():
        if key in metadata:
            raise ValueError(f"details may not replace {key!r}, which write_result finds out by itself")
        metadata[key] = value
    document = {"metadata": metadata, "results": [dict(row) for row in results]}
    _write_whole(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def provenance(*, command: str, seed: int | None, device: str = "cpu") -> dict[str, object]:
    """What it takes to get the same numbers again: command, code, time, versions, device, seed."""
    commit, dirty = _git_state(Path(__file__).parent)
    compute = compute_device(device)
    return {
        "command": command,
        "git_commit": commit,
        "git_dirty": dirty,
        "source_sha256": source_sha256(),
        "timestamp_utc": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "relograph": relograph.__version__,
        "torch": installed_version("torch"),
        "numpy": installed_version("numpy"),
        "device": device,
        "device_name": compute.name,
        "num_cores": num_cores(),
        "seed": seed,
    }


def source_sha256(package: Path = Path(__file__).parent) -> str:
    """A hash of every Python file of the package: the same for the same code, wherever it runs."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the package's own source and whether it was changed since.

    Outside a checkout, as on a machine that was sent the files alone, the commit is what RELOGRAPH_COMMIT says, and
    whether it was changed is unknown; the source's own hash stands beside it and can be compared.

    An installed copy may lie within somebody else's repository (a `.venv` in a project): git must know this very
    file, or the commit is not ours. Changes elsewhere, such as an earlier result, do not make the code dirty.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "--", Path(__file__).name) is None:
        told = os.environ.get("RELOGRAPH_COMMIT")
        if told is not None and not re.fullmatch("[0-9a-f]{40}", told):
            raise ConfigError(
                f"RELOGRAPH_COMMIT: expected the 40 digits of a commit, found {told!r}. Give what `git rev-parse HEAD` "
                "prints."
            )
        return told, None
    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    return (commit.strip() if commit else None), (bool(changes) if changes is not None else None)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp makes it readable for nobody else
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
