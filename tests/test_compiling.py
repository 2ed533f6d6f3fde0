"""What is compiled for a GPU: for every size that comes, and once for all who use it."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo import config

from relograph.compiling import MOST_KINDS, compiled
from relograph.models.match_kernels import MatchKernels
from relograph.rooms.photograph import Darkroom
from relograph.rooms.raycast import Kernels


def test_a_function_is_compiled_for_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit torch runs a function as it is, and says nothing."""
    asked: list[dict[str, object]] = []

    def compile(function: Callable[[int], int], **settings: object) -> Callable[[int], int]:
        asked.append(settings)
        return function

    def twice(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(torch, "compile", compile)
    with config.patch(recompile_limit=8):
        assert compiled(twice)(3) == 6
        assert compiled(twice, realize_reads_threshold=5)(4) == 8
        assert config.recompile_limit == MOST_KINDS
    assert asked == [{"dynamic": False, "options": None}, {"dynamic": False, "options": {"realize_reads_threshold": 5}}]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it loads its compiler
@pytest.mark.parametrize("kernels", [Kernels, Darkroom, MatchKernels])
def test_all_who_use_a_gpu_share_what_is_compiled(kernels: type[Kernels | Darkroom | MatchKernels]) -> None:
    """Functions that were compiled apart would each be compiled anew."""
    assert kernels.on("cuda") is kernels.on(torch.device("cuda", 0))
    assert kernels.on("cuda") != kernels.on("cpu")
