"""Frames as tensors: what joins, what moves, and what a graph of rows holds."""

import pytest
import torch
from numpy.testing import assert_array_equal

from relograph.geometry import Pose
from relograph.graphs import PosedImages, gather_graphs


def frames_of(scene_names: tuple[str, ...], scene_idx: list[int], sequence_idx: list[int], first: int) -> PosedImages:
    """Frames numbered from `first`: the number is the colour, the x of the camera and the name."""
    count = len(scene_idx)
    numbers = torch.arange(first, first + count)
    t = torch.zeros(count, 3)
    t[:, 0] = numbers
    return PosedImages(
        images=numbers.to(torch.uint8)[:, None, None, None].expand(-1, 4, 5, 3).clone(),
        T_world_cam=Pose.from_axis_angle(torch.zeros(count, 3), t),
        scene_idx=torch.tensor(scene_idx, dtype=torch.long),
        sequence_idx=torch.tensor(sequence_idx, dtype=torch.long),
        in_map=numbers % 2 == 0,
        names=tuple(f"frame {number}" for number in numbers.tolist()),
        scene_names=scene_names,
    )


@pytest.fixture
def joined() -> PosedImages:
    """Frames 0-3 of two scenes, 4 and 5 of the second of them again, and 6 of a third."""
    return PosedImages.cat(
        [
            frames_of(("kitchen", "hall"), [0, 0, 1, 1], [0, 0, 1, 2], first=0),
            frames_of(("hall",), [0, 0], [0, 1], first=4),
            frames_of(("attic",), [0], [0], first=6),
        ]
    )


def test_scenes_of_one_name_become_one_scene(joined: PosedImages) -> None:
    assert joined.scene_names == ("kitchen", "hall", "attic")
    assert_array_equal(joined.scene_idx, [0, 0, 1, 1, 1, 1, 2])


def test_sequences_never_become_one(joined: PosedImages) -> None:
    assert_array_equal(joined.sequence_idx, [0, 0, 1, 2, 3, 4, 5])


def test_every_frame_keeps_what_is_its_own(joined: PosedImages) -> None:
    assert len(joined) == 7
    for number in range(7):
        assert (joined.images[number] == number).all()
        assert joined.T_world_cam.t[number, 0] == number
        assert joined.names[number] == f"frame {number}"
        assert bool(joined.in_map[number]) == (number % 2 == 0)


def test_one_set_joined_alone_is_not_copied() -> None:
    alone = frames_of(("kitchen",), [0], [0], first=0)
    assert PosedImages.cat([alone]).images is alone.images  # a memory-mapped file stays one


def test_a_set_without_frames_adds_nothing() -> None:
    one = frames_of(("kitchen",), [0, 0], [0, 1], first=0)
    nothing = frames_of(("kitchen",), [], [], first=0)
    nothing = PosedImages(
        **{**vars(nothing), "scene_idx": torch.zeros(0).long(), "sequence_idx": torch.zeros(0).long()}
    )
    joined = PosedImages.cat([one, nothing, one])
    assert_array_equal(joined.sequence_idx, [0, 1, 2, 3])


def test_frames_move_to_a_device_and_may_leave_their_images_behind(joined: PosedImages) -> None:
    moved = joined.to("meta", images_too=False)
    assert moved.images is joined.images
    for tensor in (moved.T_world_cam.R, moved.T_world_cam.t, moved.scene_idx, moved.sequence_idx, moved.in_map):
        assert tensor.device.type == "meta"
    assert joined.to("meta").images.device.type == "meta"
    assert moved.names == joined.names


# Graphs


def test_a_graph_holds_the_frames_of_its_rows(joined: PosedImages) -> None:
    rows = torch.tensor([[2, 5, 4], [6, 0, 1]])
    graphs = gather_graphs(joined, rows)
    assert_array_equal(graphs.images[:, :, 0, 0, 0], rows)
    assert_array_equal(graphs.T_world_cam.t[..., 0], rows)
    assert graphs.node_mask.all()
    assert_array_equal(graphs.scene_idx, [1, 2])
    assert graphs.rows.equal(rows)
    assert graphs.overlap is None


def test_where_a_graph_has_no_more_frames_the_query_stands_in_and_is_masked(joined: PosedImages) -> None:
    graphs = gather_graphs(joined, torch.tensor([[3, 2, -1], [6, -1, -1]]))
    assert_array_equal(graphs.node_mask, [[True, True, False], [True, False, False]])
    assert_array_equal(graphs.images[:, :, 0, 0, 0], [[3, 2, 3], [6, 6, 6]])
    assert graphs.T_world_cam.t.isfinite().all()
    assert_array_equal(graphs.rows, [[3, 2, -1], [6, -1, -1]])
