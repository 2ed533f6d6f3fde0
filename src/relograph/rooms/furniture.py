"""Pieces of furniture at real sizes, each a handful of textured boxes and cylinders.

A piece stands in its own frame: x to its right, y to its back, z up, the origin on the floor under its middle; sizes
are in metres. `PIECES` names what may stand along a wall, `CENTER_PIECES` what stands in the middle of a room.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

Vector = Float[np.ndarray, "3"]


@dataclass(frozen=True)
class Material:
    """How a solid looks."""

    textures: tuple[int, ...]
    """One texture for all faces, or six: -x +x -y +y -z +z."""
    tint: tuple[float, float, float]
    contrast: float
    period_m: float | None
    """Length of one repeat of the texture; None stretches one copy over each face, as for a picture."""
    gloss: float = 0.0
    emission: float = 0.0


@dataclass(frozen=True)
class Solid:
    """A box or a cylinder, with its place."""

    center: Vector
    half_size: Vector
    material: Material
    R: Float[np.ndarray, "3 3"] = field(default_factory=lambda: np.eye(3))
    is_cylinder: bool = False

    def moved(self, R: Float[np.ndarray, "3 3"], t: Vector) -> "Solid":
        """The same solid after a rigid motion."""
        return replace(self, center=R @ self.center + t, R=R @ self.R)


@dataclass(frozen=True)
class Surface:
    """A level place where small things may lie: its middle, its height is z, and its width and depth."""

    center: Vector
    width: float
    depth: float


@dataclass(frozen=True)
class Piece:
    """One piece of furniture."""

    solids: list[Solid]
    width: float
    depth: float
    surfaces: list[Surface] = field(default_factory=list)
    lamp: Vector | None = None
    """Where it gives light, if it does."""


def turn_z(angle_rad: float) -> Float[np.ndarray, "3 3"]:
    """Rotation about the vertical."""
    c, s = np.cos(angle_rad), np.sin(angle_rad)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


class Decorator:
    """Chooses materials: the random taste of one household."""

    def __init__(self, rng: Generator, range_by_family: dict[str, range]) -> None:
        self.rng = rng
        self.range_by_family = range_by_family
        self.woods = [self.texture("wood") for _ in range(2)]
        self.fabrics = [self.texture("fabric") for _ in range(3)]

    def texture(self, family: str) -> int:
        """Some texture of the family."""
        choices = self.range_by_family[family]
        return int(self.rng.integers(choices.start, choices.stop))

    def takes_photograph(self, share: float) -> bool:
        """Whether to take a photograph, in a share of the cases. Where there are none, no chance is drawn."""
        return "photo" in self.range_by_family and bool(self.rng.random() < share)

    def color(
        self, brightness: tuple[float, float] = (0.1, 0.8), saturation: float = 0.4
    ) -> tuple[float, float, float]:
        """A plain linear colour."""
        gray = self.rng.uniform(*brightness)
        rgb = np.clip(gray * (1 + saturation * self.rng.uniform(-1, 1, 3)), 0.01, 0.95)
        return float(rgb[0]), float(rgb[1]), float(rgb[2])

    def plain(self, brightness: tuple[float, float] = (0.1, 0.8), gloss: float = 0.1) -> Material:
        """Paint, plastic or metal: nearly no texture."""
        return Material((self.texture("plaster"),), self.color(brightness), 0.15, 0.7, gloss * self.rng.uniform(0, 2))

    def wood(self) -> Material:
        """One of the household's two woods."""
        return Material((int(self.rng.choice(self.woods)),), (0.3, 0.2, 0.1), 0.95, self.rng.uniform(0.5, 1.1), 0.1)

    def cloth(self) -> Material:
        """One of the household's three fabrics."""
        return Material(
            (int(self.rng.choice(self.fabrics)),), self.color(), self.rng.uniform(0.6, 1), self.rng.uniform(0.3, 0.8)
        )

    def front(self) -> Material:
        """A cupboard: wood, paint or something with a pattern."""
        kind = self.rng.random()
        if kind < 0.45:
            return self.wood()
        return self.plain((0.25, 0.9)) if kind < 0.85 else self.pattern()

    def pattern(self) -> Material:
        """Something with much to see: packaging, toys, covers."""
        family = str(self.rng.choice(["leaves", "leaves", "glyphs", "fabric", "stone", "painting", "photo"]))
        if family not in self.range_by_family:
            family = "leaves"
        return Material(
            (self.texture(family),), self.color(), self.rng.uniform(0.75, 1), self.rng.uniform(0.25, 0.7), 0.05
        )

    def picture(self) -> Material:
        """One whole image on each face."""
        families = (
            ["photo", "photo", "painting", "glyphs"]
            if "photo" in self.range_by_family
            else ["painting", "glyphs", "leaves"]
        )
        return Material((self.texture(str(self.rng.choice(families))),), (0.5, 0.5, 0.5), 0.97, None, 0.05)

    def book_row(self) -> Material:
        """Spines on every side."""
        return Material((self.texture("books"),), (0.3, 0.3, 0.3), 1.0, None)


