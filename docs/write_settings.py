"""Writes the tables of settings, presets and options in docs/training.md and docs/serve.md, in the code's own words.

Run: python docs/write_settings.py
"""

from collections.abc import Sequence
from pathlib import Path

from relograph.cli.serve import option_name
from relograph.configuration import describe_fields
from relograph.evaluation.experiment_report import filled
from relograph.serving.config import ServeConfig
from relograph.training.config import TrainConfig
from relograph.training.match_training import MatchTrainConfig
from relograph.training.presets import PRESETS

PAGES = [Path(__file__).with_name(name) for name in ("training.md", "serve.md")]


def settings_table(config: type) -> str:
    """Every setting, with what it is without a preset."""
    rows = [(f"`{field.path}`", field.type, f"`{field.default}`", field.doc) for field in describe_fields(config)]
    return table(("Setting", "Values", "Default", "What it does"), rows)


def presets_table() -> str:
    """Where presets differ from the defaults, or among each other."""
    default = {field.path: field.default for field in describe_fields(TrainConfig)}
    values = {name: {field.path: field.default for field in describe_fields(PRESETS[name])} for name in PRESETS}
    changed = [path for path in default if any(preset[path] != default[path] for preset in values.values())]
    rows = [
        (f"`{path}`", *(preset[path] if preset[path] != default[path] else "" for preset in values.values()))
        for path in changed
    ]
    return table(("Setting", *(f"`{name}`" for name in PRESETS)), rows)


def options_table() -> str:
    """Every option of `relograph serve`."""
    rows = [
        (
            f"`{option_name(field)}`",
            field.type.replace("str,str,...", "str, repeated"),
            f"`{field.default}`" if field.default else "",
            field.doc,
        )
        for field in describe_fields(ServeConfig)
        if field.path != "maps"
    ]
    return table(("Option", "Values", "Default", "What it does"), rows)


def table(titles: Sequence[str], rows: Sequence[Sequence[str | None]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines)


def written_anew(text: str) -> str:
    """The page with all tables as they should be."""
    tables = {
        "settings": lambda: settings_table(TrainConfig),
        "presets": presets_table,
        "match settings": lambda: settings_table(MatchTrainConfig),
        "serve options": options_table,
    }
    return filled(text, tables)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written_anew(page.read_text(encoding="utf-8")), encoding="utf-8")
