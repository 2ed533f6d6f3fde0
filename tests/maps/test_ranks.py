"""Two real processes make the map that one would have made, in a folder and in PostgreSQL."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import two_ranks
from made_maps import contents, no_network
from PIL import Image
from postgres_server import Server

from relograph.errors import DatasetError, GeometryError
from relograph.maps import Map, ranks
from relograph.maps.adding import EncodedPhotos
from relograph.scenes import Scene, open_scene

pytestmark = pytest.mark.usefixtures("generated")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """22 photos: five whole shards of four and half of one."""
    folder = tmp_path / "hall" / "seq-01"
    folder.mkdir(parents=True)
    (folder.parent / "TrainSplit.txt").write_text("sequence1\n")
    for number in range(22):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"frame-{number:06d}.color.png")
        T_world_cam = np.eye(4)
        T_world_cam[0, 3] = 0.1 * number
        np.savetxt(folder / f"frame-{number:06d}.pose.txt", T_world_cam)
    return open_scene(folder.parent)


def start(command: list[str], *arguments: object, **variables: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(Path(two_ranks.__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, *command, two_ranks.__file__, "map", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_make_the_map_of_one(server: Server, scene: Scene, tmp_path: Path):
    place = server.new_database()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with start(launcher, "create", place, scene.root) as torchrun:
        said, errors = torchrun.communicate(timeout=300)
    assert torchrun.returncode == 0, errors[-3000:]
    alone, together = Map.create(tmp_path / "alone", scene, network=no_network()), Map.open(place)
    assert said == f"{together.store.where}: 22 photos.\n"
    assert together.frames == alone.frames
    assert contents(together) == contents(alone)
    assert together.verify().is_whole


def test_a_killed_process_leaves_a_whole_map_to_which_the_rest_is_added(scene: Scene, tmp_path: Path):
    place = tmp_path / "m"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    doomed = {two_ranks.SHARDS_UNTIL_DEATH: "1"}
    with (
        start([], "create", place, scene.root, RANK="0", **group) as first,
        start([], "create", place, scene.root, RANK="1", **group, **doomed) as second,
    ):
        _, errors = first.communicate(timeout=300)
        second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (1, -signal.SIGKILL)
    assert "error: expected process 1 to go on, found it gone. The map is whole" in errors
    assert "Traceback" not in errors
    some, alone = Map.open(place, network=no_network()), Map.create(tmp_path / "alone", scene, network=no_network())
    assert some.verify().is_whole
    assert 0 < len(some) < 22
    assert some.frames == alone.frames[: len(some)]
    some.add(scene)
    assert contents(some) == contents(alone)


def test_what_goes_from_process_to_process_arrives_as_it_was(scene: Scene, tmp_path: Path):
    alone = Map.create(tmp_path / "alone", scene, network=no_network())
    frames = tuple(frame for frame in alone if frame.shard == alone.frames[0].shard)
    sent = EncodedPhotos(
        frames,
        tuple(shard.whole() for shard in alone.shards(frames).values()),
        3,
        (DatasetError("no photo"), GeometryError("no pose")),
    )
    came = ranks._from_bytes(ranks._to_bytes(sent))
    assert came.frames == sent.frames
    assert [shard.sha256 for shard in came.shards] == [frames[0].shard]
    assert came.num_there == 3
    assert [(type(error), str(error)) for error in came.bad] == [(DatasetError, "no photo"), (GeometryError, "no pose")]
