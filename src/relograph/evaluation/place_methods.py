"""The methods that are compared in a place, all on the same references: copying, and the peers."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, UInt8
from torch import Tensor

from relograph.evaluation.peers.matching import PEERS, Peer, match_by_peer
from relograph.evaluation.peers.protocol import MatchJob
from relograph.evaluation.peers.solving import PEER_SOLVERS, PeerSolver, solve_peer
from relograph.evaluation.place import Place, references_by_pose
from relograph.evaluation.place_answers import MethodAnswers, QueryAnswer
from relograph.evaluation.tables import COPY_TOP1
from relograph.progress import SILENT, Progress

COPY_NEAREST = "copy nearest by true pose"
NO_REFERENCE = "no reference was found"


def copy_first(place: Place, references: Int[Tensor, "Q R"]) -> MethodAnswers:
    """The pose of the first reference, as it is: what does not beat it has found nothing out."""
    first = references[:, 0].tolist()
    answers = [
        QueryAnswer(place.map.T_world_cam[row]) if row >= 0 else QueryAnswer(None, NO_REFERENCE) for row in first
    ]
    return MethodAnswers.of_place(COPY_TOP1, place, references, answers)


def copy_nearest(place: Place) -> MethodAnswers:
    """The pose of the photo of the map that is nearest by true pose: how far apart the places are."""
    nearest = references_by_pose(place, 1, 1)
    answers = [QueryAnswer(place.map.T_world_cam[row]) for row in nearest[:, 0].tolist()]
    return MethodAnswers.of_place(COPY_NEAREST, place, nearest, answers)


def peer_answers(
    place: Place,
    references: Int[Tensor, "Q R"],
    peer: Peer,
    solvers: Sequence[PeerSolver],
    *,
    progress: Progress = SILENT,
) -> list[MethodAnswers]:
    """A peer's answers with each of the solvers, all from the same matches."""
    rows = [[row for row in of_query if row >= 0] for of_query in references.tolist()]
    found = match_by_peer(peer, match_job(place, rows), progress=progress)
    methods = []
    for solver in solvers:
        answers = []
        with progress.task(f"solving with {PEER_SOLVERS[solver]}", total=len(rows)) as advance:
            for query, refs in enumerate(rows):
                begin = time.perf_counter()
                solved = solve_peer(
                    solver,
                    found.points[query],
                    place.map.T_world_cam[refs],
                    place.queries.cameras[query],
                    [place.map.cameras[row] for row in refs],
                )
                solver_seconds = time.perf_counter() - begin
                answers.append(
                    QueryAnswer(
                        solved.T_world_cam,
                        solved.reason,
                        num_inliers=solved.num_inliers,
                        network_seconds=float(found.feature_seconds[query] + found.match_seconds[query]),
                        solver_seconds=solver_seconds,
                    )
                )
                advance(1)
        name = f"{PEERS[peer]} + {PEER_SOLVERS[solver]}"
        methods.append(MethodAnswers.of_place(name, place, references, answers, found.map_seconds))
    return methods


def match_job(place: Place, references: Sequence[Sequence[int]]) -> MatchJob:
    """What is to be matched: photos of the map by their number, then the queries."""
    num_map = len(place.map)
    return MatchJob(photo_reader(place), tuple((num_map + query, tuple(refs)) for query, refs in enumerate(references)))


def photo_reader(place: Place) -> Callable[[int], UInt8[np.ndarray, "H W 3"]]:
    """Photos of the map by their number, then the queries."""
    num_map = len(place.map)
    return lambda number: place.map.read(number) if number < num_map else place.queries.read(number - num_map)
