"""Tables of results in Markdown and LaTeX: our rows, and below them, under their own heading, the published ones.

A cell is the median translation error and the median rotation error, "0.16 m / 5.2°". The best of our rows is bold in
every column, each of the two errors by itself; published rows never are, since they were not measured here. Copying
the pose of the top-1 reference is always the first row: what does not beat it has learned nothing.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from relograph.evaluation.metrics import SceneScore, average
from relograph.evaluation.paper_numbers import PublishedRow, PublishedTable, paper_numbers

COPY_TOP1 = "copy top-1"
MISSING = "–"
INFINITE = "∞"


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A method that was measured here."""

    name: str
    scores: Sequence[SceneScore]
    """One for each scene; a scene without a score is a dash."""
    num_test_frames: int = 1
    """Query images that one answer takes."""
    is_copy_top1: bool = False
    note: str = ""
    """Printed under the rows, if any."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A piece of text within a cell."""

    text: str = ""
    bold: bool = False
    raised: bool = False
    cite: str = ""
    """The key of a citation, which takes the place of text."""


Cell = tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows under one heading and one line of column names."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rule_after: frozenset[int] = frozenset()
    """Rows that a thin line follows in print."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResultsTable:
    """A table, ready to be written in either language."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def citations(self) -> tuple[str, ...]:
        """Keys of the works that the table cites, each once, in order."""
        keys = (span.cite for block in self.blocks for row in block.rows for cell in row for span in cell if span.cite)
        return tuple(dict.fromkeys(keys))

    def markdown(self, *, references: bool = True) -> str:
        """The table in Markdown, with its notes and, unless a page collects them elsewhere, its references."""
        parts = [f"**{_escape_markdown(self.title)}**"]
        for block in self.blocks:
            parts += [_escape_markdown(block.heading), _markdown_block(block), *map(_escape_markdown, block.notes)]
        if references and self.citations:
            parts.append(markdown_references(self.citations))
        return "\n\n".join(parts) + "\n"

    def latex(self, label: str) -> str:
        r"""The table in LaTeX; it needs `\usepackage{booktabs}`, and `bibtex(self.citations)` for its `\cite`s."""
        lines = [
            r"\begin{table*}[t]",
            r"\centering",
            r"\scriptsize",
            r"\setlength\tabcolsep{3pt}",
            rf"\caption{{{_escape_latex(self.title)}}}",
            rf"\label{{{label}}}",
        ]
        for block in self.blocks:
            lines += [rf"\par\medskip {_escape_latex(block.heading)}\par\smallskip", *_latex_block(block)]
            lines += [rf"\par\smallskip {_escape_latex(note)}" for note in block.notes]
        return "\n".join([*lines, r"\end{table*}", ""])


def results_table(
    title: str,
    methods: Sequence[MethodRow],
    *,
    dataset: str,
    published: PublishedTable | None = None,
    setting: str = "",
) -> ResultsTable:
    """A table of median errors: a row for each method, a column for each scene, and the averages.

    With a `published` table, its columns of averages are ours too, and its rows stand below ours. Averages over some of
    the scenes are over the same scenes where `dataset` is the paper's ("7-Scenes", "Cambridge Landmarks"), and over
    those at the same places where it is another with as many. An average over a scene that was not measured is a dash.
    `setting` says what the models have in common, such as channels, image size and epochs.
    """
    methods = _with_copy_top1_first(methods)
    folders = list(dict.fromkeys(score.scene for method in methods for score in method.scores))
    same_data = published is not None and published.dataset == dataset
    label_by_folder = _labels(folders, published if same_data else None)
    averages = _average_columns(label_by_folder, published, same_data=same_data)
    columns = [*((label, (folder,)) for folder, label in label_by_folder.items()), *averages.items()]
    errors = [[_median_errors(method, column) for _, column in columns] for method in methods]
    rotation_digits = published.rotation_digits if published is not None else 1
    cells = zip(*(_cells_with_best_bold(column, rotation_digits) for column in zip(*errors, strict=True)), strict=True)

    notes = [
        f"{label} is over {_listed([label_by_folder.get(folder, folder) for folder in column])}."
        for label, column in averages.items()
        if 0 < len(column) < len(label_by_folder)
    ]
    notes += _notes_of_methods(methods)
    if any(math.isinf(error) for row in errors for pair in row if pair is not None for error in pair):
        notes.append(f"{INFINITE}: half of the queries or more were not localized.")
    ours = Block(
        heading=f"Measured on {dataset}{f' ({setting})' if setting else ''}.",
        header=("Method", "Frames", *(label for label, _ in columns)),
        rows=tuple(
            ((Span(text=method.name),), (Span(text=str(method.num_test_frames)),), *row)
            for method, row in zip(methods, cells, strict=True)
        ),
        rule_after=_rows_that_copy(methods),
        notes=tuple(notes),
    )
    theirs = [_published_block(published, dataset, same_data=same_data)] if published is not None else []
    return ResultsTable(title=title, blocks=(ours, *theirs))


