"""Packs photographs and game textures with free licences into one archive of 256-pixel JPEGs, for textured rooms.

    python tools/pack_textures.py textures/textures.zip --budget-mb 15      # needs apt-get and dpkg-deb (Debian 12)
    python tools/pack_textures.py textures/textures.zip --half half.zip     # every second image of it, half the size
    python tools/pack_textures.py textures/textures.zip --licences          # a Markdown table of what is inside
    python tools/pack_textures.py textures/textures.zip --sheet sheet.jpg   # all of it at a glance

The images come from Debian packages, which are downloaded and unpacked in a temporary folder; nothing is installed. A
file is used only if its package's copyright file puts it under a licence of ACCEPTED_LICENCES: where the copyright file
is machine-readable (DEP-5), by the paragraphs that name the file; where it is prose, by the licence that SOURCES
states, as long as the words that grant it are still found there. What is unclear is left out.

The archive holds `train/`, `validation/` and `test/`. All crops of one source file are in the same part, and so are all
files whose names begin with the same word, whatever their package: `blocks11.jpg` and `blocks11_broke.jpg` are variants
of one texture, and a texture of the test part is never seen in training. `sources.json` says for every image where it
comes from: package, version, file, crop, licence, copyright. The same packages give the same archive, byte for byte.
"""

import argparse
import collections
import functools
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, UnidentifiedImageError

from relograph.errors import DatasetError
from relograph.rooms.texture_sources import read_texture_sources, sources_table

SIZE_PX = 256
SMALLEST_SIDE_PX = 200
SPLITS = ("train", "validation", "test")
LARGEST_PACKAGE_MB = 700
HASH_DISTANCE = 12
"""Two images whose 63-bit perceptual hashes differ in this many bits or fewer are taken for one; strangers differ in
about 31."""
QUALITIES = range(60, 93)
"""JPEG qualities to choose from."""

ACCEPTED_LICENCES = {
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-2.0": "CC-BY-2.0",
    "cc-by-3": "CC-BY-3.0",
    "cc-by-3.0": "CC-BY-3.0",
    "cc-by-3.0-usa": "CC-BY-3.0-US",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-sa-2.0": "CC-BY-SA-2.0",
    "cc-by-sa-3": "CC-BY-SA-3.0",
    "cc-by-sa-3.0": "CC-BY-SA-3.0",
    "cc-by-sa-3.0+": "CC-BY-SA-3.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0",
    "cc0": "CC0-1.0",
    "cc0-1.0": "CC0-1.0",
    "expat": "MIT",
    "free-art-license": "LAL-1.3",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only",
    "lgpl-3+": "LGPL-3.0-or-later",
    "mit": "MIT",
    "public-domain": "public domain",
    "public-domain-wikipedia": "public domain",
    "zlib": "Zlib",
}
"""Free licences by the short names that Debian's copyright files use, in lower case, and the names we print (SPDX)."""

NO_COLOURS = re.compile(
    r"(^|[_\-. ])(nm|n|nor|norm|nrm|normal|normals|normalmap|bump|bumpmap|gloss|spec|specular|sm|sc|gm|glow|hm|height|"
    r"displacement|roughness|metalness|luma|pants|shirt|mask|colormask|alpha|ao|ibl|reflect|local|lm|lightmap|depth)"
    r"[0-9]*([_\-. ]|$)|normal\.|_norm|bump\.|dudv"
)
"""File names (without folders, lower case) of what is no picture: normal, height, gloss and other maps."""
NO_SURFACES = re.compile(
    r"(?<!beru)sky|skies|cloud|flare|explo|smoke|spark|particle|sprite|font|icon|logo|cursor|button|/gui|hud[_/]|menu|splash|screenshot|sshot|"
    r"levelshot|preview|thumb|radar|minimap|caustic|shadow|blood|gore|flesh|meat|skull|gib[s_.]|corpse|flame|lava|magma|slime|"
    r"portal|telep|jump|launch|spawn|decal|glow|light[0-9_.s]|lamp|wheel|tire|skin[._]|hair|/help/|loading|banner"
)
"""Paths (lower case) of what does not belong on the walls of a room."""


