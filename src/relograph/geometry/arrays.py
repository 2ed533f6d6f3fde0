"""What counts as an array at the border of the package, and how it becomes a tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Nested = NDArray[Any] | Sequence[Any]
"""A numpy array or nested lists of numbers: what users hold before they hold a tensor."""


def as_float_tensor(values: Tensor | Nested, device: torch.device | None = None) -> Tensor:
    """The values as a floating-point tensor; floating tensors and arrays keep their precision, the rest is float64.

    A tensor comes back as it is, gradients and all; everything else is copied, so that a frozen `Pose` does not change
    when the array it was made from does.
    """
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else values.to(torch.float64)
    array = np.array(values)
    kept = array.dtype in (np.float32, np.float64)
    return torch.tensor(array if kept else array.astype(np.float64), device=device)
