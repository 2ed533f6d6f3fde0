"""Commands as one types them, in the tests' own process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from relograph.cli.app import app

TRAIN_A_ROUND = ("train", "--preset", "matchgnn-tiny", "--set", "optim.epochs=1")
"""Of MatchGNN, in seconds where there are few textures."""


def invoke(*arguments: str | Path) -> Result:
    """What a command answers."""
    return CliRunner().invoke(app, list(map(str, arguments)))
