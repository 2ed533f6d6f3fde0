"""From committed results to documents: docs/results.md, and the blocks of numbers in the README and in other pages.

A file of results may have remarks beside it, written by people: `table1.md` beside `table1.json` is printed below the
tables of that file.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from relograph.errors import DatasetError
from relograph.evaluation.experiments import EXPERIMENTS
from relograph.evaluation.metrics import SceneScore, average
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.tables import (
    MethodRow,
    ResultsTable,
    bibtex,
    markdown_references,
    results_table,
    rounds_table,
    summary_table,
)
from relograph.evaluation.writing import write_documents

_OF_ONE_IMAGE = ("posenet-", "atloc-")
"""How the names of trainings begin whose graph is one image."""
NOTHING_YET = "No results are committed yet; `relograph experiments run all` makes them."
NOT_MEASURED = "Nothing has been measured yet."
NOT_ON_A_GPU = "On a GPU this has not been measured yet: `make bench-gpu` does."


@dataclass(frozen=True)
class NamedTable:
    """A table and what a file of it is called."""

    name: str
    table: ResultsTable


@dataclass(frozen=True)
class ResultsFile:
    """What an experiment wrote, as it was committed."""

    name: str
    metadata: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    remarks: str = ""

    @property
    def size(self) -> str:
        """Of the networks and of what they see."""
        height, width = self.metadata["image_size_hw"]
        return f"C = {self.metadata['channels']}, images {height}x{width}"

    @property
    def setting(self) -> str:
        """What the networks have in common: their size, what their edges say, and how long they were trained."""
        jobs = self.metadata["jobs"]
        targets = sorted({job["target"] for job in jobs if job["target"]})
        images = [job["num_graphs"] for job in jobs if job["name"].startswith(_OF_ONE_IMAGE)]
        graphs = [job["num_graphs"] for job in jobs if not job["name"].startswith(_OF_ONE_IMAGE)]
        parts = [self.size]
        if targets:
            parts.append(f"{' and '.join(targets)} target{'s' if len(targets) > 1 else ''}")
        if graphs:
            parts.append(f"{_from_to(graphs)} graphs a training")
        if images:
            parts.append(f"{_from_to(images)} images where there are no graphs")
        return ", ".join(parts)


def _from_to(counts: Sequence[int]) -> str:
    low, high = f"{min(counts):,}", f"{max(counts):,}"
    return low if low == high else f"{low} to {high}"


_KEYS = ("dataset", "channels", "image_size_hw", "jobs", "figures", "git_commit", "device_name", "torch", "command")
_KEYS_OF_A_JOB = (
    *("name", "key", "scenes", "target", "num_graphs", "training_seconds", "provenance"),
    *("best_validation", "share_of_edges_across_the_jump", "checkpoint_sha256"),
)
"""What a report needs."""


def read_results(folder: Path) -> list[ResultsFile]:
    """The files of results in a folder, in the order of the experiments and then of their names."""
    return sorted((read_result(path) for path in folder.glob("*.json")), key=_place)


def read_result(path: Path) -> ResultsFile:
    """One file of results, and the remarks beside it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        metadata, results = document["metadata"], document["results"]
        known = metadata["experiment"] in EXPERIMENTS
        missing = [key for key in _KEYS if key not in metadata]
        missing += [f"jobs.{key}" for job in metadata.get("jobs", ()) for key in _KEYS_OF_A_JOB if key not in job]
    except (ValueError, KeyError, TypeError, AttributeError):
        known, missing = False, []
    if not known or missing:
        found = f"one without {missing[0]}" if missing else "something else"
        raise DatasetError(
            f"{path}: expected what `relograph experiments run` wrote, found {found}. Move the file elsewhere, "
            "or run the experiment again."
        )
    beside = path.with_suffix(".md")
    return ResultsFile(path.stem, metadata, results, beside.read_text(encoding="utf-8") if beside.exists() else "")


