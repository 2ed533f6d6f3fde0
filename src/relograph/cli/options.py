"""Options that several commands have in common: one sentence, one place."""

from pathlib import Path
from typing import Annotated

import typer

SceneArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="Folder of posed photos, or the file in it that holds the poses.")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Read it as 7scenes, cambridge, colmap, tum, transforms.json or poses.csv.",
        show_default="recognised",
    ),
]
FocalOption = Annotated[
    float | None,
    typer.Option("--focal", metavar="PX", help="Focal length in pixels, for photos whose intrinsics are not known."),
]
SkipBadFramesOption = Annotated[
    bool, typer.Option("--skip-bad-frames", help="Leave bad frames out and name them, instead of stopping at one.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same rooms.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to compute, as torch writes it: cpu, cuda, cuda:1.")]
ScenesOption = Annotated[
    str | None, typer.Option("--scenes", metavar="A,B", help="Names of the scenes to use.", show_default="all")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as graph.stride=1; may be repeated."),
]
InitOption = Annotated[
    Path | None,
    typer.Option("--init", metavar="RUN", help="Run to start from: its encoder and retrieval, or its MatchGNN."),
]
DescriptorsOption = Annotated[
    Path | None,
    typer.Option(
        "--descriptors", metavar="FILE", help="Your own descriptors, .npz or .safetensors, to find neighbours with."
    ),
]
PairsOption = Annotated[
    Path | None,
    typer.Option(
        "--pairs", metavar="FILE", help="Your own list of lines 'query reference' or 'query reference score'."
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Where photos and rooms are kept.", show_default="~/.cache/relograph"),
]
