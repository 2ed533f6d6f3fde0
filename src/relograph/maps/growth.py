"""How maps grow: time and memory against the number of photos, for `relograph bench growth`.

Photos are generated: descriptors that lie together by homes, features of the sizes that the network has, and noise in
the place of small pictures. So maps of any size are built without rendering or encoding; what the network takes for a
photo is measured by `relograph bench map`. All else is what every map does. Each figure is measured in a process of its
own, whose memory is that of this work and nothing else.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from relograph.localization.localizer import CANDIDATES_PER_REFERENCE
from relograph.localization.map_features import Precision, StoredFeatures, encode_levels
from relograph.localization.photos import WorkingSize
from relograph.maps.adding import EncodedPhotos
from relograph.maps.building import max_jpeg_bytes
from relograph.maps.map import Map
from relograph.maps.places import create_store
from relograph.maps.records import Level, MapFrame, MapSettings
from relograph.maps.shards import PHOTOS_PER_SHARD, Shard
from relograph.models.match_gnn import MatchGNN
from relograph.processes import forget_file, in_a_process, peak_memory_mb
from relograph.progress import SILENT, Progress
from relograph.retrieval.benchmark import draw_against_images

PHOTO_HW = (480, 640)
NUM_ADDED = 100
NUM_QUERIES = 200
NUM_WANTED = 7 * CANDIDATES_PER_REFERENCE
"""What a query with the usual number of references asks for."""
HOME_SPREAD = 0.5
"""Of a photo's descriptor about its home's, before both have length 1."""
NO_NETWORK = "0" * 64
ABOUT: dict[str, object] = {"generated": True}


@dataclass(frozen=True)
class MapGrowth:
    """One row of the benchmark: a map of so many photos."""

    images: int
    levels: str
    """Of features that are kept."""
    photo_kb: float
    """On the disk, all in all, in 1000 bytes."""
    build_s: float
    """Making photos up is counted."""
    build_cpu_s: float
    """Of all cores together."""
    build_peak_mb: float
    """Of the whole process, torch included."""
    open_s: float
    """Until it can be asked, with nothing of its files in memory."""
    open_peak_mb: float
    """After a few hundred queries."""
    query_ms: float
    """To find what looks like a query, the median; all but the first."""
    query_cpu_ms: float
    """What a core works for that, the mean."""
    add_100_s: float
    """To add a hundred more photos to the map as it was opened."""
    index_mb: float
    disk_mb: float


@dataclass(frozen=True)
class PhotoKind:
    """What all generated photos have alike."""

    settings: MapSettings
    stored: StoredFeatures
    """Features of one."""
    descriptor_dim: int
    jpeg_bytes: int

    @staticmethod
    def of_network(levels: Sequence[Level], precision: Precision = "float16") -> "PhotoKind":
        """As large as those of the network that is shipped."""
        model, (height, width) = MatchGNN().eval(), WorkingSize.of(*reversed(PHOTO_HW)).size_hw
        images = torch.randint(0, 256, (1, height, width, 3), dtype=torch.uint8)
        kept, descriptor = encode_levels(model, images, len(levels))
        settings = MapSettings(network_sha256=NO_NETWORK, precision=precision, levels=tuple(levels))
        stored = StoredFeatures.of_levels(kept, precision)
        return PhotoKind(settings, stored, descriptor.shape[1], max_jpeg_bytes(settings.levels))


def benchmark_growth(
    counts: Sequence[int],
    levels: Sequence[Level] = (),
    *,
    seed: int = 0,
    folder: Path | None = None,
    keep: Callable[[list[dict[str, object]]], None] = lambda rows: None,
    progress: Progress = SILENT,
) -> list[dict[str, object]]:
    """A row for each number of photos; maps are made in `folder`, or where the system keeps temporary files."""
    rows: list[dict[str, object]] = []
    with progress.task("measuring how maps grow", total=len(counts)) as advance:
        for count in counts:
            rows.append(asdict(map_growth(count, PhotoKind.of_network(levels), seed=seed, folder=folder)))
            keep(rows)
            advance(1)
    return rows


def map_growth(count: int, kind: PhotoKind, *, seed: int = 0, folder: Path | None = None) -> MapGrowth:
    """The row of a map of `count` photos, which is made for it and removed."""
    with TemporaryDirectory(dir=folder) as name:
        place = Path(name) / "map"
        build_s, build_cpu_s, build_peak_mb = in_a_process(build_generated, place, count, kind, seed)
        by_part = Map.open(place).store.num_bytes()
        for path in place.rglob("*"):
            if path.is_file():
                forget_file(path)
        open_s, query_s, query_cpu_s, open_peak_mb = in_a_process(_ask, place, seed)
        add_s = in_a_process(_add, place, count, kind, seed)
    disk_bytes = sum(by_part.values())
    return MapGrowth(
        images=count,
        levels=", ".join(kind.settings.levels),
        photo_kb=disk_bytes / count / 1e3,
        build_s=build_s,
        build_cpu_s=build_cpu_s,
        build_peak_mb=build_peak_mb,
        open_s=open_s,
        open_peak_mb=open_peak_mb,
        query_ms=1e3 * statistics.median(query_s[1:]),
        query_cpu_ms=1e3 * query_cpu_s / len(query_s),
        add_100_s=add_s,
        index_mb=by_part.get("index", 0) / 1e6,
        disk_mb=disk_bytes / 1e6,
    )


def generated_photos(count: int, kind: PhotoKind, *, seed: int = 0, first: int = 0) -> Iterator[EncodedPhotos]:
    """Photos as the network gives them, a shard at a time; `first` is the number of the first."""
    generator = torch.Generator().manual_seed(seed + first)
    for start in range(first, first + count, PHOTOS_PER_SHARD):
        num = min(PHOTOS_PER_SHARD, first + count - start)
        descriptors = _descriptors(num, kind.descriptor_dim, generator)
        jpegs = torch.randint(0, 256, (num, kind.jpeg_bytes), dtype=torch.uint8, generator=generator)
        stored = StoredFeatures.cat([kind.stored] * num)
        size_hw, levels = WorkingSize.of(*reversed(PHOTO_HW)).size_hw, kind.settings.levels
        shard = Shard.of(size_hw, stored, levels, descriptors, [jpeg.numpy().tobytes() for jpeg in jpegs])
        yield EncodedPhotos(tuple(_frame(start + row, row, shard) for row in range(num)), (shard,), 0, ())


def build_generated(place: Path, count: int, kind: PhotoKind, seed: int = 0) -> tuple[float, float, float]:
    """Makes a map of generated photos: seconds, those of all cores together, and peak memory in MB."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    made = Map(create_store(place, kind.settings, "create", ABOUT))
    made.add_encoded(generated_photos(count, kind, seed=seed), ABOUT)
    made.store.tend()
    return time.perf_counter() - begin, time.process_time() - cpu_begin, peak_memory_mb()


