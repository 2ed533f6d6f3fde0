"""Frames of several scenes as tensors, and graphs of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from relograph.geometry import Pose


@dataclass(frozen=True)
class PosedImages:
    """All frames that a training or an evaluation may touch; a `row` is an index into it."""

    images: UInt8[Tensor, "F H W 3"]
    """In memory, memory-mapped or on a GPU."""
    T_world_cam: Pose
    """Batch shape [F], float32."""
    scene_idx: Int[Tensor, "F"]
    sequence_idx: Int[Tensor, "F"]
    """Numbers of sequences are unique over all scenes; the rows of a sequence lie together, in the order of time."""
    in_map: Bool[Tensor, "F"]
    """Whether a frame is a reference at test time."""
    names: tuple[str, ...]
    """Scene and frame, for example `room-1/seq-01/frame-000000.color.png`."""
    scene_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device | str, *, images_too: bool = True) -> "PosedImages":
        """The same frames on another device; without `images_too` the images stay where they are."""
        return replace(
            self,
            images=self.images.to(device) if images_too else self.images,
            T_world_cam=self.T_world_cam.to(device=torch.device(device)),
            scene_idx=self.scene_idx.to(device),
            sequence_idx=self.sequence_idx.to(device),
            in_map=self.in_map.to(device),
        )

    @classmethod
    def cat(cls, parts: Sequence["PosedImages"]) -> "PosedImages":
        """Several sets as one; scenes of the same name become one scene, sequences never do."""
        scene_names = tuple(dict.fromkeys(name for part in parts for name in part.scene_names))
        scene_idx, sequence_idx, num_sequences = [], [], 0
        for part in parts:
            number = torch.tensor([scene_names.index(name) for name in part.scene_names], device=part.scene_idx.device)
            scene_idx.append(number[part.scene_idx])
            sequence_idx.append(part.sequence_idx + num_sequences)
            num_sequences += int(part.sequence_idx.max()) + 1 if len(part) else 0
        return cls(
            images=torch.cat([part.images for part in parts]) if len(parts) > 1 else parts[0].images,
            T_world_cam=Pose.cat([part.T_world_cam for part in parts]),
            scene_idx=torch.cat(scene_idx),
            sequence_idx=torch.cat(sequence_idx),
            in_map=torch.cat([part.in_map for part in parts]),
            names=tuple(name for part in parts for name in part.names),
            scene_names=scene_names,
        )


@dataclass(frozen=True)
class GraphBatch:
    """B graphs of N images; node 0 is the query."""

    images: UInt8[Tensor, "B N H W 3"]
    T_world_cam: Pose
    """Batch shape [B, N]."""
    node_mask: Bool[Tensor, "B N"]
    """False where a graph has fewer than N images; what stands there means nothing."""
    rows: Int[Tensor, "B N"]
    """Where the images come from; -1 where there is none."""
    scene_idx: Int[Tensor, "B"]
    """The place that a graph shows."""
    overlap: Float[Tensor, "B N"] | None = None
    """Share of the query that each image sees, where it is known."""


def gather_graphs(frames: PosedImages, rows: Int[Tensor, "B N"]) -> GraphBatch:
    """The graphs whose nodes are the given rows; -1 is a node that is not there."""
    there = rows >= 0
    safe = torch.where(there, rows, rows[:, :1])  # batch norm sees padding too, so it shows the query once more
    pixels = frames.images[safe.to(frames.images.device)]
    if pixels.device != rows.device:
        pixels = pixels.pin_memory().to(rows.device, non_blocking=True)
    return GraphBatch(
        images=pixels,
        T_world_cam=frames.T_world_cam[safe],
        node_mask=there,
        rows=rows,
        scene_idx=frames.scene_idx[safe[:, 0]],
    )
