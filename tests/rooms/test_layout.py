"""Homes: real sizes, connected rooms, furniture that stands apart, a floor that can be walked."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import ndimage
from tiny_rooms import LAYOUT, RANGE_BY_FAMILY

from relograph.errors import ConfigError
from relograph.rooms.furniture import (
    CENTER_PIECES,
    PIECES,
    Decorator,
    Piece,
    Solid,
    bed,
    chair,
    clutter,
    coffee_table,
    cupboard,
    desk,
    sofa,
    table,
    turn_z,
)
from relograph.rooms.layout import (
    CELL_M,
    CLEARANCE_M,
    WALKING_SPACE_Z_M,
    HomeBuilder,
    LayoutConfig,
    Rectangle,
    largest_component,
    make_home,
    to_tensors,
)
from relograph.rooms.seven_rooms import LAYOUT as SEVEN_ROOMS_LAYOUT

EVERY_PIECE = sorted({*PIECES, *CENTER_PIECES, chair}, key=lambda make: make.__name__)


def decorator(seed: int) -> Decorator:
    return Decorator(np.random.default_rng(seed), RANGE_BY_FAMILY)


def extent(solids: list[Solid]) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the upright box around solids."""
    reach = np.array([np.abs(solid.R) @ solid.half_size for solid in solids])
    center = np.array([solid.center for solid in solids])
    return (center - reach).min(axis=0), (center + reach).max(axis=0)


class WatchedBuilder(HomeBuilder):
    """Builds as ever, and remembers which solids make up which piece."""

    def place(self, piece: Piece, R: np.ndarray, t: np.ndarray) -> None:
        super().place(piece, R, t)
        self.__dict__.setdefault("pieces", []).append(self.solids[-len(piece.solids) :])


# Furniture


@pytest.mark.parametrize(
    ("make", "lowest_m", "highest_m"),
    [(table, 0.70, 0.80), (desk, 0.70, 0.80), (coffee_table, 0.30, 0.50)],
)
def test_tables_have_the_heights_of_tables(make, lowest_m, highest_m):
    for seed in range(20):
        surface = make(decorator(seed)).surfaces[0]
        assert lowest_m <= surface.center[2] <= highest_m


@pytest.mark.parametrize(
    ("make", "smallest_m", "largest_m"),
    [
        (table, (1.0, 0.6, 0.7), (1.8, 1.0, 0.8)),
        (chair, (0.35, 0.35, 0.75), (0.5, 0.5, 1.1)),
        (sofa, (1.3, 0.7, 0.7), (2.2, 1.0, 1.0)),
        (bed, (0.9, 1.9, 0.7), (1.8, 2.2, 1.3)),
        (cupboard, (0.5, 0.3, 0.6), (1.5, 0.7, 2.2)),
    ],
)
def test_furniture_has_the_size_of_furniture(make, smallest_m, largest_m):
    for seed in range(20):
        low, high = extent(make(decorator(seed)).solids)
        assert (high - low >= smallest_m).all()
        assert (high - low <= largest_m).all()


@pytest.mark.parametrize("make", EVERY_PIECE)
def test_a_piece_stands_on_the_floor_within_its_own_footprint(make):
    for seed in range(20):
        piece = make(decorator(seed))
        low, high = extent(piece.solids)
        assert -1e-9 <= low[2] <= 0.1  # some have feet that are not drawn
        assert high[2] < 2.3
        # Handles stick out a little: less than the gap that pieces keep.
        half = np.array([piece.width, piece.depth]) / 2 + 0.025
        assert (low[:2] >= -half).all()
        assert (high[:2] <= half).all()


