"""`relograph localize` as it is typed, with weights that nobody trained: what they say is no matter here."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner, Result

import painted_box
from localization.small_networks import small_network
from relograph.cli.app import app
from relograph.geometry import Camera, Pose
from relograph.geometry.axes import axes_from_words, axes_of
from relograph.localization.prior import Prior
from relograph.models import shipped
from relograph.models.shipped import save_match_gnn
from relograph.scenes import convert, open_scene
from relograph.scenes.reconstruction_file import write_reconstruction_file

CAMERA = Camera.from_focal(160, 120, 130.0)
NUM_FRAMES = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene of six photos, folders of queries, a video, weights, and a map."""
    root = tmp_path_factory.mktemp("place")
    walls = painted_box.painting(0)
    T_map, T_queries = painted_box.poses(1, 6), painted_box.poses(2, NUM_FRAMES, 0.1, 0.08)
    lines = ["# camera axes: opencv", "# direction: world_from_camera", "name,tx,ty,tz,qw,qx,qy,qz,fx,fy,cx,cy"]
    (root / "scene" / "photos").mkdir(parents=True)
    for index, T_world_cam in enumerate(T_map):
        name = f"photos/{index}.png"
        Image.fromarray(painted_box.photo(walls, T_world_cam, CAMERA)).save(root / "scene" / name)
        values = [
            *T_world_cam.t.tolist(),
            *T_world_cam.quat_wxyz().tolist(),
            CAMERA.fx,
            CAMERA.fy,
            CAMERA.cx,
            CAMERA.cy,
        ]
        lines.append(",".join([name, *map(str, values)]))
    (root / "scene" / "poses.csv").write_text("\n".join(lines) + "\n")
    queries = [painted_box.photo(walls, T, CAMERA) for T in T_queries]
    (root / "queries").mkdir()
    for index, pixels in enumerate(queries[:2]):
        Image.fromarray(pixels).save(root / "queries" / f"{index}.png")
    write_video(root / "walk.mp4", queries)
    save_match_gnn(root / "weights", small_network().model, {})
    done = run("map", "create", root / "a.map", root / "scene", "--weights", root / "weights")
    assert done.exit_code == 0, done.output
    return root


def write_video(path: Path, frames: list[np.ndarray]) -> None:
    cv2 = pytest.importorskip("cv2", reason="no OpenCV: pip install 'relograph[geometry]'")
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (160, 120))
    for frame in frames:
        writer.write(frame)
    writer.release()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def localize(place: Path, *arguments: object, where: tuple[str, str] = ("--map", "a.map")) -> Result:
    done = run("localize", *arguments, where[0], place / where[1], "--weights", place / "weights")
    assert done.exit_code == 0, done.output
    return done