def summary_table(title: str, methods: Sequence[MethodRow], *, dataset: str, setting: str = "") -> ResultsTable:
    """The other figures, averaged over scenes: medians, means, recalls and the share that was not localized.

    Scenes that some method lacks are left out for all, so that the rows can be compared.
    """
    methods = _with_copy_top1_first(methods)
    measured = [{score.scene for score in method.scores} for method in methods if method.scores]
    common = set[str]().union(*measured).intersection(*measured)
    scores = [[score for score in method.scores if score.scene in common] for method in methods]
    averages = [average(row) for row in scores]
    lost = [sum(score.share_not_localized for score in row) / len(row) if row else math.nan for row in scores]
    columns = {
        "Median": _cells_with_best_bold(
            [(score.median_translation_error_m, score.median_rotation_error_deg) for score in averages], 1
        ),
        "Mean": _cells_with_best_bold(
            [(score.mean_translation_error_m, score.mean_rotation_error_deg) for score in averages], 1
        ),
        "5 cm, 5°": _shares_with_best_bold([score.recall_5cm_5deg for score in averages], max),
        "10 cm, 5°": _shares_with_best_bold([score.recall_10cm_5deg for score in averages], max),
        "25 cm, 10°": _shares_with_best_bold([score.recall_25cm_10deg for score in averages], max),
        "Not localized": _shares_with_best_bold(lost, min),
    }
    block = Block(
        heading=f"Averaged over {len(common)} scene{'s' if len(common) != 1 else ''} of {dataset}"
        f"{f' ({setting})' if setting else ''}.",
        header=("Method", *columns),
        rows=tuple(
            ((Span(text=method.name),), *row)
            for method, row in zip(methods, zip(*columns.values(), strict=True), strict=True)
        ),
        rule_after=_rows_that_copy(methods),
        notes=(
            "Recall is the share of all queries with both errors below the thresholds. Medians are over all queries, "
            "and one that was not localized counts as infinite; means are over those that were localized.",
            *_notes_of_methods(methods),
        ),
    )
    return ResultsTable(title=title, blocks=(block,))


def rounds_table(
    title: str, losses: Mapping[tuple[int, int], float], *, dataset: str, scene: str, setting: str = ""
) -> ResultsTable:
    """The loss by rounds of message passing in training (rows) and at test time (columns), ours and the paper's.

    Keys are (rounds in training, rounds at test time); the smallest of our losses is bold.
    """
    published = paper_numbers().rounds
    same_data = (dataset, scene.lower()) == (published.dataset, published.scene.lower())
    cited = (
        f"Published on {published.scene} of {published.dataset} after {published.num_epochs} epochs, "
        f"{_cited_from(published.where)}{_warning('' if same_data else f'{scene} of {dataset}')}"
    )
    ours = _rounds_block(
        f"Measured on {scene} of {dataset}{f' ({setting})' if setting else ''}.",
        losses,
        notes=(f"The loss is the {published.measure}.",),
        best=min(losses.values(), default=None),
    )
    theirs = _rounds_block(cited, published.losses, notes=(), best=None)
    return ResultsTable(title=title, blocks=(ours, theirs))


def markdown_references(keys: Iterable[str]) -> str:
    """The works of those keys, a list item each."""
    works = [paper_numbers().citations[key] for key in dict.fromkeys(keys)]
    return "\n".join(f"- [{_escape_markdown(work.short())}] {_escape_markdown(work.full())}" for work in works)


