"""Training MatchGNN on rooms without end, from random weights or from an earlier round's.

The recipe, and why it is as it is: docs/training.md.
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from relograph.compiling import compiled
from relograph.configuration import config_from_dict, config_to_dict
from relograph.environment import num_cores
from relograph.errors import ConfigError
from relograph.models.match_gnn import CONTEXT_STRIDE, MatchConfig, MatchGNN
from relograph.models.match_kernels import MatchKernels
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn, save_match_gnn
from relograph.progress import SILENT, Progress
from relograph.results import command_line, provenance
from relograph.rooms import RoomStream, StreamBatch, StreamConfig
from relograph.rooms.raycast import Kernels
from relograph.rooms.room_maps import FIRST_SEED
from relograph.rooms.textures import TextureAtlas, fingerprint_of_photographs, make_atlas, photograph_files
from relograph.rooms.world import sent
from relograph.training.config import OptimConfig
from relograph.training.loop import TrainingState, Validated, run_loop
from relograph.training.match_validation import FIGURES, match_figures
from relograph.training.matching import MatchLossConfig, MatchObjective, Shown
from relograph.training.sources import generator_for

if TYPE_CHECKING:
    from lightning.fabric import Fabric

REFERENCES_SHOWN, LENSES_TOLD, DRILL_SHOWN = 10, 11, 12  # uses of randomness of their own; see sources.py for others
WEIGHTS = "weights"
"""In a run's folder, what is shipped: the network of the best validation in half precision."""
MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class MatchTrainConfig:
    """One round of training MatchGNN."""

    model: MatchConfig = field(default_factory=MatchConfig)
    loss: MatchLossConfig = field(default_factory=MatchLossConfig)
    # Graphs in a batch are as many as optim.batch_size says; the stream's own number is that of validation.
    stream: StreamConfig = field(
        default_factory=lambda: StreamConfig(
            image_height=240,
            image_width=320,
            graphs_per_batch=32,
            overlap=(0.05, 1.0),  # the best reference often sees all that the query sees
            nearest_share=0.6,
            num_homes=256,
            views_per_home=64,
            homes_renewed_per_batch=4,
            useless_share=0.1,
            elsewhere_share=0.05,
            portrait_share=0.25,
            any_roll_share=0.1,
            turned_share=0.15,
            grey_share=0.1,
            spoilt_share=0.1,
            beside_share=0.75,
            same_lens_share=0.7,
            unseen_graphs=128,
            graphs_per_home=2,
        )
    )
    easy_overlap: float = 0.4
    """Least overlap at the beginning of a first round, from where it falls to the stream's own."""
    easy_steps: int = 1500
    """Steps in which it falls."""
    texture_sets: int = 4
    """How many times over the textures of our own are made, each time others; photographs come on top of them."""
    validation_batches: int = 8
    """Batches of validation rooms, always the same ones; a quarter as many more have turned queries."""
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
            average_decay=0.998,
            replay=True,
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
        if self.stream.num_nodes < 2:
            raise ConfigError(
                f"stream.num_nodes: expected a query and a reference at least, found {self.stream.num_nodes}. Use 8."
            )
        if min(self.texture_sets, self.validation_batches, self.optim.steps_per_epoch) < 1:
            raise ConfigError("texture_sets, validation_batches and optim.steps_per_epoch must be at least 1.")


@dataclass(frozen=True)
class MatchSource:
    """Batches of rooms that come once and never again, from much overlap to little."""

    config: MatchTrainConfig
    device: torch.device
    atlas: TextureAtlas
    round_idx: int = 0
    """Rounds before this one."""
    workers: int = 0
    rank: int = 0
    world_size: int = 1
    progress: Progress = SILENT

    @property
    def steps_per_epoch(self) -> int:
        """Steps between two validations."""
        return self.config.optim.steps_per_epoch

    def stream(self, seed: int) -> RoomStream:
        """The rooms of a seed, this process's share of a batch at a time."""
        whole = self.config.stream
        return RoomStream(
            replace(
                whole,
                graphs_per_batch=self.config.optim.batch_size // self.world_size,
                unseen_graphs=whole.unseen_graphs // self.world_size,
                seed=seed,
            ),
            device=self.device,
            atlas=self.atlas,
            workers=self.workers,
            progress=self.progress,
        )

    def least_overlap(self, step: int) -> float:
        """The overlap that neighbours have at least in a step."""
        hardest, easiest = self.config.stream.overlap[0], self.config.easy_overlap
        done = min(1.0, step / max(1, self.config.easy_steps))
        return easiest + done * (hardest - easiest) if self.round_idx == 0 else hardest

    def batches(self, first_step: int) -> Generator[StreamBatch, None, None]:
        """This process's share of every step's batch. After a restart, and in another round, other rooms come."""
        mixed = 1_000_003 * first_step + 7919 * self.rank + 104_729 * self.round_idx
        stream = self.stream(training_seed(self.config.seed + mixed))
        stream.least_overlap = self.least_overlap(first_step)
        with closing(iter(stream)) as batches:
            for step, batch in enumerate(batches, start=first_step + 1):
                yield batch
                stream.least_overlap = self.least_overlap(step)

    def frame_names(self, step: int) -> list[str]:
        """What this process sees in a step, for a message."""
        return [f"RoomStream with seed {self.config.seed}, step {step}"]


