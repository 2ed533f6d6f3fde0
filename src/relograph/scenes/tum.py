"""TUM RGB-D: photos, depth maps and a trajectory, each with its own clock ticks.

    desk/rgb.txt              timestamp rgb/1305031102.175304.png
    desk/depth.txt            timestamp depth/1305031102.160407.png, optional; 16 bits, 5000 for a metre, 0 is unknown
    desk/groundtruth.txt      timestamp tx ty tz qx qy qz qw: camera to world, metres, OpenCV axes
    desk/camera.txt           ours, optional: intrinsics in COLMAP's notation, `PINHOLE 640 480 525 525 319.5 239.5`
    desk/train.txt, test.txt  ours, optional: a frame's name a line

A photo takes the pose and the depth map that are nearest in time and less than 0.02 s away; each is taken once, the
closest pair first. A `camera.txt` in a folder of photos holds for that folder, and `0001.png.camera.txt` for the photo
0001.png; the closest one holds. Without them the intrinsics are unknown: the data set's cameras differ.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.progress import SILENT, Progress
from relograph.scenes.camera_models import camera_line, parse_camera_file
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.names import (
    is_file,
    parse_float,
    parse_floats,
    pose_from_quat_wxyz,
    read_text,
    safe_name,
    sequence_of,
)
from relograph.scenes.scene import Scene, SceneBuilder
from relograph.scenes.split_files import read_split_files, write_split_files
from relograph.scenes.writing import ImageMode, depth_name, exact, place_depth, place_image, writing_folder

FORMAT = "tum"

MAX_TIME_DIFFERENCE_S = 0.02
"""A pose or a depth map this far from a photo in time, or farther, does not belong to it."""
METRES_PER_DEPTH_UNIT = 1 / 5000
SECONDS_PER_FRAME = 1 / 30
"""Time between frames that are written without times of their own."""


def recognise(root: Path) -> bool:
    """Whether the folder has a list of photos and a trajectory by TUM's names."""
    return is_file(root / "rgb.txt") and is_file(root / "groundtruth.txt")


def read(root: Path, *, skip_bad_frames: bool = False) -> Scene:
    """The scene with all photos that have a pose, in the order of time."""
    builder = SceneBuilder(FORMAT, root, skip_bad_frames)
    photos = sorted(_read_file_list(root / "rgb.txt", builder), key=lambda photo: photo[0])
    depths = _read_file_list(root / "depth.txt", builder) if is_file(root / "depth.txt") else []
    poses = _read_trajectory(root / "groundtruth.txt", builder)
    times_s = [time_s for time_s, _ in photos]
    pose_by_photo = associate(times_s, [time_s for time_s, _ in poses])
    depth_by_photo = associate(times_s, [time_s for time_s, _ in depths])
    find_camera = _camera_finder(root)
    # "rgb/" is where the format keeps photos, no part of their names; unless some lie elsewhere.
    prefix = "rgb/" if all(path.startswith("rgb/") for _, path in photos) else ""
    for index, (time_s, path) in enumerate(photos):
        if index not in pose_by_photo:
            continue
        depth_path = depths[depth_by_photo[index]][1] if index in depth_by_photo else None
        name = path.removeprefix(prefix)
        with builder.frame():
            frame = Frame(
                name,
                T_world_cam=poses[pose_by_photo[index]][1],
                image=FileSource(root / path),
                camera=find_camera(path),
                depth=DepthSource(FileSource(root / depth_path), METRES_PER_DEPTH_UNIT, (0,)) if depth_path else None,
                sequence=sequence_of(name),
                timestamp_s=time_s,
            )
            builder.add(frame)
    builder.warnings += _describe_unmatched(photos, pose_by_photo, "pose", "were left out")
    if depths:
        builder.warnings += _describe_unmatched(photos, depth_by_photo, "depth map", "have none")
    read_split_files(root, builder)
    return builder.build()


def write(scene: Scene, destination: Path, *, images: ImageMode = "copy", progress: Progress = SILENT) -> None:
    """Writes the scene in the layout of TUM RGB-D, as a whole or not at all.

    The trajectory's times increase strictly, as tools expect: sequences that overlap in time are moved one after the
    other, and if any frame has no time all are written 1/30 s apart. Depth is unknown from 13.107 m on.
    """
    photo_lines, depth_lines, pose_lines = ["# timestamp filename"], ["# timestamp filename"], []
    for time_s, frame in zip(_increasing_times_s(scene), scene, strict=True):
        time_text = exact([time_s])
        photo_lines.append(f"{time_text} rgb/{frame.name}")
        if frame.depth is not None and images != "none":
            depth_lines.append(f"{time_text} depth/{depth_name(frame)}")
        pose_lines.append(
            f"{time_text} {exact([*frame.T_world_cam.t.tolist(), *frame.T_world_cam.quat_xyzw().tolist()])}"
        )

    with writing_folder(destination) as folder, progress.task("writing TUM RGB-D", total=len(scene)) as advance:
        _write_lines(folder / "rgb.txt", photo_lines)
        if len(depth_lines) > 1:
            _write_lines(folder / "depth.txt", depth_lines)
        _write_lines(folder / "groundtruth.txt", ["# timestamp tx ty tz qx qy qz qw", *pose_lines])
        for path, camera in _camera_files(scene).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            _write_lines(folder / path, [camera_line(camera)])
        write_split_files(folder, scene)
        for frame in scene:
            place_image(frame, folder / "rgb" / frame.name, images)
            place_depth(frame, folder / "depth" / depth_name(frame), images, METRES_PER_DEPTH_UNIT)
            advance(1)