def _place(file: ResultsFile) -> tuple[int, str]:
    return list(EXPERIMENTS).index(file.metadata["experiment"]), file.name


# Tables


def tables_of(file: ResultsFile) -> list[NamedTable]:
    """The tables of a file of results, with the paper's rows where it has some."""
    experiment, dataset = EXPERIMENTS[file.metadata["experiment"]], file.metadata["dataset"]
    if experiment.name == "rounds":
        losses = {(row["rounds_in_training"], row["rounds_at_test"]): row["loss"] for row in file.results}
        scene = file.results[0]["scene"]
        table = rounds_table(experiment.title, losses, dataset=dataset, scene=scene, setting=file.setting)
        return [NamedTable(file.name, table)]
    rows = method_rows(file)
    if not rows:
        return []
    published = paper_numbers().tables[experiment.published] if experiment.published else None
    every_figure = f"{experiment.title}: all figures"
    return [
        NamedTable(
            file.name,
            results_table(experiment.title, rows, dataset=dataset, published=published, setting=file.setting),
        ),
        NamedTable(f"{file.name}-summary", summary_table(every_figure, rows, dataset=dataset, setting=file.setting)),
    ]


def method_rows(file: ResultsFile) -> list[MethodRow]:
    """The methods of a file of results, each with its scores."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in file.results:
        if "method" in row:
            rows.setdefault(row["method"], []).append(row)
    return [
        MethodRow(
            name=method,
            scores=[SceneScore.from_row(row, where=file.name) for row in of_method],
            num_test_frames=of_method[0]["num_test_frames"],
            is_copy_top1=of_method[0]["is_copy_top1"],
            note=of_method[0]["note"],
        )
        for method, of_method in rows.items()
    ]


def margins_over_copying(rows: Sequence[MethodRow]) -> list[str]:
    """Of each method a sentence that says how much smaller its median errors are than those of copying the top-1."""
    copying = next((row for row in rows if row.is_copy_top1), None)
    if copying is None:
        return []
    copied, sentences = {score.scene: score for score in copying.scores}, []
    for row in rows:
        pairs = [(score, copied[score.scene]) for score in row.scores if score.scene in copied]
        if row.is_copy_top1 or not pairs:
            continue
        ours, theirs = average([ours for ours, _ in pairs]), average([theirs for _, theirs in pairs])
        better = sum(
            ours.median_translation_error_m < theirs.median_translation_error_m
            and ours.median_rotation_error_deg < theirs.median_rotation_error_deg
            for ours, theirs in pairs
        )
        of_scenes = [_factors(theirs, ours) for ours, theirs in pairs]
        translation, rotation = _factors(theirs, ours)
        least_translation, least_rotation = (_least(factors) for factors in zip(*of_scenes, strict=True))
        sentences.append(
            f"{row.name}: {_times(translation)} in translation and {_times(rotation)} in rotation on average, at least "
            f"{_times(least_translation)} and {_times(least_rotation)} in a scene, and better in both on {better} of "
            f"{len(pairs)} scenes."
        )
    return sentences


def _factors(before: SceneScore, after: SceneScore) -> tuple[float, float]:
    """How many times smaller the median errors have become, in translation and in rotation."""
    return (
        _factor(before.median_translation_error_m, after.median_translation_error_m),
        _factor(before.median_rotation_error_deg, after.median_rotation_error_deg),
    )


def _factor(before: float, after: float) -> float:
    return before / after if math.isfinite(before) and math.isfinite(after) and after > 0 else math.nan


def _least(factors: Iterable[float]) -> float:
    """Not a number where one of them is none: it might have been less."""
    return min(factors, key=lambda factor: -math.inf if math.isnan(factor) else factor)


def _times(factor: float) -> str:
    return "–" if math.isnan(factor) else f"{factor:.2f}x"


# Pages


def results_page(files: Sequence[ResultsFile], *, pictures: str = "pictures") -> str:
    """docs/results.md: every committed experiment, in Markdown."""
    parts = [
        "# Results",
        "Written by `relograph experiments report` from the files in `results/experiments/`: edit those, not this. "
        "Errors are medians over the test queries of a scene; an average is the mean over scenes. Every table begins "
        "with copying the pose of the most similar reference image. Published numbers were not measured here.",
    ]
    if not files:
        return "\n\n".join([*parts, NOTHING_YET]) + "\n"
    citations: list[str] = []
    for file in files:
        experiment = EXPERIMENTS[file.metadata["experiment"]]
        parts.append(f"## {experiment.title}: {file.metadata['dataset']}, {file.setting}")
        parts.append(f"`{experiment.name}`: {experiment.about}. {_how(file.metadata)}")
        for named in tables_of(file):
            parts.append(named.table.markdown(references=False).strip())
            citations += named.table.citations
        if file.metadata.get("rows"):
            parts.append(_rows_made(file.metadata["rows"]))
        margins = margins_over_copying(method_rows(file))
        if margins:
            parts.append("How many times smaller the median errors are than those of copying the top-1:")
            parts.append("\n".join(f"- {sentence}" for sentence in margins))
        if file.remarks:
            parts.append(file.remarks.strip())
        for figure in file.metadata["figures"]:
            caption = figure["caption"]
            drawn = "Drawn from what the command above predicted."
            parts.append(f"![{caption}]({pictures}/{figure['file']})\n\n*{caption} {drawn}*")
    parts += ["## Trainings", _trainings(files)]
    if citations:
        parts += ["## References", markdown_references(citations)]
    return "\n\n".join(parts) + "\n"


def _how(metadata: Mapping[str, Any]) -> str:
    """Where the numbers came from, in a sentence: what trained the networks, which a later call only scores again."""
    jobs = metadata["jobs"]
    minutes = sum(job["training_seconds"] for job in jobs) / 60
    trained = [job["provenance"] for job in jobs] or [metadata]
    devices, versions = (_each_once(made_with[key] for made_with in trained) for key in ("device_name", "torch"))
    commits = _each_once(_short(made_with["git_commit"]) for made_with in trained)
    scored = _short(metadata["git_commit"])
    return (
        f"{len(jobs)} training{'s' if len(jobs) != 1 else ''}, {minutes:.1f} minutes, on {devices} with torch "
        f"{versions}, commit {commits}{f', scored at {scored}' if scored != commits else ''}: `{metadata['command']}`"
        f"{_mixture(metadata.get('rows', ()))}"
    )


def _mixture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Where not all rows were made by the same code, a sentence that says so."""
    by_code: dict[str, list[str]] = {}
    for row, code in zip(rows, _code_of(rows), strict=True):
        by_code.setdefault(code, []).append(row["method"])
    if len(by_code) < 2:
        return ""
    told = [f"{', '.join(methods)}: {code}" for code, methods in by_code.items()]
    return f" **Not all rows are of one commit:** {'; '.join(told)}."


