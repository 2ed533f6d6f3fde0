"""Folders that appear whole or not at all, photos and depth maps in them, numbers that lose no digit."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from PIL import Image
from tiny_scenes import HEIGHT, WIDTH, write_photo

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.writing import exact, place_depth, place_image, writing_folder


class Interrupted(BaseException):
    """What Ctrl-C is to a program: no Exception."""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def frame_of(path: Path, member: str | None = None, depth: DepthSource | None = None) -> Frame:
    return Frame("a.png", Pose.identity(), FileSource(path, member), depth=depth)


# Folders


def test_nothing_is_there_before_the_end_and_everything_after(tmp_path):
    with writing_folder(tmp_path / "scene") as folder:
        (folder / "deep").mkdir()
        (folder / "deep/file.txt").write_text("whole")
        assert not (tmp_path / "scene").exists()
    assert (tmp_path / "scene/deep/file.txt").read_text() == "whole"
    assert names_in(tmp_path) == ["scene"]


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_an_error_leaves_the_disk_as_it_was(tmp_path, error):
    def fail() -> None:
        with writing_folder(tmp_path / "new/parents/scene") as folder:
            (folder / "file.txt").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names_in(tmp_path) == []


def test_folders_above_that_were_there_stay_after_an_error(tmp_path):
    (tmp_path / "mine").mkdir()

    def fail() -> None:
        with writing_folder(tmp_path / "mine/scene"):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - raised above, without a message
        fail()
    assert (tmp_path / "mine").is_dir()


def test_an_empty_folder_is_taken_over(tmp_path):
    (tmp_path / "scene").mkdir()
    with writing_folder(tmp_path / "scene") as folder:
        (folder / "file.txt").write_text("whole")
    assert names_in(tmp_path / "scene") == ["file.txt"]


def test_a_folder_with_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "scene").mkdir()
    (tmp_path / "scene/mine.txt").write_text("precious")
    with pytest.raises(DatasetError, match="one that holds files"), writing_folder(tmp_path / "scene"):
        pytest.fail("the block must not begin")
    assert (tmp_path / "scene/mine.txt").read_text() == "precious"
    assert names_in(tmp_path) == ["scene"]


def test_a_folder_that_is_filled_meanwhile_is_left_alone(tmp_path):
    def collide() -> None:
        with writing_folder(tmp_path / "scene") as folder:
            (folder / "ours.txt").write_text("late")
            (tmp_path / "scene").mkdir()
            (tmp_path / "scene/theirs.txt").write_text("early")

    with pytest.raises(DatasetError, match="not empty"):
        collide()
    assert names_in(tmp_path) == ["scene"]
    assert names_in(tmp_path / "scene") == ["theirs.txt"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "scene").write_text("a file")
    with pytest.raises(DatasetError, match="found a file"), writing_folder(tmp_path / "scene"):
        pytest.fail("the block must not begin")
    with (
        pytest.raises(DatasetError, match=r"scene: expected a folder to write into, found a file"),
        writing_folder(tmp_path / "scene/below"),
    ):
        pytest.fail("the block must not begin")
    assert (tmp_path / "scene").read_text() == "a file"


def test_a_write_that_the_disk_refuses_is_one_clear_line(tmp_path):
    def write_too_long_a_name() -> None:
        with writing_folder(tmp_path / "scene") as folder:
            (folder / ("n" * 300)).write_text("")

    with pytest.raises(DatasetError, match="File name too long") as caught:
        write_too_long_a_name()
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "scene").symlink_to(tmp_path / "disk")
    with writing_folder(tmp_path / "scene") as folder:
        (folder / "file.txt").write_text("whole")
    assert (tmp_path / "scene").is_symlink()
    assert (tmp_path / "disk/file.txt").read_text() == "whole"


def test_the_folder_has_the_rights_that_folders_usually_get(tmp_path):
    with writing_folder(tmp_path / "scene"):
        pass
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "scene").stat().st_mode == (tmp_path / "usual").stat().st_mode


# Photos


def test_a_copied_photo_has_the_same_bytes(tmp_path):
    write_photo(tmp_path / "source.png")
    place_image(frame_of(tmp_path / "source.png"), tmp_path / "deep/a.png", "copy")
    assert (tmp_path / "deep/a.png").read_bytes() == (tmp_path / "source.png").read_bytes()
    assert not (tmp_path / "deep/a.png").is_symlink()


def test_a_linked_photo_points_to_its_source_wherever_the_link_is_moved(tmp_path, monkeypatch):
    write_photo(tmp_path / "source.png")
    monkeypatch.chdir(tmp_path)
    place_image(frame_of(Path("source.png")), tmp_path / "deep/a.png", "link")
    (tmp_path / "deep/a.png").rename(tmp_path / "moved.png")
    assert (tmp_path / "moved.png").resolve() == tmp_path / "source.png"


def test_photos_that_are_not_wanted_are_not_written(tmp_path):
    place_image(frame_of(tmp_path / "not even there.png"), tmp_path / "deep/a.png", "none")
    assert names_in(tmp_path) == []


def test_a_photo_in_a_zip_is_copied_where_links_are_asked_for(tmp_path):
    write_photo(tmp_path / "source.png")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(tmp_path / "source.png", "inside.png")
    place_image(frame_of(tmp_path / "photos.zip", "inside.png"), tmp_path / "a.png", "link")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "source.png").read_bytes()


@pytest.mark.parametrize("images", ["copy", "link"])
def test_a_photo_that_exif_turns_is_written_upright_for_tools_that_do_not_look(tmp_path, images):
    exif = Image.Exif()
    exif[0x0112] = 6
    write_photo(tmp_path / "source.png", exif=exif)
    frame = frame_of(tmp_path / "source.png")
    place_image(frame, tmp_path / "a.png", images)
    with Image.open(tmp_path / "a.png") as photo:
        assert photo.getexif().get(0x0112, 1) == 1
        assert_array_equal(np.asarray(photo), frame.read_image())
        assert photo.size == (HEIGHT, WIDTH)


@pytest.mark.parametrize(("ending", "error"), [(".jpg", 16), (".webp", 32), (".tif", 0), (".PNG", 0), (".photo", 0)])
def test_a_photo_that_exif_turns_stays_in_the_format_of_its_ending(tmp_path, ending, error):
    exif = Image.Exif()
    exif[0x0112] = 6
    source = tmp_path / f"source{ending}"
    gradient = np.linspace(0, 255, HEIGHT * WIDTH * 3).reshape(HEIGHT, WIDTH, 3).astype(np.uint8)
    Image.fromarray(gradient).save(source, format=None if ending != ".photo" else "PNG", exif=exif)
    frame = frame_of(source)
    place_image(frame, tmp_path / f"a{ending}", "copy")
    written = frame_of(tmp_path / f"a{ending}")
    assert written.image.read_image_header().orientation == 1
    difference = np.abs(written.read_image().astype(int) - frame.read_image())
    assert difference.max() <= error
    with Image.open(source) as before, Image.open(tmp_path / f"a{ending}") as after:
        assert after.format == before.format


# Depth


def depth_frame(tmp_path: Path, millimetres: np.ndarray, quarter_turns: int = 0) -> Frame:
    Image.fromarray(millimetres.astype(np.uint16)).save(tmp_path / "mm.png")
    source = DepthSource(FileSource(tmp_path / "mm.png"), quarter_turns=quarter_turns)
    return frame_of(tmp_path / "a.png", depth=source)


def test_a_depth_map_in_the_wanted_unit_is_linked_as_it_is(tmp_path):
    frame = depth_frame(tmp_path, np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH))
    place_depth(frame, tmp_path / "d.png", "link", metres_per_unit=0.001)
    assert (tmp_path / "d.png").resolve() == tmp_path / "mm.png"


def test_a_depth_map_with_other_marks_of_the_unknown_is_written_with_zeros(tmp_path):
    millimetres = np.full((HEIGHT, WIDTH), 1500)
    millimetres[0, 0] = 65535
    place_depth(depth_frame(tmp_path, millimetres), tmp_path / "d.png", "link", metres_per_unit=0.001)
    with Image.open(tmp_path / "d.png") as stored:
        assert_array_equal(np.asarray(stored), np.where(millimetres == 65535, 0, 1500))


def test_a_depth_map_is_rescaled_and_turned_with_its_photo(tmp_path):
    millimetres = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH)
    place_depth(
        depth_frame(tmp_path, millimetres, quarter_turns=1), tmp_path / "d.png", "copy", metres_per_unit=1 / 5000
    )
    with Image.open(tmp_path / "d.png") as stored:
        assert_array_equal(np.asarray(stored), np.rot90(5 * millimetres))


# Numbers


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_written_numbers_read_back_bit_for_bit(values):
    assert [float(token).hex() for token in exact(values).split(" ")] == [value.hex() for value in values]


def test_numpys_numbers_are_written_like_pythons():
    assert exact(np.array([0.1, 2.0])) == "0.1 2.0"
