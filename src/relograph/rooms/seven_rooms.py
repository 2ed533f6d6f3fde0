"""SevenRooms: rooms on disk in the 7-Scenes layout, walked three times each.

The same seed gives the same rooms and walks at both sizes: `small` has every tenth pose of `full`, at half the
resolution.
"""

import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, multiprocessing

from relograph.environment import num_cores
from relograph.errors import ConfigError, DatasetError, RelographError
from relograph.geometry import Camera, Pose
from relograph.processes import start_worker
from relograph.progress import SILENT, Progress
from relograph.rooms.layout import Home, LayoutConfig, make_home, to_tensors
from relograph.rooms.photograph import Darkroom, Effects, Optics, photograph, random_optics
from relograph.rooms.textures import TextureAtlas, check_seed, make_atlas, photograph_files
from relograph.rooms.walks import Walk, views_of, walk
from relograph.rooms.world import Rooms, Views
from relograph.scenes.camera_models import camera_line
from relograph.scenes.frame import FileSource
from relograph.scenes.writing import exact, writing_folder

LAYOUT = LayoutConfig(num_boxes=56, num_cylinders=16, max_rooms=2)
STEPS_PER_WALK = 1000
SEQUENCES = {"seq-01": "Train", "seq-02": "Train", "seq-03": "Test"}
SHUTTER_S = 1 / 80
FRAMES_PER_JOB = 5
FRAMES_PER_GPU_BATCH = 50
RECIPE_FILE = "room.json"
RECIPE_VERSION = 2
"""Raised whenever the same seed would give other images, so that old folders are not taken for new ones."""


@dataclass(frozen=True)
class RecordingSize:
    """How much of a walk is kept."""

    height: int
    width: int
    every: int


SIZES = {"small": RecordingSize(240, 320, every=10), "full": RecordingSize(480, 640, every=1)}


@dataclass(frozen=True)
class Recording:
    """One sequence of one room, ready to be photographed."""

    sequence: str
    rooms: Rooms
    views: Views
    optics: Optics
    T_world_cam: Pose
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.views.center)


def room_camera(seed: int, room: int, size: RecordingSize) -> Camera:
    """The phone that a room was filmed with."""
    rng = np.random.default_rng([seed, room, 1])
    focal_px = rng.uniform(0.78, 0.92) * size.width
    distortion = (rng.uniform(-0.02, 0.04), rng.uniform(-0.01, 0.01), 0.0, 0.0)
    return Camera(
        size.width,
        size.height,
        focal_px,
        focal_px,
        size.width / 2,
        size.height / 2,
        distortion=distortion,
        model="opencv",
    )


def pose_of(path: Walk) -> Pose:
    """T_room_cam along a walk, in float64."""
    return Pose.from_rotation_and_translation(path.R_room_cam, path.center)


def optics_of_walk(path: Walk, camera: Camera, generator: torch.Generator) -> Optics:
    """One light for the whole walk, an exposure that drifts, and blur from how the camera turns."""
    count = len(path.center)
    optics = random_optics(count, camera.width, generator)
    longest = 0.015 * camera.width  # frames with more smear than this people throw away
    turning = torch.from_numpy(path.angular_velocity()).float()
    drift = torch.cumsum(torch.randn(count, generator=generator), dim=0) * 0.004
    return replace(
        optics,
        light_gain=optics.light_gain[:1].expand(count, -1),
        exposure=torch.exp(drift.clamp(-0.4, 0.4)),
        white_balance=optics.white_balance[:1].expand(count, -1),
        vignetting=optics.vignetting[:1].expand(count),
        motion_px=(torch.stack([-turning[:, 1], turning[:, 0]], dim=1) * camera.fx * SHUTTER_S).clamp(
            -longest, longest
        ),
        focus_m=torch.full((count,), 2.0),
        blur_px=optics.blur_px[:1].expand(count) * 0.5,
        noise=optics.noise[:1].expand(count),
    )


def make_room_home(seed: int, room: int, range_by_family: dict[str, range]) -> Home:
    """The home of room number `room`."""
    return make_home(int(np.random.default_rng([seed, room]).integers(2**31)), range_by_family, LAYOUT)


def make_recording(home: Home, seed: int, room: int, sequence: str, size: RecordingSize) -> Recording:
    """A sequence of a room; the world frame is the first camera of the first training sequence."""
    path = walk(home, np.random.default_rng([seed, room, 2, list(SEQUENCES).index(sequence)]), STEPS_PER_WALK)
    generator = torch.Generator().manual_seed(
        int(np.random.default_rng([seed, room, 3, int(sequence[-2:])]).integers(2**31))
    )
    return record(
        home, sequence, path, room_camera(seed, room, size), size.every, world_of(home, seed, room), generator
    )


def world_of(home: Home, seed: int, room: int) -> Pose:
    """T_world_room: the world frame of a room is its first camera."""
    first_walk = walk(home, np.random.default_rng([seed, room, 2, 0]), STEPS_PER_WALK)
    return pose_of(first_walk)[0].inverse()


