"""Answers as other software reads them: evo, pycolmap, and our own readers."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_answers import QUAT_WXYZ, T_WORLD_CAM, localized, named, refused
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import ConfigError, DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.localization.answer_files import (
    NamedAnswer,
    PoseWording,
    format_of,
    read_body_file,
    writing_answers,
)
from relograph.scenes import open_scene

REFUSED = NamedAnswer("b.jpg", refused("No match.\nAt all."), size_wh=(640, 480))
ELSEWHERE = NamedAnswer("c.jpg", localized(Pose.from_axis_angle([0.3, 0.2, 0.1], [4.0, 5.0, 6.0])), size_wh=(640, 480))


def written(path: Path, *answers: NamedAnswer, wording: PoseWording | None = None) -> str:
    with writing_answers(path, format_of(path, None), wording or PoseWording()) as writer:
        for answer in answers:
            writer.write(answer)
    return path.read_text()


def test_json_lines_hold_all_that_is_known(tmp_path):
    lines = written(tmp_path / "a.jsonl", named(timestamp_s=0.5), REFUSED).splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first["name"] == "a.jpg"
    assert first["timestamp_s"] == 0.5
    assert first["localized"] is True
    assert first["T_world_cam"] == T_WORLD_CAM.matrix().tolist()
    assert first["quat_wxyz"] == QUAT_WXYZ
    assert first["cam_center_world"] == [1.0, 2.0, 3.0]
    assert first["position_sigma_m"] == pytest.approx(0.2)
    assert first["rotation_sigma_deg"] == pytest.approx(math.degrees(0.02))
    assert torch.tensor(first["covariance"]).diagonal().tolist() == pytest.approx([1e-4, 1e-4, 4e-4, 0.01, 0.04, 0.01])
    assert first["references"][0]["name"] == "seq-01/a.png"
    assert first["references"][0]["num_inliers"] == 120
    assert first["seconds"] == {"encode": 0.04, "match": 0.1}
    assert (first["num_inliers"], first["focal_px"], first["confidence"]) == (120, 500.0, 0.9)
    assert second["localized"] is False
    assert second["reason"] == "No match.\nAt all."
    assert second["T_world_cam"] is second["quat_wxyz"] is second["covariance"] is second["position_sigma_m"] is None


def test_csv_is_read_again_as_poses_csv_with_its_axes(tmp_path):
    Image.new("RGB", (640, 480)).save(tmp_path / "a.jpg")
    for axes in ("opencv", "opengl", "unity", "ros"):
        (tmp_path / "poses.csv").unlink(missing_ok=True)
        written(tmp_path / "poses.csv", named(), wording=PoseWording(axes))
        read = open_scene(tmp_path)[0].T_world_cam
        assert_allclose(read.matrix(), T_WORLD_CAM.matrix(), atol=1e-12)


def test_csv_has_a_row_for_every_query(tmp_path):
    text = written(tmp_path / "a.csv", named(), REFUSED)
    rows = list(csv.DictReader(line for line in text.splitlines(keepends=True) if not line.startswith("#")))
    assert [row["localized"] for row in rows] == ["true", "false"]
    assert [float(rows[0][column]) for column in ("tx", "ty", "tz", "qw", "qx", "qy", "qz")] == [1, 2, 3, *QUAT_WXYZ]
    assert float(rows[0]["position_sigma_m"]) == pytest.approx(0.2)
    assert rows[1]["tx"] == rows[1]["position_sigma_m"] == ""
    assert rows[1]["reason"] == "No match.\nAt all."


def test_a_tum_trajectory_is_read_by_evo_and_says_how_many_were_refused(tmp_path):
    evo = pytest.importorskip("evo.tools.file_interface", reason="no evo: pip install 'relograph[dev]'")
    text = written(
        tmp_path / "a.tum",
        named(timestamp_s=0.5),
        replace(REFUSED, timestamp_s=0.6),
        replace(ELSEWHERE, timestamp_s=0.7),
    )
    trajectory = evo.read_tum_trajectory_file(str(tmp_path / "a.tum"))
    assert trajectory.timestamps.tolist() == [0.5, 0.7]
    assert_allclose(trajectory.poses_se3[0], T_WORLD_CAM.matrix(), atol=1e-12)
    assert_allclose(trajectory.poses_se3[1], ELSEWHERE.answer.T_world_cam.matrix(), atol=1e-12)
    assert "# not localized: b.jpg: No match. At all.\n" in text
    assert text.endswith("# 1 of 3 queries were refused and have no pose here\n")


def test_photos_without_times_are_numbered_in_a_trajectory(tmp_path):
    text = written(tmp_path / "a.tum", named(), REFUSED, ELSEWHERE)
    assert [line.split()[0] for line in text.splitlines() if not line.startswith("#")] == ["0.0", "2.0"]


def test_a_colmap_model_is_read_by_pycolmap(tmp_path):
    pycolmap = pytest.importorskip("pycolmap", reason="no pycolmap: pip install 'relograph[geometry]'")
    lens = Camera(320, 240, 250.0, 251.0, 160.0, 120.0, (0.1, 0.0, 0.0, 0.0), "opencv")
    nothing_known = NamedAnswer("d.jpg", localized(focal_px=None), size_wh=(640, 480))
    answers = [named(), REFUSED, ELSEWHERE, named("e.jpg", camera=lens), nothing_known, named("two words.jpg")]
    text = written(tmp_path / "images.txt", *answers)
    model = pycolmap.Reconstruction(tmp_path)
    assert sorted(image.name for image in model.images.values()) == ["a.jpg", "c.jpg", "e.jpg"]
    for image in model.images.values():
        T_world_cam = next(answer.answer.T_world_cam for answer in answers if answer.name == image.name)
        assert_allclose(image.cam_from_world().inverse().matrix(), T_world_cam.matrix()[:3], atol=1e-12)
    by_name = {image.name: model.cameras[image.camera_id] for image in model.images.values()}
    assert by_name["a.jpg"].params.tolist() == [500.0, 500.0, 320.0, 240.0]
    assert by_name["a.jpg"].camera_id == by_name["c.jpg"].camera_id
    # What was told of the camera, for a photo of twice the size.
    assert by_name["e.jpg"].params.tolist() == [500.0, 502.0, 320.0, 240.0, 0.1, 0.0, 0.0, 0.0]
    assert text.endswith("# 3 of 6 queries were refused and have no pose here\n")
    assert "# not localized: d.jpg: COLMAP needs a focal length" in text


# Columns: where the camera's axes point in the world, and its centre; tests/geometry/test_axes.py has all of them.
BY_HAND = {
    ("unity", (640, 480)): [[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, -3], [0, 0, 0, 1]],
    ("arkit", (640, 480)): [[0, 0, -1, 1], [-1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]],
    ("arkit", (480, 640)): [[0, 0, -1, 1], [0, -1, 0, 2], [-1, 0, 0, 3], [0, 0, 0, 1]],
    ("ros", (480, 640)): [[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1]],
}


@pytest.mark.parametrize(("axes", "size_wh"), BY_HAND)
def test_poses_are_said_along_the_axes_asked_for(tmp_path, axes, size_wh):
    line = written(tmp_path / "a.jsonl", replace(named(), size_wh=size_wh), wording=PoseWording(axes))
    assert json.loads(line)["T_world_cam"] == BY_HAND[axes, size_wh]
    assert json.loads(line)["axes"] == axes


def test_a_body_is_said_instead_of_its_camera(tmp_path):
    """A robot with ROS's axes: its camera looks ahead from half a metre above it and 0.2 m before it."""
    (tmp_path / "body.txt").write_text("0 0 1 0.2\n-1 0 0 0\n0 -1 0 0.5\n0 0 0 1\n")
    wording = PoseWording(T_body_cam=read_body_file(tmp_path / "body.txt"))
    document = json.loads(written(tmp_path / "a.jsonl", named(), wording=wording))
    assert document["T_world_cam"] == T_WORLD_CAM.matrix().tolist()
    # It looks along the world's x axis, too: the robot stands 0.2 m behind the camera and 0.5 m below it.
    assert_allclose(document["body"]["T_world_body"], [[1, 0, 0, 0.8], [0, 1, 0, 2], [0, 0, 1, 2.5], [0, 0, 0, 1]])
    assert document["body"]["body_center_world"] == [row[3] for row in document["body"]["T_world_body"][:3]]
    assert document["cam_center_world"] == [1.0, 2.0, 3.0]
    values = written(tmp_path / "a.tum", named(), wording=wording).splitlines()[1].split()
    assert [float(value) for value in values] == pytest.approx([0, 0.8, 2, 2.5, 0, 0, 0, 1])


