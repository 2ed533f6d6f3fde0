"""The benchmark of rooms: its rows describe what was rendered. How fast it is, is not tested."""

import pytest
import torch

from relograph.errors import ConfigError
from relograph.rooms import benchmark, textures
from relograph.rooms.layout import LayoutConfig
from relograph.rooms.seven_rooms import SIZES, RecordingSize
from relograph.rooms.textures import FAMILY_SIZES


def test_a_row_says_what_was_rendered(atlas):
    rooms, views = benchmark.spread_views(LayoutConfig(), atlas, 12, 16, 2)
    row = benchmark.rendering_speed(torch.device("cpu"), atlas, "all", rooms, views, height=12, width=16)
    assert (row.effects, row.height, row.width, row.images_per_batch) == ("all", 12, 16, 2)
    assert row.solids == LayoutConfig().num_solids
    assert row.images_per_second > 0


def test_the_views_are_spread_over_homes(atlas):
    rooms, views = benchmark.spread_views(LayoutConfig(), atlas, 12, 16, 4)
    assert len(rooms.center) == len(views.center) == 4
    assert len(rooms.center[:, 0].unique(dim=0)) == 4


def test_rows_are_chosen_by_effects_and_by_size():
    assert benchmark.chosen_rows([], []) == list(benchmark.ALL_ROWS)
    assert benchmark.chosen_rows(["none"], []) == [("none", (192, 256)), ("none", (256, 341))]
    assert benchmark.chosen_rows(["all", "none"], ["240x320"]) == [("all", (240, 320)), ("none", (240, 320))]
    assert len(benchmark.chosen_rows([], ["240x320"])) == len(benchmark.EFFECTS)


@pytest.mark.parametrize(
    ("effects", "sizes", "said"),
    [
        (["all but noises"], [], "--effects: expected one of .*found 'all but noises'. Did you mean 'all but noise'?"),
        ([], ["256"], "--size: expected height and width like 256x341, found '256'"),
    ],
)
def test_rows_that_are_not_there_are_told(effects, sizes, said):
    with pytest.raises(ConfigError, match=said):
        benchmark.chosen_rows(effects, sizes)


def test_on_a_gpu_each_row_is_kept_as_it_is_measured(atlas, monkeypatch):
    monkeypatch.setattr(benchmark, "make_atlas", lambda seed: atlas)
    monkeypatch.setattr(benchmark, "IMAGES_PER_BATCH", 2)
    kept = []
    rows = benchmark.chosen_rows(["none", "all but shadows"], ["12x16"])
    # A CPU by another name takes the road of a GPU.
    measured = benchmark.benchmark_rooms("cpu:0", rows=rows, keep=lambda rows: kept.append(len(rows)))
    assert [(row.effects, row.height, row.width) for row in measured] == [
        ("none", 12, 16),
        ("all but shadows", 12, 16),
    ]
    assert kept == [1, 2]
    table = benchmark.benchmark_table([vars(row) for row in measured]).splitlines()
    assert [line.split("|")[4].strip() for line in table[2:]] == ["", ""]  # there is nothing to compare them with


def test_on_a_cpu_seven_rooms_are_made_and_counted(monkeypatch):
    monkeypatch.setitem(SIZES, "small", RecordingSize(24, 32, every=500))
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))
    monkeypatch.setattr(benchmark, "num_cores", lambda: 1)
    (row,) = benchmark.benchmark_rooms("cpu", num_rooms=1)
    assert (row.rooms, row.images, row.workers) == (1, 6, 1)
    assert row.images_per_second > 0
