"""The report of a sweep: the folder that `relograph experiments run` wrote, or the results of one alone."""

import re
from pathlib import Path

from relograph.evaluation.experiment_report import ResultsFile, read_results, results_page
from relograph.reports.answers import provenance_facts
from relograph.reports.page import Picture, Report, Section, Text, code

PICTURES = "pictures"


def experiments_report(folder: Path) -> Report:
    """Every experiment of a sweep, as docs/results.md has it, with its figures."""
    results = folder / "results" if (folder / "results").is_dir() else folder
    files = read_results(results)
    pictures = _pictures(folder, files)
    _, *chapters = re.split(r"^## ", results_page(files, pictures=PICTURES), flags=re.MULTILINE)
    sections = []
    for chapter in chapters:
        title, _, text = chapter.partition("\n")
        sections.append(Section(title, [Text(text, pictures)]))
    wanted = {figure["file"] for file in files for figure in file.metadata["figures"]}
    if missing := sorted(wanted - {name.removeprefix(f"{PICTURES}/") for name in pictures}):
        sections.append(Section("Figures", missing=f"Not in {folder.name}/figures: {', '.join(missing)}."))
    sections.append(
        Section(
            "Failures and cameras in 3-D",
            missing="A sweep keeps figures of these where it ran `qualitative` and `saliency`; for one network of it: "
            f"{code('relograph train')}, {code('relograph eval')} and this report.",
        )
    )
    facts = [provenance_facts(file.name, file.metadata) for file in files]
    sections.append(Section("Provenance", facts))
    return Report(
        f"Experiments in {folder.resolve().name}",
        f"{len(files)} experiment{'' if len(files) == 1 else 's'}. Errors are medians over the test queries of a "
        "scene; published numbers were not measured here.",
        sections,
    )


def _pictures(folder: Path, files: list[ResultsFile]) -> dict[str, Picture]:
    """The figures that are there, by the names that the page calls them."""
    found = {}
    for figure in (figure for file in files for figure in file.metadata["figures"]):
        path = folder / "figures" / Path(figure["file"]).name
        if path.is_file():
            found[f"{PICTURES}/{figure['file']}"] = Picture.of_file(path, figure["caption"])
    return found
