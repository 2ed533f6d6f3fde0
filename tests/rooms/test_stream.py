"""RoomStream: graphs whose images, depths, poses and overlaps agree with one another, endless and repeatable."""

import multiprocessing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tiny_rooms import HEIGHT, WIDTH

from relograph.errors import ConfigError
from relograph.geometry import Camera
from relograph.graphs.correspondence import Lenses, cell_anchors, true_matches
from relograph.rooms import RoomStream, StreamBatch, StreamConfig, covisibility
from relograph.rooms import stream as stream_module
from relograph.rooms.layout import LayoutConfig, to_tensors
from relograph.rooms.photograph import Effects, grey, photograph
from relograph.rooms.raycast import Kernels, first_hits, pixel_centers, ray_directions
from relograph.rooms.seven_rooms import LAYOUT, make_room_home
from relograph.rooms.stream import furnish, grey_images
from relograph.rooms.world import Rooms, Views

TINY = StreamConfig(
    image_height=HEIGHT,
    image_width=WIDTH,
    graphs_per_batch=4,
    num_nodes=3,
    num_homes=2,
    views_per_home=24,
    homes_renewed_per_batch=0,
    effects=Effects.none(),
)


def batches(atlas, count: int, **options: object) -> list[StreamBatch]:
    return list(islice(RoomStream(replace(TINY, **options), atlas=atlas), count))


def views_of_batch(batch: StreamBatch, graph: int, node: int) -> Views:
    """One camera of a batch, as the ray caster knows it."""
    K = batch.K[graph, node]
    return Views(
        batch.T_world_cam.R[graph, node][None],
        batch.T_world_cam.t[graph, node][None],
        torch.stack([K[0, 0], K[1, 1]])[None],
        K[:2, 2][None],
        batch.distortion[graph, node][None],
    )


def camera_of_batch(batch: StreamBatch, graph: int, node: int) -> Camera:
    K, (k1, k2) = batch.K[graph, node].double(), batch.distortion[graph, node].double().tolist()
    height, width = batch.images.shape[-2:]
    return Camera(
        width, height, float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]), (k1, k2, 0.0, 0.0), "opencv"
    )


@pytest.fixture(scope="module")
def stream(atlas) -> list[StreamBatch]:
    """Two batches, at twice the usual size: enough pixels to compare views."""
    return batches(atlas, 2, image_height=2 * HEIGHT, image_width=2 * WIDTH, overlap=(0.3, 0.8))


def test_a_batch_has_the_shape_that_was_asked_for(atlas):
    (batch,) = batches(atlas, 1)
    assert batch.images.shape == (4, 3, 3, HEIGHT, WIDTH)
    assert batch.images.dtype == torch.uint8
    assert batch.depth_m.shape == (4, 3, HEIGHT, WIDTH)
    assert batch.T_world_cam.batch_shape == (4, 3)
    assert batch.K.shape == (4, 3, 3, 3)
    assert batch.overlap.shape == (4, 3)
    assert torch.isfinite(batch.depth_m).all()
    assert batch.depth_m.min() > 0
    assert batch.images.float().std(dim=(2, 3, 4)).min() > 2  # no image is blank


def test_a_seed_means_one_stream(atlas):
    small = {"graphs_per_batch": 2, "num_homes": 1, "effects": Effects()}
    first, again = (batches(atlas, 2, homes_renewed_per_batch=1, **small) for _ in range(2))
    (other,) = batches(atlas, 1, seed=1, **small)
    for one, same in zip(first, again, strict=True):
        assert torch.equal(one.images, same.images)
        assert torch.equal(one.T_world_cam.matrix(), same.T_world_cam.matrix())
        assert torch.equal(one.overlap, same.overlap)
    assert (first[0].images != other.images).float().mean() > 0.5


def test_an_iterator_begins_anew_and_leaves_others_alone(atlas):
    stream = RoomStream(replace(TINY, graphs_per_batch=2, num_homes=1), atlas=atlas)
    ahead, behind = iter(stream), iter(stream)
    first = next(ahead)
    next(ahead)
    assert torch.equal(next(behind).images, first.images)


def test_batches_differ_from_one_another(atlas):
    first, second = batches(atlas, 2, graphs_per_batch=2)
    assert (first.images != second.images).float().mean() > 0.5


def test_the_query_comes_first_and_sees_all_of_itself(stream):
    for batch in stream:
        assert_array_equal(batch.overlap[:, 0], 1)


def test_no_image_comes_twice_in_a_graph(stream):
    for batch in stream:
        centers = batch.T_world_cam.t
        apart = torch.cdist(centers, centers) + torch.eye(centers.shape[1])
        assert apart.min() > 1e-4


