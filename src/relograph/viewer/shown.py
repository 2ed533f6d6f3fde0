"""What a map and answers in it look like: groups of cameras by colour, and a slider along them.

The viewer and the page that is saved show the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.metrics import RECALL_THRESHOLDS
from relograph.evaluation.predictions import Predictions, read_predictions
from relograph.evaluation.qualitative import MAP_COLOR, TRUE_COLOR
from relograph.geometry import Pose, pose_error
from relograph.localization.answer_files import SavedAnswer, read_answers
from relograph.localization.photos import PosedPhoto
from relograph.maps.lengths import in_centimetres, in_metres
from relograph.maps.map import Map
from relograph.maps.records import MapFrame, frame_poses
from relograph.maps.shards import AnyShard
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.images import decode_image
from relograph.scenes.names import safe_name
from relograph.scenes.reconstruction_file import UNKNOWN_SCALE
from relograph.viewer.cameras_page import CameraGroup, Slider

REFERENCE_COLOR, REFUSED_COLOR = "#8f6fd6", "#cc4c9b"
BAND_COLORS = ("#0072b2", "#56b4e9", "#e69f00", "#d55e00")
"""From good to bad, told apart by people with colour-blindness too."""
SURE = (0.9, 0.5)
"""Of answers without truth: how sure those of the better bands are at the least."""
MAP_SIZE_M, REFERENCE_SIZE_M = 0.12, 0.16
PHOTOS_IN_A_PAGE = 1000
"""Of a page that is saved; it stays below ten megabytes."""
PhotoOf = Callable[[str], PosedPhoto | None]
"""The photo of a query by its name; None where it is not at hand."""


def no_photo(name: str) -> None:
    """Of queries whose photos are not at hand."""


@dataclass(frozen=True)
class Shown:
    """Cameras by groups."""

    title: str
    note: str
    groups: tuple[CameraGroup, ...]
    lines: tuple[tuple[int, int], ...]
    """Pairs of groups whose cameras belong together, such as answers and the truth."""
    slider: Slider | None
    scale_is_known: bool = True
    """Whether the map's unit is a metre."""

    def with_photos(self, most: int = PHOTOS_IN_A_PAGE) -> "Shown":
        """The same with so many photos at the most; the note says how many were left out.

        Queries come first, then references, then the map, each evenly along its whole length.
        """
        groups, left, total, kept = list(self.groups), most, 0, 0
        of_slider = [] if self.slider is None else list(self.slider.groups)
        others = [number for number in reversed(range(len(groups))) if number not in of_slider]
        known: set[int] = set()
        for number in [*of_slider, *others]:
            frames = groups[number].frames
            if frames is None:
                continue
            rows = [row for row, frame in enumerate(frames) if frame is not None and id(frame) not in known]
            chosen = {rows[int(i)] for i in np.linspace(0, len(rows) - 1, min(left, len(rows)))} if rows else set()
            known |= {id(frames[row]) for row in chosen}
            shown = [frame if id(frame) in known else None for frame in frames]
            groups[number] = replace(groups[number], frames=shown)
            left, total, kept = left - len(chosen), total + len(rows), kept + len(chosen)
        if kept == total:
            return self
        note = f"{self.note}\n{kept:,} of {total:,} photos are in this file.".strip()
        return replace(self, groups=tuple(groups), note=note)


def show_map(opened: Map, answers: Sequence[SavedAnswer] = (), photo_of: PhotoOf = no_photo) -> Shown:
    """The cameras of a map, and answers in it with their references."""
    frames = opened.frames
    photos = _MapPhotos(opened)
    used = {name for answer in answers for name in answer.references}
    references = [row for row, frame in enumerate(frames) if frame.name in used]
    others = [row for row, frame in enumerate(frames) if frame.name not in used]

    def of_map(name: str, color: str, some: Sequence[int], size_m: float) -> CameraGroup:
        chosen = [frames[row] for row in some]
        return CameraGroup(
            name, color, frame_poses(chosen), [_about(frame) for frame in chosen], photos.of(chosen), size_m
        )

    note = [f"{len(frames):,} photos in the map."]
    scale_is_known = opened.settings.scale_is_known
    if not scale_is_known:
        note.append(UNKNOWN_SCALE)
    where = str(opened.store.where)  # its last part is a title, the whole is not: a page may be passed on
    title = where.partition("?")[0].rstrip("/").rpartition("/")[2] if "://" in where else Path(where).resolve().name
    if not answers:
        group = of_map("map", MAP_COLOR, range(len(frames)), MAP_SIZE_M)
        return Shown(title, "\n".join(note), (group,), (), Slider("photo", group.captions, (0,)), scale_is_known)
    groups = [of_map("map", MAP_COLOR, others, MAP_SIZE_M)]
    related: list[list[int]] = []
    if references:
        groups.append(of_map("references", REFERENCE_COLOR, references, REFERENCE_SIZE_M))
        place = {frames[row].name: i for i, row in enumerate(references)}
        related = [[place[name] for name in answer.references if name in place] for answer in answers]
    of_answers = groups_of_answers(answers, photo_of, scale_is_known=scale_is_known)
    if num_gone := len(used - {frame.name for frame in frames}):
        note.append(f"{num_gone:,} references of these answers are not in the map any more.")
    first = len(groups)
    slider = Slider(
        "query",
        of_answers.captions,
        tuple(range(first, first + len(of_answers.groups))),
        1 if related else None,
        related,
    )
    return Shown(
        title,
        "\n".join([*note, *of_answers.note]),
        (*groups, *of_answers.groups),
        tuple((first + a, first + b) for a, b in of_answers.lines),
        slider,
        scale_is_known,
    )


