"""MatchGNN: images compared cell by cell, and a graph network over what the comparisons say about the camera.

Where RelPoseGNN squeezes an image into one vector before it looks at another, here every cell of 8 x 8 pixels of the
query looks for itself in the reference. What is passed on to the pose is geometry alone: where a cell went and how sure
that is; so the pose network never learns what a room looks like, only how views move. What the turn of the camera
explains is taken away first, which leaves parallax. Scale and frame come from the known poses of the references, which
the graph network sees pair by pair, relative to each other: moving the world moves the answer with it.

Letters: B graphs, R references, P and Q cells of the query and of a reference, C channels. Poses are T_ref_query.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from relograph.errors import ConfigError
from relograph.geometry import Pose
from relograph.graphs.correspondence import Lenses, cell_anchors
from relograph.models.enlarging import doubled
from relograph.models.match_kernels import MatchKernels, asked_chances, fused_window_products
from relograph.models.settling import Settled, settle
from relograph.models.turning import directions, rotation_between
from relograph.models.wide_product import convolved_product, wide_product
from relograph.retrieval import NetVLAD

COARSE_STRIDE = 8
FINE_STRIDE = 2
CONTEXT_STRIDE = 16
CELL_SIGMA_PX = COARSE_STRIDE / 12**0.5
"""Standard deviation along an axis of a place that is anywhere in its cell."""
MEAN, STD = 117.0, 58.0  # of grey levels; any fixed choice serves


@dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """How large MatchGNN is."""

    channels: int = 128
    """Within the encoder, of cells."""
    matched_channels: int = 88
    """Of what is kept of a cell to be matched: with the context, 326 KB an image of 240 x 320 in half precision."""
    context_channels: int = 192
    """Of the coarser cells, which look at each other and at the other image."""
    fine_channels: int = 32
    """Of the finer cells, which say where within a cell."""
    self_layers: int = 4
    """Layers in which the cells of an image look at each other."""
    cross_layers: int = 2
    """Layers in which the cells of two images look at each other."""
    edge_channels: int = 256
    """Of what is known about a pair of images."""
    rounds: int = 3
    """Rounds of messages between the edges of a query."""
    heads: int = 8
    """Of every attention."""
    num_clusters: int = 16
    """Visual words of the descriptor that finds references."""
    descriptor_dim: int = 256
    """Numbers of that descriptor."""
    map_poses: bool = True
    """Whether edges hear where their references stand beside each other."""
    fine_places: bool = True
    """Whether finer cells say where within a cell; else its middle is the place."""
    pose_teaches_matches: bool = False
    """Whether the losses of poses reach the matches: for a network that has no other teacher of them."""

    def __post_init__(self) -> None:
        if self.context_channels % self.heads or self.edge_channels % self.heads:
            raise ConfigError(
                f"match.context_channels and match.edge_channels must be multiples of match.heads ({self.heads}), got "
                f"{self.context_channels} and {self.edge_channels}."
            )


def precise(x: Tensor) -> Tensor:
    """At least float32: where bfloat16 would round away what matters."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide)


# Features of one image


class ConvBlock(nn.Module):
    """x <- ReLU(shortcut + BN conv ReLU BN conv x)."""

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        same = stride == 1 and in_channels == channels
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x: Float[Tensor, "M C H W"]) -> Float[Tensor, "M C2 H2 W2"]:
        y = F.relu_(self.bn1(self.conv1(x)))
        return F.relu_(self.bn2(self.conv2(y)).add_(self.shortcut(x)))


class Attention(nn.Module):
    """Tokens look at other tokens (or at each other), then each thinks for itself; both as residuals."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_other, self.norm_mlp = (nn.LayerNorm(channels) for _ in range(3))
        self.to_query = nn.Linear(channels, channels, bias=False)
        self.to_key_value = nn.Linear(channels, 2 * channels, bias=False)
        self.out = nn.Linear(channels, channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(self, x: Float[Tensor, "M P C"]) -> Float[Tensor, "M P C"]:
        return self.look(x, self.show(x))

    def show(self, other: Float[Tensor, "M Q C"]) -> Float[Tensor, "2 M heads Q c"]:
        """Keys and values of the tokens that are looked at. They do not depend on who looks."""
        shown: Tensor = self.to_key_value(self.norm_other(other)).unflatten(-1, (2, self.heads, -1))
        return shown.permute(2, 0, 3, 1, 4)

    def look(self, x: Float[Tensor, "M P C"], shown: Float[Tensor, "2 M heads Q c"]) -> Float[Tensor, "M P C"]:
        query = self.to_query(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, *shown).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]  # nn.Module is untyped


def position_code(like: Float[Tensor, "M C H W"]) -> Float[Tensor, "HW C"]:
    """Sines and cosines of where a cell is, from the middle of the image, in units of its longer side."""
    channels, height, width = like.shape[1:]
    longer, device = torch.sym_max(height, width), like.device  # max would compare sizes that an export leaves open
    y = (torch.arange(height, device=device) + 0.5 - height / 2) / longer
    x = (torch.arange(width, device=device) + 0.5 - width / 2) / longer
    frequency = torch.pi * 2.0 ** torch.linspace(0, 6, channels // 4, device=device)
    angle_y = (y[:, None] * frequency)[:, None].expand(-1, width, -1)
    angle_x = (x[:, None] * frequency)[None].expand(height, -1, -1)
    return torch.cat([angle_y.sin(), angle_y.cos(), angle_x.sin(), angle_x.cos()], dim=-1).flatten(0, 1).to(like.dtype)


@dataclass(frozen=True)
class ImageFeatures:
    """What is kept of M images of a map: all that matching and retrieval need."""

    context: Float[Tensor, "M C16 h16 w16"]
    """At a 16th of the image's size."""
    coarse: Float[Tensor, "M C8 h8 w8"]
    """At an 8th."""
    fine: Float[Tensor, "M C2 h2 w2"]
    """At half."""

    def __getitem__(self, index: object) -> "ImageFeatures":
        return ImageFeatures(self.context[index], self.coarse[index], self.fine[index])  # type: ignore[index]  # any index of a tensor


