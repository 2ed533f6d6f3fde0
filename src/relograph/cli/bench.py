"""`relograph bench`: how fast the parts are on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import DeviceOption, SeedOption, SetOption

app = typer.Typer(help="Measure how fast the parts are on this machine.", no_args_is_help=True)


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


@app.command("network")
def network_command(
    device: DeviceOption = "cpu",
    channels: Annotated[int, typer.Option(min=8, help="Length C of features; the paper has 2048.")] = 2048,
    height: Annotated[int, typer.Option(min=32, help="Height of the images; the paper has 256.")] = 256,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Graphs in a step; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 40,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the figures with their provenance to this file, one by one."),
    ] = None,
) -> None:
    """Measure RelPoseGNN: training steps a second, and the time of one query whose map features are kept."""
    import torch

    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.training.benchmark import COMPILER_MODES, benchmark_network, network_table

    kind = compute_device(device).kind

    def keep(rows: Sequence[Mapping[str, object]], rate: float) -> None:
        if output is not None:
            details = {"measured_bf16_teraflops": rate}
            write_result(output, rows, command=command_line(), seed=None, device=device, details=details)

    rows, rate = benchmark_network(
        device=torch.device(kind),
        batch_sizes=batch or (64, 32, 8),
        channels=channels,
        image_hw=(height, height * 4 // 3),
        steps=steps,
        runtimes=("eager",) if kind == "cpu" else tuple(COMPILER_MODES),
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(network_table(rows, rate))
    if output is not None:
        typer.echo(str(output))


@app.command("match")
def match_command(
    device: DeviceOption = "cpu",
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="Size of the network and of its rooms: matchgnn or matchgnn-tiny.")
    ] = "matchgnn",
    settings: SetOption = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Graphs in a step; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 20,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the figures with their provenance to this file, one by one."),
    ] = None,
) -> None:
    """Measure MatchGNN: queries whose map features are kept and, on a GPU, training steps with their rooms."""
    import torch

    from relograph.configuration import with_overrides
    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.training.match_benchmark import benchmark_match, match_table
    from relograph.training.presets import match_preset

    kind = compute_device(device).kind
    config = with_overrides(match_preset(preset), settings or [])

    def keep(rows: Sequence[Mapping[str, object]]) -> None:
        if output is not None:
            write_result(output, rows, command=command_line(), seed=config.seed, device=device)

    rows = benchmark_match(
        config,
        device=torch.device(kind),
        batch_sizes=batch or (config.optim.batch_size,),
        steps=steps,
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(match_table(rows))
    if output is not None:
        typer.echo(str(output))
