"""The ray caster: rooms and cameras in, linear colour and depth out, in plain PyTorch on any device.

Every quantity of a ray is a tensor [B, P] (images, pixels) and a vector is three of them. The solids are met in groups,
as [B, G, P]. On a CPU a group is all solids near the rays of one small tile of the image, so that its tensors fit the
cache. On a GPU `torch.compile` turns each group into one kernel in which a thread follows one ray and no such tensor is
stored: as many solids as a thread has registers for, since with more it would keep them in slow memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.compiling import compiled
from relograph.rooms.textures import NUM_MIP_LEVELS, TEXTURE_SIZE, TextureAtlas, one_thread
from relograph.rooms.world import Rooms, Views

NEAR_M = 0.02
FAR_M = 1e6
GPU_GROUP_SIZE = 8
"""About: groups of a kind are as equal as they can be, since a group of one reads as many rays as a group of eight."""
# Side of the square of pixels worked on at once on a CPU.
CPU_TILE = 80

Vector = tuple[Tensor, Tensor, Tensor]
"""x, y and z of the same shape."""


@dataclass(frozen=True)
class Hits:
    """Where the rays of P pixels of B images end."""

    depth_m: Float[Tensor, "B P"]
    """z along the optical axis."""
    solid_idx: Int[Tensor, "B P"]


def dot(a: Vector, b: Vector) -> Tensor:
    """Inner product."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def plus(a: Vector, b: Vector, factor: Tensor | float = 1.0) -> Vector:
    """a + factor * b."""
    return a[0] + factor * b[0], a[1] + factor * b[1], a[2] + factor * b[2]


def unit_length(a: Vector) -> Vector:
    """The same direction, of length one."""
    scale = torch.rsqrt(dot(a, a) + 1e-12)
    return a[0] * scale, a[1] * scale, a[2] * scale


def of_image(vectors: Float[Tensor, "B 3"]) -> Vector:
    """One vector for each image, ready to meet its pixels: three [B, 1]."""
    return vectors[:, 0:1], vectors[:, 1:2], vectors[:, 2:3]


