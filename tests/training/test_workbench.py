"""What trainings start from, and whose a run's folder is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_trainings import TINY, assert_same_weights, tiny_data, tiny_training

from relograph.errors import CheckpointError, ConfigError, TrainingError
from relograph.models import build_model
from relograph.models.checkpoint import load_checkpoint, save_checkpoint
from relograph.training.running import load_retriever, make_retriever, save_retriever
from relograph.training.workbench import claimed_run_folder, start_from

SETTINGS = {"config": {"optim": {"epochs": 2, "learning_rate": 1e-3}}, "scenes": ["kitchen"]}
OTHERS = {"config": {"optim": {"epochs": 2, "learning_rate": 1e-4}}, "scenes": ["kitchen"]}


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training, with the retriever that it began with."""
    folder = tmp_path_factory.mktemp("runs") / "kitchen"
    data = tiny_data()
    torch.manual_seed(TINY.seed)
    retriever = make_retriever(
        build_model(TINY.model).encoder, data, data.train_rows(["kitchen"]), TINY.retrieval, TINY.seed
    )
    with claimed_run_folder(folder, SETTINGS):
        save_retriever(retriever, folder / "retriever")
        tiny_training(folder, data=data)
    return folder


@pytest.fixture
def run(made_run: Path, tmp_path: Path) -> Path:
    """The same folder, to be changed."""
    return shutil.copytree(made_run, tmp_path / "run")


def sha256(folder: Path) -> str:
    return load_checkpoint(folder).sha256[:16]


# The weights of an earlier run


def test_a_training_hands_on_the_encoder_that_it_learned_and_the_retriever_that_it_used(run: Path) -> None:
    start = start_from(TINY, init=run)
    learned = load_checkpoint(run / "best").tensors
    for name, tensor in start.encoder.state_dict().items():
        assert tensor.equal(learned[f"model.encoder.{name}"])
    used = load_retriever(run / "retriever")
    assert_same_weights(start.retriever.state_dict(), used.state_dict())
    assert not start.encoder.conv1.weight.equal(used.encoder.conv1.weight)
    assert start.fingerprint == f"run {sha256(run / 'best')} with {sha256(run / 'retriever')}"


def test_a_training_with_other_peoples_descriptors_hands_on_its_encoder_alone(run: Path) -> None:
    shutil.rmtree(run / "retriever")
    start = start_from(TINY, init=run)
    assert start.encoder.conv1.weight.equal(load_checkpoint(run / "best").tensors["model.encoder.conv1.weight"])
    assert start.retriever is None
    assert start.fingerprint == f"run {sha256(run / 'best')}"


def test_a_pretraining_hands_on_its_retriever_and_the_encoder_in_it(run: Path) -> None:
    kept = load_checkpoint(run / "best")
    save_checkpoint(run / "best", kept.tensors, {**kept.metadata, "scene_names": []})
    start = start_from(TINY, init=run)
    assert start.encoder is start.retriever.encoder
    assert start.fingerprint == f"run {sha256(run / 'retriever')}"
    # The folder of the retriever is enough.
    assert start_from(TINY, init=run / "retriever").fingerprint == start.fingerprint


def test_a_run_that_has_learned_nothing_yet_is_not_started_from(run: Path) -> None:
    shutil.rmtree(run / "best")
    with pytest.raises(CheckpointError, match="expected a run that has learned something"):
        start_from(TINY, init=run)


# Whose a folder is


def claim(folder: Path, identity: dict[str, object]) -> object:
    """What the folder says that it is a run of, once it was claimed."""
    with claimed_run_folder(folder, identity):
        return json.loads((folder / "run.json").read_text())


def test_a_run_with_a_checkpoint_goes_on_with_its_own_settings_only(run: Path) -> None:
    assert claim(run, SETTINGS) == SETTINGS
    with pytest.raises(ConfigError, match=r"found one with optim.learning_rate 0.001 where 0.0001 was asked for"):
        claim(run, OTHERS)
    for kind in ("last", "best"):  # either of them is enough
        kept = shutil.copytree(run, run.with_name(f"without {kind}"))
        shutil.rmtree(kept / kind)
        with pytest.raises(ConfigError):
            claim(kept, OTHERS)


def test_a_run_without_a_checkpoint_makes_room_for_another(run: Path) -> None:
    for kind in ("last", "best"):
        shutil.rmtree(run / kind)
    assert claim(run, OTHERS) == OTHERS
    assert not (run / "retriever").exists()  # it was made for the first one's settings


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        claimed_run_folder(tmp_path / "run", SETTINGS),
        pytest.raises(TrainingError, match="run: expected a folder that nobody trains in, found another training"),
    ):
        claim(tmp_path / "run", SETTINGS)
    claim(tmp_path / "run", SETTINGS)
