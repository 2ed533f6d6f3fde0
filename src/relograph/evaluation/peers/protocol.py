"""What every method that matches points is asked, and what it answers: so all that follows the matches is the same.

The peers' own environment imports this file, and little is installed there: it takes no more of relograph than it must.

A job names photos by numbers. To a process of its own it goes as a folder: `job.json` with the queries, each as
[number, [numbers of its references]], and the photos as `<number>.png`. Matches come back as one NPZ file.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from relograph.errors import DatasetError
from relograph.scenes.images import decode_image

MIDDLE_OF_PIXEL = 0.5
"""To be added to points of those to whom the middle of the first pixel, not its corner, is (0, 0)."""

Xy = np.ndarray[tuple[int, ...], np.dtype[Any]]


@runtime_checkable  # the tests check every argument while they run
class Matcher(Protocol):
    """A method that finds points in photos and matches them."""

    def features(self, image: UInt8[np.ndarray, "H W 3"]) -> Any:
        """What is kept of a photo."""
        ...

    def match(self, query: Any, ref: Any) -> tuple[Xy, Xy]:
        """Points of the query and of the reference, in pixels with the corner at (0, 0), that show the same place."""
        ...


@dataclass(frozen=True)
class MatchJob:
    """Which photos are to be matched with which."""

    read_image: Callable[[int], UInt8[np.ndarray, "H W 3"]]
    """The photo of that number."""
    queries: tuple[tuple[int, tuple[int, ...]], ...]
    """The number of each query's photo, and those of its references."""

    @property
    def references(self) -> tuple[int, ...]:
        """Photos that are a reference of any query, each once."""
        return tuple(sorted({ref for _, refs in self.queries for ref in refs}))

    @property
    def num_steps(self) -> int:
        """Photos of the map to look at, and queries to match."""
        return len(self.references) + len(self.queries)


@dataclass(frozen=True)
class PeerPoints:
    """M pairs of points of a query and its references, in pixels with the corner of the image at (0, 0)."""

    query_xy: Float64[np.ndarray, "M 2"]
    ref_xy: Float64[np.ndarray, "M 2"]
    ref_idx: Int64[np.ndarray, "M"]
    """Which reference, counted in the query's own list."""


@dataclass(frozen=True)
class JobMatches:
    """The answer to a job of Q queries and F references; reading photos is not part of the times."""

    points: tuple[PeerPoints, ...]
    """Of each query."""
    feature_seconds: Float64[np.ndarray, "Q"]
    """For the features of a query."""
    match_seconds: Float64[np.ndarray, "Q"]
    """For matching it with all its references."""
    map_seconds: Float64[np.ndarray, "F"]
    """For the features of a reference, which are made once and kept."""


def run_job(matcher: Matcher, job: MatchJob, advance: Callable[[int], None] = lambda steps: None) -> JobMatches:
    """Matches every query with its references, one after the other; the references' features are made once."""
    if job.queries:
        matcher.features(job.read_image(job.queries[0][0]))  # what only the first call pays for is not a query's time
    kept, map_seconds = {}, []
    for ref in job.references:
        image = job.read_image(ref)
        begin = time.perf_counter()
        kept[ref] = matcher.features(image)
        map_seconds.append(time.perf_counter() - begin)
        advance(1)
    points, feature_seconds, match_seconds = [], [], []
    for query, refs in job.queries:
        image = job.read_image(query)
        begin = time.perf_counter()
        of_query = matcher.features(image)
        found = time.perf_counter()
        pairs = [matcher.match(of_query, kept[ref]) for ref in refs]
        match_seconds.append(time.perf_counter() - found)
        feature_seconds.append(found - begin)
        points.append(_points(pairs))
        advance(1)
    return JobMatches(
        tuple(points),
        np.array(feature_seconds, dtype=np.float64),
        np.array(match_seconds, dtype=np.float64),
        np.array(map_seconds, dtype=np.float64),
    )


def write_job(folder: Path, job: MatchJob) -> None:
    """Puts a job into an empty folder, for another process to `read_job`."""
    from PIL import Image

    for number in {*job.references, *(query for query, _ in job.queries)}:
        Image.fromarray(job.read_image(number)).save(folder / f"{number}.png", compress_level=1)
    (folder / "job.json").write_text(json.dumps({"queries": job.queries}), encoding="utf-8")


def read_job(folder: Path) -> MatchJob:
    """The job in a folder."""

    def read_image(number: int) -> UInt8[np.ndarray, "H W 3"]:
        path = folder / f"{number}.png"
        return decode_image(path.read_bytes(), str(path))

    queries = json.loads((folder / "job.json").read_text(encoding="utf-8"))["queries"]
    return MatchJob(read_image, tuple((query, tuple(refs)) for query, refs in queries))


def write_matches(path: Path, answer: JobMatches) -> None:
    """Writes one NPZ file: all queries' matches one after the other, and where each query's end."""
    nothing = PeerPoints(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, dtype=np.int64))
    every = (nothing, *answer.points)
    np.savez(
        path,
        query_xy=np.concatenate([points.query_xy for points in every]).astype(np.float32),
        ref_xy=np.concatenate([points.ref_xy for points in every]).astype(np.float32),
        ref_idx=np.concatenate([points.ref_idx for points in every]).astype(np.int32),
        ends=np.cumsum([len(points.query_xy) for points in answer.points], dtype=np.int64),
        feature_seconds=answer.feature_seconds,
        match_seconds=answer.match_seconds,
        map_seconds=answer.map_seconds,
    )


def read_matches(path: Path, job: MatchJob) -> JobMatches:
    """The answer to `job` in an NPZ file."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        begins: Int64[np.ndarray, "Q"] = arrays["ends"][:-1]
        parts = (np.split(arrays[name], begins) for name in ("query_xy", "ref_xy", "ref_idx"))
        points = [
            PeerPoints(query_xy.astype(np.float64), ref_xy.astype(np.float64), ref_idx.astype(np.int64))
            for query_xy, ref_xy, ref_idx in zip(*parts, strict=True)
        ]
        answer = JobMatches(
            tuple(points[: len(arrays["ends"])]),
            arrays["feature_seconds"],
            arrays["match_seconds"],
            arrays["map_seconds"],
        )
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(f"{path}: expected matches of points, found: {error}. Run the peer again.") from error
    if len(answer.points) != len(job.queries):
        raise DatasetError(
            f"{path}: expected matches of {len(job.queries)} queries, found {len(answer.points)}. Run the peer again."
        )
    return answer


def _points(pairs: list[tuple[Xy, Xy]]) -> PeerPoints:
    nothing = np.zeros((0, 2))
    return PeerPoints(
        np.concatenate([nothing, *(query_xy for query_xy, _ in pairs)]),
        np.concatenate([nothing, *(ref_xy for _, ref_xy in pairs)]),
        np.repeat(np.arange(len(pairs)), [len(query_xy) for query_xy, _ in pairs]),
    )
