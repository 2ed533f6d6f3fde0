"""A place to be localized in: photos of known pose that are its map, and others that are looked for in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera, Pose, rotation_error_deg
from relograph.localization import UnknownFocal
from relograph.localization.photos import camera_of
from relograph.retrieval import select_strided
from relograph.retrieval.overlap import frustum_overlap
from relograph.scenes import Frame, Scene
from relograph.scenes.fingerprint import scene_fingerprint
from relograph.scenes.names import read_text

MAP_FOCAL, QUERY_FOCAL = 0, 1
"""Groups of cameras that share an unknown focal length; in a scene, the queries' is the map's."""

AnyCamera = Camera | UnknownFocal
FocalTold = Literal["given", "searched", "none", "wrong"]
"""What is told of focal lengths: what the place knows; nothing, for the solver to find or not to; a wrong one."""
WRONG_FOCAL = 1.2
"""Times the true focal length."""


@dataclass(frozen=True)
class PosedPhotos:
    """F photos, read when they are looked at, with their true poses."""

    names: tuple[str, ...]
    T_world_cam: Pose
    """Batch shape [F], float64, on the CPU."""
    cameras: tuple[AnyCamera, ...]
    """As they are told to a solver: of known focal length, or not."""
    read: Callable[[int], UInt8[np.ndarray, "H W 3"]]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: Sequence[int]) -> "PosedPhotos":
        """Those rows, in that order."""
        rows = list(rows)
        return PosedPhotos(
            tuple(self.names[row] for row in rows),
            self.T_world_cam[rows],
            tuple(self.cameras[row] for row in rows),
            lambda idx: self.read(rows[idx]),
        )

    def followed_by(self, others: "PosedPhotos") -> "PosedPhotos":
        """These photos, then the others."""
        return PosedPhotos(
            self.names + others.names,
            Pose.cat([self.T_world_cam, others.T_world_cam]),
            self.cameras + others.cameras,
            lambda row: self.read(row) if row < len(self) else others.read(row - len(self)),
        )

    def with_unknown_focal(self, group: int) -> "PosedPhotos":
        """The same photos, of whose cameras nobody knows more than that they have a focal length in common."""
        unknown = tuple(UnknownFocal(camera.width, camera.height, group) for camera in self.cameras)
        return replace(self, cameras=unknown)

    def told(self, focal: FocalTold, group: int) -> "PosedPhotos":
        """The same photos as they are told of; those of unknown focal length are one group."""
        if focal == "given":
            return self
        if focal != "wrong":
            return self.with_unknown_focal(group)
        wrong = tuple(
            replace(camera, fx=WRONG_FOCAL * camera.fx, fy=WRONG_FOCAL * camera.fy)
            if isinstance(camera, Camera)
            else camera
            for camera in self.cameras
        )
        return replace(self, cameras=wrong)

    @property
    def focal_known(self) -> bool:
        """Of every photo."""
        return all(isinstance(camera, Camera) for camera in self.cameras)


@dataclass(frozen=True)
class Place:
    """A map and its queries."""

    name: str
    map: PosedPhotos
    queries: PosedPhotos
    fingerprint: str
    """Says which photos and poses these are, wherever they lie."""
    overlap: Float[Tensor, "Q M"] | None = None
    """Share of each query's view that each photo of the map shows, where that is known exactly."""

    def every_nth_query(self, step: int, first: int = 0) -> "Place":
        """The place with fewer queries."""
        if step < 1 or not 0 <= first < len(self.queries):
            raise ConfigError(
                f"--queries: expected a step of 1 or more, and a first query among 0 to {len(self.queries) - 1}, found "
                f"a step of {step} and a first of {first}. Correct it."
            )
        return self.with_queries(range(first, len(self.queries), step))

    def with_queries(self, rows: Sequence[int]) -> "Place":
        """The place with those of its queries, in that order."""
        overlap = None if self.overlap is None else self.overlap[list(rows)]
        return replace(self, queries=self.queries[rows], overlap=overlap)

    def with_unknown_focal(self) -> "Place":
        """The place of whose cameras nobody knows more than that the map was taken with one, the queries with another.

        Example:
            >>> from relograph.geometry import Camera
            >>> photos = PosedPhotos(("a",), Pose.identity(1), (Camera.from_focal(64, 48, 50.0),), lambda row: None)
            >>> place = Place("room", photos, photos, "").with_unknown_focal()
            >>> place.queries.cameras[0].group, place.map.cameras[0].group
            (1, 0)
        """
        return self.told("none")

    def told(self, focal: FocalTold) -> "Place":
        """The place as it is told of."""
        return replace(self, map=self.map.told(focal, MAP_FOCAL), queries=self.queries.told(focal, QUERY_FOCAL))


