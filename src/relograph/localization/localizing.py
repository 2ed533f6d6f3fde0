"""Many queries, one after the other: their answers go to a file as they come, and those of videos are smoothed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relograph.errors import ConfigError, DatasetError, GeometryError
from relograph.geometry import Camera
from relograph.localization.answer_files import (
    AnswerFormat,
    NamedAnswer,
    PoseWording,
    is_tall,
    smoothed_path,
    writing_answers,
)
from relograph.localization.localizer import Answer, Localizer
from relograph.localization.map_view import MapView
from relograph.localization.prior import Prior, ToldPrior
from relograph.localization.queries import Query
from relograph.localization.smoothing import LONGEST_GAP_S, SPEED, SmoothedPose, smooth_answers
from relograph.progress import SILENT, Progress

NEAR_M = 1.0
"""How far from the last frame's pose photos of the map are preferred for the next one, were it taken at once."""


@dataclass(frozen=True)
class CameraTold:
    """What is told of the queries' cameras; else focal lengths are searched, about where each photo's own EXIF says."""

    focal_px: float | None = None
    """In pixels of the photos."""
    camera: Camera | None = None
    """Of all photos, whatever their resolution; their shape is the same."""

    def __post_init__(self) -> None:
        if self.focal_px is not None and self.camera is not None:
            raise ConfigError("expected a camera or a focal length, got both. Leave one of them out.")
        if self.focal_px is not None and not (math.isfinite(self.focal_px) and self.focal_px > 0):
            raise ConfigError(f"expected a focal length in pixels above 0, got {self.focal_px}. Leave it out.")

    def of(self, size_wh: tuple[int, int] | None) -> Camera | None:
        """The camera of a photo of that size."""
        if self.focal_px is not None and size_wh is not None:
            return Camera.from_focal(*size_wh, self.focal_px)
        return self.camera


def camera_of_map(view: MapView) -> Camera:
    """The one camera that all photos of a map were taken with."""
    cameras = set(view.cameras)
    camera = next(iter(cameras), None)
    if len(cameras) != 1 or not isinstance(camera, Camera):
        raise ConfigError(
            f"expected a map whose photos have one known camera, found {len(cameras)} cameras, or unknown ones. Give "
            "the queries' camera as a file, or leave it out to have the focal length searched."
        )
    return camera


def localize_query(
    localizer: Localizer, query: Query, told: CameraTold | None = None, prior: Prior | None = None
) -> NamedAnswer:
    """The answer to one query; what is wrong with its photo or its camera is a refusal."""
    camera = None if told is None else told.of(query.size_wh)
    try:
        answer = localizer.localize(query.image, camera=camera, prior=prior)
    except (DatasetError, GeometryError) as error:
        answer = Answer(None, False, 0.0, str(error))
    return named_answer(query, answer, camera)


def named_answer(query: Query, answer: Answer, camera: Camera | None) -> NamedAnswer:
    """The answer with what is known of its query."""
    return NamedAnswer(query.name, answer, query.timestamp_s, query.size_wh, camera, query.video)


def localize_queries(
    localizer: Localizer, queries: Iterable[Query], told: CameraTold | None = None, prior: ToldPrior | None = None
) -> Iterator[NamedAnswer]:
    """The answers, one after the other. The next frame of a video begins where the last one was taken."""
    last: NamedAnswer | None = None
    for query in queries:
        told_prior = None if prior is None else prior.of(is_tall=is_tall(query.size_wh))
        answered = localize_query(localizer, query, told, _prior_by(last, query) or told_prior)
        if answered.video is None or answered.answer.localized:  # a refused frame leaves the one before it
            last = answered
        yield answered


def _prior_by(last: NamedAnswer | None, query: Query) -> Prior | None:
    """Where a frame of a video was taken by one shortly before it."""
    if last is None or query.video is None or last.video != query.video or last.answer.T_world_cam is None:
        return None
    assert query.timestamp_s is not None
    assert last.timestamp_s is not None
    step_s = query.timestamp_s - last.timestamp_s
    if step_s > LONGEST_GAP_S:
        return None
    return Prior(last.answer.T_world_cam, looks=True, radius_m=NEAR_M + SPEED * step_s)


@dataclass(frozen=True)
class Tally:
    """What became of queries."""

    num_queries: int
    num_localized: int
    first_refused: str
    """Name of the first of the others, and why it was refused; empty where none was."""

    @staticmethod
    def of(answers: Sequence[NamedAnswer]) -> "Tally":
        reasons = [f"{named.name}: {named.answer.reason}" for named in answers if not named.answer.localized]
        return Tally(len(answers), len(answers) - len(reasons), reasons[0] if reasons else "")


def write_answers(
    answers: Iterable[NamedAnswer],
    output: Path | None,
    format: AnswerFormat,
    wording: PoseWording,
    *,
    smooth: bool = True,
    num_queries: int = 0,
    progress: Progress = SILENT,
) -> tuple[Tally, Tally | None]:
    """Writes each answer as it comes to a file, or to the terminal; and what became of them.

    `num_queries` is about how many there will be. The frames of videos are smoothed when all are there, into a file
    beside the raw one; where there is none, or no video, the second tally is None.
    """
    written: list[NamedAnswer] = []
    with (
        writing_answers(output, format, wording) as writer,
        progress.task("localizing", total=num_queries) as advance,
    ):
        for named in answers:
            writer.write(named)
            written.append(named)
            advance(1)
    frames_by_video: dict[str, list[NamedAnswer]] = {}
    for named in written:
        if named.video is not None:
            frames_by_video.setdefault(named.video, []).append(named)
    if not smooth or output is None or not frames_by_video:
        return Tally.of(written), None
    smooth_answers = [named for frames in frames_by_video.values() for named in smoothed(frames)]
    with writing_answers(smoothed_path(output), format, wording) as writer:
        for named in smooth_answers:
            writer.write(named)
    return Tally.of(written), Tally.of(smooth_answers)


def smoothed(frames: Sequence[NamedAnswer]) -> list[NamedAnswer]:
    """The answers to the frames of one video, each by its neighbours too."""
    times_s = [frame.timestamp_s for frame in frames if frame.timestamp_s is not None]
    poses = smooth_answers([frame.answer for frame in frames], times_s)
    return [_smoothed_frame(frame, pose) for frame, pose in zip(frames, poses, strict=True)]


def _smoothed_frame(frame: NamedAnswer, pose: SmoothedPose) -> NamedAnswer:
    reason = frame.answer.reason
    if frame.answer.localized and pose.T_world_cam is None:
        reason = "Its neighbours contradict it."
    elif not frame.answer.localized and pose.T_world_cam is not None:
        reason = "Told by its neighbours: the frame itself was refused."
    answer = replace(
        frame.answer,
        T_world_cam=pose.T_world_cam,
        localized=pose.T_world_cam is not None,
        covariance=pose.covariance,
        reason=reason,
    )
    return replace(frame, answer=answer, raw_weight=pose.raw_weight)
