"""RoomStream: endless graphs of photographs with exact poses, rendered where the training runs and never stored."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from relograph.compiling import compiled
from relograph.errors import ConfigError
from relograph.geometry import Pose, axis_angle_to_matrix
from relograph.progress import SILENT, Progress
from relograph.rooms.covisibility import share_seen
from relograph.rooms.homes_ahead import made_ahead
from relograph.rooms.layout import Home, LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, grey, photograph, random_optics, some_spoilt
from relograph.rooms.raycast import first_hits, of_image, pixel_centers, plus
from relograph.rooms.textures import TextureAtlas, check_seed, make_atlas
from relograph.rooms.walks import moved, scattered_views, views_of
from relograph.rooms.world import Rooms, Views, sent

# Overlap is judged on a coarse grid of rays: a few percent of error, a thousandth of the work.
PROBE_HEIGHT, PROBE_WIDTH = 18, 24
# SevenRooms' rooms and walks have seeds that end in 0 to 5 (a missing number counts as 0), so none is a home here.
STREAM_HOMES = 6
# Which photographs are grey, and which went wrong, has its own randomness: all else of a stream stays as it is without.
STREAM_GREYS, STREAM_SPOILT = 7, 8
HOMES_AT_ONCE = 8
"""That move in together in the beginning."""
BESIDE_M, BESIDE_RAD = (0.03, 0.5), (np.radians(1), np.radians(15))
"""Smallest and largest spread, along and about each axis, of a view beside another."""


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
    nearest_share: float = 0.0
    """Share of graphs whose neighbours are those that see most, as retrieval finds them; in the others luck decides."""
    num_homes: int = 128
    """Homes in use at a time."""
    views_per_home: int = 96
    """Places in each home where cameras are held."""
    graphs_per_home: int = 1
    """Graphs of a batch that are of the same home: images that see different parts of it are hard to tell apart."""
    homes_renewed_per_batch: int = 1
    """Oldest homes that are replaced by new ones after every batch; 0 keeps the first ones."""
    focal_range: tuple[float, float] = (0.65, 1.25)
    """Focal length, as a share of the image's longer side."""
    max_distortion: float = 0.05
    """Largest first radial coefficient of the lens."""
    any_roll_share: float = 0.15
    """Share of cameras that are turned about their view by any angle; the others are held nearly upright."""
    turned_share: float = 0.0
    """Share of graphs whose query's camera is turned by 90, 180 or 270 degrees about its view, as phones are."""
    grey_share: float = 0.0
    """Share of graphs with photographs without colour: the query in half of them, all in a quarter, else all others."""
    spoilt_share: float = 0.0
    """Share of photographs that went wrong: too light, dark and noisy, in light of another colour, or out of focus."""
    useless_share: float = 0.0
    """Share of neighbours that see nothing of the query: what retrieval finds when it errs."""
    elsewhere_share: float = 0.0
    """Share of graphs whose query was taken in another home than its neighbours."""
    portrait_share: float = 0.0
    """Share of batches of upright photographs; they are as wide as the others are high."""
    beside_share: float = 0.0
    """Share of views that are taken beside another, as the frames of a walk are; the others are anywhere."""
    same_lens_share: float = 0.0
    """Share of views that are taken with the one lens of their home; the others have a lens of their own."""
    unseen_graphs: int = 0
    """Graphs in each batch that are not photographed, for what is learned from geometry alone."""
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
        shares = (
            "any_roll_share",
            "turned_share",
            "grey_share",
            "spoilt_share",
            "useless_share",
            "elsewhere_share",
            "portrait_share",
            "beside_share",
            "same_lens_share",
        )
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a share within 0 and 1, got {getattr(self, name)}.")
        if self.elsewhere_share and self.num_homes < 2:
            raise ConfigError("elsewhere_share needs at least 2 homes at a time. Raise num_homes.")
        if not 1 <= self.num_nodes <= self.views_per_home:
            raise ConfigError(
                f"num_nodes must be within 1 and views_per_home ({self.views_per_home}), got {self.num_nodes}."
            )
        if min(self.image_height, self.image_width, self.graphs_per_batch, self.graphs_per_home, self.num_homes) < 1:
            raise ConfigError(
                "image_height, image_width, graphs_per_batch, graphs_per_home and num_homes must be at least 1."
            )
        if self.unseen_graphs < 0:
            raise ConfigError(f"unseen_graphs must not be negative, got {self.unseen_graphs}.")
        if not 0 <= self.homes_renewed_per_batch <= self.num_homes:
            raise ConfigError(
                f"homes_renewed_per_batch must be within 0 and num_homes ({self.num_homes}), "
                f"got {self.homes_renewed_per_batch}."
            )


