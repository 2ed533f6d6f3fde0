"""`relograph ablate`: what each ingredient of MatchGNN brings.

The network is trained from random weights with everything, then without one ingredient after the other, each time for
as long; every one is scored on the same queries in validation rooms.

OUTPUT/VARIANT/run                  its training, which goes on where it was ended
OUTPUT/VARIANT/validation-rooms     its evaluation
OUTPUT/VARIANT/scores.json          what is kept of it; a variant that has it is not trained again
OUTPUT/ablation.json, ablation.md   all that are there, written after each
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError
from relograph.evaluation.place_rooms import RoomPlace
from relograph.evaluation.place_run import PlaceConfig, command_to_publish
from relograph.evaluation.rooms_gather import LEFT_OUT, RoomsOptions, Ways, make_homes
from relograph.evaluation.rooms_run import evaluate_rooms
from relograph.evaluation.writing import write_whole
from relograph.models.shipped import load_match_gnn
from relograph.progress import SILENT, Progress
from relograph.results import write_result
from relograph.training.match_training import WEIGHTS, MatchTrainConfig, TrainingRecord, textures_of
from relograph.training.train_run import match_run

SCORES = "scores.json"


@dataclass(frozen=True)
class Variant:
    """The network without an ingredient."""

    name: str
    without: str
    """What it lacks, in words."""
    change: Callable[[MatchTrainConfig], MatchTrainConfig] = lambda config: config
    sees_photographs: bool = True


def _without_map_poses(config: MatchTrainConfig) -> MatchTrainConfig:
    return replace(config, model=replace(config.model, map_poses=False))


def _without_matching_loss(config: MatchTrainConfig) -> MatchTrainConfig:
    """Nobody tells where cells are seen, so the poses' losses have to; within a cell, nothing could tell."""
    return replace(
        config,
        model=replace(config.model, pose_teaches_matches=True, fine_places=False),
        loss=replace(config.loss, coarse=0.0, seen=0.0, fine=0.0),
    )


def _without_attention(config: MatchTrainConfig) -> MatchTrainConfig:
    return replace(config, model=replace(config.model, self_layers=0, cross_layers=0))


def _without_fine_level(config: MatchTrainConfig) -> MatchTrainConfig:
    return replace(config, model=replace(config.model, fine_places=False), loss=replace(config.loss, fine=0.0))


VARIANTS = (
    Variant("everything", "nothing"),
    Variant("no-map-poses", "the map's poses in messages", _without_map_poses),
    Variant("no-matching-loss", "losses of matches (poses teach them; no fine level)", _without_matching_loss),
    Variant("no-attention", "attention within and between images", _without_attention),
    Variant("no-photographs", "photographs among the textures", sees_photographs=False),
    Variant("no-fine-level", "the fine level", _without_fine_level),
)


def variants_of(names: str | None) -> list[Variant]:
    """Those of the names, separated by commas; all without any."""
    by_name = {variant.name: variant for variant in VARIANTS}
    wanted = list(by_name) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in by_name]:
        raise ConfigError(f"--only: expected names among {', '.join(by_name)}, found {unknown[0]!r}. Correct it.")
    return [by_name[name] for name in wanted]


