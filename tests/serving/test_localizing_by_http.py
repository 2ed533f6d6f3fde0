"""A photo goes over the wire and its pose comes back, in the words of the contract."""

import base64
import io

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import ExifTags, Image

from localization.small_networks import CAMERA, noise_photo
from relograph.geometry import Pose
from relograph.geometry.axes import axes_of, to_axes
from relograph.localization.localizer import MAX_REFERENCES, Localizer
from relograph.maps import Map
from relograph.scenes.camera_models import camera_line
from relograph.serving import messages
from relograph.serving.messages import LocalizeAnswer
from serving.running_services import NETWORK, Running, encoded, error_of, photo_file


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
    assert here.T_world_cam is not None
    assert_allclose(said.T_world_cam, here.T_world_cam.matrix(), atol=1e-6)
    assert_allclose(said.cam_center_world, here.T_world_cam.t, atol=1e-6)
    assert_allclose(said.quat_wxyz, here.T_world_cam.quat_wxyz(), atol=1e-6)


def test_json_says_the_same_as_a_form(asked: Running):
    image = photo_file(1)
    prior = {"cam_center_world": [0.1, 0.2, 0.3], "quat_wxyz": [1.0, 0.0, 0.0, 0.0], "radius_m": 2.0}
    options = {"num_references": 2, "solver": "regress", "axes": "ros", "prior": prior, "focal_px": 130.0}
    by_form = asked.localize(image, **options).json()
    by_json = asked.client.post(
        "/v1/maps/kitchen/localize", json={"image_base64": base64.b64encode(image).decode(), **options}
    ).json()
    assert by_json.pop("latency_ms").keys() == by_form.pop("latency_ms").keys()
    assert by_json == by_form
    assert len(by_form["references"]) == 2
    assert by_form["focal_px"] == pytest.approx(130.0)


@pytest.mark.parametrize("axes", ["opengl", "arkit", "unity", "ros"])
def test_poses_are_said_along_the_axes_that_are_asked_for(asked: Running, axes: str):
    plain, turned = (asked.localize(axes=name).json() for name in ("opencv", axes))
    for one, other in zip([plain, *plain["references"]], [turned, *turned["references"]], strict=True):
        expected = to_axes(Pose.from_matrix(np.array(one["T_world_cam"])), axes_of(axes))
        assert_allclose(other["T_world_cam"], expected.matrix(), atol=1e-6)
    assert turned["axes"] == axes


def test_matches_are_sent_only_when_asked_for_and_lie_within_the_photos(asked: Running):
    assert all(reference["matches"] is None for reference in asked.localize(solver="regress").json()["references"])
    references = asked.localize(with_matches=True).json()["references"]
    drawn = [reference["matches"] for reference in references if reference["num_matches"]]
    assert drawn
    for matches in drawn:
        xy = np.array([matches["query_xy"], matches["ref_xy"]])
        assert 0 < xy.shape[1] <= 80
        assert xy.min() >= 0.0
        assert xy.max() <= 1.0
        assert len(matches["inlier"]) == xy.shape[1]


def test_a_photo_matches_itself_at_the_same_places(asked: Running):
    # Of a wide photo the network sees a cut, and so does the thumbnail: 4:3 loses nothing, so fractions are the same.
    references = asked.localize(photo_file(2, "PNG"), with_matches=True).json()["references"]
    (itself,) = [reference for reference in references if reference["name"] == "photo-2.png"]
    query_xy, ref_xy = (np.array(itself["matches"][name]) for name in ("query_xy", "ref_xy"))
    assert np.median(np.linalg.norm(query_xy - ref_xy, axis=1)) < 0.05


def test_the_time_of_every_stage_is_told_and_within_the_whole(asked: Running):
    times = asked.localize(solver="regress").json()["latency_ms"]
    assert set(times) == {"decode", "encode", "retrieve", "match", "solve", "queue", "total"}
    assert all(value >= 0 for value in times.values())
    assert sum(value for name, value in times.items() if name != "total") <= times["total"]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_photos_of_every_kind_are_taken(asked: Running, format: str):
    assert asked.localize(photo_file(0, format), solver="regress").status_code == 200


def test_a_photo_of_a_phone_in_heic_is_taken_where_there_is_a_decoder(asked: Running):
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_bytes("RGB", (160, 120), noise_photo(0).tobytes()).save(file)
    response = asked.localize(file.getvalue(), solver="regress")
    assert response.status_code == 200, response.text


def test_the_size_that_is_told_is_that_of_the_upright_photo(asked: Running):
    quarter_turn = Image.Exif()
    quarter_turn[ExifTags.Base.Orientation] = 6
    answer = asked.localize(photo_file(0, exif=quarter_turn), solver="regress").json()
    assert (answer["width"], answer["height"]) == (120, 160)


def test_grey_wide_and_tall_photos_are_taken(asked: Running):
    for height, width in ((90, 160), (160, 90), (40, 200)):
        answer = asked.localize(encoded(noise_photo(5, height, width)), solver="regress").json()
        assert (answer["width"], answer["height"]) == (width, height)
    assert asked.localize(encoded(noise_photo(5)[..., 0]), solver="regress").status_code == 200


