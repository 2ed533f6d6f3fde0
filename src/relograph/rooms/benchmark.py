"""How fast rooms are rendered: figures for `relograph bench rooms`."""

import difflib
import itertools
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from relograph.environment import num_cores
from relograph.errors import ConfigError
from relograph.progress import SILENT, Progress
from relograph.rooms.layout import LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, photograph, random_optics
from relograph.rooms.seven_rooms import create_seven_rooms
from relograph.rooms.textures import TextureAtlas, make_atlas
from relograph.rooms.walks import scattered_views, views_of
from relograph.rooms.world import Rooms, Views

REPEATS = 15
NUM_HOMES = 32
IMAGES_PER_BATCH = 512
EFFECTS = {
    "all": Effects(),
    "none": Effects.none(),
    **{f"all but {field.name}": replace(Effects(), **{field.name: False}) for field in fields(Effects)},
    # One pass over the image does both, so leaving out one of them saves nearly nothing.
    "all but motion_blur and defocus": replace(Effects(), motion_blur=False, defocus=False),
}
"""What is measured on a GPU, by name."""
ALL_ROWS = (*((name, (192, 256)) for name in EFFECTS), ("all", (256, 341)), ("none", (256, 341)))
"""Effects and sizes. A GPU compiles each size anew, for a minute or two where no earlier run has kept it."""


@dataclass(frozen=True)
class RenderingSpeed:
    """One row of the benchmark."""

    effects: str
    """`all`, `none`, or which one was left out."""
    height: int
    width: int
    solids: int
    images_per_batch: int
    images_per_second: float
    first_batch_s: float
    """On a GPU mostly the compiler's time; next to nothing where an earlier row has compiled the same."""


def synchronize(device: torch.device) -> None:
    """Wait for the device: without it a clock measures only the asking."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spread_views(layout: LayoutConfig, atlas: TextureAtlas, height: int, width: int, count: int) -> tuple[Rooms, Views]:
    """`count` cameras spread over `NUM_HOMES` homes."""
    homes = [make_home(seed, atlas.range_by_family, layout) for seed in range(min(NUM_HOMES, count))]
    rooms = Rooms.cat([to_tensors(home, layout) for home in homes])
    views = []
    for idx in range(count):
        rng = np.random.default_rng(idx)
        center, R_room_cam = scattered_views(homes[idx % len(homes)], rng, 1)
        focal_px = rng.uniform(0.65, 1.25, 1) * width
        views.append(views_of(center, R_room_cam, focal_px, rng.uniform(-0.05, 0.05, (1, 2)), height, width))
    return rooms[torch.arange(count) % len(homes)], Views.cat(views)


def rendering_speed(
    device: torch.device, atlas: TextureAtlas, name: str, rooms: Rooms, views: Views, *, height: int, width: int
) -> RenderingSpeed:
    """Photographs a second, the median of several batches after two that warm up."""
    layout, count = LayoutConfig(), len(views.center)
    rooms, views = rooms.to(device), views.to(device)
    optics = random_optics(count, width, torch.Generator().manual_seed(0)).to(device)
    darkroom = Darkroom.on(device)

    def once() -> float:
        synchronize(device)
        start = time.perf_counter()
        photograph(
            rooms,
            views,
            atlas,
            optics,
            num_boxes=layout.num_boxes,
            height=height,
            width=width,
            effects=EFFECTS[name],
            darkroom=darkroom,
        )
        synchronize(device)
        return time.perf_counter() - start

    first_batch_s = once()
    once()
    seconds = statistics.median(once() for _ in range(REPEATS if device.type == "cuda" else 3))
    return RenderingSpeed(name, height, width, layout.num_solids, count, count / seconds, first_batch_s)


@dataclass(frozen=True)
class CreationSpeed:
    """How long `relograph rooms create --size small` took."""

    rooms: int
    images: int
    workers: int
    seconds: float
    images_per_second: float


def creation_speed(num_rooms: int, workers: int, seed: int, progress: Progress) -> CreationSpeed:
    """SevenRooms at the small size, rendered and written to a temporary folder, start to end."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        create_seven_rooms(
            Path(folder), num_rooms=num_rooms, size="small", seed=seed, workers=workers, progress=progress
        )
        seconds = time.perf_counter() - start
        images = len(list(Path(folder).glob("*/*/*.color.png")))
    return CreationSpeed(num_rooms, images, workers, seconds, images / seconds)


def chosen_rows(effects: Sequence[str], sizes: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """The rows of those effects at those sizes, such as 256x341; where one of the two is not said, all of it."""
    for name in effects:
        if name not in EFFECTS:
            nearest = difflib.get_close_matches(name, EFFECTS, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else "Choose one of them."
            raise ConfigError(f"--effects: expected one of {', '.join(EFFECTS)}, found {name!r}. {hint}")
    for size in sizes:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", size):
            raise ConfigError(f"--size: expected height and width like 256x341, found {size!r}. Give them so.")
    if not sizes:
        return [row for row in ALL_ROWS if not effects or row[0] in effects]
    sizes_hw = [tuple(map(int, size.split("x"))) for size in sizes]
    return [(name, (height, width)) for height, width in sizes_hw for name in effects or EFFECTS]


def benchmark_rooms(
    device: str,
    *,
    seed: int = 0,
    num_rooms: int = 7,
    rows: Sequence[tuple[str, tuple[int, int]]] = ALL_ROWS,
    keep: Callable[[Sequence[RenderingSpeed | CreationSpeed]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[RenderingSpeed | CreationSpeed]:
    """On a GPU the renderer, with and without its effects; on a CPU SevenRooms. `keep` is told the rows so far."""
    measured: list[RenderingSpeed | CreationSpeed] = []
    if device == "cpu":
        measured.append(creation_speed(num_rooms, num_cores(), seed, progress))
        keep(measured)
        return measured
    atlas = make_atlas(seed).to(device)
    with progress.task("rendering", total=len(rows)) as advance:
        for (height, width), of_size in itertools.groupby(rows, key=lambda row: row[1]):
            rooms, views = spread_views(LayoutConfig(), atlas, height, width, IMAGES_PER_BATCH)
            for name, _ in of_size:
                measured.append(
                    rendering_speed(torch.device(device), atlas, name, rooms, views, height=height, width=width)
                )
                keep(measured)
                advance(1)
    return measured


def benchmark_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of a benchmark, as `asdict` or a results file gives them, as a Markdown table."""
    if "workers" in rows[0]:
        lines = ["| rooms | images | processes | seconds | images a second |", "| --- | --- | --- | --- | --- |"]
        for row in rows:
            lines.append(
                f"| {row['rooms']} | {row['images']} | {row['workers']} | {row['seconds']:.0f} "
                f"| {row['images_per_second']:.1f} |"
            )
        return "\n".join(lines)
    lines = ["| effects | image | images a second | share of the time that it costs |", "| --- | --- | --- | --- |"]
    speed_with_all = {
        (row["height"], row["width"]): row["images_per_second"] for row in rows if row["effects"] == "all"
    }
    for row in rows:
        speed, with_all = row["images_per_second"], speed_with_all.get((row["height"], row["width"]))
        assert isinstance(speed, float)
        saved = f"{1 - with_all / speed:.1%}" if isinstance(with_all, float) and row["effects"] != "all" else ""
        lines.append(f"| {row['effects']} | {row['height']}x{row['width']} | {speed:,.0f} | {saved} |")
    return "\n".join(lines)