def pixel_centers(height: int, width: int, device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """xy of every pixel's centre, row by row; the image's corner is (0, 0), so the first centre is (0.5, 0.5)."""
    pixel = torch.arange(height * width, device=device)
    return torch.stack([pixel % width + 0.5, pixel // width + 0.5], dim=-1)


def ray_directions(views: Views, pixels_xy: Float[Tensor, "P 2"]) -> Vector:
    """Directions in the room frame whose z in the camera is 1, so that a length along them is a depth."""
    x_distorted = (pixels_xy[:, 0] - views.principal_px[:, 0:1]) / views.focal_px[:, 0:1]  # [B, P]
    y_distorted = (pixels_xy[:, 1] - views.principal_px[:, 1:2]) / views.focal_px[:, 1:2]
    r2_distorted = x_distorted * x_distorted + y_distorted * y_distorted
    k1, k2 = views.distortion[:, 0:1], views.distortion[:, 1:2]
    # The undistorted radius is `shrink` times the distorted: shrink + a shrink^3 + b shrink^5 = 1, by Newton's steps.
    a, b = k1 * r2_distorted, k2 * r2_distorted * r2_distorted
    shrink = torch.ones_like(r2_distorted)
    for _ in range(4):
        s2 = shrink * shrink
        shrink = shrink - (shrink * (1 + s2 * (a + s2 * b)) - 1) / (1 + s2 * (3 * a + s2 * 5 * b))
    x, y = x_distorted * shrink, y_distorted * shrink
    right, down, forward = (of_image(views.R_room_cam[:, :, axis]) for axis in range(3))
    return plus(plus(forward, right, x), down, y)


@dataclass(frozen=True)
class Solids:
    """A few solids of each room, all boxes or all cylinders, as one origin of rays sees them."""

    unit_from_room: Float[Tensor, "B G 3 3"]
    start: Float[Tensor, "B G 3"]
    """The origin in the unit frame of each solid."""
    thickness_m: Float[Tensor, "B G"]
    casts_shadow: Float[Tensor, "B G"]
    solid_idx: Int[Tensor, "G"]


def groups_of_solids(
    rooms: Rooms, num_boxes: int, origin: Float[Tensor, "B 3"], where_rays_end: Callable[[], Vector]
) -> Iterator[tuple[bool, Solids]]:
    """The solids that rays from `origin` may meet, in groups, and whether a group is of cylinders.

    A GPU gets all of them, so that its kernels always have the same shapes. A CPU asks where the rays end, and is
    spared the solids that lie apart from the box around the rays: most of them.
    """
    start = (rooms.unit_from_room * (origin[:, None] - rooms.center)[:, :, None, :]).sum(dim=-1)  # [B, K, 3]
    solid_idx = torch.arange(start.shape[1], device=start.device)
    if origin.is_cpu:
        ends = where_rays_end()
        low = torch.stack([end.amin(dim=1) for end in ends], dim=-1).minimum(origin)[:, None]  # [B, 1, 3]
        high = torch.stack([end.amax(dim=1) for end in ends], dim=-1).maximum(origin)[:, None]
        apart = ((rooms.center - rooms.reach_m > high) | (rooms.center + rooms.reach_m < low)).any(dim=-1)
        solid_idx = solid_idx[~apart.all(dim=0)]
        num_boxes = int((solid_idx < num_boxes).sum())
    for are_cylinders, kind in ((False, solid_idx[:num_boxes]), (True, solid_idx[num_boxes:])):
        for group in kind.tensor_split(1 if origin.is_cpu else max(1, round(len(kind) / GPU_GROUP_SIZE))):
            if len(group) > 0:
                solids = Solids(
                    rooms.unit_from_room[:, group],
                    start[:, group],
                    rooms.thickness_m[:, group],
                    rooms.casts_shadow[:, group],
                    group,
                )
                yield are_cylinders, solids


def intervals(
    solids: Solids, are_cylinders: bool, directions: Vector
) -> tuple[Float[Tensor, "B G P"], Float[Tensor, "B G P"]]:
    """Where rays enter and leave each solid of a group; enter > leave where they miss it.

    A box is the intersection of three slabs, a cylinder of a slab and a disc's shadow, so both cut out one interval.
    """
    direction = (directions[0][:, None], directions[1][:, None], directions[2][:, None])  # [B, 1, P]

    def along(axis: int) -> Float[Tensor, "B G P"]:
        row = solids.unit_from_room[:, :, axis, :, None]  # [B, G, 3, 1]
        return dot((row[:, :, 0], row[:, :, 1], row[:, :, 2]), direction)

    def slab(axis: int) -> tuple[Tensor, Tensor]:
        # Rays along a face are common, since homes stand square; a hair's breadth off, they need no case of their own.
        inverse = 1 / (along(axis) + 1e-9)
        middle, half = solids.start[:, :, axis, None] * inverse, inverse.abs()
        return -middle - half, half - middle

    enter, leave = slab(2)
    if not are_cylinders:
        for axis in (0, 1):
            enter_axis, leave_axis = slab(axis)
            enter, leave = torch.maximum(enter, enter_axis), torch.minimum(leave, leave_axis)
        return enter, leave
    x, y = along(0), along(1)
    start_x, start_y = solids.start[:, :, 0, None], solids.start[:, :, 1, None]
    inverse = 1 / (x * x + y * y + 1e-12)
    middle = (x * start_x + y * start_y) * inverse
    half2 = middle * middle - (start_x * start_x + start_y * start_y - 1) * inverse
    # A missed disc gets an interval of negative length.
    half = torch.where(half2 > 0, half2.clamp_min(1e-20).sqrt(), -1.0)
    return torch.maximum(enter, -middle - half), torch.minimum(leave, half - middle)


def nearest_of(solids: Solids, are_cylinders: bool, directions: Vector, best: Int[Tensor, "B P"]) -> Int[Tensor, "B P"]:
    """The nearer of `best` and what the rays meet of these solids: a distance and, in the last byte, whose it is.

    The bits of positive floats are ordered as the floats are, so the smallest number has the smallest distance.
    """
    enter, leave = intervals(solids, are_cylinders, directions)
    distance = torch.where((enter < leave) & (enter > NEAR_M), enter, FAR_M)
    packed = (distance.view(torch.int32).to(torch.int64) << 8) | solids.solid_idx[:, None]
    return torch.minimum(best, packed.amin(dim=1))


def where_rays_leave_the_shell(shell: Solids, directions: Vector) -> Float[Tensor, "B P"]:
    """Distance to the walls, the floor or the ceiling, from inside."""
    return intervals(shell, False, directions)[1][:, 0]


def cover_of(
    solids: Solids,
    are_cylinders: bool,
    light: Float[Tensor, "B 3"],
    light_radius_m: Float[Tensor, "B"],
    points: Vector,
    most: Float[Tensor, "B P"],
) -> Float[Tensor, "B P"]:
    """The larger of `most` and how far these solids cover a light, seen from points: -0.5 not at all, 0.5 wholly.

    One ray from the light's middle to the point. How deep it cuts into a solid, against the width of the half shadow
    there, stands in for many rays to all parts of the light.
    """
    to_points = plus(points, of_image(light), -1.0)
    distance_m = dot(to_points, to_points).sqrt()[:, None]  # [B, 1, P]
    radius_m = light_radius_m[:, None, None]
    enter, leave = intervals(solids, are_cylinders, to_points)
    # A half shadow grows from nothing at the caster to the light's own size where the caster is half way,
    # and is never wider than the caster is thick: a thin table top does not glow.
    half_shadow_m = torch.minimum(radius_m / enter.clamp(0.05, 1) - radius_m, solids.thickness_m[:, :, None])
    # The way through the solid, up to the point less its own surface.
    cut_m = (leave.clamp_max(0.998) - enter.clamp_min(0)) * distance_m
    cover = cut_m / (half_shadow_m + 1e-3 * distance_m)
    cover = torch.where(solids.casts_shadow[:, :, None] > 0, cover, -1.0)
    return torch.maximum(most, cover.amax(dim=1))


def sample_texture(
    texels: Int[Tensor, "num_texels"],
    num_textures: int,
    texture: Int[Tensor, "B P"],
    u: Float[Tensor, "B P"],
    v: Float[Tensor, "B P"],
    texels_per_pixel: Float[Tensor, "B P"],
) -> Vector:
    """Linear colour of repeating textures at u, v (in periods), filtered to the pixel's footprint (trilinear)."""
    level = texels_per_pixel.clamp_min(1).log2().clamp_max(NUM_MIP_LEVELS - 1.001)
    low = level.floor()
    mip, between = low.to(torch.int32), level - low
    color = [torch.zeros_like(u) for _ in range(3)]
    for coarser in (0, 1):
        size = TEXTURE_SIZE >> (mip + coarser)
        # Levels stand one after another, each a quarter of the last: 4/3 (256^2 - size^2) texels come before this one.
        level_start = (TEXTURE_SIZE * TEXTURE_SIZE - size * size) // 3 * 4 * num_textures
        first_texel = level_start + texture * size * size
        x, y = u * size - 0.5, v * size - 0.5
        column, row = x.floor(), y.floor()
        weight_x, weight_y = x - column, y - row
        column, row = column.to(torch.int32), row.to(torch.int32)
        weight_level = between if coarser else 1 - between
        for dy in (0, 1):
            for dx in (0, 1):
                # The size is a power of two, so `& (size - 1)` wraps negative numbers too.
                texel = texels[first_texel + ((row + dy) & (size - 1)) * size + ((column + dx) & (size - 1))]
                weight = weight_level * (weight_x if dx else 1 - weight_x) * (weight_y if dy else 1 - weight_y)
                for channel in range(3):
                    color[channel] = color[channel] + weight * ((texel >> (8 * channel)) & 255)
    # A square is close enough to the sRGB curve for colours that were invented in the first place.
    red, green, blue = ((channel / 255).square() for channel in color)
    return red, green, blue


def shade(
    rooms: Rooms,
    views: Views,
    atlas: TextureAtlas,
    light_gain: Float[Tensor, "B L"],
    directions: Vector,
    points: Vector,
    hits: Hits,
    visibility: list[Float[Tensor, "B P"]],
) -> Vector:
    """Linear colour of the surfaces that the rays met; `visibility` is each light's, or empty to leave shadows out."""
    solid = hits.solid_idx

    def pick(values: Float[Tensor, "B K"]) -> Float[Tensor, "B P"]:
        return values.gather(1, solid)

    def pick_vector(values: Float[Tensor, "B K 3"]) -> Vector:
        return pick(values[..., 0]), pick(values[..., 1]), pick(values[..., 2])

    axes = [pick_vector(rooms.unit_from_room[:, :, axis]) for axis in range(3)]
    from_center = plus(points, pick_vector(rooms.center), -1.0)
    x, y, z = (dot(axis, from_center) for axis in axes)
    is_cylinder = pick(rooms.is_cylinder) > 0
    on_side = is_cylinder & (z.abs() < 0.9999)
    on_z = torch.where(is_cylinder, ~on_side, (z.abs() >= x.abs()) & (z.abs() >= y.abs()))
    on_x = ~is_cylinder & ~on_z & (x.abs() >= y.abs())
    on_y = ~is_cylinder & ~on_z & ~on_x
    is_shell = solid == 0
    sign = torch.where(torch.where(on_x, x, torch.where(on_y, y, z)) > 0, 1.0, -1.0)

    weight_x = torch.where(on_side, x, torch.where(on_x, sign, 0.0))
    weight_y = torch.where(on_side, y, torch.where(on_y, sign, 0.0))
    weight_z = torch.where(on_z, sign, 0.0)
    seen_from = torch.where(is_shell, -1.0, 1.0)  # the shell is seen from inside
    normal = tuple(
        seen_from * (weight_x * axes[0][i] + weight_y * axes[1][i] + weight_z * axes[2][i]) for i in range(3)
    )
    normal = unit_length((normal[0], normal[1], normal[2]))

    # Texture coordinates: u along the face so that print reads from outside, v down the wall.
    scale = pick_vector(rooms.texture_scale)
    offset = pick_vector(rooms.texture_offset)
    handed = sign * seen_from
    u = torch.where(on_x, handed * y * scale[1], torch.where(on_y, -handed * x * scale[0], x * scale[0]))
    u = torch.where(on_side, torch.atan2(y, x) * scale[0], u) + offset[0] + torch.where(on_x, offset[2], 0.0)
    v = -torch.where(on_z, y * scale[1], z * scale[2]) + offset[1]
    face = torch.where(on_x | on_side, 0, torch.where(on_y, 2, 4)) + ((sign > 0) & ~on_side)
    texture = rooms.face_texture.flatten(1).gather(1, solid * 6 + face)

    # One pixel covers depth / focal metres, more where the surface is seen at a slant.
    to_camera = unit_length((-directions[0], -directions[1], -directions[2]))
    facing = dot(normal, to_camera).abs().clamp_min(0.15)
    along_x, along_y, along_z = (dot(axis, axis).sqrt() * scale[i] for i, axis in enumerate(axes))
    periods_per_m = torch.maximum(torch.where(on_x, 0.0, along_x), torch.where(on_y, 0.0, along_y))
    periods_per_m = torch.maximum(periods_per_m, torch.where(on_z, 0.0, along_z))
    footprint_m = hits.depth_m / views.focal_px[:, 0:1] * torch.rsqrt(facing)
    textured = sample_texture(
        atlas.texels, atlas.num_textures, texture, u, v, footprint_m * periods_per_m * TEXTURE_SIZE
    )
    tint, contrast = pick_vector(rooms.tint), pick(rooms.contrast)
    albedo = [tint[i] + (textured[i] - tint[i]) * contrast for i in range(3)]

    # Light from everywhere, less of it in the corners of the room.
    ambient = 0.8 + 0.2 * normal[2]
    for i in range(3):
        half_m = 1 / rooms.unit_from_room[:, 0, i, i, None]  # the shell stands square in its room
        to_wall_m = (half_m - (points[i] - rooms.center[:, 0, i, None]).abs()).clamp_min(0)
        ambient = ambient * torch.where(normal[i].abs() < 0.7, 1 - 0.45 * torch.exp(-to_wall_m / 0.35), 1.0)
    light = [rooms.ambient_rgb[:, i, None] * ambient + pick(rooms.emission) for i in range(3)]
    shine = [torch.zeros_like(ambient) for _ in range(3)]
    for idx in range(rooms.light_position.shape[1]):
        to_light = plus(of_image(rooms.light_position[:, idx]), points, -1.0)
        distance2 = dot(to_light, to_light)
        to_light = unit_length(to_light)
        reaching = light_gain[:, idx, None] / (distance2 + rooms.light_radius_m[:, idx, None].square() + 0.3)
        if visibility:
            reaching = reaching * visibility[idx]
        diffuse = reaching * dot(normal, to_light).clamp_min(0)
        highlight = reaching * dot(normal, unit_length(plus(to_light, to_camera))).clamp_min(0) ** 40
        for i in range(3):
            light[i] = light[i] + rooms.light_rgb[:, idx, i, None] * diffuse
            shine[i] = shine[i] + rooms.light_rgb[:, idx, i, None] * highlight
    gloss = pick(rooms.gloss)
    red, green, blue = (albedo[i] * light[i] + gloss * shine[i] for i in range(3))
    return red, green, blue


@dataclass(frozen=True)
class Kernels:
    """The steps of the ray caster, as plain functions or compiled ones."""

    ray_directions: Callable[..., Vector] = ray_directions
    where_rays_leave_the_shell: Callable[..., Tensor] = where_rays_leave_the_shell
    nearest_of: Callable[..., Tensor] = nearest_of
    cover_of: Callable[..., Tensor] = cover_of
    shade: Callable[..., Vector] = shade

    @classmethod
    def on(cls, device: torch.device | str) -> "Kernels":
        """Compiled for a GPU, as they are for a CPU, where a compiler may not be installed."""
        return _compiled_kernels() if torch.device(device).type == "cuda" else cls()


@cache  # whoever follows rays shares them, and what they were compiled for
def _compiled_kernels() -> Kernels:
    # One kernel a group: the reduction over its solids is written out, and nothing on the way to it is stored.
    in_one_kernel = {
        "unroll_reductions_threshold": 2 * GPU_GROUP_SIZE,
        "realize_reads_threshold": 10**6,
        "realize_opcount_threshold": 10**6,
        "realize_acc_reads_threshold": 10**6,
    }
    return Kernels(
        compiled(ray_directions),
        compiled(where_rays_leave_the_shell),
        compiled(nearest_of, **in_one_kernel),
        compiled(cover_of, **in_one_kernel),
        compiled(shade),
    )


def tile_order(height: int, width: int) -> Int[Tensor, "P"]:
    """The pixels tile by tile: the rays of a tile stay close together, so that most solids lie apart from them."""
    pixel = torch.arange(height * width)
    y, x = pixel // width, pixel % width
    tiles_across = (width + CPU_TILE - 1) // CPU_TILE
    return (((y // CPU_TILE) * tiles_across + x // CPU_TILE) * height * width + pixel).argsort()


def in_pieces(function: Callable[[Vector], Tensor], vectors: Vector) -> Tensor:
    """`function` of all pixels at once on a GPU, piece by piece on a CPU."""
    if not vectors[0].is_cpu:
        return function(vectors)
    pieces = zip(*(component.split(CPU_TILE * CPU_TILE, dim=1) for component in vectors), strict=True)
    return torch.cat([function(piece) for piece in pieces], dim=1)


def first_hits(
    rooms: Rooms, num_boxes: int, origin: Float[Tensor, "B 3"], directions: Vector, kernels: Kernels
) -> Hits:
    """The nearest surface in front of each ray."""
    shell = Solids(
        rooms.unit_from_room[:, :1],
        (rooms.unit_from_room[:, :1] * (origin[:, None] - rooms.center[:, :1])[:, :, None, :]).sum(dim=-1),
        rooms.thickness_m[:, :1],
        rooms.casts_shadow[:, :1],
        torch.zeros(1, dtype=torch.long, device=origin.device),
    )

    def nearest(directions: Vector) -> Tensor:
        leave = kernels.where_rays_leave_the_shell(shell, directions)
        best = leave.view(torch.int32).to(torch.int64) << 8  # as `nearest_of` packs it: the shell is solid 0

        def where_rays_end() -> Vector:
            return plus(of_image(origin), directions, leave)

        for are_cylinders, solids in groups_of_solids(rooms, num_boxes, origin, where_rays_end):
            best = kernels.nearest_of(solids, are_cylinders, directions, best)
        return best

    packed = in_pieces(nearest, directions)
    return Hits((packed >> 8).to(torch.int32).view(torch.float32), packed & 255)


def light_visibility(
    rooms: Rooms, num_boxes: int, light: int, points: Vector, kernels: Kernels
) -> Float[Tensor, "B P"]:
    """Share of a light that reaches each point, within [0, 1], with soft edges."""
    origin, radius_m = rooms.light_position[:, light], rooms.light_radius_m[:, light]

    def cover(points: Vector) -> Tensor:
        most = torch.full_like(points[0], -1.0)
        for are_cylinders, solids in groups_of_solids(rooms, num_boxes, origin, lambda: points):
            most = kernels.cover_of(solids, are_cylinders, origin, radius_m, points, most)
        return most

    return 0.5 - in_pieces(cover, points).clamp(-0.5, 0.5)


def render(
    rooms: Rooms,
    views: Views,
    atlas: TextureAtlas,
    *,
    num_boxes: int,
    light_gain: Float[Tensor, "B L"],
    height: int,
    width: int,
    shadows: bool,
    kernels: Kernels,
) -> tuple[Float[Tensor, "B 3 H W"], Float[Tensor, "B H W"]]:
    """Linear colour and depth in metres of one view in each room."""
    if views.center.is_cpu and len(views.center) > 1:  # a CPU does better with one image at a time
        with one_thread():
            images = [
                render(
                    rooms[one],
                    views[one],
                    atlas,
                    num_boxes=num_boxes,
                    light_gain=light_gain[one],
                    height=height,
                    width=width,
                    shadows=shadows,
                    kernels=kernels,
                )
                for one in (slice(b, b + 1) for b in range(len(views.center)))
            ]
        return torch.cat([color for color, _ in images]), torch.cat([depth_m for _, depth_m in images])
    pixels_xy = pixel_centers(height, width, views.center.device)
    order = tile_order(height, width) if views.center.is_cpu else None
    directions = kernels.ray_directions(views, pixels_xy if order is None else pixels_xy[order])
    hits = first_hits(rooms, num_boxes, views.center, directions, kernels)
    points = plus(of_image(views.center), directions, hits.depth_m)
    lights = range(rooms.light_position.shape[1]) if shadows else ()
    visibility = [light_visibility(rooms, num_boxes, light, points, kernels) for light in lights]
    color = kernels.shade(rooms, views, atlas, light_gain, directions, points, hits, visibility)
    image = torch.stack([*color, hits.depth_m], dim=1)  # [B, 4, P]
    if order is not None:
        image = image[:, :, order.argsort()]
    image = image.unflatten(2, (height, width))
    return image[:, :3], image[:, 3]
