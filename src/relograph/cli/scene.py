"""`relograph scene`: what a folder of posed photos holds."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look at a folder of posed photos.", no_args_is_help=True)

ScenePath = Annotated[Path, typer.Argument(metavar="PATH", help="Scene to read; its format is recognised.")]
FocalOption = Annotated[
    float | None, typer.Option(metavar="PX", help="Focal length in pixels, for photos that do not tell theirs.")
]
SkipBadFrames = Annotated[
    bool, typer.Option("--skip-bad-frames", help="Leave bad frames out and name them, instead of stopping.")
]


@app.command("info")
def info_command(path: ScenePath, focal: FocalOption = None, skip_bad_frames: SkipBadFrames = False) -> None:
    """Print frames, extent, intrinsics, sequences and warnings."""


@app.command("check")
def check_command(path: ScenePath, focal: FocalOption = None, skip_bad_frames: SkipBadFrames = False) -> None:
    """Read every photo and depth map, and say what is wrong with them."""
