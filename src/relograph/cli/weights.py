"""`relograph weights`: the weights of MatchGNN that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.printing import printable

app = typer.Typer(help="Look at the weights of MatchGNN, and publish better ones.", no_args_is_help=True)

ResultsOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results, searched for those of them.")]
DocsOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the documents; the README lies beside it.")]
PackageOption = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Folder of the package that the weights lie in.")
]
IN_THE_PACKAGE = Path("src/relograph/weights/matchgnn")


@app.command("info")
def info_command(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A run, or its folder of weights.", show_default="the package's"),
    ] = None,
) -> None:
    """Check every byte of weights, and say what they are and what made them."""
    from relograph.evaluation.weights_publishing import read_published, weights_folder

    for line in read_published(None if folder is None else weights_folder(folder)).lines():
        typer.echo(printable(line))


@app.command("publish")
def publish_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A training run of MatchGNN, or its folder of weights.")],
    output: PackageOption = IN_THE_PACKAGE,
    textures: Annotated[
        Path | None,
        typer.Option(metavar="ZIP", help="The archive of textures that it was trained with, for the card's licences."),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="What relograph eval wrote of them, to be kept in the results; may repeat."),
    ] = None,
    results: ResultsOption = Path("results"),
    docs: DocsOption = Path("docs"),
) -> None:
    """Put better weights into the package, with their calibration and a model card, and tell it in the documents."""
    from relograph.evaluation.weights_documents import read_documents, write_weights_documents
    from relograph.evaluation.weights_publishing import publish_weights

    read_documents(docs)  # before anything is written, as it is told where they are not
    for line in publish_weights(run, output, results=results, measured=measured or (), textures=textures):
        typer.echo(printable(line))
    _tell(write_weights_documents(output, results, docs))


@app.command("report")
def report_command(
    output: PackageOption = IN_THE_PACKAGE,
    results: ResultsOption = Path("results"),
    docs: DocsOption = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing, and fail where a document differs from weights and results.")
    ] = False,
) -> None:
    """Write what the README and docs/weights.md say of the weights in the package."""
    from relograph.evaluation.weights_documents import write_weights_documents

    changed = write_weights_documents(output, results, docs, check=check)
    _tell(changed)
    if not changed:
        typer.echo("The documents say what the weights and their results say.")


@app.command("history")
def history_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Rounds in their order, the first from random weights or the file's last, or in the file already.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="FILE.json", help="File for the validations of all rounds; those that it has stay in it."),
    ] = Path("results/matchgnn/training.json"),
    picture: Annotated[
        Path, typer.Option(metavar="FILE.png", help="Picture of errors against minutes of training.")
    ] = Path("docs/pictures/matchgnn-training.png"),
) -> None:
    """Collect the validations of all rounds of a training in one file, and draw them against its minutes."""
    from relograph.evaluation.plots import save_figure
    from relograph.evaluation.training_history import history_figure, read_rounds, rounds_table, write_history
    from relograph.results import command_line

    rounds = read_rounds(runs, output)
    write_history(rounds, output, command=command_line())
    save_figure(history_figure(rounds), picture)
    typer.echo(rounds_table([of_round.as_row() for of_round in rounds]))
    _tell([output, picture])


def _tell(changed: list[Path]) -> None:
    for path in changed:
        typer.echo(printable(f"{path}: written."))
