"""A cube of painted walls with cameras inside: photos whose poses are exact and in which points can be matched."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial.transform import Rotation

from relograph.geometry import Camera, Pose

HALF_SIDE_M = 1.5
CAMERA = Camera.from_focal(320, 240, 260.0)


def painting(seed: int) -> np.ndarray:
    """Six walls of 480 x 480 pixels with blobs of several sizes."""
    rng = np.random.default_rng(seed)
    layers = [gaussian_filter(rng.normal(size=(6, 480, 480)), (0, sigma, sigma)) for sigma in (1.5, 4, 12)]
    walls = sum(layer / layer.std() for layer in layers)
    return np.clip(128 + 35 * walls, 0, 255)


def photo(walls: np.ndarray, T_world_cam: Pose, camera: Camera = CAMERA) -> np.ndarray:
    """What a camera in the cube sees, [H, W, 3]."""
    rays = camera.unproject(camera.pixel_grid()).numpy() @ T_world_cam.R.numpy().T
    centre = T_world_cam.t.numpy()
    reach = (np.sign(rays) * HALF_SIDE_M - centre) / rays  # how far to the wall along each axis
    axis = reach.argmin(axis=-1)
    hit = centre + rays * reach.min(axis=-1, keepdims=True)
    wall = 2 * axis + (np.take_along_axis(rays, axis[..., None], -1)[..., 0] > 0)
    others = np.array([[1, 2], [0, 2], [0, 1]])[axis]
    place = np.take_along_axis(hit, others, axis=-1) / HALF_SIDE_M * 239.5 + 239.5
    grey = np.zeros(wall.shape)
    for number in range(6):
        here = wall == number
        grey[here] = map_coordinates(walls[number], place[here].T, order=1, mode="nearest")
    return np.repeat(np.uint8(grey.round())[..., None], 3, axis=-1)


def poses(seed: int, count: int, spread_m: float = 0.25, spread_rad: float = 0.15) -> Pose:
    """Cameras about the middle of the cube that look about the same way."""
    rng = np.random.default_rng(seed)
    R = Rotation.from_rotvec(rng.normal(0, spread_rad, (count, 3))).as_matrix()
    return Pose.from_rotation_and_translation(R, rng.normal(0, spread_m, (count, 3)))


def write_scene(root: Path, num_map: int = 8, num_queries: int = 2, seed: int = 0, camera: Camera = CAMERA) -> Path:
    """The cube in the 7-Scenes layout, with its camera, and the lists map.txt and query.txt."""
    walls = painting(seed)
    for split, sequence, T_world_cam, name in (
        ("Train", 1, poses(seed + 1, num_map), "map.txt"),
        ("Test", 2, poses(seed + 2, num_queries, 0.1, 0.08), "query.txt"),
    ):
        folder = root / f"seq-{sequence:02d}"
        folder.mkdir(parents=True)
        (root / f"{split}Split.txt").write_text(f"sequence{sequence}\n")
        stems = [f"frame-{frame:06d}" for frame in range(len(T_world_cam))]
        for stem, pose in zip(stems, T_world_cam, strict=True):
            Image.fromarray(photo(walls, pose, camera)).save(folder / f"{stem}.color.png")
            np.savetxt(folder / f"{stem}.pose.txt", pose.matrix().numpy())
        (root / name).write_text("".join(f"{folder.name}/{stem}\n" for stem in stems))
    line = f"SIMPLE_PINHOLE {camera.width} {camera.height} {camera.fx:g} {camera.cx:g} {camera.cy:g}"
    (root / "camera.txt").write_text(f"{line}\n")
    return root
