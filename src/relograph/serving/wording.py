"""Answers, photos and maps in the words of the contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relograph.geometry import Camera, Pose
from relograph.geometry.axes import axes_of, to_axes
from relograph.localization.answer_files import NamedAnswer, PoseWording, answer_as_json, is_tall
from relograph.localization.localizer import Compared, Judged
from relograph.localization.photos import WorkingSize
from relograph.maps.georeferencing import pose_on_earth
from relograph.maps.records import Georeference, MapFrame
from relograph.serving.answering import Outcome
from relograph.serving.messages import (
    AnswerMap,
    Axes,
    DrawnMatches,
    Extent,
    Frame,
    GeoPose,
    GeoPosition,
    GeoQuaternion,
    LatencyMs,
    LocalizeAnswer,
    LocalizeOptions,
    MapDetails,
    MapSummary,
    Reference,
)
from relograph.serving.served_maps import MapMoment

DRAWN_MATCHES = 80
"""With a reference, strong and weak ones: hundreds would hide both photos."""


@dataclass(frozen=True)
class Answered:
    """A query and what became of it."""

    map_name: str
    moment: MapMoment
    options: LocalizeOptions
    size_wh: tuple[int, int]
    """Of the upright photo."""
    outcome: Outcome
    total_s: float


def localize_answer(answered: Answered) -> LocalizeAnswer:
    """The answer along the axes that were asked for."""
    moment, options, outcome = answered.moment, answered.options, answered.outcome
    wording = PoseWording(options.axes, scale_is_known=moment.settings.scale_is_known)
    named = NamedAnswer("", outcome.answer, size_wh=answered.size_wh)
    said: dict[str, Any] = answer_as_json(named, wording)
    seconds = {"queue": outcome.queue_s, **outcome.answer.seconds, "total": answered.total_s}
    of_camera = wording.camera_pose(named)
    georeference = moment.settings.georeference
    width, height = answered.size_wh
    return LocalizeAnswer(
        **{name: said[name] for name in _SAID_ALIKE},
        width=width,
        height=height,
        geopose=None if of_camera is None else geopose(georeference, of_camera[0], options.axes),
        references=_references(answered),
        latency_ms=LatencyMs(**{stage: 1000 * seconds.get(stage, 0.0) for stage in LatencyMs.model_fields}),
        map=AnswerMap(name=answered.map_name, revision=moment.revision),
    )


_SAID_ALIKE = (
    *("localized", "reason", "confidence", "axes", "T_world_cam", "quat_wxyz", "cam_center_world", "covariance"),
    *("position_sigma_m", "rotation_sigma_deg", "scale_is_known", "scale_observable", "focal_px", "num_inliers"),
    "orientation_wxyz",
)


def geopose(georeference: Georeference | None, T_world_axes: Pose, axes: Axes) -> GeoPose | None:
    """The pose on Earth of a camera along those axes, where that is known."""
    if georeference is None or axes == "unity":
        return None
    place, T_enu_cam = pose_on_earth(georeference, T_world_axes)
    w, x, y, z = T_enu_cam.quat_wxyz().tolist()
    latitude_deg, longitude_deg, altitude_m = place.tolist()
    return GeoPose(
        position=GeoPosition(lat=latitude_deg, lon=longitude_deg, h=altitude_m),
        quaternion=GeoQuaternion(x=x, y=y, z=z, w=w),
    )


def _references(answered: Answered) -> list[Reference]:
    outcome, frames, axes = answered.outcome, answered.moment.frames, answered.options.axes
    references = []
    matrices = _matrices_along(axes, answered.moment, [used.row for used in outcome.answer.references])
    for ref, used in enumerate(outcome.answer.references):
        frame = frames[used.row]
        drawn = None
        if answered.options.with_matches and outcome.judged is not None and outcome.compared is not None:
            drawn = _drawn_matches(ref, outcome.judged, outcome.compared, answered.size_wh, frame)
        references.append(
            Reference(
                name=used.name,
                similarity=used.similarity,
                overlap=used.overlap,
                num_matches=used.num_matches,
                num_inliers=used.num_inliers,
                T_world_cam=matrices[used.row],
                matches=drawn,
            )
        )
    return references


def _matrices_along(axes: Axes, moment: MapMoment, rows: Sequence[int]) -> dict[int, Any]:
    """Poses of photos of a map by their rows; all at once, as a tensor costs as much as a hundred numbers."""
    matrices: dict[int, Any] = {}
    for tall in (False, True):
        some = [
            row for row in rows if is_tall((moment.frames[row].photo_width, moment.frames[row].photo_height)) == tall
        ]
        if some:
            T_world_axes = to_axes(moment.features.T_world_cam[some], axes_of(axes, is_tall=tall))
            matrices.update(zip(some, T_world_axes.matrix().tolist(), strict=True))
    return matrices


def _drawn_matches(
    ref: int, judged: Judged, compared: Compared, size_wh: tuple[int, int], frame: MapFrame
) -> DrawnMatches:
    """Matches with one reference: places in the whole photo that was sent, and in what the map keeps of the other."""
    points, solved = judged.points, judged.solved
    rows = np.flatnonzero(np.asarray(points.ref_idx) == ref)
    rows = rows[np.linspace(0, len(rows) - 1, min(DRAWN_MATCHES, len(rows))).astype(int)]
    agrees = np.zeros(len(rows), dtype=bool)
    if solved is not None and solved.T_world_cam is not None:
        agrees = solved.inlier_mask.numpy()[rows]
    seen = WorkingSize(*size_wh, compared.query_hw)
    ref_wh = np.array(frame.size_hw[::-1], dtype=np.float64)
    return DrawnMatches(
        query_xy=_points(seen.in_photo(np.asarray(points.query_xy)[rows]) / np.array(size_wh)),
        ref_xy=_points(np.asarray(points.ref_xy)[rows] / ref_wh),
        inlier=agrees.tolist(),
    )


def _points(xy: np.ndarray) -> list[tuple[float, float]]:
    return [(x, y) for x, y in np.clip(xy, 0.0, 1.0).round(5).tolist()]


def _rows(T: Pose) -> Any:
    return T.matrix().tolist()


# Photos and maps


def frame_messages(moment: MapMoment, rows: Sequence[int]) -> list[Frame]:
    """Photos of a map."""
    matrices = moment.features.T_world_cam[list(rows)].matrix().tolist() if rows else []
    return [frame_message(moment.frames[row], matrix) for row, matrix in zip(rows, matrices, strict=True)]


def frame_message(frame: MapFrame, matrix: Any = None) -> Frame:
    """A photo of a map; `matrix` is its pose where that is at hand."""
    camera = frame.camera
    return Frame(
        name=frame.name,
        T_world_cam=_rows(frame.T_world_cam) if matrix is None else matrix,
        width=frame.photo_width,
        height=frame.photo_height,
        focal_px=camera.scaled_to(frame.photo_width, frame.photo_height).fx if isinstance(camera, Camera) else None,
        sequence=frame.sequence,
    )


def map_summary(name: str, moment: MapMoment, *, writable: bool) -> MapSummary:
    """A map in a few words."""
    return MapSummary(
        name=name,
        num_frames=len(moment.frames),
        revision=moment.revision,
        scale_is_known=moment.settings.scale_is_known,
        georeferenced=moment.settings.georeference is not None,
        weights_sha256=moment.settings.network_sha256,
        writable=writable,
    )


def map_details(name: str, moment: MapMoment, *, writable: bool) -> MapDetails:
    """A map with where its cameras are."""
    centers = moment.features.T_world_cam.t
    extent = None
    if len(moment.frames):
        extent = Extent.model_validate({"min": centers.amin(dim=0).tolist(), "max": centers.amax(dim=0).tolist()})
    summary = map_summary(name, moment, writable=writable)
    return MapDetails(**summary.model_dump(), extent_world=extent)
