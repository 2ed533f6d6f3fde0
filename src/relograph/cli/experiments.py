"""`relograph experiments`: the paper's experiments, each one a command."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import CacheOption, DescriptorsOption, DeviceOption, InitOption, ScenesOption, SetOption
from relograph.cli.printing import printable

app = typer.Typer(help="Run the paper's experiments and write what they say.", no_args_is_help=True)


class Target(StrEnum):
    """What edges say."""

    WORLD = "world"
    CAMERA = "camera"


class Dataset(StrEnum):
    """Data sets that tables know by name."""

    SEVEN_SCENES = "7scenes"
    CAMBRIDGE = "cambridge"
    SEVEN_ROOMS = "sevenrooms"


@app.command("list")
def list_command() -> None:
    """Print every experiment with what it does."""
    from relograph.evaluation.experiments import EXPERIMENTS

    for experiment in EXPERIMENTS.values():
        typer.echo(f"{experiment.name:<13} {experiment.about}")


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Experiments, or all; see experiments list.")],
    data: Annotated[Path, typer.Option("--data", metavar="ROOT", help="A scene, or a folder of scenes.")],
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="Configuration that every training begins with, as in relograph train.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the sweep; what is finished in it is not done again.")
    ],
    settings: SetOption = None,
    settings_of_one_scene: Annotated[
        list[str] | None,
        typer.Option(
            "--set-one-scene", metavar="KEY=VALUE", help="As --set, for trainings on a single scene only, after --set."
        ),
    ] = None,
    target: Annotated[
        Target | None,
        typer.Option(help="Target where an experiment does not compare both.", show_default="the preset's"),
    ] = None,
    scenes: ScenesOption = None,
    scene: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For experiments on one scene: which one.", show_default="the paper's, or the last"
        ),
    ] = None,
    dataset: Annotated[
        Dataset | None,
        typer.Option(help="What the data are called in tables.", show_default="recognised, or the folder's name"),
    ] = None,
    init: InitOption = None,
    encoder_weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Public ResNet34 weights, .safetensors or .pth, to start the encoder from."),
    ] = None,
    descriptors: DescriptorsOption = None,
    label: Annotated[
        str, typer.Option(metavar="WORD", help="Added to the names of results, tables and figures, such as full.")
    ] = "",
    minutes: Annotated[
        float,
        typer.Option(metavar="N", help="End in order after so long, for another run to go on; 0 goes on to the end."),
    ] = 0.0,
    device: DeviceOption = "cpu",
    cache: CacheOption = None,
) -> None:
    """Train what the experiments need, evaluate it, and write scores, tables and figures; go on where it stopped."""
    from relograph.environment import compute_device, default_cache
    from relograph.evaluation.experiment_run import SweepOptions, run_experiments
    from relograph.progress import TerminalProgress

    run_experiments(
        names,
        data,
        output,
        SweepOptions(
            preset=preset,
            settings=settings or (),
            settings_of_one_scene=settings_of_one_scene or (),
            scene_names=scenes.split(",") if scenes else None,
            scene=scene,
            target=target.value if target else None,
            dataset=dataset.value if dataset else None,
            init=init,
            encoder_weights=encoder_weights,
            descriptors=descriptors,
            label=label,
            minutes=minutes,
            device=compute_device(device).kind,
        ),
        cache=cache or default_cache(),
        say=lambda line: typer.echo(printable(line)),
        warn=lambda note: typer.echo(printable(f"warning: {note}"), err=True),
        progress=TerminalProgress(),
    )


ResultsOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the experiments' results.")]
DocsOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the documents; the README lies beside it.")]


@app.command("publish")
def publish_command(
    sweep: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep, the --output of experiments run.")],
    results: ResultsOption = Path("results/experiments"),
    docs: DocsOption = Path("docs"),
) -> None:
    """Copy a sweep's results and figures into the repository, and write the documents that quote them."""
    from relograph.evaluation.publishing import publish

    changed = publish(sweep, results, docs)
    for path in changed:
        typer.echo(printable(f"{path}: written."))
    if not changed:
        typer.echo("The repository has what the sweep says.")


@app.command("report")
def report_command(
    results: ResultsOption = Path("results/experiments"),
    docs: DocsOption = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing, and fail where a document differs from the results.")
    ] = False,
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE.tex", help="Write all tables in LaTeX to this file, too.")
    ] = None,
) -> None:
    """Write docs/results.md, and the tables of the README and of other pages, from committed results."""
    from relograph.evaluation.experiment_report import latex_page, read_results, write_report
    from relograph.evaluation.writing import write_whole
    from relograph.serving.load.benchmark import write_load_page

    changed = write_report(results, docs, check=check) + write_load_page(results.parent, docs, check=check)
    for path in changed:
        typer.echo(printable(f"{path}: written."))
    if not changed:
        typer.echo("The documents say what the results say.")
    if latex is not None:
        write_whole(latex, latex_page(read_results(results)).encode())
        typer.echo(printable(str(latex)))
