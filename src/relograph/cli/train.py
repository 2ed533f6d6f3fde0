"""`relograph train`: a network from posed photos."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import (
    CacheOption,
    DescriptorsOption,
    DeviceOption,
    InitOption,
    PairsOption,
    ScenesOption,
    SetOption,
)
from relograph.cli.printing import printable


def train_command(
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Configuration to begin with: paper-7scenes, paper-cambridge, rooms, rooms-full, pretrain, tiny, "
            "matchgnn or matchgnn-tiny.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="ROOT", help="A scene, or a folder of scenes; pretrain and matchgnn make their own rooms."
        ),
    ] = None,
    scenes: ScenesOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Folder of the run; a run that was stopped goes on.", show_default="runs/NAME"
        ),
    ] = None,
    settings: SetOption = None,
    init: InitOption = None,
    encoder_weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Public ResNet34 weights, .safetensors or .pth, to start the encoder from."),
    ] = None,
    descriptors: DescriptorsOption = None,
    pairs: PairsOption = None,
    textures: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="For matchgnn: photographs for its rooms, a zip file or folder with the folders train and validation.",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    cache: CacheOption = None,
    list_settings: Annotated[
        bool, typer.Option("--list-settings", help="Print every setting of the preset with its value, and stop.")
    ] = False,
) -> None:
    """Train a network on scenes, or on rooms without end (pretrain, matchgnn); under torchrun on many GPUs."""
    from relograph.configuration import describe_fields, with_overrides
    from relograph.environment import compute_device, default_cache
    from relograph.errors import ConfigError
    from relograph.progress import TerminalProgress
    from relograph.training.match_training import MatchTrainConfig
    from relograph.training.presets import any_preset
    from relograph.training.train_run import match_run, pretrain_run, train_run

    config = with_overrides(any_preset(preset), settings or [])
    if list_settings:
        for field in describe_fields(config):
            typer.echo(f"{field.path}={field.default}  ({field.type})  {field.doc}".rstrip())
        return
    device = compute_device(device).kind
    output = output or Path("runs") / preset
    makes_rooms = preset == "pretrain" or isinstance(config, MatchTrainConfig)
    for_scenes = {"--data": data, "--scenes": scenes, "--encoder-weights": encoder_weights}
    for_scenes |= {"--descriptors": descriptors, "--pairs": pairs}
    for option, value in for_scenes.items() if makes_rooms else ():
        if value is not None:
            raise ConfigError(
                f"expected no {option} with --preset {preset}, found {value}. It makes its own rooms; leave {option} "
                "out."
            )
    if textures is not None and not isinstance(config, MatchTrainConfig):
        raise ConfigError(
            f"expected no --textures with --preset {preset}, found {textures}. Only matchgnn takes photographs for its "
            "rooms; leave --textures out."
        )
    if isinstance(config, MatchTrainConfig):
        run = match_run(config, output, init=init, textures=textures, device=device, progress=TerminalProgress())
        then = f"Start the next round with: relograph train --preset {preset} --init {output} --output NEW_RUN"
    elif makes_rooms:
        run = pretrain_run(config, output, init=init, device=device, progress=TerminalProgress())
        then = f"Start from it with: relograph train --preset rooms --data ROOT --init {output}"
    else:
        if data is None:
            raise ConfigError(
                f"expected --data with --preset {preset}, found none. Give a scene, or a folder of scenes."
            )
        run = train_run(
            config,
            data,
            output,
            scene_names=scenes.split(",") if scenes else None,
            init=init,
            encoder_weights=encoder_weights,
            descriptors=descriptors,
            pairs=pairs,
            device=device,
            cache=cache or default_cache(),
            warn=lambda note: typer.echo(printable(f"warning: {note}"), err=True),
            progress=TerminalProgress(),
        )
        then = f"Evaluate it with: relograph eval {output} --data {data}"
    if run.is_first_process:
        best = "" if run.best_validation is None else f", validation loss {run.best_validation:.4g}"
        kept = output / ("weights" if isinstance(config, MatchTrainConfig) else "best")
        typer.echo(printable(f"{kept}: checkpoint after {run.num_steps:,} steps{best}. {then}"))
