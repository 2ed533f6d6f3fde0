"""RoomStream: endless graphs of photographs with exact poses, rendered where the training runs and never stored."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.progress import SILENT, Progress
from relograph.rooms.covisibility import covisibility
from relograph.rooms.layout import LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, photograph, random_optics
from relograph.rooms.raycast import first_hits, pixel_centers, ray_directions
from relograph.rooms.textures import TextureAtlas, check_seed, make_atlas
from relograph.rooms.walks import scattered_views, views_of
from relograph.rooms.world import Rooms, Views

# Overlap is judged on a coarse grid of rays: a few percent of error, a thousandth of the work.
PROBE_HEIGHT, PROBE_WIDTH = 18, 24
# SevenRooms' rooms and walks have seeds that end in 0 to 5 (a missing number counts as 0), so none is a home here.
STREAM_HOMES = 6


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """What RoomStream shows."""

    image_height: int = 192
    """Pixels."""
    image_width: int = 256
    """Pixels."""
    graphs_per_batch: int = 16
    """Graphs in each batch."""
    num_nodes: int = 8
    """Images in a graph: the query and its neighbours."""
    overlap: tuple[float, float] = (0.2, 0.9)
    """Wanted share of the query's pixels that each neighbour sees; where too few have it, the nearest to it serve."""
    num_homes: int = 128
    """Homes in use at a time."""
    views_per_home: int = 96
    """Places in each home where cameras are held."""
    homes_renewed_per_batch: int = 1
    """Oldest homes that are replaced by new ones after every batch; 0 keeps the first ones."""
    focal_range: tuple[float, float] = (0.65, 1.25)
    """Focal length, as a share of the image's longer side."""
    max_distortion: float = 0.05
    """Largest first radial coefficient of the lens."""
    any_roll_share: float = 0.15
    """Share of cameras that are turned about their view by any angle; the others are held nearly upright."""
    useless_share: float = 0.0
    """Share of neighbours that see nothing of the query: what retrieval finds when it errs."""
    elsewhere_share: float = 0.0
    """Share of graphs whose query was taken in another home than its neighbours."""
    portrait_share: float = 0.0
    """Share of batches of upright photographs; they are as wide as the others are high."""
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    effects: Effects = field(default_factory=Effects)
    seed: int = 0
    """The same seed gives the same graphs."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        low, high = self.overlap
        if not 0 <= low < high <= 1:
            raise ConfigError(f"overlap must be two shares with 0 <= low < high <= 1, got {self.overlap}.")
        if not 0 < self.focal_range[0] <= self.focal_range[1]:
            raise ConfigError(f"focal_range must be two positive shares, the smaller first, got {self.focal_range}.")
        if (
            not 0 <= self.max_distortion <= 0.1
        ):  # beyond it, corners of wide images lie outside what the formula can reach
            raise ConfigError(f"max_distortion must be within 0 and 0.1, got {self.max_distortion}. A phone has 0.05.")
        for name in ("any_roll_share", "useless_share", "elsewhere_share", "portrait_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a share within 0 and 1, got {getattr(self, name)}.")
        if self.elsewhere_share and self.num_homes < 2:
            raise ConfigError("elsewhere_share needs at least 2 homes at a time. Raise num_homes.")
        if not 1 <= self.num_nodes <= self.views_per_home:
            raise ConfigError(
                f"num_nodes must be within 1 and views_per_home ({self.views_per_home}), got {self.num_nodes}."
            )
        if min(self.image_height, self.image_width, self.graphs_per_batch, self.num_homes) < 1:
            raise ConfigError("image_height, image_width, graphs_per_batch and num_homes must be at least 1.")
        if not 0 <= self.homes_renewed_per_batch <= self.num_homes:
            raise ConfigError(
                f"homes_renewed_per_batch must be within 0 and num_homes ({self.num_homes}), "
                f"got {self.homes_renewed_per_batch}."
            )


@dataclass(frozen=True)
class StreamBatch:
    """B graphs of N images, the query first."""

    images: UInt8[Tensor, "B N 3 H W"]
    depth_m: Float[Tensor, "B N H W"]
    T_world_cam: Pose
    """Batch shape [B, N], float32; the world is the home's own frame."""
    K: Float[Tensor, "B N 3 3"]
    distortion: Float[Tensor, "B N 2"]
    """Radial coefficients k1, k2 as OpenCV defines them."""
    overlap: Float[Tensor, "B N"]
    """Share of the query's pixels that each image sees; the query's own is 1."""
    home: Int[Tensor, "B"]
    """Graphs with the same number show the same home."""
    is_here: Bool[Tensor, "B"]
    """False where the query was taken in another home; its pose then means nothing."""