@pytest.mark.parametrize("text", ["1 2 3", "1 0 0 0 0 1 0 0 0 0 -1 0 0 0 0 1", "a" * 16])
def test_what_is_no_body_is_said(tmp_path, text):
    (tmp_path / "body.txt").write_text(text)
    with pytest.raises((DatasetError, GeometryError), match=r"body\.txt") as caught:
        read_body_file(tmp_path / "body.txt")
    assert "\n" not in str(caught.value)


def test_choices_that_do_not_go_together_are_said(tmp_path):
    with pytest.raises(ConfigError, match="axes of its own"):
        PoseWording("ros", Pose.identity())
    with (
        pytest.raises(ConfigError, match="for COLMAP"),
        writing_answers(tmp_path / "images.txt", "colmap", PoseWording("ros")),
    ):
        pass
    with pytest.raises(ConfigError, match=r"called images\.txt"), writing_answers(None, "colmap", PoseWording()):
        pass
    with pytest.raises(ConfigError, match="expected the format jsonl, csv, tum, colmap, got 'xml'"):
        format_of(None, "xml")
    with pytest.raises(ConfigError, match=r"found '\.xyz'"):
        format_of(Path("a.xyz"), None)


def test_the_name_of_a_file_tells_its_format():
    names = {"a.jsonl": "jsonl", "a.CSV": "csv", "a.tum": "tum", "x/images.txt": "colmap"}
    assert {name: format_of(Path(name), None) for name in names} == names
    assert format_of(None, None) == "jsonl"
    assert format_of(Path("trajectory.txt"), "tum") == "tum"


