"""What a GPU does in bfloat16 is tried on a CPU: images are encoded and matched in it, poses are not."""

from contextlib import AbstractContextManager

import pytest
import torch
from numpy.testing import assert_allclose
from small_networks import posed_photos, small_network

from relograph.evaluation import batched
from relograph.localization import Localizer, MapFeatures, map_features
from relograph.localization.localizer import Compared
from relograph.models import query_network
from relograph.models.answering import answering_precision
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.replaying import WARM_UP_CALLS


def test_a_cpu_stays_in_the_precision_of_the_weights():
    with answering_precision(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def compared_in_a_small_map(network: LoadedMatchGNN) -> Compared:
    query, *photos = posed_photos(4)
    found = Localizer(MapFeatures.of(photos, network), network, num_references=2).compare(query.pixels)
    assert isinstance(found, Compared)
    return found


def test_matches_and_poses_of_a_network_that_runs_in_bfloat16_are_in_float32(monkeypatch: pytest.MonkeyPatch):
    network = small_network()
    expected = compared_in_a_small_map(network)

    def as_on_a_gpu(device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)

    for module in (query_network, map_features, batched):
        monkeypatch.setattr(module, "answering_precision", as_on_a_gpu)
    encoded: list[torch.dtype] = []
    answered_within: list[bool] = []
    encode, answer = MatchGNN.encode, MatchGNN.answer

    def noting_encode(self: MatchGNN, images: torch.Tensor) -> object:
        features = encode(self, images)
        encoded.append(features.coarse.dtype)
        return features

    def noting_answer(self: MatchGNN, *inputs: object) -> object:
        answered_within.append(torch.is_autocast_enabled("cpu"))
        return answer(self, *inputs)

    monkeypatch.setattr(MatchGNN, "encode", noting_encode)
    monkeypatch.setattr(MatchGNN, "answer", noting_answer)
    found = compared_in_a_small_map(network)
    assert encoded == [torch.bfloat16]
    assert answered_within == [False]
    for name in ("xy", "confidence", "sigma_px", "seen"):
        assert getattr(found.matches, name).dtype == torch.float32, name
    assert found.T_regressed.t.dtype == torch.float64
    assert_allclose(found.similarity, expected.similarity, atol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_the_same_before_and_after_it_recorded_a_query():
    network = small_network()
    network.model.cuda()
    queries = posed_photos(6)
    localizer = Localizer(MapFeatures.of(queries[:4], network), network, num_references=2)
    for query in queries:
        answers = [localizer.compare(query.pixels) for _ in range(WARM_UP_CALLS + 2)]
        for answer in answers:
            assert isinstance(answer, Compared)
            assert isinstance(answers[0], Compared)
            torch.testing.assert_close(answer.matches.xy, answers[0].matches.xy)
            torch.testing.assert_close(answer.log_sigma, answers[0].log_sigma)
            torch.testing.assert_close(answer.T_regressed.t, answers[0].T_regressed.t, atol=1e-3, rtol=0)
