"""What the documents say is run: their Python, their commands, their links."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from torch.distributed.run import get_args_parser
from typer.main import get_command
from typer.testing import CliRunner

from chromium import CHROMIUM
from relograph.cli.app import app
from relograph.evaluation.experiment_report import write_report
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.weights_documents import write_weights_documents
from small_roots import HEIGHT, WIDTH, write_seven_scenes_root

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
EXTRAS = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))

TAKES_MINUTES = {
    ("rooms", "create"),
    ("rooms", "preview"),
    ("bench", "rooms"),
    ("bench", "network"),
    ("bench", "match"),
    ("bench", "retrieval"),
    ("bench", "growth"),
    ("bench", "serve"),
    ("train",),
    ("eval",),
    ("ablate",),
    ("experiments", "run"),
    ("experiments", "publish"),
    ("experiments", "report"),
    ("weights",),
    ("export",),
    ("demo",),
    ("serve",),
    ("view",),
    ("report",),
}
"""Commands of which a document's line is only parsed, unless `takes_seconds` knows better."""

SCENE, ROOM = "kitchen", "demo/rooms/room-1"
"""Scenes that documents speak of; one of three frames stands in for the first, one of 18 for the second."""


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
        case ["torchrun", *arguments]:
            parsed = get_args_parser().parse_args(arguments)  # torchrun's own parser
            assert (parsed.module, parsed.training_script) == (True, "relograph"), line
            parse_relograph(parsed.training_script_args)
        case _:
            pytest.fail(f"a command that no test knows how to check: {line}")


def run_relograph(arguments: list[str], line: str) -> None:
    if serves(arguments) and Path(arguments[1]).is_dir():  # a map that a line before it has made
        run_until_it_answers(arguments, line)
        return
    is_slow = any(tuple(arguments[: len(slow)]) == slow for slow in TAKES_MINUTES)
    if is_slow and not takes_seconds(arguments):
        parse_relograph(arguments)
        return
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"


def serves(arguments: list[str]) -> bool:
    """Whether a command goes on until it is ended."""
    return (arguments[0] == "serve" and arguments[1] != "keys") or (
        arguments[0] == "view" and "--save" not in arguments
    )


def run_until_it_answers(arguments: list[str], line: str) -> None:
    """At the address that it tells; what it serves is not looked at here."""
    for_a_test = ("--port", "0", *(["--no-open"] if arguments[0] == "view" else []))
    command = [sys.executable, "-m", "relograph", *arguments, *for_a_test]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            while not (lines and lines[-1].startswith("http://")):
                lines.append(process.stdout.readline())
                assert lines[-1], f"{line}\n{''.join(lines)}"  # it has ended
            address = lines[-1].split()[0] + ("/readyz" if arguments[0] == "serve" else "/")
            assert httpx.get(address, trust_env=False, timeout=30.0).status_code == 200, line
        finally:
            process.terminate()


def takes_seconds(arguments: list[str]) -> bool:
    """Whether a training, an evaluation or an experiment is small enough to be run: the tiny preset, or its run."""
    if arguments[0] == "eval":
        return Path(arguments[1]).is_dir()  # only a line before it can have made it
    if arguments[0] == "report":
        return Path(arguments[1]).is_dir() and ("--pdf" not in arguments or CHROMIUM is not None)
    if arguments[0] in ("serve", "view"):
        return not serves(arguments)
    return arguments[0] in ("train", "experiments") and ("tiny" in arguments or "--list-settings" in arguments)


def parse_relograph(arguments: list[str]) -> dict[str, Any]:
    """The values of a command's options; raises where the command or an option is not known."""
    command, name = get_command(app), "relograph"
    while hasattr(command, "commands"):
        if command.name == "serve" and arguments[0] not in command.commands:
            arguments = ["run", *arguments]  # as the command itself understands it
        name, *arguments = arguments
        command = command.commands[name]
    return command.make_context(name, arguments).params


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_code_in_a_document_runs(
    document: Path, seven_scenes_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "reader"
    shutil.copytree(seven_scenes_folder, folder / SCENE)
    write_seven_scenes_root((folder / ROOM).parent, (Path(ROOM).name,), num_frames=6)
    # Rooms know their intrinsics; COLMAP's format cannot do without.
    (folder / SCENE / "camera.txt").write_text("PINHOLE 32 24 30 30 16 12\n")
    (folder / ROOM / "camera.txt").write_text(f"PINHOLE {WIDTH} {HEIGHT} 60 60 {WIDTH / 2} {HEIGHT / 2}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    with pytest.raises(Exception, match="--presets"):
        run_shell_line("torchrun --nproc-per-node 2 -m relograph train --presets tiny")
    with pytest.raises(SystemExit):
        run_shell_line("torchrun --nproc-per-gpu 2 -m relograph train --preset tiny")


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
    for page, says in (("rooms.md", "images a second"), ("training.md", "graphs/s"), ("localize.md", "CUDA graph")):
        assert says in (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    assert write_report(REPOSITORY / "results" / "experiments", REPOSITORY / "docs", check=True) == []


def test_the_documents_say_what_the_weights_in_the_package_are():
    weights = REPOSITORY / "src" / "relograph" / "weights" / "matchgnn"
    assert write_weights_documents(weights, REPOSITORY / "results", REPOSITORY / "docs", check=True) == []


def test_the_page_on_training_has_every_setting_and_preset_in_the_configurations_own_words():
    script = runpy.run_path(str(REPOSITORY / "docs" / "write_settings.py"))
    page = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    assert script["written_anew"](page) == page, "run: python docs/write_settings.py"
    assert "| `graph.stride` | int | `5` | Every so many-th of the most similar images becomes a reference. |" in page
    assert "| `graph.stride` |  | 3 |" in page  # Cambridge's


def test_the_page_on_the_service_has_every_option_in_the_configuration_s_own_words():
    script = runpy.run_path(str(REPOSITORY / "docs" / "write_settings.py"))
    page = (REPOSITORY / "docs" / "serve.md").read_text(encoding="utf-8")
    assert script["written_anew"](page) == page, "run: python docs/write_settings.py"
    assert "| `--port` | int | `8000` | Port to listen on; 0 takes a free one and says which. |" in page


def test_the_page_on_security_names_tests_that_there_are():
    page = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests" / "serving").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 20
    assert named == {name for name in named if f"def {name}(" in sources}


def test_the_page_on_training_quotes_the_paper_as_the_tables_do():
    page = " ".join((REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8").split())
    tables, citation = paper_numbers().tables, paper_numbers().citations["turkoglu2021visual"]
    for table, method, average in (
        ("table1", "RelPoseGNN", "Avg."),
        ("table2", "RelPoseGNN", "Avg. (7)"),
        ("table1", "DenseVLAD", "Avg."),
    ):
        errors = tables[table].row(method).averages[average]
        assert f"{errors.translation_m:.2f} m / {errors.rotation_deg:.1f}°" in page
    assert citation.title in page
