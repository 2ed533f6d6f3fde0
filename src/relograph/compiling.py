"""Functions that torch compiles into few kernels of a GPU."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST_KINDS = 64
"""Of arguments that a function is compiled for. Beyond torch's own 8 it would be run as it is, without a word."""


def compiled(function: Callable[Arguments, Result], **options: int | bool) -> Callable[Arguments, Result]:
    """The function, compiled at its first call with each kind of arguments: their sizes, and what is no tensor.

    `options` are the compiler's own.
    """
    from torch._dynamo import config  # takes seconds, which only those pay who compile

    config.recompile_limit = max(config.recompile_limit, MOST_KINDS)
    compiled: Callable[Arguments, Result] = torch.compile(function, dynamic=False, options=dict(options) or None)
    return compiled