# What is wrong with a request


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_references": 0}, "num_references"),
        ({"num_references": MAX_REFERENCES + 1}, "num_references"),
        ({"num_references": "many"}, "num_references"),
        ({"solver": "guess"}, "solver"),
        ({"axes": "blender"}, "axes"),
        ({"focal_px": -3}, "focal_px"),
        ({"focal_px": "NaN"}, "focal_px"),
        ({"focal_px": 100, "camera": "PINHOLE 160 120 130 130 80 60"}, "camera"),
        ({"camera": "PINHOLE 160 120 130"}, "camera"),
        ({"camera": "PINHOLE 100 900 130 130 50 450"}, "camera"),
        ({"camera": "x" * 2000}, "camera"),
        ({"prior": "here"}, "prior"),
        ({"prior": {"cam_center_world": [1, 2]}}, "prior"),
        ({"prior": {"cam_center_world": [1, 2, 1e999]}}, "prior"),
        ({"prior": {"cam_center_world": [1, 2, 3], "quat_wxyz": [9, 9, 9, 9]}}, "prior"),
        ({"prior": {"cam_center_world": [1, 2, 3], "radius_m": 0}}, "radius_m"),
        ({"with_matches": "perhaps"}, "with_matches"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(asked: Running, fields: dict[str, object], named: str):
    code, message = error_of(asked.localize(**fields), 422)
    assert code == "invalid_request"
    assert named in message
    assert "file" not in message  # a request has none


def test_what_is_no_photo_is_told_by_what_it_is(asked: Running):
    assert error_of(asked.localize(b"GIF89a" + bytes(100)), 415)[0] == "unsupported_type"
    assert error_of(asked.localize(encoded(noise_photo(0), "BMP")), 415)[0] == "unsupported_type"
    assert error_of(asked.localize(b""), 415)[0] == "unsupported_type"
    assert error_of(asked.localize(photo_file()[:500]), 422)[0] == "bad_image"
    assert error_of(asked.localize(b"\x89PNG\r\n\x1a\n" + bytes(50)), 422)[0] == "bad_image"
    code, message = error_of(asked.localize(encoded(noise_photo(0, 2, 3000))), 422)
    assert code == "bad_image"
    assert message.endswith("found 3000 x 2. Use a larger one: this shows nothing.")


def test_a_body_of_another_type_or_shape_is_refused(asked: Running):
    post = asked.client.post
    path = "/v1/maps/kitchen/localize"
    assert error_of(post(path, content=photo_file(), headers={"Content-Type": "image/jpeg"}), 415)[0]
    assert error_of(post(path), 415)[0] == "unsupported_type"
    assert "image" in error_of(post(path, files={"photo": b"hello"}), 422)[1]
    assert "in the field image" in error_of(post(path, files={"photo": bytes(100_000)}), 422)[1]
    assert "a longer one" in error_of(post(path, data={"solver": "x" * 100_000}, files={"image": photo_file()}), 422)[1]
    assert "image_base64" in error_of(post(path, json={}), 422)[1]
    assert "base64" in error_of(post(path, json={"image_base64": "???"}), 422)[1]
    assert error_of(post(path, json=[1, 2, 3]), 422)[0] == "invalid_request"
    nested = b'{"image_base64": ' + b"[" * 100_000
    assert error_of(post(path, content=nested, headers={"Content-Type": "application/json"}), 422)[0]
    assert error_of(post(path, content=b"\xff\xfe{}", headers={"Content-Type": "application/json"}), 422)[0]


def test_a_form_that_is_cut_off_doubled_or_endless_is_refused(asked: Running):
    path, headers = "/v1/maps/kitchen/localize", {"Content-Type": "multipart/form-data; boundary=x"}

    def part(name: str, value: bytes) -> bytes:
        return f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"

    photo, end = part("image", photo_file()), b"--x--\r\n"
    assert asked.client.post(path, content=photo + part("solver", b"regress") + end, headers=headers).status_code == 200
    for body in (
        photo,
        photo[: len(photo) // 2],
        photo + photo + end,
        photo + part("solver", b"auto") + part("solver", b"auto") + end,
        photo + b"".join(part(f"f{i}", b"") for i in range(40)) + end,
        photo + part("prior", b" " * 20_000) + end,
        photo + part("prior", b"\xff\xfe") + end,
        b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n",
        b"--x\r\n" + b"A: b\r\n" * 50 + b"\r\n\r\n--x--\r\n",
        b"--x\r\nContent-Disposition: form-data; name=" + b"n" * 10_000 + b"\r\n\r\n\r\n--x--\r\n",
        b"",
    ):
        assert error_of(asked.client.post(path, content=body, headers=headers), 422)[0] == "invalid_request"
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'b' * 500}"):
        assert error_of(asked.client.post(path, content=photo, headers={"Content-Type": kind}), 422)[0]


def test_the_contract_knows_as_many_references_as_the_localizer():
    assert messages.MAX_REFERENCES == MAX_REFERENCES


def test_a_refused_photo_is_an_answer_with_a_reason(asked: Running):
    response = asked.localize(photo_file(900), solver="regress")  # of which this network is never sure
    said = response.json()
    assert response.status_code == 200
    assert not said["localized"]
    assert "Not sure enough" in said["reason"]
    assert 0 < said["confidence"] < 0.5
    for name in ("T_world_cam", "quat_wxyz", "cam_center_world", "covariance", "position_sigma_m", "geopose"):
        assert said[name] is None
