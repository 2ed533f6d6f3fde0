"""A step of training never asks the device for a value: on a GPU that would wait for all that it still has to do.

Torch's device `meta` has shapes and no values. Whatever looks at one raises there, and so does what mixes devices. A
copy from the host's pageable memory waits too; those are told by the function that asked for them.
"""

import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import relograph
from relograph.geometry import Pose
from relograph.models.match_gnn import MatchGNN
from relograph.rooms import RoomStream, textures
from relograph.rooms.textures import TextureAtlas
from relograph.rooms.world import sent
from relograph.training.loop import RunningMean
from relograph.training.match_training import shown_in_step
from relograph.training.matching import MatchObjective
from relograph.training.objective import clip_gradients
from relograph.training.presets import MATCHGNN_TINY

NOWHERE = torch.device("meta")
PACKAGE = str(Path(relograph.__file__).parent)


@pytest.fixture(autouse=True)
def _autocast_that_knows_of_devices_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # torch's own knows no such device


class CopiesFromTheHost(TorchDispatchMode):
    """Remembers which functions copied something to the device that lay in the host's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.copied_by: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source, target = (args[0], given.get("device")) if len(args) == 1 else (args[1], args[0].device)
            if source.device.type == "cpu" and target == NOWHERE:
                frame = sys._getframe()
                while not frame.f_code.co_filename.startswith(PACKAGE):
                    frame = frame.f_back
                self.copied_by.add(frame.f_code.co_name)
        return function(*args, **given)


def test_a_copy_from_the_host_is_seen() -> None:
    with CopiesFromTheHost() as seen:
        sent(torch.zeros(3), NOWHERE)
    assert seen.copied_by == {"sent"}
    with CopiesFromTheHost() as seen:
        Pose.identity(2).to("meta")
    assert seen.copied_by == {"to"}


def test_what_looks_at_a_value_raises_there() -> None:
    values = torch.empty(3, device=NOWHERE)
    with pytest.raises((RuntimeError, NotImplementedError)):
        values.sum().item()
    with pytest.raises((RuntimeError, NotImplementedError)):
        values[values > 0]


def test_a_step_looks_at_no_value(few_textures: TextureAtlas) -> None:
    stream = replace(
        MATCHGNN_TINY.stream,
        portrait_share=1.0,  # what others need, and more
        turned_share=1.0,
        grey_share=0.5,
        spoilt_share=0.5,
        useless_share=0.1,
        elsewhere_share=0.1,
        nearest_share=0.5,
        same_lens_share=0.5,
        homes_renewed_per_batch=2,
    )
    objective = MatchObjective(MatchGNN(MATCHGNN_TINY.model)).to(NOWHERE)
    mean = RunningMean(objective, 0.9)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
    batches = iter(RoomStream(stream, device=NOWHERE, atlas=few_textures))
    next(batches)  # its textures and first homes are sent once
    with CopiesFromTheHost() as seen:
        for step, batch in enumerate(islice(batches, 1)):
            assert batch.images.is_meta
            loss = objective(shown_in_step(MATCHGNN_TINY, batch, step))
            loss.backward()
            clip_gradients(objective, 1.0)
            optimizer.step()
            mean.take(step)
    assert seen.copied_by == {"sent"}  # through locked memory, for which nobody waits
    assert loss.is_meta
    assert all(weight.is_meta for weight in objective.parameters())


def test_textures_are_made_without_mixing_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ("leaves", "glyphs", "painting")  # a hundred leaves each
    quick = {family: 1 for family in textures.FAMILY_SIZES if family not in slow}
    monkeypatch.setattr(textures, "FAMILY_SIZES", quick)
    assert textures.make_atlas(0, device=NOWHERE).texels.is_meta
