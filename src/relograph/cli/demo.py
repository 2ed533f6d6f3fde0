"""`relograph demo`: the whole road on an embedded example."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

MAP_PHOTOS, QUERIES = 100, 25
"""Of the demo's room; a minute on two cores."""


def demo_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for what the demo makes; what is there is used again.")
    ] = Path("demo"),
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights of MatchGNN that a training wrote.", show_default="the package's"),
    ] = None,
) -> None:
    """Make a room, check it, draw its cameras, and localize photos in it with MatchGNN, which never saw it.

    Its map stays, and the last lines say how to open it in a browser.
    """
    from relograph.cli.printing import counted, printable
    from relograph.errors import DatasetError
    from relograph.models.shipped import load_match_gnn, weights_are_shipped
    from relograph.progress import TerminalProgress
    from relograph.rooms import create_seven_rooms, draw_scene_from_above
    from relograph.scenes.inspection import check_scene
    from relograph.scenes.opening import open_scene

    # First, as what is wrong with them is to be known before a minute of rendering.
    network = load_match_gnn(weights) if weights is not None or weights_are_shipped() else None
    progress = TerminalProgress()
    rooms = directory / "rooms"
    create_seven_rooms(rooms, num_rooms=1, progress=progress)  # a room that is there already is kept
    scene = open_scene(rooms / "room-1")
    if problems := check_scene(scene, progress=progress):
        raise DatasetError(
            f"{scene.root}: expected the room as the demo made it, found {counted(len(problems), 'problem')}, first: "
            f"{problems[0].message} Remove {rooms} and run the demo again."
        )
    picture = directory / "cameras_from_above.png"
    draw_scene_from_above(scene, picture)
    typer.echo(f"scene      {scene.root} ({counted(len(scene), 'photo')})\npicture    {picture}")
    if network is None:
        typer.echo("localized  nothing: no weights come with this build. Train some: relograph train --preset matchgnn")
        return

    from relograph.viewer.answers import demonstrate

    where = "the package's" if weights is None else printable(str(weights))
    typer.echo(f"weights    {where}, SHA-256 {network.sha256[:12]}; this room was no part of their training")
    map_path = directory / f"{scene.name}.map"
    typer.echo(demonstrate(scene, network, directory, map_path, MAP_PHOTOS, QUERIES, progress=progress))
    command = [_program(), "serve", str(map_path), *(() if weights is None else ("--weights", str(weights)))]
    typer.echo(
        f"\nIn a browser: run  {shlex.join(command)}\n"
        f"and drop photos of {scene.root / scene.test[0].name.rpartition('/')[0]} onto the page that it names."
    )


def _program() -> str:
    """How this command is called here: `make demo` runs it from an environment that is not on PATH."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "relograph" and shutil.which("relograph") is None else "relograph"
