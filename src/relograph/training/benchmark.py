"""How fast the paper's network trains and answers, against what the chip can do."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from relograph.geometry import Pose
from relograph.graphs import PosedImages
from relograph.models import ModelConfig, RelPoseGNN, build_model
from relograph.progress import SILENT, Progress
from relograph.training.config import DataConfig, GraphConfig, OptimConfig, TrainConfig
from relograph.training.loop import fastest_convolutions, make_fabric, make_optimizer, training_loss
from relograph.training.objective import PoseObjective
from relograph.training.sources import SceneGraphs

PAPER_IMAGE_HW = (256, 341)
# Multiply-adds of one query graph at the paper's size: encoder of 8 images, and the graph network as one would write it
# down (every layer on every edge). A training step costs three times the forward pass.
ENCODER_GMAC, GRAPH_GMAC = 52.1, 4.2


@dataclass(frozen=True)
class TrainingSpeed:
    """Whole training steps: images from memory, edge dropout, loss, gradient, Adam."""

    batch_size: int
    channels: int
    image_height: int
    image_width: int
    compiled: bool
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
    compiled: bool,
    bf16_teraflops: float | None,
    steps: int,
) -> TrainingSpeed:
    """Graphs a second of whole training steps."""
    config = TrainConfig(
        model=ModelConfig(channels=channels, target="world"),
        data=DataConfig(image_height=image_hw[0]),
        graph=GraphConfig(),
        optim=OptimConfig(batch_size=batch_size, compile=compiled),
    )
    frames = random_frames(max(512, 8 * batch_size), image_hw, device)
    rows = torch.arange(len(frames), device=device)
    ranked = torch.randint(len(frames), (len(frames), 35), device=device)
    source = SceneGraphs(frames, rows, frames.in_map, ranked, config.graph, batch_size, 10**6, seed=0)
    fabric = make_fabric(device.type, "bfloat16" if device.type == "cuda" else "float32")
    objective = PoseObjective(build_model(config.model)).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks the keyword
    optimizer = make_optimizer(objective, config.optim)
    wrapped, fabric_optimizer = fabric.setup(objective, optimizer)
    run: Callable[..., Tensor] = torch.compile(wrapped) if compiled else wrapped
    batches = enumerate(source.batches(0))

    def step() -> None:
        number, batch = next(batches)
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
        compiled,
        per_second,
        compile_s,
        teraflops,
        None if bf16_teraflops is None else teraflops / bf16_teraflops,
    )


@torch.no_grad()
def query_speeds(*, device: torch.device, channels: int, image_hw: tuple[int, int], repeats: int) -> list[QuerySpeed]:
    """Milliseconds of one query with the map's features kept, plainly and, on a GPU, as a replayed CUDA graph."""
    model = build_model(ModelConfig(channels=channels)).to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]  # torch's stub lacks the keyword
    assert isinstance(model, RelPoseGNN)
    if device.type == "cuda":
        model = model.bfloat16()
    dtype = next(model.parameters()).dtype
    image = torch.randint(0, 256, (1, 1, *image_hw, 3), dtype=torch.uint8, device=device)
    references = torch.randn(1, 7, channels, dtype=dtype, device=device)
    there = torch.ones(1, 8, dtype=torch.bool, device=device)

    def query() -> Tensor:
        x = torch.cat([model.encode(image), references], dim=1)
        edges = model.decode(x, there).edges
        assert edges is not None
        return edges[:, 1:, 0].float()

    speeds = [_query_speed("eager", query, device, channels, image_hw, repeats)]
    if device.type == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                query()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            query()
        speeds.append(_query_speed("CUDA graph", graph.replay, device, channels, image_hw, repeats))
    return speeds


def _query_speed(
    runtime: str,
    work: Callable[[], object],
    device: torch.device,
    channels: int,
    image_hw: tuple[int, int],
    repeats: int,
) -> QuerySpeed:
    times = sorted(each_seconds(work, device, repeats=repeats))
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    return QuerySpeed(channels, *image_hw, runtime, 1e3 * statistics.median(times), 1e3 * p95)


def benchmark_network(
    *,
    device: torch.device,
    batch_sizes: Sequence[int] = (8, 32, 64),
    channels: int = 2048,
    image_hw: tuple[int, int] = PAPER_IMAGE_HW,
    steps: int = 40,
    compiled: Sequence[bool] = (False, True),
    progress: Progress = SILENT,
) -> tuple[list[dict[str, object]], float]:
    """Rows of training and query speeds, and the measured bf16 rate in TFLOP/s."""
    rate = measured_bf16_teraflops(device)
    rows: list[dict[str, object]] = []
    with progress.task("measuring", total=len(batch_sizes) * len(compiled) + 1) as advance:
        for compile_it in compiled:
            for batch_size in batch_sizes:
                speed = training_speed(
                    batch_size,
                    device=device,
                    channels=channels,
                    image_hw=image_hw,
                    compiled=compile_it,
                    bf16_teraflops=rate,
                    steps=steps,
                )
                rows.append({"what": "training step", **asdict(speed)})
                advance(1)
        rows += [
            {"what": "query", **asdict(speed)}
            for speed in query_speeds(device=device, channels=channels, image_hw=image_hw, repeats=100)
        ]
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
            how = "compiled" if row["compiled"] else "eager"
            share = row["share_of_measured_bf16_rate"]
            assert isinstance(share, float)
            figure = f"{row['graphs_per_second']:.0f} graphs/s"
            lines.append(f"| training step | {row['batch_size']} | {how} | {figure} | {100 * share:.0f} % |")
        else:
            figure = f"{row['milliseconds_median']:.2f} ms (p95 {row['milliseconds_p95']:.2f})"
            lines.append(f"| query | 1 | {row['runtime']} | {figure} | |")
    return "\n".join([*lines, "", f"Measured bf16 rate of one large matrix product: {bf16_teraflops:.1f} TFLOP/s."])
