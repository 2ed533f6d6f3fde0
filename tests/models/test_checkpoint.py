"""Checkpoints come back bit for bit, or not at all and with one clear line."""

import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from full_disk import files_limited_to
from relograph.errors import CheckpointError
from relograph.models.checkpoint import load_checkpoint, load_encoder_weights, load_into, save_checkpoint
from relograph.models.encoder import ResNet

INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"model-(\d{5})-of-(\d{5})-[0-9a-f]{16}\.safetensors")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same names, types, shapes and bits: NaN is itself here, and -0 is not 0."""
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {f"layer{i}.weight": numbers(4, i + 2, seed=i) for i in range(5)}


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, Tensor]) -> Path:
    """A small checkpoint of several shards."""
    save_checkpoint(tmp_path / "best", tensors, {"epoch": 3, "loss": 0.25}, max_shard_bytes=150)
    assert len(files_of(tmp_path / "best")) == 4
    return tmp_path / "best"


# There and back


def test_tensors_and_metadata_come_back_as_they_were(tmp_path: Path):
    tensors = {"b.weight": numbers(3, 4), "a.bias": numbers(7, seed=1)}
    metadata = {"config": {"channels": 64, "stride": [1, 2]}, "epoch": 3, "loss": 0.1, "best": None, "name": "Küche"}
    save_checkpoint(tmp_path / "runs" / "1" / "best", tensors, metadata)
    checkpoint = load_checkpoint(tmp_path / "runs" / "1" / "best")
    assert_same_tensors(checkpoint.tensors, tensors)
    assert checkpoint.metadata == metadata


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool],
    ids=str,
)
def test_every_type_keeps_its_bits(tmp_path: Path, dtype: torch.dtype):
    tensors = {"weight": (numbers(5, 3) * 50).to(dtype), "scalar": numbers().to(dtype), "none": numbers(0, 3).to(dtype)}
    save_checkpoint(tmp_path, tensors, {})
    assert_same_tensors(load_checkpoint(tmp_path).tensors, tensors)


def test_weights_that_are_no_numbers_keep_their_bits(tmp_path: Path):
    tensors = {"weight": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])}
    save_checkpoint(tmp_path, tensors, {})
    assert_same_tensors(load_checkpoint(tmp_path).tensors, tensors)


def test_tied_turned_sliced_and_repeated_tensors_come_back_by_every_name(tmp_path: Path):
    weight = nn.Parameter(numbers(6, 4))
    images = numbers(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    tensors = {
        "encoder": weight,
        "decoder": weight,
        "turned": weight.t(),
        "slice": weight[1:3],
        "row": weight[0].expand(3, 4),
        "channels_last": images,
    }
    save_checkpoint(tmp_path, tensors, {})
    assert_same_tensors(load_checkpoint(tmp_path).tensors, tensors)


def test_a_checkpoint_without_tensors_holds_its_metadata(tmp_path: Path):
    save_checkpoint(tmp_path, {}, {"epoch": 0})
    checkpoint = load_checkpoint(tmp_path)
    assert (checkpoint.tensors, checkpoint.metadata) == ({}, {"epoch": 0})


def test_a_model_with_batch_norm_goes_there_and_back(tmp_path: Path):
    torch.manual_seed(0)
    saved, loaded = (ResNet(16, blocks=(1, 1, 1, 1), width=4) for _ in range(2))
    saved(torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8))  # moves the running statistics
    save_checkpoint(tmp_path, saved.state_dict(), {})
    load_into(loaded, load_checkpoint(tmp_path).tensors, where="best")
    assert_same_tensors(loaded.state_dict(), saved.state_dict())


# Files


def test_the_same_content_gives_the_same_files(tmp_path: Path, tensors: dict[str, Tensor]):
    reversed_tensors = dict(reversed(list(tensors.items())))
    save_checkpoint(tmp_path / "a", tensors, {"epoch": 3, "loss": 0.25}, max_shard_bytes=150)
    save_checkpoint(tmp_path / "b", reversed_tensors, {"loss": 0.25, "epoch": 3}, max_shard_bytes=150)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_the_hash_is_that_of_the_weights(tmp_path: Path, tensors: dict[str, Tensor]):
    others = [
        tensors,
        {**tensors, "layer0.weight": tensors["layer0.weight"] + 1e-6},
        {name.replace("4", "5"): tensor for name, tensor in tensors.items()},
        {name: tensor.reshape(-1) for name, tensor in tensors.items()},
    ]
    found = set()
    for i, other in enumerate(others):
        save_checkpoint(tmp_path / f"{i}", other, {"epoch": i})
        found.add(load_checkpoint(tmp_path / f"{i}").sha256)
    assert len(found) == len(others)
    save_checkpoint(tmp_path / "later", tensors, {"epoch": 7})
    assert load_checkpoint(tmp_path / "later").sha256 == load_checkpoint(tmp_path / "0").sha256


def test_shards_stay_below_their_size_and_a_larger_tensor_has_its_own(tmp_path: Path):
    tensors = {"a": numbers(20), "b": numbers(20), "c": numbers(100), "d": numbers(10), "e": numbers(30)}
    save_checkpoint(tmp_path, tensors, {}, max_shard_bytes=200)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    shards = sorted(set(weight_map.values()))
    assert [[name for name in weight_map if weight_map[name] == shard] for shard in shards] == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
    ]
    assert [match.groups() for match in map(SHARD.fullmatch, shards) if match] == [
        ("00001", "00003"),
        ("00002", "00003"),
        ("00003", "00003"),
    ]


def test_shards_are_cut_at_16_megabytes(tmp_path: Path):
    save_checkpoint(tmp_path, {f"{i:02d}": torch.zeros(1_000_000) for i in range(9)}, {})
    sizes = sorted(len(data) for name, data in files_of(tmp_path).items() if SHARD.fullmatch(name))
    assert len(sizes) == 3
    assert sizes[-1] <= 16 * 2**20


def test_the_layout_is_that_of_the_hubs(folder: Path, tensors: dict[str, Tensor]):
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.numel() * 4 for tensor in tensors.values())
    found = {}
    for name, shard in index["weight_map"].items():
        with safe_open(folder / shard, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            found[name] = file.get_tensor(name)
    assert_same_tensors(found, tensors)


def test_a_new_checkpoint_takes_the_place_of_the_old_and_leaves_other_files_alone(folder: Path, tmp_path: Path):
    (folder / "log.csv").write_text("step,loss\n")
    new = {"layer0.weight": numbers(4, 2, seed=9)}
    save_checkpoint(folder, new, {"epoch": 4})
    assert_same_tensors(load_checkpoint(folder).tensors, new)
    save_checkpoint(tmp_path / "fresh", new, {"epoch": 4})
    assert files_of(folder) == {**files_of(tmp_path / "fresh"), "log.csv": b"step,loss\n"}


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path):
    def at_step(step: int) -> dict[str, Tensor]:
        return {name: torch.full((8,), float(step)) for name in "abcd"}

    done = threading.Event()

    def train() -> None:
        for step in count(1):
            save_checkpoint(tmp_path, at_step(step), {"step": step}, max_shard_bytes=32)
            if done.is_set():
                return

    save_checkpoint(tmp_path, at_step(0), {"step": 0}, max_shard_bytes=32)
    training = threading.Thread(target=train)
    training.start()
    try:
        steps = []
        while len(set(steps)) < 30:
            checkpoint = load_checkpoint(tmp_path)
            step = checkpoint.metadata["step"]
            assert isinstance(step, int)
            assert_same_tensors(checkpoint.tensors, at_step(step))
            steps.append(step)
    finally:
        done.set()
        training.join()
    assert steps == sorted(steps)


# What cannot be saved


@pytest.mark.parametrize(
    ("metadata", "where"),
    [
        ({"loss": float("nan")}, r"metadata\.loss: expected a finite number, found nan"),
        (
            {"best": {"losses": [1.0, float("-inf")]}},
            r"metadata\.best\.losses\[1\]: expected a finite number, found -inf",
        ),
    ],
)
def test_a_number_that_is_none_is_refused_and_the_old_checkpoint_stays(
    folder: Path, metadata: dict[str, object], where: str
):
    before = files_of(folder)
    with pytest.raises(CheckpointError, match=where):
        save_checkpoint(folder, {"a": numbers(3)}, metadata)
    assert files_of(folder) == before


def test_metadata_that_json_cannot_hold_leaves_the_old_checkpoint(folder: Path):
    before = files_of(folder)
    with pytest.raises(TypeError):
        save_checkpoint(folder, {"a": numbers(3)}, {"path": Path("a")})
    with pytest.raises(ValueError, match="total_size"):
        save_checkpoint(folder, {"a": numbers(3)}, {"total_size": 3})
    assert files_of(folder) == before


@pytest.mark.parametrize("failing", range(4))
def test_a_shard_that_cannot_be_written_leaves_the_old_checkpoint_and_no_litter(folder: Path, failing: int):
    before = files_of(folder)
    new = {f"{i}": torch.zeros(50_000 if i == failing else 10) for i in range(4)}
    with pytest.raises(CheckpointError) as raised, files_limited_to(100_000):
        save_checkpoint(folder, new, {}, max_shard_bytes=40)
    assert str(raised.value) == (
        f"{folder}: expected to save a checkpoint of 0.2 MB here, found: File too large. Check the rights and the free "
        "space, or choose another place; a checkpoint that was here before is kept."
    )
    assert files_of(folder) == before


def test_an_index_that_cannot_be_written_leaves_the_old_checkpoint_and_no_litter(folder: Path):
    before = files_of(folder)
    with pytest.raises(CheckpointError, match="File too large"), files_limited_to(10_000):
        save_checkpoint(folder, {"a": numbers(3)}, {"notes": "x" * 20_000})
    assert files_of(folder) == before


def test_a_first_checkpoint_that_fails_leaves_an_empty_folder(tmp_path: Path):
    with pytest.raises(CheckpointError, match="File too large"), files_limited_to(10_000):
        save_checkpoint(tmp_path / "best", {"a": numbers(3), "b": torch.zeros(5_000)}, {}, max_shard_bytes=100)
    assert files_of(tmp_path / "best") == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_the_old_checkpoint_wherever_it_strikes(small_disk: Path, tensors: dict[str, Tensor]):
    folder = small_disk / "best"
    save_checkpoint(folder, tensors, {"epoch": 0}, max_shard_bytes=150)
    before = files_of(folder)
    failed = 0
    for free in range(0, 100_000, 5_000):  # four shards of about 12 kB each; pages of 4 kB
        ballast = small_disk / "ballast"
        used = sum(-(-len(data) // 4096) * 4096 for data in before.values())
        ballast.write_bytes(bytes(2**20 - used - free // 4096 * 4096))
        message = None
        try:
            save_checkpoint(folder, {f"{i}": numbers(3_000) for i in range(4)}, {"epoch": 1}, max_shard_bytes=12_000)
        except CheckpointError as error:
            message = str(error)
        ballast.unlink()
        if message is None:
            break
        assert "No space left on device" in message
        assert files_of(folder) == before
        failed += 1
    assert failed >= 4
    assert load_checkpoint(folder).metadata == {"epoch": 1}


def test_a_place_that_is_no_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "best"):
        with pytest.raises(CheckpointError) as raised:
            save_checkpoint(place, {"a": numbers(3)}, {})
        assert str(raised.value).startswith(f"{place}: expected to save a checkpoint")
    assert (tmp_path / "file").read_text() == ""


KILLED_WHILE_SAVING = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from relograph.models.checkpoint import load_checkpoint, save_checkpoint

folder = Path(sys.argv[1])
SIZES = (3, 40_000, 500)


def save(step):
    tensors = {f"{i}": torch.full((size,), float(step)) for i, size in enumerate(SIZES)}
    save_checkpoint(folder, tensors, {"step": step}, max_shard_bytes=1000)


def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def whole_step():
    checkpoint = load_checkpoint(folder)
    step = checkpoint.metadata["step"]
    assert sorted(map(len, checkpoint.tensors.values())) == sorted(SIZES)
    assert all((tensor == step).all() for tensor in checkpoint.tensors.values())
    return step


def killed_at(moment, step):
    # Python announces every file that it opens, lists, renames or removes.
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.listdir", "os.rename", "os.remove"):
            seen += 1
            if seen > moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    save(step)


save(0)
found, moment, status = [], 0, 1
while status != 0:
    step = whole_step() + 1
    _, status = os.waitpid(in_child(lambda: killed_at(moment, step)), 0)
    found.append(whole_step() - step)
    moment += 1
print("between files:", *found)


def save_for_ever(step, pipe):
    while True:
        os.write(pipe, b".")
        save(step)
        step += 1


began = time.monotonic()
save(whole_step() + 1)
duration_s = time.monotonic() - began
rng = random.Random(0)
for _ in range(20):
    before, complete = whole_step(), rng.randint(0, 2)
    reading_end, writing_end = os.pipe()
    pid = in_child(lambda: save_for_ever(before + 1, writing_end))
    for _ in range(complete + 1):
        os.read(reading_end, 1)
    time.sleep(rng.uniform(0.0, duration_s))  # into one of its saves
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading_end), os.close(writing_end)
    assert whole_step() >= before + complete

save(1)
assert len(list(folder.iterdir())) == len(SIZES) + 1, "litter"
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path):
    program = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path / "last")]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # it forks, and threads do not
    done = subprocess.run(program, env=one_thread, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # -1: the old checkpoint was found, 0: the new one. Once it is there it stays.
    outcomes = [int(word) for word in done.stdout.removeprefix("between files:").split()]
    assert outcomes == sorted(outcomes)
    assert outcomes.count(-1) >= 8
    assert outcomes.count(0) >= 4


# What cannot be loaded


def assert_refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(folder)
    message = str(raised.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_shard_that_was_cut_is_noticed(folder: Path):
    for name, data in files_of(folder).items():
        for length in {0, 1, 7, 8, len(data) // 2, len(data) - 2}:
            (folder / name).write_bytes(data[:length])
            assert_refused(folder, name)
        (folder / name).write_bytes(data + b"\0")
        assert_refused(folder, name)
        (folder / name).write_bytes(data)
    load_checkpoint(folder)


def test_a_flipped_bit_is_noticed_wherever_it_is(folder: Path, tensors: dict[str, Tensor]):
    refused = 0
    for name, data in files_of(folder).items():
        for bit in range(0, 8 * len(data), 37):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(damaged)
            message = ""
            try:
                checkpoint = load_checkpoint(folder)
            except CheckpointError as error:
                message = str(error)
            if message:
                assert name in message
                refused += 1
            else:  # the same in other letters: 1e5 and 1E5
                assert name == INDEX
                assert_same_tensors(checkpoint.tensors, tensors)
                assert checkpoint.metadata == {"epoch": 3, "loss": 0.25}
        (folder / name).write_bytes(data)
    assert refused > 300


def test_a_missing_shard_is_named(folder: Path):
    for name, data in files_of(folder).items():
        (folder / name).unlink()
        assert_refused(folder, name, "copy the whole folder again")
        (folder / name).write_bytes(data)


def test_shards_of_two_checkpoints_do_not_mix(folder: Path, tmp_path: Path):
    save_checkpoint(tmp_path / "other", {f"layer{i}.weight": numbers(4, i + 2, seed=7) for i in range(5)}, {})
    first, other = (
        next(path for path in sorted(f.iterdir()) if path.name != INDEX) for f in (folder, tmp_path / "other")
    )
    first.write_bytes(other.read_bytes())
    assert_refused(folder, first.name, "expected the bytes that were saved")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "7", '{"weight_map": {}}', "[" * 100_000, "\0\0\0\0", "NaN", '{"format": 1}']
)
def test_another_file_in_the_place_of_the_index_is_no_checkpoint(folder: Path, text: str):
    (folder / INDEX).write_text(text)
    assert_refused(folder, INDEX, "expected the index of a checkpoint")


def test_a_folder_without_index_or_no_folder_is_no_checkpoint(tmp_path: Path):
    assert_refused(tmp_path, f"found no {INDEX}")
    assert_refused(tmp_path / "nowhere", f"found no {INDEX}")
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", f"found no {INDEX}")


def forge_index(folder: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Changes the index and mends its hash, as somebody with bad intentions can."""
    index = json.loads((folder / INDEX).read_text())
    del index["index_sha256"]
    change(index)
    index["index_sha256"] = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (folder / INDEX).write_text(json.dumps(index))


