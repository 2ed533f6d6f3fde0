"""How fast maps are built and asked, and what they take on the disk: figures for `relograph bench map`.

Photos are rendered in validation rooms and lie on the disk as JPEG. A map is built of them from the first byte of a
photo to the last of the map, then queries are localized in it with what it keeps. Photos may be fewer than those of the
map, which then has each of them under several names: nothing is saved by that, as all is decoded and encoded anew.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from math import ceil
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from PIL import Image

from relograph.localization import Localizer
from relograph.localization.map_features import Precision
from relograph.maps.building import processes_worthwhile
from relograph.maps.features import RecentFeatures
from relograph.maps.map import Map
from relograph.maps.records import LEVELS, Level
from relograph.maps.shards import PART_BY_TENSOR, PHOTOS_PER_SHARD, STEP, Shard
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn, weights_are_shipped
from relograph.progress import SILENT, Progress
from relograph.replaying import WARM_UP_CALLS
from relograph.rooms.room_maps import RoomMapConfig, room_maps
from relograph.rooms.textures import TextureAtlas
from relograph.scenes.frame import FileSource, Frame

PHOTO_HW = (480, 640)
PHOTO_QUALITY = 92
"""Of the JPEGs that maps are built of, as cameras write them."""
VIEWS_PER_HOME = 32
WARM_UP_QUERIES = WARM_UP_CALLS + 1
"""Until a GPU has recorded what it replays from then on."""
VARIANTS: tuple[tuple[Precision, tuple[Level, ...]], ...] = (
    ("float16", LEVELS[:2]),
    ("int8", LEVELS[:2]),
    ("float16", ()),
    ("float16", LEVELS),
)
RANDOM_WEIGHTS = "0" * 64
"""In the place of the SHA-256 of weights."""
STAGES = ("decode", "encode", "retrieve", "match", "solve")


@dataclass(frozen=True, kw_only=True)
class MapFigures:
    """One row of the benchmark: a map that keeps some of its features."""

    levels: str
    """Of features that are kept; the others are computed again for the references of a query."""
    precision: Precision
    photos: int
    photo_height: int
    photo_width: int
    build_s: float
    photos_per_second: float
    reading_processes: int
    """That read the photos; with 0 threads did."""
    build_cpu_ms: float | None
    """Of all cores together, for a photo: what a machine that is busy otherwise does not change. None where processes
    read, whose time this one does not know."""
    photo_kb: float
    """On the disk, all in all, in 1000 bytes; then its parts."""
    context_kb: float
    coarse_kb: float
    fine_kb: float
    steps_kb: float
    """What a 1 stands for in int8."""
    descriptor_kb: float
    jpeg_kb: float
    database_kb: float
    """With the heads of files."""
    query_ms: float
    """The median; of the stages, too. Match takes in what has to be computed again."""
    decode_ms: float
    encode_ms: float
    retrieve_ms: float
    match_ms: float
    solve_ms: float | None
    """None where weights are random: they find no matches to solve. The query is without it then."""


def network_to_measure(weights: Path | None, device: str) -> LoadedMatchGNN:
    """The network in a folder, or the package's own; while that has none, one of the same size with random weights."""
    if weights is not None or weights_are_shipped():
        network = load_match_gnn(weights)
    else:
        network = LoadedMatchGNN(MatchGNN().eval().requires_grad_(False), RANDOM_WEIGHTS, {})
    network.model.to(device)
    return network


def is_random(network: LoadedMatchGNN) -> bool:
    """Whether its weights have learned nothing."""
    return network.sha256 == RANDOM_WEIGHTS