class RoomStream:
    """An endless iterator over `StreamBatch`. On a GPU the renderer is compiled at the first batch."""

    def __init__(
        self,
        config: StreamConfig | None = None,
        *,
        device: torch.device | str = "cpu",
        atlas: TextureAtlas | None = None,
        progress: Progress = SILENT,
    ) -> None:
        """`atlas` are the textures of all homes; without one, it is made from the seed and stays as it is."""
        self.config = config or StreamConfig()
        self.device = torch.device(device)
        self.atlas = (atlas or make_atlas(self.config.seed, progress=progress)).to(self.device)
        self._progress = progress
        self._darkroom = Darkroom.on(self.device)
        self.least_overlap = self.config.overlap[0]
        """Of neighbours from now on; a training may lower it as it goes."""

    def _new_home(self, home_idx: int) -> tuple[Rooms, Views, Tensor]:
        """Home number `home_idx` of this stream, its cameras, and how much each of them sees of each other."""
        config = self.config
        rng = np.random.default_rng([config.seed, home_idx, STREAM_HOMES])
        home = make_home(int(rng.integers(2**31)), self.atlas.range_by_family, config.layout)
        center, R_room_cam = scattered_views(home, rng, config.views_per_home, config.any_roll_share)
        longer = max(config.image_height, config.image_width)
        focal_px = rng.uniform(*config.focal_range, config.views_per_home) * longer
        distortion = rng.uniform(-1, 1, (config.views_per_home, 2)) * [
            config.max_distortion,
            0.2 * config.max_distortion,
        ]
        views = views_of(center, R_room_cam, focal_px, distortion, config.image_height, config.image_width)
        rooms, views = to_tensors(home, config.layout).to(self.device), views.to(self.device)
        return rooms, views, self._overlaps(rooms, views)

    def _overlaps(self, rooms: Rooms, views: Views) -> Float[Tensor, "M M"]:
        """Entry [a, b]: the share of view a that view b sees."""
        config, count, kernels = self.config, len(views.center), self._darkroom.kernels
        scale = torch.tensor([PROBE_WIDTH / config.image_width, PROBE_HEIGHT / config.image_height], device=self.device)
        coarse = Views(
            views.R_room_cam, views.center, views.focal_px * scale, views.principal_px * scale, views.distortion
        )
        pixels = pixel_centers(PROBE_HEIGHT, PROBE_WIDTH, self.device)
        same_room = rooms[torch.zeros(count, dtype=torch.long, device=self.device)]
        hits = first_hits(same_room, config.layout.num_boxes, views.center, ray_directions(coarse, pixels), kernels)
        depth_m = hits.depth_m.unflatten(1, (PROBE_HEIGHT, PROBE_WIDTH))
        a = torch.arange(count, device=self.device).repeat_interleave(count)
        b = torch.arange(count, device=self.device).repeat(count)
        return covisibility(coarse[a], depth_m[a], coarse[b], depth_m[b], tolerance=0.1).reshape(count, count)

    def _choose(self, overlaps: Float[Tensor, "homes M M"], generator: torch.Generator) -> "_Choice":
        """For every graph its N views, the query first, and their overlap with the query."""
        config = self.config
        graphs, nodes, views = config.graphs_per_batch, config.num_nodes, config.views_per_home

        def luck(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator).to(self.device)

        home = torch.randint(config.num_homes, (graphs,), generator=generator).to(self.device)
        query = torch.randint(views, (graphs,), generator=generator).to(self.device)
        seen = overlaps[home, query]  # [B, M]
        low, high = self.least_overlap, config.overlap[1]
        off_range = (low - seen).clamp_min(0) + (seen - high).clamp_min(0)
        # Within the wanted range luck decides; outside it the distance to the range does.
        score = luck(graphs, views) - 1e3 * off_range
        score[torch.arange(graphs, device=self.device), query] = torch.inf
        chosen = score.topk(nodes, dim=1).indices  # the query first, as its score is infinite
        if config.useless_share:
            useless = (luck(graphs, views) - 1e3 * seen).topk(nodes, dim=1).indices
            is_useless = luck(graphs, nodes) < config.useless_share
            is_useless[:, 0] = False
            chosen = torch.where(is_useless, useless, chosen)
        overlap = seen.gather(1, chosen)
        overlap[:, 0] = 1
        home_of_node = home[:, None].repeat(1, nodes)
        is_here = luck(graphs) >= config.elsewhere_share
        if config.elsewhere_share:
            other = home + torch.randint(1, config.num_homes, (graphs,), generator=generator).to(self.device)
            home_of_node[:, 0] = torch.where(is_here, home, other % config.num_homes)
            overlap[:, 1:] = torch.where(is_here[:, None], overlap[:, 1:], 0.0)
        return _Choice(home_of_node, chosen, overlap, is_here)

    def __iter__(self) -> Iterator[StreamBatch]:
        config = self.config
        generator = torch.Generator().manual_seed(config.seed)
        pool = []
        with self._progress.task("furnishing homes", total=config.num_homes) as advance:
            for home_idx in range(config.num_homes):
                pool.append(self._new_home(home_idx))
                advance(1)
        rooms = Rooms.cat([home[0] for home in pool])
        views = Views.cat([home[1] for home in pool])  # [homes x M]
        overlaps = torch.stack([home[2] for home in pool])
        next_home = config.num_homes
        while True:
            choice = self._choose(overlaps, generator)
            view_idx = (choice.home_of_node * config.views_per_home + choice.view).flatten()
            is_portrait = bool(torch.rand((), generator=generator) < config.portrait_share)
            images_in_batch = len(view_idx)
            optics = random_optics(images_in_batch, config.image_width, generator)
            # One map is photographed in one light; the query comes at another time of day.
            map_light = optics.light_gain.unflatten(0, (-1, config.num_nodes))
            map_light[:, 1:] = map_light[:, 1:2]
            upright = views[view_idx]
            batch_views = sensor_turned(upright) if is_portrait else upright
            images, depth_m = photograph(
                rooms[choice.home_of_node.flatten()],
                batch_views,
                self.atlas,
                optics.to(self.device),
                num_boxes=config.layout.num_boxes,
                height=config.image_height,
                width=config.image_width,
                effects=config.effects,
                darkroom=self._darkroom,
            )
            if is_portrait:
                images, depth_m = turned_back(images), turned_back(depth_m)
                middle_px = torch.stack(
                    [config.image_height - upright.principal_px[:, 1], upright.principal_px[:, 0]], 1
                )
                upright = replace(upright, principal_px=middle_px, focal_px=upright.focal_px.flip(1))
            yield self._as_batch(images, depth_m, upright, choice)
            for _ in range(config.homes_renewed_per_batch):
                slot = next_home % config.num_homes
                new_rooms, new_views, new_overlaps = self._new_home(next_home)
                for old, new in zip(vars(rooms).values(), vars(new_rooms).values(), strict=True):
                    old[slot] = new[0]
                for old, new in zip(vars(views).values(), vars(new_views).values(), strict=True):
                    old[slot * config.views_per_home : (slot + 1) * config.views_per_home] = new
                overlaps[slot] = new_overlaps
                next_home += 1

    def _as_batch(self, images: Tensor, depth_m: Tensor, views: Views, choice: "_Choice") -> StreamBatch:
        graphs = (self.config.graphs_per_batch, self.config.num_nodes)
        K = torch.zeros(len(views.center), 3, 3, device=self.device)
        K[:, 0, 0], K[:, 1, 1], K[:, 2, 2] = views.focal_px[:, 0], views.focal_px[:, 1], 1
        K[:, :2, 2] = views.principal_px
        return StreamBatch(
            images=images.unflatten(0, graphs),
            depth_m=depth_m.unflatten(0, graphs),
            T_world_cam=Pose(views.R_room_cam.unflatten(0, graphs), views.center.unflatten(0, graphs)),
            K=K.unflatten(0, graphs),
            distortion=views.distortion.unflatten(0, graphs),
            overlap=choice.overlap,
            home=choice.home_of_node[:, -1],
            is_here=choice.is_here,
        )


@dataclass(frozen=True)
class _Choice:
    """Which views make the graphs of a batch."""

    home_of_node: Int[Tensor, "B N"]
    view: Int[Tensor, "B N"]
    overlap: Float[Tensor, "B N"]
    is_here: Bool[Tensor, "B"]


def sensor_turned(views: Views) -> Views:
    """The same cameras held upright: their sensors are turned by 90 degrees about the view.

    So upright photographs have the size on the sensor of all others, and the renderer is not compiled for another.
    """
    right, down, ahead = views.R_room_cam.unbind(dim=-1)
    return replace(views, R_room_cam=torch.stack([down, -right, ahead], dim=-1))


def turned_back(pixels: Tensor) -> Tensor:
    """What a turned sensor saw, [..., H, W], as one holds the photograph: [..., W, H]."""
    return pixels.flip(-2).transpose(-2, -1).contiguous()
