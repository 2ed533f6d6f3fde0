"""A place: which frames it is made of, what is told of its cameras, which references are near."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from evaluation.made_places import place_on_a_line
from relograph.errors import ConfigError, DatasetError
from relograph.evaluation.place import (
    overlap_with_references,
    place_of_scene,
    read_frame_list,
    references_by_pose,
)
from relograph.geometry import Camera
from relograph.localization import UnknownFocal
from relograph.localization.photos import expected_by_exif
from relograph.scenes.opening import open_scene

COLOR = "seq-01/frame-000000.color.png"


def test_frames_are_listed_with_or_without_the_ending_of_their_photo(seven_scenes_folder: Path, tmp_path: Path):
    scene = open_scene(seven_scenes_folder)
    (tmp_path / "map.txt").write_text("# the map\nseq-01/frame-000001\n\nseq-01/frame-000000.color.png\n")
    assert read_frame_list(tmp_path / "map.txt", scene) == ["seq-01/frame-000001.color.png", COLOR]


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (
            "seq-09/frame-000000\n",
            r"map.txt line 1: expected the name of a frame of kitchen, found 'seq-09/frame-000000'",
        ),
        ("\n# nothing\n", "expected names of frames, one a line, found none"),
        (f"seq-01/frame-000000\n{COLOR}\n", "expected every frame once, found .* twice"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_its_line(seven_scenes_folder, tmp_path, listed, complaint):
    (tmp_path / "map.txt").write_text(listed)
    with pytest.raises(DatasetError, match=complaint):
        read_frame_list(tmp_path / "map.txt", open_scene(seven_scenes_folder))


def place_with_focal(folder: Path, focal: str):
    return place_of_scene(open_scene(folder), [COLOR], ["seq-02/frame-000000.color.png"], focal)


def test_one_focal_length_is_that_of_all_cameras(seven_scenes_folder: Path):
    place = place_with_focal(seven_scenes_folder, "28.5")
    assert place.map.cameras == place.queries.cameras == (Camera.from_focal(32, 24, 28.5),)
    assert place.map.focal_known


def test_unknown_focal_lengths_of_a_scene_are_one_for_map_and_queries(seven_scenes_folder: Path):
    place = place_with_focal(seven_scenes_folder, "unknown")
    assert place.map.cameras == place.queries.cameras == (UnknownFocal(32, 24, 0),)
    assert not place.map.focal_known


def test_what_the_scene_says_holds_and_what_it_leaves_open_is_unknown(seven_scenes_folder: Path):
    assert place_with_focal(seven_scenes_folder, "scene").map.cameras == (UnknownFocal(32, 24, 0),)
    (seven_scenes_folder / "camera.txt").write_text("SIMPLE_PINHOLE 32 24 27 16 12\n")
    assert place_with_focal(seven_scenes_folder, "scene").map.cameras == (Camera.from_focal(32, 24, 27.0),)


def test_what_exif_alone_tells_is_expected_and_not_believed(seven_scenes_folder: Path):
    scene = open_scene(seven_scenes_folder)
    camera = Camera.from_focal(32, 24, 27.0)
    by_exif = replace(scene, frames=tuple(replace(frame, camera=camera, camera_by_exif=True) for frame in scene))
    place = place_of_scene(by_exif, [COLOR], ["seq-02/frame-000000.color.png"], "scene")
    assert place.map.cameras == place.queries.cameras == (expected_by_exif(camera),)
    assert not place.map.focal_known


def test_a_file_gives_focal_lengths_by_name(seven_scenes_folder: Path, tmp_path: Path):
    (tmp_path / "focal.txt").write_text(f"{COLOR} 26.5\n")
    place = place_with_focal(seven_scenes_folder, str(tmp_path / "focal.txt"))
    assert place.map.cameras == (Camera.from_focal(32, 24, 26.5),)
    assert place.queries.cameras == (UnknownFocal(32, 24, 0),)


@pytest.mark.parametrize("focal", ["-3", "nan", "0", "no-such-file"])
def test_what_is_no_focal_length_is_refused(seven_scenes_folder: Path, focal: str):
    with pytest.raises(ConfigError, match=f"--focal: expected a number of pixels, .* found '{focal}'"):
        place_with_focal(seven_scenes_folder, focal)


def test_the_fingerprint_tells_splits_of_one_scene_apart(seven_scenes_folder: Path):
    scene, query = open_scene(seven_scenes_folder), "seq-02/frame-000000.color.png"
    one = place_of_scene(scene, [COLOR], [query], "unknown")
    other = place_of_scene(scene, ["seq-01/frame-000001.color.png"], [query], "unknown")
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == place_of_scene(scene, [COLOR], [query], "25").fingerprint


def test_a_query_that_is_in_the_map_is_refused_as_it_would_find_itself(seven_scenes_folder: Path):
    query = "seq-02/frame-000000.color.png"
    with pytest.raises(
        DatasetError, match=r"kitchen: expected queries .* found 1 of 2 there, first 'seq-01/frame-000000"
    ):
        place_of_scene(
            open_scene(seven_scenes_folder), ["seq-01/frame-000001.color.png", COLOR], [query, COLOR], "scene"
        )


def test_references_by_pose_are_the_nearest_with_a_stride_and_none_where_the_map_ends():
    place = place_on_a_line([0.0, 1.0, 2.0, 3.0, 4.0], [2.2])
    assert references_by_pose(place, 3, 1).tolist() == [[2, 3, 1]]  # 0.2, 0.8 and 1.2 m away
    assert references_by_pose(place, 3, 2).tolist() == [[2, 1, 0]]  # of 2, 3, 1, 4, 0
    assert references_by_pose(place, 4, 2).tolist() == [[2, 3, 1, 4]]  # a smaller stride rather than too few
    assert references_by_pose(place, 6, 1).tolist() == [[2, 3, 1, 4, 0, -1]]


def test_every_nth_query_is_kept_with_its_own_photo_and_overlap():
    place = place_on_a_line([0.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    place = place.every_nth_query(2, first=1)
    assert place.queries.names == ("query-1", "query-3", "query-5")
    assert_close(place.queries.T_world_cam.t[:, 0], torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64))
    assert [int(place.queries.read(row)[0, 0, 0]) for row in range(3)] == [201, 203, 205]
    with pytest.raises(ConfigError, match="--queries: expected a step of 1 or more"):
        place.every_nth_query(3, first=9)


def test_overlap_is_that_of_the_best_reference_as_the_place_knows_it():
    place = replace(
        place_on_a_line([0.0, 1.0, 2.0], [0.0, 9.0]), overlap=torch.tensor([[0.9, 0.4, 0.1], [0.0, 0.2, 0.3]])
    )
    references = torch.tensor([[1, 2], [1, -1]])
    assert_close(overlap_with_references(place, references), torch.tensor([0.4, 0.2]))


def test_overlap_is_judged_by_poses_where_the_place_does_not_know():
    place = place_on_a_line([0.0, 3.0], [0.0, 0.5])
    same, beside = overlap_with_references(place, torch.tensor([[0, 1], [0, 1]])).tolist()
    assert same == pytest.approx(1.0)
    assert 0.5 < beside < same
