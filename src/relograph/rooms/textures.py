"""Procedural textures, and photographs where the user brings some, in one atlas with mip levels.

Every texture is a seamless 256 x 256 RGB tile. The random choices are drawn on the CPU from one seed and the pixels are
computed on whatever device is asked for, so a seed means the same textures everywhere.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageOps
from torch import Generator, Tensor
from torch.nn import functional as F

from relograph.errors import ConfigError, DatasetError
from relograph.progress import SILENT, Progress
from relograph.scenes.frame import FileSource, list_zip
from relograph.scenes.images import decode_image

TEXTURE_SIZE = 256
NUM_MIP_LEVELS = 9  # 256, 128, ..., 1

# How many of each family an atlas holds. Layouts ask for a family, never for a number.
FAMILY_SIZES = {
    "leaves": 20,
    "wood": 12,
    "tiles": 10,
    "fabric": 14,
    "glyphs": 12,
    "books": 8,
    "plaster": 8,
    "stone": 8,
    "gradient": 4,
    "painting": 12,
    "outside": 6,
}

PHOTOGRAPH_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
Split = Literal["train", "validation", "test"]
"""Which photographs: what a network is trained on must not hang in the rooms that it is tested in."""

# Tiles whose mip levels are made at a time: a thousand photographs at once would take gigabytes.
TILES_AT_A_TIME = 64

Tile = Float[Tensor, "3 256 256"]


def uniform(generator: Generator, low: float = 0.0, high: float = 1.0) -> float:
    """One number within [low, high)."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def random_colors(generator: Generator, count: int, saturation: float = 0.5) -> Float[Tensor, "count 3"]:
    """Colours of one palette: a few hues, varied in brightness, as things that were bought together."""
    hue = uniform(generator) + 0.12 * torch.randn(count, generator=generator)
    hue = torch.where(torch.rand(count, generator=generator) < 0.25, torch.rand(count, generator=generator), hue)
    phase = torch.tensor([0.0, 1.0, 2.0]) / 3.0
    pure = 0.5 + 0.5 * torch.cos(2 * math.pi * (hue[:, None] + phase))
    value = 0.1 + 0.85 * torch.rand(count, 1, generator=generator)
    amount = saturation * torch.rand(count, 1, generator=generator)
    return (value * (1 - amount + amount * pure)).clamp(0.02, 0.98)


def smooth_noise(generator: Generator, device: torch.device, cells_x: int, cells_y: int) -> Float[Tensor, "256 256"]:
    """Seamless noise within about [-1, 1] with `cells_x` by `cells_y` bumps."""
    grid = 2 * torch.rand(1, 1, cells_y, cells_x, generator=generator).to(device) - 1
    grid = F.pad(grid, (2, 2, 2, 2), mode="circular") if min(cells_x, cells_y) >= 2 else grid.repeat(1, 1, 5, 5)
    pad_x, pad_y = (2, 2) if min(cells_x, cells_y) >= 2 else (2 * cells_x, 2 * cells_y)
    y = (torch.arange(TEXTURE_SIZE, device=device) + 0.5) / TEXTURE_SIZE * cells_y + pad_y
    x = (torch.arange(TEXTURE_SIZE, device=device) + 0.5) / TEXTURE_SIZE * cells_x + pad_x
    at_y, at_x = torch.meshgrid(2 * y / grid.shape[2] - 1, 2 * x / grid.shape[3] - 1, indexing="ij")
    at = torch.stack([at_x, at_y], dim=-1)
    return F.grid_sample(grid, at[None], mode="bicubic", align_corners=False)[0, 0]


def fractal_noise(generator: Generator, device: torch.device, cells: int, octaves: int) -> Float[Tensor, "256 256"]:
    """Seamless noise with detail at every scale, within about [-1, 1]."""
    total = torch.zeros(TEXTURE_SIZE, TEXTURE_SIZE, device=device)
    for octave in range(octaves):
        total = total + 0.55**octave * smooth_noise(generator, device, cells << octave, cells << octave)
    return total