@dataclass(frozen=True)
class Source:
    """A package and what of it is used."""

    package: str
    take: str
    """Regular expression that is searched in the lower-case paths of files to look at."""
    limit: int
    """Most images from this package."""
    crops: int = 1
    """Most crops of one file, at several scales. 1: the file is a texture that is used whole."""
    leave: str | None = None
    """Regular expression of paths to leave out, besides those that never fit: chosen by looking at what came out."""
    licence: str | None = None
    """The package's licence where its copyright file is prose."""
    evidence: str = ""
    """Words of the copyright file that grant `licence`; without them the package is left out."""


GPL_2_PLUS_WORDS = "General Public License as published by the Free Software Foundation; either version 2"

SOURCES = (
    # Photographs and paintings: crops at several scales.
    Source("krank", r"/level-[0-9]+\.jpg", 60, crops=2, licence="public domain", evidence="License: Public Domain"),
    Source("mate-backgrounds", r"/nature/|elephants\.jpg", 40, crops=4),
    Source("plasma-workspace-wallpapers", r"/images/(2560x1600|3200x2000|3840x2160|5120x2880)", 45, crops=3),
    Source("lomiri-wallpapers-16.04", r"backgrounds/.*jpg", 50, crops=4),
    Source("lomiri-wallpapers-20.04", r"backgrounds/.*jpg", 12, crops=4),
    Source("lxqt-themes", r"wallpapers/", 12, crops=3, leave="_arch|not-windows"),
    Source("palapeli-data", r"collection/.*jpg", 20, crops=5),
    Source("gnome-backgrounds", r"-l\.webp", 10, crops=2, licence="GPL-2.0-or-later", evidence=GPL_2_PLUS_WORDS),
    Source("wordpress-theme-twentytwentyone", r"images/.*\.jpg", 32, crops=4),
    Source("freecol", r"monarch/|/ui/(doi|landing|military|political|religious|trade|exploration)", 20),
    Source(
        "wesnoth-1.16-data",
        r"/images/(story|maps)/",
        45,
        crops=3,
        licence="GPL-2.0-or-later",
        evidence="GNU General Public License version 2 or at your option any later version",
    ),
    Source("propaganda-debian", r"\.jpg", 12, licence="GPL-2.0-or-later", evidence=GPL_2_PLUS_WORDS),
    # Textures of homes, and of games that play in and around buildings.
    Source("sweethome3d", r"resources/textures/", 30),
    Source(
        "sweethome3d-furniture",
        r"\.sh3f/",
        110,
        leave="reallusion|euro|mannequin|phone|head|dog|cow|hand|robe|shoe|camera|ps4|texture\\.|clothes|flipper|bike|"
        "thermometer|fishes|hamburger|fireplace|crate|leaves",
    ),
    Source(
        "ufoai-textures",
        r"textures/tex_(?!anim|common|lights|ufo|alienb|vehicles|terrain)",
        230,
        leave="helipad|billiard|clothes|route",
    ),
    Source(
        "supertuxkart-data",
        r"/data/(textures|library|tracks)/",
        90,
        leave="trail|flag|_ibl|cocktail|engine|fruit|minigolf",
    ),
    Source("berusky2-data", r"/textures/", 55),
    Source(
        "nexuiz-textures",
        r"textures/",
        45,
        leave="/water|/tutorial|flag|/wf",
        licence="GPL-2.0-or-later",
        evidence=GPL_2_PLUS_WORDS,
    ),
    Source("openarena-081-textures", r"textures/", 45, leave="clown|proto2|skies|liquids|organics|sfx"),
    Source("openarena-oacmp1", r"textures/", 15, leave="_sfx|akom"),
    Source("cube2-data", r"packages/", 35, leave="/base/|virtual|license|cyber|/models/"),
    Source(
        "torcs-data",
        r"/tracks/|/data/textures/",
        50,
        leave="background|/tr-|asphalt|truck|oil|water|torcs[0-9]|pass[0-9]|pits|curb|improve",
    ),
    Source("castle-game-engine-doc", r"textures/", 20, leave="test_"),
    Source("extremetuxracer-data", r"/terrains/", 16),
    Source("megaglest-data", r"/tilesets/.*(stone|grass|road|ground|surface)", 14),
    Source("scorched3d-data", r"/textures/landscape/", 12),
    Source("foobillardplus-data", r"/data/(corr|floor|carpet|wood|wall|ceil|price|board|graff|table|cabinet)", 10),
    Source("neverball-common", r"textures/mtrl/", 8),
)