# Answers


@dataclass(frozen=True)
class AnswerGroups:
    """Answers by how good they are, or by how sure; every group has a place for each query."""

    groups: tuple[CameraGroup, ...]
    lines: tuple[tuple[int, int], ...]
    captions: tuple[str, ...]
    """Of each query."""
    note: tuple[str, ...]


def groups_of_answers(
    answers: Sequence[SavedAnswer],
    photo_of: PhotoOf = no_photo,
    captions: Sequence[str] | None = None,
    *,
    scale_is_known: bool = True,
) -> AnswerGroups:
    """Answers in the colours of their errors, beside the truth; where that is not known, of how sure they are."""
    photos = [photo_of(answer.name) for answer in answers]
    errors = [_error(answer) for answer in answers]
    if captions is None:
        captions = [_caption(answer, error, scale_is_known) for answer, error in zip(answers, errors, strict=True)]
    knows_truth = any(answer.T_world_true is not None for answer in answers)
    bands = _error_bands(scale_is_known) if knows_truth else _sure_bands()
    band_of = [
        None if answer.T_world_cam is None else _band_of_error(error) if knows_truth else _band_of_sure(answer)
        for answer, error in zip(answers, errors, strict=True)
    ]

    def group(name: str, color: str, poses: Sequence[Pose | None]) -> CameraGroup:
        return CameraGroup(name, color, stacked_or_nowhere(poses), captions, photos)

    groups: list[CameraGroup] = []
    lines: list[tuple[int, int]] = []
    if knows_truth:  # first, so that an answer that covers it is seen
        truth = [answer.T_world_true for answer in answers]
        found = [T if answer.T_world_cam is not None else None for answer, T in zip(answers, truth, strict=True)]
        refused = [T if answer.T_world_cam is None else None for answer, T in zip(answers, truth, strict=True)]
        groups = [group("truth", TRUE_COLOR, found), group("truth, not localized", REFUSED_COLOR, refused)]
        lines = [(0, len(groups) + number) for number in range(len(bands))]
    for number, (name, color) in enumerate(bands):
        of_band = [
            answer.T_world_cam if band == number else None for answer, band in zip(answers, band_of, strict=True)
        ]
        groups.append(group(name, color, of_band))
    note = _summary(answers, errors, photos, scale_is_known)
    return AnswerGroups(tuple(groups), tuple(lines), tuple(captions), tuple(note))


def read_any_answers(path: Path, scene: str | None = None) -> list[SavedAnswer]:
    """Answers of `relograph localize` in JSON lines, or predictions of `relograph eval`, of one scene."""
    if path.name.endswith((".jsonl", ".ndjson")):
        if scene is not None:
            raise ConfigError(f"{path}: expected no --scene for answers of one map, got {scene!r}. Leave it out.")
        return read_answers(path)
    if not path.name.endswith((".csv", ".csv.gz")):
        raise ConfigError(
            f"{path}: expected answers of `relograph localize` (.jsonl) or predictions of `relograph eval` (.csv, "
            f".csv.gz), found {path.name!r}. Give one of these."
        )
    predictions, _ = read_predictions(path)
    return answers_of_predictions(of_one_scene(predictions, path, scene))


def of_one_scene(predictions: Predictions, path: Path, scene: str | None) -> Predictions:
    """The predictions in the scene of that name, or in the only one that there is."""
    if scene is None and len(predictions.scenes) > 1:
        raise ConfigError(
            f"{path}: expected predictions in one scene, that of the map, found {', '.join(predictions.scenes)}. "
            f"Name one: --scene {predictions.scenes[0]}."
        )
    if scene is not None and scene not in predictions.scenes:
        raise ConfigError(
            f"{path}: expected one of the scenes {', '.join(predictions.scenes)}, got --scene {scene}. Name one."
        )
    return predictions if scene is None else predictions.of_scene(scene)


def answers_of_predictions(predictions: Predictions) -> list[SavedAnswer]:
    """The same answers, one by one."""
    return [
        SavedAnswer(
            predictions.frame[row],
            predictions.T_world_cam[row] if predictions.localized[row] else None,
            predictions.reason[row],
            references=(predictions.top1[row],) if predictions.top1[row] else (),
            T_world_true=predictions.T_world_true[row],
        )
        for row in range(len(predictions))
    ]