def benchmark_map(
    network: LoadedMatchGNN,
    *,
    num_photos: int = 256,
    num_views: int = 64,
    num_queries: int = 20,
    photo_hw: tuple[int, int] = PHOTO_HW,
    variants: Sequence[tuple[Precision, tuple[Level, ...]]] = VARIANTS,
    seed: int = 0,
    atlas: TextureAtlas | None = None,
    keep: Callable[[Sequence[Mapping[str, object]]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """Figures of a map for each of the variants, by the network where it is; `keep` sees them as they come."""
    rows: list[dict[str, object]] = []
    with TemporaryDirectory() as folder:
        views, queries = render_photos(
            Path(folder) / "photos",
            num_views=min(num_views, num_photos),
            num_queries=num_queries + WARM_UP_QUERIES,
            photo_hw=photo_hw,
            seed=seed,
            atlas=atlas,
            progress=progress,
        )
        frames = repeated(views, num_photos)
        num_processes = processes_worthwhile(network.model, num_photos)
        warm_up = frames[:PHOTOS_PER_SHARD]
        Map.create(Path(folder) / "warm-up", warm_up, network=network, num_processes=num_processes)
        for precision, levels in variants:
            measured = Path(folder) / "measured"
            rows.append(asdict(_measure(measured, frames, queries, network, precision, levels, progress)))
            shutil.rmtree(measured)  # a disk need not hold all of them
            keep(rows)
    return rows


def render_photos(
    folder: Path,
    *,
    num_views: int,
    num_queries: int,
    photo_hw: tuple[int, int] = PHOTO_HW,
    seed: int = 0,
    atlas: TextureAtlas | None = None,
    progress: Progress = SILENT,
) -> tuple[list[Frame], list[Frame]]:
    """Photos of validation rooms as files in `folder`, and others of the same rooms as queries.

    By the CPU, as a GPU would first compile its renderer for this size, which takes longer than a few photos.
    """
    num_homes = ceil(num_views / VIEWS_PER_HOME)
    config = RoomMapConfig(
        num_homes=num_homes,
        map_views=ceil(num_views / num_homes),
        query_views=ceil(num_queries / num_homes),
        image_height=photo_hw[0],
        image_width=photo_hw[1],
    )
    views: list[Frame] = []
    queries: list[Frame] = []
    folder.mkdir()
    homes = room_maps("validation", config, seed=seed, atlas=atlas, progress=progress)
    for number, home in enumerate(homes):
        for row, is_query in enumerate(home.is_query.tolist()):
            name = f"home-{number}-{row}.jpg"
            Image.fromarray(home.images[row].numpy()).save(folder / name, quality=PHOTO_QUALITY)
            T_world_cam, file = home.T_world_cam[row].to(dtype=torch.float64), FileSource(folder / name)
            (queries if is_query else views).append(Frame(name, T_world_cam, file, home.camera(row)))
    return views[:num_views], queries[:num_queries]


def repeated(views: Sequence[Frame], count: int) -> list[Frame]:
    """`count` frames of those photos, each of which may be there under several names.

    They come in another order each time: a map would notice that it has a shard already, and keep it once.
    """
    rounds = (Random(number).sample(views, len(views)) for number in range(ceil(count / len(views))))
    return [
        Frame(f"{number:06d}-{view.name}", view.T_world_cam, view.image, view.camera)
        for number, view in enumerate(islice(chain.from_iterable(rounds), count))
    ]


def _measure(
    folder: Path,
    frames: Sequence[Frame],
    queries: Sequence[Frame],
    network: LoadedMatchGNN,
    precision: Precision,
    levels: tuple[Level, ...],
    progress: Progress,
) -> MapFigures:
    num_processes = processes_worthwhile(network.model, len(frames))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    made = Map.create(
        folder,
        frames,
        network=network,
        precision=precision,
        levels=levels,
        num_processes=num_processes,
        progress=progress,
    )
    build_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    # Queries of one place find photos that the last one found; what stays at hand of those is not to be measured.
    features = replace(made.features, recent=RecentFeatures(0))
    seconds = query_seconds(Localizer(features, network), queries, progress)
    milliseconds = {stage: 1000 * statistics.median(of_stage) for stage, of_stage in seconds.items()}
    measured = STAGES[:-1] if is_random(network) else STAGES
    in_all = [sum(of_query) for of_query in zip(*(seconds[stage] for stage in measured), strict=True)]
    return MapFigures(
        levels=", ".join(levels) or "none",
        precision=precision,
        photos=len(frames),
        photo_height=made.frames[0].photo_height,
        photo_width=made.frames[0].photo_width,
        build_s=build_s,
        photos_per_second=len(frames) / build_s,
        reading_processes=num_processes,
        build_cpu_ms=None if num_processes else 1000 * cpu_s / len(frames),
        **{f"{part}_kb": num_bytes / len(frames) / 1000 for part, num_bytes in bytes_by_part(made).items()},
        query_ms=1000 * statistics.median(in_all),
        **{f"{stage}_ms": milliseconds[stage] if stage in measured else None for stage in STAGES},  # type: ignore[arg-type]  # None for solve alone
    )


def query_seconds(
    localizer: Localizer, queries: Sequence[Frame], progress: Progress = SILENT
) -> dict[str, list[float]]:
    """Seconds of each stage of each query, after a few that warm up."""
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    with progress.task("localizing queries", total=len(queries)) as advance:
        for number, query in enumerate(queries):
            answer = localizer.localize(query.image.path, camera=query.camera)
            if number >= WARM_UP_QUERIES:
                for stage, of_stage in seconds.items():
                    of_stage.append(answer.seconds[stage])
            advance(1)
    return seconds


def bytes_by_part(made: Map) -> dict[str, int]:
    """What a map takes on the disk: all (`photo`), then its parts."""
    by_part = dict.fromkeys((*LEVELS, "steps", "descriptor", "jpeg"), 0)
    for shard in made.features.shards:
        assert isinstance(shard, Shard)  # those of a folder are
        for name, tensor in shard.tensors.items():
            part = PART_BY_TENSOR.get(name, name)
            by_part["steps" if name.endswith(f".{STEP}") else part] += tensor.numel() * tensor.element_size()
    in_all = sum(made.store.num_bytes().values())
    return {"photo": in_all, **by_part, "database": in_all - sum(by_part.values())}


def map_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as a Markdown table."""
    columns = {
        "features": "{levels} in {precision}",
        "photos/s": "{photos_per_second:.1f}",
        "ms of a core": "{build_cpu_ms:.0f}",
        "KB a photo": "{photo_kb:.1f}",
        "of it JPEG": "{jpeg_kb:.1f}",
        "query [ms]": "{query_ms:.0f}",
        **{stage: f"{{{stage}_ms:.1f}}" for stage in STAGES},
    }
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in rows:
        told = {name: _Missing() if value is None else value for name, value in row.items()}
        lines.append(f"| {' | '.join(text.format(**told) for text in columns.values())} |")
    return "\n".join(lines)


class _Missing:
    """A number that is not known, in a table."""

    def __format__(self, spec: str) -> str:
        return "–"
