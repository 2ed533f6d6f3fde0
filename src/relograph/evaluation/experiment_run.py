"""`relograph experiments run`: from a folder of scenes to results."""

import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relograph.configuration import with_overrides
from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.experiment_results import Provenance, carry_out
from relograph.evaluation.experiment_sweep import Sweep
from relograph.evaluation.experiments import Plan, experiments_called
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.graphs import Target
from relograph.progress import SILENT, Progress
from relograph.results import program_name
from relograph.rooms.seven_rooms import RECIPE_FILE
from relograph.scenes import Scene, open_scenes
from relograph.training.presets import preset as preset_of
from relograph.training.workbench import set_up_workbench, start_from, what_to_know

DATASETS = {"7scenes": "7-Scenes", "cambridge": "Cambridge Landmarks", "sevenrooms": "SevenRooms"}
NOT_IN_THE_PAPER = {"Street"}
"""Scenes of those data sets that the paper leaves out."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What a user may choose about a sweep."""

    preset: str
    settings: Sequence[str] = ()
    settings_of_one_scene: Sequence[str] = ()
    scene_names: Sequence[str] | None = None
    scene: str | None = None
    """For experiments on one scene; without it the paper's, where the data have it, or the last."""
    target: Target | None = None
    dataset: str | None = None
    """A key of `DATASETS`; without it it is recognised."""
    init: Path | None = None
    encoder_weights: Path | None = None
    descriptors: Path | None = None
    label: str = ""
    """Added to the names of results, so that two sweeps can stand side by side."""
    minutes: float = 0.0
    """When it ends in order at the latest, with what is finished; 0 goes on to the end."""
    device: str = "cpu"


def run_experiments(
    names: Sequence[str],
    root: Path,
    output: Path,
    options: SweepOptions,
    *,
    cache: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    progress: Progress = SILENT,
) -> list[Path]:
    """Run experiments on the scenes of a data set; what an earlier call finished is taken as it is."""
    if not 0 <= options.minutes < math.inf:
        raise ConfigError(f"--minutes: expected 0 or more, found {options.minutes}. 0 goes on to the end.")
    ends_at_s = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    config = with_overrides(preset_of(options.preset), options.settings)
    if options.target is not None:
        config = replace(config, model=replace(config.model, target=options.target))
    scenes = open_scenes(root, options.scene_names)
    dataset = DATASETS[options.dataset] if options.dataset else recognised_dataset(root, scenes)
    if options.scene_names is None:
        scenes = those_of_the_paper(scenes, dataset, warn)
    experiments = experiments_called(names, dataset=dataset)
    without_queries = [scene.name for scene in scenes if not scene.test.frames]
    if without_queries:
        raise DatasetError(
            f"{root}: expected test frames in every scene, found none in {', '.join(without_queries)}. Leave those "
            "scenes out with --scenes, or give them a test split."
        )
    if "table3" in {experiment.name for experiment in experiments} and dataset != DATASETS["cambridge"]:
        warn(f"table3 is the paper's table of Cambridge Landmarks; these are other scenes ({dataset}), shown as such.")
    scene_names = tuple(scene.name for scene in scenes)
    plan = Plan(
        config,
        scene_names,
        options.scene or scene_of_the_paper(scene_names, dataset),
        tuple(options.settings_of_one_scene),
    )
    for experiment in experiments:
        experiment.jobs(plan)  # what cannot be planned is said before anything is loaded
    start = start_from(config, init=options.init, encoder_weights=options.encoder_weights, device=options.device)
    workbench = set_up_workbench(
        scenes,
        config,
        cache=cache,
        start=start,
        device=options.device,
        descriptors=options.descriptors,
        progress=progress,
    )
    for note in what_to_know(workbench, config, scene_names):
        warn(note)
    paths = {root: "$DATA", output: "$OUTPUT", cache: "$CACHE", options.init: "$INIT"}
    paths |= {options.encoder_weights: "$WEIGHTS", options.descriptors: "$DESCRIPTORS"}
    sweep = Sweep(
        plan=plan,
        workbench=workbench,
        folder=output,
        device=options.device,
        progress=progress,
        say=say,
        warn=warn,
        ends_at_s=ends_at_s,
    )
    provenance = Provenance(
        dataset=dataset,
        preset=options.preset,
        command=command_without_paths({str(path): name for path, name in paths.items() if path is not None}),
        label=options.label,
    )
    return carry_out(experiments, sweep, provenance)


def recognised_dataset(root: Path, scenes: Sequence[Scene]) -> str:
    """What the data set is called: ours by the recipe in its rooms, the paper's by its scenes' names.

    One name proves nothing, since many offices are called so: the scenes must be the paper's and no others, and most of
    the paper's must lie beside them. What is not recognised is called as its folder.
    """
    if all((scene.root / RECIPE_FILE).is_file() for scene in scenes):
        return DATASETS["sevenrooms"]
    names = {scene.name for scene in scenes} - NOT_IN_THE_PAPER
    beside = {path.name for path in scenes[0].root.resolve().parent.iterdir()}
    for key in ("table1", "table3"):
        published = paper_numbers().tables[key]
        known = set(published.folder_by_scene.values())
        if names and names <= known and len(known & beside) > len(known) / 2:
            return published.dataset
    return root.resolve().name


def scene_of_the_paper(names: Sequence[str], dataset: str) -> str:
    """The scene that the paper takes for experiments on one, where it is among them; else the last."""
    rounds = paper_numbers().rounds
    folder = paper_numbers().tables["table1"].folder_by_scene[rounds.scene]
    return folder if dataset == rounds.dataset and folder in names else names[-1]


def those_of_the_paper(scenes: Sequence[Scene], dataset: str, warn: Callable[[str], None]) -> list[Scene]:
    """Without scenes that the paper leaves out of a data set of which it has others, such as Cambridge's Street."""
    for table in paper_numbers().tables.values():
        folders = set(table.folder_by_scene.values())
        if table.dataset == dataset and any(scene.name in folders for scene in scenes):
            left_out = [scene.name for scene in scenes if scene.name not in folders]
            if left_out:
                warn(f"{', '.join(left_out)} is not in the paper's tables and is left out; --scenes takes it in.")
            return [scene for scene in scenes if scene.name in folders]
    return list(scenes)


def command_without_paths(names_by_path: Mapping[str, str]) -> str:
    """The command that is running, with a name such as `$DATA` in the place of each of those paths."""
    words = [program_name()]
    for word in sys.argv[1:]:
        option, equals, value = word.partition("=")
        if word in names_by_path:
            words.append(names_by_path[word])
        elif equals and value in names_by_path:
            words.append(f"{option}={names_by_path[value]}")
        else:
            words.append(shlex.quote(word))
    return " ".join(words)
