"""Answers beside the truth, to look at: a picture from above, and a page in 3-D."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relograph.errors import MissingExtraError
from relograph.evaluation.plots import label_in_plain_numbers
from relograph.evaluation.qualitative import ANSWER_COLOR, MAP_COLOR, TRUE_COLOR
from relograph.geometry import Pose, pose_error
from relograph.localization.answer_files import SavedAnswer
from relograph.localization.consensus import import_poselib
from relograph.localization.localizer import Answer, Localizer
from relograph.maps.map import Map
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.rooms.pictures import ground_axes, save_picture
from relograph.scenes import Frame, Scene
from relograph.viewer.cameras_page import CameraGroup, Slider, write_cameras_page
from relograph.viewer.shown import error_text, groups_of_answers, stacked_or_nowhere

REFUSED_COLOR = "#d55e00"
MARGIN_M = 0.5
SMALLEST_ERROR, LARGEST_ERROR = (1e-3, 1e-2), (10.0, 180.0)
"""Metres and degrees where axes begin and end at the most; errors beyond are drawn there."""


@dataclass(frozen=True)
class ScoredAnswer:
    """What was said about a frame whose pose is known."""

    frame: Frame
    answer: Answer
    T_world_copied: Pose | None
    """The pose of the photo that looks most like it; None where it was compared with none."""

    @property
    def error(self) -> tuple[float, float] | None:
        """Of the answer, in metres and degrees; None where there is none."""
        return None if self.answer.T_world_cam is None else _error(self.answer.T_world_cam, self.frame)

    @property
    def copied_error(self) -> tuple[float, float] | None:
        """Of the copied pose, likewise."""
        return None if self.T_world_copied is None else _error(self.T_world_copied, self.frame)

    @property
    def said(self) -> str:
        """The answer in a few words."""
        if self.error is None:
            return f"not localized ({self.answer.confidence:.0%} sure)"
        return f"{error_text(self.error)} ({self.answer.confidence:.0%} sure)"

    @property
    def caption(self) -> str:
        """All of it in a line."""
        why = f" {self.answer.reason}" if self.answer.reason else ""
        copied = (
            "" if self.copied_error is None else f" Copying the most similar photo: {error_text(self.copied_error)}."
        )
        return f"{self.frame.name}: {self.said}.{why}{copied}"


def demonstrate(
    scene: Scene,
    network: LoadedMatchGNN,
    folder: Path,
    map_path: Path,
    num_map_photos: int,
    num_queries: int,
    *,
    progress: Progress = SILENT,
) -> str:
    """Localize some test photos of a scene in a map of some of its training photos, and write what can be looked at.

    The map stays at `map_path`.
    """
    map_frames, queries = (
        [frames[int(row)] for row in np.linspace(0, len(frames) - 1, min(count, len(frames)))]
        for frames, count in ((scene.train, num_map_photos), (scene.test, num_queries))
    )
    place = map_of_demo(map_path, map_frames, network, progress=progress)
    scored = localize_frames(Localizer(place, network), queries, progress=progress)
    picture, page = folder / "answers_from_above.png", folder / "answers.html"
    draw_answers_from_above(scene.name, map_frames, scored, picture)
    write_answers_page(scene.name, map_frames, scored, page)
    lines = [answers_table(scored), summary(scored)]
    if network.calibration is None:
        lines.append("mind       these weights are not calibrated: how sure they are is a guess")
    try:
        import_poselib()
    except MissingExtraError as error:
        lines.append(f"mind       the poses are the network's own: {error}")
    return "\n".join([*lines, f"picture    {picture}", f"page       {page}", f"map        {map_path}"])


def map_of_demo(path: Path, photos: Sequence[Frame], network: LoadedMatchGNN, *, progress: Progress = SILENT) -> Map:
    """The map of those photos that an earlier run left there, or a new one where there is none by this network."""
    if path.exists():
        place = Map.open(path)
        if place.settings.network_sha256 == network.sha256:
            place.add(photos, network=network, progress=progress)  # what a run that was stopped had not come to
            return place
        shutil.rmtree(path)
    return Map.create(path, photos, network=network, progress=progress)


def localize_frames(
    localizer: Localizer, frames: Sequence[Frame], *, progress: Progress = SILENT
) -> list[ScoredAnswer]:
    """Localize frames whose poses are known, and are not told."""
    scored = []
    with progress.task("localizing", total=len(frames)) as advance:
        for frame in frames:
            answer = localizer.localize(frame.read_image(), camera=frame.camera)
            alike = max(answer.references, key=lambda reference: reference.similarity, default=None)
            copied = None if alike is None else localizer.map.T_world_cam[alike.row]
            scored.append(ScoredAnswer(frame, answer, copied))
            advance(1)
    return scored


def answers_table(scored: Sequence[ScoredAnswer]) -> str:
    """A line for each photo: its error, and that of copying the pose of the most similar photo."""
    rows = [("photo", "answer", "copying the most similar photo")]
    rows += [
        (one.frame.name, one.said, "nothing to copy" if one.copied_error is None else error_text(one.copied_error))
        for one in scored
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {said:<{widths[1]}}  {copied}" for name, said, copied in rows)


def summary(scored: Sequence[ScoredAnswer]) -> str:
    """How many were localized and how well, beside copying the pose of the most similar photo, in a few lines."""
    found = [one.error for one in scored if one.error is not None]
    copied = [one.copied_error for one in scored if one.copied_error is not None]
    lines = [f"localized  {_localized_text(scored)}"]
    if copied:
        lines.append(f"copying    the pose of the most similar photo instead: median error {_median_text(copied)}")
    if refused := [one.answer.reason for one in scored if one.error is None]:
        lines.append(f"refused    {len(refused)} of {len(scored)} photos, the first: {refused[0]}")
    both = [(one.error, one.copied_error) for one in scored if one.error and one.copied_error]
    if not found:
        lines.append("verdict    these weights localize nothing here")
    elif both:
        ours, theirs = _median([ours for ours, _ in both]), _median([theirs for _, theirs in both])
        if ours[0] < theirs[0] and ours[1] < theirs[1]:
            factors = (f"{theirs[kind] / ours[kind]:.1f}x" if ours[kind] > 0 else "infinitely" for kind in (0, 1))
            lines.append("verdict    {} nearer and {} better turned than copying".format(*factors))
        else:
            lines.append("verdict    no better than copying: these weights have not learned to localize")
    return "\n".join(lines)


def draw_answers_from_above(name: str, map_frames: Sequence[Frame], scored: Sequence[ScoredAnswer], path: Path) -> None:
    """The map's cameras, true and answered ones, from above, and how large the errors are."""
    to_ground = np.stack(ground_axes(_stacked([frame.T_world_cam for frame in map_frames])), axis=1)  # [3, 2]
    figure = Figure(figsize=(12, 6.4), dpi=110, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    ground, errors = figure.subplots(1, 2, width_ratios=(3, 2))

    def arrows(T_world_cam: Pose, color: str, label: str, size: float) -> None:
        center, ahead = T_world_cam.t.numpy() @ to_ground, T_world_cam.R.numpy()[:, :, 2] @ to_ground
        ground.quiver(*center.T, *ahead.T, color=color, width=0.0015 + 0.001 * size, scale=22, zorder=3)
        ground.scatter(*center.T, s=9 * size, color=color, label=label, zorder=3)

    def dots(of: Sequence[tuple[float, float] | None], color: str, marker: str, label: str) -> None:
        known = np.array([error for error in of if error is not None]).reshape(-1, 2)
        errors.scatter(*known.clip(SMALLEST_ERROR, LARGEST_ERROR).T, color=color, marker=marker, label=label)

    found = [one for one in scored if one.error is not None]
    refused = [one for one in scored if one.error is None]
    arrows(_stacked([frame.T_world_cam for frame in map_frames]), MAP_COLOR, "map", 1)
    if found:
        truth = _stacked([one.frame.T_world_cam for one in found])
        answers = stacked_or_nowhere([one.answer.T_world_cam for one in found])
        arrows(truth, TRUE_COLOR, "truth", 4)
        arrows(answers, ANSWER_COLOR, "answer", 1.5)
        for true_center, center in zip(truth.t.numpy() @ to_ground, answers.t.numpy() @ to_ground, strict=True):
            ground.plot(*np.stack([true_center, center]).T, color="#20242a", linewidth=0.8, zorder=4)
        dots([one.error for one in scored], ANSWER_COLOR, "o", "answer")
    if refused:
        arrows(_stacked([one.frame.T_world_cam for one in refused]), REFUSED_COLOR, "truth, not localized", 2)
    dots([one.copied_error for one in scored], MAP_COLOR, "x", "pose of the most similar photo")
    # Where cameras truly are: one wild answer must not make all others small.
    centers = np.stack([frame.T_world_cam.t.numpy() for frame in (*map_frames, *(one.frame for one in scored))])
    (low_x, low_y), (high_x, high_y) = (centers @ to_ground).min(axis=0), (centers @ to_ground).max(axis=0)
    ground.set_xlim(low_x - MARGIN_M, high_x + MARGIN_M)
    ground.set_ylim(low_y - MARGIN_M, high_y + MARGIN_M)
    ground.set_aspect("equal")
    ground.grid(color="#e6e6e6")
    ground.set_axisbelow(True)
    ground.set_xlabel("metres to the right of the first camera's view")
    ground.set_ylabel("metres ahead")
    ground.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, frameon=False)
    errors.set_xscale("log")
    errors.set_yscale("log")
    if not any(one.error or one.copied_error for one in scored):
        # Else nothing says where the axes are.
        errors.set(xlim=(SMALLEST_ERROR[0], LARGEST_ERROR[0]), ylim=(SMALLEST_ERROR[1], LARGEST_ERROR[1]))
    label_in_plain_numbers(errors.xaxis)
    label_in_plain_numbers(errors.yaxis)
    errors.tick_params(axis="x", labelrotation=45)
    errors.set_xlabel("translation error [m]")
    errors.set_ylabel("rotation error [°]")
    errors.grid(color="#e6e6e6", which="both")
    errors.set_axisbelow(True)
    errors.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
    figure.suptitle(f"{name}: localized {_localized_text(scored)}")
    figure.subplots_adjust(left=0.06, right=0.98, top=0.92, bottom=0.19, wspace=0.2)
    canvas.draw()
    save_picture(np.asarray(canvas.buffer_rgba())[..., :3].copy(), path)


