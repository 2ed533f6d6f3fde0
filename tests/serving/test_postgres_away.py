"""A map in PostgreSQL, whose server is stopped and started again while it is served: a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localization.small_networks import posed_photos
from maps.postgres_server import Server
from relograph.maps import Map
from serving.running_services import NETWORK, Running, error_of, running, wait_until, write_map


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(alone=True)
    yield server
    server.close()


def is_ready(service: Running) -> bool:
    return service.client.get("/readyz").status_code == 200


def test_a_database_that_goes_and_comes_back_and_one_that_others_change(server: Server, kitchen: str):
    address = server.new_database()
    write_map(address)
    with running(f"office={address}", kitchen, allow_writes=True, map_wait_s=2.0) as service:
        answered = service.localize(map="office", solver="regress").json()
        assert len(answered["references"]) == 4

        # Another host changes it.
        Map.open(address, network=NETWORK).remove(["photo-0.png"])
        wait_until(lambda: service.client.get("/v1/maps/office").json()["num_frames"] == 3)

        server.stop()
        responses = [service.localize(map="office", solver="regress") for _ in range(3)]
        # What is in memory may still answer until somebody has noticed.
        assert {response.status_code for response in responses} <= {200, 503}
        wait_until(lambda: not is_ready(service))
        code, message = error_of(service.localize(map="office"), 503)
        assert code == "map_unavailable"
        assert "postgres" not in message.lower()
        for path in ("", "/frames", "/thumbnails/photo-1.png"):
            assert error_of(service.client.get(f"/v1/maps/office{path}"), 503)[0] == "map_unavailable"
        assert error_of(service.add("a.png", map="office"), 503)[0] == "map_unavailable"
        assert service.localize(map="kitchen", solver="regress").status_code == 200  # the other map goes on

        server.start()
        wait_until(lambda: is_ready(service))
        again = service.localize(map="office", solver="regress").json()
        assert {used["name"] for used in again["references"]} == {"photo-1.png", "photo-2.png", "photo-3.png"}
        assert service.client.get("/v1/maps/office/thumbnails/photo-1.png").status_code == 200
        assert service.add("a.png", map="office").status_code == 201
        assert len(Map.open(address)) == 4


def test_a_database_that_is_away_at_the_start_is_served_once_it_is_there(server: Server, tmp_path: Path):
    address = server.new_database()
    write_map(address, num_photos=2)
    server.stop()
    with running(f"office={address}", map_wait_s=2.0) as service:
        assert service.client.get("/healthz").status_code == 200
        assert service.client.get("/readyz").json()["not_ready"] == ["office"]
        assert service.client.get("/v1/maps").json() == {"maps": []}
        server.start()
        wait_until(lambda: is_ready(service))
        assert service.localize(map="office", solver="regress").status_code == 200


def test_two_services_share_one_database(server: Server):
    address = server.new_database()
    write_map(address, num_photos=2)
    with running(f"a={address}", allow_writes=True) as one, running(f"b={address}") as other:
        assert one.add("new.png", map="a").status_code == 201
        wait_until(lambda: other.client.get("/v1/maps/b").json()["num_frames"] == 3)
        revisions = [
            service.client.get(f"/v1/maps/{name}").json()["revision"] for service, name in ((one, "a"), (other, "b"))
        ]
        assert revisions[0] == revisions[1]
        assert posed_photos(1)[0].name in {
            used["name"] for used in other.localize(map="b", solver="regress").json()["references"]
        }


def test_a_change_ends_the_transaction_by_which_the_map_was_read_before(server: Server):
    address = server.new_database()
    write_map(address)

    def oldest_transaction() -> list[tuple[object, ...]]:
        return server.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' "
            "ORDER BY xact_start LIMIT 1",
            address,
        )

    with running(f"office={address}") as service:
        assert service.localize(map="office", solver="regress").status_code == 200
        before = oldest_transaction()
        assert len(before) == 1
        Map.open(address, network=NETWORK).remove(["photo-0.png"])
        wait_until(lambda: oldest_transaction() != before)  # without another query
