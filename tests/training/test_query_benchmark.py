"""The ways of running one query: each of them is measured, and each of them answers the same."""

import torch

from relograph.training.benchmark import query_speeds


def test_every_way_of_running_a_query_answers_what_the_plain_network_answers():
    speeds = query_speeds(device=torch.device("cpu"), channels=16, image_hw=(32, 40), repeats=3)
    assert [speed.runtime for speed in speeds] == ["eager", "eager, folded"]
    assert [(speed.channels, speed.image_height, speed.image_width) for speed in speeds] == [(16, 32, 40)] * 2
    plain, folded = speeds
    assert plain.difference_from_eager == 0
    assert 0 < folded.difference_from_eager < 1e-4  # other roundings, so it was another network that answered
    assert all(0 < speed.milliseconds_median <= speed.milliseconds_p95 for speed in speeds)
