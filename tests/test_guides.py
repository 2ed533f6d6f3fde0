"""The pages for newcomers: their commands run as they are written, from the files that such a user has to poses.

The weights are the package's own, and the poses have to be right.
"""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

import painted_box
from relograph.cli.app import app
from relograph.geometry import Camera, Pose
from relograph.scenes import convert
from test_documents import EXTRAS, REPOSITORY

cv2 = pytest.importorskip("cv2", reason="no OpenCV: pip install 'relograph[geometry]'")
pytest.importorskip("pycolmap", reason="no pycolmap: pip install 'relograph[geometry]'")

CAMERA = Camera.from_focal(200, 150, 160.0)
QUERIES = painted_box.poses(2, 2, 0.1, 0.08)
"""Where `painted_box.write_scene` takes the photos of its test sequence."""
ABOUT_RIGHT_M = 0.1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene in the 7-Scenes layout with four photos of a training and two of a test sequence, with depth maps."""
    root = painted_box.write_scene(tmp_path_factory.mktemp("recorded") / "chess", num_map=4, num_queries=2)
    for photo in root.glob("seq-*/*.color.png"):
        Image.new("I;16", (320, 240), 1500).save(str(photo).replace(".color.", ".depth."))
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_video(path: Path, frames: list[np.ndarray], fps: float) -> None:
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), fps, (width, height))
    for frame in frames:
        writer.write(frame)
    writer.release()


def commands_of(page: str) -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def follow(page: str) -> list[str]:
    """Runs a page's commands in their order, and returns what they print."""
    said = []
    for line in commands_of(page):
        program, *arguments = shlex.split(line, comments=True)
        if program == "pip":
            (extras,) = re.findall(r"relograph\[(.*)\]", arguments[-1])
            assert set(extras.split(",")) <= EXTRAS
            continue
        assert program == "relograph", line
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        said.append(done.stdout)
    return said


def answers_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names_in(path: Path) -> list[str]:
    return [answer["name"] for answer in answers_in(path)]


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def centres_of(rows: list[dict[str, str]]) -> np.ndarray:
    """Of answers in a table, all of which have to be there."""
    assert {row["localized"] for row in rows} == {"true"}
    return np.array([[float(row[axis]) for axis in ("tx", "ty", "tz")] for row in rows])


def test_from_a_colmap_model_and_a_phone_video(folder: Path, recorded: Path):
    convert(recorded, folder / "office", to="colmap")
    walls = painted_box.painting(0)
    seen = [painted_box.photo(walls, T, painted_box.CAMERA) for T in QUERIES]
    Image.fromarray(seen[0]).save("query.jpg")
    write_video(folder / "walk.mp4", [seen[0]] * 6 + [seen[1]] * 6, fps=30)
    # A tour of five views, each long enough for two frames a second of a video with thirty to meet it.
    tour = [Pose.from_axis_angle([0.0, 0.12 * i, 0.0], [0.25 * i - 0.5, 0.05 * i * i, -0.5]) for i in range(5)]
    views = [painted_box.photo(walls, T, CAMERA) for T in tour]
    write_video(folder / "tour.mp4", [view for view in views for _ in range(15)], fps=30)
    said = follow("start-colmap.md")
    assert "office (colmap)" in said[0]
    assert "office.map: 6 photos." in said[1]
    assert names_in(folder / "walk.jsonl") == ["walk.mp4/frame-000000", "walk.mp4/frame-000006"]
    found = [answer["cam_center_world"] for answer in answers_in(folder / "walk.jsonl")]
    assert_allclose(found, QUERIES.t, atol=ABOUT_RIGHT_M)
    assert names_in(folder / "walk.smoothed.jsonl") == names_in(folder / "walk.jsonl")
    assert (folder / "found" / "cameras.txt").is_file()
    assert (folder / "office.png").stat().st_size > 1000
    assert "query.jpg" in (folder / "why.html").read_text()
    assert "scale: frame-000000.jpg and frame-000030.jpg are 1.2 m apart." in said[-1]


def test_from_a_nerfstudio_export(folder: Path, recorded: Path):
    convert(recorded, folder / "lounge", to="transforms.json")
    (folder / "photos").mkdir()
    shutil.copy(recorded / "seq-02" / "frame-000000.color.png", folder / "photos" / "a.png")
    Image.open(folder / "photos" / "a.png").save(folder / "query.jpg")
    said = follow("start-nerfstudio.md")
    assert "lounge (transforms.json)" in said[0]
    (answer,) = answers_in(folder / "query.jsonl")
    assert answer["axes"] == "opengl"
    assert_allclose(answer["cam_center_world"], QUERIES.t[0], atol=ABOUT_RIGHT_M)
    assert_allclose(np.array(answer["T_world_cam"])[:3, :3] @ np.diag([1, -1, -1]), QUERIES.R[0], atol=np.radians(3))
    assert (folder / "lounge.png").stat().st_size > 1000
    assert "query.jpg" in (folder / "why.html").read_text()
    rows = rows_of(folder / "photos.csv")
    assert [row["name"] for row in rows] == ["a.png"]
    assert_allclose(centres_of(rows), QUERIES.t[:1], atol=ABOUT_RIGHT_M)


def test_from_a_7scenes_folder(folder: Path):
    painted_box.write_scene(folder / "chess", num_map=4, camera=Camera.from_focal(640, 480, 525.0))
    (folder / "chess" / "camera.txt").unlink()  # as the data set comes
    said = follow("start-7scenes.md")
    assert "chess (7scenes)" in said[0]
    assert "chess.map: 4 photos." in said[1]
    answers = rows_of(folder / "chess.csv")
    assert [row["name"] for row in answers] == ["frame-000000.color.png", "frame-000001.color.png"]
    assert {float(row["focal_px"]) for row in answers} == {525.0}
    assert_allclose(centres_of(answers), QUERIES.t, atol=ABOUT_RIGHT_M)
    assert (folder / "chess.png").stat().st_size > 1000
    assert "frame-000000.color.png" in (folder / "why.html").read_text()
