"""Frames from one map into another, or packed anew within one: features are copied, never computed again."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from relograph.errors import CheckpointError
from relograph.maps.records import MapFrame, MapSettings, frame_poses, frames_by_shard, with_poses
from relograph.maps.shards import PHOTOS_PER_SHARD, Shard, damaged
from relograph.maps.similarity import Similarity
from relograph.maps.store import Change, MapStore

Advance = Callable[[int], None]


def require_same_features(target: MapSettings, source: MapSettings) -> None:
    """Raises unless features of one map can stand beside those of the other."""
    for what, here, there in (
        ("weights", target.network_sha256[:12], source.network_sha256[:12]),
        ("precision", target.precision, source.precision),
        ("levels of features", ", ".join(target.levels), ", ".join(source.levels)),
    ):
        if here != there:
            raise CheckpointError(
                f"expected maps with features of the same {what}, found {here} and {there}. Make one of them again."
            )


def packed(source: MapStore, frames: Sequence[MapFrame], change: Change, advance: Advance) -> list[MapFrame]:
    """The frames with places in shards that hold these frames alone, and that `change` keeps.

    A shard all of whose rows are wanted stays as it is; rows of others are gathered into new ones. One shard and the
    one that is being filled are in memory at a time.
    """
    shards = source.shards(frames)
    new: dict[str, MapFrame] = {}
    waiting: dict[tuple[int, int], list[tuple[Shard, list[list[MapFrame]]]]] = {}

    def write(size_hw: tuple[int, int]) -> None:
        some = waiting.pop(size_hw)
        sha256 = change.put_shard(Shard.cat([shard for shard, _ in some]))
        for row, same_row in enumerate(same_row for _, frames_by_row in some for same_row in frames_by_row):
            new.update({frame.name: replace(frame, shard=sha256, shard_row=row) for frame in same_row})

    for (sha256, size_hw), its_frames in frames_by_shard(frames).items():
        shard = shards[sha256]
        by_row: dict[int, list[MapFrame]] = {}  # two frames may share a row: the same photo under two names
        for frame in its_frames:
            by_row.setdefault(frame.shard_row, []).append(frame)
        if len(by_row) == len(shard):
            if change.put_shard(shard.whole()) != sha256:
                raise damaged(f"shard {sha256[:12]}", ValueError("its bytes are not those that were written"))
            new |= {frame.name: frame for frame in its_frames}
        else:
            waiting.setdefault(size_hw, []).append((shard.take(list(by_row)), list(by_row.values())))
            if sum(len(shard) for shard, _ in waiting[size_hw]) >= PHOTOS_PER_SHARD:
                write(size_hw)
        advance(len(its_frames))
    for size_hw in list(waiting):
        write(size_hw)
    return [new[frame.name] for frame in frames]


def moved(frames: Sequence[MapFrame], T_new_world: Similarity) -> list[MapFrame]:
    """The frames in another world."""
    return with_poses(frames, T_new_world.move(frame_poses(frames)))