def test_an_index_may_be_laid_out_anew(folder: Path, tensors: dict[str, Tensor]):
    forge_index(folder, lambda index: None)
    assert_same_tensors(load_checkpoint(folder).tensors, tensors)


@pytest.mark.parametrize("outside", ["../secret.safetensors", "{parent}/secret.safetensors", "a/../../secret", "", "."])
def test_an_index_that_leads_out_of_its_folder_is_refused(folder: Path, outside: str):
    save_file({"layer0.weight": numbers(4, 2)}, folder.parent / "secret.safetensors")
    outside = outside.format(parent=folder.parent)

    def lead_outside(index: dict[str, dict[str, object]]) -> None:
        secret = (folder.parent / "secret.safetensors").read_bytes()
        index["weight_map"]["layer0.weight"] = outside
        index["sha256"][outside] = hashlib.sha256(secret).hexdigest()

    forge_index(folder, lead_outside)
    assert_refused(folder, f"it leads to {outside!r}")


def test_an_index_that_promises_what_is_not_there_is_refused(folder: Path):
    whole = (folder / INDEX).read_bytes()
    shard = json.loads(whole)["weight_map"]["layer0.weight"]

    def check(change: Callable[[dict[str, dict[str, object]]], object], words: str) -> None:
        forge_index(folder, lambda index: change(index) and None)
        assert_refused(folder, words)
        (folder / INDEX).write_bytes(whole)

    check(lambda index: index["weight_map"].update(more=shard), "its names are not those in the shards")
    check(lambda index: index["weight_map"].pop("layer0.weight"), "its names are not those in the shards")
    check(lambda index: index["sha256"].pop(shard), "which is no shard beside it")
    check(lambda index: index.pop("sha256"), "parts of it are missing")
    check(lambda index: index.update(weight_map=[]), "parts of it are missing")
    check(lambda index: index["sha256"].update({shard: 5}), "parts of it are missing")
    check(lambda index: index.update(metadata=None), "parts of it are missing")
    check(lambda index: index.update(format="relograph checkpoint 2"), "it does not say 'relograph checkpoint 1'")


