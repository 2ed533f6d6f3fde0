"""Data sets of a few kilobytes in the layouts of 7-Scenes and Cambridge Landmarks.

A scene is a wall with a smooth pattern of its own. Cameras look at it, and what they see is the part of it that they
are in front of and turned to: photos of nearby poses look alike.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

HEIGHT, WIDTH = 48, 64
SEQUENCES = {"Train": (1, 2), "Test": (3,)}


def wall(seed: int) -> np.ndarray:
    pattern = np.random.default_rng(seed).normal(size=(256, 256, 3))
    pattern = gaussian_filter(pattern, sigma=(6, 6, 0), mode="wrap")
    return np.uint8(np.clip(128 + 60 * pattern / pattern.std(), 0, 255))


def walk(seed: int, sequence: int, num_frames: int, metres: float) -> tuple[np.ndarray, Rotation]:
    """Camera centres and rotations along a curve in front of the wall."""
    phase = np.random.default_rng(seed).uniform(0, 2 * np.pi, 3) + 0.2 * sequence
    along = np.linspace(0, 2, num_frames)[:, None]
    centres = metres * np.sin(along + phase)
    turns = 0.2 * np.sin(2 * along + phase[::-1]) * [1.0, 1.0, 0.2]
    return centres, Rotation.from_rotvec(turns)


def photo(pattern: np.ndarray, centre: np.ndarray, turn: np.ndarray, metres: float) -> Image.Image:
    x, y = (60 * centre[:2] / metres + 80 * np.array([turn[1], -turn[0]])).round().astype(int)
    shown = np.roll(pattern, (-int(y), -int(x)), axis=(0, 1))[:HEIGHT, :WIDTH]
    return Image.fromarray(shown)


def write_seven_scenes_root(root: Path, names: tuple[str, ...] = ("chess", "fire", "heads"), num_frames: int = 10):
    for seed, name in enumerate(names):
        pattern = wall(seed)
        for split, numbers in SEQUENCES.items():
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{split}Split.txt").write_text("".join(f"sequence{number}\n" for number in numbers))
            for number in numbers:
                sequence = folder / f"seq-{number:02d}"
                sequence.mkdir()
                centres, rotations = walk(seed, number, num_frames, metres=1.0)
                for frame in range(num_frames):
                    stem = f"frame-{frame:06d}"
                    picture = photo(pattern, centres[frame], rotations[frame].as_rotvec(), 1.0)
                    picture.save(sequence / f"{stem}.color.png")
                    T_world_cam = np.eye(4)
                    T_world_cam[:3, :3], T_world_cam[:3, 3] = rotations[frame].as_matrix(), centres[frame]
                    np.savetxt(sequence / f"{stem}.pose.txt", T_world_cam)
    return root


def write_cambridge_root(root: Path, names: tuple[str, ...], num_frames: int = 10, metres: float = 20.0) -> Path:
    """Camera centres tens of metres apart; the files hold them with the rotation from world to camera."""
    for seed, name in enumerate(names):
        pattern = wall(100 + seed)
        for split, numbers in SEQUENCES.items():
            lines = ["Visual Landmark Dataset V1", "ImageFile, Camera Position [X Y Z W P Q R]", ""]
            for number in numbers:
                sequence = root / name / f"seq{number}"
                sequence.mkdir(parents=True)
                centres, rotations = walk(seed, number, num_frames, metres)
                for frame in range(num_frames):
                    file = f"frame{frame + 1:05d}.png"
                    photo(pattern, centres[frame], rotations[frame].as_rotvec(), metres).save(sequence / file)
                    x, y, z, w = rotations[frame].inv().as_quat()
                    numbers_of_line = " ".join(repr(float(value)) for value in (*centres[frame], w, x, y, z))
                    lines.append(f"seq{number}/{file} {numbers_of_line}")
            (root / name / f"dataset_{split.lower()}.txt").write_text("\n".join(lines) + "\n")
    return root