def pixel_coordinates(device: torch.device) -> tuple[Float[Tensor, "1 256"], Float[Tensor, "256 1"]]:
    """x and y of the pixel centres, within (0, 1)."""
    axis = (torch.arange(TEXTURE_SIZE, device=device) + 0.5) / TEXTURE_SIZE
    return axis[None, :], axis[:, None]


def wrapped(distance: Tensor) -> Tensor:
    """Signed difference on a circle of length one, within [-0.5, 0.5]: what makes a pattern seamless."""
    return distance - torch.round(distance)


def mix(color_a: Tensor, color_b: Tensor, weight: Float[Tensor, "256 256"]) -> Tile:
    """`color_a` where `weight` is 0, `color_b` where it is 1; colours are [3] or tiles."""
    a = color_a.to(weight.device).reshape(3, *([1, 1] if color_a.dim() == 1 else color_a.shape[1:]))
    b = color_b.to(weight.device).reshape(3, *([1, 1] if color_b.dim() == 1 else color_b.shape[1:]))
    return a + (b - a) * weight


def dead_leaves(generator: Generator, device: torch.device, *, num_leaves: int = 140, largest: float = 0.25) -> Tile:
    """Discs and rectangles that cover one another, sizes by a power law: the statistics of natural images."""
    x, y = pixel_coordinates(device)
    colors = random_colors(generator, num_leaves, saturation=0.8)
    tile = mix(colors[0], colors[1], 0.5 + 0.5 * smooth_noise(generator, device, 2, 2))
    smallest = 0.012
    for leaf in range(num_leaves):
        # p(r) ~ r^-3 between the smallest and the largest radius, by inverting its distribution; large ones first.
        share = (leaf + uniform(generator)) / num_leaves
        radius = (largest**-2 + share * (smallest**-2 - largest**-2)) ** -0.5
        dx, dy = wrapped(x - uniform(generator)), wrapped(y - uniform(generator))
        angle, stretch = uniform(generator, 0, math.pi), uniform(generator, 0.5, 2.0)
        along = (dx * math.cos(angle) + dy * math.sin(angle)) / stretch
        across = dy * math.cos(angle) - dx * math.sin(angle)
        if uniform(generator) < 0.5:
            inside = radius - torch.sqrt(along * along + across * across)
        else:
            inside = radius - torch.maximum(along.abs(), across.abs())
        covered = (inside * TEXTURE_SIZE + 0.5).clamp(0, 1)
        shade = 1 + uniform(generator, -0.4, 0.4) * along / radius
        tile = mix(tile, (colors[leaf].to(device)[:, None, None] * shade).clamp(0, 1), covered)
    return tile


def wood(generator: Generator, device: torch.device) -> Tile:
    """Grain along y, with planks now and then."""
    x, _ = pixel_coordinates(device)
    bend = 0.06 * smooth_noise(generator, device, 2, 2) + 0.012 * smooth_noise(generator, device, 8, 2)
    rings = torch.sin(2 * math.pi * ((x + bend) * int(uniform(generator, 4, 14))))
    fibres = smooth_noise(generator, device, 96, 4)
    light = torch.tensor([0.72, 0.52, 0.33]) * uniform(generator, 0.5, 1.3)
    dark = light * torch.tensor([0.62, 0.55, 0.48]) * uniform(generator, 0.8, 1.1)
    tile = mix(light, dark, (0.35 + 0.3 * rings + 0.22 * fibres).clamp(0, 1))
    if uniform(generator) < 0.5:
        planks = int(uniform(generator, 2, 6))
        brightness = 0.8 + 0.35 * torch.rand(planks, generator=generator).to(device)
        tile = tile * brightness[(x[0] * planks).long()][None, None, :]
        gap = (wrapped(x * planks).abs() / planks * TEXTURE_SIZE < 1.0).float().expand(TEXTURE_SIZE, -1)
        tile = mix(tile, torch.tensor([0.08, 0.06, 0.04]), 0.8 * gap)
    return tile.clamp(0, 1)


