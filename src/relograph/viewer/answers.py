"""Answers beside the truth, to look at: a picture from above, and a page in 3-D."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relograph.evaluation.qualitative import ANSWER_COLOR, MAP_COLOR, TRUE_COLOR
from relograph.geometry import Pose, pose_error
from relograph.localization.localizer import Answer, Localizer
from relograph.localization.map_features import MapFeatures
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.rooms.pictures import ground_axes, save_picture
from relograph.scenes import Frame, Scene
from relograph.viewer.cameras_page import CameraGroup, write_cameras_page

REFUSED_COLOR = "#d55e00"


@dataclass(frozen=True)
class ScoredAnswer:
    """What was said about a frame whose pose is known."""

    frame: Frame
    answer: Answer
    T_world_copied: Pose
    """The pose of the photo that looks most like it."""

    @property
    def caption(self) -> str:
        """The answer in a line."""
        T_answer = self.answer.T_world_cam
        if T_answer is None:
            return f"{self.frame.name}: not localized. {self.answer.reason}"
        metres, degrees = _error(T_answer, self.frame)
        return f"{self.frame.name}: {metres:.3f} m, {degrees:.2f}°, confidence {self.answer.confidence:.2f}"


def demonstrate(
    scene: Scene,
    network: LoadedMatchGNN,
    folder: Path,
    num_map_photos: int,
    num_queries: int,
    *,
    progress: Progress = SILENT,
) -> str:
    """Localize some test photos of a scene in a map of some of its training photos, and write what can be looked at."""
    map_frames, queries = (
        [frames[int(row)] for row in np.linspace(0, len(frames) - 1, min(count, len(frames)))]
        for frames, count in ((scene.train, num_map_photos), (scene.test, num_queries))
    )
    localizer = Localizer(MapFeatures.of(map_frames, network, progress=progress), network)
    scored = localize_frames(localizer, queries, progress=progress)
    picture, page = folder / "answers_from_above.png", folder / "answers.html"
    draw_answers_from_above(scene.name, map_frames, scored, picture)
    write_answers_page(scene.name, map_frames, scored, page)
    return "\n".join([*(one.caption for one in scored), summary(scored), f"picture    {picture}", f"page       {page}"])


def localize_frames(
    localizer: Localizer, frames: Sequence[Frame], *, progress: Progress = SILENT
) -> list[ScoredAnswer]:
    """Localize frames whose poses are known, and are not told."""
    scored = []
    with progress.task("localizing", total=len(frames)) as advance:
        for frame in frames:
            answer = localizer.localize(frame.read_image(), camera=frame.camera)
            alike = max(answer.references, key=lambda reference: reference.similarity)
            scored.append(ScoredAnswer(frame, answer, localizer.map.T_world_cam[alike.row]))
            advance(1)
    return scored


def summary(scored: Sequence[ScoredAnswer]) -> str:
    """How many were localized and how well, beside copying the pose of the most similar photo, in two lines."""
    copied = [_error(one.T_world_copied, one.frame) for one in scored]
    found = [_error(one.answer.T_world_cam, one.frame) for one in scored if one.answer.T_world_cam is not None]
    lines = [f"localized  {len(found)} of {len(scored)} photos"]
    if found:
        lines[0] += f", median error {_median(found)}"
    return "\n".join([*lines, f"copying    the pose of the most similar photo instead: median error {_median(copied)}"])


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

    found = [one for one in scored if one.answer.T_world_cam is not None]
    refused = [one for one in scored if one.answer.T_world_cam is None]
    arrows(_stacked([frame.T_world_cam for frame in map_frames]), MAP_COLOR, "map", 1)
    if found:
        truth, answers = _stacked([one.frame.T_world_cam for one in found]), _stacked_answers(found)
        arrows(truth, TRUE_COLOR, "truth", 4)
        arrows(answers, ANSWER_COLOR, "answer", 1.5)
        for true_center, center in zip(truth.t.numpy() @ to_ground, answers.t.numpy() @ to_ground, strict=True):
            ground.plot(*np.stack([true_center, center]).T, color="#20242a", linewidth=0.8, zorder=4)
        both = np.array([_error(T, one.frame) for T, one in zip(answers, found, strict=True)])
        errors.scatter(both[:, 0], both[:, 1], color=ANSWER_COLOR, label="answer")
    if refused:
        arrows(_stacked([one.frame.T_world_cam for one in refused]), REFUSED_COLOR, "truth, not localized", 2)
    copied = np.array([_error(one.T_world_copied, one.frame) for one in scored])
    errors.scatter(copied[:, 0], copied[:, 1], color=MAP_COLOR, marker="x", label="pose of the most similar photo")
    ground.set_aspect("equal", adjustable="datalim")
    ground.grid(color="#e6e6e6")
    ground.set_axisbelow(True)
    ground.set_xlabel("metres to the right of the first camera's view")
    ground.set_ylabel("metres ahead")
    ground.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4, frameon=False)
    errors.set_xscale("log")
    errors.set_yscale("log")
    errors.set_xlabel("translation error [m]")
    errors.set_ylabel("rotation error [°]")
    errors.grid(color="#e6e6e6", which="both")
    errors.set_axisbelow(True)
    errors.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    figure.suptitle(f"{name}: {len(found)} of {len(scored)} photos localized")
    figure.subplots_adjust(left=0.06, right=0.98, top=0.92, bottom=0.16, wspace=0.2)
    canvas.draw()
    save_picture(np.asarray(canvas.buffer_rgba())[..., :3].copy(), path)


def write_answers_page(name: str, map_frames: Sequence[Frame], scored: Sequence[ScoredAnswer], path: Path) -> None:
    """The same in 3-D, with all photos."""
    queries = [one.frame for one in scored]
    groups = [
        CameraGroup(
            "map",
            MAP_COLOR,
            _stacked([frame.T_world_cam for frame in map_frames]),
            [frame.name for frame in map_frames],
            map_frames,
            size_m=0.12,
        ),
        CameraGroup(
            "truth",
            TRUE_COLOR,
            _stacked([frame.T_world_cam for frame in queries]),
            [one.caption for one in scored],
            queries,
        ),
        CameraGroup("answer", ANSWER_COLOR, _stacked_answers(scored), [one.caption for one in scored], queries),
    ]
    write_cameras_page(path, groups, title=f"{name}: answers beside the truth", lines=[(1, 2)])


def _stacked(poses: Sequence[Pose]) -> Pose:
    return Pose(torch.stack([T.R for T in poses]), torch.stack([T.t for T in poses]))


def _stacked_answers(scored: Sequence[ScoredAnswer]) -> Pose:
    """The answers, not a number where there is none."""
    nowhere = Pose(torch.full((3, 3), torch.nan, dtype=torch.float64), torch.full((3,), torch.nan, dtype=torch.float64))
    answers = [one.answer.T_world_cam for one in scored]
    return _stacked([nowhere if T is None else T for T in answers])


def _error(T_world_cam: Pose, frame: Frame) -> tuple[float, float]:
    error = pose_error(T_world_cam, frame.T_world_cam)
    return float(error.translation_error_m), float(error.rotation_error_deg)


def _median(errors: Sequence[tuple[float, float]]) -> str:
    return f"{median(metres for metres, _ in errors):.3f} m / {median(degrees for _, degrees in errors):.2f}°"
