"""All answers of an evaluation in rooms, home by home: each home's are written when they are there.

A home's queries are encoded once, and looked for in its own map and in those of others. What was written by a run that
was ended from outside is not asked for again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import relograph
from relograph.environment import installed_version
from relograph.evaluation.answers_file import AnswersByKind, read_answers_file, write_answers_file
from relograph.evaluation.asking import Question, ask
from relograph.evaluation.batched import BatchedNetwork
from relograph.evaluation.place import Place, PosedPhotos, references_by_pose
from relograph.evaluation.place_localizer import REGRESSION, OurMap, OurWay, our_answers
from relograph.evaluation.place_rooms import RoomPlace, room_places
from relograph.evaluation.place_run import PlaceConfig
from relograph.evaluation.solver_pool import SolverPool, solver_pool
from relograph.localization.localizer import Answer
from relograph.localization.map_features import MapFeatures, StoredFeatures
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.results import source_sha256
from relograph.rooms.room_maps import Part, RoomMapConfig

OWN, INT8 = "own map", "own map in int8"
UNSEEN, OTHERS = "views of the home that its map does not show", "queries of other homes"
LEFT_OUT = ("varied", "textures", "num_workers", "cache")
"""Options that say what else is asked, where things lie and who works, and change no answer."""
CODE_OF_ANSWERS = ("evaluation", "geometry", "graphs", "localization", "models", "retrieval", "scenes")


@dataclass(frozen=True, kw_only=True)
class RoomsOptions:
    """Which homes, and how many queries that are not in their maps."""

    num_homes: int = 20
    """Homes whose queries are scored."""
    every: int = 1
    """Of each home every so many-th query: all of them, unless a shorter run will do."""
    first: int = 0
    """Number of the first query of each home."""
    num_stranger_maps: int = 10
    """Maps in which queries of other homes are looked for."""
    strangers_per_map: int = 1000
    """So many of them, or all there are."""
    every_for_other_ways: int = 10
    """For every so many-th of them, answers without a focal length are asked for, too: to search it takes longer."""
    reference_counts: tuple[int, ...] = (1, 2, 4, 7, 16, 32)
    """Numbers of references to try, each on some of the queries."""
    every_for_counts: int = 4
    """For that, every so many-th query."""
    compare_int8: bool = True
    """Whether the same queries are asked with map features in int8, too."""
    varied: bool = False
    """Whether they are asked for as users have them, too: other photos, sparse maps, wrong focal lengths, other numbers
    of references."""
    textures: Path | None = None
    """Photographs for walls, by split."""
    rooms: RoomMapConfig = field(default_factory=lambda: RoomMapConfig(unseen_views=20))
    seed: int = 0
    num_workers: int = 0
    """Processes that solve."""
    cache: Path | None = None
    """Folder in which photographed homes are kept."""


def make_homes(
    part: Part, options: RoomsOptions, *, device: str = "cpu", progress: Progress = SILENT
) -> list[RoomPlace]:
    """The homes of an evaluation, and one more: a home's strangers are the queries of as many others."""
    homes = room_places(
        part,
        replace(options.rooms, num_homes=options.num_homes + 1),
        textures=options.textures,
        seed=options.seed,
        device=device,
        cache=options.cache,
        progress=progress,
    )
    return [replace(home, place=home.place.every_nth_query(options.every, options.first)) for home in homes]


def count_kind(num_references: int) -> str:
    """Queries in their own map, with so many references."""
    return f"own map, {num_references} references"


@dataclass(frozen=True)
class Ways:
    """How queries are answered: all ways of queries in their own map, and those of queries that are not in the map."""

    own: tuple[OurWay, ...]
    """The one that users have last, where they know the focal length."""

    @staticmethod
    def of(config: PlaceConfig) -> "Ways":
        regression = (OurWay("regress", "given"), REGRESSION)
        if config.solver == "regress":
            return Ways(regression)
        return Ways((*regression, *(OurWay(config.solver, focal) for focal in ("wrong", "searched", "given"))))

    @property
    def main(self) -> OurWay:
        return self.own[-1]

    @property
    def searched(self) -> OurWay | None:
        return next((way for way in self.own if way.focal == "searched"), None)

    @property
    def few(self) -> tuple[OurWay, ...]:
        """Where settings are compared."""
        return tuple(dict.fromkeys((REGRESSION, self.main)))

    @property
    def judged(self) -> tuple[OurWay, ...]:
        """Those whose confidence is fitted, and their strangers counted."""
        return (REGRESSION, *(way for way in (self.searched, self.main) if way not in (None, REGRESSION)))