class PackingError(Exception):
    """What the user can do something about, in one line."""


# Licences


@dataclass(frozen=True)
class Paragraph:
    """What a DEP-5 copyright file says of some files of the source package."""

    patterns: tuple[str, ...]
    licence: str
    """As written: short names, perhaps several with "or" and "and"."""
    copyright: str


@dataclass(frozen=True)
class Grant:
    """The licence of one file."""

    licence: str
    copyright: str


def parse_dep5(text: str) -> list[Paragraph]:
    """The `Files` paragraphs of a machine-readable copyright file; none where it is prose.

    Example:
        >>> text = "Format: https://www.debian.org/\\n\\nFiles: a/* b.png\\nCopyright: 2008, Ann\\nLicense: GPL-2+\\n"
        >>> parse_dep5(text)
        [Paragraph(patterns=('a/*', 'b.png'), licence='GPL-2+', copyright='2008, Ann')]
    """
    if "Format:" not in text[:200]:
        return []
    paragraphs = []
    for block in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, list[str]] = {}
        name = ""
        for line in block.splitlines():
            if line[:1] in (" ", "\t"):
                fields.setdefault(name, []).append(line.strip())
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = [value.strip()]
        if "files" in fields and "license" in fields:
            paragraphs.append(
                Paragraph(
                    patterns=tuple(" ".join(fields["files"]).split()),
                    licence=fields["license"][0],
                    copyright="; ".join(filter(None, fields.get("copyright", []))),
                )
            )
    return paragraphs


def accepted_licence(expression: str) -> str | None:
    """The licence to use a file under, by its printed name, or None where no accepted one is offered.

    Example:
        >>> accepted_licence("LGPL-2.1 or MPL"), accepted_licence("GPL-2+ and Philo-License")
        ('LGPL-2.1-only', None)
    """
    for alternative in re.split(r",?\s+or\s+", expression.strip()):
        # An exception ("with ...") only adds permissions.
        parts = [re.sub(r"\s+with\s.*", "", part) for part in re.split(r",?\s+and\s+", alternative)]
        names = [ACCEPTED_LICENCES.get(part.lower()) for part in parts]
        if all(names):
            return " and ".join(dict.fromkeys(filter(None, names)))
    return None


def tails(pattern: str) -> list[str]:
    """A DEP-5 pattern and its ends that are still telling: names of files, or of two folders before a wildcard.

    Patterns speak of the source package, whose folders may be installed elsewhere.

    Example:
        >>> tails("data/base/pics/art.png")
        ['data/base/pics/art.png', 'base/pics/art.png', 'pics/art.png', 'art.png']
        >>> tails("data/base/pics/*")
        ['data/base/pics/*', 'base/pics/*']
    """
    parts = pattern.removeprefix("./").split("/")
    wild = [number for number, part in enumerate(parts) if "*" in part or "?" in part]
    last = wild[0] - 2 if wild else len(parts) - 1
    return ["/".join(parts[first:]) for first in range(max(last, 0) + 1)]


