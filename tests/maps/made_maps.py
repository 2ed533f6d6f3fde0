"""Maps of generated features: as good as those of a network for all that concerns the disk, and made in no time."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from relograph.geometry import Camera, Pose
from relograph.localization.map_features import StoredFeatures
from relograph.localization.photos import PhotoInMemory
from relograph.maps import Map, MapSettings, SqliteStore, adding, ranks
from relograph.maps import map as map_module
from relograph.maps.building import DecodedPhoto
from relograph.maps.shards import Shard
from relograph.models.match_gnn import ImageFeatures, MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.retrieval import stored_index

SHA256 = "a" * 64
CAMERA = Camera.from_focal(32, 24, 30.0)


def generated_features(seeds: Sequence[str]) -> tuple[ImageFeatures, torch.Tensor]:
    """Features and descriptors that depend on the photo alone."""
    features, descriptors = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(int(seed[:15], 16))
        maps = [torch.randn(1, c, h, w, generator=generator) for c, h, w in ((8, 2, 3), (6, 4, 6), (4, 12, 16))]
        features.append(maps)
        descriptors.append(torch.nn.functional.normalize(torch.randn(1, 16, generator=generator)).half())
    return ImageFeatures(*(torch.cat(parts) for parts in zip(*features, strict=True))), torch.cat(descriptors)


def encode_generated(
    photos: Sequence[DecodedPhoto], model: object, settings: MapSettings
) -> list[tuple[Shard, list[DecodedPhoto]]]:
    """In the place of the network."""
    features, descriptors = generated_features([photo.read.sha256 for photo in photos])
    stored = StoredFeatures.of(features, settings.precision)
    jpegs = [photo.read.jpeg for photo in photos]
    return [(Shard.of(photos[0].read.size.size_hw, stored, settings.levels, descriptors, jpegs), list(photos))]


def use_generated_features(patch: pytest.MonkeyPatch, *, photos_per_shard: int = 4) -> None:
    patch.setattr(adding, "encode", encode_generated)
    for module in (map_module, ranks):
        patch.setattr(module, "fold_match_gnn", lambda model: model)
    for module in (map_module, adding, ranks):
        patch.setattr(module, "PHOTOS_PER_SHARD", photos_per_shard)


def use_small_indices(patch: pytest.MonkeyPatch, *, exact_up_to: int = 24, waiting_rows: int = 10) -> None:
    """Maps of a few dozen photos are large ones."""
    patch.setattr(stored_index, "EXACT_UP_TO", exact_up_to)
    patch.setattr(stored_index, "WAITING_ROWS", waiting_rows)


def no_network() -> LoadedMatchGNN:
    """Weights that nothing is computed with."""
    model = MatchGNN.__new__(MatchGNN)
    torch.nn.Module.__init__(model)
    return LoadedMatchGNN(model, SHA256, {})


def photos(count: int, *, first: int = 0, prefix: str = "walk/") -> list[PhotoInMemory]:
    """Along a line, 10 cm apart, each turned a little."""
    return [
        PhotoInMemory(
            f"{prefix}{i:04d}.png",
            np.random.default_rng(i).integers(0, 256, (24, 32, 3), dtype=np.uint8),
            Pose.from_axis_angle([0.0, 0.01 * i, 0.0], [0.1 * i, 0.0, 0.0]),
            CAMERA,
        )
        for i in range(first, first + count)
    ]


def made_map(where: Path | str, count: int = 10, **options: object) -> Map:
    return Map.create(where, photos(count), network=no_network(), **options)


def contents(some: Map) -> dict[str, tuple[object, ...]]:
    """All that a map keeps of its photos, by name."""
    features = some.features
    found = {}
    for row, frame in enumerate(some.frames):
        kept = features.shards[features.shard_of[row]].stored([int(features.place[row])])
        parts = b"".join(part.contiguous().numpy().tobytes() for part in (*kept.parts, *(kept.steps or ())))
        data = hashlib.sha256(parts + features.descriptors[row].numpy().tobytes() + some.jpeg(frame)).hexdigest()
        found[frame.name] = (frame.quat_wxyz, frame.cam_center_world, frame.camera_line, frame.photo_sha256, data)
    return found


def descriptors_of(some: Map) -> torch.Tensor:
    """Of all photos, as the map keeps them; a large map's own features leave them on the disk."""
    shards = some.shards(some.frames)
    return torch.stack([shards[frame.shard].descriptors[frame.shard_row] for frame in some.frames]).float()


__all__ = [
    "SHA256",
    "SqliteStore",
    "contents",
    "descriptors_of",
    "made_map",
    "no_network",
    "photos",
    "use_generated_features",
    "use_small_indices",
]
