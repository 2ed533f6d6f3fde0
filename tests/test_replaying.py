"""Work that is recorded and replayed gives what Python would have given."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from relograph import replaying
from relograph.replaying import WARM_UP_CALLS, Replayed, with_tensors


@dataclass(frozen=True)
class Sum:
    """What the work gives."""

    value: Tensor
    times: int


def work(numbers: Tensor, times: int) -> Sum:
    return Sum(times * numbers.sum(), times)


def played_again(work: Callable[[], Sum], device: torch.device, pool: Any) -> tuple[Callable[[], None], Sum, Any]:
    """A recording without a GPU: it reads its arguments, and what it gives lies, always in the same place."""
    place = with_tensors(work(), torch.zeros_like)

    def replay() -> None:
        place.value.copy_(work().value)

    return replay, place, pool


def test_answers_stay_what_they_were_when_others_are_asked_for() -> None:
    replayed = Replayed(work, played_again)
    answers = [replayed(torch.full((3,), float(number)), 2) for number in range(WARM_UP_CALLS + 4)]
    assert [float(answer.value) for answer in answers] == [6.0 * number for number in range(WARM_UP_CALLS + 4)]
    assert {answer.times for answer in answers} == {2}
    assert len(replayed._recordings) == 1


def test_the_recording_that_was_not_asked_for_the_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "MOST_RECORDINGS", 2)
    replayed = Replayed(work, played_again)
    for times in (1, 2, 1, 3, 1):
        for _ in range(WARM_UP_CALLS + 1):
            assert float(replayed(torch.ones(2), times).value) == 2 * times
    assert [kind[1] for kind in replayed._recordings] == [3, 1]  # type: ignore[index]  # the arguments' kinds
    assert float(replayed(torch.ones(2), 2).value) == 4  # recorded anew


def test_threads_get_their_own_answers() -> None:
    replayed = Replayed(work, played_again)
    wrong = []

    def ask(number: float) -> None:
        for _ in range(200):
            if float(replayed(torch.full((3,), number), 1).value) != 3 * number:
                wrong.append(number)

    threads = [Thread(target=ask, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_replays_the_same_work() -> None:
    replayed = Replayed(work)
    for number in range(WARM_UP_CALLS + 4):
        assert float(replayed(torch.full((3,), float(number), device="cuda"), 2).value) == 6.0 * number
    assert len(replayed._recordings) == 1