@dataclass(frozen=True)
class UnseenGraphs:
    """D graphs of N cameras, the query first, that nobody photographed: what they would show, rays can tell."""

    rooms: Rooms
    """The home of each graph."""
    views: Views
    """The cameras, those of a graph together."""
    image_hw: tuple[int, int]
    num_boxes: int

    @property
    def T_world_cam(self) -> Pose:
        """Batch shape [D, N], as the other graphs' of the batch."""
        return _poses(self.views, len(self.rooms.center))

    @property
    def K(self) -> Float[Tensor, "D N 3 3"]:
        return _intrinsics(self.views, len(self.rooms.center))

    @property
    def distortion(self) -> Float[Tensor, "D N 2"]:
        distortion: Tensor = self.views.distortion.unflatten(0, (len(self.rooms.center), -1))
        return distortion


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
    """Share of the query's pixels that each image sees, both held as landscape; the query's own is 1."""
    overlap_of_images: Float[Tensor, "BN BN"]
    """Share of each image that each other one of the batch sees: none where they are of different homes."""
    home: Int[Tensor, "B"]
    """Graphs with the same number show the same home."""
    is_here: Bool[Tensor, "B"]
    """False where the query was taken in another home; its pose then means nothing."""
    unseen: UnseenGraphs | None = None
    """Where they were asked for: further graphs of the same homes."""


def furnish(config: StreamConfig, range_by_family: Mapping[str, range], home_idx: int) -> tuple[list[np.ndarray], ...]:
    """Home number `home_idx` of a stream and its cameras, as the arrays of `Rooms` and of `Views`.

    Arrays, since torch would hand tensors from process to process in files, and run out of them.
    """
    rng = np.random.default_rng([config.seed, home_idx, STREAM_HOMES])
    home = make_home(int(rng.integers(2**31)), dict(range_by_family), config.layout)
    count = config.views_per_home
    center, R_room_cam = scattered_views(home, rng, count, config.any_roll_share)
    if config.beside_share:
        center, R_room_cam = _some_beside_others(home, rng, center, R_room_cam, config.beside_share)
    focal_px = rng.uniform(*config.focal_range, count) * max(config.image_height, config.image_width)
    distortion = rng.uniform(-1, 1, (count, 2)) * [config.max_distortion, 0.2 * config.max_distortion]
    if config.same_lens_share:
        of_home = rng.random(count) < config.same_lens_share
        focal_px[of_home], distortion[of_home] = focal_px[0], distortion[0]
    views = views_of(center, R_room_cam, focal_px, distortion, config.image_height, config.image_width)
    rooms = to_tensors(home, config.layout)
    return tuple([tensor.numpy() for tensor in vars(bundle).values()] for bundle in (rooms, views))


def _some_beside_others(
    home: Home,
    rng: np.random.Generator,
    center: Float[np.ndarray, "n 3"],
    R_room_cam: Float[np.ndarray, "n 3 3"],
    share: float,
) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 3 3"]]:
    """The views, a share of them moved beside another one and turned a little from it."""
    is_beside = rng.random(len(center)) < share
    is_beside[0] = False  # there is one at least to be beside of
    parent = rng.choice(np.flatnonzero(~is_beside), int(is_beside.sum()))
    move_m, turn_rad = (
        np.exp(rng.uniform(np.log(low), np.log(high), (len(parent), 1))) for low, high in (BESIDE_M, BESIDE_RAD)
    )
    center, R_room_cam = center.copy(), R_room_cam.copy()
    turn = np.asarray(axis_angle_to_matrix(torch.from_numpy(rng.normal(0, turn_rad, (len(parent), 3)))))
    center[is_beside] = moved(home, rng, center[parent], move_m)
    R_room_cam[is_beside] = R_room_cam[parent] @ turn
    return center, R_room_cam


