"""Kills a process that changes a map, again and again, and looks what is left: `make crash-test`.

The writer tells in a log what it is about to do, with all photos before and after, and when it is done. After a kill
the map must be whole and hold what the last finished change left, or what the one that was cut off would have left;
of photos that are added a shard at a time, any whole number of shards. All of them must be found, also where the index
was left behind. A copy is there as a whole or not at all.

The maps are folders, or databases of a real server with `--postgresql`: then it is the writer that is killed, not the
server, and copies go from there to folders and back.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
import torch
from made_maps import descriptors_of, no_network, photos, use_generated_features, use_small_indices
from postgres_server import Server

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.maps import Map, Similarity
from relograph.maps.places import PostgresAddress, parse_place
from relograph.maps.postgres_store import PostgresStore
from relograph.maps.records import frame_poses
from relograph.maps.thinning import choose_spread_out
from relograph.retrieval import ExactIndex

State = dict[str, float]
"""Where photos stand along x, by name."""

KINDS = ("add", "remove", "merge", "compact", "thin", "copy")
MADE = ("create", "create before there was a map")
MANY = 100
"""Kills among which every kind of change must be cut off at least once."""
PHOTOS_PER_SHARD = 4
LONGEST_WAIT_S = {"folder": 0.25, "postgresql": 1.0}
"""Until a kill: several changes."""
ASIDE_M = 100.0
T_ASIDE = Similarity(Pose.from_axis_angle([0.0, 0.0, 0.0], [ASIDE_M, 0.0, 0.0]))


def state_of(some: Map) -> State:
    return {frame.name: round(frame.cam_center_world[0], 6) for frame in some.frames}


def main(num_kills: int, seed: int, server: Server | None = None) -> str:
    use_generated_features(pytest.MonkeyPatch(), photos_per_shard=PHOTOS_PER_SHARD)
    use_small_indices(pytest.MonkeyPatch(), exact_up_to=6, waiting_rows=4)
    rng = random.Random(seed)
    cut_off: Counter[str] = Counter()
    num_garbage = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        other = Map.create(root / "other", photos(6, first=900, prefix="other/"), network=no_network())
        place, number = new_place(root, server), 0
        for kill in count():
            # Removing takes so little time that a kill may miss it a hundred times: then there are more.
            is_enough = num_kills < MANY or (
                all(cut_off[kind] for kind in KINDS) and any(cut_off[kind] for kind in MADE)
            )
            if kill >= num_kills and is_enough:
                break
            assert kill < 5 * num_kills, f"some change was never cut off: {cut_off}"
            if kill % 10 == 9:  # a new map now and then, as making one is cut off too
                number += 1
                place = new_place(root, server, number)
            log = root / f"log-{kill}"
            writer = os.fork()
            if writer == 0:
                try:
                    change_forever(place, other, log, random.Random(rng.random()))
                except BaseException as error:
                    log.open("a").write(json.dumps({"failed": repr(error)}) + "\n")
                    os._exit(1)
            while not log.exists():
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, LONGEST_WAIT_S["folder" if server is None else "postgresql"]))
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            told = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
            assert not any("failed" in line for line in told), told[-1]
            num_garbage += check(place, told, cut_off)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(cut_off.items()))
    return f"{kill} kills: {kinds}; {num_garbage} left garbage. Every map was whole, no committed photo was lost."


def new_place(root: Path, server: Server | None, number: int = 0) -> str:
    return str(root / f"map-{number}") if server is None else server.new_database()


def change_forever(place: str, other: Map, log: Path, rng: random.Random) -> None:
    def tell(**told: object) -> None:
        with log.open("a") as file:
            file.write(json.dumps(told) + "\n")

    try:
        some = Map.open(place, network=no_network())
        state = state_of(some)
    except DatasetError:
        is_copy = rng.random() < 0.5
        new = photos(6)
        state = {photo.name: float(photo.T_world_cam.t[0].round(decimals=6)) for photo in new}
        if is_copy:
            state = state_of(other)
            tell(begin="copy here", before={}, after=state)
            some = Map(other.copy(place).store, no_network())
        else:
            tell(begin="create", before={}, after=state)
            some = Map.create(place, new, network=no_network())
        tell(done="create")
    first = 1000 * rng.randrange(1, 10**6)
    while True:
        first += 20
        kind = rng.choice(("add", *KINDS))
        after = dict(state)
        if kind == "add":
            new = photos(rng.randrange(1, 10), first=first)
            after |= {photo.name: round(float(photo.T_world_cam.t[0]), 6) for photo in new}
            tell(begin=kind, before=state, after=after)
            some.add(new)
        elif kind == "merge":
            after |= {f"{first}/{name}": round(x + ASIDE_M, 6) for name, x in state_of(other).items()}
            tell(begin=kind, before=state, after=after)
            some.merge(other, T_ASIDE, prefix=f"{first}/")
        elif kind == "copy":
            target = log.with_name(f"{log.name}-copy-{first}")
            tell(begin=kind, before=state, after=after, target=str(target))
            some.copy(target)
        elif kind == "compact":
            tell(begin=kind, before=state, after=after)
            some.compact()
        elif len(state) <= 1:
            continue
        elif kind == "thin":
            kept = choose_spread_out(frame_poses(some.frames), len(state) // 2)
            after = {some.frames[row].name: state[some.frames[row].name] for row in kept}
            tell(begin=kind, before=state, after=after)
            some.compact(len(kept))
        else:
            gone = rng.sample(sorted(state), len(state) // 2)
            after = {name: x for name, x in state.items() if name not in gone}
            tell(begin=kind, before=state, after=after)
            some.remove(gone)
        state = after
        tell(done=kind)


def check(place: str, told: list[dict[str, object]], cut_off: Counter[str]) -> bool:
    """Raises unless the map is what it may be after the kill; says whether garbage was left."""
    if not told:
        return False
    *_, last = (line for line in told if "begin" in line)
    is_done = "done" in told[-1]
    kind, before, after = str(last["begin"]), dict(last["before"]), dict(last["after"])
    wait_for_the_end(place)
    if "target" in last:
        check_copy(Path(str(last["target"])), after, is_done, cut_off)
    try:
        reopened = Map.open(place, network=no_network())
    except DatasetError:
        if kind not in ("create", "copy here") or is_done:
            raise
        cut_off[f"{kind} before there was a map"] += 1
        return False
    report = reopened.verify()
    assert report.is_whole, report
    found = state_of(reopened)
    assert len(reopened.features) == len(found)
    check_finding(reopened, cut_off)
    if is_done:
        assert found == after, (kind, found, after)
        cut_off["between changes"] += 1
        return bool(report.garbage)
    cut_off[kind] += 1
    if kind in ("add", "create"):
        assert before.items() <= found.items() <= after.items(), (kind, before, found, after)
        new = [name for name in after if name not in before]
        num_new = len(found) - len(before)
        assert set(found) == {*before, *new[:num_new]}, "photos are added in their order"
        assert num_new % PHOTOS_PER_SHARD == 0 or num_new == len(new), "a part of a shard is there"
    else:
        assert found in (before, after), (kind, before, found, after)
    return bool(report.garbage)


def wait_for_the_end(place: str) -> None:
    """A server may be about to commit what the killed writer asked for last."""
    parsed = parse_place(place)
    if isinstance(parsed, PostgresAddress):
        with PostgresStore(parsed)._writing():
            """Nobody else is writing now."""


def check_copy(target: Path, expected: State, is_done: bool, cut_off: Counter[str]) -> None:
    try:
        copy = Map.open(target)
    except DatasetError:
        assert not is_done
        cut_off["copy before there was one"] += 1
        return
    assert state_of(copy) == expected
    assert copy.verify().is_whole


def check_finding(some: Map, cut_off: Counter[str]) -> None:
    """Raises unless every photo is found by its descriptor, through the index as by comparing all."""
    if some.features.finder is None:
        return
    cut_off["with an index"] += 1
    descriptors = descriptors_of(some)
    exact = ExactIndex(descriptors)
    for descriptor in descriptors:
        expected = exact.search(descriptor[None], 3)
        rows, similarity = some.features.nearest(descriptor, 3)  # copies of a photo stand in any order
        torch.testing.assert_close(similarity, expected.similarity[0], atol=2e-3, rtol=0)
        torch.testing.assert_close(descriptors[rows], descriptors[expected.row[0]])


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: none of them holds anything of ours
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgresql", action="store_true")
    given = parser.parse_args()
    server = Server() if given.postgresql else None
    print(main(given.kills, given.seed, server))  # noqa: T201
    if server is not None:
        server.close()
