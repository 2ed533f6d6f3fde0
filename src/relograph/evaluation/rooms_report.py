"""What answers in rooms amount to: tables, plots and files, each part in Markdown.

DIR/                     as in `place_report`, over the queries of all homes
DIR/retrieval.json       how good references are
DIR/references.json, errors-by-references.png      accuracy against their number
DIR/overlap.json         accuracy against what the best of them shows
DIR/int8.json            what features in int8 cost
DIR/reliability.json, reliability.png              whether confidence keeps its promise
DIR/false-accepts.json, false-accepts.png          strangers that are taken for localized
DIR/conditions.json      what confidence is worth in other conditions, where they were asked for
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from relograph.evaluation.answers_file import AnswersByKind
from relograph.evaluation.calibrating import JudgedAnswers, rejudged, reliability_of
from relograph.evaluation.conditions import Condition
from relograph.evaluation.false_accepts import Strangers, count_false_accepts, false_accepts_table
from relograph.evaluation.metrics import score
from relograph.evaluation.place import references_by_pose
from relograph.evaluation.place_answers import MethodAnswers, write_query_details
from relograph.evaluation.place_localizer import REGRESSION, OurWay, our_row, used_references
from relograph.evaluation.place_methods import COPY_NEAREST
from relograph.evaluation.place_plots import acceptance_figure, errors_by_references_figure, rows_by_overlap
from relograph.evaluation.place_report import (
    comparison_table,
    draw_comparison,
    draw_failures,
    write_answers,
    write_table,
)
from relograph.evaluation.place_rooms import RoomPlace
from relograph.evaluation.place_run import Comparison, PlaceConfig, others_on_references, references_text
from relograph.evaluation.plots import save_figure
from relograph.evaluation.reliability import reliability_figure, reliability_row
from relograph.evaluation.retrieval_scores import retrieval_scores
from relograph.evaluation.rooms_gather import INT8, OTHERS, OWN, UNSEEN, RoomsOptions, Ways, count_kind
from relograph.evaluation.rooms_varied import kind_in
from relograph.localization.localizer import Answer
from relograph.localization.map_features import Precision
from relograph.models.shipped import Calibration
from relograph.progress import SILENT, Progress

HARD_ENOUGH_M, HARD_ENOUGH_DEG = 0.19, 6.5
"""Median errors of copying the nearest pose; queries that are nearer than this ask too little."""
KIND_BY_PRECISION: Mapping[Precision, str] = {"float16": OWN, "int8": INT8}
NO_MAP_SECONDS = np.zeros(0)
"""A run that answers in batches, beside others that solve, measures no times."""


@dataclass(frozen=True)
class RoomsAnswers:
    """All answers of an evaluation."""

    homes: tuple[RoomPlace, ...]
    """Those whose queries are scored."""
    answers: tuple[AnswersByKind, ...]
    """Of these homes, then of others that lent queries, and of elsewhere."""
    ways: Ways
    varied: tuple[AnswersByKind, ...] = ()
    """Of the same, in other conditions; nothing where nobody asked for them."""

    def of(self, home: int, kind: str, way: OurWay) -> list[Answer]:
        """To the queries of a home."""
        return list(self.answers[home].get(kind, {}).get(way.name, ()))

    def strangers(self, way: OurWay) -> dict[str, list[Answer]]:
        """By kind, to queries that are not in the map."""
        found: dict[str, list[Answer]] = {}
        for answers in self.answers:
            for kind, by_way in answers.items():
                if not kind.startswith(OWN) and way.name in by_way:
                    found.setdefault(kind, []).extend(by_way[way.name])
        return found

    def judged(self, way: OurWay) -> JudgedAnswers:
        """With what is true of them: to queries in their own map and to strangers."""
        judged = JudgedAnswers()
        for number, home in enumerate(self.homes):
            answers = self.of(number, OWN, way)
            judged += JudgedAnswers.of_queries(answers, way.solver, home.place.queries.T_world_cam)
        for answers in self.strangers(way).values():
            judged += JudgedAnswers.of_strangers(answers, way.solver)
        return judged

    def judged_in(self, conditions: Sequence[Condition], way: OurWay) -> JudgedAnswers:
        """With what is true of them: those in other conditions, to queries in their own map and to strangers."""
        judged = JudgedAnswers()
        for condition in conditions:
            for home, answers in zip(self.homes, self.varied, strict=False):  # others that lent queries have no own
                if own := answers.get(kind_in(OWN, condition), {}).get(way.name):
                    T_true = home.place.queries.T_world_cam[condition.rows(len(home.place.queries))]
                    judged += JudgedAnswers.of_queries(own, way.solver, condition.form.poses(T_true))
            for answers in self.varied:
                for kind in (UNSEEN, OTHERS):
                    strangers = answers.get(kind_in(kind, condition), {}).get(way.name, ())
                    judged += JudgedAnswers.of_strangers(strangers, way.solver)
        return judged

    def judged_by(self, calibration: Calibration) -> "RoomsAnswers":
        """The same answers, those in other conditions too, as sure as a calibration makes them."""
        solver_by_name = {way.name: way.solver for way in self.ways.own}
        answers, varied = (
            tuple(
                {
                    kind: {
                        name: [rejudged(answer, solver_by_name[name], calibration) for answer in said]
                        for name, said in by_way.items()
                    }
                    for kind, by_way in of_home.items()
                }
                for of_home in of_homes
            )
            for of_homes in (self.answers, self.varied)
        )
        return replace(self, answers=answers, varied=varied)

    def comparisons(self, config: PlaceConfig, progress: Progress = SILENT) -> list[Comparison]:
        """All methods in each home."""
        comparisons = []
        for number, home in enumerate(self.homes):
            answers = {way: self.of(number, OWN, way) for way in self.ways.own}
            references = used_references(answers[REGRESSION], config.num_references)
            if config.references_by == "pose":
                references = references_by_pose(home.place, config.num_references, config.stride)
            others = others_on_references(home.place, references, config, progress=progress)
            ours = [our_row(home.place, way, said, references, NO_MAP_SECONDS) for way, said in answers.items()]
            comparisons.append(Comparison(home.place, references, (*others, *ours), answers))
        return comparisons


@dataclass(frozen=True)
class RoomsReport:
    """Writes one part after the other, and gives each back in Markdown."""

    title: str
    output: Path
    config: PlaceConfig
    options: RoomsOptions
    write: Callable[[str, Sequence[Mapping[str, object]]], None]
    """Of a file of results its name and rows."""
    warn: Callable[[str], None]

    def accuracy(self, comparisons: Sequence[Comparison], metadata: Mapping[str, object]) -> str:
        """Errors over the queries of all homes, and against what the best reference shows."""
        per_method = zip(*(comparison.methods for comparison in comparisons), strict=True)
        methods = [MethodAnswers.cat(parts, self.title) for parts in per_method]
        for method in methods:
            write_answers(self.output, method, metadata)
        write_query_details(self.output / "queries.csv", methods)
        rows = [method.as_row() for method in methods]
        self.write("results.json", rows)
        self.write("overlap.json", rows_by_overlap([method for method in methods if method.name != COPY_NEAREST]))
        heading = f"{rows[0]['num_queries']} queries{self._of_all} in {len(comparisons)} homes"
        table = comparison_table(f"Localization in {self.title}", rows, f"{heading}, {references_text(self.config)}.")
        write_table(self.output, table)
        draw_comparison(self.output, methods, self.title)
        parts = [(comparison.place, comparison.references) for comparison in comparisons]
        draw_failures(self.output / "failures.png", parts, methods[-1].predictions)
        (nearest,) = score(next(method.predictions for method in methods if method.name == COPY_NEAREST))
        metres, degrees = nearest.median_translation_error_m, nearest.median_rotation_error_deg
        if metres < HARD_ENOUGH_M or degrees < HARD_ENOUGH_DEG:
            self.warn(
                f"these queries are too easy to compare figures with: copying the nearest pose errs by {metres:.3f} m "
                f"and {degrees:.1f} degrees, and should by {HARD_ENOUGH_M} m and {HARD_ENOUGH_DEG} degrees at least."
            )
        return table.markdown()

    @property
    def _of_all(self) -> str:
        """What a shorter run left out."""
        return "" if self.options.every == 1 else f" (a shorter run: one in {self.options.every} of each home)"

    def retrieval(self, comparisons: Sequence[Comparison]) -> str:
        """How good the references are."""
        parts = [
            (comparison.place.overlap, comparison.references)
            for comparison in comparisons
            if comparison.place.overlap is not None
        ]
        scores = retrieval_scores(parts, self.config.num_references)
        self.write("retrieval.json", [scores.as_row()])
        return scores.text()

    def reference_counts(self, answers: RoomsAnswers) -> str:
        """Median errors against the number of references."""
        rows: list[dict[str, object]] = []
        drawn: dict[str, dict[int, tuple[float, float]]] = {}
        for way in answers.ways.few:
            for count in self.options.reference_counts:
                parts = []
                for number, home in enumerate(answers.homes):
                    if said := answers.of(number, count_kind(count), way):
                        some = home.place.every_nth_query(self.options.every_for_counts)
                        parts.append(our_row(some, way, said, used_references(said, count), NO_MAP_SECONDS))
                if not parts:
                    continue
                whole = MethodAnswers.cat(parts, self.title)
                (scores,) = score(whole.predictions)
                median = scores.median_translation_error_m, scores.median_rotation_error_deg
                drawn.setdefault(way.name, {})[count] = median
                rows.append({**whole.as_row(), "num_references": count})
        self.write("references.json", rows)
        save_figure(errors_by_references_figure(drawn, title=self.title), self.output / "errors-by-references.png")
        counts = sorted({count for by_count in drawn.values() for count in by_count})
        lines = [
            f"**Median errors by the number of references** (one query in {self.options.every_for_counts})\n",
            f"| method | {' | '.join(map(str, counts))} |",
            "|---|" + "---|" * len(counts),
        ]
        for name, by_count in drawn.items():
            cells = (f"{by_count[count][0]:.3f} m / {by_count[count][1]:.2f}°" for count in counts)
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def int8(self, answers: RoomsAnswers, bytes_per_photo: Mapping[Precision, float]) -> str:
        """The same queries with features of the map in half precision and in bytes."""
        rows: list[dict[str, object]] = []
        lines = [
            "**The same queries with map features in int8**\n",
            "| map features | kB / photo | method | median | 10 cm 5° | 25 cm 10° |",
            "|---|---|---|---|---|---|",
        ]
        for way in answers.ways.few:
            for precision, kind in KIND_BY_PRECISION.items():
                parts = []
                for number, home in enumerate(answers.homes):
                    said = answers.of(number, kind, way)
                    references = used_references(said, self.config.num_references)
                    parts.append(our_row(home.place, way, said, references, NO_MAP_SECONDS))
                whole = MethodAnswers.cat(parts, self.title)
                (scores,) = score(whole.predictions)
                kilobytes = bytes_per_photo[precision] / 1000
                rows.append({"precision": precision, "kilobytes_per_photo": kilobytes, **whole.as_row()})
                lines.append(
                    f"| {precision} | {kilobytes:,.0f} | {way.name} | {scores.median_translation_error_m:.4f} m / "
                    f"{scores.median_rotation_error_deg:.3f}° | {scores.recall_10cm_5deg:.1%} | "
                    f"{scores.recall_25cm_10deg:.1%} |"
                )
        self.write("int8.json", rows)
        return "\n".join(lines) + "\n"

    def reliability(self, answers: RoomsAnswers, calibration: Calibration, *, fitted: bool) -> str:
        """Whether confidence keeps its promise, in each way, and where the network answers for a solver that failed."""
        note = "" if fitted else ", not calibrated"
        judged = {way.name: answers.judged(way).balanced() for way in answers.ways.judged}
        unsolved = sum((of_way.on("unsolved") for of_way in judged.values()), start=JudgedAnswers())
        if len(unsolved):
            judged["relograph, regression after a failed solver"] = unsolved
        found = {name: reliability_of(of_way, calibration) for name, of_way in judged.items()}
        self.write("reliability.json", [{"method": name, **reliability_row(of_way)} for name, of_way in found.items()])
        figure = reliability_figure(found[answers.ways.main.name], title=f"{self.title}{note}")
        save_figure(figure, self.output / "reliability.png")
        lines = [
            "**Whether confidence keeps its promise** (at most half of the queries are not in the map)\n",
            f"| method | answers | expected calibration error{note} |",
            "|---|---|---|",
        ]
        for name, of_way in found.items():
            count = int(of_way.num_answers.sum())
            lines.append(f"| {name} | {count:,} | {of_way.expected_calibration_error:.1%} |")
        return "\n".join(lines) + "\n"

    def false_accepts(self, answers: RoomsAnswers, comparisons: Sequence[Comparison]) -> str:
        """How many strangers are taken for localized, in each way."""
        rows: list[dict[str, object]] = []
        told = []
        by_kind: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        found_in_all = []
        for way in reversed(answers.ways.judged):
            is_main = way == answers.ways.main
            method = MethodAnswers.cat(
                [next(row for row in comparison.methods if row.name == way.name) for comparison in comparisons],
                self.title,
            )
            right = method.confidence[method.right]
            strangers = [
                Strangers(
                    kind if is_main else f"{kind}; {way.name.removeprefix('relograph, ')}",
                    np.array([answer.confidence for answer in said]),
                    np.array([answer.localized for answer in said], dtype=bool),
                )
                for kind, said in answers.strangers(way).items()
            ]
            found = count_false_accepts(right, strangers)
            accepted = float((method.accepted[method.right] == 1).mean()) if len(right) else None
            rows += [
                {"method": way.name, **row.as_row(), "share_of_right_accepted_as_calibrated": accepted} for row in found
            ]
            found_in_all += found
            if accepted is not None:
                told.append(f"{accepted:.1%} ({way.name})")
            if is_main:
                by_kind = {of_kind.kind: of_kind.confidence for of_kind in strangers}
                save_figure(acceptance_figure(right, by_kind, title=self.title), self.output / "false-accepts.png")
        self.write("false-accepts.json", rows)
        accepted_text = f"As calibrated, of right answers are accepted: {', '.join(told)}.\n" if told else ""
        focal = "" if answers.ways.main == REGRESSION else ", with the focal length given unless said otherwise"
        title = f"**Queries that are not in the map**{focal}\n"
        return f"{title}\n{false_accepts_table(found_in_all)}\n{accepted_text}"

    def conditions(
        self,
        answers: RoomsAnswers,
        groups: Sequence[Sequence[Condition]],
        calibration: Calibration,
        *,
        fitted_to_them: bool,
    ) -> str:
        """What confidence is worth as usual and in other conditions, in each way."""
        ways = tuple(reversed(answers.ways.judged))
        judged = {"as usual": {way: answers.judged(way).balanced() for way in ways}}
        for condition in (condition for group in groups for condition in group):
            judged[condition.name] = {way: answers.judged_in([condition], way).balanced() for way in ways}
        rows: list[dict[str, object]] = []
        note = " The confidence was fitted to these very answers." if fitted_to_them else ""
        names = " | ".join(way.name.removeprefix("relograph, ") for way in ways)
        lines = [
            "**In other conditions**: right answers that are accepted / accepted ones that are right "
            f"(at most half of the queries are not in the map).{note}\n",
            f"| condition | answers | not in the map | {names} | expected calibration error |",
            "|---|---|---|" + "---|" * len(ways) + "---|",
        ]
        for name, by_way in judged.items():
            cells = []
            for way, of_way in by_way.items():
                right, accepted = of_way.right, of_way.accepted(calibration)
                of_right, of_accepted = _share(right & accepted, right), _share(right & accepted, accepted)
                rows.append(
                    {
                        "condition": name,
                        "method": way.name,
                        "num_answers": len(of_way),
                        "num_elsewhere": int(of_way.elsewhere.sum()),
                        "num_right": int(right.sum()),
                        "share_of_right_accepted": of_right,
                        "share_of_accepted_right": of_accepted,
                        "expected_calibration_error": reliability_of(of_way, calibration).expected_calibration_error,
                    }
                )
                cells.append(f"{_percent(of_right)} / {_percent(of_accepted)}")
            everything = sum(by_way.values(), start=JudgedAnswers())
            error = reliability_of(everything, calibration).expected_calibration_error
            elsewhere = int(everything.elsewhere.sum())
            lines.append(f"| {name} | {len(everything):,} | {elsewhere:,} | {' | '.join(cells)} | {error:.1%} |")
        self.write("conditions.json", rows)
        return "\n".join(lines) + "\n"


def _share(which: Bool[Tensor, "A"], of: Bool[Tensor, "A"]) -> float | None:
    """None where there are none."""
    return float(which.sum() / of.sum()) if of.any() else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