def tiles(generator: Generator, device: torch.device) -> Tile:
    """Bricks, square tiles or a checkerboard, each stone a little different, with joints."""
    x, y = pixel_coordinates(device)
    rows = 2 * int(uniform(generator, 1, 5))
    columns = max(1, rows // 2) if uniform(generator) < 0.4 else rows
    row = (y * rows).long()
    shift = 0.5 * (row % 2) if columns != rows else torch.zeros_like(y)
    column = (x * columns + shift).long() % columns
    colors = random_colors(generator, 2, saturation=0.35).to(device)
    which = (
        ((row + column) % 2).float()
        if uniform(generator) < 0.35
        else torch.zeros(TEXTURE_SIZE, TEXTURE_SIZE, device=device)
    )
    brightness = 0.85 + 0.3 * torch.rand(rows, columns, generator=generator).to(device)
    tile = mix(colors[0], colors[1], which) * brightness[row.expand(-1, TEXTURE_SIZE), column]
    tile = tile * (1 + 0.08 * fractal_noise(generator, device, 8, 4))
    joint_px = uniform(generator, 0.8, 3.0)
    to_joint = torch.minimum(wrapped(x * columns + shift).abs() / columns, wrapped(y * rows).abs() / rows)
    joint = (joint_px + 0.5 - to_joint * TEXTURE_SIZE).clamp(0, 1)
    return mix(tile, random_colors(generator, 1, saturation=0.1)[0], joint).clamp(0, 1)


def fabric(generator: Generator, device: torch.device) -> Tile:
    """Plain weave, stripes, plaid or dots."""
    x, y = pixel_coordinates(device)
    colors = random_colors(generator, 4, saturation=0.9)
    weave = 0.5 + 0.25 * torch.sin(2 * math.pi * 64 * x) + 0.25 * torch.sin(2 * math.pi * 64 * y)
    pattern = uniform(generator)
    stripes = int(uniform(generator, 2, 10))
    if pattern < 0.3:
        tile = mix(
            colors[0], colors[1], (torch.sin(2 * math.pi * stripes * x) > uniform(generator, -0.5, 0.5)).float() + 0 * y
        )
    elif pattern < 0.6:
        tile = mix(colors[0], colors[1], 0.55 * (torch.sin(2 * math.pi * stripes * x) > 0.2).float() + 0 * y)
        tile = mix(tile, colors[2], 0.5 * (torch.sin(2 * math.pi * stripes * y) > 0.3).float() + 0 * x)
        tile = mix(tile, colors[3], 0.7 * (torch.sin(2 * math.pi * stripes * y) > 0.97).float() + 0 * x)
    elif pattern < 0.75:
        dots = torch.hypot(wrapped(x * stripes), wrapped(y * stripes)) < uniform(generator, 0.15, 0.4)
        tile = mix(colors[0], colors[1], dots.float())
    else:
        tile = mix(colors[0], colors[0] * 0.8, 0.5 + 0.5 * fractal_noise(generator, device, 6, 4))
    return (tile * (0.85 + 0.15 * weave) * (1 + 0.05 * fractal_noise(generator, device, 16, 3))).clamp(0, 1)


def glyph_rows(generator: Generator, device: torch.device, rows: int, fill: float) -> Float[Tensor, "256 256"]:
    """Ink, 0 or 1, of lines of text-like marks: letters of strokes, words with gaps, paragraphs that end early."""
    ink = torch.zeros(TEXTURE_SIZE, TEXTURE_SIZE)
    height = TEXTURE_SIZE // rows
    for row in range(rows):
        top, x = row * height + height // 4, int(uniform(generator, 4, 20))
        letter_height = max(3, int(height * 0.55))
        right = TEXTURE_SIZE - int(uniform(generator, 6, 120)) if uniform(generator) < 0.3 else TEXTURE_SIZE - 8
        if uniform(generator) > fill:
            continue
        while x < right:
            width = max(2, int(letter_height * uniform(generator, 0.35, 0.75)))
            stroke = max(1, letter_height // 6)
            bits = torch.rand(5, generator=generator) < 0.55
            letter = ink[top : top + letter_height, x : min(x + width, right)]
            if bits[0]:
                letter[:, :stroke] = 1
            if bits[1]:
                letter[:, -stroke:] = 1
            if bits[2]:
                letter[:stroke] = 1
            if bits[3]:
                letter[letter_height // 2 : letter_height // 2 + stroke] = 1
            if bits[4]:
                letter[-stroke:] = 1
            x += width + max(1, stroke) + (letter_height // 2 if uniform(generator) < 0.18 else 0)
    return ink.to(device)


def glyphs(generator: Generator, device: torch.device) -> Tile:
    """A printed page, a label or a poster with a picture in it."""
    paper, ink_color, block = random_colors(generator, 3, saturation=0.7)
    if uniform(generator) < 0.6:
        paper, ink_color = 0.75 + 0.25 * paper, 0.25 * ink_color
    ink = glyph_rows(generator, device, rows=int(uniform(generator, 5, 22)), fill=0.85)
    tile = mix(paper, ink_color, ink)
    if uniform(generator) < 0.6:
        picture = dead_leaves(generator, device, num_leaves=50)
        x, y = pixel_coordinates(device)
        left, top = uniform(generator, 0.05, 0.5), uniform(generator, 0.05, 0.5)
        inside = (x > left) & (x < left + 0.42) & (y > top) & (y < top + uniform(generator, 0.25, 0.45))
        tile = mix(tile, mix(picture, block, torch.full_like(ink, 0.2)), inside.float())
    return tile.clamp(0, 1)


def books(generator: Generator, device: torch.device) -> Tile:
    """Spines side by side, with titles along them: a full shelf seen from the front."""
    tile = torch.zeros(3, TEXTURE_SIZE, TEXTURE_SIZE, device=device)
    titles = glyph_rows(generator, device, rows=16, fill=1.0).T
    x = 0
    while x < TEXTURE_SIZE:
        width = int(uniform(generator, 8, 34))
        spine, ink = random_colors(generator, 2, saturation=0.9).to(device)
        top = int(uniform(generator, 0, 60))
        span = slice(x, min(x + width, TEXTURE_SIZE))
        title = (
            titles[top:, span]
            * (torch.arange(TEXTURE_SIZE - top, device=device) < uniform(generator, 60, 200))[:, None]
        )
        tile[:, top:, span] = spine[:, None, None] + (ink - spine)[:, None, None] * title
        tile[:, top:, x : x + 1] *= 0.4
        x += width
    return tile.clamp(0, 1)


def plaster(generator: Generator, device: torch.device) -> Tile:
    """A painted wall: nearly nothing to see, as in real homes."""
    base = 0.6 + 0.38 * random_colors(generator, 1, saturation=0.3)[0]
    grain = fractal_noise(generator, device, 16, 4)
    stain = smooth_noise(generator, device, 3, 3)
    return (base.to(device)[:, None, None] * (1 + 0.03 * grain + 0.04 * stain)).clamp(0, 1)


def stone(generator: Generator, device: torch.device) -> Tile:
    """Marble veins or granite."""
    colors = random_colors(generator, 3, saturation=0.2)
    cloud = fractal_noise(generator, device, 3, 6)
    if uniform(generator) < 0.5:
        vein = (1 - (cloud * 2.5).abs()).clamp(0, 1) ** 3
        return mix(0.5 + 0.5 * colors[0], 0.6 * colors[1], vein).clamp(0, 1)
    speckle = fractal_noise(generator, device, 48, 3)
    return mix(mix(colors[0], colors[1], (speckle > 0.25).float()), colors[2], (speckle < -0.45).float()).clamp(0, 1)


def gradient(generator: Generator, device: torch.device) -> Tile:
    """A soft change of colour."""
    colors = random_colors(generator, 2, saturation=0.6)
    return mix(colors[0], colors[1], 0.5 + 0.5 * smooth_noise(generator, device, 1, 2)).clamp(0, 1)


def painting(generator: Generator, device: torch.device) -> Tile:
    """Something to hang on a wall: large shapes over a horizon, fine ones over them."""
    ground = outside(generator, device) if uniform(generator) < 0.4 else gradient(generator, device)
    shapes = dead_leaves(generator, device, num_leaves=int(uniform(generator, 20, 160)), largest=0.4)
    return mix(ground, shapes, (fractal_noise(generator, device, 2, 4) * 2 + 0.4).clamp(0, 1)).clamp(0, 1)


def outside(generator: Generator, device: torch.device) -> Tile:
    """What a window shows: sky with clouds, hills, a row of houses."""
    x, y = pixel_coordinates(device)
    sky = torch.tensor([0.45, 0.62, 0.9]) * uniform(generator, 0.7, 1.0)
    clouds = fractal_noise(generator, device, 3, 5).clamp(0, 1)
    tile = mix(mix(sky, torch.tensor([0.85, 0.9, 0.95]), y.expand(-1, TEXTURE_SIZE)), torch.ones(3), clouds)
    hill = 0.55 + 0.08 * smooth_noise(generator, device, 3, 3)[:1]
    green = torch.tensor([0.25, 0.4, 0.18]).to(device)[:, None, None] * (
        1 + 0.5 * fractal_noise(generator, device, 8, 4)
    )
    tile = mix(tile, green.clamp(0, 1), (y > hill).float())
    for _ in range(int(uniform(generator, 2, 7))):
        left, width, top = uniform(generator), uniform(generator, 0.06, 0.2), uniform(generator, 0.3, 0.6)
        house = (wrapped(x - left).abs() < width) & (y > top) & (y < 0.8)
        panes = (wrapped((x - left) * 24).abs() < 0.25) & (wrapped((y - top) * 18).abs() < 0.28)
        colors = random_colors(generator, 2, saturation=0.5)
        tile = mix(tile, mix(colors[0], 0.4 * colors[1], panes.float()), house.float())
    return tile.clamp(0, 1)


MAKERS: dict[str, Callable[[Generator, torch.device], Tile]] = {
    "leaves": dead_leaves,
    "wood": wood,
    "tiles": tiles,
    "fabric": fabric,
    "glyphs": glyphs,
    "books": books,
    "plaster": plaster,
    "stone": stone,
    "gradient": gradient,
    "painting": painting,
    "outside": outside,
}


@dataclass(frozen=True)
class TextureAtlas:
    """All textures of a world with their mip levels, packed for the ray caster."""

    texels: Int[Tensor, "num_texels"]
    """Level after level, texture after texture, row after row; red, green and blue in the low 24 bits."""
    num_textures: int
    range_by_family: dict[str, range]
    """Which textures belong to which family. Photographs, where there are some, are the family `photo`."""

    def to(self, device: torch.device | str) -> "TextureAtlas":
        """The same atlas on another device."""
        return TextureAtlas(self.texels.to(device), self.num_textures, self.range_by_family)


def pack_texels(tiles_rgb: UInt8[Tensor, "num_textures 3 256 256"]) -> Int[Tensor, "num_texels"]:
    """The mip pyramid of every tile, one 32-bit number a texel: one fetch brings all three channels."""
    packed_by_level: list[list[Tensor]] = [[] for _ in range(NUM_MIP_LEVELS)]
    for some_tiles in tiles_rgb.split(TILES_AT_A_TIME):
        level_rgb = some_tiles.float()
        for packed in packed_by_level:
            red, green, blue = level_rgb.round().to(torch.int32).unbind(dim=1)
            packed.append((red | (green << 8) | (blue << 16)).flatten())
            if level_rgb.shape[-1] > 1:
                level_rgb = F.avg_pool2d(level_rgb, 2)
    return torch.cat([texels for packed in packed_by_level for texels in packed])


def photograph_files(path: Path, split: Split | None = None) -> list[FileSource]:
    """The photographs in a folder and below it, or in a zip file, sorted by name, so that no disk changes an atlas.

    With a `split`, only those in the folder of that name. A zip is read where it is: nothing of it is written anywhere.
    """
    if path.is_dir():
        sources = {file.relative_to(path).as_posix(): FileSource(file) for file in path.rglob("*") if file.is_file()}
    elif path.suffix.lower() == ".zip" and path.exists():
        sources = {name: FileSource(path, name) for name in list_zip(path)}
    else:
        raise DatasetError(
            f"{path}: expected a folder or a zip file of photographs to use as textures, found none. Name another."
        )
    names = [
        name
        for name in sorted(sources, key=PurePosixPath)
        if sources[name].suffix in PHOTOGRAPH_SUFFIXES and (split is None or PurePosixPath(name).parts[0] == split)
    ]
    for name in names:
        if not name.isprintable():  # it would break the lines that name it
            raise DatasetError(f"{path}: expected a name of printable characters, found {name!r}. Rename that file.")
    return [sources[name] for name in names]


def read_photographs(path: Path, split: Split | None = None) -> UInt8[Tensor, "num_photos 3 256 256"]:
    """The photographs of a folder or a zip file, cropped to squares, as tiles."""
    tiles_rgb = []
    for file in photograph_files(path, split):
        pixels = decode_image(file.read_bytes(), file.label)
        square = ImageOps.fit(Image.fromarray(pixels), (TEXTURE_SIZE, TEXTURE_SIZE))
        flat = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        tiles_rgb.append(flat.reshape(TEXTURE_SIZE, TEXTURE_SIZE, 3).permute(2, 0, 1))
    if not tiles_rgb:
        where = "" if split is None else f" in its folder {split}/"
        raise DatasetError(
            f"{path}: expected photographs ({', '.join(PHOTOGRAPH_SUFFIXES)}){where}, found none. Name another."
        )
    return torch.stack(tiles_rgb)


def check_seed(seed: int) -> None:
    """Raise for what is no seed. Every source of chance in a world is made from one, so all of them ask here."""
    if not 0 <= seed < 2**31:
        raise ConfigError(f"a seed must be a whole number from 0 to 2^31 - 1, got {seed}.")


def fingerprint_of_photographs(path: Path) -> str:
    """SHA-256 in hex of a zip file of photographs, or of all photographs of a folder, in the order of their names."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in photograph_files(path):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: tiles are small, and many threads on busy cores wait for each other for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_atlas(
    seed: int,
    *,
    sets: int = 1,
    photographs: Path | None = None,
    split: Split | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> TextureAtlas:
    """An atlas of every family, the same for the same seed and photographs on every device up to rounding.

    It has as many textures of our own as `FAMILY_SIZES` says, `sets` times over, no two the same. `photographs` is a
    folder or a zip file; with a `split`, only what lies there in the folder of that name is used.
    """
    check_seed(seed)
    device = torch.device(device)
    tiles_rgb: list[Tensor] = []
    range_by_family: dict[str, range] = {}
    with one_thread(), progress.task("making textures", total=sets * sum(FAMILY_SIZES.values())) as advance:
        for family_idx, (family, size) in enumerate(FAMILY_SIZES.items()):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + family_idx)
            range_by_family[family] = range(len(tiles_rgb), len(tiles_rgb) + sets * size)
            for _ in range(sets * size):
                tiles_rgb.append((MAKERS[family](generator, device) * 255).round().to(torch.uint8))
                advance(1)
    stacked = torch.stack(tiles_rgb)
    if photographs is not None:
        photos = read_photographs(photographs, split).to(device)
        range_by_family["photo"] = range(len(stacked), len(stacked) + len(photos))
        stacked = torch.cat([stacked, photos])
    return TextureAtlas(pack_texels(stacked), len(stacked), range_by_family)