def grants_of(paths: Sequence[str], paragraphs: Sequence[Paragraph]) -> dict[str, Grant]:
    """The licences of files of an unpacked package; a file whose licence is not accepted or not clear has none."""
    by_end: dict[str, list[str]] = {}
    for path in paths:
        # A file in an archive may be named as if the archive were a folder.
        for name in dict.fromkeys([path, re.sub(r"\.(sh3f|pk3|zip|jar)/", "/", path)]):
            parts = name.split("/")
            for first in range(len(parts)):
                by_end.setdefault("/".join(parts[first:]), []).append(path)
    special: dict[str, list[Paragraph]] = {}
    for paragraph in paragraphs:
        for pattern in set(paragraph.patterns) - {"*", "debian/*"}:
            # The longest end that fits any file decides which ones are meant.
            fitting = next(filter(None, (files_that_fit(tail, by_end) for tail in tails(pattern))), set[str]())
            for path in fitting:
                special.setdefault(path, []).append(paragraph)
    default = [paragraph for paragraph in paragraphs if "*" in paragraph.patterns][-1:]
    grants = {}
    for path in paths:
        candidates = special.get(path, default)
        licences = [accepted_licence(paragraph.licence) for paragraph in candidates]
        # The last paragraph counts, but a file for which any of them asks for something else is unclear.
        if licences and all(licences):
            grants[path] = Grant(str(licences[-1]), candidates[-1].copyright)
    return grants


def files_that_fit(pattern: str, by_end: Mapping[str, Sequence[str]]) -> set[str]:
    """The files that have an end which a DEP-5 pattern fits; its wildcards fit slashes too."""
    if "*" not in pattern and "?" not in pattern:
        return set(by_end.get(pattern, ()))
    expression = re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))
    return {path for end, paths in by_end.items() if expression.fullmatch(end) for path in paths}


# Packages


@dataclass(frozen=True)
class SourceFile:
    """A picture in an unpacked package, whose bytes are read when they are needed."""

    path: str
    """Inside the package; members of an archive as if it were a folder."""
    on_disk: Path
    member: str | None = None
    """Name inside the archive `on_disk`; None where `on_disk` is the picture itself."""

    def read(self) -> bytes:
        """The picture's file."""
        return self.on_disk.read_bytes() if self.member is None else opened(self.on_disk).read(self.member)


@functools.lru_cache(maxsize=4)
def opened(archive: Path) -> zipfile.ZipFile:
    """The archive, kept open: its directory may list thousands of files."""
    return zipfile.ZipFile(archive)


def run(command: Sequence[str], folder: Path | None = None) -> str:
    """The standard output of a command that must succeed."""
    try:
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise PackingError(f"{command[0]}: expected this program of Debian, found none. Run on Debian 12.") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise PackingError(
            f"{' '.join(command)}: expected it to succeed, found: {last}. Run apt-get update."
        ) from error
    return done.stdout


def fetch(package: str, folder: Path, downloads: Path | None) -> Path | None:
    """The package's .deb file, from `downloads` where it is there; None where it is too large."""
    known = sorted(downloads.glob(f"{package}_*.deb")) if downloads else []
    if known:
        size_mb = known[-1].stat().st_size / 1e6
    else:
        size_mb = int(re.findall(r"^Size: (\d+)", run(["apt-cache", "show", package]), re.MULTILINE)[0]) / 1e6
    if size_mb > LARGEST_PACKAGE_MB:
        return None
    if known:
        return known[-1]
    run(["apt-get", "download", package], folder)
    return next(folder.glob(f"{package}_*.deb"))


IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".tga", ".dds", ".rgb", ".bmp"}
ARCHIVE_SUFFIXES = {".pk3", ".zip", ".jar", ".sh3f"}


def pictures_in(root: Path) -> Iterator[SourceFile]:
    """Every picture of an unpacked package, also those in its archives."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        if path.suffix.lower() in IMAGE_SUFFIXES:
            yield SourceFile(name, path)
        elif path.suffix.lower() in ARCHIVE_SUFFIXES and zipfile.is_zipfile(path):
            for member in sorted(opened(path).namelist()):
                if Path(member).suffix.lower() in IMAGE_SUFFIXES:
                    yield SourceFile(f"{name}/{member}", path, member)


# Pixels

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3]."""


