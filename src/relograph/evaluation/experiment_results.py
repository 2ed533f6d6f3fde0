"""Carrying out experiments, second half: scores, tables and figures.

DIR/results/table1.json                          scores with their provenance, to be committed
DIR/tables/table1.md, table1.tex
DIR/figures/table1-cumulative-errors.png
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from relograph.configuration import config_to_dict
from relograph.evaluation.experiment_figures import MEASUREMENTS, Drawing, Figure
from relograph.evaluation.experiment_report import ResultsFile, read_result, tables_of
from relograph.evaluation.experiment_sweep import Sweep, Take, TimeIsUpError
from relograph.evaluation.experiments import COPY, Evaluation, Experiment, Job, Plan, Row
from relograph.evaluation.metrics import mean_of_runs, score
from relograph.evaluation.plots import cumulative_errors_figure, errors_by_distance_figure, save_figure
from relograph.evaluation.writing import write_whole
from relograph.results import write_result


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What results say about how they were made."""

    dataset: str
    preset: str
    command: str
    """With `$DATA` in the place of a path."""
    label: str = ""
    """Added to the names of results, tables and figures."""


def carry_out(experiments: Sequence[Experiment], sweep: Sweep, provenance: Provenance) -> list[Path]:
    """Train what is not trained yet, ask each network at once, and write an experiment's results when all is there."""
    plan = sweep.plan
    evaluations = {job: evaluations_of(job, experiments, plan) for job in all_jobs(experiments, plan)}
    takes = {job: takes_of(job, experiments, plan) for job in evaluations}
    for experiment in experiments:
        sweep.predict([each for each in experiment.evaluations(plan) if not isinstance(each.method, Job)])
    unanswered = [job for job in evaluations if not sweep.is_answered(job, evaluations[job], takes[job])]
    untrained = [job for job in unanswered if not sweep.has_weights(job)]
    written = []
    with sweep.progress.task("sweep (training graphs)", total=sum(map(sweep.num_graphs, untrained))) as advance:
        for experiment in experiments:
            jobs = experiment.jobs(plan)
            for job in jobs:
                if job in unanswered and sweep.fits_the_time(job):
                    with suppress(TimeIsUpError):
                        sweep.answer(job, evaluations[job], takes[job], advance)
                        unanswered.remove(job)
            missing = [job.name for job in jobs if job in unanswered]
            if missing:
                sweep.say(
                    f"{experiment.name}: {len(jobs) - len(missing)} of {len(jobs)} networks are there; run the command "
                    f"again for the others ({', '.join(missing)})"
                )
            else:
                written.append(write_results(experiment, sweep, provenance))
                sweep.say(f"{experiment.name}: {written[-1]}")
    if sweep.of_other_code:
        sweep.warn(
            f"other code than this made {', '.join(sorted(sweep.of_other_code))}, and they were taken as they are; "
            f"remove them from {sweep.folder / 'jobs'} and run the command again to have them made by this."
        )
    return written


def all_jobs(experiments: Sequence[Experiment], plan: Plan) -> list[Job]:
    """The trainings of all experiments, each once."""
    return list(dict.fromkeys(job for experiment in experiments for job in experiment.jobs(plan)))


def evaluations_of(job: Job, experiments: Sequence[Experiment], plan: Plan) -> list[Evaluation]:
    """What a network is asked, for whichever experiment."""
    wanted = chain.from_iterable(experiment.evaluations(plan) for experiment in experiments)
    return [evaluation for evaluation in dict.fromkeys(wanted) if evaluation.method == job]


def takes_of(job: Job, experiments: Sequence[Experiment], plan: Plan) -> dict[str, Take]:
    """What is measured of a network besides, by the names of the experiments."""
    return {
        experiment.name: take
        for experiment in experiments
        if job in experiment.measured_jobs(plan) and (take := MEASUREMENTS[experiment.name].take) is not None
    }


