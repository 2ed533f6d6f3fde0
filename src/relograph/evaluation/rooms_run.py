"""`relograph eval --rooms`: MatchGNN in homes that nobody trained on, and with queries that are not in the map.

DIR/                     as in `place_report`, over the queries of all homes
DIR/false-accepts.png, reliability.png, errors-by-references.png
DIR/false-accepts.json, reliability.json, references.json
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from relograph.errors import ConfigError
from relograph.evaluation.calibrating import JudgedAnswers, fit_calibration, rejudged, reliability_of
from relograph.evaluation.false_accepts import Strangers, count_false_accepts, false_accepts_table
from relograph.evaluation.metrics import score
from relograph.evaluation.place import Place
from relograph.evaluation.place_answers import MethodAnswers, write_query_details
from relograph.evaluation.place_localizer import REGRESSION, OurMap, OurWay, our_answers, our_row, used_references
from relograph.evaluation.place_methods import COPY_NEAREST
from relograph.evaluation.place_plots import acceptance_figure, errors_by_references_figure
from relograph.evaluation.place_report import (
    comparison_table,
    draw_comparison,
    draw_failures,
    write_answers,
    write_table,
)
from relograph.evaluation.place_rooms import RoomPlace, room_places
from relograph.evaluation.place_run import (
    Comparison,
    PlaceConfig,
    about_references,
    command_to_publish,
    compare_in_place,
    references_text,
    with_what_is_installed,
)
from relograph.evaluation.plots import save_figure
from relograph.evaluation.reliability import reliability_figure, reliability_row
from relograph.evaluation.solver_pool import SolverPool, solver_pool
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.localizer import Answer
from relograph.models.shipped import Calibration, LoadedMatchGNN, save_calibration
from relograph.progress import SILENT, Progress
from relograph.results import provenance, write_result
from relograph.rooms.room_maps import Part, RoomMapConfig

HARD_ENOUGH_M, HARD_ENOUGH_DEG = 0.19, 6.5
"""Median errors of copying the nearest pose; queries that are nearer than this ask too little."""


@dataclass(frozen=True, kw_only=True)
class RoomsOptions:
    """Which homes, and how many queries that are not in their maps."""

    num_homes: int = 20
    """Homes whose queries are scored."""
    num_stranger_maps: int = 10
    """Maps in which queries of other homes are looked for."""
    strangers_per_map: int = 1000
    """So many of them, or all there are."""
    reference_counts: tuple[int, ...] = (1, 2, 4, 7, 16, 32)
    """Numbers of references to try, each on some of the queries."""
    every_for_counts: int = 4
    """For that, every so many-th query."""
    textures: Path | None = None
    """Photographs for walls, by split."""
    rooms: RoomMapConfig = field(default_factory=lambda: RoomMapConfig(unseen_views=20))
    seed: int = 0
    num_workers: int = 0
    """Processes that solve where time is not measured."""


@dataclass
class _Gathered:
    """What is known after some of the homes."""

    comparisons: list[Comparison] = field(default_factory=list)
    strangers: dict[str, dict[OurWay, list[Answer]]] = field(default_factory=dict)
    by_count: dict[str, dict[int, list[MethodAnswers]]] = field(default_factory=dict)

    def add_strangers(self, kind: str, way: OurWay, answers: Sequence[Answer]) -> None:
        self.strangers.setdefault(kind, {}).setdefault(way, []).extend(answers)


def make_homes(
    part: Part, options: RoomsOptions, *, device: str = "cpu", progress: Progress = SILENT
) -> list[RoomPlace]:
    """The homes of an evaluation, and one more: a home's strangers are the queries of as many others."""
    rooms = replace(options.rooms, num_homes=options.num_homes + 1)
    homes = room_places(part, rooms, textures=options.textures, seed=options.seed, device=device, progress=progress)
    return list(homes)


