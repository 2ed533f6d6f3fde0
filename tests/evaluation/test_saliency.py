"""Saliency maps: where a network looks, known because it was made to look there."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from relograph.errors import CheckpointError, DatasetError
from relograph.evaluation.saliency import FULL_SCALE, SMOOTHING, draw_saliency, saliency_map
from relograph.models import ModelConfig, PoseModel, PosePredictions, ResNet, build_model

BRIGHTEST = (252, 255, 164)  # the last colour of inferno, as its authors published it: (0.988362, 0.998364, 0.644924)


class Looker(PoseModel):
    """Adds up the pixels of each image under given weights, [H, W, 3], one set of weights for each entry of `encode`.

    What it says is a table of those sums: `edges` takes the entries of edge [1, 0], all other edges and the diagonal
    say the query's last entry; `nodes` is the same for node 0 and the other nodes.
    """

    def __init__(self, weights: list[Tensor], says: str) -> None:
        super().__init__(ResNet(2, blocks=(1, 1, 1, 1), width=1))
        self.says = says
        self.weights = torch.stack(weights)

    def encode(self, images: Tensor) -> Tensor:
        return torch.einsum("bnhwc,khwc->bnk", images, self.weights)

    def decode(self, x: Tensor, node_mask: Tensor, edge_mask: Tensor | None = None) -> PosePredictions:
        first, last = x[:, 0, :1].expand(-1, 6), x[:, 0, -1:].expand(-1, 6)
        num_nodes = x.shape[1]
        if self.says == "nodes":
            return PosePredictions(nodes=torch.stack([first, *[last] * (num_nodes - 1)], dim=1))
        rows = [torch.stack([last] * num_nodes, dim=1) for _ in range(num_nodes)]
        rows[1] = torch.stack([first, *[last] * (num_nodes - 1)], dim=1)
        return PosePredictions(edges=torch.stack(rows, dim=1))


def graph(num_nodes: int = 3, height: int = 48, width: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images [N, H, W, 3] of a graph that are all there, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (num_nodes, height, width, 3), generator=generator, dtype=torch.uint8)
    return images, torch.ones(num_nodes, dtype=torch.bool)


def window(rows: slice, columns: slice, height: int = 48, width: int = 64) -> Tensor:
    weights = torch.zeros(height, width, 3)
    weights[rows, columns, 1] = 1
    return weights


def network(kind: str, seed: int = 0) -> PoseModel:
    torch.manual_seed(seed)
    return build_model(ModelConfig(kind=kind, channels=16, encoder_blocks=(1, 1, 1, 1), encoder_width=4))


def pixels_of(path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize("says", ["edges", "nodes"])
def test_the_map_is_bright_where_the_network_looks_and_dark_elsewhere(says):
    looker = Looker([window(slice(8, 24), slice(40, 60)), window(slice(30, 40), slice(0, 10))], says)
    saliency = saliency_map(looker, *graph())
    assert saliency[10:22, 42:58].min() > 0.99
    saliency[5:27, 37:63] = 0
    assert saliency.max() == 0  # not where the other edges and nodes look


def test_the_map_is_the_largest_gradient_over_the_colours_smoothed_and_scaled():
    # Weights of either sign, far from the border and at it; scipy's filter for comparison.
    height = 200
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(height, 60, 3)) * (rng.random((height, 60, 1)) < 0.1)
    expected = gaussian_filter(np.abs(weights).max(axis=-1), sigma=SMOOTHING * height, mode="nearest", truncate=3)
    expected = np.clip(expected / np.quantile(expected, FULL_SCALE), 0, 1)
    images, node_mask = graph(2, height, 60)
    looker = Looker([torch.tensor(weights, dtype=torch.float32)], "nodes")
    assert_allclose(saliency_map(looker, images, node_mask), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["relpose_gnn", "pair_mlp", "atloc", "posenet", "sequence_gnn"])
def test_every_network_has_a_map_between_0_and_1(kind):
    images, node_mask = graph()
    saliency = saliency_map(network(kind), images, node_mask)
    assert saliency.shape == images.shape[1:3]
    assert saliency.min() >= 0
    assert saliency.max() == 1
    assert (saliency == 1).float().mean() < 0.02  # the brightest hundredth, not all of it


@pytest.mark.parametrize(("kind", "changes"), [("relpose_gnn", True), ("pair_mlp", False), ("atloc", False)])
def test_only_a_graph_network_looks_at_the_query_with_its_further_references_in_mind(kind, changes):
    images, node_mask = graph()
    other = images.clone()
    other[2] = 255 - other[2]
    before, after = (saliency_map(network(kind), pixels, node_mask) for pixels in (images, other))
    assert torch.allclose(before, after, atol=1e-5) != changes


def test_images_that_are_not_there_change_nothing():
    images, node_mask = graph(4)
    node_mask[3] = False
    with_padding = saliency_map(network("relpose_gnn"), images, node_mask)
    assert_allclose(with_padding, saliency_map(network("relpose_gnn"), images[:3], node_mask[:3]), atol=1e-5)


def test_a_network_of_absolute_poses_needs_no_reference():
    images, node_mask = graph(1)
    assert saliency_map(network("atloc"), images, node_mask).max() == 1


def test_training_is_not_disturbed():
    model = network("relpose_gnn").train()
    images, node_mask = graph()
    means = {name: value.clone() for name, value in model.named_buffers()}
    with torch.no_grad():  # as an evaluation runs
        saliency_map(model, images, node_mask)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, means[name]) for name, value in model.named_buffers())
    assert images.dtype == torch.uint8


def test_a_network_that_looks_at_less_than_a_hundredth_of_the_photo_has_a_map_with_one_peak():
    looker = Looker([window(slice(50, 52), slice(80, 82), 200, 200)], "nodes")
    saliency = saliency_map(looker, *graph(1, 200, 200))
    assert saliency.max() == 1
    assert saliency[50:52, 80:82].min() > 0.999
    assert (saliency > 0.99).sum() == 4


def test_a_network_that_looks_nowhere_has_a_black_map():
    assert saliency_map(Looker([torch.zeros(48, 64, 3)], "nodes"), *graph()).max() == 0


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_relative_poses_without_a_reference_are_refused_in_one_line(num_nodes):
    images, node_mask = graph(num_nodes)
    node_mask[1:] = False
    with pytest.raises(DatasetError, match="expected a reference beside the query") as caught:
        saliency_map(network("relpose_gnn"), images, node_mask)
    assert "\n" not in str(caught.value)


def test_broken_weights_are_refused_in_one_line():
    model = network("pair_mlp")
    with torch.no_grad():
        model.encoder.fc.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="finite gradient") as caught:
        saliency_map(model, *graph())
    assert "\n" not in str(caught.value)


# The figure


def half_and_half() -> tuple[Tensor, dict[str, Tensor]]:
    """A grey photo, a map that is bright on its left half, and one that is dark."""
    left = torch.zeros(48, 64)
    left[:, :32] = 1
    return torch.full((48, 64, 3), 200, dtype=torch.uint8), {"Baseline-1": left, "ours": torch.zeros(48, 64)}


def test_the_figure_shows_the_photo_then_each_map_over_the_dimmed_photo(tmp_path):
    draw_saliency([half_and_half()], tmp_path / "saliency.png")
    pixels = pixels_of(tmp_path / "saliency.png")
    row = pixels[pixels.shape[0] * 2 // 5]  # through the middle of the photos
    # The photo as it is, the left half of the first map, and one and a half times the dimmed photo.
    photo, bright, dimmed = (np.abs(row - color).max(axis=-1) <= 2 for color in ((200,) * 3, BRIGHTEST, (100,) * 3))
    width = photo.sum()
    assert width > 200
    assert_allclose([bright.sum() / width, dimmed.sum() / width], [0.5, 1.5], atol=0.05)
    assert photo.nonzero()[0].max() < bright.nonzero()[0].min() < bright.nonzero()[0].max() < dimmed.nonzero()[0].min()


def test_the_figure_has_a_row_for_each_query(tmp_path):
    shades = (60, 140, 220)
    rows = [(torch.full((48, 64, 3), shade, dtype=torch.uint8), {"ours": torch.ones(48, 64)}) for shade in shades]
    draw_saliency(rows, tmp_path / "saliency.png", labels=["heads", "stairs", "heads"])
    pixels = pixels_of(tmp_path / "saliency.png")
    heights = [np.argwhere(np.abs(pixels - shade).max(axis=-1) <= 1)[:, 0].mean() for shade in shades]
    assert_allclose(np.diff(heights), heights[1] - heights[0], atol=2)
    assert heights[1] - heights[0] > 100
    assert (tmp_path / "saliency.png").stat().st_size < 1e6


@pytest.mark.parametrize("rows", [[], [(torch.zeros(48, 64, 3, dtype=torch.uint8), {})]])
def test_a_figure_of_nothing_is_refused_in_one_line(tmp_path, rows):
    with pytest.raises(DatasetError, match="found none") as caught:
        draw_saliency(rows, tmp_path / "saliency.png")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_query_without_the_map_of_a_method_is_refused(tmp_path):
    image, maps = half_and_half()
    with pytest.raises(DatasetError, match="Baseline-1, ours for every query, found those of ours"):
        draw_saliency([(image, maps), (image, {"ours": maps["ours"]})], tmp_path / "saliency.png")


def test_a_figure_replaces_the_one_before_whole(tmp_path):
    (tmp_path / "saliency.png").write_text("old")
    draw_saliency([half_and_half()], tmp_path / "saliency.png")
    assert pixels_of(tmp_path / "saliency.png").std() > 8
    assert [path.name for path in tmp_path.iterdir()] == ["saliency.png"]


def test_a_place_that_cannot_be_written_to_is_one_clear_line_and_no_litter(tmp_path):
    (tmp_path / "saliency.png").mkdir()
    with pytest.raises(DatasetError, match=r"saliency\.png") as caught:
        draw_saliency([half_and_half()], tmp_path / "saliency.png")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["saliency.png"]