def associate(times_s: Sequence[float], other_times_s: Sequence[float]) -> dict[int, int]:
    """For indices into `times_s` the index of their partner in `other_times_s`, less than 0.02 s away.

    The closest pair is made first, and nobody has two partners; who is left without one is not in the answer.

    Example:
        >>> associate([1.000, 2.000, 2.015], [2.010, 0.995, 3.0])
        {0: 1, 2: 0}
    """
    by_time = sorted(range(len(other_times_s)), key=other_times_s.__getitem__)
    sorted_times_s = [other_times_s[index] for index in by_time]
    candidates = []
    for index, time_s in enumerate(times_s):
        first = bisect_left(sorted_times_s, time_s - MAX_TIME_DIFFERENCE_S)
        last = bisect_right(sorted_times_s, time_s + MAX_TIME_DIFFERENCE_S)
        for position in range(first, last):
            difference_s = abs(sorted_times_s[position] - time_s)
            if difference_s < MAX_TIME_DIFFERENCE_S:
                candidates.append((difference_s, index, position))
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, index, position in sorted(candidates):
        if index not in partner and position not in taken:
            partner[index] = by_time[position]
            taken.add(position)
    return dict(sorted(partner.items()))


# Reading


def _data_lines(path: Path) -> list[tuple[str, str]]:
    """Where each line that is no comment stands, and the line."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [
        (f"{path} line {number}", line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")
    ]


def _read_file_list(path: Path, builder: SceneBuilder) -> list[tuple[float, str]]:
    """Times in seconds, and files relative to the scene's folder."""
    files = []
    for where, line in _data_lines(path):
        with builder.frame():
            fields = line.split(maxsplit=1)
            if len(fields) != 2:
                raise DatasetError(f"{where}: expected a time and a file name, found {line[:60]!r}. Correct the line.")
            files.append((parse_float(fields[0], where), safe_name(fields[1].strip(), where)))
    return files


def _read_trajectory(path: Path, builder: SceneBuilder) -> list[tuple[float, Pose]]:
    """Times in seconds, and poses T_world_cam."""
    poses = []
    for where, line in _data_lines(path):
        with builder.frame():
            time_s, tx, ty, tz, qx, qy, qz, qw = parse_floats(line, 8, where)
            poses.append((time_s, pose_from_quat_wxyz((qw, qx, qy, qz), (tx, ty, tz), where)))
    return poses


def _describe_unmatched(
    photos: Sequence[tuple[float, str]], partner: dict[int, int], what: str, consequence: str
) -> list[str]:
    """One sentence about the photos without a partner, or none."""
    unmatched = [path for index, (_, path) in enumerate(photos) if index not in partner]
    if not unmatched:
        return []
    return [
        f"{len(unmatched)} of {len(photos)} photos {consequence}, as no {what} is less than {MAX_TIME_DIFFERENCE_S} s "
        f"away: {unmatched[0]}{', ...' if len(unmatched) > 1 else ''}"
    ]


def _camera_finder(root: Path) -> Callable[[str], Camera | None]:
    @cache
    def read_camera(path: Path) -> Camera | None:
        return parse_camera_file(read_text(path), str(path)) if is_file(path) else None

    def find_camera(photo: str) -> Camera | None:
        path = root / photo
        for place in (path.with_name(f"{path.name}.camera.txt"), path.with_name("camera.txt"), root / "camera.txt"):
            camera = read_camera(place)
            if camera is not None:
                return camera
        return None

    return find_camera


# Writing


def _increasing_times_s(scene: Scene) -> list[float]:
    own_times_s = [frame.timestamp_s for frame in scene if frame.timestamp_s is not None]
    if len(own_times_s) < len(scene):
        return [index * SECONDS_PER_FRAME for index in range(len(scene))]
    times_s: list[float] = []
    shift_s = 0.0
    for time_s in own_times_s:
        if times_s and time_s + shift_s <= times_s[-1]:
            shift_s = times_s[-1] + SECONDS_PER_FRAME - time_s
        times_s.append(time_s + shift_s)
    return times_s


def _camera_files(scene: Scene) -> dict[str, Camera]:
    """The camera files to write, by their path in the scene's folder: one if all frames share a camera."""
    if len({frame.camera for frame in scene}) == 1:
        return {"camera.txt": camera} if (camera := scene[0].camera) is not None else {}
    cameras_by_folder: dict[PurePosixPath, set[Camera | None]] = {}
    for frame in scene:
        cameras_by_folder.setdefault(PurePosixPath("rgb", frame.name).parent, set()).add(frame.camera)
    files = {}
    for frame in scene:
        path = PurePosixPath("rgb", frame.name)
        if frame.camera is not None:
            shared = len(cameras_by_folder[path.parent]) == 1
            files[f"{path.parent}/camera.txt" if shared else f"{path}.camera.txt"] = frame.camera
    return files


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