def _code_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commits that made each row; where a commit was changed meanwhile, with the hash of its source."""
    sources: dict[str | None, set[str]] = {}
    for code in (code for row in rows for code in row["code"]):
        sources.setdefault(code["git_commit"], set()).add(code["source_sha256"])
    return [
        _each_once(
            _short(code["git_commit"])
            + (f" (source {_short(code['source_sha256'])})" if len(sources[code["git_commit"]]) > 1 else "")
            for code in row["code"]
        )
        for row in rows
    ]


def _rows_made(rows: Sequence[Mapping[str, Any]]) -> str:
    """What made each row of a table."""
    lines = [
        "| Row | Trainings | Steps | Graphs | Seconds | Commit | Device |",
        "| :--- | ---: | ---: | ---: | ---: | :---: | :--- |",
    ]
    for row, code in zip(rows, _code_of(rows), strict=True):
        counts = [
            f"{row[key]:,}" if row["num_trainings"] else "–" for key in ("num_trainings", "num_steps", "num_graphs")
        ]
        seconds = f"{row['training_seconds']:.0f}" if row["num_trainings"] else "–"
        cells = (row["method"], *counts, seconds, code, _each_once(row["device_names"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(commit: str | None) -> str:
    return commit[:7] if commit else "unknown"


def _each_once(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _trainings(files: Sequence[ResultsFile]) -> str:
    """Every training once."""
    jobs = {job["key"]: (file, job) for file in files for job in file.metadata["jobs"]}
    lines = [
        "| Training | Setting | Scenes | Graphs | Seconds | Validation loss | Edges across the jump | Weights |",
        "| :--- | :---: | :---: | ---: | ---: | ---: | ---: | :---: |",
    ]
    for file, job in jobs.values():
        jump, validation = job["share_of_edges_across_the_jump"], job["best_validation"]
        cells = (
            job["name"],
            file.size,
            str(len(job["scenes"])),
            f"{job['num_graphs']:,}",
            f"{job['training_seconds']:.0f}",
            "–" if validation is None else f"{validation:.3f}",
            "–" if jump is None else f"{100 * jump:.2f} %",
            f"`{job['checkpoint_sha256'][:12]}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    about = (
        "A graph of PoseNet and AtLoc is one image. Edges across the jump are those whose world target takes the long "
        "way round. Weights are named by their SHA-256."
    )
    return "\n".join(lines) + f"\n\n{about}"


def latex_page(files: Sequence[ResultsFile]) -> str:
    """All tables in LaTeX, and below them the works that they cite."""
    tables = [named for file in files for named in tables_of(file)]
    citations = [key for named in tables for key in named.table.citations]
    entries = "\n".join(f"% {line}".rstrip() for line in bibtex(citations).splitlines()) if citations else ""
    return "\n".join([*(named.table.latex(f"tab:{named.name}") for named in tables), entries]).strip() + "\n"


def results_block(files: Sequence[ResultsFile]) -> str:
    """What the README says about results: the seen scenes, without published rows, the largest networks first."""
    parts = []
    shown = [file for file in files if file.metadata["experiment"] in ("table1", "table3")]
    for file in sorted(shown, key=lambda file: -file.metadata["channels"]):
        title = EXPERIMENTS[file.metadata["experiment"]].title
        table = results_table(title, method_rows(file), dataset=file.metadata["dataset"], setting=file.setting)
        parts += [table.markdown(references=False).strip(), _how(file.metadata)]
    return "\n\n".join(parts) if parts else NOTHING_YET


def rooms_block(results: Path) -> str:
    """How fast rooms are rendered."""
    from relograph.rooms.benchmark import benchmark_table

    return benchmarks_block(results, "rooms", lambda document: benchmark_table(document["results"]))


def network_block(results: Path) -> str:
    """How fast the paper's network trains and answers."""
    from relograph.training.benchmark import network_table

    return benchmarks_block(
        results,
        "network",
        lambda document: network_table(document["results"], document["metadata"]["measured_bf16_teraflops"]),
    )


