"""Weights on disk: safetensors in shards, with a hash of every byte, replaced as a whole or not at all.

A checkpoint is a folder of `model-00001-of-0000N-<hash>.safetensors` and `model.safetensors.index.json`, laid out as on
the model hubs. A shard is named after its content, so a new checkpoint never writes over the shards of the old one: it
is the index that leads from the old ones to the new ones, in one step.
"""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor, nn

from relograph.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
FORMAT = "relograph checkpoint 1"
MAX_SHARD_BYTES = 16_000_000

_SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}-[0-9a-f]{16}\.safetensors")
_PARTIAL_NAME = re.compile(r"model[-.].*\.partial-[0-9a-f]{8}")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    tensors: dict[str, Tensor]
    """By name, sorted, on the CPU."""
    metadata: dict[str, object]
    """As JSON holds it: tuples have become lists."""
    sha256: str
    """A hash in hex of the tensors' names, types, shapes and values."""


def save_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, object],
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a checkpoint into `folder`; one that is there already is replaced.

    Whoever reads the folder finds the old checkpoint or the new one, also after a kill, a power cut or a full disk at
    any moment. The same tensors and metadata give the same files, byte for byte. `metadata` is what JSON holds; NaN
    and infinity are refused, so a number that there is not is None. A tensor of more than `max_shard_bytes` has a
    shard of its own.
    """
    if "total_size" in metadata:
        raise ValueError("metadata may not hold total_size, which save_checkpoint finds out by itself")
    _refuse_what_json_has_no_word_for(metadata, where=f"{folder}: metadata")
    shards = _shards(tensors, max_shard_bytes)
    total_size = sum(_num_bytes(tensor) for tensor in tensors.values())
    weight_map: dict[str, str] = {}
    sha256_by_shard: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, names in enumerate(shards, start=1):
            # A copy of each: safetensors refuses tensors that share their memory, as tied weights do.
            copies = {name: tensors[name].detach().cpu().clone(memory_format=torch.contiguous_format) for name in names}
            data = bytes_from_tensors(copies, metadata={"format": "pt"})
            digest = hashlib.sha256(data).hexdigest()
            shard = f"model-{number:05d}-of-{len(shards):05d}-{digest[:16]}.safetensors"
            _write_whole(folder / shard, data)
            weight_map |= dict.fromkeys(names, shard)
            sha256_by_shard[shard] = digest
        _flush(folder)  # the shards' names are on the disk before the index that holds them
        index = {
            "format": FORMAT,
            "metadata": {**metadata, "total_size": total_size},
            "sha256": sha256_by_shard,
            "weight_map": weight_map,
        }
        index["index_sha256"] = _sha256_of_json(index)
        _write_whole(folder / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")
        _flush(folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: expected to save a checkpoint of {total_size / 1e6:.1f} MB here, "
            f"found: {error.strerror or error}. Check the rights and the free space, or choose another place; "
            "a checkpoint that was here before is kept."
        ) from error
    finally:
        _remove_litter(folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, once every byte of it has been found as it was saved."""
    while True:
        index = _read_bytes(folder / INDEX_FILE)
        try:
            return _load(folder, index)
        except CheckpointError:
            # A training that goes on may have replaced the checkpoint while it was read.
            if _read_bytes(folder / INDEX_FILE) == index:
                raise


