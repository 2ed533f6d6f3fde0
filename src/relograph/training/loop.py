"""The training loop: the same for one process, several GPUs and several hosts (Lightning Fabric, torchrun)."""

import atexit
import csv
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from relograph.configuration import config_from_dict
from relograph.errors import ConfigError, MissingExtraError, TrainingError
from relograph.graphs import GraphBatch, absolute_targets, drop_edges, relative_targets, target_units
from relograph.models import all_edges
from relograph.models.checkpoint import load_checkpoint, load_into, save_checkpoint
from relograph.progress import SILENT, Progress
from relograph.training.clock import TrainingClock
from relograph.training.config import OptimConfig, TrainConfig
from relograph.training.objective import Objective, PoseObjective
from relograph.training.sources import DROPOUT, GraphSource, generator_for
from relograph.training.stepping import ReplayedStep, Step

if TYPE_CHECKING:
    from lightning.fabric import Fabric

STEPS_PER_LOG = 20
CHECKPOINT_SECONDS = 90.0
HOW_TO_START_ANEW = "train anew in another folder with a lower optim.learning_rate or with optim.gradient_clip=1"


def log_columns(watched: Iterable[str], figures: Iterable[str] = ()) -> tuple[str, ...]:
    """Columns of `log.csv`."""
    after = ("learning_rate", "graphs_per_second", "validation_loss")
    return ("step", "epoch", "seconds", "loss", *watched, *after, *figures)


LOG_COLUMNS = log_columns(("beta", "gamma"))
"""Those of the paper's networks."""


def make_fabric(device: str = "cpu", precision: str = "float32") -> "Fabric":
    """Lightning Fabric for this process; within torchrun it joins the others, on this host and on further ones."""
    try:
        from lightning.fabric import Fabric
    except ImportError as error:
        raise MissingExtraError("lightning", "train", "training") from error
    processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    kind, _, index = device.partition(":")
    if index and processes > 1:
        raise ConfigError(
            f"expected --device {kind} where {processes} processes train together, found {device}: all of them would "
            "share that one. Leave the number out; each process takes its own."
        )
    fabric = Fabric(
        accelerator=kind,
        devices=[int(index)] if index else processes_here,
        num_nodes=processes // processes_here,
        # A network of one round leaves its message weights without a gradient, and DDP must be told to expect that.
        strategy="ddp_find_unused_parameters_true" if processes > 1 else "auto",
        precision="bf16-mixed" if precision == "bfloat16" else "32-true",
    )
    fabric.launch()
    if processes > 1:
        atexit.register(_leave_the_others)
    return fabric


def _leave_the_others() -> None:
    """Lightning does it for NCCL alone. Threads of gloo that still run at the end abort the process now and then, and
    torchrun calls a training failed that was done."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@dataclass
class TrainingState:
    """How far a training is."""

    step: int = 0
    best_validation: float | None = None
    epochs_without_better: int = 0
    seconds: float = 0.0
    """That it has taken so far, in all the processes that did a part of it one after the other."""


@dataclass(frozen=True)
class Validated:
    """How good a network is on what is held out."""

    loss: float
    """The weights with the smallest are kept."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """Further numbers for the log, always of the same names; None where there is none."""


class RunningMean:
    """A slow mean of a network's weights and statistics, which answers better than the weights of any one step."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        latest = module.state_dict()  # shares its memory with the module, whose tensors stay where they are
        self.tensors = {name: tensor.detach().clone() for name, tensor in latest.items()}
        pairs = [(self.tensors[name], tensor) for name, tensor in latest.items()]
        self._numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def take(self, num_steps: int) -> None:
        """Move towards the weights after `num_steps`; in the beginning faster, to forget those of the start."""
        decay = min(self.decay, (1 + num_steps) / (10 + num_steps))
        means, latest = (list(tensors) for tensors in zip(*self._numbers, strict=True))
        get_ema_multi_avg_fn(decay)(means, latest, num_steps)
        for mean, latest_count in self._counts:
            mean.copy_(latest_count)

    @contextmanager
    def in_place_of(self, module: nn.Module) -> Iterator[None]:
        """The network has the mean for its weights meanwhile."""
        latest = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        module.load_state_dict(self.tensors)
        try:
            yield
        finally:
            module.load_state_dict(latest)