class RoomStream:
    """An endless iterator over `StreamBatch`. On a GPU the renderer is compiled at the first batch.

    The stream never waits for a GPU, so the next batch is asked for while the GPU still works on this one.
    """

    def __init__(
        self,
        config: StreamConfig | None = None,
        *,
        device: torch.device | str = "cpu",
        atlas: TextureAtlas | None = None,
        workers: int = 0,
        progress: Progress = SILENT,
    ) -> None:
        """`atlas` are the textures of all homes; without one, it is made from the seed and stays as it is.

        Homes are furnished ahead by as many processes as `workers` says; they are the same ones without any.
        """
        self.config = config or StreamConfig()
        self.device = torch.device(device)
        self.atlas = (atlas or make_atlas(self.config.seed, progress=progress)).to(self.device)
        self.workers = workers
        self._progress = progress
        self._darkroom = Darkroom.on(self.device)
        self._share_seen = compiled(share_seen) if self.device.type == "cuda" else share_seen
        self.least_overlap = self.config.overlap[0]
        """Of neighbours from now on; a training may lower it as it goes."""
        self.turned_share = self.config.turned_share
        """Of graphs from now on."""

    def _homes(self) -> Generator[tuple[list[np.ndarray], ...], None, None]:
        """All homes of this stream, in order."""
        return made_ahead(partial(furnish, self.config, self.atlas.range_by_family), self.workers)

    def _moved_in(self, homes: list[tuple[list[np.ndarray], ...]]) -> "_Pool":
        """Homes on the device of this stream, with how much each view sees of each other."""
        rooms = Rooms(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*(h[0] for h in homes), strict=True)))
        views = Views(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*(h[1] for h in homes), strict=True)))
        rooms, views = rooms.to(self.device), views.to(self.device)
        count = self.config.views_per_home
        # One at a time: a GPU's kernels would be compiled for every number of homes, and a CPU has little cache.
        of_each = [
            self._overlaps(rooms[home : home + 1], views[home * count : (home + 1) * count])
            for home in range(len(homes))
        ]
        return _Pool(rooms, views, torch.cat(of_each))

    def _overlaps(self, room: Rooms, views: Views) -> Float[Tensor, "1 M M"]:
        """Of one home, entry [0, a, b]: the share of view a that view b sees."""
        config, count, kernels = self.config, self.config.views_per_home, self._darkroom.kernels
        scale_x, scale_y = PROBE_WIDTH / config.image_width, PROBE_HEIGHT / config.image_height

        def scaled(pixels: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
            return torch.stack([pixels[:, 0] * scale_x, pixels[:, 1] * scale_y], dim=-1)

        coarse = replace(views, focal_px=scaled(views.focal_px), principal_px=scaled(views.principal_px))
        rays = kernels.ray_directions(coarse, pixel_centers(PROBE_HEIGHT, PROBE_WIDTH, self.device))
        view = torch.arange(count, device=self.device)
        hits = first_hits(room[torch.zeros_like(view)], config.layout.num_boxes, views.center, rays, kernels)
        depth_m = hits.depth_m.unflatten(1, (PROBE_HEIGHT, PROBE_WIDTH))
        a, b = _each(view, count), view.repeat(count)
        x, y, z = (component[a] for component in plus(of_image(views.center), rays, hits.depth_m))
        seen = self._share_seen((x, y, z), PROBE_WIDTH, coarse[b], depth_m[b], tolerance=0.1)
        return seen.reshape(1, count, count)

    def _choose(self, overlaps: Float[Tensor, "homes M M"], generator: torch.Generator) -> "_Choice":
        """For every graph its N views, the query first, and their overlap with the query."""
        config = self.config
        photographed, nodes, views = config.graphs_per_batch, config.num_nodes, config.views_per_home
        graphs = photographed + config.unseen_graphs

        def luck(*shape: int) -> Tensor:
            return sent(torch.rand(*shape, generator=generator), self.device)

        def number(low: int, high: int) -> Tensor:
            return sent(torch.randint(low, high, (graphs,), generator=generator), self.device)

        home, query = number(0, config.num_homes), number(0, views)
        home = _each(home[: -(-graphs // config.graphs_per_home)], config.graphs_per_home)[:graphs]
        seen = overlaps[home, query]  # [B, M]
        low, high = self.least_overlap, config.overlap[1]
        off_range = (low - seen).clamp_min(0) + (seen - high).clamp_min(0)
        # Within the wanted range luck decides; outside it the distance to the range does.
        score = luck(graphs, views) - 1e3 * off_range
        if config.nearest_share:
            # A little luck is left, as retrieval errs a little.
            score = torch.where(luck(graphs, 1) < config.nearest_share, score + 5 * seen, score)
        score.scatter_(1, query[:, None], torch.inf)
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
        is_here[photographed:] = True
        if config.elsewhere_share:
            other = home + number(1, config.num_homes)
            home_of_node[:, 0] = torch.where(is_here, home, other % config.num_homes)
            overlap[:, 1:] = torch.where(is_here[:, None], overlap[:, 1:], 0.0)
        return _Choice(home_of_node, home_of_node * views + chosen, overlap, is_here)

    def __iter__(self) -> Generator[StreamBatch, None, None]:
        config = self.config
        generator = torch.Generator().manual_seed(config.seed)
        greys, faults = (np.random.default_rng([config.seed, 0, use]) for use in (STREAM_GREYS, STREAM_SPOILT))
        with closing(self._homes()) as homes:
            pool = self._filled(homes)
            while True:
                yield self._batch(pool, generator, greys, faults)
                if config.homes_renewed_per_batch:
                    new = self._moved_in(list(islice(homes, config.homes_renewed_per_batch)))
                    pool.replace_oldest(new, config.views_per_home)

    def _filled(self, homes: Iterator[tuple[list[np.ndarray], ...]]) -> "_Pool":
        """The first homes of the stream."""
        pools, missing = [], self.config.num_homes
        with self._progress.task("furnishing homes", total=missing) as advance:
            while missing:
                some = list(islice(homes, min(missing, HOMES_AT_ONCE)))
                pools.append(self._moved_in(some))
                advance(len(some))
                missing -= len(some)
        return _Pool(
            Rooms.cat([pool.rooms for pool in pools]),
            Views.cat([pool.views for pool in pools]),
            torch.cat([pool.overlaps for pool in pools]),
        )

    def _batch(
        self, pool: "_Pool", generator: torch.Generator, greys: np.random.Generator, faults: np.random.Generator
    ) -> StreamBatch:
        """Graphs of the present homes."""
        config, size_hw = self.config, (self.config.image_height, self.config.image_width)
        choice = self._choose(pool.overlaps, generator)
        num_images = config.graphs_per_batch * config.num_nodes
        is_portrait = bool(torch.rand((), generator=generator) < config.portrait_share)
        optics = random_optics(num_images, config.image_width, generator)
        # One map is photographed in one light; the query comes at another time of day.
        map_light = optics.light_gain.unflatten(0, (-1, config.num_nodes))
        map_light[:, 1:] = map_light[:, 1:2]
        if config.spoilt_share:
            optics = some_spoilt(optics, config.spoilt_share, config.image_width, faults)
        views = pool.views[choice.view.flatten()]
        if self.turned_share:
            views = turned(views, self._quarter_turns(len(choice.is_here), generator))
        on_sensor = views[:num_images]
        images, depth_m = photograph(
            pool.rooms[choice.home_of_node[: config.graphs_per_batch].flatten()],
            sensor_turned(on_sensor) if is_portrait else on_sensor,
            self.atlas,
            optics.to(self.device),
            num_boxes=config.layout.num_boxes,
            height=config.image_height,
            width=config.image_width,
            effects=config.effects,
            darkroom=self._darkroom,
        )
        if config.grey_share:
            is_grey = grey_images(config.graphs_per_batch, config.num_nodes, config.grey_share, greys)
            rows = sent(torch.from_numpy(np.flatnonzero(is_grey)), self.device)
            images[rows] = grey(images[rows])
        if is_portrait:
            images, depth_m, size_hw = turned_back(images), turned_back(depth_m), (size_hw[1], size_hw[0])
            middle_px = torch.stack([config.image_height - views.principal_px[:, 1], views.principal_px[:, 0]], dim=1)
            views = replace(views, principal_px=middle_px, focal_px=views.focal_px.flip(1))
        unseen = None
        if config.unseen_graphs:
            rooms = pool.rooms[choice.home_of_node[config.graphs_per_batch :, -1]]
            unseen = UnseenGraphs(rooms, views[num_images:], size_hw, config.layout.num_boxes)
        shown = choice[: config.graphs_per_batch]
        graphs = (config.graphs_per_batch, config.num_nodes)
        return StreamBatch(
            images=images.unflatten(0, graphs),
            depth_m=depth_m.unflatten(0, graphs),
            T_world_cam=_poses(views[:num_images], graphs[0]),
            K=_intrinsics(views[:num_images], graphs[0]),
            distortion=views.distortion[:num_images].unflatten(0, graphs),
            overlap=shown.overlap,
            overlap_of_images=overlap_of_images(pool.overlaps, shown),
            home=shown.home_of_node[:, -1],
            is_here=shown.is_here,
            unseen=unseen,
        )

    def _quarter_turns(self, num_graphs: int, generator: torch.Generator) -> Int[Tensor, "BN"]:
        """By how many quarters of a turn each camera is turned: some queries are, references never."""
        quarters = torch.zeros(num_graphs, self.config.num_nodes, dtype=torch.long)
        is_turned = torch.rand(num_graphs, generator=generator) < self.turned_share
        quarters[:, 0] = is_turned * torch.randint(1, 4, (num_graphs,), generator=generator)
        return sent(quarters.flatten(), self.device)


def _each(numbers: Int[Tensor, "n"], times: int) -> Int[Tensor, "m"]:
    """Every number so many times, one after the other; unlike `repeat_interleave` it asks no GPU for a size."""
    return numbers[:, None].expand(-1, times).flatten()


def _poses(views: Views, num_graphs: int) -> Pose:
    graphs = (num_graphs, -1)
    return Pose(views.R_room_cam.unflatten(0, graphs), views.center.unflatten(0, graphs))


def _intrinsics(views: Views, num_graphs: int) -> Float[Tensor, "B N 3 3"]:
    K = torch.diag_embed(torch.cat([views.focal_px, torch.ones_like(views.focal_px[:, :1])], dim=1))
    K[:, :2, 2] = views.principal_px
    of_graphs: Tensor = K.unflatten(0, (num_graphs, -1))
    return of_graphs


@dataclass
class _Pool:
    """The homes that are shown at present."""

    rooms: Rooms
    views: Views
    """M of each home, one home after the other."""
    overlaps: Float[Tensor, "homes M M"]
    oldest: int = 0

    def replace_oldest(self, new: "_Pool", views_per_home: int) -> None:
        """Put homes in the place of those that have been here longest."""
        num_homes, count = len(self.overlaps), len(new.overlaps)
        slots = torch.arange(self.oldest, self.oldest + count, device=self.overlaps.device) % num_homes
        for kept, parts in ((self.rooms, new.rooms), (self.views, new.views)):
            per_home = 1 if kept is self.rooms else views_per_home
            for old, fresh in zip(vars(kept).values(), vars(parts).values(), strict=True):
                old.unflatten(0, (num_homes, per_home))[slots] = fresh.unflatten(0, (count, per_home))
        self.overlaps[slots] = new.overlaps
        self.oldest = (self.oldest + count) % num_homes


@dataclass(frozen=True)
class _Choice:
    """Which views make the graphs of a batch."""

    home_of_node: Int[Tensor, "B N"]
    view: Int[Tensor, "B N"]
    """Among those of all homes."""
    overlap: Float[Tensor, "B N"]
    is_here: Bool[Tensor, "B"]

    def __getitem__(self, graphs: slice) -> "_Choice":
        return _Choice(self.home_of_node[graphs], self.view[graphs], self.overlap[graphs], self.is_here[graphs])


def grey_images(num_graphs: int, num_nodes: int, share: float, rng: np.random.Generator) -> Bool[np.ndarray, "B N"]:
    """Which images have no colour, where a share of the graphs has such: the query of half of those, all of a quarter.

    In the last quarter it is all but the query. What is commonest is a photo by an old or a plain camera in a map of
    phone photos; the maps of robots are grey, too.
    """
    has_greys, kind = rng.random(num_graphs) < share, rng.random(num_graphs)
    is_grey = np.empty((num_graphs, num_nodes), dtype=bool)
    is_grey[:, 0] = has_greys & (kind < 0.75)
    is_grey[:, 1:] = (has_greys & (kind >= 0.5))[:, None]
    return is_grey


def overlap_of_images(overlaps: Float[Tensor, "homes M M"], choice: _Choice) -> Float[Tensor, "BN BN"]:
    """Share of each chosen view that each other one sees."""
    home, view = choice.home_of_node.flatten(), choice.view.flatten() % overlaps.shape[1]
    return torch.where(home[:, None] == home, overlaps[home[:, None], view[:, None], view], 0.0)


def turned(views: Views, quarters: Int[Tensor, "n"]) -> Views:
    """The same cameras turned about their view by so many quarters of a turn, clockwise as they see it."""
    right, down, ahead = views.R_room_cam.unbind(dim=-1)
    # Rounded, and no product of matrices: a GPU may shorten its numbers, and poses are exact.
    cos, sin = (turn(quarters * (torch.pi / 2)).round()[:, None] for turn in (torch.cos, torch.sin))
    return replace(views, R_room_cam=torch.stack([cos * right + sin * down, cos * down - sin * right, ahead], dim=-1))


def sensor_turned(views: Views) -> Views:
    """The same cameras held upright: their sensors are turned by 90 degrees about the view.

    So upright photographs have the size on the sensor of all others, and the renderer is not compiled for another.
    """
    return turned(views, torch.ones_like(views.center[:, 0], dtype=torch.long))


def turned_back(pixels: Tensor) -> Tensor:
    """What a turned sensor saw, [..., H, W], as one holds the photograph: [..., W, H]."""
    return pixels.flip(-2).transpose(-2, -1).contiguous()
