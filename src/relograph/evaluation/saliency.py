"""Saliency: which pixels of a query a network's answer hangs on, drawn over the photo, network beside network."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from matplotlib.cm import ScalarMappable
from torch import Tensor

from relograph.errors import CheckpointError, DatasetError
from relograph.evaluation.contact_sheet import GREY, PhotoRow, photo_sheet
from relograph.evaluation.plots import save_figure
from relograph.models import PoseModel

SMOOTHING = 0.01
"""Standard deviation of the Gaussian, as a share of the image's height: 2.6 pixels of 256."""
FULL_SCALE = 0.99
"""The quantile of a map that becomes 1."""
COLORS = "inferno"
"""Brightness rises along it, so that people with colour-blindness see the same order."""


def saliency_map(
    model: PoseModel, images: UInt8[Tensor, "N H W 3"], node_mask: Bool[Tensor, "N"]
) -> Float[Tensor, "H W"]:
    r"""How strongly each pixel of the query moves its pose, within [0, 1].

    .. math:: \max_{colours} \; | \partial \sum_k |p_k| \, / \, \partial pixel |

    p is what localizes the query, node 0: the network's answer on the edge from the most similar reference, node 1, or,
    where the network says poses in the world frame, on the query's own node. The gradient, whose pattern follows the
    strides of the convolutions, is smoothed a little. Its 99th percentile is 1: maps show where, not how much, and two
    networks' maps have no common unit. The network is left in evaluation mode.
    """
    model.eval()
    like = next(model.parameters())
    pixels, there = images.to(like), node_mask.to(like.device)[None]
    with torch.no_grad():
        x_references = model.encode(pixels[None, 1:]) if len(images) > 1 else None  # [1, N - 1, C]
    with torch.enable_grad():
        query = pixels[None, :1].requires_grad_()  # [1, 1, H, W, 3]
        x = model.encode(query)
        predictions = model.decode(x if x_references is None else torch.cat([x, x_references], dim=1), there)
        if predictions.nodes is not None:
            prediction = predictions.nodes[0, 0]
        elif predictions.edges is not None and node_mask[1:2].any():
            prediction = predictions.edges[0, 1, 0]
        else:
            raise DatasetError(
                "saliency: expected a reference beside the query, as the network answers with relative poses, found "
                "none. Choose a query that has references."
            )
        (gradient,) = torch.autograd.grad(prediction.abs().sum(), query)
    if not gradient.isfinite().all():
        raise CheckpointError(
            "saliency: expected a finite gradient of the network's answer, found NaN or infinity. "
            "Its weights are broken: take an earlier checkpoint, or train it again."
        )
    strength = _smooth(gradient[0, 0].abs().amax(dim=-1).float())  # [H, W]
    full = strength.quantile(FULL_SCALE)
    full = torch.where(full > 0, full, strength.max()).clamp_min(torch.finfo(strength.dtype).tiny)
    return (strength / full).clamp(0, 1).to(images.device)


def draw_saliency(
    rows: Sequence[tuple[UInt8[Tensor, "_ _ 3"], Mapping[str, Float[Tensor, "_ _"]]]],
    path: Path,
    *,
    labels: Sequence[str] = (),
) -> None:
    """The paper's figure: a row for each query, its photo on the left and then the map of each method over the photo.

    Every row has the maps of the same methods, whose names are the titles of the columns. `labels` stand to the left of
    the rows, for example the names of their scenes.
    """
    if not rows or not rows[0][1]:
        raise DatasetError(
            f"{path}: expected query images with saliency maps to draw, found none. Choose at least one query."
        )
    methods = list(rows[0][1])
    for _, maps in rows:
        if set(maps) != set(methods):
            raise DatasetError(
                f"{path}: expected maps of {', '.join(methods)} for every query, found those of {', '.join(maps)}. "
                "Compute the maps of all methods for all queries."
            )
    sheet = [
        PhotoRow(
            [image.cpu().numpy(), *(_overlay(image.cpu(), maps[method].cpu()) for method in methods)],
            label=labels[place] if labels else "",
        )
        for place, (image, maps) in enumerate(rows)
    ]
    figure = photo_sheet(sheet, ["query", *methods], photo_width_in=2.6, space_below_in=0.5)
    width_in, height_in = figure.get_size_inches()
    bar_in = min(3.0, width_in - 3.6)  # beside it there is room for the words at its ends
    bar = figure.add_axes((0.5 - bar_in / 2 / width_in, 0.34 / height_in, bar_in / width_in, 0.1 / height_in))
    figure.colorbar(ScalarMappable(cmap=COLORS), cax=bar, orientation="horizontal", ticks=[])
    bar.spines[:].set_visible(False)
    for x, text, side in ((-0.02, "no influence on the pose", "right"), (1.02, "most influence", "left")):
        bar.text(x, 0.5, text, transform=bar.transAxes, ha=side, va="center", fontsize=9, color=GREY)
    save_figure(figure, path)


def _smooth(values: Float[Tensor, "H W"]) -> Float[Tensor, "H W"]:
    """The values under a Gaussian; beyond the border they go on as they are there."""
    sigma = SMOOTHING * values.shape[0]
    reach = max(1, round(3 * sigma))
    offset = torch.arange(-reach, reach + 1, dtype=values.dtype, device=values.device)
    weight = torch.exp(-0.5 * (offset / sigma) ** 2)
    weight = weight / weight.sum()
    padded = F.pad(values[None, None], (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, weight[None, None, :, None]), weight[None, None, None, :])[0, 0]


def _overlay(image: UInt8[Tensor, "H W 3"], saliency: Float[Tensor, "H W"]) -> UInt8[np.ndarray, "H W 3"]:
    """The map in colours over the photo, which is grey and dimmed: where nothing matters only the photo is seen."""
    strength = saliency.numpy()
    grey = image.numpy() @ np.array([0.299, 0.587, 0.114]) / 255  # [H, W]
    opacity = strength[..., None] ** 0.8
    colors = np.asarray(mpl.colormaps[COLORS](strength))[..., :3]
    mixed = (1 - opacity) * 0.5 * grey[..., None] + opacity * colors
    return np.asarray((255 * mixed).round(), dtype=np.uint8)