def decode(data: bytes) -> Image.Image | None:
    """The picture in RGB, or None where it is damaged, partly transparent, too small or too long."""
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP", "TGA", "DDS", "SGI", "BMP"))
        if min(image.size) < SMALLEST_SIDE_PX or max(image.size) > 4 * min(image.size):
            return None
        rgba = image.convert("RGBA")
        if float(np.mean(np.asarray(rgba.getchannel("A")) < 128)) > 0.01:
            return None
        return rgba.convert("RGB")
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, NotImplementedError):
        return None


def perceptual_hash(image: Image.Image) -> int:
    """63 bits that say how the brightness is spread: which low frequencies are above their median."""
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    k, n = np.arange(8)[:, None], np.arange(32)[None]
    cosines = np.cos(np.pi * k * (2 * n + 1) / 64)
    low = (cosines @ grey @ cosines.T).flatten()[1:]
    return int("".join("1" if bit else "0" for bit in low > np.median(low)), 2)


def fault(tile: Pixels) -> str | None:
    """Why a tile is no good surface, in a word, or None where it is one."""
    rgb = tile.astype(np.float32)
    red, green, blue = (rgb[..., channel] for channel in range(3))
    grey = rgb.mean(axis=-1)
    if blue.mean() > 170 and blue.mean() - max(red.mean(), green.mean()) > 60 and abs(red.mean() - green.mean()) < 30:
        return "normal map"
    if grey.mean() < 32 or np.percentile(grey, 90) < 55:
        return "dark"
    shades = tile.astype(np.int64) >> 2
    counts = np.bincount((shades[..., 0] << 12 | shades[..., 1] << 6 | shades[..., 2]).ravel())
    if counts.max() > 0.2 * grey.size or np.count_nonzero(counts) < 40:
        return "flat"
    if grey.reshape(32, 8, 32, 8).mean(axis=(1, 3)).std() < 4.0:
        return "plain"
    blocks = grey.reshape(16, SIZE_PX // 16, 16, SIZE_PX // 16).transpose(0, 2, 1, 3).reshape(256, -1)
    if np.mean(blocks.std(axis=1) > 3.0) < 0.6:
        return "empty"
    fine = np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean()
    if fine < 4.0:
        return "smooth"
    return None


def detail(grey: npt.NDArray[np.float32], box: tuple[float, float, float, float]) -> float:
    """How much there is to see in a box (left, top, right, bottom as shares of the picture)."""
    height, width = grey.shape
    part = grey[int(box[1] * height) : int(box[3] * height), int(box[0] * width) : int(box[2] * width)]
    # The poorest quarter counts: half a crop of sky is half a crop lost.
    quarters = [q for half in np.array_split(part, 2, axis=0) for q in np.array_split(half, 2, axis=1)]
    return min(float(np.abs(np.diff(q, axis=0)).mean() + np.abs(np.diff(q, axis=1)).mean()) for q in quarters)


Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels."""


def crop_boxes(image: Image.Image, count: int, rng: np.random.Generator) -> list[Box]:
    """Up to `count` squares to cut from a photograph, at the scales 1, 1/2 and 1/4, rich ones first."""
    width, height = image.size
    side = min(width, height)
    small = image.convert("L").resize((max(64, 160 * width // side), max(64, 160 * height // side)))
    grey = np.asarray(small, dtype=np.float32)
    boxes: list[Box] = []
    for scale, wanted in ((1.0, 1 + (max(width, height) >= 1.5 * side)), (0.5, 3), (0.25, 2)):
        crop = int(side * scale)
        if crop < SMALLEST_SIDE_PX:
            break
        tries = []
        for _ in range(24):
            left, top = int(rng.integers(width - crop + 1)), int(rng.integers(height - crop + 1))
            box = (left, top, left + crop, top + crop)
            shares = (left / width, top / height, box[2] / width, box[3] / height)
            tries.append((detail(grey, shares), box))
        chosen: list[Box] = []
        for _, box in sorted(tries, reverse=True):
            apart = all(max(abs(box[0] - other[0]), abs(box[1] - other[1])) >= 0.7 * crop for other in chosen)
            if apart and len(chosen) < wanted:
                chosen.append(box)
        boxes += chosen
    # One of each scale before the second of any, so that a small count has all scales.
    order = sorted(range(len(boxes)), key=lambda i: sum(size_of(boxes[j]) == size_of(boxes[i]) for j in range(i)))
    return [boxes[i] for i in order][:count]


def size_of(box: Box) -> int:
    """The side of a square box, in pixels."""
    return box[2] - box[0]


def texture_boxes(image: Image.Image) -> list[Box]:
    """The squares of a texture that is used whole: one, or the first and the last where it is long."""
    width, height = image.size
    side = min(width, height)
    boxes = [(0, 0, side, side)]
    if max(width, height) >= 2 * side:
        boxes.append((width - side, height - side, width, height))
    return boxes


def cut(image: Image.Image, box: Box) -> Image.Image:
    """The box, scaled to a tile."""
    return image.resize((SIZE_PX, SIZE_PX), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)


# Choosing


@dataclass(frozen=True)
class Tile:
    """An image of the archive and where it comes from."""

    pixels: Pixels
    package: str
    version: str
    file: str
    file_sha256: str
    box: Box
    grant: Grant

    @property
    def split(self) -> str:
        """The part of the archive: of ten families of textures eight for training, one each for the others."""
        digest = hashlib.sha256(family_of(self.file).encode()).hexdigest()
        return ("test", "validation", *["train"] * 8)[int(digest, 16) % 10]


def family_of(file: str) -> str:
    """What variants of one texture have in common: the first word of the file's name, or the path where it has none."""
    word = re.search(r"[a-z]{3,}", PurePosixPath(file.lower()).stem)
    return re.sub(r"(?<=[a-z]{3})(alt|broken?)$", "", word[0]) if word else file.lower()


@dataclass
class Choice:
    """What was taken so far, and what was not and why."""

    tiles: list[Tile] = field(default_factory=list)
    file_hashes: list[int] = field(default_factory=list)
    tile_hashes: list[int] = field(default_factory=list)
    left_out: collections.Counter[str] = field(default_factory=collections.Counter)

    def add_file(self, source: Source, version: str, file: SourceFile, grant: Grant, room: int) -> None:
        """Take up to `room` tiles of a picture, if it is a good one that is not there yet."""
        data = file.read()
        image = decode(data)
        if image is None:
            self.left_out["small, transparent or damaged"] += 1
            return
        if source.crops == 1 and is_grey(image):
            self.left_out["grey"] += 1
            return
        whole = perceptual_hash(image)
        if any((whole ^ other).bit_count() <= HASH_DISTANCE for other in self.file_hashes):
            self.left_out["near duplicate"] += 1
            return
        sha256 = hashlib.sha256(data).hexdigest()
        rng = np.random.default_rng(int(sha256[:16], 16))
        boxes = texture_boxes(image) if source.crops == 1 else crop_boxes(image, source.crops, rng)
        taken = 0
        for box in boxes:
            tile = cut(image, box)
            pixels, tile_hash = np.asarray(tile), perceptual_hash(tile)
            reason = fault(pixels)
            if reason is None and any((tile_hash ^ other).bit_count() <= HASH_DISTANCE for other in self.tile_hashes):
                reason = "near duplicate"
            if reason is not None:
                self.left_out[reason] += 1
            elif taken < room:
                self.tiles.append(Tile(pixels, source.package, version, file.path, sha256, box, grant))
                self.tile_hashes.append(tile_hash)
                taken += 1
        if taken:
            self.file_hashes.append(whole)


def is_grey(image: Image.Image) -> bool:
    """Whether a picture has no colours at all: among textures, that is a height or gloss map under a plain name."""
    small = np.asarray(image.resize((32, 32)), dtype=np.int16)
    return bool(np.ptp(small, axis=-1).max() <= 2)


def fits(source: Source, path: str) -> bool:
    """Whether a file's path speaks for it."""
    path = path.lower()
    if not re.search(source.take, path) or NO_SURFACES.search("/" + path) or NO_COLOURS.search(Path(path).stem + "."):
        return False
    return source.leave is None or not re.search(source.leave, path)


def choose_from(source: Source, root: Path, version: str, choice: Choice) -> None:
    """Add the best of one unpacked package to the choice."""
    copyright_text = (root / "usr/share/doc" / source.package / "copyright").read_text(errors="replace")
    paragraphs = parse_dep5(copyright_text)
    if source.licence is not None and source.evidence not in " ".join(copyright_text.split()):
        choice.left_out["licence not found any more"] += 1
        return
    before = len(choice.tiles)
    pictures = list(pictures_in(root))
    if source.licence is None:
        grants = grants_of([picture.path for picture in pictures], paragraphs)
    else:
        grants = {picture.path: Grant(source.licence, "") for picture in pictures}
    # In an order that mixes the package's folders, and is the same everywhere.
    for picture in sorted(pictures, key=lambda picture: hashlib.sha256(picture.path.encode()).digest()):
        room = source.limit - (len(choice.tiles) - before)
        if room <= 0:
            break
        if not fits(source, picture.path):
            continue
        if picture.path in grants:
            choice.add_file(source, version, picture, grants[picture.path], room)
        else:
            choice.left_out["licence"] += 1


def choose_all(sources: Sequence[Source], downloads: Path | None) -> list[Tile]:
    """The tiles of all packages, one after the other."""
    choice = Choice()
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="pack-textures-") as folder:
            deb = fetch(source.package, Path(folder), downloads)
            if deb is None:
                say(f"{source.package}: larger than {LARGEST_PACKAGE_MB} MB, skipped")
                continue
            root = Path(folder) / "unpacked"
            run(["dpkg-deb", "-x", str(deb), str(root)])
            version = run(["dpkg-deb", "-f", str(deb), "Version"]).strip()
            before = len(choice.tiles)
            choice.left_out.clear()
            choose_from(source, root, version, choice)
        reasons = ", ".join(f"{count} {reason}" for reason, count in choice.left_out.most_common())
        say(f"{source.package} {version}: {len(choice.tiles) - before} images; left out: {reasons or 'nothing'}")
    return choice.tiles