def evaluate_rooms(
    part: Part,
    homes: Sequence[RoomPlace],
    network: LoadedMatchGNN,
    options: RoomsOptions,
    config: PlaceConfig,
    *,
    elsewhere: Place | None = None,
    calibrate: Path | None = None,
    device: str = "cpu",
    output: Path,
    paths: Mapping[Path | None, str],
    warn: Callable[[str], None] = lambda note: None,
    progress: Progress = SILENT,
) -> str:
    """Localize the queries of homes in their maps and in others; tables in Markdown, the rest in `output`.

    The last home lends its queries only. `elsewhere` is another place, whose queries are looked for in the homes' maps,
    and theirs in its map. `calibrate` is the folder of the network's weights: their confidence is fitted to the
    answers and saved there, before anything is counted.
    """
    config = with_what_is_installed(config, homes[0].place, warn)
    ways = [REGRESSION] if config.solver == "regress" else [REGRESSION, *_solver_ways(config)]
    if calibrate is not None and len(ways) < 2:
        raise ConfigError(
            "expected the solver's answers to calibrate on too, found regression alone. Install the geometry extra, "
            "and leave --solver regress out."
        )
    with solver_pool(options.num_workers if ways[-1] != REGRESSION else 0) as pool:
        gathered = _gather(
            homes,
            network,
            config,
            options,
            ways,
            elsewhere,
            both_ways=calibrate is not None,
            pool=pool,
            progress=progress,
        )
    if calibrate is not None:
        judged = sum((_judged(gathered, way) for way in ways), start=JudgedAnswers())
        calibration = fit_calibration(judged, network.sha256)
        save_calibration(calibrate, calibration)
        network, gathered = replace(network, calibration=calibration), _judged_by(gathered, calibration)
    details: dict[str, object] = {
        "data": f"{part} rooms",
        "data_fingerprint": [home.place.fingerprint for home in homes],
        "num_homes": options.num_homes,
        "textures": None if options.textures is None else "$TEXTURES",
        **about_references(config),
        "weights_sha256": network.sha256,
        "calibrated": network.calibration is not None,
    }
    if elsewhere is not None:
        details |= {"elsewhere": elsewhere.name, "elsewhere_fingerprint": elsewhere.fingerprint}
    command = command_to_publish(paths)

    def write(name: str, rows: Sequence[Mapping[str, object]]) -> None:
        write_result(output / name, rows, command=command, seed=options.seed, device=device, details=details)

    report = _Report(part, output, config, write, warn)
    return "\n".join(
        [
            report.accuracy(
                gathered, {**details, "provenance": provenance(command=command, seed=options.seed, device=device)}
            ),
            report.reference_counts(gathered),
            report.reliability(gathered, ways[-1], network.calibration),
            report.false_accepts(gathered, ways[-1]),
        ]
    )


def _solver_ways(config: PlaceConfig) -> list[OurWay]:
    return [OurWay(config.solver, "searched"), OurWay(config.solver, "given")]


def _gather(
    homes: Sequence[RoomPlace],
    network: LoadedMatchGNN,
    config: PlaceConfig,
    options: RoomsOptions,
    ways: Sequence[OurWay],
    elsewhere: Place | None,
    *,
    both_ways: bool,
    pool: SolverPool | None,
    progress: Progress,
) -> _Gathered:
    """Every answer that is asked for, home by home: only one map's features are kept at a time."""
    gathered = _Gathered()
    main = ways[-1]
    stranger_ways = [REGRESSION, main] if both_ways and main != REGRESSION else [main]

    def look_for(kind: str, place: Place, queries: Place, our_map: OurMap) -> None:
        strangers = replace(place, queries=queries.queries, overlap=None)
        if len(strangers.queries):
            for way in stranger_ways:
                answers = our_answers(
                    strangers, our_map, network, way, num_references=config.num_references, pool=pool, progress=progress
                )
                gathered.add_strangers(kind, way, answers)

    scored = homes[: options.num_homes]
    with progress.task("homes", total=len(scored)) as advance:
        for number, home in enumerate(scored):
            our_map = OurMap.of(home.place.map, network, precision=config.precision, progress=progress)
            gathered.comparisons.append(
                compare_in_place(home.place, network, config, ways=ways, our_map=our_map, progress=progress)
            )
            look_for("views of the home that its map does not show", home.place, home.unseen, our_map)
            if number < options.num_stranger_maps:
                for other in some_queries([h.place for h in homes if h is not home], options.strangers_per_map):
                    look_for("queries of other homes", home.place, other, our_map)
                if elsewhere is not None:
                    look_for(f"queries of {elsewhere.name} in maps of homes", home.place, elsewhere, our_map)
            some = home.place.every_nth_query(options.every_for_counts)
            for way in dict.fromkeys((REGRESSION, main)):
                for count in options.reference_counts:
                    if count > len(home.place.map):
                        continue
                    answers = our_answers(
                        some, our_map, network, way, num_references=count, pool=pool, progress=progress
                    )
                    row = our_row(some, way, answers, used_references(answers, count), our_map.seconds)
                    gathered.by_count.setdefault(way.name, {}).setdefault(count, []).append(row)
            advance(1)
    if elsewhere is not None:
        our_map = OurMap.of(elsewhere.map, network, precision=config.precision, progress=progress)
        for home in scored:
            look_for(f"queries of homes in the map of {elsewhere.name}", elsewhere, home.place, our_map)
    return gathered


def some_queries(places: Sequence[Place], count: int) -> list[Place]:
    """The places with `count` of their queries in all, evenly from all of them, or with all where there are no more."""
    rows = [(number, row) for number, place in enumerate(places) for row in range(len(place.queries))]
    if count < len(rows):
        rows = [rows[place] for place in np.linspace(0, len(rows) - 1, count).round().astype(int).tolist()]
    return [
        place.with_queries([row for of_place, row in rows if of_place == number]) for number, place in enumerate(places)
    ]


def _judged(gathered: _Gathered, way: OurWay) -> JudgedAnswers:
    judged = JudgedAnswers()
    for comparison in gathered.comparisons:
        judged += JudgedAnswers.of_queries(comparison.answers[way], way.solver, comparison.place.queries.T_world_cam)
    for by_way in gathered.strangers.values():
        judged += JudgedAnswers.of_strangers(by_way.get(way, []), way.solver)
    return judged


