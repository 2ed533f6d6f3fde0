import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from relograph.errors import DatasetError, GeometryError
from relograph.scenes.ar_log import read_ar_log

MATRIX = [[0, 0, 1, 1.5], [-1, 0, 0, 2.5], [0, -1, 0, 3.5], [0, 0, 0, 1]]


def test_tum_by_time_with_straight_lines_between_its_entries(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("# time x y z qx qy qz qw\n10.0 0 0 0 0 0 0 1\n10.2 2 0 4 0 0 0 1\n20.0 9 9 9 0 0 0 1\n")
    names, times_s = ["a.jpg", "b.jpg", "c.jpg", "d.jpg"], [0.05, 0.2, 5.0, None]
    positions, is_told = read_ar_log(path).positions_of(names, times_s, offset_s=10.0)
    assert is_told.tolist() == [True, True, False, False]  # five seconds into a gap of ten nothing is known
    assert_allclose(positions[:2], [[0.5, 0, 1], [2, 0, 4]], atol=1e-12)


def test_json_by_name_without_the_ending_and_with_positions_or_matrices(tmp_path):
    path = tmp_path / "log.json"
    frames = [
        {"name": "IMG_1.HEIC", "position": [1, 2, 3]},
        {"name": "IMG_2.HEIC", "transform": MATRIX},
        {"timestamp": 7.0, "transform_matrix": MATRIX},
    ]
    path.write_text(json.dumps({"frames": frames}))
    positions, is_told = read_ar_log(path).positions_of(["x/IMG_2.jpg", "x/IMG_1.jpg", "y.jpg"], [None, None, 7.0])
    assert is_told.all()
    assert_allclose(positions, [[1.5, 2.5, 3.5], [1, 2, 3], [1.5, 2.5, 3.5]])
    assert read_ar_log(path).span() == "2 names such as IMG_1.HEIC and times from 7.000 to 7.000 s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found none"),
        ("1 2 3", "line 1: expected 8 numbers, found 3"),
        ("[", "expected an AR log as JSON"),
        ('{"poses": []}', "expected a list of frames"),
        ("[3]", "frame 1: expected an object"),
        ('[{"position": [1, 2, 3]}]', 'expected "name" or "timestamp"'),
        ('[{"name": "a"}]', 'expected "position" with 3 numbers'),
        ('[{"name": "a", "position": [1, 2]}]', 'expected "position" with 3 numbers'),
        ('[{"name": "a", "position": [1, 2, "x"]}]', "expected a number"),
        ('[{"name": "a", "transform": [[1, 2], [3]]}]', "expected a matrix of 4 rows"),
        (json.dumps([{"name": "a", "transform": np.transpose(MATRIX).tolist()}]), "expected 0 0 0 1 as the last row"),
    ],
)
def test_what_is_wrong_with_a_log_is_said_in_one_line(tmp_path, text, message):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises((DatasetError, GeometryError), match=message) as caught:
        read_ar_log(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
