"""From posed photos to shards: threads decode a few photos ahead while the network encodes those of the next shard."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from tempfile import TemporaryFile, gettempdir
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from relograph.environment import num_cores
from relograph.errors import GeometryError, RelographError
from relograph.geometry import Pose
from relograph.localization.map_features import StoredFeatures, encode_levels
from relograph.localization.photos import PhotoFile, PosedPhoto, WorkingSize, see_file, see_pixels
from relograph.maps.records import Level, MapFrame, MapSettings, line_of_camera
from relograph.maps.shards import Shard
from relograph.models.match_gnn import MatchGNN
from relograph.scenes.frame import Frame

JPEG_QUALITIES = (85, 75, 65, 55, 45, 35, 25, 15)
"""Of the small photo that is kept; the first by which it is small enough is taken, or else the last."""
MAX_JPEG_BYTES = 13_500
"""For it: fine features are computed from it, and the coarser it is, the less they say where something is."""
MAX_LONE_JPEG_BYTES = 8_100
"""For it in a map that keeps no features, which is to be small: 10 KB a photo in all."""

PHOTOS_PER_CORE = 4
"""That a CPU's core encodes at once: of more the features leave its cache, and cores wait longer for the last one."""

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
    if isinstance(photo, PhotoFile):
        return photo.data
    return photo.image.read_bytes() if isinstance(photo, Frame) else photo.read_image().tobytes()


def decode(photo: PosedPhoto, data: bytes, sha256: str, max_jpeg_bytes: int) -> DecodedPhoto:
    """The photo from the bytes that `photo_bytes` gave, with a small one of that many bytes at the most."""
    if isinstance(photo, Frame | PhotoFile):
        seen = see_file(data, photo.image.label if isinstance(photo, Frame) else photo.name)
    else:
        seen = see_pixels(photo.read_image())
    if not (photo.T_world_cam.R.isfinite().all() and photo.T_world_cam.t.isfinite().all()):
        raise GeometryError(f"{photo.name}: expected a pose of finite numbers, found others. Leave the photo out.")
    if photo.camera is not None:
        seen.size.camera(photo.camera)  # raises now rather than when it is first matched
    return DecodedPhoto(photo, sha256, seen.size, seen.pixels, small_jpeg(seen.pixels, max_jpeg_bytes))


def max_jpeg_bytes(levels: Sequence[Level]) -> int:
    """Of the small photo in a map that keeps those features."""
    return MAX_JPEG_BYTES if levels else MAX_LONE_JPEG_BYTES


def small_jpeg(pixels: UInt8[np.ndarray, "H W 3"], max_bytes: int) -> bytes:
    """The photo in the best quality that fits, or the lowest."""
    try:
        # Into a file: while Pillow encodes into memory no other thread of Python's runs, and all would wait for one.
        with TemporaryFile() as file:
            for quality in JPEG_QUALITIES:
                file.seek(0)
                Image.fromarray(pixels).save(file, "JPEG", quality=quality, optimize=True)
                file.truncate()
                if file.tell() <= max_bytes:
                    break
            file.seek(0)
            return file.read()
    except OSError as error:
        raise RelographError(
            f"{gettempdir()}: expected to write a small file here, found: {error}. Free some space, or set TMPDIR."
        ) from error


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_ahead(
    items: Iterable[T], read: Callable[[T], U], num_ahead: int, num_threads: int | None = None
) -> Iterator[U]:
    """`read` of each item in their order, by threads that are at most `num_ahead` items ahead of whoever asks."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(num_threads or max(2, num_cores())) as pool:
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


EncodedShards = list[tuple[Shard, list[DecodedPhoto]]]


def shards_at_once(model: MatchGNN) -> int:
    """How many shards are worth encoding side by side: a CPU's cores are busy with one, a GPU would wait for hashes."""
    return 1 if _is_on_cpu(model) else 3


def encode(photos: Sequence[DecodedPhoto], model: MatchGNN, settings: MapSettings) -> EncodedShards:
    """Shards of the photos, one for each size, with the photos in the order of their rows."""
    by_size: dict[tuple[int, int], list[DecodedPhoto]] = {}
    for photo in photos:
        by_size.setdefault(photo.size.size_hw, []).append(photo)
    at_once = PHOTOS_PER_CORE if _is_on_cpu(model) else len(photos)
    batches = {size_hw: list(in_chunks(of_size, at_once)) for size_hw, of_size in by_size.items()}
    encoded = iter(_encode_all([batch for of_size in batches.values() for batch in of_size], model, settings))
    shards = []
    for size_hw, its_photos in by_size.items():
        stored, descriptors = zip(*islice(encoded, len(batches[size_hw])), strict=True)
        jpegs = [photo.jpeg for photo in its_photos]
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
    images = torch.stack([torch.from_numpy(photo.pixels) for photo in photos])
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
                photo_width=decoded.size.photo_width,
                photo_height=decoded.size.photo_height,
                camera_line=line_of_camera(photo.camera),
                sequence=photo.sequence if isinstance(photo, Frame | PhotoFile) else None,
                timestamp_s=photo.timestamp_s if isinstance(photo, Frame) else None,
                photo_sha256=decoded.sha256,
                shard=shard_sha256,
                shard_row=row,
                size_hw=shard.size_hw,
                data_sha256=data_sha256[row],
            )
        )
    return frames
