"""`relograph eval --scene`: ours and others' methods in one place, on the same references, in the same run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from relograph.errors import CheckpointError, ConfigError, MissingExtraError
from relograph.evaluation.calibrating import rejudged
from relograph.evaluation.experiment_run import command_without_paths
from relograph.evaluation.peers.matching import Peer
from relograph.evaluation.peers.solving import PeerSolver
from relograph.evaluation.place import Place, place_of_scene, read_frame_list, references_by_pose
from relograph.evaluation.place_answers import MethodAnswers, write_query_details
from relograph.evaluation.place_localizer import REGRESSION, OurMap, OurWay, our_answers, our_row, used_references
from relograph.evaluation.place_methods import copy_first, copy_nearest, peer_answers
from relograph.evaluation.place_report import (
    comparison_table,
    draw_comparison,
    draw_failures,
    write_answers,
    write_table,
)
from relograph.evaluation.tables import ResultsTable
from relograph.geometry import Camera
from relograph.localization.consensus import import_poselib
from relograph.localization.localizer import Answer, Solver
from relograph.localization.map_features import Precision
from relograph.models.shipped import Calibration, LoadedMatchGNN, load_match_gnn
from relograph.progress import SILENT, Progress
from relograph.results import provenance, write_result
from relograph.scenes.opening import open_scene

ReferencesBy = Literal["descriptor", "pose"]


@dataclass(frozen=True, kw_only=True)
class PlaceConfig:
    """What is compared, and on which references."""

    num_references: int = 7
    """Photos of the map that each query is compared with."""
    references_by: ReferencesBy = "descriptor"
    """Found by our own retrieval, or the nearest by true pose, which no retrieval knows."""
    stride: int = 5
    """Of the nearest by true pose, every so many-th."""
    solver: Solver = "auto"
    """Of our second row; `regress` leaves it out."""
    peers: tuple[Peer, ...] = ()
    peer_solvers: tuple[PeerSolver, ...] = ("poselib", "relograph")
    precision: Precision = "float16"
    """Of the features that are kept of the map."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_references <= 32 or self.stride < 1:
            raise ConfigError(
                f"--references must be within 1 and 32 and the stride 1 or more, got {self.num_references} and "
                f"{self.stride}."
            )


@dataclass(frozen=True)
class Comparison:
    """The methods in one place."""

    place: Place
    references: Int[Tensor, "Q R"]
    methods: tuple[MethodAnswers, ...]
    """Copying first, ours last."""
    answers: Mapping[OurWay, Sequence[Answer]]
    """Ours, whole."""

    def judged_by(self, calibration: Calibration) -> "Comparison":
        """The same answers as sure as another calibration makes them; the others' are never sure of anything."""
        answers = {
            way: [rejudged(answer, way.solver, calibration) for answer in said] for way, said in self.answers.items()
        }
        said_by_name = {way.name: said for way, said in answers.items()}
        methods = tuple(
            replace(
                method,
                confidence=np.array([answer.confidence for answer in said_by_name[method.name]]),
                accepted=np.array([float(answer.localized) for answer in said_by_name[method.name]]),
            )
            if method.name in said_by_name
            else method
            for method in self.methods
        )
        return replace(self, answers=answers, methods=methods)


