"""From a configuration to a network."""

from dataclasses import replace

import pytest
from tiny_networks import TINY

from relograph.errors import ConfigError
from relograph.models import AbsolutePoseNet, ModelConfig, PairMLP, PoseModel, RelPoseGNN, SequenceGNN, build_model
from relograph.models.relpose_gnn import NonLocalAttention

KINDS = {
    "relpose_gnn": RelPoseGNN,
    "pair_mlp": PairMLP,
    "posenet": AbsolutePoseNet,
    "atloc": AbsolutePoseNet,
    "sequence_gnn": SequenceGNN,
}


@pytest.mark.parametrize(("kind", "network"), KINDS.items())
def test_a_kind_names_its_network(kind: str, network: type[PoseModel]) -> None:
    built = build_model(replace(TINY, kind=kind, channels=24, encoder_blocks=(2, 1, 1, 1), encoder_width=6))
    assert type(built) is network
    assert built.encoder.fc.weight.shape == (24, 8 * 6)
    assert len(built.encoder.layer1) == 2


def test_atloc_attends_and_posenet_does_not() -> None:
    attentive, plain = (build_model(replace(TINY, kind=kind)) for kind in ("atloc", "posenet"))
    assert any(isinstance(module, NonLocalAttention) for module in attentive.modules())
    assert not any(isinstance(module, NonLocalAttention) for module in plain.modules())


@pytest.mark.parametrize("kind", ["relpose_gnn", "sequence_gnn"])
def test_every_option_of_the_graph_network_arrives(kind: str) -> None:
    config = replace(TINY, kind=kind, rounds=3, readout="post", aggregation="max", attention_reduction=4)
    network = build_model(config)
    assert isinstance(network, RelPoseGNN)
    assert (network.rounds, network.readout, network.message_passing.aggregation) == (3, "post", "max")
    assert network.message_passing.attention.theta.weight.shape == (16 // 4, 16)


def test_the_defaults_are_the_papers_network_with_targets_that_other_scenes_can_use() -> None:
    assert ModelConfig() == ModelConfig(
        kind="relpose_gnn",
        channels=2048,
        rounds=2,
        target="camera",
        readout="paper",
        aggregation="mean",
        attention_reduction=8,
        encoder_blocks=(3, 4, 6, 3),
        encoder_width=64,
    )


def test_only_networks_that_need_references_localize_by_edges() -> None:
    by_edges = {kind for kind in KINDS if ModelConfig(kind=kind).predicts_edges}
    assert by_edges == {"relpose_gnn", "pair_mlp"}


@pytest.mark.parametrize("field", ["channels", "rounds", "attention_reduction"])
def test_a_number_below_one_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{field}.*must be at least 1, got .*\b0\b"):
        ModelConfig(**{field: 0})


def test_channels_that_attention_cannot_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 8, got 20"):
        build_model(replace(TINY, channels=20))
