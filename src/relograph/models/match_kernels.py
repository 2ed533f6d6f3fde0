"""The two widest parts of matching, for training: chances between all cells, and products with windows of fine cells.

Between the cells of two images there are over a million chances, and a batch has hundreds of pairs of images. Step by
step, as torch would differentiate them, each step writes gigabytes. But only one chance of every cell is learned from,
so its gradient can be written down: what is kept is the products of cells, and each pass over them is one kernel of a
GPU. Likewise no window is ever laid out: its products are made where the fine cells lie.

Letters as in match_gnn.py; S cells with a window of K = k x k fine cells each, out of T rows of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.compiling import compiled
from relograph.models.wide_product import wide_product


def chance_totals(
    product: Float[Tensor, "M P Q"], scale: Float[Tensor, ""]
) -> tuple[Float[Tensor, "M P"], Float[Tensor, "M Q"]]:
    """Logs of what the softmax over a row, and that over a column, is divided by."""
    score = product * scale
    return score.logsumexp(dim=2), score.logsumexp(dim=1)


def best_chances(
    product: Float[Tensor, "M P Q"],
    scale: Float[Tensor, ""],
    of_row: Float[Tensor, "M P"],
    of_column: Float[Tensor, "M Q"],
) -> tuple[Float[Tensor, "M P"], Int[Tensor, "M P"], Int[Tensor, "M Q"]]:
    """Of each row the log of the largest chance and its column, and of each column the row of the largest chance."""
    log_chance = 2 * scale * product - of_row[:, :, None] - of_column[:, None]
    log_best, best = log_chance.max(dim=2)
    return log_best, best, log_chance.argmax(dim=1)


def score_gradient(
    product: Float[Tensor, "M P Q"],
    scale: Float[Tensor, ""],
    of_row: Float[Tensor, "M P"],
    of_column: Float[Tensor, "M Q"],
    cell: Int[Tensor, "M P"],
    row_gradient: Float[Tensor, "M P"],
    column_gradient: Float[Tensor, "M Q"],
    dtype: torch.dtype,
) -> Float[Tensor, "M P Q"]:
    """The gradient of scores from that of the log chances of one cell in each row, summed up by column as well."""
    score = product * scale
    is_asked = torch.arange(product.shape[2], device=cell.device) == cell[:, :, None]
    of_asked = torch.where(is_asked, 2 * row_gradient[:, :, None], 0.0)
    of_rows = row_gradient[:, :, None] * torch.exp(score - of_row[:, :, None])
    of_columns = column_gradient[:, None] * torch.exp(score - of_column[:, None])
    return (of_asked - of_rows - of_columns).to(dtype)


def window_products(
    fine: Float[Tensor, "M S C"],
    table: Float[Tensor, "T C"],
    row: Int[Tensor, "M S k"],
    column: Int[Tensor, "M S k"],
) -> Float[Tensor, "M S K"]:
    """Products of features with those of a window each: rows of a table at all sums of a `row` and a `column`."""
    window = table[_places(row, column)]
    wide = torch.promote_types(fine.dtype, torch.float32)
    return (window.to(wide) * fine[:, :, None]).sum(dim=-1)


def window_gradients(
    gradient: Float[Tensor, "M S K"],
    fine: Float[Tensor, "M S C"],
    table: Float[Tensor, "T C"],
    row: Int[Tensor, "M S k"],
    column: Int[Tensor, "M S k"],
) -> tuple[Float[Tensor, "M S C"], Float[Tensor, "T C"]]:
    """The gradients of the features and of the table from that of their products."""
    place = _places(row, column)
    each = gradient[..., None]
    of_fine = (each * table[place].to(gradient.dtype)).sum(dim=2)
    of_places = (each * fine[:, :, None].to(gradient.dtype)).flatten(0, 2)
    # Places meet, and their gradients are added: in bfloat16 small ones would be lost beside large ones.
    of_table = torch.zeros_like(table, dtype=gradient.dtype).index_add(0, place.flatten(), of_places)
    return of_fine.to(fine.dtype), of_table.to(table.dtype)


def _places(row: Int[Tensor, "M S k"], column: Int[Tensor, "M S k"]) -> Int[Tensor, "M S K"]:
    return (row[..., None] + column[..., None, :]).flatten(2)


@dataclass(frozen=True)
class MatchKernels:
    """The passes over what is wide, as plain functions or compiled ones."""

    chance_totals: Callable[..., tuple[Tensor, Tensor]] = chance_totals
    best_chances: Callable[..., tuple[Tensor, Tensor, Tensor]] = best_chances
    score_gradient: Callable[..., Tensor] = score_gradient
    window_products: Callable[..., Tensor] = window_products
    window_gradients: Callable[..., tuple[Tensor, Tensor]] = window_gradients

    @classmethod
    def on(cls, device: torch.device | str) -> "MatchKernels":
        """Compiled for a GPU, as they are for a CPU, where a compiler may not be installed."""
        return _compiled_kernels() if torch.device(device).type == "cuda" else cls()


@cache
def _compiled_kernels() -> MatchKernels:
    return MatchKernels(
        compiled(chance_totals),
        compiled(best_chances),
        compiled(score_gradient),
        compiled(window_products),
        compiled(window_gradients),
    )


@dataclass(frozen=True)
class AskedChances:
    """Of every cell of the query: the log chance of the cell that was asked about, and its best cell.

    Chances are those of the dual softmax: that a cell chooses another, times that of being chosen by it.
    """

    log_asked: Float[Tensor, "M P"]
    """The only one with a gradient."""
    log_best: Float[Tensor, "M P"]
    best: Int[Tensor, "M P"]
    best_of_column: Int[Tensor, "M Q"]
    """The cell of the query that a cell of the reference would choose. As an index: two kernels round chances apart."""


def asked_chances(
    q: Float[Tensor, "M P C"],
    r: Float[Tensor, "M Q C"],
    scale: Float[Tensor, ""],
    cell: Int[Tensor, "M P"],
    kernels: MatchKernels,
) -> AskedChances:
    """Chances between descriptors, whose products times `scale` are the scores."""
    with torch.autocast(q.device.type, enabled=False):
        chances: tuple[Tensor, ...] = _AskedChances.apply(q, r, scale, cell, kernels)  # type: ignore[no-untyped-call]  # torch's stub has no types
    return AskedChances(*chances)


class _AskedChances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, r: Tensor, scale: Tensor, cell: Tensor, kernels: MatchKernels
    ) -> tuple[Tensor, ...]:
        product = wide_product(q, r)
        of_row, of_column = kernels.chance_totals(product, scale)
        best = kernels.best_chances(product, scale, of_row, of_column)
        asked = product.gather(2, cell[..., None]).squeeze(2)
        ctx.save_for_backward(q, r, scale, cell, product, of_row, of_column)
        ctx.kernels = kernels
        ctx.mark_non_differentiable(*best)
        return 2 * scale * asked - of_row - of_column.gather(1, cell), *best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, r, scale, cell, product, of_row, of_column = ctx.saved_tensors
        of_asked = gradients[0]
        by_column = torch.zeros_like(of_column).scatter_add(1, cell, of_asked)
        of_score = ctx.kernels.score_gradient(product, scale, of_row, of_column, cell, of_asked, by_column, q.dtype)
        of_q, of_r = wide_product(of_score, r.mT), wide_product(of_score.mT, q.mT)
        of_scale = (q * of_q).sum().to(scale.dtype)  # the sum of scores times their gradients, another way
        return (of_q * scale).to(q.dtype), (of_r * scale).to(r.dtype), of_scale, None, None


def fused_window_products(kernels: MatchKernels) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`window_products` by kernels that lay out no window, with gradients by others."""

    def products(fine: Tensor, table: Tensor, row: Tensor, column: Tensor) -> Tensor:
        with torch.autocast(fine.device.type, enabled=False):
            of_windows: Tensor = _WindowProducts.apply(fine, table, row, column, kernels)  # type: ignore[no-untyped-call]  # torch's stub has no types
            return of_windows

    return products


class _WindowProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fine: Tensor, table: Tensor, row: Tensor, column: Tensor, kernels: MatchKernels) -> Tensor:
        ctx.save_for_backward(fine, table, row, column)
        ctx.kernels = kernels
        return kernels.window_products(fine, table, row, column)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.kernels.window_gradients(gradients[0], *ctx.saved_tensors), None, None, None
