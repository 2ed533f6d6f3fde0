"""A rendered room whose poses are found again, and what gives it its size."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

import painted_box
from relograph.cli.app import app
from relograph.errors import ConfigError, DatasetError
from relograph.geometry import Camera, Pose, rotation_error_deg
from relograph.geometry.alignment import align_points
from relograph.rooms.photograph import Darkroom
from relograph.rooms.seven_rooms import RecordingSize, make_room_home, record, room_camera, take_photos
from relograph.rooms.walks import walk
from relograph.scenes import open_scene, reconstruct
from relograph.scenes.reconstruct import KnownDistance, reconstruct_scene, scale_scene
from rooms.tiny_rooms import tiny_atlas

pycolmap = pytest.importorskip("pycolmap", reason="no pycolmap: pip install 'relograph[geometry]'")
NUM_PHOTOS = 8
SIZE = RecordingSize(height=150, width=200, every=8)
T_AR_ROOM = Pose.from_axis_angle([0.3, 1.2, -0.4], [5.0, -2.0, 1.0])
"""The world of the phone's AR session: metres, too, but other axes and another origin."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pose]:
    """Photos along a walk through a room, and their poses in the AR session's world."""
    folder, atlas, seed = tmp_path_factory.mktemp("room") / "photos", tiny_atlas(), 3
    home = make_room_home(seed, 0, atlas.range_by_family)
    path = walk(home, np.random.default_rng([seed, 4]), NUM_PHOTOS * SIZE.every)
    camera = room_camera(seed, 0, SIZE)
    recording = record(home, "walk", path, camera, SIZE.every, T_AR_ROOM, torch.Generator().manual_seed(0))
    photos, _ = take_photos(recording, range(NUM_PHOTOS), atlas, Darkroom.on("cpu"))
    folder.mkdir()
    for index, photo in enumerate(photos):
        Image.fromarray(photo.numpy()).save(folder / f"IMG_{index}.png")
    return folder, recording.T_world_cam


def write_log(path: Path, T_world_cam: Pose) -> Path:
    """As a phone would log it: to a millimetre, but lost for a moment."""
    positions = T_world_cam.t.numpy() + np.random.default_rng(0).normal(0, 0.001, (len(T_world_cam), 3))
    positions[3] += 2.0
    frames = [{"name": f"IMG_{index}.HEIC", "position": list(position)} for index, position in enumerate(positions)]
    path.write_text(json.dumps(frames))
    return path


