"""`relograph bench`: how fast the parts are on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import DeviceOption, SeedOption, SetOption

OutputOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write the figures with their provenance to this file, one by one."),
]

app = typer.Typer(help="Measure how fast the parts are on this machine.", no_args_is_help=True)


@app.command("rooms")
def rooms_command(
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    rooms: Annotated[int, typer.Option(min=1, help="Rooms to make on a CPU.")] = 7,
    effects: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="On a GPU only these, such as all or none; may be repeated."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="HxW", help="On a GPU only these images, such as 256x341; may be repeated."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Measure how many images a second the rooms are rendered at: SevenRooms on a CPU, training images on a GPU."""
    from dataclasses import asdict

    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.rooms.benchmark import (
        CreationSpeed,
        RenderingSpeed,
        benchmark_rooms,
        benchmark_table,
        chosen_rows,
    )

    kind = compute_device(device).kind

    def keep(rows: Sequence[RenderingSpeed | CreationSpeed]) -> None:
        if output is not None:
            write_result(output, list(map(asdict, rows)), command=command_line(), seed=seed, device=device)

    rows = benchmark_rooms(
        kind,
        seed=seed,
        num_rooms=rooms,
        rows=chosen_rows(effects or (), size or ()),
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(benchmark_table(list(map(asdict, rows))))
    if output is not None:
        typer.echo(str(output))


@app.command("network")
def network_command(
    device: DeviceOption = "cpu",
    channels: Annotated[int, typer.Option(min=8, help="Length C of features; the paper has 2048.")] = 2048,
    height: Annotated[int, typer.Option(min=32, help="Height of the images; the paper has 256.")] = 256,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Graphs in a step; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 40,
    output: OutputOption = None,
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
    steps: Annotated[
        int, typer.Option(min=0, help="Training steps to measure; 0 measures queries alone, and compiles nothing.")
    ] = 20,
    output: OutputOption = None,
) -> None:
    """Measure MatchGNN: queries whose map features are kept and, on a GPU, training steps with their rooms.

    Beside the network's time stands the solver's, on the CPU.
    """
    from dataclasses import asdict

    import torch

    from relograph.configuration import with_overrides
    from relograph.environment import compute_device
    from relograph.localization.solver_speed import PART, solver_speeds
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
        beside=map(asdict, solver_speeds((config.stream.image_height, config.stream.image_width))),
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(match_table(rows))
    if not any(row.get("part") == PART for row in rows):
        typer.echo("The solver is left out, as PoseLib is not installed: pip install 'relograph[geometry]'.")
    if output is not None:
        typer.echo(str(output))


@app.command("map")
def map_command(
    device: DeviceOption = "cpu",
    photos: Annotated[int, typer.Option(min=1, help="Photos of a map, 640 x 480 as JPEG.")] = 256,
    views: Annotated[int, typer.Option(min=1, help="Photos to render; a map has each of them several times.")] = 64,
    queries: Annotated[int, typer.Option(min=1, help="Other photos to render, which are localized.")] = 20,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights of the network.", show_default="the package's own, or random ones"),
    ] = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
) -> None:
    """Measure maps: photos a second from files to a map, its size by part, and the time of a query by stage."""
    from relograph.environment import compute_device
    from relograph.maps.benchmark import benchmark_map, is_random, map_table, network_to_measure
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result

    network = network_to_measure(weights, compute_device(device).kind)

    def keep(rows: Sequence[Mapping[str, object]]) -> None:
        if output is not None:
            weights_told = "random" if is_random(network) else network.sha256
            details = {"weights": weights_told, "num_views": min(views, photos), "num_queries": queries}
            write_result(output, rows, command=command_line(), seed=seed, device=device, details=details)

    rows = benchmark_map(
        network,
        num_photos=photos,
        num_views=views,
        num_queries=queries,
        seed=seed,
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(map_table(rows))
    if is_random(network):
        typer.echo("The weights are random, for want of others: there are no matches to solve.")
    if output is not None:
        typer.echo(str(output))


@app.command("growth")
def growth_command(
    images: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Photos in the map; may be repeated.", show_default="1000, 10000, 100000 and 1000000"),
    ] = None,
    features: Annotated[
        bool,
        typer.Option("--features", help="Let maps keep the features that cells are matched by: 35 GB for 100,000."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where maps are made.", show_default="where temporary files are"),
    ] = None,
    seed: SeedOption = 0,
    output: OutputOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw time and memory against the number of photos.")
    ] = None,
) -> None:
    """Measure how maps of generated photos grow: time and memory to build, to add to, to open and to ask."""
    from relograph.environment import installed_version
    from relograph.maps.growth import benchmark_growth, draw_map_growth, growth_table
    from relograph.maps.records import LEVELS
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result

    def keep(rows: Sequence[Mapping[str, object]]) -> None:
        if output is not None:
            details = {"faiss": installed_version("faiss-cpu")}
            write_result(output, rows, command=command_line(), seed=seed, details=details)

    rows = benchmark_growth(
        images or [1000, 10_000, 100_000, 1_000_000],
        LEVELS[:2] if features else (),
        seed=seed,
        folder=folder,
        keep=keep,
        progress=TerminalProgress(),
    )
    typer.echo(growth_table(rows))
    if plot is not None:
        draw_map_growth(rows, plot)
    for path in (output, plot):
        if path is not None:
            typer.echo(str(path))


