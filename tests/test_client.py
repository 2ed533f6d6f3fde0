"""`relograph.Client` and a real service: what is asked is answered, and what goes wrong is said or mended."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from scipy.spatial.transform import Rotation

import painted_box
import relograph
from relograph import Client, Localizer, Map
from relograph.client import (
    KEY_VARIABLE,
    BusyError,
    ClientError,
    DrawnMatches,
    GeoPose,
    MapDetails,
    MapSummary,
    NotAllowedError,
    NotFoundError,
    PriorPose,
    RemoteAnswer,
    RemoteFrame,
    RemoteReference,
    UnavailableError,
    as_prior,
)
from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.maps import Similarity
from relograph.maps.records import Georeference
from relograph.models.shipped import load_match_gnn
from relograph.serving import messages
from relograph.serving.keys import create_key
from serving.running_services import HERE, Running, encoded, photo_file, running, write_map

QUERY_POSE = painted_box.poses(2, 2, 0.1, 0.08)[0]
"""Of the first photo of the test sequence that `painted_box.write_scene` takes."""

EARTH = Georeference(
    latitude_deg=47.0, longitude_deg=8.0, altitude_m=400.0, T_enu_world=Similarity.identity(), residual_m=(0.0,)
)


@dataclass(frozen=True)
class Box:
    """The painted box as a map, and a photo that was taken in it later."""

    map: Map
    folder: Path
    query: Path


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Box:
    folder = tmp_path_factory.mktemp("box")
    scene = relograph.open_scene(painted_box.write_scene(folder / "scene", num_map=4))
    place = Map.create(folder / "box.map", scene.train)
    place.set_georeference(EARTH)
    return Box(place, folder / "box.map", folder / "scene" / "seq-02" / "frame-000000.color.png")


@pytest.fixture(scope="module")
def service(box: Box) -> Iterator[Running]:
    """A service with the package's own weights."""
    with running(str(box.folder), network=load_match_gnn()) as service:
        yield service


@pytest.fixture
def kitchen(tmp_path: Path) -> str:
    """A map of noise that a test may change, with the weights that `running` has."""
    write_map(tmp_path / "kitchen.map")
    return str(tmp_path / "kitchen.map")


@pytest.fixture
def asking(service: Running) -> Iterator[Client]:
    with Client(service.url, retry_s=0) as asking:
        yield asking


def test_the_client_loads_neither_torch_nor_the_service():
    code = "import relograph, sys; relograph.Client(); print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in loaded
    assert not {"torch", "fastapi", "pydantic", "uvicorn"} & set(loaded)


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'relograph\[client\]'"):
        Client()


# Words


@pytest.mark.parametrize(
    ("here", "there", "otherwise"),
    [
        (RemoteAnswer, messages.LocalizeAnswer, {"map": {"map_name", "map_revision"}}),
        (RemoteReference, messages.Reference, {}),
        (RemoteFrame, messages.Frame, {}),
        (MapSummary, messages.MapSummary, {}),
        (MapDetails, messages.MapDetails, {}),
        (DrawnMatches, messages.DrawnMatches, {}),
        (PriorPose, messages.Prior, {}),
    ],
)
def test_client_and_service_have_the_same_words(here: type, there: type, otherwise: dict[str, set[str]]):
    said = {word for name in there.model_fields for word in otherwise.get(name, {name})}
    assert {field.name for field in fields(here)} == said


# Asking


