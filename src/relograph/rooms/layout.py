"""A home from a seed: one to three connected rooms, furnished, lit, with the floor where a person can walk."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.random import Generator

from relograph.errors import ConfigError
from relograph.rooms.furniture import (
    CENTER_PIECES,
    PIECES,
    Decorator,
    Material,
    Piece,
    Solid,
    Surface,
    box,
    chair,
    clutter,
    cylinder,
    turn_z,
)
from relograph.rooms.world import NUM_LIGHTS, Rooms

CELL_M = 0.1
"""Size of a cell of the walkable floor."""
CLEARANCE_M = 0.22
"""A camera keeps at least this far from everything between knee and head."""
WALKING_SPACE_Z_M = (0.25, 2.0)
PHOTO_WALL_SHARE, PHOTO_FLOOR_SHARE = 0.15, 0.3
"""Of walls and floors, where there are photographs: textures of games and of real things are among them."""


@dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """How large and how full a home is."""

    num_boxes: int = 32
    """Boxes of a home, its shell included; a home with fewer is filled up with boxes that no ray meets."""
    num_cylinders: int = 9
    """Cylinders of a home, filled up likewise."""
    max_rooms: int = 3
    """Connected rooms, at the most."""

    def __post_init__(self) -> None:
        if self.num_boxes < 16 or self.num_cylinders < 2:
            raise ConfigError(
                f"a room needs at least 16 boxes and 2 cylinders, got {self.num_boxes} and {self.num_cylinders}. "
                "Raise num_boxes or num_cylinders."
            )
        if self.num_solids > 256:
            raise ConfigError(
                f"a room has at most 256 solids, as the ray caster counts them in a byte, got {self.num_solids}."
            )
        if not 1 <= self.max_rooms <= 3:
            raise ConfigError(f"max_rooms must be 1, 2 or 3, got {self.max_rooms}.")

    @property
    def num_solids(self) -> int:
        """All of them: what the ray caster's cost is proportional to."""
        return self.num_boxes + self.num_cylinders


@dataclass(frozen=True)
class Rectangle:
    """A part of the floor, its sides along x and y."""

    x0: float
    x1: float
    y0: float
    y1: float

    def overlaps(self, other: "Rectangle", gap: float = 0.0) -> bool:
        """Whether the two come closer than `gap`."""
        apart_in_x = self.x0 >= other.x1 + gap or other.x0 >= self.x1 + gap
        apart_in_y = self.y0 >= other.y1 + gap or other.y0 >= self.y1 + gap
        return not (apart_in_x or apart_in_y)


@dataclass(frozen=True)
class Home:
    """A furnished home and its walkable floor."""

    seed: int
    solids: list[Solid]
    """The shell first."""
    rooms: list[Rectangle]
    size_m: Float[np.ndarray, "3"]
    light_position: Float[np.ndarray, "L 3"]
    light_rgb: Float[np.ndarray, "L 3"]
    light_radius_m: Float[np.ndarray, "L"]
    ambient_rgb: Float[np.ndarray, "3"]
    walkable: Bool[np.ndarray, "X Y"]
    """Cells of `CELL_M` where a person with a camera can stand: one connected piece of floor."""

    def cell_centers(self) -> Float[np.ndarray, "cells 2"]:
        """xy of the walkable cells."""
        return (np.argwhere(self.walkable) + 0.5) * CELL_M


