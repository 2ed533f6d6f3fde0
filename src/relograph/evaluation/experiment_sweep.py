"""Carrying out experiments, first half: trainings that are shared and resumed, and their predictions.

DIR/jobs/ours-camera-1f0c9a3b2e/      a training: best/, log.csv, job.json once it is finished,
                                      predictions-<reading>-<scenes>.csv.gz,
                                      what an experiment measures besides, as rounds-<scene>.safetensors

A machine may go away at any moment, and its weights with it, which are large. So what is wanted of a network is written
as soon as it is trained, in small files, each whole or not at all; a sweep that finds them needs its weights no more.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from relograph.configuration import config_to_dict
from relograph.errors import CheckpointError, ConfigError, DatasetError
from relograph.evaluation.evaluating import copy_top1, evaluate, interpolate_top
from relograph.evaluation.experiments import Evaluation, Job, Plan, Retrieval
from relograph.evaluation.predictions import Predictions, read_predictions, write_predictions
from relograph.evaluation.writing import write_whole
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.results import provenance, source_sha256
from relograph.training.loop import make_fabric, read_log
from relograph.training.running import Trained, load_trained, train_on_scenes
from relograph.training.workbench import Workbench, retriever_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric


Take = Callable[["Sweep", Job], dict[str, Tensor]]
"""Measures something of a finished network."""


class TimeIsUpError(Exception):
    """A training was stopped in its midst."""


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
    warn: Callable[[str], None] = lambda line: None
    """Told, in one line, what was not as one would expect."""
    ends_at_s: float = math.inf
    """When trainings must be over, on the monotonic clock."""
    of_other_code: set[str] = field(default_factory=set)
    """Folders of trainings and predictions that were taken as they are, though other code than this made them."""
    _source: str = field(default_factory=source_sha256)
    _fabrics: "dict[str, Fabric]" = field(default_factory=dict)
    _described: dict[str, Tensor] = field(default_factory=dict)
    """The descriptors of the last job that has its own, by its key."""
    _read: dict[Path, tuple[Predictions, dict[str, object]]] = field(default_factory=dict)
    """Predictions that are known to be whole, and what they say of themselves."""
    _seconds_per_image: float = 0.0
    """Of the slowest network so far, with all that was made of it."""

    @property
    def made_its_retriever(self) -> bool:
        """Whether K-means and PCA were fitted here, on the maps of all scenes."""
        return self.workbench.retriever is not None and self.workbench.start.retriever is None

    # Trainings

    def key(self, method: Job | Retrieval) -> str:
        """A short hash of all that decides what a method answers."""
        identity: dict[str, object] = {"data": self.workbench.data.fingerprint, "retrieval": self.workbench.retrieval}
        base = self.plan.base
        if self.made_its_retriever:
            identity["encoder"] = {"model": config_to_dict(base.model), "seed": base.seed}
        if not isinstance(method, Job):
            identity["images"] = config_to_dict(base.data)
        else:
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

    def is_answered(self, job: Job, evaluations: Sequence[Evaluation], takes: Mapping[str, Take]) -> bool:
        """Whether all that is wanted of a network is there; its weights may be gone then."""
        missing = [evaluation for evaluation in evaluations if not self.has(evaluation)]
        missing_takes = [name for name in takes if not self._has_taken(job, name)]
        return self._facts(job) is not None and not missing and not missing_takes

    def has_weights(self, job: Job) -> bool:
        """Whether a network was trained to its end and can be asked."""
        folder = self.folder_of(job)
        if not (folder / "job.json").exists():
            return False
        try:
            load_checkpoint(folder / "best")
        except CheckpointError:
            return False
        return True

    def fits_the_time(self, job: Job) -> bool:
        """Whether a network would be answered in time, as far as one can tell from those before."""
        images = self.num_graphs(job) * job.config.graph.num_nodes
        return time.monotonic() + self._seconds_per_image * images < self.ends_at_s

    def answer(
        self,
        job: Job,
        evaluations: Sequence[Evaluation],
        takes: Mapping[str, Take],
        advance: Callable[[int], None] = lambda graphs: None,
    ) -> None:
        """Train, unless the weights are there, and write at once all that is wanted of the network."""
        begun = time.monotonic()
        is_new = not self.has_weights(job)
        if is_new:
            self._train(job, advance)
        elif self._facts(job) is None:
            path = self.folder_of(job) / "job.json"
            self.warn(f"{path}: found a damaged file; it is written again from the checkpoint beside it.")
            write_whole(path, _as_json(self._about(job)))
        self.predict(evaluations)
        for name, take in takes.items():
            if not self._has_taken(job, name):
                tensors = {key: tensor.cpu().contiguous() for key, tensor in take(self, job).items()}
                write_whole(self._path_of_taken(job, name), to_bytes(tensors))
        if is_new:
            images = self.num_graphs(job) * job.config.graph.num_nodes
            self._seconds_per_image = max(self._seconds_per_image, (time.monotonic() - begun) / images)
            facts = self.facts(job)
            self.say(f"{job.name}: {facts['num_graphs']:,} graphs in {facts['training_seconds']:.0f} s")

    def num_graphs(self, job: Job) -> int:
        """Graphs that a whole training shows."""
        optim = job.config.optim
        num_queries = len(self.workbench.data.train_rows(job.scenes))
        steps = optim.steps_per_epoch or math.ceil(num_queries / optim.batch_size)
        return optim.epochs * steps * optim.batch_size

    def _train(self, job: Job, advance: Callable[[int], None]) -> None:
        """Train to the end, from where an earlier sweep was stopped, and note that it is done."""
        folder, precision = self.folder_of(job), job.config.optim.precision
        if precision not in self._fabrics:
            self._fabrics[precision] = make_fabric(self.device, precision)
        if self._fabrics[precision].world_size > 1:
            raise ConfigError(
                "expected one process for experiments, found torchrun. Run relograph experiments by itself; "
                "relograph train is what several processes can share."
            )
        counted = _CountedProgress(self.progress, advance, self.ends_at_s)
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
        write_whole(folder / "job.json", _as_json(self._about(job)))
        shutil.rmtree(folder / "last", ignore_errors=True)  # only a training that goes on needs the optimizer's state
        if job.config.optim.compile:
            torch.compiler.reset()

    def facts(self, job: Job) -> dict[str, Any]:
        """What a finished training says about itself."""
        facts = self._facts(job)
        assert facts is not None, f"{job.name} is not trained yet"
        self._note_source(self.folder_of(job), facts["provenance"]["source_sha256"])
        return facts

    def _facts(self, job: Job) -> dict[str, Any] | None:
        """None where a training is not finished, or where what it said is damaged."""
        try:
            facts: dict[str, Any] = json.loads((self.folder_of(job) / "job.json").read_text(encoding="utf-8"))
            _ = facts["provenance"]["source_sha256"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return facts

    def _note_source(self, folder: Path, source: object) -> None:
        if source != self._source:
            self.of_other_code.add(folder.name)

    def _about(self, job: Job) -> dict[str, Any]:
        folder = self.folder_of(job)
        log, batch_size = read_log(folder / "log.csv"), job.config.optim.batch_size
        steps = [0, *(int(row["step"] or 0) for row in log)]
        seconds = sum(
            (after - before) * batch_size / (row["graphs_per_second"] or math.inf)
            for before, after, row in zip(steps, steps[1:], log, strict=False)
        )
        checkpoint = load_checkpoint(folder / "best")
        metadata: dict[str, Any] = checkpoint.metadata
        return {
            "name": job.name,
            "key": self.key(job),
            "scenes": list(job.scenes),
            "num_steps": steps[-1],
            "num_graphs": steps[-1] * batch_size,
            "training_seconds": round(seconds, 1),
            "checkpoint_sha256": checkpoint.sha256,
            "best_validation": metadata["best_validation"],
            "share_of_edges_across_the_jump": metadata["share_of_edges_across_the_jump"],
            "metres_per_unit": metadata["metres_per_unit"],
            "target": job.config.model.target if job.config.model.predicts_edges else None,
            "training_stride": metadata.get("training_stride"),
            "provenance": {key: value for key, value in metadata["provenance"].items() if key != "command"},
        }

    def trained(self, job: Job) -> Trained:
        """The network of a finished job."""
        return load_trained(self.folder_of(job), device=self.workbench.data.is_test.device)

    def has_its_own_retrieval(self, job: Job) -> bool:
        """Whether a network finds its references with the NetVLAD that was trained along with it."""
        return job.config.retrieval.loss != "none" and job.config.graph.selection == "retrieval"

    def descriptors_of(self, job: Job) -> Float[Tensor, "F D"]:
        """What a finished network finds its references with."""
        if not self.has_its_own_retrieval(job):
            return self.workbench.descriptors
        key = self.key(job)
        if key not in self._described:
            retriever = retriever_of(self.trained(job), self.workbench)
            images = self.workbench.data.frames.images
            self._described = {key: retriever.describe(images, progress=self.progress)}
        return self._described[key]

    # Predictions

    def path_of(self, evaluation: Evaluation) -> Path:
        """The file of an evaluation's predictions."""
        scenes = "all" if evaluation.scenes == self.plan.scenes else "+".join(evaluation.scenes)
        return self.folder_of(evaluation.method) / f"predictions-{evaluation.reading}-{scenes}.csv.gz"

    def predict(self, evaluations: Sequence[Evaluation]) -> None:
        """Write the predictions that are not there yet; of one network on the same scenes all readings at once."""
        missing: dict[tuple[Job | Retrieval, tuple[str, ...]], list[Evaluation]] = {}
        for evaluation in dict.fromkeys(evaluations):
            if not self.has(evaluation):
                missing.setdefault((evaluation.method, evaluation.scenes), []).append(evaluation)
        for (method, scenes), group in missing.items():
            for evaluation, predictions in zip(group, self._answers(method, scenes, group), strict=True):
                metadata = {**self._origin(method), "reading": evaluation.reading}
                write_predictions(self.path_of(evaluation), predictions, metadata=metadata)

    def _origin(self, method: Job | Retrieval) -> dict[str, object]:
        """What a file of predictions says about where it came from."""
        config = method.config if isinstance(method, Job) else self.plan.base
        made_with = provenance(command="", seed=config.seed, device=self.device)
        del made_with["command"]  # it names paths of this machine; results have it without
        return {
            "method": method.name if isinstance(method, Job) else method,
            "key": self.key(method),
            "config": config_to_dict(config),
            "checkpoint_sha256": self.facts(method)["checkpoint_sha256"] if isinstance(method, Job) else None,
            "data_fingerprint": self.workbench.data.fingerprint,
            "retrieval": self.workbench.retrieval,
            "provenance": made_with,
        }

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
            descriptors=self.descriptors_of(method),
            readings=[evaluation.reading for evaluation in group],
            seed=method.config.seed,
            progress=self.progress,
        )
        return list(answers.values())

    def has(self, evaluation: Evaluation) -> bool:
        """Whether the predictions are there and whole; damaged ones are removed."""
        path = self.path_of(evaluation)
        if path not in self._read and path.exists():
            try:
                self._read[path] = read_predictions(path)
            except DatasetError:
                self.warn(f"{path}: found damaged predictions; they are made again.")
                path.unlink()
        return path in self._read

    def predictions(self, run: Sequence[Evaluation]) -> Predictions:
        """The predictions of a run, from its files."""
        return Predictions.cat([self._read_file(evaluation)[0] for evaluation in run])

    def made_with(self, evaluation: Evaluation) -> dict[str, Any]:
        """What made an evaluation's predictions: code, device, versions."""
        made_with = self._read_file(evaluation)[1].get("provenance")
        return made_with if isinstance(made_with, dict) else {}

    def _read_file(self, evaluation: Evaluation) -> tuple[Predictions, dict[str, object]]:
        path = self.path_of(evaluation)
        assert self.has(evaluation), f"{path} is not there yet"
        predictions, metadata = self._read[path]
        made_with = metadata.get("provenance")
        self._note_source(path.parent, made_with.get("source_sha256") if isinstance(made_with, dict) else None)
        return predictions, metadata

    # What else is measured

    def taken(self, job: Job, name: str) -> dict[str, Tensor]:
        """What was measured of a network under that name."""
        return load_file(self._path_of_taken(job, name))

    def _path_of_taken(self, job: Job, name: str) -> Path:
        return self.folder_of(job) / f"{name}-{self.plan.scene}.safetensors"

    def _has_taken(self, job: Job, name: str) -> bool:
        path = self._path_of_taken(job, name)
        try:
            self.taken(job, name)
        except FileNotFoundError:
            return False
        except SafetensorError:
            self.warn(f"{path}: found a damaged file; it is made again.")
            path.unlink()
            return False
        return True


def _as_json(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode()


class _CountedProgress:
    """Passes tasks on, counts what a training does in the sweep's bar too, and stops it when time is up."""

    def __init__(self, shown: Progress, advance: Callable[[int], None], ends_at_s: float) -> None:
        self._shown, self._advance, self._ends_at_s = shown, advance, ends_at_s
        self.done = 0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        with self._shown.task(description, total) as advance_task:

            def advance(steps: int) -> None:
                advance_task(steps)
                if description.startswith("training"):
                    self.done += steps
                    self._advance(steps)
                    if time.monotonic() >= self._ends_at_s:
                        raise TimeIsUpError

            yield advance
