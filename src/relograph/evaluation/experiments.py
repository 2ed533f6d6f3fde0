"""The paper's experiments: which networks are trained on which scenes, and which rows their answers become.

Everything here is a plan; `experiment_sweep` and `experiment_results` carry it out. A training that several
experiments need is the same `Job` in all of them and is done once.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from relograph.configuration import with_overrides
from relograph.errors import ConfigError
from relograph.graphs import Target
from relograph.localization import EdgeReading
from relograph.training.config import GraphConfig, TrainConfig

Retrieval = Literal["copy top-1", "interpolation"]
"""Methods without a training."""

COPY = "NetVLAD (copy top-1)"
INTERPOLATION = "NetVLAD + interpolation"
OURS = "RelPoseGNN"
NUM_RANDOM_SEEDS = 3
CAMBRIDGE_STRIDE = 3
ROUNDS = (1, 2, 3, 4)
PAPER_ROUNDS = 2
READINGS: dict[EdgeReading, str] = {
    "nearest": "nearest edge",
    "random": "one random edge",
    "average-markley": "averaged (Weiszfeld, Markley)",
    "average-gramkow": "averaged (Weiszfeld, Gramkow)",
}


@dataclass(frozen=True)
class Job:
    """One training."""

    name: str
    config: TrainConfig
    scenes: tuple[str, ...]
    """What it is trained on."""


@dataclass(frozen=True)
class Evaluation:
    """The answers of a network, or of retrieval alone, to the test queries of some scenes."""

    method: Job | Retrieval
    scenes: tuple[str, ...]
    reading: EdgeReading = "nearest"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: one run of a method, or several whose scores are averaged."""

    method: str
    runs: tuple[tuple[Evaluation, ...], ...]
    """Of each run the evaluations whose scenes together make the row."""
    num_test_frames: int = 1
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """What the experiments are made of."""

    base: TrainConfig
    scenes: tuple[str, ...]
    scene: str
    """The one that experiments on a single scene take."""
    settings_of_one_scene: tuple[str, ...] = ()
    """Changes of settings for trainings on one scene, as after `--set`."""

    def __post_init__(self) -> None:
        if self.scene not in self.scenes:
            raise ConfigError(
                f"expected --scene to be one of {', '.join(self.scenes)}, found {self.scene!r}. Choose one of them."
            )
        changed = self.for_one_scene(self.base)
        if (changed.data, changed.retrieval) != (self.base.data, self.base.retrieval):
            raise ConfigError(
                "expected settings of single scenes to leave data.* and retrieval.* alone, which all trainings share, "
                f"found {', '.join(self.settings_of_one_scene)}. Set those with --set, for all of them."
            )

    def for_one_scene(self, config: TrainConfig) -> TrainConfig:
        """The configuration as a training on one scene has it."""
        return with_overrides(config, self.settings_of_one_scene)

    def ours(self, target: Target | None = None, scenes: tuple[str, ...] | None = None) -> Job:
        """The paper's network on all scenes, or on some."""
        target, scenes = target or self.base.model.target, scenes or self.scenes
        config = replace(self.base, model=replace(self.base.model, target=target))
        return Job(_named(f"ours-{target}", scenes, self.scenes), config, scenes)

    def without(self, scene: str, target: Target) -> Job:
        """The paper's network on all scenes but one."""
        others = tuple(name for name in self.scenes if name != scene)
        return replace(self.ours(target, others), name=f"ours-{target}-without-{scene}")

    def single(self, scene: str, stride: int | None = None, rounds: int | None = None) -> Job:
        """The paper's network on one scene."""
        config = self.for_one_scene(self.base)
        stride, rounds = stride or config.graph.stride, rounds or config.model.rounds
        config = replace(config, graph=replace(config.graph, stride=stride), model=replace(config.model, rounds=rounds))
        return Job(f"single-{config.model.target}-{scene}-stride{stride}-rounds{rounds}", config, (scene,))

    def absolute(self, kind: Literal["posenet", "atloc"], scene: str) -> Job:
        """A network that says absolute poses; it takes as many steps with as many images as ours on that scene."""
        base = self.for_one_scene(self.base)
        optim = base.optim
        repeats = 1 if optim.steps_per_epoch else base.graph.num_nodes
        config = replace(
            base,
            model=replace(base.model, kind=kind, target="world"),
            graph=GraphConfig(num_nodes=1, selection="alone", stride=1, edge_dropout=0.0),
            retrieval=replace(base.retrieval, loss="none"),  # a network of one image finds no references
            optim=replace(
                optim,
                batch_size=optim.batch_size * base.graph.num_nodes,
                epochs=optim.epochs * repeats,
                step_epochs=optim.step_epochs * repeats,
                patience=optim.patience * repeats,
            ),
        )
        return Job(f"{kind}-{scene}", config, (scene,))

    def pairs(self) -> Job:
        """Baseline-1: the same graphs, but fully connected layers that see one pair at a time."""
        config = replace(self.base, model=replace(self.base.model, kind="pair_mlp"))
        return Job(f"baseline1-{config.model.target}", config, self.scenes)

    def random_references(self, seed: int) -> Job:
        """Baseline-2: references at random from the query's scene, in training and at test."""
        graph = replace(self.base.graph, selection="random")
        config = replace(self.base, graph=graph, seed=self.base.seed + seed)
        return Job(f"baseline2-{config.model.target}-seed{config.seed}", config, self.scenes)

    def sequence(self) -> Job:
        """Baseline-3: a graph of consecutive query frames."""
        config = replace(
            self.base,
            graph=replace(self.base.graph, selection="sequence"),
            model=replace(self.base.model, kind="sequence_gnn"),
        )
        return Job(f"baseline3-{config.model.target}", config, self.scenes)

    def aggregating(self, how: Literal["mean", "max", "sum"]) -> Job:
        """The paper's network with another aggregation of messages."""
        job = self.ours()
        if how == job.config.model.aggregation:
            return job
        config = replace(job.config, model=replace(job.config.model, aggregation=how))
        return Job(f"{job.name}-{how}", config, self.scenes)

    def on_all(self, method: Job | Retrieval, reading: EdgeReading = "nearest") -> tuple[Evaluation, ...]:
        """A method's answers on all scenes."""
        return (Evaluation(method, self.scenes, reading),)

    def scene_by_scene(self, job_of: Callable[[str], Job]) -> tuple[Evaluation, ...]:
        """The answers of a network of its own on each scene."""
        return tuple(Evaluation(job_of(scene), (scene,)) for scene in self.scenes)


