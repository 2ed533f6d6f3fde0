"""Files of predictions: what was written is read, and what is damaged is refused with a line that says where."""

import gzip
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_predictions import predictions_with_errors
from numpy.testing import assert_allclose

from relograph.errors import DatasetError
from relograph.evaluation import (
    NearestReference,
    Predictions,
    nearest_reference,
    prediction_errors,
    read_predictions,
    write_predictions,
)
from relograph.geometry import Pose

LOST = math.inf


def some_predictions() -> Predictions:
    return predictions_with_errors([0.1, LOST, 2.5], [1.0, 5.0, 170.0])


def assert_same(read: Predictions, written: Predictions) -> None:
    assert read.scene == written.scene
    assert read.frame == written.frame
    assert read.reason == written.reason
    assert read.top1 == written.top1
    assert read.localized.tolist() == written.localized.tolist()
    for name in ("T_world_true", "T_world_cam"):
        assert_allclose(getattr(read, name).t, getattr(written, name).t, rtol=1e-8, equal_nan=True)
        assert_allclose(getattr(read, name).R, getattr(written, name).R, atol=4e-9, equal_nan=True)
    assert_allclose(read.nearest_reference_m, written.nearest_reference_m, rtol=1e-8, equal_nan=True)
    assert_allclose(read.nearest_reference_deg, written.nearest_reference_deg, rtol=1e-8, equal_nan=True)


@pytest.mark.parametrize("name", ["a.csv", "deep/er/a.csv.gz"])
def test_predictions_come_back_as_they_were_written(tmp_path: Path, name: str) -> None:
    written = some_predictions()
    write_predictions(tmp_path / name, written, metadata={"method": "copy top-1", "seed": 3})
    read, metadata = read_predictions(tmp_path / name)
    assert_same(read, written)
    assert metadata == {"method": "copy top-1", "seed": 3}
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [Path(name).name]  # no litter


def test_errors_after_the_file_are_those_before_it_to_a_micrometre(tmp_path: Path) -> None:
    far_from_the_origin = Pose.from_axis_angle([0.1, 0.2, 0.3], [[431.123456789, -98.7654321, 12.0]])
    beside_it = Pose(far_from_the_origin.R, far_from_the_origin.t + 0.03)
    write_predictions(
        tmp_path / "a.csv",
        Predictions.from_poses(["court"], ["a.png"], far_from_the_origin, beside_it),
        metadata={},
    )
    errors = prediction_errors(read_predictions(tmp_path / "a.csv")[0])
    assert float(errors.translation_error_m) == pytest.approx(0.03 * math.sqrt(3), abs=1e-6)
    assert float(errors.rotation_error_deg) < 1e-6


def test_a_pose_is_written_as_a_quaternion_with_its_real_part_first_and_the_camera_centre(tmp_path: Path) -> None:
    quarter_turn_z = Pose.from_axis_angle([[0.0, 0.0, math.pi / 2]], [[1.0, 2.0, 3.0]])
    answers = Predictions.from_poses(["hall"], ["a.png"], Pose.identity(1), quarter_turn_z, top1=["b.png"])
    write_predictions(tmp_path / "a.csv", answers, metadata={})
    assert (tmp_path / "a.csv").read_text().splitlines()[1:] == [
        "scene,frame,localized,reason,qw,qx,qy,qz,tx,ty,tz,"
        "true_qw,true_qx,true_qy,true_qz,true_tx,true_ty,true_tz,top1,nearest_reference_m,nearest_reference_deg",
        "hall,a.png,1,,0.707106781,0,0,0.707106781,1,2,3,1,0,0,0,0,0,0,b.png,,",
    ]


def test_no_predictions_are_a_file_too(tmp_path: Path) -> None:
    write_predictions(tmp_path / "a.csv.gz", Predictions.cat([]), metadata={})
    assert len(read_predictions(tmp_path / "a.csv.gz")[0]) == 0


def test_predictions_that_all_failed_keep_their_reasons(tmp_path: Path) -> None:
    write_predictions(tmp_path / "a.csv", predictions_with_errors([LOST, LOST], [0.0, 0.0]), metadata={})
    read, _ = read_predictions(tmp_path / "a.csv")
    assert read.reason == ("too few references", "too few references")
    assert read.T_world_cam.t.isnan().all()