def write_answers_page(name: str, map_frames: Sequence[Frame], scored: Sequence[ScoredAnswer], path: Path) -> None:
    """The same in 3-D, with all photos and a slider along the queries."""
    row_by_name = {frame.name: row for row, frame in enumerate(map_frames)}
    query_by_name = {one.frame.name: one.frame for one in scored}
    answers = [
        SavedAnswer(
            one.frame.name,
            one.answer.T_world_cam,
            one.answer.reason,
            one.answer.confidence,
            tuple(used.name for used in one.answer.references),
            one.frame.T_world_cam,
        )
        for one in scored
    ]
    of_answers = groups_of_answers(answers, query_by_name.get, [one.caption for one in scored])
    map_group = CameraGroup(
        "map",
        MAP_COLOR,
        _stacked([frame.T_world_cam for frame in map_frames]),
        [frame.name for frame in map_frames],
        map_frames,
        size_m=0.12,
    )
    related = [[row_by_name[name] for name in answer.references if name in row_by_name] for answer in answers]
    write_cameras_page(
        path,
        [map_group, *of_answers.groups],
        title=f"{name}: answers beside the truth",
        note=summary(scored),
        lines=[(a + 1, b + 1) for a, b in of_answers.lines],
        slider=Slider("query", of_answers.captions, [1 + i for i in range(len(of_answers.groups))], 0, related),
    )


def _stacked(poses: Sequence[Pose]) -> Pose:
    return Pose(torch.stack([T.R for T in poses]), torch.stack([T.t for T in poses]))


def _error(T_world_cam: Pose, frame: Frame) -> tuple[float, float]:
    error = pose_error(T_world_cam, frame.T_world_cam)
    return float(error.translation_error_m), float(error.rotation_error_deg)


def _localized_text(scored: Sequence[ScoredAnswer]) -> str:
    found = [one.error for one in scored if one.error is not None]
    return f"{len(found)} of {len(scored)} photos" + (f", median error {_median_text(found)}" if found else "")


def _median(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(metres for metres, _ in errors), median(degrees for _, degrees in errors)


def _median_text(errors: Sequence[tuple[float, float]]) -> str:
    return error_text(_median(errors))