def gather(
    homes: Sequence[RoomPlace],
    network: LoadedMatchGNN,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Ways,
    elsewhere: Place | None,
    *,
    parts: Path,
    progress: Progress = SILENT,
) -> list[AnswersByKind]:
    """The answers to the queries of each home, then those that have to do with `elsewhere`, if there is such a place.

    `parts` is the folder of what has been done.
    """
    told = what_answers_depend_on(homes, network, config, options, elsewhere)
    names = [home.place.name for home in homes] + ([] if elsewhere is None else ["elsewhere"])
    files = {name: parts / f"{name}.json.gz" for name in names}
    done = {name: read_answers_file(file, told) for name, file in files.items()}
    if any(answers is None for answers in done.values()):
        maps = Maps(homes, network, config, options, progress)
        asked = {
            home.place.name: _questions(homes, number, maps, config, options, ways)
            for number, home in enumerate(homes)
            if done[home.place.name] is None
        }
        num_answers = sum(question.num_answers for questions in asked.values() for question in questions)
        with (
            solver_pool(options.num_workers if ways.main != REGRESSION else 0) as pool,
            half_of_the_threads() if pool is not None else nullcontext(),
            progress.task("answers", total=num_answers) as advance,
        ):
            batched = BatchedNetwork(network)
            for home in homes:
                questions = asked.get(home.place.name)
                if questions is not None:
                    queries = batched.encode(home.place.queries.followed_by(home.unseen.queries))
                    answers = ask(questions, queries, batched, pool=pool, advance=advance)
                    write_answers_file(files[home.place.name], told, answers)
            if elsewhere is not None and done["elsewhere"] is None:
                answers = _ask_elsewhere(homes, elsewhere, maps, network, config, options, ways, pool, progress)
                write_answers_file(files["elsewhere"], told, answers)
        done = {name: read_answers_file(file, told) for name, file in files.items()}
    return [answers for answers in done.values() if answers is not None]


@contextmanager
def half_of_the_threads() -> Iterator[None]:
    """The network on half of the cores where others solve beside it: threads that wait for each other hold all up."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stranger_rows(num_queries: Sequence[int], own: int, count: int) -> list[list[int]]:
    """Of each home the queries that are looked for in the map of home `own`: `count` in all, evenly from all others.

    All of them, where there are no more.

    Example:
        >>> stranger_rows([2, 4, 4], 0, 4)
        [[], [0, 2], [1, 3]]
    """
    rows = [(home, row) for home, number in enumerate(num_queries) if home != own for row in range(number)]
    if count < len(rows):
        rows = [rows[place] for place in np.linspace(0, len(rows) - 1, count).round().astype(int).tolist()]
    return [[row for of_home, row in rows if of_home == home] for home in range(len(num_queries))]


class Maps:
    """Features of the homes' maps: those in which strangers are looked for are kept, the others are made in turn."""

    def __init__(
        self,
        homes: Sequence[RoomPlace],
        network: LoadedMatchGNN,
        config: PlaceConfig,
        options: RoomsOptions,
        progress: Progress,
    ) -> None:
        self._homes, self._network, self._config, self._progress = homes, network, config, progress
        self._num_kept = options.num_stranger_maps
        self._kept: dict[int, MapFeatures] = {}

    def of(self, number: int) -> MapFeatures:
        if number not in self._kept:
            for old in [kept for kept in self._kept if kept >= self._num_kept]:
                del self._kept[old]
            photos = self._homes[number].place.map
            made = OurMap.of(photos, self._network, precision=self._config.precision, progress=self._progress)
            self._kept[number] = made.features
        return self._kept[number]

    def in_int8(self, number: int) -> MapFeatures:
        """The same features, rounded further."""
        features = self.of(number)
        stored_by_size = {}
        for size_hw, stored in features.stored_by_size.items():
            everything = stored.take(torch.arange(len(stored.parts[0])), stored.parts[0].device)
            stored_by_size[size_hw] = StoredFeatures.of(everything, "int8")
        return replace(features, stored_by_size=stored_by_size, precision="int8")


