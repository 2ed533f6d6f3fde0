"""The benchmark of rooms: its rows describe what was rendered. How fast it is, is not tested."""

import torch

from relograph.rooms import benchmark, textures
from relograph.rooms.layout import LayoutConfig
from relograph.rooms.photograph import Effects
from relograph.rooms.seven_rooms import SIZES, RecordingSize
from relograph.rooms.textures import FAMILY_SIZES


def test_a_row_says_what_was_rendered(atlas):
    row = benchmark.rendering_speed(torch.device("cpu"), atlas, Effects(), "all", height=12, width=16, count=2)
    assert (row.effects, row.height, row.width, row.images_per_batch) == ("all", 12, 16, 2)
    assert row.solids == LayoutConfig().num_solids
    assert row.images_per_second > 0


def test_the_views_are_spread_over_homes(atlas):
    rooms, views = benchmark.spread_views(LayoutConfig(), atlas, 12, 16, 4)
    assert len(rooms.center) == len(views.center) == 4
    assert len(rooms.center[:, 0].unique(dim=0)) == 4


def test_on_a_cpu_seven_rooms_are_made_and_counted(monkeypatch):
    monkeypatch.setitem(SIZES, "small", RecordingSize(24, 32, every=500))
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))
    monkeypatch.setattr(benchmark, "num_cores", lambda: 1)
    (row,) = benchmark.benchmark_rooms("cpu", num_rooms=1)
    assert (row.rooms, row.images, row.workers) == (1, 6, 1)
    assert row.images_per_second > 0
