"""Named configurations: the paper's numbers as the paper prints them, and presets that can be built and saved."""

import json
import math
from dataclasses import replace

import pytest
import torch

from relograph.configuration import config_from_dict, config_to_dict, with_overrides
from relograph.errors import ConfigError
from relograph.evaluation.experiments import EXPERIMENTS, Plan
from relograph.models import build_model
from relograph.training.config import DataConfig, GraphConfig, OptimConfig, RetrievalConfig, TrainConfig
from relograph.training.presets import PRESETS, preset


def test_the_papers_presets_are_what_the_paper_says() -> None:
    # Section "Implementation details": 50 epochs of Adam with 5e-5, divided by 10 every 20 epochs, weight decay 5e-4,
    # 8 graphs of 8 images in a batch, half of the edges dropped, images of height 256, 2 rounds of messages.
    for name, stride in (("paper-7scenes", 5), ("paper-cambridge", 3)):
        config = preset(name)
        optim = config.optim
        assert (optim.learning_rate, optim.weight_decay, optim.batch_size, optim.epochs) == (5e-5, 5e-4, 8, 50)
        assert (optim.schedule, optim.step_epochs, optim.step_factor) == ("step", 20, 0.1)
        assert (config.graph.num_nodes, config.graph.stride, config.graph.edge_dropout) == (8, stride, 0.5)
        assert config.graph.selection == "retrieval"
        assert config.data.image_height == 256
        assert (config.model.kind, config.model.rounds, config.model.channels) == ("relpose_gnn", 2, 2048)
        assert (config.model.target, config.model.readout, config.model.aggregation) == ("world", "paper", "mean")
        assert config.data.extra_walks == 0


def test_cambridge_is_scaled_alike_on_all_axes_and_rooms_are_in_metres() -> None:
    assert preset("paper-cambridge").data.metres_per_unit == 0.0  # the cameras' spread, one number
    assert preset("paper-7scenes").data.metres_per_unit == preset("rooms").data.metres_per_unit == 1.0


def test_the_papers_network_has_74_8_million_parameters() -> None:
    with torch.device("meta"):
        network = build_model(preset("paper-7scenes").model)
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(74.8e6, abs=0.05e6)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built_and_survives_the_way_through_json(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        build_model(config.model)
    assert config_from_dict(TrainConfig, json.loads(json.dumps(config_to_dict(config)))) == config


@pytest.mark.parametrize("name", ["paper-7scenes", "paper-cambridge", "rooms", "tiny"])
def test_presets_that_a_user_trains_with_are_there(name: str) -> None:
    assert name in PRESETS


def test_an_unknown_preset_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"among paper-7scenes, .*tiny, found 'tyni'\. Did you mean 'tiny'\?$"):
        preset("tyni")
    with pytest.raises(ConfigError, match=r"found 'large'\. Choose one of them\.$"):
        preset("large")


