"""Cameras in 3-D as one HTML file that opens in any browser, without a server and without the network."""

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from PIL import Image

from relograph.errors import GeometryError
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


def write_cameras_page(
    path: Path, groups: Sequence[CameraGroup], *, title: str, note: str = "", lines: Sequence[tuple[int, int]] = ()
) -> None:
    """Write a page with all groups; see `cameras_page`."""
    write_whole(path, cameras_page(groups, title=title, note=note, lines=lines).encode())


def cameras_page(
    groups: Sequence[CameraGroup], *, title: str, note: str = "", lines: Sequence[tuple[int, int]] = ()
) -> str:
    """A page with all groups; it can be turned, and shows a camera's photo when one points at it.

    `note` is a text of some lines below the title. `lines` are pairs of groups that have as many cameras: each camera
    of one is joined with its partner in the other, such as an answer with the truth. Cameras whose pose is not finite
    are left out.
    """
    for a, b in lines:
        if len(groups[a].captions) != len(groups[b].captions):
            raise GeometryError(
                f"{groups[a].name} and {groups[b].name}: expected as many cameras in both to join them, found "
                f"{len(groups[a].captions)} and {len(groups[b].captions)}. Leave the line out."
            )
    poses = [group.T_world_cam.detach().to("cpu", torch.float64) for group in groups]
    finite = [(T.R.isfinite().all(dim=(1, 2)) & T.t.isfinite().all(dim=1)).tolist() for T in poses]
    data = {
        "title": title,
        "note": note,
        "up": _up(poses, finite).tolist(),
        "groups": [
            {
                "name": group.name,
                "color": group.color,
                "size": group.size_m,
                "cameras": [_camera(T, row, group) if is_finite else None for row, is_finite in enumerate(finite_rows)],
            }
            for group, T, finite_rows in zip(groups, poses, finite, strict=True)
        ],
        "lines": [list(pair) for pair in lines],
    }
    # "</" would end the script, whatever stands around it; JSON reads "<\/" as the same.
    as_json = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    page = resources.files("relograph.viewer").joinpath("cameras_page.html").read_text("utf-8")
    return page.replace("{{title}}", html.escape(title)).replace("{{data}}", as_json)


def _camera(T_world_cam: Pose, row: int, group: CameraGroup) -> dict[str, object]:
    frame = group.frames[row] if group.frames is not None else None
    R, t = T_world_cam.R[row], T_world_cam.t[row]
    return {
        "R": [round(number, 5) for number in R.flatten().tolist()],
        "t": [round(number, 4) for number in t.tolist()],
        "caption": group.captions[row],
        "photo": _photo_url(frame) if frame is not None else None,
    }


def _photo_url(frame: PosedPhoto) -> str:
    """A small copy of a frame's photo, inside the page."""
    small = Image.fromarray(frame.read_image())
    small.thumbnail((2 * PHOTO_HEIGHT, PHOTO_HEIGHT))
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=PHOTO_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"


def _up(poses: Sequence[Pose], finite: Sequence[Sequence[bool]]) -> Float64[np.ndarray, "3"]:
    """The mean of what is up in the photos: people hold cameras upright, and worlds are turned in any way."""
    up = np.zeros(3)
    for T, rows in zip(poses, finite, strict=True):
        up -= T.R[torch.tensor(rows, dtype=torch.bool)][..., 1].sum(dim=0).numpy()
    length = np.linalg.norm(up)
    return up / length if length > 1e-9 else np.array([0.0, 0.0, 1.0])