def test_a_photo_is_localized_as_it_would_be_here(asking: Client, box: Box):
    there = asking.localize("box", box.query, focal_px=painted_box.CAMERA.fx, with_matches=True)
    here = Localizer(box.map).localize(box.query, camera=painted_box.CAMERA)
    assert there.localized
    assert here.T_world_cam is not None
    assert_allclose(there.T_world_cam, here.T_world_cam.matrix(), atol=1e-9)
    assert_allclose(there.cam_center_world, QUERY_POSE.t, atol=0.02)
    assert there.quat_wxyz is not None
    assert_allclose(abs(there.quat_wxyz @ QUERY_POSE.quat_wxyz().numpy()), 1.0, atol=1e-4)
    assert there.covariance is not None
    assert there.covariance.shape == (6, 6)
    assert there.confidence == pytest.approx(here.confidence)
    assert (there.map_name, there.map_revision) == ("box", box.map.changes()[-1].number)
    assert [reference.name for reference in there.references] == [used.name for used in here.references]
    assert set(there.latency_ms) == set(messages.LatencyMs.model_fields)
    matches = there.references[0].matches
    assert matches is not None
    assert len(matches.query_xy) == len(matches.ref_xy) == len(matches.inlier) > 10
    assert matches.inlier.mean() > 0.5
    assert there.geopose is not None
    assert there.geopose.latitude_deg == pytest.approx(47.0, abs=1e-4)
    assert isinstance(there.geopose, GeoPose)


def test_photos_of_every_kind_are_taken(asking: Client, box: Box):
    pixels = np.asarray(Image.open(box.query).convert("RGB"))
    answers = [
        asking.localize("box", image, focal_px=painted_box.CAMERA.fx)
        for image in (str(box.query), box.query.read_bytes(), pixels, Image.fromarray(pixels))
    ]
    assert_array_equal(answers[0].T_world_cam, answers[1].T_world_cam)
    for answer in answers[2:]:  # which went as JPEGs
        assert_allclose(answer.cam_center_world, QUERY_POSE.t, atol=0.02)


def test_what_is_asked_for_arrives(asking: Client, box: Box):
    camera = "PINHOLE 320 240 260 260 160 120"
    far = PriorPose((50.0, 0.0, 0.0), radius_m=1.0)
    answer = asking.localize(
        "box", box.query, camera=camera, prior=far, num_references=2, solver="regress", axes="opengl"
    )
    assert len(answer.references) == 2
    assert answer.references[0].matches is None
    assert answer.axes == "opengl"
    assert answer.num_inliers == 0  # nobody solved
    assert answer.T_world_cam is not None
    assert_allclose(answer.T_world_cam[:3, 2], -QUERY_POSE.R.numpy()[:, 2], atol=0.05)  # z points back
    prior = answer.as_prior(radius_m=1.0)
    assert prior is not None
    again = asking.localize("box", box.query, camera=camera, axes="opengl", prior=prior)
    assert_allclose(again.cam_center_world, QUERY_POSE.t, atol=0.02)


def test_a_pose_and_its_matrix_are_priors_too(asking: Client, box: Box):
    for prior in (QUERY_POSE, QUERY_POSE.matrix().numpy(), QUERY_POSE.matrix().tolist()):
        answer = asking.localize("box", box.query, focal_px=painted_box.CAMERA.fx, prior=prior)
        assert_allclose(answer.cam_center_world, QUERY_POSE.t, atol=0.02)


@pytest.mark.parametrize("angle_rad", [0.0, 1e-9, 0.3, 2.0, np.pi - 1e-9, np.pi])
def test_the_quaternion_of_a_prior_is_that_of_its_matrix(angle_rad: float):
    rotation = Rotation.from_rotvec(angle_rad * np.array([0.6, 0.0, -0.8]))
    T_world_cam = np.eye(4)
    T_world_cam[:3] = np.column_stack([rotation.as_matrix(), [1.0, 2.0, 3.0]])
    prior = as_prior(T_world_cam)
    assert prior is not None
    assert prior.cam_center_world == (1.0, 2.0, 3.0)
    assert abs(np.dot(prior.quat_wxyz, rotation.as_quat(scalar_first=True))) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"cam_center_world": [0, 0, 0]}, "dict"),
        ([0.0, 0.0, 0.0], r"the shape \(3,\)"),
        (np.diag([1.0, 1.0, -1.0, 1.0]), r"the shape \(4, 4\)"),  # mirrored
        (np.full((4, 4), np.nan), r"the shape \(4, 4\)"),
        (relograph.Pose.identity(2), r"the shape \(2, 4, 4\)"),
        ("here", "str"),
    ],
)
def test_what_is_no_prior_is_said_with_what_could_be_one(given: object, named: str):
    with pytest.raises(ConfigError, match=f"expected a PriorPose, a pose or its 4x4 matrix as prior, got .*{named}"):
        as_prior(given)