class DenseEncoder(nn.Module):
    """An image to features at three sizes: fine ones to say where exactly, coarse ones to match, context to compare.

    A level needs those before it and the pixels, so that a map may keep the coarser ones alone: `fine` is computed
    again from a small photo and the coarse features at a fifth of the work of all.
    """

    def __init__(self, config: MatchConfig) -> None:
        super().__init__()
        fine, coarse, context = config.fine_channels, config.channels, config.context_channels
        matched = config.matched_channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 5, 2, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)
        )
        self.to_half = nn.Sequential(
            nn.Conv2d(32, fine, 3, padding=1, bias=False), nn.BatchNorm2d(fine), nn.ReLU(inplace=True)
        )
        self.to_quarter = nn.Sequential(ConvBlock(fine, 64, 2), ConvBlock(64, 64))
        self.to_eighth = nn.Sequential(ConvBlock(64, coarse, 2), ConvBlock(coarse, coarse))
        self.to_sixteenth = nn.Sequential(ConvBlock(coarse, context, 2), ConvBlock(context, context))
        self.look_around = nn.ModuleList(Attention(context, config.heads) for _ in range(config.self_layers))
        self.context_to_coarse = nn.Conv2d(context, coarse, 1)
        self.merge_coarse = ConvBlock(coarse, matched)
        self.describe_coarse = nn.Conv2d(matched, matched, 1)  # a block ends in ReLU; what is compared has both signs
        self.coarse_to_fine = nn.Conv2d(matched, fine, 1)
        self.merge_fine = nn.Sequential(
            nn.Conv2d(fine, fine, 3, padding=1, bias=False),
            nn.BatchNorm2d(fine),
            nn.ReLU(inplace=True),
            nn.Conv2d(fine, fine, 3, padding=1),
        )

    def forward(self, images: Tensor) -> ImageFeatures:
        """Features of images [M, H, W, 3] with values within 0 and 255; H and W are multiples of 16."""
        half = self.at_half(images)
        eighth, context = self.context(half)
        coarse = self.coarse(eighth, context)
        return ImageFeatures(context, coarse, self.fine(half, coarse))

    def at_half(self, images: Tensor) -> Float[Tensor, "M C2 h2 w2"]:
        """What pixels alone tell, at half the size of the images."""
        x = (precise(images.permute(0, 3, 1, 2)) - MEAN).div_(STD)
        half: Tensor = self.to_half(self.stem(x))
        return half

    def context(
        self, half: Float[Tensor, "M C2 h2 w2"]
    ) -> tuple[Float[Tensor, "M C8 h8 w8"], Float[Tensor, "M C16 h16 w16"]]:
        """The cells on their own, and the coarser cells after they have looked at each other."""
        quarter = self.to_quarter(half)
        # One step to the side and down: a cell's features look at the anchor that stands for it, not at its corner.
        eighth = self.to_eighth(F.pad(quarter, (-1, 1, -1, 1)))
        deep = self.to_sixteenth(eighth)
        tokens = deep.flatten(2).mT + position_code(deep)
        for layer in self.look_around:
            tokens = layer(tokens)
        return eighth, tokens.mT.unflatten(2, deep.shape[2:])

    def coarse(
        self, eighth: Float[Tensor, "M C8 h8 w8"], context: Float[Tensor, "M C16 h16 w16"]
    ) -> Float[Tensor, "M C h8 w8"]:
        coarse: Tensor = self.describe_coarse(self.merge_coarse(eighth + doubled(self.context_to_coarse(context))))
        return coarse

    def fine(
        self, half: Float[Tensor, "M C2 h2 w2"], coarse: Float[Tensor, "M C8 h8 w8"]
    ) -> Float[Tensor, "M C2 h2 w2"]:
        """What the pixels around a place look like, given what is there."""
        fine: Tensor = self.merge_fine(F.relu_(half + doubled(doubled(self.coarse_to_fine(coarse)))))
        return fine


# Two images


@dataclass(frozen=True)
class Matches:
    """Where the P cells of the query are seen in each of R references."""

    xy: Float[Tensor, "B R P 2"]
    """In pixels of the reference."""
    confidence: Float[Tensor, "B R P"]
    """Within [0, 1]: the chance that the cell is seen there."""
    best: Int[Tensor, "B R P"]
    """The most likely cell of the reference, as an index."""
    mutual: Bool[Tensor, "B R P"]
    """Whether that cell would in turn choose this one among the query's."""
    sigma_px: Float[Tensor, "B R P"]
    """How far the place may be off within its cell: the standard deviation along an axis, by the fine features."""
    seen: Float[Tensor, "B R P"]
    """Logit of whether the cell is seen at all."""
    log_coarse: Float[Tensor, "B R P Q"] | None = None
    """Log of the dual softmax between cells; None where it is not kept."""
    log_asked: Float[Tensor, "B R P"] | None = None
    """That of the cells of the references that were asked about, which is learned from; None where none were."""