# The archive


def as_jpeg(pixels: Pixels, quality: int) -> bytes:
    """A JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG", quality=quality, optimize=True)
    return file.getvalue()


def members(tiles: Sequence[Tile], quality: int) -> dict[str, bytes]:
    """The files of the archive by name, `sources.json` first."""
    numbers = dict.fromkeys(SPLITS, 0)
    copyrights = sorted({tile.grant.copyright for tile in tiles})
    images, jpegs = [], {}
    for tile in tiles:
        numbers[tile.split] += 1
        name = f"{tile.split}/{numbers[tile.split]:04d}.jpg"
        jpegs[name] = as_jpeg(tile.pixels, quality)
        images.append(
            {
                "name": name,
                "package": tile.package,
                "version": tile.version,
                "file": tile.file,
                "file_sha256": tile.file_sha256,
                "box_left_top_right_bottom": tile.box,
                "licence": tile.grant.licence,
                "copyright": copyrights.index(tile.grant.copyright),
            }
        )
    sources = {
        "about": "256-pixel crops of pictures from Debian packages. copyright: index into copyrights; where that is "
        "empty, see /usr/share/doc/PACKAGE/copyright of the package.",
        "jpeg_quality": quality,
        "copyrights": copyrights,
        "images": images,
    }
    return {"sources.json": json.dumps(sources, indent=1, ensure_ascii=False).encode(), **jpegs}


def as_zip(files: dict[str, bytes]) -> bytes:
    """A zip file that holds nothing of the time or place where it was made."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            packing = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, compress_type=packing)
    return file.getvalue()