def test_names_may_hold_commas_quotes_line_breaks_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    names = ['a,"b".png', "two\nlines.png", "# not a comment", "\udcff.png"]
    answers = Predictions.from_poses(["x, y"] * 4, names, Pose.identity(4), Pose.identity(4), top1=names)
    write_predictions(tmp_path / "a.csv", answers, metadata={})
    assert_same(read_predictions(tmp_path / "a.csv")[0], answers)


def test_the_same_predictions_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_predictions(tmp_path / name, some_predictions(), metadata={"seed": 1})
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_poses_that_are_not_finite_count_as_not_localized() -> None:
    answers = Pose.identity(3, dtype=torch.float32)
    answers.t[0, 1] = math.nan
    answers = Pose(answers.R.clone(), answers.t)
    answers.R[2, 0, 0] = math.inf
    made = Predictions.from_poses(["a"] * 3, ["0", "1", "2"], Pose.identity(3), answers)
    assert made.localized.tolist() == [False, True, False]
    assert made.reason == ("the pose is not finite", "", "the pose is not finite")
    assert made.T_world_cam.t.isnan().all(dim=1).tolist() == [True, False, True]
    assert made.T_world_cam.dtype == torch.float64


def test_a_reason_takes_the_pose_away() -> None:
    made = Predictions.from_poses(["a"], ["0"], Pose.identity(1), Pose.identity(1), reason=["too few inliers"])
    assert made.localized.tolist() == [False]
    assert made.T_world_cam.R.isnan().all()


def test_predictions_that_contradict_themselves_cannot_be_made() -> None:
    good = some_predictions()
    with pytest.raises(DatasetError, match="expected 3 values of top1, one for each frame, found 1"):
        replace(good, top1=("a",))
    with pytest.raises(DatasetError, match=r"frame-000001.*said to be localized, found NaN"):
        replace(good, localized=torch.ones(3, dtype=torch.bool))
    with pytest.raises(DatasetError, match=r"expected a true pose for .*frame-000001"):
        replace(good, T_world_true=good.T_world_cam)
    with pytest.raises(DatasetError, match="found a of kitchen twice"):
        replace(good, frame=("a", "b", "a"))


def test_scenes_are_parted_and_joined_again() -> None:
    kitchen, hall = some_predictions(), predictions_with_errors([0.5], [2.0], scene="hall")
    both = Predictions.cat([kitchen, hall])
    assert both.scenes == ("kitchen", "hall")
    assert_same(both.of_scene("hall"), hall)
    assert_same(both.of_scene("kitchen"), kitchen)
    assert len(both.of_scene("attic")) == 0


# Damage


def written_file(tmp_path: Path, name: str = "a.csv") -> Path:
    write_predictions(tmp_path / name, some_predictions(), metadata={"method": "ours"})
    return tmp_path / name


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    path = written_file(tmp_path, name)
    whole = path.read_bytes()
    for length in [0, 1, *range(2, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DatasetError, match=re.escape(str(path))):
            read_predictions(path)


def test_a_flipped_bit_in_a_gzip_file_is_noticed(tmp_path: Path) -> None:
    path = written_file(tmp_path, "a.csv.gz")
    whole = bytearray(path.read_bytes())
    for position in range(10, len(whole), 5):  # the first ten bytes are gzip's own and hold no predictions
        damaged = whole.copy()
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"a\.csv\.gz.*expected"):
            read_predictions(path)


@pytest.mark.parametrize(
    ("find", "put", "message"),
    [
        (",localized,", ",localised,", r"a\.csv:2: .*called 'localized', found none, though one is called 'localised'"),
        (",top1,", ",reason,", r"a\.csv:2: expected a column called 'top1', found none"),
        (",1,,", ",yes,,", r"a\.csv:3: expected 0 or 1 as localized, found 'yes'"),
        (",1,,", ",1,lost,", r"a\.csv:3: expected a reason where, and only where, localized is 0, found 'lost'"),
        (",0,too few references,", ",0,,", r"a\.csv:4: expected a reason where"),
        ("# {", "{", None),
        ('"version": 1', '"version": 2', r"expected version 1 of the format, found 2"),
        ('"num_queries": 3', '"num_queries": "3"', r"a\.csv:1: expected num_queries and metadata"),
        ('"relograph predictions"', '"poses"', r"a\.csv:1: expected a line"),
        ("frame-000001", "frame-000000", r"found kitchen/seq-01/frame-000000\.color\.png of kitchen twice"),
    ],
)
def test_a_file_that_says_something_else_is_refused_or_understood(
    tmp_path: Path, find: str, put: str, message: str | None
) -> None:
    path = written_file(tmp_path)
    path.write_text(path.read_text().replace(find, put, 1))
    if message is None:
        assert_same(read_predictions(path)[0], some_predictions())
    else:
        with pytest.raises(DatasetError, match=message):
            read_predictions(path)