def evaluate_scene(
    root: Path,
    map_file: Path,
    query_file: Path,
    *,
    focal: str = "scene",
    also_focal: Sequence[str] = (),
    every: int = 1,
    first: int = 0,
    config: PlaceConfig,
    weights: Path | None = None,
    device: str = "cpu",
    output: Path,
    warn: Callable[[str], None] = lambda note: None,
    progress: Progress = SILENT,
) -> ResultsTable:
    """Localize the queries of a scene by every method; predictions are written first and scored second.

    Our solver is run once more with each of `also_focal`: how much does it matter to know the focal length?
    """
    place = scene_place(root, map_file, query_file, focal).every_nth_query(every, first)
    network = load_network(weights, device, config, warn)
    config = with_what_is_known(with_what_is_installed(config, warn), place, warn)
    told: dict[str, object] = {
        "data": "$DATA",
        "dataset": place.name,
        "data_fingerprint": place.fingerprint,
        "map_images": len(place.map),
        "num_queries": len(place.queries),
        "focal": _focal_text(focal),
        **about_references(config),
        "weights_sha256": None if network is None else network.sha256,
    }
    command = command_to_publish(
        {
            root: "$DATA",
            map_file: f"$DATA/{map_file.name}",
            query_file: f"$DATA/{query_file.name}",
            output: "$OUTPUT",
            weights: "$WEIGHTS",
            **{Path(text): _focal_text(text) for text in (focal, *also_focal)},
        }
    )
    metadata = {**told, "provenance": provenance(command=command, seed=None, device=device)}

    def keep(method: MethodAnswers) -> None:
        write_answers(output, method, metadata)

    our_map = None if network is None else OurMap.of(place.map, network, precision=config.precision, progress=progress)
    comparison = compare_in_place(place, network, config, our_map=our_map, keep=keep, progress=progress)
    methods = list(comparison.methods)
    if network is not None and our_map is not None and config.solver != "regress":
        for other in also_focal:
            otherwise = scene_place(root, map_file, query_file, other).every_nth_query(every, first)
            methods.append(_with_focal(other, otherwise, comparison.references, our_map, network, config, progress))
            keep(methods[-1])
    write_query_details(output / "queries.csv", methods)
    rows = [method.as_row() for method in methods]
    write_result(output / "results.json", rows, command=command, seed=None, device=device, details=told)
    heading = f"{len(place.queries)} queries, {len(place.map)} photos in the map, {references_text(config)}."
    table = comparison_table(f"Localization in {place.name}", rows, heading)
    write_table(output, table)
    draw_comparison(output, methods, place.name)
    draw_failures(output / "failures.png", [(place, comparison.references)], comparison.methods[-1].predictions)
    return table


def _with_focal(
    focal: str,
    place: Place,
    references: Int[Tensor, "Q R"],
    our_map: OurMap,
    network: LoadedMatchGNN,
    config: PlaceConfig,
    progress: Progress,
) -> MethodAnswers:
    """Our solver told of cameras as `place` has them, on references that were chosen before."""
    way = our_ways(place, config)[-1]
    answers = our_answers(
        place, our_map, network, way, num_references=config.num_references, references=references, progress=progress
    )
    row = our_row(place, way, answers, references, our_map.seconds)
    return row if focal == "unknown" else replace(row, name=f"relograph, solver, f = {_focal_text(focal)}")


def _focal_text(focal: str) -> str:
    """What is told of focal lengths, with no path in it."""
    return "$FOCAL" if Path(focal).is_file() else focal


def scene_place(root: Path, map_file: Path, query_file: Path, focal: str) -> Place:
    """A scene with its two lists of frames; a list that is not found where it is said to be is looked for in `root`."""
    scene = open_scene(root)

    def listed(option: str, path: Path) -> list[str]:
        found = path if path.exists() else root / path
        if not found.exists():
            raise ConfigError(
                f"{option} {path}: expected a list of frames of the scene, a name a line, here or in {root}, found "
                "none. Write it; `relograph scene info` tells what the scene holds."
            )
        return read_frame_list(found, scene)

    return place_of_scene(scene, listed("--map", map_file), listed("--query", query_file), focal)


