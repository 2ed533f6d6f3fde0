"""The loop: Adam and its schedule, what a step counts, when it stops, what it keeps, and how it goes on."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tiny_trainings import TINY, assert_same_weights, random_descriptors, saved, tiny_config, tiny_data
from torch import Tensor, nn

from full_disk import files_limited_to
from relograph.errors import CheckpointError, ConfigError, TrainingError
from relograph.geometry import Pose
from relograph.graphs import GraphBatch, absolute_targets, gather_graphs, relative_targets
from relograph.models import all_edges, build_model
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.retrieval import rank_references
from relograph.training.config import OptimConfig, TrainConfig
from relograph.training.data import RelocalizationData
from relograph.training.loop import (
    LOG_COLUMNS,
    STEPS_PER_LOG,
    Log,
    TrainingState,
    learning_rate,
    make_fabric,
    make_optimizer,
    read_log,
    restore,
    run_training,
    share_done,
    training_loss,
)
from relograph.training.losses import pose_distance
from relograph.training.objective import Objective, PoseObjective, clip_gradients
from relograph.training.presets import PRESETS
from relograph.training.sources import SceneGraphs


def make_objective(config: TrainConfig = TINY) -> PoseObjective:
    torch.manual_seed(config.seed)
    return PoseObjective(build_model(config.model))


def make_source(config: TrainConfig, data: RelocalizationData, steps_per_epoch: int = 3) -> SceneGraphs:
    rows, frames = data.train_rows(data.frames.scene_names), data.frames
    database = torch.zeros_like(data.is_test)
    database[rows] = True
    ranked = rank_references(
        rows, database, random_descriptors(data), frames.scene_idx, frames.sequence_idx, length=config.graph.stride * 2
    )
    batch_size = config.optim.batch_size
    return SceneGraphs(frames, rows, database, ranked, config.graph, batch_size, steps_per_epoch, config.seed)


def run(
    output: Path,
    config: TrainConfig = TINY,
    *,
    data: RelocalizationData | None = None,
    objective: PoseObjective | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    steps_per_epoch: int = 3,
    progress: Progress = SILENT,
) -> tuple[PoseObjective, TrainingState]:
    """A training of three steps an epoch, and the network it ends with."""
    objective = objective or make_objective(config)
    source = make_source(config, data or tiny_data(), steps_per_epoch)
    fabric = make_fabric("cpu", config.optim.precision)
    metadata = {"by": "a test"}
    state = run_training(
        config, objective, source, output, fabric=fabric, validate=validate, metadata=metadata, progress=progress
    )
    return objective, state


def one_after_the_other(losses: Sequence[float]) -> Callable[[nn.Module], float]:
    """Validations with the given results."""
    remaining = list(losses)
    return lambda objective: remaining.pop(0)


def weights_of(objective: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in objective.state_dict().items()}


def losses_in_log(output: Path) -> list[float | None]:
    return [row["loss"] for row in read_log(output / "log.csv")]


# Processes


def test_processes_that_train_together_do_not_share_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="expected --device cuda where 2 processes train together, found cuda:1"):
        make_fabric("cuda:1")


# The learning rate


def test_the_papers_learning_rate_falls_to_a_tenth_every_20_epochs() -> None:
    optim = PRESETS["paper-7scenes"].optim
    by_epoch = [learning_rate(optim, epoch * 100, 100, done=epoch / 50) for epoch in range(50)]
    assert by_epoch == pytest.approx(20 * [5e-5] + 20 * [5e-6] + 10 * [5e-7])
    assert learning_rate(optim, 20 * 100 - 1, 100, done=0.4) == pytest.approx(5e-5)


def test_a_cosine_is_that_of_torch() -> None:
    config = OptimConfig(learning_rate=0.3, schedule="cosine", epochs=4)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for step in range(40):
        done = share_done(config, TrainingState(step=step), steps_per_epoch=10)
        assert learning_rate(config, step, 10, done) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_the_learning_rate_grows_step_by_step_while_it_warms_up(schedule: str) -> None:
    cold = OptimConfig(learning_rate=1.0, schedule=schedule, epochs=10)
    warm = replace(cold, warmup_steps=5)
    rates = [
        learning_rate(warm, step, 10, 0.01 * step) / learning_rate(cold, step, 10, 0.01 * step) for step in range(8)
    ]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0])


def test_a_training_by_the_clock_ends_with_it_and_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = itertools.count()
    monkeypatch.setattr("relograph.training.clock.time.perf_counter", lambda: float(next(second)))
    monkeypatch.setattr("relograph.training.loop.STEPS_PER_LOG", 2)
    config = tiny_config("optim.minutes=0.1", "optim.schedule=cosine", "optim.warmup_steps=0")
    progress = Counting()
    _, state = run(tmp_path, config, validate=one_after_the_other([1.0]), steps_per_epoch=100, progress=progress)
    # Every step looks at the clock once, and every row of the log some times more; six seconds are over soon.
    assert 2 <= state.step <= 6
    assert state.seconds >= 6
    assert (progress.done, progress.total) == (6, 6)
    log = read_log(tmp_path / "log.csv")
    assert log[-1]["validation_loss"] == 1.0
    assert log[-1]["learning_rate"] < log[0]["learning_rate"]
    _, again = run(tmp_path, config, validate=one_after_the_other([]), steps_per_epoch=100)
    assert again.step == state.step


def test_adam_goes_at_the_schedules_pace(tmp_path: Path) -> None:
    config = tiny_config("optim.schedule=step", "optim.step_epochs=1", "optim.step_factor=0.1", "optim.epochs=3")
    run(tmp_path, config)
    assert [row["learning_rate"] for row in read_log(tmp_path / "log.csv")] == pytest.approx([1e-3, 1e-4, 1e-5])
    # Adam's first steps are as long as the learning rate; beta has no weight decay and a steady gradient.
    beta = [0.0, *(row["beta"] for row in read_log(tmp_path / "log.csv"))]
    steps = [abs(after - before) for before, after in pairwise(beta)]
    assert steps == pytest.approx([3e-3, 3e-4, 3e-5], rel=0.1)


# A step


def test_three_steps_are_those_of_a_loop_written_down_plainly(tmp_path: Path) -> None:
    config = tiny_config(
        "graph.edge_dropout=0", "optim.epochs=1", "optim.weight_decay=0.01", "optim.freeze_batch_norm=true"
    )
    data = tiny_data()
    source = make_source(config, data)
    plain = make_objective(config)
    model, loss = plain.model.eval(), plain.loss
    optimizer = torch.optim.Adam(
        [{"params": model.parameters(), "weight_decay": 0.01}, {"params": loss.parameters()}], lr=1e-3
    )
    losses = []
    for step in range(3):
        batch = gather_graphs(data.frames, source.rows(step))
        said = model(batch.images, batch.node_mask).edges
        distance = pose_distance(said, relative_targets(batch.T_world_cam, "camera"), loss.beta, loss.gamma)
        losses.append(distance[~torch.eye(3, dtype=torch.bool).expand(4, 3, 3)].mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    trained, _ = run(tmp_path, config, data=data)
    assert_same_weights(weights_of(trained), weights_of(plain), tolerance=2e-5)
    assert losses_in_log(tmp_path) == pytest.approx([sum(losses).item() / 3])
    moved = (trained.model.pose_head.weight - make_objective(config).model.pose_head.weight).abs().mean()
    assert moved > 1e-3


def test_weights_decay_but_those_of_the_loss_do_not() -> None:
    objective = make_objective()
    optimizer = make_optimizer(objective, replace(TINY.optim, weight_decay=0.1))
    before = weights_of(objective)
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = weights_of(objective)
    for name, _ in objective.named_parameters():
        # L2 in Adam: the gradient is 0.1 w, and its first step is as long as the learning rate.
        gradient = 0 if name.startswith("loss.") else 0.1 * before[name]
        torch.testing.assert_close(after[name], before[name] - 1e-3 * gradient / (abs(gradient) + 1e-8))
    assert after["loss.gamma"] == -3.0


def heard_by_the_objective(config: TrainConfig, step: int, metres_per_unit: float = 1.0) -> tuple[GraphBatch, dict]:
    """The batch of a step, and what an objective is told about it."""
    data = tiny_data({"kitchen": {"train": 10}, "closet": {"train": 2}})  # graphs of the closet have two images
    batch = next(make_source(config, data).batches(step))
    names = ("images", "node_mask", "edge_mask", "edge_targets", "node_targets", "overlap", "scene_idx")
    heard: dict = {}

    def objective(*arguments: Tensor) -> Tensor:
        heard.update(zip((*names, "num_edges", "num_nodes"), arguments, strict=True))
        return torch.zeros(())

    training_loss(objective, batch, config, step, make_fabric(), metres_per_unit)
    return batch, heard


def test_a_step_drops_about_half_the_pairs_from_messages_and_loss_alike() -> None:
    config = tiny_config("optim.batch_size=64")
    batch, heard = heard_by_the_objective(config, 0)
    everything = all_edges(batch.node_mask)
    kept = heard["edge_mask"]
    assert not (kept & ~everything).any()
    assert kept.any(dim=(1, 2)).equal(everything.any(dim=(1, 2)))  # never all pairs of a graph
    # Three pairs a graph, and never none of them: 1 - (1/2 + 1/8 * 1/3) of them fall on average.
    assert kept.sum() / everything.sum() == pytest.approx(0.55, abs=0.12)
    assert heard["num_edges"] == kept.sum()
    assert heard["num_nodes"] == batch.node_mask.sum() < 3 * 64
    assert heard["node_mask"].equal(batch.node_mask)


def test_every_step_drops_other_pairs_and_the_same_ones_when_it_is_repeated() -> None:
    config = tiny_config("optim.batch_size=16")
    first, second, first_again = (heard_by_the_objective(config, step)[1]["edge_mask"] for step in (0, 1, 0))
    assert not first.equal(second)
    assert first.equal(first_again)
    other_seed = heard_by_the_objective(replace(config, seed=1), 0)[1]["edge_mask"]
    assert not first.equal(other_seed)


def test_without_dropout_every_edge_counts() -> None:
    batch, heard = heard_by_the_objective(tiny_config("graph.edge_dropout=0", "optim.batch_size=16"), 0)
    assert heard["edge_mask"].equal(all_edges(batch.node_mask))


@pytest.mark.parametrize("target", ["world", "camera"])
def test_the_network_is_told_translations_in_its_own_unit_and_rotations_as_they_are(target: str) -> None:
    batch, heard = heard_by_the_objective(tiny_config(f"model.target={target}"), 0, metres_per_unit=20.0)
    for name, in_metres in (
        ("edge_targets", relative_targets(batch.T_world_cam, target)),
        ("node_targets", absolute_targets(batch.T_world_cam)),
    ):
        torch.testing.assert_close(heard[name][..., :3] * 20, in_metres[..., :3])
        assert heard[name][..., 3:].equal(in_metres[..., 3:])


@pytest.mark.parametrize("largest", [1e-3, 1e3])
def test_the_gradient_is_clipped_to_its_largest_norm(tmp_path: Path, largest: float) -> None:
    config = tiny_config(f"optim.gradient_clip={largest}", "optim.epochs=1", "optim.weight_decay=0")
    run(tmp_path / "clipped", config, steps_per_epoch=1)
    run(tmp_path / "free", replace(config, optim=replace(config.optim, gradient_clip=0.0)), steps_per_epoch=1)
    clipped, free = (
        # Adam's first moment after one step is a tenth of the gradient.
        10
        * torch.stack([m.norm() for name, m in saved(tmp_path / which / "last").items() if ".exp_avg." in name]).norm()
        for which in ("clipped", "free")
    )
    assert 1e-3 < free < 1e3
    assert clipped.item() == pytest.approx(min(largest, free.item()), rel=1e-3)


def test_a_gradient_that_is_no_number_leaves_its_step_out_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(step: int) -> Callable[[Objective, float], Tensor]:
        calls = itertools.count()

        def clipped(objective: Objective, largest: float) -> Tensor:
            norms = clip_gradients(objective, largest)
            return norms * math.nan if next(calls) >= step else norms

        return clipped

    config = tiny_config("optim.gradient_clip=1", "optim.epochs=1")
    run(tmp_path / "two", config, steps_per_epoch=2)
    monkeypatch.setattr("relograph.training.stepping.clip_gradients", spoil(2))
    run(tmp_path / "three", config, steps_per_epoch=3)
    for name, tensor in saved(tmp_path / "two" / "last").items():
        if "running_" not in name and "num_batches" not in name:
            torch.testing.assert_close(saved(tmp_path / "three" / "last")[name], tensor)
    monkeypatch.setattr("relograph.training.stepping.clip_gradients", spoil(0))
    with pytest.raises(TrainingError, match="expected a finite loss, found none in step 2"):
        run(tmp_path / "none", config, steps_per_epoch=3)


def test_batch_norm_learns_from_the_batches_unless_it_is_frozen(tmp_path: Path) -> None:
    statistics = {name for name in make_objective().state_dict() if "running" in name or "batches" in name}
    start = weights_of(make_objective())
    for frozen in (False, True):
        folder = tmp_path / str(frozen)
        validate = one_after_the_other([2.0, 1.0])
        trained, _ = run(folder, tiny_config(f"optim.freeze_batch_norm={frozen}".lower()), validate=validate)
        unchanged = {name for name in statistics if trained.state_dict()[name].equal(start[name])}
        assert unchanged == (statistics if frozen else set())


def test_bfloat16_rounds_products_and_keeps_weights_in_float32(tmp_path: Path) -> None:
    runs = {kind: run(tmp_path / kind, tiny_config(f"optim.precision={kind}"))[0] for kind in ("float32", "bfloat16")}
    precise, rounded = weights_of(runs["float32"]), weights_of(runs["bfloat16"])
    assert all(tensor.dtype == precise[name].dtype for name, tensor in rounded.items())
    first_losses = [losses_in_log(tmp_path / kind)[0] for kind in ("float32", "bfloat16")]
    assert first_losses[0] != first_losses[1]
    assert first_losses[0] == pytest.approx(first_losses[1], rel=0.02)


def test_convolutions_are_trained_with_channels_last_and_so_is_what_adam_keeps_of_them(tmp_path: Path) -> None:
    objective = make_objective()
    run(tmp_path, objective=objective)
    optimizer = make_optimizer(objective, TINY.optim)
    restore(tmp_path / "last", objective, optimizer)
    kernels = [weight for weight in objective.parameters() if weight.dim() == 4 and weight.shape[-1] > 1]
    assert kernels
    for kernel in kernels:
        moments = [optimizer.state[kernel][key] for key in ("exp_avg", "exp_avg_sq")]
        assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (kernel, *moments))


# When it stops


def test_training_stops_when_validation_has_not_improved_for_a_while(tmp_path: Path) -> None:
    validations = [3.0, 2.0, 2.5, 2.0, 1.0]  # the second is the best, and is only equalled before patience ends
    config = tiny_config("optim.epochs=5", "optim.patience=2")
    _, state = run(tmp_path, config, validate=one_after_the_other(validations))
    assert (state.step, state.best_validation) == (4 * 3, 2.0)
    log = read_log(tmp_path / "log.csv")
    assert [row["validation_loss"] for row in log] == validations[:4]


def test_patience_begins_again_with_every_improvement(tmp_path: Path) -> None:
    config = tiny_config("optim.epochs=6", "optim.patience=2")
    _, state = run(tmp_path, config, validate=one_after_the_other([3.0, 3.5, 2.0, 2.5, 1.0, 1.5]))
    assert (state.step, state.best_validation) == (6 * 3, 1.0)


def test_without_patience_training_goes_to_its_last_epoch(tmp_path: Path) -> None:
    _, state = run(tmp_path, tiny_config("optim.epochs=4"), validate=one_after_the_other([1.0, 2.0, 3.0, 4.0]))
    assert state.step == 12


def test_the_network_at_the_end_is_that_of_the_best_validation(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []
    results = one_after_the_other([3.0, 1.0, 2.0])

    def validate(objective: nn.Module) -> float:
        seen.append(weights_of(objective))
        return results(objective)

    trained, _ = run(tmp_path, tiny_config("optim.epochs=3"), validate=validate)
    assert_same_weights(weights_of(trained), seen[1])
    assert_same_weights(saved(tmp_path / "best"), seen[1])
    in_last = {name: tensor for name, tensor in saved(tmp_path / "last").items() if not name.startswith("optimizer.")}
    assert_same_weights(in_last, seen[2])
    assert not seen[2]["model.pose_head.weight"].equal(seen[1]["model.pose_head.weight"])


def test_without_validation_the_last_network_is_the_best(tmp_path: Path) -> None:
    trained, state = run(tmp_path)
    assert state.best_validation is None
    assert_same_weights(saved(tmp_path / "best"), weights_of(trained))
    assert saved(tmp_path / "last")["model.pose_head.weight"].equal(trained.model.pose_head.weight)


@pytest.mark.parametrize("patience", [0, 1])
def test_a_finished_training_stays_as_it_is(tmp_path: Path, patience: int) -> None:
    config = tiny_config("optim.epochs=3", f"optim.patience={patience}")
    trained, state = run(tmp_path, config, validate=one_after_the_other([1.0, 2.0, 3.0]), steps_per_epoch=1)
    assert state.step == (2 if patience else 3)
    log, last = (tmp_path / "log.csv").read_text(), saved(tmp_path / "last")
    again, state_again = run(tmp_path, config, validate=one_after_the_other([0.0]), steps_per_epoch=1)
    assert state_again == state
    assert (tmp_path / "log.csv").read_text() == log
    assert_same_weights(saved(tmp_path / "last"), last)
    assert_same_weights(weights_of(again), weights_of(trained))


# Checkpoints and logs


def test_checkpoints_hold_the_weights_of_the_loss_and_what_they_are_of(tmp_path: Path) -> None:
    _, state = run(tmp_path, validate=one_after_the_other([1.0, 2.0]))
    last, best = load_checkpoint(tmp_path / "last"), load_checkpoint(tmp_path / "best")
    assert (last.metadata["step"], best.metadata["step"]) == (6, 3) == (state.step, 3)
    assert last.metadata["by"] == best.metadata["by"] == "a test"
    assert last.metadata["best_validation"] == 1.0
    log = read_log(tmp_path / "log.csv")
    for name, start in (("beta", 0.0), ("gamma", -3.0)):
        assert last.tensors[f"loss.{name}"].item() == pytest.approx(log[1][name])
        assert best.tensors[f"loss.{name}"].item() == pytest.approx(log[0][name])
        assert last.tensors[f"loss.{name}"].item() != pytest.approx(start, abs=1e-3)
    assert not any(name.startswith("optimizer.") for name in best.tensors)
    trained_names = {name for name, _ in make_objective().named_parameters()}
    assert {f"optimizer.exp_avg_sq.{name}" for name in trained_names} <= last.tensors.keys()


def test_the_log_has_a_row_every_few_steps_and_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    per_epoch = STEPS_PER_LOG + 2
    run(tmp_path, validate=one_after_the_other([2.0, 1.5]), steps_per_epoch=per_epoch)
    log = read_log(tmp_path / "log.csv")
    assert tuple(log[0]) == LOG_COLUMNS
    assert [row["step"] for row in log] == [20, 22, 42, 44]
    assert [row["epoch"] for row in log] == pytest.approx([20 / 22, 1, 42 / 22, 2])
    assert [row["validation_loss"] for row in log] == [None, 2.0, None, 1.5]
    assert all(row["graphs_per_second"] > 0 for row in log)


class SlowSteps:
    """A clock on which a step of training takes a second, a validation an hour, and nothing else any time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield self.advance

    def advance(self, graphs: int) -> None:
        self.now_s += graphs / TINY.optim.batch_size

    def validate(self, objective: nn.Module) -> float:
        self.now_s += 3600
        return 1.0