def bibtex(keys: Iterable[str]) -> str:
    """The works of those keys as BibTeX entries."""
    entries = []
    for work in (paper_numbers().citations[key] for key in dict.fromkeys(keys)):
        place = {"inproceedings": "booktitle", "article": "journal", "misc": "note"}[work.kind]
        fields = {
            "author": " and ".join(work.authors),
            "title": f"{{{work.title}}}",
            place: work.venue,
            "year": str(work.year),
            "eprint": work.arxiv,
            "archiveprefix": "arXiv" if work.arxiv else None,
            "url": work.url,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        entries.append("\n".join([f"@{work.kind}{{{work.key},", *lines, "}"]))
    return "\n\n".join(entries) + "\n"


# Rows and columns


def _with_copy_top1_first(methods: Sequence[MethodRow]) -> list[MethodRow]:
    copying = [method for method in methods if method.is_copy_top1]
    copying = copying or [MethodRow(name=COPY_TOP1, scores=(), is_copy_top1=True, note="not measured yet")]
    return [*copying, *(method for method in methods if not method.is_copy_top1)]


def _notes_of_methods(methods: Sequence[MethodRow]) -> list[str]:
    """A sentence for every note, with all methods that it is about."""
    names_by_note: dict[str, list[str]] = {}
    for method in methods:
        if method.note:
            names_by_note.setdefault(method.note, []).append(method.name)
    return [f"{'; '.join(names)}: {note}." for note, names in names_by_note.items()]


def _rows_that_copy(methods: Sequence[MethodRow]) -> frozenset[int]:
    return frozenset({sum(method.is_copy_top1 for method in methods) - 1})


def _labels(folders: Sequence[str], published: PublishedTable | None) -> dict[str, str]:
    """What each scene is called in the header, by its folder: as in the paper, in its order, where it has the scene."""
    scenes = published.folder_by_scene.items() if published is not None else ()
    known = {folder: scene for scene, folder in scenes if folder in folders}
    return {**known, **{folder: folder for folder in folders if folder not in known}}


def _average_columns(
    label_by_folder: Mapping[str, str], published: PublishedTable | None, *, same_data: bool
) -> dict[str, tuple[str, ...]]:
    """The folders of the scenes that each column of averages is over."""
    if published is None:
        return {"Avg.": tuple(label_by_folder)}
    folder_by_scene = published.folder_by_scene
    if not same_data:
        if len(label_by_folder) != len(folder_by_scene):
            return {"Avg.": tuple(label_by_folder)}
        folder_by_scene = dict(zip(folder_by_scene, label_by_folder, strict=True))
    return {label: tuple(folder_by_scene[scene] for scene in scenes) for label, scenes in published.averages.items()}


def _median_errors(method: MethodRow, folders: Sequence[str]) -> tuple[float, float] | None:
    """The medians averaged over those scenes; None where one of them was not measured."""
    by_scene = {score.scene: score for score in method.scores}
    if not folders or any(folder not in by_scene for folder in folders):
        return None
    averaged = average([by_scene[folder] for folder in folders])
    return averaged.median_translation_error_m, averaged.median_rotation_error_deg


def _rounds_block(
    heading: str, losses: Mapping[tuple[int, int], float], *, notes: tuple[str, ...], best: float | None
) -> Block:
    trained, tested = sorted({train for train, _ in losses}), sorted({test for _, test in losses})
    return Block(
        heading=heading,
        header=("Trained with", *(f"tested with R = {rounds}" for rounds in tested)),
        rows=tuple(
            (
                (Span(text=f"R = {train}"),),
                *(
                    (Span(text=f"{losses[train, test]:.2f}", bold=losses[train, test] == best),)
                    if (train, test) in losses
                    else (Span(),)
                    for test in tested
                ),
            )
            for train in trained
        ),
        notes=notes,
    )


def _published_block(published: PublishedTable, measured_on: str, *, same_data: bool) -> Block:
    columns = [*published.folder_by_scene, *published.averages]
    groups = [row.group for row in published.rows]
    marks = {
        "* made for one scene, of no use in another.": any(row.scene_specific for row in published.rows),
        "? not reproduced by the paper's authors.": any(row.not_reproduced for row in published.rows),
        "† training diverged; the best model before that was taken.": any(row.diverged for row in published.rows),
        "(2D) distance without height.": any(row.distance_2d for row in published.rows),
    }
    legend = " ".join(text for text, applies in marks.items() if applies)
    return Block(
        heading=f"Published on {published.dataset}, {_cited_from(published.where)}"
        + _warning("" if same_data else measured_on),
        header=("Method", "Kind", "Frames", *columns),
        rows=tuple(
            (
                _published_name(row),
                (Span(text=row.group if row.group != "ours" else "the paper"),),
                (Span(text=str(row.num_test_frames)),),
                *(_published_cell(row, column, published.rotation_digits) for column in columns),
            )
            for row in published.rows
        ),
        rule_after=frozenset(row for row in range(len(groups) - 1) if groups[row] != groups[row + 1]),
        notes=(
            *([legend] if legend else []),
            *(f"{row.name}: {row.note}" for row in published.rows if row.note),
        ),
    )


def _cited_from(where: str) -> str:
    return f"cited from {paper_numbers().source.short()} ({where}); not measured here."


def _warning(other_data: str) -> str:
    return f" {other_data} is other data: these numbers cannot be compared with those above." if other_data else ""


def _published_name(row: PublishedRow) -> Cell:
    marks = ("*" if row.scene_specific else "") + ("?" if row.not_reproduced else "")
    raised = (Span(text=marks, raised=True),) if marks else ()
    return (Span(text=row.name), *raised, Span(cite=row.citation))


def _published_cell(row: PublishedRow, column: str, rotation_digits: int) -> Cell:
    errors = row.errors.get(column) or row.averages.get(column)
    if errors is None:
        return (Span(text=MISSING),)
    metres, degrees = _number(errors.translation_m, 2), _number(errors.rotation_deg, rotation_digits)
    text = f"{metres} m{' (2D)' if row.distance_2d else ''} / {degrees}{'°' if degrees != MISSING else ''}"
    return (Span(text=text), *((Span(text="†", raised=True),) if column in row.diverged else ()))


# Cells


def _cells_with_best_bold(column: Sequence[tuple[float, float] | None], rotation_digits: int) -> list[Cell]:
    """The cells of one column of errors; the smallest of each kind is bold, and so are others that print the same."""
    metres = [_number(pair and pair[0], 2) for pair in column]
    degrees = [_number(pair and pair[1], rotation_digits) for pair in column]
    best_metres, best_degrees = _best(metres, min), _best(degrees, min)
    return [
        (
            (
                Span(text=f"{m} m", bold=m == best_metres),
                Span(text=" / "),
                Span(text=f"{deg}°", bold=deg == best_degrees),
            )
            if MISSING not in (m, deg)
            else (Span(text=MISSING),)
        )
        for m, deg in zip(metres, degrees, strict=True)
    ]


def _shares_with_best_bold(column: Sequence[float], better: Callable[..., str]) -> list[Cell]:
    percents = [_number(100 * share, 1) for share in column]
    best = _best(percents, better)
    return [
        (Span(text=f"{percent} %" if percent != MISSING else MISSING, bold=percent == best),) for percent in percents
    ]


def _best(numbers: Sequence[str], better: Callable[..., str]) -> str | None:
    """The best of the printed numbers; None where there is nothing to be better than."""
    measured = [number for number in numbers if number != MISSING]
    finite = [number for number in measured if number != INFINITE]
    return better(finite, key=float) if finite and len(measured) > 1 else None


def _number(value: float | None, digits: int) -> str:
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:.{digits}f}" if math.isfinite(value) else INFINITE


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


