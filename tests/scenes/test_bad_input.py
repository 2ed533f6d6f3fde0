"""Bad input of every kind, in every format it can occur in, is answered with one clear line.

Each row of the tables damages the tiny scene in one way. Whatever reads it then, opening or looking at its pixels, must
say what was expected, what was found and where, in one line, and must leave every file as it was.
"""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from tiny_scenes import FRAMES, HEIGHT, WIDTH, WRITERS, png_bomb

from relograph.errors import RelographError
from relograph.scenes import Scene, open_scene

VICTIM = FRAMES[1].name
PHOTO_FOLDERS = {"7scenes": "", "cambridge": "", "poses.csv": "photos", "colmap": "images", "tum": "rgb"}
NAN, INF = float("nan"), float("inf")


# How each format is edited


def photo_path(root: Path, format: str) -> Path:
    return root / PHOTO_FOLDERS.get(format.split(" ")[0], "images") / VICTIM


def replace_in_zip(path: Path, replacements: dict[str, bytes | None], rename: dict[str, str] | None = None) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, **replacements}.items():
            if data is not None:
                archive.writestr((rename or {}).get(name, name), data)


def replace_photo(root: Path, format: str, data: bytes | None) -> None:
    """Puts other bytes in the place of the victim's photo, or nothing."""
    if format == "7scenes zipped":
        replace_in_zip(root / "seq-01.zip", {VICTIM: data})
    elif data is None:
        photo_path(root, format).unlink()
    else:
        photo_path(root, format).write_bytes(data)


def read_photo(root: Path, format: str) -> bytes:
    if format == "7scenes zipped":
        with zipfile.ZipFile(root / "seq-01.zip") as archive:
            return archive.read(VICTIM)
    return photo_path(root, format).read_bytes()


def edit_line(path: Path, edit: Callable[[str], list[str]], mark: str = VICTIM) -> None:
    """Replaces the line with `mark` in it by other lines."""
    lines = path.read_text().split("\n")
    (index,) = [index for index, line in enumerate(lines) if mark in line]
    lines[index : index + 1] = edit(lines[index])
    path.write_text("\n".join(lines))


def list_file(root: Path, format: str) -> tuple[Path, str]:
    """The text file with a line for each frame, and what marks the victim's line in it."""
    kind = format.split(" ")[0]
    paths = {"cambridge": "dataset_train.txt", "poses.csv": "poses.csv", "colmap": "sparse/0/images.txt"}
    if kind == "tum":
        return root / "groundtruth.txt", "100.033333"
    return root / paths[kind], VICTIM


FIRST_NUMBER = {"cambridge": 1, "poses.csv": 1, "poses.csv matrices": 1, "colmap text": 1, "tum": 1}
QUATERNION = {
    "cambridge": slice(3, 7),
    "poses.csv": slice(3, 7),
    "colmap text": slice(0, 4),
    "colmap binary": slice(0, 4),
}
QUATERNION["tum"] = slice(3, 7)
MATRIX_FORMATS = ("7scenes", "7scenes zipped", "poses.csv matrices", "transforms.json")


def edit_pose(root: Path, format: str, edit: Callable[[list[float]], list[float]]) -> None:
    """Replaces the numbers of the victim's pose, 16 of a matrix or 7 of a quaternion and a translation."""
    if format in ("7scenes", "7scenes zipped"):
        text = " ".join(map(repr, edit(list(FRAMES[1].matrix.ravel().tolist())))) + "\n"
        name = VICTIM.replace(".color.png", ".pose.txt")
        if format == "7scenes":
            (root / name).write_text(text)
        else:
            replace_in_zip(root / "seq-01.zip", {name: text.encode()})
    elif format == "transforms.json":
        settings = json.loads((root / "transforms.json").read_text())
        values = edit(np.ravel(settings["frames"][1]["transform_matrix"]).tolist())
        settings["frames"][1]["transform_matrix"] = [values[:4], values[4:8], values[8:12], values[12:]]
        (root / "transforms.json").write_text(json.dumps(settings))
    elif format == "colmap binary":
        path = root / "sparse" / "0" / "images.bin"
        data = path.read_bytes()
        start = data.index(struct.pack("<I", 2), data.index(FRAMES[0].name.encode())) + 4
        values = edit(list(struct.unpack_from("<7d", data, start)))
        path.write_bytes(data[:start] + struct.pack(f"<{len(values)}d", *values) + data[start + 56 :])
    else:
        path, mark = list_file(root, format)
        separator = "," if format.startswith("poses.csv") else " "
        count = 16 if format in MATRIX_FORMATS else 7

        def edit_numbers(line: str) -> list[str]:
            tokens, first = line.split(separator), FIRST_NUMBER[format]
            values = edit([float(token) for token in tokens[first : first + count]])
            return [separator.join([*tokens[:first], *map(repr, values), *tokens[first + count :]])]

        edit_line(path, edit_numbers, mark)