def test_an_answer_is_no_prior_but_has_one(asking: Client, box: Box):
    answer = asking.localize("box", box.query)
    with pytest.raises(ConfigError, match=r"got RemoteAnswer\. .* of an answer: answer\.as_prior\(\)"):
        as_prior(answer)


def test_a_refused_photo_is_an_answer_with_a_reason(asking: Client):
    answer = asking.localize("box", photo_file(0))
    assert not answer.localized
    assert answer.T_world_cam is None
    assert answer.as_prior() is None
    assert answer.reason


def test_maps_frames_and_thumbnails_are_shown(asking: Client, box: Box, monkeypatch: pytest.MonkeyPatch):
    (summary,) = asking.maps()
    assert (summary.name, summary.num_frames, summary.georeferenced) == ("box", 4, True)
    details = asking.map("box")
    centers = box.map.features.T_world_cam.t.numpy()
    assert_allclose(details.extent_world, [centers.min(0), centers.max(0)])
    monkeypatch.setattr("relograph.client.FRAMES_A_PAGE", 3)  # two pages
    frames = list(asking.frames("box"))
    assert [frame.name for frame in frames] == [frame.name for frame in box.map.frames]
    assert_allclose(frames[3].T_world_cam, box.map.frames[3].T_world_cam.matrix())
    assert frames[0].focal_px == pytest.approx(260.0)
    assert asking.thumbnail("box", frames[0].name) == box.map.jpeg(box.map.frames[0])


def test_a_service_lives_and_is_ready(asking: Client):
    assert asking.healthz()
    assert asking.ready().is_ready
    assert asking.ready().not_ready == ()


# Changing, and keys


