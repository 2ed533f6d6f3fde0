"""A million descriptors that are like those of some thousand rendered views.

Views are rendered home by home, some for the map and others for queries, and described by whatever weights are given.
More homes are drawn from these by mirroring each of them in some of the axes along which descriptors vary (the
eigenvectors of their second moments), all of its views alike. That keeps every distance between the views of a home,
the length of descriptors, and how much they vary along each axis: their spectrum. The first axis, which is close to
their mean, is not mirrored. Queries are rendered views as they are, and look for homes as they are
among the drawn ones.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from relograph.errors import ConfigError, DatasetError
from relograph.progress import SILENT, Progress
from relograph.retrieval.index import ExactIndex, unit_rows
from relograph.rooms.room_maps import Part, RoomMapConfig, room_maps
from relograph.rooms.textures import TextureAtlas

VIEWS_PER_HOME = 60
PIXELS_HW = (16, 16)

Describe = Callable[[UInt8[Tensor, "M H W 3"]], Float[Tensor, "M D"]]


@dataclass(frozen=True)
class DescribedViews:
    """Rendered views as their descriptors, of unit length."""

    map: Float[Tensor, "F D"]
    home: Int[Tensor, "F"]
    """Of each view of the maps."""
    queries: Float[Tensor, "Q D"]
    described_by: str
    """What made the descriptors, for those who read the figures."""

    def save(self, path: Path) -> None:
        tensors = {"map": self.map, "home": self.home, "queries": self.queries}
        path.parent.mkdir(parents=True, exist_ok=True)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, path, metadata={"described_by": self.described_by})

    @staticmethod
    def load(path: Path) -> "DescribedViews":
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in ("map", "home", "queries")}
                return DescribedViews(**tensors, described_by=file.metadata()["described_by"])
        except Exception as error:  # safetensors raises many kinds for files that are none of its own
            raise DatasetError(
                f"{path}: expected descriptors of rendered views, found: {error}. Remove the file to make it again."
            ) from error


def describe_pixels(images: UInt8[Tensor, "M H W 3"]) -> Float[Tensor, "M D"]:
    """Small grey images less their mean: descriptors without any weights, for trying things out."""
    grey = images.float().mean(dim=-1)[:, None]
    small = torch.nn.functional.adaptive_avg_pool2d(grey, PIXELS_HW).flatten(1)
    return unit_rows(small - small.mean(dim=1, keepdim=True))


def describe_views(
    part: Part,
    describe: Describe,
    described_by: str,
    *,
    num_views: int,
    num_queries: int,
    seed: int = 0,
    atlas: TextureAtlas | None = None,
    device: str = "cpu",
    parts: Path | None = None,
    progress: Progress = SILENT,
) -> DescribedViews:
    """Descriptors of views that are rendered for it; those of each home are kept in `parts`, for a run that is cut."""
    per_home = min(VIEWS_PER_HOME, num_views)
    num_homes = ceil(num_views / per_home)
    config = RoomMapConfig(num_homes=num_homes, map_views=per_home, query_views=ceil(num_queries / num_homes))
    kept = None if parts is None else parts / _name_of(part, config, described_by, seed)
    described = [] if kept is None else _read_homes(kept, num_homes)
    if len(described) < num_homes:
        first_home = len(described)
        rooms = room_maps(part, config, seed=seed, atlas=atlas, device=device, first_home=first_home, progress=progress)
        for home in rooms:
            descriptors = unit_rows(describe(home.images)).cpu()
            described.append((descriptors[~home.is_query], descriptors[home.is_query]))
            if kept is not None:
                _write_home(kept, len(described) - 1, *described[-1])
    in_maps, queries = (torch.cat(some) for some in zip(*described, strict=True))
    homes = torch.arange(num_homes).repeat_interleave(per_home)
    return DescribedViews(in_maps[:num_views], homes[:num_views], queries, described_by)


def _name_of(part: Part, config: RoomMapConfig, described_by: str, seed: int) -> str:
    """Of a folder for homes as they are made so: their number may grow."""
    told = repr((part, replace(config, num_homes=1), described_by, seed))
    return f"views-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _read_homes(folder: Path, num_homes: int) -> list[tuple[Float[Tensor, "_ D"], Float[Tensor, "_ D"]]]:
    """Descriptors of the map's views and of the queries of the first homes, as far as they are kept."""
    homes: list[tuple[Tensor, Tensor]] = []
    while len(homes) < num_homes and (path := folder / f"home-{len(homes)}.safetensors").exists():
        tensors = load_file(path)
        homes.append((tensors["map"], tensors["queries"]))
    return homes


def _write_home(folder: Path, number: int, of_map: Float[Tensor, "_ D"], of_queries: Float[Tensor, "_ D"]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"home-{number}.partial"
    save_file({"map": of_map.contiguous(), "queries": of_queries.contiguous()}, partial)
    partial.replace(partial.with_suffix(".safetensors"))


def drawn_like(views: DescribedViews, count: int, *, seed: int = 0) -> Iterator[Float[Tensor, "F D"]]:
    """`count` descriptors in blocks: those of the views as they are first, then mirrored again and again."""
    if count < 1:
        raise ConfigError(f"The number of descriptors must be at least 1, got {count}.")
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.eigh(views.map.T @ views.map).eigenvectors  # that of the largest eigenvalue comes last
    along_axes = views.map @ axes
    block, num_homes = views.map, int(views.home.max()) + 1
    while count > 0:
        yield block[:count]
        count -= len(block)
        sign = 2.0 * torch.randint(2, (num_homes, len(axes)), generator=generator) - 1
        sign[:, -1] = 1
        block = (along_axes * sign[views.home]) @ axes.T


def likeness(views: DescribedViews, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """How alike rendered views and as many drawn ones are: spectrum, and cosines of the 1st and 10th neighbours."""
    *_, drawn = drawn_like(views, 2 * len(views.map), seed=seed)
    return {"rendered": _figures(views.map), "drawn": _figures(drawn)}


def _figures(descriptors: Float[Tensor, "F D"]) -> dict[str, float]:
    variance = torch.linalg.svdvals(descriptors).square()
    share = variance / variance.sum()
    rows = torch.arange(len(descriptors))
    nearest = ExactIndex(descriptors).search(descriptors, 10, exclude_rows=rows).similarity
    return {
        "effective_dimension": float(1 / share.square().sum()),
        "share_of_first_16_axes": float(share[:16].sum()),
        "median_cosine_of_1st_neighbour": float(nearest[:, 0].median()),
        "median_cosine_of_10th_neighbour": float(nearest[:, -1].median()),
    }
