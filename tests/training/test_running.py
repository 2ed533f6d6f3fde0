"""Whole trainings: what they learn from and what they never see, kills and restarts, scenes with too few frames."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_trainings
import torch
from numpy.testing import assert_allclose
from tiny_trainings import (
    KITCHEN,
    TINY,
    assert_same_weights,
    random_descriptors,
    saved,
    tiny_config,
    tiny_data,
    tiny_training,
)
from torch import Tensor

from relograph.configuration import config_from_dict
from relograph.errors import CheckpointError, DatasetError
from relograph.evaluation.evaluating import evaluate
from relograph.geometry import Pose, pose_error
from relograph.graphs import Target, absolute_targets
from relograph.models import PoseModel, PosePredictions, ResNet, answer_graphs, build_model
from relograph.models.checkpoint import load_checkpoint, save_checkpoint
from relograph.results import provenance
from relograph.retrieval import rank_references
from relograph.rooms import textures
from relograph.training import running
from relograph.training.config import GraphConfig, TrainConfig
from relograph.training.data import RelocalizationData
from relograph.training.loop import make_fabric, read_log
from relograph.training.running import (
    Trained,
    copy_encoder,
    evenly_spaced,
    fixed_loss,
    graph_rows,
    load_retriever,
    load_trained,
    make_retriever,
    pretrain,
    share_across_the_jump,
    spread_of_cameras,
    training_stride,
)
from relograph.training.sources import SceneGraphs

TWO_ROOMS = {"kitchen": {"train": 8, "held out": 3, "test": 4}, "hall": {"train": 6, "held out": 2, "test": 3}}


# Killed, and going on

LONG = tiny_config(
    "optim.steps_per_epoch=25",
    "optim.epochs=3",
    "optim.schedule=cosine",
    "optim.warmup_steps=10",
    "optim.gradient_clip=1",
    "retrieval.loss=covisibility",
)
"""Rows in the log at steps 20, 25, 45, 50, 70 and 75, checkpoints at 25, 50 and 75."""
KILLED_AT_STEP = 47

DYING_PROCESS = f"""
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
import torch
from test_running import LONG
from tiny_trainings import tiny_training

torch.set_num_threads(1)

class Dying:
    done = 0

    @contextmanager
    def task(self, description, total):
        yield self.advance if description.startswith("training") else lambda steps: None

    def advance(self, graphs):
        self.done += graphs
        if self.done == {KILLED_AT_STEP} * LONG.optim.batch_size:
            os.kill(os.getpid(), signal.SIGKILL)

