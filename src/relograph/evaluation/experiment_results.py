"""Carrying out experiments, second half: scores, tables and figures.

DIR/results/table1.json                          scores with their provenance, to be committed
DIR/tables/table1.md, table1.tex
DIR/figures/table1-cumulative-errors.png
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from relograph.configuration import config_to_dict
from relograph.evaluation.experiment_figures import MEASUREMENTS, Drawing, Figure
from relograph.evaluation.experiment_report import read_result, tables_of
from relograph.evaluation.experiment_sweep import Sweep
from relograph.evaluation.experiments import COPY, Experiment, Job, Row
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
    """Train what is not trained yet, evaluate, and write the results of each experiment as soon as it is done."""
    jobs = dict.fromkeys(job for experiment in experiments for job in experiment.jobs(sweep.plan))
    unfinished = [job for job in jobs if not sweep.is_finished(job)]
    written = []
    with sweep.progress.task("sweep (training graphs)", total=sum(map(sweep.num_graphs, unfinished))) as advance:
        for experiment in experiments:
            for job in experiment.jobs(sweep.plan):
                if not sweep.is_finished(job):
                    sweep.train(job, advance)
            written.append(write_results(experiment, sweep, provenance))
            sweep.say(f"{experiment.name}: {written[-1]}")
    if sweep.of_other_code:
        sweep.warn(
            f"other code than this made {', '.join(sorted(sweep.of_other_code))}, and they were taken as they are; "
            f"remove them from {sweep.folder / 'jobs'} and run the command again to have them made by this."
        )
    return written


def write_results(experiment: Experiment, sweep: Sweep, provenance: Provenance) -> Path:
    """Score what an experiment's networks answered; write results, tables and figures."""
    name = f"{experiment.name}-{provenance.label}" if provenance.label else experiment.name
    drawing = Drawing(sweep.folder / "figures", name, provenance.dataset)
    rows = experiment.rows(sweep.plan)
    sweep.predict([evaluation for row in rows for run in row.runs for evaluation in run])
    results = list(chain.from_iterable(scores_of(row, sweep) for row in rows))
    figures = draw_errors(experiment, rows, sweep, drawing) if rows else []
    if experiment.name in MEASUREMENTS:
        measured = MEASUREMENTS[experiment.name](sweep, drawing)
        results, figures = [*results, *measured.results], [*figures, *measured.figures]
    path = sweep.folder / "results" / f"{name}.json"
    config, data = sweep.plan.base, sweep.workbench.data
    write_result(
        path,
        results,
        command=provenance.command,
        seed=config.seed,
        device=sweep.device,
        details={
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
            "figures": [{"file": figure.path.name, "caption": figure.caption} for figure in figures],
        },
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
    title = f"{experiment.title}, {drawing.dataset}"
    cumulative = Figure(
        drawing.path("cumulative-errors"), "Share of queries below an error, every scene counting the same."
    )
    by_distance = Figure(
        drawing.path("errors-by-distance"), "Errors by the distance to the nearest reference: median and quartiles."
    )
    save_figure(cumulative_errors_figure(shown, baseline=COPY, title=title), cumulative.path)
    save_figure(errors_by_distance_figure(shown, baseline=COPY, title=title), by_distance.path)
    return [cumulative, by_distance]
