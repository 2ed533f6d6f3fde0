"""A map of an older schema is brought up to date in one step, and what held for it holds for every map made of it.

`version_1` was written by the relograph that made maps of schema version 1: a scene of unknown scale, one of whose
three photos was removed.
"""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from made_maps import made_map, no_network, photos

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.maps import Map, Similarity, sqlite_store
from relograph.maps.exporting import export_map
from relograph.scenes import convert, open_scene

pytestmark = pytest.mark.usefixtures("generated")

VERSION_1 = Path(__file__).parent / "version_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    shutil.copytree(VERSION_1 / "shards", folder / "shards")
    db = sqlite3.connect(folder / "map.sqlite")
    db.executescript((VERSION_1 / "map.sql").read_text())
    db.close()
    return folder


def version_of(folder: Path) -> int:
    db = sqlite3.connect(folder / "map.sqlite")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return version


def test_a_map_of_version_1_is_opened_verified_and_goes_on(old: Path):
    some = Map.open(old, network=no_network())
    assert version_of(old) == len(sqlite_store.MIGRATIONS) > 1
    assert [frame.name for frame in some] == ["0.png", "2.png"]
    assert some["2.png"].cam_center_world == (0.2, 0.0, 1 / 3)
    assert not some.settings.scale_is_known
    assert some.verify().is_whole
    assert [change.kind for change in some.changes()] == ["create", "add", "remove"]
    some.add(photos(2))
    assert len(some) == 4
    assert some.verify().is_whole


def test_a_migration_that_fails_leaves_the_old_map(old: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(db: object) -> None:
        raise sqlite3.OperationalError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, "MIGRATIONS", (*sqlite_store.MIGRATIONS, fail))
        with pytest.raises(DatasetError, match="out of luck"):
            Map.open(old)
    assert version_of(old) == 1
    assert not Map.open(old).settings.scale_is_known


def test_damaged_settings_are_not_made_good_by_a_migration(old: Path):
    db = sqlite3.connect(old / "map.sqlite", isolation_level=None)
    db.execute("UPDATE settings SET value = replace(value, 'float16', 'int8')")
    db.close()
    with pytest.raises(DatasetError, match="settings are not those that were written"):
        Map.open(old)


def test_an_unknown_scale_stays_unknown_whatever_is_made_of_the_map(old: Path, tmp_path: Path):
    some = Map.open(old, network=no_network())
    assert not some.split(tmp_path / "part", ["0.png"]).settings.scale_is_known
    some.compact(1)
    some.move(Similarity(Pose.identity(), scale=2.0))
    some.remove([])
    assert not some.settings.scale_is_known
    known = made_map(tmp_path / "known", 1, levels=())
    known.merge(some, Similarity(Pose.identity(), scale=2.0), prefix="scaled/")
    assert known.settings.scale_is_known  # the transform brought the other's unit to this one's
    known.merge(some, prefix="as-it-is/")
    assert not known.settings.scale_is_known
    some.merge(made_map(tmp_path / "other", 1, levels=()), prefix="other/")
    assert not some.settings.scale_is_known


def test_an_unknown_scale_goes_into_the_exported_scene_or_a_warning_says_that_it_is_lost(old: Path, tmp_path: Path):
    some = Map.open(old)
    assert export_map(some, tmp_path / "colmap", "colmap").warnings == ()
    again = open_scene(tmp_path / "colmap")
    assert not again.scale_is_known
    assert not convert(again, tmp_path / "copy", "colmap").scale_is_known
    assert not open_scene(tmp_path / "copy").scale_is_known
    (warning,) = export_map(some, tmp_path / "tum", "tum").warnings
    assert "will take the unit of poses for metres" in warning


def test_photos_of_unknown_scale_make_that_of_the_map_unknown(tmp_path: Path, seven_scenes_folder: Path):
    scene = open_scene(seven_scenes_folder)
    unknown = replace(scene, scale_is_known=False)
    assert Map.create(tmp_path / "known", scene, network=no_network()).settings.scale_is_known
    assert not Map.create(tmp_path / "unknown", unknown, network=no_network()).settings.scale_is_known
    some = made_map(tmp_path / "m", 1)
    some.add(unknown)
    assert not Map.open(tmp_path / "m").settings.scale_is_known
    assert "scale_is_known" not in some.changes()[-1].about