@pytest.fixture(scope="module")
def scene(room: tuple[Path, Pose], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The scene that the command makes of the photos and of a log, and what it says."""
    photos, T_world_cam = room
    folder = tmp_path_factory.mktemp("scene")
    log = write_log(folder / "session.json", T_world_cam)
    arguments = ["scene", "reconstruct", str(photos), "--output", str(folder / "scene"), "--ar-log", str(log)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder / "scene", done.stdout


def test_poses_are_found_again_in_metres_in_the_world_of_the_log(room, scene):
    _, T_true = room
    root, said = scene
    opened = open_scene(root)
    assert opened.format == "colmap"
    assert opened.scale_is_known
    assert len(opened) >= NUM_PHOTOS - 2
    rows = [int(Path(frame.name).stem.removeprefix("IMG_")) for frame in opened]
    assert_allclose(opened.T_world_cam.t, T_true.t[rows], atol=0.05)
    assert float(rotation_error_deg(opened.T_world_cam.R, T_true.R[rows]).max()) < 3.0
    assert f"{len(opened)} photos of {NUM_PHOTOS} placed" in said
    assert f"scale: {len(opened) - 1} of {len(opened)} cameras agree with session.json" in said


@pytest.fixture
def placed(scene: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What pycolmap takes its time for is there already, in a unit of its own."""
    model = pycolmap.Reconstruction(scene[0] / "sparse" / "0")
    model.transform(pycolmap.Sim3d(0.123 * np.eye(3, 4)))
    monkeypatch.setattr(reconstruct, "_place_cameras", lambda *_: model)
    return model


def test_photos_in_heic_are_given_to_pycolmap_as_jpeg(room, tmp_path, monkeypatch: pytest.MonkeyPatch):
    pillow_heif = pytest.importorskip("pillow_heif", reason="no decoder of HEIC: pip install 'relograph[heic]'")
    (tmp_path / "photos").mkdir()
    for index in range(3):
        photo = Image.open(room[0] / f"IMG_{index}.png")
        pillow_heif.from_pillow(photo).save(tmp_path / "photos" / f"IMG_{index}.HEIC")
    photo.save(tmp_path / "photos" / "IMG_0.JPG")
    given = {}

    def place_cameras(_: object, folder: Path, photos: reconstruct._Photos, *__: object) -> None:
        given.update({name: (folder / name).read_bytes()[:3] for name in photos.names})
        raise DatasetError("that is enough")

    monkeypatch.setattr(reconstruct, "_place_cameras", place_cameras)
    with pytest.raises(DatasetError, match="that is enough"):
        reconstruct_scene(tmp_path / "photos", tmp_path / "scene")
    assert given == dict.fromkeys(["IMG_0.HEIC.jpg", "IMG_0.JPG", "IMG_1.jpg", "IMG_2.jpg"], b"\xff\xd8\xff")
    named = reconstruct._named_like(KnownDistance("IMG_0.HEIC", "IMG_1.HEIC", 1.0), list(given))
    assert (named.name_a, named.name_b) == ("IMG_0.HEIC.jpg", "IMG_1.jpg")  # by the names that the user knows
    in_folder = ["a/IMG_0.HEIC.jpg", "a/IMG_0.jpg", "a/IMG_1.jpg"]
    for name in ("IMG_0.HEIC", "IMG_0.heic"):
        named = reconstruct._named_like(KnownDistance(name, "IMG_1.HEIC", 1.0), in_folder)
        assert (named.name_a, named.name_b) == ("a/IMG_0.HEIC.jpg", "a/IMG_1.jpg")


@pytest.mark.usefixtures("placed")
def test_a_known_distance_between_two_cameras_gives_metres(room, tmp_path):
    photos, T_true = room
    metres = float(torch.linalg.vector_norm(T_true.t[0] - T_true.t[-1]))
    last = f"IMG_{NUM_PHOTOS - 1}.png"
    found = reconstruct_scene(photos, tmp_path / "scene", distance=KnownDistance("IMG_0", last, metres))
    assert found.scale == "distance"
    opened = open_scene(tmp_path / "scene")
    rows = [int(Path(frame.name).stem.removeprefix("IMG_")) for frame in opened]
    assert align_points(opened.T_world_cam.t.numpy(), T_true.t[rows].numpy()).scale == pytest.approx(1.0, abs=0.02)
    assert opened.scale_is_known


@pytest.mark.usefixtures("placed")
def test_without_a_measure_it_is_said_that_the_scale_is_unknown_again_and_again(room, tmp_path):
    photos, _ = room
    root = tmp_path / "scene"
    done = CliRunner().invoke(app, ["scene", "reconstruct", str(photos), "--output", str(root)])
    assert done.exit_code == 0
    assert "scale: unknown" in done.stdout
    assert "warning: The scale of this scene is not known" in done.stderr
    assert not open_scene(root).scale_is_known
    info = CliRunner().invoke(app, ["scene", "info", str(root)])
    assert "warning    The scale of this scene is not known" in info.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": KnownDistance("IMG_0", "IMG_99", 1.0)}, "called 'IMG_99', found none; there are IMG_0.png"),
        ({"distance": KnownDistance("IMG_0", "IMG_0.png", 1.0)}, r"between two photos, got IMG_0\.png twice"),
        ({"distance": KnownDistance("IMG_0", "IMG_7", 0.0)}, "metres above 0"),
        ({"fps": 0.0}, "frames a second above 0"),
        ({"focal_px": -1.0}, "focal length in pixels above 0"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work_and_leaves_nothing(room, tmp_path, options, message, monkeypatch):
    monkeypatch.setattr(reconstruct, "_place_cameras", lambda *_: pytest.fail("the work was begun"))
    with pytest.raises((ConfigError, DatasetError), match=message) as caught:
        reconstruct_scene(room[0], tmp_path / "scene", **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def scene_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["scene", *map(str, arguments)], catch_exceptions=False)


def test_a_photo_that_could_not_be_placed_costs_only_the_scale(room, tmp_path, placed):
    """Its distance says nothing; what took minutes stays, and another distance makes metres of it."""
    photos, T_true = room
    last = NUM_PHOTOS - 1
    placed.deregister_frame(placed.find_image_with_name("IMG_3.png").frame_id)
    root = tmp_path / "scene"
    done = scene_command("reconstruct", photos, "--output", root, "--distance", "IMG_0", "IMG_3", 1.0)
    assert done.exit_code == 1
    assert "found that IMG_3.png could not. Name others, such as IMG_0.png and IMG_" in done.stdout
    assert f"run relograph scene scale {root} with another measure" in done.stderr
    assert not open_scene(root).scale_is_known

    metres = float(torch.linalg.vector_norm(T_true.t[0] - T_true.t[last]))
    done = scene_command("scale", root, "--distance", "IMG_0", f"IMG_{last}", metres)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"scale: IMG_0.png and IMG_{last}.png are {metres:g} m apart.\n"
    opened = open_scene(root)
    assert opened.scale_is_known
    assert opened.warnings == ()
    rows = [int(Path(frame.name).stem.removeprefix("IMG_")) for frame in opened]
    assert 3 not in rows
    assert align_points(opened.T_world_cam.t.numpy(), T_true.t[rows].numpy()).scale == pytest.approx(1.0, abs=0.02)
    assert sorted(path.name for path in (root / "sparse").iterdir()) == ["0"]


def test_two_cameras_at_one_place_are_no_measure(room, tmp_path, placed):
    placed.frame(placed.find_image_with_name("IMG_1.png").frame_id).rig_from_world = placed.frame(
        placed.find_image_with_name("IMG_0.png").frame_id
    ).rig_from_world
    found = reconstruct_scene(room[0], tmp_path / "scene", distance=KnownDistance("IMG_0", "IMG_1", 1.0))
    assert found.scale == "unknown"
    assert "found IMG_0.png and IMG_1.png at 0% of the typical distance" in found.scale_text


@pytest.mark.usefixtures("placed")
def test_a_log_of_something_else_is_no_measure(room, tmp_path):
    photos, T_true = room
    log, root = tmp_path / "log.json", tmp_path / "scene"
    rng = np.random.default_rng(1)
    frames = [{"name": f"IMG_{index}.png", "position": list(rng.normal(size=3))} for index in range(NUM_PHOTOS)]
    log.write_text(json.dumps(frames))
    found = reconstruct_scene(photos, root, ar_log=log)
    assert found.scale == "unknown"
    assert "log.json: expected positions that agree" in found.scale_text
    scale_scene(root, ar_log=write_log(log, T_true))
    opened = open_scene(root)
    rows = [int(Path(frame.name).stem.removeprefix("IMG_")) for frame in opened]
    assert_allclose(opened.T_world_cam.t, T_true.t[rows], atol=0.05)


def test_a_log_of_another_time_is_told_before_the_work(room, tmp_path, monkeypatch):
    monkeypatch.setattr(reconstruct, "_place_cameras", lambda *_: pytest.fail("the work was begun"))
    photos, log = room[0], tmp_path / "log.txt"
    log.write_text("5000.0 0 0 0 0 0 0 1\n5001.0 0 0 0 0 0 0 1\n")
    with pytest.raises(DatasetError, match=r"found those of 0: the log has times from 5000\.000 to 5001\.000 s"):
        reconstruct_scene(photos, tmp_path / "scene", ar_log=log)
    with pytest.raises(ConfigError, match="got both"):
        reconstruct_scene(photos, tmp_path / "scene", ar_log=log, distance=KnownDistance("a", "b", 1.0))


def test_only_a_whole_reconstruction_is_scaled_and_only_by_a_measure(scene, tmp_path):
    with pytest.raises(ConfigError, match="got neither"):
        scale_scene(tmp_path)
    with pytest.raises(DatasetError, match=r"found no sparse/0/images\.bin"):
        scale_scene(tmp_path, distance=KnownDistance("a", "b", 1.0))
    root = shutil.copytree(scene[0], tmp_path / "scene")
    images = root / "sparse" / "0" / "images.bin"
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"images\.bin"):
        scale_scene(root, distance=KnownDistance("IMG_0", "IMG_7", 1.0))


def distance_m(root: Path, name_a: str, name_b: str) -> float:
    t_by_name = {Path(frame.name).stem: frame.T_world_cam.t for frame in open_scene(root)}
    return float(np.linalg.norm(t_by_name[name_a] - t_by_name[name_b]))


def test_a_scene_is_scaled_again_after_a_kill_or_by_a_better_measure(scene, tmp_path):
    root = shutil.copytree(scene[0], tmp_path / "scene")
    model = root / "sparse" / "0"
    for metres in (2.0, 0.5):
        scale_scene(root, distance=KnownDistance("IMG_0", "IMG_7", metres))
        assert_allclose(distance_m(root, "IMG_0", "IMG_7"), metres, rtol=1e-9)
    shutil.copytree(model, model.with_name("0.after"))  # as a kill may leave them
    model.rename(model.with_name("0.before"))
    scale_scene(root, distance=KnownDistance("IMG_0", "IMG_7", 3.0))
    assert_allclose(distance_m(root, "IMG_0", "IMG_7"), 3.0, rtol=1e-9)
    assert [folder.name for folder in model.parent.iterdir()] == ["0"]
    (model / "images.txt").write_text("the user's own\n")
    with pytest.raises(DatasetError, match=r"found 'images\.txt' beside it"):
        scale_scene(root, distance=KnownDistance("IMG_0", "IMG_7", 1.0))
    assert (model / "images.txt").exists()


def test_a_long_walk_that_returns_is_closed(tmp_path, monkeypatch):
    """Its first photos are matched with its last ones, which no photo between them leads to."""
    monkeypatch.setattr(reconstruct, "ALL_PAIRS_UP_TO", 5)
    monkeypatch.setattr(reconstruct, "NEIGHBOURS", 1)
    monkeypatch.setattr(reconstruct, "NUM_ALIKE", 2)
    walls = painted_box.painting(0)
    names = [f"IMG {number}.png" for number in range(8, 16)]  # of which IMG 10 comes first in the alphabet
    for number, name in enumerate(names):
        turn = 2 * np.pi * number / (len(names) - 0.9)
        T_world_cam = Pose.from_axis_angle([0.0, turn, 0.0], [0.2 * np.sin(turn), 0.0, 0.2 * np.cos(turn)])
        Image.fromarray(painted_box.photo(walls, T_world_cam, Camera.from_focal(160, 120, 110.0))).save(tmp_path / name)
    database = tmp_path / "database.db"
    with reconstruct._quiet(pycolmap):
        pycolmap.extract_features(database, tmp_path, image_names=names, device=pycolmap.Device.cpu)
        reconstruct._match(pycolmap, database, names)
    with pycolmap.Database.open(database) as opened:
        id_by_name = {image.name: image.image_id for image in opened.read_all_images()}
        assert set(id_by_name) == set(names)

        def num_agree(a: int, b: int) -> int:
            ids = id_by_name[names[a]], id_by_name[names[b]]
            return len(opened.read_two_view_geometry(*ids).inlier_matches) if opened.exists_matches(*ids) else 0

        assert num_agree(0, 7) > 30
        assert num_agree(0, 1) > 30
        assert num_agree(0, 4) == 0


def test_photos_that_show_nothing_are_said(tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(3):
        Image.new("RGB", (64, 48), "gray").save(tmp_path / "photos" / f"{index}.png")
    with pytest.raises(DatasetError, match="no two could be placed"):
        reconstruct_scene(tmp_path / "photos", tmp_path / "scene")
    (tmp_path / "photos" / "2.png").unlink()
    with pytest.raises(DatasetError, match="expected 3 photos or more, found 2"):
        reconstruct_scene(tmp_path / "photos", tmp_path / "scene")


def test_the_frames_of_a_video_have_times_to_find_in_a_log(tmp_path, monkeypatch):
    cv2 = pytest.importorskip("cv2", reason="no OpenCV: pip install 'relograph[geometry]'")
    writer = cv2.VideoWriter(str(tmp_path / "walk.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    for _ in range(20):
        writer.write(np.zeros((48, 64, 3), dtype=np.uint8))
    writer.release()
    photos = reconstruct._place_photos(tmp_path / "walk.mp4", tmp_path / "images", 2.0, reconstruct.SILENT)
    assert photos.names == ["frame-000000.jpg", "frame-000005.jpg", "frame-000010.jpg", "frame-000015.jpg"]
    assert list(photos.time_by_name.values()) == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=2e-3)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == photos.names


def test_a_damaged_note_about_the_scale_is_said(scene, tmp_path):
    root = shutil.copytree(scene[0], tmp_path / "scene")
    for text in ("{", "[]", '{"format": "other", "scale": "unknown"}'):
        (root / "reconstruction.json").write_text(text)
        with pytest.raises(DatasetError, match=r"reconstruction\.json: expected"):
            open_scene(root)
