"""How fast rooms are rendered: figures for `relograph bench rooms`."""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from relograph.progress import Progress
from relograph.rooms.layout import LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, photograph, random_optics
from relograph.rooms.textures import TextureAtlas, make_atlas
from relograph.rooms.walks import scattered_views, views_of
from relograph.rooms.world import Rooms, Views

REPEATS = 15
NUM_HOMES = 32


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
    seconds_to_compile: float


def synchronize(device: torch.device) -> None:
    """Wait for the device: without it a clock measures only the asking."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def test_views(
    layout: LayoutConfig, atlas: TextureAtlas, height: int, width: int, count: int
) -> tuple[Rooms, Views]:
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
    device: torch.device, atlas: TextureAtlas, effects: Effects, name: str, *, height: int, width: int, count: int
) -> RenderingSpeed:
    """Photographs a second, the median of several batches after two that warm up."""
    layout = LayoutConfig()
    rooms, views = test_views(layout, atlas, height, width, count)
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
            effects=effects,
            darkroom=darkroom,
        )
        synchronize(device)
        return time.perf_counter() - start

    compile_s = once()
    once()
    seconds = statistics.median(once() for _ in range(REPEATS if device.type == "cuda" else 3))
    return RenderingSpeed(name, height, width, layout.num_solids, count, count / seconds, compile_s)