def test_neighbours_have_the_wanted_overlap_where_there_are_such_views(atlas):
    # With 24 views in a home nearly every query has two neighbours in this range.
    (batch,) = batches(atlas, 1, graphs_per_batch=16, overlap=(0.1, 0.9))
    wanted = (batch.overlap[:, 1:] >= 0.1) & (batch.overlap[:, 1:] <= 0.9)
    assert wanted.float().mean() > 0.85


def test_where_no_view_has_the_wanted_overlap_the_nearest_to_it_serve(atlas):
    def mean_overlap(low: float, high: float) -> float:
        (batch,) = batches(atlas, 1, views_per_home=12, num_nodes=2, overlap=(low, high))
        return float(batch.overlap[:, 1].mean())

    (all_views,) = batches(atlas, 1, views_per_home=12, num_nodes=12, overlap=(0.99, 1.0))
    assert_allclose(mean_overlap(0.99, 1.0), all_views.overlap[:, 1:].amax(dim=1).mean(), atol=0.02)
    assert mean_overlap(0.0, 0.01) < 0.02


def test_overlap_agrees_with_covisibility_at_full_resolution(stream):
    differences = []
    for batch in stream:
        for graph in range(4):
            query = views_of_batch(batch, graph, 0)
            for node in (1, 2):
                exact = covisibility(
                    query,
                    batch.depth_m[graph, :1],
                    views_of_batch(batch, graph, node),
                    batch.depth_m[graph, node : node + 1],
                )
                differences.append(float(batch.overlap[graph, node] - exact[0]))
    assert np.abs(differences).mean() < 0.05
    assert np.abs(differences).max() < 0.2


def test_depth_pose_and_intrinsics_carry_pixels_of_the_query_into_its_neighbours(stream):
    errors, seen = [], 0
    for batch in stream:
        for graph in range(4):
            camera = camera_of_batch(batch, graph, 0)
            in_query = camera.unproject(camera.pixel_grid()) * batch.depth_m[graph, 0].double()[..., None]
            world = batch.T_world_cam[graph, 0].to(torch.float64).apply(in_query.reshape(-1, 3))
            for node in (1, 2):
                in_neighbour = batch.T_world_cam[graph, node].to(torch.float64).inverse().apply(world)
                xy = camera_of_batch(batch, graph, node).project(in_neighbour)
                inside = (xy >= 0).all(dim=1) & (xy[:, 0] < camera.width) & (xy[:, 1] < camera.height)
                column, row = xy[inside].long().unbind(dim=1)
                z = in_neighbour[inside, 2]
                found = batch.depth_m[graph, node][row, column].double()
                unhidden = (z - found) < 0.1 * z  # the others are behind something
                errors.append(((z - found).abs() / z)[unhidden])
                share = float(inside.sum() * unhidden.double().mean() / inside.numel()) if inside.any() else 0.0
                seen += share > 0.2
    assert seen >= 8  # or there would be nothing to compare
    # Nearest pixels at 48 x 64: one or two percent on slanted surfaces; a wrong axis or pose would be tens of percent.
    assert torch.cat(errors).median() < 0.01
    assert torch.cat(errors).quantile(0.8) < 0.04


def test_rotations_are_proper_and_lenses_within_their_range(stream):
    for batch in stream:
        R = batch.T_world_cam.R
        assert_allclose(R.mT @ R, torch.eye(3).expand_as(R), atol=1e-5)
        assert (torch.linalg.det(R) > 0).all()
        focal = batch.K[..., 0, 0] / (2 * WIDTH)
        assert focal.min() >= 0.65
        assert focal.max() <= 1.25
        assert focal.std() > 0.05
        assert_array_equal(batch.K[..., 0, 2], WIDTH)
        assert_array_equal(batch.K[..., 1, 2], HEIGHT)
        assert batch.distortion[..., 0].abs().max() <= 0.05


def test_one_map_is_photographed_in_one_light_and_the_query_in_another(atlas, monkeypatch):
    light_gains = []

    def watched(rooms, views, atlas, optics, **options):
        light_gains.append(optics.light_gain.unflatten(0, (4, 3)))
        return photograph(rooms, views, atlas, optics, **options)

    monkeypatch.setattr(stream_module, "photograph", watched)
    batches(atlas, 1)
    (light_gain,) = light_gains
    assert torch.equal(light_gain[:, 1], light_gain[:, 2])
    assert ((light_gain[:, 0] - light_gain[:, 1]).abs().amax(dim=1) > 0.01).all()


