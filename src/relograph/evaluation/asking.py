"""Many questions about the same queries: each is matched once for a map, and solved in other processes meanwhile."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relograph.evaluation.answers_file import AnswersByKind
from relograph.evaluation.batched import BatchedNetwork, EncodedQueries
from relograph.evaluation.place import MAP_FOCAL, QUERY_FOCAL, FocalTold, PosedPhotos
from relograph.evaluation.place_localizer import OurWay
from relograph.evaluation.solver_pool import PendingAnswers, SolverPool
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.localizer import Answer, Compared, answer_compared
from relograph.localization.map_features import MapFeatures

PENDING_PER_WORKER = 8
"""Comparisons that wait for each process that solves, so that none waits for the network."""


@dataclass(frozen=True)
class Question:
    """Some queries that are looked for in a map, in several ways."""

    kind: str
    """Answers of one kind are put together, in the order in which they are asked for."""
    map_photos: PosedPhotos
    """With their true cameras."""
    features: Callable[[], MapFeatures]
    """Of the same photos, made when they are needed."""
    queries: tuple[int, ...]
    """Numbers of encoded queries."""
    ways: tuple[OurWay, ...]
    num_references: int = 7
    references: tuple[tuple[int, ...], ...] | None = None
    """Of each query, to be taken instead of those that are retrieved."""

    @property
    def num_answers(self) -> int:
        return len(self.queries) * len(self.ways)


def ask(
    questions: Sequence[Question],
    queries: EncodedQueries,
    network: BatchedNetwork,
    *,
    pool: SolverPool | None = None,
    advance: Callable[[int], None] = lambda steps: None,
) -> AnswersByKind:
    """The answers to all questions; how sure they are is for a calibration to say, later.

    With a `pool` other processes solve while the network goes on. Times are not kept: they would be those of a batch.
    """
    answers: dict[str, dict[str, list[Answer | None]]] = {}
    waiting: deque[tuple[list[tuple[list[Answer | None], int]], PendingAnswers | list[Answer]]] = deque()
    most_waiting = 0 if pool is None else PENDING_PER_WORKER * pool.num_workers

    def take() -> None:
        places, said = waiting.popleft()
        for (row, place), answer in zip(places, said if isinstance(said, list) else said.result(), strict=True):
            row[place] = replace(answer, seconds={})
        advance(len(places))

    for question in questions:
        features = question.features()
        of_kind = answers.setdefault(question.kind, {})
        rows = {way: of_kind.setdefault(way.name, []) for way in question.ways}
        begins = {way: len(row) for way, row in rows.items()}
        for row in rows.values():
            row.extend([None] * len(question.queries))
        place_of = {query: place for place, query in enumerate(question.queries)}
        retrieved_now = network.retrieve(
            queries, question.queries, features, question.num_references, question.references
        )
        for retrieved in retrieved_now:
            matched = network.match(queries, retrieved, features)
            for focal, ways in _by_what_the_network_is_told(question.ways).items():
                of_queries = queries.photos.told(focal, QUERY_FOCAL).cameras
                of_map = question.map_photos.told(focal, MAP_FOCAL).cameras
                compared = network.regress(queries, matched, features, of_queries, of_map)
                for query, one in zip(retrieved.queries, compared, strict=True):
                    places = [(rows[way], begins[way] + place_of[query]) for way in ways]
                    waiting.append((places, _answers(one, ways, pool)))
                    while len(waiting) > most_waiting:
                        take()
    while waiting:
        take()
    return {
        kind: {way: [answer for answer in row if answer is not None] for way, row in by_way.items()}
        for kind, by_way in answers.items()
    }


def _by_what_the_network_is_told(ways: Sequence[OurWay]) -> dict[FocalTold, list[OurWay]]:
    """The network is told nothing where the solver searches."""
    by_focal: dict[FocalTold, list[OurWay]] = {}
    for way in ways:
        by_focal.setdefault("none" if way.focal == "searched" else way.focal, []).append(way)
    return by_focal


def _answers(compared: Compared, ways: Sequence[OurWay], pool: SolverPool | None) -> PendingAnswers | list[Answer]:
    solvers = [way.solver for way in ways]
    if pool is None:
        return [answer_compared(compared, solver) for solver in solvers]
    return pool.submit(compared, solvers, UNCALIBRATED)
