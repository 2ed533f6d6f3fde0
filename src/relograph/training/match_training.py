"""Training MatchGNN on rooms without end, from random weights or from an earlier round's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from relograph.configuration import config_to_dict
from relograph.errors import ConfigError
from relograph.geometry import pose_error
from relograph.models.checkpoint import load_checkpoint, load_into
from relograph.models.match_gnn import CONTEXT_STRIDE, MatchConfig, MatchGNN
from relograph.progress import SILENT, Progress
from relograph.results import command_line, provenance
from relograph.rooms import RoomStream, StreamBatch, StreamConfig
from relograph.rooms.room_maps import FIRST_SEED
from relograph.rooms.textures import TextureAtlas, make_atlas
from relograph.training.config import OptimConfig
from relograph.training.loop import TrainingState, run_loop
from relograph.training.matching import MatchLossConfig, MatchObjective
from relograph.training.sources import generator_for

if TYPE_CHECKING:
    from lightning.fabric import Fabric

REFERENCES_SHOWN, LENSES_TOLD = 10, 11  # uses of randomness of their own; the others are numbered in sources.py
VALIDATION_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class MatchTrainConfig:
    """One round of training MatchGNN."""

    model: MatchConfig = field(default_factory=MatchConfig)
    loss: MatchLossConfig = field(default_factory=MatchLossConfig)
    stream: StreamConfig = field(
        default_factory=lambda: StreamConfig(
            image_height=240,
            image_width=320,
            graphs_per_batch=32,
            overlap=(0.05, 0.9),
            num_homes=256,
            views_per_home=64,
            useless_share=0.1,
            elsewhere_share=0.05,
            portrait_share=0.25,
            any_roll_share=0.1,
        )
    )
    easy_overlap: float = 0.4
    """Least overlap at the beginning; it falls to the stream's own over the first third of the steps."""
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            learning_rate=4e-4,
            weight_decay=0.0,
            batch_size=32,
            epochs=20,
            steps_per_epoch=500,
            schedule="cosine",
            warmup_steps=200,
            gradient_clip=1.0,
            patience=0,
        )
    )
    seed: int = 0
    """Of weights, rooms and what is shown of them."""

    def __post_init__(self) -> None:
        if self.stream.image_height % CONTEXT_STRIDE or self.stream.image_width % CONTEXT_STRIDE:
            raise ConfigError(
                f"stream.image_height and stream.image_width must be multiples of {CONTEXT_STRIDE}, got "
                f"{self.stream.image_height} and {self.stream.image_width}."
            )


@dataclass(frozen=True)
class MatchSource:
    """Batches of rooms that come once and never again, from much overlap to little."""

    config: MatchTrainConfig
    device: torch.device
    atlas: TextureAtlas
    rank: int = 0
    world_size: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps between two validations."""
        return self.config.optim.steps_per_epoch or 500

    def stream(self, seed: int) -> RoomStream:
        """The rooms of a seed, this process's share of a batch at a time."""
        graphs = self.config.optim.batch_size // self.world_size
        config = replace(self.config.stream, graphs_per_batch=graphs, seed=seed)
        return RoomStream(config, device=self.device, atlas=self.atlas)

    def least_overlap(self, step: int) -> float:
        """The overlap that neighbours have at least in a step."""
        hardest, easiest = self.config.stream.overlap[0], self.config.easy_overlap
        done = min(1.0, 3 * step / max(1, self.config.optim.epochs * self.steps_per_epoch))
        return easiest + done * (hardest - easiest)

    def batches(self, first_step: int) -> Iterator[StreamBatch]:
        """This process's share of every step's batch. After a restart other rooms come."""
        mixed = self.config.seed + 1_000_003 * first_step + 7919 * self.rank
        stream = self.stream(FIRST_SEED["training"] + mixed % FIRST_SEED["validation"])
        step = first_step
        stream.least_overlap = self.least_overlap(step)
        for batch in stream:
            yield batch
            step += 1
            stream.least_overlap = self.least_overlap(step)

    def frame_names(self, step: int) -> list[str]:
        """What this process sees in a step, for a message."""
        return [f"RoomStream with seed {self.config.seed}, step {step}"]


def references_shown(num_graphs: int, num_references: int, *, seed: int, step: int) -> Bool[Tensor, "B R"]:
    """Which references a step shows: all in half of the graphs, and in the others any number from one on."""
    generator = generator_for(seed, REFERENCES_SHOWN, step)
    number = torch.randint(1, num_references + 1, (num_graphs,), generator=generator)
    number[torch.rand(num_graphs, generator=generator) < 0.5] = num_references
    return torch.arange(num_references) < number[:, None]


def train_match_gnn(
    config: MatchTrainConfig,
    output: Path,
    *,
    fabric: "Fabric",
    start: Path | None = None,
    photographs: Path | None = None,
    progress: Progress = SILENT,
) -> TrainingState:
    """A round of training; `start` is the checkpoint of an earlier one. Validation is on rooms of another part."""
    torch.manual_seed(config.seed)
    objective = MatchObjective(MatchGNN(config.model), config.loss)
    if start is not None:
        load_into(objective, load_checkpoint(start).tensors, where=str(start))
    atlas = make_atlas(FIRST_SEED["training"] + config.seed, photographs=photographs, progress=progress)
    source = MatchSource(config, fabric.device, atlas, fabric.global_rank, fabric.world_size)

    def loss_of(differentiated: Callable[..., Tensor], batch: StreamBatch, step: int) -> Tensor:
        told = torch.rand((), generator=generator_for(config.seed, LENSES_TOLD, step)) < config.loss.known_intrinsics
        num_graphs, num_nodes = batch.overlap.shape
        shown = references_shown(num_graphs, num_nodes - 1, seed=config.seed, step=step).to(batch.overlap.device)
        return differentiated(batch, shown, tell_lenses=bool(told))

    metadata = {
        "config": config_to_dict(config),
        "start": None if start is None else load_checkpoint(start).sha256,
        "provenance": provenance(command=command_line(), seed=config.seed, device=fabric.device.type),
    }
    return run_loop(
        config.optim,
        objective,
        source,
        output,
        loss_of,
        fabric=fabric,
        validate=_validation(source, fabric),
        metadata=metadata,
        progress=progress,
    )


def _validation(source: MatchSource, fabric: "Fabric") -> Callable[[nn.Module], float]:
    """Median error of the fused pose in rooms of the validation part, without intrinsics: metres plus degrees / 30."""
    batches: list[StreamBatch] = []

    @torch.no_grad()
    def validate(objective: nn.Module) -> float:
        assert isinstance(objective, MatchObjective)
        if not batches:
            stream = iter(source.stream(FIRST_SEED["validation"]))
            batches.extend(next(stream) for _ in range(VALIDATION_BATCHES))
        objective.eval()
        metres, degrees = [], []
        for batch in batches:
            with fabric.autocast():
                answers = objective.answer(batch)
            here = batch.is_here
            error = pose_error(answers.T_world_query[here], batch.T_world_cam[:, 0][here])
            metres.append(error.translation_error_m)
            degrees.append(error.rotation_error_deg)
        return float(torch.cat(metres).median() + torch.cat(degrees).median() / 30)

    return validate
