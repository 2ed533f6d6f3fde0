"""What a map says about its photos, its changes and itself: plain values, as they are stored."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import torch

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.localization.focal import UnknownFocal
from relograph.localization.map_features import Precision
from relograph.localization.photos import AnyCamera, WorkingSize
from relograph.maps.similarity import Similarity
from relograph.scenes.camera_models import camera_line, parse_camera_line

Level = Literal["context", "coarse", "fine"]
LEVELS: tuple[Level, ...] = get_args(Level)
USUAL_LEVELS = LEVELS[:2]
"""That a map keeps unless it is told otherwise: the fine level would take four times as much room, and little work
brings it back from the small photo and the coarse features."""

_UNKNOWN_FOCAL = "UNKNOWN_FOCAL"


@dataclass(frozen=True, slots=True)
class MapFrame:
    """A photo of a map."""

    name: str
    """Unique in the map."""
    quat_wxyz: tuple[float, float, float, float]
    cam_center_world: tuple[float, float, float]
    """In metres."""
    photo_width: int
    photo_height: int
    camera_line: str
    """In COLMAP's notation; empty where nothing is known."""
    sequence: str | None
    timestamp_s: float | None
    photo_sha256: str
    """Of the photo's file, or of its pixels where there was none."""
    shard: str
    """SHA-256 of the shard that holds its features."""
    shard_row: int
    size_hw: tuple[int, int]
    """At which the network saw it."""
    data_sha256: str
    """Of its row of all tensors in the shard."""
    change: int = 0
    """The number of the change that brought it; given when it is stored."""

    @property
    def T_world_cam(self) -> Pose:
        """Camera to world in metres, float64."""
        return Pose.from_quat_wxyz(
            torch.tensor(self.quat_wxyz, dtype=torch.float64), torch.tensor(self.cam_center_world, dtype=torch.float64)
        )

    @property
    def camera(self) -> AnyCamera:
        """In pixels of the photo."""
        return camera_from_line(self.camera_line)

    @property
    def working_size(self) -> WorkingSize:
        return WorkingSize(self.photo_width, self.photo_height, self.size_hw)


def frame_poses(frames: Sequence[MapFrame]) -> Pose:
    """Their `T_world_cam`, batch shape [F]."""
    if not frames:
        return Pose.identity(0)
    return Pose.from_quat_wxyz(
        torch.tensor([frame.quat_wxyz for frame in frames], dtype=torch.float64),
        torch.tensor([frame.cam_center_world for frame in frames], dtype=torch.float64),
    )


def with_poses(frames: Sequence[MapFrame], T_world_cam: Pose) -> list[MapFrame]:
    """The frames with other poses."""
    values = zip(frames, T_world_cam.quat_wxyz().tolist(), T_world_cam.t.tolist(), strict=True)
    return [replace(frame, quat_wxyz=tuple(quat), cam_center_world=tuple(centre)) for frame, quat, centre in values]


def frames_by_shard(frames: Iterable[MapFrame]) -> dict[tuple[str, tuple[int, int]], list[MapFrame]]:
    """Those of one shard together: its SHA-256 and the size of its photos, and the frames in their order."""
    found: dict[tuple[str, tuple[int, int]], list[MapFrame]] = {}
    for frame in frames:
        found.setdefault((frame.shard, frame.size_hw), []).append(frame)
    return found


def line_of_camera(camera: AnyCamera) -> str:
    """The camera in one line, exact to the last bit.

    Example:
        >>> line_of_camera(UnknownFocal(640, 480, 2)), line_of_camera(None)
        ('UNKNOWN_FOCAL 640 480 2', '')
    """
    if camera is None:
        return ""
    if isinstance(camera, Camera):
        return camera_line(camera)
    line = f"{_UNKNOWN_FOCAL} {camera.width} {camera.height} {camera.group}"
    is_usual = camera == UnknownFocal(camera.width, camera.height, camera.group)
    return line if is_usual else f"{line} {camera.likely!r} {camera.log_sigma!r}"


