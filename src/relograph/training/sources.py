"""Where a training's graphs come from: frames on disk and their neighbours, or RoomStream."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relograph.graphs import GraphBatch, PosedImages, gather_graphs
from relograph.retrieval import frustum_overlap, rank_at_random, select_strided, sequence_windows
from relograph.rooms import RoomStream, StreamConfig
from relograph.rooms.textures import TextureAtlas
from relograph.training.config import GraphConfig

# Each use of randomness has its own stream of numbers, so that a change in one leaves the others alone.
ORDER, OFFSETS, DROPOUT, RANDOM_REFERENCES = range(4)


def generator_for(seed: int, use: int, step: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The random numbers of one step for one use: the same after a restart as without it."""
    mixed = int(np.random.SeedSequence([seed, use, step]).generate_state(1)[0])
    return torch.Generator(device).manual_seed(mixed)


@lru_cache(maxsize=2)
def order_of_epoch(count: int, seed: int, epoch: int, device: torch.device) -> Int[Tensor, "count"]:
    """The order in which an epoch shows its queries; on the device, so that a step waits for no copy."""
    return torch.randperm(count, generator=generator_for(seed, ORDER, epoch)).to(device)


@runtime_checkable  # the tests check every argument's type while they run
class GraphSource(Protocol):
    """An endless supply of batches.

    Frames on disk come in the same batches whenever they are asked for again, so a training that was stopped goes on
    as if it had not been. Rooms without end are others after a restart, and so is the loss from there on.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Steps between two validations."""
        ...

    def batches(self, first_step: int) -> Iterator[Any]:
        """This process's share of every step's batch, from `first_step` on; what a batch is, the loss knows."""
        ...

    def frame_names(self, step: int) -> list[str]:
        """What all processes together see in a step, for a message."""
        ...


@dataclass(frozen=True)
class SceneGraphs:
    """Graphs of frames on disk. An epoch shows every query once, in an order of its own."""

    frames: PosedImages
    query_rows: Int[Tensor, "Q"]
    database: Bool[Tensor, "F"]
    """Which rows may be references."""
    ranked: Int[Tensor, "Q L"]
    """References of each query, best first; -1 where there are no more. Empty where they are not chosen by rank."""
    config: GraphConfig
    batch_size: int
    """Graphs over all processes together."""
    steps_per_epoch: int
    seed: int
    with_overlap: bool = False
    """Whether to work out how much of the query each image sees."""
    rank: int = 0
    world_size: int = 1

    def rows(self, step: int) -> Int[Tensor, "B N"]:
        """Rows of the graphs that this process sees in a step."""
        per_process = self.batch_size // self.world_size
        return self.rows_of_batch(step)[self.rank * per_process : (self.rank + 1) * per_process]

    def rows_of_batch(self, step: int) -> Int[Tensor, "B N"]:
        """Rows of all graphs of a step: the same ones, however many processes share them."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        device = self.ranked.device
        order = order_of_epoch(len(self.query_rows), self.seed, epoch, device)
        first = step_in_epoch * self.batch_size
        # Where an epoch asks for more queries than there are, it begins again.
        chosen = order[torch.arange(first, first + self.batch_size, device=device) % len(order)]
        queries = self.query_rows[chosen]
        if self.config.selection == "alone":
            return queries[:, None]
        if self.config.selection == "sequence":
            # Among the queries: frames that are held out or tested may belong to the same sequence.
            window = sequence_windows(self.frames.sequence_idx[self.query_rows], chosen, self.config.num_nodes)
            return torch.where(window >= 0, self.query_rows[window], -1)
        if self.config.selection == "random":
            generator = generator_for(self.seed, RANDOM_REFERENCES, step, queries.device)
            references = rank_at_random(
                queries, self.database, self.frames.scene_idx, length=self.config.num_references, generator=generator
            )
        else:
            generator = generator_for(self.seed, OFFSETS, step, device)
            offset = torch.randint(self.config.stride, (self.batch_size,), generator=generator, device=device)
            references = select_strided(self.ranked[chosen], self.config.num_references, self.config.stride, offset)
        return torch.cat([queries[:, None], references], dim=1)

    def batches(self, first_step: int) -> Iterator[GraphBatch]:
        if self.frames.images.device == self.ranked.device:
            yield from self._batches(first_step)
        else:
            yield from one_ahead(self._batches(first_step))

    def _batches(self, first_step: int) -> Iterator[GraphBatch]:
        step = first_step
        while True:
            batch = gather_graphs(self.frames, self.rows(step))
            if self.with_overlap:
                query = batch.T_world_cam[:, :1].expand(*batch.rows.shape)
                batch = replace(batch, overlap=frustum_overlap(query, batch.T_world_cam))
            yield batch
            step += 1

    def frame_names(self, step: int) -> list[str]:
        return [self.frames.names[row] for row in self.rows_of_batch(step).flatten().tolist() if row >= 0]


def one_ahead(batches: Iterator[GraphBatch]) -> Iterator[GraphBatch]:
    """The same batches, the next one always being read while this one is used."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches)
        while True:
            batch, coming = coming.result(), reader.submit(next, batches)
            yield batch


@dataclass(frozen=True)
class StreamGraphs:
    """Graphs of rooms that are rendered for this very step and never again."""

    config: StreamConfig
    steps_per_epoch: int
    device: torch.device
    atlas: TextureAtlas
    rank: int = 0
    image_height: int = 0
    """Pixels that images are made smaller to; 0 keeps them as they are rendered."""

    def with_homes(self, num_homes: int) -> "StreamGraphs":
        """The same stream with other homes, and another number of them at a time."""
        return replace(self, config=replace(self.config, num_homes=num_homes))

    def batches(self, first_step: int) -> Iterator[GraphBatch]:
        # After a restart other rooms come: an endless world has no need to show the same ones again.
        seed = (self.config.seed + 1_000_003 * first_step + 7919 * self.rank) % 2**31
        stream = RoomStream(replace(self.config, seed=seed), device=self.device, atlas=self.atlas)
        for batch in stream:
            images = batch.images.permute(0, 1, 3, 4, 2)
            if self.image_height:
                images = smaller(images, self.image_height)
            nodes = batch.overlap.shape
            yield GraphBatch(
                images=images,
                T_world_cam=batch.T_world_cam,
                node_mask=torch.ones(nodes, dtype=torch.bool, device=images.device),
                rows=torch.arange(batch.overlap.numel(), device=images.device).reshape(nodes),
                scene_idx=batch.home,
                overlap=batch.overlap,
            )

    def frame_names(self, step: int) -> list[str]:
        return [f"RoomStream with seed {self.config.seed}, step {step}"]


def smaller(images: Tensor, height: int) -> Tensor:
    """Images [B, N, H, W, 3] at another height."""
    pixels = images.flatten(0, 1).permute(0, 3, 1, 2).float()
    size = (height, round(images.shape[3] * height / images.shape[2]))
    pixels = torch.nn.functional.interpolate(pixels, size=size, mode="area")
    return pixels.round().to(torch.uint8).permute(0, 2, 3, 1).reshape(*images.shape[:2], *size, 3)
