"""How two maps lie to each other, from photos of one that were localized in the other."""

from collections.abc import Sequence

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.geometry.alignment import Alignment, align_cameras_robustly
from relograph.localization.localizer import Localizer
from relograph.maps.map import Map
from relograph.maps.records import MapFrame, frame_poses
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress

MAX_PHOTOS = 100
"""Of one map that are localized in the other."""
AGREE_M, AGREE_DEG = 0.25, 10.0
"""How far a photo's two poses may be apart: what counts as a right answer."""
MIN_SHARE = 0.3
"""Of the localized photos that must agree: wrong answers agree with nobody."""


def join_maps(
    here: Map, there: Map, network: LoadedMatchGNN, *, with_scale: bool = False, progress: Progress = SILENT
) -> Alignment:
    """The motion from the world of `there` to that of `here`, by localizing some of its photos in `here`.

    Its residuals are in metres, of the photos that were localized; its inliers are those of which both poses agree.
    """
    frames = there.frames[:: -(-len(there) // MAX_PHOTOS) or 1]
    here.answer_with(network)
    localizer = Localizer(here.features, network)
    found = []
    with progress.task("localizing photos of the other map", total=len(frames)) as advance:
        for frame in frames:
            camera = frame.working_size.camera(frame.camera) if frame.camera is not None else None
            answer = localizer.localize(there.jpeg(frame), camera=camera)
            if answer.T_world_cam is not None:
                found.append((frame, answer.T_world_cam))
            advance(1)
    alignment = _agreed(found, with_scale=with_scale)
    if alignment is not None:
        return alignment
    told = (
        f"{there.store.where}: expected photos that show the same place as {here.store.where}, found that {len(found)} "
        f"of {len(frames)} are localized there and that they agree on no motion"
    )
    scaled = None if with_scale else _agreed(found, with_scale=True)
    if scaled is not None:
        raise DatasetError(
            f"{told} unless a metre there is {scaled.scale:.4g} here, as {scaled.inlier.sum()} of them say. "
            "If that may be, find the scale, too (--scale)."
        )
    raise DatasetError(f"{told}. Give the transform, or add photos that both maps show.")


def _agreed(found: Sequence[tuple[MapFrame, Pose]], *, with_scale: bool) -> Alignment | None:
    """The motion that most photos agree on, of which the pose here is known as well; None where there is none."""
    if not found:
        return None
    return align_cameras_robustly(
        frame_poses([frame for frame, _ in found]),
        Pose.stack([T_here_cam for _, T_here_cam in found]),
        AGREE_M,
        AGREE_DEG,
        with_scale=with_scale,
        min_share=MIN_SHARE,
    )
