"""A map from above: where its cameras stand and look, and how many photos see each place.

A map knows no walls. What a photo sees is its whole angle of view up to a sensible distance, which the picture tells.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64
from PIL import Image, ImageDraw

from relograph.errors import DatasetError
from relograph.geometry import Camera
from relograph.maps.durable_files import write_durably
from relograph.maps.inspection import UNNAMED
from relograph.maps.map import Map
from relograph.maps.records import MapFrame, camera_from_line, frame_poses
from relograph.models.match_gnn import LIKELY_FOCAL

ROOM_REACH_M, REACH_OF_EXTENT, REACH_OF_UNKNOWN = 3.0, 0.05, 0.5
"""How far photos see: so many metres in rooms, that share of a large map, and that where nobody knows the scale."""
CELLS = 500
"""Along the longer side of the picture."""
PHOTOS_SHADED = 5000
"""Of larger maps a share, each for several."""
POINTS_A_SIDE = 13
"""Of a photo, at which rays end."""
SEQUENCES_NAMED = 12
SHADES = ("#eae8e2", "#7c7870")
"""From few photos to many: greys, as colours are those of sequences."""
FEW_PHOTOS = 5.0
"""A map of fewer is not drawn as dark as one that many photos saw."""


@dataclass(frozen=True)
class Seen:
    """How many photos see each cell of the ground."""

    num_photos: Float32[np.ndarray, "rows columns"]
    """The first row is the nearest, the first column the left one."""
    low: Float64[np.ndarray, "2"]
    high: Float64[np.ndarray, "2"]
    """Corners of the ground that the cells cover."""

    def at(self, x: float, y: float) -> float:
        """How many photos see that place."""
        share = (np.array([x, y]) - self.low) / (self.high - self.low)
        column, row = np.minimum(share * self.num_photos.shape[::-1], np.array(self.num_photos.shape[::-1]) - 1)
        return float(self.num_photos[int(row), int(column)])


def reach_of(centers: Float64[np.ndarray, "N 2"], *, scale_is_known: bool) -> float:
    """How far photos are taken to see, in metres or the map's own units.

    Example:
        >>> reach_of(np.array([[0.0, 0.0], [3.0, 4.0]]), scale_is_known=True)
        3.0
    """
    extent = float(np.linalg.norm(np.ptp(centers, axis=0)))
    if scale_is_known:
        return max(ROOM_REACH_M, REACH_OF_EXTENT * extent)
    return REACH_OF_UNKNOWN * extent or 1.0


def seen_from_above(frames: Sequence[MapFrame], to_ground: Float64[np.ndarray, "3 2"], reach: float) -> Seen:
    """What photos see up to that distance, on the ground whose axes are the columns of `to_ground`."""
    every = max(1, len(frames) // PHOTOS_SHADED)
    shaded = frames[::every]
    T_world_cam = frame_poses(shaded)
    centers, R_ground_cam = T_world_cam.t.numpy() @ to_ground, to_ground.T @ T_world_cam.R.numpy()
    ends = [
        center + reach * _rays(frame.camera_line, frame.photo_width, frame.photo_height) @ R.T
        for frame, center, R in zip(shaded, centers, R_ground_cam, strict=True)
    ]
    corners = np.concatenate([centers, *(end.reshape(-1, 2) for end in ends)])
    low, high = corners.min(axis=0), corners.max(axis=0)
    margin = 0.03 * max(high - low)
    low, high = low - margin, high + margin
    cell = max(high - low) / CELLS
    columns, rows = np.ceil((high - low) / cell).astype(int).tolist()
    num_photos = np.zeros((rows, columns), dtype=np.float32)
    for center, end in zip(centers, ends, strict=True):
        num_photos += _footprint((center - low) / cell, (end - low) / cell, (columns, rows))
    num_photos *= len(frames) / len(shaded)
    return Seen(num_photos, low, low + cell * np.array([columns, rows]))


@lru_cache(maxsize=1024)
def _rays(camera_line: str, width: int, height: int) -> Float64[np.ndarray, "P P 3"]:
    """Unit directions all over a photo, without the lens's distortion: a picture need not show it."""
    camera = camera_from_line(camera_line)
    if not isinstance(camera, Camera):
        camera = Camera.from_focal(width, height, LIKELY_FOCAL * max(width, height))
    camera = camera.scaled_to(width, height)
    along = np.linspace(0.0, 1.0, POINTS_A_SIDE)
    x, y = np.meshgrid((width * along - camera.cx) / camera.fx, (height * along - camera.cy) / camera.fy)
    rays = np.stack([x, y, np.ones_like(x)], axis=-1)
    unit: Float64[np.ndarray, "P P 3"] = rays / np.linalg.norm(rays, axis=-1, keepdims=True)
    return unit


