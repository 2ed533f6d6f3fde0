"""Random bytes, and random changes to valid files, fed to every parser: never anything but a `RelographError`."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pycolmap
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_scenes import FRAMES, WRITERS

from relograph.errors import RelographError
from relograph.scenes import check_scene, convert, open_scene, scene_info
from relograph.scenes.camera_models import parse_camera_file
from relograph.scenes.images import decode_depth, decode_image, read_header
from relograph.scenes.names import decode_text, parse_float, parse_int, safe_name

# The same examples on every machine. RELOGRAPH_FUZZ_EXAMPLES=5000 looks further, each time elsewhere.
NUM_EXAMPLES = int(os.environ.get("RELOGRAPH_FUZZ_EXAMPLES", "0"))
FUZZING = settings(
    max_examples=NUM_EXAMPLES or 25,
    derandomize=not NUM_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

FUZZED_FILES = [
    ("7scenes", "TrainSplit.txt"),
    ("7scenes", "camera.txt"),
    ("7scenes", "seq-01/frame-000001.pose.txt"),
    ("7scenes", "seq-01/frame-000001.color.png"),
    ("7scenes", "seq-01/frame-000001.depth.png"),
    ("7scenes zipped", "seq-01.zip"),
    ("cambridge", "dataset_train.txt"),
    ("poses.csv", "poses.csv"),
    ("poses.csv matrices", "poses.csv"),
    ("colmap text", "sparse/0/cameras.txt"),
    ("colmap text", "sparse/0/images.txt"),
    ("colmap text", "train.txt"),
    ("colmap binary", "sparse/0/cameras.bin"),
    ("colmap binary", "sparse/0/images.bin"),
    ("tum", "rgb.txt"),
    ("tum", "groundtruth.txt"),
    ("tum", "test.txt"),
    ("transforms.json", "transforms.json"),
    ("transforms split", "transforms_train.json"),
    ("tum with depth", "depth.txt"),
    ("tum with depth", "camera.txt"),
    ("colmap with rigs", "sparse/0/rigs.bin"),
    ("colmap with rigs", "sparse/0/frames.bin"),
    ("colmap with rigs", "sparse/0/images.bin"),
]

TELLING_PIECES = [
    *(b"nan", b"inf", b"-1", b"0", b"1e999", b"-1e308", b"99999999999999999999", b"0x10", b"1_0", b"\xd9\xa3"),
    *(b"../", b"/", b"\\", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\n\n", b"\r", b"\x0b", b"\x85", b" ", b"\t", b"#"),
    *(b",", b'"', b"'", b"[", b"]", b"{", b"}", b":", b"null", b"true", b"\\ud800", b"[" * 5000),
    *(b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\x00\x00\x00\x80"),
]

pieces = st.one_of(st.sampled_from(TELLING_PIECES), st.binary(max_size=16))
places = st.floats(0, 1)  # relative to the length, so that every file is changed everywhere
edits = st.lists(
    st.tuples(st.sampled_from(["insert", "overwrite", "delete", "repeat"]), places, st.integers(1, 80), pieces),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
    for kind, place, length, piece in changes:
        start = round(place * len(data))
        if kind == "insert":
            data = data[:start] + piece + data[start:]
        elif kind == "overwrite":
            data = data[:start] + piece + data[start + len(piece) :]
        elif kind == "delete":
            data = data[:start] + data[start + length :]
        else:
            data = data[: start + length] + data[start:]
    return data


@pytest.fixture(scope="module")
def tiny_scenes(tmp_path_factory) -> dict[str, Path]:
    """Every format's tiny scene, shared by all examples, which put back what they change."""
    folder = tmp_path_factory.mktemp("fuzz")
    roots = {format: folder / format.replace(" ", "_") for format in WRITERS}
    for format, root in roots.items():
        root.mkdir()
        WRITERS[format](root)
    return roots | {
        "transforms split": split_transforms(folder / "transforms_split"),
        "tum with depth": tum_with_depth(folder / "tum_with_depth", roots["7scenes"]),
        "colmap with rigs": colmap_with_rigs(folder / "colmap_with_rigs"),
    }