def training_seed(number: int) -> int:
    """A seed of the training part: no room of it is one of another part."""
    return FIRST_SEED["training"] + number % (FIRST_SEED["validation"] - FIRST_SEED["training"])


def references_shown(
    num_graphs: int, num_references: int, *, seed: int, step: int, use: int = REFERENCES_SHOWN
) -> Bool[Tensor, "B R"]:
    """Which references a step shows: all in half of the graphs, and in the others any number from one on."""
    generator = generator_for(seed, use, step)
    number = torch.randint(1, num_references + 1, (num_graphs,), generator=generator)
    number[torch.rand(num_graphs, generator=generator) < 0.5] = num_references
    return torch.arange(num_references) < number[:, None]


def home_workers(device: torch.device) -> int:
    """Processes that furnish homes ahead: some of this process's cores where a GPU would wait for them, else none."""
    if device.type != "cuda":
        return 0
    return max(1, min(MOST_WORKERS, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 2))


def shown_in_step(config: MatchTrainConfig, batch: StreamBatch, step: int) -> Shown:
    """What a step shows and tells of a batch."""
    told = torch.rand((), generator=generator_for(config.seed, LENSES_TOLD, step)) < config.loss.known_intrinsics
    num_graphs, num_nodes = batch.overlap.shape
    device, num_references = batch.overlap.device, num_nodes - 1
    shown = sent(references_shown(num_graphs, num_references, seed=config.seed, step=step), device)
    drilled = None
    if batch.unseen is not None:
        num_graphs = len(batch.unseen.rooms.center)
        drilled = references_shown(num_graphs, num_references, seed=config.seed, step=step, use=DRILL_SHOWN)
        drilled = sent(drilled, device)
    return Shown(batch, shown, drilled, tell_lenses=bool(told))


def earlier_round(init: Path, config: MatchTrainConfig) -> LoadedMatchGNN:
    """The network to begin with: that of a run, or of a folder of weights."""
    folder = init / WEIGHTS if (init / WEIGHTS).is_dir() else init
    earlier = load_match_gnn(folder)
    if earlier.model.config != config.model:
        wanted, found = config_to_dict(config.model), config_to_dict(earlier.model.config)
        name = next(name for name in wanted if wanted[name] != found[name])
        raise ConfigError(
            f"{folder}: expected a network with model.{name}={wanted[name]}, found {found[name]}. Set "
            f"model.{name}={found[name]}, or start from other weights."
        )
    return earlier


@dataclass(frozen=True)
class TrainingRecord:
    """What made a network's weights, over all rounds: what a model card tells of it."""

    rounds: int = 0
    seconds: float = 0.0
    graphs: int = 0
    """Photographed graphs that were seen."""

    def then(self, seconds: float, graphs: int) -> "TrainingRecord":
        """With one more round."""
        return TrainingRecord(self.rounds + 1, self.seconds + seconds, self.graphs + graphs)

    @staticmethod
    def of(metadata: Mapping[str, object]) -> "TrainingRecord":
        """The record that was saved with weights; none where they have none."""
        saved = metadata.get("training")
        return config_from_dict(TrainingRecord, saved, "training") if isinstance(saved, Mapping) else TrainingRecord()


def textures_of(photographs: Path | None) -> dict[str, object] | None:
    """Which photographs a training takes its textures from, for the record."""
    if photographs is None:
        return None
    return {
        "sha256": fingerprint_of_photographs(photographs),
        "num_images": len(photograph_files(photographs, "train")),
        "split": "train",
    }