def share_done(config: OptimConfig, state: TrainingState, steps_per_epoch: int) -> float:
    """How much of a training is behind it, by the clock or by its steps."""
    if config.minutes:
        return min(1.0, state.seconds / (60 * config.minutes))
    return min(1.0, state.step / max(1, config.epochs * steps_per_epoch))


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int, done: float) -> float:
    """The learning rate of a step, when a share of the training is `done`."""
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    if config.schedule == "cosine":
        return config.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * done))
    steps_down = (step // steps_per_epoch) // config.step_epochs
    return config.learning_rate * warmup * float(config.step_factor**steps_down)


def make_optimizer(objective: nn.Module, config: OptimConfig) -> torch.optim.Adam:
    """Adam with the paper's weight decay, and none on the weights of the loss."""
    loss_weights = [p for name, p in objective.named_parameters() if name.startswith("loss.")]
    others = [p for name, p in objective.named_parameters() if not name.startswith("loss.")]
    groups: list[dict[str, Any]] = [{"params": others}]
    if loss_weights:
        groups.append({"params": loss_weights, "weight_decay": 0.0})
    on_gpu = others[0].is_cuda
    replayed = config.replay and on_gpu
    # A recording holds on to the tensor that its learning rate was in.
    rate = torch.tensor(config.learning_rate, device=others[0].device) if replayed else config.learning_rate
    return torch.optim.Adam(groups, lr=rate, weight_decay=config.weight_decay, fused=on_gpu, capturable=replayed)


def set_learning_rate(optimizer: torch.optim.Adam, rate: float) -> None:
    """The length of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def make_step(
    optim: OptimConfig, objective: Objective, optimizer: torch.optim.Adam, fabric: "Fabric"
) -> Step | ReplayedStep:
    """What takes the steps of a training."""
    wrapped, wrapped_optimizer = fabric.setup(objective, optimizer)
    differentiated: Callable[..., Tensor] = torch.compile(wrapped) if optim.compile else wrapped
    step = Step(objective, differentiated, optimizer, wrapped_optimizer, fabric, optim.gradient_clip)
    is_replayed = optim.replay and fabric.device.type == "cuda" and fabric.world_size == 1  # others wait for each other
    return ReplayedStep(step) if is_replayed else step


def run_training(
    config: TrainConfig,
    objective: PoseObjective,
    source: GraphSource,
    output: Path,
    *,
    fabric: "Fabric",
    validate: Callable[[nn.Module], float] | None = None,
    metadata: Mapping[str, object] | None = None,
    metres_per_unit: float = 1.0,
    progress: Progress = SILENT,
) -> TrainingState:
    """Train a network of the paper on graphs; see `run_loop`."""

    def shown(batch: GraphBatch, step: int) -> tuple[Tensor, ...]:
        return training_arguments(batch, config, step, fabric, metres_per_unit)

    return run_loop(
        config.optim,
        objective,
        source,
        output,
        shown,
        fabric=fabric,
        validate=None if validate is None else lambda objective: Validated(validate(objective)),
        metadata=metadata,
        progress=progress,
    )


def run_loop(
    optim: OptimConfig,
    objective: Objective,
    source: GraphSource,
    output: Path,
    shown: Callable[[Any, int], tuple[Any, ...]],
    *,
    fabric: "Fabric",
    validate: Callable[[nn.Module], Validated] | None = None,
    figures: Sequence[str] = (),
    at_best: Callable[[TrainingState, Validated], None] | None = None,
    metadata: Mapping[str, object] | None = None,
    progress: Progress = SILENT,
) -> TrainingState:
    """Train until the configuration's last epoch or minute, or until validation stops getting better.

    A training that was stopped goes on where it was.

    `shown` gives the arguments of the objective for a batch in a step. `output` gets `last/` (with the
    optimizer's state) and `best/`, both checkpoints, and `log.csv`, with the `figures` of validations as its last
    columns. The weights of the best validation are what `objective` holds at the end, and when `at_best` is called, in
    the first process, after each validation that is better than all before.
    """
    if optim.batch_size % fabric.world_size:
        raise ConfigError(
            f"optim.batch_size must be a multiple of the number of processes ({fabric.world_size}), "
            f"got {optim.batch_size}."
        )
    steps_per_epoch = source.steps_per_epoch
    objective = objective.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks the keyword
    optimizer = make_optimizer(objective, optim)
    state = TrainingState()
    mean = RunningMean(objective, optim.average_decay) if optim.average_decay else None
    if (output / "last").exists():
        state = restore(output / "last", objective, optimizer, mean)
    saved_metadata = dict(metadata or {})
    columns = log_columns(objective.watched(), figures)
    log = Log(output / "log.csv", state.step, columns) if fabric.is_global_zero else None
    take_step = make_step(optim, objective, optimizer, fabric)

    def save(kind: str, *, with_optimizer: bool) -> None:
        if fabric.is_global_zero:
            tensors = {name: tensor.detach() for name, tensor in objective.state_dict().items()}
            if with_optimizer:
                tensors |= optimizer_tensors(objective, optimizer)
                tensors |= {} if mean is None else {f"mean.{name}": tensor for name, tensor in mean.tensors.items()}
            save_checkpoint(output / kind, tensors, {**saved_metadata, **vars(state)})

    never = torch.iinfo(torch.long).max
    first_bad_step = torch.full((), never, dtype=torch.long, device=fabric.device)
    recent: list[Tensor] = []
    skipped = torch.zeros((), device=fabric.device)  # steps since the last log whose gradient was no number
    done = share_done(optim, state, steps_per_epoch)
    last_saved = last_logged = time.perf_counter()
    objective.train()
    if optim.freeze_batch_norm:
        freeze_batch_norm(objective)
    with (
        nullcontext() if log is None else closing(log),
        fastest_convolutions(),
        TrainingClock(state.seconds) as clock,
        shown_progress(progress, optim, state, steps_per_epoch) as show,
    ):
        for batch in source.batches(state.step):
            if done >= 1 or 0 < optim.patience <= state.epochs_without_better:
                break
            set_learning_rate(optimizer, learning_rate(optim, state.step, steps_per_epoch, done))
            stepped = take_step(*shown(batch, state.step))
            skipped += stepped.was_skipped
            if mean is not None:
                mean.take(state.step)
            # Looking at the loss would wait for the GPU, so the first bad step is noted there and looked at below.
            is_good = torch.isfinite(stepped.loss)
            first_bad_step = torch.where(is_good, first_bad_step, first_bad_step.clamp_max(state.step))
            recent.append(stepped.loss)
            state.step += 1
            state.seconds = clock.lap()
            show(state)
            end_of_epoch = state.step % steps_per_epoch == 0
            now_due = len(recent) >= STEPS_PER_LOG or end_of_epoch
            if now_due and optim.minutes:
                # The first process's clock is that of all: they must stop together.
                done = share_done(optim, replace(state, seconds=fabric.broadcast(state.seconds)), steps_per_epoch)
                end_of_epoch = end_of_epoch or done >= 1
            elif not optim.minutes:
                done = share_done(optim, state, steps_per_epoch)
            if now_due:
                weights_are_bad = not torch.isfinite(torch.nn.utils.get_total_norm(objective.parameters()))
                if weights_are_bad or int(skipped) == len(recent):
                    first_bad_step.clamp_max_(state.step - 1)  # its loss was fine, its gradient was not
                skipped.zero_()
                first_of_all: Any = fabric.all_reduce(first_bad_step, reduce_op="min")  # all share the weights
                stop_if_bad(int(first_of_all), state.step, source, output)
                now = time.perf_counter()  # before validation, which is no part of the training's speed
            validated = None
            if end_of_epoch and validate is not None:
                with nullcontext() if mean is None else mean.in_place_of(objective):
                    # The first process decides: running statistics differ, and all must stop together.
                    validated = fabric.broadcast(validate(objective))
                    if not math.isfinite(validated.loss):
                        raise TrainingError(
                            f"expected a finite validation loss, found {validated.loss} after step {state.step - 1}; "
                            f"{what_is_kept(output)}. Look at the poses of the held-out frames, or {HOW_TO_START_ANEW}."
                        )
                    if state.best_validation is None or validated.loss < state.best_validation:
                        state.best_validation, state.epochs_without_better = validated.loss, 0
                        save("best", with_optimizer=False)
                        if at_best is not None and fabric.is_global_zero:
                            at_best(state, validated)
                    else:
                        state.epochs_without_better += 1
                objective.train()
                if optim.freeze_batch_norm:
                    freeze_batch_norm(objective)
            if now_due:
                if log is not None:
                    log.write(
                        step=state.step,
                        epoch=state.step / steps_per_epoch,
                        seconds=state.seconds,
                        loss=float(torch.stack(recent).mean()),
                        **{name: number.item() for name, number in stepped.watched.items()},
                        learning_rate=float(optimizer.param_groups[0]["lr"]),
                        graphs_per_second=len(recent) * optim.batch_size / (now - last_logged),
                        validation_loss=None if validated is None else validated.loss,
                        **{name: None if validated is None else validated.figures[name] for name in figures},
                    )
                recent = []
                if end_of_epoch or now - last_saved > CHECKPOINT_SECONDS:
                    save("last", with_optimizer=True)
                    last_saved = time.perf_counter()
                last_logged = time.perf_counter()
    fabric.barrier()
    if validate is None and fabric.is_global_zero:
        with nullcontext() if mean is None else mean.in_place_of(objective):
            save("best", with_optimizer=False)
    fabric.barrier()
    load_into(objective, load_checkpoint(output / "best").tensors, where=str(output / "best"))
    return state


@contextmanager
def shown_progress(
    progress: Progress, optim: OptimConfig, state: TrainingState, steps_per_epoch: int
) -> Iterator[Callable[[TrainingState], None]]:
    """A bar that counts graphs, or seconds where the clock ends the training."""

    def reached(state: TrainingState) -> int:
        return min(total, int(state.seconds) if optim.minutes else state.step * optim.batch_size)

    total = int(60 * optim.minutes) if optim.minutes else optim.epochs * steps_per_epoch * optim.batch_size
    shown = 0
    with progress.task(f"training ({'seconds' if optim.minutes else 'graphs'})", total=total) as advance:

        def show(state: TrainingState) -> None:
            nonlocal shown
            advance(reached(state) - shown)
            shown = reached(state)

        show(state)
        yield show


def training_loss(
    objective: Callable[..., Tensor],
    batch: GraphBatch,
    config: TrainConfig,
    step: int,
    fabric: "Fabric",
    metres_per_unit: float,
) -> Tensor:
    """The loss of this process's share of a batch, such that the mean over the processes is that of the batch."""
    return objective(*training_arguments(batch, config, step, fabric, metres_per_unit))


def training_arguments(
    batch: GraphBatch, config: TrainConfig, step: int, fabric: "Fabric", metres_per_unit: float
) -> tuple[Tensor, ...]:
    """What the objective is told of a batch."""
    edge_mask = all_edges(batch.node_mask)
    if config.graph.edge_dropout and config.graph.num_nodes > 1:
        generator = generator_for(config.seed + fabric.global_rank, DROPOUT, step, batch.rows.device)
        edge_mask = drop_edges(edge_mask, config.graph.edge_dropout, generator)
    unit = target_units(metres_per_unit, batch.rows.device)
    counts: Any = torch.stack([edge_mask.sum(), batch.node_mask.sum()]).float()
    if fabric.world_size > 1:
        counts = fabric.all_reduce(counts, reduce_op="mean")
    counts = counts.clamp_min(1)
    overlap = batch.overlap
    return (
        batch.images,
        batch.node_mask,
        edge_mask,
        relative_targets(batch.T_world_cam, config.model.target) / unit,
        absolute_targets(batch.T_world_cam) / unit,
        torch.zeros(batch.rows.shape, device=batch.rows.device) if overlap is None else overlap,
        batch.scene_idx,
        counts[0],
        counts[1],
    )


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms once for every shape: a training has few shapes and many steps."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def freeze_batch_norm(module: nn.Module) -> None:
    """Batch norm as in evaluation: running statistics are used and stay as they are."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()


def stop_if_bad(first_bad_step: int, num_steps: int, source: GraphSource, output: Path) -> None:
    """Raise if the loss of some of the steps done, or the weights after it, were no numbers."""
    if first_bad_step >= num_steps:
        return
    names = source.frame_names(first_bad_step)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise TrainingError(
        f"expected a finite loss, found none in step {first_bad_step}, with the frames {shown}; "
        f"{what_is_kept(output)}. Look at those frames, or {HOW_TO_START_ANEW}."
    )


def what_is_kept(output: Path) -> str:
    """In words, what a training that stops has saved."""
    last = output / "last"
    return f"{last} is the last good checkpoint" if last.exists() else "no checkpoint was made yet"


def optimizer_tensors(objective: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments by the names of their parameters."""
    name_of: dict[Tensor, str] = {parameter: name for name, parameter in objective.named_parameters()}
    return {
        f"optimizer.{key}.{name_of[parameter]}": value
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def restore(
    folder: Path, objective: nn.Module, optimizer: torch.optim.Optimizer, mean: RunningMean | None = None
) -> TrainingState:
    """Put a checkpoint's weights, their mean and moments back; how far its training was."""
    checkpoint = load_checkpoint(folder)
    weights = {
        name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(("optimizer.", "mean."))
    }
    load_into(objective, weights, where=str(folder))
    for name, tensor in mean.tensors.items() if mean is not None else ():
        tensor.copy_(checkpoint.tensors[f"mean.{name}"])
    for name, parameter in objective.named_parameters():
        moments = {
            key: checkpoint.tensors[f"optimizer.{key}.{name}"]
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"optimizer.{key}.{name}" in checkpoint.tensors
        }
        if moments:
            optimizer.state[parameter] = {
                # Fused Adam counts its steps on the GPU, the plain one on the CPU.
                key: value.to(parameter.device) if key != "step" or parameter.is_cuda else value
                for key, value in moments.items()
            }
            for key in ("exp_avg", "exp_avg_sq"):
                if parameter.dim() == 4:
                    moment = optimizer.state[parameter][key]
                    optimizer.state[parameter][key] = moment.to(memory_format=torch.channels_last)
    return config_from_dict(
        TrainingState,
        {key: checkpoint.metadata[key] for key in vars(TrainingState()) if key in checkpoint.metadata},
        str(folder),
    )


class Log:
    """`log.csv`, and TensorBoard's events beside it where TensorBoard is installed."""

    def __init__(self, path: Path, first_step: int, columns: Sequence[str] = LOG_COLUMNS) -> None:
        """Rows of later steps are of a run that was killed after its last checkpoint, at `first_step`; they go."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[dict[str, float | None]] = []
        if path.exists() and first_step > 0:
            kept = [row for row in read_log(path) if (row["step"] or 0) <= first_step]
        partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
        try:
            with partial.open("w", newline="") as file:
                csv.writer(file).writerows([columns, *(_cells(row, columns) for row in kept)])
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._path, self._columns = path, tuple(columns)
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(path.parent / "tensorboard"), purge_step=first_step + 1)

    def write(self, **values: float | None) -> None:
        """One row; None is an empty cell."""
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(_cells(values, self._columns))
        if self._board is not None:
            for column in self._columns[2:]:
                if values[column] is not None:
                    self._board.add_scalar(column, values[column], int(values["step"] or 0))
            self._board.flush()

    def close(self) -> None:
        """End the thread that writes for TensorBoard."""
        if self._board is not None:
            self._board.close()


def _cells(values: Mapping[str, float | None], columns: Sequence[str]) -> list[str]:
    """A row of the log as text."""
    return ["" if values[column] is None else f"{values[column]:.8g}" for column in columns]


def read_log(path: Path) -> list[dict[str, float | None]]:
    """The rows of `log.csv`."""
    with path.open(newline="") as file:
        return [{key: float(text) if text else None for key, text in row.items()} for row in csv.DictReader(file)]
