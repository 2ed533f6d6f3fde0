"""`relograph ablate`: what each ingredient of MatchGNN brings."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import CacheOption, DeviceOption, SetOption


def ablate_command(
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of all trainings; what was ended goes on where it was.")
    ],
    textures: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Photographs, a zip file or folder with the folders train and validation."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Of training for each variant.", show_default="the preset's epochs")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names of variants, such as no-attention.", show_default="all")
    ] = None,
    homes: Annotated[int, typer.Option(min=1, help="Validation homes to score in, of 50 queries each.")] = 8,
    queries: Annotated[int, typer.Option(min=1, metavar="N", help="Every N-th query of each home only.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that solve beside the network.", show_default="one a core")
    ] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="Training to begin with: matchgnn or matchgnn-tiny.")] = (
        "matchgnn"
    ),
    settings: SetOption = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of ablation.json and ablation.md.", show_default="--output"),
    ] = None,
    device: DeviceOption = "cpu",
    cache: CacheOption = None,
) -> None:
    """Train MatchGNN with everything, then without each ingredient, for as long each; score all in validation rooms."""
    from dataclasses import replace

    from relograph.cli.printing import printable
    from relograph.configuration import with_overrides
    from relograph.environment import compute_device, default_cache, num_cores
    from relograph.evaluation.ablation import ablate, variants_of
    from relograph.evaluation.rooms_gather import RoomsOptions
    from relograph.progress import TerminalProgress
    from relograph.training.presets import match_preset

    config = with_overrides(match_preset(preset), settings or [])
    if minutes is not None:
        config = replace(config, optim=replace(config.optim, minutes=minutes))
    table = ablate(
        config,
        variants_of(only),
        RoomsOptions(
            num_homes=homes,
            every=queries,
            num_stranger_maps=0,
            reference_counts=(),
            compare_int8=False,
            textures=textures,
            num_workers=num_cores() if workers is None else workers,
            cache=cache or default_cache(),
        ),
        output=output,
        results=results,
        device=compute_device(device).kind,
        paths={output: "$OUTPUT", results: "$RESULTS", textures: "$TEXTURES", cache: "$CACHE"},
        warn=lambda note: typer.echo(printable(f"warning: {note}"), err=True),
        progress=TerminalProgress(),
    )
    typer.echo(table)
    typer.echo(printable(str((results or output) / "ablation.md")))
