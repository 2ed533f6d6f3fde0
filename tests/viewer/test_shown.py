"""What is shown of a map and of answers in it: groups by colour, captions, a slider, photos that are at hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from evaluation.made_predictions import predictions_with_errors
from localization.made_answers import T_WORLD_CAM, named, refused
from localization.small_networks import posed_photos, small_network
from relograph.errors import ConfigError, DatasetError
from relograph.evaluation import Predictions, write_predictions
from relograph.geometry import Pose
from relograph.localization.answer_files import NamedAnswer, PoseWording, SavedAnswer, read_answers, writing_answers
from relograph.maps import Map
from relograph.viewer.cameras_page import CameraGroup
from relograph.viewer.live import MANY, frustum_lines, nearest_to_ray
from relograph.viewer.shown import (
    Shown,
    answers_of_predictions,
    groups_of_answers,
    photos_in,
    read_any_answers,
    show_map,
)

LOST = math.inf


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Map:
    """A map of four photos, photo-0.png to photo-3.png."""
    return Map.create(tmp_path_factory.mktemp("maps") / "small.map", posed_photos(4), network=small_network())


def num_cameras(shown: Shown | object) -> dict[str, int]:
    groups = shown.groups  # type: ignore[attr-defined]
    return {group.name: int(np.isfinite(group.T_world_cam.t.numpy()).all(axis=1).sum()) for group in groups}


def test_answers_have_the_colour_of_their_errors():
    predictions = predictions_with_errors([0.01, 0.04, 0.07, 0.2, 0.2, 3.0, LOST], [1, 6, 4, 9, 11, 1, LOST])
    found = groups_of_answers(answers_of_predictions(predictions))
    # 4 cm are within 5 cm, but 6 degrees are not within 5; 20 cm with 11 degrees are beyond 10.
    assert num_cameras(found) == {
        "truth": 6,
        "truth, not localized": 1,
        "answers within 5 cm, 5°": 1,
        "answers within 10 cm, 5°": 1,
        "answers within 25 cm, 10°": 2,
        "answers beyond": 2,
    }
    assert len({group.color for group in found.groups}) == len(found.groups)
    assert found.captions[3] == "kitchen/seq-01/frame-000003.color.png: 0.200 m / 9.00°."
    assert found.captions[6] == "kitchen/seq-01/frame-000006.color.png: not localized. too few references"
    assert found.note[0] == "6 of 7 queries localized, median error 0.200 m / 6.00°."
    # Each answer is joined with its truth, whatever its colour.
    assert found.lines == ((0, 2), (0, 3), (0, 4), (0, 5))


def test_errors_in_a_map_of_unknown_scale_are_in_its_own_units():
    predictions = answers_of_predictions(predictions_with_errors([0.01, 0.2], [1, 9]))
    found = groups_of_answers(predictions, scale_is_known=False)
    assert num_cameras(found)["answers within 0.05 units, 5°"] == 1
    assert num_cameras(found)["answers within 0.25 units, 10°"] == 1
    assert found.captions[1].endswith(": 0.200 units / 9.00°.")
    assert found.note[0] == "2 of 2 queries localized, median error 0.105 units / 5.00°."


def test_answers_without_truth_have_the_colour_of_how_sure_they_are():
    answers = [SavedAnswer(str(sure), T_WORLD_CAM, "", sure) for sure in (0.95, 0.9, 0.6, 0.3)]
    found = groups_of_answers([*answers, SavedAnswer("lost", None, "Nothing matches.", 0.1)])
    assert num_cameras(found) == {
        "answers, 90% sure or more": 2,
        "answers, 50% to 90% sure": 1,
        "answers, below 50%": 1,
    }
    assert found.captions[-1] == "lost: not localized (10% sure). Nothing matches."
    assert "Where the others are is not known: the file has no true poses." in found.note


def test_a_map_alone_has_a_slider_along_its_photos(opened: Map):
    shown = show_map(opened)
    assert shown.title == "small.map"  # and not the folders that it is in
    assert num_cameras(shown) == {"map": 4}
    assert shown.slider is not None
    assert list(shown.slider.captions) == [f"photo-{i}.png" for i in range(4)]
    assert shown.note == "4 photos in the map."
    (group,) = shown.groups
    assert_allclose(group.T_world_cam.t, [photo.T_world_cam.t.tolist() for photo in posed_photos(4)])
    assert group.frames is not None
    assert group.frames[2].read_image().shape == (240, 320, 3)  # as the network saw it


def test_references_of_answers_are_a_group_of_their_own_and_go_with_the_slider(opened: Map):
    answers = [
        SavedAnswer("a.jpg", T_WORLD_CAM, "", 0.9, ("photo-2.png", "photo-0.png")),
        SavedAnswer("b.jpg", None, "Nothing matches.", 0.1, ("photo-2.png", "gone.png")),
    ]
    shown = show_map(opened, answers)
    assert num_cameras(shown)["map"] == 2
    assert num_cameras(shown)["references"] == 2
    assert shown.slider is not None
    assert shown.groups[shown.slider.related_group].captions == ["photo-0.png", "photo-2.png"]
    assert shown.slider.related == [[1, 0], [1]]
    assert "1 references of these answers are not in the map any more." in shown.note
    assert "Photos of 2 queries are not at hand; --photos says where they are." in shown.note


def test_a_page_holds_so_many_photos_and_says_what_it_leaves_out(opened: Map, tmp_path: Path):
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (32, 24)).save(tmp_path / name)
    answers = [SavedAnswer(name, T_WORLD_CAM, "", 0.9, ("photo-2.png",)) for name in ("a.jpg", "b.jpg")]
    shown = show_map(opened, answers, photos_in(tmp_path))
    assert shown.with_photos(6) is shown
    fewer = shown.with_photos(4)
    photos = {group.name: [frame is not None for frame in group.frames or ()] for group in fewer.groups}
    assert photos["answers, 90% sure or more"] == [True, True]
    assert photos["references"] == [True]
    assert photos["map"] == [True, False, False]
    assert "4 of 6 photos are in this file" in fewer.note


# Files


def written(path: Path, answers: list[NamedAnswer], wording: PoseWording) -> Path:
    with writing_answers(path, "jsonl", wording) as writer:
        for answer in answers:
            writer.write(answer)
    return path


@pytest.mark.parametrize("axes", ["opencv", "opengl", "ros", "unity"])
def test_answers_are_read_back_whatever_their_axes(axes, tmp_path: Path):
    path = written(tmp_path / "a.jsonl", [named(), NamedAnswer("b.jpg", refused())], PoseWording(axes))
    found, lost = read_any_answers(path)
    assert_allclose(found.T_world_cam.matrix(), T_WORLD_CAM.matrix(), atol=1e-12)
    assert (found.name, found.confidence, found.references) == ("a.jpg", 0.9, ("seq-01/a.png",))
    assert (lost.T_world_cam, lost.reason) == (None, "Not sure enough.")


def test_arkits_axes_are_refused_as_they_depend_on_the_photos_shape(tmp_path: Path):
    path = written(tmp_path / "a.jsonl", [named()], PoseWording("arkit"))
    with pytest.raises(DatasetError, match=r"a.jsonl:1: expected poses along the axes .* found 'arkit'"):
        read_answers(path)


@pytest.mark.parametrize("line", ["no JSON", "[]", "{}", json.dumps({"name": "a", "axes": "opencv", "T_world_cam": 3})])
def test_a_line_that_is_no_answer_is_named(line: str, tmp_path: Path):
    path = written(tmp_path / "a.jsonl", [named()], PoseWording())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DatasetError, match=r"a\.jsonl:2: expected"):
        read_answers(path)


def test_predictions_of_several_scenes_need_the_name_of_one(tmp_path: Path):
    path = tmp_path / "predictions.csv.gz"
    parts = [predictions_with_errors([0.1] * count, [1.0] * count, scene=name) for name, count in (("a", 1), ("b", 2))]
    write_predictions(path, Predictions.cat(parts), metadata={})
    with pytest.raises(ConfigError, match=r"found a, b\. Name one: --scene a"):
        read_any_answers(path)
    with pytest.raises(ConfigError, match="got --scene c"):
        read_any_answers(path, "c")
    assert [answer.name[:2] for answer in read_any_answers(path, "b")] == ["b/", "b/"]
    with pytest.raises(ConfigError, match=r"answers.tum: expected answers of .relograph localize."):
        read_any_answers(tmp_path / "answers.tum")


def test_no_photo_is_read_from_outside_the_folder(tmp_path: Path):
    folder = tmp_path / "kitchen"
    folder.mkdir()
    for path in (folder / "in.png", tmp_path / "out.png"):
        Image.new("RGB", (32, 24)).save(path)
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    photo_of = photos_in(folder)
    assert photo_of("in.png") is not None
    assert photo_of("kitchen/in.png") is not None
    for name in ("../out.png", str(tmp_path / "out.png"), "link.png", "gone.png", "", "a\0b"):
        assert photo_of(name) is None
    with pytest.raises(DatasetError, match="expected a folder of photos"):
        photos_in(tmp_path / "nowhere")


# Geometry of the viewer


def test_a_frustum_opens_in_the_direction_of_view(opened: Map):
    level = Pose.from_axis_angle([[0.0, 0.0, 0.0]], [[1.0, 2.0, 3.0]])
    (group,) = show_map(opened).groups
    lines = frustum_lines(group, level.t.numpy(), level.R.numpy())
    assert lines.shape == (10, 2, 3)
    assert_allclose(lines[:4, 0], [[1, 2, 3]] * 4)  # from the centre to the corners, which lie ahead
    assert_allclose(lines[:4, 1, 2], 3 + group.size_m)


def test_each_of_many_cameras_is_a_triangle():
    centers, R = np.zeros((MANY + 1, 3)), np.tile(np.eye(3), (MANY + 1, 1, 1))
    group = CameraGroup("map", "#98a1ad", Pose.from_rotation_and_translation(R, centers), [""] * (MANY + 1))
    assert len(frustum_lines(group, centers, R)) == 3 * (MANY + 1)


def test_a_click_finds_the_camera_that_the_ray_passes_nearest_to():
    centers = [np.array([[0.0, 0, 5], [math.nan] * 3, [1.0, 0, 5]]), np.array([[0.02, 0, 5], [0.0, 0, -5]])]
    forward = np.array([0.0, 0.0, 1.0])
    assert nearest_to_ray(np.zeros(3), forward, centers, [0, 1]) == (0, 0)
    assert nearest_to_ray(np.zeros(3), forward, centers, [1]) == (1, 0)
    assert nearest_to_ray(np.array([0.0, 3, 0]), forward, centers, [0, 1]) is None
