"""Steps that are recorded and replayed are the steps that Python takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relograph.replaying import WARM_UP_CALLS, described, with_tensors
from relograph.training.config import OptimConfig
from relograph.training.loop import make_fabric, make_optimizer, make_step, set_learning_rate
from relograph.training.objective import Objective
from relograph.training.stepping import ReplayedStep, Step, Stepped


@dataclass(frozen=True)
class Told:
    """A batch as deep as those of rooms."""

    x: Tensor
    y: Tensor
    kind: str


class Line(Objective):
    """y = a x, with a loss that knows two kinds of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.5]))
        self._latest = torch.zeros(())

    def watched(self) -> dict[str, Tensor]:
        return {"error": self._latest}

    def forward(self, told: Told) -> Tensor:
        error = self.slope * told.x - told.y
        self._latest = error.detach().abs().mean()
        return error.square().mean() if told.kind == "square" else error.abs().mean()


def played_again(
    work: Callable[[], Stepped], device: torch.device, pool: Any
) -> tuple[Callable[[], None], Stepped, Any]:
    """A recording without a GPU: what it gives lies always in the same place, and nothing happens while it is made."""
    places = Stepped(torch.zeros(()), torch.zeros(()), {"error": torch.zeros(())})

    def replay() -> None:
        stepped = work()
        places.loss.copy_(stepped.loss)
        places.was_skipped.copy_(stepped.was_skipped)
        places.watched["error"].copy_(stepped.watched["error"])

    return replay, places, (pool or 0) + 1


def batches(count: int) -> list[Told]:
    generator = torch.Generator().manual_seed(0)
    return [
        Told(torch.randn(4, generator=generator), torch.randn(4, generator=generator), ("square", "plain")[i % 3 == 0])
        for i in range(count)
    ]


def step_of(device: str, *, replay: bool) -> Step | ReplayedStep:
    optim = OptimConfig(learning_rate=0.1, weight_decay=0.0, gradient_clip=1.0, precision="float32", replay=replay)
    objective = Line().to(device)
    return make_step(optim, objective, make_optimizer(objective, optim), make_fabric(device, "float32"))


def trained(take_step: Step | ReplayedStep, told: list[Told]) -> tuple[list[float], list[float]]:
    plain = take_step.plain if isinstance(take_step, ReplayedStep) else take_step
    losses, errors = [], []
    for number, batch in enumerate(told):
        set_learning_rate(plain.optimizer, 0.1 / (1 + number))
        stepped = take_step(batch)
        losses.append(stepped.loss)
        errors.append(float(stepped.watched["error"]))
    return [float(loss) for loss in losses], errors


def test_replayed_steps_are_those_of_python() -> None:
    plain, recorded = step_of("cpu", replay=False), step_of("cpu", replay=False)
    assert isinstance(plain, Step)
    assert isinstance(recorded, Step)
    told = batches(30)
    replayed = ReplayedStep(recorded, played_again)
    assert trained(replayed, told) == trained(plain, told)
    assert torch.equal(plain.objective.slope, recorded.objective.slope)
    assert len(replayed._recordings) == 2


def test_a_step_is_recorded_when_its_kind_has_come_some_times() -> None:
    made = []

    def record(work: Callable[[], Stepped], device: torch.device, pool: Any) -> tuple[Callable[[], None], Stepped, Any]:
        made.append(pool)
        return played_again(work, device, pool)

    step = step_of("cpu", replay=False)
    assert isinstance(step, Step)
    replayed = ReplayedStep(step, record)
    square = [batch for batch in batches(30) if batch.kind == "square"]
    for batch in square[:WARM_UP_CALLS]:
        replayed(batch)
    assert made == []
    for batch in square[WARM_UP_CALLS:]:
        replayed(batch)
    assert made == [None]
    longer = Told(torch.ones(5), torch.ones(5), "square")
    for _ in range(WARM_UP_CALLS + 2):
        replayed(longer)
    assert made == [None, 1]  # the second shares the memory of the first


def test_what_a_batch_is_but_for_its_numbers() -> None:
    first, second, *_ = (batch for batch in batches(5) if batch.kind == "square")
    tensors: list[Tensor] = []
    assert described((first,), tensors) == described((second,), [])
    assert [id(tensor) for tensor in tensors] == [id(first.x), id(first.y)]
    assert described((first,), []) != described((Told(first.x, first.y, "plain"),), [])
    assert described((first,), []) != described((Told(first.x[:3], first.y, "square"),), [])
    doubled = with_tensors([(first, None, 3)], lambda tensor: 2 * tensor)
    assert torch.equal(doubled[0][0].x, 2 * first.x)
    assert doubled[0][1:] == (None, 3)
    assert first.x is not doubled[0][0].x


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_replays_the_same_steps() -> None:
    told = [Told(batch.x.cuda(), batch.y.cuda(), batch.kind) for batch in batches(30)]
    plain, replayed = step_of("cuda", replay=False), step_of("cuda", replay=True)
    assert isinstance(replayed, ReplayedStep)
    torch.testing.assert_close(trained(replayed, told), trained(plain, told))