def _named(name: str, scenes: Sequence[str], all_scenes: Sequence[str]) -> str:
    return name if tuple(scenes) == tuple(all_scenes) else f"{name}-{'+'.join(scenes)}"


def _row(method: str, evaluations: tuple[Evaluation, ...], num_test_frames: int = 1, note: str = "") -> Row:
    return Row(method=method, runs=(evaluations,), num_test_frames=num_test_frames, note=note)


# The tables


def _copying(plan: Plan) -> Row:
    return _row(COPY, plan.on_all("copy top-1"))


def _all_scenes(plan: Plan) -> list[Row]:
    return [
        _copying(plan),
        _row(INTERPOLATION, plan.on_all("interpolation")),
        _row("PoseNet", plan.scene_by_scene(lambda scene: plan.absolute("posenet", scene)), note="a network a scene"),
        _row("AtLoc", plan.scene_by_scene(lambda scene: plan.absolute("atloc", scene)), note="a network a scene"),
        _row(f"{OURS}, world target", plan.on_all(plan.ours("world"))),
        _row(f"{OURS}, camera target", plan.on_all(plan.ours("camera"))),
    ]


def _cambridge(plan: Plan) -> list[Row]:
    base = replace(
        plan.base,
        graph=replace(plan.base.graph, stride=CAMBRIDGE_STRIDE),
        data=replace(plan.base.data, metres_per_unit=0.0),
    )
    return _all_scenes(replace(plan, base=base))


