"""Named configurations: the paper's, ours on rooms, and one small enough for a test."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from relograph.errors import ConfigError
from relograph.models import ModelConfig
from relograph.models.match_gnn import MatchConfig
from relograph.rooms import StreamConfig
from relograph.training.config import DataConfig, GraphConfig, OptimConfig, RetrievalConfig, TrainConfig
from relograph.training.match_training import MatchTrainConfig

Config = TypeVar("Config")

PAPER_7SCENES = TrainConfig(model=ModelConfig(target="world"))

PAPER_CAMBRIDGE = replace(
    PAPER_7SCENES,
    graph=GraphConfig(stride=3),
    data=DataConfig(metres_per_unit=0.0),  # places are tens of metres wide, and the network says numbers around one
)

ROOMS = TrainConfig(
    model=ModelConfig(channels=512),
    data=DataConfig(image_height=128, extra_walks=20),
    graph=GraphConfig(exclude_same_sequence=True),
    optim=OptimConfig(
        learning_rate=4e-4,
        weight_decay=1e-5,
        batch_size=64,
        epochs=5,
        steps_per_epoch=200,
        schedule="cosine",
        warmup_steps=50,
        gradient_clip=1.0,
        patience=0,
    ),
)
"""What one GPU trains in a minute on seven rooms."""

ROOMS_FULL = replace(
    ROOMS,
    model=ModelConfig(channels=2048),
    data=DataConfig(image_height=256, extra_walks=20),
    optim=replace(ROOMS.optim, learning_rate=2e-4, batch_size=32, epochs=10, steps_per_epoch=500, compile=True),
)
"""The paper's size."""

PRETRAIN = TrainConfig(
    model=ModelConfig(channels=512),
    data=DataConfig(image_height=128),
    graph=GraphConfig(edge_dropout=0.0),
    retrieval=RetrievalConfig(loss="covisibility"),
    optim=replace(ROOMS.optim, learning_rate=5e-4, batch_size=64, epochs=10, steps_per_epoch=300),
    seed=1,  # other textures than those of SevenRooms, which has 0
)
"""The encoder and NetVLAD on rooms without end: there are no public weights in this package."""

TINY = TrainConfig(
    model=ModelConfig(channels=32, encoder_blocks=(1, 1, 1, 1), encoder_width=8),
    data=DataConfig(image_height=48),
    graph=GraphConfig(num_nodes=4, stride=2),
    retrieval=RetrievalConfig(num_clusters=4, image_height=48, descriptor_dim=16),
    optim=OptimConfig(
        learning_rate=1e-3, weight_decay=0.0, batch_size=4, epochs=3, precision="float32", warmup_steps=5, patience=0
    ),
)
"""Trains in seconds on one CPU core; its answers are worth nothing."""

MATCHGNN = MatchTrainConfig()
"""A round of what is shipped: some minutes of one large GPU, each round starting from the last one's weights."""

MATCHGNN_TINY = MatchTrainConfig(
    model=MatchConfig(
        channels=16,
        matched_channels=16,
        context_channels=16,
        fine_channels=8,
        self_layers=1,
        cross_layers=1,
        edge_channels=16,
        rounds=1,
        heads=2,
        num_clusters=2,
        descriptor_dim=8,
    ),
    stream=StreamConfig(
        image_height=48,
        image_width=64,
        graphs_per_batch=2,
        num_nodes=3,
        num_homes=2,
        views_per_home=12,
        overlap=(0.1, 0.95),
        beside_share=0.5,
        unseen_graphs=2,
    ),
    texture_sets=1,
    validation_batches=1,
    optim=replace(
        MATCHGNN.optim,
        batch_size=2,
        epochs=2,
        steps_per_epoch=2,
        precision="float32",
        warmup_steps=1,
        learning_rate=1e-3,
    ),
)
"""Every part of a round in a few seconds of one CPU core; its answers are worth nothing."""

MATCH_PRESETS = {"matchgnn": MATCHGNN, "matchgnn-tiny": MATCHGNN_TINY}
"""Of our own network, which needs no scenes."""

PRESETS = {
    "paper-7scenes": PAPER_7SCENES,
    "paper-cambridge": PAPER_CAMBRIDGE,
    "rooms": ROOMS,
    "rooms-full": ROOMS_FULL,
    "pretrain": PRETRAIN,
    "tiny": TINY,
}


def preset(name: str) -> TrainConfig:
    """The configuration of a name."""
    return _of_name(name, PRESETS)


def match_preset(name: str) -> MatchTrainConfig:
    """One of our own network's."""
    return _of_name(name, MATCH_PRESETS)


def any_preset(name: str) -> TrainConfig | MatchTrainConfig:
    """One of either kind."""
    every: dict[str, TrainConfig | MatchTrainConfig] = {**PRESETS, **MATCH_PRESETS}
    return _of_name(name, every)


def _of_name(name: str, presets: Mapping[str, Config]) -> Config:
    if name not in presets:
        nearest = difflib.get_close_matches(name, presets, n=1, cutoff=0.5)
        advice = f"Did you mean {nearest[0]!r}?" if nearest else "Choose one of them."
        raise ConfigError(f"expected a preset among {', '.join(presets)}, found {name!r}. {advice}")
    return presets[name]
