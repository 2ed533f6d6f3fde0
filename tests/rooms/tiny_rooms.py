"""Rooms small enough to reckon by hand, and what the tests of rooms do with them again and again."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relograph.geometry import Camera
from relograph.rooms.furniture import Material, Solid
from relograph.rooms.layout import Home, LayoutConfig, Rectangle, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, Optics, photograph
from relograph.rooms.raycast import Hits, Kernels, first_hits, pixel_centers, ray_directions, render
from relograph.rooms.textures import FAMILY_SIZES, TEXTURE_SIZE, TextureAtlas, pack_texels
from relograph.rooms.walks import scattered_views, views_of
from relograph.rooms.world import NUM_LIGHTS, Rooms, Views

HEIGHT, WIDTH = 24, 32
LAYOUT = LayoutConfig()
SIZE_M = np.array([4.0, 3.0, 2.5])
"""Of the room that is reckoned by hand."""
GRAY = Material((0,), (0.5, 0.5, 0.5), 0.0, 1.0)
"""Sends half the light back; nothing of its texture shows."""
RANGE_BY_FAMILY = {family: range(2 * idx, 2 * idx + 2) for idx, family in enumerate(FAMILY_SIZES)}


def tiny_atlas() -> TextureAtlas:
    """Two textures of random squares for each family, made in no time."""
    colors = np.random.default_rng(0).integers(0, 256, (2 * len(FAMILY_SIZES), 3, 16, 16), dtype=np.uint8)
    repeat = TEXTURE_SIZE // 16
    tiles_rgb = torch.from_numpy(colors).repeat_interleave(repeat, dim=2).repeat_interleave(repeat, dim=3)
    return TextureAtlas(pack_texels(tiles_rgb), len(tiles_rgb), RANGE_BY_FAMILY)


def home_of(
    *solids: Solid,
    light_position: Sequence[float] = (2.0, 1.5, 2.3),
    light_radius_m: float = 0.1,
    light_rgb: Sequence[float] = (3.0, 3.0, 3.0),
) -> Home:
    """A grey room of `SIZE_M` that holds the solids and one lamp; the other lights are dark."""
    lights = np.tile(light_position, (NUM_LIGHTS, 1))
    colors = np.zeros((NUM_LIGHTS, 3))
    colors[0] = light_rgb
    cells = np.zeros((40, 30), dtype=bool)
    cells[5:-5, 5:-5] = True
    return Home(
        seed=0,
        solids=[Solid(SIZE_M / 2, SIZE_M / 2, GRAY), *solids],
        rooms=[Rectangle(0.0, 4.0, 0.0, 3.0)],
        size_m=SIZE_M,
        light_position=lights,
        light_rgb=colors,
        light_radius_m=np.full(NUM_LIGHTS, light_radius_m),
        ambient_rgb=np.full(3, 0.3),
        walkable=cells,
    )


def rooms_of(*solids: Solid, **light: float | Sequence[float]) -> Rooms:
    """The same for the ray caster."""
    return to_tensors(home_of(*solids, **light), LAYOUT)


def looking(
    center: Sequence[float],
    forward: Sequence[float],
    *,
    up: Sequence[float] = (0.0, 0.0, 1.0),
    focal_px: float = 16.0,
    principal_px: Sequence[float] = (WIDTH / 2, HEIGHT / 2),
    distortion: Sequence[float] = (0.0, 0.0),
) -> Views:
    """One upright camera; with the usual focal length its image is 90 degrees wide."""
    z = np.array(forward, dtype=float) / np.linalg.norm(forward)
    x = np.cross(z, up) / np.linalg.norm(np.cross(z, up))
    R_room_cam = np.stack([x, np.cross(z, x), z], axis=1)
    return Views(
        *(
            torch.tensor(np.asarray(values), dtype=torch.float32)[None]
            for values in (R_room_cam, center, [focal_px, focal_px], principal_px, distortion)
        )
    )


def handheld_views(home: Home, count: int, *, seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Views:
    """Cameras with lenses of many kinds, held somewhere in the home."""
    rng = np.random.default_rng(seed)
    center, R_room_cam = scattered_views(home, rng, count)
    focal_px = rng.uniform(0.65, 1.25, count) * width
    return views_of(center, R_room_cam, focal_px, rng.uniform(-0.05, 0.05, (count, 2)) * [1, 0.2], height, width)


def camera_of(views: Views, height: int = HEIGHT, width: int = WIDTH) -> Camera:
    """The first of the cameras, as the geometry of relograph knows it."""
    (fx, fy), (cx, cy), (k1, k2) = (
        values[0].double().tolist() for values in (views.focal_px, views.principal_px, views.distortion)
    )
    return Camera(width, height, fx, fy, cx, cy, distortion=(k1, k2, 0.0, 0.0), model="opencv")


def unprojected(views: Views, depth_m: Tensor) -> np.ndarray:
    """Points of the room that the first view sees at its pixels, float64, by the camera model of the package."""
    height, width = depth_m.shape[-2:]
    camera = camera_of(views, height, width)
    in_camera = camera.unproject(camera.pixel_grid()) * depth_m.reshape(height, width, 1).double()
    return in_camera.reshape(-1, 3).numpy() @ views.R_room_cam[0].double().numpy().T + views.center[0].double().numpy()


def cast(rooms: Rooms, views: Views, height: int = HEIGHT, width: int = WIDTH, layout: LayoutConfig = LAYOUT) -> Hits:
    """What the pixels of each view meet in its room."""
    directions = ray_directions(views, pixel_centers(height, width))
    return first_hits(rooms, layout.num_boxes, views.center, directions, Kernels())


def perfect_optics(count: int = 1) -> Optics:
    """A lens and a sensor without any fault, in the light as the home has it."""
    ones, zeros = torch.ones(count), torch.zeros(count)
    return Optics(
        light_gain=torch.ones(count, NUM_LIGHTS),
        exposure=ones,
        white_balance=torch.ones(count, 3),
        vignetting=zeros,
        motion_px=torch.zeros(count, 2),
        focus_m=2 * ones,
        blur_px=zeros,
        noise=zeros,
        noise_seed=torch.zeros(count, dtype=torch.int32),
    )


def shoot(
    rooms: Rooms,
    views: Views,
    atlas: TextureAtlas,
    optics: Optics | None = None,
    effects: Effects | None = None,
    *,
    height: int = HEIGHT,
    width: int = WIDTH,
) -> tuple[Tensor, Tensor]:
    """Photographs [B, 3, H, W] and depths [B, H, W]; without optics and effects: plain shading."""
    return photograph(
        rooms,
        views,
        atlas,
        optics or perfect_optics(len(views.center)),
        num_boxes=LAYOUT.num_boxes,
        height=height,
        width=width,
        effects=effects or Effects.none(),
        darkroom=Darkroom.on("cpu"),
    )


def light_of(
    rooms: Rooms,
    views: Views,
    atlas: TextureAtlas,
    *,
    shadows: bool = False,
    light_gain: Sequence[float] = (1.0, 1.0, 1.0),
) -> Tensor:
    """Linear colour [H, W, 3] of what one camera sees."""
    color, _ = render(
        rooms,
        views,
        atlas,
        num_boxes=LAYOUT.num_boxes,
        light_gain=torch.tensor([light_gain]),
        height=HEIGHT,
        width=WIDTH,
        shadows=shadows,
        kernels=Kernels(),
    )
    return color[0].permute(1, 2, 0)