def _questions(
    homes: Sequence[RoomPlace],
    number: int,
    maps: Maps,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Ways,
) -> list[Question]:
    """All that is asked about the queries of one home."""
    home = homes[number]
    num_queries = len(home.place.queries)
    everything = tuple(range(num_queries))
    questions = []

    def strangers(kind: str, in_home: int, rows: Sequence[int]) -> None:
        looked_in = homes[in_home].place.map
        some = tuple(rows[:: options.every_for_other_ways])
        others = tuple(row for row in rows if row not in some)
        for queries, of_ways in ((some, ways.judged), (others, (ways.main,))):
            if queries:
                features = partial(maps.of, in_home)
                questions.append(Question(kind, looked_in, features, queries, of_ways, config.num_references))

    if number < options.num_homes:
        references = None
        if config.references_by == "pose":
            references = tuple(
                map(tuple, references_by_pose(home.place, config.num_references, config.stride).tolist())
            )
        own = Question(
            OWN, home.place.map, partial(maps.of, number), everything, ways.own, config.num_references, references
        )
        questions.append(own)
        if options.compare_int8 and config.precision != "int8":
            questions.append(replace(own, kind=INT8, features=partial(maps.in_int8, number), ways=ways.few))
        some = everything[:: options.every_for_counts]
        questions += [
            replace(own, kind=count_kind(count), queries=some, ways=ways.few, num_references=count, references=None)
            for count in options.reference_counts
            if count <= len(home.place.map)
        ]
        strangers(UNSEEN, number, range(num_queries, num_queries + len(home.unseen.queries)))
    counts = [len(other.place.queries) for other in homes]
    for in_home in range(min(options.num_stranger_maps, options.num_homes)):
        if in_home != number:
            strangers(OTHERS, in_home, stranger_rows(counts, in_home, options.strangers_per_map)[number])
    return questions


def _ask_elsewhere(
    homes: Sequence[RoomPlace],
    elsewhere: Place,
    maps: Maps,
    network: LoadedMatchGNN,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Ways,
    pool: SolverPool | None,
    progress: Progress,
) -> AnswersByKind:
    """Queries of another place, each in one of the homes' maps, and theirs in its map; photos may be of any size."""
    answers: dict[str, dict[str, list[Answer]]] = {}

    def look_for(kind: str, place: Place, queries: PosedPhotos, our_map: OurMap) -> None:
        strangers = replace(place, queries=queries, overlap=None)
        said = our_answers(
            strangers, our_map, network, ways.main, num_references=config.num_references, pool=pool, progress=progress
        )
        answers.setdefault(kind, {}).setdefault(ways.main.name, []).extend(said)

    scored = homes[: options.num_homes]
    looked_in = scored[: min(options.num_stranger_maps, len(elsewhere.queries))]
    for number, home in enumerate(looked_in):
        some = elsewhere.queries[list(range(number, len(elsewhere.queries), len(looked_in)))]
        our_map = OurMap(maps.of(number), np.zeros(0))
        look_for(f"queries of {elsewhere.name} in maps of homes", home.place, some, our_map)
    our_map = OurMap.of(elsewhere.map, network, precision=config.precision, progress=progress)
    for home in scored:
        look_for(f"queries of homes in the map of {elsewhere.name}", elsewhere, home.place.queries, our_map)
    return answers


def what_answers_depend_on(
    homes: Sequence[RoomPlace],
    network: LoadedMatchGNN,
    config: PlaceConfig,
    options: RoomsOptions,
    elsewhere: Place | None,
) -> Mapping[str, object]:
    """Of all that a run is told: what changes an answer, and not where things lie."""
    package = Path(relograph.__file__).parent
    return {
        "weights_sha256": network.sha256,
        "homes": [home.place.fingerprint for home in homes],
        "elsewhere": None if elsewhere is None else [elsewhere.fingerprint, elsewhere.queries.names],
        "options": {name: value for name, value in asdict(options).items() if name not in LEFT_OUT},
        "config": asdict(config),
        "code": [source_sha256(package / folder) for folder in CODE_OF_ANSWERS],
        "versions": [installed_version(name) for name in ("torch", "poselib", "numpy")],
        "device": next(network.model.parameters()).device.type,
    }