def photos_in(folder: Path) -> PhotoOf:
    """Photos by their names in a folder, which may itself be the first part of the names."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: expected a folder of photos, found none. Check the path.")

    def photo_of(name: str) -> PosedPhoto | None:
        try:
            inside = safe_name(name, where="the name of a query")
        except DatasetError:
            return None  # an answer's name may be anything; no photo of this folder is called so
        for path in (folder / inside, folder / inside.removeprefix(f"{folder.resolve().name}/")):
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                return Frame(name, Pose.identity(), FileSource(path))
        return None

    return photo_of


def _error(answer: SavedAnswer) -> tuple[float, float] | None:
    """In metres and degrees; None where there is no pose or no truth."""
    if answer.T_world_cam is None or answer.T_world_true is None:
        return None
    error = pose_error(answer.T_world_cam, answer.T_world_true)
    return float(error.translation_error_m), float(error.rotation_error_deg)


def _error_bands(scale_is_known: bool) -> list[tuple[str, str]]:
    names = [
        f"answers within {in_centimetres(metres, scale_is_known=scale_is_known, digits=0)}, {degrees:g}°"
        for metres, degrees in RECALL_THRESHOLDS.values()
    ]
    return list(zip([*names, "answers beyond"], BAND_COLORS, strict=True))


def _band_of_error(error: tuple[float, float] | None) -> int:
    if error is not None:
        for number, (metres, degrees) in enumerate(RECALL_THRESHOLDS.values()):
            if error[0] < metres and error[1] < degrees:
                return number
    return len(RECALL_THRESHOLDS)


def _sure_bands() -> list[tuple[str, str]]:
    high, low = SURE
    names = (f"answers, {high:.0%} sure or more", f"answers, {low:.0%} to {high:.0%} sure", f"answers, below {low:.0%}")
    return list(zip(names, BAND_COLORS[::2] + BAND_COLORS[3:], strict=True))


def _band_of_sure(answer: SavedAnswer) -> int:
    return sum((answer.confidence or 0.0) < least for least in SURE)


def _caption(answer: SavedAnswer, error: tuple[float, float] | None, scale_is_known: bool) -> str:
    sure = "" if answer.confidence is None else f" ({answer.confidence:.0%} sure)"
    if answer.T_world_cam is None:
        return f"{answer.name}: not localized{sure}. {answer.reason}".strip()
    how = "localized" if error is None else error_text(error, scale_is_known=scale_is_known)
    return f"{answer.name}: {how}{sure}."


def _summary(
    answers: Sequence[SavedAnswer],
    errors: Sequence[tuple[float, float] | None],
    photos: Sequence[PosedPhoto | None],
    scale_is_known: bool,
) -> list[str]:
    num_localized = sum(answer.T_world_cam is not None for answer in answers)
    text = f"{num_localized:,} of {len(answers):,} queries localized"
    # One that was not localized counts as infinitely far, as in every table.
    known = np.array([error or (np.inf, np.inf) for error in errors]).reshape(-1, 2)
    if any(error is not None for error in errors):
        metres, degrees = np.median(known, axis=0)
        text += f", median error {error_text((float(metres), float(degrees)), scale_is_known=scale_is_known)}"
    lines = [f"{text}."]
    if not any(answer.T_world_true is not None for answer in answers) and num_localized < len(answers):
        lines.append("Where the others are is not known: the file has no true poses.")
    num_photos = sum(photo is not None for photo in photos)
    if num_photos < len(answers):
        lines.append(f"Photos of {len(answers) - num_photos:,} queries are not at hand; --photos says where they are.")
    return lines


def error_text(error: tuple[float, float], *, scale_is_known: bool = True) -> str:
    return f"{in_metres(error[0], scale_is_known=scale_is_known, digits=3)} / {error[1]:.2f}°"


def stacked_or_nowhere(poses: Sequence[Pose | None]) -> Pose:
    """The poses, not a number where there is none."""
    nowhere = Pose(torch.full((3, 3), torch.nan, dtype=torch.float64), torch.full((3,), torch.nan, dtype=torch.float64))
    whole = [nowhere if pose is None else pose.to("cpu", torch.float64) for pose in poses]
    return Pose.stack(whole) if whole else Pose.identity(0)


# Photos of a map


@dataclass(frozen=True)
class _MapPhotos:
    """The small photos that a map keeps."""

    opened: Map

    @cached_property
    def shards(self) -> Mapping[str, AnyShard]:
        return self.opened.shards(self.opened.frames)

    def of(self, frames: Sequence[MapFrame]) -> list[PosedPhoto]:
        return [_MapPhoto(frame, self) for frame in frames]


@dataclass(frozen=True)
class _MapPhoto:
    """A photo of a map, read when it is asked for."""

    frame: MapFrame
    photos: _MapPhotos
    camera: None = None

    @property
    def name(self) -> str:
        return self.frame.name

    @property
    def T_world_cam(self) -> Pose:
        return self.frame.T_world_cam

    def read_image(self) -> UInt8[np.ndarray, "H W 3"]:
        return decode_image(self.photos.shards[self.frame.shard].jpeg(self.frame.shard_row), self.frame.name)


def _about(frame: MapFrame) -> str:
    return (
        frame.name if not frame.sequence or frame.name.startswith(frame.sequence) else f"{frame.sequence}: {frame.name}"
    )