def documents(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_photo_is_answered_on_stdout_and_counted_on_stderr(place: Path):
    done = localize(place, place / "queries" / "0.png", "--camera", "map")
    (answer,) = documents(done.stdout)
    assert answer["name"] == "0.png"
    assert answer["focal_px"] == pytest.approx(130.0)
    assert len(answer["references"]) == 6
    assert set(answer["seconds"]) >= {"encode", "retrieve", "match", "solve"}
    assert f"localized: {int(answer['localized'])} of 1" in done.stderr
    assert "warning: These weights are not calibrated" in done.stderr


def test_a_scene_without_a_map_gives_the_same_references(place: Path):
    ways = [
        documents(localize(place, place / "queries" / "1.png", "--solver", "regress", where=where).stdout)[0]
        for where in (("--map", "a.map"), ("--scene", "scene"))
    ]
    by_map, by_scene = ({used["name"]: used["similarity"] for used in answer["references"]} for answer in ways)
    assert by_map == pytest.approx(by_scene, abs=1e-3)


def test_a_query_is_no_reference_of_its_own(place: Path):
    (answer,) = documents(
        localize(place, place / "scene" / "photos" / "3.png", "--solver", "regress", where=("--scene", "scene")).stdout
    )
    assert len(answer["references"]) == 5
    assert "photos/3.png" not in [used["name"] for used in answer["references"]]


def test_one_bad_photo_is_refused_and_the_others_are_answered(place: Path, tmp_path: Path):
    (tmp_path / "bad.png").write_bytes(b"no photo")
    done = localize(
        place, place / "queries", tmp_path / "bad.png", "--solver", "regress", "--output", tmp_path / "a.csv"
    )
    assert done.stdout == ""
    rows = [line for line in (tmp_path / "a.csv").read_text().splitlines() if not line.startswith("#")]
    assert [row.split(",")[0] for row in rows] == ["name", "0.png", "1.png", "bad.png"]
    assert rows[3].split(",")[2] == "false"
    assert "expected a photo as JPEG" in rows[3]


def test_the_first_refused_photo_is_named(place: Path, tmp_path: Path):
    (tmp_path / "bad.png").write_bytes(b"no photo")
    done = localize(place, tmp_path / "bad.png", "--solver", "regress")
    assert "localized: 0 of 1; 1 refused, the first: bad.png: the photo: expected a photo as JPEG" in done.stderr


def test_a_camera_of_another_shape_is_a_refusal_that_says_so(place: Path, tmp_path: Path):
    (tmp_path / "camera.txt").write_text("PINHOLE 120 160 130 130 60 80\n")
    (answer,) = documents(localize(place, place / "queries" / "0.png", "--camera", tmp_path / "camera.txt").stdout)
    assert answer["localized"] is False
    assert "expected a camera for a photo of 160 x 120 pixels" in answer["reason"]


def test_a_video_is_answered_frame_by_frame_and_smoothed_beside_it(place: Path, tmp_path: Path):
    done = localize(
        place, place / "walk.mp4", "--output", tmp_path / "walk.jsonl", "--camera", "map", "--references", 2
    )
    raw = documents((tmp_path / "walk.jsonl").read_text())
    smooth = documents((tmp_path / "walk.smoothed.jsonl").read_text())
    assert [answer["name"] for answer in raw] == [f"walk.mp4/frame-{index:06d}" for index in range(NUM_FRAMES)]
    assert [answer["timestamp_s"] for answer in raw] == pytest.approx(
        [index / 10 for index in range(NUM_FRAMES)], abs=0.01
    )
    assert [answer["name"] for answer in smooth] == [answer["name"] for answer in raw]
    assert all("raw_weight" in answer for answer in smooth)
    assert not any("raw_weight" in answer for answer in raw)
    assert "walk.smoothed.jsonl" in done.stderr


def test_fewer_frames_a_second_and_no_smoothing(place: Path, tmp_path: Path):
    localize(
        place, place / "walk.mp4", "--fps", 5, "--no-smooth", "--solver", "regress", "--output", tmp_path / "walk.tum"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "walk.tum"]
    last = (tmp_path / "walk.tum").read_text().splitlines()[-1]
    assert last.endswith("of 2 queries were refused and have no pose here")


def test_a_prior_reaches_the_localizer_along_the_axes_of_the_answers(place: Path):
    """Half of four references are near the prior, wherever that is; far from the map it changes nothing."""
    asked = [place / "queries" / "0.png", "--solver", "regress", "--references", 4]
    without, far, near, unity = (
        [used["name"] for used in documents(localize(place, *asked, *options).stdout)[0]["references"]]
        for options in (
            [],
            ["--prior", "100 0 0"],
            ["--prior", "0.2 0.1 0.3 1 0 0 0", "--prior-radius", 0.5],
            ["--prior", "0.2 0.1 -0.3", "--prior-radius", 0.5, "--axes", "unity"],
        )
    )
    assert far == without
    T_map = open_scene(place / "scene").T_world_cam
    expected = Prior(Pose.from_axis_angle([0.0, 0.0, 0.0], [0.2, 0.1, 0.3]), looks=True, radius_m=0.5)
    names = [f"photos/{row}.png" for row in expected.references(T_map, 4)]
    assert near == [*without[:2], *[name for name in names if name not in without[:2]][:2]]
    assert set(unity) == set(near)
    assert near != without


def test_why_is_shown_on_a_page(place: Path, tmp_path: Path):
    page = tmp_path / "why.html"
    done = localize(place, place / "queries" / "0.png", "--explain", page, "--references", 3, "--camera", "map")
    assert f"why: {page}" in done.stderr
    assert page.read_text().count('<figure class="reference">') == 3
    assert "its photo is not at hand" not in page.read_text()


def test_an_unknown_scale_is_repeated_by_map_and_localize(place: Path, tmp_path: Path):
    convert(place / "scene", tmp_path / "colmap", to="colmap")
    write_reconstruction_file(tmp_path / "colmap", "unknown", {})
    made = run("map", "create", tmp_path / "b.map", tmp_path / "colmap", "--weights", place / "weights")
    assert made.exit_code == 0
    assert "warning: The scale of this scene is not known" in made.stderr
    for where in (("--map", str(tmp_path / "b.map")), ("--scene", str(tmp_path / "colmap"))):
        why = tmp_path / "why.html"
        done = localize(place, place / "queries" / "0.png", "--solver", "regress", "--explain", why, where=where)
        assert "warning: The scale of this scene is not known" in done.stderr
        assert documents(done.stdout)[0]["scale_is_known"] is False
        assert "right, within 0.25 units of the map and 10 degrees" in why.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jpg"], "none.jpg: expected a photo, a folder of photos or a video, found nothing"),
        (["queries", "--output", "a.xyz"], "expected a name that ends in"),
        (["queries", "--prior", "somewhere"], "expected a prior as"),
        (["queries", "--prior", "1 2 x"], "expected a number, found 'x'"),
        (["queries", "--prior", "1 2 3", "--prior-radius", "0"], "radius in metres above 0"),
        (["queries", "--body", "none.txt"], "none.txt: expected a file"),
        (["queries", "--focal", "-3"], "focal length in pixels above 0"),
        (["queries", "--camera", "none.txt"], "none.txt: expected a file"),
        (["queries", "--explain", "why.html"], "expected one photo to explain, got 2 queries"),
        (["queries", "--references", "99"], "1 to 32 references"),
        (["queries", "--scene", "scene"], "expected --map MAP or --scene ROOT"),
        (["queries", "--format", "colmap"], "called images.txt"),
        (["walk.mp4", "--fps", "0"], "frames a second above 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(place: Path, monkeypatch: pytest.MonkeyPatch, arguments, message):
    monkeypatch.chdir(place)
    done = run("localize", *arguments, "--map", "a.map", "--weights", "weights")
    assert done.exit_code == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line


def test_a_map_of_other_weights_is_said(place: Path, tmp_path: Path):
    save_match_gnn(tmp_path / "other", small_network(seed=1).model, {})
    done = run("localize", place / "queries", "--map", place / "a.map", "--weights", tmp_path / "other")
    assert done.exit_code == 1
    assert "error: expected the weights that the map was made with" in done.stderr


def test_poses_along_other_axes_and_of_a_body(place: Path, tmp_path: Path):
    """Answers that are localized are the same pose in other words."""
    query = place / "queries" / "0.png"
    (tmp_path / "body.txt").write_text("0 0 1 0\n-1 0 0 0\n0 -1 0 0\n0 0 0 1\n")  # a body with ROS's axes at the camera
    plain, ros, body = (
        documents(localize(place, query, "--camera", "map", "--references", 2, *options).stdout)
        for options in ([], ["--axes", "ros"], ["--body", tmp_path / "body.txt"])
    )
    assert all(answer["localized"] for answer in plain)
    for a, b, c in zip(plain, ros, body, strict=True):
        assert a["T_world_cam"] != b["T_world_cam"]
        np.testing.assert_allclose(b["T_world_cam"], c["body"]["T_world_body"], atol=1e-6)
        np.testing.assert_allclose(c["T_world_cam"], a["T_world_cam"], atol=1e-6)
        assert b["cam_center_world"] == pytest.approx(a["cam_center_world"], abs=1e-6)


PAGE = Path(__file__).parents[2] / "docs" / "localize.md"


def test_the_commands_of_the_page_do_what_it_says(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_match_gnn(tmp_path / "weights", small_network(finds_matches=False).model, {})  # nothing to solve: fast
    monkeypatch.setattr(shipped, "SHIPPED_WEIGHTS", tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "scene", "office")
    shutil.copy(place / "queries" / "0.png", "query.png")
    shutil.copy(place / "walk.mp4", "walk.mp4")
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]
    assert [command[0] for command in commands] == ["scene", "map", "localize", "localize", "localize"]
    reconstruct, *others = commands
    get_command(app).commands["scene"].commands["reconstruct"].make_context("reconstruct", reconstruct[2:])
    for command in others:
        done = run(*command)
        assert done.exit_code == 0, done.output
    assert {"walk.jsonl", "walk.smoothed.jsonl", "why.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_page_names_the_axes_as_they_are():
    rows = re.findall(
        r"^\| `(\w+)`(.*?) \| (\w+) \| (\w+) \| (\w+) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.M
    )
    assert {name for name, *_ in rows} == {"opencv", "opengl", "arkit", "ros", "unity"}
    for name, which, *axes, world in rows:
        matrix = axes_of(name, is_tall="taller" in which)
        np.testing.assert_array_equal(matrix, axes_from_words(" ".join(axes)))
        assert world.startswith("left-handed") == (np.linalg.det(matrix) < 0)
