"""Carrying out experiments: trainings that are shared and resumed, predictions, scores, tables, figures.

DIR/jobs/ours-camera-1f0c9a3b2e/      a training: best/, log.csv, job.json once it is finished,
                                      predictions-<reading>-<scenes>.csv.gz
DIR/results/table1.json               scores with their provenance, to be committed
DIR/tables/table1.md, table1.tex
DIR/figures/table1-cumulative-errors.png
"""

import hashlib
import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError
from relograph.evaluation.evaluating import copy_top1, evaluate, interpolate_top
from relograph.evaluation.experiment_report import tables_of
from relograph.evaluation.experiments import (
    COPY,
    PAPER_ROUNDS,
    ROUNDS,
    Evaluation,
    Experiment,
    Job,
    Plan,
    Retrieval,
    Row,
    rounds_jobs,
)
from relograph.evaluation.metrics import SceneScore, mean_of_runs, score
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.plots import (
    cumulative_errors_figure,
    errors_by_distance_figure,
    rounds_figure,
    save_figure,
)
from relograph.evaluation.predictions import Predictions, read_predictions, write_predictions
from relograph.evaluation.writing import write_whole
from relograph.models import RelPoseGNN
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.results import write_result
from relograph.training.loop import make_fabric, read_log
from relograph.training.running import Trained, fixed_loss, graph_rows, load_trained, train_on_scenes
from relograph.training.workbench import Workbench

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What results say about how they were made."""

    dataset: str
    preset: str
    command: str
    """With `$DATA` in the place of a path."""
    device: str


@dataclass(kw_only=True)
class Runner:
    """One sweep over experiments, in one folder."""

    plan: Plan
    workbench: Workbench
    folder: Path
    provenance: Provenance
    progress: Progress = SILENT
    say: Callable[[str], None] = lambda line: None
    """Told, in one line, what was finished."""
    _fabrics: "dict[str, Fabric]" = field(default_factory=dict)

    def run(self, experiments: Sequence[Experiment]) -> list[Path]:
        """Train what is not trained yet, evaluate, and write the results of each experiment as soon as it is done."""
        jobs = dict.fromkeys(job for experiment in experiments for job in experiment.jobs(self.plan))
        unfinished = [job for job in jobs if not self.is_finished(job)]
        written = []
        with self.progress.task("sweep (training graphs)", total=sum(map(self.num_graphs, unfinished))) as advance:
            for experiment in experiments:
                for job in experiment.jobs(self.plan):
                    if not self.is_finished(job):
                        self.train(job, advance)
                written.append(self.write(experiment))
                self.say(f"{experiment.name}: {written[-1]}")
        return written

    # Trainings

    def key(self, method: Job | Retrieval) -> str:
        """A short hash of all that decides what a method answers."""
        identity: dict[str, object] = {"data": self.workbench.data.fingerprint, "retrieval": self.workbench.retrieval}
        if isinstance(method, Job):
            identity |= {
                "config": config_to_dict(method.config),
                "scenes": list(method.scenes),
                "start": self.workbench.start.fingerprint,
            }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]

    def folder_of(self, method: Job | Retrieval) -> Path:
        """Where a method keeps what it makes."""
        name = method.name if isinstance(method, Job) else method.replace(" ", "-")
        return self.folder / "jobs" / f"{name}-{self.key(method)}"

    def is_finished(self, job: Job) -> bool:
        """Whether a job was trained to its end."""
        return (self.folder_of(job) / "job.json").exists()

    def num_graphs(self, job: Job) -> int:
        """Graphs that a whole training shows."""
        optim = job.config.optim
        num_queries = len(self.workbench.data.train_rows(job.scenes))
        steps = optim.steps_per_epoch or math.ceil(num_queries / optim.batch_size)
        return optim.epochs * steps * optim.batch_size

    def train(self, job: Job, advance: Callable[[int], None]) -> None:
        """Train to the end, from where an earlier sweep was stopped, and note that it is done."""
        folder, precision = self.folder_of(job), job.config.optim.precision
        if precision not in self._fabrics:
            self._fabrics[precision] = make_fabric(self.provenance.device, precision)
        if self._fabrics[precision].world_size > 1:
            raise ConfigError(
                "expected one process for experiments, found torchrun. Run relograph experiments by itself; "
                "relograph train is what several processes can share."
            )
        counted = _CountedProgress(self.progress, advance)
        train_on_scenes(
            job.config,
            self.workbench.data,
            job.scenes,
            folder,
            fabric=self._fabrics[precision],
            descriptors=self.workbench.descriptors,
            encoder=self.workbench.start.encoder,
            progress=counted,
        )
        advance(self.num_graphs(job) - counted.done)  # what early stopping left out
        about = self._about(job)
        _write_json(folder / "job.json", about)
        shutil.rmtree(folder / "last", ignore_errors=True)  # only a training that goes on needs the optimizer's state
        if job.config.optim.compile:
            torch.compiler.reset()
        self.say(f"{job.name}: {about['num_graphs']:,} graphs in {about['training_seconds']:.0f} s")

    def _about(self, job: Job) -> dict[str, Any]:
        folder = self.folder_of(job)
        log, batch_size = read_log(folder / "log.csv"), job.config.optim.batch_size
        steps = [0, *(int(row["step"] or 0) for row in log)]
        seconds = sum(
            (after - before) * batch_size / (row["graphs_per_second"] or math.inf)
            for before, after, row in zip(steps, steps[1:], log, strict=False)
        )
        checkpoint = load_checkpoint(folder / "best")
        return {
            "name": job.name,
            "key": self.key(job),
            "scenes": list(job.scenes),
            "num_steps": steps[-1],
            "num_graphs": steps[-1] * batch_size,
            "training_seconds": round(seconds, 1),
            "checkpoint_sha256": checkpoint.sha256,
            "best_validation": checkpoint.metadata["best_validation"],
            "share_of_edges_across_the_jump": checkpoint.metadata["share_of_edges_across_the_jump"],
            "metres_per_unit": checkpoint.metadata["metres_per_unit"],
        }

    def trained(self, job: Job) -> Trained:
        """The network of a finished job."""
        return load_trained(self.folder_of(job), device=self.workbench.data.is_test.device)

    # Predictions

    def path_of(self, evaluation: Evaluation) -> Path:
        """The file of an evaluation's predictions."""
        scenes = "all" if evaluation.scenes == self.plan.scenes else "+".join(evaluation.scenes)
        return self.folder_of(evaluation.method) / f"predictions-{evaluation.reading}-{scenes}.csv.gz"

    def predict(self, evaluations: Sequence[Evaluation]) -> None:
        """Write the predictions that are not there yet; of one network on the same scenes all readings at once."""
        missing: dict[tuple[Job | Retrieval, tuple[str, ...]], list[Evaluation]] = {}
        for evaluation in dict.fromkeys(evaluations):
            if not self.path_of(evaluation).exists():
                missing.setdefault((evaluation.method, evaluation.scenes), []).append(evaluation)
        for (method, scenes), group in missing.items():
            for evaluation, predictions in zip(group, self._answers(method, scenes, group), strict=True):
                name = method.name if isinstance(method, Job) else method
                metadata = {"method": name, "key": self.key(method), "reading": evaluation.reading}
                write_predictions(self.path_of(evaluation), predictions, metadata=metadata)

    def _answers(
        self, method: Job | Retrieval, scenes: tuple[str, ...], group: Sequence[Evaluation]
    ) -> list[Predictions]:
        data, descriptors = self.workbench.data, self.workbench.descriptors
        if method == "copy top-1":
            return [copy_top1(data, scenes, descriptors)]
        if method == "interpolation":
            return [interpolate_top(data, scenes, descriptors)]
        answers = evaluate(
            self.trained(method),
            data,
            scenes,
            descriptors=descriptors,
            readings=[evaluation.reading for evaluation in group],
            seed=method.config.seed,
            progress=self.progress,
        )
        return list(answers.values())

    def predictions(self, run: Sequence[Evaluation]) -> Predictions:
        """The predictions of a run, from its files."""
        return Predictions.cat([read_predictions(self.path_of(evaluation))[0] for evaluation in run])

    # Results

    def write(self, experiment: Experiment) -> Path:
        """Score what an experiment's methods answered; write results, tables and figures."""
        rows = experiment.rows(self.plan)
        self.predict([evaluation for row in rows for run in row.runs for evaluation in run])
        results = list(chain.from_iterable(self._scores(row) for row in rows))
        figures = self._draw_errors(experiment, rows) if rows else []
        further = {"rounds": self._rounds}.get(experiment.name)
        if further is not None:
            more_results, more_figures = further(experiment)
            results, figures = [*results, *more_results], [*figures, *more_figures]
        path = self.folder / "results" / f"{experiment.name}.json"
        write_result(
            path,
            results,
            command=self.provenance.command,
            seed=self.plan.base.seed,
            device=self.provenance.device,
            details=self._details(experiment, figures),
        )
        document = json.loads(path.read_text(encoding="utf-8"))
        for table in tables_of(document):
            write_whole(self.folder / "tables" / f"{table.name}.md", table.table.markdown().encode())
            write_whole(self.folder / "tables" / f"{table.name}.tex", table.table.latex(f"tab:{table.name}").encode())
        return path

    def _scores(self, row: Row) -> Iterator[dict[str, object]]:
        scores: list[SceneScore] = mean_of_runs([score(self.predictions(run)) for run in row.runs])
        for scene_score in scores:
            yield {
                "method": row.method,
                "num_test_frames": row.num_test_frames,
                "is_copy_top1": row.method == COPY,
                "note": row.note,
                **scene_score.as_row(),
            }

    def _details(self, experiment: Experiment, figures: Sequence[Mapping[str, str]]) -> dict[str, object]:
        config, data = self.plan.base, self.workbench.data
        return {
            "experiment": experiment.name,
            "dataset": self.provenance.dataset,
            "scenes": list(self.plan.scenes),
            "data_fingerprint": data.fingerprint,
            "start": self.workbench.start.fingerprint,
            "retrieval": self.workbench.retrieval,
            "preset": self.provenance.preset,
            "config": config_to_dict(config),
            "settings_of_one_scene": list(self.plan.settings_of_one_scene),
            "channels": config.model.channels,
            "image_size_hw": list(data.frames.images.shape[1:3]),
            "target": config.model.target,
            "jobs": [
                json.loads((self.folder_of(job) / "job.json").read_text(encoding="utf-8"))
                for job in experiment.jobs(self.plan)
            ],
            "figures": [dict(figure) for figure in figures],
        }

    def _draw_errors(self, experiment: Experiment, rows: Sequence[Row]) -> list[dict[str, str]]:
        shown = {row.method: self.predictions(row.runs[0]) for row in rows if len(row.runs) == 1}
        cumulative, by_distance = (
            f"{experiment.name}-{what}.png" for what in ("cumulative-errors", "errors-by-distance")
        )
        title = f"{experiment.title}, {self.provenance.dataset}"
        save_figure(cumulative_errors_figure(shown, baseline=COPY, title=title), self._figure(cumulative))
        save_figure(errors_by_distance_figure(shown, baseline=COPY, title=title), self._figure(by_distance))
        return [
            {"file": cumulative, "caption": "Share of queries below an error, every scene counting the same."},
            {
                "file": by_distance,
                "caption": "Median and quartiles of errors by the distance to the nearest reference.",
            },
        ]

    def _figure(self, name: str) -> Path:
        return self.folder / "figures" / name

    def _rounds(self, experiment: Experiment) -> tuple[list[dict[str, object]], list[dict[str, str]]]:
        """The fixed loss on the test graphs of one scene: trained and tested with the same number, and the paper's two
        rounds tested with others."""
        data, scene = self.workbench.data, self.plan.scene
        losses: dict[tuple[int, int], float] = {}
        for in_training, job in zip(ROUNDS, rounds_jobs(self.plan), strict=True):
            trained = self.trained(job)
            assert isinstance(trained.model, RelPoseGNN)
            rows = graph_rows(
                data.test_rows([scene]), data.frames.in_map, self.workbench.descriptors, data, job.config.graph
            )
            for at_test in ROUNDS if in_training == PAPER_ROUNDS else (in_training,):
                trained.model.rounds = at_test
                loss = fixed_loss(trained.model, data, rows, job.config, trained.metres_per_unit)
                losses[in_training, at_test] = loss
        name = f"{experiment.name}.png"
        figure = rounds_figure(
            losses,
            measured_on=f"{scene} of {self.provenance.dataset}",
            published=paper_numbers().rounds,
            title=experiment.title,
        )
        save_figure(figure, self._figure(name))
        results: list[dict[str, object]] = [
            {"scene": scene, "rounds_in_training": in_training, "rounds_at_test": at_test, "loss": loss}
            for (in_training, at_test), loss in losses.items()
        ]
        return results, [{"file": name, "caption": "The fixed loss by rounds in training and at test time."}]


class _CountedProgress:
    """Passes tasks on, and counts what a training does in the sweep's bar too."""

    def __init__(self, shown: Progress, advance: Callable[[int], None]) -> None:
        self._shown, self._advance = shown, advance
        self.done = 0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        with self._shown.task(description, total) as advance_task:

            def advance(steps: int) -> None:
                advance_task(steps)
                if description.startswith("training"):
                    self.done += steps
                    self._advance(steps)

            yield advance


def command_without_paths(names_by_path: Mapping[str, str]) -> str:
    """The command that is running, with a name such as `$DATA` in the place of each of those paths."""
    words = [Path(sys.argv[0]).name]
    for word in sys.argv[1:]:
        option, equals, value = word.partition("=")
        if word in names_by_path:
            words.append(names_by_path[word])
        elif equals and value in names_by_path:
            words.append(f"{option}={names_by_path[value]}")
        else:
            words.append(shlex.quote(word))
    return " ".join(words)


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    write_whole(path, (json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