def test_homes_are_renewed_oldest_first(atlas):
    def homes_of(renewed: int) -> list[set[float]]:
        # The pose of a camera tells its home: no two homes have the same.
        return [
            {round(x, 4) for x in batch.T_world_cam.t[..., 0].flatten().tolist()}
            for batch in batches(
                atlas, 2, homes_renewed_per_batch=renewed, graphs_per_batch=8, views_per_home=8, num_nodes=1
            )
        ]

    kept, renewed = homes_of(0), homes_of(2)
    assert kept[0] & kept[1]  # views come again
    assert not renewed[0] & renewed[1]  # both homes are new
    assert kept[0] == renewed[0]


def test_a_home_that_is_renewed_takes_its_views_and_overlaps_with_it(atlas):
    for batch in batches(atlas, 3, homes_renewed_per_batch=1, image_height=2 * HEIGHT, image_width=2 * WIDTH)[1:]:
        for graph in range(4):
            exact = covisibility(
                views_of_batch(batch, graph, 0),
                batch.depth_m[graph, :1],
                views_of_batch(batch, graph, 1),
                batch.depth_m[graph, 1:2],
            )
            assert abs(float(batch.overlap[graph, 1] - exact[0])) < 0.2


def test_a_stream_of_single_images_works_too(atlas):
    (batch,) = batches(atlas, 1, num_nodes=1)
    assert_array_equal(batch.overlap, np.ones((4, 1)))


@pytest.mark.parametrize(
    "options",
    [
        {"overlap": (0.5, 0.2)},
        {"overlap": (-0.1, 0.5)},
        {"overlap": (0.5, 1.5)},
        {"num_nodes": 0},
        {"num_nodes": 200},
        {"image_height": 0},
        {"graphs_per_batch": 0},
        {"num_homes": 0},
        {"graphs_per_home": 0},
        {"homes_renewed_per_batch": -1},
        {"homes_renewed_per_batch": 500},
        {"focal_range": (0.0, 1.0)},
        {"focal_range": (1.2, 0.6)},
        {"max_distortion": -0.1},
        {"max_distortion": 1.0},
    ],
)
def test_impossible_streams_are_refused_in_one_line(options):
    with pytest.raises(ConfigError) as caught:
        StreamConfig(**options)
    assert "\n" not in str(caught.value)
    assert next(iter(options)) in str(caught.value)


def test_a_stream_may_have_homes_of_another_size(atlas):
    (batch,) = batches(atlas, 1, layout=LayoutConfig(num_boxes=20, num_cylinders=4, max_rooms=1))
    assert torch.isfinite(batch.depth_m).all()


def test_no_home_is_a_room_of_seven_rooms(atlas) -> None:
    config = replace(TINY, layout=LAYOUT)
    rooms = [to_tensors(make_room_home(TINY.seed, room, atlas.range_by_family), LAYOUT) for room in range(7)]
    for home_idx in range(7):
        shown = Rooms(*map(torch.from_numpy, furnish(config, atlas.range_by_family, home_idx)[0]))
        assert not any(torch.equal(shown.center, room.center) for room in rooms)


def test_useless_neighbours_see_nothing_of_the_query(atlas) -> None:
    (batch,) = batches(atlas, 1, graphs_per_batch=8, useless_share=1.0)
    (wanted,) = batches(atlas, 1, graphs_per_batch=8)
    assert batch.overlap[:, 1:].median() < 0.02 < wanted.overlap[:, 1:].median()
    assert batch.is_here.all()


def test_queries_from_elsewhere_share_nothing_with_their_neighbours(atlas) -> None:
    (batch,) = batches(atlas, 1, graphs_per_batch=16, elsewhere_share=0.5)
    assert 0 < batch.is_here.sum() < 16
    assert (batch.overlap[~batch.is_here, 1:] == 0).all()
    assert (batch.overlap[batch.is_here, 1:] > 0).any()


def test_several_graphs_of_a_home_come_together_and_overlaps_of_all_images_are_known(atlas) -> None:
    (batch,) = batches(atlas, 1, graphs_per_batch=6, num_homes=8, graphs_per_home=3, elsewhere_share=0.3)
    home = batch.home.tolist()
    assert home[0] == home[1] == home[2] != home[3]
    assert home[3] == home[4] == home[5]
    seen = batch.overlap_of_images.unflatten(0, (6, 3)).unflatten(2, (6, 3))  # [graph, node, graph, node]
    here = torch.arange(6)[batch.is_here]
    assert 0 < len(here) < 6
    torch.testing.assert_close(seen[here, 0, here, 1:], batch.overlap[here, 1:])
    assert (seen[:3, 1:, 3:, 1:] == 0).all()
    assert (seen[~batch.is_here, 0, :, 1:] < 1).all()
    between = seen[0, 1:, 1, 1:]
    assert (between > 0).any()


