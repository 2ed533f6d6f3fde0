"""From posed photos to shards: threads decode a few photos ahead while the network encodes."""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from relograph.environment import num_cores
from relograph.errors import GeometryError
from relograph.geometry import Pose
from relograph.localization.map_features import PHOTOS_AT_ONCE, StoredFeatures
from relograph.localization.photos import PosedPhoto, WorkingSize
from relograph.maps.records import MapFrame, MapSettings, line_of_camera
from relograph.maps.shards import Shard
from relograph.models.match_gnn import MatchGNN
from relograph.scenes.frame import Frame
from relograph.scenes.images import decode_image

JPEG_QUALITY = 70
"""Of the small picture that is kept: with the descriptor some 10 KB for 320 x 240."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class DecodedPhoto:
    """A photo of which the network can be shown what it sees."""

    photo: PosedPhoto
    sha256: str
    size: WorkingSize
    pixels: UInt8[np.ndarray, "H W 3"]
    """What the network sees."""
    jpeg: bytes
    """The same, for people and for other networks."""


def photo_bytes(photo: PosedPhoto) -> bytes:
    """The file of a photo, or its pixels where there is no file: what tells that two photos are the same."""
    return photo.image.read_bytes() if isinstance(photo, Frame) else photo.read_image().tobytes()


def decode(photo: PosedPhoto, data: bytes, sha256: str) -> DecodedPhoto:
    """The photo from the bytes that `photo_bytes` gave."""
    pixels = decode_image(data, photo.image.label) if isinstance(photo, Frame) else photo.read_image()
    if not (photo.T_world_cam.R.isfinite().all() and photo.T_world_cam.t.isfinite().all()):
        raise GeometryError(f"{photo.name}: expected a pose of finite numbers, found others. Leave the photo out.")
    size = WorkingSize.of(pixels.shape[1], pixels.shape[0])
    if photo.camera is not None:
        size.camera(photo.camera)  # raises now rather than when it is first matched
    seen = size.pixels(pixels)
    jpeg = io.BytesIO()
    Image.fromarray(seen).save(jpeg, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return DecodedPhoto(photo, sha256, size, seen, jpeg.getvalue())


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_ahead(items: Iterable[T], read: Callable[[T], U], num_ahead: int) -> Iterator[U]:
    """`read` of each item in their order, by threads that are at most `num_ahead` items ahead of whoever asks."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(max(2, num_cores())) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(read, item))
                if len(waiting) > num_ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def encode(
    photos: Sequence[DecodedPhoto], model: MatchGNN, settings: MapSettings
) -> list[tuple[Shard, list[DecodedPhoto]]]:
    """Shards of the photos, one for each size, with the photos in the order of their rows."""
    by_size: dict[tuple[int, int], list[DecodedPhoto]] = {}
    for photo in photos:
        by_size.setdefault(photo.size.size_hw, []).append(photo)
    batches = [some for its_photos in by_size.values() for some in in_chunks(its_photos, PHOTOS_AT_ONCE)]
    encoded = iter(_encode_all(batches, model, settings))
    shards = []
    for size_hw, its_photos in by_size.items():
        stored, descriptors = zip(*islice(encoded, -(-len(its_photos) // PHOTOS_AT_ONCE)), strict=True)
        jpegs = [photo.jpeg for photo in its_photos]
        shard = Shard.of(size_hw, StoredFeatures.cat(stored), settings.levels, torch.cat(descriptors), jpegs)
        shards.append((shard, its_photos))
    return shards


Encoded = tuple[StoredFeatures, Float[Tensor, "M D"]]


def _encode_all(batches: Sequence[list[DecodedPhoto]], model: MatchGNN, settings: MapSettings) -> list[Encoded]:
    def encode_one(photos: list[DecodedPhoto]) -> Encoded:
        return _encode(photos, model, settings)

    if next(model.parameters()).device.type != "cpu":
        return [encode_one(photos) for photos in batches]
    # A batch for each core and one thread for each batch: torch's threads within a batch wait for each other, and on a
    # machine that is busy with other work for half of their time.
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            return list(pool.map(encode_one, batches))
        finally:
            torch.set_num_threads(num_threads)


@torch.no_grad()
def _encode(photos: list[DecodedPhoto], model: MatchGNN, settings: MapSettings) -> Encoded:
    images = torch.stack([torch.from_numpy(photo.pixels) for photo in photos])
    features = model.encode(images.to(next(model.parameters()).device))
    return _on_cpu(StoredFeatures.of(features, settings.precision)), model.descriptor(features.context).half().cpu()


def _on_cpu(stored: StoredFeatures) -> StoredFeatures:
    context, coarse, fine = (part.cpu() for part in stored.parts)
    if stored.steps is None:
        return StoredFeatures((context, coarse, fine), None)
    of_context, of_coarse, of_fine = (step.cpu() for step in stored.steps)
    return StoredFeatures((context, coarse, fine), (of_context, of_coarse, of_fine))


def frames_of(photos: Sequence[DecodedPhoto], shard: Shard, shard_sha256: str) -> list[MapFrame]:
    """The photos of a shard as frames of the map."""
    T_world_cam = Pose.stack([decoded.photo.T_world_cam.detach().to("cpu", torch.float64) for decoded in photos])
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
                photo_width=decoded.size.photo_width,
                photo_height=decoded.size.photo_height,
                camera_line=line_of_camera(photo.camera),
                sequence=photo.sequence if isinstance(photo, Frame) else None,
                timestamp_s=photo.timestamp_s if isinstance(photo, Frame) else None,
                photo_sha256=decoded.sha256,
                shard=shard_sha256,
                shard_row=row,
                size_hw=shard.size_hw,
                data_sha256=shard.row_sha256(row),
            )
        )
    return frames
