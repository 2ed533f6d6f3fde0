"""`relograph eval`: how well a network localizes: a training run, or MatchGNN beside other people's methods."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import CacheOption, DescriptorsOption, DeviceOption, PairsOption, ScenesOption
from relograph.errors import ConfigError

OF_RUN, OF_PLACE, OF_ROOMS = "A training run (RUN)", "A map and its queries (--scene)", "Rooms (--rooms)"


class Reading(StrEnum):
    """How the edges of a graph become one pose."""

    NEAREST = "nearest"
    RANDOM = "random"
    AVERAGE_MARKLEY = "average-markley"
    AVERAGE_GRAMKOW = "average-gramkow"


class RoomsPart(StrEnum):
    """Which rooms: weights, thresholds and calibration are chosen on the first, the second are only scored."""

    VALIDATION = "validation"
    TEST = "test"


class ReferencesBy(StrEnum):
    """How references are found."""

    DESCRIPTOR = "descriptor"
    POSE = "pose"


class SolverChoice(StrEnum):
    """Which pose is the answer."""

    AUTO = "auto"
    REGRESS = "regress"
    GEOMETRIC = "geometric"


class PrecisionChoice(StrEnum):
    """How features of a map are kept."""

    FLOAT16 = "float16"
    INT8 = "int8"


def eval_command(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Folder of a training run.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="ROOT", help="A scene, or a folder of scenes.", rich_help_panel=OF_RUN),
    ] = None,
    scenes: ScenesOption = None,
    reading: Annotated[
        Reading,
        typer.Option(
            help="Read the pose from the nearest reference, a random one, or the average of all.",
            rich_help_panel=OF_RUN,
        ),
    ] = Reading.NEAREST,
    pairs: PairsOption = None,
    descriptors: DescriptorsOption = None,
    cache: CacheOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of references, edges or rooms that are drawn at random.")] = 0,
    scene: Annotated[
        Path | None,
        typer.Option("--scene", metavar="ROOT", help="Posed photos of a place.", rich_help_panel=OF_PLACE),
    ] = None,
    map_file: Annotated[
        Path, typer.Option("--map", metavar="FILE", help="Names of the map's frames.", rich_help_panel=OF_PLACE)
    ] = Path("map.txt"),
    query_file: Annotated[
        Path, typer.Option("--query", metavar="FILE", help="Names of the queries.", rich_help_panel=OF_PLACE)
    ] = Path("query.txt"),
    focal: Annotated[
        str,
        typer.Option(
            metavar="PX|unknown|scene|FILE",
            help="Focal length of all photos, or none, or what the scene says (EXIF is expected, not believed), or a "
            "file of lines 'name pixels'.",
            rich_help_panel=OF_PLACE,
        ),
    ] = "scene",
    also_focal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PX|unknown|scene|FILE",
            help="Run our solver once more with another focal length; may be repeated.",
            rich_help_panel=OF_PLACE,
        ),
    ] = None,
    queries: Annotated[
        str,
        typer.Option(metavar="N[:FIRST]", help="A shorter run: every N-th query only, of each home from number FIRST."),
    ] = "1",
    rooms: Annotated[
        RoomsPart | None,
        typer.Option(
            help="Homes that nobody trained on, with queries that are in their maps and queries that are not.",
            rich_help_panel=OF_ROOMS,
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Fit the confidence of these weights on validation rooms, and save it beside them.",
            rich_help_panel=OF_ROOMS,
        ),
    ] = None,
    homes: Annotated[
        int, typer.Option(min=1, help="Homes to score, of 50 queries each.", rich_help_panel=OF_ROOMS)
    ] = 20,
    stranger_maps: Annotated[
        int, typer.Option(min=0, help="Maps in which queries of other homes are looked for.", rich_help_panel=OF_ROOMS)
    ] = 10,
    strangers: Annotated[
        int, typer.Option(min=1, help="Queries of other homes to look for in each.", rich_help_panel=OF_ROOMS)
    ] = 1000,
    varied: Annotated[
        bool,
        typer.Option(
            "--varied",
            help="Ask for other photos, sparse maps, wrong focal lengths and other numbers of references, too; "
            "--calibrate always does.",
            rich_help_panel=OF_ROOMS,
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that solve beside the network.",
            show_default="one a core",
            rich_help_panel=OF_ROOMS,
        ),
    ] = None,
    textures: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Folder or zip of photographs, by split, for walls.", rich_help_panel=OF_ROOMS
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights of MatchGNN.", show_default="those in the package"),
    ] = None,
    references: Annotated[int, typer.Option(min=1, max=32, help="References of each query.")] = 7,
    references_by: Annotated[
        ReferencesBy, typer.Option(help="References by our retrieval, or the nearest by true pose.")
    ] = ReferencesBy.DESCRIPTOR,
    stride: Annotated[int, typer.Option(min=1, help="Take every so many-th of the nearest by true pose.")] = 5,
    solver: Annotated[SolverChoice, typer.Option(help="Our second row; regress leaves it out.")] = SolverChoice.AUTO,
    precision: Annotated[
        PrecisionChoice, typer.Option(help="How the features of a map are kept.")
    ] = PrecisionChoice.FLOAT16,
    peers: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Compare with sift, xfeat, xfeat+lighterglue, aliked+lightglue; see docs/peers.md."
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Of a run a file, .csv or .csv.gz; else a folder.",
            show_default="RUN/predictions.csv.gz; runs/eval-SCENE or runs/PART-rooms",
        ),
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Localize queries whose poses are known, write the answers, and print their errors beside copying the top-1."""
    from relograph.cli.printing import printable
    from relograph.environment import compute_device, num_cores
    from relograph.progress import TerminalProgress

    def warn(note: str) -> None:
        typer.echo(printable(f"warning: {note}"), err=True)

    if run is not None:
        if scene is not None or rooms is not None:
            raise ConfigError("expected a training run, --scene or --rooms, found two of them. Leave one out.")
        if data is None:
            raise ConfigError(f"expected --data ROOT, the scenes to evaluate {run} on, found none. Give it.")
        _eval_run(run, data, scenes, reading, output, pairs, descriptors, device, cache, seed, warn)
        return
    if scene is None and rooms is None:
        raise ConfigError("expected a training run, --scene ROOT or --rooms PART to evaluate, found none. Give one.")
    if output is None and rooms is not None:
        output = Path("runs", f"{rooms.value}-rooms")
    elif output is None:
        assert scene is not None
        output = Path("runs", f"eval-{scene.resolve().name}")
    if calibrate is not None:
        if rooms is not RoomsPart.VALIDATION:
            raise ConfigError("--calibrate is done on validation rooms and on nothing else. Give --rooms validation.")
        if scene is not None:
            raise ConfigError("--calibrate is done on validation rooms and on nothing else. Leave --scene out.")
        if weights not in (None, calibrate):
            raise ConfigError(f"expected one set of weights, found --calibrate {calibrate} and --weights {weights}.")
        weights = calibrate

    from relograph.evaluation.peers.matching import parse_peers
    from relograph.evaluation.place_run import PlaceConfig, evaluate_scene, scene_place

    kind = compute_device(device).kind
    every, first = _every_nth(queries)
    config = PlaceConfig(
        num_references=references,
        references_by=references_by.value,
        stride=stride,
        solver=solver.value,
        peers=parse_peers(peers),
        precision=precision.value,
    )
    if rooms is None:
        assert scene is not None
        table = evaluate_scene(
            scene,
            map_file,
            query_file,
            focal=focal,
            also_focal=also_focal or (),
            every=every,
            first=first,
            config=config,
            weights=weights,
            device=kind,
            output=output,
            warn=warn,
            progress=TerminalProgress(),
        )
        typer.echo(table.markdown())
    else:
        from relograph.environment import default_cache
        from relograph.evaluation.rooms_gather import RoomsOptions
        from relograph.evaluation.rooms_run import evaluate_rooms
        from relograph.models.shipped import load_match_gnn

        options = RoomsOptions(
            num_homes=homes,
            every=every,
            first=first,
            num_stranger_maps=stranger_maps,
            strangers_per_map=strangers,
            varied=varied,
            textures=textures,
            seed=seed,
            num_workers=num_cores() if workers is None else workers,
            cache=cache or default_cache(),
        )
        network = load_match_gnn(weights)
        network.model.to(kind)
        elsewhere = None if scene is None else scene_place(scene, map_file, query_file, focal)
        report = evaluate_rooms(
            rooms.value,
            network,
            options,
            config,
            elsewhere=None if elsewhere is None else elsewhere.every_nth_query(every, first),
            calibrate=calibrate,
            device=kind,
            output=output,
            paths={
                scene: "$DATA",
                map_file: f"$DATA/{map_file.name}",
                query_file: f"$DATA/{query_file.name}",
                output: "$OUTPUT",
                weights: "$WEIGHTS",
                textures: "$TEXTURES",
                cache: "$CACHE",
            },
            warn=warn,
            progress=TerminalProgress(),
        )
        typer.echo(report)
    typer.echo(printable(str(output)))