class Matcher(nn.Module):
    """Two images look at each other, then every cell of the query finds its place in the reference."""

    def __init__(self, config: MatchConfig) -> None:
        super().__init__()
        context, coarse = config.context_channels, config.matched_channels
        self.compare = nn.ModuleList(Attention(context, config.heads) for _ in range(config.cross_layers))
        self.to_coarse = nn.Linear(context, coarse)
        self.config = config
        self.seen = nn.Linear(coarse, 1)
        self.log_temperature = nn.Parameter(torch.tensor(0.0))
        self.kernels: MatchKernels | None = None
        """Where it is trained on a GPU: what matches without laying out all chances and windows."""

    def show(self, context: Float[Tensor, "M C h w"]) -> list[Float[Tensor, "2 M heads Q c"]]:
        """What an image shows to one that is compared with it, layer by layer."""
        tokens = context.flatten(2).mT
        return [layer.show(tokens) for layer in cast(Iterable[Attention], self.compare)]

    def describe(
        self,
        context: Float[Tensor, "M C h w"],
        coarse: Float[Tensor, "M C8 h8 w8"],
        other: list[Float[Tensor, "2 M heads Q c"]],
    ) -> Float[Tensor, "M P C8"]:
        """Descriptors of the cells of an image that is compared with another: its own, and what it makes of that."""
        tokens = context.flatten(2).mT
        for layer, shown in zip(cast(Iterable[Attention], self.compare), other, strict=True):
            tokens = layer.look(tokens, shown)
        compared = self.to_coarse(tokens).mT.unflatten(2, context.shape[2:])
        return (coarse + doubled(compared)).flatten(2).mT

    def forward(
        self,
        query: ImageFeatures,
        references: ImageFeatures,
        num_references: int,
        *,
        keep_log_coarse: bool = True,
        asked: Int[Tensor, "B R P"] | None = None,
    ) -> Matches:
        """Matches of B queries with B x R references, those of a query together.

        `asked` are cells of the references; the log of the chance that each cell of the query goes there is kept.
        """
        # In the order in which the references' lie in memory: what is compiled for one side then serves the other.
        context, coarse = (
            part.permute(0, 2, 3, 1).repeat_interleave(num_references, dim=0).permute(0, 3, 1, 2)
            for part in (query.context, query.coarse)
        )
        query_shows = [
            shown.permute(1, 3, 0, 2, 4).repeat_interleave(num_references, dim=0).permute(2, 0, 3, 1, 4)
            for shown in self.show(query.context)
        ]
        q = self.describe(context, coarse, self.show(references.context))
        r = self.describe(references.context, references.coarse, query_shows)
        seen = precise(self.seen(q)).squeeze(-1)
        fine = at_anchors(query.fine).repeat_interleave(num_references, dim=0)
        log_asked = None
        if self.kernels is not None and asked is not None and not keep_log_coarse:
            chances = asked_chances(q, r, self.scale(), asked.flatten(0, 1), self.kernels)
            log_asked, log_best, best = chances.log_asked, chances.log_best, chances.best
            mutual = chances.best_of_column.gather(1, best) == torch.arange(q.shape[1], device=q.device)
            xy, sigma_px = places_in(best, fine, references.fine, fused_window_products(self.kernels))
        elif keep_log_coarse or asked is not None or q.is_cuda:
            log_coarse = self.log_chance(q, r)
            log_best, best, mutual, xy, sigma_px = cell_places(log_coarse, fine, references.fine)
            log_asked = None if asked is None else log_coarse.gather(2, asked.flatten(0, 1)[..., None]).squeeze(2)
        else:  # pair by pair, so that chances between all cells stay in a CPU's cache
            pairs = zip(*(part.split(1) for part in (q, r, fine, references.fine)), strict=True)
            places = (cell_places(self.passing_log_chance(*pair[:2]), *pair[2:]) for pair in pairs)
            log_best, best, mutual, xy, sigma_px = (torch.cat(parts) for parts in zip(*places, strict=True))
        if not self.config.fine_places:
            xy, sigma_px = anchors_of(references.fine).to(xy)[best], torch.full_like(sigma_px, CELL_SIGMA_PX)
        if self.config.pose_teaches_matches and keep_log_coarse:
            log_best, xy = with_gradient(log_coarse, best, xy, anchors_of(references.fine))
        by_query = (-1, num_references)
        return Matches(
            xy=xy.unflatten(0, by_query),
            confidence=(torch.exp(0.5 * log_best) * torch.sigmoid(seen)).unflatten(0, by_query),
            best=best.unflatten(0, by_query),
            mutual=mutual.unflatten(0, by_query),
            sigma_px=sigma_px.unflatten(0, by_query),
            seen=seen.unflatten(0, by_query),
            log_coarse=log_coarse.unflatten(0, by_query) if keep_log_coarse else None,
            log_asked=None if log_asked is None else log_asked.unflatten(0, by_query),
        )

    def scale(self) -> Float[Tensor, ""]:
        """What products of descriptors are multiplied by to be scores."""
        scale: Tensor = torch.exp(self.log_temperature) / self.config.matched_channels**0.5
        return scale

    def log_chance(self, q: Float[Tensor, "M P C"], r: Float[Tensor, "M Q C"]) -> Float[Tensor, "M P Q"]:
        """Log of the dual softmax: the chance that a cell chooses another, times that of being chosen by it."""
        score = wide_product(q, r) * self.scale()
        log_chance: Tensor = score.log_softmax(dim=2) + score.log_softmax(dim=1)
        return log_chance

    @torch.no_grad()
    def passing_log_chance(self, q: Float[Tensor, "1 P C"], r: Float[Tensor, "1 Q C"]) -> Float[Tensor, "1 P Q"]:
        """The same where nobody learns from it, in half the memory: to ask for more can take a CPU longer than this."""
        with torch.autocast(q.device.type, enabled=False):
            score = convolved_product(precise(q[0]) * self.scale(), precise(r[0])[..., None, None])[None]
        of_row, of_column = _log_totals(score)
        return score.mul_(2).sub_(of_row).sub_(of_column)


SMALLEST_LOG = -80.0
"""Of exponentials: smaller ones add nothing, and would be among the numbers that a CPU is ten times slower with."""