def test_a_shard_that_is_no_safetensors_file_is_refused(folder: Path):
    def claim_garbage(index: dict[str, dict[str, object]]) -> None:
        shard = str(index["weight_map"]["layer0.weight"])
        (folder / shard).write_bytes(b"garbage" * 10)
        index["sha256"][shard] = hashlib.sha256(b"garbage" * 10).hexdigest()

    forge_index(folder, claim_garbage)
    assert_refused(folder, "expected tensors in safetensors format")


# Into a model


def small_network(channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, channels), nn.BatchNorm1d(channels), nn.Linear(channels, 1))


def test_weights_of_another_precision_are_converted():
    model = small_network()
    load_into(
        model,
        {name: tensor.bfloat16() for name, tensor in small_network().state_dict().items() if tensor.is_floating_point()}
        | {"1.num_batches_tracked": torch.tensor(5)},
        where="best",
    )
    assert model[0].weight.dtype == torch.float32
    assert model[1].num_batches_tracked == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("0.bias"), "0.bias is missing."),
        (lambda tensors: tensors.update(head=torch.zeros(1)), "head has no place."),
        (
            lambda tensors: tensors.update(small_network(5).state_dict()),
            "0.weight is [5, 2] instead of [3, 2], 0.bias is [5] instead of [3], 1.weight is [5] instead of [3] "
            "and 4 more.",
        ),
        (
            lambda tensors: tensors.update({"1.num_batches_tracked": torch.tensor(0.5)}),
            "1.num_batches_tracked is torch.float32 instead of torch.int64.",
        ),
    ],
    ids=["missing", "unexpected", "shapes", "type"],
)
def test_weights_of_another_architecture_are_refused_whole(change: Callable[[dict[str, Tensor]], object], words: str):
    torch.manual_seed(0)
    model, other = small_network(), small_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = dict(other.state_dict())
    change(tensors)
    with pytest.raises(CheckpointError) as raised:
        load_into(model, tensors, where="runs/1/best")
    assert str(raised.value) == (
        "runs/1/best: expected the weights of this Sequential, found those of another model: "
        f"{words} Build the model with the configuration that was saved with the weights, "
        "or choose the checkpoint of this model."
    )
    assert_same_tensors(model.state_dict(), before)


