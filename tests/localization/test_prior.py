import math

import numpy as np
import pytest
import torch

from relograph.errors import ConfigError, DatasetError, GeometryError
from relograph.geometry import Pose
from relograph.geometry.axes import axes_of, to_axes
from relograph.localization.prior import Prior, as_prior, parse_prior

# Cameras a metre apart on the x axis that look along z, and one in their middle that looks back.
T_MAP = Pose.from_axis_angle(
    [*[[0.0, 0.0, 0.0]] * 9, [0.0, math.pi, 0.0]], [*[[float(x), 0.0, 0.0] for x in range(9)], [4.0, 0.0, 0.0]]
)


def test_references_are_near_look_the_same_way_and_stand_apart():
    ahead = Prior(Pose.from_axis_angle([0.0, 0.0, 0.0], [4.2, 0.0, 0.0]), looks=True, radius_m=2.0)
    rows = ahead.references(T_MAP, 3)
    assert rows[0] == 4
    assert set(rows) <= {3, 4, 5, 6}
    assert len(set(rows)) == 3
    back = Prior(Pose.from_axis_angle([0.0, math.pi, 0.0], [4.2, 0.0, 0.0]), looks=True, radius_m=2.0)
    assert back.references(T_MAP, 3) == [9]


def test_without_a_direction_the_place_alone_counts():
    place = Prior(Pose.from_axis_angle([0.0, math.pi, 0.0], [4.0, 0.0, 0.0]), looks=False, radius_m=1.5)
    assert set(place.references(T_MAP, 7)) == {3, 4, 5, 9}


def test_far_from_the_map_there_is_nothing():
    assert Prior(Pose.from_axis_angle([0.0, 0.0, 0.0], [0.0, 50.0, 0.0]), looks=True).references(T_MAP, 7) == []


@pytest.mark.parametrize("axes", ["opencv", "opengl", "arkit", "unity", "ros"])
@pytest.mark.parametrize("is_tall", [False, True])
def test_a_prior_is_read_along_the_axes_that_answers_are_written_in(tmp_path, axes, is_tall):
    T_world_cam = Pose.from_axis_angle([0.3, -0.8, 0.5], [1.0, 2.0, 3.0])
    said = to_axes(T_world_cam, axes_of(axes, is_tall=is_tall))
    numbers = ", ".join(repr(value) for value in [*said.t.tolist(), *said.quat_wxyz().tolist()])
    read = parse_prior(numbers, axes).of(is_tall=is_tall)
    assert read.looks
    torch.testing.assert_close(read.T_world_cam.matrix(), T_world_cam.matrix())
    np.savetxt(tmp_path / "prior.txt", said.matrix().numpy())
    from_file = parse_prior(str(tmp_path / "prior.txt"), axes).of(is_tall=is_tall)
    torch.testing.assert_close(from_file.T_world_cam.matrix(), T_world_cam.matrix())


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "1 2 nan", "1 2 3 0 0 0 0", "none.txt"])
def test_what_is_no_prior_is_said_in_one_line(text):
    with pytest.raises((ConfigError, DatasetError, GeometryError), match="expected") as caught:
        parse_prior(text)
    assert "\n" not in str(caught.value)


def test_a_pose_of_any_precision_is_a_prior_that_looks_somewhere():
    T_world_cam = Pose.from_axis_angle([0.0, 0.1, 0.0], [4.2, 0.0, 0.0])
    prior = as_prior(T_world_cam.to(torch.float32))
    assert prior is not None
    assert (prior.looks, prior.radius_m) == (True, 3.0)
    assert prior.references(T_MAP, 3) == Prior(T_world_cam, looks=True).references(T_MAP, 3)


@pytest.mark.parametrize("given", [[1.0, 2.0, 3.0], np.eye(4), "1 2 3", T_MAP])
def test_what_is_neither_a_pose_nor_a_prior_is_said_in_one_line(given):
    with pytest.raises(ConfigError, match=r"expected .* prior, got") as caught:
        as_prior(given)
    assert "\n" not in str(caught.value)
