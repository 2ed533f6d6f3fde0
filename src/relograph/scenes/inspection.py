"""What a scene holds, and what is wrong with it: `relograph scene info` and `relograph scene check`."""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float64

from relograph.environment import num_cores
from relograph.errors import DatasetError, RelographError
from relograph.geometry import Camera, check_rotation
from relograph.progress import SILENT, Progress
from relograph.scenes.frame import Frame
from relograph.scenes.images import decode_image
from relograph.scenes.scene import Scene

LARGEST_EXTENT_M = 1000.0
"""Beyond this a scene is more likely in millimetres, or of no scale at all, than in metres."""


@dataclass(frozen=True)
class SequenceInfo:
    """One recorded sequence."""

    name: str | None
    num_frames: int
    split: Literal["train", "test", "mixed"] | None
    path_length_m: float
    """Way from camera centre to camera centre, in the order of the frames."""


@dataclass(frozen=True)
class SceneInfo:
    """What `relograph scene info` prints; every photo is left undecoded."""

    name: str
    root: Path
    format: str
    num_frames: int
    num_train: int
    num_test: int
    sequences: tuple[SequenceInfo, ...]
    extent_min_m: tuple[float, float, float]
    """Smallest x, y, z of the camera centres, in the world frame."""
    extent_max_m: tuple[float, float, float]
    path_length_m: float
    """Sum over the sequences."""
    num_frames_by_camera: dict[Camera, int]
    num_frames_without_camera: int
    num_frames_with_depth: int
    image_sizes_wh: tuple[tuple[int, int], ...]
    """Sizes of the upright photos: of the cameras, and of the first photo of each sequence that has none."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Something wrong with a scene, in one sentence."""

    frame: str | None
    """Name of the frame; None for the scene as a whole."""
    message: str


def scene_info(scene: Scene) -> SceneInfo:
    """Frames, sequences, extent, intrinsics and warnings of a scene, without decoding its photos."""
    if len(scene) == 0:
        raise DatasetError(
            f"Scene {scene.name}: expected frames to tell about, found none. Check its splits and sequences."
        )
    centres_m = scene.T_world_cam.t.numpy()
    sequences = tuple(_sequence_info(name, part) for name, part in _parts(scene).items())
    cameras = Counter(frame.camera for frame in scene if frame.camera is not None)
    return SceneInfo(
        name=scene.name,
        root=scene.root,
        format=scene.format,
        num_frames=len(scene),
        num_train=len(scene.train),
        num_test=len(scene.test),
        sequences=sequences,
        extent_min_m=_xyz(centres_m.min(axis=0)),
        extent_max_m=_xyz(centres_m.max(axis=0)),
        path_length_m=sum(sequence.path_length_m for sequence in sequences),
        num_frames_by_camera=dict(cameras.most_common()),
        num_frames_without_camera=sum(frame.camera is None for frame in scene),
        num_frames_with_depth=sum(frame.depth is not None for frame in scene),
        image_sizes_wh=_image_sizes(scene),
        warnings=(*scene.warnings, *_warnings(scene, centres_m)),
    )


def check_scene(scene: Scene, progress: Progress = SILENT) -> list[Problem]:
    """What is wrong with the scene, empty if nothing is: every photo and depth map is decoded.

    Sizes are compared with the camera's, poses are checked, and photos that are the same byte for byte are named.
    """
    problems: list[Problem] = []
    first_with_digest: dict[bytes, str] = {}
    pool = ThreadPoolExecutor(num_cores())  # decoding leaves Python's lock, so threads share the work
    try:
        with progress.task("checking photos", total=len(scene)) as advance:
            for frame, (messages, digest) in zip(scene, pool.map(_check_frame, scene), strict=True):
                original = frame.name if digest is None else first_with_digest.setdefault(digest, frame.name)
                if original != frame.name:
                    messages.append(
                        f"{frame.name}: expected a photo of its own, found a copy of {original}. Remove one of the two."
                    )
                problems.extend(Problem(frame.name, message) for message in messages)
                advance(1)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for thousands of photos
    return problems


