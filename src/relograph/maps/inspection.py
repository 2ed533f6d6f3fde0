"""What a map holds, and how large it is."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.maps.map import Map
from relograph.maps.records import ChangeRecord, MapSettings, frame_poses
from relograph.maps.shards import PART_BY_TENSOR
from relograph.maps.thinning import nearest_of

NEAR_M, NEAR_DEG = 0.1, 5.0
"""A photo that another is so near to shows hardly anything of its own."""
PHOTOS_LOOKED_AT = 2000
"""For redundancy: every photo is compared with all, so of large maps a share is."""
PHOTOS_WEIGHED = 64
"""For what a photo takes, part by part."""
UNNAMED = ""


@dataclass(frozen=True)
class MapInfo:
    """A map in numbers."""

    settings: MapSettings
    num_frames: int
    num_frames_by_sequence: dict[str, int]
    """Photos that belong to no sequence are under the empty name."""
    num_cameras: int
    extent_min_m: tuple[float, float, float]
    extent_max_m: tuple[float, float, float]
    redundancy: float
    """Share of photos that have another within 10 cm and 5 degrees."""
    num_bytes: dict[str, int]
    """On disk, by part."""
    num_bytes_of_photo: dict[str, float]
    """Of what is kept of a photo, by part: the mean of some. Empty where none could be read."""
    changes: tuple[ChangeRecord, ...]


def map_info(some: Map) -> MapInfo:
    """The map in numbers; features are read of a few photos only."""
    frames = some.frames
    T_world_cam = frame_poses(frames)
    centers = T_world_cam.t.numpy()
    low, high = (centers.min(axis=0), centers.max(axis=0)) if len(frames) else (np.zeros(3), np.zeros(3))
    return MapInfo(
        settings=some.settings,
        num_frames=len(frames),
        num_frames_by_sequence=dict(Counter(frame.sequence or UNNAMED for frame in frames)),
        num_cameras=len({frame.camera_line for frame in frames}),
        extent_min_m=(float(low[0]), float(low[1]), float(low[2])),
        extent_max_m=(float(high[0]), float(high[1]), float(high[2])),
        redundancy=_redundancy(T_world_cam),
        num_bytes=some.store.num_bytes(),
        num_bytes_of_photo=_num_bytes_of_photo(some),
        changes=tuple(some.changes()),
    )


def _redundancy(T_world_cam: Pose) -> float:
    everyone = np.arange(len(T_world_cam))
    if not len(everyone):
        return 0.0
    rows = everyone[:: max(1, len(everyone) // PHOTOS_LOOKED_AT)]
    nearest = nearest_of(T_world_cam, rows, everyone)
    return float(((nearest.distance_m <= NEAR_M) & (nearest.angle_deg <= NEAR_DEG)).mean())


def _num_bytes_of_photo(some: Map) -> dict[str, float]:
    frames = some.frames[:: max(1, len(some.frames) // PHOTOS_WEIGHED)]
    by_part: Counter[str] = Counter()
    try:
        shards = some.shards(frames)
        for frame in frames:
            for name, tensor in shards[frame.shard].take([frame.shard_row]).tensors.items():
                by_part[PART_BY_TENSOR.get(name, "features")] += tensor.numel() * tensor.element_size()
    except DatasetError:  # what is damaged is for `verify` to tell; the rest is worth knowing all the same
        return {}
    return {part: num_bytes / len(frames) for part, num_bytes in by_part.most_common()}
