"""`relograph report`: one HTML file of what a training run, a comparison or a sweep of experiments left behind."""

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

from relograph.errors import DatasetError
from relograph.evaluation.writing import write_whole
from relograph.progress import SILENT, Progress
from relograph.reports.comparison import RESULTS_FILE, comparison_report
from relograph.reports.experiments import experiments_report
from relograph.reports.page import Report, code
from relograph.reports.pdf import find_browser, print_to_pdf
from relograph.reports.posed_data import PosedData
from relograph.reports.training_run import RUN_FILE, training_report
from relograph.results import command_line, provenance


def write_report(
    run: Path,
    output: Path,
    *,
    pdf: Path | None = None,
    data: Path | None = None,
    with_saliency: bool = True,
    cache: Path,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> None:
    """Write the report of a folder and, if wanted, print it; `data` are the scenes that it was evaluated on."""
    browser = None if pdf is None else find_browser()  # before minutes of work
    opened = None if data is None else PosedData.open(data)
    with mpl.rc_context({"text.parse_math": False}):  # a dollar in a name is a dollar
        report = collect(run, opened, with_saliency=with_saliency, cache=cache, device=device, progress=progress)
    made = provenance(command=command_line(), seed=None)
    how = f"Made by {code(str(made['command']))} with relograph {made['relograph']}, {made['timestamp_utc']}."
    write_whole(output, replace(report, about=f"{report.about} {how}").html().encode("utf-8", errors="replace"))
    if pdf is not None and browser is not None:
        print_to_pdf(output, pdf, browser)


def collect(
    run: Path,
    data: PosedData | None,
    *,
    cache: Path,
    with_saliency: bool = True,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Report:
    """What a folder has, in sections; what it lacks is told in their places."""
    if (run / RUN_FILE).is_file():
        return training_report(run, data, cache=cache, with_saliency=with_saliency, device=device, progress=progress)
    if (run / RESULTS_FILE).is_file():
        return comparison_report(run, data)
    if any((run / "results").glob("*.json")) or any(run.glob("*.json")):
        return experiments_report(run)
    raise DatasetError(
        f"{run}: expected the folder of a training run ({RUN_FILE}), of `relograph eval --scene` or `--rooms` "
        f"({RESULTS_FILE}), or of `relograph experiments run` (results/*.json), found none of these. Name another."
    )