def test_validations_are_no_part_of_how_fast_a_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SlowSteps()
    monkeypatch.setattr("relograph.training.loop.time", clock)
    run(tmp_path, validate=clock.validate, progress=clock)
    speeds = [row["graphs_per_second"] for row in read_log(tmp_path / "log.csv")]
    assert speeds == pytest.approx([TINY.optim.batch_size] * 2)


def test_tensorboard_shows_what_the_log_holds(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(tmp_path, tiny_config("optim.epochs=2"), validate=one_after_the_other([2.0, 1.5]))
    run(tmp_path, tiny_config("optim.epochs=3"), validate=one_after_the_other([1.0]))  # goes on
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(LOG_COLUMNS[2:])
    log = read_log(tmp_path / "log.csv")
    for column in LOG_COLUMNS[2:]:
        shown = [(event.step, event.value) for event in events.Scalars(column)]
        assert [step for step, _ in shown] == [3, 6, 9]
        assert [value for _, value in shown] == pytest.approx([row[column] for row in log], rel=1e-6)


def test_a_training_leaves_no_thread_behind(tmp_path: Path) -> None:
    run(tmp_path / "first", tiny_config("optim.epochs=1"))  # what stays is there now
    before = threading.active_count()
    run(tmp_path / "second", tiny_config("optim.epochs=1"))
    assert threading.active_count() == before


class Counting:
    """Progress that adds up."""

    def __init__(self) -> None:
        self.total = self.done = 0

    @contextmanager
    def task(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        if "training" in description:
            self.total = total
        yield self.advance if "training" in description else lambda steps: None

    def advance(self, steps: int) -> None:
        self.done += steps


def test_progress_counts_graphs_and_those_of_before_a_restart_too(tmp_path: Path) -> None:
    progress = Counting()
    run(tmp_path, tiny_config("optim.epochs=1"), progress=progress)
    assert (progress.done, progress.total) == (12, 12)
    progress = Counting()
    run(tmp_path, tiny_config("optim.epochs=3"), progress=progress)
    assert (progress.done, progress.total) == (36, 36)


# Going on


def test_a_training_in_two_parts_is_the_training_in_one(tmp_path: Path) -> None:
    # The learning rate of an epoch does not depend on how many there will be.
    run(tmp_path / "one", tiny_config("optim.epochs=4"), validate=one_after_the_other([4.0, 3.0, 2.0, 1.0]))
    run(tmp_path / "two", tiny_config("optim.epochs=2"), validate=one_after_the_other([4.0, 3.0]))
    run(tmp_path / "two", tiny_config("optim.epochs=4"), validate=one_after_the_other([2.0, 1.0]))
    for kind in ("last", "best"):
        assert_same_weights(saved(tmp_path / "two" / kind), saved(tmp_path / "one" / kind))
    assert losses_in_log(tmp_path / "two") == losses_in_log(tmp_path / "one")


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    before = load_checkpoint(tmp_path / "last").sha256
    other = tiny_config("model.channels=32")
    with pytest.raises(CheckpointError, match=r"last: expected the weights of this PoseObjective, found those of ano"):
        run(tmp_path, other)
    assert load_checkpoint(tmp_path / "last").sha256 == before


def test_a_disk_that_is_full_when_a_training_goes_on_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / "log.csv").read_text()
    with files_limited_to(100), pytest.raises(OSError, match="File too large"):
        Log(tmp_path / "log.csv", first_step=6)
    assert (tmp_path / "log.csv").read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"last", "best", "log.csv", "tensorboard"}


