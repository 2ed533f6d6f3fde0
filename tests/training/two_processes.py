"""What every process of a training by torchrun does in test_distributed.py; it leaves what it saw in a JSON file."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_trainings import random_descriptors, tiny_config, tiny_data
from torch import nn

from relograph.errors import RelographError
from relograph.geometry import Pose
from relograph.models import build_model
from relograph.models.checkpoint import save_checkpoint
from relograph.retrieval import rank_references
from relograph.training.config import TrainConfig
from relograph.training.data import RelocalizationData
from relograph.training.loop import TrainingState, make_fabric, run_training
from relograph.training.objective import PoseObjective
from relograph.training.sources import SceneGraphs

SHARED = tiny_config(
    "graph.num_nodes=4", "graph.edge_dropout=0", "optim.freeze_batch_norm=true", "optim.gradient_clip=5"
)
"""What makes several processes the same as one: nothing that looks at a process's own share of the batch."""
KITCHEN_AND_CLOSET = tiny_data({"kitchen": {"train": 9}, "closet": {"train": 2}})
"""Graphs of the closet have 2 images and 2 edges, those of the kitchen 4 and 12."""
ALONE = tiny_config("model.kind=posenet", "graph.selection=alone", "graph.edge_dropout=0", "optim.epochs=1")
"""Every frame is in one graph of an epoch."""


def make_source(config: TrainConfig, data: RelocalizationData, rank: int = 0, world_size: int = 1) -> SceneGraphs:
    frames, rows = data.frames, data.train_rows(data.frames.scene_names)
    length = config.graph.num_references * config.graph.stride
    ranked = rank_references(
        rows, ~data.is_test, random_descriptors(data), frames.scene_idx, frames.sequence_idx, length=length
    )
    batch_size = config.optim.batch_size
    steps_per_epoch = math.ceil(len(rows) / batch_size)
    return SceneGraphs(
        frames, rows, ~data.is_test, ranked, config.graph, batch_size, steps_per_epoch, 0, False, rank, world_size
    )


def with_a_bad_frame(step: int) -> tuple[RelocalizationData, str]:
    """Eight frames, without a pose for the one that only the last process sees, in that step of two; and its name."""
    data = tiny_data({"kitchen": {"train": 8}})
    row = int(make_source(ALONE, data).rows(step)[-1, 0])
    t = data.frames.T_world_cam.t.clone()
    t[row] = math.nan
    frames = replace(data.frames, T_world_cam=Pose(data.frames.T_world_cam.R, t))
    return replace(data, frames=frames), frames.names[row]


def running_mean(objective: nn.Module) -> float:
    """A validation that is another number in every process."""
    assert isinstance(objective, PoseObjective)
    return float(objective.model.encoder.bn1.running_mean.sum())


def main(output: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric()

    def train(name: str, config: TrainConfig, data: RelocalizationData, *, watched: bool = False) -> TrainingState:
        torch.manual_seed(0)
        objective = PoseObjective(build_model(config.model))
        source = make_source(config, data, fabric.global_rank, fabric.world_size)
        validate = running_mean if watched else None
        state = run_training(config, objective, source, output / name, fabric=fabric, validate=validate)
        of_rank = output / f"{name}-{fabric.global_rank}"
        save_checkpoint(of_rank, dict(objective.state_dict()), {})
        return state

    def error_of(name: str, config: TrainConfig, data: RelocalizationData) -> str:
        try:
            train(name, config, data)
        except RelographError as error:
            return str(error)
        return "none"

    train("shared", SHARED, KITCHEN_AND_CLOSET)
    watched = train("watched", tiny_config("optim.epochs=3"), KITCHEN_AND_CLOSET, watched=True)
    seen = {
        "world_size": fabric.world_size,
        "watched": vars(watched),
        "of an odd batch": error_of("odd", tiny_config("optim.batch_size=3"), KITCHEN_AND_CLOSET),
        "of a bad frame": [error_of(f"bad-{step}", ALONE, with_a_bad_frame(step)[0]) for step in range(2)],
    }
    (output / f"seen-{fabric.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