def record(
    home: Home, sequence: str, path: Walk, camera: Camera, every: int, T_world_room: Pose, generator: torch.Generator
) -> Recording:
    """Every so many-th step of a walk, ready to be photographed."""
    kept = slice(None, None, every)
    views = views_of(
        path.center,
        path.R_room_cam,
        np.full(len(path.center), camera.fx),
        np.tile(camera.distortion[:2], (len(path.center), 1)),
        camera.height,
        camera.width,
    )
    return Recording(
        sequence,
        to_tensors(home, LAYOUT),
        views[kept],
        optics_of_walk(path, camera, generator)[kept],
        (T_world_room @ pose_of(path))[kept],
        camera.height,
        camera.width,
    )


def take_photos(
    recording: Recording, frames: range, atlas: TextureAtlas, darkroom: Darkroom
) -> tuple[UInt8[Tensor, "n H W 3"], Float[Tensor, "n H W"]]:
    """Photographs and depths in metres of some frames, on the device of the atlas."""
    device, some = atlas.texels.device, slice(frames.start, frames.stop)
    images, depth_m = photograph(
        recording.rooms[torch.zeros(len(frames), dtype=torch.long)].to(device),
        recording.views[some].to(device),
        atlas,
        recording.optics[some].to(device),
        num_boxes=LAYOUT.num_boxes,
        height=recording.height,
        width=recording.width,
        effects=Effects(),
        darkroom=darkroom,
    )
    return images.permute(0, 2, 3, 1), depth_m


def write_frame(
    folder: Path, frame: int, image: UInt8[np.ndarray, "H W 3"], depth_m: Float[np.ndarray, "H W"], T_world_cam: Pose
) -> None:
    """The three files of a frame in the 7-Scenes layout: colour, depth in millimetres, pose."""
    stem = folder / f"frame-{frame:06d}"
    Image.fromarray(image).save(f"{stem}.color.png", compress_level=1)
    millimetres = np.clip(np.round(depth_m * 1000), 0, 65535).astype(np.uint16)
    Image.fromarray(millimetres).save(f"{stem}.depth.png", compress_level=1)
    rows = T_world_cam.matrix().tolist()
    Path(f"{stem}.pose.txt").write_text("".join(exact(row) + "\n" for row in rows))


@dataclass(frozen=True)
class Job:
    """A few frames for one process to render and write."""

    folder: Path
    seed: int
    room: int
    size: RecordingSize
    sequence: str
    frames: range


class Studio:
    """What a process keeps between jobs: the textures, and the recording it worked on last."""

    def __init__(self, atlas: TextureAtlas) -> None:
        self.atlas = atlas
        self.darkroom = Darkroom.on(atlas.texels.device)
        self._last: tuple[tuple[int, int, str, RecordingSize], Recording] | None = None

    def recording(self, job: Job) -> Recording:
        """The recording of a job; making one takes longer than rendering a frame, so the last one is kept."""
        key = (job.seed, job.room, job.sequence, job.size)
        if self._last is None or self._last[0] != key:
            home = make_room_home(job.seed, job.room, self.atlas.range_by_family)
            self._last = (key, make_recording(home, job.seed, job.room, job.sequence, job.size))
        return self._last[1]

    def take(self, job: Job) -> list[Callable[[], None]]:
        """Render the frames of a job; what writes each of them."""
        recording = self.recording(job)
        images, depth_m = (
            pixels.cpu().numpy() for pixels in take_photos(recording, job.frames, self.atlas, self.darkroom)
        )
        return [
            functools.partial(
                write_frame, job.folder / job.sequence, frame, images[i], depth_m[i], recording.T_world_cam[frame]
            )
            for i, frame in enumerate(job.frames)
        ]

    def do(self, job: Job) -> int:
        """Render and write the frames of a job; how many there were."""
        frames = self.take(job)
        for write in frames:
            write()
        return len(frames)

    def do_overlapped(self, jobs: Iterable[Job], writers: int) -> Generator[int, None, None]:
        """Do jobs, writing the frames of one while those of the next are rendered; how many were written meanwhile.

        The pixels of two jobs at most are in memory. Whatever ends it, an error or its caller, no frame is written
        after it has ended.
        """
        # Threads, not processes: compressing a PNG holds no lock of Python's, and pixels need not be copied over.
        pool = ThreadPoolExecutor(writers, thread_name_prefix="room-writer")
        before: list[Future[None]] = []
        try:
            for job in jobs:
                now = [pool.submit(write) for write in self.take(job)]
                yield _all_done(before)
                before = now
            yield _all_done(before)
        finally:
            pool.shutdown(cancel_futures=True)


def _all_done(futures: list[Future[None]]) -> int:
    """Wait for all of them and raise the first error; how many there were."""
    for future in futures:
        future.result()
    return len(futures)


_studio: Studio | None = None


def _open_studio(atlas: TextureAtlas) -> None:
    """What a worker process does first."""
    global _studio
    torch.set_num_threads(1)
    start_worker()
    _studio = Studio(atlas)


