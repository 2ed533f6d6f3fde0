"""Where graphs come from: which queries and references a step shows, to one process and to several."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from numpy.testing import assert_array_equal
from tiny_trainings import random_descriptors, tiny_data
from torch import Tensor

from relograph.graphs import GraphBatch
from relograph.retrieval import frustum_overlap, rank_references
from relograph.rooms import StreamConfig
from relograph.rooms.photograph import Effects
from relograph.rooms.textures import TextureAtlas
from relograph.training.config import GraphConfig
from relograph.training.data import RelocalizationData
from relograph.training.sources import SceneGraphs, StreamGraphs, generator_for, one_ahead, smaller

DATA = tiny_data({"kitchen": {"train": 12, "held out": 3, "test": 4}, "hall": {"train": 9, "test": 3}})


def graphs_of(data: RelocalizationData = DATA, **options: object) -> SceneGraphs:
    """The graphs of all training frames, 4 in a step; the options are those of `SceneGraphs`."""
    rows = data.train_rows(data.frames.scene_names)
    database = torch.zeros_like(data.is_test)
    database[rows] = True
    config = options.pop("config", GraphConfig(num_nodes=3, stride=2))
    ranked = rank_references(
        rows,
        database,
        random_descriptors(data),
        data.frames.scene_idx,
        data.frames.sequence_idx,
        length=config.num_references * config.stride,
    )
    given = {"batch_size": 4, "steps_per_epoch": -(-len(rows) // 4), "seed": 0, **options}
    return SceneGraphs(data.frames, rows, database, ranked, config, **given)


def queries_of_epoch(source: SceneGraphs, epoch: int) -> list[int]:
    steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
    return torch.cat([source.rows(step)[:, 0] for step in steps]).tolist()


# Queries


def test_an_epoch_shows_every_training_frame_in_an_order_of_its_own() -> None:
    source = graphs_of()
    training_frames = DATA.train_rows(DATA.frames.scene_names).tolist()
    first, second = queries_of_epoch(source, 0), queries_of_epoch(source, 1)
    assert len(training_frames) == 21
    # 6 steps of 4 show 24 queries: three of them come a second time.
    assert sorted(set(first)) == sorted(set(second)) == training_frames
    assert len(first) == 24
    assert first != second
    assert first[:21] != training_frames


def test_a_seed_decides_the_order() -> None:
    assert queries_of_epoch(graphs_of(), 0) == queries_of_epoch(graphs_of(), 0)
    assert queries_of_epoch(graphs_of(), 0) != queries_of_epoch(graphs_of(seed=1), 0)


def test_an_epoch_may_be_longer_than_the_data() -> None:
    shown = queries_of_epoch(graphs_of(steps_per_epoch=11), 0)
    times = torch.bincount(torch.tensor(shown))
    assert len(shown) == 44
    assert set(times[times > 0].tolist()) == {2, 3}


def test_every_step_can_be_asked_for_again() -> None:
    source = graphs_of()
    from_the_start = [batch.rows for batch in islice(source.batches(0), 9)]
    from_the_fifth = [batch.rows for batch in islice(source.batches(5), 4)]
    for one, other in zip(from_the_start[5:], from_the_fifth, strict=True):
        assert torch.equal(one, other)


# References


@pytest.mark.parametrize("selection", ["retrieval", "random", "sequence"])
def test_references_are_training_frames_of_the_querys_scene_and_never_the_query(selection: str) -> None:
    source = graphs_of(config=GraphConfig(num_nodes=4, stride=2, selection=selection))
    for step in range(20):
        for query, *references in source.rows(step).tolist():
            there = [row for row in references if row >= 0]
            assert there
            assert query not in there
            assert len(set(there)) == len(there)
            assert source.database[there].all()
            assert (DATA.frames.scene_idx[there] == DATA.frames.scene_idx[query]).all()


def test_the_offset_into_the_ranking_is_drawn_anew_for_every_graph() -> None:
    source = graphs_of()
    offsets = []
    for step in range(30):
        for query, *references in source.rows(step).tolist():
            ranking = source.ranked[(source.query_rows == query).nonzero().item()].tolist()
            places = [ranking.index(row) for row in references]
            assert places[1] - places[0] == 2  # the stride
            offsets.append(places[0])
    assert set(offsets) == {0, 1}
    assert 0.35 < sum(offsets) / len(offsets) < 0.65  # 120 throws of a coin: more than three standard deviations


def test_random_references_change_from_step_to_step() -> None:
    source = graphs_of(config=GraphConfig(num_nodes=3, selection="random"))
    references_by_query: dict[int, set[tuple[int, ...]]] = {}
    for step in range(30):
        for query, *references in source.rows(step).tolist():
            references_by_query.setdefault(query, set()).add(tuple(references))
    assert all(len(seen) > 1 for seen in references_by_query.values())


def test_a_graph_alone_is_its_query() -> None:
    source = graphs_of(config=GraphConfig(num_nodes=1, selection="alone"))
    assert source.rows(0).shape == (4, 1)


def test_windows_of_a_sequence_hold_no_frame_that_is_tested_or_held_out() -> None:
    # One walk: its middle is the test, its end is held out, as in a folder of photos without sequences.
    data = tiny_data({"garden": {"train": 12}})
    data = replace(data, is_test=data.is_test.clone(), held_out=data.held_out.clone())
    data.is_test[4:6] = True
    data.held_out[10:] = True
    source = graphs_of(data, config=GraphConfig(num_nodes=4, selection="sequence"))
    rows = torch.cat([source.rows(step) for step in range(source.steps_per_epoch)])
    assert rows.unique().tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    neighbours_of = {query: set(others) for query, *others in rows.tolist()}
    assert neighbours_of[9] == {6, 7, 8}
    assert neighbours_of[3] == {2, 6, 7}  # the frames around it, over what is left out


# What a batch holds


def test_a_batch_is_gathered_from_its_rows() -> None:
    source = graphs_of()
    batch = next(source.batches(3))
    assert torch.equal(batch.rows, source.rows(3))
    assert torch.equal(batch.images, DATA.frames.images[batch.rows])
    assert torch.equal(batch.T_world_cam.t, DATA.frames.T_world_cam.t[batch.rows])
    assert batch.overlap is None


def test_overlap_is_worked_out_from_the_poses_where_it_is_asked_for() -> None:
    batch = next(graphs_of(with_overlap=True).batches(0))
    for graph in range(4):
        for node in range(3):
            expected = frustum_overlap(batch.T_world_cam[graph, 0], batch.T_world_cam[graph, node])
            torch.testing.assert_close(batch.overlap[graph, node], expected)
    torch.testing.assert_close(batch.overlap[:, 0], torch.ones(4))


def test_a_step_names_the_frames_it_shows() -> None:
    data = tiny_data({"kitchen": {"train": 2}})
    source = graphs_of(data, config=GraphConfig(num_nodes=4), batch_size=2, steps_per_epoch=1)
    names = source.frame_names(0)  # two graphs of four, with two frames each to fill them
    assert sorted(names) == sorted(2 * [f"kitchen/seq-00/frame-00000{frame}.color.png" for frame in (0, 1)])


# Several processes


def shares(step: int, selection: str, world_size: int = 2) -> list[Tensor]:
    config = GraphConfig(num_nodes=3, stride=2, selection=selection)
    return [graphs_of(config=config, rank=rank, world_size=world_size).rows(step) for rank in range(world_size)]


@pytest.mark.parametrize("selection", ["retrieval", "random", "sequence", "alone"])
def test_the_shares_of_several_processes_are_the_batch_of_one(selection: str) -> None:
    for step in range(8):
        assert_array_equal(torch.cat(shares(step, selection)), shares(step, selection, world_size=1)[0])


def test_every_process_knows_the_names_of_the_whole_batch() -> None:
    alone, *together = (graphs_of(rank=rank, world_size=size) for rank, size in ((0, 1), (0, 2), (1, 2)))
    for source in together:
        assert source.frame_names(2) == alone.frame_names(2)


# Random numbers


def test_every_use_of_randomness_has_numbers_of_its_own() -> None:
    drawn = {
        (seed, use, step): torch.rand(1, generator=generator_for(seed, use, step)).item()
        for seed in range(3)
        for use in range(3)
        for step in range(3)
    }
    assert len(set(drawn.values())) == 27
    assert torch.rand(1, generator=generator_for(1, 2, 0)).item() == drawn[1, 2, 0]


# Rooms without end


STREAM = StreamConfig(
    image_height=48,
    image_width=64,
    graphs_per_batch=2,
    num_nodes=3,
    num_homes=1,
    views_per_home=8,
    effects=Effects.none(),
)


def first_batch(atlas: TextureAtlas, *, first_step: int = 0, rank: int = 0) -> GraphBatch:
    source = StreamGraphs(STREAM, 5, torch.device("cpu"), atlas, rank=rank, image_height=24)
    return next(source.batches(first_step))


@pytest.fixture(scope="module")
def streamed(few_textures: TextureAtlas) -> GraphBatch:
    return first_batch(few_textures)


def test_streamed_graphs_are_whole_and_smaller_where_asked(streamed: GraphBatch) -> None:
    assert streamed.images.shape == (2, 3, 24, 32, 3)
    assert streamed.node_mask.all()
    assert_array_equal(streamed.overlap[:, 0], [1.0, 1.0])
    assert streamed.images.float().std(dim=(2, 3, 4)).min() > 2  # no image is blank


def test_processes_and_restarts_see_other_rooms(streamed: GraphBatch, few_textures: TextureAtlas) -> None:
    others = [first_batch(few_textures, rank=1), first_batch(few_textures, first_step=7)]
    for other in others:
        assert (other.images != streamed.images).float().mean() > 0.5
    assert (others[0].images != others[1].images).float().mean() > 0.5
    assert torch.equal(first_batch(few_textures).images, streamed.images)


def test_a_smaller_image_averages_the_pixels_it_covers() -> None:
    images = torch.zeros(1, 1, 4, 8, 3, dtype=torch.uint8)
    images[0, 0, :2, 2:4] = torch.tensor(
        [[[10, 20, 30], [30, 20, 10]], [[10, 20, 30], [30, 20, 10]]], dtype=torch.uint8
    )
    shrunk = smaller(images, 2)
    assert shrunk.shape == (1, 1, 2, 4, 3)
    assert shrunk[0, 0, 0].tolist() == [[0, 0, 0], [20, 20, 20], [0, 0, 0], [0, 0, 0]]
    assert shrunk[0, 0, 1].sum() == 0


def test_batches_that_are_read_ahead_are_the_same_ones() -> None:
    source = graphs_of()
    plain, ahead = (list(islice(batches, 4)) for batches in (source.batches(2), one_ahead(source.batches(2))))
    for one, other in zip(plain, ahead, strict=True):
        assert_array_equal(one.rows, other.rows)
        assert_array_equal(one.images, other.images)
