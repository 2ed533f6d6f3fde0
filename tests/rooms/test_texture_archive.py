"""Photographs in a zip file, as `tools/pack_textures.py` packs them: their order, their parts, and damaged archives."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from relograph.errors import DatasetError
from relograph.rooms import textures
from relograph.rooms.seven_rooms import sha256_of_files
from relograph.rooms.textures import (
    FAMILY_SIZES,
    TILES_AT_A_TIME,
    make_atlas,
    pack_texels,
    photograph_files,
    read_photographs,
)


def photo(color: tuple[int, int, int], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), color).save(file, format=kind)
    return file.getvalue()


RED, GREEN, BLUE = (200, 0, 0), (0, 200, 0), (0, 0, 200)
PACKED = {
    "sources.json": b'{"images": []}',
    "train/0002.png": photo(GREEN),
    "train/0001.jpg": photo(RED, "JPEG"),
    "test/0001.png": photo(BLUE),
}


def save_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def mean_colors(tiles_rgb: torch.Tensor) -> np.ndarray:
    return tiles_rgb.float().mean(dim=(2, 3)).numpy()


def test_a_zip_and_the_folder_that_was_zipped_are_the_same_photographs(tmp_path):
    files = {**PACKED, "b.png": photo((1, 2, 3)), "a/z.png": photo((4, 5, 6)), "a b/y.png": photo((7, 8, 9))}
    for name, data in files.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    archive = save_zip(tmp_path / "photos.zip", files)
    assert torch.equal(read_photographs(archive), read_photographs(tmp_path / "folder"))
    assert sha256_of_files(photograph_files(archive)) == sha256_of_files(photograph_files(tmp_path / "folder"))


@pytest.mark.parametrize(
    ("split", "colors"), [("train", [RED, GREEN]), ("test", [BLUE]), (None, [BLUE, RED, GREEN])], ids=str
)
def test_only_the_part_that_is_asked_for_is_read(tmp_path, split, colors):
    tiles_rgb = read_photographs(save_zip(tmp_path / "photos.zip", PACKED), split)
    assert_allclose(mean_colors(tiles_rgb), colors, atol=2)


def test_a_folder_has_parts_too(tmp_path):
    for name in ("train/a.png", "test/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(photo(RED if "train" in name else BLUE))
    assert_allclose(mean_colors(read_photographs(tmp_path, "test")), [BLUE], atol=2)


def test_an_atlas_holds_the_photographs_of_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(FAMILY_SIZES, 1))
    atlas = make_atlas(0, photographs=save_zip(tmp_path / "photos.zip", PACKED), split="train")
    photos = atlas.range_by_family["photo"]
    assert len(photos) == 2
    last_level = atlas.texels[-atlas.num_textures :]  # one texel a texture
    packed = last_level[photos.start : photos.stop].numpy()
    assert_allclose(np.stack([packed & 255, packed >> 8 & 255, packed >> 16 & 255], axis=-1), [RED, GREEN], atol=2)


def test_a_part_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DatasetError, match="validation/, found none"):
        read_photographs(save_zip(tmp_path / "photos.zip", PACKED), "validation")


def test_nothing_of_a_zip_reaches_the_disk(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = save_zip(inside / "photos.zip", {"../outside.png": photo(RED), f"{tmp_path}/absolute.png": photo(BLUE)})
    assert len(read_photographs(archive)) == 2
    assert sorted(tmp_path.rglob("*")) == [inside, archive]


def damaged_archive(path: Path, kind: str) -> Path:
    if kind == "a photo that is text":
        return save_zip(path, {**PACKED, "train/bad.png": b"this is not a photo"})
    if kind == "a name of two lines":
        return save_zip(path, {**PACKED, "train/bad\nline.png": photo(RED)})
    if kind == "no photos":
        return save_zip(path, {"sources.json": b"{}"})
    data = bytearray(save_zip(path, {"bad.png": photo(RED)}).read_bytes())
    if kind == "truncated":
        data = data[: len(data) // 2]
    elif kind == "a flipped bit":
        data[60] ^= 16
    elif kind == "no zip":
        data = bytearray(b"not a zip file at all")
    elif kind == "encrypted":
        for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            data[data.index(header) + flags] |= 1
    elif kind == "a bomb":  # it claims that its photo has 4 GB
        start = data.index(b"PK\x01\x02") + 24
        data[start : start + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "a photo that is text",
        "a name of two lines",
        "no photos",
        "truncated",
        "a flipped bit",
        "no zip",
        "encrypted",
        "a bomb",
    ],
)
def test_a_damaged_archive_is_one_clear_line(tmp_path, kind):
    with pytest.raises(DatasetError, match=r"photos\.zip") as caught:
        read_photographs(damaged_archive(tmp_path / "photos.zip", kind))
    assert "\n" not in str(caught.value)


def test_mip_levels_do_not_depend_on_how_many_textures_there_are():
    rng = np.random.default_rng(0)
    count = TILES_AT_A_TIME + 3
    small = torch.from_numpy(rng.integers(0, 256, (count, 3, 1, 1), dtype=np.uint8))
    tiles_rgb = small.expand(-1, -1, 256, 256).contiguous()
    texels = pack_texels(tiles_rgb)
    color = (small.int() << torch.tensor([0, 8, 16]).reshape(1, 3, 1, 1)).sum(dim=1).flatten()
    expected = torch.cat([color.repeat_interleave((256 >> level) ** 2) for level in range(9)])
    assert torch.equal(texels, expected.to(texels.dtype))