def _check_frame(frame: Frame) -> tuple[list[str], bytes | None]:
    """What is wrong with one frame, and a digest of its photo's bytes where it can be read."""
    messages, digest, photo_size_wh = [], None, None
    try:
        data = frame.image.read_bytes()
        digest = hashlib.blake2b(data, digest_size=16).digest()
        height, width, _ = decode_image(data, frame.image.label).shape
        photo_size_wh = (width, height)
    except RelographError as error:
        messages.append(str(error))
    if frame.camera is not None and photo_size_wh not in (None, (frame.camera.width, frame.camera.height)):
        messages.append(
            f"{frame.image.label}: expected {frame.camera.width} x {frame.camera.height} pixels as the camera says, "
            f"found {photo_size_wh[0]} x {photo_size_wh[1]}. Correct the intrinsics, or restore the photo."
        )
    if frame.depth is not None:
        try:
            height, width = frame.read_depth_m().shape
            if photo_size_wh not in (None, (width, height)):
                messages.append(
                    f"{frame.depth.file.label}: expected {photo_size_wh[0]} x {photo_size_wh[1]} pixels as the photo "
                    f"has, found {width} x {height}. Register the depth to the photo, or remove it."
                )
        except RelographError as error:
            messages.append(str(error))
    try:
        check_rotation(frame.T_world_cam.R, where=f"{frame.name}: T_world_cam")
    except RelographError as error:
        messages.append(str(error))
    if not bool(frame.T_world_cam.t.isfinite().all()):
        messages.append(
            f"{frame.name}: expected a finite camera centre, found {frame.T_world_cam.t.tolist()}. Correct it."
        )
    return messages, digest


def _parts(scene: Scene) -> dict[str | None, tuple[Frame, ...]]:
    """The frames by sequence; those without one are under None."""
    parts: dict[str | None, list[Frame]] = {}
    for frame in scene:
        parts.setdefault(frame.sequence, []).append(frame)
    return {name: tuple(frames) for name, frames in parts.items()}


def _sequence_info(name: str | None, frames: tuple[Frame, ...]) -> SequenceInfo:
    centres_m = np.stack([frame.T_world_cam.t.numpy() for frame in frames])
    splits = {frame.split for frame in frames}
    return SequenceInfo(
        name=name,
        num_frames=len(frames),
        split=splits.pop() if len(splits) == 1 else "mixed",
        path_length_m=float(np.linalg.norm(np.diff(centres_m, axis=0), axis=1).sum()),
    )


def _image_sizes(scene: Scene) -> tuple[tuple[int, int], ...]:
    sizes = {(frame.camera.width, frame.camera.height) for frame in scene if frame.camera is not None}
    for frames in _parts(scene).values():
        if frames[0].camera is None:
            sizes.add(frames[0].image.read_image_header().upright_size_wh)
    return tuple(sorted(sizes))


def _warnings(scene: Scene, centres_m: Float64[np.ndarray, "N 3"]) -> list[str]:
    warnings = []
    num_without = sum(frame.camera is None for frame in scene)
    if num_without:
        whose = "No frame has" if num_without == len(scene) else f"{num_without} of {len(scene)} frames have no"
        warnings.append(f"{whose} intrinsics; give the focal length in pixels with focal_px= (--focal).")
    if all(frame.split is None for frame in scene):
        warnings.append("There is no train and test split.")
    extent_m = float(np.linalg.norm(np.ptp(centres_m, axis=0)))
    if len(scene) > 1 and extent_m == 0.0:
        warnings.append("All frames share one position: a relative pose has no direction to learn from.")
    if extent_m > LARGEST_EXTENT_M:
        warnings.append(f"The cameras are up to {extent_m:.0f} m apart: the units may not be metres.")
    poses = scene.T_world_cam.matrix()[:, :3].flatten(1).numpy()
    num_repeated = len(scene) - len(np.unique(poses, axis=0))
    if num_repeated:
        warnings.append(f"{num_repeated} of {len(scene)} frames have the very pose of an earlier frame.")
    return warnings


def _xyz(values: Float64[np.ndarray, "3"]) -> tuple[float, float, float]:
    x, y, z = values.tolist()
    return x, y, z