def train_match_gnn(
    config: MatchTrainConfig,
    output: Path,
    *,
    fabric: "Fabric",
    earlier: LoadedMatchGNN | None = None,
    photographs: Path | None = None,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> TrainingState:
    """A round of training, from random weights or from those of an `earlier` one with a fresh optimizer.

    `photographs` is a folder or a zip file with the folders train and validation. `output/weights` gets the network of
    the best validation, which is on rooms of another part. Homes are made ahead by `workers` processes; None takes as
    many as the device needs.
    """
    before = TrainingRecord.of({} if earlier is None else earlier.metadata)
    torch.manual_seed(config.seed)
    objective = MatchObjective(MatchGNN(config.model), config.loss)
    if earlier is not None:
        objective.model.load_state_dict(earlier.model.state_dict())
    atlas = make_atlas(
        training_seed(config.seed + before.rounds),
        sets=config.texture_sets,
        photographs=photographs,
        split="train" if photographs is not None else None,
        device=fabric.device,
        progress=progress,
    )
    source = MatchSource(
        config,
        fabric.device,
        atlas,
        round_idx=before.rounds,
        workers=home_workers(fabric.device) if workers is None else workers,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        progress=progress,
    )
    metadata: dict[str, object] = {
        "config": config_to_dict(config),
        "start": None if earlier is None else earlier.sha256,
        "textures": textures_of(photographs),
        "provenance": provenance(command=command_line(), seed=config.seed, device=fabric.device.type),
    }

    def save_weights(state: TrainingState, validated: Validated) -> None:
        record = before.then(state.seconds, state.step * config.optim.batch_size)
        validation = {"loss": validated.loss, **validated.figures}
        save_match_gnn(
            output / WEIGHTS, objective.model, {**metadata, "training": vars(record), "validation": validation}
        )

    make_ready(objective, fabric.device, compile_parts=config.optim.compile)
    return run_loop(
        replace(config.optim, compile=False),
        objective,
        source,
        output,
        lambda batch, step: (shown_in_step(config, batch, step),),
        fabric=fabric,
        validate=_validation(config, fabric, photographs, progress),
        figures=FIGURES,
        at_best=save_weights,
        metadata=metadata,
        progress=progress,
    )


def make_ready(objective: MatchObjective, device: torch.device, *, compile_parts: bool) -> None:
    """Let a network be trained on a device by the kernels that are made for it."""
    model, objective.ray_kernels = objective.model, Kernels.on(device)
    if device.type == "cuda":
        model.matcher.kernels = MatchKernels.on(device)
    if compile_parts:
        # Part by part: what lies between them has kernels of its own, and all in one would take minutes to compile.
        matcher = model.matcher
        matcher.show, matcher.describe = compiled(matcher.show), compiled(matcher.describe)  # type: ignore[method-assign]  # of this one alone
        for part in (model.encoder, model.descriptor, model.edge, *model.messages):
            part.forward = compiled(part.forward)


def _validation(
    config: MatchTrainConfig, fabric: "Fabric", photographs: Path | None, progress: Progress
) -> Callable[[nn.Module], Validated]:
    """Figures of rooms of the validation part, none of whose textures is trained on.

    They are photographed before the first step: what is wrong with them is to be known before hours of training.
    """
    atlas = make_atlas(
        FIRST_SEED["validation"],
        photographs=photographs,
        split="validation" if photographs is not None else None,
        device=fabric.device,
        progress=progress,
    )
    stream = RoomStream(validation_stream(config.stream), device=fabric.device, atlas=atlas)
    with closing(iter(stream)) as graphs:
        batches = list(islice(graphs, config.validation_batches))
        stream.turned_share = 1.0
        turned = list(islice(graphs, max(1, config.validation_batches // 4)))

    def validate(objective: nn.Module) -> Validated:
        assert isinstance(objective, MatchObjective)
        objective.eval()
        # As it is: to compile it once more for a few batches would take longer than they do.
        with torch.compiler.set_stance("force_eager") if config.optim.compile else nullcontext():
            return match_figures(objective, batches, turned, fabric.autocast)

    return validate


def validation_stream(config: StreamConfig) -> StreamConfig:
    """Graphs as most queries make them: all in the map, held like its photographs, the nearest references first."""
    return replace(
        config,
        num_homes=min(config.num_homes, 64),
        homes_renewed_per_batch=0,
        nearest_share=1.0,
        useless_share=0.0,
        elsewhere_share=0.0,
        portrait_share=0.0,
        turned_share=0.0,
        grey_share=0.0,
        spoilt_share=0.0,
        unseen_graphs=0,
        seed=FIRST_SEED["validation"],
    )
