"""Percentiles of what was measured, such as the seconds of many queries."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that so many of them do not exceed.

    Example:
        >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile([4.0, 1.0, 3.0, 2.0], 99)
        (2.0, 4.0)
    """
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
