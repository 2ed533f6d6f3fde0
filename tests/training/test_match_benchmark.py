"""The benchmark of MatchGNN: its rows describe what was run. How fast it is, is not tested."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.models.match_gnn import MatchGNN
from relograph.rooms.textures import TextureAtlas
from relograph.training.match_benchmark import match_table, match_training_speed
from relograph.training.presets import MATCHGNN_TINY

CPU = torch.device("cpu")


def test_a_training_row_says_what_was_run_and_counts_from_it(few_textures: TextureAtlas) -> None:
    speed = match_training_speed(
        MATCHGNN_TINY, device=CPU, atlas=few_textures, runtime="eager", bf16_teraflops=2.0, steps=1, warm_up_steps=0
    )
    assert (speed.runtime, speed.batch_size, speed.unseen_graphs) == ("eager", 2, 2)
    assert (speed.image_height, speed.image_width) == (48, 64)
    assert speed.host_waits is None  # there is no GPU to wait for
    flops_of_step = 2 * speed.gigaflops_per_graph * 1e9
    assert speed.milliseconds_floor == pytest.approx(1e3 * flops_of_step / 2e12)
    with FlopCounterMode(display=False) as counter:
        MatchGNN(MATCHGNN_TINY.model).encode(torch.zeros(3, 48, 64, 3))
    encoding = counter.get_total_flops()  # of the three images of a graph; a gradient costs twice as much again
    assert 2.5 * encoding < flops_of_step / 2 < 6 * encoding


def test_rows_are_kept_as_soon_as_they_are_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["bench", "match", "--preset", "matchgnn-tiny", "--output", str(tmp_path / "speeds.json")]
    )
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "speeds.json").read_text())
    assert [(row["part"], row["runtime"]) for row in written["results"]] == [
        ("encode, describe", "eager"),
        ("match, regress, settle", "eager"),
        ("whole query", "eager"),
        ("solve (CPU)", "lenses known"),
        ("solve (CPU)", "query's focal length unknown"),
    ]
    assert written["results"][2]["difference_from_eager"] == 0
    assert written["metadata"]["seed"] == 0
    assert "| whole query | eager | " in done.stdout
    assert "| solve (CPU) | lenses known | " in done.stdout


def test_the_table_shows_every_row() -> None:
    rows = [
        {
            "what": "query",
            "part": "whole query",
            "runtime": "CUDA graph",
            "milliseconds_median": 2.251,
            "milliseconds_p95": 3.0,
        },
        {
            "what": "training step",
            "runtime": "compiled",
            "batch_size": 32,
            "graphs_per_second": 456.7,
            "milliseconds_rendering": 20.04,
            "milliseconds_loss": 15.5,
            "milliseconds_gradient": 30.0,
            "milliseconds_floor": 11.11,
            "host_waits": 0,
        },
    ]
    lines = match_table(rows).splitlines()
    assert "| whole query | CUDA graph | 2.25 ms | 3.00 ms |" in lines
    assert "| compiled | 32 | 457 | 20.0 ms | 15.5 ms | 30.0 ms | 11.1 ms | 0 |" in lines
