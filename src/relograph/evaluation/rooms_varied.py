"""Answers in rooms under other conditions than the usual ones, which a calibration has to know as well.

They are asked for after all others and lie beside them, so those stay what they are.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from relograph.evaluation.answers_file import AnswersByKind, read_answers_file, write_answers_file
from relograph.evaluation.asking import Question, ask
from relograph.evaluation.batched import BatchedNetwork
from relograph.evaluation.conditions import Condition, condition_groups
from relograph.evaluation.place import PosedPhotos
from relograph.evaluation.place_localizer import REGRESSION
from relograph.evaluation.place_rooms import RoomPlace
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.rooms_gather import (
    OTHERS,
    OWN,
    UNSEEN,
    Maps,
    RoomsOptions,
    Ways,
    half_of_the_threads,
    what_answers_depend_on,
)
from relograph.evaluation.solver_pool import solver_pool
from relograph.localization.localizer import Answer
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress

EVERY_STRANGER = 2
"""Of the queries in a condition so many-th are looked for in another home, too."""


def kind_in(kind: str, condition: Condition) -> str:
    """Queries of a kind, in a condition."""
    return f"{kind}, {condition.name}"


@dataclass(frozen=True)
class _Asked:
    """All that is asked about one home in one condition."""

    photos: PosedPhotos
    """Those that the questions are about, in the condition's form."""
    questions: tuple[Question, ...]

    @property
    def num_answers(self) -> int:
        return sum(question.num_answers for question in self.questions)


def gather_varied(
    homes: Sequence[RoomPlace],
    network: LoadedMatchGNN,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Ways,
    *,
    parts: Path,
    progress: Progress = SILENT,
) -> list[AnswersByKind]:
    """The answers to the queries of each home in other conditions, in every way that is judged and that they change.

    `parts` is the folder of what has been done.
    """
    told = what_answers_depend_on(homes, network, config, options, None)
    files = [parts / f"{home.place.name}-varied.json.gz" for home in homes]
    done = {number: read_answers_file(file, told) for number, file in enumerate(files)}
    maps = Maps(homes, network, config, options, progress)
    asked = {
        number: [
            _asked(homes, number, condition, maps, config, options, ways)
            for group in condition_groups(config.num_references, options.reference_counts)
            for condition in group
        ]
        for number, answers in done.items()
        if answers is None
    }
    if asked:
        num_answers = sum(in_condition.num_answers for of_home in asked.values() for in_condition in of_home)
        with (
            solver_pool(options.num_workers if ways.main != REGRESSION else 0) as pool,
            half_of_the_threads() if pool is not None else nullcontext(),
            progress.task("answers in other conditions", total=num_answers) as advance,
        ):
            batched = BatchedNetwork(network)
            for number, of_home in asked.items():
                answers: dict[str, Mapping[str, Sequence[Answer]]] = {}
                for in_condition in of_home:
                    if in_condition.num_answers:
                        queries = batched.encode(in_condition.photos)
                        answers |= ask(in_condition.questions, queries, batched, pool=pool, advance=advance)
                write_answers_file(files[number], told, answers)
                done[number] = read_answers_file(files[number], told)
    return [answers for answers in done.values() if answers is not None]


def _asked(
    homes: Sequence[RoomPlace],
    number: int,
    condition: Condition,
    maps: Maps,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Ways,
) -> _Asked:
    """The queries and the unseen views of home `number` in its own map, and some of the queries in another one."""
    home = homes[number]
    queries, unseen = (photos[condition.rows(len(photos))] for photos in (home.place.queries, home.unseen.queries))
    ways_that_differ = tuple(way for way in ways.judged if condition.changes(way.focal))
    questions = []

    def look_for(kind: str, in_home: int, rows: range) -> None:
        if rows and ways_that_differ:
            questions.append(
                Question(
                    kind_in(kind, condition),
                    condition.map_photos(homes[in_home].place.map),
                    lambda: condition.map_features(maps.of(in_home)),
                    tuple(rows),
                    ways_that_differ,
                    condition.num_references or config.num_references,
                )
            )

    if number < options.num_homes:
        look_for(OWN, number, range(len(queries)))
        look_for(UNSEEN, number, range(len(queries), len(queries) + len(unseen)))
    others = [other for other in range(min(options.num_stranger_maps, options.num_homes)) if other != number]
    if others:
        look_for(OTHERS, others[number % len(others)], range(0, len(queries), EVERY_STRANGER))
    return _Asked(condition.form.of(queries.followed_by(unseen)), tuple(questions))