def pack(tiles: Sequence[Tile], budget_bytes: int) -> tuple[bytes, int]:
    """The archive at the highest JPEG quality that fits into the budget, and that quality."""
    low, high = 0, len(QUALITIES)  # QUALITIES[:low] fit, QUALITIES[high:] do not
    best = b""
    while low < high:
        middle = (low + high) // 2
        data = as_zip(members(tiles, QUALITIES[middle]))
        if len(data) <= budget_bytes:
            low, best = middle + 1, data
        else:
            high = middle
    if not best:
        raise PackingError(
            f"expected {len(tiles)} images to fit into {budget_bytes / 1e6:g} MB, found more at JPEG quality "
            f"{QUALITIES[0]}. Raise --budget-mb or lower the limits in SOURCES."
        )
    return best, QUALITIES[low - 1]


def half_of(archive: Path) -> bytes:
    """An archive of every second image of another, for a training whose data must be small: less of all there is."""
    sources = read_sources(archive)
    numbers = dict.fromkeys(SPLITS, 0)
    images, jpegs = [], {}
    with zipfile.ZipFile(archive) as file:
        for image in sources["images"][1::2]:
            split, _, _ = image["name"].partition("/")
            numbers[split] += 1
            name = f"{split}/{numbers[split]:04d}.jpg"
            images.append({**image, "name": name})
            jpegs[name] = file.read(image["name"])
    return as_zip({"sources.json": json.dumps({**sources, "images": images}, indent=1).encode(), **jpegs})


