"""The files through which peers are asked, and the loop that asks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.peers.matching import parse_peers
from relograph.evaluation.peers.protocol import MatchJob, read_job, read_matches, run_job, write_job, write_matches


class Corners:
    """A matcher for tests: every photo has as many points as its first pixel is bright, along a diagonal."""

    def __init__(self) -> None:
        self.seen = []

    def features(self, image):
        self.seen.append(int(image[0, 0, 0]))
        return np.arange(image[0, 0, 0])[:, None] * [1.0, 2.0]

    def match(self, query, ref):
        count = min(len(query), len(ref))
        return query[:count] + 0.5, ref[:count] + 0.25


def photo(brightness: int) -> np.ndarray:
    return np.full((8, 10, 3), brightness, dtype=np.uint8)


PHOTOS = [photo(brightness) for brightness in (3, 0, 5, 4, 9)]
JOB = MatchJob(PHOTOS.__getitem__, ((3, (0, 2)), (4, (2, 1, 0)), (3, ())))


def test_references_are_looked_at_once_however_many_queries_have_them():
    matcher = Corners()
    answer = run_job(matcher, JOB)
    assert matcher.seen == [4, 3, 0, 5, 4, 9, 4]  # the first is the warm-up
    assert len(answer.map_seconds) == 3


def test_matches_name_the_reference_by_its_place_in_the_querys_list():
    first, second, alone = run_job(Corners(), JOB).points
    assert_array_equal(first.ref_idx, [0] * 3 + [1] * 4)
    assert_array_equal(second.ref_idx, [0] * 5 + [2] * 3)  # the middle one has no points
    assert_allclose(first.ref_xy[-1], [3.25, 6.25])
    assert_allclose(first.query_xy[-1], [3.5, 6.5])
    assert len(alone.query_xy) == 0


def test_every_photo_of_the_map_and_every_query_is_one_step():
    steps = []
    run_job(Corners(), JOB, steps.append)
    assert sum(steps) == JOB.num_steps == 6


def test_a_job_and_its_answer_survive_the_way_through_files(tmp_path: Path):
    write_job(tmp_path, JOB)
    job = read_job(tmp_path)
    assert job.queries == JOB.queries
    assert_array_equal(job.read_image(2), PHOTOS[2])
    answer = run_job(Corners(), job)
    write_matches(tmp_path / "matches.npz", answer)
    read = read_matches(tmp_path / "matches.npz", job)
    assert len(read.points) == 3
    for before, after in zip(answer.points, read.points, strict=True):
        assert_allclose(after.query_xy, before.query_xy)
        assert_allclose(after.ref_xy, before.ref_xy)
        assert_array_equal(after.ref_idx, before.ref_idx)
    assert_array_equal(read.match_seconds, answer.match_seconds)
    assert_array_equal(read.map_seconds, answer.map_seconds)


def test_a_job_without_queries_has_an_answer_without_matches(tmp_path: Path):
    nothing = MatchJob(PHOTOS.__getitem__, ())
    write_matches(tmp_path / "matches.npz", run_job(Corners(), nothing))
    assert read_matches(tmp_path / "matches.npz", nothing).points == ()


def test_an_answer_to_another_job_is_refused(tmp_path: Path):
    write_matches(tmp_path / "matches.npz", run_job(Corners(), JOB))
    with pytest.raises(DatasetError, match="expected matches of 1 queries, found 3"):
        read_matches(tmp_path / "matches.npz", MatchJob(PHOTOS.__getitem__, ((3, (0,)),)))
    (tmp_path / "matches.npz").write_bytes(b"no matches")
    with pytest.raises(DatasetError, match="expected matches of points"):
        read_matches(tmp_path / "matches.npz", JOB)


def test_an_unknown_peer_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"expected names among sift, xfeat, .* found 'surf'"):
        parse_peers("sift,surf")


def test_the_peers_environment_needs_no_package_but_those_it_has():
    """What it imports of relograph must not lead to packages that are not in peers/requirements.txt."""
    script = "import sys; import relograph.evaluation.peers.protocol; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    there = {"torch", "numpy", "jaxtyping", "PIL"}
    needed = {"safetensors", "scipy", "matplotlib", "rich", "typer", "lightning", "poselib", "cv2"}
    assert there <= set(imported)
    assert not needed & set(imported)
