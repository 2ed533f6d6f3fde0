"""Cameras in 3-D as one HTML file that opens in any browser, without a server and without the network."""

import base64
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64
from PIL import Image
from torch import Tensor

from relograph.errors import DatasetError, GeometryError
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose
from relograph.localization.photos import PosedPhoto

PHOTO_HEIGHT, PHOTO_QUALITY = 150, 70  # a page of a thousand photos stays below ten megabytes


@dataclass(frozen=True)
class CameraGroup:
    """Cameras that are drawn alike, under one name in the legend."""

    name: str
    color: str
    """As CSS writes it, such as #0072B2."""
    T_world_cam: Pose
    """Batch shape [M]."""
    captions: Sequence[str]
    """What is said of each camera when one points at it."""
    frames: Sequence[PosedPhoto | None] | None = None
    """Whose photos are shown with them."""
    size_m: float = 0.25
    """How deep a camera is drawn."""

    def __post_init__(self) -> None:
        count = len(self.T_world_cam.t)
        if len(self.captions) != count or (self.frames is not None and len(self.frames) != count):
            raise GeometryError(
                f"{self.name}: expected a caption and, where there are frames, a frame for each of {count} cameras, "
                f"found {len(self.captions)} captions and {len(self.frames or ())} frames. Give one for each."
            )


@dataclass(frozen=True)
class Slider:
    """Steps along a sequence: the i-th cameras of some groups belong to step i."""

    label: str
    captions: Sequence[str]
    """What is said of each step."""
    groups: Sequence[int]
    """Each has a camera for every step, or a pose that is not finite where it has none; its photo is shown even so."""
    related_group: int | None = None
    related: Sequence[Sequence[int]] = ()
    """Of each step the cameras of that group to show with it, such as the references of an answer."""


def write_cameras_page(
    path: Path,
    groups: Sequence[CameraGroup],
    *,
    title: str,
    note: str = "",
    lines: Sequence[tuple[int, int]] = (),
    slider: Slider | None = None,
    scale_is_known: bool = True,
) -> None:
    """Write a page with all groups; see `cameras_page`."""
    page = cameras_page(groups, title=title, note=note, lines=lines, slider=slider, scale_is_known=scale_is_known)
    write_whole(path, page.encode())


def cameras_page(
    groups: Sequence[CameraGroup],
    *,
    title: str,
    note: str = "",
    lines: Sequence[tuple[int, int]] = (),
    slider: Slider | None = None,
    scale_is_known: bool = True,
) -> str:
    """A page with all groups; it can be turned, and shows a camera's photo when one points at it.

    `note` is a text of some lines below the title. `lines` are pairs of groups that have as many cameras: each camera
    of one is joined with its partner in the other, such as an answer with the truth. Cameras whose pose is not finite
    are left out.
    """
    if slider is not None:
        _require_steps(slider, groups)
    for a, b in lines:
        if len(groups[a].captions) != len(groups[b].captions):
            raise GeometryError(
                f"{groups[a].name} and {groups[b].name}: expected as many cameras in both to join them, found "
                f"{len(groups[a].captions)} and {len(groups[b].captions)}. Leave the line out."
            )
    poses = [group.T_world_cam.detach().to("cpu", torch.float64) for group in groups]
    photos: dict[int, _Photo] = {}
    data = {
        "title": title,
        "note": note,
        "up": up_of(poses).tolist(),
        "groups": [
            {
                "name": group.name,
                "color": group.color,
                "size": group.size_m,
                "cameras": [
                    _camera(T, row, group, photos) if there else None for row, there in enumerate(is_finite(T).tolist())
                ],
            }
            for group, T in zip(groups, poses, strict=True)
        ],
        "lines": [list(pair) for pair in lines],
        "slider": None if slider is None or not slider.captions else _slider(slider, groups, photos),
        "photos": [photo.url for photo in photos.values()],
    }
    # "</script" would end the script and "<!--<script" keep it from ending, whatever stands around them.
    as_json = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    square = "1 m" if scale_is_known else "1 unit of the map"
    return filled_page("cameras_page.html", {"title": html.escape(title), "data": as_json, "square": square})