# Public weights


def torchvision_resnet34(width: int = 64, *, counters: bool = True) -> dict[str, Tensor]:
    """A state dict with the names of torchvision.models.resnet34, its shapes if `width` is 64, filled with numbers."""
    shapes: dict[str, tuple[int, ...]] = {}

    def batch_norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        if counters:
            shapes[f"{name}.num_batches_tracked"] = ()

    shapes["conv1.weight"] = (width, 3, 7, 7)
    batch_norm("bn1", width)
    in_channels = width
    for stage, num_blocks in enumerate([3, 4, 6, 3]):
        channels = width * 2**stage
        for block in range(num_blocks):
            name = f"layer{stage + 1}.{block}"
            shapes[f"{name}.conv1.weight"] = (channels, in_channels, 3, 3)
            batch_norm(f"{name}.bn1", channels)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            batch_norm(f"{name}.bn2", channels)
            if in_channels != channels:
                shapes[f"{name}.downsample.0.weight"] = (channels, in_channels, 1, 1)
                batch_norm(f"{name}.downsample.1", channels)
            in_channels = channels
    shapes["fc.weight"], shapes["fc.bias"] = (1000, in_channels), (1000,)
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.tensor(7) if name.endswith("tracked") else torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


def test_public_weights_of_a_resnet34_fill_the_default_encoder(tmp_path: Path):
    weights = torchvision_resnet34()
    trained = [tensor for name, tensor in weights.items() if "running" not in name and "tracked" not in name]
    # As torchvision's documentation has it, and as its file holds.
    assert sum(tensor.numel() for tensor in trained) == 21_797_672
    assert len(weights) == 218
    assert weights["fc.weight"].shape == (1000, 512)
    torch.save(weights, tmp_path / "resnet34.pth")
    encoder = ResNet(64)
    last_layer = {f"fc.{name}": tensor.clone() for name, tensor in encoder.fc.state_dict().items()}
    load_encoder_weights(encoder, tmp_path / "resnet34.pth")
    assert_same_tensors(encoder.state_dict(), {**weights, **last_layer})


