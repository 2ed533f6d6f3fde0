"""From photos that were read to shards and frames of a map: the network encodes those of a shard."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.environment import num_cores
from relograph.geometry import Pose
from relograph.localization.map_features import StoredFeatures, encode_levels
from relograph.localization.photos import PhotoFile, PosedPhoto, camera_of
from relograph.maps.reading import ReadPhoto, in_chunks
from relograph.maps.records import Level, MapFrame, MapSettings, line_of_camera
from relograph.maps.shards import Shard
from relograph.models.match_gnn import MatchGNN
from relograph.scenes.frame import Frame

MAX_JPEG_BYTES = 13_500
"""For the small photo: fine features are computed from it, and the coarser it is, the less they say where something
is."""
MAX_LONE_JPEG_BYTES = 8_100
"""For it in a map that keeps no features, which is to be small: 10 KB a photo in all."""

PHOTOS_PER_CORE = 4
"""That a CPU's core encodes at once: of more the features leave its cache, and cores wait longer for the last one."""
MANY_PHOTOS = 2_000
"""Fewer have been read by threads before processes have begun."""


@dataclass(frozen=True)
class DecodedPhoto:
    """A photo of which the network can be shown what it sees."""

    photo: PosedPhoto
    read: ReadPhoto


def max_jpeg_bytes(levels: Sequence[Level]) -> int:
    """Of the small photo in a map that keeps those features."""
    return MAX_JPEG_BYTES if levels else MAX_LONE_JPEG_BYTES


EncodedShards = list[tuple[Shard, list[DecodedPhoto]]]


def shards_at_once(model: MatchGNN) -> int:
    """How many shards are worth encoding side by side: a CPU's cores are busy with one, a GPU would wait for hashes."""
    return 1 if _is_on_cpu(model) else 3


def processes_worthwhile(model: MatchGNN, num_photos: int) -> int:
    """How many processes should read so many photos; where it is none, threads should."""
    # Some cores are left for what goes on meanwhile: hashes, files, and what a GPU is to be told.
    return 0 if _is_on_cpu(model) or num_photos < MANY_PHOTOS else max(1, num_cores() * 3 // 4)


def encode(photos: Sequence[DecodedPhoto], model: MatchGNN, settings: MapSettings) -> EncodedShards:
    """Shards of the photos, one for each size, with the photos in the order of their rows."""
    by_size: dict[tuple[int, int], list[DecodedPhoto]] = {}
    for photo in photos:
        by_size.setdefault(photo.read.size.size_hw, []).append(photo)
    at_once = PHOTOS_PER_CORE if _is_on_cpu(model) else len(photos)
    batches = {size_hw: list(in_chunks(of_size, at_once)) for size_hw, of_size in by_size.items()}
    encoded = iter(_encode_all([batch for of_size in batches.values() for batch in of_size], model, settings))
    shards = []
    for size_hw, its_photos in by_size.items():
        stored, descriptors = zip(*islice(encoded, len(batches[size_hw])), strict=True)
        jpegs = [photo.read.jpeg for photo in its_photos]
        shard = Shard.of(size_hw, StoredFeatures.cat(stored), settings.levels, torch.cat(descriptors), jpegs)
        shards.append((shard, its_photos))
    return shards


Encoded = tuple[StoredFeatures, Float[Tensor, "M D"]]


def _is_on_cpu(model: MatchGNN) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def _encode_all(batches: Sequence[list[DecodedPhoto]], model: MatchGNN, settings: MapSettings) -> list[Encoded]:
    def encode_one(photos: list[DecodedPhoto]) -> Encoded:
        return _encode(photos, model, settings)

    if not _is_on_cpu(model):
        return [encode_one(photos) for photos in batches]
    # A batch for each core and one thread for each batch: torch's threads within a batch wait for each other, and on a
    # machine that is busy with other work for half of their time.
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            return list(pool.map(encode_one, batches))
        finally:
            torch.set_num_threads(num_threads)


def _encode(photos: list[DecodedPhoto], model: MatchGNN, settings: MapSettings) -> Encoded:
    images = torch.stack([torch.from_numpy(photo.read.pixels) for photo in photos])
    if not _is_on_cpu(model):
        images = images.pin_memory()
    levels, descriptors = encode_levels(model, images, len(settings.levels))
    return StoredFeatures.of_levels(levels, settings.precision).to(torch.device("cpu")), descriptors.half().cpu()


def frames_of(photos: Sequence[DecodedPhoto], shard: Shard, shard_sha256: str) -> list[MapFrame]:
    """The photos of a shard as frames of the map."""
    T_world_cam = Pose.stack([decoded.photo.T_world_cam.detach().to("cpu", torch.float64) for decoded in photos])
    with ThreadPoolExecutor(num_cores()) as pool:
        data_sha256 = list(pool.map(shard.row_sha256, range(len(shard))))
    frames = []
    for row, (decoded, quat_wxyz, center) in enumerate(
        zip(photos, T_world_cam.quat_wxyz().tolist(), T_world_cam.t.tolist(), strict=True)
    ):
        photo = decoded.photo
        frames.append(
            MapFrame(
                name=photo.name,
                quat_wxyz=tuple(quat_wxyz),
                cam_center_world=tuple(center),
                photo_width=decoded.read.size.photo_width,
                photo_height=decoded.read.size.photo_height,
                camera_line=line_of_camera(camera_of(photo)),
                sequence=photo.sequence if isinstance(photo, Frame | PhotoFile) else None,
                timestamp_s=photo.timestamp_s if isinstance(photo, Frame) else None,
                photo_sha256=decoded.read.sha256,
                shard=shard_sha256,
                shard_row=row,
                size_hw=shard.size_hw,
                data_sha256=data_sha256[row],
            )
        )
    return frames