@pytest.mark.parametrize("make", [make for make in EVERY_PIECE if make(decorator(0)).surfaces])
def test_small_things_lie_on_a_surface_and_not_in_the_air(make):
    for seed in range(10):
        d = decorator(seed)
        piece = make(d)
        for surface in piece.surfaces:
            # Something of the piece ends at the surface's height, below its middle.
            tops = [
                solid
                for solid in piece.solids
                if abs(solid.center[2] + solid.half_size[2] - surface.center[2]) < 0.02
                and (np.abs(surface.center - solid.center)[:2] <= solid.half_size[:2] + 1e-9).all()
            ]
            assert tops
            low, high = extent(clutter(d, surface))
            assert_allclose(low[2], surface.center[2], atol=1e-9)
            assert high[2] - low[2] < 0.4


def test_moving_a_solid_moves_its_corners_with_it():
    piece = sofa(decorator(0))
    R, t = turn_z(0.7), np.array([1.0, -2.0, 0.5])
    corner = np.array([1.0, -1.0, 1.0])
    for solid in piece.solids:
        moved = solid.moved(R, t)
        before = solid.center + solid.R @ (corner * solid.half_size)
        assert_allclose(moved.center + moved.R @ (corner * moved.half_size), R @ before + t)


# Homes


def test_a_seed_means_one_home():
    first, again, other = (make_home(seed, RANGE_BY_FAMILY) for seed in (7, 7, 8))
    assert_array_equal(to_tensors(first, LAYOUT).center, to_tensors(again, LAYOUT).center)
    assert_array_equal(to_tensors(first, LAYOUT).texture_offset, to_tensors(again, LAYOUT).texture_offset)
    assert not np.array_equal(first.size_m, other.size_m)


def test_rooms_have_the_size_of_rooms_and_fill_the_home(homes):
    for home in homes:
        assert 2.4 <= home.size_m[2] <= 2.8
        edges = [0.0, *(room.x1 for room in home.rooms)]
        assert_allclose(edges[-1], home.size_m[0])
        for room, x0 in zip(home.rooms, edges, strict=False):
            assert_allclose(room.x0, x0)
            assert 2.5 < room.x1 - room.x0 < 6
            assert 3 < room.y1 - room.y0 < 6


def test_homes_have_one_to_three_rooms_mostly_one():
    counts = [len(make_home(seed, RANGE_BY_FAMILY).rooms) for seed in range(40)]
    assert set(counts) == {1, 2, 3}
    assert counts.count(1) > counts.count(2) > counts.count(3)


@pytest.mark.parametrize("max_rooms", [1, 2])
def test_a_home_has_no_more_rooms_than_allowed(max_rooms):
    config = LayoutConfig(max_rooms=max_rooms)
    assert max(len(make_home(seed, RANGE_BY_FAMILY, config).rooms) for seed in range(12)) == max_rooms


@pytest.mark.parametrize("config", [LAYOUT, SEVEN_ROOMS_LAYOUT, LayoutConfig(num_boxes=20, num_cylinders=4)])
def test_a_home_keeps_to_its_number_of_solids_and_uses_most_of_it(config):
    used = []
    for seed in range(10):
        home = make_home(seed, RANGE_BY_FAMILY, config)
        num_cylinders = sum(solid.is_cylinder for solid in home.solids)
        assert num_cylinders <= config.num_cylinders
        assert len(home.solids) - num_cylinders <= config.num_boxes
        assert to_tensors(home, config).center.shape == (1, config.num_solids, 3)
        used.append(len(home.solids) / config.num_solids)
    assert np.mean(used) > 0.8


def test_no_piece_is_cut_short():
    for seed in range(15):
        builder = WatchedBuilder(np.random.default_rng([seed, 0]), RANGE_BY_FAMILY, LAYOUT)
        home = builder.build(seed)
        kept = {id(solid) for solid in home.solids}
        assert all(id(solid) in kept for piece in builder.pieces for solid in piece)


