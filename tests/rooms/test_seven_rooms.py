"""SevenRooms on disk: the 7-Scenes layout, exact numbers, and nothing half-made under a final name."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from scipy.spatial import cKDTree
from tiny_rooms import HEIGHT, WIDTH

from relograph import open_scene
from relograph.errors import ConfigError, DatasetError, RelographError
from relograph.geometry import pose_error
from relograph.rooms import create_seven_rooms, seven_rooms, textures
from relograph.rooms.raycast import Kernels, first_hits, pixel_centers, ray_directions
from relograph.rooms.seven_rooms import (
    LAYOUT,
    SIZES,
    Job,
    RecordingSize,
    Studio,
    jobs_of_room,
    make_recording,
    make_room_home,
    room_camera,
    studios,
)
from relograph.rooms.textures import FAMILY_SIZES, TextureAtlas
from relograph.rooms.world import Views
from relograph.scenes.converting import convert

PROMISED = dict(SIZES)
TINY = RecordingSize(HEIGHT, WIDTH, every=500)
"""Two frames a sequence."""
SEED = 5
SEQUENCES = ("seq-01", "seq-02", "seq-03")

# What the tests make smaller, for a process of its own; it dies in the midst of the second room.
DYING_PROCESS = f"""
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from relograph.rooms import create_seven_rooms, seven_rooms, textures

seven_rooms.SIZES["small"] = seven_rooms.RecordingSize({HEIGHT}, {WIDTH}, every=500)
textures.FAMILY_SIZES.update(dict.fromkeys(textures.FAMILY_SIZES, 1))

class Dying:
    done = 0

    @contextmanager
    def task(self, description, total):
        yield self.advance if description == "rendering rooms" else lambda steps: None

    def advance(self, frames):
        self.done += frames
        if self.done == 8:  # six frames are the first room
            os.kill(os.getpid(), signal.SIGKILL)

create_seven_rooms(Path(sys.argv[1]), num_rooms=2, seed={SEED}, workers=1, progress=Dying())
"""


@pytest.fixture(scope="module", autouse=True)
def tiny_recordings():
    """Small images, few of them, and few textures: the same code in a fraction of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "small", TINY)
        patch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))
        yield


@pytest.fixture(scope="module")
def rooms_folder(tmp_path_factory, tiny_recordings) -> Path:
    """Two rooms; tests only look at them."""
    folder = tmp_path_factory.mktemp("rooms") / "seven"
    create_seven_rooms(folder, num_rooms=2, seed=SEED, workers=1)
    return folder


@pytest.fixture(scope="module")
def home():
    one_texture_each = {family: range(idx, idx + 1) for idx, family in enumerate(FAMILY_SIZES)}
    return make_room_home(SEED, 0, one_texture_each)


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file under a folder, by its name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# The layout


def test_a_room_has_the_files_of_seven_scenes(rooms_folder):
    room = rooms_folder / "room-1"
    assert (room / "TrainSplit.txt").read_text() == "sequence1\nsequence2\n"
    assert (room / "TestSplit.txt").read_text() == "sequence3\n"
    for sequence in SEQUENCES:
        names = sorted(path.name for path in (room / sequence).iterdir())
        assert names == [
            f"frame-{frame:06d}.{kind}" for frame in range(2) for kind in ("color.png", "depth.png", "pose.txt")
        ]
    with Image.open(room / "seq-01/frame-000000.color.png") as color:
        assert (color.size, color.mode) == ((WIDTH, HEIGHT), "RGB")
    with Image.open(room / "seq-01/frame-000000.depth.png") as depth:
        assert (depth.size, depth.mode) == ((WIDTH, HEIGHT), "I;16")


def test_a_room_opens_as_seven_scenes_with_splits_and_camera(rooms_folder):
    scene = open_scene(rooms_folder / "room-1")
    assert scene.format == "7scenes"
    assert scene.warnings == ()
    assert (len(scene.train), len(scene.test)) == (4, 2)
    assert set(scene.sequences) == set(SEQUENCES)
    assert scene[0].camera == room_camera(SEED, 0, TINY)
    assert scene[0].read_image().shape == (HEIGHT, WIDTH, 3)


def test_the_world_frame_is_the_first_training_camera(rooms_folder):
    for room in ("room-1", "room-2"):
        first = open_scene(rooms_folder / room)["seq-01/frame-000000.color.png"]
        assert_allclose(first.T_world_cam.matrix(), np.eye(4), atol=1e-12)


def test_poses_on_disk_are_those_of_the_walk_to_the_last_digit(rooms_folder, home):
    scene = open_scene(rooms_folder / "room-1")
    for sequence in SEQUENCES:
        recording = make_recording(home, SEED, 0, sequence, TINY)
        assert_allclose(scene.sequences[sequence].T_world_cam.matrix(), recording.T_world_cam.matrix(), atol=1e-12)


