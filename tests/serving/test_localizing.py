"""A photo goes over the wire and its pose comes back, in the words of the contract."""

import base64
import json

import numpy as np
import pytest
from localization.small_networks import CAMERA, noise_photo
from numpy.testing import assert_allclose
from serving.running_services import NETWORK, Running, encoded, error_of, photo_file

from relograph.geometry.axes import axes_of, to_axes
from relograph.localization.localizer import MAX_REFERENCES, Localizer
from relograph.maps import Map
from relograph.scenes.camera_models import camera_line
from relograph.serving import messages
from relograph.serving.messages import LocalizeAnswer


def test_the_answer_is_that_of_a_localizer(asked: Running, map_of_noise):
    image = photo_file(1, "PNG")
    response = asked.localize(image, camera=camera_line(CAMERA))
    assert response.status_code == 200, response.text
    said = LocalizeAnswer.model_validate(response.json())
    here = Localizer(Map.open(map_of_noise, network=NETWORK)).localize(image, camera=CAMERA)
    assert (said.localized, said.reason, said.num_inliers) == (here.localized, here.reason, here.num_inliers)
    assert said.confidence == pytest.approx(here.confidence)
    assert [reference.name for reference in said.references] == [used.name for used in here.references]
    assert said.map.name == "kitchen"
    assert said.focal_px == pytest.approx(CAMERA.fx)
    if here.T_world_cam is not None:
        assert_allclose(said.T_world_cam, here.T_world_cam.matrix(), atol=1e-6)