def _log_totals(score: Float[Tensor, "M P Q"]) -> tuple[Float[Tensor, "M P 1"], Float[Tensor, "M 1 Q"]]:
    """Logs of the sums of exponentials, over each row and over each column."""
    largest = score.amax(dim=(1, 2), keepdim=True)
    exponentials = (score - largest).clamp_min_(SMALLEST_LOG).exp_()
    of_row, of_column = (exponentials.sum(dim, keepdim=True).log_() for dim in (2, 1))
    if min(float(of_row.min()), float(of_column.min())) > SMALLEST_LOG + 20:  # one exponential serves both
        return of_row.add_(largest), of_column.add_(largest)
    return _log_sum_exp(score, dim=2), _log_sum_exp(score, dim=1)


def _log_sum_exp(x: Float[Tensor, "M P Q"], dim: int) -> Float[Tensor, "M #P #Q"]:
    largest = x.amax(dim, keepdim=True)
    return largest + (x - largest).clamp_min_(SMALLEST_LOG).exp_().sum(dim, keepdim=True).log_()


@torch.no_grad()  # the fine features learn from their own loss, and the pose takes matches as they are
def cell_places(
    log_coarse: Float[Tensor, "M P Q"], fine: Float[Tensor, "M P C"], ref_fine: Float[Tensor, "M C h w"]
) -> tuple[Float[Tensor, "M P"], Int[Tensor, "M P"], Bool[Tensor, "M P"], Float[Tensor, "M P 2"], Float[Tensor, "M P"]]:
    """Of every cell of the query its best cell: log of its chance, index, whether it is mutual; and the place in it.

    The place is that of the query's anchor in pixels of the reference, with its standard deviation along an axis.
    """
    log_best, best = log_coarse.max(dim=2)
    mutual = log_best >= log_coarse.amax(dim=1).gather(1, best)
    return log_best, best, mutual, *places_in(best, fine, ref_fine)


@torch.no_grad()
def places_in(
    best: Int[Tensor, "M P"],
    fine: Float[Tensor, "M P C"],
    ref_fine: Float[Tensor, "M C h w"],
    products: "WindowProducts | None" = None,
) -> tuple[Float[Tensor, "M P 2"], Float[Tensor, "M P"]]:
    """Where the query's anchors are in the chosen cells: pixels of the reference, and their standard deviation."""
    offset, log_chance = fine_offset(fine, ref_fine, best, products)
    spread = _mean_of(_steps_px(log_chance).square(), log_chance) - offset.square()
    place = anchors_of(ref_fine).to(offset.dtype)[best] + offset
    return place, spread.mean(dim=-1).clamp_min(0).sqrt()


def anchors_of(fine: Float[Tensor, "M C h w"]) -> Float[Tensor, "Q 2"]:
    """The middle of each cell of an image with these fine features, in pixels."""
    height, width = (FINE_STRIDE * size for size in fine.shape[2:])
    return cell_anchors(height, width, COARSE_STRIDE, fine.device)


def with_gradient(
    log_coarse: Float[Tensor, "M P Q"],
    best: Int[Tensor, "M P"],
    xy: Float[Tensor, "M P 2"],
    anchors: Float[Tensor, "Q 2"],
) -> tuple[Float[Tensor, "M P"], Float[Tensor, "M P 2"]]:
    """Log chances of the best cells and their places, as they are, but with gradients.

    The choice of a cell has none. A place is told to move as the mean over all cells would.
    """
    mean = log_coarse.softmax(dim=2) @ anchors.to(log_coarse.dtype)
    return log_coarse.gather(2, best[..., None]).squeeze(-1), xy + (mean - mean.detach())


FINE_RADIUS = 3
"""Fine cells to each side of a cell's anchor that are searched: 6 pixels, so neighbours overlap."""


