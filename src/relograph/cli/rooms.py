"""`relograph rooms`: procedural rooms with exact poses and depth."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import DeviceOption, SeedOption
from relograph.cli.printing import counted

app = typer.Typer(
    help="Make rooms: an endless supply of places whose poses and depths are exact.", no_args_is_help=True
)


class Size(StrEnum):
    """How much of a room is recorded."""

    SMALL = "small"
    FULL = "full"


@app.command("create")
def create_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the rooms, one folder each.")],
    rooms: Annotated[int, typer.Option(min=1, help="How many rooms to make.")] = 7,
    size: Annotated[
        Size, typer.Option(help="small: 100 frames a sequence at 320x240; full: 1,000 frames at 640x480.")
    ] = Size.SMALL,
    seed: SeedOption = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that render at the same time.", show_default="one a core")
    ] = None,
    device: DeviceOption = "cpu",
    textures: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder or zip file of photographs to use as textures besides our own."),
    ] = None,
) -> None:
    """Write rooms in the 7-Scenes layout: two training sequences and one test sequence each."""
    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.rooms import create_seven_rooms

    create_seven_rooms(
        directory,
        num_rooms=rooms,
        size=size.value,
        seed=seed,
        workers=workers,
        device=compute_device(device).kind,
        textures=textures,
        progress=TerminalProgress(),
    )
    typer.echo(f"{directory}: {counted(rooms, 'room')}. Look at one with: relograph scene info {directory}/room-1")


@app.command("preview")
def preview_command(
    path: Annotated[Path, typer.Argument(metavar="FILE.png", help="Where to write the picture.")],
    rooms: Annotated[int, typer.Option(min=1, help="How many rooms to show.")] = 7,
    seed: SeedOption = 0,
) -> None:
    """Draw a contact sheet of rooms: a few views of each."""
    from relograph.progress import TerminalProgress
    from relograph.rooms import write_preview

    write_preview(path, seed=seed, rooms=rooms, progress=TerminalProgress())
    typer.echo(str(path))