def edit_names(root: Path, format: str, name: str) -> None:
    """Gives the victim another name, where names are written in files."""
    if format == "7scenes zipped":
        replace_in_zip(root / "seq-01.zip", {}, rename={VICTIM: name})
    elif format == "transforms.json":
        text = (root / "transforms.json").read_text()
        (root / "transforms.json").write_text(text.replace(f"images/{VICTIM}", name))
    elif format == "colmap binary":
        path = root / "sparse" / "0" / "images.bin"
        path.write_bytes(path.read_bytes().replace(VICTIM.encode(), name.encode()))
    elif format == "tum":
        path = root / "rgb.txt"
        path.write_text(path.read_text().replace(f"rgb/{VICTIM}", name))
    else:
        path, _ = list_file(root, format)
        path.write_text(path.read_text().replace(VICTIM, name))


def image_bytes(image: Image.Image, format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


# The answer


def look_at_everything(root: Path) -> Scene:
    """What reads all there is: every pose, every photo, every depth map."""
    scene = open_scene(root)
    for frame in scene:
        frame.read_image()
        if frame.depth is not None:
            frame.read_depth_m()
    return scene


def files_under(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def assert_answered_with_one_clear_line(root: Path, message: str) -> None:
    before = files_under(root)
    with pytest.raises(RelographError) as caught:
        look_at_everything(root)
    line = str(caught.value)
    assert re.search(message, line)
    assert "\n" not in line
    assert re.search(r"expected|Focal|distortion", line), "says what was expected"
    assert line.count(". ") >= 1, "says what to do"
    assert files_under(root) == before


# Photos

BAD_PHOTOS = {
    "missing": (lambda data: None, r"frame-000001(\.color\.png)?.*(found nothing there|found none)"),
    "truncated": (lambda data: data[: len(data) // 2], r"frame-000001\.color\.png.*found a damaged one"),
    "zero bytes": (lambda data: b"", r"frame-000001\.color\.png.*0 bytes"),
    "one pixel": (lambda data: image_bytes(Image.new("RGB", (1, 1))), r"frame-000001\.color\.png.*1 x 1"),
    "decompression bomb": (lambda data: png_bomb(), r"frame-000001\.color\.png.*100000 x 100000"),
    "no photo": (lambda data: b"<html>404 Not Found</html>", r"frame-000001\.color\.png.*expected a photo as JPEG"),
}


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("kind", BAD_PHOTOS)
def test_bad_photo(tiny_scene, kind, format):
    root = tiny_scene(format)
    damage, message = BAD_PHOTOS[kind]
    replace_photo(root, format, damage(read_photo(root, format)))
    assert_answered_with_one_clear_line(root, message)


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("kind", ["missing", "zero bytes"])
def test_a_frame_whose_photo_is_not_there_is_left_out_on_request(tiny_scene, kind, format):
    root = tiny_scene(format)
    replace_photo(root, format, BAD_PHOTOS[kind][0](b""))
    scene = open_scene(root, skip_bad_frames=True)
    assert {frame.name for frame in scene} == {frame.name for frame in FRAMES} - {VICTIM}
    assert any("frame-000001" in warning for warning in scene.warnings)


GREY = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
ODD_PHOTOS = {
    "16-bit": image_bytes(Image.fromarray(GREY.astype(np.uint16) * 257)),
    "grey": image_bytes(Image.fromarray(GREY)),
    "CMYK": image_bytes(
        Image.merge("CMYK", [Image.fromarray(255 - GREY)] * 3 + [Image.new("L", (WIDTH, HEIGHT))]), "TIFF"
    ),
    "alpha": image_bytes(Image.merge("RGBA", [Image.fromarray(GREY)] * 3 + [Image.fromarray(255 - GREY)])),
}


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("kind", ODD_PHOTOS)
def test_unusual_photos_are_read_for_what_they_show(tiny_scene, kind, format):
    """The same grey ramp, stored in four ways."""
    root = tiny_scene(format)
    replace_photo(root, format, ODD_PHOTOS[kind])
    photo = look_at_everything(root)[VICTIM].read_image()
    assert_allclose(photo.astype(int), np.repeat(GREY[..., None], 3, axis=-1), atol=1)


# Poses


def with_value(index: int, value: float) -> Callable[[list[float]], list[float]]:
    return lambda values: [*values[:index], value, *values[index + 1 :]]


def doubled(part: slice) -> Callable[[list[float]], list[float]]:
    def double(values: list[float]) -> list[float]:
        values[part] = [2 * value for value in values[part]]
        return values

    return double


def mirrored(values: list[float]) -> list[float]:
    """The camera's x axis points the other way."""
    return [-value if index in (0, 4, 8) else value for index, value in enumerate(values)]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("index", [1, 3, 6])
def test_pose_that_is_not_finite(tiny_scene, format, value, index):
    root = tiny_scene(format)
    edit_pose(root, format, with_value(index, value))
    assert_answered_with_one_clear_line(root, "finite number")


@pytest.mark.parametrize("format", WRITERS)
def test_camera_beyond_the_moon(tiny_scene, format):
    """A finite number whose square is not."""
    root = tiny_scene(format)
    translation = 3 if format in MATRIX_FORMATS else {"colmap text": 4, "colmap binary": 4}.get(format, 0)
    edit_pose(root, format, with_value(translation, 1e300))
    assert_answered_with_one_clear_line(
        root, r"expected a translation in metres, found 1e\+300, farther than any place"
    )


@pytest.mark.parametrize("format", WRITERS)
def test_rotation_that_is_not_orthonormal(tiny_scene, format):
    root = tiny_scene(format)
    edit_pose(root, format, doubled(QUATERNION.get(format, slice(0, 1))))
    assert_answered_with_one_clear_line(root, r"expected a (rotation matrix.*R carries no scale|quaternion of norm 1)")


@pytest.mark.parametrize("format", WRITERS)
def test_rotation_of_numbers_too_large_to_multiply(tiny_scene, format):
    root = tiny_scene(format)
    edit_pose(root, format, with_value(QUATERNION.get(format, slice(0, 1)).start, -1e300))
    assert_answered_with_one_clear_line(root, r"expected a (rotation matrix.*R carries no scale|quaternion of norm 1)")


@pytest.mark.parametrize("format", MATRIX_FORMATS)
def test_rotation_that_is_mirrored(tiny_scene, format):
    root = tiny_scene(format)
    edit_pose(root, format, mirrored)
    assert_answered_with_one_clear_line(root, "found a mirrored one")


@pytest.mark.parametrize("format", MATRIX_FORMATS)
def test_matrix_that_is_transposed(tiny_scene, format):
    root = tiny_scene(format)
    edit_pose(root, format, lambda values: np.reshape(values, (4, 4)).T.ravel().tolist())
    assert_answered_with_one_clear_line(root, "expected 0 0 0 1 as the last row")


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("change", [lambda values: values[:-1], lambda values: [*values, 1.0]], ids=["fewer", "more"])
def test_wrong_number_of_values(tiny_scene, format, change):
    root = tiny_scene(format)
    edit_pose(root, format, change)
    assert_answered_with_one_clear_line(root, r"expected .*found")


@pytest.mark.parametrize("format", [format for format in WRITERS if format != "colmap binary"])
def test_a_bad_pose_is_left_out_on_request(tiny_scene, format):
    root = tiny_scene(format)
    edit_pose(root, format, with_value(2, NAN))
    scene = open_scene(root, skip_bad_frames=True)
    assert {frame.name for frame in scene} == {frame.name for frame in FRAMES} - {VICTIM}
    assert scene.warnings


# Names

CLIMBING = [
    "../outside.png",
    "seq-01/../../outside.png",
    "/etc/outside.png",
    "C:/outside.png",
    "seq-01\\outside.png",
]
FORMATS_WITH_WRITTEN_NAMES = [format for format in WRITERS if format != "7scenes"]


@pytest.mark.parametrize("format", FORMATS_WITH_WRITTEN_NAMES)
@pytest.mark.parametrize("name", CLIMBING)
def test_name_that_climbs_out_of_the_folder(tiny_scene, format, name):
    root = tiny_scene(format)
    (root.parent / "outside.png").write_bytes(image_bytes(Image.new("RGB", (WIDTH, HEIGHT))))
    edit_names(root, format, name.replace("\\", "\\\\") if format == "transforms.json" else name)
    assert_answered_with_one_clear_line(root, "expected a file name relative to the scene's folder, found .*outside")


def duplicate(root: Path, format: str) -> None:
    if format == "7scenes zipped":
        replace_in_zip(root / "seq-01.zip", {f"copy/{VICTIM}": b"again"})
    elif format == "transforms.json":
        settings = json.loads((root / "transforms.json").read_text())
        settings["frames"].append(settings["frames"][1])
        (root / "transforms.json").write_text(json.dumps(settings))
    elif format == "colmap text":
        path, _ = list_file(root, format)
        edit_line(path, lambda line: [line, "", f"9{line}"])
    elif format == "colmap binary":
        path = root / "sparse" / "0" / "images.bin"
        path.write_bytes(path.read_bytes().replace(FRAMES[3].name.encode(), VICTIM.encode()))
    elif format == "tum":
        edit_line(root / "rgb.txt", lambda line: [line, line.replace("100.033333", "100.2")])
        edit_line(root / "groundtruth.txt", lambda line: [line, line.replace("100.033333", "100.2")], "100.033333")
    else:
        path, _ = list_file(root, format)
        edit_line(path, lambda line: [line, line])


@pytest.mark.parametrize("format", FORMATS_WITH_WRITTEN_NAMES)
def test_duplicate_name(tiny_scene, format):
    root = tiny_scene(format)
    duplicate(root, format)
    assert_answered_with_one_clear_line(root, r"frame-000001\.color\.png")


# Whole scenes


def empty(root: Path, format: str) -> None:
    for split in ("train", "test"):
        (root / f"{split}.txt").unlink(missing_ok=True)
    if format == "7scenes":
        for path in root.glob("seq-*/*"):
            path.unlink()
    elif format == "7scenes zipped":
        for path in root.glob("*.zip"):
            zipfile.ZipFile(path, "w").close()
    elif format == "transforms.json":
        (root / "transforms.json").write_text('{"frames": []}')
    elif format == "colmap binary":
        (root / "sparse" / "0" / "images.bin").write_bytes(struct.pack("<Q", 0))
    elif format == "cambridge":
        for split in ("train", "test"):
            (root / f"dataset_{split}.txt").write_text("Visual Landmark Dataset V1\nImageFile, ...\n\n")
    elif format.startswith("poses.csv"):
        lines = (root / "poses.csv").read_text().split("\n")
        (root / "poses.csv").write_text("\n".join(lines[:4]) + "\n")
    elif format == "tum":
        (root / "rgb.txt").write_text("# nothing\n")
    else:
        (root / "sparse" / "0" / "images.txt").write_text("# nothing\n")


@pytest.mark.parametrize("format", WRITERS)
def test_empty_scene(tiny_scene, format):
    root = tiny_scene(format)
    empty(root, format)
    assert_answered_with_one_clear_line(root, r"expected posed photos in the format .*, found none")


def name_a_missing_frame(root: Path, format: str) -> None:
    if format.startswith("7scenes"):
        (root / "TestSplit.txt").write_text("sequence2\nsequence9\n")
    elif format == "transforms.json":
        text = (root / "transforms.json").read_text()
        (root / "transforms.json").write_text(text.replace('"test_filenames": [', '"test_filenames": ["images/9.png",'))
    elif format == "cambridge":
        with (root / "dataset_test.txt").open("a") as file:
            file.write("seq-02/9.png 0 0 0 1 0 0 0\n")
    else:
        with (root / "test.txt").open("a") as file:
            file.write("seq-02/9.png\n")


@pytest.mark.parametrize("format", [format for format in WRITERS if not format.startswith("poses.csv")])
def test_split_that_names_a_missing_frame(tiny_scene, format):
    """In poses.csv a frame's split is a cell of its own row."""
    root = tiny_scene(format)
    name_a_missing_frame(root, format)
    assert_answered_with_one_clear_line(root, r"9")


TEXT_FILES = {
    "7scenes": ["TrainSplit.txt", "camera.txt", "seq-01/frame-000001.pose.txt"],
    "7scenes zipped": ["TestSplit.txt", "camera.txt"],
    "cambridge": ["dataset_train.txt", "dataset_test.txt"],
    "poses.csv": ["poses.csv"],
    "colmap text": ["sparse/0/images.txt", "sparse/0/cameras.txt", "train.txt"],
    "colmap binary": ["test.txt"],
    "tum": ["rgb.txt", "groundtruth.txt", "train.txt"],
    "transforms.json": ["transforms.json"],
}


@pytest.mark.parametrize(("format", "file"), [(format, file) for format, files in TEXT_FILES.items() for file in files])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_wrong_encoding(tiny_scene, format, file, encoding):
    root = tiny_scene(format)
    text = (root / file).read_text()
    (root / file).write_bytes(f"# caf\u00e9\n{text}".encode(encoding))
    assert_answered_with_one_clear_line(root, rf"{re.escape(file)}.*expected text in UTF-8")


@pytest.mark.parametrize(("format", "file"), [(format, file) for format, files in TEXT_FILES.items() for file in files])
def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(tiny_scene, format, file):
    root = tiny_scene(format)
    expected = look_at_everything(root)
    text = (root / file).read_text()
    (root / file).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    scene = look_at_everything(root)
    assert [frame.name for frame in scene] == [frame.name for frame in expected]
    assert_allclose(scene.T_world_cam.matrix(), expected.T_world_cam.matrix(), atol=1e-12)


# Rights

AS_NOBODY = """
import os, sys
from relograph.errors import RelographError
from relograph.scenes import open_scene

def read(root):
    try:
        for frame in open_scene(root):
            frame.read_image()
            frame.depth and frame.read_depth_m()
        return "read it all"
    except RelographError as error:
        return str(error)

good, forbidden = (part.split() for part in " ".join(sys.argv[1:]).split("--"))
for root in good:                            # imports what will be out of reach for nobody
    assert read(root) == "read it all"
if os.geteuid() == 0:                        # root reads everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for root in forbidden:
    print(read(root))
"""

FORBIDDEN = [
    *((format, ".") for format in WRITERS),
    *((format, file) for format, files in TEXT_FILES.items() for file in files),
    ("poses.csv", "photos"),
    ("colmap text", "images"),
    ("transforms.json", "images"),
    ("tum", "rgb"),
    ("cambridge", "seq-01"),
    ("7scenes", "seq-01"),
    ("7scenes", VICTIM),
    ("7scenes zipped", "seq-02.zip"),
    ("colmap binary", "sparse/0"),
    ("colmap binary", "sparse/0/images.bin"),
    ("colmap binary", "sparse/0/cameras.bin"),
]


@pytest.fixture(scope="module")
def answers_without_rights() -> Iterator[dict[tuple[str, str], str]]:
    """What a user hears who may not read one thing in a scene, by format and thing; one process asks for all."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    good, forbidden = [], []
    try:
        for format, write in WRITERS.items():
            good.append(folder / format.replace(" ", "-"))
            good[-1].mkdir()
            write(good[-1])
        for number, (format, name) in enumerate(FORBIDDEN):
            forbidden.append(folder / str(number))
            shutil.copytree(folder / format.replace(" ", "-"), forbidden[-1])
            (forbidden[-1] / name).chmod(0)
        command = [sys.executable, "-c", AS_NOBODY, *map(str, good), "--", *map(str, forbidden)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        yield dict(zip(FORBIDDEN, done.stdout.splitlines(), strict=True))
    finally:
        for root, (_, name) in zip(forbidden, FORBIDDEN, strict=False):
            (root / name).chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix", reason="rights are those of POSIX")
@pytest.mark.parametrize(("format", "name"), FORBIDDEN)
def test_something_without_rights_to_read(answers_without_rights, format, name):
    line = answers_without_rights[format, name]
    assert re.search(r"expected to read it, found no rights to\. Run: chmod", line)
