"""What is to be localized: photos, folders of them and videos, one after the other, read when their turn comes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from relograph.errors import ConfigError, DatasetError
from relograph.scenes.frame import FileSource
from relograph.scenes.photo_folder import list_photos
from relograph.scenes.video import Video, is_video, open_video


@dataclass(frozen=True)
class Query:
    """A photo, or a frame of a video."""

    name: str
    image: Path | UInt8[np.ndarray, "H W 3"]
    size_wh: tuple[int, int] | None
    """Of the upright photo; None where its file cannot be read, which the Localizer then says."""
    video: str | None = None
    """Name of the video that it is a frame of."""
    timestamp_s: float | None = None
    """Since that began."""


@dataclass(frozen=True)
class Queries:
    """Photos by name, and videos."""

    photos: tuple[tuple[str, Path], ...]
    videos: tuple[Video, ...]
    fps: float | None = None
    """Frames of a video to localize, a second; None for all."""

    def __len__(self) -> int:
        """How many there are, of videos about."""
        return len(self.photos) + sum(video.num_frames(self.fps) for video in self.videos)

    def __iter__(self) -> Iterator[Query]:
        for name, path in self.photos:
            yield photo_query(name, path)
        for video in self.videos:
            for frame in video.frames(self.fps):
                height, width = frame.pixels.shape[:2]
                name = f"{video.path.name}/frame-{frame.index:06d}"
                yield Query(name, frame.pixels, (width, height), video.path.name, frame.timestamp_s)


def photo_query(name: str, path: Path) -> Query:
    """The photo in a file; of one that is none the Localizer says so."""
    try:
        size_wh = FileSource(path).read_image_header().upright_size_wh
    except DatasetError:
        size_wh = None
    return Query(name, path, size_wh)


def open_queries(paths: Sequence[Path], fps: float | None = None) -> Queries:
    """The photos in files and folders, in their order, then the videos. What is not there is an error.

    A photo is called by its file's name, one of a folder by its path in there; where two would have one name, all are
    called by their paths as they were given.
    """
    photos: list[tuple[str, Path]] = []
    videos: list[Video] = []
    for path in paths:
        if path.is_dir():
            photos += [(name, path / name) for name in list_photos(path)]
        elif not path.exists():
            raise DatasetError(f"{path}: expected a photo, a folder of photos or a video, found nothing. Check it.")
        elif is_video(path):
            videos.append(open_video(path))
        else:
            photos.append((path.name, path))
    if len({name for name, _ in photos}) < len(photos):
        photos = [(path.as_posix(), path) for _, path in photos]
    if len({video.path.name for video in videos}) < len(videos):
        raise ConfigError("expected videos of different names, got two of one name. Localize one after the other.")
    return Queries(tuple(photos), tuple(videos), fps)