@lru_cache(maxsize=4096)  # a walk of a thousand photos has one camera
def camera_from_line(line: str) -> AnyCamera:
    """The camera that `line_of_camera` wrote."""
    if not line:
        return None
    model, *numbers = line.split()
    if model == _UNKNOWN_FOCAL:
        width, height, group = map(int, numbers[:3])
        return UnknownFocal(width, height, group, *map(float, numbers[3:]))
    return parse_camera_line(line, where="the map")


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """What holds for a whole map."""

    network_sha256: str
    """Of the weights that made its features; no others can read them."""
    precision: Precision = "float16"
    levels: tuple[Level, ...] = LEVELS
    """Of dense features that are kept."""
    scale_is_known: bool = True
    """Whether the unit of poses is a metre; a scene that was reconstructed without a measure has one of its own."""
    georeference: "Georeference | None" = None

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision) or self.levels != LEVELS[: len(self.levels)]:
            raise DatasetError(
                f"expected features in {' or '.join(get_args(Precision))} of the levels {', '.join(LEVELS)}, found "
                f"{self.precision} of {', '.join(self.levels)}. Use a relograph that knows this map."
            )

    def to_json(self) -> str:
        values: dict[str, object] = {
            "network_sha256": self.network_sha256,
            "precision": self.precision,
            "levels": list(self.levels),
            "scale_is_known": self.scale_is_known,
        }
        if self.georeference is not None:
            values["georeference"] = self.georeference.to_dict()
        return json.dumps(values, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "MapSettings":
        values = json.loads(text)
        place = values.get("georeference")
        return MapSettings(
            network_sha256=values["network_sha256"],
            precision=values["precision"],
            levels=tuple(values["levels"]),
            scale_is_known=values["scale_is_known"],
            georeference=None if place is None else Georeference.from_dict(place),
        )


@dataclass(frozen=True, kw_only=True)
class Georeference:
    """Where on Earth a map lies: its world in metres east, north and up of a place."""

    latitude_deg: float
    longitude_deg: float
    altitude_m: float
    T_enu_world: Similarity
    residual_m: tuple[float, ...]
    """Of the points that it was found with."""

    def in_world(self, T_new_world: Similarity) -> "Georeference":
        """The same place for a map that was put into another world frame."""
        return replace(self, T_enu_world=self.T_enu_world @ T_new_world.inverse())

    def to_dict(self) -> dict[str, object]:
        return {
            "latitude_deg": self.latitude_deg,
            "longitude_deg": self.longitude_deg,
            "altitude_m": self.altitude_m,
            "T_enu_world": self.T_enu_world.to_dict(),
            "residual_m": list(self.residual_m),
        }

    @staticmethod
    def from_dict(values: dict[str, object]) -> "Georeference":
        T_enu_world, residual_m = values.pop("T_enu_world"), values.pop("residual_m")
        assert isinstance(T_enu_world, dict)
        assert isinstance(residual_m, list)
        return Georeference(
            **values,  # type: ignore[arg-type]  # what JSON holds; a missing name is an error of its own
            T_enu_world=Similarity.from_dict(T_enu_world),
            residual_m=tuple(residual_m),
        )


@dataclass(frozen=True)
class ChangeRecord:
    """A transaction that changed the map."""

    number: int
    kind: str
    at_utc: str
    about: dict[str, object]
    num_frames: int
    """In the map after it."""
    frames_xor: bytes
    """Of what is said of these photos: by it a lost one is noticed."""


@dataclass(frozen=True)
class Snapshot:
    """All that a map's database says at one moment."""

    revision: int
    """The number of the last change."""
    settings: MapSettings
    frames: tuple[MapFrame, ...]


@dataclass(frozen=True)
class Damage:
    """Something in a map that is not as it was written."""

    file: str
    """Within the map."""
    what: str
    frames: tuple[str, ...]
    """Names of the photos that it touches."""


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found."""

    num_frames: int
    damages: tuple[Damage, ...]
    garbage: tuple[str, ...]
    """Files that no frame leads to, left by a writer that was stopped; harmless, the next writer removes them."""

    @property
    def is_whole(self) -> bool:
        return not self.damages

    @property
    def affected_frames(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for damage in self.damages for name in damage.frames))


def digest(*values: object) -> bytes:
    """SHA-256 of values as JSON writes them, floats to the last bit."""
    return hashlib.sha256(json.dumps(values).encode()).digest()


def xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a) ^ int.from_bytes(b)).to_bytes(32)