def read_sources(archive: Path) -> dict[str, Any]:
    """What an archive says about its images."""
    try:
        with zipfile.ZipFile(archive) as file:
            sources: dict[str, Any] = json.loads(file.read("sources.json"))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise PackingError(
            f"{archive}: expected an archive that this script packed, found: {error}. Pack it."
        ) from error
    return sources


def licence_table(archive: Path) -> str:
    """A Markdown table of the packages in an archive: version, licences, number of images in each part."""
    return sources_table(read_texture_sources(archive))


def write_sheet(archive: Path, sheet: Path, columns: int = 24, cell_px: int = 96) -> None:
    """A picture of all images in the order of their packages, each with its package's first letters."""
    records = read_sources(archive)["images"]
    rows = -(-len(records) // columns)
    picture = Image.new("RGB", (columns * cell_px, rows * cell_px))
    draw = ImageDraw.Draw(picture)
    with zipfile.ZipFile(archive) as file:
        for number, record in enumerate(records):
            at = (number % columns * cell_px, number // columns * cell_px)
            tile = Image.open(io.BytesIO(file.read(record["name"])))
            picture.paste(tile.resize((cell_px, cell_px), Image.Resampling.LANCZOS), at)
            draw.text(at, f"{record['package'][:8]} {number}", fill="white", stroke_width=1, stroke_fill="black")
    picture.save(sheet)


def say(line: str) -> None:
    """One line for the user."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Parse, pack or show, and turn errors into one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, metavar="OUTPUT.zip", help="the archive to write, or to show")
    parser.add_argument("--budget-mb", type=float, default=15.0, help="largest size of the archive (%(default)s)")
    parser.add_argument("--downloads", type=Path, help="folder with .deb files that need not be downloaded again")
    parser.add_argument("--half", type=Path, metavar="HALF.zip", help="write every second image of the archive there")
    parser.add_argument("--licences", action="store_true", help="print a Markdown table of what the archive holds")
    parser.add_argument("--sheet", type=Path, metavar="FILE.jpg", help="draw all images of the archive")
    arguments = parser.parse_args()
    try:
        if arguments.licences:
            say(licence_table(arguments.archive))
        elif arguments.sheet:
            write_sheet(arguments.archive, arguments.sheet)
        elif arguments.half:
            arguments.half.write_bytes(half_of(arguments.archive))
        else:
            tiles = choose_all(SOURCES, arguments.downloads)
            data, quality = pack(tiles, int(arguments.budget_mb * 1e6))
            arguments.archive.parent.mkdir(parents=True, exist_ok=True)
            arguments.archive.write_bytes(data)
            say(f"{arguments.archive}: {len(tiles)} images, {len(data) / 1e6:.1f} MB, JPEG quality {quality}")
    except (PackingError, DatasetError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