@pytest.mark.parametrize("bad", ["nan", "inf", "", "1.2.3", "0x10"])
def test_a_pose_that_is_no_number_is_named_by_its_row(tmp_path: Path, bad: str) -> None:
    path = written_file(tmp_path)
    lines = path.read_text().splitlines()
    cells = lines[2].split(",")
    cells[lines[1].split(",").index("ty")] = bad
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:], ""]))
    with pytest.raises(DatasetError, match=rf"a\.csv:3: expected a finite number as ty, found '{bad}'"):
        read_predictions(path)


def test_a_quaternion_of_another_length_is_refused(tmp_path: Path) -> None:
    path = written_file(tmp_path)
    lines = path.read_text().splitlines()
    cells = lines[2].split(",")
    cells[4:8] = ["0", "0", "0", "0"]
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:], ""]))
    with pytest.raises(
        DatasetError, match=r"a\.csv:3: expected a quaternion qw to qz of length 1, found one of length 0"
    ):
        read_predictions(path)


def test_columns_in_another_order_and_unknown_ones_do_not_matter(tmp_path: Path) -> None:
    path = written_file(tmp_path)
    first, *rows = path.read_text().splitlines()
    turned = [",".join([*reversed(row.split(",")), "noise"]) for row in rows]
    path.write_text("\n".join([first, *turned, ""]))
    assert_same(read_predictions(path)[0], some_predictions())


def test_files_that_are_not_there_or_are_called_otherwise(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found nothing there"):
        read_predictions(tmp_path / "none.csv")
    with pytest.raises(DatasetError, match=r"end in \.csv or \.csv\.gz, found 'a\.parquet'"):
        write_predictions(tmp_path / "a.parquet", some_predictions(), metadata={})
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DatasetError, match="expected a readable file"):
        read_predictions(tmp_path / "folder.csv")
    (tmp_path / "plain.csv.gz").write_text("scene,frame\n")
    with pytest.raises(DatasetError, match="expected a whole gzip file"):
        read_predictions(tmp_path / "plain.csv.gz")


def test_an_old_file_survives_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    path = written_file(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_predictions(path, some_predictions(), metadata={"loss": math.nan})
    assert path.read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="expected to write a file here"):
        write_predictions(tmp_path / "file" / "a.csv", some_predictions(), metadata={})
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.csv", "file"]


# The nearest reference


def test_the_nearest_reference_is_the_nearest_by_position_whatever_it_looks_at() -> None:
    rng = np.random.default_rng(0)
    queries = Pose.from_axis_angle(rng.normal(size=(3000, 3)), rng.normal(size=(3000, 3)) + 400.0)
    references = Pose.from_axis_angle(rng.normal(size=(50, 3)), rng.normal(size=(50, 3)) + 400.0)
    nearest = nearest_reference(queries, references)
    distances = np.linalg.norm(queries.t.numpy()[:, None] - references.t.numpy()[None], axis=-1)
    assert_allclose(nearest.distance_m, distances.min(axis=1), rtol=1e-12)
    R_between = queries.R.mT @ references.R[distances.argmin(axis=1)]
    cosines = (R_between.diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2
    assert_allclose(nearest.angle_deg, np.degrees(np.arccos(cosines.numpy())), atol=1e-5)


def test_without_references_nothing_is_near() -> None:
    nearest = nearest_reference(Pose.identity(2), Pose.identity(0))
    assert isinstance(nearest, NearestReference)
    assert nearest.distance_m.isnan().all()
    assert nearest.angle_deg.isnan().all()
    assert nearest_reference(Pose.identity(0), Pose.identity(2)).distance_m.shape == (0,)


def test_gzip_files_are_what_their_name_says(tmp_path: Path) -> None:
    path = written_file(tmp_path, "a.csv.gz")
    plain = written_file(tmp_path, "a.csv")
    assert gzip.decompress(path.read_bytes()) == plain.read_bytes()