def split_transforms(root: Path) -> Path:
    root.mkdir()
    WRITERS["transforms.json"](root)
    (root / "transforms.json").rename(root / "transforms_train.json")
    return root


def tum_with_depth(root: Path, seven_scenes: Path) -> Path:
    convert(seven_scenes, root, "tum")
    return root


def colmap_with_rigs(root: Path) -> Path:
    """A model as today's COLMAP writes it, with a file for rigs and one for frames."""
    root.mkdir()
    WRITERS["colmap text"](root)
    model = root / "sparse" / "0"
    reconstruction = pycolmap.Reconstruction(model)
    for file in model.iterdir():
        file.unlink()
    reconstruction.write_binary(model)
    return root


@contextlib.contextmanager
def holding(path: Path, data: bytes) -> Iterator[None]:
    """The file with other bytes in it, for a while."""
    original = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(original)


def look_at_everything(root: Path) -> None:
    """With and without bad frames; a RelographError is an answer, anything else goes through and fails the test."""
    for skip_bad_frames in (False, True):
        with contextlib.suppress(RelographError):
            scene = open_scene(root, skip_bad_frames=skip_bad_frames)
            scene_info(scene)
            assert all("\n" not in problem.message for problem in check_scene(scene))


@pytest.mark.parametrize(("format", "file"), FUZZED_FILES)
@FUZZING
@given(changes=edits)
def test_a_changed_file_is_read_or_answered(tiny_scenes, format, file, changes):
    path = tiny_scenes[format] / file
    with holding(path, edited(path.read_bytes(), changes)):
        look_at_everything(tiny_scenes[format])


@pytest.mark.parametrize(("format", "file"), FUZZED_FILES)
@FUZZING
@given(data=st.binary(max_size=400))
@example(data=b"")
def test_random_bytes_in_place_of_a_file_are_answered(tiny_scenes, format, file, data):
    with holding(tiny_scenes[format] / file, data):
        look_at_everything(tiny_scenes[format])


@pytest.mark.parametrize(("format", "file"), FUZZED_FILES)
@FUZZING
@given(place=places)
def test_a_file_cut_short_is_read_or_answered(tiny_scenes, format, file, place):
    path = tiny_scenes[format] / file
    data = path.read_bytes()
    with holding(path, data[: round(place * len(data))]):
        look_at_everything(tiny_scenes[format])


def photo_in(format: str) -> bytes:
    """A photo with a few EXIF tags, and big enough to have something to damage."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8769).update({0xA405: 26, 0x920A: 4.5})
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(
        buffer, format, **({"exif": exif} if format in ("JPEG", "PNG", "WEBP", "TIFF") else {})
    )
    return buffer.getvalue()


PHOTOS = {format: photo_in(format) for format in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM")}


@pytest.mark.parametrize("format", PHOTOS)
@pytest.mark.parametrize(
    "decode", [decode_image, decode_depth, lambda data, where: read_header(io.BytesIO(data), where)]
)
@FUZZING
@given(changes=edits)
def test_a_changed_photo_is_decoded_or_answered(decode, format, changes):
    with contextlib.suppress(RelographError):
        decode(edited(PHOTOS[format], changes), "photo")


@FUZZING
@given(name=st.text())
@example(name="..")
@example(name="a/\ud800.png")
def test_a_name_that_is_let_through_stays_inside_its_folder(name):
    try:
        safe = safe_name(name, where="test")
    except RelographError:
        return
    folder = Path("/scene")
    assert folder in Path(os.path.normpath(folder / safe)).parents
    assert safe_name(safe, where="test") == safe


@FUZZING
@given(data=st.binary(max_size=100))
def test_text_is_decoded_or_answered(data):
    with contextlib.suppress(RelographError):
        assert "\r" not in decode_text(data, "test")


@pytest.mark.parametrize("parse", [parse_float, parse_int, parse_camera_file])
@FUZZING
@given(text=st.text(max_size=60))
def test_numbers_and_cameras_are_parsed_or_answered(parse, text):
    with contextlib.suppress(RelographError):
        parse(text, "test")


def test_the_fuzzed_scenes_are_whole_to_begin_with(tiny_scenes):
    for root in tiny_scenes.values():
        assert len(open_scene(root)) == len(FRAMES)