def load_into(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copies `tensors` into the parameters and buffers of `model`, which must have the same names and shapes.

    `where` says where the tensors are from, for the message. Numbers are converted to the model's own types.
    """
    differences = _differences(model.state_dict(), tensors)
    if differences:
        raise CheckpointError(
            f"{where}: expected the weights of this {type(model).__name__}, found those of another model: "
            f"{_first_few(differences)}. Build the model with the configuration that was saved with the weights, "
            "or choose the checkpoint of this model."
        )
    model.load_state_dict(dict(tensors))


def load_encoder_weights(encoder: nn.Module, file: Path) -> None:
    """Copies public weights, such as torchvision's ResNet34 for ImageNet, into `encoder`.

    The file is a state dict in safetensors or, with any other ending, as `torch.save` writes it; no code in it is run.
    Every name and shape must agree, but for the last layer `fc`, which knows ImageNet's classes and is left alone.
    """
    expected = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith("fc.")}
    tensors = {name: tensor for name, tensor in _read_weights(file).items() if not name.startswith("fc.")}
    for name, tensor in expected.items():
        if name.endswith(".num_batches_tracked"):
            tensors.setdefault(name, tensor)  # files from before torch counted batches have no such names
    differences = _differences(expected, tensors)
    if differences:
        raise CheckpointError(
            f"{file}: expected weights for this encoder with torchvision's names, found others: "
            f"{_first_few(differences)}. Give the file of a ResNet34, or an encoder of the file's size."
        )
    encoder.load_state_dict(tensors, strict=False)


# Writing


def _shards(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[list[str]]:
    """The names, sorted, in groups whose tensors fit into one shard."""
    shards: list[list[str]] = []
    size = 0
    for name in sorted(tensors):
        size += _num_bytes(tensors[name])
        if not shards or size > max_shard_bytes:
            shards.append([])
            size = _num_bytes(tensors[name])
        shards[-1].append(name)
    return shards


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _refuse_what_json_has_no_word_for(value: object, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{where}: expected a finite number, found {value}. Save None where there is no number.")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_what_json_has_no_word_for(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _refuse_what_json_has_no_word_for(inner, f"{where}[{i}]")


def _write_whole(path: Path, data: bytes) -> None:
    """Writes a file that appears under its name once all of it is on the disk."""
    partial = path.with_name(f"{path.name}.partial-{token_hex(4)}")
    with partial.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _flush(folder: Path) -> None:
    """Returns when the list of names in `folder` is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_litter(folder: Path) -> None:
    """Removes what the index does not lead to: old shards, and what a failed or killed attempt has left."""
    with suppress(OSError, CheckpointError):  # a damaged index is no reason to remove what it may have led to
        has_index = (folder / INDEX_FILE).exists()
        index = _parse_index(_read_bytes(folder / INDEX_FILE), where=str(folder)) if has_index else None
        for name in os.listdir(folder):  # noqa: PTH208 - names are wanted, not paths
            is_old = _SHARD_NAME.fullmatch(name) and (index is None or name not in index.sha256_by_shard)
            if is_old or _PARTIAL_NAME.fullmatch(name):
                (folder / name).unlink()


# Reading


@dataclass(frozen=True)
class _Index:
    metadata: dict[str, object]
    shard_by_tensor: dict[str, str]
    sha256_by_shard: dict[str, str]


def _load(folder: Path, index_data: bytes) -> Checkpoint:
    index = _parse_index(index_data, where=str(folder / INDEX_FILE))
    tensors: dict[str, Tensor] = {}
    for shard, expected in index.sha256_by_shard.items():
        data = _read_bytes(folder / shard)
        if hashlib.sha256(data).hexdigest() != expected:
            raise CheckpointError(
                f"{folder / shard}: expected the bytes that were saved, found others: it was cut or damaged. "
                "Restore it from a copy, or use another checkpoint."
            )
        tensors |= _tensors_in(data, where=folder / shard)
    if set(tensors) != set(index.shard_by_tensor):
        raise _not_an_index(str(folder / INDEX_FILE), "its names are not those in the shards")
    sha256 = hashlib.sha256("".join(index.sha256_by_shard.values()).encode()).hexdigest()
    return Checkpoint({name: tensors[name] for name in sorted(tensors)}, index.metadata, sha256)


def _parse_index(data: bytes, where: str) -> _Index:
    """The index, once it is known to be whole and to lead to nothing outside its folder."""
    try:
        index = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _not_an_index(where, "it is no JSON") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise _not_an_index(where, f"it does not say {FORMAT!r}")
    if index.pop("index_sha256", None) != _sha256_of_json(index):
        raise _not_an_index(where, "it was damaged or edited")
    metadata, sha256_by_shard, shard_by_tensor = index.get("metadata"), index.get("sha256"), index.get("weight_map")
    if not isinstance(metadata, dict) or not _maps_to_words(sha256_by_shard) or not _maps_to_words(shard_by_tensor):
        raise _not_an_index(where, "parts of it are missing")
    for shard in {*sha256_by_shard, *shard_by_tensor.values()}:
        if not _SHARD_NAME.fullmatch(shard) or shard not in sha256_by_shard:
            raise _not_an_index(where, f"it leads to {shard!r}, which is no shard beside it")
    metadata.pop("total_size", None)
    return _Index(metadata, shard_by_tensor, dict(sorted(sha256_by_shard.items())))


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def _maps_to_words(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(word, str) for word in value.values())


def _not_an_index(where: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: expected the index of a checkpoint, found another file: {reason}. "
        "Restore it from a copy, or use another checkpoint."
    )


def _sha256_of_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = (
            f"a checkpoint, found no {path.name}" if path.name == INDEX_FILE else f"the shard {path.name}, found none"
        )
        raise CheckpointError(
            f"{path.parent}: expected {what}. Check the path, or copy the whole folder again."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected to read it, the system answered: {error.strerror or error}. Check its rights."
        ) from error


def _tensors_in(data: bytes, where: Path) -> dict[str, Tensor]:
    try:
        return tensors_from_bytes(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{where}: expected tensors in safetensors format, found: {_one_line(error)}. Restore it from a copy."
        ) from error


def _read_weights(file: Path) -> dict[str, Tensor]:
    """The state dict in a file from elsewhere."""
    if not file.is_file():
        found = "a folder" if file.is_dir() else "none"
        raise CheckpointError(
            f"{file}: expected a file of encoder weights, found {found}. Check the path, or download the file."
        )
    if file.suffix == ".safetensors":
        return _tensors_in(_read_bytes(file), where=file)
    data = _read_bytes(file)
    try:
        weights = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything here
        raise CheckpointError(
            f"{file}: expected weights as torch.save writes them, found: {_one_line(error)}. Download the file again; "
            "a file that holds more than tensors is not opened, as it could run code."
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CheckpointError(
            f"{file}: expected a state dict, tensors by name, found a {type(weights).__name__} of something else. "
            "Save model.state_dict() alone."
        )
    return weights


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines and lines[0] else type(error).__name__


# Comparing


def _differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """What keeps the tensors `found` from taking the place of those `expected`, a few words each."""
    differences = []
    for name, tensor in expected.items():
        if name not in found:
            differences.append(f"{name} is missing")
        elif found[name].shape != tensor.shape:
            differences.append(f"{name} is {list(found[name].shape)} instead of {list(tensor.shape)}")
        elif found[name].is_floating_point() != tensor.is_floating_point():
            differences.append(f"{name} is {found[name].dtype} instead of {tensor.dtype}")
    return differences + [f"{name} has no place" for name in sorted(set(found) - set(expected))]


def _first_few(differences: list[str], count: int = 3) -> str:
    others = f" and {len(differences) - count} more" if len(differences) > count else ""
    return ", ".join(differences[:count]) + others