def _leave_one_out(plan: Plan) -> list[Row]:
    if len(plan.scenes) < 2:
        raise ConfigError(
            f"table2 leaves one scene out and expects two at least, found only {plan.scenes[0]}. Give the folder of "
            "all scenes as --data."
        )
    targets: tuple[Target, ...] = ("world", "camera")
    return [
        _copying(plan),
        *(
            _row(
                f"{OURS}, {target} target",
                tuple(Evaluation(plan.without(scene, target), (scene,)) for scene in plan.scenes),
                note="each scene by a network that was trained on the others",
            )
            for target in targets
        ),
    ]


def _ablation(plan: Plan) -> list[Row]:
    random = [plan.on_all(plan.random_references(seed)) for seed in range(NUM_RANDOM_SEEDS)]
    frames = plan.base.graph.num_nodes
    return [
        _copying(plan),
        _row("Baseline-1: pairs, no GNN", plan.on_all(plan.pairs())),
        *(_row(f"Baseline-2: random references, seed {seed}", run) for seed, run in enumerate(random)),
        Row(method=f"Baseline-2: mean of {NUM_RANDOM_SEEDS} seeds", runs=tuple(random)),
        _row(f"Baseline-3: sequence of {frames}", plan.on_all(plan.sequence()), num_test_frames=frames),
        _row(OURS, plan.on_all(plan.ours())),
    ]


def _single_scene(plan: Plan) -> list[Row]:
    return [_copying(plan), _row(f"{OURS}, one scene", plan.scene_by_scene(plan.single), note="a network a scene")]


def _averaging(plan: Plan) -> list[Row]:
    return [
        _copying(plan),
        *(_row(f"{OURS}, {words}", plan.on_all(plan.ours(), reading)) for reading, words in READINGS.items()),
    ]


def strides_of(plan: Plan) -> list[int]:
    """What is compared: every neighbour, and every so many-th of the settings."""
    return sorted({1, plan.single(plan.scene).config.graph.stride})


def _stride(plan: Plan) -> list[Row]:
    return [
        _copying(plan),
        *(
            _row(
                f"{OURS}, stride {stride}",
                plan.scene_by_scene(lambda scene, stride=stride: plan.single(scene, stride=stride)),  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                note="a network a scene",
            )
            for stride in strides_of(plan)
        ),
    ]


def _aggregation(plan: Plan) -> list[Row]:
    ways: tuple[Literal["mean", "max", "sum"], ...] = ("mean", "max", "sum")
    return [_copying(plan), *(_row(f"{OURS}, {how}", plan.on_all(plan.aggregating(how))) for how in ways)]


def _no_rows(plan: Plan) -> list[Row]:
    return []


# Jobs beyond those of the rows


def _no_jobs(plan: Plan) -> list[Job]:
    return []


def rounds_jobs(plan: Plan) -> list[Job]:
    """The networks of the grid of rounds, in the order of `ROUNDS`."""
    return [plan.single(plan.scene, rounds=rounds) for rounds in ROUNDS]


def saliency_jobs(plan: Plan) -> list[Job]:
    """Baseline-1, AtLoc on the one scene, and ours."""
    return [plan.pairs(), plan.absolute("atloc", plan.scene), plan.ours()]


def stride_jobs(plan: Plan) -> list[Job]:
    """The networks of the one scene, each with its own stride."""
    return [plan.single(plan.scene, stride=stride) for stride in strides_of(plan)]


# Answers beyond those of the rows


def _no_evaluations(plan: Plan) -> tuple[Evaluation, ...]:
    return ()


