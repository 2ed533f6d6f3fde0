"""What users have and homes have not by themselves: turned, cut, small and grey photos, sparse maps, few references,
and focal lengths that are told wrong.

No photo is taken anew for it: pixels are turned, cut and scaled, and the camera and the pose with them, exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import pi

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from relograph.evaluation.place import AnyCamera, FocalTold, PosedPhotos
from relograph.geometry import Camera, Pose
from relograph.localization.map_features import MapFeatures
from relograph.scenes.image_cache import scaled_to_cover


@dataclass(frozen=True)
class Form:
    """What a photo is made into: cut around its middle, scaled, turned, then without its colours."""

    kept_wh: tuple[float, float] = (1.0, 1.0)
    """Shares of its width and height that the cut leaves."""
    scale: float = 1.0
    quarter_turns: int = 0
    """Counter-clockwise."""
    has_colour: bool = True
    told_focal_ratio: float = 1.0
    """Of the focal length that is told of it to the right one."""

    def of(self, photos: PosedPhotos) -> PosedPhotos:
        """The photos in this form, each with a focal length that is told."""
        return replace(
            photos,
            T_world_cam=self.poses(photos.T_world_cam),
            cameras=tuple(self._camera(camera) for camera in photos.cameras),
            read=lambda row: self._pixels(photos.read(row)),
        )

    def poses(self, T_world_cam: Pose) -> Pose:
        """Of the same photos: a camera's axes turn with its picture."""
        turn_rad = torch.tensor([0.0, 0.0, self.quarter_turns * pi / 2], dtype=torch.float64)
        return T_world_cam @ Pose.from_axis_angle(turn_rad, torch.zeros(3, dtype=torch.float64))

    def _camera(self, camera: AnyCamera) -> Camera:
        assert isinstance(camera, Camera)  # as homes have them
        (left, top, width, height), (small_width, small_height) = self._cut(camera.width, camera.height)
        cut = replace(camera, width=width, height=height, cx=camera.cx - left, cy=camera.cy - top)
        cut = replace(cut, fx=self.told_focal_ratio * cut.fx, fy=self.told_focal_ratio * cut.fy)
        return cut.scaled_to(small_width, small_height).rotated_90(self.quarter_turns)

    def _pixels(self, photo: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "H W 3"]:
        (left, top, width, height), (small_width, small_height) = self._cut(photo.shape[1], photo.shape[0])
        cut = np.ascontiguousarray(photo[top : top + height, left : left + width])
        small = cut if self.scale == 1.0 else scaled_to_cover(cut, (small_height, small_width))
        turned = np.ascontiguousarray(np.rot90(small, self.quarter_turns))
        return turned if self.has_colour else np.asarray(Image.fromarray(turned).convert("L").convert("RGB"))

    def _cut(self, width: int, height: int) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
        """Left, top, width and height of what is kept, and the size that it is scaled to, in whole pixels."""
        kept_width, kept_height = (
            round(share * side) for share, side in zip(self.kept_wh, (width, height), strict=True)
        )
        box = ((width - kept_width) // 2, (height - kept_height) // 2, kept_width, kept_height)
        return box, (round(kept_width * self.scale), round(kept_height * self.scale))


@dataclass(frozen=True)
class Condition:
    """How some queries of each home are asked for otherwise than usual."""

    name: str
    form: Form = Form()
    every_of_map: int = 1
    """Of the map's photos every so many-th."""
    num_references: int | None = None
    """None for as many as usual."""
    first: int = 0
    """Number of the first of a home's queries that are asked for so."""
    every: int = 1
    """Of the queries from there on every so many-th."""

    def changes(self, focal: FocalTold) -> bool:
        """Whether it makes a difference to queries of which that is told of focal lengths."""
        return self.form.told_focal_ratio == 1.0 or focal == "given"

    def rows(self, num_queries: int) -> range:
        """Which of so many queries are asked for so."""
        return range(self.first, num_queries, self.every)

    def map_photos(self, photos: PosedPhotos) -> PosedPhotos:
        """Those of a map that are left."""
        return photos[range(0, len(photos), self.every_of_map)]

    def map_features(self, features: MapFeatures) -> MapFeatures:
        """Of the photos that are left."""
        some = slice(None, None, self.every_of_map)
        return replace(
            features,
            names=features.names[some],
            T_world_cam=features.T_world_cam[some],
            cameras=features.cameras[some],
            sizes=features.sizes[some],
            descriptors=features.descriptors[some],
            place=features.place[some],
        )


OTHER_PHOTOS = (
    Condition("turned left", Form(quarter_turns=1)),
    Condition("turned right", Form(quarter_turns=-1)),
    Condition("upside down", Form(quarter_turns=2)),
    Condition("cut upright", Form(kept_wh=(9 / 16, 1.0))),  # of 4:3 it leaves 3:4
    Condition("cut to the middle", Form(kept_wh=(0.7, 0.7))),
    Condition("half as large", Form(scale=0.5)),
    Condition("without colour", Form(has_colour=False)),
)
SPARSE_MAPS = tuple(Condition(f"one photo in {step} of the map", every_of_map=step) for step in (2, 4, 8))
WRONG_FOCALS = tuple(
    Condition(f"f {abs(told - 1):.0%} too {'long' if told > 1 else 'short'}", Form(told_focal_ratio=told))
    for told in (0.8, 0.9, 1.1, 1.25)
)


def condition_groups(num_references: int, counts: Sequence[int]) -> tuple[tuple[Condition, ...], ...]:
    """Other photos, sparse maps, wrong focal lengths, and of the numbers of references in `counts` those that are not
    the usual one.

    Each group asks for every query once, in one of its conditions.

    Example:
        >>> [condition.name for condition in condition_groups(7, (1, 7))[3]]
        ['references: 1']
        >>> [list(condition.rows(5)) for condition in condition_groups(7, ())[1]]
        [[0, 3], [1, 4], [2]]
    """
    other_counts = [
        Condition(f"references: {count}", num_references=count) for count in counts if count != num_references
    ]
    groups = (OTHER_PHOTOS, SPARSE_MAPS, WRONG_FOCALS, tuple(other_counts))
    return tuple(
        tuple(replace(condition, first=first, every=len(group)) for first, condition in enumerate(group))
        for group in groups
        if group
    )