def test_answers_that_are_there_already_are_not_written_over(tmp_path):
    before = written(tmp_path / "a.jsonl", named())
    with pytest.raises(DatasetError, match="there already"):
        written(tmp_path / "a.jsonl", REFUSED)
    assert (tmp_path / "a.jsonl").read_text() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="expected to write answers here"):
        written(tmp_path / "file" / "a.jsonl", named())


def test_an_unknown_scale_is_said_in_every_format(tmp_path):
    wording = PoseWording(scale_is_known=False)
    assert json.loads(written(tmp_path / "a.jsonl", named(), wording=wording))["scale_is_known"] is False
    for name in ("a.csv", "a.tum", "images.txt"):
        assert "scale is not known" in written(tmp_path / name, named(), wording=wording)


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from made_answers import named
from relograph.localization.answer_files import PoseWording, format_of, writing_answers
path = Path(sys.argv[2])
with writing_answers(path, format_of(path, None), PoseWording()) as writer:
    for index in range(7):
        writer.write(named(f"{index}.jpg"))
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["a.jsonl", "images.txt"])
def test_a_kill_loses_no_answer_that_was_given(tmp_path, name):
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    lines = [line for line in (tmp_path / name).read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == 7
    assert "6.jpg" in lines[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here, which is a full disk")
def test_a_full_disk_is_said_in_one_line():
    with (
        pytest.raises(DatasetError, match="/dev/full: expected to write answers here, found: No space left"),
        writing_answers(Path("/dev/full"), "jsonl", PoseWording()) as writer,
    ):
        writer.write(named())
