"""Two maps are joined by localizing photos of one in the other."""

from pathlib import Path

import pytest
import torch
from made_maps import made_map, no_network
from numpy.testing import assert_allclose

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.localization import Answer
from relograph.maps import Map, Similarity, joining

pytestmark = pytest.mark.usefixtures("generated")

T_HERE_THERE = Similarity(Pose.from_axis_angle([0.1, -0.2, 0.3], [5.0, 6.0, 7.0]))


def localizer_that_is_right_of(share: float, there: Map, truth: Similarity = T_HERE_THERE) -> type:
    frame_by_jpeg = {there.jpeg(frame): (number, frame) for number, frame in enumerate(there)}

    class KnowsTheAnswer:
        def __init__(self, map_features: object, network: object) -> None: ...

        def localize(self, image: bytes, *, camera: object) -> Answer:
            number, frame = frame_by_jpeg[image]
            T_world_cam = truth.move(frame.T_world_cam)
            if number >= share * len(there):
                turn = Pose.from_axis_angle([0.0, 0.0, 0.5 + number], [3.0 * number, 1.0, 0.0])
                T_world_cam = turn @ T_world_cam
            return Answer(T_world_cam, True, 1.0, "")

    return KnowsTheAnswer


def test_wrong_answers_do_not_move_the_joint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here, there = made_map(tmp_path / "here", 2), made_map(tmp_path / "there", 10)
    monkeypatch.setattr(joining, "Localizer", localizer_that_is_right_of(0.6, there))
    joint = joining.join_maps(here, there, no_network())
    assert_allclose(joint.T.matrix(), T_HERE_THERE.matrix(), atol=1e-9)
    assert joint.inlier.tolist() == [True] * 6 + [False] * 4
    assert torch.tensor(joint.residual[:6]).max() < 1e-9


def test_maps_whose_photos_agree_on_nothing_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here, there = made_map(tmp_path / "here", 2), made_map(tmp_path / "there", 10)
    monkeypatch.setattr(joining, "Localizer", localizer_that_is_right_of(0.1, there))
    with pytest.raises(DatasetError, match="10 of 10 are localized there and that they agree on no motion"):
        joining.join_maps(here, there, no_network())


def test_maps_of_two_scales_are_not_joined_unless_the_scale_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    truth = Similarity(T_HERE_THERE.T, 4.0)
    here, there = made_map(tmp_path / "here", 2), made_map(tmp_path / "there", 10)
    monkeypatch.setattr(joining, "Localizer", localizer_that_is_right_of(0.8, there, truth))
    with pytest.raises(DatasetError, match=r"unless a metre there is 4 here, as 8 of them say\. .*--scale"):
        joining.join_maps(here, there, no_network())
    joint = joining.join_maps(here, there, no_network(), with_scale=True)
    assert joint.scale == pytest.approx(4.0)


@pytest.mark.parametrize(("num_photos", "num_localized"), [(5, 5), (6, 3), (7, 4)])
def test_only_some_photos_of_a_large_map_are_localized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_photos: int, num_localized: int
):
    monkeypatch.setattr(joining, "MAX_PHOTOS", 5)
    here, there = made_map(tmp_path / "here", 2), made_map(tmp_path / "there", num_photos)
    monkeypatch.setattr(joining, "Localizer", localizer_that_is_right_of(1.0, there))
    assert len(joining.join_maps(here, there, no_network()).inlier) == num_localized