def _do_in_worker(job: Job) -> int:
    assert _studio is not None
    return _studio.do(job)


def jobs_of_room(folder: Path, seed: int, room: int, size: RecordingSize, frames_per_job: int) -> list[Job]:
    """All frames of a room, cut into jobs."""
    count = len(range(0, STEPS_PER_WALK, size.every))
    return [
        Job(folder, seed, room, size, sequence, range(start, min(start + frames_per_job, count)))
        for sequence in SEQUENCES
        for start in range(0, count, frames_per_job)
    ]


@contextmanager
def studios(atlas: TextureAtlas, workers: int) -> Iterator[Callable[[list[Job]], Generator[int, None, None]]]:
    """What does jobs and gives the number of frames of each as it is done, in this process or in several."""
    if atlas.texels.is_cuda:
        studio = Studio(atlas)
        yield lambda jobs: studio.do_overlapped(jobs, num_cores())
        return
    if workers == 1:
        studio = Studio(atlas)
        yield lambda jobs: (studio.do(job) for job in jobs)
        return
    # Fresh processes, not forks: a fork of a process whose torch has threads can hang. Torch's own context hands the
    # textures over in shared memory.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_open_studio, initargs=(atlas,))
    try:
        yield lambda jobs: (count for count in executor.map(_do_in_worker, jobs))
    except BrokenProcessPool as error:
        raise RelographError(
            "a process that rendered rooms was ended from outside, as a machine short of memory does. "
            "Run the command again with fewer --workers; rooms that are finished are kept."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def is_finished(folder: Path, recipe: Mapping[str, object]) -> bool:
    """Whether this very room is there already; another one in its place is an error."""
    if not folder.exists():
        return False
    try:
        found = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{folder}: expected nothing, or a room that this command made, found a folder without a readable "
            f"{RECIPE_FILE}. Choose another folder."
        ) from error
    if found != recipe:
        raise DatasetError(
            f"{folder}: expected a room made with {json.dumps(recipe)}, found one made with {json.dumps(found)}. "
            "Choose another folder, or repeat its options."
        )
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove what killed runs left of a room: partial folders in which nothing was written for ten minutes."""
    for partial in folder.parent.glob(f"{folder.name}.partial-*"):
        last_written_s = max(part.stat().st_mtime for part in (partial, *partial.glob("seq-*")))
        if time.time() - last_written_s > 600:
            shutil.rmtree(partial)


def sha256_of_files(files: list[FileSource]) -> str:
    """One hash of all contents, in this order."""
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def check_number_of_rooms(num_rooms: int) -> None:
    """Raise where there would be nothing to make."""
    if num_rooms < 1:
        raise ConfigError(f"the number of rooms must be at least 1, got {num_rooms}.")


def create_seven_rooms(
    directory: Path,
    *,
    num_rooms: int = 7,
    size: str = "small",
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    textures: Path | None = None,
    progress: Progress = SILENT,
) -> None:
    """Write `room-1`, `room-2`, ... into a folder; a room that is there already, made alike, is kept as it is."""
    if size not in SIZES:
        raise ConfigError(f"size must be one of {', '.join(SIZES)}, got {size!r}.")
    check_number_of_rooms(num_rooms)
    check_seed(seed)
    atlas_sha256 = None if textures is None else sha256_of_files(photograph_files(textures))
    recipes = {
        directory / f"room-{room + 1}": {
            "version": RECIPE_VERSION,
            "seed": seed,
            "room": room + 1,
            "size": size,
            "textures_sha256": atlas_sha256,
        }
        for room in range(num_rooms)
    }
    missing = [folder for folder, recipe in recipes.items() if not is_finished(folder, recipe)]
    if not missing:
        return
    atlas = make_atlas(seed, photographs=textures, progress=progress).to(device)
    frames_per_job = FRAMES_PER_JOB if device == "cpu" else FRAMES_PER_GPU_BATCH
    total = len(missing) * len(SEQUENCES) * len(range(0, STEPS_PER_WALK, SIZES[size].every))
    workers = min(workers or num_cores(), total)
    with studios(atlas, workers) as do, progress.task("rendering rooms", total=total) as advance:
        for folder in missing:
            room = int(folder.name.removeprefix("room-")) - 1
            remove_abandoned(folder)
            with writing_folder(folder) as partial:
                for sequence in SEQUENCES:
                    (partial / sequence).mkdir()
                for split in ("Train", "Test"):
                    names = [f"sequence{int(name[-2:])}\n" for name, of in SEQUENCES.items() if of == split]
                    (partial / f"{split}Split.txt").write_text("".join(names))
                (partial / "camera.txt").write_text(camera_line(room_camera(seed, room, SIZES[size])) + "\n")
                jobs = jobs_of_room(partial, seed, room, SIZES[size], frames_per_job)
                with closing(do(jobs)) as counts:  # so that nobody writes any more where the folder is removed
                    for count in counts:
                        advance(count)
                (partial / RECIPE_FILE).write_text(json.dumps(recipes[folder], indent=1) + "\n", encoding="utf-8")
