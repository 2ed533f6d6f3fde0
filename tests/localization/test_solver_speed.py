"""The solver's row beside the network's: it is timed on queries that it solves. How fast it is, is not tested."""

import sys

import numpy as np
import pytest

from relograph.localization import solver_speed
from relograph.localization.solver import MatchedPoints, SolverAnswer, solve_query_pose
from relograph.localization.solver_speed import made_query, solver_speeds

SIZE = (240, 320)


def test_the_queries_that_are_timed_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_speed, "MATCHES_PER_REFERENCE", 100)
    answers: list[SolverAnswer] = []

    def watched(matches: MatchedPoints, *arguments: object, **options: object) -> SolverAnswer:
        answers.append(solve_query_pose(matches, *arguments, **options))
        return answers[-1]

    monkeypatch.setattr(solver_speed, "solve_query_pose", watched)
    rows = list(solver_speeds(SIZE, repeats=2))
    assert [row.runtime for row in rows] == ["lenses known", "query's focal length unknown"]
    assert all(0 < row.milliseconds_median <= row.milliseconds_p95 for row in rows)
    assert len(answers) == 2 * (2 + solver_speed.WARM_UP)
    for answer in answers:
        assert answer.T_world_cam is not None
        assert answer.T_world_cam.t.norm() < 0.05  # the query is at the origin
        assert answer.focal_px == pytest.approx(0.9 * 320, rel=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_matches_are_as_many_and_as_wrong_as_the_row_says(seed: int) -> None:
    matches, T_world_ref, camera = made_query(SIZE, np.random.default_rng(seed))
    (row,) = [row for row in solver_speeds(SIZE, repeats=1) if row.runtime == "lenses known"]
    assert len(matches.ref_idx) == row.num_references * row.matches_per_reference
    answer = solve_query_pose(matches, T_world_ref, camera, [camera] * row.num_references)
    assert 1 - answer.num_inliers / len(matches.ref_idx) == pytest.approx(row.wrong_share, abs=0.05)


def test_of_twenty_queries_one_may_take_longer_than_95_percent_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def solving_s(image_hw: tuple[int, int], *, knows_query: bool, seed: int) -> float:
        return 1e-3 * (seed - solver_speed.WARM_UP + 1)  # 1 to 20 ms

    monkeypatch.setattr(solver_speed, "_solving_s", solving_s)
    for row in solver_speeds(SIZE, repeats=20):
        assert (row.milliseconds_median, row.milliseconds_p95) == pytest.approx((10.5, 19.0))


def test_without_poselib_there_is_nothing_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "poselib", None)
    assert list(solver_speeds(SIZE)) == []