@pytest.mark.parametrize(
    ("part", "values", "complaint"),
    [
        (DataConfig, {"image_height": 16}, "data.image_height: expected 32 or more, found 16."),
        (DataConfig, {"extra_walks": -1}, "data.extra_walks must be at least 0"),
        (DataConfig, {"extra_every": 0}, "data.extra_every at least 1"),
        (DataConfig, {"holdout_share": 1.0}, "data.holdout_share must be within 0 and 1, got 1.0"),
        (DataConfig, {"metres_per_unit": -1.0}, "data.metres_per_unit must not be negative"),
        (GraphConfig, {"num_nodes": 1}, "graph.num_nodes must be at least 2"),
        (GraphConfig, {"stride": 0}, "graph.stride at least 1"),
        (GraphConfig, {"edge_dropout": 1.0}, "Use 0 to keep every edge"),
        (RetrievalConfig, {"num_clusters": 0}, "retrieval.num_clusters: expected 1 or more, found 0."),
        (RetrievalConfig, {"image_height": 0}, "retrieval.image_height: expected 32 or more, found 0."),
        (RetrievalConfig, {"descriptor_dim": -3}, "retrieval.descriptor_dim: expected 0 or more, found -3."),
        (RetrievalConfig, {"loss_weight": -1.0}, "retrieval.loss=none trains without it."),
        (OptimConfig, {"batch_size": 0}, "optim.batch_size: expected 1 or more, found 0. Give such a number."),
        (OptimConfig, {"epochs": 0}, "optim.epochs: expected 1 or more, found 0."),
        (OptimConfig, {"step_epochs": 0}, "optim.step_epochs: expected 1 or more, found 0."),
        (OptimConfig, {"steps_per_epoch": -1}, "optim.steps_per_epoch: expected 0 or more, found -1."),
        (OptimConfig, {"learning_rate": 0.0}, "optim.learning_rate: expected a positive number, found 0.0."),
        (OptimConfig, {"learning_rate": math.inf}, "optim.learning_rate: expected a positive number, found inf."),
        (OptimConfig, {"weight_decay": -1.0}, "optim.weight_decay: expected 0 or more, found -1.0."),
        (OptimConfig, {"step_factor": -2.0}, "optim.step_factor: expected more than 0 and at most 1, found -2.0."),
        (OptimConfig, {"warmup_steps": -5}, "optim.warmup_steps: expected 0 or more, found -5."),
        (OptimConfig, {"gradient_clip": -1.0}, "found -1.0. Give such a number; 0 does not clip."),
        (OptimConfig, {"gradient_clip": math.nan}, "optim.gradient_clip: expected 0 or more, found nan."),
        (OptimConfig, {"patience": -1}, "optim.patience: expected 0 or more, found -1."),
        (TrainConfig, {"seed": -1}, "seed: expected 0 or more, found -1."),
    ],
)
def test_values_that_make_no_sense_are_refused(part: type, values: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        part(**values)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "selection", "complaint"),
    [
        ("relpose_gnn", "alone", "model.kind=relpose_gnn: expected references whose poses are known"),
        ("pair_mlp", "alone", "found alone. Choose one of these"),
        ("relpose_gnn", "sequence", "(graph.selection=retrieval or random), found sequence."),
        ("sequence_gnn", "retrieval", "expected graph.selection=sequence, found retrieval."),
    ],
)
def test_a_network_is_shown_graphs_that_it_can_answer(kind: str, selection: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_overrides(preset("tiny"), [f"model.kind={kind}", f"graph.selection={selection}"])
    assert complaint in str(caught.value)


@pytest.mark.parametrize("kind", ["posenet", "atloc"])
def test_retrieval_learns_from_relative_poses_only_where_there_are_some(kind: str) -> None:
    changes = [f"model.kind={kind}", "graph.selection=alone"]
    with_overrides(preset("tiny"), [*changes, "retrieval.loss=covisibility"])
    with pytest.raises(ConfigError, match=f"relative poses, found model.kind={kind}"):
        with_overrides(preset("tiny"), [*changes, "retrieval.loss=pose"])


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "pretrain"])
def test_every_experiment_can_be_planned_from_every_preset(name: str) -> None:
    plan = Plan(preset(name), ("chess", "heads"), "heads")
    kinds = {job.config.model.kind for experiment in EXPERIMENTS.values() for job in experiment.jobs(plan)}
    assert kinds == {"relpose_gnn", "pair_mlp", "posenet", "atloc", "sequence_gnn"}


def test_netvlad_is_used_at_the_height_that_it_is_trained_at() -> None:
    assert preset("paper-7scenes").retrieval_as_used.image_height == 128
    along = with_overrides(preset("paper-7scenes"), ["retrieval.loss=pose"])
    assert along.retrieval_as_used == replace(along.retrieval, image_height=256)


def test_a_graph_of_one_image_is_alone() -> None:
    assert GraphConfig(num_nodes=1, selection="alone").num_references == 0
    assert GraphConfig(num_nodes=8).num_references == 7
