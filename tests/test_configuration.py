"""Configurations survive a trip through plain values and text, and answer mistakes with the nearest right name."""

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relograph.configuration import (
    FieldDoc,
    config_from_dict,
    config_to_dict,
    describe_fields,
    with_overrides,
)
from relograph.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """How a query and its references become a graph."""

    num_references: int = 7
    """Reference images connected to each query."""
    stride: int = 5
    """Every how many-th of the retrieved images is taken,
    counted from the most similar one."""
    edge_dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.stride > self.num_references:
            raise ConfigError(f"graph.stride must be at most {self.num_references}, got {self.stride}. Lower it.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    target: Literal["world", "camera"] = "camera"
    """What an edge predicts."""
    rounds: Literal[1, 2, 3] = 2
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    image_size_hw: tuple[int, int] = (256, 341)
    weights: Path | None = None
    pretrained: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    name: str = "run"
    """What the run is called."""
    model: ModelConfig = ModelConfig(target="world")
    graph: GraphConfig = field(default_factory=GraphConfig)
    validation: GraphConfig | None = None
    """Graphs of the held-out frames; none takes those of training."""
    learning_rate: float = 5e-5
    scenes: tuple[str, ...] = ()
    max_steps: int | float | None = None
    num_scenes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_scenes", len(self.scenes))


EVERYTHING_ELSE = TrainConfig(
    name="chess, fire",
    model=ModelConfig(
        target="camera", rounds=3, blocks=(1,), image_size_hw=(8, 9), weights=Path("a/b.pth"), pretrained=True
    ),
    graph=GraphConfig(num_references=3, stride=1, edge_dropout=0.0),
    validation=GraphConfig(stride=2),
    learning_rate=1.0,
    scenes=("chess", "red, kitchen", ""),
    max_steps=1.5,
)


@pytest.mark.parametrize("config", [TrainConfig(), EVERYTHING_ELSE], ids=["defaults", "everything else"])
def test_a_configuration_survives_a_trip_through_json(config: TrainConfig):
    text = json.dumps(config_to_dict(config), allow_nan=False)
    assert config_from_dict(TrainConfig, json.loads(text)) == config


def test_the_plain_form_is_what_json_holds():
    assert config_to_dict(TrainConfig(scenes=("chess",))) == {
        "name": "run",
        "model": {
            "target": "world",
            "rounds": 2,
            "blocks": [3, 4, 6, 3],
            "image_size_hw": [256, 341],
            "weights": None,
            "pretrained": False,
        },
        "graph": {"num_references": 7, "stride": 5, "edge_dropout": 0.5},
        "validation": None,
        "learning_rate": 5e-5,
        "scenes": ["chess"],
        "max_steps": None,
    }


def test_what_is_not_given_keeps_its_default():
    assert config_from_dict(TrainConfig, {"graph": {"stride": 1}}) == TrainConfig(graph=GraphConfig(stride=1))


def test_a_whole_number_may_stand_for_a_float_and_becomes_one():
    learning_rate = config_from_dict(TrainConfig, {"learning_rate": 1}).learning_rate
    assert learning_rate == 1.0
    assert isinstance(learning_rate, float)


def test_a_field_without_default_must_be_given():
    @dataclass(frozen=True)
    class DataConfig:
        root: Path

    assert config_from_dict(DataConfig, {"root": "rooms"}) == DataConfig(Path("rooms"))
    with pytest.raises(ConfigError, match=r"^root: expected path, found nothing\. Write it like root=folder/file\.$"):
        config_from_dict(DataConfig, {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grap": {}}, "expected a field of TrainConfig, found 'grap'. Did you mean 'graph'?"),
        ({"graph": {"strid": 1}}, "expected a field of GraphConfig, found 'graph.strid'. Did you mean 'graph.stride'?"),
        ({"stride": 1}, "expected a field of TrainConfig, found 'stride'. Did you mean 'graph.stride'?"),
        (
            {"graph": {"zzz": 1}},
            "expected a field of GraphConfig, found 'graph.zzz'. "
            "Choose one of: graph.num_references, graph.stride, graph.edge_dropout.",
        ),
        ({"num_scenes": 3}, "expected a field of TrainConfig, found 'num_scenes'. Did you mean 'scenes'?"),
        ({"name": 5}, "name: expected str, found 5. Write it like name=name."),
        ({"graph": 5}, "graph: expected GraphConfig, found 5. Write it like graph.num_references=7."),
        ({"graph": {"stride": "5"}}, "graph.stride: expected int, found '5'. Write it like graph.stride=7."),
        ({"graph": {"stride": 5.0}}, "graph.stride: expected int, found 5.0. Write it like graph.stride=7."),
        ({"graph": {"stride": True}}, "graph.stride: expected int, found True. Write it like graph.stride=7."),
        ({"learning_rate": True}, "learning_rate: expected float, found True. Write it like learning_rate=0.5."),
        ({"learning_rate": float("nan")}, "learning_rate: expected float, found nan. Write it like learning_rate=0.5."),
        ({"learning_rate": None}, "learning_rate: expected float, found None. Write it like learning_rate=0.5."),
        (
            {"model": {"pretrained": 1}},
            "model.pretrained: expected bool, found 1. Write it like model.pretrained=true.",
        ),
        (
            {"model": {"target": "word"}},
            "model.target: expected world | camera, found 'word'. Did you mean 'world'?",
        ),
        ({"model": {"rounds": True}}, "model.rounds: expected 1 | 2 | 3, found True. Write it like model.rounds=1."),
        (
            {"model": {"blocks": [3, "4"]}},
            "model.blocks: expected int,int,..., found [3, '4']. Write it like model.blocks=7,7.",
        ),
        (
            {"model": {"image_size_hw": [256]}},
            "model.image_size_hw: expected int,int, found [256]. Write it like model.image_size_hw=7,7.",
        ),
        (
            {"model": {"weights": 5}},
            "model.weights: expected path | none, found 5. Write it like model.weights=folder/file.",
        ),
        (
            {"validation": {"strid": 1}},
            "expected a field of GraphConfig, found 'validation.strid'. Did you mean 'validation.stride'?",
        ),
        ({"graph": {"stride": 9}}, "graph.stride must be at most 7, got 9. Lower it."),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(values: dict[str, object], message: str):
    with pytest.raises(ConfigError) as raised:
        config_from_dict(TrainConfig, values)
    assert str(raised.value) == message
    with pytest.raises(ConfigError) as raised:
        config_from_dict(TrainConfig, values, where="runs/1/config.json")
    assert str(raised.value) == f"runs/1/config.json: {message}"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("name=a=b", TrainConfig(name="a=b")),
        ("name=", TrainConfig(name="")),
        ("graph.stride=1", TrainConfig(graph=GraphConfig(stride=1))),
        (" graph.stride = 1 ", TrainConfig(graph=GraphConfig(stride=1))),
        ("learning_rate=1e-4", TrainConfig(learning_rate=1e-4)),
        ("learning_rate=1", TrainConfig(learning_rate=1.0)),
        ("scenes=chess,fire", TrainConfig(scenes=("chess", "fire"))),
        ("scenes=chess", TrainConfig(scenes=("chess",))),
        ("scenes=", TrainConfig(scenes=())),
        ('scenes=["red, kitchen"]', TrainConfig(scenes=("red, kitchen",))),
        ("max_steps=100", TrainConfig(max_steps=100)),
        ("max_steps=0.5", TrainConfig(max_steps=0.5)),
        ("max_steps=None", TrainConfig()),
        ("validation=none", TrainConfig()),
        ("model.target=camera", TrainConfig(model=ModelConfig(target="camera"))),
        ("model.rounds=3", TrainConfig(model=ModelConfig(target="world", rounds=3))),
        ("model.blocks=1, 2", TrainConfig(model=ModelConfig(target="world", blocks=(1, 2)))),
        ("model.blocks=[1, 2]", TrainConfig(model=ModelConfig(target="world", blocks=(1, 2)))),
        ("model.image_size_hw=48,64", TrainConfig(model=ModelConfig(target="world", image_size_hw=(48, 64)))),
        ("model.weights=a/b.pth", TrainConfig(model=ModelConfig(target="world", weights=Path("a/b.pth")))),
        ("model.pretrained=True", TrainConfig(model=ModelConfig(target="world", pretrained=True))),
    ],
)
def test_text_is_read_by_the_type_of_its_field(assignment: str, expected: TrainConfig):
    assert with_overrides(TrainConfig(), [assignment]) == expected


def test_a_part_that_is_there_can_be_set_field_by_field():
    config = TrainConfig(validation=GraphConfig())
    assert with_overrides(config, ["validation.stride=1"]) == replace(config, validation=GraphConfig(stride=1))


def test_a_text_field_keeps_numbers_as_text():
    assert with_overrides(TrainConfig(), ["name=7", "scenes=1,2"]) == TrainConfig(name="7", scenes=("1", "2"))


def test_the_last_of_two_values_holds():
    assert with_overrides(TrainConfig(), ["graph.stride=1", "graph.stride=2"]).graph.stride == 2


def test_fields_that_must_fit_each_other_change_together():
    for assignments in (["graph.stride=9", "graph.num_references=9"], ["graph.num_references=9", "graph.stride=9"]):
        assert with_overrides(TrainConfig(), assignments).graph == GraphConfig(num_references=9, stride=9)
    with pytest.raises(ConfigError, match=r"^graph\.stride must be at most 7, got 9"):
        with_overrides(TrainConfig(), ["graph.stride=9"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("graph.stride", "expected name=value, found 'graph.stride'. Write it like graph.stride=1."),
        ("=5", "expected name=value, found '=5'. Write it like graph.stride=1."),
        ("graph.strid=1", "expected a field of GraphConfig, found 'graph.strid'. Did you mean 'graph.stride'?"),
        ("stride=1", "expected a field of TrainConfig, found 'stride'. Did you mean 'graph.stride'?"),
        ("grahp.stride=1", "expected a field of TrainConfig, found 'grahp.stride'. Did you mean 'graph.stride'?"),
        (
            "name.first=x",
            "expected a field of TrainConfig, found 'name.first'. "
            "Choose one of: name, model, graph, validation, learning_rate, scenes, max_steps.",
        ),
        ("graph.stride=two", "graph.stride: expected int, found 'two'. Write it like graph.stride=7."),
        ("graph.stride=1.5", "graph.stride: expected int, found '1.5'. Write it like graph.stride=7."),
        ("graph=5", "graph: expected GraphConfig, found '5'. Write it like graph.num_references=7."),
        ("learning_rate=inf", "learning_rate: expected float, found inf. Write it like learning_rate=0.5."),
        ("learning_rate=", "learning_rate: expected float, found ''. Write it like learning_rate=0.5."),
        ("model.target=cam", "model.target: expected world | camera, found 'cam'. Did you mean 'camera'?"),
        ("model.pretrained=1", "model.pretrained: expected bool, found '1'. Write it like model.pretrained=true."),
        ("model.blocks=3,x", "model.blocks: expected int,int,..., found [3, 'x']. Write it like model.blocks=7,7."),
        ("model.blocks=[3", "model.blocks: expected int,int,..., found '[3'. Write it like model.blocks=7,7."),
        (
            "model.image_size_hw=256",
            "model.image_size_hw: expected int,int, found '256'. Write it like model.image_size_hw=7,7.",
        ),
        ("max_steps=many", "max_steps: expected int | float | none, found 'many'. Write it like max_steps=0.5."),
    ],
)
def test_a_mistake_after_set_is_one_line_that_says_what_to_write(assignment: str, message: str):
    with pytest.raises(ConfigError) as raised:
        with_overrides(TrainConfig(), [assignment])
    assert str(raised.value) == message


def test_every_field_is_described_by_its_path_type_default_and_the_string_under_it():
    assert describe_fields(TrainConfig) == [
        FieldDoc("name", "str", "run", "What the run is called."),
        FieldDoc("model.target", "world | camera", "world", "What an edge predicts."),
        FieldDoc("model.rounds", "1 | 2 | 3", "2", ""),
        FieldDoc("model.blocks", "int,int,...", "3,4,6,3", ""),
        FieldDoc("model.image_size_hw", "int,int", "256,341", ""),
        FieldDoc("model.weights", "path | none", "none", ""),
        FieldDoc("model.pretrained", "bool", "false", ""),
        FieldDoc("graph.num_references", "int", "7", "Reference images connected to each query."),
        FieldDoc(
            "graph.stride",
            "int",
            "5",
            "Every how many-th of the retrieved images is taken, counted from the most similar one.",
        ),
        FieldDoc("graph.edge_dropout", "float", "0.5", ""),
        FieldDoc(
            "validation",
            "GraphConfig | none",
            "none",
            "Graphs of the held-out frames; none takes those of training.",
        ),
        FieldDoc("learning_rate", "float", "5e-05", ""),
        FieldDoc("scenes", "str,str,...", "", ""),
        FieldDoc("max_steps", "int | float | none", "none", ""),
    ]


def test_a_derived_configuration_describes_the_fields_it_inherits():
    @dataclass(frozen=True, kw_only=True)
    class DenseGraphConfig(GraphConfig):
        stride: int = 1
        """One after the other."""

    assert describe_fields(DenseGraphConfig)[:2] == [
        FieldDoc("num_references", "int", "7", "Reference images connected to each query."),
        FieldDoc("stride", "int", "1", "One after the other."),
    ]


def test_a_field_that_must_be_given_has_no_default():
    @dataclass(frozen=True)
    class DataConfig:
        root: Path
        graph: GraphConfig

    assert [(doc.path, doc.default) for doc in describe_fields(DataConfig)] == [
        ("root", None),
        ("graph.num_references", "7"),
        ("graph.stride", "5"),
        ("graph.edge_dropout", "0.5"),
    ]


@pytest.mark.parametrize("config", [TrainConfig(), EVERYTHING_ELSE], ids=["defaults", "everything else"])
def test_every_value_can_be_written_as_it_is_described(config: TrainConfig):
    start = replace(TrainConfig(), validation=config.validation and GraphConfig())
    described = [f"{doc.path}={doc.default}" for doc in describe_fields(config)]
    assert with_overrides(start, described) == config


@given(st.lists(st.text(st.characters(codec="utf-8"))), st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_any_words_and_numbers_survive_being_written_down(scenes: list[str], learning_rate: float, max_steps: int):
    config = TrainConfig(scenes=tuple(scenes), learning_rate=learning_rate, max_steps=max_steps)
    described = {doc.path: doc.default for doc in describe_fields(config)}
    names = [f.name for f in fields(config) if f.name in described]
    assert with_overrides(TrainConfig(), [f"{name}={described[name]}" for name in names]) == config
    assert config_from_dict(TrainConfig, json.loads(json.dumps(config_to_dict(config)))) == config