def place_of_scene(scene: Scene, map_names: Sequence[str], query_names: Sequence[str], focal: str) -> Place:
    """The place that two lists of a scene's frames make.

    `focal` is how much is told about the cameras: a focal length in pixels for all, "unknown" for none, "scene" for
    what the scene's own files say and what EXIF makes expect, or a file with lines of a frame's name and its focal
    length in pixels.
    """
    focals = _focals(focal)
    in_map = set(map_names)
    if in_both := [name for name in query_names if name in in_map]:
        raise DatasetError(
            f"{scene.name}: expected queries that are not in the map, found {len(in_both)} of {len(query_names)} "
            f"there, first {in_both[0]!r}: a photo finds itself. Remove them from one of the two lists."
        )
    return Place(
        scene.name,
        _photos(scene.select(map_names), focals),
        _photos(scene.select(query_names), focals),
        scene_fingerprint(replace(scene, frames=(*scene.select(map_names), *scene.select(query_names)))),
    )


def read_frame_list(path: Path, scene: Scene) -> list[str]:
    """The names of a scene's frames that a file lists, one a line; the ending of a photo's name may be left out."""
    by_stem: dict[str, list[str]] = {}
    for frame in scene:
        folder, _, file = frame.name.rpartition("/")
        by_stem.setdefault("/".join(filter(None, (folder, file.partition(".")[0]))), []).append(frame.name)
        by_stem.setdefault(frame.name, [frame.name])
    names = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not (listed := line.strip()) or listed.startswith("#"):
            continue
        found = by_stem.get(listed, [])
        if len(found) != 1:
            raise DatasetError(
                f"{path} line {number}: expected the name of a frame of {scene.name}, found {listed!r}, which is "
                f"{'that of several' if found else 'none of them'}. Names are such as {scene[0].name!r}."
            )
        names.append(found[0])
    if not names:
        raise DatasetError(f"{path}: expected names of frames, one a line, found none. List some.")
    if len(set(names)) != len(names):
        twice = next(name for idx, name in enumerate(names) if name in names[:idx])
        raise DatasetError(f"{path}: expected every frame once, found {twice!r} twice. Remove one of the lines.")
    return names


def references_by_pose(place: Place, num_references: int, stride: int) -> Int[Tensor, "Q R"]:
    """Photos of the map nearest to each query by true pose, every `stride`-th: what no retrieval knows.

    Nearness is metres plus radians. -1 stands where the map has no more.
    """
    T_query, T_map = place.queries.T_world_cam, place.map.T_world_cam
    distance_m = torch.cdist(T_query.t, T_map.t, compute_mode="donot_use_mm_for_euclid_dist")
    apart = distance_m + torch.deg2rad(rotation_error_deg(T_query.R[:, None], T_map.R[None]))
    return select_strided(padded(apart.argsort(dim=1), num_references * stride), num_references, stride)


def padded(rows: Int[Tensor, "Q L"], length: int) -> Int[Tensor, "Q length"]:
    """The first `length` of each list, with -1 where there are fewer."""
    missing = rows.new_full((len(rows), max(0, length - rows.shape[1])), -1)
    return torch.cat([rows[:, :length], missing], dim=1)


def overlap_with_references(place: Place, references: Int[Tensor, "Q R"]) -> Float[Tensor, "Q"]:
    """Largest share of each query's view that one of its references shows, within [0, 1].

    Where the place does not know, it is judged by poses alone, as if nothing hid anything.
    """
    there = references >= 0
    if place.overlap is not None:
        overlap = place.overlap.gather(1, references.clamp_min(0))
    else:
        T_query = place.queries.T_world_cam
        T_ref = place.map.T_world_cam[references.clamp_min(0)]  # [Q, R]
        overlap = frustum_overlap(Pose(T_query.R[:, None], T_query.t[:, None]), T_ref)
    return overlap.masked_fill(~there, 0.0).amax(dim=1)


def _photos(frames: Scene, focals: "_Focals") -> PosedPhotos:
    return PosedPhotos(
        tuple(frame.name for frame in frames),
        frames.T_world_cam.to("cpu").to(torch.float64),
        tuple(focals.camera(frame) for frame in frames),
        lambda row: frames[row].read_image(),
    )


@dataclass(frozen=True)
class _Focals:
    """What a user says about focal lengths."""

    all_px: float | None = None
    by_name: dict[str, float] | None = None
    from_scene: bool = False

    def camera(self, frame: Frame) -> AnyCamera:
        if self.from_scene and (camera := camera_of(frame)) is not None:
            return camera
        width, height = frame.image.read_image_header().upright_size_wh
        focal_px = self.all_px if self.by_name is None else self.by_name.get(frame.name)
        if focal_px is None:
            return UnknownFocal(width, height, MAP_FOCAL)
        return Camera.from_focal(width, height, focal_px)


def _focals(focal: str) -> _Focals:
    if focal in ("unknown", "scene"):
        return _Focals(from_scene=focal == "scene")
    if (px := _positive(focal)) is not None:
        return _Focals(all_px=px)
    path = Path(focal)
    if not path.is_file():
        raise ConfigError(
            f"--focal: expected a number of pixels, 'unknown', 'scene' or a file of lines 'name pixels', found "
            f"{focal!r}. Correct it."
        )
    by_name = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, text = line.strip().rpartition(" ")
        if not name or (px := _positive(text)) is None:
            raise DatasetError(
                f"{path} line {number}: expected a frame's name and its focal length in pixels, found "
                f"{line.strip()!r:.60}. Correct the line."
            )
        by_name[name.strip()] = px
    return _Focals(by_name=by_name)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
