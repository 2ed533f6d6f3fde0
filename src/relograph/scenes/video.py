"""Frames of a video file, upright, with their times: through PyAV where it is installed, else through OpenCV."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import UInt8

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.scenes.frame import FileSource

ENDINGS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".3gp", ".mpg", ".mpeg", ".ts")
LATE_S = 1e-3
"""A frame counts for a time that it misses by less: files round times to milliseconds."""


def is_video(path: Path) -> bool:
    """Whether a file is a video, by its name.

    Example:
        >>> is_video(Path("walk.MP4")), is_video(Path("walk.jpg"))
        (True, False)
    """
    return path.suffix.lower() in ENDINGS


@dataclass(frozen=True)
class VideoFrame:
    """A picture of a video."""

    index: int
    """Among all frames of the file, from 0."""
    timestamp_s: float
    """Since the first one."""
    pixels: UInt8[np.ndarray, "H W 3"]
    """In RGB, upright: turned as the file says that the camera was held."""


@dataclass(frozen=True)
class Video:
    """A video file, of which frames are decoded as they are asked for."""

    path: Path
    duration_s: float
    """As the file says; 0 where it does not."""
    frames_per_second: float
    """Likewise."""

    def num_frames(self, fps: float | None = None) -> int:
        """About how many frames `frames` gives, 1 at least."""
        wanted = self.frames_per_second if fps is None else min(fps, self.frames_per_second or fps)
        return max(1, math.ceil(self.duration_s * wanted))

    def frames(self, fps: float | None = None) -> Iterator[VideoFrame]:
        """All frames, or as many a second as `fps` says: the first, then each that comes at or after its time."""
        check_fps(fps)
        num_given, start_s = 0, None
        with closing(_decoded(self.path)) as decoded:
            for index, (time_s, picture) in enumerate(decoded):
                start_s = time_s if start_s is None else start_s
                due_s = 0.0 if fps is None else num_given / fps
                if time_s - start_s < due_s - LATE_S:
                    continue
                # The frame of a video slower than asked for stands for all times that it is the first after.
                num_given = num_given + 1 if fps is None else math.floor((time_s - start_s + LATE_S) * fps) + 1
                yield VideoFrame(index, time_s - start_s, picture())
        if num_given == 0:
            raise _no_video(self.path, "no frame in it")


def open_video(path: Path) -> Video:
    """The video in a file; what is none is an error already here."""
    FileSource(path).require()
    package = _import_av()
    if package is not None:
        try:
            with package.open(str(path)) as container:
                stream = _av_stream(container, path)
                duration_s = 0.0 if container.duration is None else container.duration / package.time_base
                rate = stream.average_rate
                return Video(path, float(duration_s), 0.0 if rate is None else float(rate))
        except package.error.FFmpegError as error:
            raise _no_video(path, error.strerror) from error
    cv2 = _import_cv2()
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise _no_video(path, "OpenCV cannot open it")
        rate, count = (float(capture.get(what)) for what in (cv2.CAP_PROP_FPS, cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()
    rate = rate if math.isfinite(rate) and rate > 0 else 0.0
    return Video(path, max(count, 0.0) / rate if rate else 0.0, rate)


def check_fps(fps: float | None) -> None:
    """Raises unless it is a number of frames a second."""
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise ConfigError(f"expected a number of frames a second above 0, got {fps}. Leave it out for all frames.")


Decoded = Generator[tuple[float, Callable[[], UInt8[np.ndarray, "H W 3"]]], None, None]


def _decoded(path: Path) -> Decoded:
    """Times in seconds, and what gives the picture: most are skipped, and need not be converted."""
    package = _import_av()
    return _decoded_by_cv2(path) if package is None else _decoded_by_av(package, path)


def _decoded_by_av(av: ModuleType, path: Path) -> Decoded:
    try:
        with av.open(str(path)) as container:
            stream = _av_stream(container, path)
            stream.thread_type = "AUTO"
            rate = float(stream.average_rate or 30)
            for index, frame in enumerate(container.decode(stream)):

                def picture(frame: Any = frame) -> UInt8[np.ndarray, "H W 3"]:
                    pixels = frame.to_ndarray(format="rgb24")
                    # Degrees counter-clockwise by which it is to be shown.
                    return np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))

                yield index / rate if frame.time is None else float(frame.time), picture
    except av.error.FFmpegError as error:
        raise _no_video(path, error.strerror) from error


def _decoded_by_cv2(path: Path) -> Decoded:
    cv2 = _import_cv2()
    capture = cv2.VideoCapture(str(path))
    try:
        rate = float(capture.get(cv2.CAP_PROP_FPS)) or 30.0
        index, last_s = 0, -math.inf
        while capture.grab():
            time_s = float(capture.get(cv2.CAP_PROP_POS_MSEC)) / 1000
            if not time_s > last_s:  # some containers tell no times
                time_s = index / rate

            def picture() -> UInt8[np.ndarray, "H W 3"]:
                has_picture, pixels = capture.retrieve()
                if not has_picture:
                    raise _no_video(path, "a frame that cannot be decoded")
                return np.ascontiguousarray(pixels[..., ::-1])  # OpenCV turns it upright itself

            yield time_s, picture
            index, last_s = index + 1, time_s
    finally:
        capture.release()


def _av_stream(container: Any, path: Path) -> Any:
    if not container.streams.video:
        raise _no_video(path, "no pictures in it, only other streams")
    return container.streams.video[0]


def _no_video(path: Path, found: str) -> DatasetError:
    return DatasetError(
        f"{path}: expected a video, found: {' '.join(found.split())}. Convert it to MP4, or make photos of its frames."
    )


def _import_av() -> ModuleType | None:
    with suppress(ImportError):
        import av

        return av  # type: ignore[no-any-return,unused-ignore]  # it has no types where it is not installed
    return None


def _import_cv2() -> ModuleType:
    try:
        import cv2
    except ImportError:
        raise MissingExtraError("av", "video", "Reading a video") from None
    return cv2