@app.command("retrieval")
def retrieval_command(
    images: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Images in the index; may be repeated.", show_default="1000, 10000, 100000 and 1000000"
        ),
    ] = None,
    views: Annotated[int, typer.Option(min=1, help="Views to render; more images are drawn to be like them.")] = 20_000,
    queries: Annotated[int, typer.Option(min=1, help="Other views to render, which are looked for.")] = 1000,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights that describe the views.", show_default="the package's own"),
    ] = None,
    pixels: Annotated[bool, typer.Option("--pixels", help="Describe views by their pixels, without weights.")] = False,
    descriptors: Annotated[
        Path | None,
        typer.Option(metavar="FILE.safetensors", help="Where the views' descriptors are kept; read if it is there."),
    ] = None,
    parts: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where what takes long is kept, so that a run goes on where one was cut."),
    ] = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    output: OutputOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw time and memory against the number of images.")
    ] = None,
) -> None:
    """Measure how the search for references grows with the map: time, memory, and how many of the nearest are found."""
    from relograph.environment import installed_version
    from relograph.evaluation.large_maps import views_to_find
    from relograph.models.shipped import load_match_gnn
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.retrieval.benchmark import benchmark_retrieval, draw_growth, retrieval_table
    from relograph.retrieval.many_views import likeness

    progress = TerminalProgress()
    is_kept = descriptors is not None and descriptors.exists()
    described = views_to_find(
        None if pixels or is_kept else load_match_gnn(weights),
        num_views=views,
        num_queries=queries,
        kept_at=descriptors,
        parts=parts,
        seed=seed,
        device=device,
        progress=progress,
    )
    details = {
        "described_by": described.described_by,
        "num_views": len(described.map),
        "likeness": likeness(described, seed=seed),
        "faiss": installed_version("faiss-cpu"),
    }

    def keep(rows: Sequence[Mapping[str, object]]) -> None:
        if output is not None:
            write_result(output, rows, command=command_line(), seed=seed, device=device, details=details)

    rows = benchmark_retrieval(
        described, images or [1000, 10_000, 100_000, 1_000_000], seed=seed, parts=parts, keep=keep, progress=progress
    )
    typer.echo(f"{len(described.map):,} rendered views, described by {described.described_by}; the others are drawn.")
    typer.echo(retrieval_table(rows))
    if plot is not None:
        draw_growth(rows, plot)
    for path in (output, plot):
        if path is not None:
            typer.echo(str(path))


@app.command("serve")
def serve_command(
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="overhead, hostile, killed-worker, database or overload; may be repeated.",
            show_default="all",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes of the service for killed-worker and overload; one for the others.")
    ] = 2,
    references: Annotated[int, typer.Option(min=1, max=32, help="References of each query.")] = 7,
    queries: Annotated[int, typer.Option(min=1, help="Queries for overhead.")] = 150,
    requests: Annotated[int, typer.Option(min=1, help="Hostile requests.")] = 10_000,
    fault_s: Annotated[
        float, typer.Option(min=1, help="Seconds under load for killed-worker and for database.")
    ] = 45.0,
    step_s: Annotated[
        float, typer.Option(min=1, help="Seconds for each number of clients until the best throughput is known.")
    ] = 20.0,
    overload_s: Annotated[float, typer.Option(min=1, help="Seconds of twice the best throughput.")] = 600.0,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    output: OutputOption = None,
) -> None:
    """Try a real service: its overhead, overload, hostile requests, a killed worker, a database that goes away."""
    from relograph.environment import compute_device
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, write_result
    from relograph.serving.load.benchmark import PARTS, LoadConfig, benchmark_serve, load_table

    config = LoadConfig(
        parts=tuple(part or PARTS),
        workers=workers,
        num_references=references,
        queries=queries,
        requests=requests,
        fault_s=fault_s,
        step_s=step_s,
        overload_s=overload_s,
        seed=seed,
        device=compute_device(device).kind,
    )

    def keep(rows: Sequence[Mapping[str, object]]) -> None:
        if output is not None:
            write_result(output, rows, command=command_line(), seed=seed, device=device)

    rows = benchmark_serve(config, keep=keep, progress=TerminalProgress())
    typer.echo(load_table(rows))
    if output is not None:
        typer.echo(str(output))
