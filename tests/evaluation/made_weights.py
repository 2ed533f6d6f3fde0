"""Weights as a training leaves them, with all that is told about it, and results of them; nothing was trained."""

import json
import zipfile
from pathlib import Path

import torch

from relograph.configuration import config_to_dict
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import Calibration, Odds, save_calibration, save_match_gnn
from relograph.results import provenance, write_result
from relograph.rooms.textures import fingerprint_of_photographs
from relograph.training.presets import MATCHGNN_TINY

IMAGES = (
    ("train/0001.jpg", "nice-textures", "1.0-1", "CC0-1.0"),
    ("train/0002.jpg", "nice-textures", "1.0-1", "GPL-2.0-or-later"),
    ("validation/0001.jpg", "nice-textures", "1.0-1", "CC0-1.0"),
    ("test/0001.jpg", "another-game", "2:3", "MIT"),
)


def make_archive(path: Path) -> Path:
    """An archive of textures, without the textures."""
    images = [
        {"name": name, "package": package, "version": version, "licence": licence}
        for name, package, version, licence in IMAGES
    ]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("sources.json", json.dumps({"images": images}))
        for image in images:
            file.writestr(image["name"], b"")
    return path


def make_weights(
    folder: Path,
    *,
    archive: Path | None = None,
    seed: int = 0,
    calibrated: bool = True,
    loss: float = 0.09,
    start: str | None = None,
    rounds: int = 2,
    seconds: float = 1500.0,
    graphs: int = 64_000,
) -> str:
    """Random weights in a folder, and their hash."""
    torch.manual_seed(seed)
    textures = {"sha256": fingerprint_of_photographs(archive), "num_images": 2, "split": "train"} if archive else None
    made = provenance(command=f"relograph train --preset matchgnn --output {folder}", seed=0)
    sha256 = save_match_gnn(
        folder,
        MatchGNN(MATCHGNN_TINY.model),
        {
            "config": config_to_dict(MATCHGNN_TINY),
            "start": start,
            "textures": textures,
            "provenance": made,
            "training": {"rounds": rounds, "seconds": seconds, "graphs": graphs},
            "validation": {
                "loss": loss,
                "median_m": loss / 2,
                "median_deg": 15 * loss,
                "right_matches": 0.8,
                "confident_px": None,
            },
        },
    )
    if calibrated:
        odds = [Odds({"overlap": 1.0}, -3.0, threshold) for threshold in (0.61, 0.52, 0.73)]
        save_calibration(folder, Calibration(*odds, network_sha256=sha256, num_answers=1234))
    return sha256


def method_row(method: str, metres: float | None, degrees: float | None) -> dict[str, object]:
    """A row of results as an evaluation writes it."""
    return {
        "method": method,
        "scene": "rooms",
        "num_queries": 1000,
        "num_not_localized": 3,
        "median_translation_error_m": metres,
        "median_rotation_error_deg": degrees,
        "recall_5cm_5deg": 0.5,
        "recall_10cm_5deg": 0.75,
        "recall_25cm_10deg": 0.96,
        "seconds_per_query": 0.12,
        "solver_seconds_per_query": 0.03,
        "seconds_per_map_image": 0.02,
        "share_accepted": 0.9,
        "share_right_of_accepted": 0.99,
    }


def make_results(folder: Path, sha256: str, data: str = "validation rooms", *, metres: float = 0.0421) -> None:
    """What `relograph eval --rooms` leaves of weights with that hash."""
    details = {
        "data": data,
        "num_homes": 20,
        "num_references": 7,
        "references_by": "descriptor",
        "weights_sha256": sha256,
    }

    def write(name: str, rows: list[dict[str, object]]) -> None:
        write_result(folder / name, rows, command="relograph eval --output $OUTPUT", seed=0, details=details)

    write(
        "results.json",
        [method_row("copy top-1", 0.31, 9.0), method_row("relograph, regression", metres, 1.23)],
    )
    write(
        "references.json",
        [
            {**method_row("relograph, regression", error, degrees), "num_references": count}
            for count, error, degrees in ((1, None, None), (7, 0.0421, 1.23), (32, 0.035, 1.0))
        ],
    )
    write(
        "false-accepts.json",
        [
            {
                "method": "relograph, solver, f given",
                "kind": "queries of other homes",
                "num_queries": 10_000,
                "false_accepts_at_95_percent": 0.0042,
                "false_accepts_as_calibrated": None,
                "share_of_right_accepted_as_calibrated": 0.955,
            }
        ],
    )
    write(
        "reliability.json",
        [{"method": "relograph, solver, f given", "expected_calibration_error": 0.013, "num_answers": 11_000}],
    )