def match_block(results: Path) -> str:
    """How fast MatchGNN trains and answers."""
    from relograph.training.match_benchmark import match_table

    return benchmarks_block(results, "match", lambda document: match_table(document["results"]))


def ablation_block(results: Path) -> str:
    """What each ingredient of MatchGNN brings."""
    from relograph.evaluation.ablation import ablation_table

    return benchmarks_block(results, "ablation", lambda document: ablation_table(document["results"]).strip())


def export_block(results: Path) -> str:
    """What exported networks cost in accuracy."""
    from relograph.evaluation.export_accuracy import runtimes_table

    return benchmarks_block(results, "export", lambda document: runtimes_table(document["results"]))


def map_block(results: Path) -> str:
    """How fast maps are made and asked, and how large they are."""
    from relograph.maps.benchmark import map_table

    return benchmarks_block(
        results, "map", lambda document: map_table(document["results"]), but_not="map_growth", also_on_a_gpu=True
    )


def growth_block(results: Path) -> str:
    """How maps grow."""
    from relograph.maps.growth import growth_table

    return benchmarks_block(results, "map_growth", lambda document: growth_table(document["results"]))


def retrieval_block(results: Path) -> str:
    """How references are found among many images."""
    from relograph.retrieval.benchmark import retrieval_table

    return benchmarks_block(results, "retrieval", lambda document: retrieval_table(document["results"]))


