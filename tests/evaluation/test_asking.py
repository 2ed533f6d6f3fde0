"""Many queries at once are answered as one by one, whoever solves."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from evaluation.made_places import painted_place
from localization.small_networks import small_network
from relograph.errors import ConfigError
from relograph.evaluation import batched
from relograph.evaluation.asking import Question, ask
from relograph.evaluation.batched import BatchedNetwork, EncodedQueries
from relograph.evaluation.place import references_by_pose
from relograph.evaluation.place_localizer import REGRESSION, OurMap, OurWay
from relograph.evaluation.solver_pool import solver_pool
from relograph.localization.localizer import Localizer
from relograph.models.shipped import load_match_gnn

NETWORK = small_network()
PLACE = painted_place(num_map=6, num_queries=3)
GIVEN, SEARCHED = (OurWay("auto", focal) for focal in ("given", "searched"))


@pytest.fixture(scope="module")
def our_map() -> OurMap:
    return OurMap.of(PLACE.map, NETWORK)


@pytest.fixture(scope="module")
def network() -> BatchedNetwork:
    return BatchedNetwork(NETWORK)


@pytest.fixture(scope="module")
def queries(network: BatchedNetwork) -> EncodedQueries:
    return network.encode(PLACE.queries)


def question(our_map: OurMap, *ways: OurWay, **changes) -> Question:
    asked = Question("own", PLACE.map, lambda: our_map.features, (0, 1, 2), ways, num_references=3)
    return replace(asked, **changes)


@pytest.mark.parametrize("focal", ["given", "none"])
def test_queries_are_compared_together_as_one_by_one(focal):
    """By trained weights: where matches of random ones settle, rounding moves by millimetres."""
    trained, told = load_match_gnn(), PLACE.told(focal)
    our_map, network = OurMap.of(PLACE.map, trained), BatchedNetwork(trained)
    queries = network.encode(PLACE.queries)
    localizer = Localizer(replace(our_map.features, cameras=told.map.cameras), trained, num_references=3)
    (retrieved,) = network.retrieve(queries, (2, 0, 1), our_map.features, 3)
    matched = network.match(queries, retrieved, our_map.features)
    found = network.regress(queries, matched, our_map.features, told.queries.cameras, told.map.cameras)
    for query, together in zip((2, 0, 1), found, strict=True):
        alone = localizer.compare(PLACE.queries.read(query), camera=told.queries.cameras[query])
        assert (together.rows, together.names) == (alone.rows, alone.names)
        assert together.ref_cameras == alone.ref_cameras
        assert together.query_camera == alone.query_camera
        assert (together.scale, together.query_hw) == (alone.scale, alone.query_hw)
        assert_close(together.similarity, alone.similarity, atol=1e-5, rtol=0)
        assert_close(together.matches.confidence, alone.matches.confidence, atol=1e-3, rtol=0)
        assert_close(together.T_world_ref.t, alone.T_world_ref.t)
        for pose in ("T_regressed", "T_world_edges"):
            assert_close(getattr(together, pose).matrix(), getattr(alone, pose).matrix(), atol=1e-3, rtol=0)
        doubts = [one.doubting for one in (together, alone)]
        assert_close(*(doubt.T_world_query.matrix() for doubt in doubts), atol=1e-3, rtol=0)
        assert_close(*(torch.tensor([doubt.query.focal, doubt.refs.bend]) for doubt in doubts), atol=1e-3, rtol=0)
        assert_close(together.log_sigma, alone.log_sigma, atol=1e-3, rtol=1e-3)
        assert_close(together.overlap, alone.overlap, atol=1e-3, rtol=1e-3)


def test_what_goes_to_another_process_is_one_querys_and_no_batchs(our_map, network, queries):
    (retrieved,) = network.retrieve(queries, (0, 1, 2), our_map.features, 3)
    matched = network.match(queries, retrieved, our_map.features)
    one, *_ = network.regress(queries, matched, our_map.features, PLACE.queries.cameras, PLACE.map.cameras)
    assert one.matches.xy.untyped_storage().nbytes() == one.matches.xy.nbytes


def test_few_queries_are_matched_at_a_time(our_map, network, queries, monkeypatch):
    monkeypatch.setattr(batched, "PAIRS_AT_ONCE", 6)
    retrieved = list(network.retrieve(queries, (0, 1, 2), our_map.features, 3))
    assert [some.queries for some in retrieved] == [(0, 1), (2,)]


def test_references_that_are_given_are_taken(our_map, network, queries):
    nearest = tuple(map(tuple, references_by_pose(PLACE, 2, 1).tolist()))
    asked = question(our_map, REGRESSION, num_references=2, references=nearest)
    (said,) = ask([asked], queries, network)["own"].values()
    assert [tuple(used.row for used in answer.references) for answer in said] == list(nearest)


def test_every_way_has_its_answers_and_is_told_of_its_cameras(our_map, network, queries):
    # By regression, which believes what it is told: a solver finds wrong focal lengths out.
    ways = [OurWay("regress", focal) for focal in ("given", "wrong")]
    said = ask([question(our_map, REGRESSION, SEARCHED, *ways)], queries, network)["own"]
    true_px = PLACE.queries.cameras[0].fx
    given, wrong = (said[way.name] for way in ways)
    assert [answer.focal_px for answer in given] == pytest.approx([true_px] * 3)
    assert [answer.focal_px for answer in wrong] == pytest.approx([1.2 * true_px] * 3)
    for regressed, searched, told in zip(said[REGRESSION.name], said[SEARCHED.name], given, strict=True):
        assert torch.equal(regressed.T_regressed.t, searched.T_regressed.t)
        assert not torch.equal(regressed.T_regressed.t, told.T_regressed.t)


def test_answers_of_a_kind_are_put_together_in_the_order_in_which_they_are_asked_for(our_map, network, queries):
    questions = [question(our_map, REGRESSION, queries=(2, 0)), question(our_map, REGRESSION, queries=(1,))]
    steps: list[int] = []
    (said,) = ask(questions, queries, network, advance=steps.append)["own"].values()
    (in_order,) = ask([question(our_map, REGRESSION)], queries, network)["own"].values()
    for answer, query in zip(said, (2, 0, 1), strict=True):
        assert_close(answer.T_regressed.t, in_order[query].T_regressed.t, atol=0.01, rtol=0)
    assert sum(steps) == sum(asked.num_answers for asked in questions) == 3


def test_other_processes_solve_the_same(our_map, network, queries):
    asked = [question(our_map, REGRESSION, GIVEN)]
    alone = ask(asked, queries, network)["own"]
    with solver_pool(1) as pool:
        together = ask(asked, queries, network, pool=pool)["own"]
    for way, said in alone.items():
        assert [answer.confidence for answer in together[way]] == [answer.confidence for answer in said]
        assert not any(answer.seconds for answer in together[way])


def test_photos_of_several_sizes_are_for_the_localizer(network):
    odd = replace(PLACE.queries, read=lambda row: PLACE.queries.read(0)[: 240 - 80 * row])
    with pytest.raises(ConfigError, match="expected photos of one size"):
        network.encode(odd)
