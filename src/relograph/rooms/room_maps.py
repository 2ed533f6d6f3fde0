"""Homes that nobody trained on, each with a map and queries: where MatchGNN is chosen, calibrated and scored.

Rooms come in three parts that never meet: their seeds differ, and so do the photographs on their walls. Training sees
the first, weights and thresholds are chosen on the second, and the third is only ever scored.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Camera, Pose, axis_angle_to_matrix
from relograph.progress import SILENT, Progress
from relograph.rooms.covisibility import covisibility
from relograph.rooms.layout import Home, LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, Optics, photograph, random_optics
from relograph.rooms.raycast import Kernels, first_hits, pixel_centers, ray_directions
from relograph.rooms.textures import TextureAtlas, make_atlas
from relograph.rooms.walks import moved, scattered_views, views_of, walk
from relograph.rooms.world import Rooms, Views

Part = Literal["training", "validation", "test"]
FIRST_SEED: dict[Part, int] = {"training": 100_000_000, "validation": 1_000_000_000, "test": 2_000_000_000}
"""Small numbers are left to SevenRooms, whose rooms and textures no training here sees."""
VIEWS_AT_ONCE = 32
WALK_STEPS = 1024
UNSEEN_OVERLAP, UNSEEN_TRIES = 0.02, 24
"""A view that shares less than this with every view of the map is unseen; so many are tried for each one wanted."""
PROBE_HEIGHT, PROBE_WIDTH = 18, 24  # overlap is judged on a coarse grid of rays


@dataclass(frozen=True, kw_only=True)
class RoomMapConfig:
    """How large the maps are, and how hard the queries."""

    num_homes: int = 20
    """Homes, each with a map of its own."""
    map_views: int = 60
    """Photographs in a map."""
    query_views: int = 50
    """Queries in each home."""
    unseen_views: int = 0
    """Photographs of each home in which next to nothing is to be seen of what the map shows; few homes have many."""
    image_height: int = 240
    """Pixels."""
    image_width: int = 320
    """Pixels."""
    focal_range: tuple[float, float] = (0.65, 1.25)
    """Focal length as a share of the image's longer side: one for a map, another for each of its queries."""
    max_distortion: float = 0.05
    """Largest first radial coefficient of the lens."""
    move_m: float = 0.16
    """Spread along each axis between a query and the view of the map that it is taken near."""
    turn_deg: float = 5.5
    """Spread about each axis of the turn between them."""
    any_roll_share: float = 0.05
    """Share of queries that are turned about their view by any angle instead."""

    def __post_init__(self) -> None:
        if self.unseen_views < 0:
            raise ConfigError(f"unseen_views must be 0 or more, got {self.unseen_views}.")
        if min(self.num_homes, self.map_views, self.query_views) < 1:
            raise ConfigError("num_homes, map_views and query_views must be at least 1.")


@dataclass(frozen=True)
class RoomMap:
    """One home: photographs with their poses, of which M are the map; then its queries, then what it has not seen."""

    images: UInt8[Tensor, "F H W 3"]
    T_world_cam: Pose
    """Batch shape [F]."""
    K: Float[Tensor, "F 3 3"]
    distortion: Float[Tensor, "F 2"]
    is_query: Bool[Tensor, "F"]
    is_unseen: Bool[Tensor, "F"]
    """Taken in the home, and yet not to be found in the map."""
    overlap: Float[Tensor, "F M"]
    """Share of each view that each view of the map sees, by depth, within [0, 1]."""

    def camera(self, row: int) -> Camera:
        """That took a photograph."""
        height, width = self.images.shape[1:3]
        (fx, _, cx), (_, fy, cy), _ = self.K[row].tolist()
        k1, k2 = self.distortion[row].tolist()
        return Camera(width, height, fx, fy, cx, cy, (k1, k2, 0.0, 0.0), "opencv")


def room_maps(
    part: Part,
    config: RoomMapConfig | None = None,
    *,
    seed: int = 0,
    atlas: TextureAtlas | None = None,
    device: torch.device | str = "cpu",
    first_home: int = 0,
    progress: Progress = SILENT,
) -> Iterator[RoomMap]:
    """The homes of a part from number `first_home` on, one after the other; the same numbers give the same homes.

    A map is photographed in one light with one lens; each query comes at another time, with a lens of its own.
    """
    config = config or RoomMapConfig()
    device, first_seed = torch.device(device), FIRST_SEED[part] + seed
    atlas = (atlas or make_atlas(first_seed, progress=progress)).to(device)
    darkroom, layout = Darkroom.on(device), LayoutConfig()
    with progress.task(f"photographing {part} rooms", total=config.num_homes - first_home) as advance:
        for home_idx in range(first_home, config.num_homes):
            rng = np.random.default_rng([first_seed, home_idx])
            home = make_home(int(rng.integers(2**31)), atlas.range_by_family, layout)
            views, is_query = _views_of_home(config, home, rng)
            optics = random_optics(len(is_query), config.image_width, torch.Generator().manual_seed(home_idx))
            optics.light_gain[~is_query] = optics.light_gain[0].clone()
            rooms = to_tensors(home, layout).to(device)
            # The others stay the same, however many of these there are.
            unseen_rng = np.random.default_rng([first_seed, home_idx, 1])
            unseen = _unseen_views(config, home, unseen_rng, rooms, layout.num_boxes, views[: config.map_views])
            is_unseen = torch.arange(len(is_query) + len(unseen.center)) >= len(is_query)
            is_query = torch.cat([is_query, torch.zeros(len(unseen.center), dtype=torch.bool)])
            unseen_generator = torch.Generator().manual_seed(home_idx + 1_000_000)
            unseen_optics = random_optics(len(unseen.center), config.image_width, unseen_generator)
            views, optics = Views.cat([views, unseen]), Optics.cat([optics, unseen_optics])
            images = []
            for some in torch.arange(len(is_query)).split(VIEWS_AT_ONCE):
                # A GPU's renderer is compiled for one number of views, so the last ones are filled up with one of them.
                filled = some if device.type == "cpu" else some.new_full((VIEWS_AT_ONCE,), int(some[-1]))
                filled[: len(some)] = some
                pixels, _ = photograph(
                    rooms[torch.zeros(len(filled), dtype=torch.long, device=device)],
                    views[filled].to(device),
                    atlas,
                    optics[filled].to(device),
                    num_boxes=layout.num_boxes,
                    height=config.image_height,
                    width=config.image_width,
                    effects=Effects(),
                    darkroom=darkroom,
                )
                images.append(pixels[: len(some)].permute(0, 2, 3, 1))
            K = torch.zeros(len(is_query), 3, 3)
            K[:, 0, 0], K[:, 1, 1], K[:, 2, 2] = views.focal_px[:, 0], views.focal_px[:, 1], 1
            K[:, :2, 2] = views.principal_px
            yield RoomMap(
                torch.cat(images),
                Pose(views.R_room_cam, views.center),
                K,
                views.distortion,
                is_query,
                is_unseen,
                _shares_seen(config, rooms, layout.num_boxes, views, views[: config.map_views]),
            )
            advance(1)