def test_photos_come_and_go_by_a_key_that_may_write(kitchen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keys = tmp_path / "keys.json"
    reader, _ = create_key(keys, "read")
    writer, _ = create_key(keys, "write")
    name = "a folder/50% of #1?.png"  # all of which mean something in an address
    with running(kitchen, keys=keys, allow_writes=True) as service:
        with Client(service.url, api_key=writer) as asking:
            pose = relograph.Pose.from_rotation_and_translation(np.array(HERE)[:3, :3], np.array(HERE)[:3, 3])
            added = asking.add_frame("kitchen", photo_file(77), name=name, T_world_cam=pose, focal_px=130.0)
            assert (added.name, added.sequence, added.focal_px) == (name, "a folder", 130.0)
            assert_allclose(added.T_world_cam, HERE)
            assert asking.add_frame("kitchen", photo_file(77), name=name, T_world_cam=HERE, focal_px=130.0).name == name
            assert asking.thumbnail("kitchen", name).startswith(b"\xff\xd8")
            asking.remove_frame("kitchen", name)
            with pytest.raises(NotFoundError):
                asking.remove_frame("kitchen", name)
        monkeypatch.setenv(KEY_VARIABLE, reader)
        with Client(service.url) as asking:
            assert len(asking.maps()) == 1
            with pytest.raises(NotAllowedError, match="scope write") as refused:
                asking.remove_frame("kitchen", "photo-0.png")
            assert refused.value.status == 403
        with Client(service.url, api_key="rg_wrong") as asking, pytest.raises(NotAllowedError) as refused:
            asking.maps()
        assert (refused.value.status, refused.value.code) == (401, "unauthorized")


def test_a_key_is_shown_to_nobody():
    assert "secret" not in repr(Client("http://127.0.0.1:1", api_key="rg_secret"))
    with pytest.raises(ConfigError) as refused:
        Client("http://127.0.0.1:1", api_key="rg_secret\r\nX-Other: 1")
    assert "secret" not in str(refused.value)


# What goes wrong


def test_errors_are_the_services_own_sentences(asking: Client):
    with pytest.raises(ClientError, match="Expected a photo as JPEG") as refused:
        asking.localize("box", b"no photo")
    assert (refused.value.status, refused.value.code) == (415, "unsupported_type")
    assert len(refused.value.request_id) > 8
    with pytest.raises(ClientError) as refused:
        asking.localize("box", encoded(np.zeros((40, 40, 3), np.uint8)), num_references=99)
    assert refused.value.status == 422
    assert "num_references" in str(refused.value)
    with pytest.raises(NotFoundError):
        asking.map("../box")
    assert isinstance(refused.value, relograph.RelographError)


def test_what_is_wrong_here_is_said_here(asking: Client, tmp_path: Path):
    with pytest.raises(DatasetError, match="expected a photo, the system answered: No such file"):
        asking.localize("box", tmp_path / "none.jpg")
    with pytest.raises(DatasetError, match=r"8-bit pixels .* found float64 \[4, 4, 3\]"):
        asking.localize("box", np.zeros((4, 4, 3)))
    with pytest.raises(DatasetError, match="8 bits a channel, found one of mode I;16"):
        asking.localize("box", Image.fromarray(np.full((40, 40), 9000, dtype=np.uint16)))
    with pytest.raises(ConfigError, match="address of a service"):
        Client("127.0.0.1:8000")
    with pytest.raises(ConfigError, match="timeout_s above 0"):
        Client(timeout_s=0)


def test_a_full_queue_is_waited_for_as_long_as_one_likes(kitchen: str):
    with running(kitchen, queue=1) as service:
        slot = service.service.answering.accepted()
        slot.__enter__()
        with Client(service.url, retry_s=0) as asking, pytest.raises(BusyError) as refused:
            asking.localize("kitchen", photo_file())
        assert refused.value.status == 429
        freed = threading.Timer(0.3, lambda: slot.__exit__(None, None, None))
        freed.start()
        with Client(service.url, retry_s=30) as asking:
            assert asking.localize("kitchen", photo_file()).map_name == "kitchen"
        freed.join()


@contextmanager
def losing_connections(url: str, lost: int) -> Iterator[tuple[str, list[int]]]:
    """A way to a service that cuts the first connections after their first bytes; and a list of those that came."""
    there, came = urlsplit(url), []

    def carry(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def pass_on(near: socket.socket) -> None:
        with near, socket.create_connection((there.hostname, there.port)) as far:
            back = threading.Thread(target=carry, args=(far, near))
            back.start()
            carry(near, far)
            back.join()

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            came.append(len(came))
            if len(came) > lost:
                threading.Thread(target=pass_on, args=(near,)).start()
            else:
                near.recv(100)
                near.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", came
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_query_whose_connection_is_lost_is_sent_again_and_a_change_is_not(kitchen: str):
    with running(kitchen, allow_writes=True) as service:
        with losing_connections(service.url, lost=2) as (url, came), Client(url) as asking:
            assert asking.localize("kitchen", photo_file()).map_name == "kitchen"
            assert len(came) == 3
        with losing_connections(service.url, lost=1) as (url, came), Client(url) as asking:
            with pytest.raises(UnavailableError, match=f"expected a relograph service at {url}, found none"):
                asking.remove_frame("kitchen", "photo-0.png")
            assert len(came) == 1
        with Client(service.url) as asking:
            assert asking.map("kitchen").num_frames == 4


def test_a_service_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_s=0.2, retry_s=0) as asking, pytest.raises(UnavailableError, match="timed out"):
            asking.healthz()


@pytest.mark.parametrize(("kind", "body"), [("text/html", b"<h1>It works!</h1>"), ("application/json", b'{"maps": 3}')])
def test_another_program_is_not_taken_for_a_service(kind: str, body: bytes):
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with Client(url) as asking, pytest.raises(ClientError, match=f"found 200 with {kind}"):
                asking.maps()
        finally:
            server.shutdown()
            thread.join()
