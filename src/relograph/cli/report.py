"""`relograph report`: one HTML file of a run."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import CacheOption, DeviceOption


def report_command(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a training run, of eval --scene or --rooms, or of experiments run."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="File to write.", show_default="RUN/report.html")
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option(metavar="FILE.pdf", help="Print it to this file, too, by an installed Chromium.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="The scenes that were evaluated on: shows photos, the map and saliency."),
    ] = None,
    saliency: Annotated[
        bool, typer.Option("--saliency/--no-saliency", help="Draw what the network looks at; needs --data.")
    ] = True,
    device: DeviceOption = "cpu",
    cache: CacheOption = None,
) -> None:
    """Write tables, plots, failures, saliency, cameras in 3-D and provenance of a run into one file."""
    from relograph.cli.printing import printable
    from relograph.environment import compute_device, default_cache
    from relograph.progress import TerminalProgress
    from relograph.reports import write_report

    output = output or run / "report.html"
    write_report(
        run,
        output,
        pdf=pdf,
        data=data,
        with_saliency=saliency,
        cache=cache or default_cache(),
        device=compute_device(device).kind,
        progress=TerminalProgress(),
    )
    typer.echo(printable(str(output)))
    if pdf is not None:
        typer.echo(printable(str(pdf)))