# Markdown


def _markdown_block(block: Block) -> str:
    lines = [
        _markdown_row(_escape_markdown(name) for name in block.header),
        _markdown_row([":---", *[":---:"] * (len(block.header) - 1)]),
    ]
    lines += [_markdown_row("".join(map(_markdown_span, cell)) for cell in row) for row in block.rows]
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_span(span: Span) -> str:
    if span.cite:
        return f" [{_escape_markdown(paper_numbers().citations[span.cite].short())}]"
    text = _escape_markdown(span.text)
    text = f"**{text}**" if span.bold else text
    return f"<sup>{text}</sup>" if span.raised else text


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()) if "\n" in text else text)


# LaTeX

_LATEX_BY_CHARACTER = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "°": r"$^\circ$",
    "∞": r"$\infty$",
    "†": r"$\dagger$",
    "×": r"$\times$",
    "–": "--",
    "\n": " ",
}


def _latex_block(block: Block) -> list[str]:
    lines = [
        rf"\begin{{tabular}}{{l{'c' * (len(block.header) - 1)}}}",
        r"\toprule",
        _latex_row(map(_escape_latex, block.header)),
        r"\midrule",
    ]
    for row, cells in enumerate(block.rows):
        lines.append(_latex_row("".join(map(_latex_span, cell)) for cell in cells))
        if row in block.rule_after and row < len(block.rows) - 1:
            lines.append(r"\midrule")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(cells: Iterable[str]) -> str:
    text = " & ".join(cells)
    # After the line break that ends a row, a bracket or a star would be read as its option.
    return rf"{'{}' if text.startswith(('[', '*')) else ''}{text} \\"


def _latex_span(span: Span) -> str:
    if span.cite:
        return rf"~\cite{{{span.cite}}}"
    text = _escape_latex(span.text)
    text = rf"\textbf{{{text}}}" if span.bold else text
    return rf"\textsuperscript{{{text}}}" if span.raised else text


def _escape_latex(text: str) -> str:
    return "".join(_LATEX_BY_CHARACTER.get(character, character) for character in text)
