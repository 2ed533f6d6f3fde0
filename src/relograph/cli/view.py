"""`relograph view`: a map in 3-D, with answers in it."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.map import MapArgument
from relograph.cli.printing import printable


def view_command(
    path: MapArgument,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Answers to show: of relograph localize (.jsonl) or relograph eval (.csv, .csv.gz)."
        ),
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder in which the photos of these queries lie.")
    ] = None,
    scene: Annotated[
        str | None, typer.Option(metavar="NAME", help="Scene of the map, where the file has answers in several.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page that opens without a server instead, and stop."),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to serve on; any but the default shows the map to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; the next free one is taken.")] = 8080,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Show a map in 3-D: its cameras and photos, and answers in the colours of their errors."""
    from relograph.maps import Map
    from relograph.viewer.cameras_page import write_cameras_page
    from relograph.viewer.live import LiveView
    from relograph.viewer.shown import no_photo, photos_in, read_any_answers, show_map

    answers = [] if predictions is None else read_any_answers(predictions, scene)
    shown = show_map(Map.open(path), answers, no_photo if photos is None else photos_in(photos))
    if save is not None:
        page = shown.with_photos()
        write_cameras_page(
            save,
            page.groups,
            title=page.title,
            note=page.note,
            lines=page.lines,
            slider=page.slider,
            scale_is_known=page.scale_is_known,
        )
        typer.echo(printable(str(save)))
        return
    view = LiveView(shown, host, port)
    typer.echo(f"{view.url} (Ctrl-C ends it)")
    try:
        if open_browser:
            typer.launch(view.url)
        with suppress(KeyboardInterrupt):  # the end that was announced, no failure
            signal.pause()
    finally:
        view.stop()