def _views_of_home(config: RoomMapConfig, home: Home, rng: np.random.Generator) -> tuple[Views, Bool[Tensor, "F"]]:
    """Cameras along a walk, which make the map, then those of the queries, each near one of them."""
    count = config.map_views + config.query_views
    path = walk(home, rng, WALK_STEPS)
    kept = np.linspace(0, WALK_STEPS - 1, config.map_views).round().astype(int)
    parent = rng.choice(kept, config.query_views)
    center = np.concatenate([path.center[kept], moved(home, rng, path.center[parent], config.move_m)])
    turned = path.R_room_cam[parent] @ _turns(rng, config)
    is_query = np.arange(count) >= config.map_views
    longer = max(config.image_height, config.image_width)
    focal_px = rng.uniform(*config.focal_range, count) * longer
    distortion = rng.uniform(-1, 1, (count, 2)) * [config.max_distortion, 0.2 * config.max_distortion]
    focal_px[~is_query], distortion[~is_query] = focal_px[0], distortion[0]
    views = views_of(
        center,
        np.concatenate([path.R_room_cam[kept], turned]),
        focal_px,
        distortion,
        config.image_height,
        config.image_width,
    )
    return views, torch.from_numpy(is_query)


def _unseen_views(
    config: RoomMapConfig, home: Home, rng: np.random.Generator, rooms: Rooms, num_boxes: int, map_views: Views
) -> Views:
    """Cameras anywhere in the home that see next to nothing of what the map shows, as far as luck finds them."""
    count = config.unseen_views * UNSEEN_TRIES
    if not count:
        return map_views[:0]
    longer = max(config.image_height, config.image_width)
    tried = views_of(
        *scattered_views(home, rng, count),
        rng.uniform(*config.focal_range, count) * longer,
        rng.uniform(-1, 1, (count, 2)) * [config.max_distortion, 0.2 * config.max_distortion],
        config.image_height,
        config.image_width,
    )
    seen = _shares_seen(config, rooms, num_boxes, tried, map_views).amax(dim=1)
    return tried[(seen < UNSEEN_OVERLAP).nonzero().squeeze(1)[: config.unseen_views]]


def _shares_seen(
    config: RoomMapConfig, rooms: Rooms, num_boxes: int, views_a: Views, views_b: Views
) -> Float[Tensor, "A B"]:
    """Entry [a, b]: the share of view a that view b sees, in one room, on the CPU."""
    device = rooms.center.device
    scale = torch.tensor([PROBE_WIDTH / config.image_width, PROBE_HEIGHT / config.image_height])

    def probed(views: Views) -> tuple[Views, Float[Tensor, "n h w"]]:
        coarse = replace(views, focal_px=views.focal_px * scale, principal_px=views.principal_px * scale).to(device)
        same_room = rooms[torch.zeros(len(views.center), dtype=torch.long, device=device)]
        rays = ray_directions(coarse, pixel_centers(PROBE_HEIGHT, PROBE_WIDTH, device))
        hits = first_hits(same_room, num_boxes, coarse.center, rays, Kernels())
        return coarse, hits.depth_m.unflatten(1, (PROBE_HEIGHT, PROBE_WIDTH))

    (coarse_a, depth_a), (coarse_b, depth_b) = probed(views_a), probed(views_b)
    num_b = len(depth_b)
    rows = []
    for a in range(len(depth_a)):
        of_a = torch.full((num_b,), a, device=device)
        rows.append(covisibility(coarse_a[of_a], depth_a[of_a], coarse_b, depth_b, tolerance=0.1))
    return torch.stack(rows).cpu()


def _turns(rng: np.random.Generator, config: RoomMapConfig) -> Float[np.ndarray, "n 3 3"]:
    """Turns by a few degrees about any axis, and for some about the view by any angle."""
    rotvec = rng.normal(0, np.radians(config.turn_deg), (config.query_views, 3))
    any_roll = rng.random(config.query_views) < config.any_roll_share
    rotvec[any_roll] = [0, 0, 1] * rng.uniform(-np.pi, np.pi, (int(any_roll.sum()), 1))
    return np.asarray(axis_angle_to_matrix(torch.from_numpy(rotvec)))
