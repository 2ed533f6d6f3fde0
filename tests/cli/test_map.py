"""`relograph map` on a scene of three frames, with a network of a few numbers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

import painted_box
from relograph.cli.app import app
from relograph.geometry import Pose
from relograph.maps import Map, Similarity, joining
from relograph.maps.records import frame_poses
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import save_match_gnn
from relograph.scenes import open_scene
from relograph.training.presets import MATCHGNN_TINY

FIRST = "seq-01/frame-000000.color.png"


def invoke(*arguments: str | Path):
    return CliRunner().invoke(app, ["map", *map(str, arguments)])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    save_match_gnn(folder, MatchGNN(MATCHGNN_TINY.model), {})
    return folder


@pytest.fixture
def kitchen(tmp_path: Path, seven_scenes_folder: Path, weights: Path) -> Path:
    done = invoke("create", tmp_path / "kitchen.map", seven_scenes_folder, "--weights", weights, "--focal", 30)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'kitchen.map'}: 3 photos.\n"
    return tmp_path / "kitchen.map"


def test_a_map_grows_and_shrinks(kitchen: Path, seven_scenes_folder: Path, weights: Path):
    done = invoke("remove", kitchen, "--sequence", "seq-02")
    assert done.stdout == f"{kitchen}: 1 photo removed; 2 left.\n"
    done = invoke("add", kitchen, seven_scenes_folder, "--weights", weights, "--focal", 30)
    assert done.stdout == f"{kitchen}: 1 photo added, 2 were there; 3 in all.\n"
    done = invoke("remove", kitchen, "nowhere.png")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: expected photos of the map, found none named 'nowhere.png'")
    assert invoke("remove", kitchen).exit_code == 1


def test_info_tells_photos_extent_size_and_changes_and_draws_them(kitchen: Path, tmp_path: Path):
    done = invoke("info", kitchen, "--picture", tmp_path / "above.png")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1:4] == [
        "  photos      3; 1 camera",
        "  extent      x 0.00 to 2.00 m, y 0.00 to 0.00 m, z 0.00 to 0.00 m",
        "  redundancy  0% of the photos have another within 10 cm and 5 degrees",
    ]
    assert re.fullmatch(r"  a photo     features [\d.]+ kB, jpeg [\d.]+ kB, descriptor \d+ B", lines[5])
    assert "  sequence    seq-01: 2 photos" in lines
    assert lines[-1].endswith("add: 3 photos")
    assert (tmp_path / "above.png").read_bytes().startswith(b"\x89PNG")
    assert invoke("info", kitchen, "--names").stdout.splitlines()[0] == FIRST


def test_info_tells_what_it_can_of_a_map_that_has_lost_its_features(kitchen: Path):
    for shard in (kitchen / "shards").iterdir():
        shard.unlink()
    done = invoke("info", kitchen)
    assert done.exit_code == 0, done.output
    assert "  photos      3; 1 camera" in done.stdout
    assert "  a photo  " not in done.stdout


def test_verify_names_photos_that_are_damaged(kitchen: Path):
    assert invoke("verify", kitchen).stdout == f"{kitchen}: 3 photos, nothing wrong.\n"
    frame = Map.open(kitchen)[FIRST]
    shard = kitchen / "shards" / f"{frame.shard}.safetensors"
    data, jpeg = bytearray(shard.read_bytes()), Map.open(kitchen).jpeg(frame)
    data[data.index(jpeg) + 100] ^= 1
    shard.write_bytes(data)
    done = invoke("verify", kitchen)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"shards/{shard.name}: its bytes are not those that were written; affected: {FIRST}"
    ]
    assert "found 1 damaged place, by which 1 photo of 3 may be affected. Restore the files" in done.stderr


def test_maps_are_split_merged_copied_and_compacted(kitchen: Path, tmp_path: Path):
    done = invoke("split", kitchen, tmp_path / "part.map", "--sequence", "seq-01", "--move")
    assert done.stdout == f"{tmp_path / 'part.map'}: 2 photos; {kitchen}: 1.\n"
    np.savetxt(tmp_path / "T.txt", [[2, 0, 0, 5], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1]])
    done = invoke("merge", kitchen, tmp_path / "part.map", "--transform", tmp_path / "T.txt", "--prefix", "new/")
    assert done.exit_code == 0, done.output
    assert [frame.cam_center_world[0] for frame in Map.open(kitchen)] == [2.0, 5.0, 7.0]
    assert invoke("copy", kitchen, tmp_path / "copy.map").exit_code == 0
    done = invoke("compact", tmp_path / "copy.map", "--photos", 2, "--try", 0)
    assert done.exit_code == 0, done.output
    assert "A photo that went is 2.00 m and 0.0 degrees from the nearest" in done.stdout
    assert (len(Map.open(kitchen)), len(Map.open(tmp_path / "copy.map"))) == (3, 2)


def test_what_cannot_be_merged_is_told_before_anything_is_localized(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(joining, "join_maps", lambda *_, **__: pytest.fail("a photo was localized"))
    assert invoke("copy", kitchen, tmp_path / "copy.map").exit_code == 0
    done = invoke("merge", kitchen, tmp_path / "copy.map")
    assert done.exit_code == 1
    assert "found 3 of the same name in both maps" in done.stderr


def test_a_map_whose_scale_is_not_known_does_not_speak_of_metres(kitchen: Path, weights: Path, tmp_path: Path):
    with Map.open(kitchen).store.change("test", {}) as change:
        change.set_settings(replace(Map.open(kitchen).settings, scale_is_known=False))
    lines = invoke("info", kitchen, "--picture", tmp_path / "above.png").stdout.splitlines()
    assert lines[2:4] == [
        "  extent      x 0.00 to 2.00 units, y 0.00 to 0.00 units, z 0.00 to 0.00 units",
        "  redundancy  0% of the photos have another within 0.10 units and 5 degrees",
    ]
    assert "  scale       not known: lengths are in a unit of the map's own, and so are those of answers" in lines
    done = invoke("compact", kitchen, "--photos", 2, "--weights", weights)
    assert done.exit_code == 0, done.output
    assert "photos within 0.25 units and 10 degrees" in done.stdout
    assert "A photo that went is 1.00 units and 0.0 degrees from the nearest" in done.stdout
    assert not re.search(r"\d (m|cm)\b", done.stdout)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_maps_of_one_place_are_joined_by_localizing_with_the_packages_weights(tmp_path: Path, scale: float):
    """They keep the coarse features only, and nobody says where one lies in the other."""
    pytest.importorskip("poselib")
    root = painted_box.write_scene(tmp_path / "box", num_map=4, num_queries=3)
    here, there = tmp_path / "here.map", tmp_path / "there.map"
    assert invoke("create", here, root, "--split", "train").exit_code == 0
    assert invoke("create", there, root, "--split", "test").exit_code == 0
    truth = frame_poses(Map.open(there).frames)
    Map.open(there).move(Similarity(Pose.from_axis_angle([0.1, 0.7, -0.2], [5.0, 1.0, -2.0]), scale))
    done = invoke("merge", here, there, "--prefix", "new/", *(["--scale"] if scale != 1.0 else []))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3 of 3 localized photos agree, to ")
    merged = frame_poses([frame for frame in Map.open(here) if frame.name.startswith("new/")])
    assert_allclose(merged.t, truth.t, atol=0.05)
    assert_allclose(merged.R, truth.R, atol=0.05)


def test_a_map_is_compacted_to_a_size_and_says_what_that_costs(kitchen: Path, weights: Path):
    each = sum(Map.open(kitchen).store.num_bytes().values()) / 3
    options = ("--size", f"{2.5 * each / 1e3:.1f}kB", "--weights", weights, "--try", 2)
    done = invoke("compact", kitchen, *options, "--dry-run")
    assert done.exit_code == 0, done.output
    before, after, stays = done.stdout.splitlines()
    assert before.startswith("before: ")
    assert after.startswith("after: ")
    assert re.search(r" of 1 photos within 25 cm and 10 degrees, (half|[\d.]+ cm and [\d.]+ degrees)", after)
    assert stays == f"{kitchen}: 2 photos would stay."
    assert len(Map.open(kitchen)) == 3
    done = invoke("compact", kitchen, *options)
    assert done.exit_code == 0, done.output
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:2]] == ["before", "after"]
    assert len(Map.open(kitchen)) == 2
    assert sum(Map.open(kitchen).store.num_bytes().values()) <= 2.5 * each
    done = invoke("compact", kitchen, "--size", "10GB")  # nothing has to go, so no weights are asked for
    assert done.exit_code == 0, done.output
    assert len(Map.open(kitchen)) == 2


@pytest.mark.parametrize(("size", "message"), [("50", "such as 50MB, found '50'"), ("3 kB", "room for one photo")])
def test_a_size_that_is_none_or_too_small_is_refused(kitchen: Path, size: str, message: str):
    done = invoke("compact", kitchen, "--size", size)
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(Map.open(kitchen)) == 3
    assert "Give one of them" in invoke("compact", kitchen, "--size", "5MB", "--photos", 2).stderr


def test_a_map_is_exported_as_a_scene_of_small_photos(kitchen: Path, tmp_path: Path):
    done = invoke("export", kitchen, tmp_path / "colmap", "--to", "colmap")
    assert done.exit_code == 0, done.output
    scene = open_scene(tmp_path / "colmap")
    assert [frame.name for frame in scene] == [f"{frame.name}.jpg" for frame in Map.open(kitchen)]
    assert scene[2].T_world_cam.t.tolist() == pytest.approx([2.0, 0.0, 0.0])
    assert scene[0].camera is not None
    assert (scene[0].camera.width, scene[0].camera.fx) == (320, 300.0)


def test_a_map_gets_its_place_on_earth(kitchen: Path, tmp_path: Path):
    (tmp_path / "points.txt").write_text("# three corners\n0 0 0 0 0 10\n1 0 0 0 0.00001 10\n0 0 1 0.00001 0 10\n")
    done = invoke("georeference", kitchen, "--points", tmp_path / "points.txt")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "origin 0.0000033 0.0000033 degrees, 10.00 m"
    assert re.search(r"on Earth .* 10\.00 m\n", invoke("info", kitchen).stdout)
    with Map.open(kitchen).store.change("test", {}) as change:
        change.set_settings(replace(Map.open(kitchen).settings, scale_is_known=False))
    assert "10.00 m; a unit is 1.109 m there\n" in invoke("info", kitchen).stdout
    assert invoke("georeference", kitchen).exit_code == 1


def test_photos_without_gps_are_told_to_have_none(kitchen: Path, seven_scenes_folder: Path):
    done = invoke("georeference", kitchen, "--photos", seven_scenes_folder)
    assert done.exit_code == 1
    assert f"found none: of 3 photos in {seven_scenes_folder} 3 are in the map by name" in done.stderr


def test_a_map_gets_its_place_on_earth_by_gps_in_its_photos(tmp_path: Path, weights: Path):
    """Six cameras at steps of about 11 m, of which one was told a place a kilometre off."""
    root = tmp_path / "yard"
    root.mkdir()
    steps = [(0, 0), (1, 0), (2, 1), (0, 2), (1, 2), (2, 2)]
    rows = ["# camera axes: right down forward", "# direction: world_from_camera", "name,tx,ty,tz,qw,qx,qy,qz"]
    for number, (east, north) in enumerate(steps):
        rows.append(f"{number}.jpg,{11.1 * east},0,{11.1 * north},1,0,0,0")
        exif = Image.Exif()
        north_deg = 1e-4 * north + (0.01 if number == 3 else 0.0)
        gps = {1: "N", 2: (north_deg, 0.0, 0.0), 3: "E", 4: (1e-4 * east, 0.0, 0.0), 5: b"\x00", 6: 10.0}
        exif[0x8825] = gps
        Image.new("RGB", (64, 48), (40 * number, 90, 120)).save(root / f"{number}.jpg", exif=exif)
    (root / "poses.csv").write_text("\n".join(rows) + "\n")
    assert invoke("create", tmp_path / "yard.map", root, "--weights", weights).exit_code == 0
    done = invoke("georeference", tmp_path / "yard.map", "--photos", root)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "5 of 6 photos with GPS agree to 10 m."
    place = Map.open(tmp_path / "yard.map").settings.georeference
    assert place is not None
    assert place.T_enu_world.scale == pytest.approx(1.0, abs=0.02)
    assert place.residual_m[3] > 500
