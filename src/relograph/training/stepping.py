"""One step of a training: loss, gradient, Adam; and the same replayed by a GPU without Python.

A step of MatchGNN is thousands of small kernels, and Python takes longer to ask for them than a GPU to run them. Their
order and sizes are the same in every step, so they are recorded once as a CUDA graph, which is asked for as a whole.
"""

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relograph.training.objective import Objective, clip_gradients

if TYPE_CHECKING:
    from lightning.fabric import Fabric

WARM_UP_STEPS = 3
"""Of each kind before it is recorded: what is chosen, compiled or allocated once must be so before."""


@dataclass(frozen=True)
class Stepped:
    """What came of a step."""

    loss: Tensor
    was_skipped: Tensor
    """1 where a gradient was no number, and the weights stayed as they were; 0 where not."""
    watched: Mapping[str, Tensor]
    """What the objective follows."""


@dataclass(frozen=True)
class Step:
    """A step as Python takes it."""

    objective: Objective
    differentiated: Callable[..., Tensor]
    """The objective as Lightning wraps it."""
    optimizer: torch.optim.Adam
    wrapped_optimizer: Any
    fabric: "Fabric"
    gradient_clip: float

    def __call__(self, *arguments: Any) -> Stepped:
        loss = self.differentiated(*arguments)
        return Stepped(loss.detach(), self.learn(loss), self.objective.watched())

    def learn(self, loss: Tensor) -> Tensor:
        """Change the weights by the gradient of a loss; 1 where they were left as they are."""
        self.wrapped_optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if not self.gradient_clip:
            self.wrapped_optimizer.step()
            return torch.zeros((), device=loss.device)
        norms = clip_gradients(self.objective, self.gradient_clip)
        # One graph in a million may have no gradient, and must not end a training of hours.
        is_bad = (~torch.isfinite(norms)).any().float()
        if self.optimizer.defaults["fused"]:
            self.optimizer.found_inf = is_bad  # type: ignore[attr-defined]  # as torch's GradScaler does; the GPU decides
            self.wrapped_optimizer.step()
        elif not is_bad:
            self.wrapped_optimizer.step()
        return is_bad


def record_on_gpu(work: Callable[[], Stepped], pool: Any) -> tuple[Callable[[], None], Stepped, Any]:
    """What replays some work, where its results then lie, and the memory that it shares with other recordings."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph.replay, result, graph.pool()


class ReplayedStep:
    """A step that is recorded for each kind of batch (its sizes, and what in it is no tensor), and then replayed."""

    def __init__(
        self,
        step: Step,
        record: Callable[[Callable[[], Stepped], Any], tuple[Callable[[], None], Stepped, Any]] = record_on_gpu,
    ) -> None:
        self.plain, self._record, self._pool = step, record, None
        self._times_seen: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, tuple[list[Tensor], Callable[[], None], Stepped]] = {}

    def __call__(self, *arguments: Any) -> Stepped:
        tensors: list[Tensor] = []
        kind = described(arguments, tensors)
        self._times_seen[kind] += 1
        if self._times_seen[kind] <= WARM_UP_STEPS:
            return self.plain(*arguments)
        if kind not in self._recordings:
            inputs: list[Tensor] = []
            kept = with_tensors(arguments, torch.clone)
            described(kept, inputs)
            self.plain.wrapped_optimizer.zero_grad(set_to_none=True)  # gradients are to lie in the recording's memory
            replay, result, self._pool = self._record(lambda: self.plain(*kept), self._pool)
            self._recordings[kind] = (inputs, replay, result)
        inputs, replay, result = self._recordings[kind]
        torch._foreach_copy_(inputs, tensors)
        replay()
        # The next replay writes over what this one gives.
        return replace(result, loss=result.loss.clone(), was_skipped=result.was_skipped.clone())


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
