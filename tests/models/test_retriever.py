"""The retriever: descriptors of images, reduced or not, saved and loaded again."""

from pathlib import Path

import pytest
import torch
from tiny_networks import random_images
from torch import Tensor

from relograph.errors import CheckpointError
from relograph.models import ResNet
from relograph.models.checkpoint import load_checkpoint, save_checkpoint
from relograph.models.retriever import Retriever
from relograph.retrieval import PCAWhitening
from relograph.training.running import load_retriever, save_retriever

IMAGES = random_images(1, 12)[0]
NUM_CLUSTERS = 3


def make_retriever(*, image_height: int = 128) -> Retriever:
    """Started by K-means on the images, not reduced."""
    torch.manual_seed(0)
    encoder = ResNet(16, blocks=(1, 2, 1, 1), width=8)
    retriever = Retriever(encoder, num_clusters=NUM_CLUSTERS, image_height=image_height)
    retriever.initialise(IMAGES, torch.Generator().manual_seed(0))
    return retriever


def one_by_one(retriever: Retriever, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([retriever(image[None]) for image in images])


def test_a_descriptor_has_unit_length_and_a_number_for_every_cluster_and_channel() -> None:
    descriptors = make_retriever().describe(IMAGES)
    assert descriptors.shape == (12, NUM_CLUSTERS * 64)
    torch.testing.assert_close(descriptors.norm(dim=1), torch.ones(12))


def test_many_images_are_described_as_each_of_them_alone() -> None:
    retriever = make_retriever()
    torch.testing.assert_close(
        retriever.describe(IMAGES, batch_size=5), one_by_one(retriever, IMAGES), rtol=1e-4, atol=1e-5
    )


def test_describing_does_not_look_at_the_batch_and_leaves_no_gradient() -> None:
    retriever = make_retriever().train()
    descriptors = retriever.describe(IMAGES)
    assert retriever.describe(IMAGES[:1]).allclose(descriptors[:1], atol=1e-5)
    assert not descriptors.requires_grad


def test_clusters_begin_where_the_encoders_features_are() -> None:
    centres = make_retriever().netvlad.centres
    assert centres.equal(make_retriever().netvlad.centres)  # the same numbers for the same generator
    unstarted = Retriever(make_retriever().encoder, num_clusters=NUM_CLUSTERS).netvlad.centres
    assert not centres.allclose(unstarted)


def test_large_images_are_made_smaller_and_small_ones_are_left() -> None:
    retriever = make_retriever(image_height=32)
    large = IMAGES.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)  # 64 x 80
    assert retriever.shown(large).shape == (12, 32, 40, 3)
    assert retriever.shown(IMAGES) is IMAGES
    wide = torch.zeros(1, 64, 91, 3, dtype=torch.uint8)
    assert retriever.shown(wide).shape == (1, 32, 46, 3)  # 45.5, to the nearest even
    grey = torch.full((2, 64, 80, 3), 100, dtype=torch.uint8)
    torch.testing.assert_close(retriever.shown(grey), torch.full((2, 32, 40, 3), 100.0))


# Reduced


def test_whitening_is_that_of_the_plain_descriptors() -> None:
    retriever = make_retriever()
    plain = retriever.describe(IMAGES)
    retriever.whiten(IMAGES, 5)
    assert retriever.is_whitened
    reduced = retriever.describe(IMAGES)
    assert reduced.shape == (12, 5)
    torch.testing.assert_close(reduced, PCAWhitening.fit(plain, 5)(plain), rtol=1e-4, atol=1e-4)


def test_whitening_again_begins_from_the_plain_descriptors() -> None:
    once, twice = make_retriever(), make_retriever()
    twice.whiten(IMAGES[:6], 2)
    for retriever in (once, twice):
        retriever.whiten(IMAGES, 4)
    torch.testing.assert_close(twice.describe(IMAGES), once.describe(IMAGES))


@pytest.mark.parametrize(("num_images", "dim", "kept"), [(6, 256, 5), (12, 1000, 11)])
def test_no_more_numbers_are_kept_than_the_images_can_tell_apart(num_images: int, dim: int, kept: int) -> None:
    retriever = make_retriever()
    retriever.whiten(IMAGES[:num_images], dim)
    assert retriever.describe(IMAGES).shape == (12, kept)


@pytest.mark.parametrize(("num_images", "dim"), [(12, 0), (1, 16)])
def test_where_there_is_nothing_to_reduce_to_descriptors_stay_as_they_are(num_images: int, dim: int) -> None:
    retriever = make_retriever()
    plain = retriever.describe(IMAGES)
    retriever.whiten(IMAGES[:num_images], dim)
    assert not retriever.is_whitened
    assert retriever.describe(IMAGES).equal(plain)


# On disk


@pytest.mark.parametrize("whitened", [False, True])
def test_a_retriever_survives_its_way_through_a_file(tmp_path: Path, whitened: bool) -> None:
    retriever = make_retriever(image_height=30)
    if whitened:
        retriever.whiten(IMAGES, 4)
    save_retriever(retriever, tmp_path)
    torch.manual_seed(99)
    loaded = load_retriever(tmp_path)
    assert loaded.describe(IMAGES).equal(retriever.describe(IMAGES))
    assert (loaded.is_whitened, loaded.image_height) == (whitened, 30)
    assert loaded.encoder.fc.out_features == 16


def test_a_file_that_holds_no_retriever_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"weight": torch.zeros(2)}, {"channels": 16})
    with pytest.raises(CheckpointError, match="a checkpoint of a retriever, found one without 'encoder_blocks'"):
        load_retriever(tmp_path)


def test_a_retriever_of_other_weights_is_refused(tmp_path: Path) -> None:
    save_retriever(make_retriever(), tmp_path)
    saved = load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, saved.tensors, {**saved.metadata, "num_clusters": 7})
    with pytest.raises(CheckpointError, match=r"expected the weights of this Retriever.*netvlad\.\w+ is "):
        load_retriever(tmp_path)
