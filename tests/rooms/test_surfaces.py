"""Surfaces: pictures hang upright and unmirrored on every wall, paint has its colour, screens shine."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tiny_rooms import GRAY, HEIGHT, LAYOUT, SIZE_M, WIDTH, home_of, light_of, looking
from torch import Tensor

from relograph.rooms.furniture import Material, Solid, box, cylinder, turn_z
from relograph.rooms.layout import to_tensors
from relograph.rooms.textures import TEXTURE_SIZE, TextureAtlas, pack_texels

RED, GREEN, BLUE, WHITE = ([255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255])
PICTURE = Material((0,), (0.0, 0.0, 0.0), 1.0, None)
"""One copy of the texture, stretched over each face."""
SIDES = {"+x": (1, 0), "-x": (-1, 0), "+y": (0, 1), "-y": (0, -1)}


@pytest.fixture(scope="module")
def four_colours() -> TextureAtlas:
    """Red, green / blue, white: top left, top right / bottom left, bottom right."""
    half = TEXTURE_SIZE // 2
    corners = torch.tensor([[RED, GREEN], [BLUE, WHITE]], dtype=torch.uint8)  # [2, 2, 3]
    tile = corners.permute(2, 0, 1).repeat_interleave(half, dim=1).repeat_interleave(half, dim=2)
    return TextureAtlas(pack_texels(tile[None]), 1, {})


def seen_colours(light: Tensor, *, reach: tuple[int, int] = (4, 4)) -> list[list[list[int]]]:
    """Which of the four colours is seen above left, above right, below left and below right of the middle."""
    palette = torch.tensor([RED, GREEN, BLUE, WHITE], dtype=torch.float32)
    dy, dx = reach
    at = [[light[HEIGHT // 2 + sy * dy, WIDTH // 2 + sx * dx] for sx in (-1, 1)] for sy in (-1, 1)]
    return [
        [palette[(palette / 255 - color / color.max()).abs().sum(dim=1).argmin()].int().tolist() for color in row]
        for row in at
    ]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("turn_rad", [0.0, 0.4])
def test_a_picture_on_a_box_is_upright_and_not_mirrored(four_colours, side, turn_rad):
    cupboard = box(0.0, 0.0, 0.0, 0.8, 0.8, 1.6, PICTURE).moved(turn_z(turn_rad), np.array([2.0, 1.5, 0.4]))
    out = turn_z(turn_rad) @ np.array([*SIDES[side], 0.0])
    views = looking(np.array([2.0, 1.5, 1.2]) + 1.2 * out, -out, focal_px=16)
    assert seen_colours(light_of(to_tensors(home_of(cupboard), LAYOUT), views, four_colours)) == [
        [RED, GREEN],
        [BLUE, WHITE],
    ]


@pytest.mark.parametrize("side", SIDES)
def test_a_picture_on_a_wall_is_upright_and_not_mirrored(four_colours, side):
    home = home_of()
    home = replace(home, solids=[Solid(SIZE_M / 2, SIZE_M / 2, PICTURE)])
    views = looking(SIZE_M / 2, (*SIDES[side], 0), focal_px=16)
    assert seen_colours(light_of(to_tensors(home, LAYOUT), views, four_colours)) == [[RED, GREEN], [BLUE, WHITE]]


def test_a_label_goes_once_around_a_bottle_upright_and_not_mirrored():
    # Red, green, blue from left to right above, white below: seen from outside, green is right of red all around.
    tile = torch.zeros(3, TEXTURE_SIZE, TEXTURE_SIZE, dtype=torch.uint8)
    for third, color in enumerate((RED, GREEN, BLUE)):
        tile[:, :, third * 85 : (third + 1) * 86] = torch.tensor(color, dtype=torch.uint8)[:, None, None]
    tile[:, TEXTURE_SIZE // 2 :] = 255
    radius_m, height_m = 0.4, 1.6
    label = Material((0,), (0.0, 0.0, 0.0), 1.0, 2 * np.pi * radius_m)
    rooms = to_tensors(home_of(cylinder(2.0, 1.5, 0.4, radius_m, height_m, label)), LAYOUT)
    # The label starts at a random height; here it is to be cut in the bottle's middle.
    rooms.texture_offset[:, LAYOUT.num_boxes, 1] = 0.5
    atlas = TextureAtlas(pack_texels(tile[None]), 1, {})
    changes = set()
    for angle in np.linspace(0, 2 * np.pi, 12, endpoint=False):
        out = np.array([np.cos(angle), np.sin(angle), 0.0])
        above, below = seen_colours(light_of(rooms, looking(np.array([2.0, 1.5, 1.2]) + out, -out), atlas))
        assert below == [WHITE, WHITE]
        changes.add((str(above[0]), str(above[1])))
    changes -= {(str(color), str(color)) for color in (RED, GREEN, BLUE)}
    assert changes == {(str(RED), str(GREEN)), (str(GREEN), str(BLUE)), (str(BLUE), str(RED))}


def test_a_picture_lies_on_a_table_unmirrored(four_colours):
    table = box(2.0, 1.5, 0.0, 1.0, 1.0, 0.7, PICTURE)
    views = looking((2.0, 1.5, 2.0), (0, 0, -1), up=(0, 1, 0))
    assert seen_colours(light_of(to_tensors(home_of(table), LAYOUT), views, four_colours)) == [
        [RED, GREEN],
        [BLUE, WHITE],
    ]


def test_a_repeating_texture_has_its_period(four_colours):
    # Every 0.5 m: along 1 m of wall two periods, four changes of colour or three with the ends cut.
    wall = box(3.9, 1.5, 0.0, 0.1, 2.9, 2.4, replace(PICTURE, period_m=0.5))
    views = looking((2.85, 1.5, 1.2), (1, 0, 0), focal_px=WIDTH)  # 1 m of wall is as wide as the image
    row = light_of(to_tensors(home_of(wall), LAYOUT), views, four_colours)[HEIGHT // 2]
    blue_part = (row[:, 2] / row.sum(dim=1)) if row[:, 2].max() > row[:, 1].max() else row[:, 0] / row.sum(dim=1)
    lit = blue_part > blue_part.mean()
    assert int((lit[1:] != lit[:-1]).sum()) in (3, 4)


def test_paint_without_texture_has_its_own_colour(four_colours):
    paint = Material((0,), (0.6, 0.3, 0.1), 0.0, 1.0)
    wall = box(3.9, 1.5, 0.0, 0.1, 2.9, 2.4, paint)
    light = light_of(to_tensors(home_of(wall), LAYOUT), looking((2.0, 1.5, 1.2), (1, 0, 0), focal_px=30), four_colours)
    ratio = light[HEIGHT // 2, WIDTH // 2] / light[HEIGHT // 2, WIDTH // 2, 0]
    assert_allclose(ratio, [1, 0.5, 1 / 6], rtol=1e-3)


def test_a_screen_shines_in_the_dark(four_colours):
    def brightness(emission: float) -> float:
        screen = box(3.9, 1.5, 0.8, 0.1, 1.0, 0.8, replace(GRAY, emission=emission))
        home = replace(home_of(screen, light_rgb=(0, 0, 0)), ambient_rgb=np.zeros(3))
        views = looking((2.0, 1.5, 1.2), (1, 0, 0), focal_px=30)
        return float(light_of(to_tensors(home, LAYOUT), views, four_colours)[HEIGHT // 2, WIDTH // 2].mean())

    assert brightness(0.0) < 1e-6
    assert_allclose(brightness(1.0), 0.5, rtol=1e-3)  # half of it: the screen is grey


def test_gloss_adds_a_highlight_where_the_lamp_is_mirrored_and_nowhere_else(four_colours):
    def light(gloss: float) -> Tensor:
        floor = box(2.0, 1.5, 0.0, 3.9, 2.9, 0.01, replace(GRAY, gloss=gloss))
        # Lamp and camera stand 1 m to either side of the middle at the same height: the mirror image is in the middle.
        home = home_of(floor, light_position=(3.0, 1.5, 1.01))
        return light_of(to_tensors(home, LAYOUT), looking((1.0, 1.5, 1.01), (1, 0, -1), up=(0, 0, 1)), four_colours)

    added = (light(0.5) - light(0.0)).mean(dim=-1)
    row, column = divmod(int(added.argmax()), WIDTH)
    assert abs(row + 0.5 - HEIGHT / 2) <= 2
    assert abs(column + 0.5 - WIDTH / 2) <= 1
    assert added.min() >= -1e-6
    assert added[:, 0].max() < 0.02 * added.max()