def _footprint(
    apex: Float64[np.ndarray, "2"], end: Float64[np.ndarray, "P P 2"], size: tuple[int, int]
) -> Float32[np.ndarray, "rows columns"]:
    """One where a view is, from above, whichever way it is turned: `end` is how far it goes along its rays."""
    image = Image.new("L", size)
    draw = ImageDraw.Draw(image)
    middle = len(end) // 2
    fans = [end[0], end[middle], end[-1], end[:, 0], end[:, middle], end[:, -1]]
    border = [end[0], end[1:, -1], end[-1, -2::-1], end[-2::-1, 0]]
    for points in (np.concatenate(border), *(np.concatenate([apex[None], fan]) for fan in fans)):
        draw.polygon([(x, y) for x, y in points.tolist()], fill=1)
    return np.asarray(image, dtype=np.float32)


def draw_coverage(some: Map, path: Path) -> None:
    """Writes a PNG of the map from above: its cameras, a colour a sequence, and how many photos see each place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from relograph.rooms.pictures import ground_axes

    frames, scale_is_known = some.frames, some.settings.scale_is_known
    if not frames:
        raise DatasetError(f"{some.store.where}: expected a map with photos to draw, found an empty one. Add some.")
    T_world_cam = frame_poses(frames)
    to_ground = np.stack(ground_axes(T_world_cam), axis=1)  # [3, 2]
    centers, ahead = T_world_cam.t.numpy() @ to_ground, T_world_cam.R.numpy()[:, :, 2] @ to_ground
    reach = reach_of(centers, scale_is_known=scale_is_known)
    seen = seen_from_above(frames, to_ground, reach)
    width, height = seen.high - seen.low
    size_in = (9.0, min(max(2.0 + 6.6 * height / width, 4.5), 10.0))
    figure = Figure(figsize=size_in, dpi=110, facecolor="white", layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    most = max(float(seen.num_photos.max()), FEW_PHOTOS)
    shade = axes.imshow(
        np.ma.masked_equal(seen.num_photos, 0),
        origin="lower",
        extent=(seen.low[0], seen.high[0], seen.low[1], seen.high[1]),
        cmap=LinearSegmentedColormap.from_list("seen", SHADES),
        vmin=1,
        vmax=most,
    )
    bar = figure.colorbar(shade, ax=axes, shrink=0.8, ticks=MaxNLocator(integer=True))
    bar.set_label("photos that look there")
    rows_by_sequence: dict[str, list[int]] = {}
    for row, frame in enumerate(frames):
        rows_by_sequence.setdefault(frame.sequence or UNNAMED, []).append(row)
    for number, (sequence, rows) in enumerate(rows_by_sequence.items()):
        color, name = f"C{number % 10}", sequence.replace("$", r"\$")
        unnamed = "cameras" if len(rows_by_sequence) == 1 else "cameras of no sequence"
        axes.quiver(*centers[rows].T, *ahead[rows].T, color=color, width=0.003, scale=22)
        axes.scatter(
            centers[rows, 0], centers[rows, 1], s=12, color=color, label=f"cameras of {name}" if name else unnamed
        )
    unit = "metres" if scale_is_known else "units of the map (scale not known)"
    axes.set_xlabel(unit)
    axes.set_ylabel(unit)
    of = "1 photo" if len(frames) == 1 else f"{len(frames):,} photos"
    how_far = f"{reach:{'.0f' if reach >= 10 else '.2g'}} {'m' if scale_is_known else 'units'}"
    axes.set_title(f"{of} from above\n")
    note = f"Views are drawn {how_far} long: a map knows no walls."
    axes.text(0.5, 1.015, note, transform=axes.transAxes, ha="center", fontsize="small", color="#5c5c5c")
    axes.grid(alpha=0.3)
    if len(rows_by_sequence) <= SEQUENCES_NAMED:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    picture = io.BytesIO()
    canvas.print_png(picture)
    write_durably(path, [picture.getvalue()])
