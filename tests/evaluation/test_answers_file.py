"""Answers come back from a file as they were, and only where they are answers to the same question."""

from pathlib import Path

import pytest
import torch

from evaluation.made_places import answer
from relograph.errors import DatasetError
from relograph.evaluation.answers_file import read_answers_file, write_answers_file
from relograph.geometry import Pose
from relograph.localization.localizer import Answer, UsedReference

TOLD = {"weights": "a", "options": {"counts": (1, 2)}}


def test_answers_come_back_to_the_last_bit(tmp_path: Path):
    regressed, solved = Pose.from_axis_angle(torch.rand(2, 3).double(), torch.rand(2, 3).double())
    used = UsedReference(3, "map-003", 0.7, 0.1, 20, 7)
    said = Answer(
        solved,
        True,
        1 / 3,
        "",
        T_regressed=regressed,
        T_solved=solved,
        num_inliers=7,
        references=(used,),
        signs={"a": 0.1},
    )
    write_answers_file(tmp_path / "a.json.gz", TOLD, {"own": {"way": [said, answer(None, 0.0)]}})
    read = read_answers_file(tmp_path / "a.json.gz", TOLD)
    assert read is not None
    back, nowhere = read["own"]["way"]
    assert torch.equal(back.T_world_cam.matrix(), solved.matrix())
    assert torch.equal(back.T_regressed.matrix(), regressed.matrix())
    assert (back.confidence, back.num_inliers, back.signs) == (1 / 3, 7, {"a": 0.1})
    assert back.references == (used,)
    assert back.focal_px is None
    assert nowhere.T_best is None
    assert nowhere.reason == "not sure enough"


def test_answers_to_another_question_are_none(tmp_path: Path):
    path = tmp_path / "a.json.gz"
    assert read_answers_file(path, TOLD) is None
    write_answers_file(path, TOLD, {})
    assert read_answers_file(path, TOLD) == {}
    assert read_answers_file(path, {**TOLD, "weights": "b"}) is None


@pytest.mark.parametrize("content", [b"", b"no answers", b"\x1f\x8b\x08\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "a.json.gz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.json\.gz: expected answers of an evaluation"):
        read_answers_file(tmp_path / "a.json.gz", TOLD)
