"""The archive of free textures: which licences are taken, which pictures, and what the archive says of them."""

import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from relograph.rooms.textures import read_photographs


@pytest.fixture(scope="module")
def packing() -> ModuleType:
    """The script as a module."""
    script = Path(__file__).parents[2] / "tools" / "pack_textures.py"
    spec = importlib.util.spec_from_file_location("pack_textures", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pack_textures"] = module
    spec.loader.exec_module(module)
    return module


COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2010, the team
License: GPL-2+

Files: skies/philo/*
Copyright: Philo
License: Philo-License

Files: walls/brick.png
  walls/tile?.png
Copyright:
 Ann
 Ben
License: CC-BY-SA-3.0 or Philo-License

Files: Kator/*
Copyright: Kator
License: CC0

License: CC0
 The text of the licence.
"""


def test_the_paragraph_that_names_a_file_gives_its_licence(packing):
    expected = {
        "usr/share/game/floor.png": ("GPL-2.0-or-later", "2010, the team"),
        "usr/share/game/skies/philo/noon.png": None,
        "usr/share/game/data.pk3/walls/brick.png": ("CC-BY-SA-3.0", "Ann; Ben"),
        "usr/share/game/walls/tile7.png": ("CC-BY-SA-3.0", "Ann; Ben"),
        "usr/share/game/walls/tile77.png": ("GPL-2.0-or-later", "2010, the team"),
        "usr/share/game/roofs/brick.png": ("GPL-2.0-or-later", "2010, the team"),  # another one of that name
        "usr/share/lib/Kator.sh3f/kator/chair.png": ("CC0-1.0", "Kator"),
    }
    grants = packing.grants_of(list(expected), packing.parse_dep5(COPYRIGHT))
    found = {path: (grants[path].licence, grants[path].copyright) if path in grants else None for path in expected}
    assert found == expected


@pytest.mark.parametrize("pattern", ["16.04/art.png", "data/base/pics/*", "data/base/pics/art.p?g"])
def test_a_file_is_recognized_where_the_package_installs_it_elsewhere(packing, pattern):
    paragraphs = packing.parse_dep5(COPYRIGHT.replace("walls/brick.png", pattern))
    grants = packing.grants_of(["usr/share/game/base/pics/art.png"], paragraphs)
    assert grants["usr/share/game/base/pics/art.png"].licence == "CC-BY-SA-3.0"


def test_a_file_that_no_paragraph_names_is_left_out(packing):
    paragraphs = packing.parse_dep5(COPYRIGHT.replace("Files: *", "Files: src/*"))
    assert packing.grants_of(["usr/share/game/floor.png"], paragraphs) == {}


def test_a_file_whose_paragraphs_disagree_is_left_out(packing):
    paragraphs = packing.parse_dep5(COPYRIGHT + "\nFiles: skies/philo/dawn.png\nCopyright: Cat\nLicense: CC0\n")
    assert packing.grants_of(["usr/share/game/skies/philo/dawn.png"], paragraphs) == {}


@pytest.mark.parametrize(
    ("expression", "licence"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("Expat", "MIT"),
        ("MPL or LGPL-2.1", "LGPL-2.1-only"),
        ("GPL-3+ with StaticLinking exception", "GPL-3.0-or-later"),
        ("CC-BY-3.0 and GPL-2", "CC-BY-3.0 and GPL-2.0-only"),
        ("CC-BY-3.0 and custom", None),
        ("CC-BY-NC-3.0", None),
        ("CC-BY-ND-3.0", None),
        ("permissive", None),
        ("", None),
    ],
)
def test_only_free_licences_are_accepted(packing, expression, licence):
    assert packing.accepted_licence(expression) == licence


def stones(seed: int) -> np.ndarray:
    """A picture with something to see everywhere, at every scale."""
    rng = np.random.default_rng(seed)
    total = np.zeros((256, 256, 3))
    for cells in (4, 16, 64, 256):
        total += np.kron(rng.uniform(-1, 1, (cells, cells, 3)), np.ones((256 // cells, 256 // cells, 1)))
    return (128 + 30 * total).clip(0, 255).astype(np.uint8)


def test_a_picture_with_something_to_see_has_no_fault(packing):
    assert packing.fault(stones(0)) is None


@pytest.mark.parametrize("kind", ["normal map", "dark", "flat", "plain", "empty"])
def test_what_is_no_surface_is_recognized(packing, kind):
    tile = stones(0)
    rng = np.random.default_rng(1)
    if kind == "normal map":
        tile = (np.array([128, 128, 240]) + (tile.astype(float) - 128) * 0.1).astype(np.uint8)
    elif kind == "dark":
        tile = tile // 8
    elif kind == "flat":  # a drawing on white
        tile[:, :160] = 255
    elif kind == "plain":  # noise and nothing else
        tile = (128 + rng.uniform(-40, 40, tile.shape)).astype(np.uint8)
    elif kind == "empty":  # a smooth sky above a strip of land
        tile[:180] = np.linspace(150, 220, 180)[:, None, None]
    assert packing.fault(tile) == kind


def test_a_picture_is_found_again_when_it_is_scaled_or_dimmed_and_no_other_is(packing):
    picture = Image.fromarray(stones(0))
    first = packing.perceptual_hash(picture)
    dimmed = picture.resize((90, 90)).point(lambda value: value // 2 + 20)
    assert (first ^ packing.perceptual_hash(dimmed)).bit_count() <= packing.HASH_DISTANCE
    for seed in range(1, 20):
        other = packing.perceptual_hash(Image.fromarray(stones(seed)))
        assert (first ^ other).bit_count() > packing.HASH_DISTANCE


@pytest.fixture
def package(tmp_path) -> Path:
    """An unpacked package with twenty textures, one of them not free, and a photograph in an archive."""
    root = tmp_path / "unpacked"
    walls = root / "usr/share/game/walls"
    walls.mkdir(parents=True)
    for number in range(20):
        Image.fromarray(stones(number)).save(walls / f"{'abcdefghijklmnopqrst'[number]}wall.png")
    Image.fromarray(stones(0)).resize((512, 512)).save(walls / "copy.png")
    Image.fromarray(stones(50)).save(walls / "brick_norm.png")
    (walls / "damaged.png").write_bytes(b"\x89PNG nothing")
    sky = root / "usr/share/game/skies/philo"
    sky.mkdir(parents=True)
    Image.fromarray(stones(60)).save(sky / "wall.png")
    photo = io.BytesIO()
    Image.fromarray(np.kron(stones(70), np.ones((4, 6, 1))).astype(np.uint8)).save(photo, format="PNG")
    with zipfile.ZipFile(root / "usr/share/game/photos.pk3", "w") as archive:
        archive.writestr("walls/photo.png", photo.getvalue())
    (root / "usr/share/doc/game").mkdir(parents=True)
    (root / "usr/share/doc/game/copyright").write_text(COPYRIGHT)
    return root


def chosen(packing: ModuleType, root: Path, **options: object) -> list:
    choice = packing.Choice()
    packing.choose_from(packing.Source("game", r"/game/", 100, **options), root, "1.0-1", choice)
    return choice.tiles


def test_each_good_picture_is_taken_once(packing, package):
    files = [tile.file for tile in chosen(packing, package)]
    assert len(files) == len(set(files)) == 21
    assert sum(file.endswith(("awall.png", "copy.png")) for file in files) == 1
    assert not any("norm" in file or "damaged" in file or "philo" in file for file in files)


def test_all_crops_of_a_photograph_are_in_one_part(packing, package):
    crops = [tile for tile in chosen(packing, package, crops=4) if tile.file.endswith("photo.png")]
    assert len({packing.size_of(tile.box) for tile in crops}) >= 2  # several scales
    assert len({tile.split for tile in crops}) == 1


@pytest.mark.parametrize("name", ["pjrock6", "PJrock17_alt", "pjrockbroke", "23_pjrock", "pjrock"])
def test_a_texture_is_known_by_the_first_word_of_its_name(packing, name):
    assert packing.family_of(f"stone/{name}.jpg") == "pjrock"


def test_a_texture_without_a_word_in_its_name_is_known_by_its_path(packing):
    assert packing.family_of("Dune/2560x1600.jpg") == "dune/2560x1600.jpg"


def test_variants_of_a_texture_are_in_one_part_and_others_are_not_all_there(packing):
    def split(file: str) -> str:
        return packing.Tile(stones(0), "game", "1.0-1", file, "", (0, 0, 256, 256), packing.Grant("MIT", "Ann")).split

    variants = ("a/blocks11b.jpg", "a/blocks17_k.jpg", "b/Blocks20.png", "b/blocks11bbroke.jpg", "c/blocks_alt.tga")
    assert len({split(file) for file in variants}) == 1
    others = [f"a/{first}{second}wall1.jpg" for first in "abcdefghij" for second in "abcdefghij"]
    assert 65 < sum(split(file) == "train" for file in others) < 95  # eight of ten


def test_prose_grants_a_licence_only_while_its_words_are_there(packing, package):
    (package / "usr/share/doc/game/copyright").write_text("You may use this\nunder the GPL.")
    granted = chosen(packing, package, licence="GPL-2.0-or-later", evidence="use this under the GPL")
    assert {tile.grant.licence for tile in granted} == {"GPL-2.0-or-later"}
    assert chosen(packing, package, licence="GPL-2.0-or-later", evidence="public domain") == []


def test_the_archive_fits_the_budget_and_names_every_source(packing, package, tmp_path):
    tiles = chosen(packing, package)
    budget = 600_000
    data, quality = packing.pack(tiles, budget)
    assert len(data) <= budget
    assert packing.pack(tiles, budget)[0] == data
    assert len(packing.as_zip(packing.members(tiles, quality + 1))) > budget
    path = tmp_path / "textures.zip"
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        sources = json.loads(archive.read("sources.json"))
        names = set(archive.namelist()) - {"sources.json"}
    assert {image["name"] for image in sources["images"]} == names
    assert all((package / image["file"]).exists() or ".pk3/" in image["file"] for image in sources["images"])
    assert {image["licence"] for image in sources["images"]} == {"GPL-2.0-or-later"}
    parts = {split: sum(name.startswith(f"{split}/") for name in names) for split in packing.SPLITS}
    assert sum(parts.values()) == 21
    assert parts["train"] > parts["validation"] + parts["test"]
    assert len(read_photographs(path, "train")) == parts["train"]
    row = f"| game | 1.0-1 | GPL-2.0-or-later (21) | {parts['train']} | {parts['validation']} | {parts['test']} |"
    assert row in packing.licence_table(path)


def test_a_budget_that_is_too_small_is_one_clear_line(packing, package):
    with pytest.raises(packing.PackingError, match=r"Raise --budget-mb") as caught:
        packing.pack(chosen(packing, package), 10_000)
    assert "\n" not in str(caught.value)


def test_half_of_an_archive_has_every_second_image_in_its_part_with_its_source(packing, package, tmp_path):
    whole, half = tmp_path / "whole.zip", tmp_path / "half.zip"
    whole.write_bytes(packing.pack(chosen(packing, package), 1_000_000)[0])
    half.write_bytes(packing.half_of(whole))
    images, kept = (packing.read_sources(path)["images"] for path in (whole, half))
    assert [image["file"] for image in kept] == [image["file"] for image in images][1::2]
    for image, one in zip(images[1::2], kept, strict=True):
        assert image["name"].split("/")[0] == one["name"].split("/")[0]
        with zipfile.ZipFile(whole) as first, zipfile.ZipFile(half) as second:
            assert first.read(image["name"]) == second.read(one["name"])
    assert len(read_photographs(half, "train")) == sum(one["name"].startswith("train/") for one in kept)
