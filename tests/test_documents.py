"""What the documents say is run: their Python, their commands, their links."""

import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.main import get_command
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.evaluation.experiment_report import write_report

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
EXTRAS = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))

TAKES_MINUTES = {
    ("rooms", "create"),
    ("rooms", "preview"),
    ("bench", "rooms"),
    ("bench", "network"),
    ("train",),
    ("eval",),
    ("experiments", "run"),
    ("experiments", "report"),
    ("demo",),
}
"""Commands of which a document's line is only parsed; their own tests run them on something small."""

STAND_INS = ("kitchen", "demo/rooms/room-1")
"""Scenes that documents speak of; a scene of three frames stands in for each."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    language: str
    text: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(fence[1], fence[2], text[: fence.start()].count("\n") + 2) for fence in fences]


def run_python(block: Block, document: Path, names: dict[str, object]) -> None:
    lines_before = "\n" * (block.line - 1)  # so that a failure shows the document's own line
    exec(compile(lines_before + block.text, str(document), "exec"), names)


def run_shell_line(line: str) -> None:
    match shlex.split(line, comments=True):
        case []:
            pass
        case ["make", *targets]:
            assert targets
            assert set(targets) <= TARGETS, line
        case ["pip", "install", *arguments]:
            for argument in arguments:
                if argument not in ("-e", "."):
                    requirement = Requirement(argument.replace(".[", "relograph["))
                    assert requirement.name == "relograph", line
                    assert requirement.extras <= EXTRAS, line
        case ["relograph", *arguments]:
            run_relograph(arguments, line)
        case _:
            pytest.fail(f"a command that no test knows how to check: {line}")


def run_relograph(arguments: list[str], line: str) -> None:
    for slow in TAKES_MINUTES:
        if tuple(arguments[: len(slow)]) == slow:
            command = get_command(app)
            for name in slow:
                command = command.commands[name]
            command.make_context(slow[-1], arguments[len(slow) :])  # raises where an option is not known
            return
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_code_in_a_document_runs(
    document: Path, seven_scenes_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "reader"
    for name in STAND_INS:
        shutil.copytree(seven_scenes_folder, folder / name)
        # Rooms know their intrinsics; COLMAP's format cannot do without.
        (folder / name / "camera.txt").write_text("PINHOLE 32 24 30 30 16 12\n")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for block in blocks_of(document):
        if block.language == "python":
            run_python(block, document, names)
        elif block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                run_shell_line(line)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_of_a_document_lead_to_files(document: Path):
    prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    local = [target.partition("#")[0] for target in targets if not re.match(r"https?:|#", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_a_wrong_option_in_a_document_would_be_noticed():
    with pytest.raises(Exception, match="--room-count"):
        run_shell_line("relograph rooms create rooms --room-count 7")


def test_the_readme_shows_code_and_commands():
    languages = [block.language for block in blocks_of(REPOSITORY / "README.md")]
    assert "python" in languages
    assert "bash" in languages


def test_the_paper_is_cited_in_the_readme_the_notice_and_the_citation_file():
    for name in ("README.md", "NOTICE", "CITATION.cff"):
        text = " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())
        assert "Visual Camera Re-Localization Using Graph Neural Networks and Relative Pose Supervision" in text
        assert "2104.02538" in text


def test_the_documents_say_what_the_committed_results_say():
    assert "images a second" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert write_report(REPOSITORY / "results" / "experiments", REPOSITORY / "docs", check=True) == []
