"""`relograph convert`: a scene in another format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import FocalOption, FormatOption, SkipBadFramesOption
from relograph.cli.printing import counted, printable


class Format(StrEnum):
    """What scenes can be written as."""

    SEVEN_SCENES = "7scenes"
    COLMAP = "colmap"
    TUM = "tum"
    TRANSFORMS_JSON = "transforms.json"


class Images(StrEnum):
    """What becomes of the photos."""

    COPY = "copy"
    LINK = "link"
    NONE = "none"


def convert_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Scene to read.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New or empty folder to write to.")],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")],
    images: Annotated[
        Images, typer.Option("--images", help="Copy the photos, link to where they are, or leave them out.")
    ] = Images.COPY,
    format: FormatOption = None,
    focal: FocalOption = None,
    skip_bad_frames: SkipBadFramesOption = False,
) -> None:
    """Write a scene in another format; poses are kept to rounding."""
    from relograph.progress import TerminalProgress
    from relograph.scenes.converting import convert

    scene = convert(
        source,
        destination,
        to=to.value,
        images=images.value,
        format=format,
        focal_px=focal,
        skip_bad_frames=skip_bad_frames,
        progress=TerminalProgress(),
    )
    for warning in scene.warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    typer.echo(printable(f"{destination}: {counted(len(scene), 'frame')}, written as {to.value}."))
