"""Textures: their families, photographs among them, and how the ray caster reads them."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from torch import Generator, Tensor

from relograph.errors import DatasetError
from relograph.rooms import textures
from relograph.rooms.raycast import sample_texture
from relograph.rooms.textures import (
    FAMILY_SIZES,
    MAKERS,
    NUM_MIP_LEVELS,
    TEXTURE_SIZE,
    TextureAtlas,
    fingerprint_of_photographs,
    make_atlas,
    pack_texels,
    read_photographs,
)

CPU = torch.device("cpu")
REPEATING = ("leaves", "wood", "tiles", "fabric", "plaster", "stone", "gradient")
"""The others are whole pictures, which nothing repeats."""


@pytest.fixture
def one_of_each(monkeypatch) -> None:
    """An atlas with one texture a family instead of a hundred: the same code in a fraction of the time."""
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))


def sample(tiles_rgb: Tensor, u: list[float], v: list[float], texels_per_pixel: float, texture: int = 0) -> np.ndarray:
    """Linear colours [n, 3] at u, v."""
    at_u, at_v = torch.tensor([u]), torch.tensor([v])
    color = sample_texture(
        pack_texels(tiles_rgb),
        len(tiles_rgb),
        torch.full(at_u.shape, texture, dtype=torch.int32),
        at_u,
        at_v,
        torch.full(at_u.shape, texels_per_pixel),
    )
    return torch.stack(color, dim=-1)[0].numpy()


def random_tiles(count: int) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, TEXTURE_SIZE, TEXTURE_SIZE), dtype=np.uint8))


def texel_rgb(atlas: TextureAtlas, texture: int, level: int) -> np.ndarray:
    """One texture of an atlas at one mip level, [size, size, 3]."""
    size = TEXTURE_SIZE >> level
    start = sum((256 >> finer) ** 2 * atlas.num_textures for finer in range(level)) + texture * size * size
    packed = atlas.texels[start : start + size * size].reshape(size, size).numpy()
    return np.stack([packed & 255, (packed >> 8) & 255, (packed >> 16) & 255], axis=-1)


# Families


def test_every_family_has_a_maker_and_a_number():
    assert set(MAKERS) == set(FAMILY_SIZES)
    assert min(FAMILY_SIZES.values()) >= 4


@pytest.mark.parametrize("family", MAKERS)
def test_colours_stay_within_zero_and_one(family):
    # 8-bit colours wrap around: what is a little brighter than white would come out black.
    for seed in range(2):
        tile = MAKERS[family](Generator().manual_seed(seed), CPU)
        assert tile.shape == (3, TEXTURE_SIZE, TEXTURE_SIZE)
        assert tile.min() >= 0
        assert tile.max() <= 1


@pytest.mark.parametrize("family", MAKERS)
def test_a_seed_means_one_texture(family):
    tiles = [MAKERS[family](Generator().manual_seed(seed), CPU) for seed in (1, 1, 2)]
    assert torch.equal(tiles[0], tiles[1])
    assert (tiles[0] - tiles[2]).abs().mean() > 0.002


@pytest.mark.parametrize("family", REPEATING)
def test_a_repeating_texture_has_no_seam(family):
    for seed in range(2):
        tile = MAKERS[family](Generator().manual_seed(seed), CPU)
        for axis, other in ((1, 2), (2, 1)):
            step = (tile - tile.roll(1, dims=axis)).abs().mean(dim=(0, other))  # from each row to the one before it
            assert step[0] <= step[1:].max() + 1e-6, f"the first row is {step[0]} from the last, {step[1:].max()} usual"


def test_walls_show_little_and_leaves_show_much():
    def contrast(family: str) -> float:
        tiles = [MAKERS[family](Generator().manual_seed(seed), CPU) for seed in range(4)]
        return float(torch.stack(tiles).std(dim=(2, 3)).mean())

    assert contrast("plaster") < 0.03
    assert contrast("leaves") > 0.1


def test_an_atlas_is_the_same_for_the_same_seed_only(one_of_each):
    first, again, other = (make_atlas(seed) for seed in (3, 3, 4))
    assert torch.equal(first.texels, again.texels)
    assert (first.texels != other.texels).float().mean() > 0.5


def test_an_atlas_has_every_family_in_its_own_range(one_of_each):
    atlas = make_atlas(0)
    members = [texture for family in FAMILY_SIZES for texture in atlas.range_by_family[family]]
    assert members == list(range(atlas.num_textures))


def test_an_atlas_holds_what_the_makers_made(one_of_each):
    # The first family's first texture, from the seed that make_atlas derives for it.
    tile = MAKERS["leaves"](Generator().manual_seed(0), CPU)
    assert_allclose(texel_rgb(make_atlas(0), 0, 0), (255 * tile).round().permute(1, 2, 0))


# Photographs


def save_photo(path: Path, color: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def test_photographs_become_a_family_in_the_order_of_their_names(tmp_path, one_of_each):
    save_photo(tmp_path / "b.png", (10, 20, 30))
    save_photo(tmp_path / "a.jpg", (200, 100, 50))
    save_photo(tmp_path / "deep/c.PNG", (0, 255, 0))
    (tmp_path / "notes.txt").write_text("no photo")
    atlas = make_atlas(0, photographs=tmp_path)
    photos = atlas.range_by_family["photo"]
    assert len(photos) == 3
    assert photos.stop == atlas.num_textures
    colors = [texel_rgb(atlas, texture, 0).mean(axis=(0, 1)) for texture in photos]
    assert_allclose(colors, [[200, 100, 50], [10, 20, 30], [0, 255, 0]], atol=2)


def test_a_photograph_is_cut_to_its_middle_and_not_squeezed(tmp_path):
    pixels = np.zeros((50, 100, 3), dtype=np.uint8)
    pixels[:, :25] = [255, 0, 0]  # the quarters that fall off
    pixels[:, 75:] = [255, 0, 0]
    pixels[:, 25:75] = [0, 0, 255]
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    (tile,) = read_photographs(tmp_path)
    assert_allclose(tile.float().mean(dim=(1, 2)), [0, 0, 255], atol=4)


def test_a_sixteen_bit_photograph_keeps_its_brightness(tmp_path):
    Image.fromarray(np.full((32, 32), 100 * 256, dtype=np.uint16)).save(tmp_path / "deep.png")
    (tile,) = read_photographs(tmp_path)
    assert_allclose(tile, 100, atol=1)


def test_a_photograph_that_is_stored_turned_comes_upright(tmp_path):
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:16] = 255  # white above, as stored
    exif = Image.Exif()
    exif[0x0112] = 3  # turned upside down
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    (tile,) = read_photographs(tmp_path)
    assert tile[:, :100].float().mean() < 5
    assert tile[:, 156:].float().mean() > 250


def damaged_photo(kind: str) -> bytes:
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, format="PNG")
    return {
        "empty": b"",
        "text": b"this is not a photograph",
        "truncated": file.getvalue()[:2000],
        "header alone": file.getvalue()[:40],
    }[kind]


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "header alone"])
def test_a_damaged_photograph_is_named_in_one_line(tmp_path, kind):
    save_photo(tmp_path / "good.png", (1, 2, 3))
    (tmp_path / "bad.png").write_bytes(damaged_photo(kind))
    with pytest.raises(DatasetError, match=r"bad\.png") as caught:
        read_photographs(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["empty", "missing", "file.txt"])
def test_a_folder_without_photographs_is_one_clear_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(DatasetError, match=name) as caught:
        read_photographs(tmp_path / name)
    assert "\n" not in str(caught.value)


# Mip levels and sampling


def test_each_mip_level_is_the_mean_of_four_texels_of_the_finer_one():
    tiles_rgb = random_tiles(2)
    atlas = TextureAtlas(pack_texels(tiles_rgb), 2, {})
    fine = tiles_rgb[1].permute(1, 2, 0).numpy().astype(float)
    for level in range(NUM_MIP_LEVELS):
        size = TEXTURE_SIZE >> level
        means = fine.reshape(size, TEXTURE_SIZE // size, size, TEXTURE_SIZE // size, 3).mean(axis=(1, 3))
        assert_allclose(texel_rgb(atlas, 1, level), means, atol=0.51)


@pytest.mark.parametrize("texels_per_pixel", [0.1, 1.0, 1.7, 6.0, 40.0, 256.0, 1e6])
def test_a_plain_texture_has_its_colour_at_every_distance(texels_per_pixel):
    tiles_rgb = torch.tensor([40, 120, 200], dtype=torch.uint8)[None, :, None, None].expand(1, -1, 256, 256)
    colors = sample(tiles_rgb, [0.0, 0.37, -5.2, 1e3], [0.9, -0.01, 2.5, 0.5], texels_per_pixel)
    assert_allclose(colors, np.tile((np.array([40, 120, 200]) / 255) ** 2, (4, 1)), rtol=1e-4)


def test_from_afar_a_texture_is_its_mean():
    tiles_rgb = random_tiles(3)
    mean = tiles_rgb[2].float().mean(dim=(1, 2)).numpy() / 255
    colors = sample(tiles_rgb, [0.1, 0.6], [0.3, 0.8], 5000.0, texture=2)
    assert_allclose(colors, np.tile(mean**2, (2, 1)), atol=0.006)  # half an 8-bit level, squared


def test_close_by_a_texel_has_its_own_colour_at_its_middle_and_a_mix_between():
    tiles_rgb = random_tiles(2)
    row, column = 17, 201
    here, beside = (tiles_rgb[1, :, row, c].double().numpy() for c in (column, column + 1))
    v = (row + 0.5) / TEXTURE_SIZE
    colors = sample(tiles_rgb, [(column + 0.5) / TEXTURE_SIZE, (column + 0.75) / TEXTURE_SIZE], [v, v], 0.5, texture=1)
    assert_allclose(colors, [(here / 255) ** 2, ((0.75 * here + 0.25 * beside) / 255) ** 2], atol=1e-4)


def test_textures_repeat_with_every_period():
    tiles_rgb = random_tiles(1)
    colors = sample(tiles_rgb, [0.25, 1.25, -2.75], [0.5, -0.5, 7.5], 1.0)
    assert_allclose(colors[1:], colors[[0, 0]], atol=1e-4)


def test_between_two_levels_colours_are_mixed():
    tiles_rgb = random_tiles(1)
    root = [np.sqrt(sample(tiles_rgb, [0.3], [0.6], footprint)) for footprint in (2.0, 2**1.5, 4.0)]
    assert_allclose(root[1], (root[0] + root[2]) / 2, atol=1e-4)


def test_sets_are_further_textures_of_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textures, "FAMILY_SIZES", {"plaster": 2, "gradient": 1})
    once, thrice = make_atlas(3), make_atlas(3, sets=3)
    assert thrice.range_by_family == {"plaster": range(6), "gradient": range(6, 9)}
    level_0 = thrice.texels[: 9 * 256 * 256].reshape(9, -1)
    assert len({tuple(row[:64].tolist()) for row in level_0}) == 9
    assert torch.equal(level_0[:2], once.texels[: 2 * 256 * 256].reshape(2, -1))


def test_photographs_are_known_by_their_content(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (4, 4), (200, 10, 10)).save(tmp_path / folder / "photo.png")
    of_a, of_b = (fingerprint_of_photographs(tmp_path / folder) for folder in ("a", "b"))
    Image.new("RGB", (4, 4), (10, 200, 10)).save(tmp_path / "b" / "other.png")
    assert of_a == of_b != fingerprint_of_photographs(tmp_path / "b")
    archive = tmp_path / "photos.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(tmp_path / "a" / "photo.png", "photo.png")
    assert fingerprint_of_photographs(archive) == hashlib.sha256(archive.read_bytes()).hexdigest()