def ablate(
    config: MatchTrainConfig,
    variants: Sequence[Variant],
    options: RoomsOptions,
    *,
    output: Path,
    results: Path | None = None,
    device: str = "cpu",
    paths: Mapping[Path | None, str],
    warn: Callable[[str], None] = lambda note: None,
    progress: Progress = SILENT,
) -> str:
    """Train and score the variants that have not been; a table of all of them in Markdown.

    `options` are those of the evaluation, with the photographs of training too. `results` is the folder of the final
    table, if that is another than `output`.
    """
    if options.textures is None and any(not variant.sees_photographs for variant in variants):
        raise ConfigError("expected --textures PATH to see what photographs bring, found none. Give it, or use --only.")
    homes: list[RoomPlace] = []
    rows: list[Mapping[str, object]] = []
    details: dict[str, object] = {
        "data": "validation rooms",
        "minutes": config.optim.minutes or None,
        "epochs": None if config.optim.minutes else config.optim.epochs,
        "textures": textures_of(options.textures),
    }
    command = command_to_publish(paths)
    table = ""
    with progress.task("variants", total=len(variants)) as advance:
        for variant in variants:
            told = _what_scores_depend_on(variant, config, options)
            scored = _read_scores(output / variant.name / SCORES, told)
            if scored is None:
                homes = homes or make_homes("validation", options, device=device, progress=progress)
                scored = _train_and_score(variant, config, options, homes, output, device, paths, warn, progress)
                write_result(
                    output / variant.name / SCORES,
                    scored,
                    command=command,
                    seed=config.seed,
                    device=device,
                    details={"told": told},
                )
            rows += scored
            write_result(
                (results or output) / "ablation.json",
                rows,
                command=command,
                seed=config.seed,
                device=device,
                details=details,
            )
            table = ablation_table(rows)
            write_whole((results or output) / "ablation.md", table.encode())
            advance(1)
    return table


def ablation_table(rows: Sequence[Mapping[str, object]]) -> str:
    """A line for each variant in Markdown, with the errors of every method."""
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    titles = [f"{method.removeprefix('relograph, ')} | 25 cm 10°" for method in methods]
    lines = [f"| without | graphs seen | {' | '.join(titles)} |", "|---|---|" + "---|---|" * len(methods)]
    for name in dict.fromkeys(row["variant"] for row in rows):
        of_variant = {str(row["method"]): row for row in rows if row["variant"] == name}
        first = next(iter(of_variant.values()))
        cells = [_cells(of_variant[method]) if method in of_variant else "– | –" for method in methods]
        lines.append(f"| {first['without']} | {first['graphs']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, object]) -> str:
    metres, degrees = row["median_translation_error_m"], row["median_rotation_error_deg"]
    median = "∞" if metres is None or degrees is None else f"{metres:.3f} m / {degrees:.2f}°"
    return f"{median} | {row['recall_25cm_10deg']:.1%}"


def _train_and_score(
    variant: Variant,
    config: MatchTrainConfig,
    options: RoomsOptions,
    homes: Sequence[RoomPlace],
    output: Path,
    device: str,
    paths: Mapping[Path | None, str],
    warn: Callable[[str], None],
    progress: Progress,
) -> list[dict[str, object]]:
    folder = output / variant.name
    textures = options.textures if variant.sees_photographs else None
    match_run(variant.change(config), folder / "run", textures=textures, device=device, progress=progress)
    network = load_match_gnn(folder / "run" / WEIGHTS)
    network.model.to(device)
    evaluate_rooms(
        "validation",
        network,
        options,
        PlaceConfig(),
        homes=homes,
        device=device,
        output=folder / "validation-rooms",
        paths=paths,
        warn=warn,
        progress=progress,
    )
    scored = json.loads((folder / "validation-rooms" / "results.json").read_text())["results"]
    record = TrainingRecord.of(network.metadata)
    told = {
        "variant": variant.name,
        "without": variant.without,
        "seconds": record.seconds,
        "graphs": record.graphs,
        "weights_sha256": network.sha256,
    }
    shown = [way.name for way in Ways.of(PlaceConfig()).few]
    return [{**told, **row} for row in scored if row["method"] in shown]


def _what_scores_depend_on(variant: Variant, config: MatchTrainConfig, options: RoomsOptions) -> dict[str, object]:
    told = {name: value for name, value in asdict(options).items() if name not in LEFT_OUT}
    photographs = textures_of(options.textures)
    as_json: dict[str, object] = json.loads(
        json.dumps(
            {
                "config": config_to_dict(variant.change(config)),
                "trained_with": photographs if variant.sees_photographs else None,
                "scored_with": photographs,
                "options": told,
            }
        )
    )
    return as_json


def _read_scores(path: Path, told: Mapping[str, object]) -> list[dict[str, object]] | None:
    """None where a variant has not been scored, or otherwise than it is told."""
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, object]] = document["results"]
    return rows if document["metadata"].get("told") == told else None