# What is no number


def without_a_pose(data: RelocalizationData, row: int) -> RelocalizationData:
    """The data with a frame whose position is no number."""
    t = data.frames.T_world_cam.t.clone()
    t[row] = math.nan
    return replace(data, frames=replace(data.frames, T_world_cam=Pose(data.frames.T_world_cam.R, t)))


def test_a_loss_that_is_no_number_stops_with_step_frames_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, tiny_config("optim.epochs=1"))
    good = load_checkpoint(tmp_path / "last").sha256
    data, config = without_a_pose(tiny_data(), row=4), tiny_config("optim.epochs=3")
    source = make_source(config, data)
    first_bad_step = next(step for step in range(3, 9) if (source.rows(step) == 4).any())
    with pytest.raises(TrainingError) as caught:
        run(tmp_path, config, data=data)
    message = str(caught.value)
    assert f"in step {first_bad_step}, with the frames " in message
    names = [data.frames.names[row] for row in source.rows(first_bad_step).flatten().tolist()]
    assert ", ".join(names[:8]) in message
    assert f"and {len(names) - 8} more" in message
    assert f"{tmp_path / 'last'} is the last good checkpoint" in message
    assert "or train anew in another folder with a lower optim.learning_rate" in message  # this one has its settings
    assert "\n" not in message
    assert load_checkpoint(tmp_path / "last").sha256 == good
    assert read_log(tmp_path / "log.csv")[0]["step"] == 3
    assert all(math.isfinite(loss) for loss in losses_in_log(tmp_path))


def test_before_the_first_checkpoint_a_message_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no checkpoint was made yet"):
        run(tmp_path, data=without_a_pose(tiny_data(), row=4))
    assert not (tmp_path / "last").exists()
    assert not (tmp_path / "best").exists()


def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    # The loss of the only step is fine; Adam's first step, as long as the learning rate, leaves nothing of the weights.
    config = tiny_config("optim.learning_rate=1e37", "optim.epochs=1")
    with pytest.raises(TrainingError, match="in step 0, with the frames kitchen/seq-00/frame"):
        run(tmp_path, config, steps_per_epoch=1)
    assert not (tmp_path / "last").exists()


@pytest.mark.parametrize("first", [True, False])
def test_a_validation_that_is_no_number_stops_too(tmp_path: Path, first: bool) -> None:
    validations = [math.nan] if first else [1.0, math.inf]
    with pytest.raises(TrainingError, match=f"expected a finite validation loss, found {validations[-1]} after step"):
        run(tmp_path, tiny_config("optim.epochs=3"), validate=one_after_the_other(validations))
    assert (tmp_path / "last").exists() != first