def qualitative_evaluations(plan: Plan) -> tuple[Evaluation, ...]:
    """Those of ours."""
    return plan.on_all(plan.ours())


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One of the paper's experiments."""

    name: str
    about: str
    title: str
    rows: Callable[[Plan], list[Row]] = _no_rows
    measured_jobs: Callable[[Plan], list[Job]] = _no_jobs
    """Networks of which it measures more than their answers."""
    further_evaluations: Callable[[Plan], tuple[Evaluation, ...]] = _no_evaluations
    published: str | None = None
    """The paper's table that stands beside ours."""

    def evaluations(self, plan: Plan) -> list[Evaluation]:
        """Every answer that it needs, each once."""
        of_rows = chain.from_iterable(run for row in self.rows(plan) for run in row.runs)
        return list(dict.fromkeys([*of_rows, *self.further_evaluations(plan)]))

    def jobs(self, plan: Plan) -> list[Job]:
        """Every training that it needs, each once, what matters most first: a sweep may end at any moment."""
        answering = [evaluation.method for evaluation in self.evaluations(plan) if isinstance(evaluation.method, Job)]
        return sorted(dict.fromkeys([*answering, *self.measured_jobs(plan)]), key=_importance)


def _importance(job: Job) -> tuple[bool, bool, int]:
    """Least of what matters most: the paper's network, with the camera target, on many scenes."""
    model, graph = job.config.model, job.config.graph
    is_ours = model.kind == "relpose_gnn" and graph.selection == "retrieval"
    return not is_ours, model.target != "camera", -len(job.scenes)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="table1",
            title="Scenes seen in training",
            about="all scenes: retrieval, PoseNet and AtLoc on each scene, the paper's network with both targets",
            rows=_all_scenes,
            published="table1",
        ),
        Experiment(
            name="table2",
            title="Scenes never seen in training",
            about="leave one scene out: a training for every scene on the others, with both targets",
            rows=_leave_one_out,
            published="table2",
        ),
        Experiment(
            name="table3",
            title="Cambridge Landmarks",
            about="as table1 with every third neighbour and translations scaled, for a root like Cambridge Landmarks",
            rows=_cambridge,
            published="table3",
        ),
        Experiment(
            name="table4",
            title="Ablation",
            about="without the graph network, with random references (3 seeds), with a sequence instead of retrieval",
            rows=_ablation,
            published="table4",
        ),
        Experiment(
            name="single-scene",
            title="A network for each scene",
            about="one training for every scene",
            rows=_single_scene,
            published="single-scene",
        ),
        Experiment(
            name="averaging",
            title="Reading the pose from one edge or from all",
            about="nearest edge, one random edge, averages of all edges",
            rows=_averaging,
            published="averaging",
        ),
        Experiment(
            name="stride",
            title="Strided selection of neighbours",
            about="single-scene networks with every neighbour against every fifth, and a sheet of the chosen ones",
            rows=_stride,
            measured_jobs=stride_jobs,
            published="stride",
        ),
        Experiment(
            name="rounds",
            title="Rounds of message passing",
            about="1 to 4 rounds in training and at test on one scene, by the fixed loss",
            measured_jobs=rounds_jobs,
        ),
        Experiment(
            name="aggregation",
            title="Aggregation of messages",
            about="mean, maximum or sum of the messages that reach a node",
            rows=_aggregation,
        ),
        Experiment(
            name="saliency",
            title="What the networks look at",
            about="gradients in the query image of Baseline-1, AtLoc and the paper's network",
            measured_jobs=saliency_jobs,
        ),
        Experiment(
            name="qualitative",
            title="Best, median and worst answers",
            about="cameras of one scene in 3-D, truth and answer",
            further_evaluations=qualitative_evaluations,
        ),
    )
}


def experiments_called(names: Sequence[str], *, dataset: str = "7-Scenes") -> list[Experiment]:
    """The experiments of those names, each once.

    `all` is every one, table3 in the place of table1 where the data are Cambridge Landmarks and without it elsewhere.
    """
    wanted: list[str] = []
    for name in names:
        if name == "all":
            other = "table1" if dataset == "Cambridge Landmarks" else "table3"
            wanted += [known for known in EXPERIMENTS if known != other]
        elif name in EXPERIMENTS:
            wanted.append(name)
        else:
            nearest = difflib.get_close_matches(name, [*EXPERIMENTS, "all"], n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else "See: relograph experiments list"
            raise ConfigError(f"expected an experiment among {', '.join(EXPERIMENTS)} or all, found {name!r}. {hint}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(wanted)]
