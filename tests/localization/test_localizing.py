"""Many queries after each other: what one frame of a video tells the next."""

import numpy as np
import pytest
from made_answers import localized, refused

from relograph.geometry import Pose
from relograph.localization.localizer import Answer, Localizer
from relograph.localization.localizing import localize_queries
from relograph.localization.prior import Prior, parse_prior
from relograph.localization.queries import Query

PIXELS = np.zeros((48, 64, 3), dtype=np.uint8)


def frame(time_s: float, video: str | None = "walk.mp4") -> Query:
    return Query(f"{video}-{time_s}", PIXELS, (64, 48), video, time_s if video else None)


def at(x: float) -> Answer:
    return localized(Pose.from_axis_angle([0.0, 0.0, 0.0], [x, 0.0, 0.0]))


def priors(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[Query, Answer]], told: str | None = None) -> list[object]:
    """The places (x) that the Localizer is told to look at, None where it is told nothing."""
    seen: list[Prior | None] = []
    answers = iter([answer for _, answer in asked])

    def localize(self: Localizer, image: object, *, camera: object = None, prior: Prior | None = None) -> Answer:
        seen.append(prior)
        return next(answers)

    monkeypatch.setattr(Localizer, "localize", localize)
    localizer = Localizer.__new__(Localizer)
    queries = [query for query, _ in asked]
    list(localize_queries(localizer, queries, prior=None if told is None else parse_prior(told)))
    return [None if prior is None else float(prior.T_world_cam.t[0]) for prior in seen]


def test_the_next_frame_begins_where_the_last_one_was_taken(monkeypatch):
    asked = [(frame(0.0), at(1.0)), (frame(0.5), at(2.0)), (frame(1.0), at(3.0))]
    assert priors(monkeypatch, asked) == [None, 1.0, 2.0]


def test_a_refused_frame_leaves_what_the_one_before_it_said_for_a_while(monkeypatch):
    asked = [(frame(0.0), at(1.0)), (frame(1.0), refused("")), (frame(1.9), refused("")), (frame(2.5), at(4.0))]
    assert priors(monkeypatch, asked) == [None, 1.0, 1.0, None]


def test_photos_and_other_videos_tell_each_other_nothing(monkeypatch):
    asked = [
        (frame(0.0, None), at(1.0)),
        (frame(0.0, None), at(2.0)),
        (frame(0.0, "a.mp4"), at(3.0)),
        (frame(0.0, "b.mp4"), at(4.0)),
        (frame(0.1, "b.mp4"), at(5.0)),
    ]
    assert priors(monkeypatch, asked) == [None, None, None, None, 4.0]


def test_a_prior_that_was_told_holds_until_a_frame_knows_better(monkeypatch):
    asked = [(frame(0.0), refused("")), (frame(0.5), at(2.0)), (frame(1.0), at(3.0)), (frame(9.0), at(3.0))]
    assert priors(monkeypatch, asked, "7 0 0") == [7.0, 7.0, 2.0, 7.0]