def _judged_by(gathered: _Gathered, calibration: Calibration) -> _Gathered:
    """The same answers as sure as another calibration makes them."""
    strangers = {
        kind: {way: [rejudged(answer, way.solver, calibration) for answer in answers] for way, answers in by_way.items()}
        for kind, by_way in gathered.strangers.items()
    }
    comparisons = [comparison.judged_by(calibration) for comparison in gathered.comparisons]
    return _Gathered(comparisons, strangers, gathered.by_count)


@dataclass(frozen=True)
class _Report:
    """Writes one part after the other, and gives each back in Markdown."""

    part: Part
    output: Path
    config: PlaceConfig
    write: Callable[[str, Sequence[Mapping[str, object]]], None]
    warn: Callable[[str], None]

    @property
    def title(self) -> str:
        return f"{self.part} rooms"

    def accuracy(self, gathered: _Gathered, metadata: Mapping[str, object]) -> str:
        """Errors over the queries of all homes."""
        per_method = zip(*(comparison.methods for comparison in gathered.comparisons), strict=True)
        methods = [MethodAnswers.cat(parts, self.title) for parts in per_method]
        for method in methods:
            write_answers(self.output, method, metadata)
        write_query_details(self.output / "queries.csv", methods)
        rows = [method.as_row() for method in methods]
        self.write("results.json", rows)
        num_queries, num_homes = rows[0]["num_queries"], len(gathered.comparisons)
        heading = f"{num_queries} queries in {num_homes} homes, {references_text(self.config)}."
        table = comparison_table(f"Localization in {self.title}", rows, heading)
        write_table(self.output, table)
        parts = [(comparison.place, comparison.references) for comparison in gathered.comparisons]
        draw_comparison(self.output, methods, self.title)
        draw_failures(self.output / "failures.png", parts, methods[-1])
        (nearest,) = score(next(method.predictions for method in methods if method.name == COPY_NEAREST))
        metres, degrees = nearest.median_translation_error_m, nearest.median_rotation_error_deg
        if metres < HARD_ENOUGH_M or degrees < HARD_ENOUGH_DEG:
            self.warn(
                f"these queries are too easy to compare figures with: copying the nearest pose errs by {metres:.3f} m "
                f"and {degrees:.1f} degrees, and should by {HARD_ENOUGH_M} m and {HARD_ENOUGH_DEG} degrees at least."
            )
        return table.markdown()

    def reference_counts(self, gathered: _Gathered) -> str:
        """Median errors against the number of references."""
        rows: list[dict[str, object]] = []
        drawn: dict[str, dict[int, tuple[float, float]]] = {}
        lines = ["| method | references | median |", "|---|---|---|"]
        for name, by_count in gathered.by_count.items():
            for count, parts in by_count.items():
                whole = MethodAnswers.cat(parts, self.title)
                (scores,) = score(whole.predictions)
                median = scores.median_translation_error_m, scores.median_rotation_error_deg
                drawn.setdefault(name, {})[count] = median
                rows.append({**whole.as_row(), "num_references": count})
                lines.append(f"| {name} | {count} | {median[0]:.3f} m / {median[1]:.2f}° |")
        self.write("references.json", rows)
        save_figure(errors_by_references_figure(drawn, title=self.title), self.output / "errors-by-references.png")
        return "\n".join(lines) + "\n"

    def reliability(self, gathered: _Gathered, way: OurWay, calibration: Calibration | None) -> str:
        """Whether confidence keeps its promise, of queries in their own map and of strangers alike."""
        found = reliability_of(_judged(gathered, way), calibration or UNCALIBRATED)
        self.write("reliability.json", [{"method": way.name, **reliability_row(found)}])
        fitted = "" if calibration is not None else ", not calibrated"
        figure = reliability_figure(found, title=f"{self.title}{fitted}")
        save_figure(figure, self.output / "reliability.png")
        return f"Expected calibration error: {found.expected_calibration_error:.1%}{fitted}.\n"

    def false_accepts(self, gathered: _Gathered, way: OurWay) -> str:
        """How many strangers are taken for localized."""
        method = MethodAnswers.cat(
            [next(row for row in comparison.methods if row.name == way.name) for comparison in gathered.comparisons],
            self.title,
        )
        right = method.confidence[method.right]
        strangers = [
            Strangers(
                kind,
                np.array([answer.confidence for answer in by_way[way]]),
                np.array([answer.localized for answer in by_way[way]], dtype=bool),
            )
            for kind, by_way in gathered.strangers.items()
        ]
        found = count_false_accepts(right, strangers)
        accepted = float((method.accepted[method.right] == 1).mean()) if len(right) else None
        self.write(
            "false-accepts.json",
            [{"method": way.name, **row.as_row(), "share_of_right_accepted_as_calibrated": accepted} for row in found],
        )
        by_kind = {of_kind.kind: of_kind.confidence for of_kind in strangers}
        save_figure(acceptance_figure(right, by_kind, title=self.title), self.output / "false-accepts.png")
        told = "" if accepted is None else f"As calibrated, {accepted:.1%} of right answers are accepted.\n"
        return f"{false_accepts_table(found)}\n{told}"
