"""What is told of a process is its own."""

import numpy as np

from relograph.processes import in_a_process, peak_memory_mb

BALLAST_MB = 300


def peaks_with_ballast_mb() -> list[float]:
    before = peak_memory_mb()
    ballast = np.ones(BALLAST_MB * 1_000_000, dtype=np.uint8)
    return [before, peak_memory_mb(), float(ballast[-1])]


def test_the_peak_of_a_new_process_is_none_of_its_parents():
    ballast = np.ones(BALLAST_MB * 1_000_000, dtype=np.uint8)
    parent = peak_memory_mb()
    before, after, _ = in_a_process(peaks_with_ballast_mb)
    assert ballast[-1] == 1
    assert before < parent - 0.5 * BALLAST_MB
    assert after - before > 0.9 * BALLAST_MB