WindowProducts = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""As `laid_out_products`."""


def fine_offset(
    fine: Float[Tensor, "M S C"],
    ref_fine: Float[Tensor, "M C h w"],
    ref_cell: Int[Tensor, "M S"],
    products: WindowProducts | None = None,
) -> tuple[Float[Tensor, "M S 2"], Float[Tensor, "M S K"]]:
    """The expected offset in pixels from the anchors of cells of the reference, and the log chances of the K places.

    The fine feature at the anchor of a query's cell is compared with those around the anchor of the reference's.
    """
    row, column, inside = _around_cells(ref_fine, ref_cell)
    table = ref_fine.permute(0, 2, 3, 1).flatten(0, 2)
    score = precise((products or laid_out_products)(fine, table, row, column)) / fine.shape[-1] ** 0.5
    log_chance = score.masked_fill(~inside, -1e4).log_softmax(dim=-1)  # [M, S, K]
    return _mean_of(_steps_px(log_chance), log_chance), log_chance


def laid_out_products(
    fine: Float[Tensor, "M S C"], table: Float[Tensor, "T C"], row: Int[Tensor, "M S k"], column: Int[Tensor, "M S k"]
) -> Float[Tensor, "M S K"]:
    """Products of features with all those of their windows: rows of a table at all sums of a `row` and a `column`."""
    place = (row[..., None] + column[..., None, :]).flatten(2)
    # An embedding copies whole rows, many times faster than a gather of single numbers.
    window = F.embedding(place, table)  # [M, S, K, C]
    if window.is_cuda:
        return (window * fine[:, :, None]).sum(dim=-1)
    with torch.autocast(window.device.type, enabled=False):
        # As matrices: the numbers that are to be added would not fit a CPU's cache.
        return (fine[:, :, None] @ window.to(fine.dtype).mT).squeeze(2)


def _mean_of(values: Float[Tensor, "K 2"], log_chance: Float[Tensor, "M S K"]) -> Float[Tensor, "M S 2"]:
    """What is expected of values by their chances."""
    with torch.autocast(log_chance.device.type, enabled=False):  # pixels are not to be rounded to whole ones
        return log_chance.exp() @ values


def _window_steps(device: torch.device) -> Int[Tensor, "7"]:
    """Steps in fine cells from an anchor to the places around it, along an axis."""
    return torch.arange(-FINE_RADIUS, FINE_RADIUS + 1, device=device)


def _steps_px(like: Float[Tensor, "M S K"]) -> Float[Tensor, "K 2"]:
    """Steps (x, y) in pixels to all of them, row by row."""
    step = _window_steps(like.device)
    return torch.cartesian_prod(step, step).flip(-1).to(like.dtype) * FINE_STRIDE


def at_anchors(fine: Float[Tensor, "M C h w"]) -> Float[Tensor, "M P C"]:
    """Fine features at the anchors of all cells, row by row."""
    per_cell = COARSE_STRIDE // FINE_STRIDE
    # The channels last, as the encoder leaves them in memory: so its gradient comes back.
    return fine.permute(0, 2, 3, 1)[:, per_cell // 2 :: per_cell, per_cell // 2 :: per_cell].flatten(1, 2)


def _around_cells(
    fine: Float[Tensor, "M C h w"], cell: Int[Tensor, "M S"]
) -> tuple[Int[Tensor, "M S 7"], Int[Tensor, "M S 7"], Bool[Tensor, "M S K"]]:
    """Where the fine cells at and around the anchors of cells lie in a table of all fine cells, row by row.

    A place is the sum of its row's start and its column. The last says whether it is inside the image.
    """
    per_cell = COARSE_STRIDE // FINE_STRIDE
    num_images, _, height, width = fine.shape
    columns, middle = width // per_cell, per_cell // 2  # an anchor's pixel lies in the middle fine cell
    step = _window_steps(cell.device)
    y = (cell // columns * per_cell + middle)[..., None] + step  # [M, S, 7]
    x = (cell % columns * per_cell + middle)[..., None] + step
    inside = ((y >= 0) & (y < height))[..., None] & ((x >= 0) & (x < width))[..., None, :]  # [M, S, 7, 7]
    row = y.clamp(0, height - 1) + torch.arange(num_images, device=fine.device)[:, None, None] * height
    return row * width, x.clamp(0, width - 1), inside.flatten(2)


# What a comparison says about the camera


LIKELY_FOCAL = 0.85
"""Of a lens that is not known, in units of the image's longer side."""
STEEPEST = 3.0
"""Rays (x / z, y / z) beyond it are of no camera that looks ahead."""
PARALLAX_SCALE = 4.0
"""Brings parallax to about one."""
SUREST_EDGES = 3
"""Whose poses are tried beside the fused one, before matches are asked which of them is right."""
LEAST_AGREEMENT = 0.05
"""Length of a mean of directions, 1 where all agree, below which there is no mean to speak of."""


@dataclass(frozen=True)
class Flow:
    """Where the cells of queries went in their references, as rays (x / z, y / z).

    Where a lens is not known they are those of a likely one.
    """

    PARTS: ClassVar = ("here", "there", "confidence", "knows")

    here: Float[Tensor, "B R P 2"]
    there: Float[Tensor, "B R P 2"]
    confidence: Float[Tensor, "B R P"]
    knows: Float[Tensor, "B R P 2"]
    """1 where the lens of the query, and that of the reference, is known."""
    grid_hw: tuple[int, int]
    """Rows and columns of the query's cells."""

    @staticmethod
    def of_graphs(flows: Sequence["Flow"]) -> "Flow":
        """Flows of several queries and their references as one."""
        parts = {name: torch.cat([getattr(flow, name) for flow in flows]) for name in Flow.PARTS}
        return Flow(**parts, grid_hw=flows[0].grid_hw)

    @staticmethod
    def of_references(flows: Sequence["Flow"], order: Int[Tensor, "R"]) -> "Flow":
        """Flows of the same queries with several references each as one, with the references in another order."""
        parts = {name: torch.cat([getattr(flow, name) for flow in flows], dim=1)[:, order] for name in Flow.PARTS}
        return Flow(**parts, grid_hw=flows[0].grid_hw)

    def turn(self) -> Float[Tensor, "B R 3 3"]:
        """The turn from the query to each reference that explains most, as if everything were far away."""
        return rotation_between(directions(self.here), directions(self.there), self.confidence)

    def parallax(self, R_ref_turned: Float[Tensor, "B R 3 3"]) -> Float[Tensor, "BR 9 h w"]:
        """What is left of the flow in references that are turned: rays, parallax, confidence, and what is known.

        Matches have a say by their confidence: a network would have to learn to look away from wrong ones.
        """
        turned = directions(self.there) @ R_ref_turned  # R^T y
        turned = (turned[..., :2] / turned[..., 2:].clamp_min(1 / STEEPEST)).clamp(-STEEPEST, STEEPEST)
        confidence = self.confidence[..., None]
        moved = PARALLAX_SCALE * confidence * (turned - self.here).clamp(-1, 1)
        cells = torch.cat([self.here, moved, confidence * self.there, confidence, self.knows], dim=-1)
        by_place: Tensor = cells.flatten(0, 1).mT.unflatten(2, self.grid_hw)
        return by_place


@dataclass(frozen=True)
class Flows:
    """The same matches as rays, by what is believed of lenses."""

    told: Flow
    """What the pose network is told. It learned from graphs of which it was told all lenses or none, and is led astray
    by half of them."""
    known: Flow
    """By all lenses that are known, which the last layer takes."""
    untold: Flow
    """By none of them."""

    @staticmethod
    def of_references(flows: Sequence["Flows"], order: Int[Tensor, "R"]) -> "Flows":
        """As `Flow.of_references`, of references of which the same is known."""
        untold = Flow.of_references([some.untold for some in flows], order)
        is_known, is_told = (part is not flows[0].untold for part in (flows[0].known, flows[0].told))
        known = Flow.of_references([some.known for some in flows], order) if is_known else untold
        return Flows(known if is_told else untold, known, untold)


