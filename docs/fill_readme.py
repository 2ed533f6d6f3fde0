"""Fills the README's figures from the files under results/: `python docs/fill_readme.py`. A test compares the two."""

import json
from pathlib import Path

from relograph.rooms.benchmark import benchmark_table

REPOSITORY = Path(__file__).parents[1]
BEGIN, END = "<!-- rooms-benchmark begins -->", "<!-- rooms-benchmark ends -->"


def rooms_block() -> str:
    """What stands between the two markers."""
    parts = []
    for path in sorted((REPOSITORY / "results").glob("rooms_*.json"), reverse=True):
        document = json.loads(path.read_text(encoding="utf-8"))
        metadata = document["metadata"]
        parts.append(
            f"{metadata['device_name']}, {metadata['num_cores']} cores, torch {metadata['torch']}, commit "
            f"{metadata['git_commit'][:7]}: `{metadata['command']}`\n\n{benchmark_table(document['results'])}"
        )
    return "\n\n" + "\n\n".join(parts) + "\n\n"


def filled(text: str) -> str:
    """The README with its block written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{rooms_block()}{END}{after}"


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
