"""Contact sheets: photos of one colour each, found again in their places."""

import colorsys
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import DatasetError
from relograph.evaluation.contact_sheet import draw_neighbours, graph_row, short_name
from relograph.geometry import Pose
from relograph.graphs import PosedImages

NUM_FRAMES = 12
COLORS = [[round(255 * part) for part in colorsys.hsv_to_rgb(idx / NUM_FRAMES, 1, 1)] for idx in range(NUM_FRAMES)]


@pytest.fixture
def frames() -> PosedImages:
    """Twelve photos of different colours, whose cameras stand a metre apart."""
    return PosedImages(
        images=torch.tensor(COLORS, dtype=torch.uint8)[:, None, None].expand(-1, 24, 32, -1).contiguous(),
        T_world_cam=Pose.from_axis_angle(
            torch.zeros(NUM_FRAMES, 3), torch.arange(NUM_FRAMES)[:, None] * torch.eye(3)[0]
        ),
        scene_idx=torch.zeros(NUM_FRAMES, dtype=torch.long),
        sequence_idx=torch.zeros(NUM_FRAMES, dtype=torch.long),
        in_map=torch.ones(NUM_FRAMES, dtype=torch.bool),
        names=tuple(f"heads/seq-01/frame-{idx:06d}.color.png" for idx in range(NUM_FRAMES)),
        scene_names=("heads",),
    )


def places_of(path, idx: int) -> list[tuple[int, int]]:
    """The middles (x, y) of all places where a photo stands, a row at a time."""
    with Image.open(path) as picture:
        pixels = np.array(picture.convert("RGB")).astype(int)
    there = np.abs(pixels - COLORS[idx]).max(axis=-1) <= 3
    middles = []
    for first, last in _runs(there.sum(axis=1) > 20):
        for left, right in _runs(there[(first + last) // 2]):
            if right - left > 20:
                middles.append(((left + right) // 2, (first + last) // 2))
    return middles


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Where the mask is true without a break: first and one past the last."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return list(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))


def test_a_query_has_a_row_for_each_way_of_choosing_with_its_references_in_their_order(frames, tmp_path):
    rows_by_label = {
        "stride 1": torch.tensor([[0, 1, 2, 3], [6, 5, 4, 3]]),
        "stride 5": torch.tensor([[0, 1, 8, 9], [6, 5, 10, 11]]),
    }
    draw_neighbours(frames, rows_by_label, tmp_path / "sheet.png")
    places = {idx: places_of(tmp_path / "sheet.png", idx) for idx in range(NUM_FRAMES)}
    assert {idx: len(found) for idx, found in places.items()} == {
        0: 2,
        1: 2,
        2: 1,
        3: 2,
        4: 1,
        5: 2,
        6: 2,
        7: 0,
        8: 1,
        9: 1,
        10: 1,
        11: 1,
    }
    # Four rows, from top to bottom; in each the columns from left to right are the same.
    sheet = [[0, 1, 2, 3], [0, 1, 8, 9], [6, 5, 4, 3], [6, 5, 10, 11]]
    heights = sorted({y for found in places.values() for _, y in found})
    assert len(heights) == 4
    columns = []
    for row, y in zip(sheet, heights, strict=True):
        columns.append([next(x for x, at in places[idx] if at == y) for idx in row])
        assert columns[-1] == sorted(columns[-1])
    assert_allclose(columns, [columns[0]] * 4, atol=2)


def test_a_reference_that_is_not_there_leaves_its_place_empty(frames, tmp_path):
    draw_neighbours(frames, {"stride 1": torch.tensor([[3, 1, -1, -1]])}, tmp_path / "short.png")
    draw_neighbours(frames, {"stride 1": torch.tensor([[3, 1, 2, 4]])}, tmp_path / "full.png")
    for name in ("short.png", "full.png"):
        assert [len(places_of(tmp_path / name, idx)) for idx in (3, 1)] == [1, 1]
    assert places_of(tmp_path / "short.png", 1) == places_of(tmp_path / "full.png", 1)
    # Neither the first nor the last photo, which -1 would be as an index.
    assert not any(places_of(tmp_path / "short.png", idx) for idx in range(NUM_FRAMES) if idx not in (1, 3))


def test_below_a_reference_stands_how_far_it_is_from_the_query(frames):
    turned = Pose.from_axis_angle([0.0, math.radians(30), 0.0], frames.T_world_cam.t[5] + 0.25)
    T_world_cam = Pose.cat([frames.T_world_cam[:5], turned.to(torch.float32).reshape(1), frames.T_world_cam[6:]])
    row = graph_row(replace(frames, T_world_cam=T_world_cam), [3, 5, 2, -1], "stride 1", begins_group=False)
    # sqrt(2.25^2 + 0.25^2 + 0.25^2) = 2.2776
    assert row.captions == ["seq-01/frame-000003", "2.28 m, 30°", "1.00 m, 0°", "none"]


def test_the_more_photos_on_a_sheet_the_smaller_each_of_them(frames, tmp_path):
    rows = torch.arange(8).expand(10, 8)
    draw_neighbours(frames, {"stride 1": rows, "stride 5": rows}, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        assert 0.7e6 < picture.width * picture.height < 0.82e6  # a PNG of photographs then has about 1 MB
    assert len(places_of(tmp_path / "sheet.png", 3)) == 20


@pytest.mark.parametrize("rows_by_label", [{}, {"stride 1": torch.zeros(0, 8, dtype=torch.long)}])
def test_a_sheet_of_nothing_is_refused_in_one_line(frames, tmp_path, rows_by_label):
    with pytest.raises(DatasetError, match="found none") as caught:
        draw_neighbours(frames, rows_by_label, tmp_path / "sheet.png")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("others", [[[1, 2]], [[0, 2], [1, 2]], [[5, 2], [0, 1]]])
def test_ways_of_choosing_for_other_queries_are_refused(frames, tmp_path, others):
    with pytest.raises(DatasetError, match="same queries in the same order for all of stride 1, stride 5") as caught:
        draw_neighbours(
            frames,
            {"stride 1": torch.tensor([[0, 1], [5, 2]]), "stride 5": torch.tensor(others)},
            tmp_path / "sheet.png",
        )
    assert "\n" not in str(caught.value)


def test_a_sheet_replaces_the_one_before_whole(frames, tmp_path):
    (tmp_path / "sheet.png").write_text("old")
    draw_neighbours(frames, {"stride 1": torch.tensor([[0, 1]])}, tmp_path / "sheet.png")
    assert places_of(tmp_path / "sheet.png", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_a_place_that_cannot_be_written_to_is_one_clear_line_and_no_litter(frames, tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(DatasetError, match=r"file/sheet\.png") as caught:
        draw_neighbours(frames, {"stride 1": torch.tensor([[0, 1]])}, tmp_path / "file/sheet.png")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("frame", "short"),
    [
        ("GreatCourt/seq1/frame00001.png", "seq1/frame00001"),
        ("photo.jpg", "photo"),
        ("home/.hidden", "home/.hidden"),
        ("home/walk/a very long name of a photograph.jpg", "… name of a photograph"),
    ],
)
def test_names_are_cut_to_what_tells_frames_apart(frame, short):
    assert short_name(frame) == short
