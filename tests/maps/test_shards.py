"""A shard is a file of safetensors, whoever writes or reads it."""

import json
from dataclasses import replace

import pytest
import torch
from made_maps import generated_features
from safetensors.torch import load, save

from relograph.localization.map_features import Precision, StoredFeatures
from relograph.maps.records import LEVELS, Level
from relograph.maps.shards import FORMAT, HEADER_LENGTH_BYTES, Shard

KINDS = [("float16", LEVELS), ("int8", LEVELS[:2]), ("float16", ())]


def shard_of(precision: Precision, levels: tuple[Level, ...], num_photos: int = 3) -> Shard:
    features, descriptors = generated_features([f"{number:02d}" * 32 for number in range(num_photos)])
    jpegs = [b"no JPEG"[:number] for number in range(num_photos)]  # so that nothing after them is aligned by chance
    return Shard.of((24, 32), StoredFeatures.of(features, precision), levels, descriptors, jpegs)


@pytest.mark.parametrize(("precision", "levels"), KINDS)
def test_a_shard_is_the_file_that_safetensors_would_write(precision: Precision, levels: tuple[Level, ...]):
    shard = shard_of(precision, levels)
    assert b"".join(shard.pieces()) == save(shard.tensors, metadata={"format": f"{FORMAT}, 24 x 32"})


@pytest.mark.parametrize(("precision", "levels"), KINDS)
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [0], []])
def test_safetensors_reads_what_a_shard_holds(precision: Precision, levels: tuple[Level, ...], rows: list[int]):
    shard = shard_of(precision, levels)
    shard = replace(shard, held={name: tensor[rows] for name, tensor in shard.tensors.items()})
    found = load(b"".join(shard.pieces()))
    assert found.keys() == shard.tensors.keys()
    for name, tensor in shard.tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize(("precision", "levels"), KINDS)
def test_numbers_of_several_bytes_begin_at_multiples_of_these(precision: Precision, levels: tuple[Level, ...]):
    shard = shard_of(precision, levels)
    header, *_ = shard.pieces()
    assert len(header) % HEADER_LENGTH_BYTES == 0
    told = json.loads(bytes(header[HEADER_LENGTH_BYTES:]))
    for name, tensor in shard.tensors.items():
        assert told[name]["data_offsets"][0] % tensor.element_size() == 0


def test_the_same_photos_give_the_same_bytes_however_they_lie_in_memory():
    shard = shard_of("int8", LEVELS)
    strided = {
        name: tensor.transpose(0, -1).contiguous().transpose(0, -1) for name, tensor in reversed(shard.tensors.items())
    }
    assert not all(tensor.is_contiguous() for tensor in strided.values())
    assert replace(shard, held=strided).sha256 == shard.sha256
