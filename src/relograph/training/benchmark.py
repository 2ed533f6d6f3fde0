"""How fast the paper's network trains and answers, against what the chip can do."""

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from relograph.geometry import Pose
from relograph.graphs import PosedImages
from relograph.models import ModelConfig, PoseModel, build_model
from relograph.models.folding import fold_batch_norm
from relograph.percentiles import percentile
from relograph.progress import SILENT, Progress
from relograph.training.config import DataConfig, GraphConfig, OptimConfig, TrainConfig
from relograph.training.loop import fastest_convolutions, make_fabric, make_optimizer, training_loss
from relograph.training.objective import PoseObjective
from relograph.training.sources import SceneGraphs

PAPER_IMAGE_HW = (256, 341)
# Multiply-adds of one query graph at the paper's size: encoder of 8 images, and the graph network as one would write it
# down (every layer on every edge). A training step costs three times the forward pass.
ENCODER_GMAC, GRAPH_GMAC = 52.1, 4.2

COMPILER_MODES = {"eager": None, "compiled": "default", "compiled, CUDA graphs": "reduce-overhead"}
"""How a training step can be run, and what torch's compiler is told then."""
SMALLEST_BATCH_ONLY = "compiled, CUDA graphs"
"""Replaying kernels instead of launching them helps where launching takes longer than computing, and only there."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Whole training steps: images from memory, edge dropout, loss, gradient, Adam."""

    batch_size: int
    channels: int
    image_height: int
    image_width: int
    runtime: str
    graphs_per_second: float
    seconds_to_compile: float
    teraflops: float
    """Counted as 6 x multiply-adds x graphs a second."""
    share_of_measured_bf16_rate: float | None


@dataclass(frozen=True)
class QuerySpeed:
    """One query, its references' features kept: encoder on one image, the graph network, the pose of every edge."""

    channels: int
    image_height: int
    image_width: int
    runtime: str
    milliseconds_median: float
    milliseconds_p95: float
    seconds_to_prepare: float
    """Folding, compiling, capturing."""
    difference_from_eager: float
    """Largest difference of the answer from the plain network's, as a share of its largest number."""


def measured_bf16_teraflops(device: torch.device) -> float:
    """The rate of one large matrix product of random numbers."""
    size = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = median_seconds(lambda: a @ b, device, repeats=20)
    return 2 * size**3 / seconds / 1e12


