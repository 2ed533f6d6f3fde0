"""Several maps at once, that others change, take away and bring back while they are asked."""

import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from localization.small_networks import noise_photo, posed_photos, small_network
from relograph.errors import CheckpointError, ConfigError, DatasetError
from relograph.localization.focal import UnknownFocal
from relograph.maps import Map
from relograph.maps.records import frame_poses
from relograph.serving.config import ServeConfig, named_maps
from relograph.serving.running import serve
from relograph.serving.served_maps import MapMoment, check_maps
from serving.running_services import (
    HERE,
    NETWORK,
    Running,
    error_of,
    network_at_work,
    photo_file,
    running,
    wait_until,
    write_map,
)


def test_maps_are_called_by_their_folder_database_or_by_a_given_name():
    assert named_maps(("/rooms/a.b/kitchen.map/", "hall=x/y=z", "postgresql://u:p@h:5/office?a=b")) == {
        "kitchen": "/rooms/a.b/kitchen.map/",
        "hall": "x/y=z",
        "office": "postgresql://u:p@h:5/office?a=b",
    }


@pytest.mark.parametrize(
    ("maps", "says"),
    [
        ((), "at least one map"),
        (("a/kitchen.map", "b/kitchen.map"), "two called kitchen"),
        (("kitchen.map", "kitchen=b"), "two called kitchen"),
        (("hall=",), "a map behind"),
        (("küche.map",), "NAME=MAP"),
        (("..",), "NAME=MAP"),
        (("postgresql://host/",), "NAME=MAP"),
        ((f"{'x' * 65}.map",), "NAME=MAP"),
    ],
)
def test_names_that_cannot_stand_in_an_address_are_refused(maps: tuple[str, ...], says: str):
    with pytest.raises(ConfigError, match=says):
        named_maps(maps)