def _eval_run(
    run: Path,
    data: Path,
    scenes: str | None,
    reading: Reading,
    output: Path | None,
    pairs: Path | None,
    descriptors: Path | None,
    device: str,
    cache: Path | None,
    seed: int,
    warn: Callable[[str], None],
) -> None:
    from relograph.cli.printing import printable
    from relograph.environment import compute_device, default_cache
    from relograph.evaluation.evaluate_run import evaluate_run
    from relograph.evaluation.tables import results_table, summary_table
    from relograph.progress import TerminalProgress

    output = output or run / "predictions.csv.gz"
    done = evaluate_run(
        run,
        data,
        scene_names=scenes.split(",") if scenes else None,
        reading=reading.value,
        output=output,
        pairs=pairs,
        descriptors=descriptors,
        device=compute_device(device).kind,
        cache=cache or default_cache(),
        seed=seed,
        warn=warn,
        progress=TerminalProgress(),
    )
    dataset = data.resolve().name
    typer.echo(results_table("Median errors", done.rows, dataset=dataset, setting=done.setting).markdown())
    typer.echo(summary_table("All scenes", done.rows, dataset=dataset, setting=done.setting).markdown())
    typer.echo(printable(str(output)))


def _every_nth(text: str) -> tuple[int, int]:
    """The step and the first of `N[:FIRST]`."""
    every, _, first = text.partition(":")
    if not every.isdecimal() or not (first or "0").isdecimal():
        raise ConfigError(f"--queries: expected N or N:FIRST, such as 10:5, found {text!r}. Correct it.")
    return int(every), int(first or "0")
