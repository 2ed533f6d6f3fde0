"""The benchmark of the network: its rows describe what was run, and what it counts. How fast it is, is not tested."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relograph.models import ModelConfig, build_model
from relograph.training import benchmark
from relograph.training.benchmark import ENCODER_GMAC, GRAPH_GMAC, PAPER_IMAGE_HW

CPU = torch.device("cpu")


def test_the_encoders_multiply_adds_are_those_that_torch_counts() -> None:
    with torch.device("meta"):
        encoder = build_model(ModelConfig()).encoder.eval()
        images = torch.empty(8, *PAPER_IMAGE_HW, 3)
    with FlopCounterMode(display=False) as counter:
        encoder(images)
    assert counter.get_total_flops() / 2e9 == pytest.approx(ENCODER_GMAC, rel=0.01)


def test_the_graph_networks_multiply_adds_are_those_of_every_layer_on_every_edge() -> None:
    # In units of C^2, per directed edge: 2 at the start, and in each of two rounds 3 + 1 for the edge, 2 + 1 for the
    # message and 4 / 8 for its attention; per node and round 2 + 1.
    in_c2 = 56 * (2 + 2 * (4 + 3 + 0.5)) + 8 * 2 * 3
    assert in_c2 * 2048**2 / 1e9 == pytest.approx(GRAPH_GMAC, rel=0.01)


def test_a_training_row_says_what_was_run_and_counts_from_it() -> None:
    speed = benchmark.training_speed(
        1, device=CPU, channels=16, image_hw=(32, 40), runtime="eager", bf16_teraflops=2.0, steps=1
    )
    assert (speed.runtime, speed.batch_size, speed.channels) == ("eager", 1, 16)
    assert (speed.image_height, speed.image_width) == (32, 40)
    gmac = ENCODER_GMAC * (32 * 40) / (256 * 341) + GRAPH_GMAC * (16 / 2048) ** 2
    # Forward, and twice as much backward, at two operations a multiply-add.
    assert speed.teraflops == pytest.approx(3 * 2 * gmac * speed.graphs_per_second / 1e3)
    assert speed.share_of_measured_bf16_rate == pytest.approx(speed.teraflops / 2.0)


def test_the_table_shows_every_row() -> None:
    rows = [
        {
            "what": "training step",
            "batch_size": 32,
            "runtime": "compiled",
            "graphs_per_second": 1234.5,
            "share_of_measured_bf16_rate": 0.417,
        },
        {"what": "query", "runtime": "CUDA graph", "milliseconds_median": 0.456, "milliseconds_p95": 0.789},
    ]
    lines = benchmark.network_table(rows, 700.25).splitlines()
    assert "| training step | 32 | compiled | 1234 graphs/s | 42 % |" in lines
    assert "| query | 1 | CUDA graph | 0.46 ms (p95 0.79) | |" in lines
    assert lines[-1] == "Measured bf16 rate of one large matrix product: 700.2 TFLOP/s."
