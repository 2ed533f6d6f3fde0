"""A room, its map on the disk, and photos that the map can localize."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose, rotation_error_deg, translation_error_m
from relograph.localization import Localizer
from relograph.maps import Map
from relograph.maps.benchmark import PHOTO_HW, render_photos
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.rooms.textures import TextureAtlas
from relograph.scenes.camera_models import camera_line
from relograph.scenes.frame import Frame

RIGHT_WITHIN_M, RIGHT_WITHIN_DEG = 0.10, 5.0
MAP_NAME = "room"


@dataclass(frozen=True)
class Photo:
    """A photo that the map can localize, and where it was taken."""

    name: str
    content: bytes
    """Of its file, a JPEG."""
    camera: Camera
    T_world_cam: Pose

    def is_right(self, matrix: Sequence[Sequence[float]] | None) -> bool:
        """Whether a pose, as an answer tells it, is that of this photo."""
        if matrix is None:
            return False
        T_told = torch.tensor(matrix, dtype=torch.float64)
        off_m = float(translation_error_m(T_told[:3, 3], self.T_world_cam.t))
        off_deg = float(rotation_error_deg(T_told[:3, :3], self.T_world_cam.R))
        return off_m <= RIGHT_WITHIN_M and off_deg <= RIGHT_WITHIN_DEG

    @property
    def camera_line(self) -> str:
        """As requests tell it."""
        return camera_line(self.camera)


@dataclass(frozen=True)
class Place:
    """What the service is asked about."""

    map: Path
    photos: tuple[Photo, ...]


def make_place(
    folder: Path,
    network: LoadedMatchGNN,
    *,
    num_views: int = 32,
    num_photos: int = 12,
    photo_hw: tuple[int, int] = PHOTO_HW,
    num_references: int,
    seed: int = 0,
    atlas: TextureAtlas | None = None,
    progress: Progress = SILENT,
) -> Place:
    """A rendered room in `folder`. Photos that the localizer misses without any service are left out.

    What is asked later is whether a service under load answers as well as a quiet localizer, not how good that is.
    """
    views, queries = render_photos(
        folder / "photos",
        num_views=num_views,
        num_queries=num_photos,
        photo_hw=photo_hw,
        seed=seed,
        atlas=atlas,
        progress=progress,
    )
    made = Map.create(folder / f"{MAP_NAME}.map", views, network=network, progress=progress)
    localizer = Localizer(made.features, network, num_references=num_references)
    photos = [photo for query in queries if _is_found(photo := _photo(query), localizer)]
    if not photos:
        raise DatasetError(
            f"expected some of {len(queries)} photos to be localized in their own room, found none. Try another --seed."
        )
    return Place(folder / f"{MAP_NAME}.map", tuple(photos))


def _photo(query: Frame) -> Photo:
    assert query.camera is not None  # rendered photos have one
    return Photo(query.name, query.image.read_bytes(), query.camera, query.T_world_cam)


def _is_found(photo: Photo, localizer: Localizer) -> bool:
    answer = localizer.localize(photo.content, camera=photo.camera)
    return answer.T_world_cam is not None and photo.is_right(answer.T_world_cam.matrix().tolist())