def colour_difference(batch: StreamBatch, cells_beside: int) -> float:
    """Between places of references and the cells of the query that see them, or those so many cells further on."""
    matches = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), stride=8)
    anchors = cell_anchors(*batch.images.shape[-2:], stride=8).long()
    here = batch.images[:, 0, :, anchors[:, 1], anchors[:, 0]].float()  # [B, 3, P]
    graph, node, cell = matches.visible.nonzero(as_tuple=True)
    x, y = matches.xy[graph, node, cell].long().T
    there = batch.images[graph, node + 1, :, y, x].float()  # [matches, 3]
    return float((here[graph, :, (cell + cells_beside) % len(anchors)] - there).abs().mean())


def test_upright_photographs_show_the_same_places_as_their_neighbours(atlas) -> None:
    """The colours where a place is seen agree, in upright photographs as in the others, and elsewhere they do not."""
    for portrait_share, size in ((0.0, (HEIGHT, WIDTH)), (1.0, (WIDTH, HEIGHT))):
        (batch,) = batches(atlas, 1, graphs_per_batch=8, portrait_share=portrait_share, any_roll_share=0.0)
        assert batch.images.shape[-2:] == size
        assert 0 < colour_difference(batch, 0) < 0.6 * colour_difference(batch, 3)


@pytest.mark.parametrize("portrait_share", [0.0, 1.0])
def test_queries_are_turned_by_quarters_against_their_references(atlas, portrait_share: float) -> None:
    options = {"graphs_per_batch": 12, "unseen_graphs": 12, "portrait_share": portrait_share, "any_roll_share": 0.0}
    (upright,) = batches(atlas, 1, turned_share=1e-9, **options)  # so that the same luck is drawn
    (batch,) = batches(atlas, 1, turned_share=1.0, **options)
    assert batch.images.shape == upright.images.shape
    for held, turned in ((upright, batch), (upright.unseen, batch.unseen)):
        turn = held.T_world_cam.R.mT @ turned.T_world_cam.R  # of each camera, about its view
        assert_allclose(turn[:, 1:], torch.eye(3).expand(12, 2, 3, 3), atol=1e-6)
        assert_allclose(turn[:, 0, 2], torch.tensor([[0.0, 0.0, 1.0]]).expand(12, 3), atol=1e-6)
        degrees = torch.rad2deg(torch.atan2(turn[:, 0, 1, 0], turn[:, 0, 0, 0])).round()
        assert set((degrees % 360).tolist()) == {90.0, 180.0, 270.0}
        assert_allclose(turned.T_world_cam.t, held.T_world_cam.t)


def test_a_turned_query_shows_what_its_pose_says(atlas) -> None:
    """By the colours where its places are seen in references, which are not turned."""
    (batch,) = batches(atlas, 1, graphs_per_batch=8, turned_share=1.0, any_roll_share=0.0)
    assert 0 < colour_difference(batch, 0) < 0.6 * colour_difference(batch, 3)


def test_a_share_of_graphs_has_a_grey_query_grey_references_or_both() -> None:
    is_grey = grey_images(10_000, 4, 0.4, np.random.default_rng(0))
    query, references = is_grey[:, 0], is_grey[:, 1:]
    assert_array_equal(references.all(axis=1), references.any(axis=1))
    kinds = {(True, False): 0.2, (True, True): 0.1, (False, True): 0.1, (False, False): 0.6}
    for (has_query, has_references), share in kinds.items():
        found = (query == has_query) & (references[:, 0] == has_references)
        assert abs(found.mean() - share) < 0.015  # at least three standard deviations
    assert not grey_images(100, 4, 0.0, np.random.default_rng(0)).any()


def has_colour(images: torch.Tensor) -> torch.Tensor:
    """Of each image of each graph whether its channels differ."""
    return (images != images[:, :, :1]).flatten(2).any(dim=2)


@pytest.mark.parametrize("portrait_share", [0.0, 1.0])
def test_some_photographs_of_a_stream_are_grey_and_all_else_stays_as_it_is(atlas, portrait_share: float) -> None:
    options = {"turned_share": 0.5, "portrait_share": portrait_share, "homes_renewed_per_batch": 1}
    for before, batch in zip(batches(atlas, 2, **options), batches(atlas, 2, grey_share=0.5, **options), strict=True):
        assert has_colour(before.images).all()
        is_grey = ~has_colour(batch.images)
        assert 0 < is_grey.sum() < is_grey.numel()
        assert torch.equal(batch.images[~is_grey], before.images[~is_grey])
        assert torch.equal(batch.images[is_grey], grey(before.images[is_grey]))
        assert torch.equal(batch.depth_m, before.depth_m)
        assert torch.equal(batch.T_world_cam.matrix(), before.T_world_cam.matrix())
        assert torch.equal(batch.overlap, before.overlap)


