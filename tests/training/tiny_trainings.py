"""Trainings of a second: noise for images, networks of a few thousand weights."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from relograph.configuration import with_overrides
from relograph.geometry import Pose
from relograph.graphs import PosedImages
from relograph.models import ModelConfig
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.training.config import GraphConfig, OptimConfig, RetrievalConfig, TrainConfig
from relograph.training.data import RelocalizationData
from relograph.training.loop import make_fabric
from relograph.training.running import Trained, train_on_scenes

HEIGHT, WIDTH = 32, 40

# Not narrower: torch 2.13 writes past its memory in the gradient of a 1x1 convolution with stride on 4 channels.
TINY = TrainConfig(
    model=ModelConfig(channels=16, encoder_blocks=(1, 1, 1, 1), encoder_width=8),
    graph=GraphConfig(num_nodes=3, stride=2),
    retrieval=RetrievalConfig(num_clusters=2, image_height=HEIGHT, descriptor_dim=4),
    optim=OptimConfig(learning_rate=1e-3, batch_size=4, epochs=2, precision="float32", patience=0),
)


def tiny_config(*assignments: str) -> TrainConfig:
    """The configuration above but for some values: `tiny_config("optim.epochs=3")`."""
    return with_overrides(TINY, assignments)


KITCHEN = {"kitchen": {"train": 10, "held out": 3, "test": 4}}


def tiny_data(num_frames: Mapping[str, Mapping[str, int]] = KITCHEN, *, seed: int = 0) -> RelocalizationData:
    """Noise with poses around the origin: scenes by name, each with a sequence a use."""
    generator = torch.Generator().manual_seed(seed)
    uses, names, scene_idx, sequence_idx = [], [], [], []
    for scene, (scene_name, count_by_use) in enumerate(num_frames.items()):
        for sequence, (use, count) in enumerate(count_by_use.items()):
            uses += [use] * count
            names += [f"{scene_name}/seq-{sequence:02d}/frame-{frame:06d}.color.png" for frame in range(count)]
            scene_idx += [scene] * count
            sequence_idx += [10 * scene + sequence] * count
    count = len(names)
    is_test = torch.tensor([use == "test" for use in uses])
    frames = PosedImages(
        images=torch.randint(0, 256, (count, HEIGHT, WIDTH, 3), generator=generator, dtype=torch.uint8),
        T_world_cam=Pose.from_axis_angle(
            0.5 * torch.randn(count, 3, generator=generator), torch.randn(count, 3, generator=generator)
        ),
        scene_idx=torch.tensor(scene_idx),
        sequence_idx=torch.tensor(sequence_idx),
        in_map=~is_test,
        names=tuple(names),
        scene_names=tuple(num_frames),
    )
    return RelocalizationData(frames, is_test, torch.tensor([use == "held out" for use in uses]), f"noise {seed}")


def random_descriptors(data: RelocalizationData, *, seed: int = 1) -> Tensor:
    """Something of unit length to rank neighbours by [F, 4]."""
    directions = torch.randn(len(data.frames), 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(directions, dim=1)


def tiny_training(
    output: Path,
    config: TrainConfig = TINY,
    data: RelocalizationData | None = None,
    *,
    progress: Progress = SILENT,
) -> Trained:
    """A training on all scenes of the data."""
    data = data or tiny_data()
    return train_on_scenes(
        config,
        data,
        data.frames.scene_names,
        output,
        fabric=make_fabric("cpu", config.optim.precision),
        descriptors=random_descriptors(data),
        progress=progress,
    )


def saved(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint."""
    return load_checkpoint(folder).tensors


def assert_same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(
            tensor, other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