def likely_rays(xy: Float[Tensor, "*B 2"], image_hw: tuple[int, int]) -> Float[Tensor, "*B 2"]:
    """Rays of pixels through a likely lens."""
    return _from_middle(xy, image_hw) / LIKELY_FOCAL


class GeometryBlock(nn.Module):
    """x <- ReLU(shortcut + conv ReLU conv x).

    No batch norm here: the numbers are coordinates, which are to be measured, and batches with and without known lenses
    differ so much that the averages over both would fit neither.
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(in_channels, channels, 1, stride)

    def forward(self, x: Float[Tensor, "M C H W"]) -> Float[Tensor, "M C2 H2 W2"]:
        return F.relu(self.shortcut(x) + self.conv2(F.relu(self.conv1(x))))


class EdgeNetwork(nn.Module):
    """Parallax of a pair to one vector: a small CNN over where each cell went, then attention over what remains."""

    CHANNELS_IN = 9

    def __init__(self, config: MatchConfig) -> None:
        super().__init__()
        channels = config.edge_channels
        self.cnn = nn.Sequential(
            nn.Conv2d(self.CHANNELS_IN, 128, 4, 2, padding=1),
            nn.ReLU(),
            GeometryBlock(128, 128),
            GeometryBlock(128, channels, 2),
        )
        for part in self.cnn.modules():
            if isinstance(part, nn.Conv2d):
                # As loud after the last layer as before the first: torch's own start would leave what it sees a
                # twentieth of the position codes that are added to it.
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        self.summary = nn.Linear(9, channels)
        self.look_around = Attention(channels, config.heads)
        self.summarise = Attention(channels, config.heads)

    def forward(self, parallax: Float[Tensor, "M 9 h w"], R_ref_turned: Float[Tensor, "M 3 3"]) -> Float[Tensor, "M C"]:
        x = self.cnn(parallax)
        tokens = x.flatten(2).mT + position_code(x)
        tokens = torch.cat([self.summary(R_ref_turned.flatten(1))[:, None].to(tokens.dtype), tokens], dim=1)
        tokens = self.look_around(tokens)
        return self.summarise.look(tokens[:, :1], self.summarise.show(tokens)).squeeze(1)


def pose_vector(T: Pose) -> Float[Tensor, "*B 12"]:
    """A pose as numbers for a network: its rotation matrix and its translation."""
    return torch.cat([T.R.flatten(-2), T.t], dim=-1)


class EdgeMessages(nn.Module):
    """One round: every edge hears from the others what they saw, and where their references stand beside its own."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.to_query = nn.Linear(channels, channels, bias=False)
        self.message = nn.Sequential(
            nn.Linear(2 * channels + 12, channels), nn.GELU(), nn.Linear(channels, 2 * channels)
        )
        self.out = nn.Linear(channels, channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(
        self, x: Float[Tensor, "B R C"], relative: Float[Tensor, "B R R 12"], ref_mask: Bool[Tensor, "B R"]
    ) -> Float[Tensor, "B R C"]:
        normed = self.norm(x)
        num_refs = x.shape[1]
        x_i = normed[:, :, None].expand(-1, -1, num_refs, -1)  # receiver
        x_j = normed[:, None].expand(-1, num_refs, -1, -1)  # sender
        message = self.message(torch.cat([x_i, x_j, relative.to(x.dtype)], dim=-1))  # [B, R, R, 2C]
        key, value = message.unflatten(-1, (2, self.heads, -1)).unbind(dim=3)  # [B, R, R, heads, C/heads]
        query = self.to_query(normed).unflatten(-1, (self.heads, -1))  # [B, R, heads, C/heads]
        score = (query[:, :, None] * key).sum(dim=-1) / key.shape[-1] ** 0.5  # [B, R, R, heads]
        score = precise(score).masked_fill(~ref_mask[:, None, :, None], -1e4)
        attended = (score.softmax(dim=2)[..., None].to(value.dtype) * value).sum(dim=2).flatten(2)
        x = x + self.out(attended)
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]  # nn.Module is untyped


@dataclass(frozen=True)
class PoseAnswers:
    """Where B queries were taken."""

    T_ref_query: Pose
    """Batch shape [B, R]."""
    log_sigma: Float[Tensor, "B R 2"]
    """Log of the expected error of each edge: metres, radians."""
    overlap: Float[Tensor, "B R"]
    """Logit of the share of the query that the reference sees."""
    T_world_query: Pose
    """All edges fused, batch shape [B]."""

    def __getitem__(self, graphs: slice) -> "PoseAnswers":
        return PoseAnswers(**{name: part[graphs] for name, part in vars(self).items()})

    @staticmethod
    def cat(answers: Sequence["PoseAnswers"]) -> "PoseAnswers":
        T_ref_query, T_world_query = (
            Pose.cat([getattr(some, name) for some in answers]) for name in ("T_ref_query", "T_world_query")
        )
        log_sigma, overlap = (torch.cat([getattr(some, name) for some in answers]) for name in ("log_sigma", "overlap"))
        return PoseAnswers(T_ref_query, log_sigma, overlap, T_world_query)


@dataclass(frozen=True)
class SettledAnswers:
    """What MatchGNN says about B queries in the end."""

    edges: PoseAnswers
    settled: Settled
    """The poses of the last layer."""
    doubting: Settled
    """What they would be if no lens had been told."""


@dataclass(frozen=True)
class MatchAnswers(PoseAnswers):
    """What MatchGNN says about B queries: where they were taken, and what that was read from."""

    matches: Matches
    flow: Flow


