"""`relograph train` and `relograph eval` on scenes of a few photos, and the whole road from rooms to a table."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.evaluation import read_predictions
from relograph.models import build_model
from relograph.models.checkpoint import load_checkpoint
from relograph.rooms import textures
from relograph.rooms.seven_rooms import SIZES, RecordingSize
from relograph.training.presets import TINY
from small_roots import write_seven_scenes_root

QUICK = ("--set", "optim.epochs=1", "--set", "optim.batch_size=8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seven_scenes_root(tmp_path_factory.mktemp("data") / "seven", ("chess", "heads"), num_frames=6)


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on both scenes."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    done = invoke("train", "--preset", "tiny", "--data", root, "--output", folder, *QUICK, cache=folder.parent)
    assert done.exit_code == 0, done.output
    return folder


def invoke(*arguments: str | Path, cache: Path | None = None):
    more = ("--cache", cache / "cache") if cache is not None else ()
    return CliRunner().invoke(app, list(map(str, (*arguments, *more))))


def table_row(output: str, method: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.startswith(f"| {method} | 1 |")]
    return [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]


def test_training_ends_with_where_the_checkpoint_is_and_how_to_evaluate_it(root: Path, tmp_path: Path):
    done = invoke("train", "--preset", "tiny", "--data", root, "--output", tmp_path / "run", *QUICK, cache=tmp_path)
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{tmp_path}/run/best: checkpoint after 2 steps, validation loss ")
    assert line.endswith(f"Evaluate it with: relograph eval {tmp_path}/run --data {root}")


def test_a_run_knows_its_settings_and_its_data(run: Path):
    about = json.loads((run / "run.json").read_text())
    assert about["scenes"] == ["chess", "heads"]
    assert about["config"]["optim"]["epochs"] == 1
    metadata = load_checkpoint(run / "best").metadata
    assert metadata["config"] == about["config"]
    assert metadata["data_fingerprint"] == about["data"]


def test_evaluation_writes_predictions_and_prints_copying_beside_the_network(run: Path, root: Path, tmp_path: Path):
    predictions = tmp_path / "answers.csv"
    done = invoke("eval", run, "--data", root, "--output", predictions, cache=run.parent)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == str(predictions)
    assert len(read_predictions(predictions)[0]) == 12
    lines = done.stdout.splitlines()
    methods = [line.split("|")[1].strip() for line in lines if " 1 | " in line]
    assert methods == ["copy top-1", r"relpose\_gnn, nearest"]


def test_evaluation_reads_edges_as_asked(run: Path, root: Path, tmp_path: Path):
    answers = {}
    for reading in ("nearest", "average-markley"):
        path = tmp_path / f"{reading}.csv"
        done = invoke(
            "eval", run, "--data", root, "--reading", reading, "--scenes", "heads", "--output", path, cache=run.parent
        )
        assert done.exit_code == 0, done.output
        answers[reading] = read_predictions(path)[0]
    assert set(answers["nearest"].scene) == {"heads"}
    assert not torch.equal(answers["nearest"].T_world_cam.t, answers["average-markley"].T_world_cam.t)


def test_a_users_pairs_decide_what_is_copied(run: Path, root: Path, tmp_path: Path):
    pairs = tmp_path / "pairs.txt"
    # Each query with the frame of its own number in the first training sequence, a worse choice than retrieval's.
    queries = [f"chess/seq-03/frame-{frame:06d}.color.png" for frame in range(6)]
    references = [name.replace("seq-03", "seq-01") for name in queries]
    pairs.write_text("".join(f"{query} {reference}\n" for query, reference in zip(queries, references, strict=True)))
    arguments = ("--scenes", "chess", "--pairs", pairs, "--output", tmp_path / "answers.csv")
    done = invoke("eval", run, "--data", root, *arguments, cache=run.parent)
    assert done.exit_code == 0, done.output
    predictions, _ = read_predictions(tmp_path / "answers.csv")
    assert predictions.top1 == tuple(references)
    centres = [
        [np.loadtxt(root / name.replace("color.png", "pose.txt"))[:3, 3] for name in names]
        for names in (queries, references)
    ]
    error = np.median(np.linalg.norm(np.subtract(*centres), axis=1))
    assert table_row(done.stdout, "copy top-1")[2].startswith(f"{error:.2f} m")


def test_a_users_pairs_decide_what_is_trained_on(root: Path, tmp_path: Path):
    pairs = tmp_path / "pairs.txt"
    names = [f"chess/seq-01/frame-{frame:06d}.color.png" for frame in range(6)]
    pairs.write_text("".join(f"{query} {names[i - 1]}\n" for i, query in enumerate(names)))
    arguments = ("--preset", "tiny", "--data", root, *QUICK, "--pairs", pairs)
    done = invoke("train", *arguments, "--output", tmp_path / "run", "--scenes", "chess", cache=tmp_path)
    assert done.exit_code == 0, done.output
    assert "no pair" not in done.stderr
    digest = hashlib.sha256(pairs.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["retrieval"].startswith(f"pairs {digest[:16]}, ")
    both_scenes = invoke("train", *arguments, "--output", tmp_path / "both", cache=tmp_path)
    assert f"warning: 6 of 12 training frames have no pair in {pairs}: they are no queries." in both_scenes.stderr


def test_a_run_goes_on_with_the_same_settings_and_no_others(run: Path, root: Path):
    before = load_checkpoint(run / "best").sha256
    again = invoke("train", "--preset", "tiny", "--data", root, "--output", run, *QUICK, cache=run.parent)
    assert again.exit_code == 0
    assert load_checkpoint(run / "best").sha256 == before
    other = ("--set", "graph.stride=1")
    refused = invoke("train", "--preset", "tiny", "--data", root, "--output", run, *QUICK, *other, cache=run.parent)
    assert refused.exit_code == 1
    assert "found one with graph.stride 2 where 1 was asked for" in refused.stderr


def test_a_training_starts_from_the_encoder_and_the_retrieval_of_another(run: Path, root: Path, tmp_path: Path):
    # So small a learning rate that the encoder stays what it was.
    still = ("--set", "optim.learning_rate=1e-30", "--set", "optim.freeze_batch_norm=true", "--set", "seed=5")
    arguments = ("--preset", "tiny", "--data", root, "--output", tmp_path / "next", "--init", run)
    done = invoke("train", *arguments, *QUICK, *still, cache=run.parent)
    assert done.exit_code == 0, done.output
    started = load_checkpoint(tmp_path / "next" / "best").tensors["model.encoder.conv1.weight"]
    learned = load_checkpoint(run / "best").tensors["model.encoder.conv1.weight"]
    torch.testing.assert_close(started, learned)
    before = load_checkpoint(run / "retriever").tensors["retriever.encoder.conv1.weight"]  # it found its neighbours
    assert (learned - before).abs().max() > 1e-4
    assert load_checkpoint(tmp_path / "next" / "retriever").sha256 == load_checkpoint(run / "retriever").sha256
    hashes = [load_checkpoint(run / kind).sha256[:16] for kind in ("best", "retriever")]
    assert json.loads((tmp_path / "next" / "run.json").read_text())["start"] == "run {} with {}".format(*hashes)


def test_a_training_starts_from_public_weights(root: Path, tmp_path: Path):
    torch.manual_seed(3)
    encoder = build_model(TINY.model).encoder
    public = {name: tensor.clone() for name, tensor in encoder.state_dict().items() if not name.startswith("fc.")}
    save_file(public, tmp_path / "resnet.safetensors")
    still = ("--set", "optim.learning_rate=1e-30", "--set", "optim.freeze_batch_norm=true")
    arguments = ("--preset", "tiny", "--data", root, "--output", tmp_path / "run")
    weights = ("--encoder-weights", tmp_path / "resnet.safetensors")
    done = invoke("train", *arguments, *weights, *QUICK, *still, cache=tmp_path)
    assert done.exit_code == 0, done.output
    started = load_checkpoint(tmp_path / "run" / "best").tensors["model.encoder.layer4.0.conv2.weight"]
    torch.testing.assert_close(started, public["layer4.0.conv2.weight"])
    both = invoke("train", *arguments, *weights, "--init", tmp_path / "run", *QUICK, cache=tmp_path)
    assert both.exit_code == 1
    assert "expected --init or --encoder-weights, found both" in both.stderr


def test_retrieval_that_was_trained_along_is_what_evaluation_uses(root: Path, tmp_path: Path):
    along = ("--set", "retrieval.loss=covisibility", "--set", "retrieval.image_height=32")
    arguments = ("--preset", "tiny", "--data", root, "--output", tmp_path / "run", *QUICK, *along)
    done = invoke("train", *arguments, cache=tmp_path)
    assert done.exit_code == 0, done.output
    trained = load_checkpoint(tmp_path / "run" / "best").tensors
    kept = load_checkpoint(tmp_path / "run" / "retriever").tensors
    torch.testing.assert_close(kept["retriever.netvlad.centres"], trained["netvlad.centres"])
    torch.testing.assert_close(kept["retriever.encoder.conv1.weight"], trained["model.encoder.conv1.weight"])
    assert load_checkpoint(tmp_path / "run" / "retriever").metadata["image_height"] == 48  # as it was trained
    assert invoke("eval", tmp_path / "run", "--data", root, cache=tmp_path).exit_code == 0
    # A call that ends before it trains leaves it as it is.
    before = load_checkpoint(tmp_path / "run" / "retriever").sha256
    (tmp_path / "run" / "last" / "model.safetensors.index.json").write_text("damaged")
    stopped = invoke("train", *arguments, cache=tmp_path)
    assert "expected the index of a checkpoint" in stopped.stderr
    assert load_checkpoint(tmp_path / "run" / "retriever").sha256 == before


def test_a_scene_with_fewer_frames_than_a_graph_takes_what_there_is_and_says_so(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "root", ("chess",), num_frames=2)
    output = ("--output", tmp_path / "run")
    done = invoke("train", "--preset", "tiny", "--data", root / "chess", *output, *QUICK, cache=tmp_path)
    assert done.exit_code == 0, done.output
    assert (
        "warning: chess has 2 training frames and a graph has 4 images: graphs of this scene take the frames there are."
        in done.stderr.splitlines()
    )
    assert invoke("eval", tmp_path / "run", "--data", root, cache=tmp_path).exit_code == 0


def test_a_scene_with_one_training_frame_cannot_be_trained_on(tmp_path: Path):
    root = write_seven_scenes_root(tmp_path / "root", ("chess",), num_frames=1)
    output = ("--output", tmp_path / "run")
    done = invoke("train", "--preset", "tiny", "--data", root, *output, *QUICK, cache=tmp_path)
    assert done.exit_code == 1
    assert "expected at least 2 training frames in chess, found 1 beside 1 held out for validation." in done.stderr
    assert "warning: chess has 1 training frame and a graph has 4 images" in done.stderr


def test_every_setting_is_listed_with_its_value_and_what_it_means():
    done = invoke("train", "--preset", "paper-cambridge", "--list-settings")
    assert done.exit_code == 0
    assert "graph.stride=3  (int)  Every so many-th of the most similar images becomes a reference." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "papper"), "expected a preset among paper-7scenes"),
        (("--preset", "tiny"), "expected --data with --preset tiny"),
        (("--preset", "pretrain", "--data", "rooms"), "expected no --data with --preset pretrain"),
        (("--preset", "tiny", "--set", "graph.strid=1"), "Did you mean 'graph.stride'?"),
        (("--preset", "tiny", "--data", ".", "--pairs", "a", "--descriptors", "b"), "found both (a and b)"),
        (("--preset", "tiny", "--data", ".", "--pairs", "a", "--set", "graph.selection=random"), "found random, which"),
        (("--preset", "tiny", "--data", "nowhere"), "nowhere: expected a scene, found nothing there"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], message: str):
    done = invoke("train", *arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_evaluating_what_is_no_run_is_one_line(root: Path, tmp_path: Path):
    done = invoke("eval", tmp_path, "--data", root, cache=tmp_path)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1


def test_the_whole_road_from_rooms_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Small photos, few of them, and few textures: the same code in a fraction of the time.
    monkeypatch.setitem(SIZES, "small", RecordingSize(48, 64, every=125))
    monkeypatch.setattr(textures, "FAMILY_SIZES", dict.fromkeys(textures.FAMILY_SIZES, 1))
    rooms, run = tmp_path / "rooms", tmp_path / "run"
    made = CliRunner().invoke(app, ["rooms", "create", str(rooms), "--rooms", "2", "--workers", "1"])
    assert made.exit_code == 0, made.output
    more = ("--set", "data.extra_walks=1", "--set", "data.extra_every=256")
    trained = invoke("train", "--preset", "tiny", "--data", rooms, "--output", run, *QUICK, *more, cache=tmp_path)
    assert trained.exit_code == 0, trained.output
    evaluated = invoke("eval", run, "--data", rooms, cache=tmp_path)
    assert evaluated.exit_code == 0, evaluated.output
    for method in ("copy top-1", r"relpose\_gnn, nearest"):
        cells = table_row(evaluated.stdout, method)
        assert len(cells) == 2 + 3  # room-1, room-2 and their average
        assert all(" m / " in cell for cell in cells[2:])
    predictions, _ = read_predictions(run / "predictions.csv.gz")
    assert set(predictions.scene) == {"room-1", "room-2"}
    assert bool(predictions.localized.all())
    sweep = tmp_path / "sweep"
    arguments = ("run", "averaging", "--data", rooms, "--preset", "tiny", "--output", sweep, *QUICK)
    experiment = invoke("experiments", *arguments, cache=tmp_path)
    assert experiment.exit_code == 0, experiment.output
    assert json.loads((sweep / "results" / "averaging.json").read_text())["metadata"]["dataset"] == "SevenRooms"
