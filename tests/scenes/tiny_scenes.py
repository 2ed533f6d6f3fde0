"""A scene of four frames and a few kilobytes, written in every format without help from the package.

Two training frames in seq-01, two test frames in seq-02. Poses come from scipy and are converted here by the formulas
of each format, so a reader that misreads a convention disagrees with `FRAMES`.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

WIDTH, HEIGHT = 32, 24
FX, FY, CX, CY = 30.0, 31.0, 16.5, 11.5


@dataclass(frozen=True)
class TinyFrame:
    name: str
    R_world_cam: np.ndarray
    centre: np.ndarray
    split: str

    @property
    def sequence(self) -> str:
        return self.name.split("/")[0]

    @property
    def matrix(self) -> np.ndarray:
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.R_world_cam, self.centre
        return matrix

    @property
    def view_direction(self) -> np.ndarray:
        """Where the camera looks, in the world: OpenCV cameras look along +Z."""
        return self.R_world_cam @ [0.0, 0.0, 1.0]


def _frame(name: str, rotvec: list[float], centre: list[float], split: str) -> TinyFrame:
    return TinyFrame(name, Rotation.from_rotvec(rotvec).as_matrix(), np.array(centre), split)


FRAMES = (
    _frame("seq-01/frame-000000.color.png", [0.3, -1.2, 0.4], [0.5, -1.0, 2.0], "train"),
    _frame("seq-01/frame-000001.color.png", [2.0, 0.1, -1.5], [1.5, 0.25, -3.0], "train"),
    _frame("seq-02/frame-000000.color.png", [0.0, 3.1, 0.2], [-2.0, 0.0, 1.0], "test"),
    _frame("seq-02/frame-000001.color.png", [0.0, 0.0, 0.0], [0.0, 4.0, 0.125], "test"),
)


def write_photo(path: Path, seed: int = 0, size_wh: tuple[int, int] = (WIDTH, HEIGHT), **save_options: object) -> None:
    width, height = size_wh
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **save_options)


def write_photos(folder: Path) -> None:
    for seed, frame in enumerate(FRAMES):
        write_photo(folder / frame.name, seed)


def numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in np.ravel(values))


def write_seven_scenes(root: Path) -> None:
    write_photos(root)
    for seed, frame in enumerate(FRAMES):
        stem = frame.name.removesuffix(".color.png")
        (root / f"{stem}.pose.txt").write_text("".join(f"{numbers(row)}\n" for row in frame.matrix))
        depth = np.random.default_rng(seed).integers(1, 5000, (HEIGHT, WIDTH), dtype=np.uint16)
        depth[0, :2] = [0, 65535]
        Image.fromarray(depth).save(root / f"{stem}.depth.png")
    (root / "TrainSplit.txt").write_text("sequence1\n")
    (root / "TestSplit.txt").write_text("sequence2\n")
    (root / "camera.txt").write_text(f"PINHOLE {WIDTH} {HEIGHT} {FX} {FY} {CX} {CY}\n")


def write_zipped_seven_scenes(root: Path) -> None:
    """seq-01.zip with its files under seq-01/, seq-02.zip with its files at the top: both are found in the wild."""
    write_seven_scenes(root)
    for sequence, folder_in_zip in (("seq-01", "seq-01/"), ("seq-02", "")):
        with zipfile.ZipFile(root / f"{sequence}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((root / sequence).iterdir()):
                archive.write(path, f"{folder_in_zip}{path.name}")
                path.unlink()
        (root / sequence).rmdir()


def write_cambridge(root: Path) -> None:
    write_photos(root)
    for split in ("train", "test"):
        lines = ["Visual Landmark Dataset V1", "ImageFile, Camera Position [X Y Z W P Q R]", ""]
        for frame in FRAMES:
            if frame.split == split:
                x, y, z, w = Rotation.from_matrix(frame.R_world_cam.T).as_quat()
                lines.append(f"{frame.name} {numbers(frame.centre)} {numbers(np.array([w, x, y, z]))}")
        (root / f"dataset_{split}.txt").write_text("\n".join(lines) + "\n")


def write_poses_csv(root: Path) -> None:
    write_photos(root / "photos")
    lines = ["# camera axes: right down forward", "# direction: world_from_camera", "# photos: photos"]
    lines.append("name,tx,ty,tz,qw,qx,qy,qz,fx,fy,cx,cy,split")
    for frame in FRAMES:
        x, y, z, w = Rotation.from_matrix(frame.R_world_cam).as_quat()
        values = [*frame.centre, w, x, y, z, FX, FY, CX, CY]
        lines.append(",".join([frame.name, *(repr(float(value)) for value in values), frame.split]))
    (root / "poses.csv").write_text("\n".join(lines) + "\n")


def write_poses_csv_with_matrices(root: Path) -> None:
    write_photos(root / "photos")
    columns = [f"m{row}{column}" for row in range(4) for column in range(4)]
    lines = ["# camera axes: opencv", "# direction: camera_from_world", "# photos: photos"]
    lines.append(",".join(["name", *columns, "split"]))
    for frame in FRAMES:
        values = np.linalg.inv(frame.matrix).ravel()
        lines.append(",".join([frame.name, *(repr(float(value)) for value in values), frame.split]))
    (root / "poses.csv").write_text("\n".join(lines) + "\n")


def _write_splits(root: Path) -> None:
    for split in ("train", "test"):
        (root / f"{split}.txt").write_text("".join(f"{frame.name}\n" for frame in FRAMES if frame.split == split))


def write_colmap_text(root: Path) -> None:
    write_photos(root / "images")
    _write_splits(root)
    model = root / "sparse" / "0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text(f"# cameras\n1 PINHOLE {WIDTH} {HEIGHT} {FX} {FY} {CX} {CY}\n")
    lines = ["# images, two lines each"]
    for image_id, frame in enumerate(FRAMES, start=1):
        x, y, z, w = Rotation.from_matrix(frame.R_world_cam.T).as_quat()
        translation = -frame.R_world_cam.T @ frame.centre
        lines += [f"{image_id} {numbers(np.array([w, x, y, z]))} {numbers(translation)} 1 {frame.name}", ""]
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    (model / "points3D.txt").write_text("# points\n")


def write_colmap_binary(root: Path) -> None:
    write_colmap_text(root)
    model = root / "sparse" / "0"
    for name in ("cameras", "images", "points3D"):
        (model / f"{name}.txt").unlink()
    pinhole = 1
    (model / "cameras.bin").write_bytes(
        struct.pack("<Q", 1) + struct.pack("<iiQQ4d", 1, pinhole, WIDTH, HEIGHT, FX, FY, CX, CY)
    )
    data = struct.pack("<Q", len(FRAMES))
    for image_id, frame in enumerate(FRAMES, start=1):
        x, y, z, w = Rotation.from_matrix(frame.R_world_cam.T).as_quat()
        translation = -frame.R_world_cam.T @ frame.centre
        data += struct.pack("<I7dI", image_id, w, x, y, z, *translation, 1)
        data += frame.name.encode() + b"\0" + struct.pack("<Q", 0)
    (model / "images.bin").write_bytes(data)
    (model / "points3D.bin").write_bytes(struct.pack("<Q", 0))


def write_tum(root: Path) -> None:
    write_photos(root / "rgb")
    _write_splits(root)
    rgb, groundtruth = ["# timestamp filename"], ["# timestamp tx ty tz qx qy qz qw"]
    for index, frame in enumerate(FRAMES):
        rgb.append(f"{100 + index / 30:.6f} rgb/{frame.name}")
        quat_xyzw = Rotation.from_matrix(frame.R_world_cam).as_quat()
        groundtruth.append(f"{100 + index / 30:.6f} {numbers(frame.centre)} {numbers(quat_xyzw)}")
    (root / "rgb.txt").write_text("\n".join(rgb) + "\n")
    (root / "groundtruth.txt").write_text("\n".join(groundtruth) + "\n")


def write_transforms_json(root: Path) -> None:
    write_photos(root / "images")
    frames = []
    for frame in FRAMES:
        # OpenGL cameras have y up and look along -z: the second and third axes point the other way.
        matrix = frame.matrix @ np.diag([1.0, -1.0, -1.0, 1.0])
        frames.append({"file_path": f"images/{frame.name}", "transform_matrix": matrix.tolist()})
    names = {split: [f"images/{frame.name}" for frame in FRAMES if frame.split == split] for split in ("train", "test")}
    intrinsics = {"w": WIDTH, "h": HEIGHT, "fl_x": FX, "fl_y": FY, "cx": CX, "cy": CY}
    text = json.dumps(
        {**intrinsics, "frames": frames, "train_filenames": names["train"], "test_filenames": names["test"]}, indent=1
    )
    (root / "transforms.json").write_text(text)


WRITERS: dict[str, Callable[[Path], None]] = {
    "7scenes": write_seven_scenes,
    "7scenes zipped": write_zipped_seven_scenes,
    "cambridge": write_cambridge,
    "poses.csv": write_poses_csv,
    "poses.csv matrices": write_poses_csv_with_matrices,
    "colmap text": write_colmap_text,
    "colmap binary": write_colmap_binary,
    "tum": write_tum,
    "transforms.json": write_transforms_json,
}
"""What writes the tiny scene into an empty folder, by format and variant."""


def png_bomb(width: int = 100_000, height: int = 100_000) -> bytes:
    """A valid PNG header that announces ten gigapixels, in a hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")
    )