def test_depth_on_disk_agrees_with_rays_through_the_camera_on_disk(rooms_folder, home):
    # Everything but the room and its place in the world is read from disk.
    scene = open_scene(rooms_folder / "room-1")
    first = make_recording(home, SEED, 0, "seq-01", TINY)
    R_room_world, t_room_world = first.views.R_room_cam[0].double(), first.views.center[0].double()
    for frame in scene:
        camera = frame.camera
        assert camera is not None
        views = Views(
            (R_room_world @ frame.T_world_cam.R).float()[None],
            (R_room_world @ frame.T_world_cam.t + t_room_world).float()[None],
            torch.tensor([[camera.fx, camera.fy]]),
            torch.tensor([[camera.cx, camera.cy]]),
            torch.tensor([camera.distortion[:2]]),
        )
        directions = ray_directions(views, pixel_centers(HEIGHT, WIDTH))
        expected_m = first_hits(first.rooms, LAYOUT.num_boxes, views.center, directions, Kernels()).depth_m
        difference_m = np.abs(frame.read_depth_m() - expected_m.reshape(HEIGHT, WIDTH).numpy())
        # Half a millimetre of rounding; a ray that grazes an edge may miss it.
        assert (difference_m > 0.0006).mean() < 0.005


def test_photographs_show_something(rooms_folder):
    for room in ("room-1", "room-2"):
        for frame in open_scene(rooms_folder / room):
            pixels = frame.read_image()
            assert pixels.std() > 8
            assert 30 < pixels.mean() < 225


def test_rooms_and_sequences_differ(rooms_folder):
    photos = [
        open_scene(rooms_folder / room).sequences[sequence][1].read_image()
        for room in ("room-1", "room-2")
        for sequence in SEQUENCES
    ]
    for i, photo in enumerate(photos):
        assert all((photo != other).mean() > 0.5 for other in photos[:i])


@pytest.mark.parametrize("format", ["colmap", "tum", "transforms.json"])
def test_poses_survive_the_way_through_other_formats_and_back(rooms_folder, tmp_path, format):
    scene = open_scene(rooms_folder / "room-2")
    convert(scene, tmp_path / "there", format)
    convert(tmp_path / "there", tmp_path / "back", "7scenes")
    back = open_scene(tmp_path / "back")
    assert [frame.name for frame in back] == [frame.name for frame in scene]
    assert [frame.split for frame in back] == [frame.split for frame in scene]
    rotation_deg, translation_m = pose_error(scene.T_world_cam, back.T_world_cam)
    assert torch.deg2rad(rotation_deg).max() < 1e-6
    assert translation_m.max() < 1e-6


# Sizes


def test_small_is_every_tenth_pose_of_full_at_half_the_size(home):
    assert {"small": RecordingSize(240, 320, every=10), "full": RecordingSize(480, 640, every=1)} == PROMISED
    for sequence in ("seq-01", "seq-03"):
        small, full = (make_recording(home, SEED, 0, sequence, size) for size in PROMISED.values())
        assert (len(small), len(full)) == (100, 1000)
        assert_array_equal(small.T_world_cam.matrix(), full.T_world_cam[::10].matrix())
        assert_array_equal(small.optics.exposure, full.optics.exposure[::10])
        assert_array_equal(small.optics.light_gain, full.optics.light_gain[::10])
        assert_allclose(2 * small.optics.motion_px, full.optics.motion_px[::10], rtol=1e-5)
        assert_allclose(2 * small.views.focal_px, full.views.focal_px[::10], rtol=1e-6)


def test_the_three_walks_of_a_room_are_walked_separately_in_the_same_place(home):
    centers = [
        make_recording(home, SEED, 0, sequence, PROMISED["full"]).T_world_cam.t.numpy() for sequence in SEQUENCES
    ]
    assert np.abs(centers[0] - centers[1]).max() > 0.5
    # A test camera has a training camera nearby, or nobody could find its pose.
    nearest_m = cKDTree(np.concatenate(centers[:2])).query(centers[2])[0]
    assert np.median(nearest_m) < 0.7


def test_motion_blur_follows_the_turning_camera(home):
    recording = make_recording(home, SEED, 0, "seq-02", PROMISED["full"])
    R_world_cam = recording.T_world_cam.R
    # Where a far point straight ahead goes in the next image, times the share of a frame that the shutter is open.
    ahead_next = (R_world_cam[1:].mT @ R_world_cam[:-1, :, 2:])[..., 0]
    moved_px = recording.views.focal_px[:-1] * ahead_next[:, :2] / ahead_next[:, 2:]
    expected_px = moved_px * (seven_rooms.SHUTTER_S * 30)
    longest = 0.015 * recording.width
    free = expected_px.abs().amax(dim=1) < 0.8 * longest
    assert free.float().mean() > 0.5
    # Its sign does not matter to a blur, but the axes' signs relative to each other do.
    assert_allclose(recording.optics.motion_px[:-1][free], expected_px[free], atol=0.15)
    assert recording.optics.motion_px.abs().max() <= longest + 1e-4