def median_seconds(work: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Median time of something, after a warm-up."""
    return statistics.median(each_seconds(work, device, repeats=repeats))


def each_seconds(work: Callable[[], object], device: torch.device, *, repeats: int) -> list[float]:
    """Times of something, after a warm-up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_frames(count: int, image_hw: tuple[int, int], device: torch.device) -> PosedImages:
    """Noise with random poses: what it shows does not change how long it takes."""
    rotation = torch.randn(count, 3, device=device)
    return PosedImages(
        images=torch.randint(0, 256, (count, *image_hw, 3), dtype=torch.uint8, device=device),
        T_world_cam=Pose.from_axis_angle(rotation, torch.randn(count, 3, device=device)),
        scene_idx=torch.zeros(count, dtype=torch.long, device=device),
        sequence_idx=torch.zeros(count, dtype=torch.long, device=device),
        in_map=torch.ones(count, dtype=torch.bool, device=device),
        names=tuple(str(i) for i in range(count)),
        scene_names=("noise",),
    )


def training_speed(
    batch_size: int,
    *,
    device: torch.device,
    channels: int,
    image_hw: tuple[int, int],
    runtime: str,
    bf16_teraflops: float | None,
    steps: int,
) -> TrainingSpeed:
    """Graphs a second of whole training steps, run in one of the ways of `COMPILER_MODES`."""
    config = TrainConfig(
        model=ModelConfig(channels=channels, target="world"),
        data=DataConfig(image_height=image_hw[0]),
        graph=GraphConfig(),
        optim=OptimConfig(batch_size=batch_size),
    )
    frames = random_frames(max(512, 8 * batch_size), image_hw, device)
    rows = torch.arange(len(frames), device=device)
    ranked = torch.randint(len(frames), (len(frames), 35), device=device)
    source = SceneGraphs(frames, rows, frames.in_map, ranked, config.graph, batch_size, 10**6, seed=0)
    fabric = make_fabric(device.type, "bfloat16" if device.type == "cuda" else "float32")
    objective = PoseObjective(build_model(config.model)).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks the keyword
    optimizer = make_optimizer(objective, config.optim)
    wrapped, fabric_optimizer = fabric.setup(objective, optimizer)
    run: Callable[..., Tensor] = wrapped
    if (mode := COMPILER_MODES[runtime]) is not None:
        torch.compiler.reset()  # after another batch size the compiler would take sizes for variables
        run = torch.compile(wrapped, mode=mode, dynamic=False)
    batches = enumerate(source.batches(0))

    def step() -> None:
        number, batch = next(batches)
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # what a graph of the last step gave may be overwritten
        loss = training_loss(run, batch, config, number, fabric, 1.0)
        fabric_optimizer.zero_grad(set_to_none=True)
        fabric.backward(loss)
        fabric_optimizer.step()

    with fastest_convolutions():
        start = time.perf_counter()
        for _ in range(3):
            step()
        synchronize(device)
        compile_s = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(device)
    per_second = steps * batch_size / (time.perf_counter() - start)
    pixels = image_hw[0] * image_hw[1] / (PAPER_IMAGE_HW[0] * PAPER_IMAGE_HW[1])
    gmac = ENCODER_GMAC * pixels + GRAPH_GMAC * (channels / 2048) ** 2
    teraflops = 6 * gmac * per_second / 1e3
    return TrainingSpeed(
        batch_size,
        channels,
        *image_hw,
        runtime,
        per_second,
        compile_s,
        teraflops,
        None if bf16_teraflops is None else teraflops / bf16_teraflops,
    )


@torch.no_grad()
def query_speeds(*, device: torch.device, channels: int, image_hw: tuple[int, int], repeats: int) -> list[QuerySpeed]:
    """Milliseconds of one query with the map's features kept, for each way of running it on this device."""
    model = build_model(ModelConfig(channels=channels)).eval()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    image = torch.randint(0, 256, (1, 1, *image_hw, 3), dtype=torch.uint8, device=device)
    references = torch.randn(1, 7, channels, dtype=dtype, device=device)
    there = torch.ones(1, 8, dtype=torch.bool, device=device)

    def query_of(model: PoseModel) -> Callable[[], Tensor]:
        model = model.to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks the keyword

        def query() -> Tensor:
            x = torch.cat([model.encode(image), references], dim=1)
            edges = model.decode(x, there).edges
            assert edges is not None
            return edges[:, 1:, 0].float()

        return query

    def folded(*, fused: bool = False) -> Callable[[], Tensor]:
        other = copy.deepcopy(model)
        other.encoder = fold_batch_norm(other.encoder, fused=fused)
        return query_of(other)

    def plain() -> Callable[[], Tensor]:
        return query_of(copy.deepcopy(model))

    def compiled() -> Callable[[], Tensor]:
        torch.compiler.reset()
        return torch.compile(folded(), dynamic=False)  # trying every kernel out would take minutes

    ways: dict[str, Callable[[], Callable[[], Tensor]]] = {"eager": plain, "eager, folded": folded}
    if device.type == "cuda":
        ways |= {
            "CUDA graph": lambda: captured(plain()),
            "CUDA graph, folded": lambda: captured(folded()),
            "CUDA graph, folded and fused": lambda: captured(folded(fused=True)),
            "CUDA graph, folded and compiled": lambda: captured(compiled()),
        }
    speeds: list[QuerySpeed] = []
    wanted = plain()()
    with fastest_convolutions():
        for runtime, make in ways.items():
            start = time.perf_counter()
            query = make()
            difference = float((query() - wanted).abs().max() / wanted.abs().max())
            prepare_s = time.perf_counter() - start
            times = each_seconds(query, device, repeats=repeats)
            median_ms, p95_ms = 1e3 * statistics.median(times), 1e3 * percentile(times, 95)
            speeds.append(QuerySpeed(channels, *image_hw, runtime, median_ms, p95_ms, prepare_s, difference))
    return speeds


def captured(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same work as one CUDA graph, which a GPU replays without waiting for Python."""
    work()  # what is compiled or tried out once must be so before
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def benchmark_network(
    *,
    device: torch.device,
    batch_sizes: Sequence[int] = (8, 32, 64),
    channels: int = 2048,
    image_hw: tuple[int, int] = PAPER_IMAGE_HW,
    steps: int = 40,
    runtimes: Sequence[str] = tuple(COMPILER_MODES),
    keep: Callable[[Sequence[Mapping[str, object]], float], None] = lambda rows, rate: None,
    progress: Progress = SILENT,
) -> tuple[list[dict[str, object]], float]:
    """Rows of training and query speeds, and the measured bf16 rate in TFLOP/s.

    `keep` is called with what is known so far after each new row, so that a run that is cut loses none.
    """
    rate = measured_bf16_teraflops(device)
    rows: list[dict[str, object]] = []
    trainings = [
        (runtime, batch_size)
        for runtime in runtimes
        for batch_size in ([min(batch_sizes)] if runtime == SMALLEST_BATCH_ONLY else batch_sizes)
    ]
    with progress.task("measuring", total=len(trainings) + 1) as advance:
        # Queries first: they take seconds, and a training's kernels minutes to compile.
        rows += [
            {"what": "query", **asdict(speed)}
            for speed in query_speeds(device=device, channels=channels, image_hw=image_hw, repeats=100)
        ]
        keep(rows, rate)
        advance(1)
        for runtime, batch_size in trainings:
            speed = training_speed(
                batch_size,
                device=device,
                channels=channels,
                image_hw=image_hw,
                runtime=runtime,
                bf16_teraflops=rate,
                steps=steps,
            )
            rows.append({"what": "training step", **asdict(speed)})
            keep(rows, rate)
            advance(1)
    return rows, rate


def network_table(rows: Sequence[Mapping[str, object]], bf16_teraflops: float) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| what | batch | how | figure | share of the measured bf16 rate |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["what"] == "training step":
            share = row["share_of_measured_bf16_rate"]
            assert isinstance(share, float)
            figure = f"{row['graphs_per_second']:.0f} graphs/s"
            lines.append(f"| training step | {row['batch_size']} | {row['runtime']} | {figure} | {100 * share:.0f} % |")
        else:
            figure = f"{row['milliseconds_median']:.2f} ms (p95 {row['milliseconds_p95']:.2f})"
            lines.append(f"| query | 1 | {row['runtime']} | {figure} | |")
    return "\n".join([*lines, "", f"Measured bf16 rate of one large matrix product: {bf16_teraflops:.1f} TFLOP/s."])
