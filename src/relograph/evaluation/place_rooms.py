"""Homes that nobody trained on as places: the same comparison as in a scene, and queries that are not in the map."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from relograph.evaluation.place import Place, PosedPhotos
from relograph.geometry import Camera
from relograph.progress import SILENT, Progress
from relograph.rooms.room_maps import FIRST_SEED, Part, RoomMap, RoomMapConfig, room_maps
from relograph.rooms.textures import Split, make_atlas

TEXTURES_OF_PART: dict[Part, Split] = {"training": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class RoomPlace:
    """A home with its map."""

    place: Place
    """With the queries that are to be found."""
    unseen: Place
    """The same map with queries of the same home that show next to nothing of it; there may be none."""


def room_places(
    part: Part,
    config: RoomMapConfig,
    *,
    textures: Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> Iterator[RoomPlace]:
    """The homes of a part, one after the other.

    `textures` is a folder or a zip file of photographs, with one folder for each split.
    """
    atlas = make_atlas(FIRST_SEED[part] + seed, photographs=textures, split=TEXTURES_OF_PART[part], progress=progress)
    homes = room_maps(part, config, seed=seed, atlas=atlas, device=device, progress=progress)
    for number, home in enumerate(homes):
        yield room_place(f"home-{number:02d}", home)


def room_place(name: str, home: RoomMap) -> RoomPlace:
    """A home as a place whose cameras are known."""
    images = home.images.cpu().numpy()
    in_map = ~(home.is_query | home.is_unseen)
    digest = hashlib.sha256(images.tobytes())
    digest.update(home.T_world_cam.matrix().cpu().numpy().tobytes())

    def photos(which: Bool[Tensor, "F"], kind: str) -> PosedPhotos:
        rows = which.nonzero().squeeze(1).tolist()
        height, width = images.shape[1:3]
        cameras = []
        for row in rows:
            (fx, _, cx), (_, fy, cy), _ = home.K[row].tolist()
            k1, k2 = home.distortion[row].tolist()
            cameras.append(Camera(width, height, fx, fy, cx, cy, (k1, k2, 0.0, 0.0), "opencv"))
        return PosedPhotos(
            tuple(f"{kind}-{number:03d}" for number in range(len(rows))),
            home.T_world_cam[rows].to("cpu").to(torch.float64),
            tuple(cameras),
            lambda idx: images[rows[idx]],
        )

    mapped, fingerprint = photos(in_map, "map"), digest.hexdigest()
    return RoomPlace(
        Place(name, mapped, photos(home.is_query, "query"), fingerprint, home.overlap[home.is_query].cpu()),
        Place(name, mapped, photos(home.is_unseen, "unseen"), fingerprint, home.overlap[home.is_unseen].cpu()),
    )
