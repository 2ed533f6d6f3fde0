"""Photos on their way into a map: read, compared with what is there, and encoded, a shard's worth at a time."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from relograph.errors import CheckpointError, DatasetError, GeometryError
from relograph.localization.photos import PosedPhoto
from relograph.maps.building import (
    DecodedPhoto,
    decode,
    encode,
    frames_of,
    in_chunks,
    max_jpeg_bytes,
    photo_bytes,
    read_ahead,
    shards_at_once,
)
from relograph.maps.records import MapFrame, MapSettings, line_of_camera
from relograph.maps.shards import PHOTOS_PER_SHARD, Shard
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes.names import safe_name

BadPhoto = DatasetError | GeometryError


@dataclass(frozen=True)
class EncodedPhotos:
    """Photos that come into a map in one change."""

    frames: tuple[MapFrame, ...]
    """In the order of the photos."""
    shards: tuple[Shard, ...]
    num_there: int
    """Photos that the map had already, with the same pose."""
    bad: tuple[BadPhoto, ...]
    """What is wrong with others."""

    @property
    def num_photos(self) -> int:
        return len(self.frames) + self.num_there + len(self.bad)


def require_network(settings: MapSettings, network: LoadedMatchGNN) -> None:
    """Raises unless the network is the one that made the map's features."""
    if settings.network_sha256 != network.sha256:
        raise CheckpointError(
            f"expected the weights that the map was made with ({settings.network_sha256[:12]}), found others "
            f"({network.sha256[:12]}). Give those weights, or make the map again."
        )


def encode_photos(
    photos: Iterable[tuple[PosedPhoto, MapFrame | None]], model: MatchGNN, settings: MapSettings
) -> Iterator[EncodedPhotos]:
    """Photos with what the map has under their names, a shard's worth at a time; the next is under way meanwhile."""
    read = partial(_read, max_jpeg_bytes=max_jpeg_bytes(settings.levels))
    chunks = in_chunks(read_ahead(photos, read, PHOTOS_PER_SHARD), PHOTOS_PER_SHARD)
    at_once = shards_at_once(model)
    yield from read_ahead(chunks, partial(_encode, model=model, settings=settings), at_once, num_threads=at_once)


def _encode(chunk: "list[_Outcome]", model: MatchGNN, settings: MapSettings) -> EncodedPhotos:
    good = [outcome for outcome in chunk if isinstance(outcome, DecodedPhoto)]
    bad = tuple(outcome for outcome in chunk if isinstance(outcome, BadPhoto))
    shards = encode(good, model, settings) if good else []
    frames = {frame.name: frame for shard, some in shards for frame in frames_of(some, shard, shard.sha256)}
    in_order = tuple(frames[decoded.photo.name] for decoded in good)
    return EncodedPhotos(in_order, tuple(shard for shard, _ in shards), len(chunk) - len(good) - len(bad), bad)


_Outcome = DecodedPhoto | BadPhoto | None


def _read(photo_and_known: tuple[PosedPhoto, MapFrame | None], max_jpeg_bytes: int) -> _Outcome:
    """The photo decoded, what is wrong with it, or None where the map has it already."""
    photo, known = photo_and_known
    try:
        safe_name(photo.name, where="the photo's name")
        data = photo_bytes(photo)
        sha256 = hashlib.sha256(data).hexdigest()
        if known is None:
            return decode(photo, data, sha256, max_jpeg_bytes)
        _check_same(photo, sha256, known)
        return None
    except (DatasetError, GeometryError) as error:
        return error


def _check_same(photo: PosedPhoto, sha256: str, known: MapFrame) -> None:
    is_near = bool(
        (photo.T_world_cam.R - known.T_world_cam.R).abs().max() < 1e-9
        and (photo.T_world_cam.t - known.T_world_cam.t).abs().max() < 1e-9
    )
    if sha256 != known.photo_sha256:
        what = "another photo"
    elif not is_near:
        what = "another pose"
    elif line_of_camera(photo.camera) != known.camera_line:
        what = "another camera"
    else:
        return
    raise DatasetError(
        f"{photo.name}: expected a new name or the photo that the map has, found {what} in the map under this name. "
        "Remove it first, or rename it."
    )