def box(x: float, y: float, z: float, width: float, depth: float, height: float, material: Material) -> Solid:
    """A box by its middle in plan, the height of its underside and its full sizes."""
    return Solid(np.array([x, y, z + height / 2]), np.array([width, depth, height]) / 2, material)


def cylinder(x: float, y: float, z: float, radius: float, height: float, material: Material) -> Solid:
    """An upright cylinder by its middle in plan and the height of its underside."""
    half_size = np.array([radius, radius, height / 2])
    return Solid(np.array([x, y, z + height / 2]), half_size, material, is_cylinder=True)


def legs(width: float, depth: float, height: float, thickness: float, material: Material) -> list[Solid]:
    """Four of them, at the corners."""
    x, y = (width - thickness) / 2, (depth - thickness) / 2
    return [box(sx * x, sy * y, 0, thickness, thickness, height, material) for sx in (-1, 1) for sy in (-1, 1)]


def table(d: Decorator) -> Piece:
    """A dining table on four legs, two panels or one column."""
    width, depth, height = d.rng.uniform(1.1, 1.7), d.rng.uniform(0.7, 0.95), d.rng.uniform(0.71, 0.77)
    top = d.wood() if d.rng.random() < 0.7 else d.plain((0.3, 0.9))
    solids = [box(0, 0, height - 0.035, width, depth, 0.035, top)]
    kind = d.rng.random()
    if kind < 0.4:
        solids += legs(width - 0.08, depth - 0.08, height - 0.035, 0.06, top)
    elif kind < 0.75:
        solids += [box(s * (width / 2 - 0.12), 0, 0, 0.05, depth - 0.1, height - 0.035, top) for s in (-1, 1)]
    else:
        solids += [cylinder(0, 0, 0.03, 0.06, height - 0.06, d.plain()), cylinder(0, 0, 0, 0.32, 0.03, d.plain())]
    return Piece(solids, width, depth, [Surface(np.array([0, 0, height]), width, depth)])


def chair(d: Decorator) -> Piece:
    """A chair whose back is towards +y."""
    seat, frame = (d.cloth(), d.wood()) if d.rng.random() < 0.5 else (d.plain(), d.plain())
    solids = [box(0, 0, 0.43, 0.42, 0.42, 0.04, seat), box(0, 0.19, 0.5, 0.4, 0.035, d.rng.uniform(0.3, 0.5), seat)]
    solids += (
        [cylinder(0, 0, 0, 0.03, 0.43, frame)] if d.rng.random() < 0.4 else [box(0, 0, 0, 0.36, 0.36, 0.43, frame)]
    )
    return Piece(solids, 0.45, 0.45)


