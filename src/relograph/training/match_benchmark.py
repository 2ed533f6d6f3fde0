"""How fast MatchGNN trains and answers, part by part, against what the chip can do."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from relograph.freed_memory import keep_freed_memory
from relograph.geometry import Pose
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import ImageFeatures, MatchGNN
from relograph.models.query_network import AlikeReferences, Found, QueryNetwork
from relograph.percentiles import percentile
from relograph.progress import SILENT, Progress
from relograph.replaying import WARM_UP_CALLS, Replayed
from relograph.rooms import StreamBatch
from relograph.rooms.textures import TextureAtlas, make_atlas
from relograph.training.benchmark import (
    each_seconds,
    measured_bf16_teraflops,
    synchronize,
)
from relograph.training.loop import RunningMean, fastest_convolutions, make_fabric, make_optimizer, make_step
from relograph.training.match_training import MatchSource, MatchTrainConfig, home_workers, make_ready, shown_in_step
from relograph.training.matching import MatchObjective, Shown
from relograph.training.stepping import ReplayedStep

Result = TypeVar("Result")
Encode = Callable[..., tuple[ImageFeatures, Tensor]]
Look = Callable[..., Found]

NUM_REFERENCES = 7
TRAINING_RUNTIMES = ("eager", "CUDA graph", "compiled, CUDA graph")
REPLAYED = "replayed"
"""As CUDA graphs, by a localizer on a GPU."""


@dataclass(frozen=True)
class MatchTrainingSpeed:
    """Whole training steps: rooms rendered, losses, gradient, Adam, running mean."""

    batch_size: int
    unseen_graphs: int
    image_height: int
    image_width: int
    runtime: str
    graphs_per_second: float
    """Of photographed graphs, one step asked for after the other."""
    milliseconds_rendering: float
    milliseconds_loss: float
    milliseconds_gradient: float
    """The parts of a step as Python asks for them, each waited for: gradient, Adam and running mean together."""
    seconds_to_first_step: float
    """Compiling, and furnishing the first homes."""
    host_waits: int | None
    """How often a step waits for the GPU; each costs the time in which the next step could have been asked for."""
    gigaflops_per_graph: float
    """Counted by torch, forward and backward; twice the multiply-adds."""
    milliseconds_floor: float
    """What a step would take at the measured rate of a large matrix product."""


@dataclass(frozen=True)
class MatchQuerySpeed:
    """What the network does for one query among 7 references whose features are kept."""

    part: str
    image_height: int
    image_width: int
    runtime: str
    milliseconds_median: float
    milliseconds_p95: float
    seconds_to_prepare: float
    difference_from_eager: float
    """Largest difference of the answer from the plain network's, in metres or as an entry of its rotation."""


