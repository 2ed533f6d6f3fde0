"""Every command explains itself."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from relograph.cli.app import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, by the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(get_command(app)))


def test_the_commands_are_those_that_the_documents_speak_of():
    assert set(COMMANDS) == {
        (),
        ("convert",),
        ("scene",),
        ("scene", "info"),
        ("scene", "check"),
        ("scene", "reconstruct"),
        ("scene", "scale"),
        ("map",),
        ("map", "create"),
        ("map", "add"),
        ("map", "remove"),
        ("map", "info"),
        ("map", "verify"),
        ("map", "merge"),
        ("map", "split"),
        ("map", "copy"),
        ("map", "compact"),
        ("map", "export"),
        ("map", "georeference"),
        ("rooms",),
        ("rooms", "create"),
        ("rooms", "preview"),
        ("bench",),
        ("bench", "rooms"),
        ("bench", "network"),
        ("bench", "match"),
        ("bench", "map"),
        ("bench", "growth"),
        ("bench", "retrieval"),
        ("bench", "serve"),
        ("localize",),
        ("serve",),
        ("serve", "run"),
        ("serve", "keys"),
        ("serve", "keys", "create"),
        ("serve", "keys", "list"),
        ("serve", "keys", "revoke"),
        ("view",),
        ("train",),
        ("eval",),
        ("report",),
        ("ablate",),
        ("experiments",),
        ("experiments", "list"),
        ("experiments", "run"),
        ("experiments", "publish"),
        ("experiments", "report"),
        ("weights",),
        ("weights", "info"),
        ("weights", "publish"),
        ("weights", "report"),
        ("weights", "history"),
        ("export",),
        ("demo",),
        ("doctor",),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_there_and_names_every_option(path: tuple[str, ...]):
    done = CliRunner().invoke(app, [*path, "--help"], terminal_width=200)
    assert done.exit_code == 0
    assert " ".join(("relograph", *path)).removeprefix("relograph ") in done.stdout
    for parameter in COMMANDS[path].params:
        assert (
            max(parameter.opts, key=len).lstrip("-").upper() in done.stdout.upper() or parameter.metavar in done.stdout
        )


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_explained_in_one_sentence(path: tuple[str, ...]):
    command = COMMANDS[path]
    assert command.help.endswith(".")
    for parameter in command.params:
        assert parameter.help.rstrip().endswith("."), parameter.name
        assert "\n" not in parameter.help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_names_of_arguments_leave_it_to_the_usage_line_how_many_there_may_be(path: tuple[str, ...]):
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "argument":
            assert not set(".[]{}") & set((parameter.metavar or "").removesuffix(".png"))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_help_is_taken_for_markup(path: tuple[str, ...]):
    for words in (COMMANDS[path].help, *(parameter.help for parameter in COMMANDS[path].params)):
        assert "[" not in words  # rich prints nothing of what stands in brackets


def test_an_unknown_option_is_a_usage_error_with_exit_code_2():
    done = CliRunner().invoke(app, ["scene", "info", "kitchen", "--colour"])
    assert done.exit_code == 2
    assert "--colour" in done.stderr


def test_version_prints_the_version_and_stops():
    import relograph

    assert CliRunner().invoke(app, ["--version"]).stdout == f"{relograph.__version__}\n"