def write_results(experiment: Experiment, sweep: Sweep, provenance: Provenance) -> Path:
    """Score what an experiment's networks answered; write results, tables and figures."""
    name = f"{experiment.name}-{provenance.label}" if provenance.label else experiment.name
    config, data = sweep.plan.base, sweep.workbench.data
    rows = experiment.rows(sweep.plan)
    details: dict[str, object] = {
        "experiment": experiment.name,
        "dataset": provenance.dataset,
        "scenes": list(sweep.plan.scenes),
        "data_fingerprint": data.fingerprint,
        "start": sweep.workbench.start.fingerprint,
        "retrieval": sweep.workbench.retrieval,
        "preset": provenance.preset,
        "config": config_to_dict(config),
        "settings_of_one_scene": list(sweep.plan.settings_of_one_scene),
        "channels": config.model.channels,
        "image_size_hw": list(data.frames.images.shape[1:3]),
        "target": config.model.target,
        "jobs": [sweep.facts(job) for job in experiment.jobs(sweep.plan)],
        "rows": [origin_of(row, sweep) for row in rows],
    }
    results = list(chain.from_iterable(scores_of(row, sweep) for row in rows))
    setting = ResultsFile(name, details, results).setting
    drawing = Drawing(sweep.folder / "figures", name, provenance.dataset, setting)
    figures = draw_errors(experiment, rows, sweep, drawing) if rows else []
    if experiment.name in MEASUREMENTS:
        measured = MEASUREMENTS[experiment.name].draw(sweep, drawing)
        results, figures = [*results, *measured.results], [*figures, *measured.figures]
    path = sweep.folder / "results" / f"{name}.json"
    write_result(
        path,
        results,
        command=provenance.command,
        seed=config.seed,
        device=sweep.device,
        details={**details, "figures": [{"file": figure.path.name, "caption": figure.caption} for figure in figures]},
    )
    for named in tables_of(read_result(path)):
        write_whole(sweep.folder / "tables" / f"{named.name}.md", named.table.markdown().encode())
        write_whole(sweep.folder / "tables" / f"{named.name}.tex", named.table.latex(f"tab:{named.name}").encode())
    return path


def scores_of(row: Row, sweep: Sweep) -> Iterator[dict[str, object]]:
    """A row's scores, scene by scene, as results hold them."""
    note = note_on(row, sweep)
    for scene_score in mean_of_runs([score(sweep.predictions(run)) for run in row.runs]):
        yield {
            "method": row.method,
            "num_test_frames": row.num_test_frames,
            "is_copy_top1": row.method == COPY,
            "note": note,
            **scene_score.as_row(),
        }


def origin_of(row: Row, sweep: Sweep) -> dict[str, object]:
    """What made a row, for each row has its own: rows may be of several runs of a command, of several commits."""
    evaluations = [evaluation for run in row.runs for evaluation in run]
    jobs = dict.fromkeys(evaluation.method for evaluation in evaluations if isinstance(evaluation.method, Job))
    facts = [sweep.facts(job) for job in jobs]
    made_with = [*(of_job["provenance"] for of_job in facts), *map(sweep.made_with, evaluations)]
    code = dict.fromkeys((each.get("git_commit"), each.get("source_sha256")) for each in made_with)
    return {
        "method": row.method,
        "num_trainings": len(facts),
        "num_steps": sum(of_job["num_steps"] for of_job in facts),
        "num_graphs": sum(of_job["num_graphs"] for of_job in facts),
        "training_seconds": round(sum(of_job["training_seconds"] for of_job in facts), 1),
        "code": [{"git_commit": commit, "source_sha256": source} for commit, source in code],
        "device_names": list(dict.fromkeys(each.get("device_name") for each in made_with)),
    }


def note_on(row: Row, sweep: Sweep) -> str:
    """What a reader must know about a row: what was planned, and what only a finished training can say."""
    evaluations = [evaluation for run in row.runs for evaluation in run]
    jobs = {evaluation.method: evaluation.scenes for evaluation in evaluations if isinstance(evaluation.method, Job)}
    notes = [row.note] if row.note else []
    stride_of = {job: sweep.facts(job)["training_stride"] for job in jobs if job.config.graph.selection == "retrieval"}
    strides = sorted({stride for job, stride in stride_of.items() if stride not in (None, job.config.graph.stride)})
    if strides:
        listed = str(strides[0]) if len(strides) == 1 else f"{strides[0]} to {strides[-1]}"
        notes.append(f"trained with stride {listed}, as there are more frames to train on than a map has")
    if any(sweep.has_its_own_retrieval(job) for job in jobs):
        notes.append("finds references with the retrieval that was trained along, not with that of the copied top-1")
    if sweep.made_its_retriever and any(set(scenes).isdisjoint(job.scenes) for job, scenes in jobs.items()):
        notes.append("K-means and PCA of the retrieval have seen the maps of all scenes, without poses")
    return "; ".join(notes)


def draw_errors(experiment: Experiment, rows: Sequence[Row], sweep: Sweep, drawing: Drawing) -> list[Figure]:
    """Cumulative errors, and errors by distance, of the rows that are one run."""
    shown = {row.method: sweep.predictions(row.runs[0]) for row in rows if len(row.runs) == 1}
    title = f"{experiment.title}, {drawing.dataset}\n{drawing.setting}"
    cumulative = Figure(
        drawing.path("cumulative-errors"), "Share of queries below an error, every scene counting the same."
    )
    by_distance = Figure(
        drawing.path("errors-by-distance"), "Errors by the distance to the nearest reference: median and quartiles."
    )
    save_figure(cumulative_errors_figure(shown, baseline=COPY, title=title), cumulative.path)
    save_figure(errors_by_distance_figure(shown, baseline=COPY, title=title), by_distance.path)
    return [cumulative, by_distance]