class HomeBuilder:
    """Puts one home together, step by step."""

    def __init__(self, rng: Generator, range_by_family: dict[str, range], config: LayoutConfig) -> None:
        self.rng = rng
        self.config = config
        self.decorator = Decorator(rng, range_by_family)
        self.solids: list[Solid] = []
        self.surfaces: list[Surface] = []
        self.lamps: list[np.ndarray] = []
        self.window_lights: list[np.ndarray] = []
        self.taken: list[Rectangle] = []
        self.doorways: list[np.ndarray] = []

        num_rooms = (
            1 + int(rng.choice(3, p=[0.6, 0.3, 0.1]))
            if config.max_rooms == 3
            else int(rng.integers(1, config.max_rooms + 1))
        )
        widths = rng.uniform(3.2, 5.5, num_rooms) if num_rooms == 1 else rng.uniform(2.8, 4.2, num_rooms)
        self.size_m = np.array([widths.sum(), rng.uniform(3.2, 5.2), rng.uniform(2.4, 2.8)])
        edges = np.concatenate([[0.0], np.cumsum(widths)])
        self.rooms = [Rectangle(edges[i], edges[i + 1], 0.0, float(self.size_m[1])) for i in range(num_rooms)]

    def wall_material(self) -> int:
        """Mostly paint, now and then tiles or wallpaper, or what a user's photographs show."""
        if self.decorator.takes_photograph(PHOTO_WALL_SHARE):
            return self.decorator.texture("photo")
        family = str(self.rng.choice(["plaster", "tiles", "fabric", "stone"], p=[0.86, 0.06, 0.03, 0.05]))
        return self.decorator.texture(family)

    def add_shell(self) -> None:
        """Floor, ceiling and outer walls: one box seen from inside."""
        wall = self.wall_material()
        accent = self.wall_material() if self.rng.random() < 0.4 else wall
        floor_family = str(self.rng.choice(["wood", "wood", "tiles", "fabric", "stone"]))
        floor = self.decorator.texture("photo" if self.decorator.takes_photograph(PHOTO_FLOOR_SHARE) else floor_family)
        ceiling = self.decorator.texture("plaster")
        material = Material(
            (wall, accent, wall, wall, floor, ceiling), (0.7, 0.7, 0.7), 1.0, float(self.rng.uniform(1.0, 2.0)), 0.04
        )
        self.solids.append(Solid(self.size_m / 2, self.size_m / 2, material))

    def add_inner_walls(self) -> None:
        """Walls between the rooms, each with a doorway and a lintel over it."""
        thickness, door_width, door_height = 0.12, 0.95, 2.05
        depth, height = self.size_m[1:]
        for room in self.rooms[1:]:
            paint = Material((self.wall_material(),), (0.7, 0.7, 0.7), 1.0, 1.5)
            y_door = self.rng.uniform(0.8, depth - 0.8)
            y0, y1 = y_door - door_width / 2, y_door + door_width / 2
            self.solids += [
                box(room.x0, y0 / 2, 0, thickness, y0, height, paint),
                box(room.x0, (depth + y1) / 2, 0, thickness, depth - y1, height, paint),
                box(room.x0, y_door, door_height, thickness, door_width, height - door_height, paint),
            ]
            self.taken.append(Rectangle(room.x0 - 0.9, room.x0 + 0.9, y0, y1))
            self.doorways.append(np.array([room.x0, y_door, 0.0]))

    def wall_frames(self, room: Rectangle) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """For each wall of a room: rotation of a piece with its back to it, the wall's middle, its length."""
        middle_x, middle_y = (room.x0 + room.x1) / 2, (room.y0 + room.y1) / 2
        inner = 0.06  # half an inner wall
        left = room.x0 + (inner if room.x0 > 0 else 0)
        right = room.x1 - (inner if room.x1 < self.size_m[0] - 1e-6 else 0)
        return [
            (turn_z(0.0), np.array([middle_x, room.y1, 0.0]), room.x1 - room.x0),
            (turn_z(np.pi / 2), np.array([left, middle_y, 0.0]), room.y1 - room.y0),
            (turn_z(np.pi), np.array([middle_x, room.y0, 0.0]), room.x1 - room.x0),
            (turn_z(-np.pi / 2), np.array([right, middle_y, 0.0]), room.y1 - room.y0),
        ]

    def footprint(self, R: np.ndarray, t: np.ndarray, width: float, depth: float) -> Rectangle:
        """What a piece covers of the floor."""
        corners = np.array([[sx * width / 2, sy * depth / 2, 0.0] for sx in (-1, 1) for sy in (-1, 1)]) @ R.T + t
        low, high = corners.min(axis=0), corners.max(axis=0)
        return Rectangle(low[0], high[0], low[1], high[1])

    def place(self, piece: Piece, R: np.ndarray, t: np.ndarray) -> None:
        """Put a piece where it was found to fit."""
        self.taken.append(self.footprint(R, t, piece.width, piece.depth))
        self.solids += [solid.moved(R, t) for solid in piece.solids]
        quarter = abs(R[0, 0]) < 0.5
        for surface in piece.surfaces:
            width, depth = (surface.depth, surface.width) if quarter else (surface.width, surface.depth)
            self.surfaces.append(Surface(R @ surface.center + t, width, depth))
        if piece.lamp is not None:
            self.lamps.append(R @ piece.lamp + t)

    def slots_left(self) -> tuple[int, int]:
        """How many more boxes and cylinders the home may have."""
        cylinders = sum(solid.is_cylinder for solid in self.solids)
        boxes = len(self.solids) - cylinders
        return self.config.num_boxes - boxes, self.config.num_cylinders - cylinders

    def has_slots(self, solids: list[Solid], *, keep: tuple[int, int] = (0, 0)) -> bool:
        """Whether there is place for all of these, with `keep` boxes and cylinders to spare: no piece is cut short."""
        boxes_left, cylinders_left = self.slots_left()
        cylinders = sum(solid.is_cylinder for solid in solids)
        return len(solids) - cylinders <= boxes_left - keep[0] and cylinders <= cylinders_left - keep[1]

    def free_place(self, busy: list[tuple[float, float]], length: float, width: float) -> float | None:
        """A place along a wall for something `width` wide; it is busy from then on. None where nothing is free."""
        for _ in range(6):
            along = float(self.rng.uniform(-0.5, 0.5) * (length - width - 0.1))
            low, high = along - width / 2 - 0.08, along + width / 2 + 0.08
            if width < length - 0.1 and all(high < begin or low > end for begin, end in busy):
                busy.append((low, high))
                return along
        return None

    def window(self, busy: list[tuple[float, float]], length: float) -> list[Solid]:
        """A window with its frame, a bar and a sill."""
        width, height, sill = self.rng.uniform(0.9, 1.6), self.rng.uniform(0.9, 1.3), self.rng.uniform(0.8, 1.0)
        along = self.free_place(busy, length, width)
        if along is None:
            return []
        frame = self.decorator.plain((0.6, 0.95))
        view = Material(
            (self.decorator.texture("outside"),), (0.8, 0.9, 1.0), 0.9, None, 0.2, self.rng.uniform(0.8, 2.0)
        )
        return [
            box(along, -0.015, sill + 0.06, width, 0.022, height, view),
            box(along, -0.01, sill, width + 0.12, 0.02, height + 0.12, frame),
            box(along, -0.02, sill + 0.06, 0.05, 0.025, height, frame),
            box(along, -0.07, sill - 0.03, width + 0.2, 0.14, 0.03, frame),
        ]

    def door(self, busy: list[tuple[float, float]], length: float) -> list[Solid]:
        """A closed door with its handle."""
        along = self.free_place(busy, length, 0.95)
        if along is None:
            return []
        handle = self.decorator.plain((0.05, 0.9), 0.6)
        return [
            box(along, -0.02, 0, 0.95, 0.04, 2.05, self.decorator.front()),
            box(along + 0.38, -0.06, 1.0, 0.12, 0.04, 0.025, handle),
        ]

    def pictures(self, busy: list[tuple[float, float]], length: float) -> list[Solid]:
        """One to three framed pictures."""
        parts = []
        for _ in range(int(self.rng.integers(1, 4))):
            width, height = self.rng.uniform(0.3, 0.9), self.rng.uniform(0.3, 0.8)
            along, z = self.free_place(busy, length, width), self.rng.uniform(1.2, 1.5)
            if along is not None:
                parts += [
                    box(along, -0.016, z, width, 0.024, height, self.decorator.picture()),
                    box(along, -0.012, z - 0.03, width + 0.06, 0.024, height + 0.06, self.decorator.wood()),
                ]
        return parts

    def add_openings(self, room: Rectangle) -> None:
        """Windows, a door and pictures on the walls of a room, where no doorway is."""
        budget = self.config.num_solids // (4 * len(self.rooms))
        frames = self.wall_frames(room)
        for wall in self.rng.permutation(4):
            R, middle, length = frames[wall]
            inner = (wall == 1 and room.x0 > 0) or (wall == 3 and room.x1 < self.size_m[0] - 1e-6)
            doorways = [R[:, 0] @ (doorway - middle) for doorway in self.doorways if abs(doorway[0] - middle[0]) < 0.1]
            busy = [(along - 0.6, along + 0.6) for along in doorways] if inner else []
            kind = self.rng.random()
            if not inner and kind < 0.4:
                parts = self.window(busy, length)
            elif not inner and kind < 0.5:
                parts = self.door(busy, length)
            else:
                parts = self.pictures(busy, length)
            if not parts or len(parts) > budget:
                continue
            budget -= len(parts)
            self.solids += [part.moved(R, middle) for part in parts]
            place = R @ (parts[0].center * [1, 0, 0]) + middle
            if parts[0].material.emission > 0:
                self.window_lights.append(place + R @ np.array([0.0, -0.35, parts[0].center[2]]))
            elif parts[0].half_size[2] > 1:  # a door: keep the floor before it free
                place = place + R @ np.array([0.0, -0.5, 0.0])
                self.taken.append(Rectangle(place[0] - 0.5, place[0] + 0.5, place[1] - 0.5, place[1] + 0.5))

    def add_ceiling_lamp(self, room: Rectangle) -> None:
        """A disc under the ceiling, and the light it gives."""
        x, y, z = (room.x0 + room.x1) / 2, (room.y0 + room.y1) / 2, self.size_m[2]
        x, y = x + self.rng.uniform(-0.3, 0.3), y + self.rng.uniform(-0.3, 0.3)
        glass = Material((self.decorator.texture("plaster"),), (0.95, 0.93, 0.88), 0.1, 0.5, 0.0, 2.0)
        self.solids.append(cylinder(x, y, z - 0.07, self.rng.uniform(0.12, 0.25), 0.07, glass))
        self.lamps.append(np.array([x, y, z - 0.2]))

    def add_center_piece(self, room: Rectangle) -> None:
        """A rug, and a table with chairs on it, where there is room to walk around them."""
        width, depth = room.x1 - room.x0, room.y1 - room.y0
        piece = CENTER_PIECES[self.rng.integers(len(CENTER_PIECES))](self.decorator)
        t = np.array([(room.x0 + room.x1) / 2, (room.y0 + room.y1) / 2, 0.0])
        t[:2] += self.rng.uniform(-0.25, 0.25, 2)
        R = turn_z(float(self.rng.choice([0.0, np.pi / 2])) + self.rng.normal(0, 0.05))
        foot = self.footprint(R, t, piece.width, piece.depth)
        if self.rng.random() < 0.6 and self.slots_left()[0] > 0:
            rug = replace_period(self.decorator.cloth() if self.rng.random() < 0.5 else self.decorator.pattern(), 1.2)
            self.solids.append(box(0, 0, 0, piece.width + 0.9, piece.depth + 0.8, 0.012, rug).moved(R, t))
        roomy = min(width - (foot.x1 - foot.x0), depth - (foot.y1 - foot.y0)) > 2.4
        if not roomy or not self.has_slots(piece.solids) or any(foot.overlaps(other) for other in self.taken):
            return
        self.place(piece, R, t)
        if piece.surfaces and piece.surfaces[0].center[2] > 0.6:
            for side in self.rng.permutation(4)[: self.rng.integers(1, 4)]:
                seat = chair(self.decorator)
                if not self.has_slots(seat.solids):
                    break
                out = [piece.depth / 2, piece.width / 2][side % 2] + self.rng.uniform(0.0, 0.2)
                R_seat = R @ turn_z(side * np.pi / 2 + self.rng.normal(0, 0.15))
                self.place(seat, R_seat, t + R @ turn_z(side * np.pi / 2) @ np.array([0.0, out, 0.0]))

    def add_wall_pieces(self, room: Rectangle, keep: tuple[int, int]) -> None:
        """Furniture along the walls, as long as `keep` boxes and cylinders are left for the rest of the home."""
        frames = self.wall_frames(room)
        for _ in range(80):
            make_piece = PIECES[self.rng.integers(len(PIECES))]
            R_wall, middle, length = frames[self.rng.integers(4)]
            piece = make_piece(self.decorator)
            if piece.width > length - 0.1 or not self.has_slots(piece.solids, keep=keep):
                continue
            R = R_wall @ turn_z(self.rng.normal(0, 0.01))
            for _ in range(4):
                along = self.rng.uniform(-0.5, 0.5) * (length - piece.width - 0.08)
                t = middle + R_wall @ np.array([along, -piece.depth / 2 - self.rng.uniform(0.02, 0.06), 0.0])
                foot = self.footprint(R, t, piece.width, piece.depth)
                if not any(foot.overlaps(other, gap=0.03) for other in self.taken):
                    self.place(piece, R, t)
                    break
            if self.slots_left()[0] - keep[0] < 3:
                return

    def add_clutter(self) -> None:
        """Small things on tables, boards and tops, until the home is full."""
        for _ in range(2 * sum(self.slots_left())):
            if self.surfaces:
                things = clutter(self.decorator, self.surfaces[self.rng.integers(len(self.surfaces))])
                if self.has_slots(things):
                    self.solids += things

    def lights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Positions, colours, radii and the ambient colour. A light that a home has no use for is dark."""
        position = np.tile(self.lamps[0], (NUM_LIGHTS, 1))
        rgb, radius = np.zeros((NUM_LIGHTS, 3)), np.full(NUM_LIGHTS, 0.1)
        warm, cool = np.array([1.0, 0.85, 0.65]), np.array([0.85, 0.95, 1.1])
        sources = [(lamp, warm, self.rng.uniform(0.05, 0.2), self.rng.uniform(1.5, 4.0)) for lamp in self.lamps]
        sources += [
            (window, cool, self.rng.uniform(0.25, 0.5), self.rng.uniform(1.0, 5.0)) for window in self.window_lights
        ]
        for slot, idx in enumerate(self.rng.permutation(len(sources))[:NUM_LIGHTS]):
            position[slot], color, radius[slot], strength = sources[idx]
            rgb[slot] = strength * color * self.rng.uniform(0.9, 1.1, 3)
        ambient = self.rng.uniform(0.15, 0.5) * self.rng.uniform(0.9, 1.1, 3)
        return position, rgb, radius, ambient

    def walkable(self) -> Bool[np.ndarray, "X Y"]:
        """The largest connected piece of floor that keeps clear of everything."""
        cells = np.ceil(self.size_m[:2] / CELL_M).astype(int)
        x, y = np.meshgrid(*((np.arange(count) + 0.5) * CELL_M for count in cells), indexing="ij")
        margin = CLEARANCE_M + CELL_M  # a path is smoothed afterwards and may leave its cell a little
        free = (x > margin) & (y > margin) & (x < self.size_m[0] - margin) & (y < self.size_m[1] - margin)
        for solid in self.solids[1:]:
            reach = np.abs(solid.R) @ solid.half_size
            if solid.center[2] + reach[2] < WALKING_SPACE_Z_M[0] or solid.center[2] - reach[2] > WALKING_SPACE_Z_M[1]:
                continue
            gap_x = np.maximum(np.abs(x[:, :1] - solid.center[0]) - reach[0], 0)
            gap_y = np.maximum(np.abs(y[:1] - solid.center[1]) - reach[1], 0)
            free &= gap_x * gap_x + gap_y * gap_y > margin * margin
        return largest_component(free)

    def build(self, seed: int) -> Home:
        """The whole home."""
        self.add_shell()
        self.add_inner_walls()
        for room in self.rooms:
            self.add_ceiling_lamp(room)
        for room in self.rooms:
            self.add_openings(room)
        for room in self.rooms:
            self.add_center_piece(room)
        for idx, room in enumerate(self.rooms):
            # Each room takes its share of what is left, and an eighth stays for small things.
            rooms_after = len(self.rooms) - idx - 1
            boxes, cylinders = (round(left * (rooms_after + 0.12) / (rooms_after + 1)) for left in self.slots_left())
            self.add_wall_pieces(room, keep=(boxes, cylinders))
        self.add_clutter()
        position, rgb, radius, ambient = self.lights()
        return Home(seed, self.solids, self.rooms, self.size_m, position, rgb, radius, ambient, self.walkable())


def replace_period(material: Material, period_m: float) -> Material:
    """The same material with a longer or shorter repeat."""
    return Material(material.textures, material.tint, material.contrast, period_m, material.gloss, material.emission)


def largest_component(free: Bool[np.ndarray, "X Y"]) -> Bool[np.ndarray, "X Y"]:
    """The largest set of cells that hang together by their sides."""
    # Labels stand in a frame of -1, so that every cell has four neighbours; no step of a sweep makes a new array.
    framed = np.full((free.shape[0] + 2, free.shape[1] + 2), -1)
    label = framed[1:-1, 1:-1]
    label[free] = np.flatnonzero(free)
    grown = np.empty_like(label)
    while True:  # each cell takes the largest label around it: a few dozen sweeps for a home
        np.maximum(framed[:-2, 1:-1], framed[2:, 1:-1], out=grown)
        np.maximum(grown, framed[1:-1, :-2], out=grown)
        np.maximum(grown, framed[1:-1, 2:], out=grown)
        np.maximum(grown, label, out=grown)
        grown[~free] = -1
        if np.array_equal(grown, label):
            break
        label[...] = grown
    if not free.any():
        return free
    return np.asarray(label == np.bincount(label[free]).argmax())


def make_home(seed: int, range_by_family: dict[str, range], config: LayoutConfig | None = None) -> Home:
    """A furnished home, the same for the same seed; one whose floor is too crowded to walk is drawn again."""
    config = config or LayoutConfig()
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        home = HomeBuilder(rng, range_by_family, config).build(seed)
        if home.walkable.sum() * CELL_M**2 > 1.5 + 0.5 * len(home.rooms):
            return home
    raise AssertionError(f"no walkable home in 100 attempts for seed {seed}: the layout's rules have become too tight")


def to_tensors(home: Home, config: LayoutConfig) -> Rooms:
    """A home as a batch of one for the ray caster, filled up with solids that no ray meets."""
    boxes = [solid for solid in home.solids if not solid.is_cylinder]
    cylinders = [solid for solid in home.solids if solid.is_cylinder]
    nothing = Material((0,), (0.0, 0.0, 0.0), 0.0, 1.0)
    filler = Solid(np.array([0.0, 0.0, -1e4]), np.full(3, 1e-3), nothing)
    slots = boxes + [filler] * (config.num_boxes - len(boxes))
    slots += cylinders + [filler] * (config.num_cylinders - len(cylinders))
    rng = np.random.default_rng([home.seed, 1])

    def stacked(rows: list[np.ndarray] | list[float] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(rows, dtype=np.float32))[None]

    whole = [solid.material.period_m is None for solid in slots]
    scale = [
        np.full(3, 0.5) if solid.material.period_m is None else solid.half_size / solid.material.period_m
        for solid in slots
    ]
    for slot, solid in enumerate(slots):
        if solid.is_cylinder:  # a whole number of repeats around, so that no seam shows
            period_m = solid.material.period_m
            around = 1.0 if period_m is None else max(1.0, np.round(2 * np.pi * solid.half_size[0] / period_m))
            scale[slot] = np.array([around / (2 * np.pi), scale[slot][1], scale[slot][2]])
    offset = np.where(np.array(whole)[:, None], np.array([0.5, 0.5, 0.0]), rng.random((len(slots), 3)))
    textures = [solid.material.textures * (6 // len(solid.material.textures)) for solid in slots]
    return Rooms(
        unit_from_room=stacked([solid.R.T / solid.half_size[:, None] for solid in slots]),
        center=stacked([solid.center for solid in slots]),
        reach_m=stacked([np.abs(solid.R) @ solid.half_size for solid in slots]),
        thickness_m=stacked([2 * float(solid.half_size.min()) for solid in slots]),
        casts_shadow=stacked([float(slot > 0 and solid.material.emission < 0.5) for slot, solid in enumerate(slots)]),
        face_texture=torch.tensor(textures, dtype=torch.int32)[None],
        texture_scale=stacked(scale),
        texture_offset=stacked(offset),
        tint=stacked([np.array(solid.material.tint) for solid in slots]),
        contrast=stacked([solid.material.contrast for solid in slots]),
        emission=stacked([solid.material.emission for solid in slots]),
        gloss=stacked([solid.material.gloss for solid in slots]),
        is_cylinder=stacked([float(slot >= config.num_boxes) for slot in range(len(slots))]),
        light_position=stacked(home.light_position),
        light_rgb=stacked(home.light_rgb),
        light_radius_m=stacked(home.light_radius_m),
        ambient_rgb=stacked(home.ambient_rgb),
    )
