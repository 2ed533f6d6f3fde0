"""The service under load and in trouble, in short; `relograph bench serve` asks the same for longer."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.models.shipped import load_match_gnn
from relograph.serving.config import ServeConfig
from relograph.serving.load import asking, attacks, hostile, overload
from relograph.serving.load.benchmark import LoadConfig, benchmark_serve, load_table, write_load_page
from relograph.serving.load.faults import map_in_postgres, measure_database, measure_killed_worker
from relograph.serving.load.hostile import OPTIONS, measure_hostile
from relograph.serving.load.overhead import measure_overhead
from relograph.serving.load.overload import measure_overload
from relograph.serving.load.place import Place, make_place
from relograph.serving.load.server import RunningServer, running_server
from relograph.serving.running import listen
from rooms.tiny_rooms import tiny_atlas

REPOSITORY = Path(__file__).parents[2]
FIELDS = {"num_references": 1}
"""Of queries: as little work for the model as there can be."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Services are processes of their own, and tests run side by side."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A small room whose photos the package's weights localize."""
    return make_place(
        tmp_path_factory.mktemp("load"),
        load_match_gnn(),
        num_views=8,
        num_photos=4,
        photo_hw=(240, 320),
        num_references=1,
        atlas=tiny_atlas(),
    )


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    """A service that answers one request over each connection, and closes it in silence a little later."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setattr(asking, "FRESH_S", 0.01)
    with listening, asking.Client(listening.getsockname()[1]) as client:
        assert client.get("/").status == 200
        time.sleep(0.1)
        assert client.get("/").status == 200
        thread.join()


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[RunningServer]:
    with running_server(place.map, options={**OPTIONS, "queue": 2}, with_keys=True) as server:
        yield server


# What the service does


def test_no_answer_waits_for_its_first_lines_to_be_confirmed():
    async def option_of_a_connection() -> int:
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen(ServeConfig(maps=("kitchen.map",), port=0)) as listening:
            async with await asyncio.start_server(connected, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                no_delay = await made
                writer.close()
        return no_delay

    assert asyncio.run(option_of_a_connection())


def test_what_the_service_adds_is_what_the_model_does_not_take(server: RunningServer, place: Place):
    query, *others = measure_overhead(server, place.photos, num_queries=3, **FIELDS)
    assert query.requests == 3
    assert 0 < query.decode_p50_ms < query.p50_ms <= query.p99_ms
    assert query.p50_ms < query.total_p50_ms
    assert [row.request for row in others] == ["GET /healthz", "GET /v1/maps"]
    assert all(0 < row.p50_ms < query.total_p50_ms for row in others)


def test_what_is_too_much_is_refused_and_the_rest_answered_rightly(
    server: RunningServer, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(overload, "TIMES_THE_BEST", 6.0)  # to fill the queue in no time
    row = measure_overload(server, place.photos, workers=1, step_s=1.0, seconds=3.0, clients=(1,), **FIELDS)
    assert set(row.statuses) == {"200", "429"}
    assert (row.wrong_answers, row.refused_without_retry_after) == (0, 0)
    assert row.offered_per_second > row.best_per_second
    assert row.answered_per_second > 0
    assert row.photos_together == 1.0  # on a CPU
    assert row.refused_p50_ms is not None
    assert row.refused_p50_ms < row.accepted_p50_ms
    assert row.rss_first_mb > 100  # torch alone is more


def test_hostile_requests_leave_no_error_no_file_and_no_wrong_answer_behind(server: RunningServer, place: Place):
    row = measure_hostile(server, place.photos, num_requests=160, seed=0, **FIELDS)
    assert row.requests == 160
    assert (row.server_errors, row.never_ended, row.told_internals, row.tracebacks) == (0, 0, 0, 0), row.examples
    assert row.let_in == 0, row.examples
    assert {"401"} <= set(row.by_kind["without the right key"]) <= {"401", "403", "closed"}
    assert row.by_kind["burst"]["429"] > 0
    assert row.is_alive
    assert row.right_after
    assert row.open_files_last <= row.open_files_first
    assert {"within the schema", "mutated image", "path trick", "slow sender"} <= set(row.by_kind)
    assert sum(sum(counts.values()) for counts in row.by_kind.values()) == sum(row.statuses.values()) >= 160


def test_killed_workers_are_replaced_and_answer_nothing_wrongly(place: Place):
    with running_server(place.map, workers=2) as server:
        before = set(server.workers())
        row = measure_killed_worker(server, place.photos, workers=2, seconds=6.0, **FIELDS)
        assert len(before) == 2
        assert not before & set(server.workers())
    assert row.answers_before > 0
    assert row.answers_between > 0
    assert row.answers_after > 0
    assert row.wrong_answers == 0
    assert set(row.statuses) <= {"200", "broken"}


def test_a_database_that_comes_back_is_asked_again(place: Place):
    with (
        map_in_postgres(place.map) as (postgres, address),
        running_server(address, options={"poll_s": 0.1}) as server,
    ):
        row = measure_database(server, postgres, place.photos, seconds=4.5, **FIELDS)
    assert set(row.statuses_before) == {"200"}
    assert row.statuses_stopped["503"] > 0
    assert set(row.statuses_after) == {"200"}
    assert row.wrong_answers == 0


# What is sent


def test_the_same_seed_makes_the_same_attacks(place: Place):
    schema = json.loads((REPOSITORY / "docs" / "openapi.json").read_text(encoding="utf-8"))
    first, again, other = (
        [attack.pieces for attack in attacks.attacks(60, place.photos[0], schema, seed=seed)] for seed in (0, 0, 1)
    )
    assert len(first) == 60
    assert first == again
    assert first != other


@pytest.mark.parametrize("maker", attacks.SHARES, ids=lambda maker: maker.__name__)
def test_every_kind_of_attack_differs_from_one_to_the_next(maker: Any, place: Place):
    made = [maker(Random(number), place.photos[0]) for number in range(20)]
    assert len({attack.pieces for attack in made}) > 1
    assert len({attack.kind for attack in made}) == 1


def test_an_answer_to_somebody_without_the_right_key_is_counted(place: Place):
    seen = hostile._Seen()
    attack = attacks.without_the_right_key(Random(0), place.photos[0])
    seen.add(attack, attack.refusals, b"")
    assert seen.let_in == 0
    seen.add(attack, ["200"], b"")
    assert seen.let_in == 1


# What is said


def test_a_pose_is_right_within_ten_centimetres_and_five_degrees(place: Place):
    photo = place.photos[0]

    def told(axis_angle: list[float], off_m: float) -> list[list[float]]:
        moved = photo.T_world_cam @ Pose.from_axis_angle(axis_angle, [off_m, 0.0, 0.0])
        return moved.matrix().tolist()  # type: ignore[no-any-return]

    assert photo.is_right(told([0.0, 0.0, 0.0], 0.09))
    assert not photo.is_right(told([0.0, 0.0, 0.0], 0.11))
    assert photo.is_right(told([0.0, 0.08, 0.0], 0.0))
    assert not photo.is_right(told([0.0, 0.09, 0.0], 0.0))
    assert not photo.is_right(None)


def test_growth_is_the_slope_of_memory():
    samples = [(second, 500.0 + 0.5 * second) for second in range(100)]
    assert overload._slope_per_minute(samples) == pytest.approx(30.0)
    assert overload._slope_per_minute([(second, 500.0) for second in range(100)]) == 0.0


def test_a_missed_bar_is_said(place: Place):
    row = {
        "part": "overhead",
        "request": "POST localize",
        "requests": 10,
        "total_p50_ms": 300.0,
        "p50_ms": 4.0,
        "p99_ms": 14.0,
        "decode_p50_ms": 1.0,
    }
    assert load_table([row]).endswith("| yes |")
    assert load_table([{**row, "p99_ms": 15.5}]).endswith("| **no** |")
    assert load_table([{**row, "p50_ms": 5.5}]).endswith("| **no** |")


def test_the_benchmark_keeps_what_each_part_found(place: Place):
    kept: list[int] = []
    config = LoadConfig(parts=("overhead",), queries=1, num_references=1)
    rows = benchmark_serve(config, place=place, keep=lambda rows: kept.append(len(rows)))
    assert kept == [3]
    assert [row["part"] for row in rows] == ["overhead"] * 3
    assert "GET /healthz, 5 times" in load_table(rows)


def test_parts_that_there_are_not_are_refused():
    with pytest.raises(ConfigError, match=r"expected parts among overhead, .* got 'underload'"):
        LoadConfig(parts=("underload",))
    with pytest.raises(ConfigError, match="expected 2 or more --workers"):
        LoadConfig(workers=1)
    done = CliRunner().invoke(app, ["bench", "serve", "--part", "underload"])
    assert done.exit_code == 1


def test_the_page_tells_of_a_gpu_what_was_measured_or_that_nothing_was(tmp_path: Path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    page, missing = tmp_path / "docs" / "load.md", "On a GPU this has not been measured yet"
    page.write_text("<!-- serve-benchmark begins --><!-- serve-benchmark ends -->")
    document = json.loads((REPOSITORY / "results" / "serve_cpu_overload.json").read_text())
    (tmp_path / "results" / "serve_cpu.json").write_text(json.dumps(document))
    write_load_page(tmp_path / "results", tmp_path / "docs")
    assert missing in page.read_text()
    document["metadata"] |= {"device": "cuda", "device_name": "NVIDIA H200"}
    (tmp_path / "results" / "serve_h200.json").write_text(json.dumps(document))
    write_load_page(tmp_path / "results", tmp_path / "docs")
    assert missing not in page.read_text()
    assert "NVIDIA H200, 2 cores" in page.read_text()


def test_the_page_says_what_the_results_say():
    assert write_load_page(REPOSITORY / "results", REPOSITORY / "docs", check=True) == []
