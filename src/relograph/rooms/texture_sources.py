"""Where the photographs of an archive of textures come from, and under which licences: `tools/pack_textures.py`."""

import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relograph.errors import DatasetError

SOURCES_FILE = "sources.json"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class SourcePackage:
    """A Debian package, and what of it is in the archive."""

    name: str
    version: str
    images_by_licence: Mapping[str, int]
    images_by_split: Mapping[str, int]


def read_texture_sources(archive: Path) -> list[SourcePackage]:
    """The packages that the images of an archive are from, by name."""
    try:
        with zipfile.ZipFile(archive) as file:
            images = json.loads(file.read(SOURCES_FILE))["images"]
        of_package: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for image in images:
            split, _, _ = image["name"].partition("/")
            of_package.setdefault((image["package"], image["version"]), []).append((image["licence"], split))
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{archive}: expected an archive of textures with its {SOURCES_FILE}, found: {error}. Pack one: "
            "python tools/pack_textures.py"
        ) from error
    return [
        SourcePackage(name, version, Counter(licence for licence, _ in taken), Counter(split for _, split in taken))
        for (name, version), taken in sorted(of_package.items())
    ]


def sources_table(packages: Sequence[SourcePackage]) -> str:
    """The packages in Markdown: version, licences, number of images in each part."""
    lines = [
        "| Debian package | Version | Licences (images) | Train | Validation | Test |",
        "| :--- | :--- | :--- | ---: | ---: | ---: |",
    ]
    for package in packages:
        licences = ", ".join(f"{name} ({count})" for name, count in sorted(package.images_by_licence.items()))
        counts = " | ".join(str(package.images_by_split.get(split, 0)) for split in SPLITS)
        lines.append(f"| {package.name} | {package.version} | {licences} | {counts} |")
    totals = (sum(package.images_by_split.get(split, 0) for package in packages) for split in SPLITS)
    return "\n".join([*lines, f"| all | | | {' | '.join(map(str, totals))} |"])