def save_as(kind: str, folder: Path) -> Path:
    """Weights of a thin ResNet34 in one of the kinds of files that they come in."""
    path = folder / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    weights = torchvision_resnet34(width=4, counters=kind != "without counters")
    if kind == "safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=kind != "legacy")
    return path


@pytest.mark.parametrize("kind", ["zip", "legacy", "without counters", "safetensors"])
def test_every_kind_of_file_fills_all_of_the_encoder_but_its_last_layer(tmp_path: Path, kind: str):
    encoder = ResNet(6, width=4)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    load_encoder_weights(encoder, save_as(kind, tmp_path))
    expected = torchvision_resnet34(width=4, counters=kind != "without counters")
    kept = {name: tensor for name, tensor in before.items() if name.startswith("fc.") or name not in expected}
    assert_same_tensors(encoder.state_dict(), {**expected, **kept})


def test_public_weights_of_another_network_are_refused(tmp_path: Path):
    file = save_as("safetensors", tmp_path)
    with pytest.raises(CheckpointError) as raised:
        load_encoder_weights(ResNet(6, blocks=(3, 4, 6, 2), width=4), file)
    assert str(raised.value) == (
        f"{file}: expected weights for this encoder with torchvision's names, found others: "
        "layer4.2.bn1.bias has no place, layer4.2.bn1.num_batches_tracked has no place, "
        "layer4.2.bn1.running_mean has no place and 9 more. "
        "Give the file of a ResNet34, or an encoder of the file's size."
    )
    with pytest.raises(CheckpointError, match=re.escape("layer4.3.conv1.weight is missing")):
        load_encoder_weights(ResNet(6, blocks=(3, 4, 6, 4), width=4), file)
    with pytest.raises(CheckpointError, match=re.escape("conv1.weight is [4, 3, 7, 7] instead of [8, 3, 7, 7]")):
        load_encoder_weights(ResNet(6, width=8), file)


