"""Many queries, one after the other: their answers go to a file as they come, and those of videos are smoothed."""

import math
from collections.abc import Sequence
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
from relograph.localization.map_features import MapFeatures
from relograph.localization.prior import ToldPrior
from relograph.localization.queries import Queries, Query
from relograph.localization.smoothing import SmoothedPose, smooth_answers
from relograph.progress import SILENT, Progress


@dataclass(frozen=True)
class CameraTold:
    """What is told of the queries' cameras; else each photo's own EXIF tells, or the focal length is searched."""

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


def camera_of_map(features: MapFeatures) -> Camera:
    """The one camera that all photos of a map were taken with."""
    cameras = set(features.cameras)
    camera = next(iter(cameras), None)
    if len(cameras) != 1 or not isinstance(camera, Camera):
        raise ConfigError(
            f"expected a map whose photos have one known camera, found {len(cameras)} cameras, or unknown ones. Give "
            "the queries' camera as a file, or leave it out to have the focal length searched."
        )
    return camera


def rows_near(prior: ToldPrior | None, query: Query, localizer: Localizer) -> list[int] | None:
    """Rows of the map that a prior leaves for a query; None where there is no prior."""
    if prior is None:
        return None
    return prior.of(is_tall=is_tall(query.size_wh)).references(localizer.map.T_world_cam, localizer.num_references)


def localize_query(
    localizer: Localizer, query: Query, told: CameraTold | None = None, prior: ToldPrior | None = None
) -> NamedAnswer:
    """The answer to one query; what is wrong with its photo or its camera is a refusal."""
    camera = None if told is None else told.of(query.size_wh)
    rows = rows_near(prior, query, localizer)
    if prior is not None and not rows:
        reason = f"No photo of the map is within {prior.radius_m:g} m of the prior and looks the same way."
        answer = Answer(None, False, 0.0, reason)
    else:
        try:
            answer = localizer.localize(query.image, camera=camera, references=rows)
        except (DatasetError, GeometryError) as error:
            answer = Answer(None, False, 0.0, str(error))
    return NamedAnswer(query.name, answer, query.timestamp_s, query.size_wh, camera)


@dataclass(frozen=True)
class Tally:
    """What became of queries."""

    num_queries: int
    num_localized: int
    first_reason: str
    """Why the first of the others was refused; empty where none was."""

    @staticmethod
    def of(answers: Sequence[NamedAnswer]) -> "Tally":
        reasons = [named.answer.reason for named in answers if not named.answer.localized]
        return Tally(len(answers), len(answers) - len(reasons), reasons[0] if reasons else "")


def localize_to_file(
    localizer: Localizer,
    queries: Queries,
    output: Path | None,
    format: AnswerFormat,
    wording: PoseWording,
    *,
    told: CameraTold | None = None,
    prior: ToldPrior | None = None,
    smooth: bool = True,
    progress: Progress = SILENT,
) -> tuple[Tally, Tally | None]:
    """Writes each answer as it comes to a file, or to the terminal; and what became of them.

    The frames of videos are smoothed when all are there, into a file beside the raw one; where there is none, or no
    video, the second tally is None.
    """
    answers: list[NamedAnswer] = []
    frames_by_video: dict[str, list[NamedAnswer]] = {}
    with (
        writing_answers(output, format, wording) as writer,
        progress.task("localizing", total=len(queries)) as advance,
    ):
        for query in queries:
            named = localize_query(localizer, query, told, prior)
            writer.write(named)
            answers.append(named)
            if query.video is not None:
                frames_by_video.setdefault(query.video, []).append(named)
            advance(1)
    if not smooth or output is None or not frames_by_video:
        return Tally.of(answers), None
    smooth_answers = [named for frames in frames_by_video.values() for named in smoothed(frames)]
    with writing_answers(smoothed_path(output), format, wording) as writer:
        for named in smooth_answers:
            writer.write(named)
    return Tally.of(answers), Tally.of(smooth_answers)


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
