"""The page of cameras: one file with all that it shows, whatever names and poses it is given."""

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from relograph.errors import GeometryError
from relograph.geometry import Pose
from relograph.scenes.frame import FileSource, Frame
from relograph.viewer import CameraGroup, write_cameras_page
from relograph.viewer.cameras_page import Slider

LEVEL = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
"""A camera that looks along the world's y axis, with the world's z axis up."""


def cameras(*centers: tuple[float, float, float], R: torch.Tensor = LEVEL) -> Pose:
    return Pose(R.expand(len(centers), 3, 3), torch.tensor(centers, dtype=torch.float64))


def data_of(page: Path) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


def test_poses_and_captions_arrive_in_the_page(tmp_path: Path):
    turned = Pose.from_axis_angle(torch.tensor([[0.1, -0.2, 0.3]]), torch.tensor([[1.0, 2.0, 3.0]])).to(
        "cpu", torch.float64
    )
    page = tmp_path / "page.html"
    write_cameras_page(page, [CameraGroup("map", "#98a1ad", turned, ["first"])], title="Kitchen", note="one\ntwo")
    assert data_of(page)["note"] == "one\ntwo"
    (group,) = data_of(page)["groups"]
    assert group["name"] == "map"
    (camera,) = group["cameras"]
    assert camera["caption"] == "first"
    np.testing.assert_allclose(np.reshape(camera["R"], (3, 3)), turned.R[0], atol=1e-5)
    assert camera["t"] == [1, 2, 3]


def test_up_is_where_the_photos_have_their_upper_edge(tmp_path: Path):
    group = CameraGroup("map", "#98a1ad", cameras((0, 0, 0), (1, 0, 0)), ["a", "b"])
    write_cameras_page(tmp_path / "page.html", [group], title="Kitchen")
    assert data_of(tmp_path / "page.html")["up"] == [0, 0, 1]


def test_cameras_without_a_pose_keep_their_place_for_the_lines(tmp_path: Path):
    nan = float("nan")
    truth = CameraGroup("truth", "green", cameras((0, 0, 0), (1, 0, 0)), ["a", "b"])
    answer = CameraGroup("answer", "blue", cameras((nan, nan, nan), (1.1, 0, 0)), ["not localized", "b"])
    write_cameras_page(tmp_path / "page.html", [truth, answer], title="Kitchen", lines=[(0, 1)])
    data = data_of(tmp_path / "page.html")
    assert [camera is None for camera in data["groups"][1]["cameras"]] == [True, False]
    assert data["lines"] == [[0, 1]]


def test_names_from_outside_stay_text(tmp_path: Path):
    evil = "<!--<script>.png</script><script>alert(1)</script>"
    group = CameraGroup(evil, "#98a1ad", cameras((0, 0, 0)), [evil])
    write_cameras_page(tmp_path / "page.html", [group], title=evil)
    page = (tmp_path / "page.html").read_text()
    assert evil not in page
    assert data_of(tmp_path / "page.html")["groups"][0]["cameras"][0]["caption"] == evil


def test_a_title_that_looks_like_a_place_for_data_stays_a_title(tmp_path: Path):
    group = CameraGroup("map", "#98a1ad", cameras((0, 0, 0)), ['"><img src=x onerror=alert(1)>'])
    write_cameras_page(tmp_path / "page.html", [group], title="{{data}}")
    page = (tmp_path / "page.html").read_text()
    assert 'aria-label="{{data}}"' in page
    assert page.count("onerror") == 1


def test_cameras_of_one_photo_share_it(tmp_path: Path):
    Image.new("RGB", (64, 48)).save(tmp_path / "photo.png")
    pose = cameras((0, 0, 0))
    frame = Frame("photo.png", pose[0], FileSource(tmp_path / "photo.png"))
    groups = [CameraGroup(name, "grey", pose, ["photo"], frames=[frame]) for name in ("truth", "answer")]
    write_cameras_page(tmp_path / "page.html", groups, title="Kitchen")
    assert len(data_of(tmp_path / "page.html")["photos"]) == 1


def test_photos_are_small_and_inside_the_file(tmp_path: Path):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (640, 480), (200, 30, 30)).save(photo)
    pose = cameras((0, 0, 0))
    frame = Frame("photo.png", pose[0], FileSource(photo))
    write_cameras_page(
        tmp_path / "page.html", [CameraGroup("map", "grey", pose, ["photo"], frames=[frame])], title="Kitchen"
    )
    data = data_of(tmp_path / "page.html")
    assert data["groups"][0]["cameras"][0]["photo"] == 0
    (url,) = data["photos"]
    inside = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))))
    assert inside.size == (200, 150)
    np.testing.assert_allclose(np.asarray(inside).mean(axis=(0, 1)), [200, 30, 30], atol=4)


def test_a_step_of_the_slider_shows_its_photo_though_it_has_no_place(tmp_path: Path):
    Image.new("RGB", (64, 48)).save(tmp_path / "photo.png")
    (tmp_path / "damaged.png").write_bytes((tmp_path / "photo.png").read_bytes()[:40])
    lost = cameras((math.nan, 0, 0), (math.nan, 0, 0), (0, 0, 0))
    names = ["photo.png", "damaged.png", "none.png"]
    frames = [Frame(name, Pose.identity(), FileSource(tmp_path / name)) for name in names[:2]]
    group = CameraGroup("answers", "grey", lost, names, frames=[*frames, None])
    write_cameras_page(tmp_path / "page.html", [group], title="Kitchen", slider=Slider("query", names, [0]))
    data = data_of(tmp_path / "page.html")
    assert data["slider"]["photos"] == [0, None, None]
    assert len(data["photos"]) == 1


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path):
    write_cameras_page(tmp_path / "page.html", [CameraGroup("map", "grey", cameras((0, 0, 0)), ["a"])], title="Kitchen")
    assert not re.search(r"https?:|src=\"(?!data:)|@import|url\(", (tmp_path / "page.html").read_text())


def test_groups_that_do_not_fit_are_refused(tmp_path: Path):
    with pytest.raises(GeometryError, match="found 1 captions"):
        CameraGroup("map", "grey", cameras((0, 0, 0), (1, 0, 0)), ["a"])
    groups = [
        CameraGroup("truth", "green", cameras((0, 0, 0), (1, 0, 0)), ["a", "b"]),
        CameraGroup("answer", "blue", cameras((0, 0, 0)), ["a"]),
    ]
    with pytest.raises(GeometryError, match="as many cameras in both to join them, found 2 and 1"):
        write_cameras_page(tmp_path / "page.html", groups, title="Kitchen", lines=[(0, 1)])
    with pytest.raises(GeometryError, match="answer: expected a camera for each of 2 steps of the slider, found 1"):
        write_cameras_page(tmp_path / "page.html", groups, title="Kitchen", slider=Slider("query", ["a", "b"], [0, 1]))
    slider = Slider("query", ["a", "b"], [0], 1, [[0]])
    with pytest.raises(GeometryError, match="query: expected related cameras for each of 2 steps, found those of 1"):
        write_cameras_page(tmp_path / "page.html", groups, title="Kitchen", slider=slider)
    assert not (tmp_path / "page.html").exists()
