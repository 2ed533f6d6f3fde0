"""More views of rooms that are on disk, along walks of their own: training data that is rendered, not stored."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.progress import SILENT, Progress
from relograph.rooms.photograph import Darkroom
from relograph.rooms.seven_rooms import (
    RECIPE_FILE,
    RECIPE_VERSION,
    RecordingSize,
    make_room_home,
    record,
    room_camera,
    take_photos,
    world_of,
)
from relograph.rooms.textures import make_atlas
from relograph.rooms.walks import walk

STEPS_PER_EXTRA_WALK = 1024
# A whole number of batches in a walk: every other size of a batch would be compiled anew on a GPU.
FRAMES_PER_BATCH = {"cuda": 512, "cpu": 8}


@dataclass(frozen=True)
class MoreViews:
    """Views of one room, in its world frame."""

    images: UInt8[Tensor, "F H W 3"]
    T_world_cam: Pose
    """Batch shape [F]."""
    walk_idx: Int[Tensor, "F"]


def read_recipe(folder: Path) -> tuple[int, int]:
    """The seed and the number (from 0) of a room that `relograph rooms create` wrote without photographs."""
    try:
        recipe = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
        version, seed, room, textures = (recipe[key] for key in ("version", "seed", "room", "textures_sha256"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{folder}: expected a room made by `relograph rooms create`, found no readable {RECIPE_FILE}. More views "
            "can be rendered of such rooms only; set data.extra_walks=0."
        ) from error
    if version != RECIPE_VERSION or textures is not None:
        raise DatasetError(
            f"{folder}: expected a room of recipe version {RECIPE_VERSION} with procedural textures, found version "
            f"{version} and textures {textures}. Create the rooms again, or set data.extra_walks=0."
        )
    return int(seed), int(room) - 1


def render_more_walks(
    folders: list[Path],
    *,
    num_walks: int,
    every: int,
    image_size_hw: tuple[int, int],
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> list[MoreViews]:
    """Every so many-th view along new walks through each room, none of them a walk that is on disk.

    The same rooms and numbers give the same views; the images stay on the device.
    """
    recipes = [read_recipe(folder) for folder in folders]
    device = torch.device(device)
    darkroom = Darkroom.on(device)
    height, width = image_size_hw
    size = RecordingSize(height, width, every)
    batch = FRAMES_PER_BATCH[device.type]
    atlas_by_seed = {seed: make_atlas(seed, progress=progress).to(device) for seed in {seed for seed, _ in recipes}}
    views = []
    with progress.task("rendering more walks", total=len(recipes) * num_walks) as advance:
        for seed, room in recipes:
            atlas = atlas_by_seed[seed]
            home = make_room_home(seed, room, atlas.range_by_family)
            T_world_room, camera = world_of(home, seed, room), room_camera(seed, room, size)
            images, poses = [], []
            for walk_idx in range(num_walks):
                # The fourth and fifth numbers of a room; its walks on disk have the second and third.
                path = walk(home, np.random.default_rng([seed, room, 4, walk_idx]), STEPS_PER_EXTRA_WALK)
                light = int(np.random.default_rng([seed, room, 5, walk_idx]).integers(2**31))
                generator = torch.Generator().manual_seed(light)
                recording = record(home, f"walk-{walk_idx}", path, camera, every, T_world_room, generator)
                for start in range(0, len(recording), batch):
                    frames = range(start, min(start + batch, len(recording)))
                    images.append(take_photos(recording, frames, atlas, darkroom)[0])
                poses.append(recording.T_world_cam)
                advance(1)
            per_walk = len(poses[0].t) if poses else 0
            views.append(
                MoreViews(torch.cat(images), Pose.cat(poses), torch.arange(num_walks).repeat_interleave(per_walk))
            )
    return views