def compare_in_place(
    place: Place,
    network: LoadedMatchGNN | None,
    config: PlaceConfig,
    *,
    our_map: OurMap | None = None,
    keep: Callable[[MethodAnswers], None] = lambda method: None,
    progress: Progress = SILENT,
) -> Comparison:
    """Every method on the same references; without a network of ours, those of the others and of copying.

    `keep` is called with each method's answers as soon as they are there: what fails later does not undo them.
    """
    given = (
        None
        if config.references_by == "descriptor"
        else references_by_pose(place, config.num_references, config.stride)
    )
    references, answers, ours = given, {}, []
    if network is not None:
        our_map = our_map or OurMap.of(place.map, network, precision=config.precision, progress=progress)
        for way in our_ways(place, config):
            answers[way] = our_answers(
                place,
                our_map,
                network,
                way,
                num_references=config.num_references,
                references=given,
                progress=progress,
            )
            if references is None:
                references = used_references(answers[way], config.num_references)
            ours.append(our_row(place, way, answers[way], references, our_map.seconds))
            keep(ours[-1])
    assert references is not None  # without a network they are given
    others = others_on_references(place, references, config, keep=keep, progress=progress)
    return Comparison(place, references, (*others, *ours), answers)


def others_on_references(
    place: Place,
    references: Int[Tensor, "Q R"],
    config: PlaceConfig,
    *,
    keep: Callable[[MethodAnswers], None] = lambda method: None,
    progress: Progress = SILENT,
) -> list[MethodAnswers]:
    """Copying and the peers, on references that are ours."""
    methods = [copy_first(place, references), copy_nearest(place)]
    for method in methods:
        keep(method)
    for peer in config.peers:
        of_peer = peer_answers(place, references, peer, config.peer_solvers, progress=progress)
        for method in of_peer:
            keep(method)
        methods += of_peer
    return methods


def our_ways(place: Place, config: PlaceConfig) -> list[OurWay]:
    """Regression, which is told of no camera, and the solver with what the place knows of cameras."""
    if config.solver == "regress":
        return [REGRESSION]
    knows_any = any(isinstance(camera, Camera) for camera in (*place.map.cameras, *place.queries.cameras))
    return [REGRESSION, OurWay(config.solver, "given" if knows_any else "searched")]


def load_network(
    weights: Path | None, device: str, config: PlaceConfig, warn: Callable[[str], None]
) -> LoadedMatchGNN | None:
    """The network on a device; None, and a word about it, where there is none and it is not needed for references."""
    try:
        network = load_match_gnn(weights)
    except CheckpointError as error:
        if weights is not None or config.references_by == "descriptor":
            raise
        warn(f"our own rows are left out: {error}")
        return None
    network.model.to(torch.device(device))
    return network


def with_what_is_installed(config: PlaceConfig, warn: Callable[[str], None]) -> PlaceConfig:
    """The comparison without what cannot be run on this machine, with a word about it."""
    try:
        import_poselib()
    except MissingExtraError as error:
        warn(f"the solver's rows and the peers are left out: {error}")
        return replace(config, solver="regress", peers=())
    return config


def with_what_is_known(config: PlaceConfig, place: Place, warn: Callable[[str], None]) -> PlaceConfig:
    """The comparison without what cannot be run in this place, with a word about it."""
    if config.peers and "poselib" in config.peer_solvers and not (place.map.focal_known and place.queries.focal_known):
        warn("PoseLib alone does not search focal lengths: the peers are solved with our solver.")
        return replace(config, peer_solvers=("relograph",))
    return config


def command_to_publish(name_by_path: Mapping[Path | None, str]) -> str:
    """The command that is running, with a name such as `$DATA` in the place of every path, however it was typed."""
    names = {str(path): name for path, name in name_by_path.items() if path is not None}
    return command_without_paths({**names, **{f"{path}/": name for path, name in names.items()}})


def about_references(config: PlaceConfig) -> dict[str, object]:
    """How the references were chosen, for a file of results."""
    chosen: dict[str, object] = {"num_references": config.num_references, "references_by": config.references_by}
    return chosen | ({"stride": config.stride} if config.references_by == "pose" else {})


def references_text(config: PlaceConfig) -> str:
    """The same in words."""
    how = (
        "by our own retrieval" if config.references_by == "descriptor" else f"by true pose with stride {config.stride}"
    )
    return f"{config.num_references} references {how}"
