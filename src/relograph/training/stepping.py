"""One step of a training: loss, gradient, Adam; and the same replayed by a GPU without Python."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relograph.replaying import Replayed
from relograph.training.objective import Objective, clip_gradients

if TYPE_CHECKING:
    from lightning.fabric import Fabric


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


class ReplayedStep(Replayed[Stepped]):
    """A step that is recorded for each kind of batch, and then replayed."""

    plain: Step

    def before_recording(self) -> None:
        """Gradients are to lie in the recording's memory."""
        self.plain.wrapped_optimizer.zero_grad(set_to_none=True)