def sofa(d: Decorator) -> Piece:
    """A sofa with arms, a back and cushions."""
    width, cloth = d.rng.uniform(1.4, 2.1), d.cloth()
    solids = [
        box(0, -0.05, 0.08, width - 0.3, 0.75, 0.34, cloth),
        box(0, 0.33, 0.08, width, 0.2, 0.74, cloth),
        box(-width / 2 + 0.09, -0.02, 0.08, 0.18, 0.8, 0.52, cloth),
        box(width / 2 - 0.09, -0.02, 0.08, 0.18, 0.8, 0.52, cloth),
    ]
    for _ in range(int(d.rng.integers(1, 3))):
        cushion = box(0, 0, 0, 0.42, 0.12, 0.38, d.pattern() if d.rng.random() < 0.5 else d.cloth())
        tilt = d.rng.uniform(0.15, 0.4)
        lean = np.array([[1, 0, 0], [0, np.cos(tilt), np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
        place = np.array([d.rng.uniform(-0.5, 0.5) * (width - 0.8), 0.12, 0.42])
        solids.append(cushion.moved(turn_z(d.rng.uniform(-0.2, 0.2)) @ lean, place))
    return Piece(solids, width, 0.9)


def bed(d: Decorator) -> Piece:
    """A bed, its head towards +y."""
    width, length = d.rng.uniform(0.9, 1.6), 2.0
    solids = [
        box(0, 0, 0.05, width, length, 0.25, d.wood()),
        box(0, -0.02, 0.3, width - 0.04, length - 0.08, 0.2, d.cloth()),
        box(0, length / 2 - 0.03, 0.05, width + 0.06, 0.06, d.rng.uniform(0.7, 1.1), d.front()),
        box(0, length / 2 - 0.3, 0.5, min(width - 0.2, 0.8), 0.4, 0.11, d.plain((0.6, 0.95))),
        box(0, -0.35, 0.48, width + 0.02, 1.2, 0.06, d.cloth()),
    ]
    return Piece(solids, width + 0.06, length)


def bookcase(d: Decorator) -> Piece:
    """Shelves with rows of books and things between them."""
    width, depth, height = d.rng.uniform(0.7, 1.2), 0.3, d.rng.uniform(1.2, 2.1)
    wood = d.front()
    solids = [box(0, depth / 2 - 0.03, 0, width, 0.06, height, wood)]
    solids += [box(s * (width / 2 - 0.012), 0, 0, 0.024, depth, height, wood) for s in (-1, 1)]
    levels = max(2, round(height / 0.4))
    for level in range(levels):
        z = level * (height - 0.03) / (levels - 1)
        solids.append(box(0, 0, z, width - 0.05, depth, 0.025, wood))
        if level < levels - 1 and d.rng.random() < 0.85:
            row = d.rng.uniform(0.5, 0.92) * width
            tall = min(0.28, (height / (levels - 1)) - 0.08)
            shift = (width * 0.94 - row) * d.rng.uniform(-0.5, 0.5)
            solids.append(box(shift, 0.02, z + 0.025, row, 0.19, tall, d.book_row()))
    return Piece(solids, width, depth, [Surface(np.array([0, 0, height]), width, depth)])


def cupboard(d: Decorator) -> Piece:
    """A wardrobe, a chest, a fridge: one body with doors and handles."""
    width, depth = d.rng.uniform(0.5, 1.4), d.rng.uniform(0.38, 0.62)
    height = float(d.rng.choice([0.8, 1.0, 1.8, 2.0])) + d.rng.uniform(-0.1, 0.1)
    body, doors = d.front(), max(1, round(width / 0.5))
    solids = [box(0, 0.01, 0, width, depth - 0.02, height, body)]
    leaf = d.front() if d.rng.random() < 0.5 else replace(body, tint=d.color((0.3, 0.9)))
    for door in range(doors):
        x = (door + 0.5) * width / doors - width / 2
        solids.append(box(x, -depth / 2 + 0.008, 0.04, width / doors - 0.015, 0.016, height - 0.08, leaf))
        solids.append(
            box(x + 0.4 * width / doors, -depth / 2 - 0.01, height * 0.45, 0.015, 0.02, 0.14, d.plain((0.02, 0.9), 0.5))
        )
    return Piece(solids, width, depth, [Surface(np.array([0, 0, height]), width, depth)])


def counter(d: Decorator) -> Piece:
    """A kitchen unit with a worktop, cupboards on the wall above it, tiles between."""
    width, depth = d.rng.uniform(1.4, 2.4), 0.6
    front, units = d.front(), max(2, round(width / 0.6))
    stone = Material((d.texture("stone"),), d.color(), 0.9, 0.8, 0.25)
    tiles = Material((d.texture("tiles"),), d.color(), 1.0, 0.6, 0.15)
    solids = [
        box(0, 0.02, 0, width, depth - 0.06, 0.86, front),
        box(0, 0, 0.86, width, depth, 0.04, stone),
        box(0, depth / 2 - 0.005, 0.9, width, 0.01, 0.55, tiles),
        box(0, depth / 2 - 0.17, 1.45, width * d.rng.uniform(0.5, 1.0), 0.34, 0.7, front),
    ]
    for unit in range(units):
        x = (unit + 0.5) * width / units - width / 2
        solids.append(
            box(
                x,
                -depth / 2 + 0.03,
                0.1,
                width / units - 0.02,
                0.02,
                0.7,
                d.plain((0.2, 0.9)) if unit % 3 == 2 else front,
            )
        )
    return Piece(solids, width, depth, [Surface(np.array([0, -0.05, 0.9]), width, depth - 0.15)])


def desk(d: Decorator) -> Piece:
    """A desk with a screen, a keyboard and drawers."""
    width, depth, height = d.rng.uniform(1.1, 1.6), 0.7, 0.74
    top = d.front()
    screen = replace(d.picture(), emission=d.rng.uniform(0.0, 0.7))
    dark = d.plain((0.01, 0.06), 0.4)
    solids = [
        box(0, 0, height - 0.03, width, depth, 0.03, top),
        box(width / 2 - 0.22, 0.03, 0, 0.4, depth - 0.1, height - 0.03, d.front()),
        box(-width / 2 + 0.03, 0, 0, 0.05, depth - 0.1, height - 0.03, top),
        box(0, 0.14, height + 0.12, 0.56, 0.03, 0.34, dark),
        box(0, 0.122, height + 0.135, 0.53, 0.01, 0.31, screen),
        box(0, 0.16, height, 0.06, 0.04, 0.14, dark),
        box(0.02, -0.15, height, 0.42, 0.14, 0.02, Material((d.texture("glyphs"),), (0.05, 0.05, 0.05), 0.5, 0.2)),
    ]
    return Piece(solids, width, depth, [Surface(np.array([-0.3 * width, -0.05, height]), 0.3 * width, 0.5)])


def television(d: Decorator) -> Piece:
    """A low board with a television on it."""
    width, height = d.rng.uniform(1.2, 1.8), d.rng.uniform(0.4, 0.55)
    screen_width = width * d.rng.uniform(0.55, 0.8)
    screen = Material((d.texture("gradient"),), (0.02, 0.02, 0.025), 0.1, None, 0.8)
    if d.rng.random() < 0.5:
        screen = replace(d.picture(), emission=d.rng.uniform(0.2, 0.9), gloss=0.3)
    solids = [
        box(0, 0, 0.06, width, 0.4, height - 0.06, d.front()),
        box(0, 0.05, height + 0.06, screen_width, 0.04, screen_width * 0.57, d.plain((0.01, 0.05), 0.4)),
        box(0, 0.027, height + 0.075, screen_width - 0.03, 0.01, screen_width * 0.57 - 0.03, screen),
        box(0, 0.05, height, 0.3, 0.18, 0.06, d.plain((0.02, 0.1))),
    ]
    return Piece(solids, width, 0.42, [Surface(np.array([-0.38 * width, -0.05, height]), 0.2 * width, 0.3)])


def floor_lamp(d: Decorator) -> Piece:
    """A lamp on a pole."""
    height = d.rng.uniform(1.4, 1.75)
    shade = Material((d.texture("fabric"),), (0.8, 0.7, 0.5), 0.3, 0.4, 0.0, d.rng.uniform(0.6, 1.6))
    pole = d.plain((0.02, 0.6), 0.4)
    solids = [cylinder(0, 0, 0, 0.14, 0.025, pole), cylinder(0, 0, 0, 0.014, height, pole)]
    solids.append(cylinder(0, 0, height - 0.1, d.rng.uniform(0.14, 0.22), 0.28, shade))
    return Piece(solids, 0.44, 0.44, lamp=np.array([0, 0, height + 0.26]))


def plant(d: Decorator) -> Piece:
    """A pot with leaves."""
    pot_height, radius = d.rng.uniform(0.2, 0.4), d.rng.uniform(0.12, 0.2)
    pot = d.pattern() if d.rng.random() < 0.3 else d.plain((0.2, 0.8))
    green = Material((d.texture("leaves"),), (0.05, d.rng.uniform(0.12, 0.3), 0.04), 0.35, 0.5)
    solids = [cylinder(0, 0, 0, radius, pot_height, pot)]
    for _ in range(4):
        leaf = box(0, 0, 0, d.rng.uniform(0.1, 0.22), 0.012, d.rng.uniform(0.35, 0.8), green)
        tilt, around = d.rng.uniform(0.1, 0.6), d.rng.uniform(0, 2 * np.pi)
        lean = np.array([[1, 0, 0], [0, np.cos(tilt), np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
        solids.append(leaf.moved(turn_z(around) @ lean, np.array([0, 0, pot_height - 0.03])))
    reach = max(float(np.max(np.abs(solid.center[:2]) + (np.abs(solid.R) @ solid.half_size)[:2])) for solid in solids)
    return Piece(solids, 2 * reach, 2 * reach)


def boxes(d: Decorator) -> Piece:
    """Parcels or crates, stacked askew."""
    solids, z = [], 0.0
    for _ in range(int(d.rng.integers(1, 4))):
        width, depth, height = d.rng.uniform([0.3, 0.25, 0.2], [0.5, 0.4, 0.4]).tolist()
        solids.append(
            box(0, 0, z, width, depth, height, d.pattern()).moved(turn_z(d.rng.uniform(-0.3, 0.3)), np.zeros(3))
        )
        z += height
    return Piece(solids, 0.6, 0.55)


def coffee_table(d: Decorator) -> Piece:
    """A low table, round or not."""
    height = d.rng.uniform(0.35, 0.48)
    if d.rng.random() < 0.5:
        radius = d.rng.uniform(0.35, 0.5)
        solids = [
            cylinder(0, 0, height - 0.03, radius, 0.03, d.wood()),
            cylinder(0, 0, 0, 0.05, height - 0.03, d.plain()),
        ]
        return Piece(solids, 2 * radius, 2 * radius, [Surface(np.array([0, 0, height]), radius, radius)])
    width, depth = d.rng.uniform(0.8, 1.2), d.rng.uniform(0.5, 0.65)
    wood = d.wood()
    solids = [box(0, 0, height - 0.04, width, depth, 0.04, wood)]
    solids += [box(s * (width / 2 - 0.04), 0, 0, 0.05, depth - 0.06, height - 0.04, wood) for s in (-1, 1)]
    return Piece(solids, width, depth, [Surface(np.array([0, 0, height]), width, depth)])


def clutter(d: Decorator, surface: Surface) -> list[Solid]:
    """One small thing that lies or stands on a surface: a bottle, a mug, a magazine, books, a box."""
    kind = d.rng.random()
    if kind < 0.2:
        radius = d.rng.uniform(0.03, 0.045)
        thing = [
            cylinder(0, 0, 0, radius, d.rng.uniform(0.14, 0.22), d.pattern()),
            cylinder(0, 0, 0.14, radius * 0.4, 0.14, d.plain()),
        ]
    elif kind < 0.4:
        material = d.plain() if kind < 0.3 else d.pattern()
        thing = [cylinder(0, 0, 0, d.rng.uniform(0.035, 0.1), d.rng.uniform(0.05, 0.13), material)]
    elif kind < 0.55:
        thing = [box(0, 0, 0, 0.21, 0.297, d.rng.uniform(0.003, 0.02), d.picture())]
    else:
        flat = kind < 0.75
        low, high = ([0.13, 0.18, 0.03], [0.2, 0.26, 0.12]) if flat else ([0.08, 0.06, 0.1], [0.3, 0.22, 0.3])
        width, depth, height = d.rng.uniform(low, high).tolist()
        thing = [box(0, 0, 0, width, depth, height, d.pattern())]
    # However it is turned, it stays on the surface; where it is too large for that, it lies in the middle.
    reach = float(np.hypot(*thing[0].half_size[:2]))
    room = np.maximum([surface.width / 2 - reach, surface.depth / 2 - reach, 0.0], 0.0)
    place = surface.center + d.rng.uniform(-1, 1, 3) * room
    return [solid.moved(turn_z(d.rng.uniform(0, np.pi)), place) for solid in thing]


PIECES: tuple[Callable[[Decorator], Piece], ...] = (
    sofa, bed, bookcase, bookcase, cupboard, cupboard, counter, desk, television, floor_lamp, plant, boxes, chair,
)  # fmt: skip
CENTER_PIECES: tuple[Callable[[Decorator], Piece], ...] = (table, table, coffee_table)