class Descriptor(nn.Module):
    """What an image is found by: NetVLAD on the context features, reduced; so one network retrieves and localizes."""

    def __init__(self, config: MatchConfig) -> None:
        super().__init__()
        self.netvlad = NetVLAD(config.context_channels, config.num_clusters)
        self.reduce = nn.Linear(self.netvlad.descriptor_dim, config.descriptor_dim)

    def forward(self, context: Float[Tensor, "M C h w"]) -> Float[Tensor, "M D"]:
        with torch.autocast(context.device.type, enabled=False):
            return F.normalize(self.reduce(self.netvlad(precise(context))), dim=-1)


class MatchGNN(nn.Module):
    """One query, R references of known pose, no intrinsics needed: the query's pose, edge by edge and fused."""

    def __init__(self, config: MatchConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or MatchConfig()
        self.encoder = DenseEncoder(config)
        self.descriptor = Descriptor(config)
        self.matcher = Matcher(config)
        self.edge = EdgeNetwork(config)
        self.messages = nn.ModuleList(EdgeMessages(config.edge_channels, config.heads) for _ in range(config.rounds))
        answer = nn.Linear(config.edge_channels, 12)
        # Every edge begins with "only turned": a rotation head that starts anywhere may start 180 degrees away.
        nn.init.zeros_(answer.weight)
        nn.init.zeros_(answer.bias)
        self.head = nn.Sequential(
            nn.LayerNorm(config.edge_channels),
            nn.Linear(config.edge_channels, config.edge_channels),
            nn.GELU(),
            answer,
        )

    def encode(self, images: Tensor) -> ImageFeatures:
        """Features of images [M, H, W, 3] with values within 0 and 255. A map's are computed once and kept."""
        features: ImageFeatures = self.encoder(images)
        return features

    def flow(
        self,
        matches: Matches,
        query_hw: tuple[int, int],
        ref_hw: tuple[int, int],
        query_lenses: Lenses | None,
        ref_lenses: Lenses | None,
    ) -> Flow:
        """What the pose network sees: geometry, and nothing of what things look like."""
        # The pose takes matches as they are: its loss does not bend them to its wishes.
        with torch.set_grad_enabled(self.config.pose_teaches_matches and torch.is_grad_enabled()):
            anchors = cell_anchors(*query_hw, COARSE_STRIDE, matches.xy.device).to(matches.xy.dtype)
            anchors = anchors.expand(len(matches.xy), -1, -1)
            here = likely_rays(anchors, query_hw) if query_lenses is None else query_lenses.rays(anchors)
            there = likely_rays(matches.xy, ref_hw) if ref_lenses is None else ref_lenses.rays(matches.xy)
            knows = [
                torch.full_like(matches.confidence, float(lenses is not None)) for lenses in (query_lenses, ref_lenses)
            ]
            return Flow(
                here=here[:, None].expand_as(there),
                there=there.nan_to_num(0.0).clamp(-STEEPEST, STEEPEST),  # a bent lens has no ray for some pixels
                confidence=matches.confidence if torch.is_grad_enabled() else matches.confidence.detach(),
                knows=torch.stack(knows, dim=-1),
                grid_hw=(query_hw[0] // COARSE_STRIDE, query_hw[1] // COARSE_STRIDE),
            )

    def flows(
        self,
        matches: Matches,
        query_hw: tuple[int, int],
        ref_hw: tuple[int, int],
        query_lenses: Lenses | None,
        ref_lenses: Lenses | None,
    ) -> Flows:
        """What the parts of the network see of lenses of which some are known."""
        known = untold = self.flow(matches, query_hw, ref_hw, None, None)
        if query_lenses is not None or ref_lenses is not None:
            known = self.flow(matches, query_hw, ref_hw, query_lenses, ref_lenses)
        return Flows(untold if query_lenses is None or ref_lenses is None else known, known, untold)

    def forward(
        self,
        query: ImageFeatures,
        references: ImageFeatures,
        T_world_ref: Pose,
        ref_mask: Bool[Tensor, "B R"],
        *,
        query_lenses: Lenses | None = None,
        ref_lenses: Lenses | None = None,
    ) -> MatchAnswers:
        """Poses of B queries among R references each; `references` holds B x R images, those of a query together."""
        matches: Matches = self.matcher(query, references, ref_mask.shape[1])
        flow = self.flow(matches, _image_size(query), _image_size(references), query_lenses, ref_lenses)
        return self.regress(matches, flow, T_world_ref, ref_mask)

    def regress(self, matches: Matches, flow: Flow, T_world_ref: Pose, ref_mask: Bool[Tensor, "B R"]) -> MatchAnswers:
        """Poses of B queries from where their cells went: all that follows matching."""
        return MatchAnswers(**vars(self.pose(flow, T_world_ref, ref_mask)), matches=matches, flow=flow)

    def answer(
        self, mutual: Bool[Tensor, "B R P"], flows: Flows, T_world_ref: Pose, ref_mask: Bool[Tensor, "B R"]
    ) -> SettledAnswers:
        """What the network says in the end, and what it would say if no lens had been told."""
        if flows.known is flows.untold:
            answers = self.pose(flows.untold, T_world_ref, ref_mask)
            settled = self.settle(answers, mutual, flows.untold, T_world_ref, ref_mask)
            return SettledAnswers(answers, settled, settled)
        # Both at once, as graphs of one batch: on a GPU they take hardly longer than one.
        num_graphs, T_twice = len(ref_mask), Pose.cat([T_world_ref, T_world_ref])
        mutual, ref_mask_twice = torch.cat([mutual, mutual]), torch.cat([ref_mask, ref_mask])
        if flows.told is flows.untold:
            answers = self.pose(flows.untold, T_world_ref, ref_mask)
            answers = PoseAnswers.cat([answers, answers])
        else:
            answers = self.pose(Flow.of_graphs([flows.told, flows.untold]), T_twice, ref_mask_twice)
        known = Flow.of_graphs([flows.known, flows.untold])
        settled = self.settle(answers, mutual, known, T_twice, ref_mask_twice)
        return SettledAnswers(answers[:num_graphs], settled[:num_graphs], settled[num_graphs:])

    def settle(
        self,
        answers: PoseAnswers,
        mutual: Bool[Tensor, "B R P"],
        flow: Flow,
        T_world_ref: Pose,
        ref_mask: Bool[Tensor, "B R"],
    ) -> Settled:
        """The poses on which matches agree, from what the edges say: the last layer, which has no weights.

        It takes all lenses that are known, whatever the pose network was told of them.
        """
        with torch.autocast(T_world_ref.device.type, enabled=False):
            log_sigma = answers.log_sigma.masked_fill(~ref_mask[..., None], torch.inf)
            surest = log_sigma[..., 0].topk(min(SUREST_EDGES, ref_mask.shape[1]), dim=1, largest=False).indices
            edges = T_world_ref @ answers.T_ref_query
            R, t = edges.R.take_along_dim(surest[..., None, None], 1), edges.t.take_along_dim(surest[..., None], 1)
            return settle(
                flow.here,
                flow.there,
                flow.confidence * (mutual & ref_mask[..., None]),
                flow.knows[:, 0, 0] > 0,
                T_world_ref,
                Pose.cat([answers.T_world_query[:, None], Pose(R, t)], dim=1),
                log_sigma.amin(dim=1).exp(),
            )

    def pose(self, flow: Flow, T_world_ref: Pose, ref_mask: Bool[Tensor, "B R"]) -> PoseAnswers:
        """The same, whatever the flow was read from."""
        # Every reference is turned as the query is, so that parallax, the ways from one reference to another and the
        # answers have the same axes in all edges, and nearly those of the query.
        with torch.autocast(T_world_ref.device.type, enabled=False):
            R_ref_turned = flow.turn().detach()
            parallax = flow.parallax(R_ref_turned)
        T_ref_turned = Pose(R_ref_turned, torch.zeros_like(R_ref_turned[..., 0]))
        T_world_turned = T_world_ref @ T_ref_turned
        T_i_j = T_world_turned[:, :, None].inverse() @ T_world_turned[:, None]
        relative = pose_vector(T_i_j) if self.config.map_poses else pose_vector(T_i_j).zero_()
        x = self.edge(parallax, R_ref_turned.flatten(0, 1)).unflatten(0, tuple(ref_mask.shape))
        for message_round in self.messages:
            x = message_round(x, relative, ref_mask)
        out = precise(self.head(x))
        T_turned_query = Pose(residual_rotation(out[..., :6]), out[..., 6:9])
        log_sigma = gently_within(out[..., 9:11], -7.0, 3.0)
        T_world_query = fuse(T_world_turned @ T_turned_query, log_sigma, ref_mask)
        return PoseAnswers(T_ref_turned @ T_turned_query, log_sigma, out[..., 11], T_world_query)


def _image_size(features: ImageFeatures) -> tuple[int, int]:
    height, width = features.fine.shape[2:]
    return height * FINE_STRIDE, width * FINE_STRIDE


def _from_middle(xy: Float[Tensor, "*B 2"], image_hw: tuple[int, int]) -> Float[Tensor, "*B 2"]:
    """Pixels as shares of the image's longer side, from its middle."""
    height, width = image_hw
    # Numbers, not a tensor made here: to copy one to a GPU would wait for all that it has to do.
    return torch.stack([xy[..., 0] - width / 2, xy[..., 1] - height / 2], dim=-1) / max(height, width)


def gently_within(x: Float[Tensor, "*B"], low: float, high: float) -> Float[Tensor, "*B"]:
    """Numbers within two bounds. Unlike a clamp, it has a gradient beyond them: who is too sure can be told so."""
    return high - F.softplus(high - low - F.softplus(x - low))


def residual_rotation(residual: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation whose first two columns are those of the identity plus a residual, made orthonormal."""
    first, second = residual.unflatten(-1, (2, 3)).unbind(dim=-2)
    x_axis, y_axis, _ = torch.eye(3, dtype=residual.dtype, device=residual.device)
    first = F.normalize(first + x_axis, dim=-1)
    second = second + y_axis
    second = F.normalize(second - (first * second).sum(dim=-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


def fuse(T_world_query: Pose, log_sigma: Float[Tensor, "B R 2"], ref_mask: Bool[Tensor, "B R"]) -> Pose:
    """One pose [B] from those of the edges [B, R], each weighed by the inverse square of the error it expects."""
    log_weight = (-2 * log_sigma).masked_fill(~ref_mask[..., None], -torch.inf)
    weight = log_weight.softmax(dim=1)
    center = (weight[..., :1] * T_world_query.t).sum(dim=1)
    mean = (weight[..., 1, None, None] * T_world_query.R).sum(dim=1)
    # Rotations half a turn apart have no mean, and near there its gradient has no bound: the surest edge decides.
    surest = weight[..., 1].argmax(dim=1)[:, None, None, None]
    R_surest = T_world_query.R.take_along_dim(surest, dim=1).squeeze(1)
    # Gram-Schmidt on the mean of similar rotations: its gradient is tame where an SVD's is not.
    first = F.normalize(mean[..., 0], dim=-1)
    second = mean[..., 1] - (first * mean[..., 1]).sum(dim=-1, keepdim=True) * first
    is_mean = torch.minimum(mean[..., 0].norm(dim=-1), second.norm(dim=-1)) > LEAST_AGREEMENT
    second = F.normalize(second, dim=-1)
    R_mean = torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)
    return Pose(torch.where(is_mean[:, None, None], R_mean, R_surest), center)