def test_furniture_stands_apart():
    num_pairs = 0
    for seed in range(15):
        builder = WatchedBuilder(np.random.default_rng([seed, 0]), RANGE_BY_FAMILY, SEVEN_ROOMS_LAYOUT)
        builder.build(seed)
        # Chairs stand partly under their table, on purpose: two or three solids each, 0.42 m wide.
        corners = [extent(piece) for piece in builder.pieces if not is_chair(piece)]
        for i, (low_a, high_a) in enumerate(corners):
            for low_b, high_b in corners[:i]:
                shared = np.minimum(high_a, high_b)[:2] - np.maximum(low_a, low_b)[:2]
                assert shared.min() <= 0.02, f"seed {seed}: two pieces share {shared} m of floor"
                num_pairs += 1
    assert num_pairs > 100


def is_chair(piece: list[Solid]) -> bool:
    return any(np.allclose(solid.half_size, [0.21, 0.21, 0.02]) for solid in piece)


def test_everything_is_inside_the_home(homes):
    for home in homes:
        low, high = extent(home.solids[1:])
        assert (low > -0.03).all()  # a long piece stands a hundredth askew
        assert (high < home.size_m + 0.03).all()


def test_nothing_stands_in_a_doorway(homes):
    for home in homes:
        for room in home.rooms[1:]:
            # The lintel is the box that hangs in the wall; below it, as wide as it is, the way is free.
            (lintel,) = [
                solid
                for solid in home.solids[1:]
                if abs(solid.center[0] - room.x0) < 1e-6 and solid.center[2] - solid.half_size[2] > 2
            ]
            middle, half_width = lintel.center[1], lintel.half_size[1]
            assert 0.4 < half_width < 0.6
            for solid in home.solids[1:]:
                low, high = extent([solid])
                across = low[0] < room.x0 + 0.3 and high[0] > room.x0 - 0.3
                within = low[1] < middle + half_width - 0.01 and high[1] > middle - half_width + 0.01
                assert not (across and within and 0.05 < high[2] < 2.05)


def test_every_light_hangs_inside_the_home_and_at_least_one_is_on(homes):
    for home in homes:
        assert (home.light_position > 0).all()
        assert (home.light_position < home.size_m).all()
        assert (home.light_rgb.sum(axis=1) > 0).any()
        assert (home.light_radius_m > 0).all()


# The floor


def test_the_walkable_floor_is_one_piece(homes):
    for home in homes:
        assert ndimage.label(home.walkable)[1] == 1


def test_every_room_can_be_reached_through_a_doorway(homes):
    for home in homes:
        x = home.cell_centers()[:, 0]
        for room in home.rooms:
            inside = (x > room.x0 + 0.1) & (x < room.x1 - 0.1)
            assert inside.sum() * CELL_M**2 > 0.5
        for room in home.rooms[1:]:
            assert (np.abs(x - room.x0) < CELL_M).any()  # cells in the doorway itself


def test_walkable_cells_keep_clear_of_everything_between_knee_and_head(homes):
    for home in homes:
        cells = home.cell_centers()
        for solid in home.solids[1:]:
            low, high = extent([solid])
            if high[2] < WALKING_SPACE_Z_M[0] or low[2] > WALKING_SPACE_Z_M[1]:
                continue
            gap = np.maximum(np.maximum(low[:2] - cells, cells - high[:2]), 0)
            assert np.linalg.norm(gap, axis=1).min() > CLEARANCE_M
        assert (cells > CLEARANCE_M).all()
        assert (cells < home.size_m[:2] - CLEARANCE_M).all()


def test_the_largest_of_several_pieces_of_floor_is_found():
    rng = np.random.default_rng(0)
    for _ in range(10):
        free = rng.random((30, 40)) < 0.6
        label, count = ndimage.label(free)
        largest = max(range(1, count + 1), key=lambda idx: (label == idx).sum())
        assert largest_component(free).sum() == (label == largest).sum()
        assert (label[largest_component(free)] == label[largest_component(free)][0]).all()
    assert not largest_component(np.zeros((3, 3), dtype=bool)).any()