BLOCKS_BY_PAGE: Mapping[str, Mapping[str, Callable[[Path], str]]] = {
    "rooms.md": {"rooms-benchmark": rooms_block},
    "training.md": {"network-benchmark": network_block},
    "localize.md": {"match-benchmark": match_block},
    "ablation.md": {"ablation": ablation_block},
    "export.md": {"export": export_block},
    "maps.md": {"map-benchmark": map_block},
    "large-maps.md": {"retrieval-benchmark": retrieval_block, "map-growth": growth_block},
}
"""What pages of the documents quote, each block from the folder of results."""


def benchmarks_block(
    results: Path,
    kind: str,
    table: Callable[[Mapping[str, Any]], str],
    *,
    but_not: str | None = None,
    also_on_a_gpu: bool = False,
) -> str:
    """The tables of all files of a kind, each below the machine and the command that it is of.

    Where a GPU is wanted, too, and none of the files is of one, the last line says so.
    """
    parts, was_on_a_gpu = [], False
    for path in sorted([*results.glob(f"{kind}.json"), *results.glob(f"{kind}_*.json")], reverse=True):
        if but_not is not None and path.name.startswith(but_not):
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        metadata = document["metadata"]
        was_on_a_gpu |= metadata["device"].startswith("cuda")
        parts.append(
            f"{metadata['device_name']}, {metadata['num_cores']} cores, torch {metadata['torch']}, commit "
            f"{_short(metadata['git_commit'])}: `{metadata['command']}`\n\n{table(document)}"
        )
    if parts and also_on_a_gpu and not was_on_a_gpu:
        parts.append(NOT_ON_A_GPU)
    return "\n\n".join(parts) or NOT_MEASURED


def filled(text: str, block_by_name: Mapping[str, Callable[[], str]]) -> str:
    """A document with the blocks between `<!-- NAME begins -->` and `<!-- NAME ends -->` written anew."""
    for name, block in block_by_name.items():
        begins, ends = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
        between = re.compile(f"{re.escape(begins)}.*?{re.escape(ends)}", flags=re.DOTALL)
        if between.search(text):
            content = f"{begins}\n\n{block()}\n\n{ends}"
            text = between.sub(lambda _, content=content: content, text)  # type: ignore[misc]  # a default that mypy cannot infer
    return text


def read_readme(docs: Path) -> tuple[Path, str]:
    """The README beside the documents, and what it says."""
    readme = docs.parent / "README.md"
    try:
        return readme, readme.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DatasetError(
            f"{readme}: expected the README beside {docs}, found none. Run the command in the repository's folder, or "
            "name its docs folder with --docs."
        ) from None


def documents(results: Path, docs: Path) -> dict[Path, str]:
    """What documents should say, by their paths; `results` is the folder of the experiments."""
    files = read_results(results)
    readme, text = read_readme(docs)
    wanted = {
        docs / "results.md": results_page(files),
        readme: filled(text, {"results": lambda: results_block(files)}),
    }
    for name, block_by_name in BLOCKS_BY_PAGE.items():
        page = docs / name
        if page.is_file():
            blocks = {block: partial(fill, results.parent) for block, fill in block_by_name.items()}
            wanted[page] = filled(page.read_text(encoding="utf-8"), blocks)
    return wanted


def write_report(results: Path, docs: Path, *, check: bool = False) -> list[Path]:
    """Write the documents anew, or with `check` only see that they say what the results say."""
    wanted = documents(results, docs)
    return write_documents(
        wanted, check=check, source=f"the files in {results}", command="relograph experiments report"
    )
