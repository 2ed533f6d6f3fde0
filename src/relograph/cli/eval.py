"""`relograph eval`: how well a trained network localizes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import CacheOption, DescriptorsOption, DeviceOption, PairsOption, ScenesOption


class Reading(StrEnum):
    """How the edges of a graph become one pose."""

    NEAREST = "nearest"
    RANDOM = "random"
    AVERAGE_MARKLEY = "average-markley"
    AVERAGE_GRAMKOW = "average-gramkow"


def eval_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    data: Annotated[Path, typer.Option("--data", metavar="ROOT", help="A scene, or a folder of scenes.")],
    scenes: ScenesOption = None,
    reading: Annotated[
        Reading, typer.Option(help="Read the pose from the nearest reference, a random one, or the average of all.")
    ] = Reading.NEAREST,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Predictions, .csv or .csv.gz.", show_default="RUN/predictions.csv.gz"),
    ] = None,
    pairs: PairsOption = None,
    descriptors: DescriptorsOption = None,
    device: DeviceOption = "cpu",
    cache: CacheOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of references or edges that are drawn at random.")] = 0,
) -> None:
    """Localize the test frames of scenes, write the predictions and print their errors beside copying the top-1."""
    from relograph.cli.printing import printable
    from relograph.environment import compute_device
    from relograph.evaluation.evaluate_run import evaluate_run
    from relograph.evaluation.tables import results_table, summary_table
    from relograph.progress import TerminalProgress
    from relograph.training.workbench import default_cache

    output = output or run / "predictions.csv.gz"
    done = evaluate_run(
        run,
        data,
        scene_names=scenes.split(",") if scenes else None,
        reading=reading.value,
        output=output,
        pairs=pairs,
        descriptors=descriptors,
        device=compute_device(device).kind,
        cache=cache or default_cache(),
        seed=seed,
        warn=lambda note: typer.echo(printable(f"warning: {note}"), err=True),
        progress=TerminalProgress(),
    )
    dataset = data.resolve().name
    typer.echo(results_table("Median errors", done.rows, dataset=dataset, setting=done.setting).markdown())
    typer.echo(summary_table("All scenes", done.rows, dataset=dataset, setting=done.setting).markdown())
    typer.echo(printable(str(output)))
