"""Files of numbers say where they came from."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from relograph.results import command_line, source_sha256, write_result

REPOSITORY = Path(__file__).parents[1]


def read(path: Path) -> dict[str, object]:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def test_a_result_carries_its_rows_and_its_provenance(tmp_path: Path):
    path = tmp_path / "bench" / "rooms.json"
    before = datetime.now(UTC).replace(microsecond=0)
    write_result(
        path,
        [{"images_per_s": 12.5, "effects": True}, {"images_per_s": 20, "effects": False}],
        command="relograph bench rooms",
        seed=3,
        details={"dataset": "SevenRooms"},
    )
    document = read(path)
    assert set(document) == {"metadata", "results"}
    assert document["results"] == [{"images_per_s": 12.5, "effects": True}, {"images_per_s": 20, "effects": False}]
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    assert set(metadata) == {
        *(
            "command",
            "git_commit",
            "git_dirty",
            "source_sha256",
            "timestamp_utc",
            "python",
            "relograph",
            "torch",
            "numpy",
        ),
        *("device", "device_name", "num_cores", "seed", "dataset"),
    }
    assert (metadata["command"], metadata["seed"], metadata["dataset"]) == ("relograph bench rooms", 3, "SevenRooms")
    assert before <= datetime.fromisoformat(metadata["timestamp_utc"]) <= datetime.now(UTC)
    assert metadata["timestamp_utc"].endswith("Z")
    assert metadata["torch"] == version("torch")
    assert metadata["numpy"] == version("numpy")
    assert metadata["python"] == ".".join(map(str, sys.version_info[:3]))
    assert metadata["device"] == "cpu"
    assert metadata["device_name"]
    assert metadata["num_cores"] >= 1


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout(tmp_path: Path):
    write_result(tmp_path / "result.json", [], command="", seed=None)
    head = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    metadata = read(tmp_path / "result.json")["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["git_commit"] == head.stdout.strip()
    assert isinstance(metadata["git_dirty"], bool)


def test_a_result_that_cannot_be_written_leaves_the_old_one_and_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "result.json"
    write_result(path, [{"value": 1}], command="", seed=0)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_result(path, [{"value": float("nan")}], command="", seed=0)
    assert read(path)["results"] == [{"value": 1}]
    assert list(tmp_path.iterdir()) == [path]


def test_details_cannot_replace_what_was_found_out(tmp_path: Path):
    with pytest.raises(ValueError, match="git_commit"):
        write_result(tmp_path / "result.json", [], command="", seed=0, details={"git_commit": "feedface"})


def test_the_command_line_can_be_typed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/relograph", "convert", "my scene", "--to", "tum"])
    assert command_line() == "relograph convert 'my scene' --to tum"


def test_the_command_line_tells_no_folders_of_a_machine(monkeypatch: pytest.MonkeyPatch):
    words = ["bench", "match", "--output", "/home/me/speeds.json", "--cache=/var/cache/me", "--parts", "results/parts"]
    monkeypatch.setattr(sys, "argv", ["relograph", *words])
    assert command_line() == "relograph bench match --output speeds.json --cache=me --parts results/parts"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "results").rglob("*.json")), ids=lambda path: path.name)
def test_committed_results_say_where_they_came_from(path: Path):
    metadata = read(path)["metadata"]
    assert isinstance(metadata, dict)
    assert {"command", "git_commit", "git_dirty", "timestamp_utc", "torch", "device", "seed"} <= set(metadata)
    assert re.fullmatch(r"[0-9a-f]{40}", str(metadata["git_commit"]))
    assert not re.search(r"(^|[\s=])/(?!dev/)", str(metadata["command"])), "a path of somebody's machine"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "results").rglob("*.json")), ids=lambda path: path.name)
def test_committed_results_come_from_the_code_of_their_commit(path: Path, tmp_path: Path):
    metadata = read(path)["metadata"]
    assert isinstance(metadata, dict)
    git = ["git", "-C", str(REPOSITORY)]
    archive = subprocess.run([*git, "archive", str(metadata["git_commit"]), "src"], capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip("the commit is not in this checkout, which may be shallow or no checkout at all")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    assert metadata["source_sha256"] == source_sha256(tmp_path / "src" / "relograph")


def test_outside_a_checkout_the_commit_is_what_the_environment_says(tmp_path: Path):
    shutil.copytree(
        REPOSITORY / "src" / "relograph", tmp_path / "relograph", ignore=shutil.ignore_patterns("__pycache__")
    )
    program = """
import os
from relograph.results import provenance
print(provenance(command="", seed=0)["git_commit"])
os.environ["RELOGRAPH_COMMIT"] = "0123abcd"
provenance(command="", seed=0)
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "RELOGRAPH_COMMIT": "0123abcd" * 5}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "0123abcd" * 5
    assert "expected the 40 digits of a commit, found '0123abcd'" in done.stderr


def test_the_hash_of_the_source_changes_with_any_file(tmp_path: Path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = source_sha256(tmp_path)
    (tmp_path / "b.py").write_text("")
    with_another = source_sha256(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    assert len({before, with_another, source_sha256(tmp_path)}) == 3