def benchmark_match(
    config: MatchTrainConfig,
    *,
    device: torch.device,
    batch_sizes: Sequence[int] = (32,),
    steps: int = 20,
    runtimes: Sequence[str] = TRAINING_RUNTIMES,
    beside: Iterable[Mapping[str, object]] = (),
    keep: Callable[[Sequence[Mapping[str, object]]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """Rows of speeds. `keep` is called with all rows so far after each new one, so that a run that is cut loses none.

    `beside` are rows of what else a query takes, measured as they are asked for. On a CPU only queries are measured:
    nobody trains there, and so they are where no `steps` are asked for.
    """
    rows: list[dict[str, object]] = []
    trains = device.type == "cuda" and steps > 0
    trainings = [(runtime, batch_size) for runtime in runtimes for batch_size in batch_sizes] if trains else []
    with progress.task("measuring", total=len(trainings) + 1) as advance:
        # Queries first: they take seconds, and a training's kernels minutes to compile.
        for query in match_query_speeds(config, device=device, repeats=50 if device.type == "cuda" else 5):
            rows.append({"what": "query", **asdict(query)})
            keep(rows)
        for row in beside:
            rows.append({"what": "query", **row})
            keep(rows)
        advance(1)
        if trainings:
            rate = measured_bf16_teraflops(device)
            atlas = make_atlas(config.seed, device=device, progress=progress)
        for runtime, batch_size in trainings:
            sized = replace(config, optim=replace(config.optim, batch_size=batch_size))
            speed = match_training_speed(
                sized, device=device, atlas=atlas, runtime=runtime, bf16_teraflops=rate, steps=steps
            )
            rows.append({"what": "training step", **asdict(speed)})
            keep(rows)
            advance(1)
    return rows


def match_training_speed(
    config: MatchTrainConfig,
    *,
    device: torch.device,
    atlas: TextureAtlas,
    runtime: str,
    bf16_teraflops: float,
    steps: int,
    warm_up_steps: int = 40,
) -> MatchTrainingSpeed:
    """Graphs a second of whole training steps, and what each part of a step takes.

    Upright photographs have kernels of their own, and so have known lenses: all kinds must come often enough to be
    recorded before the clock runs.
    """
    start = time.perf_counter()
    config = replace(config, optim=replace(config.optim, replay="CUDA graph" in runtime))
    with fastest_convolutions(), closing(TrainingSteps(config, device, atlas)) as training:
        flops = training.count_flops()  # before anything is compiled, as torch counts in plain layers alone
        if "compiled" in runtime:
            torch.compiler.reset()
        make_ready(training.objective, device, compile_parts="compiled" in runtime)
        training.steps(1)
        synchronize(device)
        to_first_s = time.perf_counter() - start
        training.steps(warm_up_steps)
        _, seconds = timed(lambda: training.steps(steps), device)
        parts = [training.parts() for _ in range(min(steps, 10))]
        waits = host_waits(lambda: training.steps(1)) if device.type == "cuda" else None
    rendering_ms, loss_ms, gradient_ms = (1e3 * statistics.median(times) for times in zip(*parts, strict=True))
    batch_size = config.optim.batch_size
    return MatchTrainingSpeed(
        batch_size,
        config.stream.unseen_graphs,
        config.stream.image_height,
        config.stream.image_width,
        runtime,
        steps * batch_size / seconds,
        rendering_ms,
        loss_ms,
        gradient_ms,
        to_first_s,
        waits,
        flops / batch_size / 1e9,
        flops / bf16_teraflops / 1e9,
    )


class TrainingSteps:
    """Steps of a training as the loop makes them, in parts that can be timed."""

    def __init__(self, config: MatchTrainConfig, device: torch.device, atlas: TextureAtlas) -> None:
        self.config, self.device, self.count = config, device, 0
        self.objective: MatchObjective = MatchObjective(MatchGNN(config.model), config.loss).to(
            device,
            memory_format=torch.channels_last,  # type: ignore[call-overload]  # torch's stub lacks the keyword
        )
        optimizer = make_optimizer(self.objective, config.optim)
        self.mean = RunningMean(self.objective, config.optim.average_decay)
        self.take_step = make_step(
            config.optim, self.objective, optimizer, make_fabric(device.type, config.optim.precision)
        )
        self.plain = self.take_step.plain if isinstance(self.take_step, ReplayedStep) else self.take_step
        self.batches = MatchSource(config, device, atlas, workers=home_workers(device)).batches(0)

    def close(self) -> None:
        """End what furnishes homes."""
        self.batches.close()

    def render(self) -> StreamBatch:
        return next(self.batches)

    def shown(self, batch: StreamBatch) -> Shown:
        self.count += 1
        return shown_in_step(self.config, batch, self.count)

    def loss(self, batch: StreamBatch) -> Tensor:
        return self.plain.differentiated(self.shown(batch))

    def learn(self, loss: Tensor) -> None:
        self.plain.learn(loss)
        self.mean.take(self.count)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.take_step(self.shown(self.render()))
            self.mean.take(self.count)

    def parts(self) -> tuple[float, float, float]:
        """Seconds of the parts of a step, each waited for."""
        batch, rendering_s = timed(self.render, self.device)
        loss, loss_s = timed(lambda: self.loss(batch), self.device)
        _, gradient_s = timed(lambda: self.learn(loss), self.device)
        return rendering_s, loss_s, gradient_s

    def count_flops(self) -> int:
        """Operations of a step, forward and backward, in the layers that torch can count: all that matter."""
        with FlopCounterMode(display=False) as counter:
            self.learn(self.loss(self.render()))
        return int(counter.get_total_flops())


def timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """What some work gives, and the seconds until a GPU has done it."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return result, time.perf_counter() - start


def host_waits(step: Callable[[], object]) -> int:
    """How often Python waits for a GPU in a step."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def match_query_speeds(config: MatchTrainConfig, *, device: torch.device, repeats: int) -> Iterator[MatchQuerySpeed]:
    """Milliseconds of what the network does for a query as a localizer has it done, in two parts and as a whole."""
    image_hw = (config.stream.image_height, config.stream.image_width)
    network = QueryNetwork(fold_match_gnn(MatchGNN(config.model).eval().to(device)), device)
    image = torch.randint(0, 256, (1, *image_hw, 3), dtype=torch.uint8, device=device)
    others = torch.randint(0, 256, (NUM_REFERENCES, *image_hw, 3), dtype=torch.uint8, device=device)
    T_world_ref = Pose.from_axis_angle(torch.randn(1, NUM_REFERENCES, 3), torch.randn(1, NUM_REFERENCES, 3)).to(
        dtype=torch.float32, device=device
    )
    if device.type == "cpu":  # as whoever answers there does
        keep_freed_memory()
    kept, _ = network.encode(others)
    as_a_map_gives_them = ImageFeatures(kept.context.float(), kept.coarse.float(), kept.fine.half())
    references = [AlikeReferences(image_hw, as_a_map_gives_them, None, NUM_REFERENCES)]
    order = torch.arange(NUM_REFERENCES, device=device)
    parts_by_runtime: dict[str, tuple[Encode, Look]] = {"eager": (network.encode, network.look)}
    if device.type == "cuda":
        parts_by_runtime[REPLAYED] = (Replayed(network.encode), Replayed(network.look))
    features, _ = network.encode(image)
    wanted = None
    for runtime, (encode, look) in parts_by_runtime.items():
        compare = partial(_settled, look, image_hw, references, order, T_world_ref)
        start = time.perf_counter()
        for _ in range(WARM_UP_CALLS + 1):  # the last of which is replayed
            answer = compare(encode(image)[0])
        synchronize(device)
        prepare_s = time.perf_counter() - start
        wanted = answer if wanted is None else wanted
        difference = float((answer - wanted).abs().max())
        for part, work in (
            ("encode, describe", partial(encode, image)),
            ("match, regress, settle", partial(compare, features)),
            ("whole query", partial(_whole, encode, compare, image)),
        ):
            times = each_seconds(work, device, repeats=repeats)
            yield _query_speed(part, image_hw, runtime, times, prepare_s, difference)


def _settled(
    look: Look,
    image_hw: tuple[int, int],
    references: Sequence[AlikeReferences],
    order: Tensor,
    T_world_ref: Pose,
    features: ImageFeatures,
) -> Tensor:
    answer = look(features, image_hw, None, references, order, T_world_ref).settled.T_world_query
    return torch.cat([answer.t, answer.R.flatten(1)], dim=1)


def _whole(encode: Encode, compare: Callable[[ImageFeatures], Tensor], image: Tensor) -> Tensor:
    return compare(encode(image)[0])


def _query_speed(
    part: str,
    image_hw: tuple[int, int],
    runtime: str,
    times: Sequence[float],
    prepare_s: float,
    difference: float,
) -> MatchQuerySpeed:
    median_ms, p95_ms = 1e3 * statistics.median(times), 1e3 * percentile(times, 95)
    return MatchQuerySpeed(part, *image_hw, runtime, median_ms, p95_ms, prepare_s, difference)


def match_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The figures as Markdown tables."""
    lines = ["| query | how | median | p95 |", "|---|---|---|---|"]
    lines += [
        f"| {row['part']} | {row['runtime']} | {row['milliseconds_median']:.2f} ms | {row['milliseconds_p95']:.2f} ms |"
        for row in rows
        if row["what"] == "query"
    ]
    trainings = [row for row in rows if row["what"] == "training step"]
    if trainings:
        lines += ["", "| training step | batch | graphs/s | rendering | loss | gradient | floor | waits |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
    for row in trainings:
        parts = [f"{row[f'milliseconds_{part}']:.1f} ms" for part in ("rendering", "loss", "gradient", "floor")]
        figures = [f"{row['graphs_per_second']:.0f}", *parts, str(row["host_waits"])]
        lines.append(f"| {row['runtime']} | {row['batch_size']} | {' | '.join(figures)} |")
    return "\n".join(lines)
