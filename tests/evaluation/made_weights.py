"""Weights as a training leaves them, with all that is told about it, and results of them; nothing was trained."""

import json
import zipfile
from dataclasses import replace
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
    grey_share: float = 0.0,
) -> str:
    """Random weights in a folder, and their hash."""
    torch.manual_seed(seed)
    textures = {"sha256": fingerprint_of_photographs(archive), "num_images": 2, "split": "train"} if archive else None
    made = provenance(command=f"relograph train --preset matchgnn --output {folder}", seed=0)
    stream = replace(MATCHGNN_TINY.stream, grey_share=grey_share)
    sha256 = save_match_gnn(
        folder,
        MatchGNN(MATCHGNN_TINY.model),
        {
            "config": config_to_dict(replace(MATCHGNN_TINY, stream=stream)),
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


def make_results(
    folder: Path, sha256: str, data: str = "validation rooms", *, metres: float = 0.0421, focal: str | None = None
) -> None:
    """What `relograph eval` leaves of weights with that hash: in rooms, or with a `focal` in a scene."""
    details: dict[str, object] = {"data": data, "num_homes": 20}
    if focal is not None:
        details = {"data": "$DATA", "dataset": data, "focal": focal, "map_images": 1500}
    details |= {"weights_sha256": sha256, "num_references": 7}
    row = {"method": "relograph, regression", "num_queries": 2000, "num_not_localized": 0}
    row |= {"median_translation_error_m": metres, "median_rotation_error_deg": 1.23}
    row |= {"recall_5cm_5deg": 0.61, "recall_10cm_5deg": 0.72, "recall_25cm_10deg": 0.83}
    row |= {"share_accepted": 0.94, "share_right_of_accepted": 0.95}
    row |= {"seconds_per_query": None, "solver_seconds_per_query": None, "seconds_per_map_image": None}
    rows = [row]
    command = "relograph eval --output $OUTPUT"
    write_result(folder / "results.json", rows, command=command, seed=0, details=details)
    table = f"**Localization in {data}**\n\n| Method | Median |\n| :--- | :---: |\n| relograph | {metres:.3f} m |\n"
    (folder / "table.md").write_text(table)
    if focal is None:
        (folder / "report.md").write_text(f"{table}\n| queries of others | 0.42% |\n")
    (folder / "errors-by-references.png").write_bytes(b"a picture")
    (folder / "queries.csv").write_text("one line for each answer\n")