def filled_page(template: str, text_by_name: Mapping[str, str], package: str = "relograph.viewer") -> str:
    """A page of the package with HTML in the places of `{{name}}`; what is put there is not looked at again."""
    page = resources.files(package).joinpath(template).read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: text_by_name[place[1]], page)


class _Photo(NamedTuple):
    """A photo within the page, and its place among all; the frame is kept, as it is known by its identity."""

    frame: PosedPhoto
    place: int
    url: str


def _require_steps(slider: Slider, groups: Sequence[CameraGroup]) -> None:
    for number in slider.groups:
        if len(groups[number].captions) != len(slider.captions):
            raise GeometryError(
                f"{groups[number].name}: expected a camera for each of {len(slider.captions)} steps of the slider, "
                f"found {len(groups[number].captions)}. Leave the group out of the slider."
            )
    if slider.related_group is not None and len(slider.related) != len(slider.captions):
        raise GeometryError(
            f"{slider.label}: expected related cameras for each of {len(slider.captions)} steps, found those of "
            f"{len(slider.related)}. Give an empty list where there are none."
        )


def _slider(slider: Slider, groups: Sequence[CameraGroup], photos: dict[int, _Photo]) -> dict[str, object]:
    return {
        "label": slider.label,
        "captions": list(slider.captions),
        "photos": [_place_of_step(step, slider, groups, photos) for step in range(len(slider.captions))],
        "groups": list(slider.groups),
        "related_group": slider.related_group,
        "related": [list(rows) for rows in slider.related],
    }


def _place_of_step(step: int, slider: Slider, groups: Sequence[CameraGroup], photos: dict[int, _Photo]) -> int | None:
    places = (_place(groups[number].frames, step, photos) for number in slider.groups)
    return next((place for place in places if place is not None), None)


def _place(frames: Sequence[PosedPhoto | None] | None, row: int, photos: dict[int, _Photo]) -> int | None:
    """Where among `photos` that of a row is, which becomes one of them unless it is there; None where it has none."""
    frame = None if frames is None else frames[row]
    if frame is None:
        return None
    if id(frame) not in photos:
        try:
            photos[id(frame)] = _Photo(frame, len(photos), _photo_url(frame))
        except DatasetError:
            return None  # damaged, which may be why it was not localized
    return photos[id(frame)].place


def _camera(T_world_cam: Pose, row: int, group: CameraGroup, photos: dict[int, _Photo]) -> dict[str, object]:
    R, t = T_world_cam.R[row], T_world_cam.t[row]
    return {
        "R": [round(number, 5) for number in R.flatten().tolist()],
        "t": [round(number, 4) for number in t.tolist()],
        "caption": group.captions[row],
        "photo": _place(group.frames, row, photos),
    }


def small_photo(frame: PosedPhoto) -> Image.Image:
    """A small copy of a frame's photo."""
    small = Image.fromarray(frame.read_image())
    small.thumbnail((2 * PHOTO_HEIGHT, PHOTO_HEIGHT))
    return small


def _photo_url(frame: PosedPhoto) -> str:
    """The same, inside the page."""
    small = small_photo(frame)
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=PHOTO_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"


def up_of(poses: Sequence[Pose]) -> Float64[np.ndarray, "3"]:
    """The mean of what is up in the photos: people hold cameras upright, and worlds are turned in any way."""
    up = np.zeros(3)
    for T in poses:
        up -= T.R[is_finite(T)][..., 1].sum(dim=0).numpy()
    length = np.linalg.norm(up)
    return up / length if length > 1e-9 else np.array([0.0, 0.0, 1.0])


def is_finite(T_world_cam: Pose) -> Bool[Tensor, "M"]:
    """Which cameras have a place."""
    return T_world_cam.R.isfinite().all(dim=(1, 2)) & T_world_cam.t.isfinite().all(dim=1)
