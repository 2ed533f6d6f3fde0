"""The report of a training run: the folder that `relograph train` wrote, with what `relograph eval` left there."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.evaluation.evaluate_run import retriever_folder
from relograph.evaluation.experiment_figures import NUM_SALIENCY_QUERIES, spread
from relograph.evaluation.experiment_report import margins_over_copying
from relograph.evaluation.metrics import score
from relograph.evaluation.plots import training_figure
from relograph.evaluation.predictions import Predictions, read_predictions
from relograph.evaluation.saliency import draw_saliency, saliency_map
from relograph.evaluation.tables import COPY_TOP1, MethodRow, results_table, summary_table
from relograph.models.checkpoint import load_checkpoint
from relograph.progress import SILENT, Progress
from relograph.reports.answers import (
    CAMERAS,
    FAILURES,
    PLOTS,
    PROVENANCE,
    SALIENCY,
    SALIENCY_OF_MATCHES,
    cameras_section,
    failures_section,
    plot_parts,
    provenance_facts,
    settings_facts,
)
from relograph.reports.page import Part, Picture, Report, Section, Text, code
from relograph.reports.posed_data import PosedData
from relograph.training.data import load_data
from relograph.training.loop import read_log
from relograph.training.match_training import WEIGHTS
from relograph.training.running import graph_rows, load_retriever, load_trained

RUN_FILE, PREDICTIONS_FILE = "run.json", "predictions.csv.gz"
RESULTS = "Results"


@dataclass(frozen=True)
class _Answers:
    """What the run answered."""

    predictions: Predictions
    copied: Predictions | None
    """What copying would have; None where the data are not at hand."""
    metadata: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.metadata.get("method", "the network"))

    @property
    def command(self) -> str:
        return code(str(self.metadata.get("provenance", {}).get("command", "relograph eval")))

    @property
    def by_method(self) -> dict[str, Predictions]:
        return ({} if self.copied is None else {COPY_TOP1: self.copied}) | {self.method: self.predictions}

    @property
    def rows(self) -> list[MethodRow]:
        return [
            MethodRow(name=name, scores=score(predictions), is_copy_top1=predictions is self.copied)
            for name, predictions in self.by_method.items()
        ]


def training_report(
    run: Path,
    data: PosedData | None,
    *,
    cache: Path,
    with_saliency: bool = True,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Report:
    """All that the folder of a training run has to show."""
    about = _read_json(run / RUN_FILE)
    answers = _read_answers(run, data)
    log = read_log(run / "log.csv") if (run / "log.csv").is_file() else []
    is_match_gnn = "textures" in about  # which is evaluated in places that nobody trained on
    missing = f"No predictions here: {code(f'relograph eval {run} --data ROOT')} makes some."
    if is_match_gnn:
        evaluate = code(f"relograph eval --rooms test --weights {run / WEIGHTS} --output DIR")
        missing = f"No predictions here: {evaluate} makes some, for {code('relograph report DIR')}."
    plots: list[Part] = []
    if log:
        caption = f"The loss of the training by its steps. Drawn by `relograph report` from `{run.name}/log.csv`."
        plots.append(Picture.of_figure(training_figure(log), caption))
    scored: list[Section]
    if answers is None:
        scored = [Section(title, missing=missing) for title in (FAILURES, CAMERAS)]
        results = Section(RESULTS, missing=missing)
    else:
        places = {scene: answers.predictions.of_scene(scene) for scene in answers.predictions.scenes}
        scored = [
            failures_section(answers.predictions, data, answers.command),
            cameras_section(places, data, answers.command),
        ]
        results = _results(answers, about)
        plots += plot_parts(answers.by_method, answers.command)
    if is_match_gnn:
        saliency = Section(SALIENCY, missing=SALIENCY_OF_MATCHES)
    elif not with_saliency:
        saliency = Section(SALIENCY, missing="Left out, as --no-saliency asks.")
    else:
        saliency = _saliency(run, data, answers, cache=cache, device=device, progress=progress)
    sections = [
        results,
        Section(PLOTS, plots, "" if plots else "The run has neither a log nor predictions."),
        scored[0],
        saliency,
        scored[1],
        _provenance(run, about, answers),
    ]
    trained_on = ", ".join(map(str, about.get("scenes", ()))) or "rooms without end"
    return Report(f"Training run: {run.resolve().name}", f"Trained on {trained_on}.", sections)


def _results(answers: _Answers, about: Mapping[str, Any]) -> Section:
    model = about.get("config", {}).get("model", {})
    setting = ", ".join(f"{name} {model[name]}" for name in ("kind", "channels", "target") if name in model)
    dataset = ", ".join(answers.predictions.scenes)
    rows = answers.rows
    tables = [
        results_table("Median errors", rows, dataset=dataset, setting=setting),
        summary_table("All figures", rows, dataset=dataset, setting=setting),
    ]
    parts: list[Part] = [Text(table.markdown()) for table in tables]
    if margins := margins_over_copying(rows):
        parts.append(Text("How many times smaller the median errors are than those of copying the top-1:"))
        parts.append(Text("\n".join(f"- {sentence}" for sentence in margins)))
    missing = "" if answers.copied is not None else "Copying the top-1 is not measured here: `--data ROOT` measures it."
    return Section(RESULTS, parts, missing)


def _saliency(
    run: Path,
    data: PosedData | None,
    answers: _Answers | None,
    *,
    cache: Path,
    device: str,
    progress: Progress,
) -> Section:
    """Which pixels of a few queries of the first scene the network's answer hangs on."""
    if data is None or answers is None:
        return Section(SALIENCY, missing="Needs a run that was evaluated, and its photos: `--data ROOT`.")
    try:
        retriever = load_retriever(retriever_folder(run), device=device)
    except DatasetError:
        return Section(SALIENCY, missing="The run has no retrieval of its own to find references with.")
    name = answers.predictions.scenes[0]
    trained = load_trained(run, device=device)
    scenes = [scene for scene in data.scenes if scene.name == name]
    loaded = load_data(scenes, replace(trained.config.data, extra_walks=0), cache, device=device, progress=progress)
    descriptors = retriever.describe(loaded.frames.images, progress=progress)
    queries = spread(loaded.test_rows([name])[:, None], NUM_SALIENCY_QUERIES)[:, 0]
    graphs = graph_rows(queries, loaded.frames.in_map, descriptors, loaded, trained.config.graph)
    images = loaded.frames.images
    rows = [
        (images[graph[0]], {answers.method: saliency_map(trained.model, images[graph.clamp_min(0)], graph >= 0)})
        for graph in graphs.to(images.device)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saliency.png"
        draw_saliency(rows, path)
        names = ", ".join(loaded.frames.names[int(row)] for row in queries)
        caption = f"Which pixels of {code(names)} move the network's answer. Drawn by `relograph report`."
        return Section(SALIENCY, [Picture.of_file(path, caption)])


def _provenance(run: Path, about: Mapping[str, Any], answers: _Answers | None) -> Section:
    parts: list[Part] = []
    kept = next((run / name for name in ("best", WEIGHTS) if (run / name).is_dir()), None)
    if kept is not None:
        checkpoint = load_checkpoint(kept)
        trained: Mapping[str, Any] = checkpoint.metadata.get("provenance") or {}  # type: ignore[assignment]  # as JSON has it
        told = {name: checkpoint.metadata.get(name) for name in ("step", "seconds", "best_validation")}
        parts.append(
            provenance_facts(
                "Training", trained, {**told, "weights SHA-256": checkpoint.sha256, "data": about.get("data")}
            )
        )
    if answers is not None:
        of_eval = answers.metadata.get("provenance", {})
        told = {name: answers.metadata.get(name) for name in ("checkpoint_sha256", "data_fingerprint", "retrieval")}
        parts.append(provenance_facts("Evaluation", of_eval, told))
    parts.append(settings_facts("Settings", about.get("config", {})))
    missing = "" if kept is not None else "The run has no finished checkpoint."
    return Section(PROVENANCE, parts, missing)


def _read_answers(run: Path, data: PosedData | None) -> _Answers | None:
    path = run / PREDICTIONS_FILE
    if not path.is_file():
        return None
    predictions, metadata = read_predictions(path)
    if data is not None:
        data.require(predictions.frame, path)
    return _Answers(predictions, None if data is None else data.copied(predictions), metadata)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: expected what `relograph train` wrote, found: {error}. Train again.") from error
    if not isinstance(document, dict):
        raise DatasetError(f"{path}: expected what `relograph train` wrote, found something else. Train again.")
    return document