tiny_training(Path(sys.argv[1]), LONG, progress=Dying())
"""


def curve(folder: Path) -> list[dict[str, float | None]]:
    """The log without what a clock says."""
    return [
        {column: value for column, value in row.items() if column not in ("seconds", "graphs_per_second")}
        for row in read_log(folder / "log.csv")
    ]


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(tiny_trainings.__file__).parent), *sys.path])
    killed = subprocess.run(
        [sys.executable, "-c", DYING_PROCESS, str(tmp_path / "killed")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:].decode()
    assert load_checkpoint(tmp_path / "killed" / "last").metadata["step"] == 25
    assert [row["step"] for row in curve(tmp_path / "killed")] == [20, 25, 45]  # the last one is of lost weights
    resumed = tiny_training(tmp_path / "killed", LONG)
    whole = tiny_training(tmp_path / "whole", LONG)
    assert [row["step"] for row in curve(tmp_path / "killed")] == [20, 25, 45, 50, 70, 75]
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    for kind in ("last", "best"):
        assert_same_weights(saved(tmp_path / "killed" / kind), saved(tmp_path / "whole" / kind))
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())


# What a training sees


def with_other_frames(data: RelocalizationData, which: Tensor) -> RelocalizationData:
    """The data with other images and other poses at some frames."""
    other = tiny_data(TWO_ROOMS, seed=7)
    images, T_world_cam = data.frames.images.clone(), data.frames.T_world_cam
    images[which] = other.frames.images[which]
    R, t = T_world_cam.R.clone(), T_world_cam.t.clone()
    R[which], t[which] = other.frames.T_world_cam.R[which], other.frames.T_world_cam.t[which]
    return replace(data, frames=replace(data.frames, images=images, T_world_cam=Pose(R, t)))


@pytest.mark.parametrize("selection", ["retrieval", "random", "sequence"])
def test_the_test_split_changes_nothing_in_a_training(tmp_path: Path, selection: str) -> None:
    kind = "sequence_gnn" if selection == "sequence" else "relpose_gnn"
    settings = ("optim.patience=1", "data.metres_per_unit=0")
    config = tiny_config(f"graph.selection={selection}", f"model.kind={kind}", *settings)
    data = tiny_data(TWO_ROOMS)
    tiny_training(tmp_path / "one", config, data)
    tiny_training(tmp_path / "other", config, with_other_frames(data, data.is_test))
    for kind in ("last", "best"):
        assert_same_weights(saved(tmp_path / "one" / kind), saved(tmp_path / "other" / kind))
    assert curve(tmp_path / "one") == curve(tmp_path / "other")


def test_held_out_frames_are_watched_and_not_learned_from(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    tiny_training(tmp_path / "one", data=data)
    tiny_training(tmp_path / "other", data=with_other_frames(data, data.held_out))
    assert_same_weights(saved(tmp_path / "one" / "last"), saved(tmp_path / "other" / "last"))
    watched, other = ([row["validation_loss"] for row in curve(tmp_path / name)] for name in ("one", "other"))
    assert None not in watched
    assert watched != other


def test_training_frames_are_learned_from(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    first = torch.zeros_like(data.is_test)
    first[0] = True
    one, other = (
        tiny_training(tmp_path / str(i), data=some) for i, some in enumerate((data, with_other_frames(data, first)))
    )
    assert not one.model.pose_head.weight.equal(other.model.pose_head.weight)


def test_the_validation_is_the_fixed_loss_of_held_out_queries_among_training_frames(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    tiny_training(tmp_path, data=data)
    best = load_trained(tmp_path)
    references = ~data.is_test & ~data.held_out
    queries = data.held_out.nonzero().squeeze(1)
    frames, descriptors = data.frames, random_descriptors(data)
    ranked = rank_references(queries, references, descriptors, frames.scene_idx, frames.sequence_idx, length=3)
    rows = torch.stack([queries, ranked[:, 0], ranked[:, 2]], dim=1)  # stride 2, offset 0
    expected = fixed_loss(best.model, data, rows, TINY, 1.0)
    assert load_checkpoint(tmp_path / "best").metadata["best_validation"] == pytest.approx(expected, rel=1e-5)


def test_only_the_named_scenes_are_trained_on(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    of_hall = data.of_scenes(["hall"])
    for name, some in (("one", data), ("other", with_other_frames(data, of_hall))):
        running.train_on_scenes(
            TINY, some, ["kitchen"], tmp_path / name, fabric=make_fabric(), descriptors=random_descriptors(data)
        )
    assert_same_weights(saved(tmp_path / "one" / "last"), saved(tmp_path / "other" / "last"))
    assert load_trained(tmp_path / "one").scene_names == ("kitchen",)


def test_a_seed_decides_all_of_a_training(tmp_path: Path) -> None:
    same, again, other = (
        tiny_training(tmp_path / str(i), replace(TINY, seed=seed)) for i, seed in enumerate((3, 3, 4))
    )
    assert_same_weights(same.model.state_dict(), again.model.state_dict())
    assert not same.model.pose_head.weight.equal(other.model.pose_head.weight)


@pytest.mark.parametrize("kind", ["pair_mlp", "posenet", "atloc", "sequence_gnn"])
@pytest.mark.parametrize("target", ["world", "camera"])
def test_every_network_is_trained_and_loaded_again(tmp_path: Path, kind: str, target: str) -> None:
    selection = {"posenet": "alone", "atloc": "alone", "sequence_gnn": "sequence"}.get(kind, "retrieval")
    config = tiny_config(f"model.kind={kind}", f"model.target={target}", f"graph.selection={selection}")
    trained = tiny_training(tmp_path, config)
    loaded = load_trained(tmp_path)
    assert loaded.config == config
    assert_same_weights(loaded.model.state_dict(), trained.model.state_dict())
    first, last = (row["validation_loss"] for row in curve(tmp_path))
    assert first != last


# What is kept of a training


def test_a_checkpoint_says_what_it_is_of(tmp_path: Path) -> None:
    config = tiny_config("model.target=world", "optim.epochs=1")
    tiny_training(tmp_path, config, tiny_data(TWO_ROOMS))
    for kind in ("best", "last"):
        metadata = load_checkpoint(tmp_path / kind).metadata
        assert config_from_dict(TrainConfig, metadata["config"]) == config
        assert metadata["data_fingerprint"] == "noise 0"
        assert metadata["scene_names"] == ["kitchen", "hall"]
        assert metadata["image_size_hw"] == [32, 40]
        assert 0 <= metadata["share_of_edges_across_the_jump"] < 0.5
        said, known = metadata["provenance"], provenance(command="", seed=0)
        assert {"git_commit", "source_sha256", "torch", "command"} <= said.keys()
        for key in ("git_commit", "source_sha256", "torch", "seed", "device"):
            assert said[key] == known[key]


def test_a_loaded_network_answers_as_the_trained_one(tmp_path: Path) -> None:
    data = tiny_data()
    trained = tiny_training(tmp_path, data=data)
    rows = torch.tensor([[14, 0, 3], [15, 7, -1]])
    for folder in (tmp_path, tmp_path / "best"):
        loaded = load_trained(folder)
        assert loaded.metres_per_unit == trained.metres_per_unit == 1.0
        expected = answer_graphs(trained.model, data.frames, rows).edges
        assert answer_graphs(loaded.model, data.frames, rows).edges.equal(expected)


def test_a_folder_that_no_training_made_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", {"weight": torch.zeros(2)}, {"config": {}})
    with pytest.raises(CheckpointError, match="found one without metres_per_unit, scene_names in its metadata"):
        load_trained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="expected a checkpoint, found no"):
        load_trained(tmp_path / "nothing")


@pytest.mark.parametrize("loss", ["covisibility", "pose"])
def test_netvlad_is_trained_along_and_kept(tmp_path: Path, loss: str) -> None:
    data = tiny_data()
    config = tiny_config(f"retrieval.loss={loss}")
    tiny_training(tmp_path, config, data)
    torch.manual_seed(config.seed)
    encoder = build_model(config.model).encoder
    start = make_retriever(encoder, data, data.train_rows(["kitchen"]), config.retrieval, config.seed).netvlad
    kept = saved(tmp_path / "last")
    for name, tensor in start.state_dict().items():
        assert kept[f"netvlad.{name}"].shape == tensor.shape
        assert 1e-4 < (kept[f"netvlad.{name}"] - tensor).abs().max() < 0.1
    load_trained(tmp_path)  # the pose network does not need it


# The weights it starts from


def test_a_training_starts_from_the_given_encoder(tmp_path: Path) -> None:
    torch.manual_seed(5)
    encoder = ResNet(16, blocks=(1, 1, 1, 1), width=8)
    config = tiny_config("optim.learning_rate=1e-9", "optim.freeze_batch_norm=true", "optim.weight_decay=0")
    data = tiny_data()
    trained = running.train_on_scenes(
        config,
        data,
        ["kitchen"],
        tmp_path,
        fabric=make_fabric(),
        descriptors=random_descriptors(data),
        encoder=encoder,
    )
    assert_same_weights(trained.model.encoder.state_dict(), encoder.state_dict(), tolerance=1e-6)


def test_an_encoder_of_another_length_gives_all_but_its_last_layer() -> None:
    source, target = ResNet(16, blocks=(1, 1, 1, 1), width=8), ResNet(32, blocks=(1, 1, 1, 1), width=8)
    last_layer = target.fc.weight.clone()
    copy_encoder(source, target)
    assert target.layer4[0].conv2.weight.equal(source.layer4[0].conv2.weight)
    assert target.fc.weight.equal(last_layer)


def test_an_encoder_of_another_size_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the given encoder: expected the weights of this ResNet"):
        copy_encoder(ResNet(16, blocks=(1, 1, 1, 1), width=8), ResNet(16, blocks=(2, 1, 1, 1), width=8))


# A user's pairs


def train_with_pairs(output: Path, data: RelocalizationData, pairs: Tensor) -> Trained:
    return running.train_on_scenes(
        TINY, data, ["kitchen"], output, fabric=make_fabric(), descriptors=random_descriptors(data, seed=9), pairs=pairs
    )


def test_pairs_in_the_order_of_the_descriptors_train_the_same_network(tmp_path: Path) -> None:
    data, frames = tiny_data(), tiny_data().frames
    queries = torch.arange(len(frames))
    known = ~data.is_test & ~data.held_out
    ranking = (random_descriptors(data), frames.scene_idx, frames.sequence_idx)
    pairs = rank_references(queries, known, *ranking, length=4)  # two references, stride two
    by_descriptors = tiny_training(tmp_path / "descriptors", data=data)
    by_pairs = train_with_pairs(tmp_path / "pairs", data, pairs)
    assert_same_weights(by_pairs.model.state_dict(), by_descriptors.model.state_dict())
    assert curve(tmp_path / "pairs") == curve(tmp_path / "descriptors")
    # A reference that is held out is passed over: the next ones move up.
    with_held_out = torch.cat([data.held_out.nonzero()[:1].expand(len(frames), 1), pairs], dim=1)
    again = train_with_pairs(tmp_path / "passed over", data, with_held_out)
    assert_same_weights(again.model.state_dict(), by_descriptors.model.state_dict())
    other = train_with_pairs(tmp_path / "other", data, pairs.flip(1))
    assert not other.model.pose_head.weight.equal(by_descriptors.model.pose_head.weight)


def test_a_frame_in_no_pair_is_not_learned_from(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    pairs = torch.full((len(data.frames), 2), -1)
    pairs[:4] = torch.tensor([[1, 2], [0, 2], [3, -1], [2, 0]])
    in_no_pair = torch.zeros_like(data.is_test)
    in_no_pair[5] = True
    one, other = (
        train_with_pairs(tmp_path / str(i), some, pairs)
        for i, some in enumerate((data, with_other_frames(data, in_no_pair)))
    )
    assert_same_weights(one.model.state_dict(), other.model.state_dict())
    assert [row["validation_loss"] for row in curve(tmp_path / "0")] == [None, None]  # nothing held out has a pair
    with pytest.raises(DatasetError, match="expected pairs of training frames in kitchen, found none"):
        train_with_pairs(tmp_path / "none", data, torch.full_like(pairs, -1))


# Scenes with too few frames


def test_a_scene_with_fewer_frames_than_a_graph_has_nodes_takes_the_frames_there_are(tmp_path: Path) -> None:
    data = tiny_data({"closet": {"train": 3, "held out": 1, "test": 2}})
    config = tiny_config("graph.num_nodes=8", "graph.stride=5")
    trained = tiny_training(tmp_path, config, data)
    rows = graph_rows(data.test_rows(["closet"]), data.frames.in_map, random_descriptors(data), data, config.graph)
    assert sorted(rows[0].tolist()) == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert answer_graphs(trained.model, data.frames, rows).edges[:, :4].isfinite().all()


@pytest.mark.parametrize("kind", ["relpose_gnn", "posenet"])
def test_one_training_frame_is_too_few(tmp_path: Path, kind: str) -> None:
    data = tiny_data({"closet": {"train": 1, "test": 3}})
    with pytest.raises(DatasetError, match=r"expected at least 2 training frames in closet, found 1\."):
        tiny_training(tmp_path, tiny_config(f"model.kind={kind}"), data)
    data = tiny_data({"closet": {"train": 1, "held out": 1}})
    with pytest.raises(DatasetError, match=r"in closet, found 1 beside 1 held out for validation\."):
        tiny_training(tmp_path, tiny_config(f"model.kind={kind}"), data)
    assert not tmp_path.joinpath("last").exists()


def test_a_scene_with_one_training_frame_stands_beside_others(tmp_path: Path) -> None:
    data = tiny_data({"kitchen": {"train": 6, "held out": 2}, "closet": {"train": 1, "test": 1}})
    trained = tiny_training(tmp_path, data=data)
    assert all(np.isfinite(row["loss"]) for row in curve(tmp_path))
    rows = torch.tensor([[9, 8, -1]])  # the closet's query and its only reference
    assert answer_graphs(trained.model, data.frames, rows).edges[:, 0].isfinite().all()


def test_a_scene_without_anything_held_out_is_trained_to_the_end(tmp_path: Path) -> None:
    trained = tiny_training(tmp_path, data=tiny_data({"kitchen": {"train": 6}}))
    assert [row["validation_loss"] for row in curve(tmp_path)] == [None, None]
    assert saved(tmp_path / "last")["model.pose_head.weight"].equal(trained.model.pose_head.weight)


def test_few_rows_are_all_taken_and_of_many_as_many_as_asked_for() -> None:
    for count in range(700):
        assert evenly_spaced(torch.arange(count), 700).tolist() == list(range(count))
    some = evenly_spaced(torch.arange(40_007), 1000)
    assert (some[0], some[-1], len(some)) == (0, 40_006, 1000)
    assert set(some.diff().tolist()) == {40, 41}


# Graphs of a test


def test_the_most_similar_reference_is_always_in_a_tests_graph() -> None:
    data = tiny_data(TWO_ROOMS)
    descriptors, config = random_descriptors(data), GraphConfig(num_nodes=3, stride=3)
    queries = data.test_rows(["kitchen", "hall"])
    rows = graph_rows(queries, data.frames.in_map, descriptors, data, config)
    for query, *references in rows.tolist():
        same_scene = (data.frames.scene_idx == data.frames.scene_idx[query]) & data.frames.in_map
        similarity = (descriptors @ descriptors[query]).masked_fill(~same_scene, -torch.inf)
        ranking = similarity.argsort(descending=True).tolist()
        assert references == [ranking[0], ranking[3]]
    assert rows[:, 0].equal(queries)


def test_a_tests_random_references_are_those_of_a_seed() -> None:
    data = tiny_data(TWO_ROOMS)
    config = GraphConfig(num_nodes=3, selection="random")
    queries = data.test_rows(["kitchen", "hall"])
    one, again, other = (graph_rows(queries, data.frames.in_map, None, data, config, seed=seed) for seed in (0, 0, 1))
    assert one.equal(again)
    assert not one.equal(other)
    assert data.frames.in_map[one[:, 1:]].all()
    assert data.frames.scene_idx[one[:, 1:]].equal(data.frames.scene_idx[one[:, :1]].expand(-1, 2))


def test_a_tests_sequence_is_that_of_its_query() -> None:
    data = tiny_data(KITCHEN)  # the test sequence is frames 13 to 16
    rows = graph_rows(
        torch.tensor([13, 15]), data.frames.in_map, None, data, GraphConfig(num_nodes=3, selection="sequence")
    )
    assert rows.tolist() == [[13, 14, 15], [15, 14, 16]]
    assert graph_rows(torch.tensor([13]), data.frames.in_map, None, data, GraphConfig(selection="alone")).tolist() == [
        [13]
    ]


def test_the_stride_grows_with_the_frames_beside_the_map() -> None:
    in_map = torch.tensor([True] * 10 + [False] * 25)
    assert training_stride(5, in_map, in_map) == 5
    assert training_stride(5, torch.ones(35, dtype=torch.bool), in_map) == 5 * 4  # 35 / 10 is 3.5, rounded to even
    assert training_stride(5, ~in_map, in_map) == 5  # nothing of the map is trained on


# The jump of absolute rotations


def turned_about_y(degrees: list[float]) -> Pose:
    axis_angle = torch.tensor([[0.0, np.deg2rad(angle), 0.0] for angle in degrees])
    return Pose.from_axis_angle(axis_angle, torch.zeros(len(degrees), 3))


def share_of(degrees: list[float], target: Target, selection: str = "retrieval") -> float | None:
    data = tiny_data({"hall": {"train": len(degrees)}})
    data = replace(data, frames=replace(data.frames, T_world_cam=turned_about_y(degrees)))
    kind = "posenet" if selection == "alone" else "relpose_gnn"
    config = tiny_config(f"model.target={target}", f"graph.selection={selection}", f"model.kind={kind}")
    rows = data.train_rows(["hall"])
    ranked = torch.tensor([[other for other in rows.tolist() if other != row] for row in rows.tolist()])
    source = SceneGraphs(data.frames, rows, ~data.is_test, ranked, config.graph, len(rows), 1, 0)
    return share_across_the_jump(source, config)


def test_edges_across_180_degrees_are_counted() -> None:
    # The logs of 170 and 190 degrees (which is -170) are 180 degrees apart, though the cameras are 20 degrees apart.
    assert share_of([170.0, 175.0, 190.0], "world") == pytest.approx(4 / 6)
    assert share_of([10.0, 60.0, 170.0], "world") == 0.0


def test_where_there_are_no_such_edges_nothing_is_counted() -> None:
    assert share_of([170.0, 175.0, 190.0], "camera") is None
    assert share_of([170.0, 175.0, 190.0], "world", selection="alone") is None


# Units


class KnowsThePoses(PoseModel):
    """A network that has learned every pose by heart, and says it in its own unit; an image shows its number."""

    def __init__(self, T_world_cam: Pose, metres_per_unit: float, *, as_edges: bool = True) -> None:
        super().__init__(ResNet(1, blocks=(1, 1, 1, 1), width=8))
        said = absolute_targets(T_world_cam)
        self.said = torch.cat([said[:, :3] / metres_per_unit, said[:, 3:]], dim=1)
        self.as_edges = as_edges

    def encode(self, images: Tensor) -> Tensor:
        return self.said[images[:, :, 0, 0, 0].long()]

    def decode(self, x: Tensor, node_mask: Tensor, edge_mask: Tensor | None = None) -> PosePredictions:
        return PosePredictions(edges=x[:, None, :] - x[:, :, None]) if self.as_edges else PosePredictions(nodes=x)


def numbered(data: RelocalizationData) -> RelocalizationData:
    """The data with the number of each frame in its first pixel."""
    data.frames.images[:, 0, 0, 0] = torch.arange(len(data.frames), dtype=torch.uint8)
    return data


def test_the_unit_is_the_spread_of_the_training_cameras_over_all_axes() -> None:
    data = tiny_data(TWO_ROOMS)
    rows = data.train_rows(["kitchen", "hall"])
    centers, scenes = data.frames.T_world_cam.t.numpy(), data.frames.scene_idx.numpy()
    squared_m = []
    for scene in (0, 1):
        of_scene = centers[[row for row in rows.tolist() if scenes[row] == scene]].astype(np.float64)
        squared_m += [np.sum((center - of_scene.mean(axis=0)) ** 2) for center in of_scene]
    assert spread_of_cameras(data, rows) == pytest.approx(np.sqrt(np.mean(squared_m)), rel=1e-5)


def test_cameras_in_one_place_still_have_a_unit() -> None:
    data = tiny_data()
    R, t = data.frames.T_world_cam.R, torch.zeros_like(data.frames.T_world_cam.t)
    data = replace(data, frames=replace(data.frames, T_world_cam=Pose(R, t)))
    assert spread_of_cameras(data, data.train_rows(["kitchen"])) > 0


def test_a_unit_of_zero_is_worked_out_and_kept_with_the_network(tmp_path: Path) -> None:
    data = tiny_data(TWO_ROOMS)
    spread = spread_of_cameras(data, data.train_rows(["kitchen", "hall"]))
    trained = tiny_training(tmp_path, tiny_config("data.metres_per_unit=0"), data)
    assert trained.metres_per_unit == load_trained(tmp_path).metres_per_unit == pytest.approx(spread)


def test_a_larger_place_is_the_same_to_the_network(tmp_path: Path) -> None:
    # Everything eight times as large: with a unit of its own the training is the same to the last bit.
    data = tiny_data(TWO_ROOMS)
    larger = Pose(data.frames.T_world_cam.R, 8 * data.frames.T_world_cam.t)
    config = tiny_config("data.metres_per_unit=0", "model.target=world")
    small = tiny_training(tmp_path / "small", config, data)
    large = tiny_training(tmp_path / "large", config, replace(data, frames=replace(data.frames, T_world_cam=larger)))
    assert large.metres_per_unit == pytest.approx(8 * small.metres_per_unit)
    assert_same_weights(saved(tmp_path / "large" / "last"), saved(tmp_path / "small" / "last"), tolerance=1e-5)


@pytest.mark.parametrize("as_edges", [True, False])
def test_what_a_network_says_in_its_unit_is_evaluated_in_metres(as_edges: bool) -> None:
    data, unit = numbered(tiny_data(TWO_ROOMS)), 17.0
    kind = "relpose_gnn" if as_edges else "posenet"
    config = tiny_config("model.target=world", f"model.kind={kind}")
    perfect = KnowsThePoses(data.frames.T_world_cam, unit, as_edges=as_edges)
    trained = Trained(config, perfect, unit, ("kitchen", "hall"), Path())
    predictions = evaluate(trained, data, ["kitchen", "hall"], descriptors=random_descriptors(data))["nearest"]
    rotation_deg, translation_m = pose_error(predictions.T_world_true, predictions.T_world_cam)
    assert predictions.localized.all()
    assert translation_m.max() < 1e-5
    assert rotation_deg.max() < 1e-3
    # Without its unit it would be wrong by metres.
    wrong = evaluate(replace(trained, metres_per_unit=1.0), data, ["kitchen"], descriptors=random_descriptors(data))
    assert pose_error(wrong["nearest"].T_world_true, wrong["nearest"].T_world_cam)[1].median() > 0.5


@pytest.mark.parametrize("as_edges", [True, False])
def test_the_fixed_loss_is_in_metres_whatever_the_unit(as_edges: bool) -> None:
    data, unit = numbered(tiny_data(TWO_ROOMS)), 17.0
    config = tiny_config("model.target=world", f"model.kind={'relpose_gnn' if as_edges else 'posenet'}")
    perfect = KnowsThePoses(data.frames.T_world_cam, unit, as_edges=as_edges)
    rows = torch.tensor([[9, 1, 3], [10, 2, -1]])
    assert fixed_loss(perfect, data, rows, config, unit) == pytest.approx(-3.0, abs=1e-4)
    perfect.said[9:11, 0] += 0.1  # 1.7 m, for both queries
    assert fixed_loss(perfect, data, rows, config, unit) == pytest.approx(-3.0 + 1.7, abs=1e-4)


# Rooms without end


@pytest.fixture
def small_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few textures, homes and images to look at: the same code in a fraction of the time."""
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(textures.FAMILY_SIZES, 1))
    for name, value in (("FEW_HOMES", 1), ("KMEANS_IMAGES", 100), ("WHITENING_IMAGES", 200)):
        monkeypatch.setattr(running, name, value)


@pytest.mark.usefixtures("small_world")
def test_pretraining_makes_a_retriever_that_trainings_start_from(tmp_path: Path) -> None:
    config = tiny_config(
        "data.image_height=32",
        "optim.epochs=1",
        "optim.steps_per_epoch=2",
        "optim.batch_size=2",
        "retrieval.loss=covisibility",
    )
    retriever = pretrain(config, tmp_path, fabric=make_fabric())
    loaded = load_retriever(tmp_path / "retriever")
    images = tiny_data().frames.images
    assert_allclose(loaded.describe(images), retriever.describe(images), atol=1e-6)
    assert loaded.describe(images).shape == (17, 4)
    kept = saved(tmp_path / "best")
    assert loaded.encoder.conv1.weight.equal(kept["model.encoder.conv1.weight"])
    assert loaded.netvlad.centres.equal(kept["netvlad.centres"])
    assert [row["step"] for row in curve(tmp_path)] == [2]