# Creating


def test_a_second_call_keeps_what_is_there(rooms_folder):
    before = stamps(rooms_folder)
    create_seven_rooms(rooms_folder, num_rooms=2, seed=SEED, workers=1)
    assert stamps(rooms_folder) == before


@pytest.mark.parametrize("options", [{"seed": SEED + 1}, {"size": "full"}], ids=str)
def test_other_options_in_the_same_folder_are_refused_and_nothing_changes(rooms_folder, options):
    before = stamps(rooms_folder)
    with pytest.raises(DatasetError, match="room-1") as caught:
        create_seven_rooms(rooms_folder, **{"num_rooms": 2, "seed": SEED, "workers": 1, **options})
    assert "\n" not in str(caught.value)
    assert stamps(rooms_folder) == before


@pytest.mark.parametrize("recipe", [None, b"", b"not json", b"\xff\xfe", b"[]"], ids=str)
def test_a_folder_that_this_command_did_not_make_is_left_alone(tmp_path, recipe):
    (tmp_path / "room-1").mkdir()
    (tmp_path / "room-1/mine.txt").write_text("precious")
    if recipe is not None:
        (tmp_path / "room-1" / seven_rooms.RECIPE_FILE).write_bytes(recipe)
    before = contents(tmp_path)
    with pytest.raises(DatasetError, match="room-1") as caught:
        create_seven_rooms(tmp_path, num_rooms=1, workers=1)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_file_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "seven").write_text("a file")
    with pytest.raises(DatasetError, match="found a file") as caught:
        create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "seven").read_text() == "a file"


@pytest.mark.parametrize("options", [{"size": "huge"}, {"num_rooms": 0}, {"num_rooms": -3}, {"seed": -1}], ids=str)
def test_impossible_options_are_refused_before_anything_is_written(tmp_path, options):
    with pytest.raises(ConfigError) as caught:
        create_seven_rooms(tmp_path / "seven", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "seven").exists()


def test_photographs_on_the_walls_are_part_of_the_recipe(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(photos / "red.png")
    create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1, textures=photos)
    before = stamps(tmp_path / "seven")
    create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1, textures=photos)
    assert stamps(tmp_path / "seven") == before
    Image.new("RGB", (64, 64), (30, 30, 200)).save(photos / "red.png")  # another photo under the same name
    for other in (photos, None):
        with pytest.raises(DatasetError, match="room-1"):
            create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1, textures=other)


def test_a_missing_folder_of_photographs_is_one_clear_line(tmp_path):
    with pytest.raises(DatasetError, match="nowhere") as caught:
        create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1, textures=tmp_path / "nowhere")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "seven").exists()


def test_several_processes_write_the_same_bytes_as_one(rooms_folder, tmp_path):
    create_seven_rooms(tmp_path, num_rooms=1, seed=SEED, workers=2)
    assert contents(tmp_path / "room-1") == contents(rooms_folder / "room-1")


def test_a_kill_leaves_no_half_room_and_a_later_call_finishes(rooms_folder, tmp_path):
    folder = tmp_path / "seven"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", DYING_PROCESS, str(folder)], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (folder / "room-1").is_dir()
    assert not (folder / "room-2").exists()
    # Another process, the same bytes.
    assert contents(folder / "room-1") == contents(rooms_folder / "room-1")

    finished = stamps(folder / "room-1")
    create_seven_rooms(folder, num_rooms=2, seed=SEED, workers=1)
    assert stamps(folder / "room-1") == finished
    assert contents(folder / "room-2") == contents(rooms_folder / "room-2")


def test_an_error_in_the_midst_leaves_the_disk_as_it_was(tmp_path):
    class Interrupting:
        """Ctrl-C after the first frames."""

        def task(self, description: str, total: int):
            def interrupt(frames: int) -> None:
                raise KeyboardInterrupt

            return nullcontext(interrupt if description == "rendering rooms" else lambda steps: None)

    with pytest.raises(KeyboardInterrupt):
        create_seven_rooms(tmp_path / "seven", num_rooms=1, workers=1, progress=Interrupting())
    assert not (tmp_path / "seven").exists()


def test_progress_counts_every_frame_once(tmp_path):
    class Counting:
        total, done = 0, 0

        def task(self, description: str, total: int):
            if description != "rendering rooms":
                return nullcontext(lambda steps: None)
            self.total = total
            return nullcontext(self.advance)

        def advance(self, frames: int) -> None:
            self.done += frames

    progress = Counting()
    create_seven_rooms(tmp_path, num_rooms=1, seed=SEED, workers=1, progress=progress)
    assert progress.total == progress.done == 6
    assert json.loads((tmp_path / "room-1" / seven_rooms.RECIPE_FILE).read_text())["seed"] == SEED


