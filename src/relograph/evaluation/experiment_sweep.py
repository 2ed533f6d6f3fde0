"""Carrying out experiments, first half: trainings that are shared and resumed, and their predictions.

DIR/jobs/ours-camera-1f0c9a3b2e/      a training: best/, log.csv, job.json once it is finished,
                                      predictions-<reading>-<scenes>.csv.gz
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError
from relograph.evaluation.evaluating import copy_top1, evaluate, interpolate_top
from relograph.evaluation.experiments import Evaluation, Job, Plan, Retrieval
from relograph.evaluation.predictions import Predictions, read_predictions, write_predictions
from relograph.evaluation.writing import write_whole
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.training.loop import make_fabric, read_log
from relograph.training.running import Trained, load_trained, train_on_scenes
from relograph.training.workbench import Workbench

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(kw_only=True)
class Sweep:
    """Trainings and predictions of a plan, in one folder."""

    plan: Plan
    workbench: Workbench
    folder: Path
    device: str = "cpu"
    progress: Progress = SILENT
    say: Callable[[str], None] = lambda line: None
    """Told, in one line, what was finished."""
    _fabrics: "dict[str, Fabric]" = field(default_factory=dict)

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
            self._fabrics[precision] = make_fabric(self.device, precision)
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
        write_whole(folder / "job.json", (json.dumps(about, indent=2, sort_keys=True) + "\n").encode())
        shutil.rmtree(folder / "last", ignore_errors=True)  # only a training that goes on needs the optimizer's state
        if job.config.optim.compile:
            torch.compiler.reset()
        self.say(f"{job.name}: {about['num_graphs']:,} graphs in {about['training_seconds']:.0f} s")

    def facts(self, job: Job) -> dict[str, Any]:
        """What a finished training says about itself."""
        facts: dict[str, Any] = json.loads((self.folder_of(job) / "job.json").read_text(encoding="utf-8"))
        return facts

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