def _ask(place: Path, seed: int) -> tuple[float, list[float], float, float]:
    """Seconds to open a map, for each of some queries, and of a core for those; peak memory in MB."""
    begin = time.perf_counter()
    features = Map.open(place).features
    open_s = time.perf_counter() - begin
    generator = torch.Generator().manual_seed(seed + 1)
    rows = torch.randint(len(features), (NUM_QUERIES,), generator=generator).tolist()
    queries = [features.shards[features.shard_of[row]].descriptors[int(features.place[row])].float() for row in rows]
    noise = HOME_SPREAD * torch.randn(NUM_QUERIES, len(queries[0]), generator=generator) / len(queries[0]) ** 0.5
    seconds, cpu_begin = [], time.process_time()
    for query in torch.stack(queries) + noise:
        begin = time.perf_counter()
        features.nearest(query, NUM_WANTED)
        seconds.append(time.perf_counter() - begin)
    return open_s, seconds, time.process_time() - cpu_begin, peak_memory_mb()


def _add(place: Path, count: int, kind: PhotoKind, seed: int) -> float:
    """Seconds to add some photos to a map."""
    some, new = Map.open(place), list(generated_photos(NUM_ADDED, kind, seed=seed, first=count))
    begin = time.perf_counter()
    some.add_encoded(new, ABOUT)
    some.store.tend()
    return time.perf_counter() - begin


def _descriptors(num: int, dim: int, generator: torch.Generator) -> Tensor:
    """Of photos of one home, [num, dim] in half precision."""
    home = torch.randn(1, dim, generator=generator)
    around = home + HOME_SPREAD * torch.randn(num, dim, generator=generator)
    return torch.nn.functional.normalize(around, dim=1).half()


def _frame(number: int, row: int, shard: Shard) -> MapFrame:
    """Photos stand in rows of a hundred, a metre apart."""
    name, (height, width) = f"{number // 10_000:04d}/{number:08d}.jpg", PHOTO_HW
    return MapFrame(
        name=name,
        quat_wxyz=(1.0, 0.0, 0.0, 0.0),
        cam_center_world=(float(number % 100), float(number // 100), 0.0),
        photo_width=width,
        photo_height=height,
        camera_line="",
        sequence=None,
        timestamp_s=None,
        photo_sha256=hashlib.sha256(name.encode()).hexdigest(),
        shard=shard.sha256,
        shard_row=row,
        size_hw=shard.size_hw,
        data_sha256=shard.row_sha256(row),
    )


# What is shown


def growth_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as a Markdown table."""
    columns = {
        "photos": "{images:,}",
        "a photo [kB]": "{photo_kb:.1f}",
        "build [s]": "{build_s:.1f}",
        "of a core": "{build_cpu_s:.1f}",
        "memory to build [MB]": "{build_peak_mb:,.0f}",
        "add 100 [s]": "{add_100_s:.2f}",
        "open [s]": "{open_s:.2f}",
        "memory to ask [MB]": "{open_peak_mb:,.0f}",
        "find [ms]": "{query_ms:.2f}",
        "of a core [ms]": "{query_cpu_ms:.2f}",
        "index [MB]": "{index_mb:,.0f}",
        "disk [MB]": "{disk_mb:,.0f}",
    }
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(text.format(**row) for text in columns.values())} |" for row in rows]
    return "\n".join(lines)


def draw_map_growth(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Time to build, add, open and find, and memory against the number of photos, as a picture."""
    draw_against_images(
        rows,
        {
            "time [s]": {"to build": "build_s", "to open": "open_s", "to add 100 photos": "add_100_s"},
            "to find references [ms]": {"passed": "query_ms", "of a core": "query_cpu_ms"},
            "memory of the process [MB]": {"to build": "build_peak_mb", "to ask": "open_peak_mb"},
        },
        path,
    )
