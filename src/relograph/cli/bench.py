"""`relograph bench`: how fast the parts are on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import DeviceOption, SeedOption

app = typer.Typer(help="Measure how fast the parts are on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `rooms` a name to be typed: typer takes the only command of a group for the group itself."""


@app.command("rooms")
def rooms_command(
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    rooms: Annotated[int, typer.Option(min=1, help="Rooms to make on a CPU.")] = 7,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the figures with their provenance to this file.")
    ] = None,
) -> None:
    """Measure how many images a second the rooms are rendered at: SevenRooms on a CPU, training images on a GPU."""
    from dataclasses import asdict

    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.rooms.benchmark import benchmark_rooms, benchmark_table

    kind = compute_device(device).kind
    results = [asdict(row) for row in benchmark_rooms(kind, seed=seed, num_rooms=rooms, progress=TerminalProgress())]
    typer.echo(benchmark_table(results))
    if output is not None:
        write_result(output, results, command=command_line(), seed=seed, device=device)
        typer.echo(str(output))
