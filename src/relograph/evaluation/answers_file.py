"""Answers on disk, as far as an evaluation needs them: what a long run has done is not lost with it."""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from relograph.errors import DatasetError
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose
from relograph.localization.localizer import Answer, UsedReference

Told = Mapping[str, object]
"""What answers depend on, as JSON has it: data, weights, settings, code."""


AnswersByKind = Mapping[str, Mapping[str, Sequence[Answer]]]
"""By the kind of what was asked, then by the name of the way in which it was answered."""


def write_answers_file(path: Path, told: Told, answers: AnswersByKind) -> None:
    """Writes answers with what they depend on."""
    as_json = {
        kind: {way: [_to_json(answer) for answer in said] for way, said in by_way.items()}
        for kind, by_way in answers.items()
    }
    text = json.dumps({"told": told, "answers": as_json})
    write_whole(path, gzip.compress(text.encode(), compresslevel=3))


def read_answers_file(path: Path, told: Told) -> AnswersByKind | None:
    """The answers in a file; None where there is no such file, or where they depend on something else than `told`."""
    if not path.is_file():
        return None
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["told"] != json.loads(json.dumps(told)):
            return None
        return {
            kind: {way: [_from_json(answer) for answer in said] for way, said in by_way.items()}
            for kind, by_way in document["answers"].items()
        }
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: expected answers of an evaluation, found a file that is none: {error}. Remove it."
        ) from error


def _to_json(answer: Answer) -> dict[str, object]:
    return {
        "localized": answer.localized,
        "confidence": answer.confidence,
        "reason": answer.reason,
        "T_regressed": _numbers(answer.T_regressed),
        "T_solved": _numbers(answer.T_solved),
        "num_inliers": answer.num_inliers,
        "focal_px": answer.focal_px,
        "references": [
            [used.row, used.name, used.similarity, used.overlap, used.num_matches, used.num_inliers]
            for used in answer.references
        ],
        "signs": dict(answer.signs),
    }


def _from_json(values: dict[str, Any]) -> Answer:
    T_regressed, T_solved = _pose(values["T_regressed"]), _pose(values["T_solved"])
    T_best = T_regressed if T_solved is None else T_solved
    return Answer(
        T_best if values["localized"] else None,
        values["localized"],
        values["confidence"],
        values["reason"],
        T_regressed=T_regressed,
        T_solved=T_solved,
        num_inliers=values["num_inliers"],
        focal_px=values["focal_px"],
        references=tuple(UsedReference(*used) for used in values["references"]),
        signs=values["signs"],
    )


def _numbers(pose: Pose | None) -> list[list[float]] | None:
    """Rotation matrix and translation; a number in JSON is that number, to the last bit."""
    return None if pose is None else [pose.R.double().flatten().tolist(), pose.t.double().tolist()]


def _pose(numbers: list[list[float]] | None) -> Pose | None:
    if numbers is None:
        return None
    R, t = (torch.tensor(part, dtype=torch.float64) for part in numbers)
    return Pose(R.reshape(3, 3), t)
