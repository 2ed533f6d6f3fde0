"""Sections that predictions have, whoever made them: plots, failures, cameras in 3-D."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from relograph.evaluation.metrics import RECALL_THRESHOLDS, prediction_errors
from relograph.evaluation.place_report import NUM_FAILURES, draw_failures, worst_queries
from relograph.evaluation.plots import cumulative_errors_figure, errors_by_distance_figure
from relograph.evaluation.predictions import Predictions
from relograph.evaluation.qualitative import MAP_COLOR, draw_qualitative
from relograph.evaluation.tables import COPY_TOP1, MISSING, Block, ResultsTable, Span
from relograph.geometry import Pose
from relograph.reports.page import Facts, Part, Picture, Section, Text, View
from relograph.reports.posed_data import PosedData
from relograph.viewer.cameras_page import CameraGroup, Slider, cameras_page
from relograph.viewer.shown import Shown, answers_of_predictions, groups_of_answers, no_photo

PLOTS, FAILURES, SALIENCY, CAMERAS, PROVENANCE = "Plots", "Failures", "Saliency", "Cameras in 3-D", "Provenance"
SALIENCY_OF_MATCHES = "MatchGNN's is drawn query by query: `relograph localize PHOTO --map MAP --explain why.html`."
NO_DATA = "No photos and no cameras of the map here: `--data ROOT` shows them."
NO_DATA_OF_ROOMS = "No photos and no cameras of the maps here: rooms are made for an evaluation, and not kept."
PLACES_SHOWN = 2
"""In 3-D; more would make the file large."""
PHOTOS_SHOWN = 150
"""In each of them."""


def plot_parts(predictions_by_method: Mapping[str, Predictions], command: str) -> list[Part]:
    """How large errors are, and how they grow with the distance to the map."""
    baseline = COPY_TOP1 if COPY_TOP1 in predictions_by_method else None
    drawn = _drawn_from(command)
    parts: list[Part] = [
        Picture.of_figure(
            cumulative_errors_figure(predictions_by_method, baseline=baseline),
            f"Share of queries below each error; thin verticals are the thresholds of the recalls. {drawn}",
        )
    ]
    if all(predictions.nearest_reference_m.isfinite().any() for predictions in predictions_by_method.values()):
        caption = "Errors by the distance to the nearest photo of the map: medians, and the middle half of the queries."
        figure = errors_by_distance_figure(predictions_by_method, baseline=baseline)
        parts.append(Picture.of_figure(figure, f"{caption} {drawn}"))
    return parts


def worst_table(predictions: Predictions) -> Text:
    """The queries with the largest errors, those without an answer first."""
    order = worst_queries(predictions)[:NUM_FAILURES]
    errors = prediction_errors(predictions)
    metres, degrees = RECALL_THRESHOLDS["recall_25cm_10deg"]
    within = (errors.translation_error_m < metres) & (errors.rotation_error_deg < degrees)
    rows = []
    for row in order:
        error = (
            f"{errors.translation_error_m[row]:.3f} m / {errors.rotation_error_deg[row]:.2f}°"
            if predictions.localized[row]
            else f"not localized: {predictions.reason[row]}"
        )
        away_m, away_deg = float(predictions.nearest_reference_m[row]), float(predictions.nearest_reference_deg[row])
        nearest = f"{away_m:.2f} m, {away_deg:.0f}°" if np.isfinite(away_m) else MISSING
        cells = (predictions.frame[row], error, predictions.top1[row] or MISSING, nearest)
        rows.append(tuple((Span(text=cell),) for cell in cells))
    header = ("Query", "Error", "Most similar photo of the map", "Nearest photo of the map")
    heading = (
        f"{int((~within).sum()):,} of {len(predictions):,} queries were not localized within {100 * metres:g} cm and "
        f"{degrees:g}°; these are the {len(order)} farthest off."
    )
    table = ResultsTable(title="The largest errors", blocks=(Block(heading=heading, header=header, rows=tuple(rows)),))
    return Text(table.markdown())


def failures_section(predictions: Predictions, data: PosedData | None, command: str) -> Section:
    """The worst answers in a table and, where the photos are at hand, beside what they were compared with."""
    parts: list[Part] = [worst_table(predictions)]
    if data is None:
        return Section(
            FAILURES, parts, "No photos here: `--data ROOT` shows the worst queries beside their references."
        )
    ordered = [predictions.of_scene(scene) for scene in predictions.scenes]
    places = [data.place_of(of_scene) for of_scene in ordered]
    with tempfile.TemporaryDirectory() as folder:
        draw_failures(Path(folder) / "failures.png", places, Predictions.cat(ordered))
        caption = f"The largest errors, each beside the most similar photo of the map. {_drawn_from(command)}"
        parts.append(Picture.of_file(Path(folder) / "failures.png", caption))
    return Section(FAILURES, parts)


def cameras_section(
    places: Mapping[str, Predictions], data: PosedData | None, command: str, without_data: str = NO_DATA
) -> Section:
    """Answers beside the truth in the first places, drawn and as a view that can be turned."""
    parts: list[Part] = []
    for name, predictions in list(places.items())[:PLACES_SHOWN]:
        frames = [] if data is None else data.map_of(predictions)
        T_world_map = Pose.stack([frame.T_world_cam for frame in frames]) if frames else Pose.identity(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cameras.png"
            draw_qualitative(predictions, T_world_map, path, name)
            caption = f"The best, median and worst answers: truth green, answer blue. {_drawn_from(command)}"
            parts.append(Picture.of_file(path, caption))
        parts.append(_view(name, predictions, data))
    left_out = len(places) - PLACES_SHOWN
    missing = [f"{left_out} more places are left out to keep this file small."] if left_out > 0 else []
    if data is None:
        missing.append(without_data)
    return Section(CAMERAS, parts, " ".join(missing))


def _drawn_from(command: str) -> str:
    return f"Drawn by `relograph report` from what {command} answered."


def _view(name: str, predictions: Predictions, data: PosedData | None) -> View:
    of_answers = groups_of_answers(
        answers_of_predictions(predictions), no_photo if data is None else data.frame_by_name.get
    )
    groups: list[CameraGroup] = []
    if data is not None and (frames := data.map_of(predictions)):
        T_world_map = Pose.stack([frame.T_world_cam for frame in frames])
        groups.append(CameraGroup("map", MAP_COLOR, T_world_map, [frame.name for frame in frames], frames, 0.12))
    first = len(groups)
    groups += of_answers.groups
    slider = Slider("query", of_answers.captions, range(first, len(groups)))
    lines = tuple((first + a, first + b) for a, b in of_answers.lines)
    note = of_answers.note[0]
    shown = Shown(name, note, tuple(groups), lines, slider).with_photos(PHOTOS_SHOWN)
    page = cameras_page(shown.groups, title=name, note=shown.note, lines=shown.lines, slider=shown.slider)
    return View(page, f"Cameras in 3-D: {name}")


def provenance_facts(title: str, provenance: Mapping[str, object], more: Mapping[str, object] | None = None) -> Facts:
    """What it takes to get the same numbers again."""
    commit = str(provenance.get("git_commit") or "unknown")
    if provenance.get("git_dirty"):
        commit += ", changed since"
    told: dict[str, object] = {
        "command": provenance.get("command"),
        "commit": commit,
        "source SHA-256": provenance.get("source_sha256"),
        "time": provenance.get("timestamp_utc"),
        "versions": ", ".join(
            f"{name} {provenance[name]}" for name in ("relograph", "python", "torch", "numpy") if provenance.get(name)
        ),
        "device": f"{provenance.get('device_name')} ({provenance.get('device')}), {provenance.get('num_cores')} cores",
        "seed": provenance.get("seed"),
        **(more or {}),
    }
    return Facts(title, [(name, _value_text(value)) for name, value in told.items()])


def settings_facts(title: str, config: Mapping[str, object]) -> Facts:
    """A configuration, a line for each setting."""
    return Facts(title, list(_flat(config)))


def _flat(values: Mapping[str, object], prefix: str = "") -> Sequence[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", _value_text(value)))
    return rows


def _value_text(value: object) -> str:
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)