def test_a_killed_worker_is_an_error_and_not_a_wait_for_ever(atlas: TextureAtlas, tmp_path: Path):
    jobs = jobs_of_room(tmp_path, seed=0, room=0, size=SIZES["small"], frames_per_job=1)

    def render_while_workers_are_killed() -> None:
        with studios(atlas, workers=2) as do:
            counts = do(jobs)
            for worker in multiprocessing.active_children():
                worker.kill()
            list(counts)

    with pytest.raises(RelographError, match="fewer --workers"):
        render_while_workers_are_killed()


# Rendering while writing, as on a GPU


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rooms are rendered and written at the same time; what renders is the CPU."""

    @contextmanager
    def studios_on_a_gpu(atlas: TextureAtlas, workers: int):
        studio = Studio(atlas)
        yield lambda jobs: studio.do_overlapped(jobs, writers=2)

    monkeypatch.setattr(seven_rooms, "studios", studios_on_a_gpu)


@pytest.fixture
def some_jobs(tmp_path: Path) -> list[Job]:
    """Six jobs of one frame, and the folders that they write into."""
    for sequence in SEQUENCES:
        (tmp_path / sequence).mkdir()
    return jobs_of_room(tmp_path, seed=0, room=0, size=TINY, frames_per_job=1)


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("room-writer")]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_writing_while_rendering_makes_the_same_files(rooms_folder, tmp_path):
    create_seven_rooms(tmp_path, num_rooms=1, seed=SEED)
    assert contents(tmp_path / "room-1") == contents(rooms_folder / "room-1")


def test_frames_are_rendered_while_those_before_are_written(atlas: TextureAtlas, some_jobs: list[Job]):
    pipe = some_jobs[0].folder / "seq-01/frame-000000.pose.txt"
    os.mkfifo(pipe)  # whoever writes to it waits until somebody reads
    read = []

    def jobs_that_read_once_the_second_is_asked_for() -> Iterator[Job]:
        yield some_jobs[0]
        read.append(pipe.read_text())
        yield some_jobs[1]

    def end_the_wait() -> None:
        read.append("nobody asked for the second job")
        pipe.read_text()

    rescue = threading.Timer(30, end_the_wait)
    rescue.start()
    counts = list(Studio(atlas).do_overlapped(jobs_that_read_once_the_second_is_asked_for(), writers=1))
    rescue.cancel()
    assert sum(counts) == 2
    assert [len(text.split()) for text in read] == [16]


def test_pixels_of_two_jobs_at_most_are_in_memory(atlas: TextureAtlas, some_jobs: list[Job]):
    asked_for, written = 0, 0

    def counted_jobs() -> Iterator[Job]:
        nonlocal asked_for
        for job in some_jobs:
            assert asked_for - written < 2
            asked_for += 1
            yield job

    for count in Studio(atlas).do_overlapped(counted_jobs(), writers=1):
        written += count
        assert len(list(some_jobs[0].folder.rglob("*.pose.txt"))) >= written
    assert written == len(some_jobs)


def test_an_error_of_a_writer_reaches_the_caller_and_writing_ends(atlas: TextureAtlas, some_jobs: list[Job]):
    shutil.rmtree(some_jobs[0].folder / "seq-02")
    counts = Studio(atlas).do_overlapped(some_jobs, writers=2)
    with pytest.raises(FileNotFoundError, match="seq-02"):
        list(counts)
    assert writers() == []
    assert not (some_jobs[0].folder / "seq-03/frame-000001.pose.txt").exists()


def test_nothing_is_written_after_the_caller_has_left(atlas: TextureAtlas, some_jobs: list[Job]):
    counts = Studio(atlas).do_overlapped(some_jobs, writers=2)
    next(counts)
    assert writers() != []
    counts.close()
    assert writers() == []


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("what_happens", ["the folder goes", "Ctrl-C"])
def test_an_error_while_writing_and_rendering_leaves_the_disk_as_it_was(tmp_path, what_happens):
    class Disturbing:
        def task(self, description: str, total: int):
            return nullcontext(self.disturb if description == "rendering rooms" else lambda steps: None)

        def disturb(self, frames: int) -> None:
            if what_happens == "Ctrl-C":
                raise KeyboardInterrupt
            for folder in tmp_path.rglob("seq-03"):
                shutil.rmtree(folder)

    with pytest.raises(KeyboardInterrupt if what_happens == "Ctrl-C" else DatasetError):
        create_seven_rooms(tmp_path / "seven", num_rooms=1, progress=Disturbing())
    assert not (tmp_path / "seven").exists()
