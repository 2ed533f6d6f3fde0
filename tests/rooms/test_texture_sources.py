"""Where textures come from: every package of an archive with its licences, and nothing that is no archive."""

import zipfile
from pathlib import Path

import pytest

from evaluation.made_weights import make_archive
from relograph.errors import DatasetError
from relograph.rooms.texture_sources import read_texture_sources, sources_table


def test_every_package_is_told_with_its_licences_and_parts(tmp_path: Path):
    another, nice = read_texture_sources(make_archive(tmp_path / "textures.zip"))
    assert (another.name, another.version, dict(another.images_by_licence)) == ("another-game", "2:3", {"MIT": 1})
    assert dict(nice.images_by_licence) == {"CC0-1.0": 2, "GPL-2.0-or-later": 1}
    assert dict(nice.images_by_split) == {"train": 2, "validation": 1}
    lines = sources_table([another, nice]).splitlines()
    assert "| nice-textures | 1.0-1 | CC0-1.0 (2), GPL-2.0-or-later (1) | 2 | 1 | 0 |" in lines
    assert lines[-1] == "| all | | | 2 | 1 | 1 |"


def test_what_is_no_archive_of_textures_is_one_line(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as file:
        file.writestr("train/1.jpg", b"")
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as file:
        file.writestr("sources.json", '{"images": [3]}')
    (tmp_path / "text.zip").write_text("text")
    for name in ("bare.zip", "odd.zip", "text.zip", "none.zip"):
        with pytest.raises(DatasetError, match=r"expected an archive of textures with its sources\.json") as caught:
            read_texture_sources(tmp_path / name)
        assert "\n" not in str(caught.value)