def test_some_shots_of_a_stream_go_wrong_and_all_else_stays_as_it_is(atlas) -> None:
    usual, spoilt = (batches(atlas, 2, effects=Effects(), spoilt_share=share) for share in (0.0, 0.3))
    for before, batch in zip(usual, spoilt, strict=True):
        is_spoilt = (batch.images != before.images).flatten(2).any(dim=2)
        assert 0 < is_spoilt.sum() < is_spoilt.numel()
        assert torch.equal(batch.depth_m, before.depth_m)
        assert torch.equal(batch.T_world_cam.matrix(), before.T_world_cam.matrix())
        assert torch.equal(batch.overlap, before.overlap)


def test_a_stream_may_turn_queries_from_now_on(atlas) -> None:
    stream = RoomStream(replace(TINY, any_roll_share=0.0), atlas=atlas)
    graphs = iter(stream)
    upright = next(graphs).T_world_cam.R[:, 0, 2, 1]  # how far down the image's own down points
    stream.turned_share = 1.0
    turned = next(graphs).T_world_cam.R[:, 0, 2, 1]
    assert (upright < -0.5).all()
    assert (turned > -0.5).all()


SHARES = ("useless_share", "elsewhere_share", "portrait_share", "any_roll_share", "turned_share", "grey_share")


@pytest.mark.parametrize("name", [*SHARES, "spoilt_share"])
def test_a_share_is_within_zero_and_one(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(TINY, **{name: 1.5})


def test_homes_are_the_same_whoever_furnishes_them(atlas) -> None:
    config = replace(TINY, graphs_per_batch=1, views_per_home=6, num_nodes=2, homes_renewed_per_batch=1)
    alone = list(islice(RoomStream(config, atlas=atlas), 3))
    stream = iter(RoomStream(config, atlas=atlas, workers=1))
    helped = list(islice(stream, 3))
    stream.close()
    assert multiprocessing.active_children() == []
    for one, same in zip(alone, helped, strict=True):
        assert torch.equal(one.images, same.images)
        assert torch.equal(one.T_world_cam.t, same.T_world_cam.t)


def test_views_beside_others_see_more_of_the_same(atlas) -> None:
    def best_overlap(share: float) -> float:
        (batch,) = batches(atlas, 1, graphs_per_batch=24, num_nodes=2, overlap=(0.99, 1.0), beside_share=share)
        return float(batch.overlap[:, 1].median())

    assert best_overlap(0.0) < 0.65 < best_overlap(0.8)


def test_views_of_one_lens_share_it(atlas) -> None:
    (own,) = batches(atlas, 1, num_homes=1)
    (shared,) = batches(atlas, 1, num_homes=1, same_lens_share=1.0)
    assert len(shared.K[..., 0, 0].unique()) == len(shared.distortion[..., 0].unique()) == 1
    assert len(own.K[..., 0, 0].unique()) > 1


def test_unseen_graphs_are_further_graphs_of_the_same_homes(atlas) -> None:
    config = {"num_homes": 1, "graphs_per_batch": 2, "unseen_graphs": 5, "portrait_share": 0.5, "same_lens_share": 0.5}
    for batch in batches(atlas, 3, **config):
        unseen = batch.unseen
        assert unseen is not None
        assert unseen.image_hw == tuple(batch.images.shape[-2:])
        assert unseen.T_world_cam.batch_shape == (5, 3)
        assert_array_equal(unseen.K[..., 0, 2], unseen.image_hw[1] / 2)
        # From where a photograph was taken, its pixels see what the rays of the unseen graph's home meet.
        rays = ray_directions(views_of_batch(batch, 0, 0), pixel_centers(*unseen.image_hw))
        hits = first_hits(unseen.rooms[:1], unseen.num_boxes, batch.T_world_cam.t[:1, 0], rays, Kernels())
        if batch.is_here[0]:
            assert_allclose(hits.depth_m[0], batch.depth_m[0, 0].flatten(), rtol=1e-3)


def test_a_stream_without_unseen_graphs_has_none(atlas) -> None:
    (batch,) = batches(atlas, 1)
    assert batch.unseen is None
    with pytest.raises(ConfigError, match="unseen_graphs"):
        replace(TINY, unseen_graphs=-1)