# Tensors


def test_corners_of_a_solid_are_corners_of_its_unit_box(homes):
    for home in homes[:3]:
        rooms = to_tensors(home, LAYOUT)
        boxes = [solid for solid in home.solids if not solid.is_cylinder]
        for slot, solid in enumerate(boxes):
            corner = solid.center + solid.R @ (np.array([1, -1, 1]) * solid.half_size)
            unit = rooms.unit_from_room[0, slot].double().numpy() @ (corner - rooms.center[0, slot].double().numpy())
            assert_allclose(unit, [1, -1, 1], atol=1e-3)  # centimetre slabs in a room of metres, in float32


def test_solids_lie_within_their_reach(homes):
    for home in homes[:3]:
        rooms = to_tensors(home, LAYOUT)
        for slot, solid in enumerate(solid for solid in home.solids if not solid.is_cylinder):
            low, high = extent([solid])
            assert_allclose(rooms.center[0, slot] - rooms.reach_m[0, slot], low, atol=1e-5)
            assert_allclose(rooms.center[0, slot] + rooms.reach_m[0, slot], high, atol=1e-5)


def test_textures_of_a_home_are_in_the_atlas(homes, atlas):
    for home in homes:
        textures = to_tensors(home, LAYOUT).face_texture
        assert textures.min() >= 0
        assert textures.max() < atlas.num_textures


def test_a_cylinder_has_a_whole_number_of_repeats_around(homes):
    # Otherwise a seam runs down every bottle.
    seen = 0
    for home in homes:
        rooms = to_tensors(home, LAYOUT)
        for solid, scale in zip(
            (solid for solid in home.solids if solid.is_cylinder),
            rooms.texture_scale[0, LAYOUT.num_boxes :],
            strict=False,
        ):
            if solid.material.period_m is not None:
                repeats = float(scale[0]) * 2 * np.pi
                assert_allclose(repeats, round(repeats), atol=1e-4)
                seen += 1
    assert seen > 20


def test_photographs_are_used_where_there_are_some():
    with_photos = {**RANGE_BY_FAMILY, "photo": range(100, 110)}
    textures = [to_tensors(make_home(seed, with_photos), LAYOUT).face_texture for seed in range(5)]
    assert any((texture >= 100).any() for texture in textures)


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"num_boxes": 10},
        {"num_cylinders": 1},
        {"max_rooms": 0},
        {"max_rooms": 4},
        {"num_boxes": 250, "num_cylinders": 9},  # a solid's number is kept in one byte
    ],
)
def test_impossible_homes_are_refused(options):
    with pytest.raises(ConfigError) as caught:
        LayoutConfig(**options)
    assert "\n" not in str(caught.value)


def test_rectangles_overlap_if_they_share_floor_or_come_too_near():
    rectangle = Rectangle(0.0, 1.0, 0.0, 1.0)
    assert rectangle.overlaps(Rectangle(0.9, 2.0, 0.9, 2.0))
    assert not rectangle.overlaps(Rectangle(1.1, 2.0, 0.0, 1.0))
    assert rectangle.overlaps(Rectangle(1.1, 2.0, 0.0, 1.0), gap=0.2)
    assert rectangle.overlaps(Rectangle(0.4, 0.6, -1.0, 2.0))


def test_walls_and_floors_show_photographs_where_there_are_some() -> None:
    with_photos = {**RANGE_BY_FAMILY, "photo": range(1000, 1010)}
    shells = [make_home(seed, with_photos, LAYOUT).solids[0].material.textures for seed in range(30)]
    walls, floors = [texture for shell in shells for texture in shell[:4]], [shell[4] for shell in shells]
    assert 0.02 < np.mean(np.array(walls) >= 1000) < 0.4
    assert 0.1 < np.mean(np.array(floors) >= 1000) < 0.6
    assert all(shell[5] < 1000 for shell in shells)  # no ceiling
