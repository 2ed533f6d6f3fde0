"""Photos on their way into a map: read, compared with what is there, and encoded, a shard's worth at a time."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from relograph.errors import CheckpointError, DatasetError, GeometryError
from relograph.localization.photos import PosedPhoto, camera_of
from relograph.maps.building import DecodedPhoto, encode, frames_of, max_jpeg_bytes, shards_at_once
from relograph.maps.reading import BadPhoto, Outcome, ReadPhoto, ReadTask, chunks_read, read_ahead
from relograph.maps.records import MapFrame, MapSettings, line_of_camera
from relograph.maps.shards import PHOTOS_PER_SHARD, Shard
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.scenes.names import safe_name


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
    photos: Iterable[tuple[PosedPhoto, MapFrame | None]],
    model: MatchGNN,
    settings: MapSettings,
    *,
    num_processes: int = 0,
    write: Callable[[Shard], None] = lambda shard: None,
) -> Generator[EncodedPhotos, None, None]:
    """Photos with what the map has under their names, a shard's worth at a time; the next is under way meanwhile.

    With `num_processes` so many processes read them instead of threads of this one. `write` is told of each shard as
    soon as it is made, by one of several threads.
    """
    most = max_jpeg_bytes(settings.levels)
    tasks = (((photo, known), ReadTask.of(photo, most if known is None else None)) for photo, known in photos)
    at_once = shards_at_once(model)
    encode_chunk = partial(_encode, model=model, settings=settings, write=write)
    with (
        closing(chunks_read(tasks, num_processes, PHOTOS_PER_SHARD)) as chunks,
        closing(read_ahead(chunks, encode_chunk, at_once, num_threads=at_once)) as encoded,
    ):
        yield from encoded


def _encode(
    chunk: "list[tuple[_Asked, Outcome]]", model: MatchGNN, settings: MapSettings, write: Callable[[Shard], None]
) -> EncodedPhotos:
    outcomes = [_checked(*asked, outcome) for asked, outcome in chunk]
    good = [outcome for outcome in outcomes if isinstance(outcome, DecodedPhoto)]
    bad = tuple(outcome for outcome in outcomes if isinstance(outcome, BadPhoto))
    shards = encode(good, model, settings) if good else []
    for shard, _ in shards:
        write(shard)
    frames = {frame.name: frame for shard, some in shards for frame in frames_of(some, shard, shard.sha256)}
    in_order = tuple(frames[decoded.photo.name] for decoded in good)
    return EncodedPhotos(in_order, tuple(shard for shard, _ in shards), len(chunk) - len(good) - len(bad), bad)


_Asked = tuple[PosedPhoto, MapFrame | None]


def _checked(photo: PosedPhoto, known: MapFrame | None, outcome: Outcome) -> DecodedPhoto | BadPhoto | None:
    """The photo as it was read, what is wrong with it, or None where the map has it already."""
    try:
        safe_name(photo.name, where="the photo's name")
        if isinstance(outcome, BadPhoto):
            return outcome
        if isinstance(outcome, ReadPhoto):
            _check_pose(photo, outcome)
            return DecodedPhoto(photo, outcome)
        assert known is not None  # or its pixels would have been asked for
        _check_same(photo, outcome, known)
        return None
    except (DatasetError, GeometryError) as error:
        return error


def _check_pose(photo: PosedPhoto, read: ReadPhoto) -> None:
    if not (photo.T_world_cam.R.isfinite().all() and photo.T_world_cam.t.isfinite().all()):
        raise GeometryError(f"{photo.name}: expected a pose of finite numbers, found others. Leave the photo out.")
    if photo.camera is not None:
        read.size.camera(photo.camera)  # raises now rather than when it is first matched


def _check_same(photo: PosedPhoto, sha256: str, known: MapFrame) -> None:
    is_near = bool(
        (photo.T_world_cam.R - known.T_world_cam.R).abs().max() < 1e-9
        and (photo.T_world_cam.t - known.T_world_cam.t).abs().max() < 1e-9
    )
    if sha256 != known.photo_sha256:
        what = "another photo"
    elif not is_near:
        what = "another pose"
    elif line_of_camera(camera_of(photo)) != known.camera_line:
        what = "another camera"
    else:
        return
    raise DatasetError(
        f"{photo.name}: expected a new name or the photo that the map has, found {what} in the map under this name. "
        "Remove it first, or rename it."
    )
