"""How two maps lie to each other, from photos of one that were localized in the other."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from relograph.errors import DatasetError
from relograph.geometry import Pose, nearest_rotation
from relograph.localization.localizer import Localizer
from relograph.maps.map import Map
from relograph.maps.records import frame_poses
from relograph.maps.similarity import Similarity
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress

NUM_TRIALS = 500
MAX_PHOTOS = 100
"""Of one map that are localized in the other."""
AGREE_M, AGREE_DEG = 0.25, 10.0
"""How far a photo's two poses may be apart: what counts as a right answer."""
MIN_AGREED = 3
MIN_SHARE = 0.3
"""Of the localized photos that must agree: wrong answers agree with nobody."""


@dataclass(frozen=True)
class Joint:
    """The motion from one map's world to another's, and who says so."""

    T_here_there: Similarity
    agreed: Bool[np.ndarray, "N"]
    """Photos of which both poses agree with it."""
    distance_m: Float[np.ndarray, "N"]
    """Of each photo's two places, in metres here."""


def join_poses(
    T_here_cam: Pose, T_there_cam: Pose, *, with_scale: bool = False, agree_m: float = AGREE_M, seed: int = 0
) -> Joint | None:
    """The motion that most cameras agree on, each with a pose in both worlds; None where too few agree on any.

    A camera knows its rotation, so one tells the whole rigid motion, and two the scale as well. Cameras in one line,
    as on a walk through a corridor, are enough.
    """
    num_cameras = len(T_here_cam)
    if num_cameras < MIN_AGREED:
        return None
    here, there = T_here_cam.t.numpy(), T_there_cam.t.numpy()
    R_here_there = T_here_cam.R @ T_there_cam.R.mT  # what each camera says
    rng = np.random.default_rng(seed)
    best: Joint | None = None
    for _ in range(NUM_TRIALS):
        i, j = rng.choice(num_cameras, 2, replace=False)
        scale = 1.0
        if with_scale:
            apart_there = float(np.linalg.norm(there[i] - there[j]))
            scale = float(np.linalg.norm(here[i] - here[j])) / apart_there if apart_there > 1e-9 else 0.0
            if not 1e-5 < scale < 1e5:
                continue
        t = here[i] - scale * R_here_there[i].numpy() @ there[i]
        found = _judged(Similarity(Pose(R_here_there[i], torch.tensor(t)), scale), T_here_cam, T_there_cam, agree_m)
        if best is None or found.agreed.sum() > best.agreed.sum():
            best = found
    if best is None:
        return None
    for _ in range(10):
        if best.agreed.sum() < max(MIN_AGREED, MIN_SHARE * num_cameras):
            return None
        before = best
        best = _judged(_fitted(T_here_cam, T_there_cam, best.agreed, with_scale), T_here_cam, T_there_cam, agree_m)
        if np.array_equal(before.agreed, best.agreed):
            break
    return best if best.agreed.sum() >= max(MIN_AGREED, MIN_SHARE * num_cameras) else None


def join_maps(
    here: Map, there: Map, network: LoadedMatchGNN, *, with_scale: bool = False, progress: Progress = SILENT
) -> Joint:
    """How the world of `there` lies in that of `here`, by localizing some of its photos in `here`."""
    frames = there.frames[:: max(1, len(there) // MAX_PHOTOS)]
    localizer = Localizer(here.features, network)
    found = []
    with progress.task("localizing photos of the other map", total=len(frames)) as advance:
        for frame in frames:
            camera = frame.working_size.camera(frame.camera) if frame.camera is not None else None
            answer = localizer.localize(there.jpeg(frame), camera=camera)
            if answer.T_world_cam is not None:
                found.append((frame, answer.T_world_cam))
            advance(1)
    joint = None
    if found:
        T_there_cam = frame_poses([frame for frame, _ in found])
        joint = join_poses(Pose.stack([T for _, T in found]), T_there_cam, with_scale=with_scale)
    if joint is None:
        raise DatasetError(
            f"{there.store.where}: expected photos that show the same place as {here.store.where}, found that "
            f"{len(found)} of {len(frames)} are localized there and that they agree on no motion. "
            "Give the transform, or add photos that both maps show."
        )
    return joint


def _judged(T_here_there: Similarity, T_here_cam: Pose, T_there_cam: Pose, agree_m: float) -> Joint:
    T_moved = T_here_there.move(T_there_cam)
    distance_m = np.linalg.norm(T_moved.t.numpy() - T_here_cam.t.numpy(), axis=1)
    cosine = (np.einsum("nij,nij->n", T_moved.R.numpy(), T_here_cam.R.numpy()) - 1) / 2
    angle_deg = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
    return Joint(T_here_there, (distance_m <= agree_m) & (angle_deg <= AGREE_DEG), distance_m)


def _fitted(T_here_cam: Pose, T_there_cam: Pose, agreed: Bool[np.ndarray, "N"], with_scale: bool) -> Similarity:
    """The motion with the least squares for the cameras that agree: their mean rotation, then scale and place."""
    rows = torch.from_numpy(agreed)
    R = nearest_rotation((T_here_cam.R[rows] @ T_there_cam.R[rows].mT).sum(dim=0))
    here, turned = T_here_cam.t[rows], T_there_cam.t[rows] @ R.mT
    from_here, from_turned = here - here.mean(dim=0), turned - turned.mean(dim=0)
    scale = float((from_here * from_turned).sum() / from_turned.square().sum()) if with_scale else 1.0
    return Similarity(Pose(R, here.mean(dim=0) - scale * turned.mean(dim=0)), scale)
