"""From the folder of a sweep into the repository: its results, its figures, and the documents that quote them."""

from pathlib import Path

from relograph.errors import DatasetError
from relograph.evaluation.experiment_report import read_readme, read_results, write_report
from relograph.evaluation.writing import write_whole


def publish(sweep: Path, results: Path, docs: Path) -> list[Path]:
    """Copy what a sweep measured and drew to `results` and `docs/pictures`, and write the documents anew.

    What is already there under other names stays, so that several sweeps can be published one after the other. The
    files that changed are given back.
    """
    files = read_results(sweep / "results")
    if not files:
        raise DatasetError(
            f"{sweep}: expected the folder of a sweep with files in results/, found none. Name the folder that "
            "`relograph experiments run` was given as --output."
        )
    read_readme(docs)
    copies = {sweep / "results" / f"{file.name}.json": results / f"{file.name}.json" for file in files}
    for file in files:
        for figure in file.metadata["figures"]:
            copies[sweep / "figures" / figure["file"]] = docs / "pictures" / figure["file"]
    for source in copies:
        if not source.is_file():
            raise DatasetError(
                f"{source}: expected a figure that the results name, found none. Run the experiment again; what is "
                "trained is not trained again."
            )
    changed = []
    for source, target in copies.items():
        content = source.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            write_whole(target, content)
            changed.append(target)
    return changed + write_report(results, docs)
