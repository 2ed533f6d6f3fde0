"""What an exported network costs in accuracy and saves in time: the same queries by each runtime, in rooms."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, median

import torch
from jaxtyping import UInt8
from torch import Tensor

from relograph.evaluation.place import Place
from relograph.evaluation.place_localizer import OurMap
from relograph.evaluation.place_rooms import room_places
from relograph.geometry import pose_error
from relograph.localization.localizer import Answer, Localizer, Runtime, Solver
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.rooms.room_maps import RoomMapConfig, room_maps

PHOTO_HOMES, PHOTOS_PER_HOME = 4, 8
NEAR = {"10_cm_5_deg": (0.10, 5.0), "25_cm_10_deg": (0.25, 10.0)}
"""What counts as near, in metres and degrees."""


def training_photos(*, seed: int = 0, progress: Progress = SILENT) -> UInt8[Tensor, "M H W 3"]:
    """Photos of training rooms, for int8 to learn its scales from: validation rooms are there to judge them."""
    config = RoomMapConfig(num_homes=PHOTO_HOMES, map_views=PHOTOS_PER_HOME // 2, query_views=PHOTOS_PER_HOME // 2)
    return torch.cat([home.images for home in room_maps("training", config, seed=seed, progress=progress)])


def measure_export(
    network: LoadedMatchGNN,
    exported: Path,
    num_homes: int,
    *,
    textures: Path | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """The rows of `compare_runtimes` for validation rooms."""
    homes = room_places(
        "validation", RoomMapConfig(num_homes=num_homes), textures=textures, seed=seed, progress=progress
    )
    return compare_runtimes((home.place for home in homes), network, exported, progress=progress)


def compare_runtimes(
    places: Iterable[Place],
    network: LoadedMatchGNN,
    exported: Path,
    *,
    num_references: int = 7,
    solver: Solver = "auto",
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """A row for torch and one for the export, from the queries of all places; the maps' features are torch's."""
    answers: dict[Runtime, list[tuple[Answer, float, float]]] = {"torch": [], "onnx": []}
    for place in places:
        features = OurMap.of(place.map, network, progress=progress).features
        for runtime, of_runtime in answers.items():
            localizer = Localizer(
                features,
                network,
                num_references=num_references,
                solver=solver,
                runtime=runtime,
                exported=exported if runtime == "onnx" else None,
            )
            with progress.task(f"{place.name}, {runtime}", total=len(place.queries)) as advance:
                for row, camera in enumerate(place.queries.cameras):
                    answer = localizer.localize(place.queries.read(row), camera=camera)
                    of_runtime.append((answer, *_errors(answer, place, row)))
                    advance(1)
    return [{"runtime": runtime, **_figures(of_runtime)} for runtime, of_runtime in answers.items()]


def _errors(answer: Answer, place: Place, row: int) -> tuple[float, float]:
    """In metres and degrees, of the best pose whether sure or not; infinite where there is none."""
    if answer.T_best is None:
        return torch.inf, torch.inf
    error = pose_error(answer.T_best, place.queries.T_world_cam[row])
    return float(error.translation_error_m), float(error.rotation_error_deg)


def _figures(answers: Sequence[tuple[Answer, float, float]]) -> dict[str, object]:
    metres, degrees = [m for _, m, _ in answers], [d for _, _, d in answers]
    figures: dict[str, object] = {
        "num_queries": len(answers),
        "median_translation_error_m": _finite(median(metres)),
        "median_rotation_error_deg": _finite(median(degrees)),
        "share_localized": fmean(answer.localized for answer, _, _ in answers),
    }
    for name, (near_m, near_deg) in NEAR.items():
        figures[f"share_within_{name}"] = fmean(m <= near_m and d <= near_deg for _, m, d in answers)
    for stage in ("encode", "match"):
        figures[f"{stage}_ms"] = 1e3 * median(answer.seconds[stage] for answer, _, _ in answers)
    return figures


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def runtimes_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as a Markdown table; a median is missing where half of the queries have no pose at all."""
    columns = {
        "runtime": "{runtime}",
        "queries": "{num_queries}",
        "median error [m]": "{median_translation_error_m:.4f}",
        "[degrees]": "{median_rotation_error_deg:.3f}",
        "within 10 cm and 5 degrees": "{share_within_10_cm_5_deg:.1%}",
        "within 25 cm and 10 degrees": "{share_within_25_cm_10_deg:.1%}",
        "localized": "{share_localized:.1%}",
        "encode [ms]": "{encode_ms:.0f}",
        "match [ms]": "{match_ms:.0f}",
    }
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in rows:
        known = {name: nan if value is None else value for name, value in row.items()}
        cells = [text.format(**known).replace("nan", "none") for text in columns.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
