"""Pair lists and descriptors that users bring, right ones and every kind of wrong one."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import save_file

from relograph.errors import DatasetError
from relograph.retrieval import read_descriptors, read_pairs

NAMES = ("chess/seq-01/a.png", "chess/seq-01/b.png", "chess/seq-02/c.png", "fire/seq-01/d.png")
A, B, C, D = NAMES


def error_of(read, *args: object, **options: object) -> str:
    with pytest.raises(DatasetError) as caught:
        read(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Pairs


@pytest.fixture
def pairs(tmp_path: Path):
    path = tmp_path / "pairs.txt"

    def write(text: str) -> Path:
        path.write_text(text)
        return path

    return write


def test_pairs_without_scores_keep_the_order_of_the_lines(pairs):
    path = pairs(f"# made by hand\n{A} {C}\n\n{B} {A}\n{A} {B}\r\n")
    assert read_pairs(path, NAMES).tolist() == [[2, 1], [0, -1], [-1, -1], [-1, -1]]


def test_pairs_with_scores_stand_in_the_order_of_falling_scores(pairs):
    path = pairs(f"{A} {B} 0.25\n{A} {C} 0.5\n{B} {C} -3\n{B} {A} 1e2\n")
    assert read_pairs(path, NAMES).tolist() == [[2, 1], [0, 2], [-1, -1], [-1, -1]]


def test_names_with_spaces_are_separated_by_tabs(pairs):
    assert read_pairs(pairs("my photo 1.jpg\tmy photo 2.jpg\n"), ["my photo 1.jpg", "my photo 2.jpg"]).tolist() == [
        [1],
        [-1],
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{A}", "found 1 cells"),
        (f"{A} {C} 0.5 0.6", "found 4 cells"),
        (f"{A} {C} 0.5", "found 3 cells"),  # the line before has no score
        (f"{A} chess/seq-01/e.png", "found 'chess/seq-01/e.png'. Did you mean 'chess/seq-01/b.png'?"),
        (f"seq-01/frame-1.png {A}", "found 'seq-01/frame-1.png'"),
        (f"{A} {A}", "found the query itself"),
        (f"{A} {B}", "found the same pair a second time"),
        (f"{A} {D}", f"found '{D}', which is of another scene"),
        (f"{B} {C}", f"found '{C}', which is not in the map"),
    ],
)
def test_a_wrong_pair_is_named_with_its_line(pairs, line, says):
    path = pairs(f"{A} {B}\n{line}\n")
    message = error_of(
        read_pairs,
        path,
        NAMES,
        database=torch.tensor([True, True, False, True]),
        scene_idx=torch.tensor([0, 0, 0, 1]),
    )
    assert message.startswith(f"{path}:2: expected")
    assert says in message


@pytest.mark.parametrize("score", ["high", "nan", "1_0", "inf"])
def test_a_score_that_is_no_number_is_named_with_its_line(pairs, score):
    path = pairs(f"{A} {B} {score}\n")
    message = error_of(read_pairs, path, NAMES)
    assert message.startswith(f"{path}:1: expected a")
    assert score in message


def test_files_that_are_no_list_of_pairs_are_named(pairs, tmp_path):
    assert "found none" in error_of(read_pairs, pairs("# nothing yet\n"), NAMES)
    assert "found nothing there" in error_of(read_pairs, tmp_path / "missing.txt", NAMES)
    assert "found a folder" in error_of(read_pairs, tmp_path, NAMES)
    (tmp_path / "binary.txt").write_bytes(b"\x80\x81\n")
    assert "UTF-8" in error_of(read_pairs, tmp_path / "binary.txt", NAMES)


# Descriptors

VALUES = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def write_npz(path: Path, names=NAMES, descriptors=VALUES, **others: object) -> Path:
    np.savez_compressed(path, names=np.array(names), descriptors=np.array(descriptors), **others)
    return path


def write_safetensors(path: Path, names=NAMES, descriptors=VALUES) -> Path:
    save_file(dict(zip(names, map(torch.tensor, descriptors), strict=True)), path)
    return path


WRITERS = {"d.npz": write_npz, "d.safetensors": write_safetensors}
every_format = pytest.mark.parametrize("file", WRITERS)


@every_format
def test_descriptors_come_in_the_order_of_the_names_whatever_that_of_the_file(tmp_path, file):
    path = WRITERS[file](tmp_path / file, [*NAMES[::-1], "another.png"], [*VALUES[::-1], VALUES[0]])
    assert_allclose(read_descriptors(path, NAMES), VALUES)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16])
@every_format
def test_descriptors_of_every_kind_of_number_become_float32(tmp_path, file, dtype):
    values = np.abs(np.round(10 * VALUES)).astype(dtype)
    read = read_descriptors(WRITERS[file](tmp_path / file, descriptors=values), NAMES)
    assert read.dtype == torch.float32
    assert_allclose(read, values)


@every_format
def test_images_without_a_descriptor_are_counted_and_the_first_is_named(tmp_path, file):
    path = WRITERS[file](tmp_path / file, ["chess/seq-01/x.png", *NAMES[2:]], VALUES[:3])
    message = error_of(read_descriptors, path, NAMES)
    assert message.startswith(f"{path}: expected a descriptor of every image, found none of 2 of 4, the first is '{A}'")
    assert "Did you mean 'chess/seq-01/x.png'?" in message


@pytest.mark.parametrize(
    ("value", "says"),
    [(np.nan, "NaN or infinity"), (np.inf, "NaN or infinity"), (1e300, "NaN or infinity")],
    ids=["nan", "inf", "too large"],
)
@every_format
def test_numbers_that_are_not_finite_are_named(tmp_path, file, value, says):
    values = VALUES.astype(np.float64)
    values[1, 3] = value
    message = error_of(read_descriptors, WRITERS[file](tmp_path / file, descriptors=values), NAMES)
    assert f"found {says} for '{B}'" in message


@every_format
def test_a_descriptor_of_zeros_has_no_direction_and_is_named(tmp_path, file):
    values = VALUES * np.array([[1], [1], [0], [1]])
    message = error_of(read_descriptors, WRITERS[file](tmp_path / file, descriptors=values), NAMES)
    assert f"found nothing but zeros for '{C}'" in message


def test_descriptors_of_different_lengths_are_named(tmp_path):
    path = write_safetensors(tmp_path / "d.safetensors", descriptors=[*VALUES[:3], VALUES[3, :5]])
    assert f"found the shape [5] for '{D}' and [6] for '{A}'" in error_of(read_descriptors, path, NAMES)
    path = write_safetensors(tmp_path / "d.safetensors", descriptors=VALUES.reshape(4, 2, 3))
    assert f"found the shape [2, 3] for '{A}'" in error_of(read_descriptors, path, NAMES)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"descriptors": VALUES[0]}, "descriptors of shape [6]"),
        ({"descriptors": VALUES[:3]}, "names of shape [4] and descriptors of shape [3, 6]"),
        ({"names": [[A, B], [C, D]]}, "names of shape [2, 2]"),
        ({"names": [1, 2, 3, 4]}, "found int64 names"),
        ({"names": [A, B, C, C]}, f"found '{C}' more often"),
        ({"descriptors": VALUES.astype(str)}, "expected numbers, found descriptors of <U"),
        ({"descriptors": VALUES.astype(object)}, "cannot be read (Object arrays cannot be loaded"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, says):
    assert says in error_of(read_descriptors, write_npz(tmp_path / "d.npz", **arrays), NAMES)


def test_an_npz_of_something_else_is_told_how_to_be_written(tmp_path):
    np.savez(tmp_path / "d.npz", features=VALUES)
    assert "Write it with np.savez" in error_of(read_descriptors, tmp_path / "d.npz", NAMES)
    np.save(tmp_path / "d.npy", VALUES)
    assert "expected a .npz or .safetensors file, found '.npy'" in error_of(read_descriptors, tmp_path / "d.npy", NAMES)
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    assert "cannot be read" in error_of(read_descriptors, tmp_path / "d.npz", NAMES)


@every_format
def test_a_file_cut_off_anywhere_is_refused(tmp_path, file):
    path = WRITERS[file](tmp_path / file)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert "Write it again" in error_of(read_descriptors, path, NAMES)


def test_an_npz_with_any_byte_flipped_is_refused_or_read_as_it_was(tmp_path):
    path = write_npz(tmp_path / "d.npz")
    data = path.read_bytes()
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with suppress(DatasetError):
            assert_allclose(read_descriptors(path, NAMES), VALUES)


@every_format
def test_a_file_that_is_not_there_or_may_not_be_read_is_named(tmp_path, file):
    assert "found nothing there" in error_of(read_descriptors, tmp_path / file, NAMES)
    (tmp_path / file).mkdir()
    assert "found a folder" in error_of(read_descriptors, tmp_path / file, NAMES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@every_format
def test_a_file_without_the_right_to_read_it_is_named(tmp_path, file):
    path = WRITERS[file](tmp_path / file)
    path.chmod(0)
    assert "found no rights" in error_of(read_descriptors, path, NAMES)
