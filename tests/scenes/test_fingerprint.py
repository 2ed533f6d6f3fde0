"""A fingerprint tells one data set from another, wherever it lies."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from tiny_scenes import write_photo

from relograph.geometry import Pose
from relograph.scenes import Scene, open_scene, scene_fingerprint


def test_it_is_a_sha256_that_stays_the_same(seven_scenes_folder: Path):
    fingerprint = scene_fingerprint(open_scene(seven_scenes_folder))
    assert len(bytes.fromhex(fingerprint)) == 32
    assert scene_fingerprint(open_scene(seven_scenes_folder)) == fingerprint


def test_a_scene_that_is_moved_and_renamed_keeps_it(seven_scenes_folder: Path, tmp_path: Path):
    before = scene_fingerprint(open_scene(seven_scenes_folder))
    moved = shutil.copytree(seven_scenes_folder, tmp_path / "elsewhere" / "pantry")
    assert scene_fingerprint(open_scene(moved)) == before


def test_a_name_a_split_a_pose_a_size_or_the_order_changes_it(seven_scenes_folder: Path):
    scene = open_scene(seven_scenes_folder)
    first = scene.frames[0]
    write_photo(seven_scenes_folder / "larger.png", size_wh=(64, 48))
    a_hair_aside = Pose(first.T_world_cam.R, torch.nextafter(first.T_world_cam.t, torch.ones(3, dtype=torch.float64)))

    def with_first(**changes: object) -> Scene:
        return replace(scene, frames=(replace(first, **changes), *scene.frames[1:]))

    scenes = [
        scene,
        with_first(name="seq-01/another.png"),
        with_first(split="test"),
        with_first(split=None),
        with_first(T_world_cam=a_hair_aside),
        with_first(image=replace(first.image, path=seven_scenes_folder / "larger.png")),
        replace(scene, frames=scene.frames[::-1]),
        replace(scene, frames=scene.frames[1:]),
        replace(scene, frames=()),
    ]
    assert len({scene_fingerprint(scene) for scene in scenes}) == len(scenes)


def test_no_photo_is_read(seven_scenes_folder: Path):
    scene = open_scene(seven_scenes_folder)
    before = scene_fingerprint(scene)
    path = scene.frames[0].image.path
    path.write_bytes(bytes(path.stat().st_size))
    assert scene_fingerprint(scene) == before
