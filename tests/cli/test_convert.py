"""`relograph convert` and what its options do."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relograph import open_scene
from relograph.cli.app import app
from relograph.cli.convert import Format, Images
from relograph.scenes.converting import WRITERS
from relograph.scenes.opening import FORMATS


def convert(*arguments: str | Path):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_the_formats_that_can_be_asked_for_are_those_that_can_be_written():
    assert [format.value for format in Format] == list(WRITERS)


def test_the_help_names_every_format_that_can_be_read():
    help_text = CliRunner().invoke(app, ["scene", "info", "--help"], terminal_width=300).stdout
    assert [name for name in FORMATS if name not in help_text] == []


@pytest.mark.parametrize("to", Format)
def test_frames_and_camera_centres_survive(seven_scenes_folder: Path, tmp_path: Path, to: Format):
    done = convert(seven_scenes_folder, tmp_path / "converted", "--to", to.value, "--focal", "30")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'converted'}: 3 frames, written as {to.value}.\n"
    scene = open_scene(tmp_path / "converted")
    assert scene.format == to.value
    assert [frame.name for frame in scene] == [frame.name for frame in open_scene(seven_scenes_folder)]
    assert scene.T_world_cam.t.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]


def test_linked_photos_are_links_to_the_source(seven_scenes_folder: Path, tmp_path: Path):
    convert(
        seven_scenes_folder, tmp_path / "linked", "--to", "transforms.json", "--images", Images.LINK, "--focal", "30"
    )
    photo = tmp_path / "linked" / "images" / "seq-02" / "frame-000000.color.png"
    assert photo.is_symlink()
    assert photo.resolve() == (seven_scenes_folder / "seq-02" / "frame-000000.color.png").resolve()


def test_a_folder_that_holds_something_is_refused_and_left_as_it_was(seven_scenes_folder: Path, tmp_path: Path):
    precious = tmp_path / "full" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    done = convert(seven_scenes_folder, precious.parent, "--to", "tum")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert list(precious.parent.iterdir()) == [precious]
    assert precious.read_text() == "mine"


def test_bad_frames_are_named_when_they_are_skipped(seven_scenes_folder: Path, tmp_path: Path):
    (seven_scenes_folder / "seq-01" / "frame-000001.pose.txt").write_text("nan " * 16)
    stopped = convert(seven_scenes_folder, tmp_path / "out", "--to", "tum")
    assert stopped.exit_code == 1
    assert not (tmp_path / "out").exists()
    skipped = convert(seven_scenes_folder, tmp_path / "out", "--to", "tum", "--skip-bad-frames")
    assert skipped.exit_code == 0
    assert "frame-000001.pose.txt" in skipped.stderr
    assert len(open_scene(tmp_path / "out")) == 2


def test_a_missing_package_is_answered_with_the_extra_that_brings_it(seven_scenes_folder: Path, tmp_path: Path):
    model = tmp_path / "model"
    assert convert(seven_scenes_folder, model, "--to", "colmap", "--focal", "30").exit_code == 0
    script = (
        "import sys\n"
        "class NotInstalled:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pycolmap': raise ModuleNotFoundError(\"No module named 'pycolmap'\", name='pycolmap')\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        f"sys.argv = ['relograph', 'scene', 'info', {str(model)!r}]\n"
        "from relograph.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("Run: pip install 'relograph[geometry]'\n")
