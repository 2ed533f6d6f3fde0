"""Percentiles are values that were measured, and the largest only where so many are asked for."""

from relograph.percentiles import percentile


def test_percentiles_are_values_that_were_measured():
    hundred = [float(value) for value in range(1, 101)]
    assert (percentile(hundred, 50), percentile(hundred, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)


def test_of_twenty_values_one_is_above_the_95th_percentile():
    assert percentile([float(value) for value in range(20, 0, -1)], 95) == 19.0
