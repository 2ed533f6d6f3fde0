"""Work that a GPU does again and again, recorded once and asked for as a whole.

A network is hundreds or thousands of small kernels, and Python takes longer to ask for them than a GPU to run them.
Their order and sizes are the same for all arguments of one kind, so they are recorded once as a CUDA graph.
"""

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Record = Callable[[Callable[[], Any], torch.device, Any], tuple[Callable[[], None], Any, Any]]

WARM_UP_CALLS = 3
"""Of each kind before it is recorded: what is chosen, compiled or allocated once must be so before."""
MOST_RECORDINGS = 32
"""That are kept, each with memory of its own for its arguments; the one that was not asked for the longest goes."""


_ONE_RECORDING = Lock()
"""A process can make one at a time."""


def record_on_gpu(
    work: Callable[[], Result], device: torch.device, pool: Any
) -> tuple[Callable[[], None], Result, Any]:
    """What replays some work, where its results then lie, and the memory that it shares with other recordings."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may ask the GPU for something meanwhile.
    with (
        _ONE_RECORDING,
        torch.cuda.device(device),
        torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"),
    ):
        result = work()
    return graph.replay, result, graph.pool()


class Replayed(Generic[Result]):
    """Some work that is recorded for each kind of its arguments (their sizes, and what is no tensor), then replayed."""

    def __init__(self, plain: Callable[..., Result], record: Record = record_on_gpu) -> None:
        self.plain, self._record, self._pool = plain, record, None
        self._times_seen: Counter[Hashable] = Counter()
        self._recordings: OrderedDict[Hashable, tuple[list[Tensor], Callable[[], None], Result]] = OrderedDict()
        self._one_at_a_time = Lock()

    def __call__(self, *arguments: Any) -> Result:
        tensors: list[Tensor] = []
        kind = described(arguments, tensors)
        with self._one_at_a_time:
            self._times_seen[kind] += 1
            if self._times_seen[kind] <= WARM_UP_CALLS:
                return self.plain(*arguments)
            if kind not in self._recordings:
                self._recordings[kind] = self._recorded(arguments)
                if len(self._recordings) > MOST_RECORDINGS:
                    self._recordings.popitem(last=False)
            self._recordings.move_to_end(kind)
            inputs, replay, result = self._recordings[kind]
            torch._foreach_copy_(inputs, tensors)
            replay()
            # The next replay writes over what this one gives.
            return with_tensors(result, torch.clone)  # type: ignore[no-any-return]  # the same type

    def before_recording(self) -> None:
        """What has to happen before work is recorded."""

    def _recorded(self, arguments: tuple[Any, ...]) -> tuple[list[Tensor], Callable[[], None], Result]:
        inputs: list[Tensor] = []
        kept = with_tensors(arguments, torch.clone)
        described(kept, inputs)
        self.before_recording()
        replay, result, self._pool = self._record(lambda: self.plain(*kept), inputs[0].device, self._pool)
        return inputs, replay, result


def described(value: Any, tensors: list[Tensor]) -> Hashable:
    """What a value is but for the numbers in its tensors, which are added to the list in a fixed order."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return (value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, tuple | list):
        return tuple(described(part, tensors) for part in value)
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return (type(value), *((name, described(part, tensors)) for name, part in vars(value).items()))
    return value  # type: ignore[no-any-return]  # a number, a text or nothing


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(with_tensors(part, change) for part in value)
    if hasattr(value, "__dict__") and not isinstance(value, type):
        changed = copy.copy(value)
        vars(changed).update({name: with_tensors(part, change) for name, part in vars(value).items()})
        return changed
    return value
