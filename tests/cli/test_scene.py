"""`relograph scene info` and `relograph scene check` on a scene of three frames."""

import re
from pathlib import Path

from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.scenes.converting import convert
from relograph.scenes.reconstruction_file import write_reconstruction_file


def invoke(*arguments: str | Path):
    return CliRunner().invoke(app, ["scene", *map(str, arguments)])


def test_info_tells_frames_extent_sequences_and_warnings(seven_scenes_folder: Path):
    done = invoke("info", seven_scenes_folder)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"kitchen (7scenes) in {seven_scenes_folder}",
        "  frames     3: 2 train, 1 test; 3 with depth",
        "  photos     32x24",
        "  extent     x 0.00 to 2.00 m, y 0.00 to 0.00 m, z 0.00 to 0.00 m; 1.00 m walked",
        "  sequence   seq-01: 2 frames, train, 1.00 m",
        "  sequence   seq-02: 1 frame, test, 0.00 m",
        "  warning    No frame has intrinsics; give the focal length in pixels with focal_px= (--focal).",
    ]


def test_info_of_a_scene_whose_scale_is_not_known_does_not_speak_of_metres(seven_scenes_folder: Path, tmp_path: Path):
    convert(seven_scenes_folder, tmp_path / "colmap", to="colmap", focal_px=30)
    write_reconstruction_file(tmp_path / "colmap", "unknown", {})
    lines = invoke("info", tmp_path / "colmap").stdout
    assert "to 2.00 units, y" in lines
    assert not re.search(r"\d m\b", lines)


def test_info_shows_the_camera_that_the_focal_length_makes(seven_scenes_folder: Path):
    done = invoke("info", seven_scenes_folder, "--focal", "30")
    assert "  camera     pinhole 32x24, fx 30.00 fy 30.00 cx 16.00 cy 12.00 px; 3 frames" in done.stdout.splitlines()
    assert "warning" not in done.stdout


def test_info_reads_a_scene_as_the_format_that_is_asked_for(seven_scenes_folder: Path):
    done = invoke("info", seven_scenes_folder, "--format", "7scene")
    assert done.exit_code == 1
    assert "'7scenes'" in done.stderr


def test_check_says_that_a_good_scene_is_good(seven_scenes_folder: Path):
    done = invoke("check", seven_scenes_folder)
    assert done.exit_code == 0
    assert done.stdout == f"{seven_scenes_folder}: 3 frames, nothing wrong.\n"


def test_check_names_every_bad_file_and_exits_with_1(seven_scenes_folder: Path):
    (seven_scenes_folder / "seq-01" / "frame-000000.color.png").write_bytes(b"no image")
    (seven_scenes_folder / "seq-02" / "frame-000000.pose.txt").write_text("1 0 0")
    done = invoke("check", seven_scenes_folder)
    assert done.exit_code == 1
    assert "seq-01/frame-000000.color.png" in done.stdout
    assert "seq-02/frame-000000.pose.txt" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {seven_scenes_folder}: expected every pose")
    assert "found 2 problems" in last


def test_a_bad_pose_stops_info_unless_bad_frames_are_skipped(seven_scenes_folder: Path):
    (seven_scenes_folder / "seq-02" / "frame-000000.pose.txt").write_text("1 0 0")
    stopped = invoke("info", seven_scenes_folder)
    assert stopped.exit_code == 1
    assert "frame-000000.pose.txt" in stopped.stderr
    skipped = invoke("info", seven_scenes_folder, "--skip-bad-frames")
    assert skipped.exit_code == 0
    assert "frames     2: 2 train, 0 test" in skipped.stdout
    assert "frame-000000.pose.txt" in skipped.stdout
