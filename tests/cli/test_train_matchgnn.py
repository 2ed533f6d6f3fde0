"""`relograph train --preset matchgnn`: rounds of training without any data, from nothing or from the last round."""

import hashlib
import json
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from commands import TRAIN_A_ROUND, invoke
from PIL import Image

from relograph.models.checkpoint import load_checkpoint
from relograph.training.loop import read_log

pytestmark = pytest.mark.usefixtures("few_textures")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs to train with, one to validate with, one that is only tested with."""
    path = tmp_path_factory.mktemp("textures") / "textures.zip"
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as file:
        for name in ("train/1.jpg", "train/2.jpg", "train/3.jpg", "validation/1.jpg", "test/1.jpg"):
            encoded = BytesIO()
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(encoded, format="jpeg")
            file.writestr(name, encoded.getvalue())
    return path


@pytest.fixture(scope="module")
def first_round(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("rounds") / "first"
    done = invoke(*TRAIN_A_ROUND, "--textures", archive, "--output", run)
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{run}/weights: checkpoint after 2 steps, validation loss ")
    assert line.endswith(f"relograph train --preset matchgnn-tiny --init {run} --output NEW_RUN")
    return run


def test_a_round_keeps_which_photographs_it_saw(first_round: Path, archive: Path) -> None:
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    told = {"sha256": sha256, "num_images": 3, "split": "train"}
    assert load_checkpoint(first_round / "weights").metadata["textures"] == told
    assert json.loads((first_round / "run.json").read_text())["textures"] == told


def test_the_same_command_goes_on_and_another_is_refused(first_round: Path, archive: Path) -> None:
    before = load_checkpoint(first_round / "weights").sha256
    again = invoke(*TRAIN_A_ROUND, "--textures", archive, "--output", first_round)
    assert again.exit_code == 0, again.output
    assert load_checkpoint(first_round / "weights").sha256 == before
    assert len(read_log(first_round / "log.csv")) == 1
    bare = invoke(*TRAIN_A_ROUND, "--output", first_round)
    assert bare.exit_code == 1
    assert "expected a new folder or an unfinished run of the same settings, found one with textures" in bare.stderr


def test_a_next_round_starts_from_the_weights(first_round: Path, tmp_path: Path) -> None:
    done = invoke(*TRAIN_A_ROUND, "--init", first_round / "weights", "--output", tmp_path)
    assert done.exit_code == 0, done.output
    metadata = load_checkpoint(tmp_path / "weights").metadata
    assert metadata["training"]["rounds"] == 2
    assert metadata["start"] == load_checkpoint(first_round / "weights").sha256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "rooms"), "expected no --data with --preset matchgnn-tiny, found rooms"),
        (("--pairs", "pairs.txt"), "expected no --pairs with --preset matchgnn-tiny, found pairs.txt"),
        (("--set", "stream.num_home=3"), "Did you mean 'stream.num_homes'?"),
        (("--set", "stream.image_height=50"), "must be multiples of 16, got 50 and 64"),
        (("--init", "nowhere"), "nowhere: expected a checkpoint, found no model.safetensors.index.json"),
        (("--textures", "nowhere.zip"), "nowhere.zip: expected a folder or a zip file of photographs"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = invoke(*TRAIN_A_ROUND, "--output", tmp_path / "run", *arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_photographs_without_a_split_are_told_where_they_belong(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    done = invoke(*TRAIN_A_ROUND, "--textures", tmp_path, "--output", tmp_path / "run")
    assert done.exit_code == 1
    assert (
        f"{tmp_path}: expected photographs (.jpg, .jpeg, .png, .webp) in its folder train/, found none." in done.stderr
    )


def test_only_matchgnn_takes_photographs_for_its_rooms() -> None:
    done = invoke("train", "--preset", "tiny", "--data", ".", "--textures", "photos.zip")
    assert done.exit_code == 1
    assert "expected no --textures with --preset tiny, found photos.zip" in done.stderr


def test_every_setting_of_a_round_is_listed() -> None:
    done = invoke("train", "--preset", "matchgnn", "--list-settings")
    assert done.exit_code == 0
    assert "stream.unseen_graphs=128  (int)  Graphs in each batch that are not photographed" in done.stdout
    assert "optim.average_decay=0.998  (float)  Of a running mean of the weights" in done.stdout