def test_a_map_is_described_with_its_photos_and_thumbnails(asked: Running, map_of_noise: Path):
    here = Map.open(map_of_noise)
    (summary,) = asked.client.get("/v1/maps").json()["maps"]
    assert summary == {
        "name": "kitchen",
        "num_frames": 4,
        "revision": here.snapshot.revision,
        "scale_is_known": True,
        "georeferenced": False,
        "weights_sha256": NETWORK.sha256,
        "writable": False,
    }
    details = asked.client.get("/v1/maps/kitchen").json()
    centers = frame_poses(here.frames).t
    assert details.pop("extent_world") == {"min": centers.amin(dim=0).tolist(), "max": centers.amax(dim=0).tolist()}
    assert details == summary
    page = asked.client.get("/v1/maps/kitchen/frames?offset=1&limit=2").json()
    assert (page["total"], page["offset"]) == (4, 1)
    assert [frame["name"] for frame in page["frames"]] == ["photo-1.png", "photo-2.png"]
    first = page["frames"][0]
    assert first["T_world_cam"] == here["photo-1.png"].T_world_cam.matrix().tolist()
    assert (first["width"], first["height"], first["focal_px"], first["sequence"]) == (160, 120, 130.0, None)
    assert asked.client.get("/v1/maps/kitchen/frames?offset=9").json()["frames"] == []
    thumbnail = asked.client.get("/v1/maps/kitchen/thumbnails/photo-1.png")
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert thumbnail.content == here.jpeg(here["photo-1.png"])
    again = asked.client.get(
        "/v1/maps/kitchen/thumbnails/photo-1.png", headers={"If-None-Match": thumbnail.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


def test_what_is_not_there_is_404(asked: Running):
    assert error_of(asked.client.get("/v1/maps/"), 404)[0] == "not_found"  # led nowhere else, https or not
    for path in ("none", "none/frames", "none/thumbnails/photo-1.png", "kitchen/thumbnails/photo-9.png"):
        assert error_of(asked.client.get(f"/v1/maps/{path}"), 404)[0] == "not_found"
    assert error_of(asked.localize(map="none"), 404)[0] == "not_found"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_load_balancers_ask_by_head_for_the_same_without_a_body(asked: Running, path: str):
    told, head = asked.client.get(path), asked.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(told.content))
    assert asked.client.get(path).content == told.content  # over the same connection: nothing was left in it


def test_two_maps_are_answered_by_one_network(kitchen: str, tmp_path: Path):
    other = Map.create(tmp_path / "hall", [], network=NETWORK)
    other.add([photo for photo in posed_photos(9) if photo.name in ("photo-7.png", "photo-8.png")])
    with running(kitchen, f"hall={tmp_path / 'hall'}") as service:
        assert [some["name"] for some in service.client.get("/v1/maps").json()["maps"]] == ["kitchen", "hall"]
        for name, photos in (("kitchen", {0, 1, 2, 3}), ("hall", {7, 8})):
            said = service.localize(map=name, solver="regress").json()
            assert said["map"]["name"] == name
            assert {reference["name"] for reference in said["references"]} == {f"photo-{i}.png" for i in photos}


def test_an_empty_map_can_be_served(tmp_path: Path):
    Map.create(tmp_path / "new.map", [], network=NETWORK)
    with running(str(tmp_path / "new.map"), allow_writes=True) as service:
        assert service.client.get("/v1/maps/new").json()["extent_world"] is None
        said = service.localize(map="new").json()
        assert not said["localized"]
        assert "No photo of the map" in said["reason"]
        assert service.add("a.png", map="new").status_code == 201
        assert len(service.localize(map="new", solver="regress").json()["references"]) == 1


def test_a_change_by_others_is_noticed_and_queries_under_way_keep_what_they_began_with(kitchen: str):
    with running(kitchen) as service:
        before = service.service.maps["kitchen"].now
        others = Map.open(kitchen, network=NETWORK)
        others.remove(["photo-0.png", "photo-1.png"])
        wait_until(lambda: service.client.get("/v1/maps/kitchen").json()["num_frames"] == 2)
        said = service.localize(solver="regress").json()
        assert said["map"]["revision"] == others.snapshot.revision
        assert {reference["name"] for reference in said["references"]} == {"photo-2.png", "photo-3.png"}
        assert len(before.jpeg(0)) > 100  # what was removed stays readable to those who had it


def test_a_map_that_is_gone_is_503_and_the_other_goes_on(kitchen: str, tmp_path: Path):
    shutil.copytree(kitchen, tmp_path / "hall.map")
    database = Path(kitchen) / "map.sqlite"
    with running(kitchen, str(tmp_path / "hall.map")) as service:
        assert service.client.get("/readyz").json() == {"status": "ready", "not_ready": []}
        database.rename(database.with_suffix(".away"))
        wait_until(lambda: service.client.get("/readyz").status_code == 503)
        assert service.client.get("/readyz").json()["not_ready"] == ["kitchen"]
        assert service.client.head("/readyz").status_code == 503
        code, message = error_of(service.localize(), 503)
        assert code == "map_unavailable"
        assert str(tmp_path) not in message
        assert service.localize(map="hall", solver="regress").status_code == 200
        assert [some["name"] for some in service.client.get("/v1/maps").json()["maps"]] == ["hall"]
        database.with_suffix(".away").rename(database)
        wait_until(lambda: service.client.get("/readyz").status_code == 200)
        assert service.localize(solver="regress").status_code == 200


def test_a_folder_that_is_no_map_or_of_other_weights_is_told_before_the_service_starts(kitchen: str, tmp_path: Path):
    with pytest.raises(DatasetError, match="expected a map"):
        check_maps(ServeConfig(maps=(str(tmp_path),)), NETWORK.sha256)
    with pytest.raises(CheckpointError, match="--weights"):
        check_maps(ServeConfig(maps=(kitchen,)), "b" * 64)
    check_maps(ServeConfig(maps=(kitchen, "away=postgresql://127.0.0.1:1/none")), NETWORK.sha256)


def test_a_map_of_other_weights_that_takes_the_place_of_one_is_away(kitchen: str, tmp_path: Path):
    other = small_network(1, sha256="b" * 64)
    write_map(tmp_path / "other", network=other)
    with running(kitchen) as service:
        shutil.rmtree(kitchen)
        shutil.move(tmp_path / "other", kitchen)
        Map.open(kitchen, network=other).remove(["photo-0.png"])
        wait_until(lambda: service.client.get("/readyz").status_code == 503)
        assert error_of(service.localize(), 503)[0] == "map_unavailable"


def test_another_map_that_takes_the_place_of_one_is_read_whatever_its_number(kitchen: str, tmp_path: Path):
    Map.create(tmp_path / "other", list(reversed(posed_photos(4))), network=NETWORK)
    with running(kitchen) as service:
        revision = service.client.get("/v1/maps/kitchen").json()["revision"]
        Path(kitchen).rename(tmp_path / "old")
        (tmp_path / "other").rename(kitchen)
        assert Map.open(kitchen).snapshot.revision == revision
        wait_until(lambda: first_photo(service) == "photo-3.png")


def first_photo(service: Running) -> str | None:
    response = service.client.get("/v1/maps/kitchen/frames?limit=1")
    return response.json()["frames"][0]["name"] if response.status_code == 200 else None


# Changing


def test_nothing_is_changed_unless_the_operator_allows_it(asked: Running):
    for response in (asked.add("new.png"), asked.client.delete("/v1/maps/kitchen/frames/photo-0.png")):
        code, message = error_of(response, 403)
        assert code == "read_only"
        assert "--allow-writes" in message


def test_a_photo_is_added_found_and_removed(kitchen: str):
    image = photo_file(77, "PNG")
    with running(kitchen, allow_writes=True) as service:
        added = service.add("walk/new 1.png", image, focal_px=130)
        assert added.status_code == 201, added.text
        assert added.json() == {
            "name": "walk/new 1.png",
            "T_world_cam": HERE,
            "width": 160,
            "height": 120,
            "focal_px": 130.0,
            "sequence": "walk",
        }
        assert service.client.get("/v1/maps/kitchen/thumbnails/walk/new%201.png").status_code == 200
        said = service.localize(image, solver="regress", num_references=1).json()
        assert said["references"][0]["name"] == "walk/new 1.png"
        assert said["references"][0]["similarity"] == pytest.approx(1.0, abs=1e-3)
        assert service.add("walk/new 1.png", image, focal_px=130).status_code == 200  # it is there already
        for other in ({"image": photo_file(78)}, {"image": image, "focal_px": 99}):
            assert error_of(service.add("walk/new 1.png", **other), 409)[0] == "conflict"
        assert Map.open(kitchen).verify().is_whole
        assert service.client.delete("/v1/maps/kitchen/frames/walk/new%201.png").status_code == 204
        assert error_of(service.client.delete("/v1/maps/kitchen/frames/walk/new%201.png"), 404)[0] == "not_found"
        assert len(Map.open(kitchen)) == 4


def test_the_exif_of_a_photo_that_is_added_says_what_to_expect_of_its_lens(kitchen: str):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = 26
    with running(kitchen, allow_writes=True) as service:
        added = service.add("phone.jpg", photo_file(77, exif=exif))
        assert added.status_code == 201, added.text
        assert added.json()["focal_px"] is None  # it is not known
    camera = Map.open(kitchen)["phone.jpg"].camera
    assert isinstance(camera, UnknownFocal)
    assert camera.is_expected
    assert camera.likely == pytest.approx(26 * 200 / np.hypot(36, 24) / 160)  # the diagonal has 200 pixels


def test_a_map_that_another_writer_holds_can_still_be_asked(kitchen: str):
    photo = "/v1/maps/kitchen/frames/photo-0.png"
    database = Path(kitchen) / "map.sqlite"
    with running(kitchen, allow_writes=True, map_wait_s=0.2, poll_s=60.0) as service:
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert error_of(service.client.delete(photo), 503)[0] == "map_locked"
            assert service.client.get("/readyz").status_code == 200
            assert service.localize(solver="regress").status_code == 200
            other.execute("ROLLBACK")
        assert service.client.delete(photo).status_code == 204


def test_changes_that_wait_keep_nobody_from_reading(kitchen: str):
    num_waiting = 50  # more than the threads that answer what is only read
    photo = "/v1/maps/kitchen/frames/photo-0.png"
    with running(kitchen, allow_writes=True, map_wait_s=120.0) as service, ThreadPoolExecutor(num_waiting) as pool:
        with closing(sqlite3.connect(Path(kitchen) / "map.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = [pool.submit(httpx.delete, service.url + photo, timeout=300.0) for _ in range(num_waiting)]
            try:
                wait_until(lambda: len(service.server.server_state.tasks) == num_waiting)
                assert service.client.get("/v1/maps/kitchen/thumbnails/photo-1.png").status_code == 200
                assert service.localize(solver="regress").status_code == 200
            finally:
                other.execute("ROLLBACK")
        statuses = sorted(future.result().status_code for future in waiting)
    assert statuses == [204] + [404] * (num_waiting - 1)


def test_of_two_photos_that_come_at_once_under_one_name_the_second_is_a_conflict(kitchen: str):
    with running(kitchen, allow_writes=True) as service, ThreadPoolExecutor(2) as pool:
        with network_at_work(service):
            added = [pool.submit(service.add, "new.png", photo_file(seed)) for seed in (77, 78)]
            wait_until(lambda: service.service.answering._num_accepted == 2)
            time.sleep(0.3)  # so that both are where only the network keeps them
        assert sorted(future.result().status_code for future in added) == [201, 409]


def test_a_device_that_is_not_there_is_told_before_the_service_starts(kitchen: str):
    with pytest.raises(ConfigError, match=r"found 'nonsense'"):
        serve(ServeConfig(maps=(kitchen,), device="nonsense"))


def test_the_same_file_is_the_same_photo_whether_it_comes_by_http_or_from_a_disk(kitchen: str, tmp_path: Path):
    from relograph.scenes.frame import FileSource, Frame
    from relograph.scenes.names import pose_from_matrix

    (tmp_path / "photo.jpg").write_bytes(photo_file(77))
    with running(kitchen, allow_writes=True) as service:
        assert service.add("photo.jpg", photo_file(77)).status_code == 201
    frame = Frame("photo.jpg", pose_from_matrix(HERE, "here"), FileSource(tmp_path / "photo.jpg"))
    added = Map.open(kitchen, network=NETWORK).add([frame])
    assert (added.num_added, added.num_there) == (0, 1)


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("../up.png", {}, "name"),
        ("/etc/passwd", {}, "name"),
        ("a\\b.png", {}, "name"),
        ("x" * 600, {}, "name"),
        ("", {}, "name"),
        ("a.png", {"T_world_cam": "[[1,0,0,0]]"}, "T_world_cam"),
        ("a.png", {"T_world_cam": "no matrix"}, "T_world_cam"),
        ("a.png", {"T_world_cam": str([[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])}, "T_world_cam"),
        ("a.png", {"T_world_cam": "[[1,0,0,NaN],[0,1,0,0],[0,0,1,0],[0,0,0,1]]"}, "T_world_cam"),
        ("a.png", {"camera": "PINHOLE 100 900 130 130 50 450"}, "camera"),
        ("a.png", {"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_a_photo_with_a_wrong_field_does_not_come_in(map_of_noise: Path, name: str, fields: dict, named: str, shared):
    assert named in error_of(shared.add(name, **fields), 422)[1]
    assert len(Map.open(map_of_noise)) == 4


@pytest.fixture(scope="module")
def shared(map_of_noise: Path):
    with running(str(map_of_noise), allow_writes=True) as service:
        yield service


def test_only_a_form_brings_a_photo_in(shared: Running):
    response = shared.client.post("/v1/maps/kitchen/frames", json={"name": "a.png", "T_world_cam": HERE})
    assert error_of(response, 415)[0] == "unsupported_type"
    response = shared.client.post("/v1/maps/kitchen/frames", files={"image": photo_file()})
    assert error_of(response, 422)[0] == "invalid_request"


def test_thumbnails_are_small_jpegs_of_what_the_network_saw(asked: Running, tmp_path: Path):
    (tmp_path / "t.jpg").write_bytes(asked.client.get("/v1/maps/kitchen/thumbnails/photo-0.png").content)
    with Image.open(tmp_path / "t.jpg") as image:
        assert image.size == (320, 240)
    assert noise_photo(0).shape == (120, 160, 3)


def test_thumbnails_that_hang_keep_nobody_else_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_map(tmp_path / "kitchen.map")
    write_map(tmp_path / "hall.map")
    hangs, answers = threading.Event(), MapMoment.jpeg
    free = threading.Event()

    def jpeg(moment: MapMoment, row: int) -> bytes:
        if moment is kitchen.now:
            hangs.set()
            free.wait()
        return answers(moment, row)

    with (
        running(str(tmp_path / "kitchen.map"), str(tmp_path / "hall.map")) as service,
        ThreadPoolExecutor(50) as pool,
    ):
        kitchen = service.service.maps["kitchen"]
        monkeypatch.setattr(MapMoment, "jpeg", jpeg)
        path = f"{service.url}/v1/maps/kitchen/thumbnails/photo-1.png"
        try:
            hung = [pool.submit(httpx.get, path, trust_env=False, timeout=60.0) for _ in range(50)]
            assert hangs.wait(30.0)
            time.sleep(0.5)  # until the others are in as well
            for other in ("/v1/maps", "/metrics", "/v1/maps/hall/thumbnails/photo-1.png"):
                assert service.client.get(other, timeout=5.0).status_code == 200
            assert not any(one.done() for one in hung)
        finally:
            free.set()
        assert {one.result().status_code for one in hung} == {200}