class RunsCode:
    """What a pickle does when it is opened by somebody who trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_not_opened(tmp_path: Path):
    file = tmp_path / "weights.pth"
    torch.save({"conv1.weight": RunsCode(tmp_path / "it ran")}, file)
    with pytest.raises(CheckpointError, match="could run code") as raised:
        load_encoder_weights(ResNet(4, blocks=(1, 1, 1, 1), width=2), file)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "it ran").exists()


def test_files_that_are_no_weights_are_named(tmp_path: Path):
    encoder = ResNet(4, blocks=(1, 1, 1, 1), width=2)
    whole = save_as("zip", tmp_path).read_bytes()[:100_000]
    for name, data, words in [
        ("cut.pth", whole, "expected weights as torch.save writes them"),
        ("empty.pth", b"", "expected weights as torch.save writes them"),
        ("cut.safetensors", whole, "expected tensors in safetensors format"),
        ("empty.safetensors", b"", "expected tensors in safetensors format"),
        ("numbers.pth", pickle.dumps([1, 2, 3]), "expected"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=words) as raised:
            load_encoder_weights(encoder, tmp_path / name)
        assert str(raised.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(raised.value)
    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "training.pth")
    with pytest.raises(CheckpointError, match="expected a state dict, tensors by name"):
        load_encoder_weights(encoder, tmp_path / "training.pth")
    for name, found in (("nowhere.pth", "none"), ("nowhere.safetensors", "none"), (".", "a folder")):
        with pytest.raises(CheckpointError) as raised:
            load_encoder_weights(encoder, tmp_path / name)
        assert str(raised.value).startswith(f"{tmp_path / name}: expected a file of encoder weights, found {found}.")
