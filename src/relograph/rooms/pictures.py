"""Pictures of rooms and scenes for people to look at."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from PIL import Image

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.progress import SILENT, Progress
from relograph.rooms.photograph import Darkroom
from relograph.rooms.raycast import Kernels, first_hits, pixel_centers, ray_directions
from relograph.rooms.seven_rooms import (
    LAYOUT,
    SIZES,
    Recording,
    check_number_of_rooms,
    make_recording,
    make_room_home,
    take_photos,
)
from relograph.rooms.textures import make_atlas
from relograph.scenes.scene import Scene

VIEWS_PER_ROOM = 4
THUMBNAIL_SIZE_WH = (224, 168)
COLOR_BY_SPLIT = {"train": "#1f6fb2", "test": "#d9761a", None: "#555555"}
NUM_PHOTOS = 10


def make_folder_of(path: Path) -> None:
    """The folder that a picture will be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> DatasetError:
    """The line that a user reads where a picture cannot be written."""
    return DatasetError(f"{path}: expected a place to write a picture, found: {error.strerror}. Choose another file.")


def save_picture(pixels: UInt8[np.ndarray, "H W 3"], path: Path) -> None:
    """Write a PNG whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    make_folder_of(path)
    try:
        Image.fromarray(pixels).save(partial, format="PNG", optimize=True)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # there may be nothing to remove
            partial.unlink()
        raise cannot_write(path, error) from error


def widest_views(recording: Recording) -> list[int]:
    """One frame of each quarter of a walk: the one that sees farthest, so that a room shows and not a wall."""
    coarse = pixel_centers(6, 8) * (recording.width / 8)
    everywhere = recording.rooms[torch.zeros(len(recording), dtype=torch.long)]
    directions = ray_directions(recording.views, coarse)
    hits = first_hits(everywhere, LAYOUT.num_boxes, recording.views.center, directions, Kernels())
    quarters = hits.depth_m.median(dim=1).values.chunk(VIEWS_PER_ROOM)
    starts = [sum(len(quarter) for quarter in quarters[:i]) for i in range(VIEWS_PER_ROOM)]
    return [start + int(quarter.argmax()) for start, quarter in zip(starts, quarters, strict=True)]


def write_preview(path: Path, *, seed: int = 0, rooms: int = 7, progress: Progress = SILENT) -> None:
    """A contact sheet: a row for each room, four photographs from its walks."""
    check_number_of_rooms(rooms)
    make_folder_of(path)  # before the work, not after it
    atlas, size, darkroom = make_atlas(seed, progress=progress), SIZES["small"], Darkroom.on("cpu")
    rows = []
    with progress.task("photographing rooms", total=rooms * VIEWS_PER_ROOM) as advance:
        for room in range(rooms):
            home = make_room_home(seed, room, atlas.range_by_family)
            recording = make_recording(home, seed, room, "seq-01", size)
            row = []
            for frame in widest_views(recording):
                images, _ = take_photos(recording, range(frame, frame + 1), atlas, darkroom)
                photo = Image.fromarray(images[0].numpy())
                thumbnail = np.asarray(photo.resize(THUMBNAIL_SIZE_WH, Image.Resampling.LANCZOS))
                row.append(np.pad(thumbnail, ((3, 3), (3, 3), (0, 0)), constant_values=255))
                advance(1)
            rows.append(np.concatenate(row, axis=1))
    save_picture(np.concatenate(rows), path)


def ground_axes(T_world_cam: Pose) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Two axes of the ground, right and ahead on the page, if people held the cameras upright."""
    R_world_cam = T_world_cam.R.numpy()
    up = -R_world_cam[:, :, 1].mean(axis=0)
    up /= np.linalg.norm(up) + 1e-12
    forward = R_world_cam[0, :, 2]
    if abs(forward @ up) > 0.99:
        forward = R_world_cam[0, :, 1]
    ahead = forward - (forward @ up) * up
    ahead /= np.linalg.norm(ahead)
    return np.cross(ahead, up), ahead


def draw_scene_from_above(scene: Scene, path: Path) -> None:
    """The cameras of a scene from above, and around them photographs with a line to where each was taken."""
    right, ahead = ground_axes(scene.T_world_cam)
    to_ground = np.stack([right, ahead], axis=1)  # [3, 2]
    centers = scene.T_world_cam.t.numpy() @ to_ground
    looking = scene.T_world_cam.R.numpy()[:, :, 2] @ to_ground

    figure = Figure(figsize=(12, 7.2), dpi=110, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    ground = figure.add_axes((0.25, 0.14, 0.5, 0.74))
    for split, label in (("train", "training cameras"), ("test", "test cameras"), (None, "cameras")):
        chosen = np.array([frame.split == split for frame in scene])
        if not chosen.any():
            continue
        color = COLOR_BY_SPLIT[split]
        ground.quiver(*centers[chosen].T, *looking[chosen].T, color=color, alpha=0.55, width=0.0022, scale=22, zorder=2)
        ground.scatter(
            centers[chosen, 0], centers[chosen, 1], s=9, color=color, label=f"{int(chosen.sum())} {label}", zorder=3
        )
    ground.set_aspect("equal", adjustable="datalim")
    ground.margins(0.12)
    ground.grid(color="#e6e6e6", zorder=0)
    ground.set_axisbelow(True)
    ground.set_xlabel("metres to the right of the first camera's view")
    ground.set_ylabel("metres ahead")
    ground.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
    figure.suptitle(f"{scene.name} from above: where each photo was taken, and which way the camera looked", y=0.96)

    # Photos at equal steps along the scene, each on the side of the page that is nearer to its camera.
    chosen_frames = np.linspace(0, len(scene) - 1, min(NUM_PHOTOS, len(scene))).astype(int)
    by_x = sorted(chosen_frames, key=lambda idx: centers[idx, 0])
    left, right_side = by_x[: (len(by_x) + 1) // 2], by_x[(len(by_x) + 1) // 2 :]
    for side, column in ((left, 0.015), (right_side, 0.795)):
        for slot, idx in enumerate(sorted(side, key=lambda idx: -centers[idx, 1])):
            frame = scene[int(idx)]
            height = 0.86 / 5
            photo = figure.add_axes((column, 0.94 - (slot + 1) * height, 0.19, height - 0.015))
            photo.imshow(frame.read_image())
            photo.set_xticks([])
            photo.set_yticks([])
            color = COLOR_BY_SPLIT[frame.split]
            for spine in photo.spines.values():
                spine.set_color(color)
                spine.set_linewidth(2)
            edge = (1.0, 0.5) if column < 0.5 else (0.0, 0.5)
            line = ConnectionPatch(edge, centers[idx], "axes fraction", "data", axesA=photo, axesB=ground)
            line.set(color=color, linewidth=0.9, alpha=0.8)
            figure.add_artist(line)
    canvas.draw()
    save_picture(np.asarray(canvas.buffer_rgba())[..., :3].copy(), path)
